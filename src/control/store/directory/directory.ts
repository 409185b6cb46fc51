// directory.ts - implements the interface of store.ts by a directory in which each lease is a file. A lease directory
// needs no service, and daemons on several hosts can share the directory.
//
// A read-only file (chmod a-w) is a reservation by an operator and never expires. Any other lease expires when `ttlMs`
// have passed since its file's mtime, by the clock of the file system. All hosts compare times of the file server's
// clock, so the hosts' own clocks need not agree.
//
// inotify reports changes by other processes of this host. weftd also scans the directory every few seconds, because a
// shared file system does not report changes by other hosts.

import { WeftError } from '../../../base/errors.ts'
import { LEASE_TTL_MS, type Expected, type Store, type StoreBatch, type StoreChange, type Written } from '../store.ts'
import { LeaseFiles, type LeaseFile, type LeaseFileEvents } from './lease-files.ts'

interface DirectoryOptions extends LeaseFileEvents {
  readonly directory: string
  /**
   * The lifetime of a lease after its last write, in ms. All daemons that share the directory must use the same value.
   */
  readonly ttlMs?: number
  /** The interval, in ms, at which weftd scans the directory for changed leases. */
  readonly rescanMs?: number
}

const RESCAN_MS = 5_000
/**
 * The interval of scans, in ms, if weftd cannot use inotify because the kernel has no free inotify instance or watch.
 */
const RESCAN_UNTOLD_MS = 1_000
/**
 * The maximum share of its time that weftd spends on scans. Because of this limit weftd scans a large directory less
 * often.
 */
const RESCAN_SHARE = 0.05
/**
 * The longest pause, in ms, between two scans. A scan may have waited for days for a file server, and the pause must not
 * depend on the duration of this wait.
 */
const RESCAN_MAX_MS = 600_000
/**
 * The time in ms between a lease's expiry and the deletion of the lease's file. A daemon deletes expired files when it
 * acquires its own lease.
 */
const STALE_LEASE_MS = 24 * 3_600_000
/** Matches the name of a lease file (lease.ts, leaseKey). weftd deletes no other file from the folder of the leases. */
const LEASE_NAME = /^\d+\.\d+\.\d+\.\d+-\d+(?:&[\da-f:]+-\d+)?$/
/** The number of files whose reads one listing queues at a time. lease-files.ts runs fewer reads simultaneously. */
const READS_ASKED = 64

interface Scan {
  readonly live: Map<string, LeaseFile>
  /**
   * All lease files that this scan found, including expired ones. The next scan reads only the files that have changed
   * since then.
   */
  readonly files: ReadonlyMap<string, LeaseFile>
}

export class DirectoryStore implements Store {
  readonly name = 'directory'
  readonly title = 'Lease Directory'
  readonly #directory: string
  readonly #files: LeaseFiles
  readonly #ttlMs: number
  /** The interval, in ms, at which a watch scans the whole directory. weftd scans a large directory less often. */
  readonly #rescanMs: number
  /** The result of the last listing. A watch can start only at the revision of this listing. */
  #listed: Scan = { live: new Map(), files: new Map() }
  #listedRevision = 0n
  /** The highest revision of any listing and of any change that a watch has reported. */
  #lastRevision = 0n

  constructor(options: DirectoryOptions) {
    this.#directory = options.directory
    this.#files = new LeaseFiles(options.directory, options)
    this.#ttlMs = options.ttlMs ?? LEASE_TTL_MS
    this.#rescanMs = options.rescanMs ?? RESCAN_MS
  }

