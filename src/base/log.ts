// log.ts - writes log lines in klog's format to stderr.
//
// Operators search the log for flanneld's messages and for the first letter of a line (I, W or E), and tools parse the
// header. So weft keeps flanneld's messages, and the header `Lmmdd hh:mm:ss.uuuuuu <pid, 7 wide> file:line] message` in
// local time (k8s.io/klog, text format). A line is written before the call returns, so that no line is lost when the
// process ends.

import { placeOf } from './assets.ts'
import { printable } from './text.ts'

export interface Log {
  info(message: string): void
  /**
   * Logs a warning. `normal` marks a warning that does not mean a fault, and that flanneld logs too. The status report
   * does not list warnings with this mark.
   */
  warn(message: string, what?: 'normal'): void
  error(message: string): void
  /** Returns true if messages with the verbosity `level` are logged, as set by klog's flag -v. */
  v(level: number): boolean
}

/** A retried task logs the same line at most once in SAME_LINE_MS milliseconds. */
const SAME_LINE_MS = 30_000
/** The maximum number of warnings and errors per minute in the log of a retried task. */
const FAILURES_A_MINUTE = 4

type Level = 'info' | 'warn' | 'error'

const LETTERS: Readonly<Record<Level, string>> = { info: 'I', warn: 'W', error: 'E' }

/** Formats a log line as klog does. `atUs` is a time in microseconds since 1970. */
export function formatLogLine(level: Level, atUs: number, pid: number, caller: string, message: string): string {
  const time = new Date(Math.floor(atUs / 1000))
  const two = (value: number): string => String(value).padStart(2, '0')
  const date = two(time.getMonth() + 1) + two(time.getDate())
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`
  const micros = String(Math.floor(atUs % 1_000_000)).padStart(6, '0')
  return `${LETTERS[level]}${date} ${clock}.${micros} ${String(pid).padStart(7)} ${caller}] ${message}`
}

/**
 * Returns the file and line that logged a message, in the format of klog with -add_dir_header. `stack` is the stack
 * trace of the call that logged the message.
 */
function callerOf(stack: string | undefined): string {
  for (const frame of (stack ?? '').split('\n').slice(1)) {
    const place = placeOf(frame)
    if (place && !/^base\/log\.[jt]s:/.test(place)) return place
  }
  return 'weftd:0'
}

/** The time of day, in ms since 1970, at which performance.now() was 0. */
let originMs = performance.timeOrigin

/**
 * Returns the time of day in microseconds since 1970. Date.now() counts only milliseconds, so the fraction comes from
 * the monotonic clock. If the difference between the two clocks has changed, because the time of day was set or the
 * host was suspended, `originMs` is corrected.
 */
function nowUs(): number {
  if (Math.abs(originMs + performance.now() - Date.now()) > 1) originMs = Date.now() - performance.now()
  return (originMs + performance.now()) * 1000
}

/** A log whose output function can be replaced, so that weftd can log at its start, before winston is loaded. */
export interface MovableLog extends Log {
  writeBy(write: (line: string) => void): void
}

/**
 * Makes a log of the given verbosity, which writes to stderr unless `write` is given. The log also calls `observe` with
 * each message.
 */
export function createLog(
  verbosity: number,
  write: (line: string) => void = writeToStderr,
  observe?: (level: Level, message: string) => void,
): MovableLog {
  let writer = write
  const at =
    (level: Level) =>
    (text: string, what?: 'normal'): void => {
      // A message may quote text of other programs. The log escapes control characters, so that a message is always one
      // line.
      const message = printable(text)
      observe?.(what === 'normal' ? 'info' : level, message)
      writer(`${formatLogLine(level, nowUs(), process.pid, callerOf(new Error('caller').stack), message)}\n`)
    }
  const writeBy = (next: (line: string) => void): void => void (writer = next)
  return { info: at('info'), warn: at('warn'), error: at('error'), v: (level) => level <= verbosity, writeBy }
}

/**
 * Makes a log for a task that is retried, possibly for days. The log drops a line if it wrote the same line within the
 * last SAME_LINE_MS. It drops a warning or an error if it wrote FAILURES_A_MINUTE of them in the last minute. `now`
 * returns ms of a monotonic clock.
 */
export function seldom(log: Log, now: () => number = () => performance.now()): Log {
  let said: { readonly text: string; readonly at: number; readonly isFailure: boolean }[] = []
  /** Returns true if the line must be logged. In that case also remembers the line as logged. */
  const isNews = (text: string, isFailure: boolean): boolean => {
    const at = now()
    said = said.filter((line) => at - line.at < 60_000)
    if (said.some((line) => line.text === text && at - line.at < SAME_LINE_MS)) return false
    if (isFailure && said.filter((line) => line.isFailure).length >= FAILURES_A_MINUTE) return false
    said.push({ text, at, isFailure })
    return true
  }
  return {
    info: (message) => isNews(message, false) && log.info(message),
    warn: (message) => isNews(message, true) && log.warn(message),
    error: (message) => isNews(message, true) && log.error(message),
    v: (level) => log.v(level),
  }
}

/**
 * Writes a line to stderr. On Linux Node.js writes synchronously to files, terminals and pipes, so the line is written
 * before this function returns.
 */
export function writeToStderr(line: string): void {
  // If the program that reads stderr has ended (EPIPE), Node.js emits an `error` event. Without a listener for this
  // event weftd would end.
  if (process.stderr.listenerCount('error') === 0) process.stderr.on('error', () => {})
  process.stderr.write(line)
}

/** Formats a duration in ms as Go prints a Duration, rounded down to seconds: 82800000 becomes `23h0m0s`. */
export function formatGoDuration(ms: number): string {
  const seconds = Math.floor(ms / 1000)
  const hours = Math.floor(seconds / 3600)
  const minutes = Math.floor(seconds / 60) % 60
  const parts = hours > 0 ? `${hours}h${minutes}m` : minutes > 0 ? `${minutes}m` : ''
  return `${parts}${seconds % 60}s`
}

/**
 * Formats a time in ms since 1970 as Go prints a Time: `2026-11-21 02:03:04.567 +0000 UTC`. Undefined becomes `never`.
 */
export function formatGoTime(ms: number | undefined): string {
  return ms === undefined ? 'never' : new Date(ms).toISOString().replace('T', ' ').replace('Z', ' +0000 UTC')
}
