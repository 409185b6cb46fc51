// probes.test.ts - peers are probed through the data path, and the node reports which of them answer.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { OpenEcho } from '../../../../src/host/echo.ts'
import { formatAddress } from '../../../../src/net/address.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import {
  dataPaths,
  inTurns,
  installRig,
  logged,
  nodeHistory,
  nodeStatus,
  ofFamilies,
  own,
  ready,
  refuseToOpen,
  start,
  store,
  value,
  setGone,
} from '../../../support/node-rig.ts'

// Requests about the length of packets belong to another loop (path-search.test.ts).
vi.mock('../../../../src/node/loops/path-search.ts', async () => {
  const { forGood } = await import('../../../../src/node/loops/probes.ts')
  return { searchPaths: ({ signal }: { readonly signal: AbortSignal }) => forGood(signal) }
})

installRig()

const opened: { source: string; asked: string[]; closed: boolean }[] = []
/** The addresses that do not answer. */
let silent: string[] = []
const openEcho: OpenEcho = (source, onAnswer) => {
  const echo = { source: formatAddress(source), asked: [] as string[], closed: false }
  opened.push(echo)
  return {
    send(to, sequence) {
      const address = formatAddress(to)
      echo.asked.push(address)
      if (address === '10.5.0.192')
        throw Object.assign(new Error('sendto: network is unreachable'), { code: 'ENETUNREACH' })
      if (!silent.includes(address)) queueMicrotask(() => onAnswer(to, sequence, 3))
    },
    packet: () => new Uint8Array(),
    close: () => void (echo.closed = true),
  }
}

it('distinguishes stored, programmed and answering peers, and probes again when one falls silent', async () => {
  opened.length = 0
  silent = []
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start({ openEcho })
  await ready()
  const peer = async () => (await nodeStatus()).peers!
  let now = await peer()
  const look = (isSo: () => boolean): Promise<void> =>
    inTurns(() => {
      void peer().then((newest) => (now = newest))
      return isSo()
    })
  await look(() => now.answering === 1)
  expect(now).toMatchObject({ stored: 1, programmed: 1, probed: 1, probeSeconds: 10, whole: 1 })
  expect(now.list[0]).toMatchObject({ state: 'answering', roundTripMs: 3, lossPercent: 0 })
  expect(opened.map(({ source }) => source)).toEqual([own().split('-')[0]])
  silent = ['10.5.0.64']
  await look(() => now.answering === 0)
  expect(now).toMatchObject({ programmed: 1, probed: 1, whole: 0 })
  expect(now.list[0]!.state).toBe('programmed')
})

it('probes from the present address of the node, also after a change', async () => {
  opened.length = 0
  start({ openEcho })
  await ready()
  await inTurns(() => opened.length === 1)
  const before = own()
  store.remove(before)
  store.put(before, value('192.0.2.9'))
  await inTurns(() => opened.length === 2)
  expect(opened.map(({ source, closed }) => [source, closed])).toEqual([
    [before.split('-')[0], true],
    [own().split('-')[0], false],
  ])
})

it('continues if the kernel refuses to send, and reports that no answer came', async () => {
  opened.length = 0
  store.put('10.5.0.192-26', value('192.0.2.2'))
  start({ openEcho })
  await ready()
  await inTurns(() => (opened[0]?.asked.length ?? 0) > 1)
  expect((await nodeStatus()).peers!.list[0]!.state).toBe('programmed')
})

it('reports once that the kernel refuses the socket, and stops probing', async () => {
  let tries = 0
  start({
    openEcho: () => {
      tries++
      throw Object.assign(new Error('socket ICMP: Operation not permitted'), { code: 'EPERM' })
    },
  })
  await ready()
  await inTurns(() => logged(/I Peers are not probed \(socket ICMP: Operation not permitted\)/))
  await vi.advanceTimersByTimeAsync(60_000)
  expect([tries, (await nodeStatus()).peers!.answering]).toEqual([1, null])
})

