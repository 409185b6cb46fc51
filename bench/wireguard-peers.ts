// wireguard-peers.ts - `npm run bench -- wireguard-peers`: measures the CPU time and memory that weftd's own WireGuard
// implementation needs for 10,000 peers, compared with the udp backend.
//
// The peers exist only as files in a lease directory. The program wireguard-far.ts in a second network namespace acts
// as the hosts of all peers.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface, type Interface } from 'node:readline'
import type { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { createLab, packageRoot, type Host } from '../lab/lab.ts'
import type { Progress } from '../scripts/progress.mjs'
import { countLines, cpuSeconds, rssMiB } from './families.ts'
import { cpuOf } from './junk.ts'
import type { Part, Series } from './result.ts'
import { hostOf, PORT, subnetOf } from './wireguard-far.ts'

const PEERS = 10_000
/**
 * The pause in ms after the last handshake. This pause exceeds WireGuard's timers after a handshake (10 s), so that
 * none of these timers expires during the next measurement.
 */
const SETTLE_MS = 12_000
const IDLE_MS = 20_000
export const WIREGUARD_PEERS_SECONDS_A_ROUND = 210

const PATHS = {
  udp: { Type: 'udp' },
  wireguard: { Type: 'wireguard', DataPath: 'userspace' },
  'wireguard, keepalive 25 s': { Type: 'wireguard', DataPath: 'userspace', PersistentKeepaliveInterval: 25 },
} as const

const METHOD =
  `leases of ${PEERS} peers in a directory. start: from the start of weftd until it logs the last peer. handshakes: one packet is sent to the subnet of each peer (with ` +
  `a keepalive weftd sends it itself), until all peers have received an encrypted packet; weftd begins at most 250 handshakes a second ` +
  `(src/path/backends/wireguard/handshakes.ts). CPU of weftd for each handshake, its forwarding threads included. Memory is VmRSS. idle: ${SETTLE_MS / 1000} s after the ` +
  `last handshake, for ${IDLE_MS / 1000} s, from /proc/PID/task/TID/schedstat`

const METRICS = {
  start: { title: 'start to all peers', unit: 's', better: 'less' },
  rss: { title: 'memory with all peers', unit: 'MiB', better: 'less' },
  handshakes: { title: 'completed handshakes', unit: '/s', better: 'more' },
  cpu: { title: 'CPU for a handshake', unit: 'ms', better: 'less' },
  keyed: { title: 'memory with all keys', unit: 'MiB', better: 'less' },
  node: { title: "idle, CPU of Node's thread", unit: '% of a core', better: 'less' },
  lanes: { title: 'idle, CPU of the forwarding threads', unit: '% of a core', better: 'less' },
} as const
type Metric = keyof typeof METRICS
type Sample = Readonly<Partial<Record<Metric, number>>>

const linesOf = (stream: Readable | null): Interface => createInterface({ input: stream as Readable })

/**
 * Starts the program that acts as all peers. Returns the public keys of the peers, and a promise that resolves when
 * each peer has received an encrypted packet.
 */
async function startFar(far: Host): Promise<{ readonly keys: readonly string[]; readonly all: Promise<void> }> {
  const child = far.spawn([process.execPath, join(packageRoot, 'dist/bench/wireguard-far.js'), 'listen', `${PEERS}`])
  const lines = linesOf(child.stdout)[Symbol.asyncIterator]()
  const next = async (): Promise<string> => {
    const { done, value } = await lines.next()
    if (done) throw new Error('the program with the peers ended; it needs 11,000 open files: check ulimit -n')
    return value
  }
  const keys: string[] = []
  for (let line = await next(); line !== 'ready'; line = await next()) keys.push(line)
  const all = next().then(() => {})
  all.catch(() => {}) // with udp the benchmark does not wait for this promise
  return { keys, all }
}

async function sample(backend: (typeof PATHS)[keyof typeof PATHS]): Promise<Sample> {
  const lab = await createLab({ hosts: 2 })
  try {
    const [host, far] = lab.hosts as [Host, Host]
    await far.output(['ip', 'route', 'add', 'local', '172.16.0.0/16', 'dev', 'lo'])
    await host.output(['ip', 'route', 'add', '172.16.0.0/16', 'via', far.address])
    const { keys, all } = await startFar(far)
    const leases = join(lab.folder, 'leases')
    mkdirSync(join(leases, 'subnets'), { recursive: true })
    const network = { Network: '10.0.0.0/8', SubnetLen: 24, SubnetMin: '10.200.0.0', Backend: backend }
    writeFileSync(join(leases, 'config'), JSON.stringify(network))
    for (const [number, key] of keys.entries()) {
      const data = backend.Type === 'udp' ? {} : { BackendData: { PublicKey: key, Port: PORT } }
      const value = { PublicIP: hostOf(number), PublicIPv6: null, BackendType: backend.Type, ...data }
      writeFileSync(join(leases, 'subnets', `${subnetOf(number)}.0-24`), JSON.stringify(value))
    }
    const began = performance.now()
    const env = { WIREGUARD_KEY_FILE: join(lab.folder, 'wgkey') }
    const daemon = host.startDaemon({ args: ['--lease-dir', leases], env })
    const pid = daemon.process.pid as number
    await countLines(daemon, 'Subnet added').until(PEERS)
    await daemon.line(/flannel is ready/)
    const started = { start: (performance.now() - began) / 1000, rss: rssMiB(pid) }
    const keyed =
      backend.Type === 'udp' ? {} : await shakeHands(host, pid, all, 'PersistentKeepaliveInterval' in backend)
    await delay(SETTLE_MS)
    const [before, from] = [cpuOf(daemon), performance.now()]
    await delay(IDLE_MS)
    const [after, ms] = [cpuOf(daemon), performance.now() - from]
    const percent = (ns: number): number => (ns / 1e6 / ms) * 100
    const idle = { node: percent(after.node - before.node), lanes: percent(after.lanes - before.lanes) }
    return { ...started, ...keyed, ...idle }
  } finally {
    await lab.close()
  }
}

/**
 * Measures one WireGuard handshake with each peer. If `hasKeepalive` is true, weftd starts the handshakes because of
 * its keepalive setting; otherwise sent packets start them.
 */
async function shakeHands(host: Host, pid: number, all: Promise<void>, hasKeepalive: boolean): Promise<Sample> {
  const [before, from] = [cpuSeconds(pid), performance.now()]
  const program = join(packageRoot, 'dist/bench/wireguard-far.js')
  const sender = hasKeepalive ? undefined : host.spawn([process.execPath, program, 'send', `${PEERS}`])
  await all
  sender?.kill()
  const seconds = (performance.now() - from) / 1000
  const cpu = ((cpuSeconds(pid) - before) * 1000) / PEERS
  return { handshakes: PEERS / seconds, cpu, keyed: rssMiB(pid) }
}

export async function measureWireguardPeers(rounds: number, progress: Progress): Promise<Part> {
  const samples = new Map<string, Sample[]>(Object.keys(PATHS).map((name) => [name, []]))
  for (let round = 0; round < rounds; round++) {
    for (const [name, backend] of Object.entries(PATHS)) {
      progress.now(`wireguard-peers: ${name}`, WIREGUARD_PEERS_SECONDS_A_ROUND / Object.keys(PATHS).length)
      samples.get(name)?.push(await sample(backend))
      progress.plain(`wireguard-peers: ${name} measured`)
    }
  }
  const series = (Object.keys(METRICS) as Metric[]).map((metric): Series => ({
    case: 'wireguard-peers',
    metric,
    ...METRICS[metric],
    values: Object.fromEntries(
      [...samples].map(([name, all]) => [name, all.flatMap(({ [metric]: value }) => value ?? [])]),
    ),
  }))
  return { name: 'wireguard-peers', rounds, seconds: IDLE_MS / 1000, method: { 'wireguard-peers': METHOD }, series }
}
