// follow.test.ts - following the leases of a mock source, with a mock clock.

import { setMaxListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { decodeLease } from '../../../../src/control/lease/decode.ts'
import { followLeases, type Clock } from '../../../../src/control/lease/follow.ts'
import type { Change, Entry, LeaseSource } from '../../../../src/control/lease/subnet-manager.ts'
import { addressText } from '../../../../src/net/address.ts'
import { takeOverTime } from '../../../sim/virtual-time.ts'
import { eventually } from '../../../support/event.ts'
import { randomFrom } from '../../../support/packet-model.ts'

const entry = (key: string, ip: string): Entry => ({ key, lease: decodeLease(key, `{"PublicIP":"${ip}"}`) })

function recorder() {
  const lines: string[] = []
  const add = (line: string): void => void lines.push(line)
  return { lines, info: add, warn: add, error: add, v: () => false }
}

/** A source whose answers the test gives. A call that the test did not define fails. */
function fakeSource(parts: Partial<LeaseSource<bigint>>): LeaseSource<bigint> {
  return {
    name: 'etcd',
    list: () => Promise.reject(new Error('not expected to be called')),
    // oxlint-disable-next-line require-yield
    async *watch() {
      throw new Error('not expected to be called')
    },
    isAfter: (a, b) => a > b,
    ...parts,
  }
}

/** A clock that jumps to the end of each pause of at most `untilMs`. Longer pauses, which are the planned listings, never end. */
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

/** A clock that only the test advances. */
function steppedClock() {
  let now = 0
  const sleepers = new Set<{ readonly at: number; wake(): void }>()
  return {
    now: () => now,
    sleep: (ms: number, signal: AbortSignal) =>
      new Promise<void>((resolve, reject) => {
        const sleeper = { at: now + ms, wake: resolve }
        sleepers.add(sleeper)
        signal.addEventListener('abort', () => {
          sleepers.delete(sleeper)
          reject(signal.reason as Error)
        })
      }),
    /** The time at which the next sleeper wakes; now if nothing sleeps. */
    nextAt: () => Math.min(...[...sleepers].map(({ at }) => at), Infinity),
    /** Wakes each sleeper that is due by `ms`; does nothing if `ms` is infinite. */
    async passTo(ms: number): Promise<void> {
      if (ms === Infinity) return
      now = Math.max(now, ms)
      for (const sleeper of sleepers)
        if (sleeper.at <= now) {
          sleepers.delete(sleeper)
          sleeper.wake()
        }
      await Promise.resolve()
    },
  }
}

/** A queue that delivers the items of the test one by one. */
function queue<T>() {
  const items: T[] = []
  let wake = (): void => {}
  return {
    give(item: T) {
      items.push(item)
      wake()
    },
    async take(signal: AbortSignal): Promise<T> {
      for (;;) {
        if (items.length > 0) return items.shift()!
        await new Promise<void>((resolve, reject) => {
          wake = resolve
          signal.addEventListener('abort', () => reject(signal.reason as Error))
        })
      }
    },
  }
}

const ended = new Error('the test is over')

describe('following', () => {
  /** Follows a source; the test delivers each listing and ends each watch. */
  function driven() {
    const stopping = new AbortController()
    setMaxListeners(0, stopping.signal)
    const [lists, ends] = [queue<bigint>(), queue<Error>()]
    const watches: bigint[] = []
    let listed = 0
    const clock = jumpingClock()
    const source = fakeSource({
      async list(signal) {
        const cursor = await lists.take(signal)
        return { cursor, entries: [entry('10.5.1.0-24', '1.1.1.1')] }
      },
      async *watch(after, signal) {
        watches.push(after)
        yield { cursor: after, changes: [] }
        throw await ends.take(signal)
      },
    })
    const run = async (): Promise<void> => {
      const options = { log: recorder(), signal: stopping.signal, relistMs: 7_000, random: () => 1, clock }
      for await (const followed of followLeases(source, options)) listed += followed.leases.size
    }
    const over = run().catch((error: unknown) => error)
    return {
      lists,
      ends,
      watches,
      clock,
      listed: () => listed,
      stop: async () => {
        stopping.abort(ended)
        expect(await over).toBe(ended)
      },
    }
  }

  it('reopens the watch from the revision of an older listing, even if that listing changes nothing', async () => {
    const { lists, watches, listed, stop } = driven()
    lists.give(100n)
    await eventually(() => expect(watches).toEqual([100n]))
    lists.give(50n)
    await eventually(() => expect([listed(), watches]).toEqual([2, [100n, 50n]]))
    lists.give(60n)
    await eventually(() => expect(listed()).toBe(3))
    expect(watches).toEqual([100n, 50n])
    await stop()
  })

  it('reopens a watch that ends now and then without a longer pause if a listing succeeded in between', async () => {
    const { lists, ends, watches, clock, listed, stop } = driven()
    lists.give(100n)
    for (let times = 1; times <= 6; times++) {
      await eventually(() => expect([listed(), watches.length]).toEqual([times, times]))
      ends.give(new WeftError('STORE_UNAVAILABLE', 'the connection was cut'))
      await eventually(() => expect(watches).toHaveLength(times + 1))
      lists.give(100n)
    }
    expect(Math.max(...clock.pauses.filter((ms) => ms < 6_000))).toBeLessThanOrEqual(100)
    await stop()
  })

  it('waits longer and longer if a store answers every watch with a gap, and rarely logs it', async () => {
    const controller = new AbortController()
    const log = recorder()
    const clock = jumpingClock()
    let listings = 0
    const source = fakeSource({
      async list() {
        if (++listings === 60) controller.abort(ended)
        return { cursor: 7n, entries: [] }
      },
      // oxlint-disable-next-line require-yield
      async *watch() {
        throw new WeftError('GAP', 'compact rev 9')
      },
    })
    const run = async (): Promise<void> => {
      for await (const _ of followLeases(source, { log, signal: controller.signal, clock, random: () => 1 })) void _
    }
    await expect(run()).rejects.toBe(ended)
    // The first gap is closed immediately; after that the pauses double up to 5 s.
    expect(clock.pauses.slice(0, 6)).toEqual([200, 400, 800, 1600, 3200, 5000])
    expect(Math.max(...clock.pauses)).toBe(5000)
    expect(log.lines[0]).toBe('etcd watch for leases fell behind (compact rev 9), re-listing and resuming')
    expect(log.lines.length).toBeGreaterThan(1)
    expect(log.lines.length).toBeLessThanOrEqual(Math.ceil(clock.now() / 30_000))
  })

  it('logs at most four lines a minute, although each failure reads differently', async () => {
    const controller = new AbortController()
    const clock = jumpingClock()
    const times: number[] = []
    const line = (): void => void times.push(clock.now())
    let listings = 0
    const source = fakeSource({
      async list() {
        if (++listings === 200) controller.abort(ended)
        throw new WeftError('STORE_UNAVAILABLE', `failure ${listings}`)
      },
    })
    const log = { info: line, warn: line, error: line, v: () => false }
    const updates = followLeases(source, { log, signal: controller.signal, clock, random: () => 0 })
    await expect(updates.next()).rejects.toBe(ended)
    expect(clock.now()).toBeGreaterThan(300_000)
    for (const from of times) {
      expect(times.filter((time) => time >= from && time < from + 60_000).length).toBeLessThanOrEqual(4)
    }
    // The failures must still be logged.
    expect(times.length).toBeGreaterThanOrEqual(Math.floor(clock.now() / 60_000) * 4)
  })

  it('follows changes while a listing hangs, and after it has failed', async () => {
    const controller = new AbortController()
    const log = recorder()
    const clock = steppedClock()
    const watch = queue<readonly Change[]>()
    type Answer = Awaited<ReturnType<LeaseSource<bigint>['list']>>
    const listings: { resolve(answer: Answer): void; reject(error: Error): void }[] = []
    const source = fakeSource({
      list: () => new Promise((resolve, reject) => listings.push({ resolve, reject })),
      async *watch(after, signal) {
        expect(after).toBe(1n) // the watch is opened once
        for (let cursor = 2n; ; cursor++) yield { cursor, changes: await watch.take(signal) }
      },
    })
    const updates = followLeases(source, { log, signal: controller.signal, clock, random: () => 1 })
    const keysOf = async (): Promise<string[]> => [...(await updates.next()).value.leases.keys()]
    const first = keysOf()
    await eventually(() => expect(listings).toHaveLength(1))
    listings[0]!.resolve({ cursor: 1n, entries: [entry('10.5.1.0-24', '1.1.1.1')] })
    expect(await first).toEqual(['10.5.1.0-24'])
    const second = keysOf()
    await clock.passTo(60_000)
    await eventually(() => expect(listings).toHaveLength(2))
    watch.give([{ kind: 'put', entry: entry('10.5.2.0-24', '2.2.2.2') }])
    expect(await second).toEqual(['10.5.1.0-24', '10.5.2.0-24'])
    const third = keysOf()
    listings[1]!.reject(new WeftError('STORE_UNAVAILABLE', 'too slow'))
    await eventually(() => expect(log.lines).toHaveLength(1))
    watch.give([{ kind: 'delete', key: '10.5.1.0-24' }])
    expect(await third).toEqual(['10.5.2.0-24'])
    expect(log.lines).toEqual(['etcd listing of leases failed (too slow); the watch goes on'])
    const end = updates.next()
    await clock.passTo(65_000)
    await eventually(() => expect(listings).toHaveLength(3))
    controller.abort(ended)
    await expect(end).rejects.toBe(ended)
  })

  it('trusts the watch for keys that changed since a listing began, and the listing for all other keys', async () => {
    const controller = new AbortController()
    const clock = steppedClock()
    const watch = queue<readonly Change[]>()
    const listings: ((answer: Awaited<ReturnType<LeaseSource<bigint>['list']>>) => void)[] = []
    const source = fakeSource({
      list: () => new Promise((resolve) => listings.push(resolve)),
      async *watch(_after, signal) {
        for (let cursor = 2n; ; cursor++) yield { cursor, changes: await watch.take(signal) }
      },
    })
    const { signal } = controller
    const updates = followLeases(source, { log: recorder(), signal, clock, random: () => 1 })
    const next = async () => (await updates.next()).value
    const first = next()
    await eventually(() => expect(listings).toHaveLength(1))
    const before = ['10.5.1.0-24', '10.5.2.0-24', '10.5.3.0-24']
    const listed = before.map((key) => entry(key, '1.1.1.1'))
    listings[0]!({ cursor: 1n, entries: listed })
    await first
    const second = next()
    await clock.passTo(60_000)
    await eventually(() => expect(listings).toHaveLength(2))
    watch.give([
      { kind: 'delete', key: '10.5.1.0-24' },
      { kind: 'put', entry: entry('10.5.2.0-24', '2.2.2.2') },
      { kind: 'put', entry: entry('10.5.4.0-24', '4.4.4.4') },
    ])
    await second
    const third = next()
    // The listing is older than all of these changes, and has a lease that the watch did not bring.
    listings[1]!({ cursor: 1n, entries: [...listed.slice(0, 2), entry('10.5.5.0-24', '5.5.5.5')] })
    const { added, changed, removed, leases } = await third
    expect([added, changed, removed].map((some) => some.map(({ key }) => key))).toEqual([
      ['10.5.5.0-24'],
      [],
      ['10.5.3.0-24'],
    ])
    expect([...leases].map(([key, { attrs }]) => `${key} ${addressText(attrs.publicIp)}`).toSorted()).toEqual([
      '10.5.2.0-24 2.2.2.2',
      '10.5.4.0-24 4.4.4.4',
      '10.5.5.0-24 5.5.5.5',
    ])
    controller.abort(ended)
  })

  it('lists every minute during one watch, and reopens a watch that missed a change', async () => {
    const controller = new AbortController()
    const clock = steppedClock()
    const cursors: bigint[] = []
    let listings = 0
    const source = fakeSource({
      // Only the first listing brings a change.
      list: async () => ({ cursor: BigInt(++listings), entries: [entry(`10.5.${listings >> 1}.0-24`, '1.1.1.1')] }),
      // oxlint-disable-next-line require-yield
      async *watch(after, signal) {
        cursors.push(after)
        await queue().take(signal)
      },
    })
    const { signal } = controller
    const log = recorder()
    const updates = followLeases(source, { log, signal, clock, random: () => 0.5 })
    const keysOf = async (): Promise<string[]> => [...(await updates.next()).value.leases.keys()]
    const times: number[] = []
    const keys: string[][] = []
    for (let taken = 1; taken <= 5; taken++) {
      const found = keysOf()
      await eventually(async () => {
        await clock.passTo(clock.nextAt())
        expect(listings).toBe(taken)
      })
      keys.push(await found)
      times.push(clock.now())
    }
    expect(keys.flat()).toEqual(['10.5.0.0-24', '10.5.1.0-24', '10.5.1.0-24', '10.5.2.0-24', '10.5.2.0-24'])
    // The first listing is a fraction of a minute late, which spreads nodes that started together.
    expect(times).toEqual([0, 30_000, 90_000, 150_000, 210_000])
    controller.abort(ended)
    expect(cursors).toEqual([1n, 2n, 4n])
    expect(log.lines).toEqual(
      [2, 4].map((rev) => `etcd watch for leases did not tell what a listing did, reconnecting from rev ${rev}...`),
    )
  })

  it('lists less often if a listing is expensive and the watch advanced in each minute', async () => {
    const controller = new AbortController()
    const clock = steppedClock()
    const watch = queue<bigint>()
    const times: number[] = []
    const source = fakeSource({
      async list() {
        times.push(clock.now())
        return { cursor: 1n, entries: [entry('10.5.1.0-24', '1.1.1.1')] }
      },
      async *watch(_after, signal) {
        for (;;) yield { cursor: await watch.take(signal), changes: [] }
      },
      trustedMs: (leases) => leases * 300_000,
    })
    const { signal } = controller
    const state = { listedAt: undefined as number | undefined, failing: false, held: 0, holds: 0 }
    const updates = followLeases(source, { log: recorder(), signal, clock, state, random: () => 0.5 })
    let taken = 0
    const run = async (): Promise<void> => {
      for await (const _ of updates) taken++
    }
    const over = run()
    await eventually(() => expect(taken).toBe(1))
    /** Ends the next minute, in which the watch delivered revision `said`; undefined if it delivered none. */
    const minute = async (said: bigint | undefined): Promise<void> => {
      if (said !== undefined) watch.give(said)
      const at = clock.nextAt()
      await eventually(() => expect(clock.nextAt()).toBeLessThan(Infinity))
      for (let turns = 0; turns < 20; turns++) await new Promise((resolve) => setImmediate(resolve))
      await clock.passTo(at)
      await eventually(() => expect(state.listedAt).toBe(at))
    }
    for (let said = 2n; said <= 5n; said++) await minute(said)
    expect([times, state.listedAt]).toEqual([[0], 210_000])
    await minute(undefined) // the watch was silent
    await minute(5n) // the watch did not advance
    await minute(6n)
    expect(times).toEqual([0, 270_000, 330_000])
    // The last listing is trusted for five minutes if the watch advanced in each of them.
    for (let said = 7n; said <= 11n; said++) await minute(said)
    expect(times).toEqual([0, 270_000, 330_000, 630_000])
    controller.abort(ended)
    await expect(over).rejects.toBe(ended)
  })

  it('spreads the listings of 1,000 nodes that started in the same second, at most 40 in any later second', async () => {
    const time = takeOverTime(0)
    const controller = new AbortController()
    const random = randomFrom(7)
    const listings = new Map<number, number>()
    const source = fakeSource({
      async list() {
        const second = Math.floor(time.now() / 1000)
        listings.set(second, (listings.get(second) ?? 0) + 1)
        return { cursor: 1n, entries: [] }
      },
      // oxlint-disable-next-line require-yield
      async *watch(_after, signal) {
        await queue().take(signal)
      },
    })
    try {
      const options = { log: recorder(), signal: controller.signal, random: () => random.below(2 ** 30) / 2 ** 30 }
      setMaxListeners(0, controller.signal)
      const nodes = Array.from({ length: 1_000 }, async (_node, index) => {
        await new Promise<void>((resolve) => time.at(index, resolve))
        for await (const _ of followLeases(source, options)) void _
      })
      const over = Promise.allSettled(nodes)
      await time.advance(300_000)
      controller.abort(ended)
      await over
    } finally {
      time.restore()
    }
    expect(listings.get(0)).toBeGreaterThanOrEqual(1_000)
    listings.delete(0)
    expect(Math.max(...listings.values())).toBeLessThanOrEqual(40)
    // Each node still lists once a minute.
    expect([...listings.values()].reduce((sum, each) => sum + each, 0)).toBeGreaterThanOrEqual(4_000)
  })

  it('rethrows an error that is not a failure of the store', async () => {
    const source = fakeSource({ list: () => Promise.reject(new TypeError('a defect')) })
    const next = followLeases(source, { log: recorder(), signal: new AbortController().signal }).next()
    await expect(next).rejects.toThrow('a defect')
  })
})
