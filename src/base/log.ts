// log.ts - log lines of klog's shape on stderr.
//
// People grep flanneld's messages and the leading letter, and tools parse the header, so both are kept:
// `Lmmdd hh:mm:ss.uuuuuu <pid, 7 wide> file:line] message`, local time (k8s.io/klog, header of its text format). A line is written
// before the call returns, so that nothing is lost when the process ends.

import { placeOf } from './assets.ts'
import { printable } from './text.ts'

export interface Log {
  info(message: string): void
  /** `normal`: flanneld warns of it, and nothing is wrong; whoever keeps warnings for an operator does not keep this one. */
  warn(message: string, what?: 'normal'): void
  error(message: string): void
  /** True when messages of this verbosity are wanted (klog's -v). */
  v(level: number): boolean
}

/** A task that is tried again and again logs the same line at most this often, and at most so many failures a minute. */
const SAME_LINE_MS = 30_000
const FAILURES_A_MINUTE = 4

type Level = 'info' | 'warn' | 'error'

const LETTERS: Readonly<Record<Level, string>> = { info: 'I', warn: 'W', error: 'E' }

/** One line of klog's shape. `at` is in microseconds since the epoch. */
export function formatLogLine(level: Level, atUs: number, pid: number, caller: string, message: string): string {
  const time = new Date(Math.floor(atUs / 1000))
  const two = (value: number): string => String(value).padStart(2, '0')
  const date = two(time.getMonth() + 1) + two(time.getDate())
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`
  const micros = String(Math.floor(atUs % 1_000_000)).padStart(6, '0')
  return `${LETTERS[level]}${date} ${clock}.${micros} ${String(pid).padStart(7)} ${caller}] ${message}`
}

/** The place of whoever called the log, as klog's with -add_dir_header. */
function callerOf(stack: string | undefined): string {
  for (const frame of (stack ?? '').split('\n').slice(1)) {
    const place = placeOf(frame)
    if (place && !/^base\/log\.[jt]s:/.test(place)) return place
  }
  return 'weftd:0'
}

/** The clock of the day at the moment when performance.now() was 0. */
let originMs = performance.timeOrigin

/**
 * The clock of the day, as klog's. Date.now() has milliseconds only; what is between two of them the monotonic clock tells, which
 * knows neither of the other one's steps nor of the time that the host was suspended.
 */
function nowUs(): number {
  if (Math.abs(originMs + performance.now() - Date.now()) > 1) originMs = Date.now() - performance.now()
  return (originMs + performance.now()) * 1000
}

/** A daemon's log, whose lines another writer can take over: what that one costs to load nobody waits for. */
export interface MovableLog extends Log {
  writeBy(write: (line: string) => void): void
}

/** A log of the given verbosity, to stderr unless `write` is given; `hear` is told each message too. */
export function createLog(
  verbosity: number,
  write: (line: string) => void = writeToStderr,
  hear?: (level: Level, message: string) => void,
): MovableLog {
  let writer = write
  const at =
    (level: Level) =>
    (text: string, what?: 'normal'): void => {
      // The line stays one line, whoever's words are in it.
      const message = printable(text)
      hear?.(what === 'normal' ? 'info' : level, message)
      writer(`${formatLogLine(level, nowUs(), process.pid, callerOf(new Error('caller').stack), message)}\n`)
    }
  const writeBy = (next: (line: string) => void): void => void (writer = next)
  return { info: at('info'), warn: at('warn'), error: at('error'), v: (level) => level <= verbosity, writeBy }
}

/**
 * `log` for something that is tried until it succeeds, which may take days: a line that was said a moment ago is left out, and a
 * failure when there were many in the last minute. `now` is in ms and never goes back.
 */
export function seldom(log: Log, now: () => number = () => performance.now()): Log {
  let said: { readonly text: string; readonly at: number; readonly isFailure: boolean }[] = []
  /** True when the line is to be said; it is remembered then. */
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

/** Node.js writes stderr synchronously on Linux, to a file, a terminal or a pipe. */
export function writeToStderr(line: string): void {
  // A reader that is gone (EPIPE) must not stop the daemon.
  if (process.stderr.listenerCount('error') === 0) process.stderr.on('error', () => {})
  process.stderr.write(line)
}

/** Milliseconds as Go prints a Duration, to the second: 82800000 to `23h0m0s`. */
export function formatGoDuration(ms: number): string {
  const seconds = Math.floor(ms / 1000)
  const hours = Math.floor(seconds / 3600)
  const minutes = Math.floor(seconds / 60) % 60
  const parts = hours > 0 ? `${hours}h${minutes}m` : minutes > 0 ? `${minutes}m` : ''
  return `${parts}${seconds % 60}s`
}

/** Milliseconds since the epoch as Go prints a Time: `2026-11-21 02:03:04.567 +0000 UTC`. */
export function formatGoTime(ms: number | undefined): string {
  return ms === undefined ? 'never' : new Date(ms).toISOString().replace('T', ' ').replace('Z', ' +0000 UTC')
}
