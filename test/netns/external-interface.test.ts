// external-interface.test.ts - choosing the external address while a real kernel marks addresses as tentative, temporary or deprecated.

import { afterEach, beforeEach, expect, it } from 'vitest'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import { chooseExternalInterface } from '../../src/host/choose-interface.ts'
import { currentExternal } from '../../src/host/external-interface.ts'
import type { HostKernel } from '../../src/host/kernel.ts'
import { addressText, FAMILIES, type Family } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { kernelOf } from '../support/kernel-of.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS)

let lab: Lab
let host: Host
let other: Host
let kernel: HostKernel
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  ;[host, other] = lab.hosts as [Host, Host]
  kernel = kernelOf(host)
})
afterEach(() => lab.close())

const readSysctl = (name: string): Promise<string> =>
  host.output(['cat', `/proc/sys/${name}`]).then((text) => text.trim())
const set = (name: string, value: number): Promise<string> =>
  host.output(['sysctl', '-qw', `net.ipv6.conf.eth0.${name}=${value}`])
const ip = (...words: string[]): Promise<string> => host.output(['ip', ...words])
const add = (address: string, ...words: string[]): Promise<string> =>
  ip('address', 'add', `${address}/64`, 'dev', 'eth0', ...words)
const remove = (address: string): Promise<string> => ip('address', 'del', `${address}/64`, 'dev', 'eth0')

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const wishes = { ifaces: ['eth0'], patterns: [], canReach: '', publicIp: { ipv4: '', ipv6: '' } }
const choose = (families: readonly Family[] = FAMILIES) =>
  chooseExternalInterface(kernel, wishes, families, log, readSysctl)
const chosen = async (): Promise<string> => addressText({ ipv6: (await choose()).address.ipv6 })
const entries = async () => (await kernel.link('eth0'))!.addresses.ipv6

it("follows the kernel's flags of each address", async () => {
  await eventually(async () => expect(await entries()).toMatchObject([{ tentative: false }])) // the link-local address
  expect(await chosen()).toMatch(/^fe80::/)

  // The kernel checks for a duplicate a hundred times, once a second, so the tentative state lasts long enough to be observed.
  await set('dad_transmits', 100)
  await add('fd00:7::1')
  await expect(choose()).rejects.toMatchObject({
    message: expect.stringContaining('failed to find IPv6 address for interface eth0'),
    remedy: expect.stringMatching(/eth0:\[192\.168\.77\.1 .*fd00:7::1\(tentative\).*\] \(no usable IPv6 address\)/),
  })
  await remove('fd00:7::1')
  await set('dad_transmits', 1)

  await other.output(['ip', 'address', 'add', 'fd00:7::2/64', 'dev', 'eth0', 'nodad'])
  await add('fd00:7::2')
  await eventually(async () => expect(await ip('address', 'show', 'dev', 'eth0')).toContain('dadfailed'))
  await expect(choose()).rejects.toMatchObject({ remedy: expect.stringContaining('fd00:7::2(tentative)') })
  await remove('fd00:7::2')

  await add('fd00:7::3', 'nodad', 'valid_lft', '3600', 'preferred_lft', '0')
  expect(await chosen()).toMatch(/^fe80::/)

  await set('use_tempaddr', 2)
  await add('fd00:7::4', 'nodad', 'mngtmpaddr', 'valid_lft', '3600', 'preferred_lft', '3600')
  await eventually(async () =>
    expect((await entries()).filter(({ temporary, tentative }) => temporary && !tentative)).toHaveLength(1),
  )
  expect(await chosen()).toBe('fd00:7::4')
  await add('fd00:7::5', 'nodad')
  expect(await chosen()).toBe('fd00:7::5')
})

it('follows a change of the IPv6 address, and uses no link-local address while the link comes up', async () => {
  await add('fd00:7::1', 'nodad')
  const before = await choose()
  await add('fd00:7::2', 'nodad')
  expect(await currentExternal(kernel, before)).toEqual(before)
  await ip('address', 'change', 'fd00:7::1/64', 'dev', 'eth0', 'valid_lft', '3600', 'preferred_lft', '0')
  expect((await entries()).filter(({ deprecated }) => deprecated)).toHaveLength(1)
  const address = async (): Promise<string> =>
    addressText({ ipv6: (await currentExternal(kernel, before)).address.ipv6 })
  expect(await address()).toBe('fd00:7::2')
  await remove('fd00:7::1')
  expect(await address()).toBe('fd00:7::1') // the address may return in a moment
  await eventually(async () => expect(await address()).toBe('fd00:7::2'))

  // The kernel removes all IPv6 addresses from a link that goes down, and adds the link-local one when it comes up.
  await ip('link', 'set', 'dev', 'eth0', 'down')
  expect(await entries()).toEqual([])
  await ip('link', 'set', 'dev', 'eth0', 'up')
  await eventually(async () => expect(await entries()).toMatchObject([{ tentative: false }]))
  expect(await currentExternal(kernel, before)).toEqual(before)
})

it('names the setting that disables IPv6 on the interface', async () => {
  await set('disable_ipv6', 1)
  await expect(choose()).rejects.toMatchObject({
    code: 'INTERFACE',
    message: expect.stringContaining('IPv6 is off on the interface eth0: net.ipv6.conf.eth0.disable_ipv6 is 1'),
    remedy: expect.stringMatching(/^set it to 0, or name one with --iface: .*eth0:\[192\.168\.77\.1\]/),
  })
  expect((await choose(['ipv4'])).name).toBe('eth0')
})
