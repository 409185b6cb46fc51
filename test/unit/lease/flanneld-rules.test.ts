// flanneld-rules.test.ts - flanneld's rules and lines for leases that no other test names (CONTRACT.md, sections 5 to 7).

import { setTimeout as delay } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { EVENT_MS } from '../../../lab/lab.ts'
import { parseNetworkConfig } from '../../../src/config/network-config.ts'
import { WeftError } from '../../../src/errors.ts'
import { parseLeaseKey } from '../../../src/lease/lease.ts'
import { sourceOf } from '../../../src/lease/decode.ts'
import { followLeases } from '../../../src/lease/follow.ts'
import { acquireLease } from '../../../src/lease/own-lease.ts'
import { parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'
import { createMemoryStore } from '../../support/memory-store.ts'

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
  it.each(['old-10.5.1.0-24', ' 10.5.1.0-24', '10.5.1.0-24/10.5.1.0-24'])('%j is no lease of anybody', (key) => {
    expect(parseLeaseKey(key)).toBeUndefined()
  })
})

describe('taking a lease', () => {
  const take = async (store: ReturnType<typeof createMemoryStore>, previous?: string) => {
    const log = recorder()
    const lease = await acquireLease(
      store,
      config,
      { publicIp: parseIpv4('192.0.2.1')!, backendType: '' },
      {
        ...(previous === undefined ? {} : { previous: parseIpv4Net(previous)! }),
        random: () => 0,
        log,
        signal: AbortSignal.timeout(EVENT_MS),
      },
    )
    return { key: lease.key, lines: log.lines }
  }

  it('of its public IP, the first by key where there are several', async () => {
    const store = createMemoryStore()
    store.put('10.5.3.0-24', value('192.0.2.1'))
    store.put('10.5.7.0-24', value('192.0.2.1'))
    expect(await take(store)).toEqual({
      key: '10.5.3.0-24',
      lines: ['I Found lease (ip: 10.5.3.0/24 ipv6: ::/0) for current IP (192.0.2.1), reusing'],
    })
  })

  it.each(['10.4.3.0-24', '10.5.3.0-25', '10.5.0.0-24'])('deletes %s of its IP, which does not fit', async (key) => {
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
  })

  it('passes over a previous subnet that does not fit, and says so', async () => {
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

  it('begins though the first listings fail', async () => {
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

  it('takes the end of a key that begins like another for that key alone', async () => {
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
