// successor.ts - the end of a hand-over that takes over: the daemon that still runs, and what is asked of it.

import { messageOf, WeftError } from '../../base/errors.ts'
import { closeAll, type Connection, type Parcel } from '../../host/unix-socket.ts'
import type { OpenPath } from '../../path/engine/engine.ts'
import { unpackPaths } from './open-path.ts'
import { ANSWER_MS, LEAVE_MS, messageFor, parse, STILL_MS, type About, type Heard } from './protocol.ts'

/** The daemon that still runs, as its successor sees it. */
export interface Predecessor {
  /** The pid of its process; 0 when that is in a namespace that is not seen from here. */
  readonly pid: number
  /** The predecessor's description of itself now; undefined when it has gone. */
  about(): Promise<About | undefined>
  /**
   * Stops it forwarding and gives what it forwarded through; undefined where that is not to be had. `lock` is the lock's descriptor.
   */
  takePaths(): Promise<{ readonly paths: readonly OpenPath[]; readonly lock: number | undefined } | undefined>
  /** Stops it forwarding; what it had open is free then. Resolves with the lock's descriptor, undefined when it has gone. */
  release(): Promise<number | undefined>
  /** Has it end and leave all as it is: this process is the node. */
  end(): void
  /**
   * Has it leave the network. Resolves with Superseded.isLeaseBack; undefined also for older versions of weftd. Rejects with WeftError
   * DEVICE if it does not leave.
   */
  leave(): Promise<boolean | undefined>
  /** Resolves when it said that it has ended. */
  readonly ended: Promise<void>
  /** Resolves when it forwards again, since this process was not heard: only then is there an end to what that one lent. */
  readonly takenBack: Promise<void>
  /** Resolves when the connection has ended. */
  readonly gone: Promise<void>
  readonly isGone: boolean
  /** Idempotent. */
  close(): void
}

