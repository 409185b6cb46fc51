// running.ts - whether a daemon of flannel's kind still runs on this host.

import { readdir, readFile, readlink } from 'node:fs/promises'
import { basename } from 'node:path'
import type { Run } from '../../host/command.ts'
import { findDevices } from './device-remains.ts'

/** The daemons of flannel's kind that run in this network namespace, but for this process and `except`, each in words; `proc` is where procfs is mounted. */
export async function findDaemons(proc = '/proc', except?: number): Promise<string[]> {
  const running: string[] = []
  const here = await readlink(`${proc}/self/ns/net`)
  const passedOver = new Set([process.pid, except].map(String))
  for (const pid of (await readdir(proc)).filter((name) => /^\d+$/.test(name) && !passedOver.has(name))) {
    const command = await readFile(`${proc}/${pid}/cmdline`, 'utf8').catch(() => '') // it ended
    const name = daemonName(command.split('\0'))
    if (name === undefined) continue
    // A process of another user's, whose namespace we may not see, is taken to be here; one that has ended meanwhile is nowhere.
    const there = await readlink(`${proc}/${pid}/ns/net`).catch((error: NodeJS.ErrnoException) =>
      error.code === 'ENOENT' || error.code === 'ESRCH' ? undefined : here,
    )
    if (there === here) running.push(`${name} still runs (pid ${pid})`)
  }
  return running
}

/** The daemons that run; when there is none, the devices that somebody forwards through. */
export async function findRunning(run: Run, proc?: string, except?: number): Promise<string[]> {
  const running = await findDaemons(proc, except)
  if (running.length > 0) return running
  // The processes of the host cannot be seen from a container, but the device can.
  const devices = (await findDevices(run)).filter(({ inUse }) => inUse)
  return devices.map(({ name }) => `a process still forwards through ${name}`)
}

/** The name of a daemon of flannel's kind, by its command line; undefined of another program. weftd is a script: its interpreter comes first, until it has given itself its name. */
export function daemonName([program = '', script = '']: readonly string[]): string | undefined {
  const name = basename(program)
  if (/^(flanneld|weftd)\b/.test(name)) return name
  return name.startsWith('node') && /^(flanneld|weftd)$/.test(basename(script)) ? basename(script) : undefined
}
