// virtual-time.ts - timers and clocks that only the simulation advances, in place of those of Node.js.
//
// vitest's fake timers wait for a real timer between two fake ones. Here one turn of the event loop suffices to settle the promises, so a
// simulated day takes a fraction of a second.
//
// Code that runs as a `Machine` has timers and clocks of its own, which can stop and jump.

import { AsyncLocalStorage } from 'node:async_hooks'

interface Timer {
  at: number
  readonly order: number
  readonly run: () => void
  readonly clock: MachineClock | undefined
}

interface MachineClock {
  /** No timer of the machine runs before this time, in ms since the epoch. */
  stoppedUntil: number
  /**
   * aheadMs: how far the wall clock is ahead of the virtual time, in ms. The next member: how far the monotonic clock
   * is behind, in ms.
   */
  aheadMs: number
  behindMs: number
}

/** A host, or a process on a host. */
export interface Machine {
  run<T>(body: () => T): T
  /** Stops the process as SIGSTOP and SIGCONT do: timers that became due run at the end. */
  freeze(ms: number): void
  /** Suspends the host like a sleeping laptop: its monotonic clock stops, and no timer comes nearer. */
  suspend(ms: number): void
  /** Moves the wall clock. */
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
/** Created once, because each AsyncLocalStorage that was ever used slows down every promise. */
const running = new AsyncLocalStorage<MachineClock>()

export interface VirtualTime {
  /** The virtual time, in milliseconds since the epoch. */
  now(): number
  /** Lets `ms` pass, timer by timer. */
  advance(ms: number): Promise<void>
  /** Runs `run` after `ms` with a timer that belongs to no machine. */
  at(ms: number, run: () => void): void
  newMachine(): Machine
  /** Restores the real timers and clocks. */
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
  /** Waits for one turn of the event loop, after which all settled promises have continued. */
  const settle = (): Promise<void> => new Promise((resolve) => turn(() => resolve()))
  const globals = globalThis as unknown as Record<string, unknown>
  // Delays are whole milliseconds and at least one, as in Node.js. Otherwise a tiny remainder might not move the clock.
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
