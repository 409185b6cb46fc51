// virtual-store.ts - a store that exists only in a simulation: one history, and for each node a connection that the
// scheduler cuts, delays and lets lose answers.

import { WeftError } from '../../src/base/errors.ts'
import type { Expected, Store, StoreBatch, StoreChange, StoreEntry } from '../../src/control/store/store.ts'
import type { Random } from '../support/packet-model.ts'
import type { VirtualTime } from './virtual-time.ts'

interface Key extends StoreEntry {
  readonly endsAt: number | undefined
}

export const FAULTS = [
  'refused', // a call does not reach the store
  'answer lost', // it does, and nobody hears of it
  'slow', // it takes seconds
  'applied late', // it is done after whoever asked for it has given up
  'watch cut',
  'watch silent', // it says nothing for a while, then breaks
  'watch behind', // what it tells is seconds old, as by a member that lags
  'compacted', // history that a watch needs is gone
  'node cut off',
  'store down',
  'node crashed',
  'node frozen', // and goes on where it was
  'node suspended', // with its clock that counts without a break
  'clock set',
  'lease expired',
  'lease deleted',
  'junk written',
  'subnet taken', // by somebody who does not ask, after its lease ended
  'store restored', // to what it was some time ago
  'restored unnoticed', // and no watch is told, unless the store has gone back behind it
  'address changed',
  'data path died',
  'store wiped', // most leases go at once
] as const
export type Fault = (typeof FAULTS)[number]

export interface Connection {
  readonly store: Store
  /** Everything up to this revision was delivered to whoever watches for this node. */
  seen(): bigint
  /** True when the node was told of the last time that a key was gone, by its watch or by a listing since. */
  hasHeardOfLoss(key: string): boolean
  setCut(cut: boolean): void
  /** How likely a call or a watch fails in one way or another; 0 is a sound network. */
  setUnrest(unrest: number): void
  cutWatches(fault: 'watch cut' | 'watch silent'): void
  /** From now on watches tell what happened so long ago. */
  setBehind(ms: number): void
}

export interface VirtualStore {
  entries(): readonly Key[]
  /** When anything last changed. */
  changedAt(): number
  connect(): Connection
  setDown(down: boolean): void
  compact(): void
  /** Writes or deletes as an operator, or somebody who is not simulated, does; without `ttlMs` for ever. */
  put(key: string, value: string, ttlMs?: number): void
  remove(key: string): void
  snapshot(): void
  /** Watches are told of it, or have to notice. */
  restore(isTold: boolean): void
  /** When it was restored so that only a listing can show it. */
  unnoticedAt(): number
  /** Said of each write; throws when it may not be. */
  onWrite: (before: StoreEntry | undefined, after: StoreEntry, all: readonly StoreEntry[]) => void
  /** Said of each key that is gone, whatever took it. */
  onGone: (key: string) => void
}

const CALL_TIMEOUT_MS = 6_000
/** A day of 24 hours is mostly waiting: leases live for 20 minutes here, and are renewed 5 before. */
export const LEASE_TTL_MS = 20 * 60_000

/** With `isLocked` it is as a lease directory, which lets no key come across another, and knows no order of them. */
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
  /** How often keys were gone in all, and the number of the last time of each. */
  let losses = 0
  const lossOf = new Map<string, number>()
  const lose = (key: string): void => {
    lossOf.set(key, ++losses)
    self.onGone(key)
  }
  const watches = new Set<{ wake(): void; fail(error: Error): void; owner: object; isSilent: boolean }>()
  const hit = (fault: Fault): void => void hits.set(fault, (hits.get(fault) ?? 0) + 1)
  const unavailable = (why: string): WeftError => new WeftError('STORE_UNAVAILABLE', why)

  /** By the clock of the machine that asks, which does not see the answer while it stands still. */
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
    let known = 0 // restores that a watch has told of
    let behindMs = 0
    let listedLosses = 0 // as of the last listing
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
    /** One call: its way there, what it does, its way back. */
    async function call<T>(signal: AbortSignal, act: () => T): Promise<T> {
      signal.throwIfAborted()
      const trouble = random.chance(unrest) ? random.below(4) : -1
      if (trouble === 2) hit('slow')
      // What was sent arrives, whatever becomes of the sender.
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
            // Nobody hears of it.
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
              // In pieces, as a busy server delivers them.
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
    // By the node's own clock, as the etcd store says it.
    const written = (key: Key, expiresAt: number | undefined) => ({ revision: key.revision, expiresAt })
    const mine = () => [...watches].filter((watch) => watch.owner === owner)
    return {
      store,
      seen: () => seen,
      hasHeardOfLoss: (key) => (lossOf.get(key) ?? 0) <= Math.max(listedLosses, watchedLoss.get(key) ?? 0),
      setCut(value) {
        cut = value
        if (!value) return
        hit('node cut off')
        // A dead connection is noticed by its keepalive.
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
    restore(isTold) {
      hit(isTold ? 'store restored' : 'restored unnoticed')
      if (isTold) restores++
      else unnoticedAt = time.now()
      for (const key of keys.keys()) lose(key)
      // Leases live on for a full term, as etcd's do after a restore.
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
