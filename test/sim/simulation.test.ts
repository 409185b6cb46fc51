// simulation.test.ts - runs the simulation with 100 seeds, or 10,000 with `npm run test:soak`. WEFT_SEED=… repeats one seed.

import { expect, it, vi } from 'vitest'
import { simulate } from './simulation.ts'
import { FAULTS, type Fault } from './virtual-store.ts'

// Writing subnet.env is the only part of a node that needs real time.
vi.mock('../../src/node/loops/subnet-env-file.ts', async (importOriginal) => ({
  ...(await importOriginal<object>()),
  writeSubnetEnv: async () => {},
  holdsSubnetEnv: async () => true,
}))

const only = process.env['WEFT_SEED']
const SEEDS = process.env['WEFT_LONG'] === '1' ? 10_000 : 100
/** With this seed a node changes its address and changes it back before its data path has followed, which is rare. */
const THERE_AND_BACK = 669_843

it(
  'every node converges, no subnet has two owners, and no steady peer is lost',
  async ({ annotate }) => {
    const first = Math.floor(Date.now() / 1000) % 1_000_000
    const seeds =
      only === undefined
        ? [THERE_AND_BACK, ...Array.from({ length: SEEDS }, (_, index) => first + index)]
        : [Number(only)]
    const total = new Map<Fault, number>()
    let holds = 0
    for (const [index, seed] of seeds.entries()) {
      if (index > 0 && index % 1_000 === 0)
        await annotate(`${Math.floor((100 * index) / seeds.length)}%, ${index} of ${seeds.length} seeds`, 'step')
      const { hits, violations, ...more } = await simulate(seed)
      holds += more.holds
      for (const [fault, count] of hits) total.set(fault, (total.get(fault) ?? 0) + count)
      expect(violations).toEqual([])
    }
    // The seeds must include each fault at least once.
    if (only !== undefined) return
    expect(FAULTS.filter((fault) => !total.has(fault))).toEqual([])
    expect(holds).toBeGreaterThan(seeds.length / 10)
  },
  SEEDS * 5_000,
)
