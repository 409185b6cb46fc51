// lease-files.ts - the files of a lease directory: read whole, written whole, changed under a lock.
//
//   DIR/config              the network configuration, JSON
//   DIR/subnets/10.5.1.0-24 a lease: the same key and the same bytes as in etcd
//   DIR/tmp                 files being written; the clock probe
//   DIR/weft/192.0.2.1      which host uses this public IP; see `claim`
//   DIR/lock                locked while anything is changed
//
// A reader never sees half a file, since a lease appears by link(2) or rename(2); on a full disk a renewal writes
// the same bytes again in place. Changes are made under an exclusive lock of the kernel (open file description lock; over
// NFS version 4 by its server), which ends with the process that holds it.

import { randomBytes } from 'node:crypto'
import { constants, watch as watchDirectory, type FSWatcher } from 'node:fs'
import { link, mkdir, open, readdir, readFile, rename, stat, unlink, type FileHandle } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join, resolve } from 'node:path'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { addon } from '../../../host/addon.ts'
import type { StoreEntry } from '../store.ts'

/**
 * The number of calls to the directory that this process has under way at a time. A server that is gone keeps each of
 * them for ever, with its thread (a hard mount of NFS), and libuv's four threads have subnet.env and the rest to serve
 * too.
 */
const CALLS_AT_ONCE = 2
/** Tidying up at the end may take this long. */
const CLOSE_MS = 500
/** A temporary file this old was left by a crash. */
const STALE_TEMPORARY_MS = 3_600_000
/** The bits of a file's mode that let anybody write. */
const WRITABLE = 0o222n

export interface LeaseFile extends StoreEntry {
  /** The file's time by the file system's clock, ms since the epoch. */
  readonly writtenAt: number
}

export interface LeaseFiles {
  /** Runs file operations once the directories are there; what fails becomes a WeftError, STORE or STORE_UNAVAILABLE. */
  doing<T>(signal: AbortSignal, what: () => Promise<T>): Promise<T>
  /** Runs file operations as `doing` does, while holding the directory's lock. */
  changing<T>(signal: AbortSignal, what: () => Promise<T>): Promise<T>
  /** The file system's clock, ms since the epoch: hosts whose own differ agree by it. */
  now(): Promise<number>
  /** The keys that there are, in order. */
  keys(): Promise<string[]>
  /** One lease file; undefined when there is none. What `known` says is taken over if the file is still the same. */
  read(key: string, known?: LeaseFile): Promise<LeaseFile | undefined>
  /** Reads a file that is about to be changed: one that cannot be read is an error. */
  readToChange(key: string): Promise<LeaseFile | undefined>
  /** Puts `value` where `present` is, or nothing was; undefined when something has come there meanwhile. While changing. */
  write(key: string, value: string, isReservation: boolean, present?: LeaseFile): Promise<LeaseFile | undefined>
  remove(key: string): Promise<void>
  /** The text of `DIR/config`; undefined when there is none. */
  config(): Promise<string | undefined>
  /** Puts another text there; who reads it sees the old one or the new one. While changing. */
  setConfig(text: string): Promise<void>
  /** Replaces the text of `DIR/weft/<name>` by another, and returns what it was. */
  claim(name: string, value: string): Promise<string | undefined>
  /** The texts in `DIR/weft`, by name; read anew where a file changed. One that cannot be read is left out. */
  claims(): Promise<ReadonlyMap<string, string>>
  /** Removes what was claimed, if it is this. */
  unclaim(name: string, value: string): Promise<void>
  /** Tells of changes by inotify; undefined where the kernel has none left. */
  tell(onChange: (key: string | null) => void, onError: (error: Error) => void): FSWatcher | undefined
  /** Makes an error of a failure, as `doing` does. */
  errorOf(error: unknown): WeftError
  close(): Promise<void>
}

