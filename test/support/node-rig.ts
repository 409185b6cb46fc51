// node-rig.ts - a node on a store and a data path made for the test, in virtual time.

import { setMaxListeners } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, vi } from 'vitest'
import { EVENT_MS } from '../../lab/lab.ts'
import type { Backend } from '../../src/backend/backend.ts'
import { parseNetworkConfig } from '../../src/config/network-config.ts'
import { runNode } from '../../src/daemon.ts'
import type { PeerTraffic } from '../../src/dataplane/engine.ts'
import { createBell } from '../../src/host/bell.ts'
import { parseLeaseKey } from '../../src/lease/lease.ts'
import { managerOf } from '../../src/lease/store-manager.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import type { NodeParts } from '../../src/node/node.ts'
import { createHealth, type Health } from '../../src/status/health.ts'
import type { State } from '../../src/status/notify.ts'
import type { Status } from '../../src/status/status.ts'
import { detailsOf, troubleOf } from '../../src/status/snapshot.ts'
import { alone } from './alone.ts'
import { createMemoryStore, type MemoryStore } from './memory-store.ts'

interface FakeDataPath {
  readonly subnet: string
  readonly applied: string[][]
  closed: boolean
  /** Why it cannot be closed. */
  stuck: Error | undefined
  /** Why peers cannot be set now. */
  refusal: Error | undefined
  mended: string[]
  unreported: boolean
  rounds: Record<string, number>
  looks: number
  traffic: PeerTraffic | undefined
  /** As the node has set them, each time. */
  readonly limits: [string, number][][]
  die(why: string): void
}

let folder: string
/** What no node may do. */
let misuses: string[]
/** Of the test that runs. */
export let store: MemoryStore
export let dataPaths: FakeDataPath[]
let refuse: Error | undefined
/** Says what the kernel knows of a path; paths are not searched where it is undefined. */
let knownMtu: ((key: string) => number | undefined) | undefined
export let lines: string[]
let health: Health
export let told: string[]
export let alive: number
export let stopping: AbortController
export let ended: Promise<unknown>

/** The network has four subnets of which three can be leased: 10.5.0.64/26, .128 and .192. */
const config = parseNetworkConfig('{"Network":"10.5.0.0/24"}')
export const value = (publicIp: string): string => `{"PublicIP":"${publicIp}","PublicIPv6":null}`
export const ours = value('192.0.2.1')

export const backend: Backend = {
  name: 'fake',
  prepare: async () => ({ publicIp: { ipv4: parseIpv4('192.0.2.1')! }, backendType: '' }),
  async open(lease) {
    if (refuse) throw refuse
    let die!: (error: Error) => void
    const fault = new Promise<Error>((resolve) => (die = resolve))
    const dataPath: FakeDataPath = {
      subnet: lease.key,
      applied: [],
      closed: false,
      stuck: undefined,
      refusal: undefined,
      mended: [],
      unreported: false,
      rounds: {},
      looks: 0,
      traffic: undefined,
      limits: [],
      die: (why) => die(new Error(why)),
    }
    dataPaths.push(dataPath)
    return {
      mtu: 1472,
      fault,
      apply: async (leases, own) => {
        if (dataPath.closed) misuses.push('applied to a data path that is closed')
        if (dataPath.refusal) throw dataPath.refusal
        dataPath.applied.push([...leases.keys()].filter((key) => key !== own).toSorted())
      },
      resync: async () => dataPath.mended.splice(0),
      get unreported() {
        return dataPath.unreported
      },
      carrier: () => ({ device: 'fake0', engine: 'native', features: [] }),
      probeSource: lease.subnet.ipv4!.address,
      peers: () =>
        (dataPath.applied.at(-1) ?? []).map((key) => ({
          key,
          endpoint: 'somewhere:8285',
          way: 'tunnel' as const,
          probe: parseLeaseKey(key)!.ipv4!.address,
        })),
      peer: (key) =>
        dataPath.applied.at(-1)?.includes(key)
          ? { key, endpoint: 'somewhere:8285', way: 'tunnel' as const, probe: parseLeaseKey(key)!.ipv4!.address }
          : undefined,
      traffic: async () =>
        new Map((dataPath.applied.at(-1) ?? []).flatMap((key) => (dataPath.traffic ? [[key, dataPath.traffic]] : []))),
      counters: () => ({ tx_packets: 5n, tx_drop_no_route: 2n, rx_drop_ttl: 0n }),
      threads: () => dataPath.rounds,
      ...(knownMtu
        ? { pathSearch: { overhead: 28, knownMtu, limit: (all) => void dataPath.limits.push([...all]) } }
        : {}),
      look: () => void dataPath.looks++,
      close: async () => {
        dataPath.closed = true
        if (dataPath.stuck) throw dataPath.stuck
      },
    }
  },
}

