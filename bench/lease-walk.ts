// lease-walk.ts - measures the CPU time that weftd's TypeScript code spends on one changed lease in a network of COUNT
// leases: from the store's event until the engine gets the new peers. All of weftd's loops that use peers run. Stubs
// replace the store, the engine and commands such as `ip`. `lease-walk.js COUNT` prints one line of JSON.
//
// The result is the CPU time of the process, including garbage collection, so other programs on the machine do not
// affect it.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as delay } from 'node:timers/promises'
import { parseFlags } from '../src/base/go-flags.ts'
import type { Log } from '../src/base/log.ts'
import { readSettings } from '../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../src/control/config/network-config.ts'
import { leaseKey, type Lease, type OwnLease } from '../src/control/lease/lease.ts'
import type { Change, Entry } from '../src/control/lease/subnet-manager.ts'
import { createBell } from '../src/host/bell.ts'
import type { Run } from '../src/host/command.ts'
import type { Echo } from '../src/host/echo.ts'
import { hostKernel } from '../src/host/netlink/host-kernel.ts'
import { openDataPaths } from '../src/node/data-paths.ts'
import { keepLastKnown } from '../src/node/loops/last-known.ts'
import { keepPeers } from '../src/node/loops/peers.ts'
import { probePeers } from '../src/node/loops/probes.ts'
import { createNode, joinNetwork, type Node } from '../src/node/node.ts'
import { Ownership } from '../src/node/ownership.ts'
import type { Next } from '../src/node/restart/last-known.ts'
import { cutOptions, FLAGS } from '../src/options.ts'
import { createUdpBackend } from '../src/path/backends/udp.ts'
import type { Engine } from '../src/path/engine/engine.ts'

const CHANGES = 60
/**
 * The duration in seconds of the load with frequent lease changes. CHURNED_A_SECOND is the number of leases that change
 * in each second, one at a time.
 */
const CHURN_S = 5
const CHURNED_A_SECOND = 10
const PREFIX_LENGTH = 28
const SUBNETS_FROM = 0x0a000000
const HOSTS_FROM = 0xac100000
const SUBNET_SIZE = 2 ** (32 - PREFIX_LENGTH)

function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}
const log: Log = {
  info: () => {},
  warn: () => {},
  error: (line) => void process.stderr.write(`${line}\n`),
  v: () => false,
}

let revision = 0n
function lease(index: number, publicIp: number): Lease {
  const subnet = { ipv4: { address: SUBNETS_FROM + index * SUBNET_SIZE, prefixLength: PREFIX_LENGTH } }
  return {
    key: leaseKey(subnet),
    subnet,
    attrs: { publicIp: { ipv4: publicIp }, backendType: '' },
    revision: ++revision,
  }
}
const entryOf = (each: Lease): Entry => ({ key: each.key, lease: each })

/** Returns a lease source that lists `entries`, and a function that reports a change to the source's watchers. */
function createSource(entries: readonly Entry[]) {
  const bell = createBell()
  const waiting: Change[] = []
  return {
    change: (change: Change): void => {
      waiting.push(change)
      bell.ring()
    },
    source: {
      name: 'bench',
      list: async () => ({ cursor: 0n, entries }),
      async *watch(_after: bigint, signal: AbortSignal) {
        for (let cursor = 1n; ; cursor++) {
          await bell.wait(signal)
          yield { cursor, changes: waiting.splice(0) }
        }
      },
      isAfter: (a: bigint, b: bigint) => a > b,
      trustedMs: () => 1e9,
    },
  }
}

/** A stub for running commands, which answers `ip -j` as if the kernel had no routes and devices. */
const run: Run = async (_file, args) => (args.includes('-j') ? '[]' : '')

