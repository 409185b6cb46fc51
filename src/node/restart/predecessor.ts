// predecessor.ts - the end of a hand-over that forwards: it serves its successor, and forwards again should that one go away or stand still.

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
  type Heard,
  type Stage,
} from './protocol.ts'

/** The service of a predecessor for its successor. */
export interface Estate {
  about(): About
  /** The reason why nobody can take over; undefined when somebody can. */
  refusal(): string | undefined
  /** A successor has come, or has gone. */
  attend(isThere: boolean): void
  /** Writes what is known. */
  write(): Promise<void>
  /** Stops forwarding; nothing where there is nothing to lend. */
  lend(): Promise<readonly OpenPath[]>
  /** Stops forwarding and closes what it forwarded through, lent or not; the device stays. */
  release(): Promise<void>
  /** Forwards again, after either. */
  takeBack(why: string): Promise<void>
  /** The descriptor of the lock; undefined where there is none. */
  lock(): number | undefined
  /** Ends a process that hangs; false where it cannot be reached. */
  kill(pid: number): boolean
}

/** The end of a predecessor: another weftd has taken over (`end`), or wants this one to leave the network. */
export class Superseded extends Error {
  readonly how: 'end' | 'leave'
  /** Tells the other process that this one has nothing open any more. */
  readonly tell: () => void
  /** `leave`: true if the store took the lease back, false if not; undefined if the subnet manager cannot delete leases. */
  isLeaseBack: boolean | undefined

  constructor(how: 'end' | 'leave', tell: () => void) {
    super(how === 'end' ? 'another weftd has taken over' : 'weftd --leave')
    this.how = how
    this.tell = tell
  }
}

