// names.test.ts - the names of other hosts, which are stored beside their leases.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { managerOf } from '../../../../src/control/lease/store-manager.ts'
import type { Entry } from '../../../../src/control/lease/subnet-manager.ts'
import { installRig, nodeStatus, own, ready, start, stopping, store, value } from '../../../support/node-rig.ts'

installRig()

const MINUTE_MS = 60_000
const OTHERS = ['10.5.0.64-26', '10.5.0.128-26', '10.5.0.192-26'] as const
const claim = (address: string, text: string): Promise<unknown> => store.claim(address, text, stopping.signal)
const named = (hostname: string): string => JSON.stringify({ Hostname: hostname, ID: '1' })
const names = async (): Promise<readonly unknown[]> => (await nodeStatus()).peers!.list.map(({ name }) => name)
/** The keys of two leases that this node does not have. */
const others = (): readonly string[] => OTHERS.filter((key) => key !== own())

it('host names are known for each peer soon after it appears, but not for a flanneld', async () => {
  start()
  await ready()
  // The host writes its name after it has its lease.
  store.put(others()[0]!, value('192.0.2.2'))
  store.put(others()[1]!, value('192.0.2.3'))
  await vi.advanceTimersByTimeAsync(500)
  await claim('192.0.2.2', named('host2'))
  await vi.advanceTimersByTimeAsync(5_000)
  expect(await names()).toEqual(['host2', null])
})

it('host names are updated when they change, and forgotten when they are removed', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  await claim('192.0.2.2', named('host2'))
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(1_000)
  expect(await names()).toEqual(['host2'])
  await claim('192.0.2.2', named('host2-new'))
  await vi.advanceTimersByTimeAsync(MINUTE_MS)
  expect(await names()).toEqual(['host2-new'])
  await claim('192.0.2.2', 'junk')
  await vi.advanceTimersByTimeAsync(MINUTE_MS)
  expect(await names()).toEqual([null])
})

it('only new host names are read, and all are read again each hour and after the store was restored', async () => {
  const asked: (bigint | undefined)[] = []
  let [revision, values] = [5n, new Map([['192.0.2.2', named('host2')]])]
  const all = values
  store.put('10.5.0.64-26', value('192.0.2.2'))
  store.claims = async (since) => {
    asked.push(since)
    return { revision, isWhole: since === undefined, values: since === undefined ? all : values }
  }
  start()
  await ready()
  values = new Map()
  await vi.advanceTimersByTimeAsync(3 * MINUTE_MS)
  expect(asked.length).toBeGreaterThan(2)
  expect([asked[0], ...new Set(asked.slice(1))]).toEqual([undefined, 5n])
  expect(await names()).toEqual(['host2'])
  revision = 2n
  await vi.advanceTimersByTimeAsync(MINUTE_MS)
  expect(asked.filter((since) => since === undefined)).toHaveLength(2)
  expect(await names()).toEqual(['host2'])
  all.clear() // its host has gone, and another is there that writes none
  await vi.advanceTimersByTimeAsync(61 * MINUTE_MS)
  expect(await names()).toEqual([null])
})

it('host names do not change while the store is unavailable', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  await claim('192.0.2.2', named('host2'))
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(1_000)
  store.claims = async () => {
    throw new WeftError('STORE_UNAVAILABLE', 'the store is down')
  }
  await vi.advanceTimersByTimeAsync(2 * MINUTE_MS)
  expect(await names()).toEqual(['host2'])
})

it('host names come with the leases if the source has them', async () => {
  const manager = managerOf(store)
  const renamed = (entry: Entry): Entry =>
    entry.lease ? { ...entry, lease: { ...entry.lease, name: 'node2' } } : entry
  const list: typeof manager.source.list = async (signal) => {
    const { cursor, entries } = await manager.source.list(signal)
    return { cursor, entries: entries.map(renamed) }
  }
  store.put('10.5.0.64-26', value('192.0.2.2'))
  const claims: typeof manager.claims = async () => ({ revision: 0n, isWhole: false, values: new Map() })
  start({ manager: { ...manager, claims, source: { ...manager.source, list } } })
  await ready()
  expect(await names()).toEqual(['node2'])
})
