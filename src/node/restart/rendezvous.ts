// rendezvous.ts - the lock and the socket of the weftd processes that share one subnet file. The process with the lock
// has the host's data path and listens at the socket, where other processes request the path. Both files are in the
// directory of subnet.env, and accessible to this user only (mode 0600).
//
// The lock belongs to an open file description (fcntl(2), F_OFD_SETLK). So the data path's owner can send the lock to
// another process as a descriptor. The kernel releases the lock when the last process that has the descriptor ends.

import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { messageOf, WeftError } from '../../base/errors.ts'
import { addon } from '../../host/addon.ts'
import { selinuxRemedy } from '../../host/kernel-errors.ts'
import { connect, listen, type Connection, type Listener } from '../../host/unix-socket.ts'
import type { NodeOptions } from '../../options.ts'

type SubnetFile = Pick<NodeOptions, 'subnet-file'>
export const handoverSocket = (options: SubnetFile): string => `${options['subnet-file']}.handover`
export const handoverLock = (options: SubnetFile): string => `${options['subnet-file']}.handover.lock`

/** The lock of one subnet file. Only the weftd that has this lock may forward packets with the subnet in this file. */
export interface Lock {
  /**
   * The descriptor of the lock file, which is sent with the data path. Undefined if the file could not be created; then
   * no process can take over.
   */
  readonly fd: number | undefined
  /** Writes this process's ID into the lock file. A process that finds the lock taken names this ID in its messages. */
  sign(): void
  /** Closes the descriptor of the lock in this process. A second call has no effect. */
  close(): void
}

export interface Rendezvous {
  /** The path of the socket, for error messages. */
  readonly path: string
  /** Takes the lock. Returns undefined if another process has the lock. Throws WeftError PERMISSION. */
  tryLock(): Lock | undefined
  /**
   * Resolves when no process has the lock, which means that no process forwards. Rejects with the file system's error.
   */
  untilFree(): Promise<void>
  /** Returns the lock for a descriptor that another process sent. */
  receivedLock(fd: number): Lock
  /**
   * Returns the id of the process that took the lock last. Returns undefined if the id is not known or belongs to
   * another PID namespace.
   */
  owner(): number | undefined
  /** Removes the files of the lock and of the socket. Only a process that alone has the lock may call this. */
  remove(): void
  /**
   * Connects to the process with the lock. Returns undefined if no process listens. Throws an Error whose `code` is the
   * system error; EAGAIN means that the process runs but accepts no connection.
   */
  connect(): Connection | undefined
  /** Listens at the socket. Throws an Error whose `code` is the system error. */
  listen(): Listener
  /**
   * Kills a process that has the data path and hangs. Returns false if this process may not kill it, or if it has
   * already ended.
   */
  kill(pid: number): boolean
}

/**
 * Returns true if this user may write in a folder. For a folder that does not exist, its nearest existing parent
 * counts.
 */
function mayWrite(folder: string): boolean {
  try {
    accessSync(folder, constants.W_OK | constants.X_OK)
    return true
  } catch (error) {
    const isMissing = (error as NodeJS.ErrnoException).code === 'ENOENT' && folder !== dirname(folder)
    return isMissing && mayWrite(dirname(folder))
  }
}

