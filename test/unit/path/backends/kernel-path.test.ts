// kernel-path.test.ts - concurrent operations of a data path in the kernel run one after another.

import { expect, it } from 'vitest'
import type { Lease } from '../../../../src/control/lease/lease.ts'
import { KernelPath } from '../../../../src/path/backends/kernel-path.ts'
import type { PathPeer } from '../../../../src/path/contract.ts'

/** A data path that records when its operations begin and end. */
class SlowPath extends KernelPath {
  readonly events: string[] = []

  constructor() {
    super({ families: ['ipv4'], probeSource: {}, filters: [] })
  }

  protected async setPeers(_leases: ReadonlyMap<string, Lease>, ownKey: string): Promise<void> {
    await this.#slow(ownKey)
    if (ownKey === 'bad') throw new Error('refused')
  }

  protected async repair(): Promise<readonly string[]> {
    await this.#slow('resync')
    return ['repaired']
  }

  protected listPeers(): readonly PathPeer[] {
    return [{ key: 'k' }]
  }

  protected override end(): Promise<void> {
    return this.#slow('close')
  }

  async #slow(name: string): Promise<void> {
    this.events.push(`${name} begins`)
    await new Promise((resolve) => setImmediate(resolve))
    this.events.push(`${name} ends`)
  }
}

it('runs the operations in the order of the calls, one at a time, also after a failure', async () => {
  const path = new SlowPath()
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
  expect(path.events).toEqual(order.flatMap((name) => [`${name} begins`, `${name} ends`]))
})

it('lists no peers after peers could not be set, until an `apply` succeeds', async () => {
  const path = new SlowPath()
  expect(path.peers()).toHaveLength(1)
  await path.apply(new Map(), 'bad').catch(() => {})
  expect(path.peers()).toEqual([])
  await path.apply(new Map(), 'good')
  expect(path.peers()).toHaveLength(1)
})
