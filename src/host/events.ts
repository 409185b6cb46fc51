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
 * The minimum pause in ms before weftd starts `ip monitor` again; RESTART_MAX_MS is the maximum pause. The pause
 * doubles after each failure, and is reset to the minimum after a run longer than the maximum pause. Each start counts
 * as a change, so weftd checks the host every RESTART_MAX_MS even if `ip monitor` cannot run.
 */
const RESTART_MIN_MS = 200
const RESTART_MAX_MS = 5_000
/**
 * The words before `ip monitor` that make the kernel kill it when this process dies (setpriv of util-linux 2.33).
 * Without setpriv, `ip monitor` ends only when it next prints a change (SIGPIPE).
 */
const DIE_WITH_PARENT = ['setpriv', '--pdeathsig', 'KILL']

/**
 * A command that reports changes, and a filter for its output lines. Without a filter every line counts as a change.
 */
export interface Watched {
  readonly monitor: readonly string[]
  readonly matters?: (line: string) => boolean
}

const OBJECTS = ['monitor', 'link', 'address', 'route', 'rule']

/**
 * Returns the command that reports changes of links, and of the addresses, routes and routing rules of the families
 * `families`.
 */
export function changesOf(families: readonly Family[]): Watched {
  // An IPv4-only network needs no filter, because only IPv6 router advertisements cause lines that must be filtered.
  if (!families.includes('ipv6')) return { monitor: ['ip', '-4', ...OBJECTS] }
  const flags = families.includes('ipv4') ? ['-o'] : ['-o', '-6']
  return { monitor: ['ip', ...flags, ...OBJECTS], matters: createChangeFilter() }
}

/** The maximum number of addresses and routes for which the filter stores the last line. */
const REMEMBERED = 10_000
const LIFETIMES = / (?:valid_lft|preferred_lft|expires) \S+/g
/**
 * Match the part of an output line that identifies an address (interface and address) or a route (destination, device
 * and metric).
 */
const NAMES = [/^(\d+): \S+\s+inet6? (\S+)/, /^(.+?)(?: via .*)? dev (\S+).*? (metric \d+)/]

/**
 * Makes a filter for lines of `ip -o monitor`. The filter returns false for lines that only renew the lifetime of an
 * address or route. Every router advertisement renews lifetimes (RFC 4862 section 5.5.3).
 */
export function createChangeFilter(): (line: string) => boolean {
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

/** Watches this host for changes, from a time when weftd does not know the families of the network yet. */
interface HostWatch {
  /** Watches `families` from now on. Before the first call the host watch reports only changes of IPv4. */
  readonly follow: (families: readonly Family[]) => void
  readonly end: () => Promise<void>
}

/**
 * Makes a host watch, which runs one `ip monitor` at a time. It calls `onChange` when the host has changed, and ends
 * when `signal` aborts.
 */
export function createHostWatch(onChange: () => void, log: Log, signal: AbortSignal): HostWatch {
  let over = new AbortController()
  let command: readonly string[] = []
  let watching: Promise<unknown> = Promise.resolve()
  function follow(families: readonly Family[]): void {
    const watched = changesOf(families)
    if (watched.monitor.join() === command.join()) return
    const isFirst = command.length === 0
    command = watched.monitor
    over.abort()
    over = new AbortController()
    watching = Promise.all([watching, watchHost(onChange, log, AbortSignal.any([signal, over.signal]), watched)])
    if (!isFirst) onChange() // changes between the two children were not seen
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

/**
 * Returns the command that reports changes of the neighbours and forwarding entries of the devices that `names`
 * returns. `names` is called for each report, because a device may be renamed.
 */
export const entriesOf = (names: () => readonly string[]): Watched => ({
  monitor: ['ip', 'monitor', 'neigh'],
  matters: (line) => names().some((device) => line.includes(` dev ${device} `)),
})

/**
 * Calls `onChange` when the host changed, or may have changed because `ip monitor` did not run. The caller must find
 * out what changed. Resolves when `signal` aborts.
 */
export async function watchHost(
  onChange: () => void,
  log: Log,
  signal: AbortSignal,
  watched: Watched = changesOf(['ipv4']),
): Promise<void> {
  let prefix = DIE_WITH_PARENT
  let restartMs = RESTART_MIN_MS
  while (!signal.aborted) {
    const startedAt = performance.now()
    const ended = await runMonitor(prefix, watched, onChange, signal)
    if (signal.aborted) return
    onChange()
    if (prefix.length > 0 && !ended.bySignal) {
      prefix = [] // setpriv is missing, or lacks the option (busybox)
      continue
    }
    if (performance.now() - startedAt > RESTART_MAX_MS) restartMs = RESTART_MIN_MS
    if (restartMs === RESTART_MIN_MS)
      log.warn(`\`ip monitor\` ended: ${ended.why}. Starting it again, and looking for changes every 5 s until then`)
    await pause(signal, restartMs).catch(() => {})
    restartMs = Math.min(2 * restartMs, RESTART_MAX_MS)
  }
}

/** Runs `ip monitor` until it ends or `signal` aborts. */
async function runMonitor(
  prefix: readonly string[],
  { monitor: command, matters }: Watched,
  onChange: () => void,
  signal: AbortSignal,
): Promise<{ readonly bySignal: boolean; readonly why: string }> {
  const [file = '', ...args] = [...prefix, ...command]
  let stop = (): void => {}
  try {
    const monitor = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], env: childEnvironment() })
    const closed = once(monitor, 'close')
    stop = () => void monitor.kill()
    signal.addEventListener('abort', stop)
    // If this process has no free descriptors, Node.js does not start the command and leaves stdout and stderr
    // undefined, contrary to their types.
    const { stdout, stderr } = monitor as Partial<typeof monitor>
    if (stdout && matters) createInterface(stdout).on('line', (line) => matters(line) && onChange())
    else stdout?.on('data', onChange)
    // If the kernel drops reports because its queue is full, iproute2 prints a warning to stderr and continues
    // (lib/libnetlink.c, rtnl_listen). So output on stderr counts as a change.
    stderr?.on('data', onChange)
    const [code, by] = (await closed) as [number | null, string | null]
    return { bySignal: by !== null, why: by ?? `exit code ${code}` }
  } catch (error) {
    return { bySignal: false, why: messageOf(error) }
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
