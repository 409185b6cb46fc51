// peer-watch.ts - derives the events of each peer from the changes of its probe results. Pure.

import type { Family } from '../../net/address.ts'
import { placeOf, type PeerEvent, type PeerEventKind, type PeerEvents } from '../../report/peer-events.ts'
import type { PathLength } from './path-lengths.ts'
import type { Probed } from './probe-schedule.ts'

/**
 * A peer is slow if for SLOW_IN_A_ROW consecutive probes its round trip is more than SLOW_TIMES the usual round trip,
 * and more than SLOW_MORE_MS longer.
 */
const SLOW_TIMES = 2
const SLOW_MORE_MS = 2
const SLOW_IN_A_ROW = 3
/**
 * A slow peer is normal again if its round trip is below this multiple of the usual round trip, or less than
 * SLOW_MORE_MS longer.
 */
const USUAL_TIMES = 1.5
/**
 * The number of samples after which weftd knows a peer's usual round trip. WEIGHT is the weight of each later sample.
 */
const LEARNT_FROM = 10
const WEIGHT = 1 / 16
/**
 * If the round trip exceeds the usual one for NEW_USUAL_MS milliseconds, the longer round trip becomes the usual one.
 */
const NEW_USUAL_MS = 3_600_000
/** The time in ms after a peer fell silent in which packets that the peer sent earlier may still arrive. */
export const ON_ITS_WAY_MS = 2_000

/** The present probe results of a peer over one family. */
export interface Looked {
  /** The key of the peer's lease; `peer` is the peer's subnet as text. */
  readonly lease: string
  readonly peer: string
  readonly publicIp: string
  readonly family: Family
  readonly probed: Probed | undefined
  readonly length: PathLength | undefined
  /** The time when the peer's last packet arrived, if known. All times are in ms of one monotonic clock. */
  readonly heardAt?: number | undefined
}

/**
 * The time when a state began: by the monotonic clock (`now`), or by the wall clock (`day`) if an earlier process
 * recorded it.
 */
type Since = { readonly now: number } | { readonly day: number }

interface State {
  lease: string
  publicIp: string
  silent: Since | undefined
  /** The time, in ms of a monotonic clock, when this process first found that the peer is silent. */
  silentHere: number | undefined
  isOneWay: boolean
  narrow: Since | undefined
  probed: Probed | undefined
  usualMs: number
  learnt: number
  /** The number of consecutive samples that contradict the recorded state. */
  doubts: number
  slow: number | undefined
}

export class PeerWatch {
  /** The list to which an event is added for each change. */
  readonly #events: PeerEvents
  /** Returns the time of day in the text format of events. */
  readonly #stamp: () => string
  /** The state of each peer over each family, by the key of `placeOf`. */
  readonly #states = new Map<string, State>()

  constructor(events: PeerEvents, stamp: () => string) {
    this.#events = events
    this.#stamp = stamp
  }

  /** Compares a peer's present state with its recorded state, and adds an event for each change. */
  look(looked: Looked, now: number): void {
    const place = placeOf(looked)
    const state = this.#states.get(place) ?? this.#begin(looked)
    this.#states.set(place, state)
    state.lease = looked.lease // the key changes if the network gets or loses a family
    if (state.publicIp !== looked.publicIp) {
      this.#addEvent(looked, 'moved', { movedFrom: state.publicIp })
      state.publicIp = looked.publicIp
    }
    this.#lookAtAnswers(state, looked, now)
    this.#lookAtLength(state, looked, now)
    this.#lookAtRoundTrip(state, looked, now)
    state.probed = looked.probed
  }

  /** Deletes the states of all peers whose key is not in `places`. */
  keep(places: ReadonlySet<string>): void {
    for (const place of this.#states.keys()) if (!places.has(place)) this.#states.delete(place)
  }

  /** Returns the lease keys of the silent peers, except those whose packets are known to arrive. */
  silent(): ReadonlySet<string> {
    const keys = new Set<string>()
    for (const { lease, silent, isOneWay } of this.#states.values()) if (silent && !isOneWay) keys.add(lease)
    return keys
  }

  /** Returns the newest round trip and loss of each peer. A silent peer has no round trip. */
  *readings(): Iterable<{ readonly roundTripMs: number | undefined; readonly lossPercent: number }> {
    for (const { probed } of this.#states.values()) {
      if (!probed) continue
      const { isAnswering, roundTripMs, lossPercent } = probed
      yield { roundTripMs: isAnswering ? roundTripMs : undefined, lossPercent }
    }
  }

  /**
   * Creates the state of a new peer from the peer's last recorded events, which an earlier process may have written.
   */
  #begin(looked: Looked): State {
    const { lease, publicIp } = looked
    const sinceOf = (kinds: readonly PeerEventKind[], kind: PeerEventKind): Since | undefined => {
      const last = this.#events.last(looked, kinds)
      return last?.what === kind ? { day: Date.parse(last.at) } : undefined
    }
    return {
      lease,
      publicIp,
      silent: sinceOf(['silent', 'back'], 'silent'),
      narrow: sinceOf(['narrow', 'whole'], 'narrow'),
      isOneWay: false,
      silentHere: undefined,
      probed: undefined,
      usualMs: 0,
      learnt: 0,
      doubts: 0,
      slow: undefined,
    }
  }

  #addEvent(looked: Looked, what: PeerEventKind, known: Partial<PeerEvent> = {}): void {
    const { peer, publicIp, family } = looked
    const nothing = { afterSeconds: null, movedFrom: null, bytes: null, roundTripMs: null, usualMs: null }
    this.#events.add({ at: this.#stamp(), what, peer, publicIp, family, ...nothing, ...known })
  }

