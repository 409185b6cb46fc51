// follow.ts - follows the leases of all nodes above any source: listed, watched, listed again after a gap and every minute.

import { describeError, isWeftError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import { seldom, type Log } from '../log.ts'
import { LeaseView, type PeerView, type ViewChange } from './fail-static.ts'
import type { LeaseSource } from './subnet-manager.ts'

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

/** What following leases knows of itself, for whoever reports on the daemon. */
export interface FollowState {
  /** When the whole listing was last compared with what is known, by the clock's `now`; undefined before the first. */
  listedAt: number | undefined
  /** Whether the last thing that was asked of the source failed. */
  failing: boolean
  /** Leases that the source no longer has and that are kept until a second listing confirms it. */
  held: number
}

export interface FollowOptions {
  readonly log: Log
  readonly signal: AbortSignal
  readonly relistMs?: number
  /** The key of this node's own lease, which is no peer: of its loss the node must hear at once. */
  readonly ownKey?: () => string
  /** How long the loss of most peers must last before it is believed. */
  readonly holdMs?: number
  /** Kept up to date here. */
  readonly state?: FollowState
  readonly random?: () => number
  readonly clock?: Clock
}

/** What a listing or a batch of changes brought. */
export interface Followed extends ViewChange {
  /** All leases as they are now; changed in place by what follows. */
  readonly leases: PeerView
  /** Something stands under this node's own key that is no lease, though `leases` has the one from before. */
  readonly isOwnUnreadable: boolean
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
  const state = options.state ?? { listedAt: undefined, failing: false, held: 0 }
  const view = new LeaseView({ holdMs: options.holdMs ?? HOLD_MS, ownKey: options.ownKey ?? (() => ''), log })
  const told = (change: ViewChange): Followed => {
    state.held = view.held
    return { ...change, leases: view.leases, isOwnUnreadable: view.isOwnUnreadable }
  }
  let after: { readonly cursor: Cursor } | undefined
  let relistAt = 0
  let failures = 0 // since the watch last proved good
  const calm = seldom(log, () => clock.now())
  for (;;) {
    signal.throwIfAborted()
    try {
      if (after === undefined || clock.now() >= relistAt) {
        // Should this fail, changes can be followed all the same until it is tried again.
        relistAt = clock.now() + BACKOFF_MAX_MS
        const listing = await source.list(signal)
        after = { cursor: listing.cursor }
        state.listedAt = clock.now()
        state.failing = false
        const change = view.list(listing.entries, clock.now())
        relistAt = clock.now() + (view.waitMs(clock.now()) ?? relistMs)
        yield told(change)
      }
      const relist = new AbortController()
      void clock.sleep(Math.max(0, relistAt - clock.now()), AbortSignal.any([signal, relist.signal])).then(
        () => relist.abort(),
        () => {},
      )
      try {
        for await (const { cursor, changes } of source.watch(after.cursor, AbortSignal.any([signal, relist.signal]))) {
          after = { cursor }
          state.failing = false
          if (changes.length === 0) continue
          failures = 0
          yield told(view.change(changes, clock.now()))
          // Whether the loss is real is asked as soon as it may be believed, not at the next full minute.
          const waitMs = view.waitMs(clock.now())
          if (waitMs !== undefined && clock.now() + waitMs < relistAt) {
            relistAt = clock.now() + waitMs
            break
          }
        }
      } catch (error) {
        if (!relist.signal.aborted || signal.aborted) throw error
        failures = 0
      } finally {
        relist.abort()
      }
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error
      const isGap = error.code === 'GAP'
      if (isGap) {
        calm.warn(`${source.name} watch for leases fell behind (${error.message}), re-listing and resuming`)
        after = undefined
      } else {
        const from = String(after?.cursor ?? 0)
        calm.error(
          `${source.name} watch channel for leases closed (${describeError(error)}), reconnecting from rev ${from}...`,
        )
      }
      state.failing = !isGap
      failures++
      // A gap is made good at once; only a source that answers every watch with one has to wait like any other.
      if (isGap && failures === 1) continue
      const backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** Math.min(failures - 1, 10))
      // Jitter on the upper half: nodes that lost one store must not come back in step.
      await clock.sleep(backoffMs * (0.5 + random() / 2), signal)
    }
  }
}
