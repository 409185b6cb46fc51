// seeds.ts - the seeds with which a simulation runs: a few in `npm test`, and as many as fit into the time of `npm run test:soak`.

import { performance } from 'node:perf_hooks'
import type { TestContext } from 'vitest'

const only = process.env['WEFT_SEED']
/** True if WEFT_SEED names a seed, which then runs alone. */
export const isOneSeed = only !== undefined
const MINUTES = process.env['WEFT_LONG'] === '1' ? Number(process.env['WEFT_SOAK_MINUTES'] ?? 20) : 0
/** The largest time in ms that one seed may take on a slow machine. */
const SEED_MS = 5_000
/** The steps in which a long simulation reports its progress, in percent. */
const STEP = 10

/** Returns the time limit in ms of a simulation with `count` seeds. */
export const seedsLimitMs = (count: number): number => MINUTES * 60_000 + count * SEED_MS

/** The options of `seeds`. */
interface SeedOptions {
  /** The number of seeds. */
  readonly count: number
  readonly annotate: TestContext['annotate']
  /** `seeds` calls this function before each seed. If the function returns true, `seeds` ends, except with WEFT_LONG=1. */
  readonly isEnough?: () => boolean
}

/**
 * Yields `count` seeds from `first` on, or fewer if `isEnough` returns true. With WEFT_LONG=1 (`npm run test:soak`) it yields further seeds
 * for WEFT_SOAK_MINUTES minutes, 20 by default, and reports how many.
 */
export async function* seeds(
  first: number,
  { count, annotate, isEnough = () => false }: SeedOptions,
): AsyncGenerator<number, void> {
  if (only !== undefined) return yield Number(only)
  const began = performance.now()
  const passed = (): number => (MINUTES === 0 ? 100 : (performance.now() - began) / (MINUTES * 600))
  for (let [ran, told] = [0, STEP]; ran < count || passed() < 100; ran++) {
    if (MINUTES === 0 && isEnough()) return
    yield first + ran
    if (MINUTES > 0 && told <= 100 && passed() >= told) {
      await annotate(`${told}%, ${ran + 1} seeds`, 'step')
      told += STEP
    }
  }
}