async function openNode(count: number, onPeers: () => void, stopping: AbortController, folder: string) {
  const external = { name: 'eth0', mtu: 1500, address: 0xc0000201, publicIp: 0xc0000201 }
  const config = parseNetworkConfig('{"Network":"10.0.0.0/7","SubnetLen":28,"Backend":{"Type":"udp"}}')
  const engine: Engine = {
    kind: 'native',
    tunName: 'flannel0',
    offloads: [],
    notes: [],
    details: [],
    fault: new Promise<Error>(() => {}),
    outers: ['ipv4'],
    setPeers: onPeers,
    changePeers: onPeers,
    counters: () => ({}),
    traffic: (slot?: number) => new Float64Array(slot === undefined ? 0 : 5),
    drops: () => ({ next: [], packets: [] }),
    threads: () => ({}),
    takeUnknownSenders: () => [],
    stop: async () => {},
  }
  const persistence = { persist: false, isMultiQueue: false, inherit: async () => undefined, settle: async () => {} }
  const backend = createUdpBackend({
    config,
    settings: readSettings('udp', config.backend),
    external,
    run,
    kernel: hostKernel,
    log,
    persistence,
    startEngine: async () => engine,
  } as never)
  const attrs = { publicIp: { ipv4: external.publicIp }, backendType: '' }
  const own: OwnLease = { ...lease(2 ** 20 + 1, external.publicIp), attrs, expiresAt: undefined, revision: 1n }
  const entries = [own, ...Array.from({ length: count }, (_, index) => lease(index, HOSTS_FROM + index))].map(entryOf)
  const { source, change } = createSource(entries)
  const options = cutOptions(parseFlags(FLAGS, ['--subnet-file', join(folder, 'subnet.env')]).options).node
  const ownership = new Ownership(log)
  const next = { config: '', store: 'bench', lastKnown: join(folder, 'last-known') } as Next
  const node = createNode({ options, store: 'bench', kernel: hostKernel, log, stopping }, ownership)
  const { signal } = stopping
  await ownership.open(() => openDataPaths({ backend, lease: own, leases: new Map(), signal, kernel: hostKernel, log }))
  const forwarding = Object.assign(node, { config, backend, lease: own, attrs, next, pathLease: own })
  const manager = { source } as unknown as Node['manager']
  return {
    node: joinNetwork(forwarding, {
      manager,
      openEcho: () => ({ send: () => {}, close: () => {} }) as unknown as Echo,
    }),
    change,
  }
}

async function measure(count: number): Promise<Record<string, number>> {
  const folder = mkdtempSync(join(tmpdir(), 'weft-walk-'))
  const stop = new AbortController()
  let resolveApplied = (): void => {}
  const { node, change } = await openNode(count, () => resolveApplied(), stop, folder)
  const next = (): Promise<void> => new Promise((resolve) => (resolveApplied = resolve))
  const loops: Promise<unknown>[] = []
  // Ends this process if one of weftd's loops ends, because the measurement is then worthless.
  const isOver = (error: unknown): void => {
    if (!stop.signal.aborted) throw error
  }
  const start = (loop: (of: Node) => Promise<never>): void => void loops.push(loop(node).catch(isOver))
  try {
    const filled = next()
    const beforeStart = cpuMs()
    start(keepPeers)
    await filled
    await settled()
    const startMs = cpuMs() - beforeStart
    const times: number[] = []
    for (let at = 0; at < changesFor(count); at++) {
      const index = (at * 7919) % count
      const put = { kind: 'put', entry: entryOf(lease(index, HOSTS_FROM + count + at)) } as const
      const gone = { kind: 'delete', key: lease(index + 1, 0).key } as const
      const applied = next()
      const before = cpuMs()
      change(at % 3 === 2 ? gone : put)
      await applied
      await settled()
      times.push(cpuMs() - before)
    }
    start(probePeers)
    start(keepLastKnown)
    await delay(2_500) // the first run of each loop processes all peers
    const before = cpuMs()
    const from = performance.now()
    // Event-loop delays are elapsed time, not CPU time, so other programs on the machine do affect these delays.
    const delays = monitorEventLoopDelay({ resolution: 5 })
    delays.enable()
    for (let at = 0; at < CHURN_S * CHURNED_A_SECOND; at++) {
      change({ kind: 'put', entry: entryOf(lease((at * 104_729) % count, HOSTS_FROM + 2 * count + at)) })
      await delay(1000 / CHURNED_A_SECOND)
    }
    const longest = delays.max / 1e6
    const churn = (cpuMs() - before) / (performance.now() - from)
    const sorted = times.toSorted((a, b) => a - b)
    return {
      startMs,
      p50: sorted[sorted.length >> 1] ?? NaN,
      most: sorted.at(-1) ?? NaN,
      churn: 100 * churn,
      longest,
      rss: process.memoryUsage().rss / 2 ** 20,
    }
  } finally {
    stop.abort()
    await Promise.all(loops)
    rmSync(folder, { recursive: true, force: true })
  }
}

const changesFor = (count: number): number => (count > 100_000 ? CHANGES / 3 : CHANGES)
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(() => setImmediate(resolve)))

process.stdout.write(`${JSON.stringify(await measure(Number(process.argv[2])))}\n`)
// Exit explicitly, because pending file system requests would keep the process alive.
process.exit(0)
