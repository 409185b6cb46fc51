// virtual-store.ts - a simulated store with one history. Each node has a connection that the scheduler cuts or delays, and that can lose
// answers.

import { WeftError } from '../../src/base/errors.ts'
import type { Expected, Store, StoreBatch, StoreChange, StoreEntry } from '../../src/control/store/store.ts'
import type { Random } from '../support/packet-model.ts'
import type { VirtualTime } from './virtual-time.ts'

interface Key extends StoreEntry {
  readonly endsAt: number | undefined
}

export const FAULTS = [
  'refused', // a call does not reach the store
  'answer lost', // the store applies the call, but the answer is lost
  'slow', // the call takes seconds
  'applied late', // the store applies the call after the caller has given up
  'watch cut',
  'watch silent', // the watch is silent for a while, then breaks
  'watch behind', // the watch reports changes seconds late, like a member that lags
  'compacted', // the history that a watch needs is compacted away
  'node cut off',
  'store down',
  'node crashed',
  'node frozen', // the node resumes later, as after SIGCONT
  'node suspended', // the node sleeps, and its monotonic clock with it
  'clock set',
  'lease expired',
  'lease deleted',
  'junk written',
  'subnet taken', // a host outside the simulation writes the key after its lease expired
  'store restored', // to an earlier snapshot
  'restored unnoticed', // no watch reports the restore, unless the store went back behind the watch
  'address changed',
  'data path died',
  'store wiped', // most leases are deleted simultaneously
] as const
export type Fault = (typeof FAULTS)[number]

export interface Connection {
  readonly store: Store
  /** The last revision that was delivered to the watch of this node. */
  seen(): bigint
  /** True if the node knows of the last deletion of a key, from its watch or from a later listing. */
  knowsLoss(key: string): boolean
  setCut(cut: boolean): void
  /** The probability that a call or a watch fails in some way; 0 for a connection without faults. */
  setUnrest(unrest: number): void
  cutWatches(fault: 'watch cut' | 'watch silent'): void
  /** From now on watches report each change `ms` milliseconds late. */
  setBehind(ms: number): void
}

export interface VirtualStore {
  entries(): readonly Key[]
  /** The time of the last change. */
  changedAt(): number
  connect(): Connection
  setDown(down: boolean): void
  compact(): void
  /** Writes or deletes a key like an operator or a host outside the simulation. Without `ttlMs` the key never expires. */
  put(key: string, value: string, ttlMs?: number): void
  remove(key: string): void
  snapshot(): void
  /** With `isReported` watches end with an error; otherwise they have to notice the restore themselves. */
  restore(isReported: boolean): void
  /** The time of the last restore that only a listing can show. */
  unnoticedAt(): number
  /** Called for each write; throws if the write breaks a rule. */
  onWrite: (before: StoreEntry | undefined, after: StoreEntry, all: readonly StoreEntry[]) => void
  /** Called for each key that disappears, for any reason. */
  onGone: (key: string) => void
}

const CALL_TIMEOUT_MS = 6_000
/** The TTL is 20 minutes instead of 24 hours, because a simulated day would mostly be waiting. Renewal is 5 minutes before the end. */
export const LEASE_TTL_MS = 20 * 60_000

