// unix-socket.ts - exchanges messages, each a text with descriptors, with other processes over Unix sockets of sequenced packets.

import { closeSync } from 'node:fs'
import { addon } from './addon.ts'
import { createBell } from './bell.ts'

export interface Parcel {
  readonly text: string
  /** Open descriptors, which the owner of the parcel must close. */
  readonly fds: readonly number[]
}

export interface Connection {
  /** The process at the other end; 0 if it is in a PID namespace that this process cannot see. */
  readonly peerPid: number
  /** Sends a message. The receiver gets copies of the descriptors. Throws an Error with `code` if the other end is gone. */
  send(text: string, fds?: readonly number[]): void
  /** Waits for the next message; undefined at the end of the connection. Rejects with the signal's reason. */
  receive(signal: AbortSignal): Promise<Parcel | undefined>
  /** Closes the connection, and the descriptors of messages that were not received. May be called again. */
  close(): void
}

export interface Listener {
  /** Waits for the next connection. Rejects with the signal's reason. */
  accept(signal: AbortSignal): Promise<Connection>
  /** Closes the socket. The path stays, because another process may have bound it again. May be called again. */
  close(): void
}

export function closeAll(fds: readonly number[]): void {
  for (const fd of fds) closeSync(fd)
}

/** The pause after a failed accept. Without it the readable descriptor would cause a busy loop. */
const LATER_MS = 100

/** Makes a queue of the items that `take` reads from a descriptor. */
function createQueue<T>(fd: number, take: () => T | undefined | 'end' | 'later') {
  const waiting: T[] = []
  const bell = createBell()
  let isOver = false
  let again: NodeJS.Timeout | undefined
  let watcher = addon.watchReadable(fd, takeAll)
  function takeAll(): void {
    for (;;) {
      const item = take()
      if (item === undefined) break
      if (item === 'end' || item === 'later') {
        watcher.stop()
        if (item === 'end') isOver = true
        else again = setTimeout(() => (watcher = addon.watchReadable(fd, takeAll)), LATER_MS)
        break
      }
      waiting.push(item)
    }
    bell.ring()
  }
  return {
    async next(signal: AbortSignal): Promise<T | undefined> {
      for (;;) {
        const item = waiting.shift()
        if (item !== undefined || isOver) return item
        await bell.wait(signal)
      }
    },
    /** Returns the items that were not taken. */
    close(): readonly T[] {
      clearTimeout(again)
      if (!isOver) watcher.stop()
      isOver = true
      return waiting.splice(0)
    },
  }
}

function connectionOf(fd: number): Connection {
  const parcels = createQueue<Parcel>(fd, () => {
    try {
      const parcel = addon.receiveParcel(fd)
      return parcel?.text === '' ? 'end' : parcel
    } catch {
      return 'end' // the other end died
    }
  })
  let isOpen = true
  return {
    peerPid: addon.peerPid(fd),
    send: (text, fds = []) => addon.sendParcel(fd, text, fds),
    receive: (signal) => parcels.next(signal),
    close() {
      if (!isOpen) return
      isOpen = false
      for (const { fds } of parcels.close()) closeAll(fds)
      closeSync(fd)
    },
  }
}

/** The errors that mean that no process listens: no socket, a closed socket, or a path that is too long for a socket. */
const NO_LISTENER = new Set(['ENOENT', 'ECONNREFUSED', 'ENAMETOOLONG'])

/**
 * Connects to the process that listens at a path; undefined if none does. Throws an Error with `code` for any other failure, such as EAGAIN
 * if the listener accepts no connections.
 */
export function connect(path: string): Connection | undefined {
  try {
    return connectionOf(addon.connectUnix(path))
  } catch (error) {
    if (NO_LISTENER.has((error as NodeJS.ErrnoException).code ?? '')) return undefined
    throw error
  }
}

/** Listens at a path for processes of this user. Throws an Error with `code`. */
export function listen(path: string): Listener {
  const fd = addon.listenUnix(path)
  const connections = createQueue(fd, () => {
    try {
      const connection = addon.acceptUnix(fd)
      return connection === undefined ? undefined : connectionOf(connection)
    } catch {
      return 'later' // no descriptor is free, so the connection waits
    }
  })
  let isOpen = true
  return {
    async accept(signal) {
      const connection = await connections.next(signal)
      if (!connection) throw new Error('the listener is closed')
      return connection
    },
    close() {
      if (!isOpen) return
      isOpen = false
      for (const connection of connections.close()) connection.close()
      closeSync(fd)
    },
  }
}
