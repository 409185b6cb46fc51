// directory-store.ts - leases as files: no service to run, and several daemons, also on several hosts, share it.
//
//   DIR/config              the network configuration, JSON
//   DIR/subnets/10.5.1.0-24 a lease: the same key and the same bytes as in etcd
//   DIR/tmp                 files being written; the clock probe
//   DIR/weft/192.0.2.1      which host uses this public IP; see `claim`
//   DIR/lock                held while anything is changed
//
// A file that nobody may write (chmod a-w) is a reservation and never ends. Any other lease ends `ttl` after its file's
// mtime, by the file system's own clock: hosts whose clocks differ agree, because they compare two times of one file
// server. A reader never sees half a file, since a lease appears by link(2) or rename(2); on a full disk a renewal writes
// the same bytes again in place. Changes are made under an exclusive lock of the kernel (open file description lock; over
// NFS version 4 by its server), which ends with the process that holds it.
// Others' changes are seen by inotify, and by looking again every few seconds: a shared file system tells nothing of
// what another host wrote.

import { randomBytes } from 'node:crypto'
import { constants, watch as watchDirectory, type FSWatcher } from 'node:fs'
import { link, mkdir, open, readdir, readFile, rename, stat, unlink } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join, resolve } from 'node:path'
import { messageOf, WeftError } from '../errors.ts'
import { addon } from '../host/addon.ts'
import { LEASE_TTL_MS } from './leases.ts'
import { StoreGap, type Store, type StoreChange, type StoreEntry, type Written } from './store.ts'

export interface DirectoryOptions {
  readonly directory: string
  /** How long after its last writing a lease ends, in ms. All daemons of a directory must agree. */
  readonly ttlMs?: number
  /** How often the directory is looked at without being told, in ms. */
  readonly rescanMs?: number
}

const RESCAN_MS = 5_000
/** The same where inotify has no instance or watch left for us. */
const RESCAN_UNTOLD_MS = 1_000
/** Looking through a large directory must take no more than this part of the time. */
const RESCAN_SHARE = 0.05
/** A temporary file this old was left by a crash. */
const STALE_TEMPORARY_MS = 3_600_000
/** The bits of a file's mode that let anybody write. */
const WRITABLE = 0o222n
/** Whoever acquires a lease removes the files of leases that ended this long ago. */
const STALE_LEASE_MS = 24 * 3_600_000
/** Files read at a time while listing. */
const PARALLEL_READS = 64

interface LeaseFile extends StoreEntry {
  /** By the file system's clock, ms since the epoch. */
  readonly writtenAt: number
}

interface Scan {
  /** The leases that have not ended. */
  readonly live: Map<string, LeaseFile>
  /** All files, so that the next scan reads only what changed. */
  readonly files: ReadonlyMap<string, LeaseFile>
}

