// queue-drops.test.ts - each packet that the kernel drops at the TUN is counted once, also if a new process takes over
// the device.

import { expect, it } from 'vitest'
import { QueueDrops } from '../../../../src/path/tunnel/queue-drops.ts'

/** Returns a kernel whose counter is `dropped`: undefined if the device is missing, an Error if the read must fail. */
function createKernel(dropped: number | undefined | Error) {
  return {
    dropped,
    reads: [] as string[],
    async sendDrops(device: string | number): Promise<number | undefined> {
      this.reads.push(String(device))
      if (this.dropped instanceof Error) throw this.dropped
      return this.dropped
    },
  }
}

it('counts the packets that were dropped after the first read', async () => {
  const kernel = createKernel(70)
  const drops = new QueueDrops(kernel)
  expect(drops.counted).toBe(0)
  await drops.read('flannel0')
  expect(drops.counted).toBe(0)
  kernel.dropped = 75
  await drops.read('flannel0')
  await drops.read('other0')
  expect([drops.counted, kernel.reads]).toEqual([5, ['flannel0', 'flannel0', 'other0']])
})

it('counts the packets that were dropped after the last read of the previous process', async () => {
  const kernel = createKernel(70)
  const drops = new QueueDrops(kernel, 64)
  await drops.read('flannel0')
  expect(drops.counted).toBe(6)
})

it('never decreases, and continues after a failed read, a missing device or a counter that restarted', async () => {
  const kernel = createKernel(70)
  const drops = new QueueDrops(kernel, 64)
  await drops.read('flannel0')
  for (const [dropped, counted] of [
    [new Error('refused'), 6],
    [undefined, 6],
    [71, 7],
    [2, 7],
    [5, 10],
  ] as const) {
    kernel.dropped = dropped
    await drops.read('flannel0')
    expect(drops.counted).toBe(counted)
  }
})

it('does not read the counter again while the kernel has not answered the first read', async () => {
  const kernel = createKernel(0)
  const drops = new QueueDrops(kernel)
  await Promise.all([drops.read('flannel0'), drops.read('flannel0')])
  expect(kernel.reads).toHaveLength(1)
})

it('does not count while the device is lent to the next process', async () => {
  const kernel = createKernel(70)
  const drops = new QueueDrops(kernel, 64)
  expect(drops.lend()).toBe(64)
  drops.takeBack()
  const reading = drops.read('flannel0')
  expect(drops.lend()).toBe(64)
  await reading
  await drops.read('flannel0')
  expect([drops.counted, kernel.reads.length]).toEqual([0, 1])
  drops.takeBack()
  await drops.read('flannel0')
  expect(drops.counted).toBe(6)
})
