// restarts.ts - `npm run bench -- restarts`: measures how long a stream of packets pauses, and how many packets are
// lost, while a host's weftd is replaced.
//
// A container on one host pings a container on a second host each millisecond. Each round replaces the first host's
// weftd in several ways, such as a hand-over or a kill and a start: once on an idle network and once during a TCP
// stream.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout as delay } from 'node:timers/promises'
import { ended } from '../lab/command.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab, type Pod } from '../lab/lab.ts'
import { reach } from '../lab/measure.ts'
import type { Progress } from '../scripts/progress.mjs'
import type { Part, Series } from './result.ts'

export const RESTARTS_SECONDS_A_ROUND = 25
/** The time, in ms, for which pings continue before weftd is replaced and after it is replaced. */
const QUIET_MS = 500

const METHOD =
  'a ping each millisecond between containers on two hosts. pause: the longest time between two answers. lost: pings without an answer. ' +
  "after engine: from the start of the new daemon's first forwarding thread (known to 10 ms) to the first answer after the pause. " +
  'to forwarding: from the start of the process to its log line. weft status, node -e 0: the duration of the command; ' +
  'node -e 0 is the share of Node.js itself'

/** A way to replace a weftd: stops `before`, calls `start` for the new weftd, and resolves with the new weftd. */
type Way = (before: Daemon, start: (...more: string[]) => Daemon) => Promise<Daemon>

const WAYS: Readonly<Record<string, Way>> = {
  async 'taken over'(before, start) {
    const next = start()
    await ended(before.process)
    return next
  },
  async 'killed, started'(before, start) {
    await before.stop('SIGKILL')
    return start()
  },
  async 'stopped, started'(before, start) {
    await before.stop()
    return start()
  },
  // With --persist=false the TUN device disappears when weftd stops, as with flanneld. So the new weftd must read the
  // store before it forwards.
  async 'stopped, started, --persist=false'(before, start) {
    await before.stop()
    return start('--persist=false')
  },
}

const SAMPLE_SECONDS = RESTARTS_SECONDS_A_ROUND / (2 * Object.keys(WAYS).length)

const METRICS = {
  pause: { title: 'longest pause', unit: 'ms', better: 'less' },
  lost: { title: 'lost', unit: 'packets', better: 'less' },
  engine: { title: 'after engine', unit: 'ms', better: 'less' },
  forwarding: { title: 'to forwarding', unit: 'ms', better: 'less' },
  status: { title: 'weft status', unit: 'ms', better: 'less' },
  node: { title: 'node -e 0', unit: 'ms', better: 'less' },
} as const
type Pods = readonly [Pod, Pod]
type Sample = Readonly<Record<keyof typeof METRICS, number>>

/**
 * Returns the time at which a process started its first forwarding thread, in ms since 1970 (proc_pid_stat(5):
 * starttime, in 1/100 s since boot).
 */
function engineStart(pid: number): number {
  const tasks = `/proc/${pid}/task`
  const thread = readdirSync(tasks).find((id) => readFileSync(`${tasks}/${id}/comm`, 'utf8') === 'weft-loop0\n')
  if (thread === undefined) throw new Error(`process ${pid} has no forwarding thread`)
  const stat = readFileSync(`${tasks}/${thread}/stat`, 'utf8')
  const startedMs = 10 * Number(stat.slice(stat.lastIndexOf(')')).split(' ')[20])
  const uptimeMs = 1000 * Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0])
  return Date.now() - uptimeMs + startedMs
}

/** Returns the times at which ping got answers, in ms since 1970, and the number of pings without an answer. */
function readPings(printed: string): { readonly times: number[]; readonly lost: number } {
  const answers = [...printed.matchAll(/^\[([\d.]+)\].*icmp_seq=(\d+) ttl=/gm)]
  const last = Math.max(...answers.map(([, , number]) => Number(number)))
  return { times: answers.map(([, time]) => 1000 * Number(time)), lost: last - answers.length }
}

async function took(host: Host, ...args: readonly string[]): Promise<number> {
  const began = performance.now()
  await host.run([process.execPath, ...args])
  return performance.now() - began
}

