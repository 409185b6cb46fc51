// tun-device.test.ts - the repairs of a TUN device and its route, and what is only logged, on a simulated host.

import { expect, it, vi } from 'vitest'
import { describeError } from '../../../../src/base/errors.ts'
import type { TunSettings } from '../../../../src/host/kernel.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import {
  adoptTun,
  checkForeignRoute,
  checkMtu,
  createTunDevice,
  refuseForeignRoute,
  refuseSharedTun,
  removeFamilies,
  type TunDevice,
} from '../../../../src/path/device/tun-device.ts'
import { addTun, host, installHost, log } from '../../../support/fake-host.ts'

installHost()

const NETWORK = parseIpv4Net('10.5.0.0/16')!
const SUBNET = parseIpv4Net('10.5.72.0/24')!
const [TUN, ETH] = [9, 2]
const OWN_ADDRESS = { device: { name: 'flannel0' }, address: SUBNET.address, prefixLength: 32 } as const

async function configured(): Promise<TunDevice> {
  addTun()
  const { kernel } = host
  const device = createTunDevice({
    device: { name: 'flannel0' },
    network: NETWORK,
    subnet: SUBNET,
    mtu: 1472,
    kernel,
    log,
  })
  await device.configure()
  return device
}

it('configures the device with three changes in one request', async () => {
  await configured()
  expect(host.kernel.changes).toEqual([
    'ip link set dev flannel0 mtu 1472 txqueuelen 4000 up',
    'ip address replace 10.5.72.0/32 dev flannel0',
    'ip route replace 10.5.0.0/16 dev flannel0 scope global',
  ])
  expect(host.kernel.changeCalls).toBe(1)
})

it('does nothing and logs nothing without a change', async () => {
  const device = await configured()
  host.kernel.changes.length = 0
  expect(await device.resync()).toEqual([])
  expect(host.kernel.changes).toEqual([])
})

const noRoute = (): void => host.kernel.act({ kind: 'delete route', destination: NETWORK })
it.each([
  [
    'the device down',
    () => host.kernel.act({ kind: 'set link', device: { name: 'flannel0' }, up: false }),
    ['flannel0 was down', 'the route to 10.5.0.0/16 was gone'],
  ],
  ['another MTU', () => host.kernel.alter('flannel0', { mtu: 1500 }), ['flannel0 had MTU 1500']],
  [
    'no address',
    () => host.kernel.act({ kind: 'delete address', ...OWN_ADDRESS }),
    // The kernel deletes the routes of an interface without an address.
    ['flannel0 had lost its address', 'the route to 10.5.0.0/16 was gone'],
  ],
  ['no route', noRoute, ['the route to 10.5.0.0/16 was gone']],
  [
    'a blackhole',
    () => host.kernel.act({ kind: 'replace route', destination: NETWORK, type: 'blackhole' }),
    ['10.5.0.0/16 was routed to nowhere (a blackhole or the like)'],
  ],
  [
    'a foreign route',
    () => host.kernel.act({ kind: 'replace route', destination: NETWORK, device: { name: 'eth0' } }),
    ['10.5.0.0/16 was routed to eth0'],
  ],
  [
    'only a foreign route of a higher metric',
    () => {
      noRoute()
      host.kernel.addRoute('ipv4', { destination: '10.5.0.0/16', device: 'eth0', metric: 9 })
    },
    ['the route to 10.5.0.0/16 was gone'],
  ],
])('repairs %s', async (_title, spoil, said) => {
  const device = await configured()
  spoil()
  expect(await device.resync()).toEqual(said)
  expect(await device.resync()).toEqual([])
})

it('logs routes to parts of the network once, keeps them, and logs when they are gone', async () => {
  const device = await configured()
  const add = (destination: string, part: object): void => host.kernel.addRoute('ipv4', { destination, ...part })
  host.kernel.addLink({ name: 'cni0' })
  host.kernel.addLink({ name: 'veth1' })
  add('10.5.72.0/24', { device: 'cni0' })
  add('10.5.72.9/32', { device: 'veth1' })
  add('10.5.72.0/24', { type: 'blackhole', metric: 4294967295 })
  add('10.5.9.0/24', { device: 'flannel0' })
  add('10.5.64.0/20', { device: 'eth0' })
  add('10.5.1.7/32', { type: 'unreachable' })
  host.kernel.changes.length = 0
  host.lines = []
  expect([await device.resync(), await device.resync()]).toEqual([[], []])
  expect(host.lines).toEqual([
    'Packets bypass the tunnel by routes that others made: 10.5.64.0/20 to eth0, ' +
      '10.5.1.7/32 to nowhere (a blackhole or the like); remove them unless that is wanted',
  ])
  for (const destination of ['10.5.64.0/20', '10.5.1.7/32'])
    host.kernel.act({ kind: 'delete route', destination: parseIpv4Net(destination)! })
  for (let third = 0; third < 7; third++) add(`10.5.${third}.0/24`, { device: 'eth0' })
  await device.resync()
  expect(host.lines.slice(1)).toEqual([
    'Packets bypass the tunnel by routes that others made: 10.5.0.0/24 to eth0, 10.5.1.0/24 to eth0, ' +
      '10.5.2.0/24 to eth0, 10.5.3.0/24 to eth0, 10.5.4.0/24 to eth0, ... (7); remove them unless that is wanted',
    'Routes that bypassed the tunnel are gone: 10.5.64.0/20 to eth0, 10.5.1.7/32 to nowhere (a blackhole or the like)',
  ])
  expect(host.kernel.changes).toEqual([])
})

