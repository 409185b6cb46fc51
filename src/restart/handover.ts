// handover.ts - one weftd takes over from another that still runs on the host: the conversation, and what each end may do when.
//
//   successor                   predecessor
//   {want: 'meet'}       ->     writes what it knows (last-known.ts)
//                        <-     {version, store, lease, ...}: what the successor has to match
//   ... finds its store, configuration, interface and lease; the predecessor forwards ...
//   {want: 'path'}       ->     stops forwarding
//                        <-     {path} and the descriptors: the lock first, then those in which packets wait
//   or, where that path does not fit or there is none to lend:
//   {want: 'release'}    ->     closes all that it forwarded through
//                        <-     {released: true} and the lock
//   {want: 'still'} ...  ->     heard every second from then on, until `end`
//   {want: 'end'}        ->     ends, and leaves all as it is: the successor is the node
//                        <-     {ended: true}, when nothing is held any more
//                        <-     {takenBack: true}, to a successor that was silent and could not be ended: it stops
//
// The predecessor is able to forward again until `end`: when the successor goes away, or says nothing for SILENCE_MS, which also ends a
// successor that hangs. NEXT below is the whole of it; a request that has no place there is refused. The bound on the time in which
// nobody forwards is SILENCE_MS + KILL_MS.
//
//   who dies or hangs        before `path`               between `path` and `end`                      after `end`
//   the successor dies       the predecessor forwards    the predecessor forwards again at once        the lock is free: a predecessor that still
//                            all along                                                                 waits to be stopped ends, to be started again
//   the successor hangs      the same                    it is killed after SILENCE_MS; the            as any node that hangs (its watchdog)
//                                                        predecessor forwards again
//   the predecessor dies     the successor goes on as    the successor has the path and the lock,      nothing: it holds nothing
//   or is told to stop       last known, at once         and goes on
//   the predecessor hangs    after ANSWER_MS the         the successor goes on; `end` waits for it     the same
//                            successor ends: an error
//
// A successor that hangs in another PID namespace cannot be ended. Where it was lent the path it is told so, and stops as soon as it goes on;
// where it opened its own, device and port are free no sooner than that.
//
// Messages are JSON. Members that one does not know are passed over; a new meaning needs a new number, and another number is refused
// with the version that speaks it.

import { closeAll, type Connection, type Listener, type Parcel } from '../host/unix-socket.ts'
import { messageOf, WeftError } from '../errors.ts'
import type { OpenPath } from '../dataplane/engine.ts'
import { packPath, unpackPath } from './open-path.ts'

const VERSION = 2
/** Within which a predecessor answers; one that does not hangs. */
const ANSWER_MS = 5_000
/** The same for one that gives its lease back first. */
const LEAVE_MS = 15_000
/** A successor that has the path and is not heard for so long hangs. */
export const SILENCE_MS = 4_000
/** Within which a process that was killed is gone. */
const KILL_MS = 500
/** How often a successor that forwards says so. */
const STILL_MS = 1_000

/** What a predecessor is to a successor. */
export type Stage =
  | 'alone' // nobody takes over; whether it forwards is its own affair
  | 'met' // a successor prepares; this one forwards
  | 'lent' // this one has stopped; both have the descriptors, and the successor forwards through them
  | 'released' // this one has stopped and closed all; the successor opens its own
  | 'over' // the successor is the node, or this node has left

/** What a predecessor can hear: requests of its successor, and how that one is. */
export type Heard = 'meet' | 'path' | 'release' | 'still' | 'end' | 'leave' | 'gone' | 'silent'

/** What follows; what is not here is refused. From `lent` and `released` to `alone` the path is taken back. */
export const NEXT: { readonly [From in Stage]: { readonly [What in Heard]?: Stage } } = {
  alone: { meet: 'met', leave: 'over' },
  met: { meet: 'met', path: 'lent', release: 'released', gone: 'alone' },
  lent: { release: 'released', still: 'lent', end: 'over', gone: 'alone', silent: 'alone' },
  released: { still: 'released', end: 'over', gone: 'alone', silent: 'alone' },
  over: {},
}

/** What a predecessor says of itself. */
export interface About {
  /** Of weft. */
  readonly version: string
  /** As storeNameOf. */
  readonly store: string
  /** Its own lease; undefined while it has none. */
  readonly lease?: { readonly key: string; readonly publicIp: string } | undefined
  /** The TCP port on which it answers probes; 0 for none. */
  readonly healthPort: number
}

/** What a predecessor does for its successor. */
export interface Estate {
  about(): About
  /** Why nobody can take over; undefined where somebody can. */
  refusal(): string | undefined
  /** Writes what is known. */
  write(): Promise<void>
  /** Stops forwarding; undefined where there is nothing to lend. */
  lend(): Promise<OpenPath | undefined>
  /** Stops forwarding and closes what it forwarded through, lent or not; the device stays. */
  release(): Promise<void>
  /** Forwards again, after either. */
  takeBack(why: string): Promise<void>
  /** The descriptor of the lock; undefined where there is none. */
  lock(): number | undefined
  /** Ends a process that hangs; false where it cannot be reached. */
  kill(pid: number): boolean
}