export function rendezvousAt(options: SubnetFile, warn: (message: string) => void): Rendezvous {
  const [path, lockPath] = [handoverSocket(options), handoverLock(options)]
  const lockOf = (fd: number | undefined): Lock => {
    let open = fd
    return {
      get fd() {
        return open
      },
      sign() {
        if (open !== undefined) writePid(open)
      },
      close() {
        if (open !== undefined) closeSync(open)
        open = undefined
      },
    }
  }
  /**
   * Returns the error for a lock file that cannot be opened. The error distinguishes two cases: this user may not write
   * to the file's folder, or another user's weftd made the file. SELinux can cause both errors.
   */
  function forbidden(error: unknown): WeftError {
    const folder = dirname(lockPath)
    const isFolder = !mayWrite(folder)
    const message = isFolder
      ? `this user may not write ${folder}: ${messageOf(error)}`
      : `cannot find out whether another weftd runs: ${messageOf(error)}`
    const usual = isFolder
      ? 'run weftd as root, or give --subnet-file another folder'
      : 'run weftd as the user that ran before, or remove what that one left: `weft cleanup`'
    const remedy = [selinuxRemedy() ?? [], usual].flat().join('; otherwise ')
    return new WeftError('PERMISSION', message, { remedy, cause: error })
  }
  return {
    path,
    tryLock() {
      let fd: number
      try {
        makeFolderSync(dirname(lockPath))
        fd = openSync(lockPath, 'a+', 0o600)
      } catch (error) {
        if (['EACCES', 'EPERM'].includes((error as NodeJS.ErrnoException).code ?? '')) throw forbidden(error)
        warn(`Cannot watch for another weftd with this subnet file: ${messageOf(error)}`)
        return lockOf(undefined)
      }
      let isOurs = false
      try {
        // The previous owner may have removed the lock file meanwhile. The lock of a removed file excludes no other
        // process, so check that the path still leads to this file.
        isOurs = addon.tryLockFile(fd) && isAt(lockPath, fd)
        if (!isOurs) return undefined
        const lock = lockOf(fd)
        lock.sign()
        return lock
      } finally {
        if (!isOurs) closeSync(fd)
      }
    },
    async untilFree() {
      if (!existsSync(lockPath)) return
      const fd = openSync(lockPath, 'a+', 0o600)
      try {
        await addon.lockFile(fd)
      } finally {
        closeSync(fd)
      }
    },
    receivedLock(fd) {
      const lock = lockOf(fd)
      lock.sign()
      return lock
    },
    owner() {
      try {
        const [pid, namespace] = readFileSync(lockPath, 'utf8').trim().split(' ')
        return namespace === undefined || namespace === pidNamespace() ? Number(pid) || undefined : undefined
      } catch {
        return undefined
      }
    },
    remove() {
      for (const each of [path, lockPath]) rmSync(each, { force: true })
    },
    connect: () => connect(path),
    listen: () => listen(path),
    kill(pid) {
      try {
        process.kill(pid, 'SIGKILL')
        return true
      } catch {
        return false // the process has ended or belongs to another user
      }
    },
  }
}

/**
 * Creates a folder and its parents, as host/make-folder.ts does, but synchronously. Throws the system's error. The
 * function is in this file because begin.ts must load few files.
 */
function makeFolderSync(path: string): void {
  const isThere = (): boolean => statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
  if (isThere()) return
  const make = (): void => {
    try {
      mkdirSync(path, { mode: 0o755 })
    } catch (error) {
      if (!isThere()) throw error // otherwise another process made the folder meanwhile
    }
  }
  try {
    make()
  } catch (error) {
    const parent = dirname(path)
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT' || parent === path) throw error
    makeFolderSync(parent)
    make()
  }
}

/** Returns true if the file at the path `path` is the open file `fd`. */
function isAt(path: string, fd: number): boolean {
  const there = statSync(path, { throwIfNoEntry: false })
  const open = fstatSync(fd)
  return there?.ino === open.ino && there.dev === open.dev
}

/** Returns the PID namespace of this process, such as `pid:[4026531836]`; undefined if /proc does not show it. */
function pidNamespace(): string | undefined {
  try {
    return readlinkSync('/proc/self/ns/pid')
  } catch {
    return undefined
  }
}

/** Writes this process's id into the lock file. Ignores errors, because a full disk must not prevent forwarding. */
function writePid(fd: number): void {
  try {
    ftruncateSync(fd)
    writeSync(fd, `${[process.pid, pidNamespace() ?? []].flat().join(' ')}\n`)
  } catch {
    // Ignore the error: without the process id in the file, messages of other processes omit the process id.
  }
}
