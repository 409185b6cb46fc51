// families.ts - `npm run bench -- families`: measures the time, CPU time and memory that a dual-stack network costs a
// node in a network of thousands of nodes, compared with an IPv4 network. The backends are the kernel's vxlan, host-gw,
// udp and weft's own wireguard. With `--old FOLDER` the benchmark also measures the checkout of weft in FOLDER, and
// alternates between the two checkouts.
//
// All nodes but one exist only as files in a lease directory. To count the calls of `ip` and `bridge`, weftd's PATH
// begins with a folder of programs with these names, which log the call and run the real program.

import { createHash } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { output } from '../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab } from '../lab/lab.ts'
import { median } from '../lab/measure.ts'
import type { Progress } from '../scripts/progress.mjs'
import type { Family } from '../src/net/address.ts'
import type { Part, Series } from './result.ts'

export const FAMILIES_SECONDS_A_ROUND = 600
const NODES = [5_000, 10_000] as const
const CHANGES = 20
/**
 * The delay in ms from weftd's start to the measurement of a changed lease. During this delay weftd writes its state to
 * files, which would disturb the measurement.
 */
const SETTLE_MS = 10_000

const METHOD =
  `5,000 or 10,000 leases in a directory, one host. start: from the start of the process until it logs the last peer, ` +
  `when the kernel has its entries and routes; CPU of the process and its commands until then, and VmRSS. system: the part of this CPU time in the kernel. commands: calls of ` +
  `\`ip\` or \`bridge\` until then. change: one node's lease gets another MAC or, without vxlan, another host in each family, from the rename of the file to ` +
  `the log line, median of ${CHANGES}. CPU of a change: the CPU time of all threads of the process in the ${CHANGES} changes and the second after each, less that of ${CHANGES} s without changes, divided by ${CHANGES}`

interface Path {
  readonly backend: 'vxlan' | 'host-gw' | 'udp' | 'wireguard'
  readonly families: readonly Family[]
  /**
   * The folder of the checkout of weft to measure; if `checkout` is absent, the benchmark measures the checkout that it
   * runs from.
   */
  readonly checkout?: string
}

const BOTH = ['ipv4', 'ipv6'] as const
const PATHS: Readonly<Record<string, Path>> = {
  ipv4: { backend: 'vxlan', families: ['ipv4'] },
  both: { backend: 'vxlan', families: BOTH },
  'both, host-gw': { backend: 'host-gw', families: BOTH },
  'both, udp': { backend: 'udp', families: BOTH },
  'both, wireguard': { backend: 'wireguard', families: BOTH },
}
/** The object `Backend` of the network configuration for each backend that is measured. */
const BACKENDS: Readonly<Record<Path['backend'], object>> = {
  vxlan: { Type: 'vxlan', DataPath: 'kernel' },
  'host-gw': { Type: 'host-gw' },
  udp: { Type: 'udp' },
  wireguard: { Type: 'wireguard', DataPath: 'userspace' },
}

const METRICS = {
  start: { title: 'start to all peers', unit: 's', better: 'less' },
  cpu: { title: 'CPU until all peers, with commands', unit: 's', better: 'less' },
  system: { title: 'CPU in the kernel until all peers', unit: 's', better: 'less' },
  rss: { title: 'memory with all peers', unit: 'MiB', better: 'less' },
  commands: { title: 'commands until all peers', unit: '', better: 'less' },
  change: { title: 'a changed lease until the kernel has it', unit: 'ms', better: 'less' },
  changeCpu: { title: 'CPU of a changed lease', unit: 'ms', better: 'less' },
} as const
type Sample = Readonly<Record<keyof typeof METRICS, number>>

const hex = (number: number): string => number.toString(16)
/** Returns a text that weftd accepts as the public key of a node. */
const publicKeyOf = (number: number): string => createHash('sha256').update(String(number)).digest('base64')
const macOf = (first: string, number: number): string =>
  [first, '00', '00', (number >> 16) & 255, (number >> 8) & 255, number & 255]
    .map((part) => (typeof part === 'string' ? part : hex(part).padStart(2, '0')))
    .join(':')

/**
 * Returns the file name and the text of a node's lease. `changed` is the number of changes so far. With the backend
 * vxlan each change gives the lease another MAC address (VtepMAC). With the other backends, whose leases contain no MAC
 * address, each change gives the lease other public IP addresses.
 */
