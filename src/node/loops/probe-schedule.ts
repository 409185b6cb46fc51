// probe-schedule.ts - which peers are asked by a family whether they answer, when, and what the answers say of each. Pure.
//
// Each peer is asked once in the interval; so many are asked a second at most, so that where peers are very many each is asked less
// often. A peer that does not answer is probed again immediately, because one lost packet does not mean that the peer is down. A peer that
// stays silent is probed less and less often: its lease may remain for a day after its host is gone, and each probe makes this host resolve
// a neighbour on its link. Any sign of life restores the usual interval.

import type { Address } from '../../net/address.ts'

/** A request that was not answered for so long counts as lost; an answer that comes later still counts. */
export const PATIENCE_MS = 1_000
/** Loss is told of so many last probes. */
const REMEMBERED = 10
/** A peer that lost so many in a row does not answer. */
const LOST_IN_A_ROW = 2
/** So many in a row are an outage: when that is over, they are no loss of the peer that answers again. */
const OUTAGE = 4
/** The number of probes lost in a row after which each interval is twice the one before. */
const BACK_OFF_AFTER = 10
/** The longest interval between probes of a silent peer, unless the usual interval is longer. */
export const MOST_SILENT_MS = 300_000
/** Peers that fell silent within this time of each other count as one outage: if one of them is back, the others are probed. */
const ONE_OUTAGE_MS = 60_000
/** The number of peers that are asked in a second at most: it bounds the cost, whatever their number. */
export const ASKED_A_SECOND = 50
/** A peer that came is asked soon, and then somewhere in the interval: those that came together are not asked together for ever. */
const SOON_MS = 1_000
/** ICMP's sequence numbers (RFC 792). */
const SEQUENCES = 0x10000

export interface Target {
  /** The key of the peer's lease. */
  readonly key: string
  /** The address that is asked. */
  readonly address: Address
}

/** A peer's state by its last probes. */
export interface Probed {
  readonly isAnswering: boolean
  /** The round trip of the last probe that was answered. */
  readonly roundTripMs: number | undefined
  /** Of the last ten probes; while it answers those count for nothing that were lost before it first did, or in an outage. */
  readonly lossPercent: number
  /** The time when the last one was answered or lost, by the caller's clock in ms. */
  readonly at: number
  /** The time when the first that was lost since the last answer was sent; undefined when none was. */
  readonly unansweredSince: number | undefined
}

interface Request extends Target {
  readonly sequence: number
}

export interface Probes {
  /** These and no others are peers from now on. */
  keep(targets: readonly Target[], now: number): void
  /** Says what address of a peer is to be asked from now on; undefined when it is no peer any more. */
  look(key: string, address: Address | undefined, now: number): void
  /** Makes a peer due for the next probes, unless it is known to be silent and is probed at the usual interval. */
  soon(key: string, now: number): void
  /**
   * Called when something shows that a peer's host lives. If the peer was probed less often, restores the usual interval and makes it due
   * for the next probes. `heardAt` is the time of the sign of life; a sign from before the last probe is ignored.
   */
  wake(key: string, now: number, heardAt?: number): void
  /** Returns the keys of the silent peers that are probed less often. */
  resting(): readonly string[]
  /** The keys of those that lost a request since this was last called, and may have fallen silent. */
  takeDoubted(): ReadonlySet<string>
  /** The requests to send now. To be called about once a second. */
  due(now: number): readonly Request[]
  /** An answer came. */
  answered(sequence: number, from: Address, roundTripMs: number, now: number): void
  /** The results by lease key, without peers that were not asked yet. */
  results(): ReadonlyMap<string, Probed>
  /** The result of one; undefined when it was not asked yet. */
  result(key: string): Probed | undefined
  /** The keys of those whose result is another since this was last called. */
  takeNews(): ReadonlySet<string>
  /** The interval in ms at which a peer is asked, given their number. */
  intervalMs(): number
}

interface Known {
  readonly key: string
  address: Address
  nextAt: number
  isFirst: boolean
  /** The newest last: whether it was answered, by sequence number. */
  readonly results: { readonly sequence: number; isAnswered: boolean }[]
  roundTripMs: number | undefined
  concludedAt: number | undefined
  unansweredSince: number | undefined
  /** The number of probes lost in a row since the last sign of life. */
  lostInVain: number
  /** The time of the last probe. */
  requestedAt: number
}

const NOTHING_KNOWN = {
  lostInVain: 0,
  requestedAt: -Infinity,
  nextAt: 0,
  roundTripMs: undefined,
  concludedAt: undefined,
  unansweredSince: undefined,
}

/** The turn of a peer: when it is asked. */
interface Turn {
  readonly key: string
  readonly at: number
}

