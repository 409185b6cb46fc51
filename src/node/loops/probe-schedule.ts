// probe-schedule.ts - decides when each peer is probed over one family, and evaluates the answers. Pure.
//
// Each peer is probed once per interval. The number of probes per second is limited, so with very many peers the interval is longer.
// A peer that does not answer is probed again immediately, because one lost packet does not mean that the peer is down. A peer that
// stays silent is probed less and less often: its lease may remain for a day after its host is gone, and each probe makes this host resolve
// a neighbour on its link. Any sign of life restores the usual interval.

import type { Address } from '../../net/address.ts'

/** The time after which an unanswered probe counts as lost. A later answer still counts. */
export const PATIENCE_MS = 1_000
/** The number of last probes of which the loss is reported. */
const REMEMBERED = 10
/** The number of probes lost in a row after which a peer counts as silent. */
const LOST_IN_A_ROW = 2
/** The number of probes lost in a row that are an outage. After an outage these probes do not count as loss. */
const OUTAGE = 4
/** The number of probes lost in a row after which each interval is twice the one before. */
const BACK_OFF_AFTER = 10
/** The longest interval between probes of a silent peer, unless the usual interval is longer. */
export const MOST_SILENT_MS = 300_000
/** Peers that fell silent within this time of each other count as one outage: if one of them is back, the others are probed. */
const ONE_OUTAGE_MS = 60_000
/** The maximum number of probes per second, which limits the cost with many peers. */
export const ASKED_A_SECOND = 50
/** A new peer is probed within this time, and then at a random time in the interval, so that peers which came together are not probed together. */
const SOON_MS = 1_000
/** ICMP's sequence numbers (RFC 792). */
const SEQUENCES = 0x10000

export interface Target {
  /** The key of the peer's lease. */
  readonly key: string
  /** The address that is probed. */
  readonly address: Address
}

/** A peer's state by its last probes. */
export interface Probed {
  readonly isAnswering: boolean
  /** The round trip of the last probe that was answered. */
  readonly roundTripMs: number | undefined
  /** The loss of the last ten probes. If the peer answers, probes before its first answer and in an outage do not count. */
  readonly lossPercent: number
  /** The time when the last probe was answered or lost, by the caller's clock in ms. */
  readonly at: number
  /** The time when the first lost probe since the last answer was sent; undefined if none was lost. */
  readonly unansweredSince: number | undefined
}

interface Request extends Target {
  readonly sequence: number
}

export interface Probes {
  /** Replaces the set of peers. */
  keep(targets: readonly Target[], now: number): void
  /** Changes the address of one peer; undefined removes the peer. */
  look(key: string, address: Address | undefined, now: number): void
  /** Makes a peer due for the next probes, unless it is known to be silent and is probed at the usual interval. */
  soon(key: string, now: number): void
  /**
   * Called when something shows that a peer's host lives. If the peer was probed less often, restores the usual interval and makes it due
   * for the next probes. `heardAt` is the time of the sign of life; a sign that is older than the last probe is ignored.
   */
  wake(key: string, now: number, heardAt?: number): void
  /** Returns the keys of the silent peers that are probed less often. */
  resting(): readonly string[]
  /** Returns the keys of the peers that lost a probe since the last call and may have fallen silent. */
  takeDoubted(): ReadonlySet<string>
  /** Returns the requests to send now. Must be called about once a second. */
  due(now: number): readonly Request[]
  /** Evaluates an answer. */
  answered(sequence: number, from: Address, roundTripMs: number, now: number): void
  /** Returns the results by lease key, without peers that were not probed yet. */
  results(): ReadonlyMap<string, Probed>
  /** Returns the result of one peer; undefined if it was not probed yet. */
  result(key: string): Probed | undefined
  /** Returns the keys of the peers whose result has changed since the last call. */
  takeNews(): ReadonlySet<string>
  /** Returns the present interval between probes of one peer, in ms. */
  intervalMs(): number
}

interface Known {
  readonly key: string
  address: Address
  nextAt: number
  isFirst: boolean
  /** The results of the last probes by sequence number, the newest last. */
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

/** A time at which a peer is due. */
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
  /** The requests without an answer, the oldest first. */
  const waiting = new Map<number, { readonly key: string; readonly peer: Known; readonly sentAt: number }>()
  /** The peers of lost requests, by sequence number, because an answer may be late. */
  const lost = new Map<number, Known>()
  /** The turns by the second in which they are due, and the turns whose second has come, in order. */
  const later = new Map<number, Turn[]>()
  const come: Turn[] = []
  let taken = 0 // the number of turns in `come` that were handled
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
  /** Called when this peer answers again. The other peers that fell silent at about the same time are then probed immediately. */
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
      // A removed peer, and a peer whose turn was changed, is skipped.
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
        // Pushed one by one, because a call cannot have a hundred thousand arguments.
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
      // An answer from an address that was not probed proves nothing.
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
  // The first lost probe of a peer that never answered proves nothing. The peer is probed again immediately.
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

/** Returns the number of last probes that were lost in a row. */
function lostInARow({ results }: Known): number {
  return results.length - 1 - results.findLastIndex(({ isAnswered }) => isAnswered)
}
