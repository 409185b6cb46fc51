// underlays.test.ts - the chosen family of a peer's datagrams, also after the data path or the process was replaced.

import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { createBell } from '../../../../src/host/bell.ts'
import type { OpenEcho } from '../../../../src/host/echo.ts'
import type { Address, Family } from '../../../../src/net/address.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import { chooseUnderlays } from '../../../../src/node/loops/underlays.ts'
import { touch, type Node } from '../../../../src/node/node.ts'
import { log } from '../../../support/fake-host.ts'

const INSIDE = parseIpv4('10.5.2.0')!
const INSIDE_6 = parseIpv6('fd00:5:0:2::')!

let stop: AbortController
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance', 'Date'] })
  stop = new AbortController()
})
afterEach(() => {
  stop.abort(new Error('over'))
  vi.useRealTimers()
  vi.restoreAllMocks()
})

/** A data path with one peer, at first over IPv6, which an earlier process chose. The peer answers over `answersBy`. */
function rig(probeInterval: number, lacking: { readonly ipv4?: string } = {}) {
  const by = new Set(['a'])
  const answersBy = new Set<Family>(['ipv6'])
  /** The number of times that all peers were listed. */
  const counted = { listings: 0 }
  const side = (probe: Address) => ({ endpoint: '192.0.2.2:8285', probe, way: 'tunnel' })
  // The peer has no side of a family that the data path lacks.
  const peers = [{ key: 'a', ...(lacking.ipv4 ? {} : { ipv4: side(INSIDE) }), ipv6: side(INSIDE_6) }]
  const answers: { [F in Family]?: (sequence: number) => void } = {}
  const openEcho: OpenEcho = (source, onAnswer) => {
    // The kernel has no address of a family that the data path lacks.
    if (lacking.ipv4 && typeof source === 'number') throw Object.assign(new Error('x'), { code: 'EADDRNOTAVAIL' })
    return {
      send() {},
      packet(to, sequence, outer) {
        answers[outer] = (of) => onAnswer(to, of, 1)
        return Uint8Array.of(sequence >> 8, sequence & 255)
      },
      close() {},
    }
  }
  const underlays = {
    first: 'ipv4',
    other: 'ipv6',
    others: () => [...by],
    has: () => true,
    choose: (key: string, family: Family) => void (family === 'ipv6' ? by.add(key) : by.delete(key)),
    send(_key: string, family: Family, [high = 0, low = 0]: Uint8Array) {
      if (answersBy.has(family)) queueMicrotask(() => answers[family]?.(high * 256 + low))
    },
  }
  const node = {
    signal: stop.signal,
    openEcho,
    options: { 'probe-interval': probeInterval },
    log,
    view: new Map(),
    ownership: {
      dataPath: {
        underlays,
        lacking,
        probeSource: { ipv4: INSIDE, ipv6: INSIDE_6 },
        peers() {
          counted.listings++
          return peers
        },
        peer: (key: string) => peers.find((peer) => peer.key === key),
      },
    },
    learnt: createBell(),
    unsearched: { keys: new Set<string>() },
    unchosen: { keys: undefined as Set<string> | undefined },
  }
  chooseUnderlays(node as unknown as Node).catch(() => {})
  /** Reports that the peer has changed. */
  const change = (): void => touch(node.unchosen, new Set(['a']))
  /** Replaces the data path, as after a change of the MTU. */
  const reopen = (): void => void (node.ownership.dataPath = { ...node.ownership.dataPath })
  return { by, answersBy, peers, counted, change, reopen }
}

it('the family of a peer is the choice of an earlier process until the peer answers over the first family', async () => {
  const { by, answersBy } = rig(1)
  await vi.advanceTimersByTimeAsync(30_000)
  expect([...by]).toEqual(['a'])
  answersBy.add('ipv4')
  await vi.advanceTimersByTimeAsync(30_000)
  expect([...by]).toEqual([])
})

it('the family of a peer is chosen by probes of the inner family that the data path carries', async () => {
  const { by, answersBy } = rig(1, { ipv4: '10.5.0.0/16 is already routed to eth1' })
  answersBy.add('ipv4')
  await vi.advanceTimersByTimeAsync(30_000)
  expect([...by]).toEqual([])
})

it('the family of a peer is not that of the previous process if no peer is probed, because no probe would show that it fails', async () => {
  const { by } = rig(0)
  await vi.advanceTimersByTimeAsync(0)
  expect([...by]).toEqual([])
})

it('the family of a peer is the first again if the peer was removed and added between two checks', async () => {
  const { by } = rig(1)
  await vi.advanceTimersByTimeAsync(10_000)
  by.clear() // as a data path forgets a removed peer
  await vi.advanceTimersByTimeAsync(2_000)
  expect([...by]).toEqual(['a'])
})

it('the family of a peer is not kept for ever if the peer could not be probed for a while', async () => {
  const { by, answersBy, peers, change } = rig(1)
  await vi.advanceTimersByTimeAsync(10_000)
  const [peer] = peers.splice(0)
  change()
  await vi.advanceTimersByTimeAsync(3_000)
  peers.push(peer!)
  change()
  await vi.advanceTimersByTimeAsync(3_000)
  expect([...by]).toEqual(['a'])
  answersBy.clear()
  answersBy.add('ipv4')
  await vi.advanceTimersByTimeAsync(60_000)
  expect([...by]).toEqual([])
})

it('the family of a peer is chosen without a listing of all peers each second', async () => {
  const { by, counted } = rig(1)
  await vi.advanceTimersByTimeAsync(30_000)
  expect([...by]).toEqual(['a'])
  expect(counted.listings).toBe(3)
})

it('the family of a new peer is chosen although the peers are not listed again', async () => {
  const { by, answersBy, peers, counted, change } = rig(1)
  const [peer] = peers.splice(0)
  by.clear()
  await vi.advanceTimersByTimeAsync(11_500)
  const { listings } = counted
  peers.push(peer!)
  change()
  answersBy.add('ipv4')
  await vi.advanceTimersByTimeAsync(4_000)
  answersBy.delete('ipv4')
  await vi.advanceTimersByTimeAsync(5_000)
  expect([[...by], counted.listings]).toEqual([['a'], listings])
})

it('the family of a peer is not changed right after the data path was opened again, because earlier answers prove nothing', async () => {
  vi.spyOn(Math, 'random').mockReturnValue(0.5)
  const { by, answersBy, reopen } = rig(10)
  by.clear()
  answersBy.add('ipv4')
  await vi.advanceTimersByTimeAsync(60_000)
  reopen()
  answersBy.delete('ipv4')
  // Two probes over IPv4 are lost, and the peer has answered over IPv6, but only since one of these probes was sent.
  await vi.advanceTimersByTimeAsync(7_000)
  expect([...by]).toEqual([])
  await vi.advanceTimersByTimeAsync(30_000)
  expect([...by]).toEqual(['a'])
})
