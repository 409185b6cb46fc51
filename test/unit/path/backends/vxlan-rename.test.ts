// vxlan-rename.test.ts - a renamed external interface under the kernel's vxlan device, which refers to it by index.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { OwnLease } from '../../../../src/control/lease/lease.ts'
import type { Run } from '../../../../src/host/command.ts'
import { currentExternal, type ExternalInterface } from '../../../../src/host/external-interface.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { openVxlanDevice } from '../../../../src/path/backends/vxlan-device.ts'
import { prepareKernelVxlan } from '../../../../src/path/backends/vxlan-kernel.ts'
import { openPaths } from '../../../support/data-paths.ts'

const MAC = '02:ff:ff:ff:ff:ff'
const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }

/** A kernel with an interface of index 2, and one vxlan device bound to it. */
function kernel() {
  const state = { nic: 'eth0' as string | undefined, hasVxlan: true, vni: 1, done: [] as string[] }
  const nicLink = () => ({
    ifindex: 2,
    ifname: state.nic,
    mtu: 1500,
    flags: ['UP'],
    addr_info: [{ family: 'inet', local: '172.31.0.1', prefixlen: 16 }],
  })
  const run: Run = async (file, args) => {
    const text = [file, ...args].join(' ')
    const [, device] = /show dev (\S+)$/.exec(text) ?? []
    if (device !== undefined && !/neigh|fdb/.test(text)) {
      if (device === state.nic) return JSON.stringify([nicLink()])
      if (device !== 'flannel.1' || !state.hasVxlan)
        throw new WeftError('COMMAND', `\`${text}\` failed: Device "${device}" does not exist.`)
      // iproute2 prints the interface's current name.
      const data = { id: state.vni, local: '172.31.0.1', link: state.nic, port: 8472, learning: false }
      const about = { ifindex: 7, ifname: 'flannel.1', mtu: 1450, flags: ['UP'], address: MAC }
      const inside = { linkinfo: { info_kind: 'vxlan', info_data: data }, addr_info: [{ local: '10.200.0.0' }] }
      return JSON.stringify([{ ...about, ...inside }])
    }
    if (text === 'ip -j address show') return JSON.stringify(state.nic === undefined ? [] : [nicLink()])
    if (/ show/.test(text)) return '[]'
    state.done.push(text)
    if (text === 'ip link del flannel.1') state.hasVxlan = false
    if (text.startsWith('ip link add flannel.1')) {
      if (!text.includes(`dev ${state.nic} `)) throw new WeftError('COMMAND', 'Cannot find device')
      Object.assign(state, { hasVxlan: true, vni: 1 })
    }
    return ''
  }
  return { run, state, links: () => state.done.filter((line) => /link (add|del)/.test(line)) }
}

async function open(run: Run) {
  const config = parseNetworkConfig('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}')
  const address = { ipv4: parseIpv4('172.31.0.1')! }
  let external: ExternalInterface = {
    name: 'eth0',
    index: 2,
    mtu: 1500,
    address,
    publicIp: address,
    families: ['ipv4'],
    named: { address: {}, publicIp: {} },
  }
  const setup = () => ({
    names: { ipv4: 'flannel.1' },
    options: readSettings('vxlan', config.backend),
    port: 8472,
    mtus: { ipv4: 1450, ipv6: 1430 },
    macs: { ipv4: MAC },
    external,
  })
  const carrier = await prepareKernelVxlan(setup, { config, run, log })
  const own: OwnLease = {
    key: '10.200.0.0-24',
    subnet: { ipv4: parseIpv4Net('10.200.0.0/24')! },
    attrs: { publicIp: address, backendType: 'vxlan' },
    expiresAt: 0,
    revision: 1n,
  }
  return {
    open: () => openPaths({ ...carrier, external }, own, run, { log }),
    prepare: async () => void (external = await currentExternal(run, external)),
  }
}

it('keeps the device and uses the new name', async () => {
  const { run, state, links } = kernel()
  const host = await open(run)
  const dataPath = await host.open()
  await dataPath.resync()
  state.nic = 'lan0'
  await dataPath.resync()
  expect((await dataPath.fault).message).toBe('the interface eth0 is called lan0 now')
  expect(dataPath.gone()).toEqual({})
  await dataPath.close()
  await host.prepare()
  const again = await host.open()
  expect(await again.resync()).toEqual([])
  expect(links()).toEqual([])
  state.hasVxlan = false
  expect(await again.resync()).toEqual(['flannel.1 was gone'])
  expect(links()).toEqual([expect.stringContaining('dev lan0 ')])
})

it.each([
  ['was renamed a moment ago', 'lan0', ['ip link del flannel.1', expect.stringContaining('dev lan0 ')]],
  ['is gone', undefined, []],
])('deletes a wrong device only if a new one can be created: the interface %s', async (_what, nic, commands) => {
  const { run, state, links } = kernel()
  const options = { name: 'flannel.1', vni: 1, port: 8472, learning: false, gbp: false, underlay: 'eth0', mtu: 1450 }
  const opened = await openVxlanDevice({ ...options, underlayIndex: 2, local: parseIpv4('172.31.0.1')! }, MAC, run, log)
  Object.assign(state, { nic, vni: 9 })
  const check = opened.resync([])
  if (nic === undefined) await expect(check).rejects.toThrow(/cannot repair flannel\.1: the interface eth0 is gone/)
  else await check
  expect([links(), state.hasVxlan]).toEqual([commands, true])
})
