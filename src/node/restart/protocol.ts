// protocol.ts - how one weftd hands over to another while both run on the host: the conversation, and what each end may do when. Its ends are
// predecessor.ts and successor.ts.
//
//   successor                   predecessor
//   {want: 'meet'}       ->     writes what it knows (last-known.ts)
//                        <-     {version, store, lease, ...}: what the successor has to match
//   ... finds its store, configuration, interface and lease; the predecessor forwards ...
//   {want: 'path'}       ->     stops forwarding
//                        <-     {paths} and the descriptors: the lock first, then those in which packets wait
//   or, where a path that is wanted is not among them or there is none to lend:
//   {want: 'release'}    ->     closes all that it forwarded through
//                        <-     {released: true} and the lock
//   {want: 'still'} ...  ->     heard every second from then on, until `end`
//   {want: 'end'}        ->     ends, and leaves all as it is: the successor is the node
//                        <-     {ended: true}, when it has nothing open any more
//                        <-     {takenBack: true}, to a successor that was silent and could not be ended: it stops
//
// The predecessor is able to forward again until `end`: when the successor goes away, or says nothing for SILENCE_MS, which also ends a
// successor that hangs. NEXT below is the whole of it; a request that has no place there is refused. The bound on the time in which
// nobody forwards is SILENCE_MS + KILL_MS.
//
//   who dies or hangs        before `path`               between `path` and `end`                      after `end`
//   the successor dies       the predecessor forwards    the predecessor forwards again at once        the lock is free: a predecessor that still
//                            all along                                                                 waits to be stopped goes on as last known
//   the successor hangs      the same                    it is killed after SILENCE_MS; the            as any node that hangs (its watchdog)
//                                                        predecessor forwards again
//   the predecessor dies     the successor goes on as    the successor has the path and the lock,      nothing: it has nothing
//   or is told to stop       last known, at once         and goes on
//   the predecessor hangs    after ANSWER_MS the         the successor goes on; `end` waits for it     the same
//                            successor ends: an error
//
// A successor that hangs in another PID namespace cannot be ended. Where it was lent the path it is told so, and stops as soon as it goes on;
// where it opened its own, device and port are free no sooner than that.
//
// Messages are JSON. Members that one does not know are passed over; a new meaning needs a new number, and another number is refused
// with the version that speaks it.

/** The version of the protocol. */
export const VERSION = 2
/** A predecessor answers within this time; one that does not hangs. */
export const ANSWER_MS = 5_000
/** A predecessor that gives its lease back first answers within this time. */
export const LEAVE_MS = 15_000
/** A successor that has the path and is not heard for so long hangs. */
export const SILENCE_MS = 4_000
/** Within which a process that was killed is gone. */
export const KILL_MS = 500
/** A successor that forwards says so this often. */
export const STILL_MS = 1_000

/** The stages of a predecessor towards a successor. */
export type Stage =
  | 'alone' // nobody takes over; whether it forwards is its own affair
  | 'met' // a successor prepares; this one forwards
  | 'lent' // this one has stopped; both have the descriptors, and the successor forwards through them
  | 'released' // this one has stopped and closed all; the successor opens its own
  | 'over' // the successor is the node, or this node has left

/** The events that a predecessor can hear: its successor's requests, and its state. */
export type Heard = 'meet' | 'path' | 'release' | 'still' | 'end' | 'leave' | 'gone' | 'silent'

/** The next stage; an event that is not listed is refused. From `lent` and `released` to `alone` the path is taken back. */
export const NEXT: { readonly [From in Stage]: { readonly [What in Heard]?: Stage } } = {
  alone: { meet: 'met', leave: 'over' },
  met: { meet: 'met', path: 'lent', release: 'released', gone: 'alone' },
  lent: { release: 'released', still: 'lent', end: 'over', gone: 'alone', silent: 'alone' },
  released: { still: 'released', end: 'over', gone: 'alone', silent: 'alone' },
  over: {},
}

/** A predecessor's description of itself. */
export interface About {
  /** The version of weft. */
  readonly version: string
  /** The store's name, as storeNameOf gives it. */
  readonly store: string
  /** The predecessor's own lease; undefined while it has none. */
  readonly lease?: { readonly key: string; readonly publicIp: string } | undefined
  /** The TCP port on which it answers probes; 0 for none. */
  readonly healthPort: number
}

/** A message as it is sent. */
export const messageFor = (content: object): string => JSON.stringify({ weft: VERSION, ...content })

/** The members of a message; none when it cannot be read. */
export function parse(text: string): { readonly [name: string]: unknown } {
  try {
    return (JSON.parse(text) ?? {}) as { [name: string]: unknown }
  } catch {
    return {}
  }
}
