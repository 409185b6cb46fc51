// node-rig.ts - a node on a mock store and a mock data path, in virtual time.

import { setMaxListeners } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, vi } from 'vitest'
import { EVENT_MS } from '../../lab/lab.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { parseLeaseKey, type LeaseAttrs, type OwnLease } from '../../src/control/lease/lease.ts'
import { managerOf } from '../../src/control/lease/store-manager.ts'
import { runNode } from '../../src/daemon.ts'
import { createBell } from '../../src/host/bell.ts'
import { familiesOf, onlyOf, type ByFamily, type Family } from '../../src/net/address.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { parseIpv6 } from '../../src/net/ipv6.ts'
import { createNode, type NewNode, type NodeParts } from '../../src/node/node.ts'
import { Ownership } from '../../src/node/ownership.ts'
import type { Backend, DataPath, PathPeer, PathTraffic, UnknownKey } from '../../src/path/contract.ts'
import { createHealth, type Health } from '../../src/report/health.ts'
import type { State } from '../../src/report/notify.ts'
import { detailsOf, isReadyNow, troubleOf } from '../../src/report/snapshot.ts'
import type { Status } from '../../src/report/status.ts'
import { ALONE, permitAll } from './alone.ts'
import { EXTERNAL, planOf } from './data-paths.ts'
import { createMemoryStore, type MemoryStore } from './memory-store.ts'
import { ModelKernel } from './model-kernel.ts'
import { nodeOptions } from './options.ts'

/** The kernel of the running test. */
export let kernel: ModelKernel

interface FakeDataPath {
  readonly subnet: string
  readonly applied: string[][]
  closed: boolean
  /** The error with which closing the data path fails. */
  stuck: Error | undefined
  /** The error with which setting the peers fails now. */
  refusal: Error | undefined
  repaired: string[]
  /** The error with which a check of the data path fails now. */
  unseen: Error | undefined
  /** Runs during a check of the data path; its argument settles when the check is late. */
  looking: ((late: Promise<unknown> | undefined) => Promise<unknown>) | undefined
  /** The families that the data path lacks, and the calls that asked to open them. */
  lacking: ByFamily<string>
  readonly renewed: LeaseAttrs[]
  /** Until this settles the data path keeps the state that `renew` left. */
  renewing: Promise<void> | undefined
  rounds: Record<string, number>
  looks: number
  traffic: PathTraffic | undefined
  /** The lease keys of each request for the traffic of some peers only. */
  readonly trafficOf: (readonly string[])[]
  /** Reports the traffic with each peer in place of the data path, after a delay. */
  counting: (() => Promise<PathTraffic>) | undefined
  unknownKeys: readonly UnknownKey[]
  /** The number of packets without a route. */
  dropped: bigint
  /** The limits that the node set, one entry per call. */
  readonly limits: [string, number][][]
  die(why: string): void
}

let folder: string
/** The calls that a node must never make. */
let misuses: string[]
/** The store of the running test. */
export let store: MemoryStore
export let dataPaths: FakeDataPath[]
let refuse: Error | undefined
/** Returns the path MTU that the kernel knows; if undefined, path MTUs are not searched. */
let knownMtu: ((key: string) => number | undefined) | undefined
export let lines: string[]
let health: Health
export let told: string[]
export let alive: number
export let stopping: AbortController
export let ended: Promise<unknown>
/** The ownership of the node that was started last. */
export let ownership: Ownership

/** The network has four subnets of which three can be leased: 10.5.0.64/26, .128 and .192. */
const CONFIG = '{"Network":"10.5.0.0/24"}'
export const config = parseNetworkConfig(CONFIG)
export const value = (publicIp: string): string => `{"PublicIP":"${publicIp}","PublicIPv6":null}`
export const ours = value('192.0.2.1')

const pathPeer = (key: string): PathPeer => {
  const { ipv4, ipv6 } = parseLeaseKey(key) ?? {}
  return {
    key,
    ...(ipv4 ? { ipv4: { endpoint: 'somewhere:8285', way: 'tunnel', probe: ipv4.address } } : {}),
    ...(ipv6 ? { ipv6: { endpoint: '[somewhere]:8285', way: 'kernel', probe: ipv6.address } } : {}),
  }
}

export const backend: Backend = {
  name: 'fake',
  external: EXTERNAL,
  prepare: async () => ({ publicIp: { ipv4: parseIpv4('192.0.2.1')! }, backendType: '' }),
  plan: planOf(openFake),
}

