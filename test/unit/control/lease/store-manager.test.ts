// store-manager.test.ts - the subnet manager on top of a store: its calls of the store and its log lines.

import { expect, it } from 'vitest'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { managerOf } from '../../../../src/control/lease/store-manager.ts'
import type { Store } from '../../../../src/control/store/store.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { createMemoryStore } from '../../../support/memory-store.ts'

const { signal } = new AbortController()
const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }

it('gives the name of the store, its configuration, its leases and its claims', async () => {
  let closed = 0
  const memory = createMemoryStore()
  const asked: (bigint | undefined)[] = []
  const store: Store = {
    ...memory,
    claims: (since, ends) => {
      asked.push(since)
      return memory.claims(since, ends)
    },
    close: async () => void closed++,
  }
  await store.setConfig('{"Network":"10.5.0.0/16"}', signal)
  const events: string[] = []
  const manager = managerOf(store, { info: (line) => void events.push(line) })
  expect([manager.name, manager.title]).toEqual([store.name, store.title])
  const text = await manager.config(signal)
  expect(text).toBe('{"Network":"10.5.0.0/16"}')

  const attrs = { publicIp: { ipv4: parseIpv4('192.0.2.1') }, backendType: 'udp' }
  const before = await manager.source.list(signal)
  expect(before.entries).toEqual([])
  const holder = manager.holder(parseNetworkConfig(text))
  const lease = await holder.obtain(attrs, { ipv4: parseIpv4Net('10.5.7.0/24')! }, log, signal)
  expect(lease.key).toBe('10.5.7.0-24')
  expect((await manager.source.list(signal)).entries).toMatchObject([{ key: '10.5.7.0-24', lease: { attrs } }])
  // The second manager has no callback for events.
  for (const { source } of [manager, managerOf(store)])
    for await (const { changes } of source.watch(before.cursor, signal)) {
      if (changes.length === 0) continue
      expect(changes).toMatchObject([{ kind: 'put', entry: { key: '10.5.7.0-24' } }])
      break
    }
  expect(events).toEqual([expect.stringContaining('watchSubnets: got valid subnet event')])

  expect(await manager.claim!('name', 'a', signal)).toBeUndefined()
  expect(await manager.claim!('name', 'b', signal)).toBe('a')
  expect(await manager.claims!(7n, signal)).toMatchObject({ values: new Map([['name', 'b']]) })
  // Another host has written the claim in the meantime.
  await manager.unclaim!('name', 'a', signal)
  expect(memory.claimed()).toEqual(['name'])
  await manager.unclaim!('name', 'b', signal)
  expect(await manager.claims!(undefined, signal)).toMatchObject({ values: new Map() })
  expect(asked).toEqual([7n, undefined])
  await manager.close()
  expect(closed).toBe(1)
})
