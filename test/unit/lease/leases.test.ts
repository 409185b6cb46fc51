// leases.test.ts - acquiring and following above a store of the test's own, with a clock of its own.

import { describe, expect, it } from 'vitest'
import { EVENT_MS } from '../../../lab/lab.ts'
import { parseNetworkConfig } from '../../../src/config/network-config.ts'
import { WeftError } from '../../../src/errors.ts'
import type { LeaseAttrs } from '../../../src/lease/lease.ts'
import { acquireLease, followLeases, type Clock } from '../../../src/lease/leases.ts'
import type { LeaseUpdate } from '../../../src/lease/peer-view.ts'
import { StoreGap, type Store, type StoreBatch, type StoreEntry } from '../../../src/lease/store.ts'
import { parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'

const value = (ip: string): string => `{"PublicIP":"${ip}","PublicIPv6":null}`
const attrs = (ip: string): LeaseAttrs => ({ publicIp: parseIpv4(ip)!, backendType: '' })
const entry = (key: string, text: string, revision = 1n): StoreEntry => ({
  key,
  value: text,
  revision,
  isReservation: false,
})

function recorder() {
  const lines: string[] = []
  const add = (line: string): void => void lines.push(line)
  return { lines, info: add, warn: add, error: add, v: () => false }
}

/** A store whose answers the test gives; what it does not give must not be asked for. */
function fakeStore(parts: Partial<Store>): Store {
  const unasked = () => Promise.reject(new Error('not expected to be called'))
  return {
    name: 'etcd',
    config: unasked,
    list: unasked,
    // oxlint-disable-next-line require-yield
    async *watch() {
      throw new Error('not expected to be called')
    },
    create: unasked,
    update: unasked,
    delete: unasked,
    claim: unasked,
    close: async () => {},
    ...parts,
  }
}

/** A clock that jumps to the end of each pause. Pauses longer than `untilMs` stay: they are planned listings. */
function jumpingClock(untilMs = 10_000): Clock & { readonly pauses: number[] } {
  let now = 0
  const pauses: number[] = []
  return {
    pauses,
    now: () => now,
    sleep(ms, signal) {
      if (ms > untilMs)
        return new Promise((_resolve, reject) =>
          signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true }),
        )
      pauses.push(ms)
      now += ms
      return Promise.resolve()
    },
  }
}

function keysOf(update: LeaseUpdate): string[] {
  return update.kind === 'snapshot' ? [...update.leases.keys()] : update.puts.map(({ key }) => key)
}

const ended = new Error('the test is over')

