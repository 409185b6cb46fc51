// flanneld-rules.test.ts - flanneld's rules and log lines for leases that no other test covers (CONTRACT.md, sections 5 to 7).

import { setTimeout as delay } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { EVENT_MS } from '../../../../lab/lab.ts'
import { WeftError } from '../../../../src/base/errors.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { sourceOf } from '../../../../src/control/lease/decode.ts'
import { followLeases } from '../../../../src/control/lease/follow.ts'
import { parseLeaseKey } from '../../../../src/control/lease/lease.ts'
import { acquireLease } from '../../../../src/control/lease/own-lease.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { createMemoryStore } from '../../../support/memory-store.ts'

const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
const value = (ip: string): string => `{"PublicIP":"${ip}","PublicIPv6":null}`

function recorder() {
  const lines: string[] = []
  const add =
    (letter: string) =>
    (line: string): void =>
      void lines.push(`${letter} ${line}`)
  return { lines, info: add('I'), warn: add('W'), error: add('E'), v: () => false }
}

describe('a key with text before the subnet', () => {
  const subnet = parseIpv4Net('10.5.1.0/24')!

  it.each(['old-10.5.1.0-24', ' 10.5.1.0-24', '10.5.9.0-24/10.5.1.0-24', '7.10.5.1.0-24', '10.5.1.0-024'])(
    '%j is a lease of that subnet',
    (key) => {
      expect(parseLeaseKey(key)).toEqual({ ipv4: subnet })
    },
  )

  it.each(['1210.5.1.0-24', '10.5.1.0-24/', '10.5.01.0-24', '10.5.1.0-32', '10.5.1.0-240'])(
    '%j is not a lease',
    (key) => {
      expect(parseLeaseKey(key)).toBeUndefined()
    },
  )

  it('is parsed in linear time', () => {
    const long = '1'.repeat(1_000_000)
    for (const key of [long, `${long}.1.1.1-24`, `${'1.'.repeat(500_000)}x`, `10.5.1.0-${long}`])
      expect(parseLeaseKey(key)).toBeUndefined()
  })

  it('reserves its subnet', async () => {
    const store = createMemoryStore()
    store.put('old-10.5.1.0-24', value('192.0.2.9'))
    expect((await take(store)).key).toBe('10.5.2.0-24')
  })

  it('is the lease of its host, which keeps that key', async () => {
    const store = createMemoryStore()
    store.put('old-10.5.3.0-24', value('192.0.2.1'))
    expect((await take(store)).key).toBe('old-10.5.3.0-24')
  })
})

const take = async (store: ReturnType<typeof createMemoryStore>, previous?: string) => {
  const log = recorder()
  const lease = await acquireLease(
    store,
    config,
    { publicIp: { ipv4: parseIpv4('192.0.2.1')! }, backendType: '' },
    {
      ...(previous === undefined ? {} : { previous: { ipv4: parseIpv4Net(previous)! } }),
      random: () => 0,
      log,
      signal: AbortSignal.timeout(EVENT_MS),
    },
  )
  return { key: lease.key, lines: log.lines }
}

