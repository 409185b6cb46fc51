// probe-schedule.ts - decides when weftd probes each peer over one family, and evaluates the answers. Pure.
//
// weftd probes each peer once per interval. The number of probes per second is limited, so with very many peers the
// interval is longer. After a lost probe weftd probes the peer again immediately, because one lost packet does not mean
// that the peer is down. The longer a peer stays silent, the less often weftd probes it. The peer's lease may remain
// for a day after its host is gone, and each probe makes this host resolve a neighbour on its link. Any sign that the
// peer's host is up restores the usual interval.

import type { Address } from '../../net/address.ts'

/** The time in ms after which an unanswered probe counts as lost. An answer that arrives later still counts. */
export const PATIENCE_MS = 1_000
/** The number of most recent probes from which the loss is computed. */
const REMEMBERED = 10
/** The number of consecutive lost probes after which a peer counts as silent. */
const LOST_IN_A_ROW = 2
/**
 * The number of consecutive lost probes that count as an outage. After the outage these probes do not count as loss.
 */
const OUTAGE = 4
/**
 * The number of consecutive lost probes of a peer after which each interval between its probes is twice as long as the
 * previous interval.
 */
const BACK_OFF_AFTER = 10
/** The longest interval in ms between probes of a silent peer, unless the usual interval is longer. */
export const MOST_SILENT_MS = 300_000
/**
 * Peers that fell silent within ONE_OUTAGE_MS milliseconds of each other count as one outage: if one of these peers
 * answers again, weftd probes all of them.
 */
const ONE_OUTAGE_MS = 60_000
/** The maximum number of probes per second, which limits the load of this host with many peers. */
export const ASKED_A_SECOND = 50
/**
 * weftd probes a new peer within SOON_MS milliseconds, and after that at a random time in the interval. Otherwise peers
 * that appeared at the same time would always be probed at the same time.
 */
const SOON_MS = 1_000
/** The number of different ICMP sequence numbers (RFC 792). */
const SEQUENCES = 0x10000

interface Target {
  readonly key: string
  readonly address: Address
}

export interface Probed {
  readonly isAnswering: boolean
  /** The round trip in ms of the last probe that was answered. */
  readonly roundTripMs: number | undefined
  /**
   * The loss of the last ten probes in percent. If the peer answers, probes before its first answer and during an
   * outage do not count.
   */
  readonly lossPercent: number
  /** The time when the last probe was answered or counted as lost, in ms of the caller's clock. */
  readonly at: number
  /**
   * The time when weftd sent the first lost probe since the last answer, in ms of the caller's clock. Undefined if no
   * probe was lost since the last answer.
   */
  readonly unansweredSince: number | undefined
}

interface Request extends Target {
  readonly sequence: number
}

interface Known {
  readonly key: string
  address: Address
  nextAt: number
  isFirst: boolean
  /** The results of the most recent probes with their sequence numbers, the newest last. */
  readonly results: { readonly sequence: number; isAnswered: boolean }[]
  roundTripMs: number | undefined
  concludedAt: number | undefined
  unansweredSince: number | undefined
  /** The number of consecutive probes lost since the last sign that the peer's host is up. */
  lostInVain: number
  /** The time when the last probe was sent, in ms of the caller's clock. */
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

interface Turn {
  readonly key: string
  readonly at: number
}

export class ProbeSchedule {
  /** The wanted interval between probes of one peer, in ms. With many peers the interval is longer. */
  readonly #wantedMs: number
  readonly #random: () => number
  /** Returns the longest interval in ms between probes of a silent peer, by the peer's key. */
  readonly #mostSilentMs: (key: string) => number
  readonly #known = new Map<string, Known>()
  /** The sent probes that are not answered yet, the oldest first. */
  readonly #waiting = new Map<number, { readonly key: string; readonly peer: Known; readonly sentAt: number }>()
  /** The peers of lost probes, by sequence number, so that weftd can assign a late answer to its peer. */
  readonly #lost = new Map<number, Known>()
  /** The probes that are not due yet, by the second in which they are due. */
  readonly #later = new Map<number, Turn[]>()
  /** The probes that are due, in the order of their due times. */
  readonly #come: Turn[] = []
  /** The number of probes at the beginning of `#come` that were already handled. */
  #taken = 0
  #next: number
  #news = new Set<string>()
  /** The keys of the peers that lost a probe since the last call of `takeDoubted` and may have fallen silent. */
  #doubted = new Set<string>()
  readonly #atRest = new Set<Known>()

