// leases.ts - `npm run bench -- leases`: measures the time from a lease's change in a real etcd until weftd forwards
// packets according to the changed lease.
//
// One host runs weftd and sends packets. A second host runs lease-ends.ts on the overlay's port in place of weftd, so
// any number of leases may name the second host's address. The programs on the two hosts use the same clock.

import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, existsSync, openSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface, type Interface } from 'node:readline'
import type { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { Etcd3 } from 'etcd3'
import { execute, output } from '../lab/command.ts'
import { startEtcd, type Etcd } from '../lab/etcd.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab } from '../lab/lab.ts'
import type { Progress } from '../scripts/progress.mjs'
import type { Metric } from './cases.ts'
import { nativeProgram } from './native.ts'
import type { Part, Series } from './result.ts'

const NETWORK = '/coreos.com/network'
const CONFIG = '{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"udp"}}'
const CHANGES = 100
const CHANGES_WHEN_LARGE = 30
const DAEMONS = 50
const CHURN_S = 20
const CHURN_TICK_MS = 100
/**
 * An address (RFC 5737) that no host has. In the measurement with frequent lease changes, the address of a changed
 * lease alternates between NO_HOST and the address of the receiving host.
 */
const NO_HOST = '198.51.100.1'
const TXN_OPERATIONS = 128
/** The time limit in ms for lease-walk.ts, which is long enough for a million leases on a slow machine. */
const WALK_MS = 900_000

const METHOD = {
  change: `${CHANGES} leases are put one by one into etcd; from the call of put to the first packet at the peer, to which one packet a millisecond is sent`,
  start:
    'weftd starts with the leases in etcd; from its "Created subnet manager" to its last "Subnet added"; then VmRSS',
  large:
    'like change, in a network with that many peers; gap is the longest pause of another stream, which has one packet a millisecond',
  churn: `for ${CHURN_S} s 1% of the leases a second get another address, in ten transactions a second; CPU of weftd without its forwarding threads; every half second a new lease is put and timed like change`,
  walk: 'bench/lease-walk.ts, without a store and a kernel: one lease changes; CPU time of the process from the event until the engine gets the peers. Churn: ten changes a second, with probes and the last-known file; the longest pause of the event loop meanwhile',
  native:
    'bench/native/peer_changes.cc: PeerTables::change() with one record, and PeerTables::set() with all records unchanged; CPU time of the thread',
  together: `${DAEMONS} daemons start simultaneously on ${DAEMONS} hosts with one etcd, until the last one has logged all others; requests from etcd's grpc_server_started_total in a quiet minute`,
} as const

const now = (): number => Number(process.hrtime.bigint()) / 1e6
const keyOf = (index: number): string => `${NETWORK}/subnets/10.${(index >> 8) + 1}.${index & 255}.0-24`
const valueOf = (address: string): string => `{"PublicIP":"${address}","PublicIPv6":null}`

const linesOf = (stream: Readable | null): Interface => createInterface({ input: stream as Readable })

interface Writer {
  /**
   * Writes `count` leases with the host address `address` to etcd, beginning with lease number `from`. Resolves when
   * etcd has stored all leases. The result is the time when the first write began, in ms of CLOCK_MONOTONIC.
   */
  put(from: number, count: number, address: string): Promise<number>
  close(): Promise<void>
}

interface Bed {
  readonly lab: Lab
  readonly etcd: Etcd
  readonly writer: Writer
  close(): Promise<void>
}

async function openBed(hosts: number): Promise<Bed> {
  const lab = await createLab({ hosts })
  const etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
  await etcd.ctl('put', `${NETWORK}/config`, CONFIG)
  const writer = await openWriter({ lab, etcd })
  return {
    lab,
    etcd,
    writer,
    async close() {
      await writer.close()
      await lab.close()
      await etcd.close()
    },
  }
}

/**
 * Runs leases.ts with the argument `put` in the network namespace of the simulated switch, because etcd can be reached
 * from there.
 */
async function openWriter({ lab, etcd }: Pick<Bed, 'lab' | 'etcd'>): Promise<Writer> {
  const program = join(packageRoot, 'dist/bench/leases.js')
  const child = spawn('ip', ['netns', 'exec', `${lab.id}-switch`, process.execPath, program, 'put', etcd.endpoint], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const answers = linesOf(child.stdout)[Symbol.asyncIterator]()
  const answer = async (): Promise<number> => {
    const { done, value } = await answers.next()
    if (done) throw new Error('putting leases failed')
    return Number(value)
  }
  await answer()
  return {
    put(from, count, address) {
      child.stdin.write(`${from} ${count} ${address}\n`)
      return answer()
    },
    async close() {
      const ended = once(child, 'exit')
      child.stdin.end()
      await ended
    },
  }
}

/**
 * Reads lines `FROM COUNT ADDRESS` from stdin. For each line writes COUNT leases with the host address ADDRESS to etcd,
 * beginning with lease number FROM. Prints the time when the first write began, in ms of CLOCK_MONOTONIC.
 */
async function putHere(endpoint: string): Promise<void> {
  const client = new Etcd3({ hosts: endpoint })
  await client.get('warm') // the time to connect is not measured
  process.stdout.write('0\n')
  for await (const line of createInterface({ input: process.stdin })) {
    const [from = 0, count = 0] = line.split(' ').map(Number)
    const address = line.split(' ')[2] ?? ''
    const began = now()
    for (let at = from; at < from + count; at += TXN_OPERATIONS) {
      const operations = Array.from({ length: Math.min(TXN_OPERATIONS, from + count - at) }, (_, index) => ({
        request_put: { key: Buffer.from(keyOf(at + index)), value: Buffer.from(valueOf(address)) },
      }))
      await client.kv.txn({ compare: [], success: operations, failure: [] })
    }
    process.stdout.write(`${began}\n`)
  }
  client.close()
}

interface Ends {
  send(line: string): void
  /**
   * Resolves with the arrival time, in ms, of the first packet for an inner subnet such as `10.1.2` (its first three
   * bytes).
   */
  arrival(subnet: string): Promise<number>
  gap(): Promise<number>
}

async function openEnds(from: Host, to: Host): Promise<Ends> {
  const program = join(packageRoot, 'dist/bench/lease-ends.js')
  const listener = to.spawn([process.execPath, program, 'listen'], { stdin: true })
  const sender = from.spawn([process.execPath, program, 'send'], { stdin: true })
  const arrived = new Map<string, number>()
  const waiting = new Map<string, (value: number) => void>()
  const arrivalOf = (name: string): Promise<number> =>
    new Promise((resolve) => {
      const at = arrived.get(name)
      if (at === undefined) waiting.set(name, resolve)
      else resolve(at)
      arrived.delete('gap')
    })
  linesOf(listener.stdout).on('line', (line) => {
    const [name = '', value = '0'] = line.split(' ')
    const resolve = waiting.get(name)
    waiting.delete(name)
    if (resolve) resolve(Number(value))
    else arrived.set(name, Number(value))
  })
  await arrivalOf('listening')
  const write = (child: ChildProcess, line: string): void => void child.stdin?.write(`${line}\n`)
  return {
    send: (line) => write(sender, line),
    arrival: arrivalOf,
    gap: () => {
      write(listener, 'gap')
      return arrivalOf('gap')
    },
  }
}

/**
 * Writes `count` new leases to etcd one at a time, from number `from`. Returns the milliseconds from each write to the
 * first packet that weftd forwarded because of the write.
 */
async function changes(bed: Bed, ends: Ends, from: number, count: number, address: string): Promise<number[]> {
  const times: number[] = []
  for (let index = from; index < from + count; index++) {
    const subnet = keyOf(index).replace(/^.*\/|\.0-24$/g, '')
    ends.send(`${subnet}.9`)
    const arrival = ends.arrival(subnet)
    const began = await bed.writer.put(index, 1, address)
    times.push((await arrival) - began)
    ends.send(`-${subnet}.9`)
  }
  return times
}

const rssMiB = ({ process: { pid } }: Daemon): number =>
  Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024

function percentile(values: readonly number[], part: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? NaN
}

/**
 * Resolves when weftd has logged `count` added peers. The result is the time in seconds since weftd logged that it had
 * opened the store.
 */
function filled(daemon: Daemon, count: number): Promise<number> {
  return new Promise((resolve, reject) => {
    let began = 0
    let added = 0
    linesOf(daemon.process.stderr).on('line', (line) => {
      if (line.includes('Created subnet manager')) began = now()
      if (line.includes('Subnet added') && ++added === count) resolve((now() - began) / 1000)
    })
    daemon.process.once('exit', () => reject(new Error('weftd ended before its table was full')))
  })
}

/**
 * Returns the CPU seconds of a weftd's threads other than the forwarding threads, mainly those of Node.js
 * (proc_pid_stat(5): utime, stime).
 */
function cpuSeconds({ process: { pid } }: Daemon): number {
  const threads = readdirSync(`/proc/${pid}/task`).map((task) => readFileSync(`/proc/${pid}/task/${task}/stat`, 'utf8'))
  const ticks = threads
    .filter((stat) => !stat.includes('(weft-loop)'))
    .map((stat) => stat.slice(stat.lastIndexOf(')')).split(' '))
    .reduce((sum, fields) => sum + Number(fields[12]) + Number(fields[13]), 0)
  return ticks / 100
}

/**
 * Changes 1% of all leases per second. At the same time writes new leases, numbered from `leases`, and measures the
 * time until each new lease is in use.
 */
async function churn(bed: Bed, ends: Ends, daemon: Daemon, leases: number, address: string) {
  const part = leases / (100 * (1000 / CHURN_TICK_MS))
  const times: number[] = []
  const began = now()
  const before = cpuSeconds(daemon)
  const ticks = (CHURN_S * 1000) / CHURN_TICK_MS
  for (let tick = 0; tick < ticks; tick++) {
    // Do not change lease 0, because the largest pause (`gap`) is measured on a stream of packets to the subnet of
    // lease 0.
    await bed.writer.put(1 + tick * part, part, NO_HOST)
    if (tick % 5 === 0) times.push(...(await changes(bed, ends, leases + tick, 1, address)))
    await delay(began + (tick + 1) * CHURN_TICK_MS - now())
  }
  const seconds = (now() - began) / 1000
  if (seconds > 1.1 * CHURN_S) throw new Error(`the churn took ${seconds.toFixed(1)} s instead of ${CHURN_S}`)
  const cpu = (100 * (cpuSeconds(daemon) - before)) / seconds
  return { cpu, churnP50: percentile(times, 0.5), churnP99: percentile(times, 0.99) }
}

async function scale(leases: number): Promise<Record<string, number>> {
  const bed = await openBed(2)
  try {
    const [from, to] = bed.lab.hosts as [Host, Host]
    await bed.writer.put(0, leases, to.address)
    const daemon = from.startDaemon({ args: ['--etcd-endpoints', bed.etcd.endpoint] })
    const seconds = await filled(daemon, leases)
    const rss = rssMiB(daemon)
    const ends = await openEnds(from, to)
    ends.send('10.1.0.9')
    await ends.arrival('10.1.0')
    await ends.gap()
    const times = await changes(bed, ends, leases, leases > 1000 ? CHANGES_WHEN_LARGE : CHANGES, to.address)
    const single = { gap: await ends.gap(), p50: percentile(times, 0.5), p99: percentile(times, 0.99) }
    const churned = leases > 1000 ? await churn(bed, ends, daemon, leases + times.length, to.address) : {}
    return { seconds, rss, ...single, ...churned }
  } finally {
    await bed.close()
  }
}

async function together(): Promise<Record<string, number>> {
  const bed = await openBed(DAEMONS)
  try {
    const gate = join(bed.lab.folder, 'gate')
    await output(['mkfifo', gate])
    const daemons = bed.lab.hosts.map((host) =>
      host.startDaemon({ args: ['--etcd-endpoints', bed.etcd.endpoint], gate }),
    )
    const filling = daemons.map((daemon) => filled(daemon, DAEMONS - 1))
    await Promise.all(daemons.map(({ process: { stdout } }) => once(linesOf(stdout), 'line')))
    const began = now()
    const opened = openSync(gate, 'w') // wakes all daemons; the FIFO stays open for daemons that read it later
    await Promise.all(filling)
    const seconds = (now() - began) / 1000
    closeSync(opened)
    const before = await requests(bed)
    await new Promise((resolve) => setTimeout(resolve, 60_000))
    return { seconds, requests: ((await requests(bed)) - before) * (60 / DAEMONS) }
  } finally {
    await bed.close()
  }
}

async function walk(leases: number): Promise<Record<string, number>> {
  const read = async (command: readonly string[]): Promise<Record<string, number>> =>
    JSON.parse(await output(command, { timeoutMs: WALK_MS })) as Record<string, number>
  const inJs = await read([
    process.execPath,
    '--max-old-space-size=8192',
    join(packageRoot, 'dist/bench/lease-walk.js'),
    `${leases}`,
  ])
  const program = await nativeProgram('peer_changes', ['core/peers'])
  return { ...inJs, ...(await read([program, `${leases}`])) }
}

async function requests(bed: Bed): Promise<number> {
  const script = `fetch('${bed.etcd.endpoint}/metrics').then((r) => r.text()).then((t) => process.stdout.write(t))`
  const command = ['ip', 'netns', 'exec', `${bed.lab.id}-switch`, process.execPath, '-e', script]
  const { stdout } = await execute(command)
  return [...stdout.matchAll(/^grpc_server_started_total\{.*\} (\S+)$/gm)].reduce(
    (sum, [, count]) => sum + Number(count),
    0,
  )
}

const METRICS: readonly (readonly [string, string, Metric])[] = [
  ['change', 'p50', { title: 'put to forwarded, 100 peers, p50', unit: 'ms', better: 'less' }],
  ['change', 'p99', { title: 'put to forwarded, 100 peers, p99', unit: 'ms', better: 'less' }],
  ['start10000', 'seconds', { title: 'start to full table, 10,000 leases', unit: 's', better: 'less' }],
  ['start10000', 'rss', { title: 'memory, 10,000 leases', unit: 'MiB', better: 'less' }],
  ['start10000', 'cpu', { title: '1% of 10,000 changed a second, CPU', unit: '% of a core', better: 'less' }],
  ['start10000', 'churnP50', { title: 'put to forwarded meanwhile, p50', unit: 'ms', better: 'less' }],
  ['start10000', 'churnP99', { title: 'put to forwarded meanwhile, p99', unit: 'ms', better: 'less' }],
  ['start60000', 'seconds', { title: 'start to full table, 60,000 leases', unit: 's', better: 'less' }],
  ['start60000', 'rss', { title: 'memory, 60,000 leases', unit: 'MiB', better: 'less' }],
  ['start60000', 'p50', { title: 'put to forwarded, 60,000 peers, p50', unit: 'ms', better: 'less' }],
  ['start60000', 'gap', { title: 'longest pause of a stream meanwhile', unit: 'ms', better: 'less' }],
  ['start60000', 'cpu', { title: '1% of 60,000 changed a second, CPU', unit: '% of a core', better: 'less' }],
  ['start60000', 'churnP50', { title: 'put to forwarded meanwhile, p50', unit: 'ms', better: 'less' }],
  ['start60000', 'churnP99', { title: 'put to forwarded meanwhile, p99', unit: 'ms', better: 'less' }],
  ...([100, 60_000, 1_000_000] as const).flatMap((count): (readonly [string, string, Metric])[] => {
    const beside = `, ${count.toLocaleString('en')} peers`
    return [
      [`walk${count}`, 'p50', { title: `JavaScript for a change${beside}, p50`, unit: 'ms', better: 'less' }],
      [`walk${count}`, 'most', { title: `JavaScript for a change${beside}, the most`, unit: 'ms', better: 'less' }],
      [
        `walk${count}`,
        'longest',
        { title: `longest pause of the event loop meanwhile${beside}`, unit: 'ms', better: 'less' },
      ],
      [`walk${count}`, 'startMs', { title: `JavaScript for the first listing${beside}`, unit: 'ms', better: 'less' }],
      [`walk${count}`, 'rss', { title: `memory, without an engine${beside}`, unit: 'MiB', better: 'less' }],
      [`walk${count}`, 'change', { title: `native work for a change${beside}, p50`, unit: 'ms', better: 'less' }],
      [`walk${count}`, 'changeMost', { title: `native work for a change${beside}, p99`, unit: 'ms', better: 'less' }],
      [`walk${count}`, 'set', { title: `native work for all, unchanged${beside}`, unit: 'ms', better: 'less' }],
      [`walk${count}`, 'tableMiB', { title: `memory of the native table${beside}`, unit: 'MiB', better: 'less' }],
    ]
  }),
  ['together', 'seconds', { title: `${DAEMONS} simultaneous daemons, all have all peers`, unit: 's', better: 'less' }],
  ['together', 'requests', { title: 'etcd requests an hour, each daemon', unit: '', better: 'less' }],
]

const STEPS: readonly (readonly [
  name: string,
  seconds: number,
  what: string,
  run: () => Promise<Record<string, number>>,
])[] = [
  ['change', 20, '100 leases', () => scale(100)],
  ['start10000', 50, '10,000 leases', () => scale(10_000)],
  ['start60000', 80, '60,000 leases', () => scale(60_000)],
  ['walk100', 12, 'one changed lease of 100', () => walk(100)],
  ['walk60000', 20, 'one changed lease of 60,000', () => walk(60_000)],
  ['walk1000000', 90, 'one changed lease of 1,000,000', () => walk(1_000_000)],
  ['together', 90, `${DAEMONS} simultaneous daemons`, together],
]

export const LEASES_SECONDS = STEPS.reduce((sum, [, seconds]) => sum + seconds, 0)

export async function measureLeases(progress: Progress): Promise<Part> {
  if (!existsSync('/usr/bin/etcd')) throw new Error('the leases part needs etcd; install etcd-server and etcd-client')
  const measured = new Map<string, Record<string, number>>()
  for (const [name, seconds, what, run] of STEPS) {
    progress.now(`leases: ${what}`, seconds)
    measured.set(name, await run())
    progress.plain(`leases: ${what} measured`)
  }
  const series = METRICS.map(([name, metric, about]): Series => ({
    case: name,
    metric,
    ...about,
    values: { weftd: [measured.get(name)?.[metric] ?? NaN] },
  }))
  const method = {
    change: METHOD.change,
    start10000: `${METHOD.start}; ${METHOD.churn}`,
    start60000: METHOD.large,
    walk100: `${METHOD.walk}; ${METHOD.native}`,
    together: METHOD.together,
  }
  return { name: 'leases', rounds: 1, seconds: 0, method, series }
}

const [, , mode, endpoint = ''] = process.argv
if (mode === 'put') await putHere(endpoint)
