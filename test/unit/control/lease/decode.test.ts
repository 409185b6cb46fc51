// decode.test.ts - which entries of a store are leases, and the reason that is given for the others.

import { describe, expect, it } from 'vitest'
import { decodeLease, sourceOf } from '../../../../src/control/lease/decode.ts'
import { encodeLeaseValue, leasesEqual } from '../../../../src/control/lease/lease.ts'
import type { Change } from '../../../../src/control/lease/subnet-manager.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import { createMemoryStore } from '../../../support/memory-store.ts'

describe('a lease', () => {
  it('is decoded as Go decodes it', () => {
    expect(decodeLease('10.5.1.0-24', '{}').attrs.publicIp).toEqual({})
    expect(decodeLease('10.5.1.0-24', 'null').attrs.publicIp).toEqual({})
    expect(decodeLease('10.5.1.0-24', '{"publicip":"1.2.3.4","new":1}').attrs.publicIp).toEqual({
      ipv4: parseIpv4('1.2.3.4'),
    })
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

it('refuses a value nested more than 100 deep, and accepts one nested 100 deep', () => {
  const nested = (depth: number): string =>
    `{"PublicIP":"192.0.2.2","BackendData":${'['.repeat(depth)}${']'.repeat(depth)}}`
  for (const depth of [100, 5_000, 32_000])
    expect(() => decodeLease('10.5.1.0-24', nested(depth))).toThrow('it is nested more than 100 deep')
  const [lease, again] = [nested(99), nested(99)].map((value) => decodeLease('10.5.1.0-24', value))
  expect(leasesEqual(lease!, again!)).toBe(true)
})

describe('a store as a source', () => {
  it('lists and watches leases, and gives the reason for each entry that is not a lease', async () => {
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
    // flanneld logs only the two events that concern a lease.
    expect(lines).toHaveLength(2)
    for (const line of lines) expect(line).toMatch(/^watchSubnets: got valid subnet event with revision \d+$/)
  })
})

describe('at the limits', () => {
  const decode = (value: string) => decodeLease('10.5.1.0-24', value)
  /** Returns JSON text of `length` characters. */
  const ofLength = (length: number): string => JSON.stringify({ x: ' '.repeat(length - 8) })

  it('reads a value of 65,536 characters, and refuses a longer one', () => {
    expect(ofLength(65_536)).toHaveLength(65_536)
    expect(decode(ofLength(65_536)).attrs.publicIp).toEqual({})
    expect(() => decode(ofLength(65_537))).toThrow('the value has 65537 characters')
  })

  it('reads every member of both families, and distinguishes null from missing', () => {
    const { attrs } = decode(
      '{"PublicIP":"1.2.3.4","PublicIPv6":"fc00::1","BackendType":"vxlan","BackendData":{"VNI":1},"BackendV6Data":{"VNI":2}}',
    )
    expect(attrs).toEqual({
      publicIp: { ipv4: parseIpv4('1.2.3.4'), ipv6: parseIpv6('fc00::1') },
      backendType: 'vxlan',
      backendData: { VNI: 1 },
      backendV6Data: { VNI: 2 },
    })
    expect(decode('{"PublicIP":"1.2.3.4","PublicIPv6":"::"}').attrs.publicIp).toEqual({ ipv4: parseIpv4('1.2.3.4') })
    expect(decode('{"PublicIPv6":null,"BackendType":null,"BackendData":null}').attrs).toStrictEqual({
      publicIp: { ipv4: undefined, ipv6: undefined },
      backendType: '',
      backendData: null,
    })
  })

  it.each(['0.0.0.0-0&fc00::-64', '0.0.0.0-24&fc00::-64'])('reads the lease %s of a node without IPv4', (key) => {
    const value = '{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::1"}'
    const { attrs } = decodeLease(key, value)
    expect(attrs.publicIp).toEqual({ ipv6: parseIpv6('fd00::1') })
    expect(encodeLeaseValue(attrs)).toBe(value)
  })

  it.each([
    ['{"PublicIP":null}', 'PublicIP is null'],
    ['{"PublicIP":7}', 'PublicIP is 7'],
    ['{"PublicIP":"fc00::1"}', 'PublicIP is "fc00::1"'],
    ['{"PublicIPv6":7}', 'PublicIPv6 is 7'],
    ['{"PublicIPv6":"1.2.3.4"}', 'PublicIPv6 is "1.2.3.4"'],
    ['{"BackendType":[]}', 'BackendType is array'],
    ['{"BackendType":true}', 'BackendType is bool'],
    ['[]', 'the value is not a JSON object: it is array instead of an object'],
    ['7', 'the value is not a JSON object: it is number instead of an object'],
  ])('refuses %s: %s', (value, message) => expect(() => decode(value)).toThrow(new Error(message)))

  it('has a revision unless it is a reservation, and compares cursors', async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24', '{}')
    const source = sourceOf(store)
    const { entries } = await source.list(new AbortController().signal)
    expect(entries[0]!.lease!.revision).toBeTypeOf('bigint')
    expect([source.isAfter(2n, 1n), source.isAfter(1n, 1n), source.isAfter(1n, 2n)]).toEqual([true, false, false])
    const reserved = {
      ...store,
      list: () =>
        Promise.resolve({
          revision: 1n,
          entries: [{ key: '10.5.1.0-24', value: '{}', revision: 1n, created: 1n, isReservation: true }],
        }),
    }
    const [entry] = (await sourceOf(reserved).list(new AbortController().signal)).entries
    expect(entry!.lease).not.toHaveProperty('revision')
  })
})
