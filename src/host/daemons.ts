// daemons.ts - the daemons of flannel's kind that run in this network namespace, as /proc shows them.

import { readdir, readFile, readlink, stat } from 'node:fs/promises'
import { basename } from 'node:path'

/** The end of the name of the lock that a weftd holds beside its subnet file. */
export const LOCK_END = '.handover.lock'
/** flanneld's default subnet file. */
const SUBNET_FILE = '/run/flannel/subnet.env'

export interface RunningDaemon {
  readonly pid: number
  /** Begins with `weftd` or `flanneld`. */
  readonly name: string
}

/** Lists the daemons other than this process; `proc` is where procfs is mounted. */
export async function listDaemons(proc = '/proc'): Promise<RunningDaemon[]> {
  const running: RunningDaemon[] = []
  const here = await readlink(`${proc}/self/ns/net`)
  for (const pid of (await readdir(proc)).filter((name) => /^\d+$/.test(name) && name !== String(process.pid))) {
    const command = await readFile(`${proc}/${pid}/cmdline`, 'utf8').catch(() => '') // the process ended
    const name = daemonName(command.split('\0'))
    if (name === undefined) continue
    // If this process may not see the namespace of another user's process, that process counts as one of this host. An ended process does not.
    const there = await readlink(`${proc}/${pid}/ns/net`).catch((error: NodeJS.ErrnoException) =>
      error.code === 'ENOENT' || error.code === 'ESRCH' ? undefined : here,
    )
    if (there === here) running.push({ pid: Number(pid), name })
  }
  return running
}

/** Returns the name of a daemon of flannel's kind by its command line; undefined for another program. weftd is a script: its interpreter comes first, until weftd has given itself its name. */
export function daemonName([program = '', script = '']: readonly string[]): string | undefined {
  const name = basename(program)
  if (/^(flanneld|weftd)\b/.test(name)) return name
  return name.startsWith('node') && /^(flanneld|weftd)$/.test(basename(script)) ? basename(script) : undefined
}

/** The subnet file of a running daemon, as this process can open it, and the lock that a weftd holds beside it. */
export interface DaemonFiles {
  readonly subnetFile: string
  /** The device and the inode of the lock; undefined for a flanneld, which holds none. */
  readonly lock: string | undefined
}

/** Undefined for a weftd that holds no lock: it waits for another weftd, and forwards nothing yet. */
export async function filesOf({ pid }: RunningDaemon, proc = '/proc'): Promise<DaemonFiles | undefined> {
  const root = `${proc}/${pid}/root`
  const held = await lockHeldBy(`${proc}/${pid}/fd`)
  if (held) return { subnetFile: `${root}${held.path.slice(0, -LOCK_END.length)}`, lock: held.lock }
  const read = (file: string): Promise<readonly string[]> =>
    readFile(`${proc}/${pid}/${file}`, 'utf8').then(
      (text) => text.split('\0'),
      () => [],
    )
  const command = await read('cmdline')
  // weftd overwrites its command line by its name, so that its flags cannot be read.
  if (!/^flanneld\b/.test(basename(command[0] ?? ''))) return undefined
  const given = flagOf(command, 'subnet-file') ?? variableOf(await read('environ'), 'FLANNELD_SUBNET_FILE')
  return { subnetFile: `${root}${given ?? SUBNET_FILE}`, lock: undefined }
}

/** The device and the inode of a file, by which two names of one file are known; undefined if there is none. */
export const identityOf = (path: string): Promise<string | undefined> =>
  stat(path).then(
    ({ dev, ino }) => `${dev}:${ino}`,
    () => undefined,
  )

async function lockHeldBy(folder: string): Promise<{ readonly path: string; readonly lock: string } | undefined> {
  for (const fd of await readdir(folder).catch(() => [])) {
    const path = await readlink(`${folder}/${fd}`).catch(() => '')
    if (!path.endsWith(LOCK_END)) continue
    const lock = await identityOf(`${folder}/${fd}`)
    if (lock !== undefined) return { path, lock }
  }
  return undefined
}

/** The value of a flag of Go's syntax: `-name value` or `--name=value`. */
function flagOf(command: readonly string[], name: string): string | undefined {
  const at = command.findLastIndex((word) => new RegExp(`^--?${name}(=|$)`).test(word))
  const word = command[at]
  if (word === undefined) return undefined
  return word.includes('=') ? word.slice(word.indexOf('=') + 1) : command[at + 1]
}

const variableOf = (environment: readonly string[], name: string): string | undefined =>
  environment.find((text) => text.startsWith(`${name}=`))?.slice(name.length + 1)
