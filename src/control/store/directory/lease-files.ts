// lease-files.ts - reads and writes the files of a lease directory. Changes are made under a lock.
//
//   DIR/config              the network configuration, JSON
//   DIR/subnets/10.5.1.0-24 a lease: the same key and the same bytes as in etcd
//   DIR/tmp                 temporary files, and the file whose mtime is the file system's clock
//   DIR/weft/192.0.2.1      the claim of the host that uses this public IP
//   DIR/lock                locked while a file is changed
//
// A reader never sees an incomplete file, because a lease appears by link(2) or rename(2). On a full disk a renewal overwrites the same
// bytes. The lock is the kernel's open file description lock (over NFS version 4 the server's). It ends with the process that holds it.

import { randomBytes } from 'node:crypto'
import { constants, watch as watchDirectory, type FSWatcher } from 'node:fs'
import { link, mkdir, open, readdir, readFile, rename, stat, unlink, type FileHandle } from 'node:fs/promises'
import { hostname } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { addon } from '../../../host/addon.ts'
import type { StoreEntry } from '../store.ts'

/**
 * The maximum number of simultaneous calls to the directory. A file server that is gone (a hard NFS mount) blocks each call and its thread
 * for ever, and the daemon needs some of libuv's four threads for subnet.env and other files.
 */
const CALLS_AT_ONCE = 2
/** The timeout of the clean-up at the end. */
const CLOSE_MS = 500
/** An older temporary file was left by a crash. */
const STALE_TEMPORARY_MS = 3_600_000
/** The write bits of a file's mode. */
const WRITABLE = 0o222n

export interface LeaseFile extends StoreEntry {
  /** The file's mtime by the file system's clock, in ms since the epoch. */
  readonly writtenAt: number
}

export interface LeaseFiles {
  /** Runs file operations after the directories were created. A failure becomes a WeftError STORE or STORE_UNAVAILABLE. */
  doing<T>(signal: AbortSignal, what: () => Promise<T>): Promise<T>
  /** Runs file operations as `doing` does, while holding the directory's lock. */
  changing<T>(signal: AbortSignal, what: () => Promise<T>): Promise<T>
  /** Returns the time of the file system's clock, in ms since the epoch. All hosts agree on it. */
  now(): Promise<number>
  /** Lists the existing keys in ascending order. */
  keys(): Promise<string[]>
  /** Reads a lease file; undefined if there is none. Returns `known` without reading if the file has not changed. */
  read(key: string, known?: LeaseFile): Promise<LeaseFile | undefined>
  /** Reads a file that is about to be changed. Unlike `read` it rejects if the file cannot be read. */
  readToChange(key: string): Promise<LeaseFile | undefined>
  /** Replaces the file `present`, or creates a file. Returns undefined if another file has appeared. The caller must hold the lock. */
  write(key: string, value: string, isReservation: boolean, present?: LeaseFile): Promise<LeaseFile | undefined>
  remove(key: string): Promise<void>
  /** Returns the text of `DIR/config`; undefined if there is none. */
  config(): Promise<string | undefined>
  /** Replaces `DIR/config` atomically. The caller must hold the lock. */
  setConfig(text: string): Promise<void>
  /** Replaces the text of `DIR/weft/<name>`, and returns the previous text. */
  claim(name: string, value: string): Promise<string | undefined>
  /** Returns the texts in `DIR/weft` by name. Reads only files that changed, and omits those that cannot be read. */
  claims(): Promise<ReadonlyMap<string, string>>
  /** Deletes a claim if its text is `value`. */
  unclaim(name: string, value: string): Promise<void>
  /** Starts an inotify watch; undefined if the kernel has no free instance or watch. */
  watch(onChange: (key: string | null) => void, onError: (error: Error) => void): FSWatcher | undefined
  /** Converts a failure to a WeftError, as `doing` does. */
  errorOf(error: unknown): WeftError
  close(): Promise<void>
}

