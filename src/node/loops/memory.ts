// memory.ts - the loop that records the events of the peers, and the last hour of traffic and round-trip times of this
// node and its peers. It writes the events to a file, so that the next weftd has them.

import { messageOf } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { FAMILIES, formatAddress, formatNet, type Family } from '../../net/address.ts'
import type { PeerTraffic } from '../../path/engine/engine.ts'
import { readEvents, writeEvents } from '../../report/events-file.ts'
import { Hour, PEER_STEP_MS, STEP_MS, type NodeSample, type PeerSample } from '../../report/hour.ts'
import { createPeerEvents, placeOf, type PeerEvents } from '../../report/peer-events.ts'
import { createRecent, type Recent } from '../../report/recent.ts'
import { isDrop } from '../../report/status.ts'
import type { Node } from '../node.ts'
import { countersOf } from '../report.ts'
import { ON_ITS_WAY_MS, PeerWatch } from './peer-watch.ts'
import type { Probed } from './probe-schedule.ts'

/** The interval in ms at which weftd compares the peers' probe results with their previous results. */
const TICK_MS = 2_000
/**
 * The minimum interval in ms between two writes of the events file. HEARD_MS is the interval at which weftd counts the
 * packets that silent peers sent.
 */
const REST_MS = 5_000
const HEARD_MS = 10_000
/** How long, in ms, a hanging disk may delay the end of the process. */
const PATIENCE_MS = 1_000

type Traffic = ReadonlyMap<string, PeerTraffic>

const memories = new WeakMap<Node, ReturnType<typeof createMemory>>()
/**
 * Returns the recorded events, and the traffic and round trips of the last hour. If the loop is restarted after a
 * failure, it continues with this record.
 */
function memoryOf(node: Node): ReturnType<typeof createMemory> {
  const memory = memories.get(node) ?? createMemory(node)
  memories.set(node, memory)
  return memory
}

function createMemory(node: Node) {
  const events = createPeerEvents()
  const file = createEventsFile(node, events)
  void file.begin()
  const memory = { events, hour: new Hour(), recent: createRecent() }
  node.memory = memory
  return { ...memory, file }
}

export async function keepMemory(node: Node): Promise<never> {
  const { events, hour, recent, file } = memoryOf(node)
  const watch = new PeerWatch(events, () => new Date().toISOString())
  const sampler = new Sampler(node, hour, recent, watch)
  let traffic: Traffic = new Map()
  let heardAt = -Infinity
  try {
    for (;;) {
      await pause(node.signal, TICK_MS)
      if (performance.now() - heardAt >= HEARD_MS) {
        // Read only the traffic of the silent peers, because reading that of thousands of peers blocks the event loop.
        const silent = watch.silent()
        if (silent.size > 0) {
          heardAt = performance.now()
          traffic = await trafficOf(node, silent)
        }
      }
      lookAtNews(node, watch, traffic)
      await sampler.sample()
      file.write()
    }
  } finally {
    await file.end()
  }
}

/**
 * Returns the traffic of each peer, or no traffic if the device that counts the traffic is gone. If `keys` is given, the
 * result may lack all peers except those with these lease keys.
 */
async function trafficOf({ ownership: { dataPath } }: Node, keys?: ReadonlySet<string>): Promise<Traffic> {
  return (await dataPath?.traffic(keys).catch(() => undefined)) ?? new Map()
}

/**
 * Passes each peer whose probe results or path length have changed to `watch`, which derives events from the changes.
 */
function lookAtNews({ view, lease: own, probes, lengths }: Node, watch: PeerWatch, traffic: Traffic): void {
  const now = performance.now()
  for (const family of FAMILIES) {
    const [watched, searched] = [probes?.[family], lengths[family]]
    for (const key of new Set([...(watched?.takeNews() ?? []), ...(searched?.takeNews() ?? [])])) {
      const place = key === own.key ? undefined : placeIn(view, key, family)
      if (!place) continue
      const [probed, length] = [watched?.result(key), searched?.length(key)]
      const others = FAMILIES.flatMap((each) => (each === family ? [] : (probes?.[each]?.result(key) ?? [])))
      const heardAt = heardBesides(others, traffic.get(key)?.lastReceivedAt)
      watch.look({ lease: key, ...place, probed, length, heardAt }, now)
    }
  }
}