/** Hears the next message. One that has arrived counts before the time that is over, also when this process stood still. */
async function hear(
  connection: Connection,
  stopping: AbortSignal,
  withinMs?: number,
): Promise<Parcel | 'gone' | 'silent'> {
  if (withinMs === undefined) return (await connection.receive(stopping)) ?? 'gone'
  const late = new AbortController()
  // One turn of the event loop later: what has arrived is read in between.
  const timer = setTimeout(() => setImmediate(() => late.abort()), withinMs)
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

/**
 * Serves whoever connects, one successor at a time. Rejects with the signal's reason, after which nothing is taken back; with
 * Superseded, while the successor waits for the end of this process.
 */
export async function serveSuccessors(listener: Listener, estate: Estate, signal: AbortSignal): Promise<never> {
  const over = new AbortController()
  const stopping = new AbortController()
  const onStop = (): void => stopping.abort(signal.reason)
  if (signal.aborted) onStop()
  signal.addEventListener('abort', onStop, { once: true })
  over.signal.addEventListener('abort', () => stopping.abort(over.signal.reason), { once: true })
  const house: House = { stage: 'alone', successor: undefined }
  try {
    for (;;) {
      const connection = await listener.accept(stopping.signal)
      converse(connection, house, estate, stopping.signal).catch((error: unknown) => over.abort(error))
    }
  } finally {
    signal.removeEventListener('abort', onStop)
    listener.close()
  }
}

/** The state that all conversations of a predecessor share. */
interface House {
  stage: Stage
  successor: Connection | undefined
}

const isAway = (stage: Stage): boolean => stage === 'lent' || stage === 'released'

async function converse(connection: Connection, house: House, estate: Estate, stopping: AbortSignal): Promise<void> {
  let isOver: boolean = false
  try {
    for (;;) {
      const isSuccessor = house.successor === connection
      const withinMs = isSuccessor && isAway(house.stage) ? SILENCE_MS : undefined
      const heard = await hear(connection, stopping, withinMs).catch(() => undefined)
      if (heard === undefined || stopping.aborted) return // this process stops: what it lent is the successor's
      if (heard === 'gone' || heard === 'silent') {
        if (isSuccessor) await comeBack(connection, house, heard, estate, stopping)
        return
      }
      closeAll(heard.fds)
      const reply = await answer(heard.text, connection, house, estate)
      // The stop came meanwhile: the path is not sent, and ends with this process.
      if (stopping.aborted) return
      if (reply instanceof Superseded) {
        isOver = true
        throw reply
      }
      try {
        if (reply) connection.send(messageFor(reply.message), reply.fds)
      } catch {
        connection.close() // whoever asked has gone, or cannot be answered: the same is heard next
      }
    }
  } finally {
    if (!isOver) connection.close()
  }
}

interface Reply {
  readonly message: object
  readonly fds?: readonly number[]
}

const refused = (why: string): Reply => ({ message: { refused: why } })

async function answer(
  text: string,
  connection: Connection,
  house: House,
  estate: Estate,
): Promise<Reply | Superseded | undefined> {
  const { weft, want } = parse(text)
  const { version } = estate.about()
  if (weft !== VERSION) return { message: { refused: `weft ${version} does not hand over to that version`, version } }
  const other = house.successor !== undefined && house.successor !== connection ? house.successor : undefined
  if (other)
    return refused(
      `another weftd${other.peerPid ? ` (pid ${other.peerPid})` : ''} is taking over already; end that one first`,
    )
  const next = typeof want === 'string' ? NEXT[house.stage][want as Heard] : undefined
  if (next === undefined || want === 'gone' || want === 'silent') return refused(`not while it is ${house.stage}`)
  const lock = estate.lock()
  const locks = lock === undefined ? [] : [lock]
  switch (want as Heard) {
    case 'meet': {
      const refusal = estate.refusal()
      if (refusal !== undefined) return refused(refusal)
      house.successor = connection
      house.stage = next
      estate.attend(true)
      await estate.write()
      return { message: estate.about() }
    }
    case 'path': {
      house.stage = next // also while it stops
      const paths = await estate.lend()
      if (paths.length === 0) {
        house.stage = 'met'
        return { message: {} }
      }
      const { descriptions, fds } = packPaths(paths)
      return { message: { paths: descriptions, lock: locks.length }, fds: [...locks, ...fds] }
    }
    case 'release': {
      house.stage = next
      await estate.release()
      return { message: { released: true, lock: locks.length }, fds: locks }
    }
    case 'end':
    case 'leave': {
      house.stage = next
      return superseded(want as 'end' | 'leave', connection)
    }
    default:
      return undefined // `still`
  }
}

function superseded(how: 'end' | 'leave', connection: Connection): Superseded {
  const reason = new Superseded(how, () => {
    try {
      const { isLeaseBack } = reason
      connection.send(messageFor({ ended: true, ...(isLeaseBack === undefined ? {} : { isLeaseBack }) }))
    } catch {
      // The other one has gone.
    }
    connection.close()
  })
  return reason
}

/** A message that a killed process had sent before is not its end. */
async function untilGone(connection: Connection, stopping: AbortSignal): Promise<void> {
  const until = performance.now() + KILL_MS
  for (let leftMs = KILL_MS; leftMs > 0; leftMs = until - performance.now()) {
    const heard = await hear(connection, stopping, leftMs).catch(() => 'gone' as const)
    if (typeof heard === 'string') return
    closeAll(heard.fds)
  }
}

/** The successor is not one any more. */
async function comeBack(
  connection: Connection,
  house: House,
  how: 'gone' | 'silent',
  estate: Estate,
  stopping: AbortSignal,
): Promise<void> {
  const wasAway = isAway(house.stage)
  const next = NEXT[house.stage][how]
  if (next === undefined) return
  let why = 'went away'
  if (how === 'silent') {
    const pid = connection.peerPid
    const isKilled = pid > 0 && estate.kill(pid)
    why = isKilled ? `hung, and was killed (pid ${pid})` : 'hung'
    if (isKilled) await untilGone(connection, stopping)
    if (stopping.aborted) return
    try {
      connection.send(messageFor({ takenBack: true }))
    } catch {
      // The successor has gone.
    }
  }
  connection.close()
  house.successor = undefined
  house.stage = next
  estate.attend(false)
  if (wasAway) await estate.takeBack(why)
}
