// in-turn.test.ts - concurrent operations of a data path run one after another.

import { expect, it } from 'vitest'
import type { DataPath } from '../../../src/path/contract.ts'
import { inTurn } from '../../../src/path/in-turn.ts'

it('runs the operations in the order of the calls, one at a time, also after a failure', async () => {
  const events: string[] = []
  const slow = async (name: string): Promise<void> => {
    events.push(`${name} begins`)
    await new Promise((resolve) => setImmediate(resolve))
    events.push(`${name} ends`)
  }
  const dataPath: DataPath = {
    fault: new Promise(() => {}),
    async apply(_leases, ownKey) {
      await slow(ownKey)
      if (ownKey === 'bad') throw new Error('refused')
    },
    async resync() {
      await slow('resync')
      return ['repaired']
    },
    carrier: () => ({ engine: 'none', features: [] }),
    peers: () => [{ key: 'k' }],
    counters: () => ({}),
    threads: () => ({}),
    close: () => slow('close'),
  }
  const path = inTurn(dataPath)
  expect(path.peers()).toHaveLength(1)
  const [first, bad, repaired, second, closed] = await Promise.allSettled([
    path.apply(new Map(), 'first'),
    path.apply(new Map(), 'bad'),
    path.resync(),
    path.apply(new Map(), 'second'),
    path.close(),
  ])
  expect([first, second, closed].map((each) => each?.status)).toEqual(Array(3).fill('fulfilled'))
  expect(bad).toMatchObject({ status: 'rejected', reason: new Error('refused') })
  expect(repaired).toEqual({ status: 'fulfilled', value: ['repaired'] })
  const order = ['first', 'bad', 'resync', 'second', 'close']
  expect(events).toEqual(order.flatMap((name) => [`${name} begins`, `${name} ends`]))
  // Once an `apply` succeeds, the set of peers is known again.
  await path.apply(new Map(), 'bad').catch(() => {})
  expect(path.peers()).toEqual([])
  await path.apply(new Map(), 'good')
  expect(path.peers()).toHaveLength(1)
})