async function sample(way: Way, lab: Lab, [from, to]: Pods, beside: boolean): Promise<Sample> {
  const [host] = lab.hosts as [Host, Host]
  const args = ['--lease-dir', join(lab.folder, 'leases')]
  let forwarding = 0
  const start = (...more: string[]): Daemon => {
    const began = performance.now()
    const daemon = host.startDaemon({ args: [...args, ...more] })
    // Ignore it if the wait for this log line fails, because `ready` waits for the same weftd and reports its failure.
    daemon.line(/Forwarding between/).then(
      () => (forwarding = performance.now() - began),
      () => {},
    )
    return daemon
  }
  const persist = way === WAYS['stopped, started, --persist=false'] ? ['--persist=false'] : []
  const before = start(...persist)
  await before.line(/flannel is ready/)
  await reach(from.namespace, to.address)
  const load = beside ? from.spawn(['iperf3', '--client', to.address, '--time', '60']) : undefined
  load?.stdout?.resume()
  const pinging = from.spawn(['ping', '-D', '-n', '-i', '0.001', '-W', '1', to.address])
  const printed = text(pinging.stdout as NodeJS.ReadableStream)
  await delay(QUIET_MS)
  const next = await way(before, start)
  await next.line(/flannel is ready/)
  await reach(from.namespace, to.address)
  await delay(QUIET_MS)
  const began = engineStart(next.process.pid as number)
  for (const child of [pinging, load]) {
    child?.kill('SIGINT')
    if (child) await ended(child)
  }
  const status = await took(host, join(packageRoot, 'bin/weft'), 'status', '--status-socket', host.statusSocket)
  const node = await took(host, '-e', '0')
  const { times, lost } = readPings(await printed)
  const pauses = times.slice(1).map((time, index) => ({ ms: time - (times[index] as number), end: time }))
  const longest = pauses.reduce((most, each) => (each.ms > most.ms ? each : most))
  await next.stop()
  return { pause: longest.ms, lost, engine: longest.end - began, forwarding, status, node }
}

export async function measureRestarts(rounds: number, progress: Progress): Promise<Part> {
  const lab = await createLab({ hosts: 2 })
  try {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
    const start = async (host: Host): Promise<Daemon> => {
      const daemon = host.startDaemon({ args: ['--lease-dir', leases] })
      await daemon.line(/flannel is ready/)
      return daemon
    }
    const [host, other] = lab.hosts as [Host, Host]
    await start(other)
    await (await start(host)).stop() // the host then has a subnet for its containers
    const pods = [await host.startPod(), await other.startPod()] as const
    const server = pods[1].spawn(['iperf3', '--server'])
    server.stdout?.resume()
    const series: Series[] = []
    for (const beside of [false, true]) {
      const part = `restarts${beside ? ' beside a TCP stream' : ''}`
      const samples = new Map<string, Sample[]>(Object.keys(WAYS).map((name) => [name, []]))
      for (let round = 0; round < rounds; round++) {
        for (const [name, way] of Object.entries(WAYS)) {
          progress.now(`${part}: ${name}`, SAMPLE_SECONDS)
          samples.get(name)?.push(await sample(way, lab, pods, beside))
        }
        progress.plain(`${part}: round ${round + 1} of ${rounds}`)
      }
      for (const [metric, about] of Object.entries(METRICS))
        series.push({
          case: beside ? 'beside a TCP stream' : 'idle',
          metric,
          ...about,
          values: Object.fromEntries(
            // Leave out the metric `engine` if the new weftd takes over from the running one (`taken over`). The old
            // weftd then forwards until the new one does, so the pause does not depend on the start time of the new
            // engine.
            [...samples]
              .filter(([name]) => metric !== 'engine' || name !== 'taken over')
              .map(([name, values]) => [name, values.map((value) => value[metric as keyof Sample])]),
          ),
        })
    }
    return { name: 'restarts', rounds, seconds: 0, method: { idle: METHOD, 'beside a TCP stream': METHOD }, series }
  } finally {
    await lab.close()
  }
}
