// store.test.ts - the contract of every store, tested with a real etcd and a real directory.

import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  utimesSync,
  watch as watchDirectory,
  writeFileSync,
} from 'node:fs'
import { open as openFile, readFile } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { Etcd3 } from 'etcd3'
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest'
import { ended } from '../../lab/command.ts'
import { ownPlace, startEtcd, type Etcd } from '../../lab/etcd.ts'
import { EVENT_MS } from '../../lab/lab.ts'
import { describeError } from '../../src/base/errors.ts'
import { Secret } from '../../src/base/secret.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { sourceOf } from '../../src/control/lease/decode.ts'
import type { PeerView } from '../../src/control/lease/fail-static.ts'
import { followLeases } from '../../src/control/lease/follow.ts'
import type { LeaseAttrs } from '../../src/control/lease/lease.ts'
import { acquireLease, renewLease } from '../../src/control/lease/own-lease.ts'
import { DirectoryStore } from '../../src/control/store/directory/directory.ts'
import { EtcdStore } from '../../src/control/store/etcd/etcd.ts'
import { LEASE_TTL_MS, type Store, type StoreBatch, type StoreChange } from '../../src/control/store/store.ts'
import { addon } from '../../src/host/addon.ts'
import { parseIpv4, parseIpv4Net } from '../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../src/net/ipv6.ts'
import { startCuttingProxy, type CuttingProxy } from '../support/cutting-proxy.ts'
import { eventually } from '../support/event.ts'
import { ETCD, needs } from '../support/needs.ts'
import { startTroubledEtcd } from '../support/troubled-etcd.ts'

const lacks = needs(...ETCD)

const TTL_MS = 3_600_000
/** True in `npm run test:soak`. */
const LONG = process.env['WEFT_LONG'] === '1'
const CONFIG = '{"Network":"10.5.0.0/16"}'
const config = parseNetworkConfig(CONFIG)
const attrs = (ip: string): LeaseAttrs => ({ publicIp: { ipv4: parseIpv4(ip)! }, backendType: '' })
const value = (ip: string): string => `{"PublicIP":"${ip}","PublicIPv6":null}`
/** The timeout of a few calls in a row, each of which waits for an event. */
const signal = (): AbortSignal => AbortSignal.timeout(4 * EVENT_MS)

function quiet() {
  const lines: string[] = []
  const add = (line: string): void => void lines.push(line)
  return { lines, info: add, warn: add, error: add, v: () => false }
}

/** Stops all timers of this test, so that neither a deadline nor a poll can end a wait. */
const stopTime = (): unknown =>
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval'] })

/** A store under test, and ways to change it from outside. */
interface Bed {
  /** The prefix in etcd, or the directory. */
  readonly prefix: string
  /** The TTL of a key. */
  readonly ttlMs: number
  /** `endpoint` is for etcd only, and replaces the cutting proxy. */
  open(endpoint?: string): Store
  put(key: string, text: string): Promise<void>
  putBytes(key: string, bytes: Buffer): Promise<void>
  remove(key: string): Promise<void>
  /** Makes a lease expire immediately. */
  expire(key: string): Promise<void>
  /** Writes a lease that never expires, as an operator does. */
  reserve(key: string, text: string): Promise<void>
  /** Reads all keys and values with another program. */
  dump(): Promise<Record<string, string>>
  putConfig(text: string): Promise<void>
}

let etcd: Etcd
let proxy: CuttingProxy
let prefixes = 0
const folders: string[] = []
const stores: Store[] = []
const following = new Set<AbortController>()

beforeAll(async () => {
  if (lacks) return
  etcd = await startEtcd()
  proxy = await startCuttingProxy(etcd.endpoint)
})
afterAll(async () => {
  await proxy?.close()
  await etcd?.close()
  for (const folder of folders) rmSync(folder, { recursive: true, force: true })
})
afterEach(async () => {
  vi.useRealTimers()
  for (const controller of following) controller.abort(new Error('the test is over'))
  following.clear()
  await Promise.all(stores.splice(0).map((store) => store.close()))
})

function etcdBed(): Bed {
  const prefix = `/test${prefixes++}/network`
  const full = (key: string): string => `${prefix}/subnets/${key}`
  return {
    prefix,
    ttlMs: TTL_MS,
    open(endpoint = `http://127.0.0.1:${proxy.port}`) {
      const store = new EtcdStore({
        endpoints: [endpoint],
        prefix,
        certFile: '',
        keyFile: '',
        caFile: '',
        username: '',
        password: new Secret(''),
        ttlMs: TTL_MS,
      })
      stores.push(store)
      return store
    },
    put: async (key, text) => void (await etcd.ctl('put', full(key), text)),
    async putBytes(key, bytes) {
      const client = new Etcd3({ hosts: etcd.endpoint })
      try {
        await client.put(full(key)).value(bytes)
      } finally {
        client.close()
      }
    },
    reserve: async (key, text) => void (await etcd.ctl('put', full(key), text)),
    remove: async (key) => void (await etcd.ctl('del', full(key))),
    async expire(key) {
      const { kvs } = JSON.parse(await etcd.ctl('get', full(key), '-w', 'json')) as { kvs: { lease: number }[] }
      // Lease ids exceed the precision of a JavaScript number, so they are read from the text.
      const text = await etcd.ctl('get', full(key), '-w', 'json')
      const id = BigInt(/"lease":(\d+)/.exec(text)![1]!).toString(16)
      expect(kvs).toHaveLength(1)
      await etcd.ctl('lease', 'revoke', id)
    },
    async dump() {
      const lines = (await etcd.ctl('get', '--prefix', `${prefix}/subnets/`)).trimEnd().split('\n')
      const pairs: Record<string, string> = {}
      for (let at = 0; at + 1 < lines.length; at += 2) pairs[lines[at]!.slice(full('').length)] = lines[at + 1]!
      return pairs
    },
    putConfig: async (text) => void (await etcd.ctl('put', `${prefix}/config`, text)),
  }
}

function directoryStore(directory: string): Store {
  const store = new DirectoryStore({ directory, rescanMs: 300 })
  stores.push(store)
  return store
}

function directoryBed(): Bed {
  const folder = mkdtempSync(join(tmpdir(), 'weft-store-'))
  folders.push(folder)
  mkdirSync(join(folder, 'subnets'))
  const path = (key: string): string => join(folder, 'subnets', key)
  return {
    prefix: folder,
    ttlMs: LEASE_TTL_MS,
    open: () => directoryStore(folder),
    put: async (key, text) => writeFileSync(path(key), text),
    putBytes: async (key, bytes) => writeFileSync(path(key), bytes),
    async reserve(key, text) {
      writeFileSync(path(key), text)
      chmodSync(path(key), 0o444)
    },
    remove: async (key) => unlinkSync(path(key)),
    expire: async (key) => utimesSync(path(key), 0, Date.now() / 1000 - 25 * 3600),
    dump: async () =>
      Object.fromEntries(readdirSync(join(folder, 'subnets')).map((key) => [key, readFileSync(path(key), 'utf8')])),
    putConfig: async (text) => writeFileSync(join(folder, 'config'), text),
  }
}

/** Yields the batches of a watch without the empty ones, which only show that the store answers. */
async function* changesOf(store: Store, after: bigint, end: AbortSignal): AsyncGenerator<StoreBatch> {
  for await (const batch of store.watch(after, end)) if (batch.changes.length > 0) yield batch
}

/**
 * Follows a store like the daemon, but without the listing every minute, which would repair what the watch missed. `until` resolves when
 * the view fits.
 */
function follow(store: Store, log = quiet()) {
  const controller = new AbortController()
  following.add(controller)
  let view: PeerView = new Map()
  const waiting = new Set<() => void>()
  let listings = 0
  const done = (async () => {
    const source = sourceOf(store)
    const list = async (aborts: AbortSignal) => {
      const listing = await source.list(aborts)
      listings++
      return listing
    }
    const options = { log, signal: controller.signal, relistMs: 3_600_000, random: () => 1 }
    for await (const { leases } of followLeases({ ...source, list }, options)) {
      view = leases
      for (const check of waiting) check()
    }
  })().catch((error: unknown) => {
    if (!controller.signal.aborted) throw error
  })
  return {
    get view() {
      return view
    },
    log,
    done,
    /** The number of listings: the first one, and one for each gap that a watch reports. */
    get listings() {
      return listings
    },
    until(fits: (view: PeerView) => boolean): Promise<void> {
      return new Promise((resolve, reject) => {
        const check = (): void => {
          if (!fits(view)) return
          clearTimeout(timer)
          waiting.delete(check)
          resolve()
        }
        const timer = setTimeout(
          () => reject(new Error(`the view is ${[...view.keys()].join(' ')}; log: ${log.lines.join(' | ')}`)),
          EVENT_MS,
        )
        waiting.add(check)
        check()
      })
    },
  }
}

const acquire = (store: Store, ip: string, extra: { previous?: string; random?: () => number } = {}) =>
  acquireLease(store, config, attrs(ip), {
    ...(extra.previous === undefined ? {} : { previous: { ipv4: parseIpv4Net(extra.previous)! } }),
    random: extra.random ?? Math.random,
    log: quiet(),
    signal: signal(),
  })

