// deadlines.ts - finds which of thousands of items are due, so that all items can share one timer. The cost of adding a
// deadline does not depend on the number of items.
//
// Deadlines are grouped into slots of SLOT_MS; `take` returns no item before its deadline. If an item's deadline
// changes, the item is in two slots, so the caller must check whether a returned item is really due. Deadlines should
// be at most some seconds ahead, because `take` searches all slots that are in use.

const SLOT_MS = 32

interface Deadlines<T> {
  add(item: T, at: number): void
  /** Removes and returns the items of all slots that have ended by the time `now`. */
  take(now: number): readonly T[]
  /** Returns the earliest time at which `take` will return an item; Infinity if there are no items. */
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
