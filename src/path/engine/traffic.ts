// traffic.ts - what passed between this host and each peer, read from the slots in which the engines count it.
//
// A peer keeps its slot, and with it what was counted, for as long as it is a peer, however often the table is published anew. A slot
// that becomes free is given away again: what was counted in it until then is left out.

import type { PeerTraffic } from './engine.ts'

/** Numbers for each slot: packets and bytes sent, packets and bytes let in, milliseconds since the last of those or -1. */
export const SLOT_NUMBERS = 5
/** Slot 0 is of no peer. As native/core/traffic.h has it; what has no slot is not counted. */
const MAX_SLOTS = 1 << 24
/** The numbers of a slot that nobody had before. */
const NOTHING: readonly number[] = [0, 0, 0, 0, -1]

/**
 * Adds up what two engines counted one after another; the second has gone on with the first's slots. The first was
 * asked `agoMs` ago.
 */
export function sumTraffic(now: Float64Array, before: Float64Array, agoMs: number): Float64Array {
  if (before.length === 0) return now
  const sum = new Float64Array(Math.max(now.length, before.length))
  for (let at = 0; at < sum.length; at++) {
    const [a, b] = [now[at] ?? nothing(at), before[at] ?? nothing(at)]
    // The last is an age, which the later engine knows better; what the earlier one knew of it has grown since.
    if (!isAge(at)) sum[at] = a + b
    else sum[at] = a < 0 && b >= 0 ? b + agoMs : a
  }
  return sum
}
const isAge = (at: number): boolean => at % SLOT_NUMBERS === SLOT_NUMBERS - 1
const nothing = (at: number): number => (isAge(at) ? -1 : 0)

export interface TrafficSlots {
  /** Gives each of these peers, by lease key, a slot; those that are not among them lose theirs. */
  keep(keys: Iterable<string>): void
  /** Gives one more peer a slot, unless it has one. */
  add(key: string): void
  /** The slot of one that is no peer any more is another's. */
  remove(key: string): void
  /** 0 for a peer beyond the last slot. */
  slotOf(key: string): number
  /** The traffic since the peer came; undefined for one that has no slot. */
  read(): ReadonlyMap<string, PeerTraffic>
}

interface Slot {
  readonly slot: number
  /** The time when the slot was given, and its numbers then. */
  readonly since: number
  readonly before: readonly number[]
}

/** `counted` is the engine's, of all slots or of one, and `now` in ms and never goes back. */
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
          const isHeard = silentMs >= 0 && rx > rx0
          return [
            key,
            {
              txPackets: tx - tx0,
              txBytes: txBytes - txBytes0,
              rxPackets: rx - rx0,
              rxBytes: rxBytes - rxBytes0,
              heardAt: isHeard ? Math.max(since, at - silentMs) : undefined,
            },
          ]
        }),
      )
    },
  }
}
