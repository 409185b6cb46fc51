// handover.ts - one weftd takes over from another that still runs on the host: both ends of the conversation.
//
//   heir                         holder
//   {want: 'known'}     ->       writes what it knows (last-known.ts)
//                       <-       {}
//   {want: 'path'}      ->       stops forwarding
//                       <-       {path, pid} with the descriptors, in which packets wait
//   runs its engine on them
//   {want: 'end'}       ->       ends, and leaves all as it is
//                       <-       {ended: true}, when it holds nothing any more
//
// A holder whose heir goes away, or takes too long, before the last request takes its path back and closes the connection. The socket is for root alone (mode 0600), beside
// subnet.env, which two daemons cannot share anyway. Messages are JSON, so that versions of weft understand each other:
// members that one does not know are passed over, and a new meaning needs a new number.

import { closeAll, connect, type Connection, type Listener, type Parcel } from '../host/unix-socket.ts'
import { WeftError } from '../errors.ts'
import type { OpenPath } from '../dataplane/engine.ts'
import type { DaemonOptions } from '../options.ts'
import { packPath, unpackPath } from './open-path.ts'

const VERSION = 1
/** Within which the other end answers, or ends; then it hangs. */
const ANSWER_MS = 5_000
/** The same for one that gives its lease back first. */
const LEAVE_MS = 15_000

export const handoverSocket = (options: Pick<DaemonOptions, 'subnet-file'>): string =>
  `${options['subnet-file']}.handover`

type Want = 'known' | 'path' | 'end' | 'leave'

/** The daemon that still runs, as its heir sees it. */
export interface Holder {
  /** Its process; 0 when that is in a namespace that is not seen from here. */
  readonly pid: number
  /** Has it write what it knows now. */
  write(): Promise<void>
  /** Stops it forwarding and gives what it forwarded through; undefined where that is not to be had. */
  takePath(): Promise<OpenPath | undefined>
  /**
   * Has it end and leave all as it is; resolves when it holds nothing any more. With `leave` it removes what it can first. Rejects with
   * WeftError DEVICE when it hangs, or has taken its path back: then it forwards.
   */
  end(how?: 'end' | 'leave'): Promise<void>
  close(): void
}

/** The daemon that runs for this socket; undefined when there is none. */
export function findHolder(path: string): Holder | undefined {
  try {
    const connection = connect(path)
    return connection && holderAt(connection)
  } catch {
    return undefined // a path that is too long, or another user's: nobody hands over there
  }
}

function holderAt(connection: Connection): Holder {
  /** Undefined when the holder has ended. */
  async function ask(want: Want, withinMs = ANSWER_MS): Promise<Parcel | undefined> {
    try {
      connection.send(JSON.stringify({ weft: VERSION, want }))
    } catch {
      return undefined
    }
    try {
      return await connection.receive(AbortSignal.timeout(withinMs))
    } catch (error) {
      throw new WeftError('DEVICE', 'another weftd runs on this host and does not answer', {
        remedy: 'kill it (`pgrep weftd`), then start again',
        cause: error,
      })
    }
  }
  const read = (parcel: Parcel | undefined) => JSON.parse(parcel?.text ?? '{}') as { path?: unknown; ended?: unknown }
  return {
    pid: connection.peerPid,
    write: async () => void (await ask('known')),
    async takePath() {
      const parcel = await ask('path')
      const open = unpackPath(read(parcel).path, parcel?.fds ?? [])
      if (parcel && !open) closeAll(parcel.fds)
      return open
    },
    async end(how = 'end') {
      const { ended } = read(await ask(how, how === 'leave' ? LEAVE_MS : ANSWER_MS))
      if (ended !== true)
        throw new WeftError('DEVICE', 'the weftd that runs on this host did not let go of its data path', {
          remedy: 'see its log; start this one again',
        })
    },
    close: () => connection.close(),
  }
}

/** What a holder does for its heir. */
export interface Estate {
  /** Writes what is known. */
  write(): Promise<void>
  /** Stops forwarding; undefined where there is nothing to lend, or it is lent already. */
  lend(): Promise<OpenPath | undefined>
  takeBack(): void
}

/** Another weftd has taken over (`end`), or wants this one to leave the network. */
export class Superseded extends Error {
  readonly how: 'end' | 'leave'
  /** Tells the heir that this process holds nothing any more. */
  readonly tell: () => void

  constructor(how: 'end' | 'leave', tell: () => void) {
    super(how === 'end' ? 'another weftd has taken over' : 'weftd --leave')
    this.how = how
    this.tell = tell
  }
}

/** Serves whoever connects. Rejects with the signal's reason; with Superseded, while the heir waits for the end of this process. */
export async function serveHeirs(listener: Listener, estate: Estate, signal: AbortSignal): Promise<never> {
  const over = new AbortController()
  const until = AbortSignal.any([signal, over.signal])
  for (;;) {
    const connection = await listener.accept(until)
    void serveHeir(connection, estate, signal).catch((error: unknown) => over.abort(error))
  }
}

async function serveHeir(connection: Connection, estate: Estate, signal: AbortSignal): Promise<void> {
  let isLent: boolean = false
  const send = (message: object, fds?: readonly number[]): void =>
    connection.send(JSON.stringify({ weft: VERSION, ...message }), fds)
  const next = async (): Promise<{ readonly weft?: unknown; readonly want?: unknown } | undefined> => {
    const patience = isLent ? AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]) : signal
    const parcel = await connection.receive(patience).catch(() => undefined)
    signal.throwIfAborted()
    return parcel && (JSON.parse(parcel.text) as object)
  }
  try {
    for (let asked = await next(); asked?.weft === VERSION; asked = await next()) {
      if (asked.want === 'known') {
        await estate.write()
        send({})
      } else if (asked.want === 'path') {
        const lent = await estate.lend()
        isLent ||= lent !== undefined
        const { description, fds } = lent ? packPath(lent) : { description: undefined, fds: [] }
        send({ path: description }, fds)
      } else if (asked.want === 'end' || asked.want === 'leave') {
        isLent = false // the heir's now
        throw new Superseded(asked.want, () => {
          try {
            send({ ended: true })
          } catch {
            // The heir has gone.
          }
          connection.close()
        })
      }
    }
    connection.close()
  } catch (error) {
    if (error instanceof Superseded) throw error
    connection.close()
    const isTheirs = error instanceof SyntaxError || (error as NodeJS.ErrnoException).code !== undefined
    if (!isTheirs) throw error
  } finally {
    if (isLent) estate.takeBack()
  }
}
