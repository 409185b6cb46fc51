// report.test.ts - what /status.json reports about a node: the states of its peers, their traffic, and problems.

import { expect, it, vi } from 'vitest'
import { decodeLease } from '../../../src/control/lease/decode.ts'
import type { OpenEcho } from '../../../src/host/echo.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'
import { createNode } from '../../../src/node/node.ts'
import { reportWaiting, startTime } from '../../../src/node/report.ts'
import { createHealth } from '../../../src/report/health.ts'
import type { Status } from '../../../src/report/status.ts'
import { openPaths } from '../../support/data-paths.ts'
import {
  backend,
  dataPaths,
  inTurns,
  installRig,
  kernel,
  log,
  logged,
  ofFamilies,
  own,
  readiness,
  ready,
  refuseToOpen,
  start,
  nodeStatus,
  store,
  trouble,
  until,
  value,
} from '../../support/node-rig.ts'
import { nodeOptions } from '../../support/options.ts'

installRig()

/** Waits until the status fulfils this condition. */
async function becomes(isSo: (status: Status) => boolean, virtualMs?: number): Promise<Status> {
  let newest = await nodeStatus()
  await until(() => {
    void nodeStatus().then((read) => (newest = read))
    return isSo(newest)
  }, virtualMs)
  return newest
}

it('corrects the time of the start if the clock is set, but not for the rounding of clocks', () => {
  const hour = 3_600_000
  const began = performance.timeOrigin
  const clock = { aheadMs: 0, runsMs: 0 }
  const startedAt = startTime(
    () => began + performance.now() + clock.runsMs + clock.aheadMs,
    () => (performance.now() + clock.runsMs) / 1000,
  )
  expect(startedAt()).toBe(began)
  Object.assign(clock, { runsMs: hour, aheadMs: 30 })
  expect(startedAt()).toBe(began)
  for (const aheadMs of [-hour, 24 * hour]) {
    Object.assign(clock, { aheadMs })
    expect(Math.abs(startedAt() - (began + aheadMs))).toBeLessThan(100)
    const known = startedAt()
    Object.assign(clock, { aheadMs: aheadMs + 30 })
    expect(startedAt()).toBe(known)
  }
})

it('the report has the node, its lease and its data path', async () => {
  expect(await nodeStatus()).toMatchObject({ state: 'starting', node: null, peers: null })
  start()
  await ready()
  expect(await becomes((node) => node.subnetFileWritten)).toMatchObject({
    state: 'working',
    trouble: null,
    store: { name: 'etcd', reachable: true, held: 0 },
    node: { subnet: own().replace('-', '/'), publicIp: '192.0.2.1' },
    config: { network: '10.5.0.0/24', backendType: 'udp' },
    lease: { key: own(), published: { PublicIP: '192.0.2.1' } },
    dataPath: {
      open: true,
      mtu: 1472,
      device: 'fake0',
      engine: 'native',
      counters: { tx_packets: 5 },
      drops: { tx_drop_no_route: 2 },
    },
    peers: { stored: 0, programmed: 0, answering: null, whole: 1, list: [] },
  })
})

it.each([
  ['ipv6', 'fd00:5:0:7::/64', 'fd00:5:0:7::/64'],
  ['ipv4', '10.5.0.64/26', null],
] as const)(
  'in a network with %s alone, shows only the subnet %s of a peer that has subnets of both families',
  async (family, subnet, ipv6Subnet) => {
    store.put('10.5.0.64-26&fd00:5:0:7::-64', '{"PublicIP":"192.0.2.2","PublicIPv6":"2001:db8::2"}')
    start(ofFamilies(family))
    await ready()
    const { peers } = await becomes((status) => status.peers?.stored === 1)
    expect(peers!.list[0]).toMatchObject({ subnet, ipv6Subnet })
  },
)

