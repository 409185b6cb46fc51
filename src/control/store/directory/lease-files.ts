// lease-files.ts - reads and writes the files of a lease directory. A process changes files only while it holds the
// directory's lock.
// - DIR/config: the network configuration, JSON
// - DIR/subnets/10.5.1.0-24: a lease, with the same key and the same bytes as in etcd
// - DIR/tmp: temporary files, and the file whose mtime is the file system's clock
// - DIR/weft/192.0.2.1: the name (claim) of the host that uses this public IP
// - DIR/lock: locked while a process changes a file
//
// A reader never sees an incomplete file, because a lease appears by link(2) or rename(2). On a full disk a renewal
// overwrites the same bytes. The lock is an open file description lock, which the kernel (over NFS version 4 the file
// server) releases when the process ends.
//
// Other hosts and programs may write to the directory, and weftd usually runs as root. So weftd does not follow a symbolic
// link in place of a file that it writes, and deletes only files whose names have the form that weftd gives them.

import { randomBytes } from 'node:crypto'
import { constants, watch as watchDirectory, type FSWatcher } from 'node:fs'
import { link, open, readdir, rename, stat, unlink, type FileHandle } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { addon } from '../../../host/addon.ts'
import { makeFolder } from '../../../host/make-folder.ts'
import type { StoreEntry } from '../store.ts'

/**
 * The maximum number of simultaneous file system calls to the directory. If a file server is gone (hard NFS mount),
 * each call blocks a thread for ever. libuv has four threads, and the daemon needs some of these threads for subnet.env
 * and other files.
 */
const CALLS_AT_ONCE = 2
/**
 * The interval in ms at which a process that waits for the directory's lock reports that it waits. A process usually has
 * the lock for less than a second.
 */
const LOCKED_MS = 30_000
/** The time limit of the clean-up when the store is closed, in ms. */
const CLOSE_MS = 500
/**
 * The errors that concern a single lease file and last until an operator repairs the file. Other errors are not
 * reported for each file, because they may concern all files, for example if the file server does not answer.
 */
const LASTING: ReadonlySet<string | undefined> = new Set(['EACCES', 'EPERM', 'ELOOP', 'EFBIG'])
/** The maximum size of a file that weftd reads, in bytes. A value in etcd has at most 1.5 MiB. */
const MOST_BYTES = 2n << 20n
/**
 * The flags for opening a file that another host or program may have replaced. O_NOFOLLOW refuses a symbolic link, which
 * may lead out of the directory. O_NONBLOCK is needed in case the path is a named pipe: opening a pipe otherwise waits
 * until another process opens it too.
 */
const CAREFULLY = constants.O_NOFOLLOW | constants.O_NONBLOCK
/**
 * The interval in ms at which weftd tries again to open a file that another program has a lease of (fcntl(2), F_SETLEASE),
 * and the time limit in ms of these tries.
 */
const LEASED_MS = 20
const LEASED_MAX_MS = 5_000
/** The maximum age of a temporary file in use, in ms. An older file was left behind by a process that crashed. */
const STALE_TEMPORARY_MS = 3_600_000
/**
 * Matches the end of the name of a temporary file: the process id, the random part and, except for a clock file, a
 * number. The folder may also have files of other programs, for example if the lease directory is `/var`.
 */
const TEMPORARY_NAME = /\.\d+\.[\da-f]{8}(?:\.\d+)?$/
const WRITABLE = 0o222n

export interface LeaseFile extends StoreEntry {
  /** The file's modification time by the clock of the file system, in ms since 1970. */
  readonly writtenAt: number
}

/** The functions through which LeaseFiles reports to its caller. */
export interface LeaseFileEvents {
  /** Called with the path of the directory if this process has created the directory. */
  readonly onMade?: ((path: string) => void) | undefined
  /**
   * Called with the path and the reason if a lease file cannot be read. Not called again for the same file until the
   * file has become readable or was deleted.
   */
  readonly onUnreadable?: ((path: string, why: string) => void) | undefined
  /**
   * Called with the path of the lock file for every LOCKED_MS that this process has waited for the directory's lock. No
   * process can write a lease while another process has the lock.
   */
  readonly onLocked?: ((path: string) => void) | undefined
}

