// give-back.test.ts - memory is returned once, some time after the start.

import { expect, it, vi } from 'vitest'
import { SETTLED_MS } from '../../../../src/node/loops/give-back.ts'
import { installRig, ready, start } from '../../../support/node-rig.ts'

installRig()

it('returns memory to the kernel once, some time after the start', async () => {
  const giveBackMemory = vi.fn<() => void>()
  start({ giveBackMemory })
  await ready()
  await vi.advanceTimersByTimeAsync(SETTLED_MS - 1000)
  expect(giveBackMemory).not.toHaveBeenCalled()
  await vi.advanceTimersByTimeAsync(10 * SETTLED_MS)
  expect(giveBackMemory).toHaveBeenCalledTimes(1)
})
