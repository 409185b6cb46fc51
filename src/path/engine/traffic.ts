// traffic.ts - the traffic between this host and each peer, from the slots in which the engines count it.
//
// A peer keeps its slot and its counts while it is a peer, even if the table is sent again. A freed slot is given to
// another peer, whose counts start from the slot's values at that time.

import type { PeerTraffic } from './engine.ts'

/**
 * The numbers of each slot: packets and bytes sent, packets and bytes received, and the milliseconds since the last
 * packet was received, or -1.
 */
export const SLOT_NUMBERS = 5
/**
 * The number of slots, as in native/core/traffic.h. Slot 0 belongs to no peer, and traffic without a slot is not
 * counted.
 */
const MAX_SLOTS = 1 << 24
const NOTHING: readonly number[] = [0, 0, 0, 0, -1]

/**
 * Adds the counts of two engines that used the same slots one after another. `agoMs` is the time since the first engine
 * was read.
 */
export function sumTraffic(now: Float64Array, before: Float64Array, agoMs: number): Float64Array {
  if (before.length === 0) return now
  const sum = new Float64Array(Math.max(now.length, before.length))
  for (let at = 0; at < sum.length; at++) {
    const [a, b] = [now[at] ?? nothing(at), before[at] ?? nothing(at)]
    // The fifth number is an age. The later engine's age is used if it has one; otherwise the earlier age has grown by
    // `agoMs`.
    if (!isAge(at)) sum[at] = a + b
    else sum[at] = a < 0 && b >= 0 ? b + agoMs : a
  }
  return sum
}
const isAge = (at: number): boolean => at % SLOT_NUMBERS === SLOT_NUMBERS - 1
const nothing = (at: number): number => (isAge(at) ? -1 : 0)

export interface TrafficSlots {
  /** Gives each of these peers, by lease key, a slot. All other peers lose theirs. */
  keep(keys: Iterable<string>): void
  add(key: string): void
  remove(key: string): void
  /** Returns the slot of a peer; 0 if it has none, because all slots are used. */
  slotOf(key: string): number
  /** Returns the traffic of each peer with a slot, since the peer came. */
  read(): ReadonlyMap<string, PeerTraffic>
}

interface Slot {
  readonly slot: number
  /** The time when the peer got the slot, and the slot's numbers then. */
  readonly since: number
  readonly before: readonly number[]
}

/** `counted` reads one slot or all slots from the engine. `now` is a monotonic time in ms. */
export function createTrafficSlots(
  counted: (slot?: number) => Float64Array,
  now: () => number = () => performance.now(),
): TrafficSlots {
  const slots = new Map<string, Slot>()
  const free: number[] = []
  let unused = 1
  const numbersOf = (all: Float64Array, slot: number): number[] => {
    const numbers = [...all.subarray(slot * SLOT_NUMBERS, (slot + 1) * SLOT_NUMBERS)]
    return numbers.length === SLOT_NUMBERS ? numbers : [...NOTHING]
  }
  function remove(key: string): void {
    const had = slots.get(key)
    if (!had) return
    slots.delete(key)
    free.push(had.slot)
  }
  function add(key: string): void {
    if (slots.has(key)) return
    const used = free.pop()
    const slot = used ?? (unused < MAX_SLOTS ? unused++ : undefined)
    if (slot === undefined) return
    slots.set(key, { slot, since: now(), before: used === undefined ? NOTHING : numbersOf(counted(used), 0) })
  }
  return {
    keep(keys) {
      const wanted = new Set(keys)
      for (const key of slots.keys()) if (!wanted.has(key)) remove(key)
      for (const key of wanted) add(key)
    },
    add,
    remove,
    slotOf: (key) => slots.get(key)?.slot ?? 0,
    read() {
      const all = counted()
      const at = now()
      return new Map(
        [...slots].map(([key, { slot, since, before }]) => {
          const [tx = 0, txBytes = 0, rx = 0, rxBytes = 0, silentMs = -1] = numbersOf(all, slot)
          const [tx0 = 0, txBytes0 = 0, rx0 = 0, rxBytes0 = 0] = before
          const hasReceived = silentMs >= 0 && rx > rx0
          return [
            key,
            {
              txPackets: tx - tx0,
              txBytes: txBytes - txBytes0,
              rxPackets: rx - rx0,
              rxBytes: rxBytes - rxBytes0,
              lastReceivedAt: hasReceived ? Math.max(since, at - silentMs) : undefined,
            },
          ]
        }),
      )
    },
  }
}
