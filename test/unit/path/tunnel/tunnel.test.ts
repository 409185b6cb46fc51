// tunnel.test.ts - the order in which a tunnel is opened, and the order of its operations.

import { setImmediate } from 'node:timers/promises'
import { beforeEach, expect, it } from 'vitest'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import type { ExternalInterface } from '../../../../src/host/external-interface.ts'
import { wordsOf } from '../../../../src/host/ip-words.ts'
import type { HostKernel } from '../../../../src/host/kernel.ts'
import type { Family } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import type { Engine, EngineSessions, OpenPath } from '../../../../src/path/engine/engine.ts'
import type { UnknownSender } from '../../../../src/path/engine/filter.ts'
import { decodePeers } from '../../../../src/path/engine/peers.ts'
import type { SessionManager } from '../../../../src/path/tunnel/session-manager.ts'
import type { TunnelKind } from '../../../../src/path/tunnel/tunnel-options.ts'
import { Tunnel } from '../../../../src/path/tunnel/tunnel.ts'
import { addTun, host, installHost, log } from '../../../support/fake-host.ts'

const lease = (subnet: string, publicIp: string): Lease => ({
  key: subnet.replace('/', '-'),
  subnet: { ipv4: parseIpv4Net(subnet)! },
  attrs: { publicIp: { ipv4: parseIpv4(publicIp)! }, backendType: '' },
})
const own: OwnLease = { ...lease('10.5.72.0/24', '192.0.2.1'), expiresAt: 0, revision: 1n }
const peer = lease('10.5.10.0/24', '192.0.2.2')
const leases = new Map([[peer.key, peer]])

installHost()
let events: string[] = []
/** True if the session manager must refuse the peers. */
let isRefusing = false
/** The present name of the TUN. */
let tunName = 'flannel0'
/** The senders of refused packets that the engine reports. */
let refused: UnknownSender[] = []
beforeEach(() => {
  events = []
  refused = []
  isRefusing = false
  tunName = 'flannel0'
})

/** Returns the model kernel of this test, whose reads of routes and changes become events. */
function kernel(): HostKernel {
  const { kernel: model } = host
  const [routes, change] = [model.routes.bind(model), model.change.bind(model)]
  model.routes = (which) => {
    events.push(which.exactly ? FOREIGN : 'list the routes in the network')
    return routes(which)
  }
  model.change = (changes) => {
    events.push(...changes.map(wordsOf))
    return change(changes)
  }
  return model
}

const engine: Engine = {
  kind: 'native',
  get tunName() {
    return tunName
  },
  offloads: [],
  notes: [],
  details: [],
  fault: new Promise(() => {}),

  outers: ['ipv4'],
  setPeers: () => void events.push('engine: set the peers'),
  changePeers: () => void events.push('engine: change the peers'),
  counters: () => ({}),
  traffic: () => new Float64Array(),
  drops: (after = []) => ({ next: [...after], packets: [] }),
  threads: () => ({}),
  takeUnknownSenders: () => refused,
  sessions: { areKept: false } as EngineSessions,
  stop: async () => void events.push('engine: stop'),
}

const sessionManager: SessionManager = {
  inherit: () => true,
  begin: () => void events.push('sessionManager: begin'),
  pause: () => new Uint8Array(),
  onMail: () => {},
  setPeers(peers) {
    events.push(`sessionManager: ${peers.size} peers`)
    if (isRefusing) throw new Error('refused')
  },
  endpointOf: ({ attrs }) => ({ address: attrs.publicIp.ipv4 ?? 0, port: 8285 }),
  isFromKnownPort: () => false,
  stateOf: () => undefined,
  unknownKeys: () => [],
  listen: () => void events.push('sessionManager: listen'),
  stop: () => void events.push('sessionManager: stop'),
}

const kind: TunnelKind = {
  encapsulation: 'udp',
  families: ['ipv4'],
  outer: 'ipv4',
  overhead: 28,
  tunName: 'flannel%d',
  port: 8285,
  mtu: 1472,
  sessionManager,
  clear: async () => void events.push("clear the kernel's device"),
}

const address = { ipv4: parseIpv4('192.0.2.1')! }
const external: ExternalInterface = {
  name: 'eth0',
  mtu: 1500,
  address,
  publicIp: address,
  named: { address: { ipv4: false }, publicIp: { ipv4: false } },
}

const open = (
  inherited?: OpenPath,
  ownLease = own,
  tunnelKind = kind,
  besides: Partial<Engine> = {},
  on: ExternalInterface = external,
): Promise<Tunnel> => {
  return Tunnel.open(
    {
      config: parseNetworkConfig('{"Network":"10.5.0.0/16"}'),
      settings: { tunnel: { verifySource: 'strict', clampMss: false, probePathMtu: false } },
      external: on,
      startEngine: async ({ peers }) => {
        if (!host.kernel.peek(tunName)) addTun(tunName)
        events.push(`engine: start with ${decodePeers(peers!()).length} peer`)
        return Object.create(engine, Object.getOwnPropertyDescriptors(besides)) as Engine // with the getter of engine
      },
      persistence: {
        persist: false,
        tunNames: [],
        isMultiQueue: false,
        inherit: async () => {
          events.push('ask the predecessor')
          return inherited
        },
      },
      run: () => Promise.reject(new Error('no program may be started')),
      kernel: kernel(),
      log,
    },
    tunnelKind,
    ownLease,
    leases,
  )
}