it('distinguishes peers that are only stored from peers that the data path has', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  dataPaths[0]!.traffic = {
    txPackets: 1,
    txBytes: 84,
    rxPackets: 2,
    rxBytes: 168,
    lastReceivedAt: performance.now() - 250,
  }
  const there = await becomes(({ peers }) => peers!.programmed === 1)
  expect(there.peers!.list).toEqual([
    {
      lease: '10.5.0.64-26',
      name: null,
      subnet: '10.5.0.64/26',
      publicIp: '192.0.2.2',
      endpoint: 'somewhere:8285',
      type: '',
      ipv6Subnet: null,
      publicIpv6: null,
      way: 'tunnel',
      state: 'programmed',
      held: false,
      unusable: false,
      since: expect.stringMatching(/^\d{4}-.*Z$/),
      txPackets: 1,
      txBytes: 84,
      rxPackets: 2,
      rxBytes: 168,
      heardSecondsAgo: expect.closeTo(0.25, 0),
      roundTripMs: null,
      lossPercent: null,
      probedSecondsAgo: null,
      unansweredSeconds: null,
      pathMtu: null,
      path: null,
      passesBytes: null,
      pathSince: null,
      session: null,
      families: {
        ipv4: {
          endpoint: 'somewhere:8285',
          way: 'tunnel',
          state: 'programmed',
          roundTripMs: null,
          lossPercent: null,
          probedSecondsAgo: null,
          unansweredSeconds: null,
          pathMtu: null,
          path: null,
          passesBytes: null,
          pathSince: null,
          session: null,
        },
        ipv6: null,
      },
    },
  ])
  dataPaths[0]!.refusal = new Error('no')
  store.put(
    ['10.5.0.128-26', '10.5.0.192-26'].find((key) => key !== own())!,
    value('192.0.2.3'),
  )
  const refused = await becomes(({ peers }) => peers!.stored === 2)
  expect(refused.peers).toMatchObject({ programmed: 0, whole: 0 })
  expect(refused.peers!.list.map(({ state, endpoint }) => [state, endpoint])).toEqual([
    ['stored', null],
    ['stored', null],
  ])
})

it('reports no peer as answering before a packet of it arrived', async () => {
  let heard = 0
  let answered!: () => void
  const answer = new Promise<void>((resolve) => (answered = resolve))
  let isRead = false
  const openEcho: OpenEcho = (_source, onAnswer) => ({
    send(to, sequence) {
      if (!isRead) return
      queueMicrotask(() => {
        heard += 84
        onAnswer(to, sequence, 3)
        answered()
      })
    },
    packet: () => new Uint8Array(),
    close: () => {},
  })
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start({ openEcho })
  await ready()
  // `wg` works in this way: it reads the counters, and an answer of the peer arrives before it prints them.
  dataPaths[0]!.counting = async () => {
    const rxBytes = heard
    isRead = true
    await answer
    return { txPackets: undefined, txBytes: 84, rxPackets: undefined, rxBytes, lastReceivedAt: undefined }
  }
  const told = nodeStatus()
  await inTurns(() => heard > 0)
  expect((await told).peers!.list[0]).toMatchObject({ state: 'programmed', rxBytes: 0 })
  expect((await becomes(({ peers }) => peers!.answering === 1, 70_000)).peers!.list[0]!.rxBytes).toBeGreaterThanOrEqual(
    84,
  )
})

