// tun-device.test.ts - the repairs of a TUN device and its route, and what is only logged, on a simulated host.

import { expect, it } from 'vitest'
import { describeError } from '../../../../src/base/errors.ts'
import type { Run } from '../../../../src/host/command.ts'
import { hostKernel } from '../../../../src/host/no-kernel.ts'
import { parseIpv4Net } from '../../../../src/net/ipv4.ts'
import {
  adoptTun,
  checkMtu,
  createTunDevice,
  refuseForeignRoute,
  refuseSharedTun,
  type TunDevice,
} from '../../../../src/path/device/tun-device.ts'
import { host, installHost, log, run } from '../../../support/fake-host.ts'

installHost()

async function configured(): Promise<TunDevice> {
  host.link = { mtu: 1500, txqlen: 500, flags: [], addr_info: [] }
  const [network, subnet] = [parseIpv4Net('10.5.0.0/16')!, parseIpv4Net('10.5.72.0/24')!]
  const device = createTunDevice({
    device: { name: 'flannel0' },
    network,
    subnet,
    mtu: 1472,
    run,
    kernel: hostKernel,
    log,
  })
  await device.configure()
  return device
}

it('does nothing and logs nothing without a change', async () => {
  const device = await configured()
  host.commands = []
  expect(await device.resync()).toEqual([])
  expect(host.commands).toEqual([])
})

it.each([
  ['the device down', () => (host.link!.flags = []), 'flannel0 was down'],
  ['another MTU', () => (host.link!.mtu = 1500), 'flannel0 had MTU 1500'],
  ['no address', () => (host.link!.addr_info = []), 'flannel0 had lost its address'],
  ['no route', () => (host.routes = []), 'the route to 10.5.0.0/16 was gone'],
  [
    'a blackhole',
    () => (host.routes = [{ type: 'blackhole' }]),
    '10.5.0.0/16 was routed to nowhere (a blackhole or the like)',
  ],
  ['a foreign route', () => (host.routes = [{ dev: 'eth0' }]), '10.5.0.0/16 was routed to eth0'],
  [
    'only a foreign route of a higher metric',
    () => (host.routes = [{ dev: 'eth0', metric: 9 }]),
    'the route to 10.5.0.0/16 was gone',
  ],
])('repairs %s', async (_title, spoil, said) => {
  const device = await configured()
  spoil()
  expect(await device.resync()).toEqual([said])
  expect(await device.resync()).toEqual([])
})

it('logs routes to parts of the network once, keeps them, and logs when they are gone', async () => {
  const device = await configured()
  host.commands = []
  host.lines = []
  const ours = { dev: 'flannel0' }
  const containers = [
    { dst: '10.5.72.0/24', dev: 'cni0' },
    { dst: '10.5.72.9', dev: 'veth1' },
    { dst: '10.5.72.0/24', type: 'blackhole', metric: 4294967295 },
    { dst: '10.5.9.0/24', dev: 'flannel0' },
  ]
  host.routes = [ours, ...containers, { dst: '10.5.64.0/20', dev: 'eth0' }, { dst: '10.5.1.7', type: 'unreachable' }]
  expect([await device.resync(), await device.resync()]).toEqual([[], []])
  expect(host.lines).toEqual([
    'Packets bypass the tunnel by routes that others made: 10.5.64.0/20 to eth0, ' +
      '10.5.1.7/32 to nowhere (a blackhole or the like); remove them unless that is wanted',
  ])
  host.routes = [ours, ...Array.from({ length: 7 }, (_, third) => ({ dst: `10.5.${third}.0/24`, dev: 'eth0' }))]
  await device.resync()
  expect(host.lines.slice(1)).toEqual([
    'Packets bypass the tunnel by routes that others made: 10.5.0.0/24 to eth0, 10.5.1.0/24 to eth0, ' +
      '10.5.2.0/24 to eth0, 10.5.3.0/24 to eth0, 10.5.4.0/24 to eth0, ... (7); remove them unless that is wanted',
    'Routes that bypassed the tunnel are gone: 10.5.64.0/20 to eth0, 10.5.1.7/32 to nowhere (a blackhole or the like)',
  ])
  expect(host.commands).toEqual([])
})

it('does not create a missing device', async () => {
  const device = await configured()
  host.link = undefined
  host.commands = []
  expect(await device.resync()).toEqual([])
  expect(host.commands).toEqual([])
})