/** With `isLocked` the store behaves like a lease directory, which refuses overlapping keys and does not order them. */
export function createVirtualStore(
  time: VirtualTime,
  random: Random,
  hits: Map<Fault, number>,
  { isLocked = false } = {},
): VirtualStore {
  let keys = new Map<string, Key>()
  let revision = 100n
  let compacted = 0n
  let down = false
  let restores = 0
  let unnoticedAt = -Infinity
  const claims = new Map<string, string>()
  let saved = { keys: new Map<string, Key>(), revision }
  let history: {
    readonly revision: bigint
    readonly at: number
    readonly change: StoreChange
    readonly loss: number
  }[] = []
  /** losses: the number of keys that have disappeared. lossOf: the number of the last loss of each key. */
  let losses = 0
  const lossOf = new Map<string, number>()
  const lose = (key: string): void => {
    lossOf.set(key, ++losses)
    self.onGone(key)
  }
  const watches = new Set<{ wake(): void; fail(error: Error): void; owner: object; isSilent: boolean }>()
  const hit = (fault: Fault): void => void hits.set(fault, (hits.get(fault) ?? 0) + 1)
  const unavailable = (why: string): WeftError => new WeftError('STORE_UNAVAILABLE', why)

  /** Uses the clock of the calling machine, which does not see an answer while it is stopped. */
  const onNode: VirtualTime['at'] = (ms, run) => void setTimeout(run, ms)

  let changedAt = 0
  const record = (change: StoreChange): void => {
    changedAt = time.now()
    history.push({ revision, at: time.now(), change, loss: losses })
    for (const watch of watches) watch.wake()
  }
  function expire(): void {
    for (const [key, { endsAt }] of keys) {
      if (endsAt === undefined || endsAt > time.now()) continue
      hit('lease expired')
      remove(key)
    }
  }
  function write(key: string, value: string, ttlMs: number | undefined): Key {
    const before = keys.get(key)
    const endsAt = ttlMs === undefined ? undefined : time.now() + ttlMs
    const created = before?.created ?? revision + 1n
    const entry = { key, value, revision: ++revision, created, isReservation: ttlMs === undefined, endsAt }
    keys.set(key, entry)
    self.onWrite(before, entry, [...keys.values()])
    record({ kind: 'put', entry })
    if (ttlMs !== undefined) time.at(ttlMs, expire)
    return entry
  }
  function remove(key: string): void {
    if (!keys.delete(key)) return
    lose(key)
    record({ kind: 'delete', key, revision: ++revision })
  }

  const isAsRead = (key: string, { revision: before, value }: Expected): boolean =>
    keys.get(key)?.revision === before && keys.get(key)?.value === value

  function connect(): Connection {
    let cut = false
    let unrest = 0
    let seen = 0n
    let known = 0 // restores that a watch has reported
    let behindMs = 0
    let listedLosses = 0 // the number of losses at the last listing
    const watchedLoss = new Map<string, number>()
    const owner = {}
    const sleep = (ms: number, signal: AbortSignal, at: VirtualTime['at'] = onNode): Promise<void> =>
      new Promise((resolve, reject) => {
        const onAbort = (): void => reject(signal.reason as Error)
        signal.addEventListener('abort', onAbort, { once: true })
        at(ms, () => {
          signal.removeEventListener('abort', onAbort)
          resolve()
        })
      })
    /** Makes one call: the request travels, the store acts, the answer travels. */
    async function call<T>(signal: AbortSignal, act: () => T): Promise<T> {
      signal.throwIfAborted()
      const trouble = random.chance(unrest) ? random.below(4) : -1
      if (trouble === 2) hit('slow')
      // A request that was sent arrives, even if its sender has stopped.
      await sleep(trouble === 2 ? 2_000 + random.below(6_000) : random.below(20), signal, (ms, run) => time.at(ms, run))
      if (cut || down || trouble === 0) {
        if (!cut && !down) hit('refused')
        await sleep(random.chance(0.5) ? CALL_TIMEOUT_MS : 10, signal)
        throw unavailable('no answer')
      }
      if (trouble === 3) {
        hit('applied late')
        time.at(CALL_TIMEOUT_MS + random.below(20_000), () => {
          try {
            act()
          } catch {
            // The caller has given up, so the error has no receiver.
          }
        })
        await sleep(CALL_TIMEOUT_MS, signal)
        throw unavailable('no answer yet')
      }
      const result = act()
      if (trouble === 1) {
        hit('answer lost')
        await sleep(CALL_TIMEOUT_MS, signal)
        throw unavailable('the answer is lost')
      }
      await sleep(random.below(20), signal)
      return result
    }
    const store: Store = {
      name: 'etcd',
      title: 'Virtual',
      config: (signal) =>
        call(signal, () => {
          throw new WeftError('CONFIG_MISSING', 'there is none')
        }),
      setConfig: () => Promise.reject(new Error('nobody puts one')),
      list: async (signal) => {
        const { upTo, ...listing } = await call(signal, () => ({
          upTo: losses,
          revision,
          entries: [...keys.values()].map((entry) => (isLocked ? { ...entry, created: 0n } : entry)),
        }))
        listedLosses = upTo
        return listing
      },
      ends: () => Promise.reject(new Error('nobody asks')),
      async *watch(after, signal): AsyncIterable<StoreBatch> {
        await call(signal, () => {})
        let failure: Error | undefined
        let wake = (): void => {}
        const watch = {
          wake: () => wake(),
          fail: (error: Error) => ((failure = error), wake()),
          owner,
          isSilent: false,
        }
        watches.add(watch)
        const onAbort = (): void => wake()
        signal.addEventListener('abort', onAbort)
        try {
          let at = after
          seen = after
          for (;;) {
            signal.throwIfAborted()
            if (failure) throw failure
            if (revision < at) throw new WeftError('GAP', 'the store went back')
            if (at < compacted) {
              hit('compacted')
              throw new WeftError('GAP', 'compacted')
            }
            if (restores !== known) {
              known = restores
              throw new WeftError('GAP', 'the store is another one now')
            }
            const until = time.now() - behindMs
            const news = watch.isSilent ? [] : history.filter((each) => each.revision > at)
            const batch = news.filter((each) => each.at <= until)
            const [next] = news
            if (next && batch.length === 0) time.at(next.at - until, () => wake())
            if (batch.length > 0) {
              // The batch arrives in pieces, as from a busy server.
              const piece = batch.slice(0, 1 + random.below(batch.length))
              await sleep(random.below(30), signal)
              at = piece.at(-1)!.revision
              seen = at
              for (const { change, loss } of piece) if (change.kind === 'delete') watchedLoss.set(change.key, loss)
              yield { revision: at, changes: piece.map(({ change }) => change) }
              continue
            }
            await new Promise<void>((resolve) => (wake = resolve))
          }
        } finally {
          watches.delete(watch)
          signal.removeEventListener('abort', onAbort)
        }
      },
      create: (key, value, signal, isAcross = () => false) => {
        const expiresAt = Date.now() + LEASE_TTL_MS
        return call(signal, () => {
          const isTaken = keys.has(key) || (isLocked && [...keys.keys()].some(isAcross))
          return isTaken ? undefined : written(write(key, value, LEASE_TTL_MS), expiresAt)
        })
      },
      update: (key, value, expected, signal) => {
        const ttlMs = expected.isReservation ? undefined : LEASE_TTL_MS
        const expiresAt = ttlMs === undefined ? undefined : Date.now() + ttlMs
        return call(signal, () => {
          return isAsRead(key, expected) ? written(write(key, value, ttlMs), expiresAt) : undefined
        })
      },
      delete: (key, expected, signal) =>
        call(signal, () => {
          if (!isAsRead(key, expected)) return false
          remove(key)
          return true
        }),
      unclaim: (name, value, signal) =>
        call(signal, () => {
          if (claims.get(name) === value) claims.delete(name)
        }),
      claim: (name, value, signal) =>
        call(signal, () => {
          const before = claims.get(name)
          claims.set(name, value)
          return before
        }),
      claims: (_since, signal) => call(signal, () => ({ revision: 0n, isWhole: true, values: new Map(claims) })),
      close: async () => {},
    }
    // The expiry uses the node's own clock, like the etcd store.
    const written = (key: Key, expiresAt: number | undefined) => ({ revision: key.revision, expiresAt })
    const mine = () => [...watches].filter((watch) => watch.owner === owner)
    return {
      store,
      seen: () => seen,
      knowsLoss: (key) => (lossOf.get(key) ?? 0) <= Math.max(listedLosses, watchedLoss.get(key) ?? 0),
      setCut(value) {
        cut = value
        if (!value) return
        hit('node cut off')
        // The keepalive detects a dead connection.
        for (const watch of mine()) time.at(8_000, () => watch.fail(unavailable('keepalive')))
        for (const watch of mine()) watch.isSilent = true
      },
      setUnrest: (value) => void (unrest = value),
      setBehind(ms) {
        behindMs = ms
        if (ms > 0) hit('watch behind')
        for (const watch of mine()) watch.wake()
      },
      cutWatches(fault) {
        for (const watch of mine()) {
          hit(fault)
          watch.isSilent = true
          time.at(fault === 'watch cut' ? 0 : 8_000, () => watch.fail(unavailable(fault)))
        }
      },
    }
  }

  const self: VirtualStore = {
    entries: () => [...keys.values()],
    changedAt: () => changedAt,
    connect,
    setDown(value) {
      down = value
      if (!value) return
      hit('store down')
      for (const watch of watches) watch.fail(unavailable('the store went down'))
    },
    compact() {
      compacted = revision
      history = history.filter((each) => each.revision > compacted)
    },
    put(key, value, ttlMs) {
      write(key, value, ttlMs)
    },
    remove(key) {
      if (keys.has(key)) hit('lease deleted')
      remove(key)
    },
    snapshot: () => void (saved = { keys: new Map(keys), revision }),
    unnoticedAt: () => unnoticedAt,
    restore(isReported) {
      hit(isReported ? 'store restored' : 'restored unnoticed')
      if (isReported) restores++
      else unnoticedAt = time.now()
      for (const key of keys.keys()) lose(key)
      // After a restore leases live for a full TTL, like those of etcd.
      keys = new Map(
        [...saved.keys].map(([key, entry]) => [key, { ...entry, endsAt: entry.endsAt && time.now() + LEASE_TTL_MS }]),
      )
      time.at(LEASE_TTL_MS, expire)
      revision = saved.revision
      compacted = revision
      history = []
      for (const watch of watches) watch.fail(unavailable('the store restarts'))
    },
    onWrite: () => {},
    onGone: () => {},
  }
  return self
}
