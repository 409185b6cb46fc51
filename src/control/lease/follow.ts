// follow.ts - follows the leases of all nodes in any source, such as etcd or the Kubernetes API: by a complete listing,
// by a watch, and by a new listing after a gap of the watch and every minute. If listings are expensive for a source,
// weftd postpones the periodic listing while the watch makes progress at least once a minute.
//
// The periodic listing runs while the watch is open, so that neither waits for the other. A watch may lag behind a
// listing, or be ahead of a slow listing. A comparison of their cursors shows which of the two is newer. If a listing
// has changes although the watch reported none since the previous listing, the watch is dead and is opened again.
//
// The listing and the watch are requests that run concurrently. One loop takes the results of both, and sleeps until
// there are more results.

import { describeError, isWeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { LeaseView, type PeerView, type ViewChange } from './fail-static.ts'
import type { Change, Entry, LeaseSource } from './subnet-manager.ts'

/** The interval of complete listings in ms. A listing replaces the state that was built from changes, and so corrects errors in it. */
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
   * The time, in ms of `Clock.now`, when the leases last agreed with the source. They agree after a complete listing,
   * and while an advancing watch replaces a listing. Undefined before the first listing.
   */
  listedAt: number | undefined
  /** True if the last request to the source of leases failed. */
  failing: boolean
  /** The number of leases that weftd keeps although the source lacks them, until a second listing confirms that they are gone. */
  held: number
  /** The keys of the leases that are counted by `held`. */
  heldKeys?: readonly string[]
  /** How many times this node began to keep leases that the source lacks. */
  holds: number
}

interface FollowOptions {
  readonly log: Log
  readonly signal: AbortSignal
  readonly relistMs?: number
  /** Returns the key of this node's own lease. A loss of that lease is reported immediately, without the hold time. */
  readonly ownKey?: () => string
  /** How long, in ms, most of the peers' leases must be missing before weftd drops these peers. */
  readonly holdMs?: number
  /** The object in which followLeases publishes its state. */
  readonly state?: FollowState
  readonly random?: () => number
  readonly clock?: Clock
}

/** One result of followLeases: the changes of a listing or of a batch of the watch. */
interface Followed extends ViewChange {
  /** All current leases by key. The map is not a copy: followLeases modifies it later. */
  readonly leases: PeerView
  /** True if this result comes from a complete listing, not from the watch. */
  readonly isListing: boolean
  /** True if the value under this node's own key cannot be read as a lease. `leases` still has the node's previous lease. */
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

/** A request to the source of leases that runs concurrently, and its results so far. */
interface Task<T> {
  /** The results that the loop has not taken yet. */
  readonly results: T[]
  isOver: boolean
  /** The error with which the request ended; undefined if it succeeded or still runs. */
  error: unknown
  end(): void
}

/** Makes functions to start concurrent requests, and to sleep until one of these requests has a result or ends. */
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

/**
 * Yields the leases of all nodes, including this node: first a complete listing, then changes, and a new listing after each gap of the
 * watch and every minute. A failure of the source does not end the generator. If `signal` aborts, it throws the signal's reason.
 */
export async function* followLeases<Cursor>(
  source: LeaseSource<Cursor>,
  options: FollowOptions,
): AsyncGenerator<Followed, never> {
  const { log, signal, relistMs = RELIST_MS, random = Math.random, clock = systemClock } = options
  signal.throwIfAborted()
  const state = options.state ?? { listedAt: undefined, failing: false, held: 0, holds: 0 }
  const view = new LeaseView({ holdMs: options.holdMs ?? HOLD_MS, ownKey: options.ownKey ?? (() => ''), log })
  const followed = (change: ViewChange, isListing: boolean): Followed => {
    state.held = view.held
    state.heldKeys = view.heldKeys
    state.holds = view.holds
    return { ...change, isListing, leases: view.leases, isOwnUnreadable: view.isOwnUnreadable }
  }
  const calm = seldom(log, () => clock.now())
  const tasks = createTasks(signal, clock)
  /** The cursor at which the next watch starts; undefined before the first listing and after a gap. */
  let after: { readonly cursor: Cursor } | undefined
  let listing: Task<Listing<Cursor>> | undefined
  let listAt = 0
  /** The cursor of the last complete listing. */
  let listed: { readonly cursor: Cursor } | undefined
  let watch: Task<Batch<Cursor>> | undefined
  let watchAt = 0
  /** The batches that the watch delivered since the running listing began. */
  let since: Batch<Cursor>[] = []
  let heardSinceListing = false
  /** The time in ms of `clock.now()` until which the last listing stays valid. It is used if the source's listings are expensive. */
  let goodUntil = 0
  /** True if the cursor of the watch advanced within the last minute. */
  let hasGoneForward = false
  /** True if the source has answered the request for the watch. */
  let isWatching = false
  /** The number of failures since the watch last delivered a batch. */
  let failures = 0

  /** Returns the time, in ms of `clock.now()`, at which a failed request is sent again. */
  function retryAt(error: unknown): number {
    if (!isWeftError(error)) throw error
    const isGap = error.code === 'GAP'
    state.failing = !isGap
    failures++
    // After a first gap a new listing starts immediately. If a source reports a gap for every watch, weftd waits before
    // the next listing, as after any other failure.
    if (isGap && failures === 1) return clock.now()
    const backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** Math.min(failures - 1, 10))
    // The pause is random, so that nodes that lost the same store do not all return at the same time.
    return clock.now() + backoffMs * (0.5 + random() / 2)
  }
  const sayWatchEnded = (error: unknown): void => {
    const from = String(after?.cursor ?? 0)
    calm.error(
      `${source.name} watch channel for leases closed (${describeError(error)}), reconnecting from rev ${from}...`,
    )
  }