/** `random` returns 0 to 1; `mostSilentMs` returns the longest interval between probes of a silent peer, by its key. */
export function createProbes(
  wantedMs: number,
  random: () => number,
  mostSilentMs: (key: string) => number = () => MOST_SILENT_MS,
): Probes {
  const known = new Map<string, Known>()
  /** Requests that nothing was heard of yet, the oldest first. */
  const waiting = new Map<number, { readonly key: string; readonly peer: Known; readonly sentAt: number }>()
  /** The peers that lost requests were for, by request: an answer may be late. */
  const lost = new Map<number, Known>()
  /** Keys by the second in which they are due, and those whose second has come, the first first. */
  const later = new Map<number, Turn[]>()
  const come: Turn[] = []
  let taken = 0 // of those
  let next = Math.floor(random() * SEQUENCES)
  let news = new Set<string>()
  let doubted = new Set<string>()
  const intervalMs = (): number => Math.max(wantedMs, (known.size / ASKED_A_SECOND) * 1000)

  /** The silent peers that are probed less often. */
  const atRest = new Set<Known>()
  /** Returns the interval until the next probe of a peer. */
  function waitOf({ key, lostInVain }: Known): number {
    const usual = intervalMs()
    const doublings = lostInVain - BACK_OFF_AFTER + 1
    return doublings <= 0 ? usual : Math.max(usual, Math.min(mostSilentMs(key), usual * 2 ** doublings))
  }
  function wake(key: string, now: number, heardAt = Infinity): void {
    const peer = known.get(key)
    if (!peer || !atRest.has(peer) || heardAt <= peer.requestedAt) return
    atRest.delete(peer)
    peer.lostInVain = 0
    schedule(key, peer, now)
  }
  /** Called when this peer is back. Makes the peers due for a probe that fell silent at about the same time. */
  function wakeOthers({ unansweredSince }: Known, now: number): void {
    if (unansweredSince === undefined) return
    for (const other of Array.from(atRest))
      if (Math.abs((other.unansweredSince ?? -Infinity) - unansweredSince) < ONE_OUTAGE_MS) wake(other.key, now)
  }
  function forget(key: string): void {
    const peer = known.get(key)
    if (peer) atRest.delete(peer)
    known.delete(key)
  }

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
      // A peer that is none any more, or was given another turn since, is skipped.
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
      news.add(key)
      peer.unansweredSince ??= sentAt
      peer.lostInVain++
      if (waitOf(peer) > intervalMs() && known.get(key) === peer) {
        atRest.add(peer)
        // Its turn was set when it was probed, before the probe was lost, so it is set again.
        schedule(key, peer, peer.requestedAt + waitOf(peer))
      }
      if (lostInARow(peer) >= LOST_IN_A_ROW || known.get(key) !== peer) continue
      doubted.add(key)
      schedule(key, peer, now)
    }
    for (const sequence of lost.keys()) {
      if (lost.size <= known.size) break
      lost.delete(sequence)
    }
  }

  function look(key: string, address: Address | undefined, now: number): void {
    if (known.get(key)?.address === address) return
    forget(key)
    if (address === undefined) return
    const fresh: Known = { key, address, isFirst: true, results: [], ...NOTHING_KNOWN }
    known.set(key, fresh)
    schedule(key, fresh, now + Math.min(SOON_MS, wantedMs) * random())
  }

  return {
    keep(targets, now) {
      const wanted = new Set(targets.map(({ key }) => key))
      for (const key of known.keys()) if (!wanted.has(key)) forget(key)
      for (const { key, address } of targets) look(key, address, now)
    },
    look,
    soon(key, now) {
      const peer = known.get(key)
      if (peer && atRest.has(peer)) wake(key, now)
      else if (peer && peer.nextAt > now && lostInARow(peer) < LOST_IN_A_ROW) schedule(key, peer, now)
    },
    wake,
    resting: () => [...atRest].map(({ key }) => key),
    takeDoubted() {
      const before = doubted
      doubted = new Set()
      return before
    },
    due(now) {
      giveUp(now)
      for (const second of [...later.keys()].filter((each) => each * 1000 <= now).toSorted((a, b) => a - b)) {
        // Pushed one by one: a call takes no arguments by the hundred thousand.
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
        peer.requestedAt = now
        schedule(key, peer, now + waitOf(peer) * (peer.isFirst ? random() : 1))
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
      news.add(peer.key)
      wakeOthers(peer, now)
      atRest.delete(peer)
      // The peer may have been due much later, so its next probe is moved forward.
      if (peer.lostInVain >= BACK_OFF_AFTER && known.get(peer.key) === peer)
        schedule(peer.key, peer, Math.min(peer.nextAt, now + intervalMs()))
      peer.lostInVain = 0
      peer.unansweredSince = undefined
    },
    results: () =>
      new Map(
        [...known].flatMap(([key, peer]) => {
          const result = resultOf(peer)
          return result ? [[key, result] as const] : []
        }),
      ),
    result(key) {
      const peer = known.get(key)
      return peer && resultOf(peer)
    },
    takeNews() {
      const before = news
      news = new Set()
      return before
    },
    intervalMs,
  }
}

function resultOf(peer: Known): Probed | undefined {
  const { results, roundTripMs, concludedAt, unansweredSince } = peer
  if (concludedAt === undefined) return undefined
  const losses = results.filter(({ isAnswered }) => !isAnswered).length
  const isAnswering = losses < results.length && lostInARow(peer) < LOST_IN_A_ROW
  // One lost packet of a peer that was never heard tells nothing: it is asked again at once.
  if (!isAnswering && results.length < LOST_IN_A_ROW) return undefined
  const lossPercent = Math.round((100 * losses) / (isAnswering ? REMEMBERED : results.length))
  return { isAnswering, roundTripMs, lossPercent, at: concludedAt, unansweredSince }
}

function conclude(peer: Known, sequence: number, isAnswered: boolean, now: number): void {
  const { results } = peer
  const before = results.find((result) => result.sequence === sequence)
  const isBack = isAnswered && (lostInARow(peer) >= OUTAGE || results.every((result) => !result.isAnswered))
  if (isBack) results.splice(0, results.length, { sequence, isAnswered })
  else if (before) before.isAnswered = isAnswered
  else results.push({ sequence, isAnswered })
  if (results.length > REMEMBERED) results.shift()
  peer.concludedAt = now
}

/** The number of last probes in a row that were lost. */
function lostInARow({ results }: Known): number {
  return results.length - 1 - results.findLastIndex(({ isAnswered }) => isAnswered)
}