/** Another weftd has taken over (`end`), or wants this one to leave the network. */
export class Superseded extends Error {
  readonly how: 'end' | 'leave'
  /** Tells the other process that this one holds nothing any more. */
  readonly tell: () => void

  constructor(how: 'end' | 'leave', tell: () => void) {
    super(how === 'end' ? 'another weftd has taken over' : 'weftd --leave')
    this.how = how
    this.tell = tell
  }
}

/** What is heard next. A message that has arrived counts before the time that is over, also where this process stood still. */
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

/** What all conversations of a predecessor share. */
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
      // It stopped meanwhile: the path is not sent, and ends with this process.
      if (stopping.aborted) return
      if (reply instanceof Superseded) {
        isOver = true
        throw reply
      }
      try {
        if (reply) connection.send(JSON.stringify({ weft: VERSION, ...reply.message }), reply.fds)
      } catch {
        // Whoever asked has gone, which is heard next.
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
      await estate.write()
      return { message: estate.about() }
    }
    case 'path': {
      house.stage = next // also while it stops
      const path = await estate.lend()
      if (!path) {
        house.stage = 'met'
        return { message: {} }
      }
      const { description, fds } = packPath(path)
      return { message: { path: description, lock: locks.length }, fds: [...locks, ...fds] }
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
  return new Superseded(how, () => {
    try {
      connection.send(JSON.stringify({ weft: VERSION, ended: true }))
    } catch {
      // The other one has gone.
    }
    connection.close()
  })
}

/** What a process that was killed had sent before is not its end. */
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
      connection.send(JSON.stringify({ weft: VERSION, takenBack: true }))
    } catch {
      // It has gone.
    }
  }
  connection.close()
  house.successor = undefined
  house.stage = next
  if (wasAway) await estate.takeBack(why)
}

function parse(text: string): { readonly [name: string]: unknown } {
  try {
    return (JSON.parse(text) ?? {}) as { [name: string]: unknown }
  } catch {
    return {}
  }
}

/** The daemon that still runs, as its successor sees it. */
export interface Predecessor {
  /** Its process; 0 when that is in a namespace that is not seen from here. */
  readonly pid: number
  /** What it says of itself now; undefined when it has gone. */
  about(): Promise<About | undefined>
  /**
   * Stops it forwarding and gives what it forwarded through; undefined where that is not to be had. `lock` is the lock's descriptor.
   */
  takePath(): Promise<{ readonly path: OpenPath; readonly lock: number | undefined } | undefined>
  /** Stops it forwarding; what it held is free then. Resolves with the lock's descriptor, undefined when it has gone. */
  release(): Promise<number | undefined>
  /** Has it end and leave all as it is: this process is the node. */
  end(): void
  /** Has it leave the network. Rejects with WeftError DEVICE when it does not. */
  leave(): Promise<void>
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
          connection.send(JSON.stringify({ weft: VERSION, want }))
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
          remedy: version === undefined ? 'see its log, or stop it first' : `stop weft ${textOf(version)} first`,
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

  /** What came with an answer: the lock, and the rest. */
  function unpack({ text, fds }: Parcel): { readonly lock: number | undefined; readonly rest: readonly number[] } {
    const hasLock = parse(text)['lock'] === 1 && fds.length > 0
    return { lock: hasLock ? fds[0] : undefined, rest: hasLock ? fds.slice(1) : fds }
  }

  const say = (want: Heard): boolean => {
    try {
      connection.send(JSON.stringify({ weft: VERSION, want }))
      return true
    } catch (error) {
      // It is behind, or stands still: what it has not read yet says the same.
      return (error as NodeJS.ErrnoException).code !== 'EAGAIN'
    }
  }

  /** From here on the other one hears that this process lives: who stands still is taken back from. */
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
    async takePath() {
      const parcel = await ask('path')
      if (!parcel) return undefined
      const { lock, rest } = unpack(parcel)
      const path = unpackPath(parse(parcel.text)['path'], rest)
      if (path) {
        live()
        return { path, lock }
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
      // It must hear this before it hears that the connection has ended: it would forward again.
      if (!isGone && !say('end')) timer = setInterval(() => void (say('end') && clearInterval(timer)), STILL_MS)
    },
    async leave() {
      const parcel = await ask('leave', LEAVE_MS)
      if (parse(parcel?.text ?? '{}')['ended'] === true) return
      throw new WeftError(
        'DEVICE',
        `another weftd that runs on this host (pid ${pid}) did not say that it has left the network`,
        { remedy: 'see its log' },
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