/** Files below `directory`, which is made when it is first used. */
export function createLeaseFiles(directory: string): LeaseFiles {
  const top = resolve(directory)
  const subnets = join(top, 'subnets')
  const temporaries = join(top, 'tmp')
  const claims = join(top, 'weft')
  // Random besides: a container has the same name and process id again after a crash in the middle of a write.
  const identity = `${hostname()}.${process.pid}.${randomBytes(4).toString('hex')}`
  let prepared: Promise<void> | undefined
  let isClosed = false
  let temporaryCount = 0
  /** The files of `claims` as they were read last. */
  let claimed: ReadonlyMap<string, LeaseFile> = new Map()

  async function doing<T>(signal: AbortSignal, what: () => Promise<T>): Promise<T> {
    signal.throwIfAborted()
    try {
      return await unlessAborted(signal, prepare().then(what))
    } catch (error) {
      signal.throwIfAborted()
      throw directoryError(error, top)
    }
  }

  function prepare(): Promise<void> {
    prepared ??= (async () => {
      for (const each of [subnets, temporaries, claims]) await call(() => mkdir(each, { recursive: true, mode: 0o755 }))
      const present = await now()
      await call(async () => {
        for (const name of await readdir(temporaries)) {
          const path = join(temporaries, name)
          const age = await stat(path).then(
            (info) => present - info.mtimeMs,
            () => 0,
          )
          if (age > STALE_TEMPORARY_MS) await unlink(path).catch(() => {})
        }
      })
    })()
    prepared.catch(() => {
      prepared = undefined // asked again next time
    })
    return prepared
  }

  /** The time of the file system's clock: writes a file and looks at its time. */
  function now(): Promise<number> {
    const path = join(temporaries, `clock.${identity}`)
    return call(async () => {
      if (isClosed) throw new Error('it was closed')
      // The file is not truncated: on a full disk a byte can be written where one is already.
      return using(await open(path, constants.O_WRONLY | constants.O_CREAT, 0o644), async (file) => {
        await file.write('.', 0)
        return (await file.stat()).mtimeMs
      })
    })
  }

  async function readFrom(path: string, key: string, known?: LeaseFile): Promise<LeaseFile | undefined> {
    if (known) {
      const info = await stat(path, { bigint: true })
      if (revisionOf(info) === known.revision) return known
    }
    // A pipe in the place of a lease would be waited for until somebody writes to it.
    return using(await open(path, constants.O_RDONLY | constants.O_NONBLOCK), async (file) => {
      // The open file is asked, so that content and revision belong together.
      const info = await file.stat({ bigint: true })
      if (!info.isFile()) return undefined
      return {
        key,
        value: await file.readFile('utf8'),
        revision: revisionOf(info),
        created: 0n,
        isReservation: isReserved(info),
        writtenAt: Number(info.mtimeNs / 1_000_000n),
      }
    })
  }

  async function read(key: string, known?: LeaseFile): Promise<LeaseFile | undefined> {
    try {
      return await call(() => readFrom(join(subnets, key), key, known))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
      // One file that cannot be read concerns its own key, which stays as it was.
      return known
    }
  }

  async function readToChange(key: string): Promise<LeaseFile | undefined> {
    try {
      return await call(() => readFrom(join(subnets, key), key))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
      throw error
    }
  }

  /** Writes `value` to a temporary file on disk, to be linked or renamed. */
  function writeTemporary(key: string, value: string, mode: number): Promise<string> {
    const path = join(temporaries, `${key}.${identity}.${temporaryCount++}`)
    return call(async () =>
      using(await open(path, 'wx', 0o644), async (file) => {
        try {
          await file.writeFile(value)
          await file.chmod(mode) // whatever the umask is: the mode says whether it is a reservation
          await file.sync()
          return path
        } catch (error) {
          await unlink(path).catch(() => {})
          throw error
        }
      }),
    )
  }

  /** Writes the same bytes over a lease, which renews it, and of which no reader sees half: for a full disk. */
  function rewrite({ key, value }: LeaseFile): Promise<void> {
    return call(async () =>
      using(await open(join(subnets, key), 'r+'), async (file) => {
        await file.write(value, 0)
        await file.sync()
      }),
    )
  }

  /** Puts a new file with `value` where `present` is, or nothing was; false when something has come there meanwhile. */
  async function place(key: string, value: string, mode: number, present: LeaseFile | undefined): Promise<boolean> {
    const temporary = await writeTemporary(key, value, mode)
    try {
      // link fails where rename would replace: nothing that appeared without the lock is lost.
      await call(() => (present ? rename : link)(temporary, join(subnets, key)))
      return true
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
      throw error
    } finally {
      await call(() => unlink(temporary)).catch(() => {})
    }
  }

  async function write(
    key: string,
    value: string,
    isReservation: boolean,
    present?: LeaseFile,
  ): Promise<LeaseFile | undefined> {
    try {
      if (!(await place(key, value, isReservation ? 0o444 : 0o644, present))) return undefined
    } catch (error) {
      if (!isFull(error) || isReservation || present?.value !== value) throw error
      await rewrite(present)
    }
    await call(() => syncDirectory(subnets))
    return read(key)
  }

  return {
    doing,
    changing: (signal, what) => doing(signal, () => locked(top, what)),
    now,
    readToChange,
    keys: async () => (await call(() => readdir(subnets))).filter((name) => !name.startsWith('.')).toSorted(),
    read,
    write,
    remove: (key) => call(() => unlink(join(subnets, key))),
    async config() {
      try {
        return await call(() => readFile(join(top, 'config'), 'utf8'))
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
        throw error
      }
    },
    async setConfig(text) {
      const temporary = await writeTemporary('config', text, 0o644)
      await call(() => rename(temporary, join(top, 'config')))
      await call(() => syncDirectory(top))
    },
    async claim(name, value) {
      const path = join(claims, name)
      const before = await call(() => readFile(path, 'utf8')).catch(() => undefined)
      if (before === value) return before
      const temporary = await writeTemporary(name, value, 0o644)
      await call(() => rename(temporary, path))
      return before
    },
    async claims() {
      const names = (await call(() => readdir(claims))).filter((name) => !name.startsWith('.'))
      const found = new Map<string, LeaseFile>()
      for (const name of names) {
        const file = await call(() => readFrom(join(claims, name), name, claimed.get(name))).catch(() => undefined)
        if (file) found.set(name, file)
      }
      claimed = found
      return new Map([...found].map(([name, { value }]) => [name, value]))
    },
    async unclaim(name, value) {
      const path = join(claims, name)
      const present = await call(() => readFile(path, 'utf8')).catch(() => undefined)
      if (present === value) await call(() => unlink(path))
    },
    tell(onChange, onError) {
      try {
        return watchDirectory(subnets, (_event, name) => onChange(name)).on('error', onError)
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException
        // fs.inotify.max_user_instances and max_user_watches: small defaults, shared with all containers of a host.
        if (code === 'EMFILE' || code === 'ENOSPC') return undefined
        throw error
      }
    },
    errorOf: (error) => directoryError(error, top),
    async close() {
      isClosed = true
      const tidied = call(() => unlink(join(temporaries, `clock.${identity}`))).catch(() => {})
      // A server that is gone does not answer; what stays is removed by who comes next.
      await Promise.race([tidied, new Promise((done) => setTimeout(done, CLOSE_MS).unref())])
    },
  }
}

