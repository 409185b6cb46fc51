// unix-socket.ts - exchanges messages with other processes over Unix sockets (SOCK_SEQPACKET). A message has a text and
// file descriptors.

import { closeSync } from 'node:fs'
import { addon } from './addon.ts'
import { createBell } from './bell.ts'

export interface Parcel {
  readonly text: string
  /** The received file descriptors. The receiver of the message must close them. */
  readonly fds: readonly number[]
}

export interface Connection {
  /** The process id of the connection's peer; 0 if the peer is in a PID namespace that this process cannot see. */
  readonly peerPid: number
  /**
   * True if the kernel did not give this process all descriptors of a received message. AppArmor and SELinux can refuse
   * descriptors, and the process may have no free descriptor left. The message is lost, and `receive` reports the end
   * of the connection.
   */
  readonly hasLostDescriptors: boolean
  /**
   * Sends a message. The receiver gets copies of the descriptors `fds`. Throws an Error with `code` if the peer closed
   * the connection.
   */
  send(text: string, fds?: readonly number[]): void
  /**
   * Waits for the next message. Resolves with undefined when the peer closed the connection. Rejects with the signal's
   * reason.
   */
  receive(signal: AbortSignal): Promise<Parcel | undefined>
  /** Closes the connection, and the descriptors of messages that were not received. Further calls have no effect. */
  close(): void
}

export interface Listener {
  /** Waits until another process connects. Rejects with the signal's reason. */
  accept(signal: AbortSignal): Promise<Connection>
  /**
   * Closes the listening socket. The path stays in the file system, because another process may have bound it again.
   * Further calls have no effect.
   */
  close(): void
}

export function closeAll(fds: readonly number[]): void {
  for (const fd of fds) closeSync(fd)
}

/**
 * The pause in ms after accept failed. The listening socket stays readable after the failure, so without a pause weftd
 * would retry in a busy loop.
 */
const LATER_MS = 100

/**
 * Makes a queue of items that are read from the descriptor `fd`. Whenever `fd` is readable, the queue calls `take`
 * until `take` returns no item. In place of an item, `take` returns undefined if no more can be read now, 'end' at the
 * end of the connection, or 'later' if `take` must be called again after LATER_MS.
 */
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
    /** Stops reading from the descriptor, and returns the items that `next` has not returned yet. */
    close(): readonly T[] {
      clearTimeout(again)
      if (!isOver) watcher.stop()
      isOver = true
      return waiting.splice(0)
    },
  }
}

/**
 * Receives the next message. If the peer closed the connection with unread messages, the kernel reports ECONNRESET once,
 * before the messages that the peer sent (__skb_try_recv_datagram in net/core/datagram.c of Linux). In that case reads
 * again immediately, because libuv reports no further event of a descriptor after an error.
 */
function receiveParcel(fd: number): ReturnType<typeof addon.receiveParcel> {
  try {
    return addon.receiveParcel(fd)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ECONNRESET') throw error
    return addon.receiveParcel(fd)
  }
}

function connectionOf(fd: number): Connection {
  let hasLostDescriptors = false
  const parcels = createQueue<Parcel>(fd, () => {
    try {
      const parcel = receiveParcel(fd)
      return parcel?.text === '' ? 'end' : parcel
    } catch (error) {
      // receive_parcel (native/io/unix_socket.cc) fails with EMSGSIZE for a message that the kernel shortened. weftd
      // never sends a text that is too long for the receiver, so the kernel has dropped descriptors of the message.
      // After any other error the other process has ended.
      hasLostDescriptors = (error as NodeJS.ErrnoException).code === 'EMSGSIZE'
      return 'end'
    }
  })
  let isOpen = true
  return {
    peerPid: addon.peerPid(fd),
    get hasLostDescriptors() {
      return hasLostDescriptors
    },
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

/**
 * Error codes of connect which mean that no process listens at the path: the socket does not exist, was closed, or its
 * path is too long.
 */
const NO_LISTENER = new Set(['ENOENT', 'ECONNREFUSED', 'ENAMETOOLONG'])

/**
 * Connects to the process that listens at a path. Returns undefined if no process listens at the path. Throws an Error
 * with `code` for any other failure, such as EAGAIN if the listener's queue of connections is full.
 */
export function connect(path: string): Connection | undefined {
  try {
    return connectionOf(addon.connectUnix(path))
  } catch (error) {
    if (NO_LISTENER.has((error as NodeJS.ErrnoException).code ?? '')) return undefined
    throw error
  }
}

/** Listens at a path for connections from processes of the same user. Throws an Error with `code`. */
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
