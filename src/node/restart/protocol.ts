// protocol.ts - how one weftd hands over to another while both run on the host: the messages, and what each process may do when. Its two
// sides are lender.ts (the predecessor) and predecessor.ts (the successor).
//
//   successor                   predecessor
//   {want: 'meet'}       ->     writes its last known state (last-known.ts)
//                        <-     {version, store, lease, ...}: the facts that the successor checks
//   ... finds its store, configuration, interface and lease; the predecessor forwards ...
//   {want: 'path'}       ->     stops forwarding
//                        <-     {paths} and the descriptors: the lock first, then those in which packets wait
//   or, if no lent path fits, or there is none:
//   {want: 'release'}    ->     closes all its paths
//                        <-     {released: true} and the lock
//   {want: 'still'} ...  ->     is a sign of life every second, until `end`
//   {want: 'end'}        ->     ends without changing the host: the successor is the node
//                        <-     {ended: true}, when it has no path open any more
//                        <-     {takenBack: true}, to a silent successor that it could not kill: that successor stops
//
// Until `end` the predecessor can forward again. It does so when the successor ends, or sends nothing for SILENCE_MS; then it kills the
// successor. The table NEXT below lists all transitions; the predecessor refuses a request that the table does not have. At most for
// SILENCE_MS + KILL_MS no process forwards.
//
//   who dies or hangs        before `path`               between `path` and `end`                      after `end`
//   the successor dies       the predecessor forwards    the predecessor forwards again                the lock is free: a predecessor that still
//                            all the time                immediately                                   waits to be stopped forwards again
//   the successor hangs      the same                    it is killed after SILENCE_MS; the            its watchdog restarts it, as any node
//                                                        predecessor forwards again
//   the predecessor dies     the successor forwards      the successor has the path and the lock,      nothing: it has no path
//   or is stopped            with the last known         and continues
//                            state immediately
//   the predecessor hangs    after ANSWER_MS the         the successor continues; `end` waits for      the same
//                            successor ends: an error    the predecessor
//
// A successor that hangs in another PID namespace cannot be killed. If it has the lent path, it receives `takenBack` and stops as soon as it
// runs again. If it opened its own path, device and port are in use until it runs again.
//
// Messages are JSON. A process ignores members that it does not know. A changed meaning needs a new version number; a process refuses
// another number and names the version of weft that uses it.

/** The version of the hand-over protocol. */
export const VERSION = 2
/** The time in ms within which a predecessor must answer. After that it counts as hung. */
export const ANSWER_MS = 5_000
/**
 * The time in ms within which a predecessor must answer `leave`. It is longer, because the predecessor deletes its
 * lease first.
 */
export const LEAVE_MS = 15_000
/** A successor that has the path counts as hung if it sends nothing for this time in ms. */
export const SILENCE_MS = 4_000
/** How long, in ms, a killed process may take to end. */
export const KILL_MS = 500
/** The interval in ms at which a successor shows that it is alive. */
export const STILL_MS = 1_000

/** The stages of a hand-over, as the predecessor sees them. */
export type Stage =
  | 'alone' // no process takes over
  | 'met' // a successor prepares, and this process forwards
  | 'lent' // this process has stopped; both have the descriptors, and the successor forwards through them
  | 'released' // this process has stopped and closed its paths; the successor opens its own
  | 'over' // the successor is the node, or this node has left

/** The events of a hand-over: the successor's requests, its end (`gone`) and its silence. */
export type HandoverEvent = 'meet' | 'path' | 'release' | 'still' | 'end' | 'leave' | 'gone' | 'silent'

/**
 * The next stage of a hand-over, by stage and event. All other events are refused. From `lent` or `released` to `alone`
 * the predecessor takes the path back.
 */
export const NEXT: { readonly [From in Stage]: { readonly [What in HandoverEvent]?: Stage } } = {
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
  /** A name that identifies the store, as storeNameOf returns it. */
  readonly store: string
  /** The predecessor's own lease; undefined while the predecessor has none. */
  readonly lease?: { readonly key: string; readonly publicIp: string } | undefined
  /** The TCP port of the predecessor's health checks; 0 if there is none. */
  readonly healthPort: number
}

/** Formats a message of the hand-over protocol as text. */
export const messageFor = (content: object): string => JSON.stringify({ weft: VERSION, ...content })

/** Parses a message and returns its members; an empty object if the text is not JSON. */
export function parse(text: string): { readonly [name: string]: unknown } {
  try {
    return (JSON.parse(text) ?? {}) as { [name: string]: unknown }
  } catch {
    return {}
  }
}
