// virtual-time.ts - timers and clocks that only move when the simulation says so, in place of Node's.
//
// vitest's fake timers wait for a real timer between any two; here it is one turn of the event loop, which is all that
// promises need, and a simulated day takes a fraction of a second.
//
// What runs as a `Machine` has timers and clocks of that machine's own, which can stand still and jump.

import { AsyncLocalStorage } from 'node:async_hooks'

interface Timer {
  at: number
  readonly order: number
  readonly run: () => void
  readonly clock: MachineClock | undefined
}

interface MachineClock {
  /** Nothing runs before. */
  stoppedUntil: number
  /** How much the clock of the day is ahead, and the one that counts without a break is behind. */
  aheadMs: number
  behindMs: number
}

/** A host, or a process on one. */
export interface Machine {
  run<T>(body: () => T): T
  /** As by SIGSTOP and SIGCONT: what was due runs at the end. */
  freeze(ms: number): void
  /** As a laptop sleeps: its monotonic clock stands still, and no timer comes nearer. */
  suspend(ms: number): void
  /** Sets the clock of the day. */
  setClock(byMs: number): void
}

const real = {
  setTimeout,
  clearTimeout,
  setInterval,
  clearInterval,
  now: Date.now,
  performanceNow: performance.now.bind(performance),
}
const turn = setImmediate
/** One for good: each that was used costs time with every promise from then on. */
const running = new AsyncLocalStorage<MachineClock>()

export interface VirtualTime {
  /** Milliseconds since the epoch. */
  now(): number
  /** Lets `ms` pass, timer by timer. */
  advance(ms: number): Promise<void>
  /** On no machine. */
  at(ms: number, run: () => void): void
  newMachine(): Machine
  /** Puts the real ones back. */
  restore(): void
}

export function takeOverTime(startMs: number): VirtualTime {
  let now = startMs
  let order = 0
  const timers = new Map<number, Timer>()
  const after = (ms: number, run: () => void, clock: MachineClock | undefined, id = ++order): number => {
    timers.set(id, { at: now + Math.max(0, ms), order: id, run, clock })
    return id
  }
  const next = (until: number): Timer | undefined => {
    let first: Timer | undefined
    let firstAt = until
    for (const timer of timers.values()) {
      const at = Math.max(timer.at, timer.clock?.stoppedUntil ?? 0)
      if (at > firstAt || (at === firstAt && first && timer.order > first.order)) continue
      first = timer
      firstAt = at
    }
    return first
  }
  function newMachine(): Machine {
    const clock = { stoppedUntil: 0, aheadMs: 0, behindMs: 0 }
    const freeze = (ms: number): void => void (clock.stoppedUntil = Math.max(clock.stoppedUntil, now + ms))
    return {
      run: (body) => running.run(clock, body),
      freeze,
      suspend(ms) {
        freeze(ms)
        clock.behindMs += ms
        for (const timer of timers.values()) if (timer.clock === clock) timer.at += ms
      },
      setClock: (byMs) => void (clock.aheadMs += byMs),
    }
  }
  /** One turn of the event loop: all promises that can go on have gone on. */
  const settle = (): Promise<void> => new Promise((resolve) => turn(() => resolve()))
  const globals = globalThis as unknown as Record<string, unknown>
  // Whole milliseconds, and one at least, as Node's: otherwise a rest of a time could be too small to move the clock.
  globals['setTimeout'] = (run: () => void, ms = 0) => after(Math.max(1, Math.trunc(ms)), run, running.getStore())
  globals['clearTimeout'] = globals['clearInterval'] = (id: number) => timers.delete(id)
  globals['setInterval'] = (run: () => void, ms = 0) => {
    const clock = running.getStore()
    const id = after(ms, again, clock)
    function again(): void {
      after(ms, again, clock, id)
      run()
    }
    return id
  }
  Date.now = () => now + (running.getStore()?.aheadMs ?? 0)
  performance.now = () => now - startMs - (running.getStore()?.behindMs ?? 0)
  return {
    now: () => now,
    at: (ms, run) => void after(ms, run, undefined),
    newMachine,
    async advance(ms) {
      const until = now + ms
      await settle()
      for (let timer = next(until); timer; timer = next(until)) {
        timers.delete(timer.order)
        now = Math.max(now, timer.at, timer.clock?.stoppedUntil ?? 0)
        if (timer.clock) running.run(timer.clock, timer.run)
        else timer.run()
        await settle()
      }
      now = until
    },
    restore() {
      globals['setTimeout'] = real.setTimeout
      globals['clearTimeout'] = real.clearTimeout
      globals['setInterval'] = real.setInterval
      globals['clearInterval'] = real.clearInterval
      Date.now = real.now
      performance.now = real.performanceNow
    },
  }
}
