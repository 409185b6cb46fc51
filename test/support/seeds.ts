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

/** Returns the time limit in ms of a simulation with at least `least` seeds. */
export const seedsLimitMs = (least: number): number => MINUTES * 60_000 + least * SEED_MS

/** The options of `seeds`. */
interface SeedOptions {
  /** The number of seeds. */
  readonly least: number
  readonly annotate: TestContext['annotate']
  /** Asked before each further seed. If it returns true, `npm test` runs no further seeds. */
  readonly isEnough?: () => boolean
}

/**
 * Yields `least` seeds from `first` on. With WEFT_LONG=1 (`npm run test:soak`) it yields further seeds for WEFT_SOAK_MINUTES minutes, 20 by
 * default, and reports how many.
 */
export async function* seeds(
  first: number,
  { least, annotate, isEnough = () => false }: SeedOptions,
): AsyncGenerator<number, void> {
  if (only !== undefined) return yield Number(only)
  const began = performance.now()
  const passed = (): number => (MINUTES === 0 ? 100 : (performance.now() - began) / (MINUTES * 600))
  let count = 0
  for (let told = STEP; count < least || passed() < 100; count++) {
    if (MINUTES === 0 && isEnough()) return
    yield first + count
    if (MINUTES > 0 && told <= 100 && passed() >= told) {
      await annotate(`${told}%, ${count + 1} seeds`, 'step')
      told += STEP
    }
  }
}
