// traffic.ts - the traffic between this host and each peer, computed from the slots in which the engines count it.
//
// A peer keeps its slot and its counts as long as it is a peer, even if the peer table is replaced. When a peer is
// removed, its slot is given to another peer, whose counts start from the slot's numbers at that time.

import type { PeerTraffic } from './engine.ts'

/**
 * The number of values in each slot: packets and bytes sent, packets and bytes received, and the milliseconds since the
 * last packet was received (-1 if none was).
 */
export const SLOT_NUMBERS = 5
/**
 * The maximum number of slots, equal to that in native/core/traffic.h. Slot 0 means that a peer's traffic is not
 * counted.
 */
const MAX_SLOTS = 1 << 24
const NOTHING: readonly number[] = [0, 0, 0, 0, -1]

/**
 * Adds the counts of two engines that used the same slots one after the other. `agoMs` is the time in ms since the
 * numbers of the first engine, `before`, were read.
 */
export function sumTraffic(now: Float64Array, before: Float64Array, agoMs: number): Float64Array {
  if (before.length === 0) return now
  const sum = new Float64Array(Math.max(now.length, before.length))
  for (let at = 0; at < sum.length; at++) {
    const [a, b] = [now[at] ?? nothing(at), before[at] ?? nothing(at)]
    // The fifth number of a slot is an age in ms. If the later engine received no packet, the earlier engine's age
    // counts, plus the `agoMs` that have passed since.
    if (!isAge(at)) sum[at] = a + b
    else sum[at] = a < 0 && b >= 0 ? b + agoMs : a
  }
  return sum
}

/** Adds the counts of an engine and of the eBPF programs, which use the same slots at the same time. */
export function addTraffic(a: Float64Array, b: Float64Array): Float64Array {
  if (b.length === 0) return a
  const sum = new Float64Array(Math.max(a.length, b.length))
  for (let at = 0; at < sum.length; at++) {
    const [one, other] = [a[at] ?? nothing(at), b[at] ?? nothing(at)]
    if (!isAge(at)) sum[at] = one + other
    else sum[at] = one < 0 || other < 0 ? Math.max(one, other) : Math.min(one, other)
  }
  return sum
}
const isAge = (at: number): boolean => at % SLOT_NUMBERS === SLOT_NUMBERS - 1
const nothing = (at: number): number => (isAge(at) ? -1 : 0)

interface Slot {
  readonly slot: number
  /** The time in ms of the clock `now` when the peer got the slot; `before` has the slot's numbers at that time. */
  readonly since: number
  readonly before: readonly number[]
}

function numbersOf(all: Float64Array, slot: number): readonly number[] {
  const numbers = [...all.subarray(slot * SLOT_NUMBERS, (slot + 1) * SLOT_NUMBERS)]
  return numbers.length === SLOT_NUMBERS ? numbers : NOTHING
}

export class TrafficSlots {
  /** Reads the numbers of one slot, or of all slots, from the engine. Returns an empty array until the engine runs. */
  counted: (slot?: number) => Float64Array
  /** A monotonic clock in ms. */
  readonly #now: () => number
  /** The slot of each peer, by lease key. */
  readonly #slots = new Map<string, Slot>()
  readonly #free: number[] = []
  /** The lowest slot number that weftd has not given to any peer yet. */
  #unused = 1

  constructor(
    counted: (slot?: number) => Float64Array = () => new Float64Array(),
    now: () => number = () => performance.now(),
  ) {
    this.counted = counted
    this.#now = now
  }

  /** Gives a slot to each peer with one of these lease keys, and frees the slots of all other peers. */
  keep(keys: Iterable<string>): void {
    const wanted = new Set(keys)
    for (const key of this.#slots.keys()) if (!wanted.has(key)) this.remove(key)
    for (const key of wanted) this.add(key)
  }

  add(key: string): void {
    if (this.#slots.has(key)) return
    const used = this.#free.pop()
    const slot = used ?? (this.#unused < MAX_SLOTS ? this.#unused++ : undefined)
    if (slot === undefined) return
    const before = used === undefined ? NOTHING : numbersOf(this.counted(used), 0)
    this.#slots.set(key, { slot, since: this.#now(), before })
  }

  remove(key: string): void {
    const had = this.#slots.get(key)
    if (!had) return
    this.#slots.delete(key)
    this.#free.push(had.slot)
  }

  /** Returns the slot of a peer; 0 if the peer has none, because it is unknown or because all slots were in use. */
  slotOf(key: string): number {
    return this.#slots.get(key)?.slot ?? 0
  }

  /**
   * Returns the traffic of each peer that has a slot, by lease key, since the peer was added. If `keys` is given, reads
   * only the slots of the peers with these lease keys.
   */
  read(keys?: ReadonlySet<string>): ReadonlyMap<string, PeerTraffic> {
    const all = keys ? undefined : this.counted()
    const at = this.#now()
    const slots = keys ? [...keys].flatMap((key) => this.#entryOf(key)) : [...this.#slots]
    return new Map(
      slots.map(([key, { slot, since, before }]) => {
        const numbers = all ? numbersOf(all, slot) : numbersOf(this.counted(slot), 0)
        const [tx = 0, txBytes = 0, rx = 0, rxBytes = 0, silentMs = -1] = numbers
        const [tx0 = 0, txBytes0 = 0, rx0 = 0, rxBytes0 = 0] = before
        const hasReceived = silentMs >= 0 && rx > rx0
        const traffic = {
          txPackets: tx - tx0,
          txBytes: txBytes - txBytes0,
          rxPackets: rx - rx0,
          rxBytes: rxBytes - rxBytes0,
          lastReceivedAt: hasReceived ? Math.max(since, at - silentMs) : undefined,
        }
        return [key, traffic]
      }),
    )
  }

  /** Returns the peer's slot with its lease key, in a list that is empty if the peer has no slot. */
  #entryOf(key: string): readonly (readonly [string, Slot])[] {
    const slot = this.#slots.get(key)
    return slot ? [[key, slot]] : []
  }
}
