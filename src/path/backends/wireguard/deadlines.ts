// deadlines.ts - finds which of thousands of items are due, for one timer. The cost of a deadline does not depend on
// their number.
//
// Deadlines are grouped into slots of time; none is returned early. An item whose deadline changed is in both slots, so
// the caller must check whether a returned item is due. It suits deadlines that are a few seconds ahead, for which
// there are few slots.

const SLOT_MS = 32

interface Deadlines<T> {
  add(item: T, at: number): void
  /** Removes and returns the items whose slot has ended. */
  take(now: number): readonly T[]
  /** Returns the time from which `take` returns an item; Infinity if there is none. */
  next(): number
}

export function createDeadlines<T>(): Deadlines<T> {
  const slots = new Map<number, T[]>()
  let first = Infinity
  return {
    add(item, at) {
      const slot = Math.ceil(at / SLOT_MS)
      const items = slots.get(slot)
      if (items) items.push(item)
      else slots.set(slot, [item])
      first = Math.min(first, slot)
    },
    take(now) {
      if (now < first * SLOT_MS) return []
      const ended = [...slots].filter(([slot]) => slot * SLOT_MS <= now).toSorted(([a], [b]) => a - b)
      for (const [slot] of ended) slots.delete(slot)
      first = Math.min(Infinity, ...slots.keys())
      return ended.flatMap(([, items]) => items)
    },
    next: () => first * SLOT_MS,
  }
}