/** A store in a directory, which is made if it is missing. */
export function createDirectoryStore(options: DirectoryOptions): Store {
  const top = resolve(options.directory)
  const subnets = join(top, 'subnets')
  const temporaries = join(top, 'tmp')
  const claims = join(top, 'weft')
  const ttlMs = options.ttlMs ?? LEASE_TTL_MS
  const rescanMs = options.rescanMs ?? RESCAN_MS
  // Random besides: a container has the same name and process id again after a crash in the middle of a write.
  const identity = `${hostname()}.${process.pid}.${randomBytes(4).toString('hex')}`
  let prepared: Promise<void> | undefined
  let temporaryCount = 0
  /** The last listing; its number serves as its revision. A watch can start from it, and from nothing older. */
  let listed: Scan = { live: new Map(), files: new Map() }
  let listedRevision = 0n
  let lastRevision = 0n

  /** Turns a failed file operation into a WeftError. */
  async function doing<T>(signal: AbortSignal | undefined, what: () => Promise<T>): Promise<T> {
    signal?.throwIfAborted()
    try {
      return await what()
    } catch (error) {
      signal?.throwIfAborted()
      throw directoryError(error, top)
    }
  }

  function prepare(): Promise<void> {
    prepared ??= (async () => {
      await mkdir(subnets, { recursive: true, mode: 0o755 })
      await mkdir(temporaries, { recursive: true, mode: 0o755 })
      await mkdir(claims, { recursive: true, mode: 0o755 })
      const now = await fileSystemNow()
      for (const name of await readdir(temporaries)) {
        const path = join(temporaries, name)
        const age = await stat(path).then(
          (info) => now - info.mtimeMs,
          () => 0,
        )
        if (age > STALE_TEMPORARY_MS) await unlink(path).catch(() => {})
      }
    })()
    prepared.catch(() => {
      prepared = undefined // asked again next time
    })
    return prepared
  }

  /** The file system's clock, by writing a file and looking at its time. */
  async function fileSystemNow(): Promise<number> {
    const path = join(temporaries, `clock.${identity}`)
    // Not truncated: a full disk takes a byte where one is already.
    const file = await open(path, constants.O_WRONLY | constants.O_CREAT, 0o644)
    try {
      await file.write('.', 0)
      return (await file.stat()).mtimeMs
    } finally {
      await file.close()
    }
  }

  const isLive = (file: LeaseFile, now: number): boolean => file.isReservation || now - file.writtenAt < ttlMs

  /** One lease file; undefined when there is none. What `known` says is taken over if the file is still the same. */
  async function readLease(key: string, known?: LeaseFile): Promise<LeaseFile | undefined> {
    const path = join(subnets, key)
    try {
      if (known) {
        const info = await stat(path, { bigint: true })
        if (revisionOf(info) === known.revision) return known
      }
      const file = await open(path, 'r')
      try {
        // Of the open file, so that content and revision belong together.
        const info = await file.stat({ bigint: true })
        if (!info.isFile()) return undefined
        return {
          key,
          value: await file.readFile('utf8'),
          revision: revisionOf(info),
          isReservation: (info.mode & WRITABLE) === 0n,
          writtenAt: Number(info.mtimeNs / 1_000_000n),
        }
      } finally {
        await file.close()
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
      // One file that cannot be read concerns its own key, which stays as it was.
      return known
    }
  }

  /** Looks at every file; reads those that are not in `known` as they are. */
  async function scan(known: ReadonlyMap<string, LeaseFile>): Promise<Scan> {
    const now = await fileSystemNow()
    const names = (await readdir(subnets)).filter((name) => !name.startsWith('.')).toSorted()
    const files = new Map<string, LeaseFile>()
    const live = new Map<string, LeaseFile>()
    for (let at = 0; at < names.length; at += PARALLEL_READS) {
      const part = names.slice(at, at + PARALLEL_READS)
      for (const file of await Promise.all(part.map((name) => readLease(name, known.get(name))))) {
        if (!file) continue
        files.set(file.key, file)
        if (isLive(file, now)) live.set(file.key, file)
      }
    }
    return { live, files }
  }

  /** Brings the `keys` of `view` to what they are in `found`; says what that changes. */
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

  /** Tells of changes by inotify; undefined where the kernel has none left, which rescans make up for. */
  function startWatcher(
    onChange: (name: string | null) => void,
    onError: (error: Error) => void,
  ): FSWatcher | undefined {
    try {
      return watchDirectory(subnets, (_event, name) => onChange(name)).on('error', onError)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      // fs.inotify.max_user_instances and max_user_watches: small defaults, shared with all containers of a host.
      if (code === 'EMFILE' || code === 'ENOSPC') return undefined
      throw error
    }
  }

  /** Those of `names` that are leases and have not ended. */
  async function readLive(names: readonly string[]): Promise<Map<string, LeaseFile>> {
    const now = await fileSystemNow()
    const found = new Map<string, LeaseFile>()
    for (const name of names) {
      const file = name.startsWith('.') ? undefined : await readLease(name)
      if (file && isLive(file, now)) found.set(name, file)
    }
    return found
  }

  /** Writes `value` to a temporary file on disk, to be linked or renamed. */
  async function writeTemporary(key: string, value: string, mode: number): Promise<string> {
    const path = join(temporaries, `${key}.${identity}.${temporaryCount++}`)
    const file = await open(path, 'wx', 0o644)
    try {
      await file.writeFile(value)
      await file.chmod(mode) // whatever the umask is: the mode says whether it is a reservation
      await file.sync()
      return path
    } catch (error) {
      await unlink(path).catch(() => {})
      throw error
    } finally {
      await file.close()
    }
  }

  /** Writes the same bytes over a lease, which renews it, and of which no reader sees half: for a full disk. */
  async function rewrite({ key, value }: LeaseFile): Promise<void> {
    const file = await open(join(subnets, key), 'r+')
    try {
      await file.write(value, 0)
      await file.sync()
    } finally {
      await file.close()
    }
  }

  /** Puts a new file with `value` where `present` is, or nothing was; false when something has come there meanwhile. */
  async function place(key: string, value: string, mode: number, present: LeaseFile | undefined): Promise<boolean> {
    const temporary = await writeTemporary(key, value, mode)
    try {
      // link fails where rename would replace: nothing that appeared without the lock is lost.
      if (present) await rename(temporary, join(subnets, key))
      else await link(temporary, join(subnets, key))
      return true
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
      throw error
    } finally {
      await unlink(temporary).catch(() => {})
    }
  }

  /** Removes the files of leases that ended long ago, as far as they were listed. Under the lock. */
  async function removeEnded(): Promise<void> {
    const longAgo = (await fileSystemNow()) - STALE_LEASE_MS
    for (const file of listed.files.values()) {
      if (isLive(file, longAgo)) continue
      const present = await readLease(file.key)
      if (present?.revision === file.revision) await unlink(join(subnets, file.key)).catch(() => {})
    }
  }

  /** Puts `value` in place if `allowed` says so of what is there, under the lock. */
  function write(
    key: string,
    value: string,
    isReservation: boolean,
    signal: AbortSignal,
    allowed: (present: LeaseFile | undefined, now: number) => boolean,
  ): Promise<Written | undefined> {
    return doing(signal, async () => {
      await prepare()
      return locked(top, async () => {
        const present = await readLease(key)
        if (!allowed(present, await fileSystemNow())) return undefined
        try {
          if (!(await place(key, value, isReservation ? 0o444 : 0o644, present))) return undefined
        } catch (error) {
          if (!isFull(error) || isReservation || present?.value !== value) throw error
          await rewrite(present)
        }
        await syncDirectory(subnets)
        if (!present) await removeEnded()
        const written = await readLease(key)
        return written && { revision: written.revision, expiresAt: isReservation ? undefined : Date.now() + ttlMs }
      })
    })
  }

  return {
    name: 'directory',
    config: (signal) =>
      doing(signal, async () => {
        await prepare()
        try {
          return await readFile(join(top, 'config'), 'utf8')
        } catch (error) {
          if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
          throw error
        }
      }),
    list: (signal) =>
      doing(signal, async () => {
        await prepare()
        listed = await scan(listed.files)
        listedRevision = ++lastRevision
        return { revision: listedRevision, entries: [...listed.live.values()] }
      }),
    async *watch(after, signal) {
      signal.throwIfAborted()
      if (after !== listedRevision) throw new StoreGap('the directory was listed since')
      // A copy of its own: others list while this watch runs, and must not take changes away from it.
      const view = new Map(listed.live)
      let { files } = listed
      const touched = new Set<string>()
      let wake: () => void = () => {}
      let failure: unknown
      // First the watcher, then a look: what changes in between is seen by one of them.
      const watcher = await doing(signal, async () =>
        startWatcher(
          (name) => {
            if (name) touched.add(name)
            wake()
          },
          (error) => {
            failure = error
            wake()
          },
        ),
      )
      const everyMs = watcher ? rescanMs : Math.min(rescanMs, RESCAN_UNTOLD_MS)
      const onAbort = (): void => wake()
      signal.addEventListener('abort', onAbort, { once: true })
      try {
        let answered = false
        let rescanAt = 0
        for (;;) {
          signal.throwIfAborted()
          if (failure) throw directoryError(failure, top)
          const changes = await doing(signal, async () => {
            const names = [...touched]
            touched.clear()
            const started = performance.now()
            if (started < rescanAt) return differences(view, await readLive(names), names)
            const found = await scan(files)
            files = found.files
            const ended = performance.now()
            rescanAt = ended + Math.max(everyMs, (ended - started) / RESCAN_SHARE)
            return differences(view, found.live, new Set([...view.keys(), ...found.live.keys()]))
          })
          if (changes.length > 0) yield { revision: ++lastRevision, changes }
          else if (!answered) yield { revision: after, changes }
          answered = true
          await new Promise<void>((resolved) => {
            const timer = setTimeout(resolved, Math.max(0, rescanAt - performance.now()))
            wake = () => {
              clearTimeout(timer)
              resolved()
            }
            if (touched.size > 0 || signal.aborted || failure) wake()
          })
        }
      } finally {
        signal.removeEventListener('abort', onAbort)
        watcher?.close()
      }
    },
    create: (key, value, _ttlMs, signal) =>
      write(key, value, false, signal, (present, now) => !present || !isLive(present, now)),
    update: (key, value, wantedMs, expected, signal) =>
      write(
        key,
        value,
        wantedMs === undefined,
        signal,
        (present) => present?.revision === expected.revision && present.value === expected.value,
      ),
    delete: (key, expected, signal) =>
      doing(signal, async () => {
        await prepare()
        return locked(top, async () => {
          const present = await readLease(key)
          if (present?.revision !== expected) return false
          await unlink(join(subnets, key))
          return true
        })
      }),
    claim: (name, value, _ttlMs, signal) =>
      doing(signal, async () => {
        await prepare()
        const path = join(claims, name)
        const before = await readFile(path, 'utf8').catch(() => undefined)
        if (before !== value) await rename(await writeTemporary(name, value, 0o644), path)
        return before
      }),
    async close() {
      await unlink(join(temporaries, `clock.${identity}`)).catch(() => {})
    },
  }
}

/** Differs between any two writes of a key, since each makes a new file while the one before still exists. */
function revisionOf(info: { readonly mtimeNs: bigint; readonly ino: bigint }): bigint {
  return (info.mtimeNs << 24n) | (info.ino & 0xffffffn)
}

async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, 'r')
  try {
    await directory.sync()
  } finally {
    await directory.close()
  }
}

