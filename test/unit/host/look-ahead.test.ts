// look-ahead.test.ts - the queries of a start run in advance: their results are the same, and are discarded when they may be outdated.

import { beforeEach, expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import type { Run } from '../../../src/host/command.ts'
import { findLink, listLinks, routesTo } from '../../../src/host/links.ts'
import { lookAhead } from '../../../src/host/look-ahead.ts'
import { parseIpv4Net } from '../../../src/net/ipv4.ts'
import { parseIpv6Net } from '../../../src/net/ipv6.ts'

const network = parseIpv4Net('10.5.0.0/16')!
const network6 = parseIpv6Net('fd00:5::/56')!
const links = [
  { ifindex: 1, ifname: 'lo', flags: ['LOOPBACK', 'UP'], mtu: 65536, addr_info: [] },
  { ifindex: 2, ifname: 'eth0', flags: ['UP'], mtu: 1500, addr_info: [{ family: 'inet', local: '192.0.2.1' }] },
]
const toDefault = [{ dst: 'default', dev: 'eth0', gateway: '192.0.2.9' }]
const toNetwork = [{ dst: '10.5.0.0/16', dev: 'flannel0' }]
const toDefault6 = [{ dst: 'default', dev: 'eth6', gateway: 'fe80::1', protocol: 'ra' }]
const toNetwork6 = [{ dst: 'fd00:5::/56', dev: 'flannel-v6.1' }]

/** Records the commands, and answers a batch. */
let ran: string[] = []
let batch: string | Error = ''
let batch6: string | Error = ''
const run: Run = async (_file, args) => {
  ran.push(args.join(' '))
  if (!args.includes('-batch')) return '[]\n'
  const answer = args.includes('-6') ? batch6 : batch
  if (answer instanceof Error) throw answer
  return answer
}

beforeEach(() => {
  ran = []
  batch = [links, toDefault, toNetwork].map((each) => `${JSON.stringify(each)}\n`).join('')
  batch6 = [toDefault6, toNetwork6].map((each) => `${JSON.stringify(each)}\n`).join('')
})

const singly = (look: { run: Run }) =>
  Promise.all([
    listLinks(look.run),
    findLink(look.run, 'eth0'),
    routesTo(look.run, 'ipv4'),
    routesTo(look.run, network),
  ])

it('answers from one process instead of four', async () => {
  const look = lookAhead(run, { ipv4: network })
  for (let times = 0; times < 2; times++) {
    const [all, eth0, [byDefault], [ours]] = await singly(look)
    expect(all.map(({ name }) => name)).toEqual(['lo', 'eth0'])
    expect(eth0).toMatchObject({ index: 2, mtu: 1500, addresses: { ipv4: [{ address: 0xc0000201 }], ipv6: [] } })
    expect(byDefault).toMatchObject({ device: 'eth0', destination: 'default' })
    expect(ours).toMatchObject({ device: 'flannel0', destination: '10.5.0.0/16' })
  }
  expect(ran).toEqual(['-j -d -batch -'])
})

it('runs `ip` for an unknown link, to get the error message', async () => {
  const look = lookAhead(run, { ipv4: network })
  expect(await findLink(look.run, 'flannel0')).toBeUndefined()
  expect(ran).toEqual(['-j -d -batch -', '-j address show dev flannel0'])
})

it.each([
  ['something was changed', (look: ReturnType<typeof lookAhead>) => look.run('ip', ['link', 'del', 'dev', 'flannel0'])],
  ['something else was asked', (look: ReturnType<typeof lookAhead>) => look.run('ip', ['-j', 'rule', 'show'])],
  ['it was told to forget', async (look: ReturnType<typeof lookAhead>) => look.forget()],
])('discards all results after %s', async (_title, happens) => {
  const look = lookAhead(run, { ipv4: network })
  await routesTo(look.run, network)
  await happens(look)
  ran = []
  expect(await routesTo(look.run, network)).toEqual([])
  expect(ran).toEqual(['-j -4 route show exact 10.5.0.0/16'])
})

it.each([
  ['fails', new WeftError('COMMAND', '`ip -j -d -batch -` failed: unknown')],
  ['says less than it was asked', `${JSON.stringify(links)}\n`],
])('runs single queries if the batch %s', async (_title, said) => {
  batch = said
  const look = lookAhead(run, { ipv4: network })
  expect(await routesTo(look.run, network)).toEqual([])
  expect(ran).toEqual(['-j -d -batch -', '-j -4 route show exact 10.5.0.0/16'])
})

it('uses a second process for IPv6, and does not mix up the families', async () => {
  const look = lookAhead(run, { ipv4: network, ipv6: network6 })
  for (let times = 0; times < 2; times++) {
    await singly(look)
    expect(await routesTo(look.run, 'ipv4')).toMatchObject([{ device: 'eth0' }])
    expect(await routesTo(look.run, 'ipv6')).toMatchObject([{ device: 'eth6', protocol: 'ra' }])
    expect(await routesTo(look.run, network6)).toMatchObject([{ device: 'flannel-v6.1', destination: 'fd00:5::/56' }])
  }
  expect(ran).toEqual(['-j -d -batch -', '-j -d -6 -batch -'])
})

it('queries only IPv6 in an IPv6 network', async () => {
  batch = `${JSON.stringify(links)}\n`
  const look = lookAhead(run, { ipv6: network6 })
  expect((await listLinks(look.run)).map(({ name }) => name)).toEqual(['lo', 'eth0'])
  expect(await routesTo(look.run, 'ipv6')).toMatchObject([{ device: 'eth6' }])
  expect(ran).toEqual(['-j -d -batch -', '-j -d -6 -batch -'])
  expect(await routesTo(look.run, 'ipv4')).toEqual([])
  expect(ran.at(-1)).toBe('-j -4 route show exact default')
})

it('has no IPv6 results in an IPv4 network', async () => {
  const look = lookAhead(run, { ipv4: network })
  expect(await routesTo(look.run, 'ipv6')).toEqual([])
  expect(ran).toEqual(['-j -d -batch -', '-j -6 route show exact default'])
})

it('uses the results of one process if the other fails', async () => {
  batch = new WeftError('COMMAND', '`ip -j -d -batch -` failed: unknown')
  const look = lookAhead(run, { ipv4: network, ipv6: network6 })
  expect(await routesTo(look.run, 'ipv6')).toMatchObject([{ device: 'eth6' }])
  expect(await findLink(look.run, 'eth0')).toBeUndefined()
  expect(ran.at(-1)).toBe('-j address show dev eth0')
})