it.each([true, false])(
  'continues with an idle TUN of the wanted kind (several queues: %s), and removes one of the other kind',
  async (many) => {
    const commands: string[] = []
    const linkinfo = { info_kind: 'tun', info_data: { type: 'tun', multi_queue: many } }
    const link = { ifname: 'flannel0', ifindex: 9, mtu: 1472, flags: [], linkinfo, addr_info: [] }
    const tables: Run = async (_file, args) => {
      if (args.includes('-j')) return args.includes('route') ? '[]' : JSON.stringify([link])
      commands.push(args.join(' '))
      return ''
    }
    const [network, subnet] = [parseIpv4Net('10.5.0.0/16')!, parseIpv4Net('10.5.72.0/24')!]
    const adopt = (isMultiQueue: boolean) =>
      adoptTun(tables, {
        name: 'flannel0',
        last: [],
        isMultiQueue,
        networks: { ipv4: network },
        subnets: { ipv4: subnet },
      })
    expect(await adopt(many)).toBe('flannel0')
    expect(commands).toEqual([])
    expect(await adopt(!many)).toBeUndefined()
    expect(commands).toEqual(['link del dev flannel0'])
  },
)

it.each([
  ['this node’s address', '10.5.72.0', 'other0', []],
  ['another address of the network', '10.5.9.0', undefined, []],
  ['an address outside of the network', '192.0.2.1', undefined, []],
])(
  'continues with a renamed idle TUN only if it has this node’s address: %s',
  async (_what, address, adopted, done) => {
    const commands: string[] = []
    const linkinfo = { info_kind: 'tun', info_data: { type: 'tun' } }
    const addr_info = [{ family: 'inet', local: address, prefixlen: 32 }]
    const link = { ifname: 'other0', ifindex: 9, mtu: 1472, flags: [], linkinfo, addr_info }
    const tables: Run = async (_file, args) => {
      if (args.includes('route')) return JSON.stringify([{ dst: '10.5.0.0/16', dev: 'other0' }])
      if (args.includes('-j')) return JSON.stringify(args.includes('dev') && args.at(-1) !== 'other0' ? [] : [link])
      commands.push(args.join(' '))
      return ''
    }
    const [network, subnet] = [parseIpv4Net('10.5.0.0/16')!, parseIpv4Net('10.5.72.0/24')!]
    const options = { last: [], isMultiQueue: false, networks: { ipv4: network }, subnets: { ipv4: subnet } }
    expect(await adoptTun(tables, { name: 'flannel%d', ...options })).toBe(adopted)
    expect(commands).toEqual(done)
    const refused = refuseForeignRoute(tables, network, () => false, subnet).then(
      () => undefined,
      (error: Error) => error.message,
    )
    expect(await refused).toBe(adopted === undefined ? '10.5.0.0/16 is already routed to other0' : undefined)
  },
)

it.each([
  [8, 'another process forwards through flannel-wg'],
  [0, undefined],
  [undefined, undefined], // one queue, which the kernel does not share, or an old iproute2
])('refuses a TUN that other processes have open: %s', async (numqueues, refusal) => {
  const linkinfo = { info_kind: 'tun', info_data: { type: 'tun', multi_queue: true, numqueues } }
  const link = { ifname: 'flannel-wg', ifindex: 9, mtu: 1420, flags: ['UP'], linkinfo, addr_info: [] }
  const said = refuseSharedTun(async () => JSON.stringify([link]), 'flannel-wg').catch(describeError)
  expect(await said).toEqual(refusal && expect.stringContaining(refusal))
})

it.each([
  ['ipv4', 67, 'IPv4 needs an MTU of 68, and containers would have 67 here; raise the MTU of eth0,'],
  ['ipv4', 68, undefined],
  ['ipv6', 1279, 'IPv6 needs an MTU of 1280, and containers would have 1279 here; raise the MTU of eth0,'],
  ['ipv6', 1280, undefined],
] as const)('for %s checks the MTU %i, and names the missing minimum', (family, mtu, refusal) => {
  let said: string | undefined
  try {
    checkMtu(family, mtu, 'eth0')
  } catch (error) {
    said = describeError(error)
  }
  expect(said).toEqual(refusal && expect.stringContaining(refusal))
})
