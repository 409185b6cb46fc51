// in-turn.test.ts - a data path that is asked for several things at once does one after another.

import { expect, it } from 'vitest'
import type { DataPath } from '../../../src/path/contract.ts'
import { inTurn } from '../../../src/path/in-turn.ts'

it('does what it is asked in that order, one at a time, and goes on after a failure', async () => {
  const events: string[] = []
  const slow = async (name: string): Promise<void> => {
    events.push(`${name} begins`)
    await new Promise((resolve) => setImmediate(resolve))
    events.push(`${name} ends`)
  }
  const dataPath: DataPath = {
    mtu: 1450,
    fault: new Promise(() => {}),
    async apply(_leases, ownKey) {
      await slow(ownKey)
      if (ownKey === 'bad') throw new Error('refused')
    },
    async resync() {
      await slow('resync')
      return ['mended']
    },
    carrier: () => ({ engine: 'none', features: [] }),
    peers: () => [{ key: 'k' }],
    counters: () => ({}),
    threads: () => ({}),
    close: () => slow('close'),
  }
  const path = inTurn(dataPath)
  expect(path.peers()).toHaveLength(1)
  const [first, bad, mended, second, closed] = await Promise.allSettled([
    path.apply(new Map(), 'first'),
    path.apply(new Map(), 'bad'),
    path.resync(),
    path.apply(new Map(), 'second'),
    path.close(),
  ])
  expect([first, second, closed].map((each) => each?.status)).toEqual(Array(3).fill('fulfilled'))
  expect(bad).toMatchObject({ status: 'rejected', reason: new Error('refused') })
  expect(mended).toEqual({ status: 'fulfilled', value: ['mended'] })
  const order = ['first', 'bad', 'resync', 'second', 'close']
  expect(events).toEqual(order.flatMap((name) => [`${name} begins`, `${name} ends`]))
  // Which peers it has is known again once it has taken them all.
  await path.apply(new Map(), 'bad').catch(() => {})
  expect(path.peers()).toEqual([])
  await path.apply(new Map(), 'good')
  expect(path.peers()).toHaveLength(1)
})
