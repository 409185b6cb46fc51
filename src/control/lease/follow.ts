// follow.ts - follows the leases of all nodes above any source: listed, watched, listed again after a gap and every minute.
//
// Where a listing is dear, one is good for longer, as long as each minute the watch is heard to go forward.
//
// The minute's listing is taken beside the open watch, so that neither waits for the other; cursors tell what of the one is
// already in the other: a watch may lag behind, or be ahead of a listing that took long. A listing that brings news though
// the watch has brought none since the one before shows that the watch is deaf: it is opened again from there.
//
// Listing and watch are errands that run by themselves; one loop takes what they bring, and rests until there is more.

import { describeError, isWeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { LeaseView, type PeerView, type ViewChange } from './fail-static.ts'
import type { Change, Entry, LeaseSource } from './subnet-manager.ts'

/** A full listing replaces what was pieced together from changes this often, whatever happens. */
const RELIST_MS = 60_000
/** Fail-static: how long the loss of most peers must last before it is believed. */
const HOLD_MS = 30_000
const BACKOFF_MIN_MS = 100
const BACKOFF_MAX_MS = 5_000

/** Time, as the loops see it; a simulation brings its own. */
export interface Clock {
  /** Milliseconds since any moment; never goes back. */
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
   * The time by the clock's `now` when the whole listing was last compared with the view, or the watch was trusted in
   * its place; undefined before the first.
   */
  listedAt: number | undefined
  /** True when the last call to the source failed. */
  failing: boolean
  /** Leases that the source no longer has and that are kept until a second listing confirms it. */
  held: number
  /** Their keys. */
  heldKeys?: readonly string[]
  /** The number of times that leases began to be held. */
  holds: number
}

export interface FollowOptions {
  readonly log: Log
  readonly signal: AbortSignal
  readonly relistMs?: number
  /** The key of this node's own lease, which is no peer: of its loss the node must hear at once. */
  readonly ownKey?: () => string
  /** The loss of most peers must last this long before it is believed. */
  readonly holdMs?: number
  /** Kept up to date here. */
  readonly state?: FollowState
  readonly random?: () => number
  readonly clock?: Clock
}

/** The changes that a listing or a batch of the watch brought. */
export interface Followed extends ViewChange {
  /** All leases as they are now; changed in place by what follows. */
  readonly leases: PeerView
  /** True for a whole listing. */
  readonly isListing: boolean
  /** Something stands under this node's own key that is no lease, though `leases` has the one from before. */
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

/** Something that runs by itself, and what it has brought so far. */
interface Errand<T> {
  /** Whoever takes something removes it. */
  readonly brought: T[]
  isOver: boolean
  /** The error that ended it; undefined when it was done. */
  error: unknown
  end(): void
}

/** Sends errands, and sleeps until one of them has brought something or is over. */
function createErrands(signal: AbortSignal, clock: Clock) {
  let alarm = new AbortController()
  const running = new Set<AbortController>()
  const endAll = (): void => {
    for (const ending of running) ending.abort(signal.reason)
    alarm.abort()
  }
  signal.addEventListener('abort', endAll, { once: true })
  return {
    send<T>(run: (bring: (item: T) => void, signal: AbortSignal) => Promise<void>): Errand<T> {
      const ending = new AbortController()
      running.add(ending)
      const errand: Errand<T> = {
        brought: [],
        isOver: false,
        error: undefined,
        end: () => ending.abort(new Error('nobody waits for it any more')),
      }
      const bring = (item: T): void => {
        errand.brought.push(item)
        alarm.abort()
      }
      void run(bring, ending.signal)
        .catch((error: unknown) => void (errand.error = error))
        .finally(() => {
          running.delete(ending)
          errand.isOver = true
          alarm.abort()
        })
      return errand
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
 * Every lease of the network, our own too: what a listing brought, then changes, and a listing again after each gap and every
 * minute. Goes on until `signal` aborts, whatever happens to the source; then rejects with its reason.
 */
export async function* followLeases<Cursor>(
  source: LeaseSource<Cursor>,
  options: FollowOptions,
): AsyncGenerator<Followed, never> {
  const { log, signal, relistMs = RELIST_MS, random = Math.random, clock = systemClock } = options
  signal.throwIfAborted()
  const state = options.state ?? { listedAt: undefined, failing: false, held: 0, holds: 0 }
  const view = new LeaseView({ holdMs: options.holdMs ?? HOLD_MS, ownKey: options.ownKey ?? (() => ''), log })
  const told = (change: ViewChange, isListing: boolean): Followed => {
    state.held = view.held
    state.heldKeys = view.heldKeys
    state.holds = view.holds
    return { ...change, isListing, leases: view.leases, isOwnUnreadable: view.isOwnUnreadable }
  }
  const calm = seldom(log, () => clock.now())
  const errands = createErrands(signal, clock)
  /** The cursor at which the watch resumes; undefined before the first listing, and after a gap. */
  let after: { readonly cursor: Cursor } | undefined
  let listing: Errand<Listing<Cursor>> | undefined
  let listAt = 0
  /** Up to where the last listing went. */
  let listed: { readonly cursor: Cursor } | undefined
  let watch: Errand<Batch<Cursor>> | undefined
  let watchAt = 0
  /** The batches of the watch since the listing that is under way began. */
  let since: Batch<Cursor>[] = []
  let heardSinceListing = false
  /**
   * The last listing is good until then, where listings are dear. Beside it: whether the watch has gone forward in the
   * last minute.
   */
  let goodUntil = 0
  let hasGoneForward = false
  let isWatching = false // it has answered
  let failures = 0 // since the watch last proved good

  /** The time at which a failed call is tried again. */
  function retryAt(error: unknown): number {
    if (!isWeftError(error)) throw error
    const isGap = error.code === 'GAP'
    state.failing = !isGap
    failures++
    // A gap is made good at once; only a source that answers every watch with one has to wait like any other.
    if (isGap && failures === 1) return clock.now()
    const backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** Math.min(failures - 1, 10))
    // Jitter on the upper half: nodes that lost one store must not come back in step.
    return clock.now() + backoffMs * (0.5 + random() / 2)
  }
  const sayWatchEnded = (error: unknown): void => {
    const from = String(after?.cursor ?? 0)
    calm.error(
      `${source.name} watch channel for leases closed (${describeError(error)}), reconnecting from rev ${from}...`,
    )
  }

  /** True when the watch says enough for another minute, so that a listing, where that is dear, can wait. */
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
    // The random factor is for nodes that started together.
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
    // Nodes that started together, or lost one store, are spread over the minute.
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
    // A watch that lags behind the last listing tells what that has told.
    const news = batches.filter(
      ({ cursor, changes }) => changes.length > 0 && !(listed && !source.isAfter(cursor, listed.cursor)),
    )
    if (news.length === 0) return undefined
    if (listing) since.push(...news)
    const change = view.change(
      news.flatMap(({ changes }) => changes),
      clock.now(),
    )
    // A loss is checked as soon as it may be believed, not at the next full minute.
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
        listing = errands.send(async (bring, ending) => bring(await source.list(ending)))
      }
      if (!watch && after && now >= watchAt) {
        const { cursor } = after
        isWatching = false
        watch = errands.send(async (bring, ending) => {
          for await (const batch of source.watch(cursor, ending)) bring(batch)
          throw new Error('a watch ends only by failing')
        })
      }
      await errands.sleep(Math.min(listing ? Infinity : listAt, watch || !after ? Infinity : watchAt) - now)

      const change = takeBatches(watch?.brought.splice(0) ?? [])
      if (change) yield told(change, false)
      if (watch?.isOver && watch.brought.length === 0) {
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
        const { brought, error } = listing
        listing = undefined
        const [found] = brought
        if (found) yield told(takeListing(found), true)
        else if (watch && isWatching && isWeftError(error)) {
          // Changes are followed all the same until it is tried again.
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
    errands.close()
  }
}
