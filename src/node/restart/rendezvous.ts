// rendezvous.ts - where the weftds of one subnet file meet: a lock that says who has the host's data path, and a socket at which
// that one is asked for it. Both are beside subnet.env, for this user alone (mode 0600).
//
// The lock belongs to an open file (fcntl(2), F_OFD_SETLK), so it goes with the data path from process to process as a descriptor,
// and ends with the last process that has it, however that ends.

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
import { connect, listen, type Connection, type Listener } from '../../host/unix-socket.ts'
import type { DaemonOptions } from '../../options.ts'

type SubnetFile = Pick<DaemonOptions, 'subnet-file'>
export const handoverSocket = (options: SubnetFile): string => `${options['subnet-file']}.handover`
export const handoverLock = (options: SubnetFile): string => `${options['subnet-file']}.handover.lock`

/** The right to forward for a subnet file. */
export interface Lock {
  /** The descriptor to send along with the data path; undefined when none could be made, and nobody can take over. */
  readonly fd: number | undefined
  /** Writes whose it is, for whoever finds it taken. */
  sign(): void
  /** Idempotent. */
  close(): void
}

export interface Rendezvous {
  /** The path of the socket, for messages. */
  readonly path: string
  /** Undefined while another process has the lock. Throws WeftError PERMISSION. */
  tryLock(): Lock | undefined
  /** Resolves when nobody has the lock, so that nobody forwards. Rejects with the file system's error. */
  untilFree(): Promise<void>
  /** The lock that another process sent. */
  receivedLock(fd: number): Lock
  /** The process that took the lock last; undefined where that is not known, or in another PID namespace, where that number is not its own. */
  owner(): number | undefined
  /** Removes lock and socket. For a process that has the lock, and shares it with no other. */
  remove(): void
  /** Undefined when nobody listens. Throws an Error with `code`: EAGAIN of one that takes no connection, which runs all the same. */
  connect(): Connection | undefined
  /** Throws an Error with `code`. */
  listen(): Listener
  /** Ends a process that has the data path and hangs; false where it cannot be reached. */
  kill(pid: number): boolean
}

/** True if this user may write in a folder, or, if the folder does not exist, in its nearest existing parent. */
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
  /** Explains why the lock cannot be opened. If this user may not even write the folder, weftd has not run as this user before. */
  function forbidden(error: unknown): WeftError {
    const folder = dirname(lockPath)
    const isFolder = !mayWrite(folder)
    const message = isFolder
      ? `this user may not write ${folder}: ${messageOf(error)}`
      : `cannot tell whether another weftd runs: ${messageOf(error)}`
    const remedy = isFolder
      ? 'run weftd as root, or give --subnet-file another folder'
      : 'run weftd as the user that ran before, or remove what that one left: `weft cleanup`'
    return new WeftError('PERMISSION', message, { remedy, cause: error })
  }
  return {
    path,
    tryLock() {
      let fd: number
      try {
        mkdirSync(dirname(lockPath), { recursive: true, mode: 0o755 })
        fd = openSync(lockPath, 'a+', 0o600)
      } catch (error) {
        if (['EACCES', 'EPERM'].includes((error as NodeJS.ErrnoException).code ?? '')) throw forbidden(error)
        warn(`Cannot watch for another weftd with this subnet file: ${messageOf(error)}`)
        return lockOf(undefined)
      }
      let isOurs = false
      try {
        // Whoever had it may have removed the file meanwhile: the lock of one that is not there keeps nobody out.
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
        return false // it has ended, or is another user's
      }
    },
  }
}

/** True when it is this open file that stands at a path. */
function isAt(path: string, fd: number): boolean {
  const there = statSync(path, { throwIfNoEntry: false })
  const open = fstatSync(fd)
  return there?.ino === open.ino && there.dev === open.dev
}

/** The namespace in which the pids are that this process sees, `pid:[4026531836]`; undefined where /proc does not tell. */
function pidNamespace(): string | undefined {
  try {
    return readlinkSync('/proc/self/ns/pid')
  } catch {
    return undefined
  }
}

/** Writes the pid for whoever finds the lock taken. A full disk is no reason not to forward: errors are ignored. */
function writePid(fd: number): void {
  try {
    ftruncateSync(fd)
    writeSync(fd, `${[process.pid, pidNamespace() ?? []].flat().join(' ')}\n`)
  } catch {
    // The message has no process in it then.
  }
}
