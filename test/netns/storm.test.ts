// storm.test.ts - another program changes 10,000 routes a minute beside a running weftd. weftd must repair each of its
// routes that is deleted meanwhile, and must keep neither descriptors nor sockets. The test reports the CPU time and the
// memory of weftd.
//
// WEFT_STORM_MINUTES sets the duration; `npm run test:soak` takes 15 minutes.

import { mkdirSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, whyNoVxlan, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import type { Route } from '../../src/host/kernel.ts'
import { parseNet, type Net } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { RemoteKernel } from '../support/remote-kernel.ts'

needs(HOSTS)

const LONG_MINUTES = process.env['WEFT_LONG'] === '1' ? 15 : 0.1
const STORM_MS = Number(process.env['WEFT_STORM_MINUTES'] ?? LONG_MINUTES) * 60_000
const CHANGES_A_MINUTE = 10_000
/** The changes are made in groups, one in each interval of this length in ms. */
const GROUP_MS = 100
/** The number of routes that are added and deleted in turn. */
const FLAPPING = 200
/** The pause in ms between two deletions of a route of weftd. */
const DELETION_MS = 3_000
/** The interval in ms between two reports of the test. */
const REPORT_MS = 60_000
/** A repair that takes longer counts as slow. */
const SLOW_MS = 5_000
const PEERS = 20
const NETWORK = { Network: '10.5.0.0/16', SubnetMax: '10.5.199.0' }

let lab: Lab
beforeEach(async () => {
  lab = await createLab({ hosts: 3 })
})
afterEach(() => lab.close())

/** A host with a weftd of a backend, and the destinations of the routes that weftd keeps there. */
interface Node {
  readonly type: string
  readonly host: Host
  readonly kernel: RemoteKernel
  readonly daemon: Daemon
  readonly routes: readonly Net[]
}

async function startNode(host: Host, type: string, backend: object): Promise<Node> {
  const leases = join(lab.folder, type)
  mkdirSync(join(leases, 'subnets'), { recursive: true })
  writeFileSync(join(leases, 'config'), JSON.stringify({ ...NETWORK, Backend: { Type: type, ...backend } }))
  const numbers = Array.from({ length: PEERS }, (_, at) => 200 + at)
  for (const number of numbers) {
    const data = { VNI: 1, VtepMAC: `02:00:00:00:00:${number.toString(16)}` }
    const lease = { PublicIP: `192.168.77.${number}`, BackendType: type, BackendData: type === 'vxlan' ? data : null }
    writeFileSync(join(leases, 'subnets', `10.5.${number}.0-24`), JSON.stringify(lease))
  }
  const daemon = host.startDaemon({ args: ['--lease-dir', leases] })
  await daemon.line(/flannel is ready/)
  const names = type === 'udp' ? ['10.5.0.0/16'] : numbers.map((number) => `10.5.${number}.0/24`)
  return { type, host, kernel: new RemoteKernel(host), daemon, routes: names.map((name) => parseNet(name)!) }
}

const routesOf = ({ kernel, routes }: Node): Promise<readonly Route[]> =>
  kernel.routes({ family: 'ipv4', exactly: routes })

/** The use of a process: the CPU time and the memory in KiB, and the numbers of its descriptors and its sockets. */
interface Use {
  readonly cpuMs: number
  readonly memoryKib: number
  readonly descriptors: number
  readonly sockets: number
}

function useOf({ daemon }: Node): Use {
  const at = `/proc/${daemon.process.pid}`
  const stat = readFileSync(`${at}/stat`, 'utf8')
  // proc_pid_stat(5): utime, stime, and the times of ended child processes, in 1/100 s
  const ticks = stat
    .slice(stat.lastIndexOf(')') + 2)
    .split(' ')
    .slice(11, 15)
  const targets = readdirSync(`${at}/fd`).map((fd) => {
    try {
      return readlinkSync(`${at}/fd/${fd}`)
    } catch {
      return '' // closed in the meantime
    }
  })
  return {
    cpuMs: ticks.reduce((sum, each) => sum + Number(each), 0) * 10,
    memoryKib: Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`${at}/status`, 'utf8'))?.[1]),
    descriptors: targets.length,
    sockets: targets.filter((target) => target.startsWith('socket:')).length,
  }
}

/** Adds and deletes routes until `signal` aborts. Resolves with the number of changes, which the kernel accepted. */
async function storm({ host }: Node, signal: AbortSignal): Promise<number> {
  const program = host.spawn(['ip', '-batch', '-'], { stdin: true })
  const [input, began] = [program.stdin!, performance.now()]
  let made = 0
  while (!signal.aborted) {
    const due = Math.floor(((performance.now() - began) / 60_000) * CHANGES_A_MINUTE)
    let lines = ''
    for (; made < due; made++) {
      const verb = made % (2 * FLAPPING) < FLAPPING ? 'add' : 'del'
      lines += `route ${verb} 172.20.${made % FLAPPING}.0/24 dev eth0\n`
    }
    input.write(lines)
    await delay(GROUP_MS)
  }
  input.end()
  await ended(program)
  expect(program.exitCode, 'ip ends at the first change that the kernel refuses').toBe(0)
  return made
}

