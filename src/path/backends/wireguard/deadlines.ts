// deadlines.ts - who is due when, of thousands, for one timer: a deadline costs the same however many there are.
//
// They are kept by slots of time, and none is early. Whoever is given another deadline stands in both slots: who is taken looks whether it
// is due. Meant for deadlines that are all seconds away, so that there are few slots.

const SLOT_MS = 32

interface Deadlines<T> {
  add(item: T, at: number): void
  /** Those whose slot has ended; they are in it no more. */
  take(now: number): readonly T[]
  /** When `take` gives something; Infinity when there is nothing. */
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