/** Reads and writes the files of a lease directory. The directory is created at the first operation. */
export class LeaseFiles {
  readonly #events: LeaseFileEvents
  readonly #top: string
  readonly #subnets: string
  readonly #temporaries: string
  /** The path of the folder with the files in which the hosts write their names (claims). */
  readonly #claims: string
  /**
   * The name of this process in the names of temporary files. A container that restarts after a crash can have the same
   * host name and process id again, so a random part is needed.
   */
  readonly #identity = `${hostname()}.${process.pid}.${randomBytes(4).toString('hex')}`
  /**
   * The promise of the call that creates the folders; undefined before the first operation, and after a call that
   * failed.
   */
  #prepared: Promise<void> | undefined
  /** True after this process has made, or found, the folders once. */
  #hadFolders = false
  /** True after this process has written its clock file in the present folders. */
  #hasClock = false
  #isClosed = false
  #temporaryCount = 0
  /** The keys of the lease files that this process could not read and has reported. */
  readonly #unreadable = new Set<string>()
  /** The files with the hosts' names (claims), as `claims` last read them. */
  #claimed: ReadonlyMap<string, LeaseFile> = new Map()

  /** Makes the object without accessing the directory. */
  constructor(directory: string, events: LeaseFileEvents = {}) {
    this.#events = events
    this.#top = resolve(directory)
    this.#subnets = join(this.#top, 'subnets')
    this.#temporaries = join(this.#top, 'tmp')
    this.#claims = join(this.#top, 'weft')
  }