describe.each([
  ['etcd', etcdBed],
  ['directory', directoryBed],
] as const)('the %s store', (_name, makeBed) => {
  it('reports a missing configuration, and reads the one that is written later', async () => {
    const bed = makeBed()
    const store = bed.open()
    await expect(store.config(signal())).rejects.toMatchObject({ code: 'CONFIG_MISSING' })
    await bed.putConfig(CONFIG)
    expect((await store.config(signal())).trim()).toBe(CONFIG)
  })

  it("writes flannel's key and bytes", async () => {
    const bed = makeBed()
    const before = Date.now()
    const lease = await acquire(bed.open(), '1.2.3.4', { previous: '10.5.7.0/24' })
    const after = Date.now()
    expect(lease.key).toBe('10.5.7.0-24')
    expect(await bed.dump()).toEqual({ '10.5.7.0-24': '{"PublicIP":"1.2.3.4","PublicIPv6":null}' })
    const writtenAt = lease.expiresAt! - bed.ttlMs
    expect(writtenAt).toBeGreaterThan(before - 1_000) // file timestamps are coarse
    expect(writtenAt).toBeLessThanOrEqual(after)
  })

  it('orders the creation of two keys, however often they are rewritten, or refuses overlapping keys', async () => {
    const store = makeBed().open()
    const [first, second] = ['10.5.1.0-24&fd00:5:0:2::-64', '10.5.1.0-24&fd00:5:0:1::-64']
    const isAcross = (key: string): boolean => key === first
    const one = await store.create(first, value('1.1.1.1'), signal(), (key) => key === second)
    const two = await store.create(second, value('2.2.2.2'), signal(), isAcross)
    const update = { revision: one!.revision, value: value('1.1.1.1') }
    expect(await store.update(first, value('1.1.1.1'), update, signal())).toBeDefined()
    const created = new Map((await store.list(signal())).entries.map((entry) => [entry.key, entry.created]))
    if (two) expect(created.get(first)!).toBeLessThan(created.get(second)!)
    else expect([...created]).toEqual([[first, 0n]])
    expect(await store.create('10.5.2.0-24', value('2.2.2.2'), signal(), isAcross)).toEqual(
      two ? expect.anything() : undefined,
    )
    expect(await store.create('10.5.3.0-24', value('2.2.2.2'), signal(), () => false)).toBeDefined()
  })

  it('creates only missing keys, and changes only values that are unchanged since they were read', async () => {
    const store = makeBed().open()
    const first = await store.create('10.5.1.0-24', value('1.1.1.1'), signal())
    expect(first).toBeDefined()
    expect(await store.create('10.5.1.0-24', value('2.2.2.2'), signal())).toBeUndefined()
    const asRead = { revision: first!.revision, value: value('1.1.1.1') }
    const update = (text: string, expected: typeof asRead) => store.update('10.5.1.0-24', text, expected, signal())
    const second = await update(value('3.3.3.3'), asRead)
    expect(second!.revision).toBeGreaterThan(first!.revision)
    expect(await update(value('4.4.4.4'), asRead)).toBeUndefined()
    // A restored store reuses revisions for other values.
    expect(await update(value('4.4.4.4'), { ...asRead, revision: second!.revision })).toBeUndefined()
    const remove = (expected: typeof asRead) => store.delete('10.5.1.0-24', expected, signal())
    expect(await remove(asRead)).toBe(false)
    expect(await remove({ ...asRead, revision: second!.revision })).toBe(false)
    expect((await store.list(signal())).entries.map((entry) => entry.value)).toEqual([value('3.3.3.3')])
    expect(await remove({ revision: second!.revision, value: value('3.3.3.3') })).toBe(true)
    expect((await store.list(signal())).entries).toEqual([])
  })

  it('gives 20 different subnets to 20 nodes that all draw the same one', async () => {
    const bed = makeBed()
    const leases = await Promise.all(
      Array.from({ length: 20 }, (_, index) => acquire(bed.open(), `1.1.1.${index + 1}`, { random: () => 0 })),
    )
    expect(new Set(leases.map(({ key }) => key)).size).toBe(20)
    expect(Object.keys(await bed.dump())).toHaveLength(20)
  })

  it('gives a node its lease again because of its address, and its previous subnet if that is free', async () => {
    const store = makeBed().open()
    const first = await acquire(store, '1.2.3.4', { previous: '10.5.5.0/24' })
    expect((await acquire(store, '1.2.3.4')).key).toBe(first.key)
    expect((await acquire(store, '1.2.3.5', { previous: '10.5.6.0/24' })).key).toBe('10.5.6.0-24')
    expect((await acquire(store, '1.2.3.6', { previous: '10.5.6.0/24' })).key).not.toBe('10.5.6.0-24')
    expect((await acquire(store, '1.2.3.7', { previous: '10.4.1.0/24' })).key).toMatch(/^10\.5\./)
  })

  it('names the host that has the subnet of an earlier run now', async () => {
    const store = makeBed().open()
    await acquire(store, '1.2.3.4', { previous: '10.5.5.0/24' })
    const log = quiet()
    const previous = { ipv4: parseIpv4Net('10.5.5.0/24')! }
    await acquireLease(store, config, attrs('1.2.3.5'), {
      previous,
      random: Math.random,
      log,
      signal: signal(),
    })
    expect(log.lines.filter((line) => line.includes('10.5.5.0/24, is leased by 1.2.3.4 now'))).toHaveLength(1)
  })

  it('replaces a lease that no longer fits the configuration', async () => {
    const bed = makeBed()
    const store = bed.open()
    await acquire(store, '1.2.3.4')
    const moved = await acquireLease(store, parseNetworkConfig('{"Network":"10.4.0.0/16"}'), attrs('1.2.3.4'), {
      random: Math.random,
      log: quiet(),
      signal: signal(),
    })
    expect(moved.key).toMatch(/^10\.4\./)
    expect(Object.keys(await bed.dump())).toEqual([moved.key])
  })

  it('reports that no subnet is free, and what to do', async () => {
    const small = parseNetworkConfig('{"Network":"10.5.0.0/28"}')
    const store = makeBed().open()
    const take = (ip: string) =>
      acquireLease(store, small, attrs(ip), { random: Math.random, log: quiet(), signal: signal() })
    for (const ip of ['1.1.1.1', '1.1.1.2', '1.1.1.3']) await take(ip)
    await expect(take('1.1.1.4')).rejects.toMatchObject({
      code: 'OUT_OF_SUBNETS',
      message: expect.stringContaining('out of subnets'),
      remedy: expect.any(String),
    })
  })

  it('renews only its own lease', async () => {
    const bed = makeBed()
    const store = bed.open()
    const renew = (lease: Awaited<ReturnType<typeof acquire>>) => renewLease(store, lease, { signal: signal() })
    const lease = await acquire(store, '1.2.3.4')
    const renewed = await renew(lease)
    expect(await bed.dump()).toEqual({ [lease.key]: value('1.2.3.4') })
    // If the answer to a renewal was lost, the caller still has the revision from the time before the write.
    expect((await renew(lease)).revision).toBeGreaterThan(renewed.revision)
    await bed.put(lease.key, value('9.9.9.9'))
    await expect(renew(renewed)).rejects.toMatchObject({
      code: 'LEASE_LOST',
      message: expect.stringContaining('9.9.9.9'),
    })
    expect(await bed.dump()).toEqual({ [lease.key]: value('9.9.9.9') })
    await bed.remove(lease.key)
    await expect(renew(renewed)).rejects.toMatchObject({ code: 'LEASE_LOST' })
  })

  it('keeps a reservation without expiry when its node takes it, renews it and restarts', async () => {
    const at = makeBed()
    const key = '10.5.9.0-24'
    await at.reserve(key, value('192.0.2.9'))
    const store = at.open()
    const options = { random: Math.random, log: quiet(), signal: signal() }
    const lease = await acquireLease(store, config, attrs('192.0.2.9'), options)
    expect(lease).toMatchObject({ key, expiresAt: undefined })
    expect(await renewLease(store, lease, options)).toMatchObject({ key, expiresAt: undefined })
    const { entries } = await store.list(signal())
    expect(entries).toMatchObject([{ key, isReservation: true }])
  })

  it('notices that its lease became a reservation while it held it', async () => {
    const at = makeBed()
    const store = at.open()
    const options = { random: Math.random, log: quiet(), signal: signal() }
    const lease = await acquireLease(store, config, attrs('192.0.2.9'), options)
    expect(lease.expiresAt).toBeGreaterThan(Date.now())
    await at.reserve(lease.key, value('192.0.2.9'))
    expect(await renewLease(store, lease, options)).toMatchObject({ key: lease.key, expiresAt: undefined })
    expect((await store.list(signal())).entries).toMatchObject([{ isReservation: true }])
  })

  it('returns the previous claim of a name, and keeps claims separate from leases', async () => {
    const at = makeBed()
    const [first, second] = [at.open(), at.open()]
    expect(await first.claim('192.0.2.1', 'one', signal())).toBe(undefined)
    expect(await first.claim('192.0.2.1', 'one', signal())).toBe('one')
    expect(await second.claim('192.0.2.1', 'two', signal())).toBe('one')
    expect(await first.claim('192.0.2.1', 'one', signal())).toBe('two')
    await second.unclaim('192.0.2.1', 'two', signal()) // the claim belongs to another process now
    expect(await first.claim('192.0.2.1', 'one', signal())).toBe('one')
    await first.unclaim('192.0.2.1', 'one', signal())
    expect(await first.claim('192.0.2.1', 'one', signal())).toBe(undefined)
    expect(await at.dump()).toEqual({})
  })

  it('returns all claims, or only those since an earlier answer if the store can', async () => {
    const at = makeBed()
    const [first, second] = [at.open(), at.open()]
    await first.claim('192.0.2.1', 'one', signal())
    await first.claim('2001:db8::2', 'two', signal())
    const all = await second.claims(undefined, signal())
    expect([all.isWhole, all.values]).toEqual([
      true,
      new Map([
        ['192.0.2.1', 'one'],
        ['2001:db8::2', 'two'],
      ]),
    ])
    await first.claim('192.0.2.1', 'three', signal())
    await first.claim('2001:db8::2', 'two', signal())
    const news = await second.claims(all.revision, signal())
    expect(news.values.get('192.0.2.1')).toBe('three')
    expect(news.isWhole).toBe(news.values.has('2001:db8::2'))
    const [, again] = [await second.claims(news.revision, signal()), await second.claims(undefined, signal())]
    expect(again.values).toEqual(
      new Map([
        ['192.0.2.1', 'three'],
        ['2001:db8::2', 'two'],
      ]),
    )
  })

  it('reports the existing leases, then every change: puts, deletes and expiries', async () => {
    const bed = makeBed()
    await bed.put('10.5.1.0-24', value('1.1.1.1'))
    const store = bed.open()
    const follower = follow(bed.open())
    await follower.until((view) => view.size === 1)
    const own = await acquire(store, '2.2.2.2', { previous: '10.5.2.0/24' })
    await follower.until((view) => view.has(own.key))
    await bed.put('10.5.1.0-24', value('3.3.3.3'))
    await follower.until((view) => view.get('10.5.1.0-24')?.attrs.publicIp.ipv4 === parseIpv4('3.3.3.3'))
    await bed.remove('10.5.1.0-24')
    await follower.until((view) => view.size === 1)
    await bed.expire(own.key)
    await follower.until((view) => view.size === 0)
  })

  it('misses no change between a listing and its watch', async () => {
    const bed = makeBed()
    const writer = bed.open()
    const store = bed.open()
    const { revision } = await store.list(signal())
    const early = await acquire(writer, '1.1.1.1')
    const controller = new AbortController()
    const seen: StoreChange[] = []
    for await (const batch of store.watch(revision, controller.signal)) {
      seen.push(...batch.changes)
      if (seen.length > 0) break
    }
    expect(seen).toMatchObject([{ kind: 'put', entry: { key: early.key } }])
  })

  it('never advances the revision past what it delivered, and delivers the same again from the same revision', async () => {
    const bed = makeBed()
    const writer = bed.open()
    const store = bed.open()
    const { revision } = await store.list(signal())
    for (let watcher = 0; watcher < 2; watcher++) {
      const controller = new AbortController()
      const received: StoreChange[] = []
      if (watcher === 0) await acquire(writer, '1.1.1.1', { previous: '10.5.1.0/24' })
      for await (const batch of store.watch(revision, controller.signal)) {
        if (batch.changes.length === 0) expect([received.length, batch.revision]).toEqual([0, revision])
        received.push(...batch.changes)
        if (received.length > 0) break
      }
      expect(received).toMatchObject([{ kind: 'put', entry: { key: '10.5.1.0-24' } }])
      controller.abort(new Error('received'))
    }
  })

  it('misses no change if the same store is listed during a watch', async () => {
    const bed = makeBed()
    const writer = bed.open()
    const store = bed.open()
    const { revision } = await store.list(signal())
    const changes = changesOf(store, revision, signal())
    const first = changes.next()
    await writer.create('10.5.1.0-24', value('1.1.1.1'), signal())
    expect((await store.list(signal())).entries).toHaveLength(1)
    expect((await first).value).toMatchObject({ changes: [{ kind: 'put', entry: { key: '10.5.1.0-24' } }] })
    await writer.create('10.5.2.0-24', value('2.2.2.2'), signal())
    await store.list(signal())
    expect((await changes.next()).value).toMatchObject({ changes: [{ kind: 'put', entry: { key: '10.5.2.0-24' } }] })
    await changes.return(undefined)
  })

  it.each(['not json', '{"PublicIP":', '{}'])(
    'overwrites an entry without an owner under the key of its earlier run: %s',
    async (text) => {
      const bed = makeBed()
      await bed.put('10.5.7.0-24', text)
      const lease = await acquire(bed.open(), '1.2.3.4', { previous: '10.5.7.0/24', random: () => 0 })
      expect(lease.key).toBe('10.5.7.0-24')
      expect(lease.expiresAt).toBeGreaterThan(Date.now())
      expect((await bed.dump())['10.5.7.0-24']).toBe(value('1.2.3.4'))
    },
  )

  it('does not take a subnet that was not its own and whose value cannot be decoded', async () => {
    const bed = makeBed()
    await bed.put('10.5.1.0-24', 'not json')
    const lease = await acquire(bed.open(), '1.2.3.4', { previous: '10.5.7.0/28', random: () => 0 })
    expect(lease.key).toBe('10.5.2.0-24')
    expect((await bed.dump())['10.5.1.0-24']).toBe('not json')
  })

  it('stops immediately when its signal aborts', async () => {
    const bed = makeBed()
    const store = bed.open()
    const { revision } = await store.list(signal())
    const controller = new AbortController()
    const reason = new Error('stopped')
    stopTime()
    const next = changesOf(store, revision, controller.signal).next() // a fast store may send an empty batch
    controller.abort(reason)
    await expect(next).rejects.toBe(reason)
    await expect(store.list(controller.signal)).rejects.toBe(reason)
  })

  it('limits a junk entry to its own key, and logs it once', async () => {
    const bed = makeBed()
    const store = bed.open()
    const good = await acquire(store, '1.1.1.1')
    await bed.put('x', value('1.1.1.1'))
    await bed.put('10.5.200.0-24', '{"PublicIP":null}')
    const follower = follow(bed.open())
    await follower.until((view) => view.has(good.key))
    await bed.put(good.key, 'not json')
    const other = await acquire(store, '2.2.2.2')
    await follower.until((view) => view.has(other.key))
    expect(follower.view.get(good.key)?.attrs.publicIp.ipv4).toBe(parseIpv4('1.1.1.1'))
    for (const key of ['x', '10.5.200.0-24', good.key]) {
      expect(follower.log.lines.filter((line) => line.startsWith(`Ignoring bad subnet node: ${key}:`))).toHaveLength(1)
    }
  })
})