function lease({ backend, families }: Path, number: number, changed = 0): readonly [key: string, text: string] {
  const [ipv4, ipv6] = [`10.${1 + (number >> 8)}.${number & 255}.0-24`, `fd00:5:0:${hex(0x1000 + number)}::-64`]
  const withIpv6 = families.includes('ipv6')
  const isVxlan = backend === 'vxlan'
  const mac = (first: string): object => ({ VNI: 1, VtepMAC: macOf(first, number + changed * 65_536) })
  const moved = isVxlan ? 0 : changed
  const value = {
    PublicIP: `172.${16 + moved}.${(number >> 8) & 255}.${number & 255}`,
    PublicIPv6: withIpv6 ? `fd88::${hex(moved)}:${hex(0x1000 + number)}` : null,
    BackendType: backend,
    ...(isVxlan ? { BackendData: mac('02') } : {}),
    ...(isVxlan && withIpv6 ? { BackendV6Data: mac('06') } : {}),
    ...(backend === 'wireguard' ? { BackendData: { PublicKey: publicKeyOf(number), Port: 51_820 } } : {}),
  }
  return [withIpv6 ? `${ipv4}&${ipv6}` : ipv4, JSON.stringify(value)]
}

/**
 * Counts the log lines of a weftd that contain `text`, from this call on. `until(count)` resolves when the number of
 * lines reaches `count`.
 */
export function countLines(daemon: Daemon, text: string): { readonly until: (count: number) => Promise<void> } {
  let number = 0
  let waiting:
    | { readonly count: number; readonly resolve: () => void; readonly reject: (why: Error) => void }
    | undefined
  createInterface({ input: daemon.process.stderr as Readable }).on('line', (line) => {
    if (line.includes(text) && ++number >= (waiting?.count ?? Infinity)) waiting?.resolve()
  })
  daemon.process.once('exit', () => waiting?.reject(new Error('weftd ended before it had all peers')))
  return {
    until: (count) =>
      new Promise((resolve, reject) => {
        waiting = { count, resolve, reject }
        if (number >= count) resolve()
      }),
  }
}

/**
 * Makes a folder with programs named `ip` and `bridge`. Each program appends its arguments to the file `calls` and then
 * runs the real program.
 */
async function counting(folder: string): Promise<string> {
  mkdirSync(folder)
  for (const name of ['ip', 'bridge']) {
    const program = (await output(['sh', '-c', `command -v ${name}`])).trim()
    writeFileSync(join(folder, name), `#!/bin/sh\necho "$*" >> ${folder}/calls\nexec ${program} "$@"\n`)
    chmodSync(join(folder, name), 0o755)
  }
  return folder
}

/**
 * Returns the CPU seconds that a process and its ended child processes have used, in user mode and in kernel mode
 * (proc_pid_stat(5): utime to cstime).
 */
function cpuPartsOf(pid: number): { readonly user: number; readonly system: number } {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const [utime = 0, stime = 0, cutime = 0, cstime = 0] = stat
    .slice(stat.lastIndexOf(')'))
    .split(' ')
    .slice(12, 16)
    .map(Number)
  return { user: (utime + cutime) / 100, system: (stime + cstime) / 100 }
}
export function cpuSeconds(pid: number): number {
  const { user, system } = cpuPartsOf(pid)
  return user + system
}
/** Returns the CPU time in ms that the threads of a process have used (sched-stats.rst). */
const threadsMs = (pid: number): number =>
  readdirSync(`/proc/${pid}/task`)
    .map((id) => Number(readFileSync(`/proc/${pid}/task/${id}/schedstat`, 'utf8').split(' ')[0]) / 1e6)
    .reduce((sum, ms) => sum + ms, 0)
export const rssMiB = (pid: number): number =>
  Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024

