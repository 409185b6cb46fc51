// log.ts - writes log lines in klog's format to stderr.
//
// People search for flanneld's messages and the leading letter, and tools parse the header, so both are kept:
// `Lmmdd hh:mm:ss.uuuuuu <pid, 7 wide> file:line] message`, local time (k8s.io/klog, text format). A line is written before the call
// returns, so that no line is lost when the process ends.

import { placeOf } from './assets.ts'
import { printable } from './text.ts'

export interface Log {
  info(message: string): void
  /** Logs a warning. `normal` marks a warning of flanneld's that means no fault, so it is not kept among the last warnings. */
  warn(message: string, what?: 'normal'): void
  error(message: string): void
  /** True if messages of this verbosity are enabled (klog's -v). */
  v(level: number): boolean
}

/** A task that is retried does not log the same line again within this time. */
const SAME_LINE_MS = 30_000
/** The maximum number of failures that such a task logs per minute. */
const FAILURES_A_MINUTE = 4

type Level = 'info' | 'warn' | 'error'

const LETTERS: Readonly<Record<Level, string>> = { info: 'I', warn: 'W', error: 'E' }

/** Formats a line as klog does. `atUs` is in microseconds since 1970. */
export function formatLogLine(level: Level, atUs: number, pid: number, caller: string, message: string): string {
  const time = new Date(Math.floor(atUs / 1000))
  const two = (value: number): string => String(value).padStart(2, '0')
  const date = two(time.getMonth() + 1) + two(time.getDate())
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`
  const micros = String(Math.floor(atUs % 1_000_000)).padStart(6, '0')
  return `${LETTERS[level]}${date} ${clock}.${micros} ${String(pid).padStart(7)} ${caller}] ${message}`
}

/** Returns the place of the log call, as klog does with -add_dir_header. */
function callerOf(stack: string | undefined): string {
  for (const frame of (stack ?? '').split('\n').slice(1)) {
    const place = placeOf(frame)
    if (place && !/^base\/log\.[jt]s:/.test(place)) return place
  }
  return 'weftd:0'
}

/** The time of day, in ms, at which performance.now() was 0. */
let originMs = performance.timeOrigin

/**
 * Returns the time of day in microseconds. Date.now() has only milliseconds, so the monotonic clock gives the fraction. It is adjusted if
 * the time of day was set, or the host was suspended.
 */
function nowUs(): number {
  if (Math.abs(originMs + performance.now() - Date.now()) > 1) originMs = Date.now() - performance.now()
  return (originMs + performance.now()) * 1000
}

/** A log whose writer can be exchanged, so that the start does not wait until the later writer is loaded. */
export interface MovableLog extends Log {
  writeBy(write: (line: string) => void): void
}

/** Makes a log of the given verbosity, which writes to stderr unless `write` is given. `observe` is called with each message too. */
export function createLog(
  verbosity: number,
  write: (line: string) => void = writeToStderr,
  observe?: (level: Level, message: string) => void,
): MovableLog {
  let writer = write
  const at =
    (level: Level) =>
    (text: string, what?: 'normal'): void => {
      // Texts from other programs must not break the line.
      const message = printable(text)
      observe?.(what === 'normal' ? 'info' : level, message)
      writer(`${formatLogLine(level, nowUs(), process.pid, callerOf(new Error('caller').stack), message)}\n`)
    }
  const writeBy = (next: (line: string) => void): void => void (writer = next)
  return { info: at('info'), warn: at('warn'), error: at('error'), v: (level) => level <= verbosity, writeBy }
}

/**
 * Limits a log for a task that is retried, possibly for days. It drops a line that was logged recently, and a failure if there were many in
 * the last minute. `now` is a monotonic clock in ms.
 */
export function seldom(log: Log, now: () => number = () => performance.now()): Log {
  let said: { readonly text: string; readonly at: number; readonly isFailure: boolean }[] = []
  /** True if the line must be logged. Then it is remembered. */
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
  // If the reader of stderr is gone (EPIPE), the daemon must continue.
  if (process.stderr.listenerCount('error') === 0) process.stderr.on('error', () => {})
  process.stderr.write(line)
}

/** Formats milliseconds as Go prints a Duration, in whole seconds: 82800000 as `23h0m0s`. */
export function formatGoDuration(ms: number): string {
  const seconds = Math.floor(ms / 1000)
  const hours = Math.floor(seconds / 3600)
  const minutes = Math.floor(seconds / 60) % 60
  const parts = hours > 0 ? `${hours}h${minutes}m` : minutes > 0 ? `${minutes}m` : ''
  return `${parts}${seconds % 60}s`
}

/** Formats milliseconds since 1970 as Go prints a Time: `2026-11-21 02:03:04.567 +0000 UTC`. */
export function formatGoTime(ms: number | undefined): string {
  return ms === undefined ? 'never' : new Date(ms).toISOString().replace('T', ' ').replace('Z', ' +0000 UTC')
}