  /**
   * Creates the directories if they are missing, and then runs the file operations `what`. Converts a failure to a
   * WeftError STORE or STORE_UNAVAILABLE.
   */
  async doing<T>(signal: AbortSignal, what: () => Promise<T>): Promise<T> {
    signal.throwIfAborted()
    try {
      return await unlessAborted(signal, this.#prepare().then(what))
    } catch (error) {
      signal.throwIfAborted()
      if (isMissing(error)) this.#prepared = undefined // the next call checks the folders again
      throw directoryError(error, this.#top)
    }
  }

  /**
   * Returns the current time of the file system's clock, in ms since 1970. All hosts that share the directory use this
   * clock. Rejects with ENOENT if this process's clock file has disappeared: the path may lead to the mount point of a file
   * system that was unmounted.
   */
  now(): Promise<number> {
    const path = join(this.#temporaries, `clock.${this.#identity}`)
    return call(async () => {
      if (this.#isClosed) throw new Error('it was closed')
      try {
        // The file is not truncated before the write, because a full disk only allows overwriting an existing byte.
        const flags = constants.O_WRONLY | CAREFULLY | (this.#hasClock ? 0 : constants.O_CREAT)
        return await using(await openAgain(path, flags, 0o644), async (file) => {
          if (!(await file.stat()).isFile()) throw notAFile(path)
          await file.write('.', 0)
          this.#hasClock = true
          return (await file.stat()).mtimeMs
        })
      } catch (error) {
        if (!isFull(error)) throw error
        // A full disk has no block for the first byte of a new file. But the creation of an empty file needs no block,
        // and gives the file a time too.
        const empty = `${path}.${this.#temporaryCount++}`
        return using(await open(empty, 'wx', 0o644), async (file) => {
          await unlink(empty)
          return (await file.stat()).mtimeMs
        })
      }
    })
  }

  /**
   * Reads a lease file; undefined if the file does not exist. If the file has not changed since `known` was read,
   * returns `known` without reading. If the file cannot be read, also returns `known`.
   */
  async read(key: string, known?: LeaseFile): Promise<LeaseFile | undefined> {
    const path = join(this.#subnets, key)
    try {
      const file = await call(() => this.#readFrom(path, key, known))
      this.#unreadable.delete(key)
      return file
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'ENOENT') this.#unreadable.delete(key)
      if (code === 'ENOENT') return undefined
      if (LASTING.has(code) && !this.#unreadable.has(key)) {
        this.#unreadable.add(key)
        this.#events.onUnreadable?.(path, messageOf(error))
      }
      return known
    }
  }

  /**
   * Reads a lease file that the caller is about to change; undefined if the file does not exist. Rejects if the file
   * cannot be read.
   */
  async readToChange(key: string): Promise<LeaseFile | undefined> {
    try {
      return await call(() => this.#readFrom(join(this.#subnets, key), key))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
      throw error
    }
  }

  /**
   * Writes a lease file: replaces the file `present`, or creates a new one. Returns undefined if another process has
   * created the file in the meantime. The caller must hold the lock.
   */
  async write(key: string, value: string, isReservation: boolean, present?: LeaseFile): Promise<LeaseFile | undefined> {
    try {
      if (!(await this.#place(key, value, isReservation ? 0o444 : 0o644, present))) return undefined
    } catch (error) {
      if (!isFull(error) || isReservation || present?.value !== value) throw error
      await this.#rewrite(present)
    }
    await call(() => syncDirectory(this.#subnets))
    return this.read(key)
  }

  /**
   * Runs the file operations `what` while this process holds the directory's lock. Converts failures as `doing` does.
   */
  changing<T>(signal: AbortSignal, what: () => Promise<T>): Promise<T> {
    return this.doing(signal, () => locked(this.#top, what, (path) => this.#events.onLocked?.(path)))
  }

  /** Lists the keys of all lease files in ascending order. */
  async keys(): Promise<string[]> {
    return (await call(() => readdir(this.#subnets))).filter((name) => !name.startsWith('.')).toSorted()
  }

  remove(key: string): Promise<void> {
    return call(() => unlink(join(this.#subnets, key)))
  }

  /** Returns the text of the network configuration, `DIR/config`; undefined if the file does not exist. */
  async config(): Promise<string | undefined> {
    try {
      return await call(() => readText(join(this.#top, 'config')))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
      throw error
    }
  }

  /**
   * Replaces the network configuration, `DIR/config`, atomically. Keeps the mode and the owner of the file, because the
   * configuration may have a secret. The caller must hold the lock.
   */
  async setConfig(text: string): Promise<void> {
    const path = join(this.#top, 'config')
    const present = await call(() => stat(path)).catch((error: unknown) => {
      if (isMissing(error)) return undefined
      throw error
    })
    const mode = present ? present.mode & 0o777 : 0o644
    const temporary = await this.#writeTemporary('config', text, mode, present)
    try {
      await call(() => rename(temporary, path))
    } catch (error) {
      await call(() => unlink(temporary)).catch(() => {})
      throw error
    }
    await call(() => syncDirectory(this.#top))
  }

  /** Replaces the text of a claim, which is in the file `DIR/weft/<name>`. Returns the previous text. */
  async claim(name: string, value: string): Promise<string | undefined> {
    const path = join(this.#claims, name)
    const before = await call(() => readText(path)).catch(() => undefined)
    if (before === value) return before
    const temporary = await this.#writeTemporary(name, value, 0o644)
    await call(() => rename(temporary, path))
    return before
  }

  /**
   * Returns the texts of all claims, which are the files in `DIR/weft`, by file name. Leaves out files that cannot be
   * read. Reads only files that have changed.
   */
  async claims(): Promise<ReadonlyMap<string, string>> {
    const names = (await call(() => readdir(this.#claims))).filter((name) => !name.startsWith('.'))
    const found = new Map<string, LeaseFile>()
    for (const name of names) {
      const file = await call(() => this.#readFrom(join(this.#claims, name), name, this.#claimed.get(name))).catch(
        () => undefined,
      )
      if (file) found.set(name, file)
    }
    this.#claimed = found
    return new Map([...found].map(([name, { value }]) => [name, value]))
  }

  /** Deletes the file `DIR/weft/<name>` of a claim if its text is `value`. */
  async unclaim(name: string, value: string): Promise<void> {
    const path = join(this.#claims, name)
    const present = await call(() => readText(path)).catch(() => undefined)
    if (present === value) await call(() => unlink(path))
  }

  /**
   * Starts to watch the lease files by inotify. Returns undefined if the kernel has no free inotify instance or watch.
   */
  watch(onChange: (key: string | null) => void, onError: (error: Error) => void): FSWatcher | undefined {
    try {
      return watchDirectory(this.#subnets, (_event, name) => onChange(name)).on('error', onError)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      // EMFILE and ENOSPC mean that the kernel's limit fs.inotify.max_user_instances or max_user_watches is reached.
      // All containers of a host share these small limits, so weftd continues without inotify.
      if (code === 'EMFILE' || code === 'ENOSPC') return undefined
      throw error
    }
  }

  /** Converts a failure of a file operation to a WeftError STORE or STORE_UNAVAILABLE. */
  errorOf(error: unknown): WeftError {
    return directoryError(error, this.#top)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    const tidied = call(() => unlink(join(this.#temporaries, `clock.${this.#identity}`))).catch(() => {})
    // Deleting the temporary file may hang if the file server is gone. In that case a later process deletes the file.
    await Promise.race([tidied, new Promise((done) => setTimeout(done, CLOSE_MS).unref())])
  }

  /**
   * Creates the missing directories and deletes stale temporary files. Later calls do nothing unless a folder is missing.
   * In that case a directory without a configuration and without leases counts as unavailable, because its file system is
   * probably not mounted. Otherwise the empty directory would look like a store that lost all leases.
   */
  #prepare(): Promise<void> {
    this.#prepared ??= (async () => {
      if (this.#hadFolders && !(await this.#isLeaseDirectory()))
        throw new Error('it no longer has a configuration or leases')
      this.#hasClock = false
      if (await call(() => makeFolder(this.#top))) this.#events.onMade?.(this.#top)
      for (const each of [this.#subnets, this.#temporaries, this.#claims]) await call(() => makeFolder(each))
      const present = await this.now()
      await call(async () => {
        const names = await readdir(this.#temporaries)
        for (const name of names.filter((each) => TEMPORARY_NAME.test(each))) {
          const path = join(this.#temporaries, name)
          const age = await stat(path).then(
            (info) => present - info.mtimeMs,
            () => 0,
          )
          if (age > STALE_TEMPORARY_MS) await unlink(path).catch(() => {})
        }
      })
      this.#hadFolders = true
    })()
    this.#prepared.catch(() => {
      this.#prepared = undefined // the next call tries again
    })
    return this.#prepared
  }

  /** Returns true if the directory has a configuration or a lease. Folders do not count: any process makes them. */
  #isLeaseDirectory(): Promise<boolean> {
    return call(async () => {
      const hasConfig = await stat(join(this.#top, 'config')).then(
        () => true,
        () => false,
      )
      return hasConfig || (await readdir(this.#subnets).catch(() => [])).length > 0
    })
  }

  /**
   * Reads the file `path`. Returns `known` if the file has not changed since `known` was read; undefined if the path is
   * not a file.
   */
  async #readFrom(path: string, key: string, known?: LeaseFile): Promise<LeaseFile | undefined> {
    if (known) {
      const info = await stat(path, { bigint: true })
      if (revisionOf(info) === known.revision) return known
    }
    return using(await openAgain(path, constants.O_RDONLY | CAREFULLY), async (file) => {
      // stat reads the open file, not the path, so that the content and the revision belong to the same file.
      const info = await file.stat({ bigint: true })
      if (!info.isFile()) return undefined
      refuseLong(path, info.size)
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

  /**
   * Writes `value` to a temporary file and returns its path. The caller moves the file to its final name by link or
   * rename. `owner` is the owner that the file gets, if this user may give files away.
   */
  #writeTemporary(key: string, value: string, mode: number, owner?: Owner): Promise<string> {
    const path = join(this.#temporaries, `${key}.${this.#identity}.${this.#temporaryCount++}`)
    return call(async () =>
      using(await open(path, 'wx', mode | 0o200), async (file) => {
        try {
          await file.writeFile(value)
          if (owner) await giveTo(file, owner)
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

  /**
   * Renews a lease on a full disk: overwrites the file with the same bytes, which updates its mtime. Readers never see
   * an incomplete value.
   */
  #rewrite({ key, value }: LeaseFile): Promise<void> {
    return call(async () =>
      using(await openAgain(join(this.#subnets, key), constants.O_RDWR | CAREFULLY), async (file) => {
        await file.write(value, 0)
        await file.sync()
      }),
    )
  }

  /**
   * Puts a new lease file in place of the file `present`, or creates the file. Returns false if another process has
   * created the file in the meantime.
   */
  async #place(key: string, value: string, mode: number, present: LeaseFile | undefined): Promise<boolean> {
    const temporary = await this.#writeTemporary(key, value, mode)
    try {
      // Use link for a new file, because rename would replace a file that a process without the lock has just created.
      await call(() => (present ? rename : link)(temporary, join(this.#subnets, key)))
      return true
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
      throw error
    } finally {
      await call(() => unlink(temporary)).catch(() => {})
    }
  }
}

/**
 * Opens a file with O_NONBLOCK among the flags. With this flag the open of a file fails (EAGAIN) while another program has a
 * lease of the file, and the kernel asks that program to give the lease back. The kernel's NFS server leases files that
 * other hosts use (delegations), and Samba too, so weftd on the host of the file server tries again.
 */
async function openAgain(path: string, flags: number, mode?: number): Promise<FileHandle> {
  for (let leftMs = LEASED_MAX_MS; ; leftMs -= LEASED_MS) {
    try {
      return await open(path, flags, mode)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN' || leftMs <= 0) throw error
    }
    await delay(LEASED_MS)
  }
}

const notAFile = (path: string): Error => new Error(`${path} is not a file`)

/** Throws an Error with the code EFBIG if a file with `size` bytes is too long to be read. */
function refuseLong(path: string, size: bigint): void {
  if (size > MOST_BYTES) throw Object.assign(new Error(`${path} has ${size} bytes`), { code: 'EFBIG' })
}

/**
 * Reads the text of a file. Follows a symbolic link, because an operator may link to the configuration. Does not wait for
 * the writer of a named pipe.
 */
async function readText(path: string): Promise<string> {
  return using(await openAgain(path, constants.O_RDONLY | constants.O_NONBLOCK), async (file) => {
    const info = await file.stat({ bigint: true })
    if (!info.isFile()) throw notAFile(path)
    refuseLong(path, info.size)
    return file.readFile('utf8')
  })
}

const isReserved = ({ mode }: { readonly mode: bigint }): boolean => (mode & WRITABLE) === 0n

/**
 * Returns the revision of a lease file, which changes with every write, because each write makes a new file (another
 * inode) while the old file still exists. The mode is part of the revision, because chmod makes a reservation without a
 * change of the mtime.
 */
function revisionOf(info: { readonly mtimeNs: bigint; readonly ino: bigint; readonly mode: bigint }): bigint {
  return (info.mtimeNs << 25n) | ((info.ino & 0xffffffn) << 1n) | BigInt(isReserved(info))
}

interface Owner {
  readonly uid: number
  readonly gid: number
}

/** Gives a file to an owner as far as this user may: only root may change the user, and members of a group the group. */
async function giveTo(file: FileHandle, { uid, gid }: Owner): Promise<void> {
  const own = await file.stat()
  if (own.uid === uid && own.gid === gid) return
  await file.chown(uid, gid).catch(() => file.chown(own.uid, gid).catch(() => {}))
}

async function syncDirectory(path: string): Promise<void> {
  await using(await open(path, 'r'), (directory) => directory.sync())
}

/** Runs `body` with an open file, and closes the file afterwards. */
async function using<T>(file: FileHandle, body: (file: FileHandle) => Promise<T>): Promise<T> {
  try {
    return await body(file)
  } finally {
    await file.close()
  }
}

let underWay = 0
const queued: (() => void)[] = []

/**
 * Runs a file system call, at most CALLS_AT_ONCE simultaneously. `what` must not use `call` itself, or the two calls
 * could wait for each other for ever.
 */
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
 * Settles like `promise`, or rejects with the signal's reason if `signal` aborts first. A file system call cannot be
 * cancelled, so the call continues in the background.
 */
function unlessAborted<T>(signal: AbortSignal, promise: Promise<T>): Promise<T> {
  return new Promise((keep, fail) => {
    const onAbort = (): void => fail(signal.reason as Error)
    signal.addEventListener('abort', onAbort, { once: true })
    void promise.then(keep, fail).finally(() => signal.removeEventListener('abort', onAbort))
  })
}

/**
 * For each directory, the last operation of this process that waits for the directory's lock. The operations of this
 * process wait for each other in JavaScript, so that only one operation occupies a thread of libuv while it waits for
 * the kernel's lock.
 */
const waiting = new Map<string, Promise<unknown>>()

/** Runs `body` while this process holds the directory's lock. Calls `onLate` for every LOCKED_MS of the wait. */
function locked<T>(top: string, body: () => Promise<T>, onLate: (path: string) => void): Promise<T> {
  const path = join(top, 'lock')
  const turn = (waiting.get(top) ?? Promise.resolve()).then(async () => {
    const flags = constants.O_WRONLY | constants.O_CREAT | CAREFULLY
    const file = await call(() => openAgain(path, flags, 0o644))
    try {
      await call(() => {
        const late = setInterval(() => onLate(path), LOCKED_MS).unref()
        return addon.lockFile(file.fd).finally(() => clearInterval(late))
      })
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

const isMissing = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === 'ENOENT'

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
    case 'EFBIG':
      return new WeftError('STORE_UNAVAILABLE', message, {
        remedy: 'make the file shorter, or delete it',
        cause: error,
      })
    case 'ELOOP':
      return new WeftError('STORE_UNAVAILABLE', message, { remedy: 'remove the symbolic link', cause: error })
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
