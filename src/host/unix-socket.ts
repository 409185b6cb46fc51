// unix-socket.ts - messages between processes of this host, each a text with descriptors: sequenced packets of a Unix socket.

import { closeSync } from 'node:fs'
import { addon } from './addon.ts'
import { createBell } from './bell.ts'

export interface Parcel {
  readonly text: string
  /** Open, of whoever has the parcel. */
  readonly fds: readonly number[]
}

export interface Connection {
  /** The process at the other end; 0 when it is in a namespace that is not seen from here. */
  readonly peerPid: number
  /** The descriptors stay open here; the receiver has its own. Throws an Error with `code` when the other end is gone. */
  send(text: string, fds?: readonly number[]): void
  /** The next message; undefined at the end of the connection, however it ended. Rejects with the signal's reason. */
  receive(signal: AbortSignal): Promise<Parcel | undefined>
  /** Idempotent; closes the descriptors of what was not received. */
  close(): void
}

export interface Listener {
  /** The next connection. Rejects with the signal's reason. */
  accept(signal: AbortSignal): Promise<Connection>
  /** Idempotent. The path stays: another process may have put its own there. */
  close(): void
}

export function closeAll(fds: readonly number[]): void {
  for (const fd of fds) closeSync(fd)
}

/** What cannot be taken now is tried again after so long: until then its descriptor would be readable without a pause. */
const LATER_MS = 100

/** Keeps what a descriptor brings until somebody takes it; undefined when it brings no more. */
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
    /** Returns what nobody took. */
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

/** Errors that mean that nobody listens: no socket, none that is alive, or a path that no socket can have. */
const NOBODY = new Set(['ENOENT', 'ECONNREFUSED', 'ENAMETOOLONG'])

/**
 * A connection to whoever listens at a path; undefined when nobody does. Throws an Error with `code` for anything else, such as
 * EAGAIN of one that listens and takes no connection.
 */
export function connect(path: string): Connection | undefined {
  try {
    return connectionOf(addon.connectUnix(path))
  } catch (error) {
    if (NOBODY.has((error as NodeJS.ErrnoException).code ?? '')) return undefined
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
      return 'later' // no descriptor is free: whoever waits is taken when one is
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
