// own-lease.test.ts - acquiring, renewing and giving back above a store of the test's own.

import { describe, expect, it } from 'vitest'
import { EVENT_MS } from '../../../lab/lab.ts'
import { parseNetworkConfig } from '../../../src/config/network-config.ts'
import type { LeaseAttrs } from '../../../src/lease/lease.ts'
import { acquireLease, holderOf } from '../../../src/lease/own-lease.ts'
import { parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'
import type { Store, StoreEntry } from '../../../src/store/store.ts'
import { createMemoryStore } from '../../support/memory-store.ts'

const value = (ip: string): string => `{"PublicIP":"${ip}","PublicIPv6":null}`
const attrs = (ip: string): LeaseAttrs => ({ publicIp: { ipv4: parseIpv4(ip)! }, backendType: '' })
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
    title: 'Etcd Local Manager',
    config: unasked,
    setConfig: unasked,
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

describe('acquiring', () => {
  const options = () => ({ random: () => 0, log: recorder(), signal: AbortSignal.timeout(EVENT_MS) })
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

  it.each([
    ['10.5.3.0-24', '10.5.3.0-24'],
    ['10.5.3.0-24&fc00:0:0:7::-64', '10.5.3.0-24&fc00:0:0:7::-64'],
    ['10.5.3.0-24&fc01::-64', undefined],
    ['10.5.3.0-24&fc00:0:0:7::-66', undefined],
    ['10.5.3.0-25&fc00:0:0:7::-64', undefined],
  ])('with both families keeps its lease %s as %s', async (key, kept) => {
    const both = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/48"}')
    const written: string[] = []
    const deleted: string[] = []
    const store = fakeStore({
      list: async () => ({ revision: 1n, entries: deleted.length > 0 ? [] : [entry(key, value('1.1.1.1'))] }),
      update: async (at) => (written.push(at), { revision: 2n, expiresAt: 1 }),
      delete: async (at) => deleted.push(at) > 0,
      create: async () => ({ revision: 3n, expiresAt: 1 }),
    })
    const lease = await acquireLease(store, both, attrs('1.1.1.1'), options())
    expect({ lease: lease.key, written, deleted }).toEqual(
      kept === undefined
        ? { lease: '10.5.1.0-24', written: [], deleted: [key] }
        : { lease: kept, written: [kept], deleted: [] },
    )
    expect(lease.subnet.ipv6 !== undefined).toBe(kept?.includes('&') ?? false)
  })

  it('is not kept from a subnet by the lease of a node without IPv4, and keeps that', async () => {
    const other = entry('0.0.0.0-0&fc00:0:0:7::-64', '{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::7"}')
    const previous = { ipv4: parseIpv4Net('10.5.7.0/24')! }
    for (const [given, taken] of [
      [{}, '10.5.1.0-24'],
      [{ previous }, '10.5.7.0-24'],
    ] as const) {
      const store = fakeStore({
        list: async () => ({ revision: 1n, entries: [other] }),
        create: async () => ({ revision: 2n, expiresAt: 1 }),
      })
      expect(await acquireLease(store, config, attrs('1.1.1.1'), { ...options(), ...given })).toMatchObject({
        key: taken,
      })
    }
  })

  it('ends, and takes another, when its previous subnet is refused though no listing has it', async () => {
    const tried: string[] = []
    const store = fakeStore({
      list: async () => ({ revision: 1n, entries: [] }),
      create: async (key) => (tried.push(key) > 2 ? { revision: 2n, expiresAt: 1 } : undefined),
    })
    const lease = await acquireLease(store, config, attrs('1.1.1.1'), {
      ...options(),
      previous: { ipv4: parseIpv4Net('10.5.7.0/24')! },
    })
    expect(lease.key).toBe('10.5.2.0-24')
    expect(tried).toEqual(['10.5.7.0-24', '10.5.1.0-24', '10.5.2.0-24'])
  })

  it.each([
    ['10.5.0.0-23', true, '10.5.2.0-24', ['10.5.0.0-23', '10.5.2.0-24']],
    ['10.5.1.128-25', true, '10.5.2.0-24', ['10.5.1.128-25', '10.5.2.0-24']],
    ['10.5.1.0-24&fc00::-64', true, '10.5.2.0-24', ['10.5.1.0-24&fc00::-64', '10.5.2.0-24']],
    ['10.5.0.0-23', false, '10.5.1.0-24', ['10.5.0.0-23', '10.5.1.0-24']],
  ])('of %s, created while it drew its own across it, first: %s, has then %s', async (other, isFirst, key, left) => {
    const store = createMemoryStore()
    const create = store.create.bind(store)
    let races = 1
    const putOther = (): void => void (races-- > 0 && store.put(other, value('9.9.9.9')))
    store.create = async (...args) => {
      if (isFirst) putOther()
      const written = await create(...args)
      putOther()
      return written
    }
    const log = recorder()
    const lease = await acquireLease(store, config, attrs('1.1.1.1'), { ...options(), log })
    expect(lease.key).toBe(key)
    expect(lease.revision).toBe(store.entries.get(key)!.revision)
    expect([...store.entries.keys()].toSorted()).toEqual(left)
    if (isFirst)
      expect(log.lines).toContain(
        `Subnet 10.5.1.0/24 overlaps ${other}, which another node took first; picking another`,
      )
  })

  it('does not take its previous subnet when a lease of another length lies across it', async () => {
    const store = fakeStore({
      list: async () => ({ revision: 1n, entries: [entry('10.5.6.0-23', value('9.9.9.9'))] }),
      create: async () => ({ revision: 2n, expiresAt: 1 }),
    })
    const lease = await acquireLease(store, config, attrs('1.1.1.1'), {
      ...options(),
      previous: { ipv4: parseIpv4Net('10.5.7.0/24')! },
    })
    expect(lease.key).toBe('10.5.1.0-24')
  })

  it('ends though what lies across is seen only once its own is written, wherever it draws', async () => {
    const small = parseNetworkConfig('{"Network":"10.5.0.0/24"}')
    const store = createMemoryStore()
    const [create, list] = [store.create.bind(store), store.list.bind(store)]
    let tries = 0
    store.create = (...args) => {
      if (++tries > 10) throw new Error('it draws for ever')
      return create(...args)
    }
    store.list = async (stop) => {
      const { revision, entries } = await list(stop)
      const across = entries.map(({ key, revision: at }) => entry(key.replace('-26', '-27'), value('9.9.9.9'), at - 1n))
      return { revision, entries: [...entries, ...across] }
    }
    await expect(acquireLease(store, small, attrs('1.1.1.1'), options())).rejects.toMatchObject({
      code: 'OUT_OF_SUBNETS',
    })
    expect([tries, [...store.entries.keys()]]).toEqual([3, []])
  })
})

const KEY = '10.5.1.0-24'
/** A node that holds KEY, and the store. */
async function holding(ip = '1.1.1.1') {
  const store = createMemoryStore()
  const holder = holderOf(store, parseNetworkConfig('{"Network":"10.5.0.0/16"}'))
  const log = recorder()
  const stop = new AbortController().signal
  const lease = await holder.obtain(attrs(ip), { ipv4: parseIpv4Net('10.5.1.0/24') }, log, stop)
  expect(lease.key).toBe(KEY)
  return {
    ...{ store, log, lease },
    renew: (as = attrs(ip)) => holder.renew(lease, as, log, stop),
    release: () => holder.release!(lease, stop),
    /** What another does once, between what is read next and what is written then. */
    meanwhile: (what: () => void) => {
      const list = store.list.bind(store)
      store.list = async (signal) => {
        const listing = await list(signal)
        store.list = list
        what()
        return listing
      }
    },
  }
}

describe('giving a lease back', () => {
  it('takes it from the store', async () => {
    const { store, release } = await holding()
    await release()
    expect([...store.entries]).toEqual([])
    await release()
  })

  it('takes also what was written again meanwhile, by this node', async () => {
    const { store, release, meanwhile } = await holding()
    meanwhile(() => store.put(KEY, value('1.1.1.1')))
    await release()
    expect([...store.entries]).toEqual([])
  })

  it.each<[what: string, text: string, isReservation: boolean]>([
    ['the lease of a node that took the subnet', value('2.2.2.2'), false],
    ['what an operator reserved for it', value('1.1.1.1'), true],
    ['what an operator reserved for another', value('2.2.2.2'), true],
    ['what nobody can read', 'junk', false],
  ])('leaves %s, from before or from the very moment', async (_what, text, isReservation) => {
    for (const isLate of [false, true]) {
      const { store, release, meanwhile } = await holding()
      const put = (): void => store.put(KEY, text, isReservation)
      if (isLate) meanwhile(put)
      else put()
      await release()
      expect(store.entries.get(KEY)).toMatchObject({ value: text, isReservation })
    }
  })
})

describe('renewing', () => {
  it.each<[what: string, text: string, expected: object]>([
    ['junk without an end is a lease that ends', 'junk', { isReservation: false, endless: false }],
    ['its own, made a reservation, stays one', value('1.1.1.1'), { isReservation: true, endless: true }],
    [
      'its own of another type, made a reservation, stays one',
      '{"PublicIP":"1.1.1.1","BackendType":"vxlan"}',
      {
        isReservation: true,
        endless: true,
      },
    ],
  ])('over what an operator put under its key: %s', async (_what, text, expected) => {
    const { store, renew } = await holding()
    store.put(KEY, text, true)
    const { expiresAt } = await renew()
    const { isReservation, value: written } = store.entries.get(KEY)!
    expect({ isReservation, endless: expiresAt === undefined }).toEqual(expected)
    expect(written).toBe(value('1.1.1.1'))
  })

  it.each([
    ['the address that it had', '{"PublicIP":"1.1.1.1","BackendType":"vxlan"}', true],
    ['the address that it has now', '{"PublicIP":"3.3.3.3","BackendType":"vxlan"}', true],
    ['no address', '{}', true],
    ["another's address", '{"PublicIP":"2.2.2.2"}', false],
  ])('with a new address, what stands there with %s is its own: %s', async (_what, text, isOwn) => {
    const { store, renew } = await holding()
    store.put(KEY, text)
    if (isOwn) await renew(attrs('3.3.3.3'))
    else await expect(renew(attrs('3.3.3.3'))).rejects.toMatchObject({ code: 'LEASE_LOST' })
    expect(store.entries.get(KEY)!.value).toBe(isOwn ? value('3.3.3.3') : text)
  })
})
