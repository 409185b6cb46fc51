// decode.test.ts - what of a store's entries is a lease, and what is said of the others.

import { describe, expect, it } from 'vitest'
import { decodeLease, sourceOf } from '../../../src/lease/decode.ts'
import type { Change } from '../../../src/lease/subnet-manager.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'
import { createMemoryStore } from '../../support/memory-store.ts'

describe('a lease', () => {
  it('is read as Go reads it', () => {
    expect(decodeLease('10.5.1.0-24', '{}').attrs.publicIp).toBe(0)
    expect(decodeLease('10.5.1.0-24', 'null').attrs.publicIp).toBe(0)
    expect(decodeLease('10.5.1.0-24', '{"publicip":"1.2.3.4","new":1}').attrs.publicIp).toBe(parseIpv4('1.2.3.4'))
  })

  it.each([
    '',
    '{',
    '[]',
    '"x"',
    '{"PublicIP":null}',
    '{"PublicIP":"fc00::1"}',
    '{"PublicIP":7}',
    '{"PublicIP":"1.2.3.4","PublicIPv6":"1.2.3.4"}',
  ])('refuses %j', (value) => {
    expect(() => decodeLease('10.5.1.0-24', value)).toThrow()
  })
})

describe('a store as a source', () => {
  it('lists and watches leases, and says of what is none why', async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24', '{"PublicIP":"1.1.1.1"}')
    store.put('junk', '{}')
    const lines: string[] = []
    const source = sourceOf(store, { info: (line) => lines.push(line) })
    const { signal } = new AbortController()
    const { cursor, entries } = await source.list(signal)
    expect(entries).toEqual([
      { key: '10.5.1.0-24', lease: expect.objectContaining({ key: '10.5.1.0-24' }) },
      { key: 'junk', problem: 'the key names no subnet; it should look like 10.5.1.0-24' },
    ])
    store.put('10.5.1.0-24', '{')
    store.remove('junk')
    store.put('10.5.2.0-24', '{"PublicIP":"1.1.1.2"}')
    store.remove('10.5.1.0-24')
    const seen: Change[] = []
    for await (const batch of source.watch(cursor, signal)) {
      seen.push(...batch.changes)
      if (seen.length === 4) break
    }
    expect(seen).toEqual([
      { kind: 'put', entry: { key: '10.5.1.0-24', problem: expect.stringContaining('not a JSON object') } },
      { kind: 'delete', key: 'junk' },
      { kind: 'put', entry: { key: '10.5.2.0-24', lease: expect.objectContaining({ key: '10.5.2.0-24' }) } },
      { kind: 'delete', key: '10.5.1.0-24' },
    ])
    // As flanneld: of the two that are a lease's.
    expect(lines).toHaveLength(2)
    for (const line of lines) expect(line).toMatch(/^watchSubnets: got valid subnet event with revision \d+$/)
  })
})
