// scale.ts - `npm run bench -- kube`: measures the load that many daemons put on a Kubernetes API server in a cluster of
// 5,000 nodes, for weft's subnet manager and for flannel's own.
//
// The API server and etcd are real. The nodes exist only as Node objects. This machine cannot run 5,000 daemons, so
// CLIENTS subnet managers start at the same time, and their cost for each daemon is multiplied.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { createLab, type Host } from '../../lab/lab.ts'
import { flanneld } from '../../scripts/flanneld.mjs'
import type { Progress } from '../../scripts/progress.mjs'
import type { Part, Series } from '../result.ts'
import { programs, startApiServer, type ApiServer, type Kind } from './api-server.ts'
import { nodeName, requestsBetween, restartCpu } from './cluster-model.ts'

const NODES = Number(process.env['WEFT_BENCH_NODES'] ?? 5_000)
const CLIENTS = Number(process.env['WEFT_BENCH_CLIENTS'] ?? 40)
/** A kubelet writes its node's status every 5 minutes if nothing changes (nodeStatusReportFrequency). */
const STATUS_S = 300
const HEARTBEAT_S = 30
const HEARTBEATS = Math.round((NODES / STATUS_S) * HEARTBEAT_S)
/** How long, in ms, the benchmark waits for work of the API server that continues after the clients have started. */
const SETTLE_MS = 5_000
/** How long, in ms, a daemon may take until it has a route to each node. */
const DAEMON_MS = 180_000
export const KUBE_SECONDS_A_ROUND = 400

const METHOD =
  `${NODES} Node objects, a real kube-apiserver and etcd. ${CLIENTS} subnet managers (src/control/kube; flannel's pkg/subnet/kube), each with its own ` +
  `connections, start at the same time, until each has all leases and has reported its node. CPU of the API server from process_cpu_seconds_total, ` +
  `bytes sent from wchar of /proc/PID/io, requests for nodes from apiserver_request_total, each divided by ${CLIENTS}. Then ${HEARTBEATS} statuses of ` +
  `nodes are written in ${HEARTBEAT_S} s, as by kubelets that write every ${STATUS_S} s; the same without clients is subtracted. restart: the CPU time ` +
  `if ${NODES} daemons restart at the same time, computed from the other figures (cluster-model.ts, restartCpu). memory: VmRSS and VmHWM of one real ` +
  `daemon with vxlan, when it has a route to each node`

const METRICS = {
  startCpu: { title: "API server's CPU for the start of a daemon", unit: 'ms', better: 'less' },
  startMiB: { title: 'sent for the start of a daemon', unit: 'MiB', better: 'less' },
  lists: { title: 'requests GET and LIST for the start', unit: '', better: 'less' },
  patches: { title: 'requests PATCH for the start', unit: '', better: 'less' },
  watches: { title: 'requests WATCH for the start', unit: '', better: 'less' },
  refused: { title: 'requests refused with status 429', unit: '', better: 'less' },
  fromEtcd: { title: 'listings that the API server read from etcd', unit: '', better: 'less' },
  seconds: { title: `time until ${CLIENTS} daemons have all leases`, unit: 's', better: 'less' },
  peakMiB: { title: 'most memory of the API server meanwhile', unit: 'MiB', better: 'less' },
  eventCpu: { title: "API server's CPU for a changed node, for each watch", unit: 'us', better: 'less' },
  eventBytes: { title: 'sent for a changed node, for each watch', unit: 'B', better: 'less' },
  restart: { title: `API server's CPU if ${NODES} daemons restart`, unit: 's', better: 'less' },
} as const
const DAEMON_METRICS = {
  daemonRss: { title: 'memory of a daemon', unit: 'MiB', better: 'less' },
  daemonPeak: { title: 'most memory of a daemon', unit: 'MiB', better: 'less' },
  daemonCpu: { title: 'CPU of a daemon until it has all routes', unit: 's', better: 'less' },
  daemonRequests: { title: 'requests GET, LIST and PATCH of a daemon', unit: '', better: 'less' },
} as const
type Metric = keyof typeof METRICS
type DaemonMetric = keyof typeof DAEMON_METRICS