/** Waiters of this process by directory: one at most waits in the kernel, so that libuv's pool is never full of them. */
const waiting = new Map<string, Promise<unknown>>()

/** Runs `body` while holding the directory's lock. */
function locked<T>(top: string, body: () => Promise<T>): Promise<T> {
  const turn = (waiting.get(top) ?? Promise.resolve()).then(async () => {
    const file = await open(join(top, 'lock'), 'a', 0o644)
    try {
      await addon.lockFile(file.fd)
      return await body()
    } finally {
      await file.close() // which unlocks
    }
  })
  const settled = turn.catch(() => {})
  waiting.set(top, settled)
  void settled.then(() => {
    if (waiting.get(top) === settled) waiting.delete(top)
  })
  return turn
}

const isFull = (error: unknown): boolean => ['ENOSPC', 'EDQUOT'].includes((error as NodeJS.ErrnoException).code ?? '')

function directoryError(error: unknown, top: string): WeftError {
  if (error instanceof WeftError) return error
  const { code } = error as NodeJS.ErrnoException
  const message = `the lease directory ${top} cannot be used: ${messageOf(error)}`
  switch (code) {
    case 'EACCES':
    case 'EPERM':
    case 'EROFS':
      return new WeftError('STORE', message, { remedy: 'make it writable for this user', cause: error })
    case 'ENOTDIR':
    case 'EEXIST':
      return new WeftError('STORE', message, { remedy: 'name a directory with --lease-dir', cause: error })
    case 'ENOLCK':
    case 'EOPNOTSUPP':
      return new WeftError('STORE', message, {
        remedy: 'use a file system with locks (NFS version 4, not 3 without lockd)',
        cause: error,
      })
    case 'ENOSPC':
    case 'EDQUOT':
      return new WeftError('STORE_UNAVAILABLE', message, { remedy: 'free space on its file system', cause: error })
    default:
      return new WeftError('STORE_UNAVAILABLE', message, { remedy: 'see that it is mounted', cause: error })
  }
}