/** Opens a data path and adds it to `dataPaths`. */
export async function openFake(lease: OwnLease): Promise<DataPath> {
  if (refuse) throw refuse
  let die!: (error: Error) => void
  const fault = new Promise<Error>((resolve) => (die = resolve))
  const dataPath: FakeDataPath = {
    subnet: lease.key,
    applied: [],
    closed: false,
    stuck: undefined,
    refusal: undefined,
    repaired: [],
    unseen: undefined,
    looking: undefined,
    lacking: {},
    renewed: [],
    renewing: undefined,
    rounds: {},
    looks: 0,
    traffic: undefined,
    trafficOf: [],
    counting: undefined,
    unknownKeys: [],
    dropped: 2n,
    limits: [],
    die: (why) => die(new Error(why)),
  }
  dataPaths.push(dataPath)
  return {
    families: familiesOf(lease.subnet),
    unusable: () => new Set(),
    fault,
    apply: async (leases, own) => {
      if (dataPath.closed) misuses.push('applied to a data path that is closed')
      if (dataPath.refusal) throw dataPath.refusal
      dataPath.applied.push([...leases.keys()].filter((key) => key !== own).toSorted())
    },
    resync: async (late) => {
      await dataPath.looking?.(late)
      if (dataPath.unseen) throw dataPath.unseen
      return dataPath.repaired.splice(0)
    },
    adapting: {
      get lacking() {
        return dataPath.lacking
      },
      get isOutdated() {
        return familiesOf(dataPath.lacking).length > 0
      },
      renew: async () => {
        dataPath.renewed.push(lease.attrs)
        await dataPath.renewing
      },
    },
    carrier: () => ({ device: 'fake0', engine: 'native', features: [] }),
    probing: { source: { ipv4: lease.subnet.ipv4?.address, ipv6: lease.subnet.ipv6?.address } },
    peers: () => (dataPath.refusal ? [] : (dataPath.applied.at(-1) ?? []).map(pathPeer)),
    counting: {
      traffic: async (keys?: ReadonlySet<string>) => {
        if (keys) dataPath.trafficOf.push([...keys])
        const traffic = dataPath.counting ? await dataPath.counting() : dataPath.traffic
        return new Map((dataPath.applied.at(-1) ?? []).flatMap((key) => (traffic ? [[key, traffic]] : [])))
      },
    },
    handshakes: { unknownKeys: () => dataPath.unknownKeys },
    counters: () => ({ tx_packets: 5n, tx_drop_no_route: dataPath.dropped, rx_drop_ttl: 0n }),
    observing: {
      tunNames: [],
      peer: (key) => (dataPath.applied.at(-1)?.includes(key) ? pathPeer(key) : undefined),
      pathMtu: () => undefined,
      drops: () => ({ next: [], packets: [] }),
      threads: () => dataPath.rounds,
      pathSearch: knownMtu
        ? { overhead: 28, knownMtu, limit: (all) => void dataPath.limits.push([...all]) }
        : { knownMtu: () => undefined },
      look: () => void dataPath.looks++,
    },
    close: async () => {
      dataPath.closed = true
      if (dataPath.stuck) throw dataPath.stuck
    },
  }
}

/** Sets the families whose address is missing from the external interface. */
export function setGone(gone: ByFamily<string>): void {
  vi.spyOn(ownership.dataPath!, 'gone').mockReturnValue(gone)
}

/** Returns the parts of a dual-stack or IPv6-only node, in place of those of an IPv4 node. */
export function ofFamilies(...families: readonly Family[]): Pick<NodeParts, 'config' | 'backend'> {
  const only = onlyOf(families, { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('2001:db8::1')! })
  const ranges = {
    ...(only.ipv4 === undefined ? { EnableIPv4: false } : { Network: '10.5.0.0/24' }),
    ...(only.ipv6 === undefined ? {} : { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }),
  }
  const prepare = async () => ({ publicIp: only, backendType: '' })
  return { config: parseNetworkConfig(JSON.stringify(ranges)), backend: { ...backend, prepare } }
}

export function installRig(): void {
  beforeEach(setUp)
  afterEach(tearDown)
}

function setUp(): void {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance'] })
  folder = mkdtempSync(join(tmpdir(), 'weft-daemon-'))
  store = createMemoryStore()
  store.putConfig(CONFIG)
  kernel = new ModelKernel()
  dataPaths = []
  misuses = []
  refuse = undefined
  knownMtu = undefined
  lines = []
  const daemon = {
    version: '0',
    pid: 1,
    startedAt: '',
    subnetFile: '',
    leases: '',
    etcdFiles: null,
    network: 'off' as const,
  }
  health = createHealth({ daemon, events: () => lines.map((text) => ({ at: '', level: 'info', text })) })
  told = []
  alive = 0
  restart()
}