  /** Returns the time since `since` in seconds; null if the wall clock was set back since then. */
  #lasted(since: Since, now: number): number | null {
    const ms = 'now' in since ? now - since.now : Date.parse(this.#stamp()) - since.day
    return ms < 0 ? null : Math.round(ms / 1000)
  }

  /** Adds events when a peer falls silent, answers again, or sends packets but does not answer. */
  #lookAtAnswers(state: State, looked: Looked, now: number): void {
    const { probed, heardAt } = looked
    if (!probed) return
    if (!probed.isAnswering) {
      if (!state.silent) {
        state.silent = { now: probed.at }
        this.#addEvent(looked, 'silent')
      }
      // If the silence began while an earlier process ran, `silentHere` is the time at which this process first noticed
      // the silence.
      state.silentHere ??= probed.at
      if (!state.isOneWay && heardAt !== undefined && heardAt > state.silentHere + ON_ITS_WAY_MS) {
        state.isOneWay = true
        this.#addEvent(looked, 'one-way')
      }
    } else if (state.silent) {
      this.#addEvent(looked, 'back', { afterSeconds: this.#lasted(state.silent, now) })
      state.silent = undefined
      state.silentHere = undefined
      state.isOneWay = false
    }
  }

  /**
   * Adds events when the path to a peer begins to lose full-size packets (event `narrow`), or carries them again
   * (event `whole`).
   */
  #lookAtLength(state: State, looked: Looked, now: number): void {
    const { length, probed } = looked
    if (!length || probed?.isAnswering === false) return
    if (!length.isWhole && !state.narrow && length.bytes !== undefined) {
      state.narrow = { now: length.since }
      this.#addEvent(looked, 'narrow', { bytes: length.bytes })
    } else if (length.isWhole && state.narrow) {
      this.#addEvent(looked, 'whole', { afterSeconds: this.#lasted(state.narrow, now) })
      state.narrow = undefined
    }
  }

  /** Adds events when the round trip becomes much slower than usual, or is usual again. */
  #lookAtRoundTrip(state: State, looked: Looked, now: number): void {
    const { probed } = looked
    // Use the result of each probe only once, because `look` may be called several times between two probes.
    if (!probed?.isAnswering || probed.roundTripMs === undefined || probed.at === state.probed?.at) return
    const ms = probed.roundTripMs
    if (state.learnt < LEARNT_FROM) {
      state.usualMs += (ms - state.usualMs) / ++state.learnt
      return
    }
    const isSlow = ms > SLOW_TIMES * state.usualMs && ms > state.usualMs + SLOW_MORE_MS
    const known = { roundTripMs: shown(ms), usualMs: shown(state.usualMs) }
    if (state.slow === undefined) {
      state.doubts = isSlow ? state.doubts + 1 : 0
      if (!isSlow) state.usualMs += (ms - state.usualMs) * WEIGHT
      if (state.doubts < SLOW_IN_A_ROW) return
      state.slow = now
      this.#addEvent(looked, 'slow', known)
    } else {
      const isNew = now - state.slow >= NEW_USUAL_MS
      state.doubts = ms < USUAL_TIMES * state.usualMs || ms < state.usualMs + SLOW_MORE_MS ? state.doubts + 1 : 0
      if (!isNew && state.doubts < SLOW_IN_A_ROW) return
      this.#addEvent(looked, 'usual', { ...known, afterSeconds: this.#lasted({ now: state.slow }, now) })
      if (isNew) Object.assign(state, { usualMs: 0, learnt: 0 })
      state.slow = undefined
    }
    state.doubts = 0
  }
}

const shown = (ms: number): number => Number(ms.toPrecision(3))
