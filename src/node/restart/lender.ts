// lender.ts - the predecessor's side of a hand-over: it answers its successor, and forwards again if the successor ends
// or hangs.

import { afterRunning } from '../../host/bell.ts'
import { closeAll, type Connection, type Listener, type Parcel } from '../../host/unix-socket.ts'
import type { OpenPath } from '../../path/engine/engine.ts'
import { packPaths } from './open-path.ts'
import {
  KILL_MS,
  messageFor,
  NEXT,
  parse,
  SILENCE_MS,
  VERSION,
  type About,
  type HandoverEvent,
  type Stage,
} from './protocol.ts'

/** The operations that a successor requests of its predecessor. */
export interface Lender {
  about(): About
  /** Returns why no process may take over the data path; undefined if a process may take it over. */
  refusal(): string | undefined
  /** Called with true when a successor has connected, and with false when the successor has gone. */
  attend(isThere: boolean): void
  /** Writes the last known state into its file. */
  write(): Promise<void>
  /**
   * Stops forwarding, and returns the open data paths. Returns an empty list if this process has no data path to lend.
   */
  lend(): Promise<readonly OpenPath[]>
  /** Stops forwarding, and closes the paths of this process, including lent paths. The network device stays. */
  release(): Promise<void>
  /** Forwards again after `lend` or `release`. `why` is the end of a sentence that begins with "the successor". */
  takeBack(why: string): Promise<void>
  /** Returns the descriptor of the subnet file's lock; undefined if this process has no lock file. */
  lock(): number | undefined
  /** Kills the hanging process with the id `pid`. Returns false if this process may not kill it. */
  kill(pid: number): boolean
}

/**
 * The reason for which a predecessor ends: another weftd has taken over (`end`), or the node leaves the network
 * (`leave`).
 */
export class Superseded extends Error {
  readonly how: 'end' | 'leave'
  /** Reports to the successor that this process has no data path open any more. */
  readonly confirm: () => void
  /**
   * The result of the request `leave`: true if the store deleted the lease, false if the store did not; `unknown` if
   * this process ends before it knows its lease, so that it deleted no lease; undefined if the subnet manager cannot
   * delete leases.
   */
  isLeaseBack: boolean | 'unknown' | undefined

  constructor(how: 'end' | 'leave', confirm: () => void) {
    super(how === 'end' ? 'another weftd has taken over' : 'weftd --leave')
    this.how = how
    this.confirm = confirm
    this.isLeaseBack = how === 'leave' ? 'unknown' : undefined
  }
}

/**
 * Answers the processes that connect; only one of them at a time can be the successor. When `signal` aborts, rejects
 * with the signal's reason, and this process does not forward again. Rejects with Superseded while the successor waits
 * for the end of this process.
 */
export async function serveSuccessors(listener: Listener, lender: Lender, signal: AbortSignal): Promise<never> {
  const over = new AbortController()
  const stopping = new AbortController()
  const onStop = (): void => stopping.abort(signal.reason)
  if (signal.aborted) onStop()
  signal.addEventListener('abort', onStop, { once: true })
  over.signal.addEventListener('abort', () => stopping.abort(over.signal.reason), { once: true })
  const conversations = new Conversations(lender, stopping.signal)
  try {
    for (;;) {
      const connection = await listener.accept(stopping.signal)
      conversations.serve(connection).catch((error: unknown) => over.abort(error))
    }
  } finally {
    signal.removeEventListener('abort', onStop)
    listener.close()
  }
}

interface Reply {
  readonly message: object
  readonly fds?: readonly number[]
}

const refused = (why: string): Reply => ({ message: { refused: why } })

/** The connections of a predecessor to other processes, which share the stage of the hand-over (protocol.ts). */
class Conversations {
  private readonly lender: Lender
  private readonly stopping: AbortSignal
  private stage: Stage = 'alone'
  private successor: Connection | undefined

  constructor(lender: Lender, stopping: AbortSignal) {
    this.lender = lender
    this.stopping = stopping
  }

  /** True if the successor has the data path, or opens its own data path. */
  private get isAway(): boolean {
    return this.stage === 'lent' || this.stage === 'released'
  }

  /** Answers the requests on one connection until the connection ends. Rejects with Superseded. */
  async serve(connection: Connection): Promise<void> {
    let isOver = false
    try {
      for (;;) {
        const isSuccessor = this.successor === connection
        const withinMs = isSuccessor && this.isAway ? SILENCE_MS : undefined
        const received = await receive(connection, this.stopping, withinMs).catch(() => undefined)
        if (received === undefined || this.stopping.aborted) return // this process stops, and the successor keeps what it was lent
        if (received === 'gone' || received === 'silent') {
          if (isSuccessor) await this.comeBack(connection, received)
          return
        }
        closeAll(received.fds)
        const reply = await this.answer(received.text, connection)
        // If this process is stopping, do not send the data path, because the data path ends with this process.
        if (this.stopping.aborted) return
        if (reply instanceof Superseded) {
          isOver = true
          throw reply
        }
        try {
          if (reply) connection.send(messageFor(reply.message), reply.fds)
        } catch {
          connection.close() // the other process has gone or does not read, so the next `receive` returns `gone`
        }
      }
    } finally {
      if (!isOver) connection.close()
    }
  }