  async *watch(after: bigint, signal: AbortSignal): AsyncGenerator<StoreBatch> {
    signal.throwIfAborted()
    if (after !== this.#listedRevision) throw new WeftError('GAP', 'the directory was listed since')
    // The watch works on its own copy of the leases, because a listing that runs at the same time must not hide changes
    // from the watch.
    const view = new Map(this.#listed.live)
    let known = this.#listed.files
    // Start inotify before the scan, so that inotify or the scan notices every change.
    const news = await listen(this.#files, signal)
    const everyMs = news.hasInotify ? this.#rescanMs : Math.min(this.#rescanMs, RESCAN_UNTOLD_MS)
    try {
      let answered = false
      let rescanAt = 0
      for (;;) {
        const touched = news.take()
        const changes = await this.#files.doing(signal, async () => {
          const started = performance.now()
          if (started < rescanAt) return differences(view, await this.#readLive(touched, view), touched)
          const found = await this.#scan(known)
          known = found.files
          const ended = performance.now()
          rescanAt = ended + Math.max(everyMs, Math.min((ended - started) / RESCAN_SHARE, RESCAN_MAX_MS))
          return differences(view, found.live, new Set([...view.keys(), ...found.live.keys()]))
        })
        if (changes.length > 0) yield { revision: ++this.#lastRevision, changes }
        else if (!answered) yield { revision: after, changes }
        answered = true
        await news.wait(rescanAt - performance.now())
      }
    } finally {
      news.close()
    }
  }

  async config(signal: AbortSignal): Promise<string> {
    const text = await this.#files.doing(signal, () => this.#files.config())
    if (text !== undefined) return text
    throw new WeftError('CONFIG_MISSING', `there is no network configuration in ${this.#directory}`, {
      remedy: `write a configuration such as {"Network":"10.5.0.0/16"} to ${this.#directory}/config, or correct --lease-dir`,
    })
  }

  setConfig(text: string, signal: AbortSignal): Promise<void> {
    return this.#files.changing(signal, () => this.#files.setConfig(text))
  }

  list(signal: AbortSignal): Promise<{ revision: bigint; entries: LeaseFile[] }> {
    return this.#files.doing(signal, async () => {
      // The revision is taken before the files are read. So a change that a watch reports during this scan has a higher
      // revision than the listing.
      const revision = ++this.#lastRevision
      this.#listed = await this.#scan(this.#listed.files)
      this.#listedRevision = revision
      return { revision, entries: [...this.#listed.live.values()] }
    })
  }

  ends(signal: AbortSignal): Promise<Map<string, number>> {
    return this.#files.doing(signal, async () => {
      const ahead = (await this.#files.now()) - Date.now()
      const { live } = await this.#scan(this.#listed.files)
      const leases = [...live.values()].filter(({ isReservation }) => !isReservation)
      return new Map(leases.map(({ key, writtenAt }) => [key, writtenAt + this.#ttlMs - ahead]))
    })
  }

  create(
    key: string,
    value: string,
    signal: AbortSignal,
    isAcross: (other: string) => boolean = () => false,
  ): Promise<Written | undefined> {
    return this.#write(key, value, false, signal, async (present, now) => {
      if (present && this.#isLive(present, now)) return false
      const others = (await this.#files.keys()).filter((name) => name !== key && isAcross(name))
      for (const name of others) {
        const other = await this.#files.readToChange(name)
        if (other && this.#isLive(other, now)) return false
      }
      return true
    })
  }

  update(key: string, value: string, expected: Expected, signal: AbortSignal): Promise<Written | undefined> {
    return this.#write(key, value, expected.isReservation ?? false, signal, async (present, now) =>
      this.#isAsRead(present, expected, now),
    )
  }

  delete(key: string, expected: Expected, signal: AbortSignal): Promise<boolean> {
    return this.#files.changing(signal, async () => {
      const present = await this.#files.readToChange(key)
      if (!this.#isAsRead(present, expected, await this.#files.now())) return false
      await this.#files.remove(key)
      return true
    })
  }

  claim(name: string, value: string, signal: AbortSignal): Promise<string | undefined> {
    return this.#files.doing(signal, () => this.#files.claim(name, value))
  }

  claims(
    _since: bigint | undefined,
    signal: AbortSignal,
  ): Promise<{ revision: bigint; isWhole: true; values: ReadonlyMap<string, string> }> {
    return this.#files.doing(signal, async () => ({ revision: 0n, isWhole: true, values: await this.#files.claims() }))
  }

  unclaim(name: string, value: string, signal: AbortSignal): Promise<void> {
    return this.#files.doing(signal, () => this.#files.unclaim(name, value))
  }

  close(): Promise<void> {
    return this.#files.close()
  }

  #isLive(file: LeaseFile, now: number): boolean {
    return file.isReservation || now - file.writtenAt < this.#ttlMs
  }

  /**
   * Returns true if a lease still has the expected revision and value, and has not expired. An expired lease can still
   * have both, because its file stays, but another node may meanwhile have one of its subnets under a different key.
   */
  #isAsRead(present: LeaseFile | undefined, { revision, value }: Expected, now: number): boolean {
    return present?.revision === revision && present.value === value && this.#isLive(present, now)
  }

  /**
   * Lists the directory, and reads the files that have changed since an earlier scan, which found the files `known`.
   */
  async #scan(known: ReadonlyMap<string, LeaseFile>): Promise<Scan> {
    const now = await this.#files.now()
    const names = await this.#files.keys()
    const all = new Map<string, LeaseFile>()
    const live = new Map<string, LeaseFile>()
    for (let at = 0; at < names.length; at += READS_ASKED) {
      const part = names.slice(at, at + READS_ASKED)
      for (const file of await Promise.all(part.map((name) => this.#files.read(name, known.get(name))))) {
        if (!file) continue
        all.set(file.key, file)
        if (this.#isLive(file, now)) live.set(file.key, file)
      }
    }
    return { live, files: all }
  }

  /**
   * Returns the leases among the files `names` that have not expired. If a file cannot be read, its lease in `known`
   * still counts.
   */
  async #readLive(names: readonly string[], known: ReadonlyMap<string, LeaseFile>): Promise<Map<string, LeaseFile>> {
    const now = await this.#files.now()
    const found = new Map<string, LeaseFile>()
    for (const name of names) {
      const file = name.startsWith('.') ? undefined : await this.#files.read(name, known.get(name))
      if (file && this.#isLive(file, now)) found.set(name, file)
    }
    return found
  }

  /**
   * Deletes the files of leases that expired at least STALE_LEASE_MS ago. The caller must hold the directory's lock.
   */
  async #removeEnded(): Promise<void> {
    const longAgo = (await this.#files.now()) - STALE_LEASE_MS
    for (const file of this.#listed.files.values()) {
      if (this.#isLive(file, longAgo) || !LEASE_NAME.test(file.key)) continue
      const present = await this.#files.read(file.key)
      if (present?.revision === file.revision) await this.#files.remove(file.key).catch(() => {})
    }
  }

  /**
   * Writes `value` to a lease file if `allowed` returns true for the file's present state. Returns undefined if
   * `allowed` returns false, or if another process created the file first.
   */
  #write(
    key: string,
    value: string,
    isReservation: boolean,
    signal: AbortSignal,
    allowed: (present: LeaseFile | undefined, now: number) => Promise<boolean>,
  ): Promise<Written | undefined> {
    return this.#files.changing(signal, async () => {
      const present = await this.#files.readToChange(key)
      if (!(await allowed(present, await this.#files.now()))) return undefined
      const expiresAt = isReservation ? undefined : Date.now() + this.#ttlMs // before the write, which may take long
      const written = await this.#files.write(key, value, isReservation, present)
      if (written && !present) await this.#removeEnded()
      return written && { revision: written.revision, expiresAt }
    })
  }
}

/**
 * Compares the maps `view` and `found` at the lease keys `keys`, copies the differing entries from `found` to `view`,
 * and returns the changes.
 */
function differences(
  view: Map<string, LeaseFile>,
  found: ReadonlyMap<string, LeaseFile>,
  keys: Iterable<string>,
): StoreChange[] {
  const changes: StoreChange[] = []
  for (const key of keys) {
    const before = view.get(key)
    const after = found.get(key)
    if (before?.revision === after?.revision) continue
    if (after) {
      changes.push({ kind: 'put', entry: after })
      view.set(key, after)
    } else if (before) {
      changes.push({ kind: 'delete', key, revision: before.revision })
      view.delete(key)
    }
  }
  return changes
}

interface News {
  /** True if the kernel had a free inotify instance and watch. If false, weftd scans the directory more often. */
  readonly hasInotify: boolean
  /**
   * Returns the keys whose files changed since the last call. Throws if inotify failed, or the signal's reason if the
   * signal aborted.
   */
  take(): string[]
  wait(ms: number): Promise<void>
  close(): void
}

async function listen(files: LeaseFiles, signal: AbortSignal): Promise<News> {
  const touched = new Set<string>()
  let wake: () => void = () => {}
  let failure: unknown
  const onChange = (key: string | null): void => {
    if (key) touched.add(key)
    wake()
  }
  const onError = (error: Error): void => {
    failure = error
    wake()
  }
  const watcher = await files.doing(signal, async () => files.watch(onChange, onError))
  const onAbort = (): void => wake()
  signal.addEventListener('abort', onAbort, { once: true })
  return {
    hasInotify: watcher !== undefined,
    take() {
      signal.throwIfAborted()
      if (failure) throw files.errorOf(failure)
      const keys = [...touched]
      touched.clear()
      return keys
    },
    wait: (ms) =>
      new Promise<void>((resolved) => {
        const timer = setTimeout(resolved, Math.max(0, ms))
        wake = () => {
          clearTimeout(timer)
          resolved()
        }
        if (touched.size > 0 || signal.aborted || failure) wake()
      }),
    close() {
      signal.removeEventListener('abort', onAbort)
      watcher?.close()
    },
  }
}
