// serve.ts - where a daemon tells how it is: at a port and at a socket, or as soon as the daemon before it has let go of them.

import { describeError, isWeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { pause } from '../host/bell.ts'
import { isAnswered, serveHealth, serveSocket, type Health, type HealthServer } from './health.ts'

/** Between two tries to have a port that the daemon before had. */
const RETRY_MS = 1_000

/** The flags of weftd that say where. */
export interface ServedPlaces {
  readonly 'healthz-ip': string
  /** 0 for none. */
  readonly 'healthz-port': number
  readonly 'status-ip': string
  /** Empty for none. */
  readonly 'status-socket': string
}

/** The daemon before, as node/restart/handover.ts has it. */
export interface DaemonBefore {
  /** True when there was one at the start. */
  readonly isSuccessor: boolean
  /** Undefined when it has gone. */
  predecessor(): Promise<{ readonly healthPort: number } | undefined>
  /** Resolves when it has let go of port and socket. */
  readonly free: Promise<void>
}

/** Answers whoever asks. Rejects as `serveHealth` does for a port that somebody else has than the daemon before. */
export async function serveStatus(
  places: ServedPlaces,
  health: Health,
  before: DaemonBefore,
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
  // It is that one's, which may have begun a moment ago, and not have it yet.
  if (other?.healthPort === place.port) later.push(atPort)
  else if (place.port > 0) {
    try {
      await atPort()
    } catch (error) {
      // A predecessor that is gone by now had perhaps not closed the port yet, and this process forwards in its place.
      if (!isWeftError(error, 'PORT_IN_USE') || !before.isSuccessor || (await before.predecessor())) throw error
      later.push(atPort)
    }
  }
  // A pod's socket is its own, and says why the pod is not ready yet.
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
          // A node that forwards does not end for its health port.
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