const isReserved = ({ mode }: { readonly mode: bigint }): boolean => (mode & WRITABLE) === 0n

/**
 * Differs between any two writes of a key, since each makes a new file while the one before still exists; and when the file
 * becomes a reservation or ceases to be one, which chmod does without a trace in its time.
 */
function revisionOf(info: { readonly mtimeNs: bigint; readonly ino: bigint; readonly mode: bigint }): bigint {
  return (info.mtimeNs << 25n) | ((info.ino & 0xffffffn) << 1n) | BigInt(isReserved(info))
}

async function syncDirectory(path: string): Promise<void> {
  await using(await open(path, 'r'), (directory) => directory.sync())
}

/** Does something with a file, and closes it. */
async function using<T>(file: FileHandle, body: (file: FileHandle) => Promise<T>): Promise<T> {
  try {
    return await body(file)
  } finally {
    await file.close()
  }
}

let underWay = 0
const queued: (() => void)[] = []

/** Calls the file system when it is its turn. What is called must not wait for another turn. */
async function call<T>(what: () => Promise<T>): Promise<T> {
  if (underWay === CALLS_AT_ONCE) await new Promise<void>((go) => queued.push(go))
  else underWay++
  try {
    return await what()
  } finally {
    const next = queued.shift()
    if (next) next()
    else underWay--
  }
}

/**
 * Resolves as `promise` does, or rejects with the signal's reason as soon as there is one: a call to a file system
 * cannot be taken back.
 */
function unlessAborted<T>(signal: AbortSignal, promise: Promise<T>): Promise<T> {
  return new Promise((keep, fail) => {
    const onAbort = (): void => fail(signal.reason as Error)
    signal.addEventListener('abort', onAbort, { once: true })
    void promise.then(keep, fail).finally(() => signal.removeEventListener('abort', onAbort))
  })
}

/** Waiters of this process by directory: one at most waits in the kernel. */
const waiting = new Map<string, Promise<unknown>>()

/** Runs `body` while holding the directory's lock. */
function locked<T>(top: string, body: () => Promise<T>): Promise<T> {
  const turn = (waiting.get(top) ?? Promise.resolve()).then(async () => {
    const file = await call(() => open(join(top, 'lock'), 'a', 0o644))
    try {
      await call(() => addon.lockFile(file.fd))
      return await body()
    } finally {
      await call(() => file.close()) // which unlocks
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
      return new WeftError('STORE_UNAVAILABLE', message, { remedy: 'check that it is mounted', cause: error })
  }
}