/** The times in ms that weftd took to repair a route. */
interface Repairs {
  readonly times: number[]
}

/** Deletes one of weftd's routes after another until `signal` aborts, and measures the time until weftd has made it again. */
async function deleteRoutes(node: Node, { times }: Repairs, signal: AbortSignal): Promise<void> {
  for (let turn = 0; !signal.aborted; turn++) {
    const destination = node.routes[turn % node.routes.length]!
    const began = performance.now()
    expect(await node.kernel.change([{ kind: 'delete route', destination }])).toEqual([undefined])
    await eventually(
      async () => expect(await node.kernel.routes({ family: 'ipv4', exactly: [destination] })).toHaveLength(1),
      { everyMs: 20 },
    )
    times.push(performance.now() - began)
    await delay(DELETION_MS)
  }
}

const median = (times: readonly number[]): number => times.toSorted((a, b) => a - b)[times.length >> 1] ?? 0

/** Reports the use of each weftd since the last report. */
function report(
  title: string,
  nodes: readonly Node[],
  before: Map<Node, Use>,
  ms: number,
  repairs: Map<Node, Repairs>,
) {
  for (const node of nodes) {
    const now = useOf(node)
    const core = (now.cpuMs - (before.get(node)?.cpuMs ?? 0)) / ms
    before.set(node, now)
    const { times } = repairs.get(node)!
    process.stdout.write(
      `storm: ${title}, ${node.type}: ${(100 * core).toFixed(1)}% of a core, ${now.memoryKib} KiB, ` +
        `${now.descriptors} descriptors, ${now.sockets} sockets; ${times.length} repairs, median ${Math.round(median(times))} ms, ` +
        `longest ${Math.round(Math.max(0, ...times))} ms, ${times.filter((each) => each > SLOW_MS).length} slow\n`,
    )
  }
}

it(
  'repairs each route during 10,000 changes a minute by another program, and keeps no descriptor',
  async ({ annotate }) => {
    const why = await whyNoVxlan()
    const [first, second, third] = lab.hosts as [Host, Host, Host]
    const nodes = [
      await startNode(first, 'udp', {}),
      await startNode(second, 'host-gw', {}),
      ...(why === undefined ? [await startNode(third, 'vxlan', { DataPath: 'kernel' })] : []),
    ]
    for (const node of nodes)
      await eventually(async () => expect(await routesOf(node)).toHaveLength(node.routes.length))
    const repairs = new Map(nodes.map((node) => [node, { times: [] as number[] }]))
    const uses = new Map(nodes.map((node) => [node, useOf(node)]))
    const pauseMs = Math.min(REPORT_MS, STORM_MS)
    await delay(pauseMs)
    report('without changes', nodes, uses, pauseMs, repairs)
    const atStart = new Map(uses)

    const over = new AbortController()
    const storms = Promise.all(nodes.map((node) => storm(node, over.signal)))
    const deletions = Promise.all(nodes.map((node) => deleteRoutes(node, repairs.get(node)!, over.signal)))
    deletions.catch(() => over.abort())
    const began = performance.now()
    for (let minute = 1; performance.now() - began < STORM_MS && !over.signal.aborted; minute++) {
      const at = performance.now()
      await delay(pauseMs)
      report(`minute ${minute}`, nodes, uses, performance.now() - at, repairs)
      await annotate(`${Math.round((100 * (performance.now() - began)) / STORM_MS)}%`, 'step')
    }
    over.abort()
    await deletions
    const changes = await storms
    process.stdout.write(
      `storm: ${changes.join(', ')} changes in ${Math.round((performance.now() - began) / 1000)} s\n`,
    )

    for (const node of nodes) {
      expect(changes[nodes.indexOf(node)]).toBeGreaterThan(0.9 * CHANGES_A_MINUTE * (STORM_MS / 60_000))
      expect(repairs.get(node)!.times.length, node.type).toBeGreaterThan(0)
      expect(await routesOf(node), node.type).toHaveLength(node.routes.length)
      const [start, end] = [atStart.get(node)!, useOf(node)]
      await eventually(() => expect(useOf(node).descriptors, node.type).toBeLessThanOrEqual(start.descriptors))
      expect(end.sockets, node.type).toBeLessThanOrEqual(start.sockets)
      expect(node.daemon.process.exitCode).toBe(null)
    }
  },
  STORM_MS + 300_000,
)