describe('the etcd store under faults', () => {
  const putAll = (client: Etcd3, prefix: string, keys: readonly string[]) =>
    client.kv.txn({
      compare: [],
      success: keys.map((key) => ({
        request_put: { key: Buffer.from(`${prefix}/subnets/${key}`), value: Buffer.from(value('1.1.1.1')) },
      })),
      failure: [],
    })

  it('delivers a transaction of 128 leases in one batch', async () => {
    const bed = etcdBed()
    const store = bed.open()
    const { revision } = await store.list(signal())
    const client = new Etcd3({ hosts: etcd.endpoint })
    const keys = Array.from({ length: 128 }, (_, index) => `10.5.${index + 1}.0-24`)
    await putAll(client, bed.prefix, keys)
    client.close()
    for await (const batch of changesOf(store, revision, signal())) {
      expect(batch.changes.map((change) => change.kind === 'put' && change.entry.key)).toEqual(keys)
      expect(batch.revision).toBe(revision + 1n)
      break
    }
  })

  it(`misses none of 2,500 revisions if it is cut after each answer, ${LONG ? 'twenty times' : 'once'}`, async () => {
    const bed = etcdBed()
    const store = bed.open()
    let { revision } = await store.list(signal())
    const client = new Etcd3({ hosts: etcd.endpoint })
    const keys = Array.from({ length: 2_500 }, (_, index) => `10.${(index >> 8) + 1}.${index & 255}.0-24`)
    for (let round = 0; round < (LONG ? 20 : 1); round++) {
      for (let at = 0; at < keys.length; at += 100)
        await Promise.all(keys.slice(at, at + 100).map((key) => putAll(client, bed.prefix, [key])))
      const seen = new Set<string>()
      let batches = 0
      const before = proxy.cuts
      while (seen.size < keys.length) {
        try {
          for await (const batch of changesOf(store, revision, signal())) {
            batches++
            for (const change of batch.changes) if (change.kind === 'put') seen.add(change.entry.key)
            revision = batch.revision
            proxy.cut()
          }
        } catch (error) {
          expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE' })
        }
      }
      expect(seen).toEqual(new Set(keys))
      // etcd sends at most 1,000 revisions in one answer to a watcher that is behind, so the connection was cut in between.
      expect(batches).toBeGreaterThan(1)
      expect(proxy.cuts).toBeGreaterThan(before)
    }
    client.close()
  }, 300_000)

  it('reaches the right values when 1% of the leases change each second and its connection is cut now and then', async () => {
    const [leases, seconds] = LONG ? [10_000, 180] : [2_000, 4]
    const bed = etcdBed()
    const client = new Etcd3({ hosts: etcd.endpoint })
    const now = new Map<string, string>()
    const key = (index: number): string => `10.${(index >> 8) + 1}.${index & 255}.0-24`
    const full = (name: string): Buffer => Buffer.from(`${bed.prefix}/subnets/${name}`)
    /** Puts the leases with an address and deletes the others, in one transaction. */
    const write = async (changes: readonly (readonly [string, string | undefined])[]): Promise<void> => {
      for (const [name, ip] of changes) {
        if (ip === undefined) now.delete(name)
        else now.set(name, ip)
      }
      const success = changes.map(([name, ip]) =>
        ip === undefined
          ? { request_delete_range: { key: full(name) } }
          : { request_put: { key: full(name), value: Buffer.from(value(ip)) } },
      )
      await client.kv.txn({ compare: [], success, failure: [] })
    }
    for (let at = 0; at < leases; at += 100)
      await write(Array.from({ length: 100 }, (_, index) => [key(at + index), '1.1.1.1']))
    const follower = follow(bed.open())
    await follower.until((view) => view.size === leases)
    const cutsBefore = proxy.cuts
    const began = performance.now()
    const TICKS = 10
    for (let tick = 0; tick < seconds * TICKS; tick++) {
      const part = Array.from({ length: leases / 100 / TICKS }, (_, index) => key((tick * 7919 + index) % leases))
      // In every fourth round leases are deleted or put again; in the other rounds they get another address.
      await write(part.map((name) => [name, tick % 4 === 0 && now.has(name) ? undefined : `2.2.2.${tick % 250}`]))
      if (tick % 25 === 24) proxy.cut()
      await delay(began + ((tick + 1) * 1000) / TICKS - performance.now())
    }
    const has = (view: PeerView): boolean =>
      view.size === now.size && [...now].every(([name, ip]) => view.get(name)?.attrs.publicIp.ipv4 === parseIpv4(ip))
    await follower.until(has)
    client.close()
    expect(now.size).toBeLessThan(leases)
    expect(proxy.cuts).toBeGreaterThan(cutsBefore)
  }, 300_000)

  it('holds 60,000 leases', async () => {
    const bed = etcdBed()
    const client = new Etcd3({ hosts: etcd.endpoint })
    const keys = Array.from({ length: 60_000 }, (_, index) => `10.${index >> 8}.${index & 255}.0-24`)
    for (let at = 0; at < keys.length; at += 1280) {
      await Promise.all(
        Array.from({ length: 10 }, (_, part) => keys.slice(at + part * 128, at + part * 128 + 128))
          .filter((some) => some.length > 0)
          .map((some) => putAll(client, bed.prefix, some)),
      )
    }
    client.close()
    const wide = parseNetworkConfig('{"Network":"10.0.0.0/8"}')
    const follower = follow(bed.open())
    const started = performance.now()
    await follower.until((view) => view.size === keys.length)
    process.stdout.write(`  60,000 leases are known after ${Math.round(performance.now() - started)} ms\n`)
    const store = bed.open()
    const options = { random: Math.random, log: quiet(), signal: signal() }
    // The call is repeated, as in the daemon, while the store takes too long for a listing.
    const lease = await eventually(() => acquireLease(store, wide, attrs('2.2.2.2'), options))
    await follower.until((view) => view.has(lease.key))
    expect(keys).not.toContain(lease.key)
  })

  it('continues after its connections were cut, including the changes meanwhile', async () => {
    const bed = etcdBed()
    await bed.put('10.5.1.0-24', value('1.1.1.1'))
    const follower = follow(bed.open())
    await follower.until((view) => view.size === 1)
    const before = proxy.cuts
    proxy.refuse(true)
    proxy.cut()
    expect(proxy.cuts).toBeGreaterThan(before)
    await bed.put('10.5.2.0-24', value('2.2.2.2'))
    await bed.remove('10.5.1.0-24')
    proxy.refuse(false)
    await follower.until((view) => view.size === 1 && view.has('10.5.2.0-24'))
  })

  it('lists again if its revision was compacted away', async () => {
    const bed = etcdBed()
    await bed.put('10.5.1.0-24', value('1.1.1.1'))
    const store = bed.open()
    const { revision } = await store.list(signal())
    await bed.remove('10.5.1.0-24')
    await bed.put('10.5.2.0-24', value('2.2.2.2'))
    const { header } = JSON.parse(await etcd.ctl('get', 'x', '-w', 'json')) as { header: { revision: number } }
    await etcd.ctl('compact', String(header.revision))
    const watch = async (): Promise<void> => {
      for await (const _ of changesOf(store, revision, signal())) expect.unreachable('the history is gone')
    }
    await expect(watch()).rejects.toMatchObject({ code: 'GAP' })
    await follow(store).until((view) => view.size === 1 && view.has('10.5.2.0-24'))
  })

  it('learns of all changes between its listing and a delayed watch', async () => {
    const bed = etcdBed()
    const troubled = await startTroubledEtcd(etcd.endpoint)
    try {
      const store = bed.open(troubled.endpoint)
      const keys = Array.from({ length: 100 }, (_, index) => `10.5.${index}.0-24`)
      await bed.put('10.6.0.0-24', value('1.1.1.1'))
      const { revision } = await store.list(signal())
      troubled.set({ hold: true })
      const batches = store.watch(revision, signal())[Symbol.asyncIterator]()
      const first = batches.next()
      await eventually(() => expect(troubled.strikes.held).toBeGreaterThan(0))
      const client = new Etcd3({ hosts: etcd.endpoint })
      for (const key of keys) await putAll(client, bed.prefix, [key])
      client.close()
      await bed.remove('10.6.0.0-24')
      troubled.set({})
      const changes: StoreChange[] = []
      for (let batch = await first; ; batch = await batches.next()) {
        changes.push(...(batch.value as { changes: StoreChange[] }).changes)
        if (changes.length > keys.length) break
      }
      await batches.return?.()
      expect(changes.map((change) => (change.kind === 'put' ? change.entry.key : `not ${change.key}`))).toEqual([
        ...keys,
        'not 10.6.0.0-24',
      ])
    } finally {
      await troubled.close()
    }
  })

  it('reaches the right values if the changes during a disconnection were compacted away', async () => {
    const bed = etcdBed()
    for (const last of [1, 2, 3, 4, 5, 6]) await bed.put(`10.5.${last}.0-24`, value(`1.1.1.${last}`))
    const follower = follow(bed.open())
    await follower.until((view) => view.size === 6)
    proxy.refuse(true)
    proxy.cut()
    await bed.put('10.5.1.0-24', value('9.9.9.1')) // another address
    await bed.remove('10.5.2.0-24')
    await bed.put('10.5.2.0-24', value('9.9.9.2')) // another host
    await bed.remove('10.5.3.0-24')
    await bed.put('10.5.4.0-24', value('1.1.1.4')) // renewed
    await bed.put('10.5.7.0-24', value('9.9.9.7'))
    const { header } = JSON.parse(await etcd.ctl('get', 'x', '-w', 'json')) as { header: { revision: number } }
    await etcd.ctl('compact', String(header.revision))
    proxy.refuse(false)
    const expected = new Map([
      ...([4, 5, 6] as const).map((last) => [`10.5.${last}.0-24`, `1.1.1.${last}`] as const),
      ...([1, 2, 7] as const).map((last) => [`10.5.${last}.0-24`, `9.9.9.${last}`] as const),
    ])
    await follower.until(
      (view) =>
        view.size === expected.size &&
        [...expected].every(([key, ip]) => view.get(key)?.attrs.publicIp.ipv4 === parseIpv4(ip)),
    )
    expect(follower.listings).toBe(2)
  })

  it('follows a restored snapshot, which reuses revisions', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'weft-snapshot-'))
    folders.push(folder)
    const own = await startEtcd()
    // The restart raises the raft term above the one of a restored snapshot. The lower term is the only sign for a watch that resumes at
    // the same revision. If the terms were equal too, the listing every minute would find the restore.
    await own.kill()
    await own.start()
    const way = await startCuttingProxy(own.endpoint)
    const put = (last: number, ip: string): Promise<string> => own.ctl('put', `/x/subnets/10.5.${last}.0-24`, value(ip))
    const store = new EtcdStore({
      endpoints: [`http://127.0.0.1:${way.port}`],
      prefix: '/x',
      certFile: '',
      keyFile: '',
      caFile: '',
      username: '',
      password: new Secret(''),
    })
    stores.push(store)
    try {
      for (const last of [1, 2, 3, 4]) await put(last, `1.1.1.${last}`)
      await own.ctl('snapshot', 'save', join(folder, 'snapshot'))
      await own.ctl('del', '/x/subnets/10.5.1.0-24')
      await put(2, '9.9.9.2')
      await put(5, '1.1.1.5')
      const follower = follow(store)
      await follower.until((view) => view.size === 4 && view.has('10.5.5.0-24'))
      way.refuse(true)
      await own.restore(join(folder, 'snapshot'))
      // Writes as often as writes were lost, so the revision is the known one again.
      for (const times of [1, 2, 3]) await put(6, `1.1.1.${times}`)
      way.refuse(false)
      const address = (view: PeerView, last: number) => view.get(`10.5.${last}.0-24`)?.attrs.publicIp.ipv4
      await follower.until(
        (view) =>
          [...view.keys()].toSorted().join() === [1, 2, 3, 4, 6].map((last) => `10.5.${last}.0-24`).join() &&
          address(view, 2) === parseIpv4('1.1.1.2') &&
          address(view, 6) === parseIpv4('1.1.1.3'),
      )
      expect(follower.listings).toBe(2)
    } finally {
      await way.close()
      await own.close()
    }
  })

  it('limits a value of 1 MB and one that is not text to their keys, and ignores a neighbouring prefix', async () => {
    const bed = etcdBed()
    const follower = follow(bed.open())
    await bed.put('10.5.1.0-24', value('1.1.1.1'))
    const client = new Etcd3({ hosts: etcd.endpoint })
    const put = (key: string, bytes: Buffer): Promise<unknown> =>
      client.kv.put({ key: Buffer.from(`${bed.prefix}/${key}`), value: bytes })
    await put('subnets/10.5.2.0-24', Buffer.alloc(1 << 20, 'x'))
    await put('subnets/10.5.3.0-24', Buffer.from([0x22, 0xff, 0xfe, 0x22]))
    await put('subnets-old/10.5.4.0-24', Buffer.from(value('4.4.4.4')))
    await put('subnets', Buffer.from(value('4.4.4.4')))
    await put('subnets/', Buffer.from(value('4.4.4.4')))
    client.close()
    await bed.put('10.5.5.0-24', value('5.5.5.5'))
    await follower.until((view) => view.has('10.5.5.0-24'))
    expect([...follower.view.keys()].toSorted()).toEqual(['10.5.1.0-24', '10.5.5.0-24'])
    const named = follower.log.lines.filter((line) => line.startsWith('Ignoring bad subnet node'))
    expect(named).toHaveLength(3)
    expect(Math.max(...named.map((line) => line.length))).toBeLessThan(300)
  })

  it('continues after etcd was killed and restarted', async () => {
    const bed = etcdBed()
    await bed.put('10.5.1.0-24', value('1.1.1.1'))
    const follower = follow(bed.open())
    await follower.until((view) => view.size === 1)
    await etcd.kill()
    await etcd.start()
    await bed.put('10.5.2.0-24', value('2.2.2.2'))
    await follower.until((view) => view.size === 2)
    expect(follower.view.has('10.5.1.0-24')).toBe(true)
  })

  it('explains in plain words why etcd does not answer, and which scheme may be right', async () => {
    const tls = await startEtcd({ tls: true })
    const ask = async (endpoint: string): Promise<string> => {
      const store = new EtcdStore({
        endpoints: [endpoint],
        prefix: '/x',
        certFile: '',
        keyFile: '',
        caFile: '',
        username: '',
        password: new Secret(''),
      })
      stores.push(store)
      return store.list(signal()).then(() => 'it answers', describeError)
    }
    try {
      const port = new URL(etcd.endpoint).host
      expect(await ask(`https://${port}`)).toMatch(
        /^no TLS connection to etcd at https:[^ ]*: [^;]*; what answers there does not speak TLS.* say http in --etcd-endpoints$/,
      )
      expect(await ask(tls.endpoint.replace('https:', 'http:'))).toMatch(
        / cannot be reached: .*; .* say https in --etcd-endpoints/,
      )
      expect(await ask('http://127.0.0.1:1')).toBe(
        'etcd at http://127.0.0.1:1 cannot be reached: connect ECONNREFUSED 127.0.0.1:1; check --etcd-endpoints, and that etcd runs',
      )
    } finally {
      await tls.close()
    }
  })

  it('reports that etcd is unavailable, where, and what to do', async () => {
    const dead = `http://${await ownPlace()}`
    const store = new EtcdStore({
      endpoints: [dead],
      prefix: '/x',
      certFile: '',
      keyFile: '',
      caFile: '',
      username: 'someone',
      password: new Secret('sesame'),
    })
    stores.push(store)
    const error = await store.config(signal()).catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: expect.stringContaining(dead),
      remedy: expect.stringContaining('--etcd-endpoints'),
    })
    expect(JSON.stringify(error) + (error as Error).message).not.toContain('sesame')
  })

  it('reports the cause on every call', async () => {
    const store = new EtcdStore({
      endpoints: [`http://${await ownPlace()}`],
      prefix: '/x',
      certFile: '',
      keyFile: '',
      caFile: '',
      username: '',
      password: new Secret(''),
    })
    stores.push(store)
    for (let times = 0; times < 4; times++) await expect(store.config(signal())).rejects.toThrow('ECONNREFUSED')
  })
})