it('forgets its results when it cannot probe any more', async () => {
  opened.length = 0
  silent = []
  let isForbidden = false
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start({
    openEcho: (...args) => {
      if (isForbidden) throw Object.assign(new Error('socket ICMP: too many open files'), { code: 'EMFILE' })
      return openEcho(...args)
    },
  })
  await ready()
  let now = (await nodeStatus()).peers!
  const look = (isSo: () => boolean): Promise<void> =>
    inTurns(() => {
      void nodeStatus().then(({ peers }) => (now = peers!))
      return isSo()
    })
  await look(() => now.answering === 1)
  await vi.advanceTimersByTimeAsync(12_000)
  expect(nodeHistory().lossPercent.at(-1)).toBe(0)
  isForbidden = true
  refuseToOpen(new WeftError('DEVICE', 'no device'))
  dataPaths[0]!.die('it is gone')
  await look(() => now.programmed === 0 && opened[0]!.closed)
  refuseToOpen()
  await look(() => now.programmed === 1)
  await vi.advanceTimersByTimeAsync(5_000)
  await look(() => now.answering === null)
  expect(now.list[0]).toMatchObject({ state: 'programmed', lossPercent: null, probedSecondsAgo: null })
  await vi.advanceTimersByTimeAsync(11_000)
  expect([nodeHistory().roundTripMs.at(-1), nodeHistory().lossPercent.at(-1)]).toEqual([null, null])
  isForbidden = false
  await look(() => now.answering === 1)
})

it('waits for an address that does not exist yet', async () => {
  opened.length = 0
  let tries = 0
  start({
    openEcho: (...args) => {
      if (++tries < 3) throw Object.assign(new Error('bind ICMP'), { code: 'EADDRNOTAVAIL' })
      return openEcho(...args)
    },
  })
  await ready()
  await inTurns(() => opened.length === 1)
  expect([tries, dataPaths.length, parseIpv4(opened[0]!.source)]).toEqual([3, 1, expect.any(Number)])
})

it('probes a peer that a later change added, and no peer that was removed', async () => {
  opened.length = 0
  silent = []
  start({ openEcho })
  await ready()
  await inTurns(() => opened.length === 1)
  const key = own() === '10.5.0.64-26' ? '10.5.0.128-26' : '10.5.0.64-26'
  store.put(key, value('192.0.2.2'))
  await inTurns(() => opened[0]!.asked.length > 0)
  store.remove(key)
  await inTurns(() => dataPaths[0]!.applied.at(-1)!.length === 0)
  await vi.advanceTimersByTimeAsync(2_000)
  const before = opened[0]!.asked.length
  await vi.advanceTimersByTimeAsync(60_000)
  expect(opened[0]!.asked.length).toBe(before)
  store.put(key, value('192.0.2.2'))
  await inTurns(() => opened[0]!.asked.length > before)
})

const DUAL = '10.5.0.64-26&fd00:5:0:7::-64'
const dualValue = JSON.stringify({ PublicIP: '192.0.2.2', PublicIPv6: '2001:db8::2' })

it('probes a peer over IPv4 and IPv6, and reports each; the state of the peer is the worse one', async () => {
  opened.length = 0
  silent = []
  store.put(DUAL, dualValue)
  start({ openEcho, ...ofFamilies('ipv4', 'ipv6') })
  await ready()
  let now = (await nodeStatus()).peers!
  const look = (isSo: () => boolean): Promise<void> =>
    inTurns(() => {
      void nodeStatus().then(({ peers }) => (now = peers!))
      return isSo()
    })
  await look(() => now.answering === 1)
  const side = { state: 'answering', roundTripMs: 3, lossPercent: 0, probedSecondsAgo: expect.any(Number) }
  expect(now.list[0]).toMatchObject({ ...side, families: { ipv4: side, ipv6: { ...side, way: 'kernel' } } })
  const [subnet4 = '', subnet6 = ''] = own().split('&')
  expect(opened.map(({ source }) => source)).toEqual([subnet4, subnet6].map((each) => each.split('-')[0]))
  expect(opened.map(({ asked }) => [...new Set(asked)])).toEqual([['10.5.0.64'], ['fd00:5:0:7::']])
  silent = ['fd00:5:0:7::']
  await look(() => now.answering === 0)
  expect(now).toMatchObject({ programmed: 1, probed: 1, whole: 0 })
  expect(now.list[0]).toMatchObject({
    state: 'programmed',
    endpoint: '[somewhere]:8285',
    way: 'kernel',
    families: { ipv4: side, ipv6: { state: 'programmed' } },
  })
  silent = ['10.5.0.64']
  await look(() => now.list[0]!.way === 'tunnel' && now.list[0]!.families.ipv6!.state === 'answering')
  expect(now.list[0]!).toMatchObject({ state: 'programmed', families: { ipv4: { state: 'programmed' } } })
})

