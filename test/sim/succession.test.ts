// succession.test.ts - runs the simulation of the hand-over between weftds for the seeds 1 to 120, and for
// more in `npm run test:soak` (seeds.ts). WEFT_SEED=… repeats one seed.

import { expect, it, vi } from 'vitest'
// The start imports these modules when it needs them. Here they are imported before the virtual time begins.
// oxlint-disable-next-line no-unassigned-import -- only the import itself matters
import '../../src/node/restart/predecessor.ts'
import { isOneSeed, seeds, seedsLimitMs } from '../support/seeds.ts'
import { FATES, simulateSuccession, type Fate } from './succession.ts'

const world = vi.hoisted(() => ({ closeAll: (_fds: readonly number[]): void => {} }))
// The simulation has descriptor numbers of its own. It reads and writes no file, because file access takes real time.
vi.mock('../../src/host/unix-socket.ts', () => ({ closeAll: (fds: readonly number[]) => world.closeAll(fds) }))
vi.mock('../../src/node/loops/subnet-env-file.ts', async (importOriginal) => ({
  ...(await importOriginal<object>()),
  writeSubnetEnv: async () => {},
  holdsSubnetEnv: async () => true,
}))
vi.mock('../../src/node/restart/last-known.ts', async (importOriginal) => ({
  ...(await importOriginal<object>()),
  readLastKnown: async () => undefined,
  removeLastKnown: async () => {},
}))
vi.mock('../../src/path/device/tun-device.ts', async (importOriginal) => ({
  ...(await importOriginal<object>()),
  removeIdleTun: async () => {},
}))

const SEEDS = 120
/** The events that at least one schedule must reach. */
const REACHED = ['taken over', 'taken back', 'as last known', 'goes on', 'waits for the end']

it(
  'never two that forward, never none for longer than the bound, no descriptor left, no process that does nothing',
  async ({ annotate }) => {
    const struck = new Set<Fate>()
    const reached = new Set<string>()
    for await (const seed of seeds(1, { count: SEEDS, annotate })) {
      const outcome = await simulateSuccession(seed, (closeAll) => (world.closeAll = closeAll))
      for (const fate of outcome.struck) struck.add(fate)
      for (const each of outcome.reached) reached.add(each)
      if (outcome.violations.length > 0)
        expect.fail(`WEFT_SEED=${seed}\n${outcome.violations.join('\n')}\n\n${outcome.log.join('\n')}`)
    }
    // Each fate must occur with at least one seed, unless a single seed is repeated.
    if (isOneSeed) return
    expect(FATES.filter((fate) => !struck.has(fate))).toEqual([])
    expect(REACHED.filter((each) => !reached.has(each))).toEqual([])
  },
  seedsLimitMs(SEEDS),
)
