// virtual-time.ts - timers and clocks that only move when the simulation says so, in place of Node's.
//
// vitest's fake timers wait for a real timer between any two; here it is one turn of the event loop, which is all that
// promises need, and a simulated day takes a fraction of a second.

interface Timer {
  readonly at: number
  readonly order: number
  readonly run: () => void
}

const real = { setTimeout, clearTimeout, now: Date.now, performanceNow: performance.now.bind(performance) }
const turn = setImmediate

export interface VirtualTime {
  /** Milliseconds since the epoch. */
  now(): number
  /** Lets `ms` pass, timer by timer. */
  advance(ms: number): Promise<void>
  at(ms: number, run: () => void): void
  /** Puts the real ones back. */
  restore(): void
}

export function takeOverTime(startMs: number): VirtualTime {
  let now = startMs
  let order = 0
  const timers = new Map<number, Timer>()
  const after = (ms: number, run: () => void): number => {
    const id = ++order
    timers.set(id, { at: now + Math.max(0, ms), order: id, run })
    return id
  }
  const next = (until: number): [number, Timer] | undefined => {
    let first: [number, Timer] | undefined
    for (const entry of timers) {
      const [, timer] = entry
      if (timer.at > until) continue
      if (!first || timer.at < first[1].at || (timer.at === first[1].at && timer.order < first[1].order)) first = entry
    }
    return first
  }
  /** One turn of the event loop: all promises that can go on have gone on. */
  const settle = (): Promise<void> => new Promise((resolve) => turn(() => resolve()))
  const globals = globalThis as unknown as Record<string, unknown>
  globals['setTimeout'] = (run: () => void, ms = 0) => after(ms, run)
  globals['clearTimeout'] = (id: number) => timers.delete(id)
  Date.now = () => now
  performance.now = () => now - startMs
  return {
    now: () => now,
    at: (ms, run) => void after(ms, run),
    async advance(ms) {
      const until = now + ms
      await settle()
      for (let entry = next(until); entry; entry = next(until)) {
        const [id, timer] = entry
        timers.delete(id)
        now = Math.max(now, timer.at)
        timer.run()
        await settle()
      }
      now = until
    },
    restore() {
      globals['setTimeout'] = real.setTimeout
      globals['clearTimeout'] = real.clearTimeout
      Date.now = real.now
      performance.now = real.performanceNow
    },
  }
}