describe('access to the etcd store', () => {
  const open = (server: Etcd, more: Partial<ConstructorParameters<typeof EtcdStore>[0]> = {}): Store => {
    const store = new EtcdStore({
      endpoints: [server.endpoint],
      prefix: '/x',
      certFile: '',
      keyFile: '',
      caFile: '',
      username: '',
      password: new Secret(''),
      ...more,
    })
    stores.push(store)
    return store
  }

  it('accepts endpoints in the usual spellings, and skips a dead one', async () => {
    const store = open(etcd, { endpoints: [`http://${await ownPlace()}/`, ` ${etcd.endpoint}/ `] })
    for (let times = 0; times < 5; times++)
      await expect(store.config(signal())).rejects.toMatchObject({ code: 'CONFIG_MISSING' })
    expect(() => open(etcd, { endpoints: [''] })).toThrow(
      expect.objectContaining({ code: 'USAGE', remedy: expect.stringContaining('--etcd-endpoints') }),
    )
  })

  it('speaks TLS with https endpoints, whatever the scheme of the others', async () => {
    const server = await startEtcd({ tls: true })
    try {
      const caFile = server.certificate
      for (const each of [etcd, server]) await each.ctl('put', '/x/config', CONFIG)
      const dead = await ownPlace()
      // Each endpoint in turn is the only one that can answer.
      for (const endpoints of [
        [`http://${dead}`, server.endpoint],
        [`https://${dead}`, etcd.endpoint],
      ]) {
        const store = open(etcd, { endpoints, caFile })
        expect(await store.config(signal())).toBe(CONFIG)
        const { revision } = await store.list(signal())
        const controller = new AbortController()
        const watch = store.watch(revision, controller.signal)[Symbol.asyncIterator]()
        expect((await watch.next()).done).toBe(false)
        controller.abort(new Error('enough'))
      }
      // Without a scheme the certificates decide.
      const bare = (each: Etcd): string[] => [each.endpoint.replace(/^https?:\/\//, '')]
      expect(await open(server, { endpoints: bare(server), caFile }).config(signal())).toBe(CONFIG)
      expect(await open(etcd, { endpoints: bare(etcd) }).config(signal())).toBe(CONFIG)
    } finally {
      await etcd.ctl('del', '/x/config')
      await server.close()
    }
  })

  it('speaks plaintext with an http endpoint although certificates are given, and logs that once', async () => {
    const other = await startEtcd({ tls: true })
    try {
      const log = quiet()
      await expect(open(etcd, { caFile: other.certificate, log }).config(signal())).rejects.toMatchObject({
        code: 'CONFIG_MISSING',
      })
      expect(log.lines).toEqual([expect.stringContaining('is contacted without TLS')])
    } finally {
      await other.close()
    }
  })

  it.each([{ certFile: '/nowhere/cert.pem' }, { keyFile: '/nowhere/key.pem' }])(
    'works without half of a client certificate, %j, and logs that once',
    async (half) => {
      const server = await startEtcd({ tls: true })
      try {
        await server.ctl('put', '/x/config', CONFIG)
        const log = quiet()
        expect(await open(server, { caFile: server.certificate, log, ...half }).config(signal())).toBe(CONFIG)
        expect(log.lines).toEqual([expect.stringMatching(/--etcd-certfile and --etcd-keyfile/)])
      } finally {
        await server.close()
      }
    },
  )

  it.each(['grpc_proxy', 'https_proxy', 'http_proxy'])(
    'connects to etcd directly whatever %s says, also for a token',
    async (name) => {
      const server = await startEtcd()
      try {
        await server.ctl('user', 'add', 'root:sesame')
        await server.ctl('user', 'grant-role', 'root', 'root')
        await server.ctl('auth', 'enable')
        vi.stubEnv(name, `http://${await ownPlace()}`)
        const { revision } = await open(server, { username: 'root', password: new Secret('sesame') }).list(signal())
        expect(revision).toBeGreaterThan(0n)
      } finally {
        vi.unstubAllEnvs()
        await server.close()
      }
    },
  )

  it('opens watches without an error although some endpoints are dead', async () => {
    const dead = await Promise.all([1, 2, 3].map(async () => `http://${await ownPlace()}`))
    const store = open(etcd, { endpoints: [...dead, etcd.endpoint] })
    for (let times = 0; times < 12; times++) {
      const { revision } = await open(etcd).list(signal())
      const ending = new AbortController()
      const watch = changesOf(store, revision, ending.signal)
      const put = etcd.ctl('put', '/x/subnets/10.5.7.0-24', String(times))
      expect((await watch.next()).value).toMatchObject({ changes: [{ kind: 'put', entry: { value: String(times) } }] })
      await put
      ending.abort(new Error('enough'))
      await expect(watch.next()).rejects.toThrow('enough')
    }
    const none = open(etcd, { endpoints: dead })
    await expect(none.watch(1n, signal())[Symbol.asyncIterator]().next()).rejects.toThrow('ECONNREFUSED')
  })

  it('ends a call to a silent server as soon as its signal aborts', async () => {
    const silent = createServer((socket) => void socket.on('error', () => {}))
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve))
    const store = open(etcd, { endpoints: [`http://127.0.0.1:${(silent.address() as AddressInfo).port}`] })
    const reason = new Error('stopped')
    const controller = new AbortController()
    const connected = new Promise((resolve) => silent.once('connection', resolve))
    stopTime()
    const asked = store.config(controller.signal).catch((thrown: unknown) => thrown)
    await connected
    controller.abort(reason)
    expect(await asked).toBe(reason)
    silent.close()
  })

  it('speaks TLS with only the authority, and reports what is missing', async () => {
    const server = await startEtcd({ tls: true })
    try {
      await server.ctl('put', '/x/config', CONFIG)
      expect(await open(server, { caFile: server.certificate }).config(signal())).toBe(CONFIG)
      await expect(open(server).config(signal())).rejects.toMatchObject({
        code: 'STORE_UNAVAILABLE',
        remedy: expect.stringContaining('--etcd-cafile'),
      })
    } finally {
      await server.close()
    }
    expect(() => open(etcd, { caFile: '/nowhere/ca.pem' })).toThrow(
      expect.objectContaining({ code: 'USAGE', remedy: expect.stringContaining('--etcd-cafile') }),
    )
    expect(() => open(etcd, { certFile: '/nowhere/cert.pem', keyFile: '/nowhere/key.pem' })).toThrow(
      expect.objectContaining({ code: 'USAGE', remedy: expect.stringContaining('--etcd-keyfile') }),
    )
  })

  it('uses certificates that are renewed on disk, without a restart', async () => {
    const [server, other] = await Promise.all([startEtcd({ tls: true }), startEtcd({ tls: true })])
    const folder = mkdtempSync(join(tmpdir(), 'weft-tls-'))
    folders.push(folder)
    const caFile = join(folder, 'ca.pem')
    try {
      await server.ctl('put', '/x/config', CONFIG)
      copyFileSync(other.certificate, caFile)
      const store = open(server, { caFile })
      await expect(store.config(signal())).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
      writeFileSync(caFile, 'half a file') // the file is half written
      await expect(store.config(signal())).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
      copyFileSync(server.certificate, caFile)
      expect(await store.config(signal())).toBe(CONFIG)
    } finally {
      await Promise.all([server.close(), other.close()])
    }
  })

  it('does not call a closed endpoint after certificates were renewed', async () => {
    const servers = await Promise.all([startEtcd({ tls: true }), startEtcd({ tls: true })])
    const folder = mkdtempSync(join(tmpdir(), 'weft-tls-'))
    folders.push(folder)
    const caFile = join(folder, 'ca.pem')
    const authorities = servers.map(({ certificate }) => readFileSync(certificate, 'utf8')).join('')
    try {
      for (const each of servers) await each.ctl('put', '/x/config', CONFIG)
      writeFileSync(caFile, authorities)
      const store = open(servers[0], { caFile, endpoints: servers.map(({ endpoint }) => endpoint) })
      for (let renewals = 1; renewals <= 3; renewals++) {
        for (let calls = 0; calls < 2; calls++) expect(await store.config(signal())).toBe(CONFIG)
        writeFileSync(caFile, authorities)
        utimesSync(caFile, 0, renewals)
      }
    } finally {
      await Promise.all(servers.map((each) => each.close()))
    }
  })

  it('works anonymously while etcd has no users, logs that once, and authenticates as soon as etcd has users', async () => {
    const server = await startEtcd()
    try {
      const log = quiet()
      const store = open(server, { username: 'root', password: new Secret('sesame'), log })
      const asked = [store.config(signal()), store.list(signal()), store.claim('1.1.1.1', 'me', signal())] as const
      await expect(asked[0]).rejects.toMatchObject({ code: 'CONFIG_MISSING' })
      expect((await asked[1]).entries).toEqual([])
      await asked[2]
      expect(log.lines).toEqual([expect.stringContaining('etcd has no users')])
      await server.ctl('user', 'add', 'root:sesame')
      await server.ctl('user', 'grant-role', 'root', 'root')
      await server.ctl('auth', 'enable')
      expect((await store.list(signal())).entries).toEqual([])
      expect(log.lines).toHaveLength(1)
    } finally {
      await server.close()
    }
  })

  it('works with a user, and explains what is wrong with another', async () => {
    const server = await startEtcd()
    try {
      await server.ctl('user', 'add', 'root:sesame')
      await server.ctl('user', 'grant-role', 'root', 'root')
      await server.ctl('user', 'add', 'guest:open')
      await server.ctl('auth', 'enable')
      const store = open(server, { username: 'root', password: new Secret('sesame') })
      const lease = await acquire(store, '1.1.1.1')
      const follower = follow(store)
      await follower.until((view) => view.has(lease.key))
      for (const [username, password] of [
        ['root', 'sesame?'],
        ['guest', 'open'],
        ['', ''],
      ] as const) {
        const error = (await open(server, { username, password: new Secret(password) })
          .list(signal())
          .catch((thrown: unknown) => thrown)) as Error
        expect(error, error.message).toMatchObject({
          code: 'STORE',
          remedy: expect.stringContaining('--etcd-username'),
        })
        if (password !== '') expect(error.message).not.toContain(password)
      }
      // etcd keeps simple tokens in memory. After its restart the old token is unknown, and weftd must request another.
      await server.kill()
      await server.start()
      const writer = open(server, { username: 'root', password: new Secret('sesame') })
      await writer.create('10.5.250.0-24', value('2.2.2.2'), signal())
      await follower.until((view) => view.has('10.5.250.0-24'))
      await renewLease(store, lease, { signal: signal() })
    } finally {
      await server.close()
    }
  })
})

