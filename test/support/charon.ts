// charon.ts - runs several daemons with the backend ipsec on one machine.

import { readFileSync } from 'node:fs'
import { expect } from 'vitest'
import type { Host, Lab } from '../../lab/lab.ts'
import { eventually } from './event.ts'

/**
 * Returns a command prefix (`DaemonArgs.before`) that gives a daemon its own empty folder /run, because charon's socket and pid file have
 * fixed paths in it. The lab's folder stays visible, even if it is below /run.
 */
export const apart = ({ folder }: Lab): readonly string[] => [
  'unshare',
  '--mount',
  'sh',
  '-c',
  'mount --bind "$0" /mnt && mount -t tmpfs tmpfs /run && mkdir -p "$0" && mount --move /mnt "$0" && exec "$@"',
  folder,
]

/**
 * Makes one more such folder /run, for several daemons of a host one after another. Returns the command prefix that runs a program with it.
 */
export async function shared(lab: Lab, host: Host): Promise<readonly string[]> {
  const { pid } = host.spawn([...apart(lab), 'sleep', 'infinity'])
  await eventually(() => expect(readFileSync(`/proc/${pid}/comm`, 'utf8').trim()).toBe('sleep'))
  return ['nsenter', '--mount', '-t', String(pid)]
}