it('does not create a missing device', async () => {
  const device = await configured()
  host.kernel.act({ kind: 'delete link', device: { name: 'flannel0' } })
  host.kernel.changes.length = 0
  expect(await device.resync()).toEqual([])
  expect(host.kernel.changes).toEqual([])
})

/** Adds a TUN that no process has open, with an address. */
function addIdleTun(name: string, address: string, settings: Partial<TunSettings> = {}): void {
  const tun = { mode: 'tun', persist: true, isMultiQueue: false, openQueues: undefined, ...settings } as const
  host.kernel.addLink({ name, index: TUN, hasCarrier: false, type: 'tun', tun }, [
    { address: parseIpv4(address)!, prefixLength: 32 },
  ])
}
const adopt = (name: string, isMultiQueue = false): Promise<string | undefined> =>
  adoptTun(host.kernel, { name, last: [], isMultiQueue, networks: { ipv4: NETWORK }, subnets: { ipv4: SUBNET } })

it.each([true, false])(
  'continues with an idle TUN of the wanted kind (several queues: %s), and removes one of the other kind',
  async (many) => {
    addIdleTun('flannel0', '10.5.72.0', { isMultiQueue: many })
    expect(await adopt('flannel0', many)).toBe('flannel0')
    expect(host.kernel.changes).toEqual([])
    expect(await adopt('flannel0', !many)).toBeUndefined()
    expect(host.kernel.peek('flannel0')).toBeUndefined()
  },
)

it('leaves a TUN that a process has open', async () => {
  addIdleTun('flannel0', '10.5.72.0')
  host.kernel.alter('flannel0', { hasCarrier: true })
  expect(await adopt('flannel0')).toBeUndefined()
  expect(host.kernel.changes).toEqual([])
})

it.each([
  ['this node’s address', '10.5.72.0', 'other0'],
  ['another address of the network', '10.5.9.0', undefined],
  ['an address outside of the network', '192.0.2.9', undefined],
])('continues with a renamed idle TUN only if it has this node’s address: %s', async (_what, address, adopted) => {
  addIdleTun('other0', address)
  host.kernel.addRoute('ipv4', { destination: '10.5.0.0/16', device: 'other0' })
  expect(await adopt('flannel%d')).toBe(adopted)
  const refused = refuseForeignRoute(host.kernel, NETWORK, () => false, SUBNET).then(
    () => undefined,
    (error: Error) => error.message,
  )
  expect(await refused).toBe(adopted === undefined ? '10.5.0.0/16 is already routed to other0' : undefined)
  expect(host.kernel.changes).toEqual([])
})

it('removes an idle TUN that has the route of the network, but not in a check beforehand', async () => {
  addIdleTun('flannel0', '10.5.9.0')
  host.kernel.addRoute('ipv4', { destination: '10.5.0.0/16', device: 'flannel0' })
  await checkForeignRoute(host.kernel, NETWORK, () => false)
  expect(host.kernel.changes).toEqual([])
  await refuseForeignRoute(host.kernel, NETWORK, () => false)
  expect(host.kernel.changes).toEqual(['ip link del dev flannel0'])
})

it('ignores a route whose device was deleted while the routes were listed', async () => {
  addIdleTun('flannel0', '10.9.0.0')
  host.kernel.addRoute('ipv4', { destination: '10.5.0.0/16', device: 'flannel0' })
  const present = await host.kernel.routes({ family: 'ipv4', exactly: [NETWORK] })
  const list = vi.spyOn(host.kernel, 'routes')
  const isRefused = (find: typeof checkForeignRoute): Promise<boolean> =>
    find(host.kernel, NETWORK, () => false).then(
      () => false,
      () => true,
    )
  for (const [deviceIndex, isBlackhole] of [
    [7, false],
    [0, true],
  ] as const) {
    list.mockResolvedValue(present.map((route) => ({ ...route, device: '', deviceIndex })))
    expect([await isRefused(checkForeignRoute), await isRefused(refuseForeignRoute)]).toEqual([
      isBlackhole,
      isBlackhole,
    ])
  }
  list.mockRestore()
})

it.each([
  [8, 'another process forwards through flannel-wg'],
  [0, undefined],
  [undefined, undefined], // one queue, which the kernel does not share
])('refuses a TUN that other processes have open: %s', async (openQueues, refusal) => {
  addIdleTun('flannel-wg', '10.5.72.0', { isMultiQueue: true, openQueues })
  const said = refuseSharedTun(host.kernel, 'flannel-wg').catch(describeError)
  expect(await said).toEqual(refusal && expect.stringContaining(refusal))
})

it('removes the addresses and the own routes of a family that is no longer carried', async () => {
  addTun()
  const device = { name: 'flannel0', index: TUN }
  const [network, foreign] = [parseIpv6Net('fd00:5::/48')!, parseIpv6Net('fd00:9::/48')!]
  host.kernel.act({ kind: 'set link', device, up: true })
  for (const address of ['fd00:5:0:72::', 'fe80::1'])
    host.kernel.addAddress('flannel0', { address: parseIpv6(address)!, prefixLength: 128 })
  host.kernel.act(
    { kind: 'add route', destination: network, device },
    { kind: 'add route', destination: foreign, device, protocol: 'static' },
    { kind: 'add route', destination: network, device: { name: 'eth0', index: ETH }, metric: 5 },
  )
  await removeFamilies(host.kernel, 'flannel0', ['ipv4', 'ipv6'])
  expect(host.kernel.changes).toEqual([
    'ip -6 route del fd00:5::/48 dev flannel0 metric 1024',
    'ip address del fd00:5:0:72::/128 dev flannel0',
  ])
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
