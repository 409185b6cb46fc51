// progress.mjs - shows the progress of a long script: a progress bar on a terminal, or one line per step if stderr is
// not a terminal.
//
// progress.mjs has no npm dependencies, because setup.mjs uses it while it installs them. Other output of this process
// appears above the progress bar. Output of child processes must be piped through this process, because direct output
// would garble the bar.

import { spawn } from 'node:child_process'

const CELLS = 20
const LEAST_CELLS = 5
const REDRAW_MS = 500
/** The assumed width, in columns, of a terminal that reports no size, for example one that another program created. */
const COLUMNS = 80

/**
 * @typedef {object} State
 * @property {string} title
 * @property {string} step The name of the current step.
 * @property {number} done
 * @property {number} total
 * @property {boolean} counted True if `total` is a number of steps, which the bar then shows. If false, the bar shows a
 * percentage.
 * @property {number} elapsedMs
 * @property {number} [leftMs] The remaining time in ms; undefined if it is unknown.
 */

/**
 * @typedef {object} Progress
 * @property {(step: string, size?: number) => void} now Ends the current step and starts the next one. `size` is its
 * share of `total`, by default 1.
 * @property {(done: number, step: string) => void} reach Sets the amount of work done and the text of the step, for
 * work whose parts overlap.
 * @property {(line: string) => void} plain Writes a line, but only if no progress bar is shown.
 * @property {() => void} end Removes the bar from the terminal.
 */

/**
 * The part of a writable stream (process.stderr) that a progress bar uses.
 * @typedef {object} Output
 * @property {boolean} [isTTY]
 * @property {number} [columns]
 * @property {(...args: any[]) => boolean} write
 */

/**
 * True if the stream is a terminal that can move its cursor, so that a progress bar can be redrawn. Terminals that
 * cannot move the cursor have TERM=dumb.
 * @param {Output} [stream]
 * @param {Record<string, string | undefined>} [environment]
 */
export const canShowBar = (stream = process.stderr, environment = process.env) =>
  stream.isTTY === true && environment.TERM !== 'dumb'

/**
 * Formats a duration for people.
 * @param {number} ms
 */
