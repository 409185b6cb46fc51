// follow.ts - follows the leases of all nodes in any source, such as etcd or the Kubernetes API: by a complete listing,
// a watch, and a new listing every minute and whenever the watch may have missed changes (a gap). If listings are
// expensive for a source, weftd postpones the periodic listing while the watch makes progress at least once a minute.
//
// The periodic listing runs while the watch is open, so that neither request waits for the other request. The result of
// a watch may be older or newer than the result of a listing; a comparison of their cursors shows which result is
// newer. If a listing has changes although the watch reported none since the previous listing, the watch is dead and is
// opened again.
//
// One loop takes the results of the listing and of the watch, and sleeps until there are more results.

import { describeError, isWeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { LeaseView, type PeerView, type ViewChange } from './fail-static.ts'
import type { Change, Entry, LeaseSource } from './subnet-manager.ts'

/**
 * The interval of complete listings in ms. A listing replaces the state that was built from the watch's changes, and so
 * corrects errors in this state.
 */
const RELIST_MS = 60_000
/** How long, in ms, most of the peers' leases must be missing before weftd drops these peers (fail-static.ts). */
const HOLD_MS = 30_000
const BACKOFF_MIN_MS = 100
const BACKOFF_MAX_MS = 5_000

/** The clock that followLeases uses. The simulation in the tests replaces it. */
export interface Clock {
  /** Returns monotonic time in ms. */
  now(): number
  /** Waits for `ms` milliseconds. Rejects if `signal` aborts. */
  sleep(ms: number, signal: AbortSignal): Promise<void>
}

const systemClock: Clock = {
  now: () => performance.now(),
  sleep: (ms, signal) => pause(signal, ms),
}

/** The state of followLeases, for the status report and the metrics. */
export interface FollowState {
  /**
   * The time, in ms of `Clock.now`, of the last complete listing, or the last time when a periodic listing was skipped
   * because the watch advanced. Undefined before the first listing.
   */
  listedAt: number | undefined
  /** True if the last request to the source of leases failed. */
  failing: boolean
  /**
   * The number of leases that weftd keeps although the source lacks them, until a second listing confirms that they are
   * gone.
   */
  held: number
  heldKeys?: readonly string[]
  /** How many times this node has started to keep leases that vanished from the store. */
  holds: number
}

interface FollowOptions {
  readonly log: Log
  readonly signal: AbortSignal
  readonly relistMs?: number
  /**
   * Returns the key of this node's own lease. The loss of this lease is reported immediately, without the hold time.
   */
  readonly ownKey?: () => string
  /** How long, in ms, most of the peers' leases must be missing before weftd drops these peers. */
  readonly holdMs?: number
  /** The object in which followLeases publishes its state. */
  readonly state?: FollowState
  readonly random?: () => number
  readonly clock?: Clock
}

/** One result of followLeases: the changes that a listing or a batch of the watch made. */
interface Followed extends ViewChange {
  /** All current leases by key. The map is not a copy: followLeases modifies the map later. */
  readonly leases: PeerView
  readonly isListing: boolean
  /**
   * True if the value under this node's own key cannot be read as a lease. In that case `leases` still has the node's
   * previous lease.
   */
  readonly isOwnUnreadable: boolean
}

interface Listing<Cursor> {
  readonly cursor: Cursor
  readonly entries: readonly Entry[]
}
interface Batch<Cursor> {
  readonly cursor: Cursor
  readonly changes: readonly Change[]
}

interface Task<T> {
  /** The results of this request that the loop of LeaseFollower has not taken yet. */
  readonly results: T[]
  isOver: boolean
  error: unknown
  end(): void
}

/**
 * Returns functions for concurrent requests: `start` starts a request, and `sleep` sleeps until a request has a result
 * or ends.
 */
function createTasks(signal: AbortSignal, clock: Clock) {
  let alarm = new AbortController()
  const running = new Set<AbortController>()
  const endAll = (): void => {
    for (const ending of running) ending.abort(signal.reason)
    alarm.abort()
  }
  signal.addEventListener('abort', endAll, { once: true })
  return {
    start<T>(run: (deliver: (item: T) => void, signal: AbortSignal) => Promise<void>): Task<T> {
      const ending = new AbortController()
      running.add(ending)
      const task: Task<T> = {
        results: [],
        isOver: false,
        error: undefined,
        end: () => ending.abort(new Error('its result is no longer needed')),
      }
      const deliver = (item: T): void => {
        task.results.push(item)
        alarm.abort()
      }
      void run(deliver, ending.signal)
        .catch((error: unknown) => void (task.error = error))
        .finally(() => {
          running.delete(ending)
          task.isOver = true
          alarm.abort()
        })
      return task
    },
    /** Sleeps until a request has a result or ends, but at most `ms` milliseconds. Rejects with the signal's reason. */
    async sleep(ms: number): Promise<void> {
      if (ms > 0 && !alarm.signal.aborted) await clock.sleep(ms, alarm.signal).catch(() => {})
      signal.throwIfAborted()
      if (alarm.signal.aborted) alarm = new AbortController()
    },
    close(): void {
      signal.removeEventListener('abort', endAll)
      endAll()
    },
  }
}

type Tasks = ReturnType<typeof createTasks>

/**
 * Yields the leases of all nodes, including this node: first a complete listing, then changes, and a new listing after
 * each gap of the watch and every minute. A failure of the source does not end the generator. The generator throws the
 * reason of `signal` when `signal` aborts.
 */
export async function* followLeases<Cursor>(
  source: LeaseSource<Cursor>,
  options: FollowOptions,
): AsyncGenerator<Followed, never> {
  options.signal.throwIfAborted()
  const follower = new LeaseFollower(source, options)
  try {
    for (;;) yield* follower.next()
  } finally {
    follower.close()
  }
}

/** Keeps a listing and a watch of a source of leases running, and merges their results. */
class LeaseFollower<Cursor> {
  readonly #source: LeaseSource<Cursor>
  readonly #relistMs: number
  readonly #random: () => number
  readonly #clock: Clock
  readonly #state: FollowState
  /** The leases that this node accepts, including leases that it keeps while they are missing from the source. */
  readonly #view: LeaseView
  /** A log that drops repeated failures. */
  readonly #calm: Log
  readonly #tasks: Tasks
  /**
   * The cursor (position in the source's history of changes) at which the next watch starts; undefined before the first
   * listing and after the watch missed changes (a gap).
   */
  #after: { readonly cursor: Cursor } | undefined
  /** The running listing; undefined between two listings. */
  #listing: Task<Listing<Cursor>> | undefined
  /** The time in ms of `clock.now()` at which the next listing starts. */
  #listAt = 0
  /** The cursor of the last complete listing. */
  #listed: { readonly cursor: Cursor } | undefined
  #watch: Task<Batch<Cursor>> | undefined
  /** The time in ms of `clock.now()` at which the next watch may start. */
  #watchAt = 0
  /** The batches that the watch delivered since the running listing began. */
  #since: Batch<Cursor>[] = []
  /** True if the watch has delivered changes since the last listing. */
  #heardSinceListing = false
  /**
   * The time in ms of `clock.now()` until which the last listing stays valid, for a source whose listings are
   * expensive.
   */
  #goodUntil = 0
  /** True if the watch made progress within the last minute, that is, if its cursor advanced. */
  #hasGoneForward = false
  /** True if the source has answered the request for the watch. */
  #isWatching = false
  /** The number of failures since the watch last delivered a batch. */
  #failures = 0

  constructor(source: LeaseSource<Cursor>, options: FollowOptions) {
    const { log, signal, relistMs = RELIST_MS, random = Math.random, clock = systemClock } = options
    this.#source = source
    this.#relistMs = relistMs
    this.#random = random
    this.#clock = clock
    this.#state = options.state ?? { listedAt: undefined, failing: false, held: 0, holds: 0 }
    this.#view = new LeaseView({ holdMs: options.holdMs ?? HOLD_MS, ownKey: options.ownKey ?? (() => ''), log })
    this.#calm = seldom(log, () => clock.now())
    this.#tasks = createTasks(signal, clock)
  }

  /**
   * Starts the requests that are due, waits until a request has a result or the next request is due, and yields the
   * results.
   */
  async *next(): AsyncGenerator<Followed, void> {
    const now = this.#clock.now()
    this.#startListing(now)
    this.#startWatch(now)
    const listAt = this.#listing ? Infinity : this.#listAt
    const watchAt = this.#watch || !this.#after ? Infinity : this.#watchAt
    await this.#tasks.sleep(Math.min(listAt, watchAt) - now)

    const change = this.#takeBatches(this.#watch?.results.splice(0) ?? [])
    if (change) yield this.#followed(change, false)
    if (this.#watch?.isOver && this.#watch.results.length === 0) this.#endWatch(this.#watch.error)
    if (this.#listing?.isOver) {
      const { results, error } = this.#listing
      this.#listing = undefined
      const [found] = results
      if (found) yield this.#followed(this.#takeListing(found), true)
      else this.#failListing(error)
    }
  }

  close(): void {
    this.#tasks.close()
  }

  #startListing(now: number): void {
    if (this.#listing || now < this.#listAt) return
    if (this.#isTrusted(now)) {
      this.#state.listedAt = now
      this.#listAt = now + this.#relistMs
      return
    }
    this.#since = []
    this.#listing = this.#tasks.start(async (deliver, ending) => deliver(await this.#source.list(ending)))
  }

  /**
   * Starts the watch if it does not run, a listing has given the cursor to start from, and the pause after a failure is
   * over.
   */
  #startWatch(now: number): void {
    if (this.#watch || !this.#after || now < this.#watchAt) return
    const { cursor } = this.#after
    this.#isWatching = false
    this.#watch = this.#tasks.start(async (deliver, ending) => {
      for await (const batch of this.#source.watch(cursor, ending)) deliver(batch)
      throw new Error('a watch ends only by failing')
    })
  }

  /**
   * Handles the end of the watch. If the source no longer has all changes since the watch's cursor (a gap), a new
   * listing must give the cursor for the next watch.
   */
  #endWatch(error: unknown): void {
    this.#watch = undefined
    this.#watchAt = this.#retryAt(error)
    if (!isWeftError(error, 'GAP')) {
      this.#sayWatchEnded(error)
      return
    }
    this.#calm.warn(`${this.#source.name} watch for leases fell behind (${error.message}), re-listing and resuming`)
    this.#after = undefined
    this.#listing?.end()
    this.#listing = undefined
    this.#listAt = this.#watchAt
  }

  /**
   * Handles the failure of a listing. If the watch works, it stays open while weftd waits to repeat the failed listing.
   */
  #failListing(error: unknown): void {
    if (this.#watch && this.#isWatching && isWeftError(error)) {
      this.#state.failing = true
      this.#listAt = this.#clock.now() + BACKOFF_MAX_MS
      this.#calm.error(`${this.#source.name} listing of leases failed (${describeError(error)}); the watch goes on`)
      return
    }
    this.#listAt = this.#retryAt(error)
    if (this.#after) this.#listAt = this.#clock.now() + BACKOFF_MAX_MS
    this.#sayWatchEnded(error)
  }

  /** Copies the counts of missing leases to the state object, and returns the change as one result of followLeases. */
  #followed(change: ViewChange, isListing: boolean): Followed {
    this.#state.held = this.#view.held
    this.#state.heldKeys = this.#view.heldKeys
    this.#state.holds = this.#view.holds
    return { ...change, isListing, leases: this.#view.leases, isOwnUnreadable: this.#view.isOwnUnreadable }
  }

  /** Returns the time, in ms of `clock.now()`, at which a failed request is sent again. */
  #retryAt(error: unknown): number {
    if (!isWeftError(error)) throw error
    const isGap = error.code === 'GAP'
    this.#state.failing = !isGap
    this.#failures++
    // If the watch fails because of a gap (missed changes), a new listing starts immediately. If the next watch ends
    // with a gap too, weftd waits before the next listing, as after any other failure.
    if (isGap && this.#failures === 1) return this.#clock.now()
    const backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** Math.min(this.#failures - 1, 10))
    // The pause is random, so that nodes that lost the same store do not all reconnect at the same time.
    return this.#clock.now() + backoffMs * (0.5 + this.#random() / 2)
  }

  #sayWatchEnded(error: unknown): void {
    const from = String(this.#after?.cursor ?? 0)
    this.#calm.error(
      `${this.#source.name} watch channel for leases closed (${describeError(error)}), reconnecting from rev ${from}...`,
    )
  }

  /** Returns true if the source's listings are expensive and the advancing watch makes the next listing unnecessary. */
  #isTrusted(now: number): boolean {
    const isGood = this.#watch !== undefined && this.#hasGoneForward && this.#view.held === 0 && now < this.#goodUntil
    this.#hasGoneForward = false
    return isGood
  }

  /** Applies a complete listing to the leases that this node uses, and decides when the next listing starts. */
  #takeListing({ cursor, entries }: Listing<Cursor>): ViewChange {
    const now = this.#clock.now()
    this.#state.listedAt = now
    this.#state.failing = false
    const wentBack = this.#listed !== undefined && this.#source.isAfter(this.#listed.cursor, cursor)
    const current = new Map(entries.map((entry) => [entry.key, entry]))
    for (const batch of wentBack ? [] : this.#since)
      if (this.#source.isAfter(batch.cursor, cursor))
        for (const change of batch.changes)
          if (change.kind === 'put') current.set(change.entry.key, change.entry)
          else current.delete(change.key)
    const change = this.#view.list([...current.values()], now)
    // The time for which an expensive listing stays valid varies at random, so that nodes that started simultaneously
    // do not list simultaneously.
    this.#goodUntil = now + (this.#source.trustedMs?.(this.#view.leases.size) ?? 0) * (0.5 + this.#random())
    const isNews = change.added.length + change.changed.length + change.removed.length > 0
    if (this.#watch && (wentBack || (isNews && !this.#heardSinceListing))) {
      const from = String(cursor)
      this.#calm.info(
        `${this.#source.name} watch for leases did not tell what a listing did, reconnecting from rev ${from}...`,
      )
      this.#watch.end()
      this.#watch = undefined
      this.#watchAt = now
    }
    if (this.#watch) this.#failures = 0
    // After the first listing and after a gap in the watch, the wait before the next periodic listing is random. So
    // nodes that started simultaneously, or lost the same store, do not list simultaneously.
    const waitMs = this.#after ? this.#relistMs : this.#random() * this.#relistMs
    this.#listAt = now + Math.min(waitMs, this.#view.waitMs(now) ?? Infinity)
    if (!this.#after || wentBack || this.#source.isAfter(cursor, this.#after.cursor)) this.#after = { cursor }
    this.#listed = { cursor }
    this.#heardSinceListing = false
    return change
  }

  /** Applies the batches of the watch to the leases. Returns undefined if they change nothing. */
  #takeBatches(batches: readonly Batch<Cursor>[]): ViewChange | undefined {
    const last = batches.at(-1)
    if (!last) return undefined
    if (!this.#after || this.#source.isAfter(last.cursor, this.#after.cursor)) {
      this.#after = { cursor: last.cursor }
      this.#hasGoneForward = true
    }
    this.#state.failing = false
    this.#isWatching = true
    if (batches.some(({ changes }) => changes.length > 0)) {
      this.#failures = 0
      this.#heardSinceListing = true
    }
    // A watch that lags behind the last listing repeats changes that the listing already contained. Such changes are
    // dropped.
    const news = batches.filter(
      ({ cursor, changes }) =>
        changes.length > 0 && !(this.#listed && !this.#source.isAfter(cursor, this.#listed.cursor)),
    )
    if (news.length === 0) return undefined
    if (this.#listing) this.#since.push(...news)
    const change = this.#view.change(
      news.flatMap(({ changes }) => changes),
      this.#clock.now(),
    )
    // If leases are missing, list again as soon as the hold time of the missing leases ends, without waiting for the
    // next periodic listing.
    this.#listAt = Math.min(this.#listAt, this.#clock.now() + (this.#view.waitMs(this.#clock.now()) ?? Infinity))
    return change
  }
}
