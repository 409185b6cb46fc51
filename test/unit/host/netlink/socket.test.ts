// socket.test.ts - exchanges with a kernel that hangs, in virtual time.

import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { KernelSocket, NETLINK } from '../../../../src/host/netlink/socket.ts'

/** The exchanges that the kernel has not answered, and all requests that it got. */
const kernel = vi.hoisted(() => ({ answer: [] as ((answers: undefined[]) => void)[], got: [] as Buffer[] }))

vi.mock('../../../../src/host/addon.ts', () => ({
  addon: {
    openNetlink: () => ({
      exchange: (requests: Buffer) => {
        kernel.got.push(Buffer.from(requests))
        return new Promise((resolve) => void kernel.answer.push(resolve))
      },
    }),
  },
}))

beforeEach(() => {
  kernel.answer.length = 0
  kernel.got.length = 0
  vi.useFakeTimers()
})
afterEach(() => vi.useRealTimers())

const request = (byte: number): Buffer => Buffer.alloc(16, byte)
const errnos = async (answers: ReturnType<KernelSocket['exchange']>): Promise<number[]> =>
  (await answers).map(({ errno }) => errno)

it('makes one exchange at a time', async () => {
  const socket = new KernelSocket(NETLINK.ROUTE)
  const first = socket.exchange([request(1), request(2)])
  const second = socket.exchange([request(3)])
  await vi.advanceTimersByTimeAsync(1)
  expect(kernel.got).toEqual([Buffer.concat([request(1), request(2)])])
  kernel.answer[0]?.([undefined, undefined])
  expect(await errnos(first)).toEqual([0, 0])
  await vi.advanceTimersByTimeAsync(1)
  expect(kernel.got).toHaveLength(2)
  kernel.answer[1]?.([undefined])
  expect(await errnos(second)).toEqual([0])
  expect(vi.getTimerCount()).toBe(0)
})

it('gives up a request after 20 s, and refuses other requests immediately while that one hangs', async () => {
  const socket = new KernelSocket(NETLINK.ROUTE)
  const three = [1, 2, 3].map((byte) => errnos(socket.exchange([request(byte)])))
  await vi.advanceTimersByTimeAsync(20_010)
  expect(await Promise.all(three)).toEqual([[110], [110], [110]])
  const fourth = errnos(socket.exchange([request(4)]))
  await vi.advanceTimersByTimeAsync(10)
  expect(await fourth).toEqual([110])
  expect(kernel.got).toHaveLength(1)
  kernel.answer[0]?.([undefined])
  const fifth = errnos(socket.exchange([request(5)]))
  await vi.advanceTimersByTimeAsync(1)
  expect(kernel.got).toEqual([request(1), request(5)])
  kernel.answer[1]?.([undefined])
  expect(await fifth).toEqual([0])
  expect(vi.getTimerCount()).toBe(0)
})
