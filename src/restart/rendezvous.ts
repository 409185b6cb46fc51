// rendezvous.ts - where the weftds of one subnet file meet: a lock that says who has the host's data path, and a socket at which
// that one is asked for it. Both are beside subnet.env, for this user alone (mode 0600).
//
// The lock belongs to an open file (fcntl(2), F_OFD_SETLK), so it goes with the data path from process to process as a descriptor,
// and ends with the last process that has it, however that ends.

import {
  closeSync,
  existsSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { messageOf, WeftError } from '../errors.ts'
import { addon } from '../host/addon.ts'
import { connect, listen, type Connection, type Listener } from '../host/unix-socket.ts'
import type { DaemonOptions } from '../options.ts'

type SubnetFile = Pick<DaemonOptions, 'subnet-file'>
export const handoverSocket = (options: SubnetFile): string => `${options['subnet-file']}.handover`
export const handoverLock = (options: SubnetFile): string => `${options['subnet-file']}.handover.lock`

/** The right to forward for a subnet file. */
export interface Lock {
  /** To send along with the data path; undefined where none could be made, and nobody can take over. */
  readonly fd: number | undefined
  /** Writes whose it is, for whoever finds it taken. */
  sign(): void
  /** Idempotent. */
  close(): void
}

export interface Rendezvous {
  /** For messages. */
  readonly path: string
  /** Undefined while another process has the lock. Throws WeftError PERMISSION. */
  tryLock(): Lock | undefined
  /** Resolves when nobody has the lock, so that nobody forwards. Rejects with the file system's error. */
  untilFree(): Promise<void>
  /** The lock that another process sent. */
  receivedLock(fd: number): Lock
  /** The process that took the lock last; undefined where that is not known. */
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
  return {
    path,
    tryLock() {
      let fd: number
      try {
        mkdirSync(dirname(lockPath), { recursive: true, mode: 0o755 })
        fd = openSync(lockPath, 'a+', 0o600)
      } catch (error) {
        if (['EACCES', 'EPERM'].includes((error as NodeJS.ErrnoException).code ?? ''))
          throw new WeftError('PERMISSION', `cannot tell whether another weftd runs: ${messageOf(error)}`, {
            remedy: 'run weftd as the user that ran before, or remove what that one left: `weft cleanup`',
            cause: error,
          })
        warn(`Another weftd for this subnet file would not be noticed: ${messageOf(error)}`)
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
        return Number.parseInt(readFileSync(lockPath, 'utf8'), 10) || undefined
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

/** Whether it is this open file that stands at a path. */
function isAt(path: string, fd: number): boolean {
  const there = statSync(path, { throwIfNoEntry: false })
  const open = fstatSync(fd)
  return there?.ino === open.ino && there.dev === open.dev
}

/** For whoever finds the lock taken: a disk that is full is no reason not to forward. */
function writePid(fd: number): void {
  try {
    ftruncateSync(fd)
    writeSync(fd, `${process.pid}\n`)
  } catch {
    // The message has no process in it then.
  }
}
