// daemons.ts - finds the weftd and flanneld processes that run in this network namespace, by reading /proc.

import { readdir, readFile, readlink, stat } from 'node:fs/promises'
import { basename } from 'node:path'

/** The end of the name of the lock file that a running weftd holds next to its subnet file. */
export const LOCK_END = '.handover.lock'
const SUBNET_FILE = '/run/flannel/subnet.env'
/** The number of the capability CAP_NET_ADMIN (linux/capability.h), which weftd and flanneld need. */
const NET_ADMIN = 12n

interface RunningDaemon {
  readonly pid: number
  /** The name of the program, which begins with `weftd` or `flanneld`. */
  readonly name: string
}

/**
 * Lists the weftd and flanneld processes of this network namespace, except this process. `proc` is the mount point of
 * procfs.
 */
export async function listDaemons(proc = '/proc'): Promise<RunningDaemon[]> {
  const running: RunningDaemon[] = []
  const here = await readlink(`${proc}/self/ns/net`)
  for (const pid of (await readdir(proc)).filter((name) => /^\d+$/.test(name) && name !== String(process.pid))) {
    const command = await readFile(`${proc}/${pid}/cmdline`, 'utf8').catch(() => '') // the process ended
    const name = daemonName(command.split('\0'))
    if (name === undefined) continue
    // A process of another user, whose namespace weft may not read, counts as being in this namespace. A process that
    // has ended does not count.
    const there = await readlink(`${proc}/${pid}/ns/net`).catch((error: NodeJS.ErrnoException) =>
      error.code === 'ENOENT' || error.code === 'ESRCH' ? undefined : here,
    )
    if (there === here && (await mayManageNetwork(pid, proc))) running.push({ pid: Number(pid), name })
  }
  return running
}

/**
 * Returns false if a process has no right to change network devices, because it lacks the capability, or has the
 * capability in a user namespace that does not own the network namespace. Every user can start a program under the name
 * of a daemon, and weft must not regard such a program as the owner of a device. Returns true if /proc does not show the
 * rights.
 */
async function mayManageNetwork(pid: string, proc: string): Promise<boolean> {
  const status = await readFile(`${proc}/${pid}/status`, 'utf8').catch(() => '')
  const [, capabilities] = /^CapEff:\s*([\da-f]+)$/m.exec(status) ?? []
  if (capabilities !== undefined && ((BigInt(`0x${capabilities}`) >> NET_ADMIN) & 1n) === 0n) return false
  const namespaceOf = (each: string) => readlink(`${proc}/${each}/ns/user`).catch(() => undefined)
  const [own, other] = [await namespaceOf('self'), await namespaceOf(pid)]
  if (own === undefined || other === undefined || own === other) return true
  // An operator may have entered the network namespace of a rootless container, for example with `nsenter --net`. Daemons
  // of that container have all rights in the namespace. The kernel gives the network settings of a namespace to the root
  // user of its owner.
  const ownerOf = (path: string) => stat(path).then(({ uid }) => uid)
  const owners = Promise.all([ownerOf(proc), ownerOf(`${proc}/sys/net/ipv4/ip_forward`)])
  return owners.then(
    ([root, owner]) => owner !== root,
    () => false,
  )
}

/**
 * Returns the name of the daemon if a command line belongs to weftd or flanneld; undefined for other programs. weftd is
 * a script, so the first word is the script's interpreter until weftd has set its process title.
 */
export function daemonName([program = '', script = '']: readonly string[]): string | undefined {
  const name = basename(program)
  if (/^(flanneld|weftd)\b/.test(name)) return name
  return name.startsWith('node') && /^(flanneld|weftd)$/.test(basename(script)) ? basename(script) : undefined
}

interface DaemonFiles {
  readonly subnetFile: string
  /** Device and inode of weftd's lock file; undefined for flanneld, which has no lock file. */
  readonly lock: string | undefined
}

/**
 * Finds the subnet file and the lock file of a running daemon. Returns undefined for a weftd that holds no lock: this
 * weftd still waits for another weftd to stop, and does not forward packets.
 */
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
  // Only flanneld's command line has flags: weftd's command line consists only of its process title.
  if (!/^flanneld\b/.test(basename(command[0] ?? ''))) return undefined
  const given = flagOf(command, 'subnet-file') ?? variableOf(await read('environ'), 'FLANNELD_SUBNET_FILE')
  return { subnetFile: `${root}${given ?? SUBNET_FILE}`, lock: undefined }
}

/** Returns device and inode of a file, which identify the file under any path; undefined if the file does not exist. */
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

/**
 * Returns the value of a flag in a command line, written as `-name value` or `--name=value`, as Go's flag package
 * allows.
 */
function flagOf(command: readonly string[], name: string): string | undefined {
  const at = command.findLastIndex((word) => new RegExp(`^--?${name}(=|$)`).test(word))
  const word = command[at]
  if (word === undefined) return undefined
  return word.includes('=') ? word.slice(word.indexOf('=') + 1) : command[at + 1]
}

const variableOf = (environment: readonly string[], name: string): string | undefined =>
  environment.find((text) => text.startsWith(`${name}=`))?.slice(name.length + 1)