/** Returns the number of etcd leases, whoever owns them. */
const leasesIn = async (server: Etcd, ...user: string[]): Promise<number> =>
  Number(/found (\d+) leases/.exec(await server.ctl('lease', 'list', ...user))![1])

describe('an etcd without space', () => {
  it("keeps a node's lease, explains what to do, leaves no etcd lease behind, and writes again as soon as it can", async () => {
    const server = await startEtcd({ flags: ['--quota-backend-bytes', String(1 << 20)] })
    const way = await startTroubledEtcd(server.endpoint)
    try {
      const ttlMs = 60_000
      const files = { certFile: '', keyFile: '', caFile: '', username: '', password: new Secret('') }
      const store = new EtcdStore({ endpoints: [way.endpoint], prefix: '/x', ttlMs, ...files })
      stores.push(store)
      const first = await acquire(store, '1.1.1.1')
      // The answer to the write is lost, so weftd must not revoke the etcd lease of that key.
      way.set({ loseMethod: 'Txn' })
      await expect(renewLease(store, first, { signal: signal() })).rejects.toThrow('busy')
      way.set({})
      const lease = { ...first, revision: (await store.list(signal())).entries[0]!.revision }
      expect(lease.revision).toBeGreaterThan(first.revision)
      const reserved = '10.5.250.0-24'
      await server.ctl('put', `/x/subnets/${reserved}`, value('2.2.2.2'))
      // The write that exceeds the quota is answered before the alarm has reached all members.
      const blow = () => server.ctl('put', '/elsewhere', 'x'.repeat(100_000))
      await eventually(() => expect(blow()).rejects.toThrow('database space exceeded'))
      await eventually(async () => expect(await server.ctl('alarm', 'list')).toContain('NOSPACE'))
      const timeLeft = async (): Promise<number> => {
        const entry = await server.ctl('get', `/x/subnets/${lease.key}`, '-w', 'json')
        const id = BigInt(/"lease":(\d+)/.exec(entry)![1]!).toString(16)
        return Number(/remaining\((\d+)s\)/.exec(await server.ctl('lease', 'timetolive', id))![1])
      }
      await eventually(async () => expect(await timeLeft()).toBeLessThan(ttlMs / 1000 - 4))

      const before = Date.now()
      const renewed = await renewLease(store, first, { signal: signal() })
      expect(renewed).toMatchObject({
        key: lease.key,
        revision: lease.revision,
        unwritten: expect.stringMatching(/is full: .*compact and defragment .*--quota-backend-bytes.*alarm disarm/),
      })
      expect(renewed.expiresAt).toBeGreaterThanOrEqual(before + ttlMs)
      // timeLeft has whole seconds, and each query may take one. Without the renewal three more would be missing.
      const left = await timeLeft()
      expect(left).toBeGreaterThanOrEqual((ttlMs - (Date.now() - before)) / 1000 - 1)
      // A restarted node finds its own lease, or its reservation.
      expect(await acquire(store, '1.1.1.1')).toMatchObject({ key: lease.key, unwritten: expect.any(String) })
      expect(await acquire(store, '2.2.2.2')).toMatchObject({
        key: reserved,
        expiresAt: undefined,
        unwritten: expect.any(String),
      })
      // Every call that has to write is refused.
      const refused = { code: 'STORE_UNAVAILABLE', remedy: expect.stringContaining('alarm disarm') }
      for (let times = 0; times < 10; times++) {
        await expect(acquire(store, '3.3.3.3')).rejects.toMatchObject(refused)
        await expect(store.claim('1.1.1.1', 'me', signal())).rejects.toMatchObject(refused)
        const moved = renewLease(store, lease, { attrs: attrs('4.4.4.4'), signal: signal() })
        await expect(moved).rejects.toMatchObject(refused)
      }
      // One etcd lease is from the first write, the other one is in use.
      expect(await leasesIn(server)).toBe(2)

      await server.ctl('del', '/elsewhere')
      const { header } = JSON.parse(await server.ctl('get', 'x', '-w', 'json')) as { header: { revision: number } }
      await server.ctl('compact', String(header.revision))
      await server.ctl('defrag')
      await server.ctl('alarm', 'disarm')
      const written = await renewLease(store, renewed, { signal: signal() })
      expect(written.revision).toBeGreaterThan(lease.revision)
      expect(written.unwritten).toBeUndefined()

      // A deleted lease is lost, whether etcd has space or not.
      await eventually(() => expect(blow()).rejects.toThrow('database space exceeded'))
      await server.ctl('del', `/x/subnets/${lease.key}`)
      await expect(renewLease(store, written, { signal: signal() })).rejects.toMatchObject({ code: 'LEASE_LOST' })
    } finally {
      await way.close()
      await server.close()
    }
  })
})

