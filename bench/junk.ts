// junk.ts - `npm run bench -- junk`: measures how much CPU time weftd spends on a flood of packets that it drops, and
// how much the flood delays weftd's other work.
//
// A host without a lease sends datagrams at a fixed rate. weftd drops each datagram, because its inner source address
// belongs to no peer. The source port of a datagram decides which forwarding thread receives it, so the number of ports
// decides whether one thread or all threads are loaded.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { createLab, type Daemon, type Host, type Lab } from '../lab/lab.ts'
import type { Progress } from '../scripts/progress.mjs'
import type { Status } from '../src/report/status.ts'
import { nativeProgram } from './native.ts'
import type { Part, Series } from './result.ts'

export const JUNK_SECONDS_A_ROUND = 25
const SAMPLE_MS = 3_000
const SETTLE_MS = 500
/**
 * The rows of the result: for each row the rate in datagrams per second, and the number of source ports. Datagrams from
 * N ports load at most N forwarding threads.
 */
const RATES = {
  'none, idle': [0, 8],
  '8,000 to one lane': [8_000, 1],
  '100,000 to one lane': [100_000, 1],
  '100,000 to all': [100_000, 8],
} as const
/**
 * The number of times that each sample forces weftd to renew its lease. After more renewals in a short time weftd
 * delays further renewals.
 */
const RENEWALS = 3

const METHOD =
  `datagrams a second from a host without a lease, which weftd refuses. CPU time of the forwarding threads and of Node's thread from ` +
  `/proc/PID/task/TID/schedstat, in ${SAMPLE_MS / 1000} s. Meanwhile a client requests /livez every 50 ms at the Unix socket, and ${RENEWALS} times ` +
  `the node's own lease is overwritten with junk: the longest answer, and the longest time until the lease was renewed`

const METRICS = {
  refused: { title: 'refused', unit: 'packets/s', better: 'more' },
  lanes: { title: 'CPU, forwarding threads', unit: '% of a core', better: 'less' },
  node: { title: "CPU, Node's thread", unit: '% of a core', better: 'less' },
  livez: { title: '/livez, longest', unit: 'ms', better: 'less' },
  renewal: { title: 'renewal, longest', unit: 'ms', better: 'less' },
} as const
type Sample = Record<keyof typeof METRICS, number>

/**
 * Returns the CPU time that a weftd has used since its start, in nanoseconds: `lanes` for its forwarding threads,
 * `node` for its Node.js thread. The source is schedstat of the kernel (sched-stats.rst).
 */
export function cpuOf({ process: { pid } }: Daemon): { readonly lanes: number; readonly node: number } {
  const tasks = `/proc/${pid}/task`
  const sum = { lanes: 0, node: 0 }
  for (const id of readdirSync(tasks)) {
    const ns = Number(readFileSync(join(tasks, id, 'schedstat'), 'utf8').split(' ')[0])
    if (readFileSync(join(tasks, id, 'comm'), 'utf8').startsWith('weft-loop')) sum.lanes += ns
    else if (id === String(pid)) sum.node += ns
  }
  return sum
}

const get = ({ statusSocket }: Host, path: string): Promise<string> =>
  new Promise((resolve, reject) => {
    request({ socketPath: statusSocket, path }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.on('end', () => resolve(Buffer.concat(parts).toString()))
    })
      .once('error', reject)
      .end()
  })

async function refusedBy(host: Host): Promise<number> {
  const { dataPath } = JSON.parse(await get(host, '/status.json')) as Status
  return dataPath?.drops['rx_drop_unknown_sender'] ?? 0
}

async function sample(
  lab: Lab,
  start: (on: Host) => Promise<Daemon>,
  program: string,
  [rate, lanes]: readonly [number, number],
): Promise<Sample> {
  const [host, , sender] = lab.hosts as [Host, Host, Host]
  const daemon = await start(host)
  const flood =
    rate === 0 ? undefined : sender.spawn([program, host.address, '8285', String(rate), String(8525), String(lanes)])
  await delay(SETTLE_MS)
  const [before, refused, began] = [cpuOf(daemon), await refusedBy(host), performance.now()]
  let [livez, renewal] = [0, 0]
  const requesting = (async () => {
    while (performance.now() - began < SAMPLE_MS) {
      const requested = performance.now()
      await get(host, '/livez')
      livez = Math.max(livez, performance.now() - requested)
      await delay(50)
    }
  })()
  const { FLANNEL_SUBNET = '' } = host.subnetEnv()
  const key = FLANNEL_SUBNET.replace(/\.1\//, '.0-')
  const renewed = (): number => daemon.lines.filter((line) => line.includes('Lease renewed')).length
  for (let times = 0; times < RENEWALS; times++) {
    const [count, written] = [renewed(), performance.now()]
    writeFileSync(join(lab.folder, 'leases', 'subnets', key), 'junk')
    while (renewed() === count) await delay(1)
    renewal = Math.max(renewal, performance.now() - written)
  }
  await requesting
  const ms = performance.now() - began
  const after = cpuOf(daemon)
  const count = (await refusedBy(host)) - refused
  flood?.kill()
  await daemon.stop()
  const percent = (ns: number): number => (ns / 1e6 / ms) * 100
  return {
    refused: (count / ms) * 1000,
    lanes: percent(after.lanes - before.lanes),
    node: percent(after.node - before.node),
    livez,
    renewal,
  }
}

export async function measureJunk(rounds: number, progress: Progress): Promise<Part> {
  const program = await nativeProgram('junk', ['core/checksum'])
  const lab = await createLab({ hosts: 3 })
  try {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
    const [host, peer] = lab.hosts as [Host, Host, Host]
    const start = async (on: Host): Promise<Daemon> => {
      const daemon = on.startDaemon({ args: ['--lease-dir', leases] })
      await daemon.line(/flannel is ready/)
      return daemon
    }
    await start(peer)
    await (await start(host)).stop() // the host then has a subnet for its containers
    const samples = new Map<string, Sample[]>(Object.keys(RATES).map((name) => [name, []]))
    for (let round = 0; round < rounds; round++) {
      for (const [name, rate] of Object.entries(RATES)) {
        progress.now(`junk: ${name}`, JUNK_SECONDS_A_ROUND / Object.keys(RATES).length)
        samples.get(name)?.push(await sample(lab, start, program, rate))
      }
      progress.plain(`junk: round ${round + 1} of ${rounds}`)
    }
    const series = Object.entries(METRICS).map(([metric, about]): Series => ({
      case: 'junk',
      metric,
      ...about,
      values: Object.fromEntries(
        [...samples].map(([name, all]) => [name, all.map((each) => each[metric as keyof Sample])]),
      ),
    }))
    return { name: 'junk', rounds, seconds: SAMPLE_MS / 1000, method: { junk: METHOD }, series }
  } finally {
    await lab.close()
  }
}