  constructor(wantedMs: number, random: () => number, mostSilentMs: (key: string) => number = () => MOST_SILENT_MS) {
    this.#wantedMs = wantedMs
    this.#random = random
    this.#mostSilentMs = mostSilentMs
    this.#next = Math.floor(random() * SEQUENCES)
  }

  intervalMs(): number {
    return Math.max(this.#wantedMs, (this.#known.size / ASKED_A_SECOND) * 1000)
  }

  /**
   * Records a sign that a peer's host is up. If weftd probes the peer less often than usual, restores the usual
   * interval and probes the peer soon. `heardAt` is the time of the sign; a sign that is older than the last probe is
   * ignored.
   */
  wake(key: string, now: number, heardAt = Infinity): void {
    const peer = this.#known.get(key)
    if (!peer || !this.#atRest.has(peer) || heardAt <= peer.requestedAt) return
    this.#atRest.delete(peer)
    peer.lostInVain = 0
    this.#schedule(key, peer, now)
  }

  /**
   * Sets the address of one peer, or removes the peer if `address` is undefined. `now` is the time in ms of the
   * caller's clock.
   */
  look(key: string, address: Address | undefined, now: number): void {
    if (this.#known.get(key)?.address === address) return
    this.#forget(key)
    if (address === undefined) return
    const fresh: Known = { key, address, isFirst: true, results: [], ...NOTHING_KNOWN }
    this.#known.set(key, fresh)
    this.#schedule(key, fresh, now + Math.min(SOON_MS, this.#wantedMs) * this.#random())
  }

  /** Replaces the set of peers. `now` is the time in ms of the caller's clock. */
  keep(targets: readonly Target[], now: number): void {
    const wanted = new Set(targets.map(({ key }) => key))
    for (const key of this.#known.keys()) if (!wanted.has(key)) this.#forget(key)
    for (const { key, address } of targets) this.look(key, address, now)
  }

  /**
   * Makes a probe of a peer due soon. Does nothing if the peer is known to be silent and weftd still probes it at the
   * usual interval.
   */
  soon(key: string, now: number): void {
    const peer = this.#known.get(key)
    if (peer && this.#atRest.has(peer)) this.wake(key, now)
    else if (peer && peer.nextAt > now && lostInARow(peer) < LOST_IN_A_ROW) this.#schedule(key, peer, now)
  }

  resting(): readonly string[] {
    return [...this.#atRest].map(({ key }) => key)
  }

  /** Returns the keys of the peers that lost a probe since the last call and may have fallen silent. */
  takeDoubted(): ReadonlySet<string> {
    const before = this.#doubted
    this.#doubted = new Set()
    return before
  }

  /** Returns the probes to send now. The caller must call `due` about once a second. */
  due(now: number): readonly Request[] {
    this.#giveUp(now)
    for (const second of [...this.#later.keys()].filter((each) => each * 1000 <= now).toSorted((a, b) => a - b)) {
      // Push the elements one by one, because a function call cannot have a hundred thousand arguments.
      for (const turn of this.#later.get(second) ?? []) this.#come.push(turn)
      this.#later.delete(second)
    }
    const requests: Request[] = []
    while (requests.length < ASKED_A_SECOND) {
      const [key, peer] = this.#nextDue() ?? []
      if (key === undefined || !peer) break
      const sequence = this.#next
      this.#next = (this.#next + 1) % SEQUENCES
      this.#waiting.delete(sequence)
      this.#lost.delete(sequence)
      this.#waiting.set(sequence, { key, peer, sentAt: now })
      peer.requestedAt = now
      this.#schedule(key, peer, now + this.#waitOf(peer) * (peer.isFirst ? this.#random() : 1))
      peer.isFirst = false
      requests.push({ key, address: peer.address, sequence })
    }
    return requests
  }

  answered(sequence: number, from: Address, roundTripMs: number, now: number): void {
    const peer = this.#waiting.get(sequence)?.peer ?? this.#lost.get(sequence)
    // Ignore an answer from an address that weftd did not probe, because the answer shows nothing about the peer.
    if (peer?.address !== from) return
    this.#waiting.delete(sequence)
    this.#lost.delete(sequence)
    conclude(peer, sequence, true, now)
    peer.roundTripMs = roundTripMs
    this.#news.add(peer.key)
    this.#wakeOthers(peer, now)
    this.#atRest.delete(peer)
    // After a long silence the peer's next probe may be due only minutes later, so make it due after the usual
    // interval.
    if (peer.lostInVain >= BACK_OFF_AFTER && this.#known.get(peer.key) === peer)
      this.#schedule(peer.key, peer, Math.min(peer.nextAt, now + this.intervalMs()))
    peer.lostInVain = 0
    peer.unansweredSince = undefined
  }

  /** Returns the results by lease key. Peers that were not probed yet are left out. */
  results(): ReadonlyMap<string, Probed> {
    return new Map(
      [...this.#known].flatMap(([key, peer]) => {
        const result = resultOf(peer)
        return result ? [[key, result] as const] : []
      }),
    )
  }

  /** Returns the result of one peer; undefined if the peer was not probed yet. */
  result(key: string): Probed | undefined {
    const peer = this.#known.get(key)
    return peer && resultOf(peer)
  }

  takeNews(): ReadonlySet<string> {
    const before = this.#news
    this.#news = new Set()
    return before
  }

  /** Returns the time in ms from one probe of a peer to the next. */
  #waitOf({ key, lostInVain }: Known): number {
    const usual = this.intervalMs()
    const doublings = lostInVain - BACK_OFF_AFTER + 1
    return doublings <= 0 ? usual : Math.max(usual, Math.min(this.#mostSilentMs(key), usual * 2 ** doublings))
  }

  /** Called when a silent peer answers again. Immediately probes all peers that fell silent at about the same time. */
  #wakeOthers({ unansweredSince }: Known, now: number): void {
    if (unansweredSince === undefined) return
    for (const other of Array.from(this.#atRest))
      if (Math.abs((other.unansweredSince ?? -Infinity) - unansweredSince) < ONE_OUTAGE_MS) this.wake(other.key, now)
  }

  #forget(key: string): void {
    const peer = this.#known.get(key)
    if (peer) this.#atRest.delete(peer)
    this.#known.delete(key)
  }

  /** Schedules the next probe of a peer for the time `at`, in place of the time that was set before. */
  #schedule(key: string, peer: Known, at: number): void {
    peer.nextAt = at
    const second = Math.ceil(at / 1000)
    const turns = this.#later.get(second)
    if (turns) turns.push({ key, at })
    else this.#later.set(second, [{ key, at }])
  }

  /** Returns the next peer to which a probe is due; undefined if there is none. */
  #nextDue(): readonly [string, Known] | undefined {
    while (this.#taken < this.#come.length) {
      const turn = this.#come[this.#taken++]
      const peer = turn && this.#known.get(turn.key)
      // Skip a peer that was removed, or whose next probe was rescheduled.
      if (peer?.nextAt === turn?.at && turn && peer) return [turn.key, peer]
    }
    this.#come.length = 0
    this.#taken = 0
    return undefined
  }

  /** Counts the probes without an answer as lost, and decides when to probe their peers again. */
  #giveUp(now: number): void {
    for (const [sequence, { key, peer, sentAt }] of this.#waiting) {
      if (now - sentAt < PATIENCE_MS) break
      this.#waiting.delete(sequence)
      this.#lost.set(sequence, peer)
      conclude(peer, sequence, false, now)
      this.#news.add(key)
      peer.unansweredSince ??= sentAt
      peer.lostInVain++
      if (this.#waitOf(peer) > this.intervalMs() && this.#known.get(key) === peer) {
        this.#atRest.add(peer)
        // When this probe was sent, the next probe was scheduled at the usual interval. Schedule it again, because this
        // probe is lost.
        this.#schedule(key, peer, peer.requestedAt + this.#waitOf(peer))
      }
      if (lostInARow(peer) >= LOST_IN_A_ROW || this.#known.get(key) !== peer) continue
      this.#doubted.add(key)
      this.#schedule(key, peer, now)
    }
    for (const sequence of this.#lost.keys()) {
      if (this.#lost.size <= this.#known.size) break
      this.#lost.delete(sequence)
    }
  }
}

function resultOf(peer: Known): Probed | undefined {
  const { results, roundTripMs, concludedAt, unansweredSince } = peer
  if (concludedAt === undefined) return undefined
  const losses = results.filter(({ isAnswered }) => !isAnswered).length
  const isAnswering = losses < results.length && lostInARow(peer) < LOST_IN_A_ROW
  // One lost probe does not show that a peer is silent, because a single packet may be lost by chance. If the peer
  // never answered before, the peer has no result until its second probe, which weftd sends immediately, is answered or
  // lost too.
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

function lostInARow({ results }: Known): number {
  return results.length - 1 - results.findLastIndex(({ isAnswered }) => isAnswered)
}
