// events.ts - reports changes of links, addresses, routes and routing rules in the kernel, by `ip monitor`.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { messageOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import type { Family } from '../net/address.ts'
import { pause } from './bell.ts'
import { childEnvironment } from './command.ts'

/**
 * A child that ends is started again after the first, doubling to the last, at which all is looked at: so often also where there is
 * none. One that lived for the last counts as new.
 */
const RESTART_MIN_MS = 200
const RESTART_MAX_MS = 5_000
/** Makes the child end with us also when we are killed; otherwise it ends when it has a change to report (SIGPIPE). */
const WITH_US = ['setpriv', '--pdeathsig', 'KILL'] // util-linux 2.33

/** The objects to watch, and the lines that matter; all lines when they are left out. */
export interface Watched {
  readonly monitor: readonly string[]
  readonly matters?: (line: string) => boolean
}

const OBJECTS = ['monitor', 'link', 'address', 'route', 'rule']

/** Watches links, and the addresses, routes and routing rules of these families. */
export function changesOf(families: readonly Family[]): Watched {
  // By IPv4 alone nobody hears what routers advertise.
  if (!families.includes('ipv6')) return { monitor: ['ip', '-4', ...OBJECTS] }
  const flags = families.includes('ipv4') ? ['-o'] : ['-o', '-6']
  return { monitor: ['ip', ...flags, ...OBJECTS], matters: createNews() }
}

/** So many addresses and routes are remembered. */
const REMEMBERED = 10_000
const LIFETIMES = / (?:valid_lft|preferred_lft|expires) \S+/g
/** By interface and address; or by destination, device and metric. */
const NAMES = [/^(\d+): \S+\s+inet6? (\S+)/, /^(.+?)(?: via .*)? dev (\S+).*? (metric \d+)/]

/**
 * Tells lines of `ip -o monitor` that say something new from those by which a lifetime alone was renewed, as with every advertisement of
 * a router (RFC 4862 section 5.5.3).
 */
export function createNews(): (line: string) => boolean {
  const known = new Map<string, string>()
  return (line) => {
    const text = line.replaceAll(LIFETIMES, '')
    if (text === line) return true
    const [, said = ''] = /^(?:Deleted )?(.*)/.exec(text) ?? []
    const name = NAMES.flatMap((form) => form.exec(said)?.slice(1).join(' ') ?? [])[0] ?? said
    if (text !== said) {
      known.delete(name)
      return true
    }
    const before = known.get(name)
    if (before === undefined && known.size >= REMEMBERED) known.clear()
    known.set(name, text)
    return text !== before
  }
}

/** Watches the host for one who does not know at first which families matter. */
interface HostWatch {
  /** Hears of these families from now on; of IPv4 alone before. */
  readonly follow: (families: readonly Family[]) => void
  readonly end: () => Promise<void>
}

/** By one child at a time; `onChange` and `signal` as with `watchHost`. */
export function createHostWatch(onChange: () => void, log: Log, signal: AbortSignal): HostWatch {
  let over = new AbortController()
  let heard: readonly string[] = []
  let watching: Promise<unknown> = Promise.resolve()
  function follow(families: readonly Family[]): void {
    const watched = changesOf(families)
    if (watched.monitor.join() === heard.join()) return
    const isFirst = heard.length === 0
    heard = watched.monitor
    over.abort()
    over = new AbortController()
    watching = Promise.all([watching, watchHost(onChange, log, AbortSignal.any([signal, over.signal]), watched)])
    if (!isFirst) onChange() // nobody heard what changed in between
  }
  follow(['ipv4'])
  return {
    follow,
    async end() {
      over.abort()
      await watching
    },
  }
}

/** Neighbours and forwarding entries of devices. By their names: one that is made again has another number. */
export const entriesOf = (...devices: readonly string[]): Watched => ({
  monitor: ['ip', 'monitor', 'neigh'],
  matters: (line) => devices.some((device) => line.includes(` dev ${device} `)),
})

/**
 * Calls `onChange` whenever something of what is watched changed, or may have changed unheard: what it was is for the
 * caller to look up. Goes on until `signal` aborts, then resolves.
 */
export async function watchHost(
  onChange: () => void,
  log: Log,
  signal: AbortSignal,
  watched: Watched = changesOf(['ipv4']),
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
      log.warn(`\`ip monitor\` ended: ${ended.why}. Starting it again, and looking for changes every 5 s until then`)
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
    const monitor = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], env: childEnvironment() })
    const closed = once(monitor, 'close')
    stop = () => void monitor.kill()
    signal.addEventListener('abort', stop)
    // When descriptors have run out there are no streams, whatever the types say; then the child has not started either.
    const { stdout, stderr } = monitor as Partial<typeof monitor>
    if (stdout && matters) createInterface(stdout).on('line', (line) => matters(line) && onChange())
    else stdout?.on('data', onChange)
    // iproute2 reports there when the kernel's queue ran over, and reads on (lib/libnetlink.c, rtnl_listen).
    stderr?.on('data', onChange)
    const [code, by] = (await closed) as [number | null, string | null]
    return { bySignal: by !== null, why: by ?? `exit code ${code}` }
  } catch (error) {
    return { bySignal: false, why: messageOf(error) }
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
