// memory-store.ts - a Store in memory that a test can change from outside, and make fail.

import { WeftError } from '../../src/base/errors.ts'
import { type Expected, type Store, type StoreChange, type StoreEntry } from '../../src/control/store/store.ts'

/**
 * The lifetime of a key in ms. It is shorter than in other stores, because virtual time costs real time: a node checks
 * its parts every few virtual seconds.
 */
export const LEASE_TTL_MS = 2 * 3_600_000

export interface MemoryStore extends Store {
  /** The entries of the store by key. */
  readonly entries: ReadonlyMap<string, StoreEntry>
  /** Writes like another node or an operator. */
  put(key: string, value: string, isReservation?: boolean): void
  remove(key: string): void
  /** While true, every call fails with STORE_UNAVAILABLE, and so do watches. */
  setDown(down: boolean): void
  /** Writes a network configuration; there is none at first. */
  putConfig(text: string): void
  readonly closed: boolean
  /** Returns the names that were claimed. */
  claimed(): string[]
  /** Called after every change of the keys. */
  onWrite: () => void
}

export function createMemoryStore(name = 'etcd'): MemoryStore {
  const entries = new Map<string, StoreEntry>()
  const history: { revision: bigint; change: StoreChange }[] = []
  const waiting = new Set<() => void>()
  const claims = new Map<string, string>()
  let revision = 0n
  let configText: string | undefined
  let down = false
  let closed = false

  const check = (signal?: AbortSignal): void => {
    signal?.throwIfAborted()
    if (down) throw new WeftError('STORE_UNAVAILABLE', 'the store is down')
  }
  const record = (change: StoreChange): void => {
    history.push({ revision, change })
    self.onWrite()
    for (const wake of waiting) wake()
  }
  function put(key: string, value: string, isReservation = false): void {
    const entry = { key, value, revision: ++revision, created: entries.get(key)?.created ?? revision, isReservation }
    entries.set(key, entry)
    record({ kind: 'put', entry })
  }
  function remove(key: string): void {
    entries.delete(key)
    record({ kind: 'delete', key, revision: ++revision })
  }
  const isAsRead = (key: string, { revision: before, value }: Expected): boolean =>
    entries.get(key)?.revision === before && entries.get(key)?.value === value
  const written = (isForever = false) => ({
    revision,
    expiresAt: isForever ? undefined : Date.now() + LEASE_TTL_MS,
  })

  const self: MemoryStore = {
    name,
    title: 'Memory',
    onWrite: () => {},
    claimed: () => [...claims.keys()],
    entries,
    put,
    remove,
    setDown(value) {
      down = value
      for (const wake of waiting) wake()
    },
    putConfig(text) {
      configText = text
    },
    get closed() {
      return closed
    },
    async config() {
      check()
      if (configText === undefined) throw new WeftError('CONFIG_MISSING', 'there is no network configuration')
      return configText
    },
    async setConfig(text) {
      check()
      configText = text
    },
    async list(signal) {
      check(signal)
      return { revision, entries: [...entries.values()] }
    },
    ends: async () => new Map(),
    async *watch(after, signal) {
      let at = history.findIndex((entry) => entry.revision > after)
      if (at < 0) at = history.length
      for (;;) {
        check(signal)
        const changes = history.slice(at).map(({ change }) => change)
        at = history.length
        if (changes.length > 0) yield { revision, changes }
        else {
          await new Promise<void>((resolve) => {
            const wake = (): void => {
              waiting.delete(wake)
              signal.removeEventListener('abort', wake)
              resolve()
            }
            waiting.add(wake)
            signal.addEventListener('abort', wake)
          })
        }
      }
    },
    async create(key, value, signal) {
      check(signal)
      if (entries.has(key)) return undefined
      put(key, value)
      return written()
    },
    async update(key, value, expected, signal) {
      check(signal)
      if (!isAsRead(key, expected)) return undefined
      put(key, value, expected.isReservation)
      return written(expected.isReservation)
    },
    async delete(key, expected, signal) {
      check(signal)
      if (!isAsRead(key, expected)) return false
      remove(key)
      return true
    },
    async unclaim(address, value) {
      check()
      if (claims.get(address) === value) claims.delete(address)
    },
    async claim(address, value) {
      check()
      const before = claims.get(address)
      claims.set(address, value)
      return before
    },
    async claims() {
      check()
      return { revision: 0n, isWhole: true, values: new Map(claims) }
    },
    async close() {
      closed = true
    },
  }
  return self
}
