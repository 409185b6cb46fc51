// serve.ts - starts the health port and the status socket, or waits until the previous weftd process has released them.

import { describeError, isWeftError } from '../base/errors.ts'
import { seldom, type Log } from '../base/log.ts'
import { pause } from '../host/bell.ts'
import { isAnswered, serveHealth, serveSocket, type Health, type HealthServer } from './health.ts'

/**
 * The pause in ms before weftd tries again to bind the port or the socket that the previous weftd process (the
 * predecessor) used.
 */
const RETRY_MS = 1_000
/**
 * The pause in ms before weftd tries again to create the status socket after a try that failed, for example because the
 * disk was full.
 */
const SOCKET_RETRY_MS = 30_000
/**
 * How long, in ms, a stopping predecessor may still answer at the status socket after it has closed its connection to this
 * process. If the socket is answered for longer, it belongs to another weftd.
 */
const ENDING_MS = 30_000

/** The flags that say at which addresses, port and socket weftd serves. */
export interface ServedPlaces {
  readonly 'healthz-ip': string
  /** The port of the health checks; 0 to serve none. */
  readonly 'healthz-port': number
  readonly 'status-ip': string
  /** The path of the Unix socket for the status; empty for no socket. */
  readonly 'status-socket': string
}

/**
 * The predecessor of this process: another weftd that ran when this process started. node/restart/handover.ts provides
 * this state.
 */
export interface PredecessorState {
  readonly isSuccessor: boolean
  /** Resolves with the predecessor if it still runs, and with undefined if it has ended. */
  predecessor(): Promise<{ readonly healthPort: number } | undefined>
  /** Resolves when the predecessor has released the health port and the status socket. */
  readonly free: Promise<void>
}

/**
 * Starts the servers at the health port and the status socket. If a process other than the predecessor has the port,
 * rejects with WeftError PORT_IN_USE. If this process already forwards packets, it logs the failure and tries again
 * instead, because forwarding does not need the port. If the socket cannot be created, logs the reason and tries again.
 */
export async function serveStatus(
  places: ServedPlaces,
  health: Health,
  before: PredecessorState,
  log: Log,
  stopping: AbortController,
  isForwarding = false,
): Promise<Pick<HealthServer, 'close'>> {
  const { signal } = stopping
  const calm = seldom(log)
  const place = { ip: places['healthz-ip'], port: places['healthz-port'], statusIp: places['status-ip'] }
  const open: Pick<HealthServer, 'close'>[] = []
  const atPort = async (): Promise<void> => void open.push(await serveHealth(place, health, calm))
  const later: (() => Promise<void>)[] = []
  const other = before.isSuccessor && place.port > 0 ? await before.predecessor() : undefined
  // Bind the port only after the predecessor has released it. Do not try it now: if the predecessor has just started
  // and not bound the port yet, this process would take the port from it.
  if (other?.healthPort === place.port) later.push(atPort)
  else if (place.port > 0) {
    try {
      await atPort()
    } catch (error) {
      if (!isWeftError(error)) throw error
      // Try to bind the port again if the previous weftd (the predecessor) has just ended, because the kernel may free
      // the port only some time after that.
      const isFreed = error.code === 'PORT_IN_USE' && before.isSuccessor && !(await before.predecessor())
      if (!isFreed && !isForwarding) throw error
      later.push(atPort)
    }
  }
  const closing = new AbortController()
  const closed = new Promise<void>((resolve) =>
    closing.signal.addEventListener('abort', () => resolve(), { once: true }),
  )
  // End a pause by this signal, and not by Promise.race with `closed`. Each race adds an entry to `closed`, and weftd may
  // try to serve for months if another program has the port.
  const ending = AbortSignal.any([signal, closing.signal])
  const rest = (ms = RETRY_MS): Promise<void> => pause(ending, ms).catch(() => {})
  const socket = places['status-socket']
  const isServedAtSocket = async (): Promise<boolean> => {
    const server = await serveSocket(socket, health, calm)
    if (server) open.push(server)
    return server !== undefined || socket === ''
  }
  /** Resolves when `tryAgain` has ended: it has created the status socket, or weftd stops. */
  let trying: Promise<void> = Promise.resolve()
  const tryAgain = async (): Promise<void> => {
    do await rest(SOCKET_RETRY_MS)
    while (!ending.aborted && !(await isServedAtSocket()))
    if (!ending.aborted) log.info(`The status is served at ${socket} now`)
  }
  const atSocket = async (): Promise<void> => {
    if (!(await isServedAtSocket())) trying = tryAgain()
  }
  const atFreeSocket = async (): Promise<void> => {
    const end = performance.now() + ENDING_MS
    while (performance.now() < end && (await isAnswered(socket))) {
      await rest()
      if (ending.aborted) return
    }
    await atSocket()
  }
  // Create the socket now, unless a running predecessor answers at the socket. In a pod the predecessor's socket is not
  // visible, and this process's socket shows why the pod is not ready yet.
  if (before.isSuccessor && socket !== '' && (await isAnswered(socket))) later.push(atFreeSocket)
  else await atSocket()
  const catchUp = async (): Promise<void> => {
    await Promise.race([before.free, closed])
    for (const serve of later) {
      // After a stop `pause` does not wait any more, so a further try would block the event loop.
      while (!ending.aborted) {
        try {
          await serve()
          break
        } catch (error) {
          // Log the failure and try to serve again: a node that forwards packets must not end because it cannot serve
          // its status.
          if (!isWeftError(error)) throw error
          calm.error(describeError(error))
          await rest()
        }
      }
    }
  }
  const caughtUp = catchUp().catch((error: unknown) => stopping.abort(error))
  return {
    async close() {
      closing.abort()
      await caughtUp
      await trying
      await Promise.all(open.map((each) => each.close()))
    },
  }
}