  /** True if the source's listings are expensive and the advancing watch makes the next listing unnecessary. */
  function isTrusted(now: number): boolean {
    const isGood = watch !== undefined && hasGoneForward && view.held === 0 && now < goodUntil
    hasGoneForward = false
    return isGood
  }

  function takeListing({ cursor, entries }: Listing<Cursor>): ViewChange {
    const now = clock.now()
    state.listedAt = now
    state.failing = false
    const wentBack = listed !== undefined && source.isAfter(listed.cursor, cursor)
    const current = new Map(entries.map((entry) => [entry.key, entry]))
    for (const batch of wentBack ? [] : since)
      if (source.isAfter(batch.cursor, cursor))
        for (const change of batch.changes)
          if (change.kind === 'put') current.set(change.entry.key, change.entry)
          else current.delete(change.key)
    const change = view.list([...current.values()], now)
    // The random factor keeps nodes that started together from listing together.
    goodUntil = now + (source.trustedMs?.(view.leases.size) ?? 0) * (0.5 + random())
    const isNews = change.added.length + change.changed.length + change.removed.length > 0
    if (watch && (wentBack || (isNews && !heardSinceListing))) {
      const from = String(cursor)
      calm.info(`${source.name} watch for leases did not tell what a listing did, reconnecting from rev ${from}...`)
      watch.end()
      watch = undefined
      watchAt = now
    }
    if (watch) failures = 0
    // The wait before the first listing by this timer is random, so that nodes that started together, or lost the same store, do not list
    // together.
    const waitMs = after ? relistMs : random() * relistMs
    listAt = now + Math.min(waitMs, view.waitMs(now) ?? Infinity)
    if (!after || wentBack || source.isAfter(cursor, after.cursor)) after = { cursor }
    listed = { cursor }
    heardSinceListing = false
    return change
  }

  function takeBatches(batches: readonly Batch<Cursor>[]): ViewChange | undefined {
    const last = batches.at(-1)
    if (!last) return undefined
    if (!after || source.isAfter(last.cursor, after.cursor)) {
      after = { cursor: last.cursor }
      hasGoneForward = true
    }
    state.failing = false
    isWatching = true
    if (batches.some(({ changes }) => changes.length > 0)) {
      failures = 0
      heardSinceListing = true
    }
    // A watch that lags behind the last listing repeats changes that the listing already contained. Drop these changes.
    const news = batches.filter(
      ({ cursor, changes }) => changes.length > 0 && !(listed && !source.isAfter(cursor, listed.cursor)),
    )
    if (news.length === 0) return undefined
    if (listing) since.push(...news)
    const change = view.change(
      news.flatMap(({ changes }) => changes),
      clock.now(),
    )
    // If leases are missing, list again as soon as their hold time ends, without waiting for the next periodic listing.
    listAt = Math.min(listAt, clock.now() + (view.waitMs(clock.now()) ?? Infinity))
    return change
  }

  try {
    for (;;) {
      const now = clock.now()
      if (!listing && now >= listAt && isTrusted(now)) {
        state.listedAt = now
        listAt = now + relistMs
      }
      if (!listing && now >= listAt) {
        since = []
        listing = tasks.start(async (deliver, ending) => deliver(await source.list(ending)))
      }
      if (!watch && after && now >= watchAt) {
        const { cursor } = after
        isWatching = false
        watch = tasks.start(async (deliver, ending) => {
          for await (const batch of source.watch(cursor, ending)) deliver(batch)
          throw new Error('a watch ends only by failing')
        })
      }
      await tasks.sleep(Math.min(listing ? Infinity : listAt, watch || !after ? Infinity : watchAt) - now)

      const change = takeBatches(watch?.results.splice(0) ?? [])
      if (change) yield followed(change, false)
      if (watch?.isOver && watch.results.length === 0) {
        const { error } = watch
        watch = undefined
        watchAt = retryAt(error)
        if (isWeftError(error, 'GAP')) {
          calm.warn(`${source.name} watch for leases fell behind (${error.message}), re-listing and resuming`)
          after = undefined
          listing?.end()
          listing = undefined
          listAt = watchAt
        } else sayWatchEnded(error)
      }
      if (listing?.isOver) {
        const { results, error } = listing
        listing = undefined
        const [found] = results
        if (found) yield followed(takeListing(found), true)
        else if (watch && isWatching && isWeftError(error)) {
          // The watch stays open while the failed listing waits to be tried again.
          state.failing = true
          listAt = clock.now() + BACKOFF_MAX_MS
          calm.error(`${source.name} listing of leases failed (${describeError(error)}); the watch goes on`)
        } else {
          listAt = retryAt(error)
          if (after) listAt = clock.now() + BACKOFF_MAX_MS
          sayWatchEnded(error)
        }
      }
    }
  } finally {
    tasks.close()
  }
}