it('reports the session with a peer, and the keys of unknown senders', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  const nothing = { txPackets: undefined, txBytes: 9, rxPackets: undefined, rxBytes: 8, lastReceivedAt: undefined }
  const session = { publicKey: 'K', handshakeAt: Date.now() - 3_000, ageMs: 2_500, txBytes: 7, rxBytes: 6 }
  const more = { attempts: 4, failure: 'no-answer', stale: 1, unconfirmed: 2 } as const
  dataPaths[0]!.traffic = { ...nothing, sessions: { ipv4: { ...session, ...more } } }
  dataPaths[0]!.unknownKeys = [
    { publicKey: 'L', from: { address: parseIpv4('192.0.2.9')!, port: 7 }, at: performance.now() - 1_500 },
  ]
  const { peers, dataPath } = await becomes((node) => node.peers!.programmed === 1)
  const told = { publicKey: 'K', handshakeSecondsAgo: expect.closeTo(3, 0), ageSeconds: 2.5, ...more }
  expect(peers!.list[0]).toMatchObject({ session: { ...told, txBytes: 7, rxBytes: 6 }, txBytes: 9, rxBytes: 8 })
  expect(dataPath!.unknownKeys).toEqual([
    { publicKey: 'L', endpoint: '192.0.2.9:7', secondsAgo: expect.closeTo(1.5, 0) },
  ])
  // The clock was set back, and the data path does not know the age of the handshake.
  dataPaths[0]!.traffic = {
    ...nothing,
    sessions: { ipv4: { ...session, handshakeAt: Date.now() + 9e6, ageMs: undefined } },
  }
  const less = await becomes((node) => node.peers!.list[0]!.session!.ageSeconds === null)
  expect(less.peers!.list[0]!.session).toEqual({
    publicKey: 'K',
    handshakeSecondsAgo: 0,
    ageSeconds: null,
    txBytes: 7,
    rxBytes: 6,
    attempts: null,
    failure: null,
    stale: null,
    unconfirmed: null,
  })
})

it('reports how long ago an unknown key was received also while the node waits for its store', async () => {
  const health = createHealth()
  const node = createNode({ options: nodeOptions(), store: '', kernel, log, stopping: new AbortController() })
  const key = '10.5.0.64-26'
  const lease = { ...decodeLease(key, value('192.0.2.1')), expiresAt: undefined, revision: 0n }
  await node.ownership.open(() => openPaths(backend, lease, kernel))
  const from = { address: parseIpv4('192.0.2.9')!, port: 51820 }
  await vi.advanceTimersByTimeAsync(90_000)
  dataPaths.at(-1)!.unknownKeys = [{ publicKey: 'key', from, at: performance.now() - 30_000 }]
  reportWaiting(node, health, 'etcd', 'waiting', { isOnLoan: false, predecessorPid: undefined })
  expect((await health.status()).dataPath?.unknownKeys).toMatchObject([{ publicKey: 'key', secondsAgo: 30 }])
})

it('reports the peers that are kept although the store lacks their leases', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  await becomes(({ peers }) => peers!.programmed === 1)
  store.remove('10.5.0.64-26')
  store.remove(own())
  const kept = await becomes(({ store: { held } }) => held > 0, 70_000)
  expect(kept.peers!.list.map(({ lease, held }) => [lease, held])).toEqual([['10.5.0.64-26', true]])
})

it('a node is impaired while there is no data path', async () => {
  start()
  await ready()
  refuseToOpen(new Error('no device'))
  dataPaths[0]!.die('unplugged')
  await until(() => logged(/Cannot open the data path/))
  expect(await nodeStatus()).toMatchObject({
    state: 'impaired',
    trouble: 'the data path is down',
    dataPath: { open: false, mtu: null, device: null, engine: null },
  })
})

it('a node is impaired and not ready while it lacks a family, and reports the reason', async () => {
  start()
  await ready()
  await until(readiness)
  dataPaths[0]!.lacking = { ipv6: 'no device' }
  expect(await nodeStatus()).toMatchObject({
    state: 'impaired',
    trouble: 'IPv6 is not carried: no device',
    dataPath: { lacking: { ipv4: null, ipv6: 'no device' } },
  })
  expect(readiness()).toBe(false)
  dataPaths[0]!.lacking = {}
  expect(await nodeStatus()).toMatchObject({ state: 'working', trouble: null })
  expect(readiness()).toBe(true)
})

it('a state that is over is not reported for longer because the process stood still while it counted the peers', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  await becomes(({ peers }) => peers!.programmed === 1)
  const dataPath = dataPaths[0]!
  const { applied } = dataPath
  Object.defineProperty(dataPath, 'applied', {
    get() {
      vi.advanceTimersByTime(20)
      return []
    },
    configurable: true,
  })
  expect(trouble()).toContain('the data path lacks the only peer')
  Object.defineProperty(dataPath, 'applied', { value: applied })
  vi.advanceTimersByTime(2)
  expect(trouble()).toBeUndefined()
})
