// probes.ts - which peers are asked whether they answer, when, and what the answers say of each. Pure.
//
// Each peer is asked once in the interval; so many are asked a second at most, so that where peers are very many each is asked less
// often. A peer that does not answer is asked again at once: one lost packet is no peer that is down.

import type { Ipv4 } from '../net/ipv4.ts'

/** A request that was not answered for so long counts as lost; an answer that comes later still counts. */
export const PATIENCE_MS = 1_000
/** Of these the loss is told. */
const REMEMBERED = 10
/** So many lost in a row make a peer one that does not answer. */
const LOST_IN_A_ROW = 2
/** How many peers are asked in a second at most: what it costs is bounded, whatever their number. */
export const ASKED_A_SECOND = 50
/** A peer that came is asked soon, and then somewhere in the interval: those that came together are not asked together for ever. */
const SOON_MS = 1_000
/** ICMP's sequence numbers (RFC 792). */
const SEQUENCES = 0x10000

export interface Target {
  /** Of its lease. */
  readonly key: string
  /** What is asked. */
  readonly address: Ipv4
}

/** What is known of a peer by its last probes. */
export interface Probed {
  readonly isAnswering: boolean
  /** Of the last that was answered. */
  readonly roundTripMs: number | undefined
  readonly lossPercent: number
  /** When the last was answered or lost, by the caller's clock in ms. */
  readonly at: number
}

export interface Request extends Target {
  readonly sequence: number
}

export interface Probes {
  /** These and no others are peers from now on. */
  keep(targets: readonly Target[], now: number): void
  /** What is to be asked of one of them from now on; nothing where it is no peer any more. */
  look(key: string, address: Ipv4 | undefined, now: number): void
  /** Whom to ask now. To be called about once a second. */
  due(now: number): readonly Request[]
  /** An answer came. */
  answered(sequence: number, from: Ipv4, roundTripMs: number, now: number): void
  /** By lease key; without those that were not asked yet. */
  results(): ReadonlyMap<string, Probed>
  /** How often a peer is asked, in ms, as many as there are. */
  intervalMs(): number
}

interface Known {
  address: Ipv4
  nextAt: number
  isFirst: boolean
  /** The newest last: whether it was answered, by sequence number. */
  readonly results: { readonly sequence: number; isAnswered: boolean }[]
  roundTripMs: number | undefined
  concludedAt: number | undefined
}

const NOTHING_KNOWN = { nextAt: 0, roundTripMs: undefined, concludedAt: undefined }

/** When a peer is asked. */
interface Turn {
  readonly key: string
  readonly at: number
}

/** `random` gives 0 to 1. */
export function createProbes(wantedMs: number, random: () => number): Probes {
  const known = new Map<string, Known>()
  /** Requests that nothing was heard of yet, the oldest first. */
  const waiting = new Map<number, { readonly key: string; readonly peer: Known; readonly sentAt: number }>()
  /** Of those that were lost, to whom they were: an answer may be late. */
  const lost = new Map<number, Known>()
  /** Keys by the second in which they are due, and those whose second has come, the first first. */
  const later = new Map<number, Turn[]>()
  const come: Turn[] = []
  let taken = 0 // of those
  let next = Math.floor(random() * SEQUENCES)
  const intervalMs = (): number => Math.max(wantedMs, (known.size / ASKED_A_SECOND) * 1000)

  function schedule(key: string, peer: Known, at: number): void {
    peer.nextAt = at
    const second = Math.ceil(at / 1000)
    const turns = later.get(second)
    if (turns) turns.push({ key, at })
    else later.set(second, [{ key, at }])
  }

  /** The next peer whose turn has come; undefined when there is none. */
  function nextDue(): readonly [string, Known] | undefined {
    while (taken < come.length) {
      const turn = come[taken++]
      const peer = turn && known.get(turn.key)
      // One that is no peer any more, or was given another turn since.
      if (peer?.nextAt === turn?.at && turn && peer) return [turn.key, peer]
    }
    come.length = 0
    taken = 0
    return undefined
  }

  function giveUp(now: number): void {
    for (const [sequence, { key, peer, sentAt }] of waiting) {
      if (now - sentAt < PATIENCE_MS) break
      waiting.delete(sequence)
      lost.set(sequence, peer)
      conclude(peer, sequence, false, now)
      if (lostInARow(peer) < LOST_IN_A_ROW && known.get(key) === peer) schedule(key, peer, now)
    }
    for (const sequence of lost.keys()) {
      if (lost.size <= known.size) break
      lost.delete(sequence)
    }
  }

  function look(key: string, address: Ipv4 | undefined, now: number): void {
    if (known.get(key)?.address === address) return
    known.delete(key)
    if (address === undefined) return
    const fresh: Known = { address, isFirst: true, results: [], ...NOTHING_KNOWN }
    known.set(key, fresh)
    schedule(key, fresh, now + Math.min(SOON_MS, wantedMs) * random())
  }

  return {
    keep(targets, now) {
      const wanted = new Set(targets.map(({ key }) => key))
      for (const key of known.keys()) if (!wanted.has(key)) known.delete(key)
      for (const { key, address } of targets) look(key, address, now)
    },
    look,
    due(now) {
      giveUp(now)
      for (const second of [...later.keys()].filter((each) => each * 1000 <= now).toSorted((a, b) => a - b)) {
        // One by one: a call takes no arguments by the hundred thousand.
        for (const turn of later.get(second) ?? []) come.push(turn)
        later.delete(second)
      }
      const requests: Request[] = []
      while (requests.length < ASKED_A_SECOND) {
        const [key, peer] = nextDue() ?? []
        if (key === undefined || !peer) break
        const sequence = next
        next = (next + 1) % SEQUENCES
        waiting.delete(sequence)
        lost.delete(sequence)
        waiting.set(sequence, { key, peer, sentAt: now })
        schedule(key, peer, now + intervalMs() * (peer.isFirst ? random() : 1))
        peer.isFirst = false
        requests.push({ key, address: peer.address, sequence })
      }
      return requests
    },
    answered(sequence, from, roundTripMs, now) {
      const peer = waiting.get(sequence)?.peer ?? lost.get(sequence)
      // Whoever is not asked may say what it likes.
      if (peer?.address !== from) return
      waiting.delete(sequence)
      lost.delete(sequence)
      conclude(peer, sequence, true, now)
      peer.roundTripMs = roundTripMs
    },
    results: () =>
      new Map(
        [...known].flatMap(([key, peer]) => {
          const { results, roundTripMs, concludedAt } = peer
          if (concludedAt === undefined) return []
          const losses = results.filter(({ isAnswered }) => !isAnswered).length
          const isAnswering = losses < results.length && lostInARow(peer) < LOST_IN_A_ROW
          const lossPercent = Math.round((100 * losses) / results.length)
          return [[key, { isAnswering, roundTripMs, lossPercent, at: concludedAt }] as const]
        }),
      ),
    intervalMs,
  }
}

function conclude(peer: Known, sequence: number, isAnswered: boolean, now: number): void {
  const { results } = peer
  const before = results.find((result) => result.sequence === sequence)
  if (before) before.isAnswered = isAnswered
  else results.push({ sequence, isAnswered })
  if (results.length > REMEMBERED) results.shift()
  peer.concludedAt = now
}

/** How many of the last were lost, one after another. */
function lostInARow({ results }: Known): number {
  return results.length - 1 - results.findLastIndex(({ isAnswered }) => isAnswered)
}
