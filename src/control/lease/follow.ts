// follow.ts - follows the leases of all nodes in any source: by a listing, a watch, and another listing after a gap and every minute.
//
// If listings are expensive, one stays valid for longer, as long as the watch advances every minute.
//
// The periodic listing runs while the watch is open, so neither waits for the other. Cursors show how the two overlap, because a watch may
// lag behind a listing, or be ahead of a slow one. If a listing has changes although the watch reported none since the previous listing,
// the watch is dead and is opened again.
//
// The listing and the watch are tasks that run concurrently. One loop takes their results, and sleeps until there are more.

import { describeError, isWeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { LeaseView, type PeerView, type ViewChange } from './fail-static.ts'
import type { Change, Entry, LeaseSource } from './subnet-manager.ts'

/** The interval of complete listings, which replace the state that was built from changes. */
const RELIST_MS = 60_000
/** How long a loss of most peers must last before it takes effect (fail-static.ts). */
const HOLD_MS = 30_000
const BACKOFF_MIN_MS = 100
const BACKOFF_MAX_MS = 5_000

/** The clock of the loop. The simulation replaces it. */
export interface Clock {
  /** Returns monotonic time in ms. */
  now(): number
  /** Rejects when `signal` aborts. */
  sleep(ms: number, signal: AbortSignal): Promise<void>
}

const systemClock: Clock = {
  now: () => performance.now(),
  sleep: (ms, signal) => pause(signal, ms),
}

/** The state of following leases, for reports on the daemon. */
export interface FollowState {
  /**
   * The time by `Clock.now` when the view last matched a complete listing, or an advancing watch replaced a listing; undefined before the
   * first listing.
   */
  listedAt: number | undefined
  /** True if the last call to the source failed. */
  failing: boolean
  /** The number of leases that the source lacks and that are kept until a second listing confirms the loss. */
  held: number
  /** The keys of these leases. */
  heldKeys?: readonly string[]
  /** The number of times that the node began to keep vanished leases. */
  holds: number
}

interface FollowOptions {
  readonly log: Log
  readonly signal: AbortSignal
  readonly relistMs?: number
  /** Returns the key of this node's own lease. Its loss is reported immediately. */
  readonly ownKey?: () => string
  /** How long a loss of most peers must last before it takes effect, in ms. */
  readonly holdMs?: number
  /** The object in which the state is published. */
  readonly state?: FollowState
  readonly random?: () => number
  readonly clock?: Clock
}

/** The changes of a listing or of a batch of the watch. */
interface Followed extends ViewChange {
  /** All current leases. Later changes modify this map. */
  readonly leases: PeerView
  /** True for a complete listing. */
  readonly isListing: boolean
  /** True if the value of this node's own key is not a lease. `leases` still has the previous one. */
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

/** A concurrent call and its results so far. */
interface Task<T> {
  /** The results that were not taken yet. */
  readonly results: T[]
  isOver: boolean
  /** The error that ended the task; undefined if it succeeded or still runs. */
  error: unknown
  end(): void
}

/** Starts tasks, and sleeps until one of them has a result or ends. */
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
    /** Sleeps for at most `ms`. Rejects with the signal's reason. */
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
 * Yields the leases of the network, including this node's own: a listing, then changes, and another listing after each gap and every minute.
 * Failures of the source do not end it. If `signal` aborts, it throws the signal's reason.
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
  /** The cursor at which the watch resumes; undefined before the first listing, and after a gap. */
  let after: { readonly cursor: Cursor } | undefined
  let listing: Task<Listing<Cursor>> | undefined
  let listAt = 0
  /** The cursor of the last listing. */
  let listed: { readonly cursor: Cursor } | undefined
  let watch: Task<Batch<Cursor>> | undefined
  let watchAt = 0
  /** The batches of the watch since the current listing began. */
  let since: Batch<Cursor>[] = []
  let heardSinceListing = false
  /** The time until which the last listing stays valid, if listings are expensive. */
  let goodUntil = 0
  /** True if the watch advanced within the last minute. */
  let hasGoneForward = false
  /** True if the watch has answered. */
  let isWatching = false
  /** The number of failures since the watch last delivered something. */
  let failures = 0

  /** Returns the time at which a failed call is tried again. */
  function retryAt(error: unknown): number {
    if (!isWeftError(error)) throw error
    const isGap = error.code === 'GAP'
    state.failing = !isGap
    failures++
    // A first gap is repaired immediately. A source that reports a gap for every watch waits like after any other failure.
    if (isGap && failures === 1) return clock.now()
    const backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** Math.min(failures - 1, 10))
    // The jitter spreads the nodes that lost the same store.
    return clock.now() + backoffMs * (0.5 + random() / 2)
  }
  const sayWatchEnded = (error: unknown): void => {
    const from = String(after?.cursor ?? 0)
    calm.error(
      `${source.name} watch channel for leases closed (${describeError(error)}), reconnecting from rev ${from}...`,
    )
  }

  /** True if listings are expensive and the advancing watch replaces the next one. */
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
    // The random factor spreads nodes that started together.
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
    // The first wait is random, which spreads nodes that started together or lost the same store.
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
    // A watch that lags behind the last listing repeats changes of that listing.
    const news = batches.filter(
      ({ cursor, changes }) => changes.length > 0 && !(listed && !source.isAfter(cursor, listed.cursor)),
    )
    if (news.length === 0) return undefined
    if (listing) since.push(...news)
    const change = view.change(
      news.flatMap(({ changes }) => changes),
      clock.now(),
    )
    // A loss is checked as soon as the hold time ends, not at the next periodic listing.
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
          // The watch goes on until the next attempt.
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
