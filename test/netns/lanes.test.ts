// lanes.test.ts - however many lanes carry a flow, its packets arrive in the order in which they were sent, with and without fragments, and
// none is dropped as a replay. The rows come from the tables of backends, options and engine features, so a new backend is tested too.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, describe, expect, it } from 'vitest'
import { ended, output } from '../../lab/command.ts'
import { createLab, WIREGUARD_APART, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { addon } from '../../src/host/addon.ts'
import { KINDS, type Option, type Options } from '../../src/path/catalog.ts'
import { eventually } from '../support/event.ts'
import { statusOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { numberedFlows, type Flow } from '../support/numbered-flows.ts'

needs(HOSTS, 'iperf3', 'ping', 'python3')

let lab: Lab
afterEach(() => lab?.close())

type Lanes = readonly [here: number, there: number]
interface Row {
  readonly backend: Readonly<Record<string, string>>
  readonly lanes: Lanes
  readonly without: readonly string[]
}

/** The options that choose the family of a backend's datagrams. */
const UNDERLAY_OPTIONS = new Set(['Underlay', 'Mode'])
const named = (options: Options): readonly Option[] =>
  Object.values(options).filter((option): option is Option => typeof option['name'] === 'string')
/** Each backend that weftd carries itself, once per family of its datagrams. */
const BACKENDS = Object.entries(KINDS).flatMap(([type, { options, devices }]) => {
  if (!devices.some(([kind]) => kind === 'tun')) return []
  const all = named(options)
  const carrier = all.some(({ name }) => name === 'DataPath') ? { DataPath: 'userspace' } : {}
  const underlay = all.find(({ name }) => UNDERLAY_OPTIONS.has(name))
  const words = underlay?.kind === 'word' ? underlay.words.map((word) => ({ [underlay.name]: word })) : [{}]
  return words.map((word) => ({ Type: type, ...carrier, ...word }))
})
const DEFAULT_LANES: Lanes = [8, 8]
const LANES: readonly Lanes[] = [DEFAULT_LANES, [8, 3], [2, 16], [1, 8]]
const ROWS: readonly Row[] = BACKENDS.flatMap((backend) => LANES.map((lanes) => ({ backend, lanes, without: [] })))
const FEATURE_ROWS: readonly Row[] = BACKENDS.filter(
  ({ Type }, at) => BACKENDS.findIndex((other) => other.Type === Type) === at,
).flatMap((backend) => addon.featureNames.map((name) => ({ backend, lanes: DEFAULT_LANES, without: [name] })))

function start(host: Host, backend: object, lanes: number, without: readonly string[] = []): Daemon {
  mkdirSync(join(lab.folder, 'leases'), { recursive: true })
  const network = { Network: '10.5.0.0/16', EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: backend }
  writeFileSync(join(lab.folder, 'leases', 'config'), JSON.stringify(network))
  const flags = ['--workers', String(lanes), '--probe-interval', '0', ...without.flatMap((name) => ['--without', name])]
  return host.startDaemon({
    args: ['--lease-dir', join(lab.folder, 'leases'), ...flags],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
    before: WIREGUARD_APART,
  })
}

async function started({ backend, lanes, without }: Row) {
  lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
  const daemons = lab.hosts.map((host, at) => start(host, backend, lanes[at]!, without)) as [Daemon, Daemon]
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  const [a, b] = lab.hosts as [Host, Host]
  const pods = [await a.startPod(), await b.startPod()] as const
  for (const [from, to] of [pods, [pods[1], pods[0]]] as const)
    for (const address of [to.address, to.ipv6!]) await reach(from.namespace, address)
  return { pods, daemons }
}
const running = async (row: Row): Promise<readonly [Pod, Pod]> => (await started(row)).pods

const counterOf = async (host: Host, name: string): Promise<number> =>
  (await statusOf(host)).dataPath!.counters[name] ?? 0

/**
 * Lets one CPU deliver all packets of a host's and a container's devices. Otherwise a veth device queues each packet on the CPU of the
 * thread that sent it (net/core/dev.c, netif_rx), and packets of one flow change places if the thread moves to another CPU while the
 * queue of the first CPU waits, as on a busy machine.
 */
async function deliverOnOneCpu({ namespace }: Pick<Pod, 'namespace'>): Promise<void> {
  const program = 'for file in /sys/class/net/*/queues/rx-*/rps_cpus; do echo 1 > "$file"; done'
  await output(['ip', 'netns', 'exec', namespace, 'sh', '-c', program])
}

const COUNT = 400
const WHOLE = [[100], [1_000], [100, 1_000, 600]]
const IN_FRAGMENTS = [[3_000], [100, 3_000], [...Array.from({ length: 9 }, () => 1_000), 1_600]]
const flowsTo = (pod: Pod, sizes: readonly (readonly number[])[]): Flow[] =>
  [pod.address, pod.ipv6!].flatMap((to, family) =>
    sizes.map((each, at) => ({ to, port: 7_000 + 100 * family + at, sizes: each })),
  )

async function keepsOrder(row: Row): Promise<void> {
  const [here, there] = await running(row)
  for (const place of [...lab.hosts, here, there]) await deliverOnOneCpu(place)
  const sizes = row.without.includes('tun-steering') ? WHOLE : [...WHOLE, ...IN_FRAGMENTS]
  for (const [from, to] of [
    [here, there],
    [there, here],
  ] as const) {
    const flows = flowsTo(to, sizes)
    const arrived = await numberedFlows(from, to, flows, COUNT)
    expect(arrived.map(({ late, twice }) => ({ late, twice }))).toEqual(flows.map(() => ({ late: 0, twice: 0 })))
    for (const { received } of arrived) expect(received).toBeGreaterThan(0)
  }
  for (const host of lab.hosts) expect(await counterOf(host, 'rx_drop_replay')).toBe(0)
}

describe('a flow stays in order, with and without fragments', () => {
  it.each(ROWS.map((row) => [JSON.stringify(row), row] as const))('with %s', (_title, row) => keepsOrder(row))
  it.each(FEATURE_ROWS.map((row) => [JSON.stringify(row), row] as const))('with %s', (_title, row) => keepsOrder(row))
})

/** The source ports of WireGuard's eight lanes, and the queue class of each. */
const LANE_PORTS = Array.from({ length: 8 }, (_, lane) => 51_820 + 240 + lane)
const classOf = (lane: number): string => `1:1${lane}`
const WHOLE_RATE = '10gbit'
/**
 * Gives each lane of a host its own transmit queue, like fair queues (fq, fq_codel, cake) and multi-queue network cards, and limits their
 * total rate.
 */
async function fairQueue(host: Host, rate: string): Promise<void> {
  const tc = (words: string): Promise<string> => host.output(['tc', ...words.split(' ')])
  await tc('qdisc add dev eth0 root handle 1: htb default 19')
  await tc(`class add dev eth0 parent 1: classid 1:1 htb rate ${rate} ceil ${rate} burst 128kb cburst 128kb`)
  const leaf = (name: string): Promise<string> =>
    tc(`class add dev eth0 parent 1:1 classid ${name} htb rate 1mbit ceil ${rate} burst 64kb cburst 64kb quantum 3000`)
  await leaf('1:19')
  await tc('qdisc add dev eth0 parent 1:19 handle 29: pfifo limit 20000')
  for (const [lane, port] of LANE_PORTS.entries()) {
    await leaf(classOf(lane))
    await tc(`qdisc add dev eth0 parent ${classOf(lane)} handle 2${lane}: pfifo limit 20000`)
    const match = `match ip protocol 17 0xff match ip sport ${port} 0xffff`
    await tc(`filter add dev eth0 parent 1: protocol ip prio 1 u32 ${match} flowid ${classOf(lane)}`)
  }
}
/** Returns the packets that each lane's queue has sent, and those that wait in it. */
async function queuesOf(host: Host): Promise<readonly { readonly sent: number; readonly waiting: number }[]> {
  const text = await host.output(['tc', '-s', 'class', 'show', 'dev', 'eth0'])
  const classes = text.split(/^class htb /m)
  return LANE_PORTS.map((_port, lane) => {
    const its = classes.find((each) => each.startsWith(`${classOf(lane)} `)) ?? ''
    return { sent: Number(/ (\d+) pkt /.exec(its)?.[1]), waiting: Number(/backlog \S+ (\d+)p/.exec(its)?.[1]) }
  })
}
/** Stops a lane's thread and prints a line; resumes the thread at the next line of input. */
const HOLD = `
import ctypes, os, sys
trace = ctypes.CDLL(None).ptrace
trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
thread = int(sys.argv[1])
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
assert trace(SEIZE, thread, None, None) == 0 and trace(INTERRUPT, thread, None, None) == 0
os.waitpid(thread, WALL)
print('held', flush=True)
sys.stdin.readline()
assert trace(DETACH, thread, None, None) == 0
`
/** Stops a lane of a daemon, as a busy core would; resolves with a function that resumes it. */
async function holdLane(host: Host, { process: { pid } }: Daemon, lane: number): Promise<() => Promise<unknown>> {
  const thread = readdirSync(`/proc/${pid}/task`).find(
    (id) => readFileSync(`/proc/${pid}/task/${id}/comm`, 'utf8').trim() === `weft-loop${lane}`,
  )
  const holder = host.spawn(['python3', '-c', HOLD, thread!], { stdin: true })
  const lines = createInterface({ input: holder.stdout! })[Symbol.asyncIterator]()
  expect((await lines.next()).value).toBe('held')
  return () => {
    holder.stdin!.end('\n')
    return ended(holder)
  }
}

const WIREGUARD: Row = {
  backend: { Type: 'wireguard', DataPath: 'userspace' },
  lanes: DEFAULT_LANES,
  without: [],
}
const PINGS = 50
/** Prints WireGuard's data messages in hex, once a given number has arrived. */
const CAPTURE = `
import json, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
s.bind(('eth0', 0x0800))
print('listening', flush=True)
found = []
while len(found) < int(sys.argv[1]):
    packet, about = s.recvfrom(65536)
    if about[2] == socket.PACKET_OUTGOING or packet[9] != 17 or packet[22:24] != (51820).to_bytes(2, 'big') or packet[28] != 4:
        continue
    if len(packet) > 28 + 32:  # not a keepalive
        found.append(packet[28:int.from_bytes(packet[2:4], 'big')].hex())
print(json.dumps(found), flush=True)
`
/** Sends datagrams from a given port. */
const RESEND = `
import json, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', int(sys.argv[2])))
for each in json.load(sys.stdin):
    s.sendto(bytes.fromhex(each), (sys.argv[1], 51820))
`
const replaysOn = (hosts: readonly Host[]): Promise<readonly number[]> =>
  Promise.all(hosts.map((host) => counterOf(host, 'rx_drop_replay')))

describe('no packet of WireGuard is dropped as a replay', () => {
  it("although the other lanes get ahead of a stopped lane by more than the kernel's replay window", async () => {
    const { pods, daemons } = await started(WIREGUARD)
    const [from, to] = pods
    const [a, b] = lab.hosts as [Host, Host]
    await fairQueue(a, WHOLE_RATE) // its counters show the lane of a flow
    // UDP between two addresses uses one lane, so several sources use several lanes.
    const sources = Array.from({ length: 8 }, (_, number) => from.address.replace(/\d+$/, String(100 + number)))
    for (const source of sources) await from.output(['ip', 'address', 'add', `${source}/24`, 'dev', 'eth0'])
    const flow = (source: string, port: number): Flow => ({ to: to.address, port, sizes: [100], from: source })
    const lanes = new Map<string, number>()
    for (const source of sources) {
      const before = await queuesOf(a)
      await numberedFlows(from, to, [flow(source, 7_000)], 40)
      const more = (await queuesOf(a)).map(({ sent }, lane) => sent - before[lane]!.sent)
      lanes.set(source, more.indexOf(Math.max(...more)))
    }
    const [first] = sources
    const held = lanes.get(first!)!
    const others = sources.filter((source) => lanes.get(source) !== held)
    expect(others.length).toBeGreaterThan(0)

    const letGo = await holdLane(b, daemons[1], held)
    let isSent = (): void => {}
    const sent = new Promise<void>((resolve) => (isSent = resolve))
    const waiting = numberedFlows(from, to, [flow(first!, 7_001)], 200, isSent)
    await sent
    let passed = 0
    while (passed < 20_000) {
      const flows = others.map((source, at) => flow(source, 7_010 + at))
      for (const { received } of await numberedFlows(from, to, flows, 2_000)) passed += received
    }
    await letGo()
    expect(await waiting).toEqual([{ received: 200, late: 0, latest: 0, twice: 0 }])
    expect(await replaysOn([a, b])).toEqual([0, 0])
  })

  it('among 16 streams behind a fair queue, and among 16 without one', async () => {
    const [from, to] = await running(WIREGUARD)
    const [a, b] = lab.hosts as [Host, Host]
    const server = await iperfServer((command) => to.spawn(command))
    const exchange = async (): Promise<void> => {
      for (const more of [
        ['-P', '16'],
        ['-P', '16', '-R'],
      ]) {
        const { bitsPerSecond } = await server.run(from.namespace, to.address, 2, more)
        expect(bitsPerSecond).toBeGreaterThan(5e6)
      }
    }
    await exchange()
    await fairQueue(a, '200mbit')
    await exchange()
    const used = (await queuesOf(a)).filter(({ sent }) => sent > 1_000)
    expect(used.length).toBeGreaterThan(1)
    await server.stop()
    expect(await replaysOn([a, b])).toEqual([0, 0])
  })

  it('except one that is sent again, on any lane', async () => {
    const [from, to] = await running(WIREGUARD)
    const [a, b] = lab.hosts as [Host, Host]
    const capture = b.spawn(['python3', '-c', CAPTURE, String(PINGS)])
    const lines = createInterface({ input: capture.stdout! })[Symbol.asyncIterator]()
    expect((await lines.next()).value).toBe('listening')
    await from.output(['ping', '-n', '-c', String(PINGS), '-i', '0.01', to.address])
    const datagrams = JSON.parse((await lines.next()).value as string) as readonly string[]
    await ended(capture)
    const before = await counterOf(b, 'rx_packets')
    for (const port of LANE_PORTS)
      await a.output(['python3', '-c', RESEND, b.address, String(port + 480)], { input: JSON.stringify(datagrams) })
    await eventually(async () => expect(await counterOf(b, 'rx_drop_replay')).toBe(LANE_PORTS.length * PINGS))
    expect(await counterOf(b, 'rx_packets')).toBe(before)
    await reach(from.namespace, to.address)
  })
})
