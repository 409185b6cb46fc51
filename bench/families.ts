// families.ts - `npm run bench -- families`: what IPv6 beside IPv4 costs a node among thousands, by the kernel's vxlan.
//
// The other nodes are files of a lease directory. Networks of IPv4 alone and of both families take turns within a round. The commands
// that a daemon runs are counted by programs of the same names that come first in its PATH.

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
  `that many leases in a directory, on one host by vxlan of the kernel; start: from the start of the process to the last line that tells of a peer, ` +
  `which comes when the kernel has its entries and routes; CPU of the process and of its commands until then, and VmRSS; commands: how often it ran ` +
  `\`ip\` or \`bridge\` until then; batches: those of them that change what the kernel has; a change: the lease of one node with another MAC in each family, from the rename of its file to ` +
  `the line of it, median of ${CHANGES}`

/** By the name of a path, the families of its network. */
const PATHS: Readonly<Record<string, readonly Family[]>> = { ipv4: ['ipv4'], both: ['ipv4', 'ipv6'] }

const METRICS = {
  start: { title: 'start to all peers', unit: 's', better: 'less' },
  cpu: { title: 'CPU until then, with commands', unit: 's', better: 'less' },
  rss: { title: 'memory then', unit: 'MiB', better: 'less' },
  commands: { title: 'commands until then', unit: '', better: 'less' },
  batches: { title: 'batches of changes until then', unit: '', better: 'less' },
  change: { title: 'a change, to the kernel', unit: 'ms', better: 'less' },
} as const
type Sample = Readonly<Record<keyof typeof METRICS, number>>

const hex = (number: number): string => number.toString(16)
const macOf = (first: string, number: number): string =>
  [first, '00', '00', (number >> 16) & 255, (number >> 8) & 255, number & 255]
    .map((part) => (typeof part === 'string' ? part : hex(part).padStart(2, '0')))
    .join(':')

/** The lease of a peer: its file's name, and its text when it has been changed so often. */
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

/** Counts the lines that tell of a peer; `until` resolves when there have been so many since the start. */
export function countTold(daemon: Daemon, telling: string): { readonly until: (count: number) => Promise<void> } {
  let number = 0
  let waiting:
    | { readonly count: number; readonly resolve: () => void; readonly reject: (why: Error) => void }
    | undefined
  createInterface({ input: daemon.process.stderr as Readable }).on('line', (line) => {
    if (line.includes(telling) && ++number >= (waiting?.count ?? Infinity)) waiting?.resolve()
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

/** A folder of `ip` and `bridge` that note how they are called in `calls`. */
async function counting(folder: string): Promise<string> {
  mkdirSync(folder)
  for (const name of ['ip', 'bridge']) {
    const program = (await output(['sh', '-c', `command -v ${name}`])).trim()
    writeFileSync(join(folder, name), `#!/bin/sh\necho "$*" >> ${folder}/calls\nexec ${program} "$@"\n`)
    chmodSync(join(folder, name), 0o755)
  }
  return folder
}

/** CPU seconds of a process and of the children that it has waited for (proc_pid_stat(5): utime to cstime). */
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
      // As another daemon does it: nobody sees half a file.
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
    const told = countTold(daemon, 'Received Subnet Event')
    await told.until(nodes)
    const start = (performance.now() - began) / 1000
    const full = { start, cpu: cpuSeconds(pid), rss: rssMiB(pid) }
    const calls = readFileSync(join(folder, 'calls'), 'utf8').trim().split('\n')
    const ran = { commands: calls.length, batches: calls.filter((each) => /-force .*-batch/.test(each)).length }
    // Counting is over: a change is to cost what it costs.
    for (const name of ['ip', 'bridge']) rmSync(join(folder, name))
    const times: number[] = []
    for (let change = 1; change <= CHANGES; change++) {
      const heard = told.until(nodes + change)
      const changed = performance.now()
      write(change, change)
      await heard
      times.push(performance.now() - changed)
    }
    return { ...full, ...ran, change: median(times) }
  } finally {
    await lab.close()
  }
}

/** The same from another one on each round. */
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
