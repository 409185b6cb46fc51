// serve.ts - starts the health port and the status socket, or waits until the predecessor has released them.

import { describeError, isWeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { pause } from '../host/bell.ts'
import { isAnswered, serveHealth, serveSocket, type Health, type HealthServer } from './health.ts'

/** The pause before weftd tries again to bind the predecessor's port. */
const RETRY_MS = 1_000

/** The flags that name the addresses to serve at. */
export interface ServedPlaces {
  readonly 'healthz-ip': string
  /** 0 for none. */
  readonly 'healthz-port': number
  readonly 'status-ip': string
  /** Empty for none. */
  readonly 'status-socket': string
}

/** The predecessor, as node/restart/handover.ts provides it. */
export interface PredecessorState {
  /** True if another weftd ran when this process started. */
  readonly isSuccessor: boolean
  /** Resolves with the predecessor; undefined if it has ended. */
  predecessor(): Promise<{ readonly healthPort: number } | undefined>
  /** Resolves when the predecessor has released port and socket. */
  readonly free: Promise<void>
}

/** Starts the servers. Rejects as `serveHealth` does if a process other than the predecessor has the port. */
export async function serveStatus(
  places: ServedPlaces,
  health: Health,
  before: PredecessorState,
  log: Log,
  stopping: AbortController,
): Promise<Pick<HealthServer, 'close'>> {
  const { signal } = stopping
  const place = { ip: places['healthz-ip'], port: places['healthz-port'], statusIp: places['status-ip'] }
  const open: Pick<HealthServer, 'close'>[] = []
  const atPort = async (): Promise<void> => void open.push(await serveHealth(place, health, log))
  const atSocket = async (): Promise<void> => {
    const socket = await serveSocket(places['status-socket'], health, log)
    if (socket) open.push(socket)
  }
  const later: (() => Promise<void>)[] = []
  const other = before.isSuccessor && place.port > 0 ? await before.predecessor() : undefined
  // The port belongs to the predecessor. Do not try to bind it, because a predecessor that has just started may not have bound it yet.
  if (other?.healthPort === place.port) later.push(atPort)
  else if (place.port > 0) {
    try {
      await atPort()
    } catch (error) {
      // If the predecessor ended meanwhile, it may not have closed the port yet. This process forwards, so it must not fail.
      if (!isWeftError(error, 'PORT_IN_USE') || !before.isSuccessor || (await before.predecessor())) throw error
      later.push(atPort)
    }
  }
  // In a pod the socket is not shared with the predecessor, and it reports why the pod is not ready yet.
  const socket = places['status-socket']
  if (before.isSuccessor && socket !== '' && (await isAnswered(socket))) later.push(atSocket)
  else await atSocket()
  const closing = new AbortController()
  const closed = new Promise<void>((resolve) =>
    closing.signal.addEventListener('abort', () => resolve(), { once: true }),
  )
  const catchUp = async (): Promise<void> => {
    await Promise.race([before.free, closed])
    for (const serve of later) {
      while (!closing.signal.aborted) {
        try {
          await serve()
          break
        } catch (error) {
          // A node that forwards must not end because of its health port.
          if (!isWeftError(error)) throw error
          log.error(describeError(error))
          await Promise.race([pause(signal, RETRY_MS).catch(() => {}), closed])
        }
      }
    }
  }
  const caughtUp = catchUp().catch((error: unknown) => stopping.abort(error))
  return {
    async close() {
      closing.abort()
      await caughtUp
      await Promise.all(open.map((each) => each.close()))
    },
  }
}