  private async answer(text: string, connection: Connection): Promise<Reply | Superseded | undefined> {
    const { lender } = this
    const { weft, want } = parse(text)
    const { version } = lender.about()
    if (weft !== VERSION) return { message: { refused: `weft ${version} does not hand over to that version`, version } }
    const other = this.successor !== undefined && this.successor !== connection ? this.successor : undefined
    if (other)
      return refused(
        `another weftd${other.peerPid ? ` (pid ${other.peerPid})` : ''} is taking over already; end that one first`,
      )
    const next = typeof want === 'string' ? NEXT[this.stage][want as HandoverEvent] : undefined
    if (next === undefined || want === 'gone' || want === 'silent') return refused(`not while it is ${this.stage}`)
    switch (want as HandoverEvent) {
      case 'meet': {
        const refusal = lender.refusal()
        if (refusal !== undefined) return refused(refusal)
        this.successor = connection
        this.stage = next
        lender.attend(true)
        await lender.write()
        return { message: lender.about() }
      }
      case 'path':
        return this.lend(next)
      case 'release': {
        this.stage = next
        const locks = this.locks()
        await lender.release()
        return { message: { released: true, lock: locks.length }, fds: locks }
      }
      case 'end':
      case 'leave': {
        this.stage = next
        return superseded(want as 'end' | 'leave', connection)
      }
      default:
        return undefined // `still`
    }
  }

  private async lend(next: Stage): Promise<Reply> {
    this.stage = next // before the path stops, because a successor that ends meanwhile makes this process take the path back
    const locks = this.locks()
    const paths = await this.lender.lend()
    if (paths.length === 0) {
      this.stage = 'met'
      return { message: {} }
    }
    const { descriptions, fds } = packPaths(paths)
    return { message: { paths: descriptions, lock: locks.length }, fds: [...locks, ...fds] }
  }

  private locks(): readonly number[] {
    const lock = this.lender.lock()
    return lock === undefined ? [] : [lock]
  }

  /** Forwards again, because the successor has gone or hangs. Kills a successor that hangs. */
  private async comeBack(connection: Connection, how: 'gone' | 'silent'): Promise<void> {
    const { lender, stopping } = this
    const wasAway = this.isAway
    const next = NEXT[this.stage][how]
    if (next === undefined) return
    let why = 'went away'
    if (how === 'silent') {
      const pid = connection.peerPid
      const isKilled = pid > 0 && lender.kill(pid)
      why = isKilled ? `hung, and was killed (pid ${pid})` : 'hung'
      if (isKilled) await untilGone(connection, stopping)
      if (stopping.aborted) return
      try {
        connection.send(messageFor({ takenBack: true }))
      } catch {
        // Ignore the error: sending fails if the successor has ended, and then no process needs the message.
      }
    }
    connection.close()
    this.successor = undefined
    this.stage = next
    lender.attend(false)
    if (wasAway) await lender.takeBack(why)
  }
}

/**
 * Receives the next message. A message that arrived before the time limit counts, even if this process was suspended
 * until after the limit.
 */
async function receive(
  connection: Connection,
  stopping: AbortSignal,
  withinMs?: number,
): Promise<Parcel | 'gone' | 'silent'> {
  if (withinMs === undefined) return (await connection.receive(stopping)) ?? 'gone'
  const late = new AbortController()
  // End the wait one turn of the event loop after the time limit, so that messages which have already arrived are read
  // first.
  const timer = afterRunning(withinMs, () => void setImmediate(() => late.abort()))
  const onStop = (): void => late.abort()
  stopping.addEventListener('abort', onStop)
  try {
    return (await connection.receive(late.signal)) ?? 'gone'
  } catch {
    stopping.throwIfAborted()
    return 'silent'
  } finally {
    clearTimeout(timer)
    stopping.removeEventListener('abort', onStop)
  }
}

function superseded(how: 'end' | 'leave', connection: Connection): Superseded {
  const reason = new Superseded(how, () => {
    try {
      const { isLeaseBack } = reason
      connection.send(messageFor({ ended: true, ...(isLeaseBack === undefined ? {} : { isLeaseBack }) }))
    } catch {
      // Ignore the error: sending fails if the other process has ended, and then no process needs the message.
    }
    connection.close()
  })
  return reason
}

/** Waits until a killed process has ended. Skips the messages that the killed process sent before its end. */
async function untilGone(connection: Connection, stopping: AbortSignal): Promise<void> {
  const until = performance.now() + KILL_MS
  for (let leftMs = KILL_MS; leftMs > 0; leftMs = until - performance.now()) {
    const received = await receive(connection, stopping, leftMs).catch(() => 'gone' as const)
    if (typeof received === 'string') return
    closeAll(received.fds)
  }
}