/** The event of a search for a foreign route, and the changes that configure the TUN. */
const FOREIGN = 'list the routes to the network'
const CONFIGURE = [
  'ip link set dev flannel0 mtu 1472 txqueuelen 4000 up',
  'ip address replace 10.5.72.0/32 dev flannel0',
  'ip route replace 10.5.0.0/16 dev flannel0 scope global',
]

it('clears the host only if it inherits nothing, and begins handshakes before it configures the TUN', async () => {
  await open()
  expect(events).toEqual([
    FOREIGN,
    'ask the predecessor',
    'sessionManager: 1 peers',
    "clear the kernel's device",
    FOREIGN, // looks for a TUN of an earlier process
    FOREIGN,
    'engine: start with 1 peer',
    'sessionManager: listen',
    'sessionManager: begin',
    ...CONFIGURE,
  ])
})

it('continues on inherited descriptors without a change to the host before packets flow', async () => {
  const inherited = {
    tunName: 'flannel0',
    loops: [],
    features: [],
    bindAddresses: ['192.0.2.1'],
    port: 8285,
    without: [],
  }
  await open(inherited)
  expect(events).toEqual([
    FOREIGN,
    'ask the predecessor',
    'sessionManager: 1 peers',
    'engine: start with 1 peer',
    'sessionManager: listen',
    'sessionManager: begin',
    ...CONFIGURE,
  ])
})

it('reports a fault if the TUN is in another network namespace, but not if it has a new name', async () => {
  const tunnel = await open()
  let fault: Error | undefined
  void tunnel.fault.then((error) => (fault = error))
  addTun('other0')
  tunName = 'other0'
  await tunnel.resync()
  expect(fault).toBeUndefined()
  host.kernel.act({ kind: 'delete link', device: { name: 'other0' } })
  expect(await tunnel.resync()).toEqual([])
  expect(fault).toEqual(new Error('other0 is no longer in the network namespace of weftd'))
})

it('runs its operations one at a time, and lists no peers until an apply succeeds', async () => {
  const tunnel = await open()
  events = []
  isRefusing = true
  const [checked, bad] = await Promise.allSettled([tunnel.resync(), tunnel.apply(leases, own.key)])
  isRefusing = false
  expect(checked).toEqual({ status: 'fulfilled', value: [] })
  expect(bad).toMatchObject({ status: 'rejected', reason: new Error('refused') })
  expect(events.indexOf('sessionManager: 1 peers')).toBe(events.length - 1) // after all commands of the check
  expect(events[0]).toBe('list the routes in the network')
  expect(tunnel.peers()).toEqual([])
  events = []
  await Promise.all([tunnel.apply(leases, own.key), tunnel.close()])
  expect(events).toEqual(['sessionManager: 1 peers', 'engine: set the peers', 'sessionManager: stop', 'engine: stop'])
  expect(tunnel.peers().map(({ key }) => key)).toEqual([peer.key])
})

it("counts the packets dropped at the TUN since its predecessor's last read, and passes its own last read to its successor", async () => {
  const path: OpenPath = {
    tunName: 'flannel0',
    loops: [],
    features: [],
    bindAddresses: ['192.0.2.1'],
    port: 8285,
    without: [],
  }
  host.kernel.dropped = 70
  const tunnel = await open({ ...path, queueDrops: 64 })
  const counted = async (): Promise<unknown> => {
    await setImmediate()
    return tunnel.counters()['tx_drop_queue_full']
  }
  expect(await counted()).toBe(6n)
  host.kernel.dropped = 73
  tunnel.look()
  expect(await counted()).toBe(9n)
})

it('refuses a peer with the address that this node publishes now', async () => {
  const now = { ...own }
  const tunnel = await open(undefined, now)
  expect(tunnel.peers().map(({ key }) => key)).toEqual([peer.key])
  now.attrs = peer.attrs
  await tunnel.renew(external)
  await tunnel.apply(leases, own.key)
  expect(tunnel.peers()).toEqual([])
})

it('continues with a renamed TUN: it logs the new name and repairs the TUN under the new name', async () => {
  const tunnel = await open()
  expect(await tunnel.resync()).toEqual([])
  tunName = 'other0'
  host.kernel.rename('flannel0', tunName)
  host.lines = []
  events = []
  expect(await tunnel.resync()).toEqual([])
  expect(host.lines).toEqual(['The interface flannel0 is called other0 now; weftd goes on with it under the new name'])
  expect([tunnel.tunNames, tunnel.carrier().device]).toEqual([['other0'], 'other0'])
  expect(events.filter((event) => /flannel0|replace|set/.test(event))).toEqual([])
  host.kernel.act({ kind: 'set link', device: { name: tunName }, up: false })
  expect(await tunnel.resync()).toEqual(['other0 was down', 'the route to 10.5.0.0/16 was gone'])
  expect(events).toContain('ip link set dev other0 mtu 1472 txqueuelen 4000 up')
})