it('probes in a network with IPv6 alone', async () => {
  opened.length = 0
  silent = []
  store.put('0.0.0.0-0&fd00:5:0:7::-64', JSON.stringify({ PublicIP: '0.0.0.0', PublicIPv6: '2001:db8::2' }))
  start({ openEcho, ...ofFamilies('ipv6') })
  await ready()
  await inTurns(() => (opened[0]?.asked.length ?? 0) > 0)
  const { list, answering } = (await nodeStatus()).peers!
  expect([opened.length, answering, list[0]!.state]).toEqual([1, 1, 'answering'])
  expect(list[0]!.families).toMatchObject({ ipv4: null, ipv6: { state: 'answering', roundTripMs: 3 } })
})

it.each([
  ['IPv6 is forbidden', 'EPERM', 1],
  ['IPv6 has no address yet', 'EADDRNOTAVAIL', 0],
])('probes over IPv4 while %s', async (_what, code, lines) => {
  opened.length = 0
  silent = []
  let tries = 0
  store.put(DUAL, dualValue)
  start({
    ...ofFamilies('ipv4', 'ipv6'),
    openEcho: (source, onAnswer) => {
      if (typeof source === 'number') return openEcho(source, onAnswer)
      tries++
      throw Object.assign(new Error('socket ICMPv6'), { code })
    },
  })
  await ready()
  await inTurns(() => (opened[0]?.asked.length ?? 0) > 1 && tries > 0)
  const { list, answering } = (await nodeStatus()).peers!
  // A peer that was not probed is reported neither as answering nor as silent.
  expect([answering, list[0]!.state, list[0]!.lossPercent]).toEqual([0, 'programmed', null])
  expect(list[0]!.families).toMatchObject({ ipv4: { state: 'answering' }, ipv6: { state: 'programmed' } })
  await vi.advanceTimersByTimeAsync(5_000)
  expect([tries > 1, logged(/I Peers are not probed \(socket ICMPv6\)/)]).toEqual([lines === 0, lines === 1])
})

it.each<[string, () => void]>([
  ['its lease is written again', () => store.put('10.5.0.64-26', value('192.0.2.2'))],
  [
    'it is heard',
    () => {
      const none = { txPackets: 1, txBytes: 1, rxPackets: 1, rxBytes: 1 }
      dataPaths.at(-1)!.traffic = { ...none, lastReceivedAt: performance.now() }
    },
  ],
  ['this host has its address back', () => setGone({})],
])('asks a peer that was silent for long at once when %s', async (sign, show) => {
  opened.length = 0
  silent = ['10.5.0.64']
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start({ openEcho })
  await ready()
  const asked = (): number => opened.at(-1)?.asked.filter((address) => address === '10.5.0.64').length ?? 0
  await inTurns(() => asked() >= 13)
  if (sign.startsWith('this host')) setGone({ ipv4: 'eth0 has lost its address' })
  let turns = 0
  // The peer was probed just now, so its next probe is due later.
  await inTurns(() => ++turns > 20)
  const before = asked()
  expect(before).toBeLessThanOrEqual(14)
  // The traffic of all other peers is not read, because thousands of peers may answer.
  expect(new Set(dataPaths.at(-1)!.trafficOf.flat())).toEqual(new Set(['10.5.0.64-26']))
  silent = []
  show()
  turns = 0
  await inTurns(() => asked() > before || ++turns > 20)
  expect(asked()).toBeGreaterThan(before)
  let now: Awaited<ReturnType<typeof nodeStatus>> | undefined
  await inTurns(() => {
    void nodeStatus().then((newest) => (now = newest))
    return now?.peers?.answering === 1
  })
})