const MIB = 2 ** 20
const statusMiB = (pid: number, name: 'VmRSS' | 'VmHWM'): number =>
  Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024
/** Returns the bytes that a process has written, to sockets too (proc_pid_io(5)). The API server writes no files. */
const bytesSent = (pid: number): number => Number(/^wchar: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, 'utf8'))?.[1])
/** Returns the CPU time in seconds that a process has used (proc_pid_stat(5): utime, stime). */
function cpuSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')')).split(' ')
  return (Number(fields[12]) + Number(fields[13])) / 100
}
/** Makes VmHWM, the highest memory of a process, start again from the present memory (proc_pid_clear_refs(5)). */
const forgetPeak = (pid: number): void => writeFileSync(`/proc/${pid}/clear_refs`, '5')

const sumOf = (requests: Readonly<Record<string, number>>, ...verbs: readonly string[]): number =>
  verbs.reduce((sum, verb) => sum + (requests[verb] ?? 0), 0)

/** Returns the CPU seconds and bytes that the API server spends on the statuses of kubelets. */
async function duringHeartbeats(api: ApiServer): Promise<{ readonly cpu: number; readonly bytes: number }> {
  const [before, from] = [await api.state(), bytesSent(api.pid)]
  await api.heartbeats(HEARTBEATS, HEARTBEAT_S)
  await delay(SETTLE_MS)
  const bytes = bytesSent(api.pid) - from
  return { cpu: (await api.state()).cpu - before.cpu, bytes }
}

async function sample(
  api: ApiServer,
  kind: Kind,
  alone: { readonly cpu: number; readonly bytes: number },
): Promise<Record<Metric, number>> {
  const clients = await api.clients(kind, NODES, 0, CLIENTS)
  const [before, from] = [await api.state(), bytesSent(api.pid)]
  forgetPeak(api.pid)
  const began = performance.now()
  const line = await clients.ask('go')
  if (line !== 'started') throw new Error(`the clients of ${kind} print ${JSON.stringify(line)}`)
  const seconds = (performance.now() - began) / 1000
  await delay(SETTLE_MS)
  const bytes = bytesSent(api.pid) - from
  const peakMiB = statusMiB(api.pid, 'VmHWM')
  const after = await api.state()
  const watching = await duringHeartbeats(api)
  await clients.close()
  await delay(SETTLE_MS) // the API server counts a watch when it has ended
  const end = await api.state()
  const requests = requestsBetween(before, after)
  const events = HEARTBEATS * CLIENTS
  const start = (after.cpu - before.cpu) / CLIENTS
  const writes = sumOf(requests, 'PATCH') / CLIENTS
  const event = (watching.cpu - alone.cpu) / events
  return {
    startCpu: start * 1000,
    startMiB: bytes / MIB / CLIENTS,
    lists: sumOf(requests, 'GET', 'LIST') / CLIENTS,
    patches: writes,
    watches: sumOf(requestsBetween(before, end), 'WATCH') / CLIENTS,
    refused: (after.refused - before.refused) / CLIENTS,
    fromEtcd: (after.fromEtcd - before.fromEtcd) / CLIENTS,
    seconds,
    peakMiB,
    eventCpu: event * 1e6,
    eventBytes: (watching.bytes - alone.bytes) / events,
    restart: restartCpu(NODES, { start, writes, event }),
  }
}