/**
 * Returns the time of a peer's last packet, or undefined if the packet may have arrived over one of the families with
 * the probe results `others`. weftd counts the packets of both families together, so the last packet of the peer does
 * not show by which family it arrived.
 */
function heardBesides(others: readonly Probed[], heardAt: number | undefined): number | undefined {
  const mayBeElse = others.some(
    ({ isAnswering, unansweredSince = Infinity }) => isAnswering || (heardAt ?? 0) <= unansweredSince + ON_ITS_WAY_MS,
  )
  return mayBeElse ? undefined : heardAt
}

/** Returns a peer's subnet and public address in a family as text; undefined if the peer lacks the family. */
function placeIn(view: Node['view'], key: string, family: Family) {
  const { subnet, attrs } = view.get(key) ?? {}
  const [net, address] = [subnet?.[family], attrs?.publicIp[family]]
  if (!net || address === undefined) return undefined
  return { peer: formatNet(net), publicIp: formatAddress(address), family }
}

interface Totals {
  readonly at: number
  readonly tx: number | undefined
  readonly rx: number | undefined
  readonly drops: number | undefined
}

/** Returns how much a counter has increased per second; undefined if the counter was reset between the two samples. */
const rate = (now: number | undefined, then: number | undefined, ms: number): number | undefined =>
  now !== undefined && then !== undefined && now >= then && ms > 0 ? ((now - then) * 1000) / ms : undefined

function totalsOf(counters: Readonly<Record<string, number>>, at: number): Totals {
  const drops = Object.entries(counters).filter(([name]) => isDrop(name))
  const all = drops.reduce((sum, [, number]) => sum + number, 0)
  return { at, tx: counters['tx_bytes'], rx: counters['rx_bytes'], drops: drops.length > 0 ? all : undefined }
}

/** Samples the traffic of this node and of each peer, and the round trips and losses of their probes. */
class Sampler {
  readonly #node: Node
  readonly #hour: Hour
  /** The counters of the data path during the last minutes. */
  readonly #recent: Recent
  readonly #watch: PeerWatch
  /** The counters at the last sample of the whole node. */
  #last: Totals | undefined
  /** The time of the last sample of the whole node, in ms of performance.now(). */
  #stepAt = performance.now()
  /** The time of the last sample of the single peers, in ms of performance.now(). */
  #peerStepAt: number
  /** The traffic of each peer at the last sample of the peers' values. */
  #before: { readonly at: number; readonly traffic: Traffic } | undefined