describe('etcd leases without a key', () => {
  it('are revoked if a write is denied', async () => {
    const server = await startEtcd()
    try {
      await server.ctl('user', 'add', 'root:sesame')
      await server.ctl('user', 'grant-role', 'root', 'root')
      await server.ctl('role', 'add', 'reader')
      await server.ctl('role', 'grant-permission', 'reader', '--prefix=true', 'read', '/x')
      await server.ctl('user', 'add', 'guest:open')
      await server.ctl('user', 'grant-role', 'guest', 'reader')
      await server.ctl('auth', 'enable')
      const files = { certFile: '', keyFile: '', caFile: '' }
      const user = { username: 'guest', password: new Secret('open') }
      const store = new EtcdStore({ endpoints: [server.endpoint], prefix: '/x', ...files, ...user })
      stores.push(store)
      for (let times = 0; times < 3; times++) {
        await expect(store.claim('1.1.1.1', 'me', signal())).rejects.toMatchObject({ code: 'STORE' })
        await expect(store.create('10.5.1.0-24', value('1.1.1.1'), signal())).rejects.toMatchObject({ code: 'STORE' })
      }
      expect(await leasesIn(server, '--user=root:sesame')).toBe(0)
    } finally {
      await server.close()
    }
  })

  it('are reused by the next attempt if the result of a write is unknown', async () => {
    const server = await startEtcd()
    const way = await startTroubledEtcd(server.endpoint)
    try {
      const files = { certFile: '', keyFile: '', caFile: '', username: '', password: new Secret('') }
      const store = new EtcdStore({ endpoints: [way.endpoint], prefix: '/x', ...files })
      stores.push(store)
      way.set({ failMethod: 'Txn' })
      const create = () => store.create('10.5.1.0-24', value('1.1.1.1'), signal())
      for (let times = 0; times < 3; times++)
        await expect(create()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
      way.set({ failMethod: 'Put' })
      for (let times = 0; times < 3; times++)
        await expect(store.claim('1.1.1.1', 'me', signal())).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
      expect(way.strikes.failed).toBeGreaterThanOrEqual(6)
      expect(await leasesIn(server)).toBe(2)
      way.set({})
      expect((await create())?.expiresAt).toBeGreaterThan(Date.now())
      await store.claim('1.1.1.1', 'me', signal())
      expect(await leasesIn(server)).toBe(2)
      // If all answers to a grant are lost, repeated calls still leave one lease, because the next attempt knows its id.
      way.set({ loseMethod: 'LeaseGrant' })
      const createThird = () => store.create('10.5.3.0-24', value('1.1.1.1'), signal())
      await expect(createThird()).rejects.toThrow('cannot be reached')
      expect(await leasesIn(server)).toBe(3)
      expect(await createThird()).toBeDefined()
      expect(await leasesIn(server)).toBe(3)
      way.set({ failMethod: 'LeaseGrant' })
      await expect(store.create('10.5.4.0-24', value('1.1.1.1'), signal())).rejects.toThrow('cannot be reached')
      way.set({})
      expect(await store.create('10.5.3.0-24', value('2.2.2.2'), signal())).toBeUndefined()
      expect(await store.create('10.5.4.0-24', value('1.1.1.1'), signal())).toBeDefined()
      expect(await store.create('10.5.4.0-24', value('2.2.2.2'), signal())).toBeUndefined()
      expect(await leasesIn(server)).toBe(4)
      // A lease that has expired meanwhile is not an obstacle.
      way.set({ failMethod: 'Txn' })
      await expect(store.create('10.5.2.0-24', value('1.1.1.1'), signal())).rejects.toThrow('cannot be reached')
      for (const [id] of (await server.ctl('lease', 'list')).matchAll(/^[0-9a-f]{16}$/gm))
        await server.ctl('lease', 'revoke', id)
      way.set({})
      expect(await store.create('10.5.2.0-24', value('1.1.1.1'), signal())).toBeDefined()
    } finally {
      await way.close()
      await server.close()
    }
  })

  it('are reused only if they were granted within an hour by the wall clock and by the monotonic clock', async () => {
    const server = await startEtcd()
    const way = await startTroubledEtcd(server.endpoint)
    const [wallNow, monotonicNow] = [Date.now, performance.now.bind(performance)]
    const HOUR_MS = 3_600_000
    try {
      const files = { certFile: '', keyFile: '', caFile: '', username: '', password: new Secret('') }
      const store = new EtcdStore({ endpoints: [way.endpoint], prefix: '/x', ...files })
      stores.push(store)
      let keys = 0
      /** Writes a key with the spare etcd lease of a failed write. Both clocks are set between the two writes. */
      const retryAfter = async (wallMs: number, monotonicMs: number) => {
        const create = () => store.create(`10.5.${keys}.0-24`, value('1.1.1.1'), signal())
        keys++
        way.set({ failMethod: 'Txn' })
        await expect(create()).rejects.toThrow('cannot be reached')
        way.set({})
        const before = await leasesIn(server)
        vi.spyOn(Date, 'now').mockImplementation(() => wallNow() + wallMs)
        vi.spyOn(performance, 'now').mockImplementation(() => monotonicNow() + monotonicMs)
        const { expiresAt } = (await create())!
        const leftMs = expiresAt! - Date.now()
        vi.restoreAllMocks()
        return { isReused: (await leasesIn(server)) === before, leftHours: Math.round((10 * leftMs) / HOUR_MS) / 10 }
      }
      expect(await retryAfter(HOUR_MS / 2, HOUR_MS / 2)).toEqual({ isReused: true, leftHours: 23.5 })
      expect(await retryAfter(0, HOUR_MS / 2)).toEqual({ isReused: true, leftHours: 23.5 })
      expect(await retryAfter(HOUR_MS / 2, 0)).toEqual({ isReused: true, leftHours: 23.5 }) // the host was suspended
      expect(await retryAfter(0, 2 * HOUR_MS)).toEqual({ isReused: false, leftHours: 24 })
      expect(await retryAfter(-6 * HOUR_MS, 0)).toEqual({ isReused: false, leftHours: 24 })
    } finally {
      vi.restoreAllMocks()
      await way.close()
      await server.close()
    }
  })
})

describe('the directory store under faults', () => {
  it('notices on its own that a lease has expired, and gives its subnet out again', async () => {
    const { prefix: directory } = directoryBed()
    const open = (): Store => {
      const store = new DirectoryStore({ directory, ttlMs: 600, rescanMs: 100 })
      stores.push(store)
      return store
    }
    const store = open()
    const lease = await acquire(store, '1.1.1.1', { previous: '10.5.7.0/24' })
    const follower = follow(open())
    // The file is rewritten until the store has read it, because on a busy machine the store may look only after the expiry.
    await eventually(() => {
      if (follower.view.has(lease.key)) return
      writeFileSync(join(directory, 'subnets', lease.key), value('1.1.1.1'))
      throw new Error('it is not seen yet')
    })
    await follower.until((view) => view.size === 0)
    expect(readdirSync(join(directory, 'subnets'))).toEqual([lease.key]) // no file event reported it
    expect((await acquire(store, '2.2.2.2', { previous: '10.5.7.0/24' })).key).toBe(lease.key)
  })

  it('finds by a rescan what no file event reports', async () => {
    const bed = directoryBed()
    const store = bed.open()
    const { revision } = await store.list(signal())
    const changes = changesOf(store, revision, signal())
    const first = changes.next()
    await bed.put('10.5.9.0-24', value('9.9.9.9'))
    await first
    // The watched name gets a new inode. inotify keeps watching the old one, as it does when another host writes.
    const subnets = join(bed.prefix, 'subnets')
    renameSync(subnets, `${subnets}.old`)
    mkdirSync(subnets)
    writeFileSync(join(subnets, '10.5.1.0-24'), value('1.1.1.1'))
    const until = async (key: string): Promise<void> => {
      for (;;) {
        const { changes: some } = (await changes.next()).value as { changes: StoreChange[] }
        if (some.some((change) => change.kind === 'put' && change.entry.key === key)) return
      }
    }
    await until('10.5.1.0-24')
    // File events cannot report later writes either.
    writeFileSync(join(subnets, '10.5.2.0-24'), value('2.2.2.2'))
    await until('10.5.2.0-24')
    await changes.return(undefined)
  })

  it('hands out the subnet of an expired lease only once', async () => {
    const bed = directoryBed()
    const old = await acquire(bed.open(), '1.1.1.1', { previous: '10.5.7.0/24' })
    await bed.expire(old.key)
    const results = await Promise.all(
      ['2.2.2.2', '3.3.3.3', '4.4.4.4'].map((ip) => acquire(bed.open(), ip, { previous: '10.5.7.0/24' })),
    )
    expect(results.filter(({ key }) => key === old.key)).toHaveLength(1)
    expect(new Set(results.map(({ key }) => key)).size).toBe(3)
  })

  it('neither renews nor deletes an expired lease, because another node may have one of its subnets', async () => {
    const bed = directoryBed()
    const dual = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}')
    const start = (last: number, ipv6: string) => {
      const publicIp = { ipv4: parseIpv4(`192.0.2.${last}`)!, ipv6: parseIpv6(`fd77::${last}`)! }
      const previous = { ipv4: parseIpv4Net('10.5.7.0/24')!, ipv6: parseIpv6Net(ipv6)! }
      const options = { previous, random: Math.random, log: quiet(), signal: signal() }
      return acquireLease(bed.open(), dual, { publicIp, backendType: '' }, options)
    }
    const acquired = await start(1, 'fd00:5:0:1::/64')
    await bed.expire(acquired.key)
    // Setting the file's time changed the revision. A store in which no lease expires shows the new revision.
    const timeless = new DirectoryStore({ directory: bed.prefix, ttlMs: Infinity })
    stores.push(timeless)
    const [entry] = (await timeless.list(signal())).entries
    const lease = { ...acquired, revision: entry!.revision }
    expect((await start(2, 'fd00:5:0:33::/64')).key).toBe('10.5.7.0-24&fd00:5:0:33::-64')
    expect(Object.keys(await bed.dump())).toContain('10.5.7.0-24&fd00:5:0:1::-64')
    await expect(renewLease(bed.open(), lease, { signal: signal() })).rejects.toMatchObject({ code: 'LEASE_LOST' })
    expect(await bed.open().delete(lease.key, entry!, signal())).toBe(false)
  })

  it('changes nothing while another process holds the lock', async () => {
    const bed = directoryBed()
    const store = bed.open()
    const lease = await acquire(store, '1.1.1.1')
    // A lock belongs to an open file description, so a second one in this process acts like another process.
    const other = await openFile(join(bed.prefix, 'lock'), 'a')
    await addon.lockFile(other.fd)
    let done = 0
    const changes = [
      store.create('10.5.250.0-24', value('2.2.2.2'), signal()),
      store.update(lease.key, value('3.3.3.3'), { ...lease, value: value('1.1.1.1') }, signal()),
    ].map((change) => change.finally(() => done++))
    // /proc/locks shows a waiting lock with an arrow (proc_locks(5)) and the inode of its file.
    const waiting = new RegExp(`-> OFDLCK .*:${(await other.stat()).ino} `)
    await eventually(async () => expect(await readFile('/proc/locks', 'utf8')).toMatch(waiting))
    expect(done).toBe(0)
    expect(await bed.dump()).toEqual({ [lease.key]: value('1.1.1.1') })
    await other.close()
    for (const change of changes) expect(await change).toBeDefined()
    expect(await bed.dump()).toEqual({ [lease.key]: value('3.3.3.3'), '10.5.250.0-24': value('2.2.2.2') })
  })

  it('continues with the other leases if one file cannot be read, and keeps the known value of that lease', async () => {
    const at = directoryBed()
    const reports: string[] = []
    const onUnreadable = (path: string, why: string): void => void reports.push(`${basename(path)}: ${why}`)
    const store = new DirectoryStore({ directory: at.prefix, onUnreadable })
    for (const last of [1, 2]) await at.put(`10.5.${last}.0-24`, value(`192.0.2.${last}`))
    const keys = async (): Promise<string[]> => (await store.list(signal())).entries.map(({ key }) => key)
    expect(await keys()).toEqual(['10.5.1.0-24', '10.5.2.0-24'])
    // A symbolic link to itself cannot be opened by any user, root included (ELOOP).
    await at.remove('10.5.1.0-24')
    symlinkSync('10.5.1.0-24', join(at.prefix, 'subnets/10.5.1.0-24'))
    symlinkSync('10.5.3.0-24', join(at.prefix, 'subnets/10.5.3.0-24'))
    for (let times = 0; times < 2; times++) expect(await keys()).toEqual(['10.5.1.0-24', '10.5.2.0-24'])
    expect(reports).toEqual([
      expect.stringMatching(/^10\.5\.1\.0-24: ELOOP/),
      expect.stringMatching(/^10\.5\.3\.0-24: ELOOP/),
    ])
    await at.remove('10.5.3.0-24')
    await at.put('10.5.3.0-24', value('192.0.2.3'))
    expect(await keys()).toEqual(['10.5.1.0-24', '10.5.2.0-24', '10.5.3.0-24'])
    expect(reports).toHaveLength(2)
    await store.close()
  })

  it('keeps the known value of a file that cannot be read when an event reports a change', async () => {
    const at = directoryBed()
    const store = at.open()
    for (const last of [1, 2]) await at.put(`10.5.${last}.0-24`, value(`192.0.2.${last}`))
    const { revision } = await store.list(signal())
    const controller = new AbortController()
    const changes = store.watch(revision, controller.signal)[Symbol.asyncIterator]()
    expect((await changes.next()).value).toMatchObject({ changes: [] }) // from now on events report changes
    // The rename is atomic, so the file is never missing.
    symlinkSync('10.5.1.0-24', join(at.prefix, 'tmp/link'))
    renameSync(join(at.prefix, 'tmp/link'), join(at.prefix, 'subnets/10.5.1.0-24'))
    await at.put('10.5.3.0-24', value('192.0.2.3'))
    const { value: batch } = (await changes.next()) as { value: StoreBatch }
    expect(batch.changes).toMatchObject([{ kind: 'put', entry: { key: '10.5.3.0-24' } }])
    controller.abort(new Error('enough'))
    await expect(changes.next()).rejects.toThrow('enough')
  })

  it('reports at a renewal that its lease cannot be read', async () => {
    const { prefix: directory } = directoryBed()
    const store = directoryStore(directory)
    const lease = await acquire(store, '1.1.1.1')
    await store.list(signal())
    const path = join(directory, 'subnets', lease.key)
    rmSync(path)
    symlinkSync(path, path) // ELOOP, for root too
    await expect(renewLease(store, lease, { signal: signal() })).rejects.toThrow('ELOOP')
  })

  it('gives a node another subnet if a directory is in the place of its previous lease', async () => {
    const at = directoryBed()
    mkdirSync(join(at.prefix, 'subnets/10.5.7.0-24'))
    const lease = await acquire(at.open(), '1.1.1.1', { previous: '10.5.7.0/24', random: () => 0 })
    expect(lease.key).toBe('10.5.1.0-24')
  })

  it('removes the files of leases that expired long ago, whichever node comes next', async () => {
    const at = directoryBed()
    for (const last of [1, 2]) await at.put(`10.5.${last}.0-24`, value(`192.0.2.${last}`))
    utimesSync(join(at.prefix, 'subnets/10.5.1.0-24'), 0, Date.now() / 1000 - 49 * 3600)
    utimesSync(join(at.prefix, 'subnets/10.5.2.0-24'), 0, Date.now() / 1000 - 25 * 3600)
    await at.put('notes', 'a file of another program')
    utimesSync(join(at.prefix, 'subnets/notes'), 0, Date.now() / 1000 - 49 * 3600)
    const options = { random: () => 0.99, log: quiet(), signal: signal() }
    const lease = await acquireLease(at.open(), config, attrs('192.0.2.9'), options)
    expect(Object.keys(await at.dump()).toSorted()).toEqual(['10.5.2.0-24', 'notes', lease.key].toSorted())
  })

  it('keeps the file of a long expired lease that was taken again after the last listing', async () => {
    const at = directoryBed()
    await at.put('10.5.1.0-24', value('192.0.2.1'))
    utimesSync(join(at.prefix, 'subnets/10.5.1.0-24'), 0, Date.now() / 1000 - 49 * 3600)
    const [first, second] = [at.open(), at.open()]
    await first.list(signal())
    expect(await second.create('10.5.1.0-24', value('192.0.2.1'), signal())).toBeDefined()
    // A node that creates a lease removes the files that had expired at its own last listing.
    expect(await first.create('10.5.2.0-24', value('192.0.2.2'), signal())).toBeDefined()
    expect(Object.keys(await at.dump()).toSorted()).toEqual(['10.5.1.0-24', '10.5.2.0-24'])
  })

  it('keeps every lease complete and with one owner while processes compete for subnets and are killed during writes', async () => {
    const WRITERS = 4
    const KILLED_WRITING = LONG ? 300 : 20
    const { prefix: directory } = directoryBed()
    const subnets = join(directory, 'subnets')
    const program = join(import.meta.dirname, '../../dist/test/support/lease-writer.js')
    const claims: { readonly sign: string; readonly key: string; readonly ip: string; readonly at: bigint }[] = []
    const start = async (ip: string): Promise<ChildProcess> => {
      const child = spawn('setpriv', ['--pdeathsig', 'KILL', process.execPath, program, directory, ip])
      child.stderr.pipe(process.stderr)
      const lines = createInterface({ input: child.stdout })
      lines.on('line', (line) => {
        const [sign = '', key = '', at = '0'] = line.split(' ')
        claims.push({ sign, key, ip, at: BigInt(at) })
      })
      await once(lines, 'line')
      return child
    }
    const address = (index: number): string => `192.0.2.${index + 1}`
    const writers = await Promise.all(Array.from({ length: WRITERS }, (_, index) => start(address(index))))
    const whole = new Set(writers.map((_, index) => value(address(index))))
    let killedWriting = 0
    try {
      for (let kills = 0; killedWriting < KILLED_WRITING || claims.length <= 100; kills++) {
        const index = kills % WRITERS
        const victim = writers[index]!
        const isWriting = (name: string | null): boolean =>
          name !== null && name.includes(`.${victim.pid}.`) && !name.startsWith('clock.')
        const watcher = watchDirectory(join(directory, 'tmp'), (_event, name) => {
          if (isWriting(name)) victim.kill('SIGKILL')
        })
        await once(victim, 'close')
        watcher.close()
        if (readdirSync(join(directory, 'tmp')).some(isWriting)) killedWriting++
        for (const key of readdirSync(subnets)) {
          // A lease that is released while the test reads the directory is missing.
          const text = await readFile(join(subnets, key), 'utf8').catch(() => undefined)
          if (text !== undefined) expect(whole).toContain(text)
        }
        writers[index] = await start(address(index))
      }
    } finally {
      for (const writer of writers) writer.kill('SIGKILL')
      await Promise.all(writers.map(ended))
    }
    const owner = new Map<string, string>()
    const violations: string[] = []
    for (const { sign, key, ip, at } of claims.toSorted((one, other) => Number(one.at - other.at))) {
      const before = owner.get(key)
      if (before !== undefined && before !== ip) violations.push(`${key} of ${before} was given to ${ip} at ${at}`)
      if (sign === '+') owner.set(key, ip)
      else owner.delete(key)
    }
    expect(violations).toEqual([])
    expect(new Set(claims.map(({ key }) => key)).size).toBeLessThanOrEqual(WRITERS)
    // A dead process must not keep the next one waiting.
    expect((await acquire(directoryStore(directory), '192.0.2.9')).key).toMatch(/^10\.5\./)
  }, 1_200_000)

  it('leaves no temporary file behind', async () => {
    const bed = directoryBed()
    const lease = await acquire(bed.open(), '1.1.1.1')
    await renewLease(stores[0]!, lease, { signal: signal() })
    await stores.splice(0)[0]!.close()
    expect(readdirSync(join(folders.at(-1)!, 'tmp'))).toEqual([])
  })

  it('can write although a process of the same name and pid died during a write', async () => {
    const bed = directoryBed()
    const first = bed.open()
    await first.list(signal()) // creates the folders
    const names = new Set<string>()
    const watcher = watchDirectory(join(bed.prefix, 'tmp'), (_event, name) => void names.add(name ?? ''))
    const lease = await acquire(first, '1.1.1.1', { previous: '10.5.7.0/24' })
    await eventually(() => expect([...names].some((name) => name.startsWith(lease.key))).toBe(true))
    watcher.close()
    await bed.remove(lease.key)
    for (const name of names) writeFileSync(join(bed.prefix, 'tmp', name), 'half')
    expect((await acquire(bed.open(), '1.1.1.1', { previous: '10.5.7.0/24' })).key).toBe(lease.key)
    expect(await bed.dump()).toEqual({ [lease.key]: value('1.1.1.1') })
  })

  it('reports what is wrong with a path that is not a directory', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'weft-store-'))
    folders.push(folder)
    writeFileSync(join(folder, 'file'), '')
    const store = new DirectoryStore({ directory: join(folder, 'file') })
    await expect(store.list(signal())).rejects.toMatchObject({
      code: 'STORE',
      remedy: expect.stringContaining('--lease-dir'),
    })
  })
})