async function sample(path: Path, nodes: number): Promise<Sample> {
  const { backend, families, checkout } = path
  const lab: Lab = await createLab({ hosts: 1, families: ['ipv4', 'ipv6'] })
  try {
    const [host] = lab.hosts as [Host]
    const leases = join(lab.folder, 'leases')
    const subnets = join(leases, 'subnets')
    mkdirSync(subnets, { recursive: true })
    const ipv6 = families.includes('ipv6') ? { EnableIPv6: true, IPv6Network: 'fd00:5::/48' } : {}
    const config = { Network: '10.0.0.0/8', SubnetLen: 24, SubnetMin: '10.200.0.0', ...ipv6 }
    writeFileSync(join(leases, 'config'), JSON.stringify({ ...config, Backend: BACKENDS[backend] }))
    // host-gw needs all hosts on one link.
    if (backend === 'host-gw')
      for (const link of ['172.16.0.0/12', 'fd88::/64']) await host.run(['ip', 'route', 'add', link, 'dev', 'eth0'])
    const write = (number: number, changed = 0): void => {
      const [key, text] = lease(path, number, changed)
      // Write a new file and rename it, as weftd does, so that readers never see an incomplete lease.
      writeFileSync(join(lab.folder, 'new'), text)
      renameSync(join(lab.folder, 'new'), join(subnets, key))
    }
    for (let number = 0; number < nodes; number++) write(number)
    const folder = await counting(join(lab.folder, 'bin'))
    const began = performance.now()
    const daemon = host.startDaemon({
      args: ['--lease-dir', leases],
      before: ['env', `PATH=${folder}:${process.env['PATH']}`],
      env: { WIREGUARD_KEY_FILE: join(lab.folder, 'wgkey') },
      ...(checkout === undefined ? {} : { checkout }),
    })
    const pid = daemon.process.pid as number
    const peers = countLines(daemon, backend === 'vxlan' ? 'Received Subnet Event' : 'Subnet added: 10.')
    await peers.until(nodes)
    const start = (performance.now() - began) / 1000
    const { user, system } = cpuPartsOf(pid)
    const full = { start, cpu: user + system, system, rss: rssMiB(pid) }
    const calls = join(folder, 'calls')
    const commands = existsSync(calls) ? readFileSync(calls, 'utf8').trim().split('\n').length : 0
    // Remove the programs that count calls, because they would slow down the changes that are timed next.
    for (const name of ['ip', 'bridge']) rmSync(join(folder, name))
    await delay(SETTLE_MS)
    const idleFrom = threadsMs(pid)
    await delay(CHANGES * 1000)
    const changesFrom = threadsMs(pid)
    const times: number[] = []
    for (let change = 1; change <= CHANGES; change++) {
      const applied = peers.until(nodes + change)
      const changed = performance.now()
      write(change, change)
      await applied
      times.push(performance.now() - changed)
      await delay(Math.max(0, changed + 1000 - performance.now()))
    }
    const changeCpu = (threadsMs(pid) - changesFrom - (changesFrom - idleFrom)) / CHANGES
    return { ...full, commands, change: median(times), changeCpu }
  } finally {
    await lab.close()
  }
}

/** Rotates a list by `round` elements, so that each round of the benchmark begins with another element. */
const turn = <T>(all: readonly T[], round: number): T[] => all.map((_, at) => all[(at + round) % all.length] as T)

/** Measures this checkout and, if `old` is given, the checkout in the folder `old`. */
export async function measureFamilies(rounds: number, progress: Progress, old?: string): Promise<Part> {
  const olds = old === undefined ? [] : Object.entries(PATHS).filter(([, { families }]) => families === BOTH)
  const paths: Readonly<Record<string, Path>> = {
    ...PATHS,
    ...Object.fromEntries(olds.map(([name, path]) => [`${name}, old`, { ...path, checkout: old as string }])),
  }
  const samples: { readonly nodes: number; readonly path: string; readonly sample: Sample }[] = []
  for (let round = 0; round < rounds; round++)
    for (const nodes of NODES)
      for (const [name, path] of turn(Object.entries(paths), round)) {
        progress.now(
          `families: ${nodes} nodes, ${name}`,
          FAMILIES_SECONDS_A_ROUND / Object.keys(paths).length / NODES.length,
        )
        samples.push({ nodes, path: name, sample: await sample(path, nodes) })
        progress.plain(`families: ${nodes} nodes, ${name} measured`)
      }
  const series = NODES.flatMap((nodes) =>
    (Object.keys(METRICS) as (keyof Sample)[]).map((metric): Series => {
      const valuesOf = (path: string): number[] =>
        samples.filter((each) => each.nodes === nodes && each.path === path).map((each) => each.sample[metric])
      return {
        case: `families${nodes}`,
        metric,
        ...METRICS[metric],
        title: `${nodes.toLocaleString('en')} nodes: ${METRICS[metric].title}`,
        values: Object.fromEntries(Object.keys(paths).map((path) => [path, valuesOf(path)])),
      }
    }),
  )
  return { name: 'families', rounds, seconds: 0, method: { families5000: METHOD }, series }
}
