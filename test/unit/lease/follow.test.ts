// follow.test.ts - following above a source of the test's own, with a clock of its own.

import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../src/errors.ts'
import { decodeLease } from '../../../src/lease/decode.ts'
import { followLeases, type Clock } from '../../../src/lease/follow.ts'
import type { Entry, LeaseSource } from '../../../src/lease/subnet-manager.ts'

const entry = (key: string, ip: string): Entry => ({ key, lease: decodeLease(key, `{"PublicIP":"${ip}"}`) })

function recorder() {
  const lines: string[] = []
  const add = (line: string): void => void lines.push(line)
  return { lines, info: add, warn: add, error: add, v: () => false }
}

/** A source whose answers the test gives; what it does not give must not be asked for. */
function fakeSource(parts: Partial<LeaseSource<bigint>>): LeaseSource<bigint> {
  return {
    name: 'etcd',
    list: () => Promise.reject(new Error('not expected to be called')),
    // oxlint-disable-next-line require-yield
    async *watch() {
      throw new Error('not expected to be called')
    },
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

const ended = new Error('the test is over')

describe('following', () => {
  it('waits longer and longer for a store that answers every watch with a gap, and says so seldom', async () => {
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
    // And it does not fall silent.
    expect(times.length).toBeGreaterThanOrEqual(Math.floor(clock.now() / 60_000) * 4)
  })

  it('follows changes though the listing that is due fails', async () => {
    const controller = new AbortController()
    const log = recorder()
    let now = 0
    const clock: Clock = { now: () => now, sleep: () => new Promise((resolve) => setTimeout(resolve, 1)) }
    let listings = 0
    const source = fakeSource({
      async list() {
        if (++listings === 1) return { cursor: 1n, entries: [entry('10.5.1.0-24', '1.1.1.1')] }
        throw new WeftError('STORE_UNAVAILABLE', 'too slow')
      },
      async *watch(after) {
        if (listings === 1) {
          now = 60_000
          throw new WeftError('STORE_UNAVAILABLE', 'cut')
        }
        expect(after).toBe(1n)
        yield { cursor: 2n, changes: [{ kind: 'put', entry: entry('10.5.2.0-24', '2.2.2.2') }] }
      },
    })
    const seen: Iterable<string>[] = []
    for await (const { added } of followLeases(source, { log, signal: controller.signal, clock })) {
      seen.push(added.map(({ key }) => key))
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
    const source = fakeSource({
      list: async () => ({ cursor: BigInt(++listings), entries: [entry(`10.5.${listings}.0-24`, '1.1.1.1')] }),
      // oxlint-disable-next-line require-yield
      async *watch(_after, signal) {
        wake()
        await new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)))
      },
    })
    const keys: string[] = []
    for await (const { leases } of followLeases(source, { log: recorder(), signal: controller.signal, clock })) {
      keys.push(...leases.keys())
      if (keys.length === 3) break
    }
    expect(keys).toEqual(['10.5.1.0-24', '10.5.2.0-24', '10.5.3.0-24'])
    expect(now).toBe(120_000)
  })

  it('passes on what is no failure of the store', async () => {
    const source = fakeSource({ list: () => Promise.reject(new TypeError('a defect')) })
    const next = followLeases(source, { log: recorder(), signal: new AbortController().signal }).next()
    await expect(next).rejects.toThrow('a defect')
  })
})
