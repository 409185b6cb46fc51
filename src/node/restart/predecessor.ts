// predecessor.ts - the successor's side of a hand-over: the running daemon (the predecessor), and the requests that
// this process sends to it.

import { messageOf, WeftError } from '../../base/errors.ts'
import { afterRunning } from '../../host/bell.ts'
import { closeAll, type Connection, type Parcel } from '../../host/unix-socket.ts'
import type { OpenPath } from '../../path/engine/engine.ts'
import type { Superseded } from './lender.ts'
import { unpackPaths } from './open-path.ts'
import { ANSWER_MS, LEAVE_MS, messageFor, parse, STILL_MS, type About, type HandoverEvent } from './protocol.ts'

/** Returns the predecessor at the other end of a new connection. */
export const predecessorAt = (connection: Connection): Predecessor => new Predecessor(connection)

/**
 * The running daemon, as its successor sees it. Each request throws WeftError DEVICE if the daemon hangs or rejects the
 * request, and returns undefined if the daemon has ended.
 */
export class Predecessor {
  /** The process id of the daemon; 0 if it runs in a PID namespace that this process cannot see. */
  readonly pid: number
  /** Resolves when the daemon reports that it has ended, or when the connection to it ends. */
  readonly ended: Promise<void>
  /**
   * Resolves when the daemon forwards again, because it received no message from this process for too long. The lent
   * path belongs to the daemon again.
   */
  readonly takenBack: Promise<void>
  /** Resolves when the connection to the daemon has ended. */
  readonly gone: Promise<void>
  private readonly connection: Connection
  private readonly reading = new AbortController()
  private hasGone = false
  /**
   * The timer of the messages that show the predecessor that this process is alive; later the timer that repeats `end`
   * until `end` could be sent.
   */
  private timer: NodeJS.Timeout | undefined
  /** The function that passes an arrived answer to the request that waits for it; undefined if no request waits. */
  private answered: ((parcel: Parcel | undefined) => void) | undefined
  private onEnded!: () => void
  private onTakenBack!: () => void

  constructor(connection: Connection) {
    this.connection = connection
    this.pid = connection.peerPid
    this.ended = new Promise((resolve) => (this.onEnded = resolve))
    this.takenBack = new Promise((resolve) => (this.onTakenBack = resolve))
    this.gone = this.read()
  }

  get isGone(): boolean {
    return this.hasGone
  }

  /** True if the kernel refused to give this process the descriptors that the daemon sent. */
  get areDescriptorsDenied(): boolean {
    return this.connection.hasLostDescriptors
  }

  /** Returns the daemon's description of its present state. */
  async about(): Promise<About | undefined> {
    const parcel = await this.request('meet')
    return parcel && aboutOf(parse(parcel.text))
  }

  /**
   * Makes the daemon stop forwarding, and returns its open data paths and the descriptor of the subnet file's lock.
   * Returns undefined if the daemon refuses to pass its data paths on.
   */
  async takePaths(): Promise<{ readonly paths: readonly OpenPath[]; readonly lock: number | undefined } | undefined> {
    const parcel = await this.request('path')
    if (!parcel) return undefined
    const { lock, rest } = unpack(parcel)
    const paths = unpackPaths(parse(parcel.text)['paths'], rest)
    if (paths.length > 0) {
      this.sendSignsOfLife()
      return { paths, lock }
    }
    closeAll(parcel.fds)
    return undefined
  }

  /**
   * Makes the daemon stop forwarding and close its data paths. Resolves with the descriptor of the subnet file's lock.
   */
  async release(): Promise<number | undefined> {
    const parcel = await this.request('release')
    if (!parcel) return undefined
    const { lock, rest } = unpack(parcel)
    closeAll(rest)
    this.sendSignsOfLife()
    return lock
  }

  /** Makes the daemon end without changing the host, because this process acts as the node from now on. */
  end(): void {
    clearInterval(this.timer)
    this.timer = undefined
    // Repeat `end` until it could be sent. If the connection ended before the daemon received `end`, the daemon would
    // forward again.
    if (!this.isGone && !this.send('end'))
      this.timer = setInterval(() => void (this.send('end') && clearInterval(this.timer)), STILL_MS)
  }