it.each([
  [
    'an encrypted packet with a source outside the subnet of its sender',
    kind,
    'a node may send from its own subnet alone',
  ],
  ['a packet of an unknown sender', { ...kind, sessionManager: undefined }, 'no lease assigns 203.0.113.9 to this'],
] as const)('the log line about %s gives the reason', async (_what, tunnelKind, text) => {
  const tunnel = await open(undefined, own, tunnelKind as TunnelKind)
  const addresses = { from: '198.51.100.7', source: '203.0.113.9', destination: '10.5.72.9' } as const
  const [from, source, destination] = Object.values(addresses).map((each) => parseIpv4(each)!) as [
    number,
    number,
    number,
  ]
  refused = [{ from, source, destination, reason: 'rx_drop_unknown_sender' }]
  tunnel.look()
  tunnel.look() // weftd logs a sender only if two successive calls of `look` find it unknown
  expect(host.lines).toContainEqual(expect.stringContaining(text))
})

/** An engine whose second outer family fails to bind while `problem` has a message. */
class SecondFamily {
  problem = ''
  /** False while the engine does not forward. */
  isRunning = true
  readonly tried: string[] = []
  readonly outers: Family[]
  constructor(...outers: Family[]) {
    this.outers = outers
  }
  rebind = async (to: string): Promise<boolean> => {
    this.tried.push(to)
    if (this.problem !== '') throw new Error(this.problem)
    if (this.isRunning && this.outers.length < 2) this.outers.push('ipv6')
    return this.isRunning
  }
}
const at = (ipv6: string | undefined): ExternalInterface => ({
  ...external,
  address: { ...address, ...(ipv6 === undefined ? {} : { ipv6: parseIpv6(ipv6)! }) },
})
/** Opens a tunnel without encryption over IPv4 and IPv6. */
const openOverBoth = (second: SecondFamily, besides: Partial<Engine> = {}): Promise<Tunnel> => {
  const { sessionManager: _, ...plain } = kind
  return open(
    undefined,
    own,
    { ...plain, other: 'ipv6' },
    { outers: second.outers, rebind: second.rebind, ...besides },
    at('2001:db8::1'),
  )
}

it('tries again to bind an address of the second family that could not be bound, and a later address', async () => {
  const second = new SecondFamily('ipv4', 'ipv6')
  const tunnel = await openOverBoth(second)
  await tunnel.renew(at('2001:db8::1'))
  expect(second.tried).toEqual([])
  host.lines = []
  second.problem = 'cannot reach peers from 2001:db8::2: it is taken'
  await tunnel.renew(at('2001:db8::2'))
  await tunnel.resync()
  expect(second.tried.splice(0)).toEqual(['2001:db8::2', '2001:db8::2'])
  expect(host.lines).toEqual([second.problem]) // the log has the problem once
  // The engine keeps its sockets at the first address, so they need no change if the host has this address again.
  await tunnel.renew(at('2001:db8::1'))
  expect(host.lines.splice(1)).toEqual(['Peers can be reached from 2001:db8::1 again'])
  expect(second.tried).toEqual([])
  await tunnel.renew(at('2001:db8::2'))
  expect(host.lines.splice(1)).toEqual([second.problem])
  expect(second.tried.splice(0)).toEqual(['2001:db8::2'])
  // Without an address there is nothing to bind.
  await tunnel.renew(at(undefined))
  await tunnel.resync()
  expect(second.tried).toEqual([])
  second.problem = ''
  second.isRunning = false
  await tunnel.renew(at('2001:db8::3'))
  second.isRunning = true
  await tunnel.resync()
  await tunnel.resync()
  expect(second.tried).toEqual(['2001:db8::3', '2001:db8::3'])
  expect(host.lines.slice(1)).toEqual(['Peers can be reached from 2001:db8::3 again'])
})

it('reaches peers over both families as soon as the sockets that failed at the start can be opened', async () => {
  const second = new SecondFamily('ipv4')
  const problem = 'cannot reach peers from 2001:db8::1: it is taken'
  const tunnel = await openOverBoth(second, { notes: [problem] })
  second.problem = problem
  await tunnel.resync()
  expect([tunnel.underlays, host.lines.filter((each) => each === problem)]).toEqual([undefined, [problem]])
  second.problem = ''
  await tunnel.resync()
  expect(tunnel.underlays).toMatchObject({ first: 'ipv4', other: 'ipv6' })
  expect(second.tried).toEqual(['2001:db8::1', '2001:db8::1'])
})
