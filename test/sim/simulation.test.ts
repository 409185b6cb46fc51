// simulation.test.ts - seeds through the simulation: 200 here, 10,000 by `npm run test:soak`. WEFT_SEED=… repeats one.

import { expect, it, vi } from 'vitest'
import { simulate } from './simulation.ts'
import { FAULTS, type Fault } from './virtual-store.ts'

// Of what a node does only this needs real time.
vi.mock('../../src/status/subnet-env.ts', async (importOriginal) => ({
  ...(await importOriginal<object>()),
  writeSubnetEnv: async () => {},
  holdsSubnetEnv: async () => true,
}))

const only = process.env['WEFT_SEED']
const SEEDS = process.env['WEFT_LONG'] === '1' ? 10_000 : 200

it(
  'every node converges, no subnet has two owners, no steady peer is lost',
  async () => {
    const first = Math.floor(Date.now() / 1000) % 1_000_000
    const seeds = only === undefined ? Array.from({ length: SEEDS }, (_, index) => first + index) : [Number(only)]
    const total = new Map<Fault, number>()
    for (const seed of seeds) {
      const { hits, violations } = await simulate(seed)
      for (const [fault, count] of hits) total.set(fault, (total.get(fault) ?? 0) + count)
      expect(violations).toEqual([])
    }
    // A fault that never struck proves nothing.
    if (only === undefined) expect(FAULTS.filter((fault) => !total.has(fault))).toEqual([])
  },
  SEEDS * 5_000,
)