  /**
   * Makes the daemon leave the network. Resolves with Superseded.isLeaseBack, or with undefined if an older version of
   * weftd answers. Rejects with WeftError DEVICE if the daemon does not leave.
   */
  async leave(): Promise<Superseded['isLeaseBack']> {
    const parcel = await this.request('leave', LEAVE_MS)
    const { ended: hasEnded, isLeaseBack } = parse(parcel?.text ?? '{}')
    if (hasEnded === true)
      return typeof isLeaseBack === 'boolean' || isLeaseBack === 'unknown' ? isLeaseBack : undefined
    throw new WeftError(
      'DEVICE',
      `another weftd that runs on this host (pid ${this.pidText}) did not say that it has left the network`,
      { remedy: 'read the log of the running weftd' },
    )
  }

  /** Closes the connection to the daemon. A second call has no effect. */
  close(): void {
    clearInterval(this.timer)
    this.reading.abort()
    this.connection.close()
  }

  private get pidText(): string {
    return this.pid ? String(this.pid) : 'unknown'
  }

  /** Reads messages until the connection ends. */
  private async read(): Promise<void> {
    for (;;) {
      const parcel = await this.connection.receive(this.reading.signal).catch(() => undefined)
      if (!parcel) break
      const { ended, takenBack } = parse(parcel.text)
      if (ended === true) this.onEnded()
      if (takenBack === true) this.onTakenBack()
      if (this.answered) this.answered(parcel)
      else closeAll(parcel.fds)
    }
    this.hasGone = true
    clearInterval(this.timer)
    this.answered?.(undefined)
    this.onEnded()
  }

  /**
   * Sends a request and waits for its answer. If the answer does not arrive in time, closes the connection, because
   * later answers would belong to the wrong requests.
   */
  private async request(want: HandoverEvent, withinMs = ANSWER_MS): Promise<Parcel | undefined> {
    if (this.isGone) return undefined
    let late: NodeJS.Timeout | undefined
    try {
      const parcel = await new Promise<Parcel | undefined>((resolve, reject) => {
        this.answered = resolve
        const end = (): void => reject(new Error(`no answer within ${withinMs / 1000} s`))
        late = afterRunning(withinMs, () => void setImmediate(end))
        try {
          this.connection.send(messageFor({ want }))
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
        `another weftd that runs on this host (pid ${this.pidText}) does not let this one take over: ${textOf(why)}`,
        {
          remedy:
            version === undefined
              ? 'read the log of the running weftd, or stop the running weftd first'
              : `stop weft ${textOf(version)} first`,
        },
      )
    } catch (error) {
      this.close()
      if (error instanceof WeftError) throw error
      const stop = this.pid ? `kill -9 ${this.pid}` : 'kill it (`pgrep weftd`)'
      throw new WeftError(
        'DEVICE',
        `another weftd that runs on this host (pid ${this.pidText}) does not answer: ${messageOf(error)}`,
        {
          remedy: `${stop}, then start again`,
          cause: error,
        },
      )
    } finally {
      clearTimeout(late)
      this.answered = undefined
    }
  }

  /**
   * Sends a request. Returns false if the daemon's buffer is full, because the daemon hangs or has not read earlier
   * messages yet.
   */
  private send(want: HandoverEvent): boolean {
    try {
      this.connection.send(messageFor({ want }))
      return true
    } catch (error) {
      return (error as NodeJS.ErrnoException).code !== 'EAGAIN'
    }
  }

  /**
   * Shows the daemon regularly that this process is alive. Without these messages the daemon would take the path back.
   */
  private sendSignsOfLife(): void {
    if (this.isGone || this.timer) return
    this.send('still')
    this.timer = setInterval(() => void this.send('still'), STILL_MS)
  }
}

/** Splits the descriptors of an answer into the descriptor of the subnet file's lock and the remaining descriptors. */
function unpack({ text, fds }: Parcel): { readonly lock: number | undefined; readonly rest: readonly number[] } {
  const hasLock = parse(text)['lock'] === 1 && fds.length > 0
  return { lock: hasLock ? fds[0] : undefined, rest: hasLock ? fds.slice(1) : fds }
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
