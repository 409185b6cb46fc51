// events.ts - hears from the kernel that a link, an address or a route changed, by `ip monitor`.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { messageOf } from '../errors.ts'
import type { Log } from '../log.ts'
import { pause } from './bell.ts'

const RESTART_MS = 5_000

/**
 * Calls `onChange` whenever something of the host's network changed, or may have changed unheard: what it was is for
 * the caller to look up. Goes on until `signal` aborts, then resolves.
 */
export async function watchHost(onChange: () => void, log: Log, signal: AbortSignal): Promise<void> {
  let complained = false
  while (!signal.aborted) {
    const monitor = spawn('ip', ['-4', 'monitor', 'link', 'address', 'route'], { stdio: ['ignore', 'pipe', 'pipe'] })
    const stop = (): void => void monitor.kill()
    signal.addEventListener('abort', stop)
    monitor.stdout.on('data', onChange)
    // When the kernel's queue ran over, iproute2 says so there and reads on (lib/libnetlink.c, rtnl_listen).
    monitor.stderr.on('data', onChange)
    try {
      const [code, by] = (await once(monitor, 'close')) as [number | null, string | null]
      if (!signal.aborted) throw new Error(`it ended with ${by ?? code}`)
    } catch (error) {
      if (!complained) log.warn(`Cannot follow changes by \`ip monitor\`, looking every 5 s: ${messageOf(error)}`)
      complained = true
    } finally {
      signal.removeEventListener('abort', stop)
    }
    onChange()
    await pause(signal, RESTART_MS).catch(() => {})
  }
}