  constructor(node: Node, hour: Hour, recent: Recent, watch: PeerWatch) {
    this.#node = node
    this.#hour = hour
    this.#recent = recent
    this.#watch = watch
    this.#peerStepAt = this.#stepAt
    recent.keep(countersOf(node.ownership), this.#stepAt)
  }

  async sample(): Promise<void> {
    const now = performance.now()
    if (now - this.#stepAt >= STEP_MS) {
      this.#stepAt += STEP_MS * Math.floor((now - this.#stepAt) / STEP_MS)
      const counters = countersOf(this.#node.ownership)
      this.#recent.keep(counters, now)
      this.#hour.add(this.#nodeSample(totalsOf(counters, now)), now)
    }
    if (now - this.#peerStepAt < PEER_STEP_MS) return
    this.#peerStepAt += PEER_STEP_MS * Math.floor((now - this.#peerStepAt) / PEER_STEP_MS)
    this.#hour.addPeers(await this.#peerSamples(), now)
    const places = FAMILIES.flatMap((family) =>
      [...this.#node.view.keys()].flatMap((key) => {
        const place = placeIn(this.#node.view, key, family)
        return place ? [placeOf(place)] : []
      }),
    )
    this.#watch.keep(new Set(places))
  }

  /** Returns the traffic rates since the last sample, and the round trip and the loss of the probes to all peers. */
  #nodeSample(now: Totals): NodeSample {
    const then = this.#last
    this.#last = now
    const ms = then ? now.at - then.at : 0
    // While no probe can be sent, the last readings describe an earlier time.
    const readings = this.#node.probes ? [...this.#watch.readings()] : []
    const times = readings.flatMap(({ roundTripMs }) => roundTripMs ?? []).toSorted((a, b) => a - b)
    const losses = readings.reduce((sum, { lossPercent }) => sum + lossPercent, 0)
    return {
      txBytesPerSecond: rate(now.tx, then?.tx, ms),
      rxBytesPerSecond: rate(now.rx, then?.rx, ms),
      dropsPerSecond: rate(now.drops, then?.drops, ms),
      roundTripMs: times[times.length >> 1],
      lossPercent: readings.length > 0 ? losses / readings.length : undefined,
    }
  }

  async #peerSamples(): Promise<ReadonlyMap<string, PeerSample>> {
    const traffic = await trafficOf(this.#node)
    const now = { at: performance.now(), traffic }
    const then = this.#before
    this.#before = now
    const ms = then ? now.at - then.at : 0
    const sample = (key: string): PeerSample => {
      const [after, earlier] = [traffic.get(key), then?.traffic.get(key)]
      // If the node probes a peer over two families, the worse result counts.
      const probed = FAMILIES.flatMap((family) => this.#node.probes?.[family]?.result(key) ?? [])
      const times = probed.flatMap(({ isAnswering, roundTripMs }) => (isAnswering ? (roundTripMs ?? []) : []))
      return {
        txBytesPerSecond: rate(after?.txBytes, earlier?.txBytes, ms),
        rxBytesPerSecond: rate(after?.rxBytes, earlier?.rxBytes, ms),
        roundTripMs: times.length > 0 ? Math.max(...times) : undefined,
        lossPercent: probed.length > 0 ? Math.max(...probed.map(({ lossPercent }) => lossPercent)) : undefined,
      }
    }
    return new Map(
      [...this.#node.view.keys()].flatMap((key) => (key === this.#node.lease.key ? [] : [[key, sample(key)] as const])),
    )
  }
}

/** Keeps the events in a file for the next process. Failures are only logged. */
function createEventsFile({ next, log }: Pick<Node, 'next' | 'log'>, events: PeerEvents) {
  const calm: Log = seldom(log)
  const path = next?.events
  /** True once no other process writes the events file. */
  let isOwn = false
  let written = ''
  let writing: Promise<void> | undefined
  let writtenAt = -Infinity
  const last = (): string => JSON.stringify([events.counts(), events.list().length])

  async function read(): Promise<void> {
    if (path === undefined) return
    try {
      events.adopt(await readEvents(path))
    } catch (error) {
      calm.warn(`Cannot use the events of peers in ${path}: ${messageOf(error)}; the list starts empty`)
    }
    written = last()
  }

  async function write(): Promise<void> {
    if (path === undefined || !isOwn || last() === written) return
    const now = last()
    writtenAt = performance.now()
    try {
      await patiently(writeEvents(path, events.list()))
      written = now
    } catch (error) {
      calm.warn(`Cannot write the events of peers to ${path}: ${messageOf(error)}; they are lost when weftd ends`)
    }
  }

  return {
    /**
     * Reads the events file now, and again when the previous process has ended. After that this process writes the
     * file.
     */
    async begin(): Promise<void> {
      await read()
      await next?.free
      await read()
      // If events were added while weftd read the file, the file lacks these events, so weftd must write it.
      if (Object.values(events.counts()).some((count) => count > 0)) written = ''
      isOwn = true
    },
    /** Starts to write the file if there are new events, at most once per REST_MS. */
    write(): void {
      if (writing || performance.now() - writtenAt < REST_MS) return
      writing = write().finally(() => (writing = undefined))
    },
    async end(): Promise<void> {
      await writing
      await write()
    },
  }
}

/** Resolves or rejects as `work` does, but rejects after PATIENCE_MS if `work` has not ended by then. */
async function patiently<T>(work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${PATIENCE_MS / 1000} s`)), PATIENCE_MS)
  })
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}