async function tearDown(): Promise<void> {
  stopping.abort(new Error('the test is over'))
  await ended
  vi.restoreAllMocks()
  vi.useRealTimers()
  rmSync(folder, { recursive: true })
  expect(misuses).toEqual([])
}

/** Aborts the running node, and prepares the start of the next one. */
export function restart(): void {
  stopping = new AbortController()
  setMaxListeners(0, stopping.signal) // runDaemon does the same
}

/** From now on the backend throws this error when it opens a data path; without an error it opens one again. */
export function refuseToOpen(error?: Error): void {
  refuse = error
}

/** From now on a new data path searches the path MTU to each peer. */
export function searchPaths(known: (key: string) => number | undefined): void {
  knownMtu = known
}

/** Returns whether /readyz answers with success. */
export function readiness(): boolean {
  const node = health.snapshot()
  return node !== undefined && isReadyNow(node)
}
export function trouble(): string | undefined {
  const node = health.snapshot()
  return node ? troubleOf(node) : 'starting'
}
export const nodeStatus = (): Promise<Status> => health.status()
/** Returns the history of the node, with one value per step, oldest first. */
export const nodeHistory = () => health.memory()!.hour.node()
export const details = (): string => detailsOf(health.snapshot()!)
export const holds = (): number => health.snapshot()!.holds

export const subnetFile = (): string => join(folder, 'subnet.env')

const say = (letter: string) => (message: string) => void lines.push(`${letter} ${message}`)
export const log = { info: say('I'), warn: say('W'), error: say('E'), v: () => false }

/** The differences between a node that `start` makes and a node that runs alone. */
interface Differences {
  readonly options?: Partial<NewNode['options']>
  readonly handover?: typeof ALONE
  readonly permit?: () => Promise<void>
}

export function start(
  extra: Partial<NodeParts> = {},
  hostChanged = createBell(),
  { options: flags = {}, handover = ALONE, permit = permitAll }: Differences = {},
): void {
  const options = nodeOptions({ 'subnet-file': subnetFile(), ...flags })
  const notifier = {
    aliveMs: 15_000,
    report: ({ ready, status }: State) => void (told.at(-1) !== status && ready && told.push(status)),
    alive: () => void alive++,
    aliveMeanwhile: () => void alive++,
    stopping: () => {},
    keeps: 0,
    keep: async () => false,
    forget: async () => {},
  }
  const parts = { manager: managerOf(store), config, backend, health, ...extra }
  ownership = new Ownership(log, hostChanged)
  const node = createNode({ options, store: '', kernel, log, stopping, notifier }, ownership)
  ended = runNode(node, parts, {}, handover, undefined, permit).catch((error: unknown) => error)
}

/** The end in real time, which writing a file takes. */
const realEndOf = (): bigint => process.hrtime.bigint() + BigInt(EVENT_MS) * 1_000_000n

/** Waits until `condition` holds, for at most `virtualMs` of virtual time, which passes in steps, and a minute of real time. */
export async function until(condition: () => boolean, virtualMs = 1000): Promise<void> {
  const realEnd = realEndOf()
  let steps = 100
  for (let turns = 1; !condition(); turns++) {
    if (process.hrtime.bigint() > realEnd) throw new Error(`it did not come true; the log:\n${lines.join('\n')}`)
    await new Promise((resolve) => setImmediate(resolve))
    if (turns % 20 === 0 && steps-- > 0) await vi.advanceTimersByTimeAsync(virtualMs / 100)
  }
}
/** Waits in the same way for a condition that needs files and timers in turn; virtual time passes for as long as that takes. */
export async function inTurns(condition: () => boolean): Promise<void> {
  const realEnd = realEndOf()
  while (!condition()) {
    if (process.hrtime.bigint() > realEnd) throw new Error(`it did not come true; the log:\n${lines.join('\n')}`)
    await vi.advanceTimersByTimeAsync(500)
    await new Promise((resolve) => setImmediate(resolve))
  }
}
export const logged = (pattern: RegExp): boolean => lines.some((line) => pattern.test(line))
export const ready = (): Promise<void> => until(() => logged(/Running backend/) && dataPaths.at(-1)!.applied.length > 0)
export const own = (): string =>
  [...store.entries.values()].find(({ value: text }) => text.includes('192.0.2.1') || text.includes('2001:db8::1'))!.key