export function installRig(): void {
  beforeEach(setUp)
  afterEach(tearDown)
}

function setUp(): void {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance'] })
  folder = mkdtempSync(join(tmpdir(), 'weft-daemon-'))
  store = createMemoryStore()
  dataPaths = []
  misuses = []
  refuse = undefined
  knownMtu = undefined
  lines = []
  const daemon = { version: '0', pid: 1, startedAt: '', subnetFile: '', leases: '' }
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

/** What stops the next node that is started. */
export function restart(): void {
  stopping = new AbortController()
  setMaxListeners(0, stopping.signal) // as runDaemon does
}

/** From now on the backend throws this when it is to open a data path; without an error it opens one again. */
export function refuseToOpen(error?: Error): void {
  refuse = error
}

/** From now on a data path that is opened asks for the longest packet that reaches each peer. */
export function searchPaths(known: (key: string) => number | undefined): void {
  knownMtu = known
}

/** What /readyz and /livez tell. */
export const readiness = (): boolean => health.snapshot()?.isReady ?? false
export function trouble(): string | undefined {
  const node = health.snapshot()
  return node ? troubleOf(node) : 'starting'
}
export const nodeStatus = (): Promise<Status> => health.status()
export const details = (): string => detailsOf(health.snapshot()!)
export const holds = (): number => health.snapshot()!.holds

export const subnetFile = (): string => join(folder, 'subnet.env')

const say = (letter: string) => (message: string) => void lines.push(`${letter} ${message}`)
export const log = { info: say('I'), warn: say('W'), error: say('E'), v: () => false }

export function start(extra: Partial<NodeParts> = {}, hostChanged = createBell()): void {
  const options = {
    'subnet-file': subnetFile(),
    'subnet-lease-renew-margin': 60,
    'fail-static-hold': 30,
    'ip-masq': false,
    'probe-interval': 10,
  }
  const notifier = {
    aliveMs: 15_000,
    tell: ({ ready, status }: State) => void (told.at(-1) !== status && ready && told.push(status)),
    alive: () => void alive++,
    stopping: () => {},
    keeps: 0,
    keep: async () => false,
    forget: () => {},
  }
  const manager = managerOf(store)
  const parts = { options, manager, config, backend, log, signal: stopping.signal, health, notifier, ...extra }
  ended = runNode(parts, {}, stopping, alone(parts, hostChanged)).catch((error: unknown) => error)
}

/** Of real time, in which a file is written. */
const realEndOf = (): bigint => process.hrtime.bigint() + BigInt(EVENT_MS) * 1_000_000n

/** Waits until `condition` holds: at most `virtualMs` of virtual time, let go by bit by bit, and a minute of real time. */
export async function until(condition: () => boolean, virtualMs = 1000): Promise<void> {
  const realEnd = realEndOf()
  let steps = 100
  for (let turns = 1; !condition(); turns++) {
    if (process.hrtime.bigint() > realEnd) throw new Error(`it did not come true; the log:\n${lines.join('\n')}`)
    await new Promise((resolve) => setImmediate(resolve))
    if (turns % 20 === 0 && steps-- > 0) await vi.advanceTimersByTimeAsync(virtualMs / 100)
  }
}
/** The same for what takes files and timers in turn: lets virtual time go by for as long as it takes. */
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
export const own = (): string => [...store.entries.values()].find((entry) => entry.value === ours)!.key