describe('following', () => {
  it('waits longer and longer for a store that answers every watch with a gap, and says so seldom', async () => {
    const controller = new AbortController()
    const log = recorder()
    const clock = jumpingClock()
    let listings = 0
    const store = fakeStore({
      async list() {
        if (++listings === 60) controller.abort(ended)
        return { revision: 7n, entries: [] }
      },
      // oxlint-disable-next-line require-yield
      async *watch() {
        throw new StoreGap('compact rev 9')
      },
    })
    const run = async (): Promise<void> => {
      for await (const _ of followLeases(store, { log, signal: controller.signal, clock, random: () => 1 })) void _
    }
    await expect(run()).rejects.toBe(ended)
    // The first gap is made good at once; from then on the pauses double up to 5 s.
    expect(clock.pauses.slice(0, 6)).toEqual([200, 400, 800, 1600, 3200, 5000])
    expect(Math.max(...clock.pauses)).toBe(5000)
    expect(log.lines[0]).toBe('etcd watch for leases fell behind (compact rev 9), re-listing and resuming')
    expect(log.lines.length).toBeGreaterThan(1)
    expect(log.lines.length).toBeLessThanOrEqual(Math.ceil(clock.now() / 30_000))
  })

  it('logs at most four lines a minute, though each failure reads differently', async () => {
    const controller = new AbortController()
    const clock = jumpingClock()
    const times: number[] = []
    const line = (): void => void times.push(clock.now())
    let listings = 0
    const store = fakeStore({
      async list() {
        if (++listings === 200) controller.abort(ended)
        throw new WeftError('STORE_UNAVAILABLE', `failure ${listings}`)
      },
    })
    const log = { info: line, warn: line, error: line, v: () => false }
    const updates = followLeases(store, { log, signal: controller.signal, clock, random: () => 0 })
    await expect(updates.next()).rejects.toBe(ended)
    expect(clock.now()).toBeGreaterThan(300_000)
    for (const from of times) {
      expect(times.filter((time) => time >= from && time < from + 60_000).length).toBeLessThanOrEqual(4)
    }
    // And it does not fall silent.
    expect(times.length).toBeGreaterThanOrEqual(Math.floor(clock.now() / 60_000) * 4)
  })

  it('follows changes though the listing that is due fails', async () => {
    const controller = new AbortController()
    const log = recorder()
    let now = 0
    const clock: Clock = { now: () => now, sleep: () => new Promise((resolve) => setTimeout(resolve, 1)) }
    let listings = 0
    const store = fakeStore({
      async list() {
        if (++listings === 1) return { revision: 1n, entries: [entry('10.5.1.0-24', value('1.1.1.1'))] }
        throw new WeftError('STORE_UNAVAILABLE', 'too slow')
      },
      async *watch(after): AsyncGenerator<StoreBatch> {
        if (listings === 1) {
          now = 60_000
          throw new WeftError('STORE_UNAVAILABLE', 'cut')
        }
        expect(after).toBe(1n)
        yield { revision: 2n, changes: [{ kind: 'put', entry: entry('10.5.2.0-24', value('2.2.2.2'), 2n) }] }
      },
    })
    const seen: Iterable<string>[] = []
    for await (const update of followLeases(store, { log, signal: controller.signal, clock })) {
      seen.push(keysOf(update))
      if (seen.length === 2) break
    }
    expect(listings).toBe(2)
    expect(seen).toEqual([['10.5.1.0-24'], ['10.5.2.0-24']])
    expect(log.lines).toEqual([expect.stringContaining('(cut)'), expect.stringContaining('(too slow)')])
  })

  it('lists again when it is time, whatever the watch says', async () => {
    const controller = new AbortController()
    let listings = 0
    let wake: () => void = () => {}
    let now = 0
    const clock: Clock = {
      now: () => now,
      sleep: (ms) =>
        new Promise((resolve) => {
          wake = () => {
            now += ms
            resolve()
          }
        }),
    }
    const store = fakeStore({
      list: async () => ({ revision: BigInt(++listings), entries: [entry(`10.5.${listings}.0-24`, value('1.1.1.1'))] }),
      // oxlint-disable-next-line require-yield
      async *watch(_after, signal) {
        wake()
        await new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)))
      },
    })
    const keys: string[] = []
    for await (const update of followLeases(store, { log: recorder(), signal: controller.signal, clock })) {
      if (update.kind === 'snapshot') keys.push(...update.leases.keys())
      if (keys.length === 3) break
    }
    expect(keys).toEqual(['10.5.1.0-24', '10.5.2.0-24', '10.5.3.0-24'])
    expect(now).toBe(120_000)
  })

  it('passes on what is no failure of the store', async () => {
    const store = fakeStore({ list: () => Promise.reject(new TypeError('a defect')) })
    const next = followLeases(store, { log: recorder(), signal: new AbortController().signal }).next()
    await expect(next).rejects.toThrow('a defect')
  })
})

describe('acquiring', () => {
  const options = () => ({ random: () => 0, ttlMs: 1000, log: recorder(), signal: AbortSignal.timeout(EVENT_MS) })
  const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}')

  it('needs IPv4', async () => {
    const only6 = parseNetworkConfig('{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48"}')
    await expect(acquireLease(fakeStore({}), only6, attrs('1.1.1.1'), options())).rejects.toMatchObject({
      code: 'CONFIG',
      message: expect.stringContaining('EnableIPv4'),
    })
  })

  it('draws again from a fresh listing when another node was faster', async () => {
    const entries: StoreEntry[] = []
    const tried: string[] = []
    const log = recorder()
    const store = fakeStore({
      list: async () => ({ revision: 1n, entries: [...entries] }),
      async create(key) {
        tried.push(key)
        if (tried.length === 4) return { revision: 9n, expiresAt: 1 }
        entries.push(entry(key, value(`2.2.2.${tried.length}`)))
        return undefined
      },
    })
    const lease = await acquireLease(store, config, attrs('1.1.1.1'), { ...options(), log })
    expect(tried).toEqual(['10.5.1.0-24', '10.5.2.0-24', '10.5.3.0-24', '10.5.4.0-24'])
    expect(lease).toMatchObject({ key: '10.5.4.0-24', revision: 9n })
    expect(log.lines.at(-1)).toBe('Allocated lease (ip: 10.5.4.0/24 ipv6: ::/0) to current node (1.1.1.1) ')
  })

  it('does not take its previous subnet when a lease of another length lies across it', async () => {
    const store = fakeStore({
      list: async () => ({ revision: 1n, entries: [entry('10.5.6.0-23', value('9.9.9.9'))] }),
      create: async () => ({ revision: 2n, expiresAt: 1 }),
    })
    const lease = await acquireLease(store, config, attrs('1.1.1.1'), {
      ...options(),
      previous: parseIpv4Net('10.5.7.0/24')!,
    })
    expect(lease.key).toBe('10.5.1.0-24')
  })
})