/** Starts one real daemon on a host, and measures it when the host has a route to each node. */
async function daemon(
  api: ApiServer,
  kind: Kind,
  host: Host,
  name: string,
  { folder, old }: { readonly folder: string; readonly old: string | undefined },
): Promise<Record<DaemonMetric, number>> {
  const netConf = join(folder, 'net-conf.json')
  writeFileSync(netConf, JSON.stringify({ Network: '10.0.0.0/8', Backend: { Type: 'vxlan' } }))
  const flags = {
    'kubeconfig-file': api.kubeconfig,
    'net-config-path': netConf,
    'subnet-file': join(folder, `subnet-${kind}.env`),
    iface: 'eth0',
  }
  const args = ['--kube-subnet-mgr', ...Object.entries(flags).map(([flag, value]) => `--${flag}=${value}`)]
  const before = await api.state()
  const child =
    kind !== 'flannel'
      ? host.startDaemon({
          args: args.filter((word) => !/^--(subnet-file|iface)/.test(word)),
          env: { NODE_NAME: name },
          ...(kind === 'old' && old !== undefined ? { checkout: old } : {}),
        }).process
      : host.spawn(['env', `NODE_NAME=${name}`, await flanneld(), ...args], { stdin: true })
  child.stderr?.resume()
  const { pid = 0 } = child
  const end = performance.now() + DAEMON_MS
  for (;;) {
    const routes = (await host.output(['ip', '-4', 'route'])).split('\n').filter((line) => line.startsWith('10.'))
    if (routes.length >= NODES - 1) break
    if (child.exitCode !== null || performance.now() > end)
      throw new Error(`the daemon of ${kind} has routes to ${routes.length} of ${NODES} nodes`)
    await delay(1_000)
  }
  const cpu = cpuSeconds(pid)
  await delay(2 * SETTLE_MS)
  const requests = requestsBetween(before, await api.state())
  const found = {
    daemonRss: statusMiB(pid, 'VmRSS'),
    daemonPeak: statusMiB(pid, 'VmHWM'),
    daemonCpu: cpu,
    daemonRequests: sumOf(requests, 'GET', 'LIST', 'PATCH'),
  }
  child.kill()
  return found
}

export async function measureKube(rounds: number, progress: Progress, old?: string): Promise<Part> {
  const kinds: readonly Kind[] = ['weft', 'flannel', ...(old === undefined ? [] : (['old'] as const))]
  const made = await programs((line) => progress.plain(line))
  await flanneld()
  const lab = await createLab({ hosts: kinds.length })
  const samples = { weft: [], flannel: [], old: [] } as Record<Kind, Record<Metric, number>[]>
  const daemons = { weft: [], flannel: [], old: [] } as Record<Kind, Record<DaemonMetric, number>[]>
  try {
    const api = await startApiServer(lab, made, old)
    try {
      progress.now(`kube: ${NODES} nodes`, 60)
      const bytes = await api.fill(NODES)
      progress.plain(`kube: ${NODES} nodes of ${bytes} bytes each, kube-apiserver ${made.kubernetes}`)
      for (const [at, kind] of kinds.entries()) {
        progress.now(`kube: one daemon of ${kind}`, 30)
        const host = lab.hosts[at] as Host
        daemons[kind].push(await daemon(api, kind, host, nodeName(NODES - 1 - at), { folder: lab.folder, old }))
      }
      for (let round = 0; round < rounds; round++) {
        progress.now('kube: without clients', HEARTBEAT_S)
        const alone = await duringHeartbeats(api)
        for (const kind of round % 2 === 0 ? kinds : kinds.toReversed()) {
          progress.now(`kube: ${CLIENTS} clients of ${kind}`, (KUBE_SECONDS_A_ROUND - HEARTBEAT_S) / kinds.length)
          samples[kind].push(await sample(api, kind, alone))
          progress.plain(`kube: ${CLIENTS} clients of ${kind} measured`)
        }
      }
    } finally {
      await api.close()
    }
  } finally {
    await lab.close()
  }
  const seriesOf = <Name extends string>(
    about: Readonly<Record<Name, { title: string; unit: string; better: 'less' | 'more' }>>,
    all: Record<Kind, readonly Record<Name, number>[]>,
  ): Series[] =>
    (Object.keys(about) as Name[]).map((metric) => ({
      case: 'kube',
      metric,
      ...about[metric],
      values: Object.fromEntries(kinds.map((kind) => [kind, all[kind].map(({ [metric]: value }) => value)])),
    }))
  return {
    name: 'kube',
    references: ['flannel'],
    rounds,
    seconds: HEARTBEAT_S,
    method: { kube: METHOD },
    series: [...seriesOf(METRICS, samples), ...seriesOf(DAEMON_METRICS, daemons)],
  }
}