/** Returns the files of a lease directory. The directory is created on first use; if it was missing, `onMade` gets its path. */
export function createLeaseFiles(directory: string, onMade: (path: string) => void = () => {}): LeaseFiles {
  const top = resolve(directory)
  const subnets = join(top, 'subnets')
  const temporaries = join(top, 'tmp')
  const claims = join(top, 'weft')
  // The random part is needed because a container can have the same host name and process id again after a crash.
  const identity = `${hostname()}.${process.pid}.${randomBytes(4).toString('hex')}`
  let prepared: Promise<void> | undefined
  let isClosed = false
  let temporaryCount = 0
  /** The claims as they were last read. */
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
      if (await call(() => makeFolder(top))) onMade(top)
      for (const each of [subnets, temporaries, claims]) await call(() => makeFolder(each))
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
      prepared = undefined // the next call tries again
    })
    return prepared
  }

  /** Reads the file system's clock: writes a file and reads its mtime. */
  function now(): Promise<number> {
    const path = join(temporaries, `clock.${identity}`)
    return call(async () => {
      if (isClosed) throw new Error('it was closed')
      // The file is not truncated, because on a full disk only an existing byte can be overwritten.
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
    // Without O_NONBLOCK, opening a pipe would wait until another process writes to it.
    return using(await open(path, constants.O_RDONLY | constants.O_NONBLOCK), async (file) => {
      // stat of the open file, so that content and revision belong together.
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
      // A file that cannot be read leaves its key unchanged.
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

  /** Writes `value` to a temporary file, which the caller links or renames. */
  function writeTemporary(key: string, value: string, mode: number): Promise<string> {
    const path = join(temporaries, `${key}.${identity}.${temporaryCount++}`)
    return call(async () =>
      using(await open(path, 'wx', 0o644), async (file) => {
        try {
          await file.writeFile(value)
          await file.chmod(mode) // independent of the umask, because the mode marks a reservation
          await file.sync()
          return path
        } catch (error) {
          await unlink(path).catch(() => {})
          throw error
        }
      }),
    )
  }

  /** Renews a lease on a full disk by overwriting the same bytes. A reader cannot see an incomplete value. */
  function rewrite({ key, value }: LeaseFile): Promise<void> {
    return call(async () =>
      using(await open(join(subnets, key), 'r+'), async (file) => {
        await file.write(value, 0)
        await file.sync()
      }),
    )
  }

  /** Replaces the file `present` by a new file, or creates one. Returns false if another file has appeared. */
  async function place(key: string, value: string, mode: number, present: LeaseFile | undefined): Promise<boolean> {
    const temporary = await writeTemporary(key, value, mode)
    try {
      // Unlike rename, link does not replace a file that a process without the lock has created.
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
    watch(onChange, onError) {
      try {
        return watchDirectory(subnets, (_event, name) => onChange(name)).on('error', onError)
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException
        // fs.inotify.max_user_instances or max_user_watches is used up. All containers of a host share these small limits.
        if (code === 'EMFILE' || code === 'ENOSPC') return undefined
        throw error
      }
    },
    errorOf: (error) => directoryError(error, top),
    async close() {
      isClosed = true
      const tidied = call(() => unlink(join(temporaries, `clock.${identity}`))).catch(() => {})
      // A file server that is gone does not answer. The next process removes the file.
      await Promise.race([tidied, new Promise((done) => setTimeout(done, CLOSE_MS).unref())])
    },
  }
}

const isReserved = ({ mode }: { readonly mode: bigint }): boolean => (mode & WRITABLE) === 0n

/**
 * Returns a revision that changes with every write of a key, because each write makes a new file (inode) while the old one still exists. It
 * also changes if the file becomes a reservation or stops being one: chmod does not change the mtime.
 */
function revisionOf(info: { readonly mtimeNs: bigint; readonly ino: bigint; readonly mode: bigint }): bigint {
  return (info.mtimeNs << 25n) | ((info.ino & 0xffffffn) << 1n) | BigInt(isReserved(info))
}

async function syncDirectory(path: string): Promise<void> {
  await using(await open(path, 'r'), (directory) => directory.sync())
}

/**
 * Creates a directory and its parents. Returns false if it existed. The recursive mkdir of Node.js never ends under /proc, and reports
 * ENOENT for a read-only file system.
 */
async function makeFolder(path: string): Promise<boolean> {
  const make = (): Promise<void> => mkdir(path, { mode: 0o755 })
  try {
    await make()
    return true
  } catch (error) {
    const isThere = await stat(path).then(
      (info) => info.isDirectory(),
      () => false,
    )
    if (isThere) return false
    const { code } = error as NodeJS.ErrnoException
    const parent = dirname(path)
    if (code !== 'ENOENT' || parent === path) throw error
    await makeFolder(parent)
  }
  return make().then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'EEXIST') return false // another process made it meanwhile
      throw error
    },
  )
}

/** Runs `body` with a file, and closes the file. */
async function using<T>(file: FileHandle, body: (file: FileHandle) => Promise<T>): Promise<T> {
  try {
    return await body(file)
  } finally {
    await file.close()
  }
}

let underWay = 0
const queued: (() => void)[] = []

/** Calls the file system, with at most CALLS_AT_ONCE simultaneous calls. `what` must not use `call` itself, or it could wait for ever. */
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

/** Settles like `promise`, or rejects with the signal's reason if the signal aborts first. The file system call itself goes on. */
function unlessAborted<T>(signal: AbortSignal, promise: Promise<T>): Promise<T> {
  return new Promise((keep, fail) => {
    const onAbort = (): void => fail(signal.reason as Error)
    signal.addEventListener('abort', onAbort, { once: true })
    void promise.then(keep, fail).finally(() => signal.removeEventListener('abort', onAbort))
  })
}

/** The waiters for the lock of each directory. At most one of this process waits in the kernel. */
const waiting = new Map<string, Promise<unknown>>()

/** Runs `body` while holding the directory's lock. */
function locked<T>(top: string, body: () => Promise<T>): Promise<T> {
  const turn = (waiting.get(top) ?? Promise.resolve()).then(async () => {
    const file = await call(() => open(join(top, 'lock'), 'a', 0o644))
    try {
      await call(() => addon.lockFile(file.fd))
      return await body()
    } finally {
      await call(() => file.close()) // closing unlocks
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

const MAKE_WRITABLE = {
  EACCES: 'make the directory writable for this user',
  EPERM: 'make the directory writable for this user',
  EROFS: 'mount its file system read-write, or name another directory with --lease-dir',
} as const

function directoryError(error: unknown, top: string): WeftError {
  if (error instanceof WeftError) return error
  const { code } = error as NodeJS.ErrnoException
  const message = `the lease directory ${top} cannot be used: ${messageOf(error)}`
  switch (code) {
    case 'EACCES':
    case 'EPERM':
    case 'EROFS':
      return new WeftError('STORE', message, { remedy: MAKE_WRITABLE[code], cause: error })
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
      return new WeftError('STORE_UNAVAILABLE', message, {
        remedy: 'free space on the file system of the directory',
        cause: error,
      })
    default:
      return new WeftError('STORE_UNAVAILABLE', message, {
        remedy: 'check that the directory is mounted',
        cause: error,
      })
  }
}
