// duplicate-node.test.ts - another host with the node's public IP.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { LEASE_TTL_MS } from '../../../support/memory-store.ts'
import {
  installRig,
  lines,
  logged,
  nodeStatus,
  ours,
  own,
  ready,
  start,
  stopping,
  store,
  until,
} from '../../../support/node-rig.ts'

installRig()

const MINUTE_MS = 60_000
const claim = (text: string): Promise<unknown> => store.claim('192.0.2.1', text, stopping.signal)
const foreign = (): number =>
  lines.filter((line) => line.startsWith("W Another process wrote this node's lease")).length

it('reports another host with its public IP for as long as that host writes its own name again', async () => {
  start()
  await ready()
  const answering = setInterval(() => void claim('{"Hostname":"twin","ID":"2"}'), MINUTE_MS)
  await until(
    () => logged(/^E Another host uses this node's public IP 192\.0\.2\.1 too: twin\. .*--public-ip or --iface$/),
    3 * MINUTE_MS,
  )
  expect((await nodeStatus()).node!.twin).toBe('twin')
  await vi.advanceTimersByTimeAsync(5 * MINUTE_MS)
  expect((await nodeStatus()).node!.twin).toBe('twin')
  clearInterval(answering)
  await vi.advanceTimersByTimeAsync(4 * MINUTE_MS)
  expect((await nodeStatus()).node!.twin).toBeNull()
})

it('finds within seconds another node with its public IP that writes a lease and answers', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(5 * MINUTE_MS)
  // The entry that another weftd with the same public IP writes.
  const twin = '{"Hostname":"twin","ID":"2"}'
  store.put(own(), ours)
  await claim(twin)
  const answering = setInterval(() => void claim(twin), 2_000)
  await until(() => logged(/^E Another host uses this node's public IP 192\.0\.2\.1 too: twin\./), 8_000)
  clearInterval(answering)
})

it('checks again soon after a start that found a name, and then once a minute', async () => {
  await claim('{"Hostname":"this-host","ID":"1"}')
  const looks: number[] = []
  const asked = store.claim.bind(store)
  store.claim = (...args) => {
    looks.push(performance.now())
    return asked(...args)
  }
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(5 * MINUTE_MS)
  const gaps = looks.slice(1).map((at, index) => at - (looks[index] ?? 0))
  expect(gaps.slice(0, 3)).toEqual([2_000, 2_000, 2_000])
  expect(Math.min(...gaps.slice(3))).toBeGreaterThanOrEqual(MINUTE_MS / 2)
  expect(logged(/Another host/)).toBe(false)
})

it('does not count its own earlier name as another host, neither at the start nor after the store was restored', async () => {
  const earlier = '{"Hostname":"this-host","ID":"1"}'
  await claim(earlier)
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(2 * MINUTE_MS)
  await claim(earlier)
  await vi.advanceTimersByTimeAsync(5 * MINUTE_MS)
  expect(await claim('{}')).not.toBe(earlier)
  expect(logged(/Another host/)).toBe(false)
})

it('notices once that another node, such as a flanneld with its public IP, wrote its lease with the same value', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(5 * MINUTE_MS)
  expect(foreign()).toBe(0)
  store.put(own(), ours)
  await vi.advanceTimersByTimeAsync(10 * MINUTE_MS)
  expect(foreign()).toBe(1)
  store.put(own(), ours)
  await vi.advanceTimersByTimeAsync(10 * MINUTE_MS)
  expect(foreign()).toBe(2)
})

it('does not report a reservation of its lease by an operator, nor its own renewal whose answer was lost', async () => {
  start()
  await ready()
  const key = own()
  const update = store.update.bind(store)
  let lost = 0
  store.update = async (...args) => {
    const written = await update(...args)
    if (lost++ < 2) throw new WeftError('STORE_UNAVAILABLE', 'the answer is lost')
    return written
  }
  await vi.advanceTimersByTimeAsync(LEASE_TTL_MS)
  expect(lost).toBeGreaterThan(2)
  store.put(key, ours, true)
  await vi.advanceTimersByTimeAsync(10 * MINUTE_MS)
  expect(store.entries.get(key)!.isReservation).toBe(true)
  expect(foreign()).toBe(0)
})
