// hour.ts - records the last hour in arrays of a fixed size: traffic, drops, round trip and loss, every ten seconds for
// the node and every two minutes for each peer. Pure. The file is also the schema of /history.json; docs/status.md
// describes every field.
//
// A monotonic clock counts the steps, so setting the wall clock does not shift the values.

export const HISTORY_SCHEMA = 1

export const STEP_MS = 10_000
const STEPS = 360
export const PEER_STEP_MS = 120_000
const PEER_STEPS = 30
/** The maximum number of peers for which weftd records a history. */
export const MOST_PEERS = 1_024
/** The number of peers for which memory is allocated in one block. */
const BLOCK = 64

/** The measured values of the whole node in one step of ten seconds; undefined if unknown. */
export interface NodeSample {
  readonly txBytesPerSecond: number | undefined
  readonly rxBytesPerSecond: number | undefined
  readonly dropsPerSecond: number | undefined
  /** The median of the peers' round-trip times, in ms. */
  readonly roundTripMs: number | undefined
  /** The mean of the peers' loss of probes, in percent. */
  readonly lossPercent: number | undefined
}
export type PeerSample = Omit<NodeSample, 'dropsPerSecond'>

/**
 * A list of values for each measured quantity, with one value per step, oldest first. A value is null if it is unknown.
 */
type Series<Sample> = { readonly [Name in keyof Sample]: readonly (number | null)[] }

export interface HistoryReport {
  readonly schema: typeof HISTORY_SCHEMA
  /** When the last step of the history ended, ISO 8601 in UTC. */
  readonly at: string
  readonly stepSeconds: number
  readonly node: Series<NodeSample>
  /** The length in seconds of one step in `peer`. It exceeds the length of a step in `node`. */
  readonly peerStepSeconds: number
  /** The history of the peer that the request named; null if weftd has no history of it. */
  readonly peer: Series<PeerSample> | null
}

const NODE = ['txBytesPerSecond', 'rxBytesPerSecond', 'dropsPerSecond', 'roundTripMs', 'lossPercent'] as const
const PEER = ['txBytesPerSecond', 'rxBytesPerSecond', 'roundTripMs', 'lossPercent'] as const

export const historyReport = (hour: Pick<Hour, 'node' | 'peer'>, at: string, peer: string): HistoryReport => ({
  schema: HISTORY_SCHEMA,
  at,
  stepSeconds: STEP_MS / 1000,
  node: hour.node(),
  peerStepSeconds: PEER_STEP_MS / 1000,
  peer: hour.peer(peer) ?? null,
})

/**
 * Encodes a value of a peer in 16 bits: 0 if the value is unknown, else 1 + 1000 * log2(1 + 100 * value), rounded. The
 * relative error is 0.04% for values well above 0.01.
 */
const encode = (value = NaN): number =>
  value >= 0 ? Math.min(65_535, 1 + Math.round(Math.log2(1 + value * 100) * 1_000)) : 0
const decode = (code: number): number | null =>
  code === 0 ? null : Number(((2 ** ((code - 1) / 1_000) - 1) / 100).toPrecision(4))

/**
 * Yields the numbers of the steps after `before` up to `step`, at most the last `all` of them. The caller records a
 * sample only for the last of these steps, so it must clear the values of an earlier hour that the ring buffers still
 * contain for the others.
 */
function* stepsAfter(before: number, step: number, all: number): Generator<number> {
  for (let each = Math.max(before + 1, step - all + 1); each <= step; each++) yield each
}

/** Returns the values of a ring buffer, oldest first. `last` is the number of the newest step. */
const inOrder = (ring: Float32Array | Uint16Array, last: number): readonly number[] => {
  const next = (last + 1) % ring.length
  return [...ring.subarray(next), ...ring.subarray(0, next)]
}