/** Throws out of `about` and all that is asked: WeftError DEVICE when it hangs or refuses. */
export function predecessorAt(connection: Connection): Predecessor {
  const reading = new AbortController()
  let answered: ((parcel: Parcel | undefined) => void) | undefined
  let isGone = false
  let tellEnded!: () => void
  const ended = new Promise<void>((resolve) => (tellEnded = resolve))
  let tellTakenBack!: () => void
  const takenBack = new Promise<void>((resolve) => (tellTakenBack = resolve))
  let timer: NodeJS.Timeout | undefined
  const pid = connection.peerPid || 'unknown'
  const stopIt = connection.peerPid ? `kill -9 ${connection.peerPid}` : 'kill it (`pgrep weftd`)'

  const gone = (async () => {
    for (;;) {
      const parcel = await connection.receive(reading.signal).catch(() => undefined)
      if (!parcel) break
      const { ended: hasEnded, takenBack: hasPath } = parse(parcel.text)
      if (hasEnded === true) tellEnded()
      if (hasPath === true) tellTakenBack()
      if (answered) answered(parcel)
      else closeAll(parcel.fds)
    }
    isGone = true
    clearInterval(timer)
    answered?.(undefined)
    tellEnded()
  })()

  function close(): void {
    clearInterval(timer)
    reading.abort()
    connection.close()
  }

  /** Undefined when it has gone. A conversation in which an answer was missed is over: it would answer the wrong question. */
  async function ask(want: Heard, withinMs = ANSWER_MS): Promise<Parcel | undefined> {
    if (isGone) return undefined
    let late: NodeJS.Timeout | undefined
    try {
      const parcel = await new Promise<Parcel | undefined>((resolve, reject) => {
        answered = resolve
        late = setTimeout(
          () => setImmediate(() => reject(new Error(`no answer within ${withinMs / 1000} s`))),
          withinMs,
        )
        try {
          connection.send(messageFor({ want }))
        } catch (error) {
          const { code } = error as NodeJS.ErrnoException
          if (code === 'EAGAIN') reject(new Error('it reads nothing'))
          else resolve(undefined)
        }
      })
      const { refused: why, version } = parse(parcel?.text ?? '{}')
      if (why === undefined) return parcel
      closeAll(parcel?.fds ?? [])
      throw new WeftError(
        'DEVICE',
        `another weftd that runs on this host (pid ${pid}) does not let this one take over: ${textOf(why)}`,
        {
          remedy:
            version === undefined
              ? 'read the log of the running weftd, or stop the running weftd first'
              : `stop weft ${textOf(version)} first`,
        },
      )
    } catch (error) {
      close()
      if (error instanceof WeftError) throw error
      throw new WeftError(
        'DEVICE',
        `another weftd that runs on this host (pid ${pid}) does not answer: ${messageOf(error)}`,
        {
          remedy: `${stopIt}, then start again`,
          cause: error,
        },
      )
    } finally {
      clearTimeout(late)
      answered = undefined
    }
  }

  /** Splits the descriptors of an answer: the lock, and the rest. */
  function unpack({ text, fds }: Parcel): { readonly lock: number | undefined; readonly rest: readonly number[] } {
    const hasLock = parse(text)['lock'] === 1 && fds.length > 0
    return { lock: hasLock ? fds[0] : undefined, rest: hasLock ? fds.slice(1) : fds }
  }

  const say = (want: Heard): boolean => {
    try {
      connection.send(messageFor({ want }))
      return true
    } catch (error) {
      // The predecessor is behind, or stands still: a message that it has not read yet says the same.
      return (error as NodeJS.ErrnoException).code !== 'EAGAIN'
    }
  }

  /** From here on the other one hears that this process lives: from one that stands still the path is taken back. */
  function live(): void {
    if (isGone || timer) return
    say('still')
    timer = setInterval(() => void say('still'), STILL_MS)
  }

  return {
    pid: connection.peerPid,
    async about() {
      const parcel = await ask('meet')
      return parcel && aboutOf(parse(parcel.text))
    },
    async takePaths() {
      const parcel = await ask('path')
      if (!parcel) return undefined
      const { lock, rest } = unpack(parcel)
      const paths = unpackPaths(parse(parcel.text)['paths'], rest)
      if (paths.length > 0) {
        live()
        return { paths, lock }
      }
      closeAll(parcel.fds)
      return undefined
    },
    async release() {
      const parcel = await ask('release')
      if (!parcel) return undefined
      const { lock, rest } = unpack(parcel)
      closeAll(rest)
      live()
      return lock
    },
    end() {
      clearInterval(timer)
      timer = undefined
      // The predecessor must hear this before it hears that the connection has ended: it would forward again.
      if (!isGone && !say('end')) timer = setInterval(() => void (say('end') && clearInterval(timer)), STILL_MS)
    },
    async leave() {
      const parcel = await ask('leave', LEAVE_MS)
      const { ended: hasEnded, isLeaseBack } = parse(parcel?.text ?? '{}')
      if (hasEnded === true) return typeof isLeaseBack === 'boolean' ? isLeaseBack : undefined
      throw new WeftError(
        'DEVICE',
        `another weftd that runs on this host (pid ${pid}) did not say that it has left the network`,
        { remedy: 'read the log of the running weftd' },
      )
    },
    ended,
    takenBack,
    gone,
    get isGone() {
      return isGone
    },
    close,
  }
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : 'it does not say why')

function aboutOf({ version, store, lease, healthPort }: { readonly [name: string]: unknown }): About {
  const { key, publicIp } = (lease ?? {}) as { readonly [name: string]: unknown }
  return {
    version: typeof version === 'string' ? version : 'unknown',
    store: typeof store === 'string' ? store : '',
    healthPort: typeof healthPort === 'number' ? healthPort : 0,
    lease: typeof key === 'string' && typeof publicIp === 'string' ? { key, publicIp } : undefined,
  }
}
