// protocol.ts - the protocol by which one weftd hands the data path over to another weftd while both run on the host.
// lender.ts is the predecessor's side, predecessor.ts the successor's.
//
// The successor sends these requests, in this order:
// - {want: 'meet'}: the predecessor writes its last known state (last-known.ts) and answers with {version, store,
//   lease, ...}, which the successor checks. Then the successor finds its store, configuration, interface and lease,
//   while the predecessor forwards.
// - {want: 'path'}: the predecessor stops forwarding, and answers with {paths} and the descriptors: first the lock's,
//   then those of the open paths, in which packets wait.
// - {want: 'release'}, if no lent path fits or there is none: the predecessor closes all its paths, and answers with
//   {released: true} and the lock.
// - {want: 'still'}: shows every second that the successor is alive, until `end`.
// - {want: 'end'}: the predecessor ends without changing the host, because the successor is the node now. It sends
//   {ended: true} when it has no path open any more.
//
// Until `end` the predecessor can forward again. It does so if the successor ends. If the successor sends no message
// for SILENCE_MS, the predecessor kills the successor and forwards again. If it cannot kill the silent successor, it
// sends {takenBack: true} to the successor, which must then stop. The table NEXT lists all transitions; the predecessor
// refuses a request that the table does not have. For at most SILENCE_MS + KILL_MS no process forwards.
//
// If one of the two processes dies or hangs:
// - The successor dies before `path`: the predecessor forwards all the time. Between `path` and `end`: the predecessor
//   forwards again immediately. After `end`: the lock is free, and a predecessor that still waits to be stopped
//   forwards again.
// - The successor hangs before `path`: the predecessor forwards all the time. Between `path` and `end`: the predecessor
//   kills the successor after SILENCE_MS and forwards again. After `end`: the watchdog of the service manager restarts
//   the successor, like any weftd that hangs.
// - The predecessor dies before `path`: the successor forwards immediately with the last known state. Between `path`
//   and `end`: the successor has the path and the lock, and continues. After `end` the death of the predecessor has no
//   effect.
// - The predecessor hangs before `path`: the successor ends with an error after ANSWER_MS. Between `path` and `end`:
//   the successor continues; `end` waits for the predecessor.
//
// A successor that hangs in another PID namespace cannot be killed. If it has the lent path, it receives `takenBack`
// and stops as soon as it runs again. If it opened its own path, the device and the port of that path are in use until
// it runs again.
//
// Messages are JSON. A process ignores members that it does not know. If the meaning of a message changes, the protocol
// needs a new version number. A process refuses a message with a different version number, and names the version of
// weft that uses that number.

/** The version of the hand-over protocol. */
export const VERSION = 2
/** The time in ms within which a predecessor must answer. After that time the predecessor counts as hung. */
export const ANSWER_MS = 5_000
/**
 * The time in ms within which a predecessor must answer `leave`. This limit exceeds ANSWER_MS, because the predecessor
 * deletes its lease before it answers.
 */
export const LEAVE_MS = 15_000
/** A successor that has the path counts as hung if it sends no message for SILENCE_MS milliseconds. */
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

/** The events of a hand-over: the successor's requests, the successor's end (`gone`) and its silence (`silent`). */
export type HandoverEvent = 'meet' | 'path' | 'release' | 'still' | 'end' | 'leave' | 'gone' | 'silent'

/**
 * The next stage of a hand-over, by stage and event. The predecessor rejects all other events. When the stage changes
 * from `lent` or `released` to `alone`, the predecessor takes the path back.
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
  readonly version: string
  /** A name that identifies the store, as storeNameOf of any version returns it. */
  readonly store: string
  /** The predecessor's own lease; undefined while the predecessor has none. */
  readonly lease?: { readonly key: string; readonly publicIp: string } | undefined
  /** The TCP port of the predecessor's health checks; 0 if it serves none. */
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
