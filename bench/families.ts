// families.ts - `npm run bench -- families`: measures the time, CPU time and memory that a dual-stack network
// costs a node in a network of thousands of nodes, compared with an IPv4 network. The backend is the kernel's vxlan.
//
// All nodes but one exist only as files in a lease directory. Each round measures an IPv4 network and a dual-stack
// network. To count the calls of `ip` and `bridge`, weftd's PATH begins with a folder of programs with these names,
// which log the call and run the real program.

import { chmodSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { output } from '../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab } from '../lab/lab.ts'
import { median } from '../lab/measure.ts'
import type { Progress } from '../scripts/progress.mjs'
import type { Family } from '../src/net/address.ts'
import type { Part, Series } from './result.ts'

export const FAMILIES_SECONDS_A_ROUND = 120
const NODES = [5_000, 10_000] as const
const CHANGES = 20

const METHOD =
  `5,000 or 10,000 leases in a directory, one host with kernel vxlan. start: from the start of the process until it logs the last peer, ` +
  `when the kernel has its entries and routes; CPU of the process and its commands until then, and VmRSS. commands: calls of ` +
  `\`ip\` or \`bridge\` until then. batches: the calls that change the kernel. change: one node's lease gets another MAC in each family, from the rename of the file to ` +
  `the log line, median of ${CHANGES}`

const PATHS: Readonly<Record<string, readonly Family[]>> = { ipv4: ['ipv4'], both: ['ipv4', 'ipv6'] }

const METRICS = {
  start: { title: 'start to all peers', unit: 's', better: 'less' },
  cpu: { title: 'CPU until all peers, with commands', unit: 's', better: 'less' },
  rss: { title: 'memory with all peers', unit: 'MiB', better: 'less' },
  commands: { title: 'commands until all peers', unit: '', better: 'less' },
  batches: { title: 'batches of changes until all peers', unit: '', better: 'less' },
  change: { title: 'a changed lease until the kernel has it', unit: 'ms', better: 'less' },
} as const
type Sample = Readonly<Record<keyof typeof METRICS, number>>

const hex = (number: number): string => number.toString(16)
const macOf = (first: string, number: number): string =>
  [first, '00', '00', (number >> 16) & 255, (number >> 8) & 255, number & 255]
    .map((part) => (typeof part === 'string' ? part : hex(part).padStart(2, '0')))
    .join(':')

/**
 * Returns the file name and the text of a node's lease. `changed` is the number of changes so far; each change gives
 * the node another MAC address.
 */
function lease(families: readonly Family[], number: number, changed = 0): readonly [key: string, text: string] {
  const [ipv4, ipv6] = [`10.${1 + (number >> 8)}.${number & 255}.0-24`, `fd00:5:0:${hex(0x1000 + number)}::-64`]
  const withIpv6 = families.includes('ipv6')
  const mac = (first: string): object => ({ VNI: 1, VtepMAC: macOf(first, number + changed * 65_536) })
  const value = {
    PublicIP: `172.${16 + (number >> 16)}.${(number >> 8) & 255}.${number & 255}`,
    PublicIPv6: withIpv6 ? `fd88::${hex(0x1000 + number)}` : null,
    BackendType: 'vxlan',
    BackendData: mac('02'),
    ...(withIpv6 ? { BackendV6Data: mac('06') } : {}),
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
 * Returns the CPU seconds that a process and its ended child processes have used (proc_pid_stat(5): utime to cstime).
 */
export function cpuSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')')).split(' ')
  return fields.slice(12, 16).reduce((sum, ticks) => sum + Number(ticks), 0) / 100
}
export const rssMiB = (pid: number): number =>
  Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024

async function sample(families: readonly Family[], nodes: number): Promise<Sample> {
  const lab: Lab = await createLab({ hosts: 1, families: ['ipv4', 'ipv6'] })
  try {
    const [host] = lab.hosts as [Host]
    const leases = join(lab.folder, 'leases')
    const subnets = join(leases, 'subnets')
    mkdirSync(subnets, { recursive: true })
    const ipv6 = families.includes('ipv6') ? { EnableIPv6: true, IPv6Network: 'fd00:5::/48' } : {}
    const config = { Network: '10.0.0.0/8', SubnetLen: 24, SubnetMin: '10.200.0.0', ...ipv6 }
    writeFileSync(join(leases, 'config'), JSON.stringify({ ...config, Backend: { Type: 'vxlan', DataPath: 'kernel' } }))
    const write = (number: number, changed = 0): void => {
      const [key, text] = lease(families, number, changed)
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
    })
    const pid = daemon.process.pid as number
    const peers = countLines(daemon, 'Received Subnet Event')
    await peers.until(nodes)
    const start = (performance.now() - began) / 1000
    const full = { start, cpu: cpuSeconds(pid), rss: rssMiB(pid) }
    const calls = readFileSync(join(folder, 'calls'), 'utf8').trim().split('\n')
    const ran = { commands: calls.length, batches: calls.filter((each) => /-force .*-batch/.test(each)).length }
    // Remove the programs that count calls, because they would slow down the changes that are timed next.
    for (const name of ['ip', 'bridge']) rmSync(join(folder, name))
    const times: number[] = []
    for (let change = 1; change <= CHANGES; change++) {
      const applied = peers.until(nodes + change)
      const changed = performance.now()
      write(change, change)
      await applied
      times.push(performance.now() - changed)
    }
    return { ...full, ...ran, change: median(times) }
  } finally {
    await lab.close()
  }
}

/** Rotates a list by `round` elements, so that each round of the benchmark begins with another element. */
const turn = <T>(all: readonly T[], round: number): T[] => all.map((_, at) => all[(at + round) % all.length] as T)

export async function measureFamilies(rounds: number, progress: Progress): Promise<Part> {
  const samples: { readonly nodes: number; readonly path: string; readonly sample: Sample }[] = []
  for (let round = 0; round < rounds; round++)
    for (const nodes of NODES)
      for (const [path, families] of turn(Object.entries(PATHS), round)) {
        progress.now(`families: ${nodes} nodes, ${path}`, FAMILIES_SECONDS_A_ROUND / 4)
        samples.push({ nodes, path, sample: await sample(families, nodes) })
        progress.plain(`families: ${nodes} nodes, ${path} measured`)
      }
  const series = NODES.flatMap((nodes) =>
    (Object.keys(METRICS) as (keyof Sample)[]).map((metric): Series => {
      const valuesOf = (path: string): number[] =>
        samples.filter((each) => each.nodes === nodes && each.path === path).map((each) => each.sample[metric])
      return {
        case: `vxlan${nodes}`,
        metric,
        ...METRICS[metric],
        title: `${nodes.toLocaleString('en')} nodes: ${METRICS[metric].title}`,
        values: Object.fromEntries(Object.keys(PATHS).map((path) => [path, valuesOf(path)])),
      }
    }),
  )
  return { name: 'families', rounds, seconds: 0, method: { vxlan5000: METHOD }, series }
}