export class Hour {
  /**
   * The samples of the node: one ring buffer for each value of NODE. The sample of a step is at the index `step modulo
   * STEPS`.
   */
  readonly #rings = NODE.map((name) => ({ name, values: new Float32Array(STEPS).fill(NaN) }))
  /** The number of the last step in which the node was sampled. */
  #last = -1
  /** The samples of the peers, in arrays of BLOCK slots. A slot has the series of one peer. */
  readonly #blocks: Uint16Array[] = []
  readonly #slots = new Map<string, number>()
  readonly #free: number[] = []
  /** The number of the last step in which the peers were sampled. */
  #lastOfPeers = -1

  /** Records the node's values for the step that contains `now`, a time in ms of a monotonic clock. */
  add(sample: NodeSample, now: number): void {
    const step = Math.floor(now / STEP_MS)
    for (const { name, values } of this.#rings) {
      for (const each of stepsAfter(this.#last, step, STEPS)) values[each % STEPS] = NaN
      values[step % STEPS] = sample[name] ?? NaN
    }
    this.#last = step
  }

  /**
   * Records the values of all peers, by lease key, for the step that contains `now`. Deletes the history of each peer
   * that is missing in `samples`.
   */
  addPeers(samples: ReadonlyMap<string, PeerSample>, now: number): void {
    const step = Math.floor(now / PEER_STEP_MS)
    for (const [key, slot] of this.#slots) {
      if (samples.has(key)) continue
      this.#slots.delete(key)
      this.#clear(slot)
      this.#free.push(slot)
    }
    for (const [key, sample] of samples) {
      const slot = this.#slotFor(key)
      if (slot === undefined) continue
      PEER.forEach((name, value) => {
        const series = this.#seriesOf(slot, value)
        for (const each of stepsAfter(this.#lastOfPeers, step, PEER_STEPS)) series[each % PEER_STEPS] = 0
        series[step % PEER_STEPS] = encode(sample[name])
      })
    }
    this.#lastOfPeers = step
  }

  node(): Series<NodeSample> {
    const of = (values: Float32Array): readonly (number | null)[] =>
      inOrder(values, this.#last).map((value) => (Number.isNaN(value) ? null : Number(value.toPrecision(5))))
    return Object.fromEntries(
      this.#rings.map(({ name, values }) => [name, of(values)]),
    ) as unknown as Series<NodeSample>
  }

  peer(key: string): Series<PeerSample> | undefined {
    const slot = this.#slots.get(key)
    if (slot === undefined) return undefined
    const of = (value: number): readonly (number | null)[] =>
      inOrder(this.#seriesOf(slot, value), this.#lastOfPeers).map(decode)
    return Object.fromEntries(PEER.map((name, at) => [name, of(at)])) as unknown as Series<PeerSample>
  }

  bytes(): number {
    const arrays = [...this.#rings.map(({ values }) => values), ...this.#blocks]
    return arrays.reduce((sum, { byteLength }) => sum + byteLength, 0)
  }

  /** Returns the codes of one value of the peer that has the slot: a ring buffer of PEER_STEPS codes. */
  #seriesOf(slot: number, value: number): Uint16Array {
    const start = ((slot % BLOCK) * PEER.length + value) * PEER_STEPS
    return this.#blocks[Math.floor(slot / BLOCK)]?.subarray(start, start + PEER_STEPS) ?? new Uint16Array(0)
  }

  #clear(slot: number): void {
    PEER.forEach((_, value) => this.#seriesOf(slot, value).fill(0))
  }

  /**
   * Returns the slot of a peer. Gives a free slot to a peer without one. Returns undefined if MOST_PEERS peers already
   * have slots.
   */
  #slotFor(key: string): number | undefined {
    const known = this.#slots.get(key)
    if (known !== undefined) return known
    if (this.#free.length === 0 && this.#blocks.length * BLOCK < MOST_PEERS) {
      const first = this.#blocks.length * BLOCK
      this.#blocks.push(new Uint16Array(BLOCK * PEER.length * PEER_STEPS))
      for (let slot = first + BLOCK - 1; slot >= first; slot--) this.#free.push(slot)
    }
    const slot = this.#free.pop()
    if (slot !== undefined) this.#slots.set(key, slot)
    return slot
  }
}
