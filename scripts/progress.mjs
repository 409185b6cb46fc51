// progress.mjs - how far long work is: a bar that is written over in place on a terminal, a line a step elsewhere.
//
// Plain Node without a dependency, since setup.mjs shows by it how it installs them. While a bar stands, whatever this process
// writes goes above it and stays; a child's output is handed on by this process (piped, not inherited), so nothing tears.

import { spawn } from 'node:child_process'

const CELLS = 20
const LEAST_CELLS = 5
const REDRAW_MS = 500
/** What is said of a terminal that tells no size, such as one that a program made. */
const COLUMNS = 80

/**
 * @typedef {object} State
 * @property {string} title
 * @property {string} step What is being done now.
 * @property {number} done
 * @property {number} total
 * @property {boolean} counted Whether `total` is a number of steps, of which one is being done; it is a share otherwise.
 * @property {number} elapsedMs
 * @property {number} [leftMs] Where that can be known.
 */

/**
 * @typedef {object} Progress
 * @property {(step: string, size?: number) => void} now What begins, as large a part of the whole (1); the step before is done.
 * @property {(done: number, step: string) => void} reach So much of the whole is done, for work that is not one step after another.
 * @property {(line: string) => void} plain A line for whom no bar is shown.
 * @property {() => void} end Takes the bar away.
 */

/**
 * @typedef {object} Output
 * @property {boolean} [isTTY]
 * @property {number} [columns]
 * @property {(...args: any[]) => boolean} write
 */

/**
 * Whether a bar can be shown: on a terminal that knows how to be written over (`dumb` is what terminfo calls one that does not).
 * @param {Output} [stream]
 * @param {Record<string, string | undefined>} [environment]
 */
export const canShowBar = (stream = process.stderr, environment = process.env) =>
  stream.isTTY === true && environment.TERM !== 'dumb'

/** @param {number} ms */
function duration(ms) {
  const seconds = Math.round(ms / 1000)
  if (seconds < 120) return `${seconds} s`
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`
}

/**
 * The bar as one line of less than `columns`, since a terminal goes to the next line after the last one. A narrow one has fewer
 * cells, whatever the text, so that they stay where they are; the text is cut.
 * @param {State} state
 * @param {number} columns
 * @param {boolean} colour
 */
export function barLine({ title, step, done, total, counted, elapsedMs, leftMs }, columns, colour) {
  const share = total > 0 ? Math.min(1, Math.max(0, done / total)) : 0
  const place = counted ? `${Math.min(total, Math.floor(done) + 1)} of ${total}` : `${Math.floor(100 * share)}%`
  const left = leftMs === undefined ? '' : `, about ${duration(Math.max(1000, leftMs))} left`
  // A control character in a name would move the cursor.
  const text = ` ${place}, ${duration(elapsedMs)}${left}: ${step}`.replaceAll(/\p{Cc}/gu, ' ')
  const cells = Math.min(CELLS, Math.floor(columns / 4))
  const full = Math.floor(share * cells)
  const bar = cells < LEAST_CELLS ? '' : ` [${'#'.repeat(full)}${'.'.repeat(cells - full)}]`
  const line = `${title}${bar}${text}`.slice(0, Math.max(0, columns - 1))
  return colour ? line.replace(/(?<=\[)#+/, '\u001B[32m$&\u001B[39m') : line
}

/** @typedef {'seconds' | 'even' | 'unknown'} Pace */

/**
 * How far work is, and how long the rest takes, by the pace of the steps that are done; before the first by the sizes, when they
 * are seconds. A step that is being done counts by the clock, and never as more than it was said to be: where the last one
 * takes longer nobody knows what is left.
 * @param {{ done: number, size: number, total: number, pace: Pace, beforeMs: number, withinMs: number }} work Until the step
 *   began, `done` took `beforeMs`; it is going on since `withinMs`.
 */
export function progressOf({ done, size, total, pace, beforeMs, withinMs }) {
  const unitMs = pace === 'unknown' ? undefined : done > 0 ? beforeMs / done : pace === 'seconds' ? 1000 : undefined
  if (!unitMs) return { done }
  const reached = done + Math.min(size, withinMs / unitMs)
  return reached >= total ? { done: reached } : { done: reached, leftMs: (total - reached) * unitMs }
}

/**
 * @param {string} title
 * @param {object} options
 * @param {number} options.total The number of steps, or the sum of their sizes.
 * @param {Pace} [options.pace] What the sizes say of time, without which nobody can tell what is left:
 *   they are seconds, about; they are in proportion to it; nothing.
 * @param {Output} [options.stream]
 * @param {Record<string, string | undefined>} [options.environment]
 * @returns {Progress}
 */
export function createProgress(title, { total, pace = 'unknown', stream = process.stderr, environment = process.env }) {
  if (!canShowBar(stream, environment)) {
    return { now() {}, reach() {}, plain: (line) => void stream.write(`${line}\n`), end() {} }
  }
  /** When the first step did, since nothing is known of what was before it. */
  let began = NaN
  const current = { step: '', size: 0, done: 0, since: NaN }
  let shown = ''
  /** Whether something was written whose line has no end yet: the bar would cut it. */
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
  /** Past the guards.
   * @param {string} text */
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
  /** Ctrl-C ends this process as it would have, unless others listen, who then say what follows. */
  const interrupted = () => {
    end()
    if (process.listenerCount('SIGINT') === 0) process.kill(process.pid, 'SIGINT')
  }
  process.once('exit', end).once('SIGINT', interrupted)

  /** @param {Pick<typeof current, 'step' | 'size' | 'done'>} next */
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
 * Runs a program and hands on what it writes, also beside a bar. Resolves with its exit code, null when a signal ended it; rejects
 * when it cannot be started.
 * @param {string} file
 * @param {readonly string[]} args
 * @param {{ cwd?: string, env?: Record<string, string | undefined>, stdout?: Output, stderr?: Output }} [options] Where it writes, if elsewhere.
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