function duration(ms) {
  const seconds = Math.round(ms / 1000)
  if (seconds < 120) return `${seconds} s`
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`
}

/**
 * Returns the progress bar as one line. The line is shorter than `columns`, because a terminal starts a new line after
 * its last column. On a narrow terminal the bar is shorter and the text is truncated.
 * @param {State} state
 * @param {number} columns
 * @param {boolean} colour
 */
export function barLine({ title, step, done, total, counted, elapsedMs, leftMs }, columns, colour) {
  const share = total > 0 ? Math.min(1, Math.max(0, done / total)) : 0
  const place = counted ? `${Math.min(total, Math.floor(done) + 1)} of ${total}` : `${Math.floor(100 * share)}%`
  const left = leftMs === undefined ? '' : `, about ${duration(Math.max(1000, leftMs))} left`
  // Replace control characters in the name of a step, because they could move the cursor.
  const text = ` ${place}, ${duration(elapsedMs)}${left}: ${step}`.replaceAll(/\p{Cc}/gu, ' ')
  const cells = Math.min(CELLS, Math.floor(columns / 4))
  const full = Math.floor(share * cells)
  const bar = cells < LEAST_CELLS ? '' : ` [${'#'.repeat(full)}${'.'.repeat(cells - full)}]`
  const line = `${title}${bar}${text}`.slice(0, Math.max(0, columns - 1))
  return colour ? line.replace(/(?<=\[)#+/, '\u001B[32m$&\u001B[39m') : line
}

/**
 * The meaning of the sizes of steps, as createProgress() explains.
 * @typedef {'seconds' | 'even' | 'unknown'} Pace
 */

/**
 * Returns the amount of work done and the remaining time, at the pace of the finished steps. Before the first step is
 * finished, uses the sizes of the steps if these are seconds. The current step counts by its elapsed time, up to its
 * size. If the last step takes longer than its size, the remaining time is unknown.
 * @param {{ done: number, size: number, total: number, pace: Pace, beforeMs: number, withinMs: number }} work
 * `beforeMs`: the duration of all finished steps, in ms. `withinMs`: the elapsed time of the current step, in ms.
 */
export function progressOf({ done, size, total, pace, beforeMs, withinMs }) {
  const unitMs = pace === 'unknown' ? undefined : done > 0 ? beforeMs / done : pace === 'seconds' ? 1000 : undefined
  if (!unitMs) return { done }
  const reached = done + Math.min(size, withinMs / unitMs)
  return reached >= total ? { done: reached } : { done: reached, leftMs: (total - reached) * unitMs }
}

/**
 * Creates the progress display of a script. `title` is its first word.
 * @param {string} title
 * @param {object} options
 * @param {number} options.total The number of steps, or the sum of their sizes.
 * @param {Pace} [options.pace] The meaning of the sizes: `seconds` if they are approximate seconds; `even` if they are
 * proportional to the duration; `unknown` if they say nothing about the duration, so that no remaining time is shown.
 * @param {Output} [options.stream]
 * @param {Record<string, string | undefined>} [options.environment]
 * @returns {Progress}
 */
export function createProgress(title, { total, pace = 'unknown', stream = process.stderr, environment = process.env }) {
  if (!canShowBar(stream, environment)) {
    return { now() {}, reach() {}, plain: (line) => void stream.write(`${line}\n`), end() {} }
  }
  /** The time at which the first step started, in ms of performance.now(). */
  let began = NaN
  const current = { step: '', size: 0, done: 0, since: NaN }
  let shown = ''
  /**
   * True if the last output of the process did not end with a newline. In that case the progress bar is not drawn,
   * because it would overwrite this output.
   */
  let isOpen = false
  let isEnded = false
  const draw = () => {
    const { step, done, size, since } = current
    if (isEnded || isOpen || step === '') return
    const now = performance.now()
    const far = progressOf({ done, size, total, pace, beforeMs: since - began, withinMs: now - since })
    const state = { title, step, total, counted: pace !== 'seconds', elapsedMs: now - began, ...far }
    const line = barLine(state, stream.columns || COLUMNS, !environment.NO_COLOR)
    if (line !== shown) write(`\r\u001B[K${line}`)
    shown = line
  }
  const clear = () => {
    if (shown !== '') write('\r\u001B[K')
    shown = ''
  }

  const guarded = [...new Set([stream, process.stdout, process.stderr])].filter(({ isTTY }) => isTTY)
  const originals = guarded.map((each) => each.write)
  /**
   * Writes to the stream with its original function, which `guarded` has replaced to keep other output above the bar.
   * @param {string} text
   */
  const write = (text) => void originals[0]?.call(stream, text)
  for (const [index, each] of guarded.entries()) {
    each.write = (/** @type {any[]} */ ...args) => {
      clear()
      const more = originals[index]?.apply(each, args) ?? true
      const text = typeof args[0] === 'string' ? args[0] : Buffer.from(args[0]).toString('latin1')
      if (text !== '') isOpen = !text.endsWith('\n')
      draw()
      return more
    }
  }
  const timer = setInterval(draw, REDRAW_MS)
  timer.unref()
  const end = () => {
    isEnded = true
    clearInterval(timer)
    clear()
    for (const [index, each] of guarded.entries()) if (originals[index]) each.write = originals[index]
    process.off('exit', end).off('SIGINT', interrupted)
  }
  /**
   * At Ctrl-C, removes the progress bar and then ends this process as usual. If the process has other listeners for the
   * signal, these decide whether the process ends.
   */
  const interrupted = () => {
    end()
    if (process.listenerCount('SIGINT') === 0) process.kill(process.pid, 'SIGINT')
  }
  process.once('exit', end).once('SIGINT', interrupted)

  /**
   * Makes `next` the current step and draws the bar.
   * @param {Pick<typeof current, 'step' | 'size' | 'done'>} next
   */
  const begin = (next) => {
    Object.assign(current, next, { since: performance.now() })
    if (Number.isNaN(began)) began = current.since
    draw()
  }

  return {
    now: (step, size = 1) => begin({ step, size, done: current.done + current.size }),
    reach: (done, step) => begin({ step, size: 0, done }),
    plain() {},
    end,
  }
}

/**
 * Runs a program and copies its output to this process's output, so that a progress bar is not garbled. Resolves with
 * the program's exit code, or null if a signal ended the program. Rejects if the program cannot be started.
 * @param {string} file
 * @param {readonly string[]} args
 * @param {{ cwd?: string, env?: Record<string, string | undefined>, stdout?: Output, stderr?: Output }} [options]
 * `stdout` and `stderr`: the streams that receive the program's output.
 * @returns {Promise<number | null>}
 */
export function runAloud(file, args, { stdout = process.stdout, stderr = process.stderr, ...options } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(file, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] })
    child.stdout?.on('data', (data) => stdout.write(data))
    child.stderr?.on('data', (data) => stderr.write(data))
    child.on('error', reject).on('close', resolve)
  })
}