describe('taking a lease', () => {
  it.each([
    ['the first by key', undefined, '10.5.3.0-24', '10.5.7.0-24'],
    ['the previous one', '10.5.7.0/24', '10.5.7.0-24', '10.5.3.0-24'],
    ['the first by key without a previous one', '10.5.8.0/24', '10.5.3.0-24', '10.5.7.0-24'],
  ])('reuses a lease of its public IP, %s, and names the other lease', async (_title, previous, key, other) => {
    const store = createMemoryStore()
    store.put('10.5.3.0-24', value('192.0.2.1'))
    store.put('10.5.5.0-24', value('192.0.2.5'))
    store.put('10.5.7.0-24', value('192.0.2.1'))
    expect(await take(store, previous)).toEqual({
      key,
      lines: [
        `I Found lease (ip: ${key.replace('-', '/')} ipv6: ::/0) for current IP (192.0.2.1), reusing`,
        expect.stringMatching(
          new RegExp(`^W There are other leases of this node's public IP 192\\.0\\.2\\.1 too: ${other}\\. `),
        ),
      ],
    })
    expect(store.entries.size).toBe(3)
  })

  it('reuses the lease of its public IP that fits, although its previous one does not', async () => {
    const store = createMemoryStore()
    store.put('10.4.3.0-24', value('192.0.2.1'))
    store.put('10.5.7.0-24', value('192.0.2.1'))
    expect((await take(store, '10.4.3.0/24')).key).toBe('10.5.7.0-24')
    expect([...store.entries.keys()]).toEqual(['10.5.7.0-24'])
  })

  it.each(['10.4.3.0-24', '10.5.3.0-25', '10.5.0.0-24'])(
    'deletes the lease %s of its public IP, which does not fit the configuration',
    async (key) => {
      const store = createMemoryStore()
      store.put(key, value('192.0.2.1'))
      const subnet = key.replace('-', '/')
      expect(await take(store)).toEqual({
        key: '10.5.1.0-24',
        lines: [
          `I Found lease (ip: ${subnet} ipv6: ::/0) for current IP (192.0.2.1) but not compatible with current config, deleting`,
          'I Picking subnet in range 10.5.1.0 ... 10.5.255.0',
          'I Allocated lease (ip: 10.5.1.0/24 ipv6: ::/0) to current node (192.0.2.1) ',
        ],
      })
      expect([...store.entries.keys()]).toEqual(['10.5.1.0-24'])
    },
  )

  it('ignores a previous subnet that does not fit the configuration, and logs that', async () => {
    const { key, lines } = await take(createMemoryStore(), '10.4.1.0/24')
    expect(key).toBe('10.5.1.0-24')
    expect(lines[0]).toBe(
      'E Found previously leased subnet (10.4.1.0/24) that is not compatible with the Etcd network config, ignoring',
    )
  })
})

describe('following leases', () => {
  const clock = {
    now: () => performance.now(),
    sleep: (_ms: number, signal: AbortSignal) => delay(1, undefined, { signal }),
  }

  it('starts although the first listings fail', async () => {
    const store = createMemoryStore()
    store.put('10.5.3.0-24', value('192.0.2.3'))
    const list = store.list.bind(store)
    let failures = 3
    store.list = (signal) =>
      failures-- > 0 ? Promise.reject(new WeftError('STORE_UNAVAILABLE', 'not yet')) : list(signal)
    const stopping = new AbortController()
    const log = recorder()
    const updates = followLeases(sourceOf(store), { log, signal: stopping.signal, clock })
    const { value: first } = await updates.next()
    expect([...first.leases.keys()]).toEqual(['10.5.3.0-24'])
    expect(log.lines[0]).toBe('E etcd watch channel for leases closed (not yet), reconnecting from rev 0...')
    stopping.abort(new Error('the test is over'))
    await expect(updates.next()).rejects.toThrow('the test is over')
  })

  it('removes only the deleted key if another key has the same prefix', async () => {
    const store = createMemoryStore()
    store.put('10.5.3.0-24', value('192.0.2.1'))
    store.put('10.5.3.0-24&fc00::-64', value('192.0.2.1'))
    const stopping = new AbortController()
    const options = { log: recorder(), signal: stopping.signal, ownKey: () => '10.5.3.0-24' }
    const updates = followLeases(sourceOf(store), options)
    expect([...(await updates.next()).value.leases.keys()]).toEqual(['10.5.3.0-24', '10.5.3.0-24&fc00::-64'])
    store.remove('10.5.3.0-24&fc00::-64')
    expect([...(await updates.next()).value.leases.keys()]).toEqual(['10.5.3.0-24'])
    stopping.abort(new Error('the test is over'))
    await expect(updates.next()).rejects.toThrow('the test is over')
  })
})
