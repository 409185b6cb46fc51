// events.ts - hears from the kernel that a link, an address or a route changed, by `ip monitor`.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { messageOf } from '../errors.ts'
import type { Log } from '../log.ts'
import { pause } from './bell.ts'

/**
 * A child that ends is started again after the first, doubling to the last, at which all is looked at: so often also where there is
 * none. One that lived for the last counts as new.
 */
const RESTART_MIN_MS = 200
const RESTART_MAX_MS = 5_000
/** So that the child ends with us also when we are killed; otherwise it ends when it has a change to report (SIGPIPE). */
const WITH_US = ['setpriv', '--pdeathsig', 'KILL'] // util-linux 2.33

/** What is watched, and the lines that matter; all where it is left out. */
export interface Watched {
  readonly monitor: readonly string[]
  readonly matters?: (line: string) => boolean
}

const HOST: Watched = { monitor: ['ip', '-4', 'monitor', 'link', 'address', 'route'] }
/** Neighbours and forwarding entries of a device. By its name: one that is made again has another number. */
export const entriesOf = (device: string): Watched => ({
  monitor: ['ip', 'monitor', 'neigh'],
  matters: (line) => line.includes(` dev ${device} `),
})

/**
 * Calls `onChange` whenever something of what is watched changed, or may have changed unheard: what it was is for the
 * caller to look up. Goes on until `signal` aborts, then resolves.
 */
export async function watchHost(
  onChange: () => void,
  log: Log,
  signal: AbortSignal,
  watched: Watched = HOST,
): Promise<void> {
  let withUs = WITH_US
  let restartMs = RESTART_MIN_MS
  while (!signal.aborted) {
    const startedAt = performance.now()
    const ended = await runMonitor(withUs, watched, onChange, signal)
    if (signal.aborted) return
    onChange()
    if (withUs.length > 0 && !ended.bySignal) {
      withUs = [] // there is no setpriv, or one that cannot do this (busybox)
      continue
    }
    if (performance.now() - startedAt > RESTART_MAX_MS) restartMs = RESTART_MIN_MS
    if (restartMs === RESTART_MIN_MS)
      log.warn(`\`ip monitor\` ended: ${ended.why}. Starting it again, and looking for changes every 5 s meanwhile`)
    await pause(signal, restartMs).catch(() => {})
    restartMs = Math.min(2 * restartMs, RESTART_MAX_MS)
  }
}

/** Runs the child to its end, which `signal` brings about. */
async function runMonitor(
  withUs: readonly string[],
  { monitor: command, matters }: Watched,
  onChange: () => void,
  signal: AbortSignal,
): Promise<{ readonly bySignal: boolean; readonly why: string }> {
  const [file = '', ...args] = [...withUs, ...command]
  let stop = (): void => {}
  try {
    const monitor = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    const closed = once(monitor, 'close')
    stop = () => void monitor.kill()
    signal.addEventListener('abort', stop)
    // Without a descriptor for them there are none, whatever the types say; then it has not started either.
    const { stdout, stderr } = monitor as Partial<typeof monitor>
    if (stdout && matters) createInterface(stdout).on('line', (line) => matters(line) && onChange())
    else stdout?.on('data', onChange)
    // When the kernel's queue ran over, iproute2 says so there and reads on (lib/libnetlink.c, rtnl_listen).
    stderr?.on('data', onChange)
    const [code, by] = (await closed) as [number | null, string | null]
    return { bySignal: by !== null, why: by ?? `exit code ${code}` }
  } catch (error) {
    return { bySignal: false, why: messageOf(error) }
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
