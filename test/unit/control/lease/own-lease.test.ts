// own-lease.test.ts - acquiring, renewing and releasing a lease in a mock store.

import { describe, expect, it } from 'vitest'
import { EVENT_MS } from '../../../../lab/lab.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { encodeLeaseValue, parseLeaseKey, type LeaseAttrs } from '../../../../src/control/lease/lease.ts'
import { acquireLease, holderOf, type AcquireOptions } from '../../../../src/control/lease/own-lease.ts'
import type { Store, StoreEntry } from '../../../../src/control/store/store.ts'
import { formatAddress, formatNet, netsText, type Address } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { createMemoryStore } from '../../../support/memory-store.ts'

const value = (ip: string): string => `{"PublicIP":"${ip}","PublicIPv6":null}`
const attrs = (ip: string): LeaseAttrs => ({ publicIp: { ipv4: parseIpv4(ip)! }, backendType: '' })
const entry = (key: string, text: string, revision = 1n): StoreEntry => ({
  key,
  value: text,
  revision,
  created: revision,
  isReservation: false,
})

function recorder() {
  const lines: string[] = []
  const add = (line: string): void => void lines.push(line)
  return { lines, info: add, warn: add, error: add, v: () => false }
}

/** A store whose answers the test gives. A call that the test did not define fails. Listings include the keys that were created. */
function fakeStore(parts: Partial<Store>): Store {
  const unasked = () => Promise.reject(new Error('not expected to be called'))
  const made = new Map<string, StoreEntry>()
  const { create = unasked, list = unasked } = parts
  return {
    name: 'etcd',
    title: 'Etcd Local Manager',
    config: unasked,
    setConfig: unasked,
    ends: unasked,
    // oxlint-disable-next-line require-yield
    async *watch() {
      throw new Error('not expected to be called')
    },
    update: unasked,
    delete: unasked,
    claim: unasked,
    claims: unasked,
    unclaim: unasked,
    close: async () => {},
    ...parts,
    async create(key, text, ...rest) {
      const written = await create(key, text, ...rest)
      const revision = written?.revision ?? 0n
      if (written) made.set(key, { key, value: text, revision, created: revision, isReservation: false })
      return written
    },
    async list(signal) {
      const { entries, revision } = await list(signal)
      return {
        revision,
        entries: [...entries, ...[...made.values()].filter(({ key }) => !entries.some((each) => each.key === key))],
      }
    },
  }
}

it('does not take a lease that another node overwrote and deleted before the listing that follows the creation', async () => {
  let creations = 0
  const entries: StoreEntry[] = []
  const store: Store = {
    ...fakeStore({}),
    list: async () => ({ revision: 1n, entries: [...entries] }),
    create: async (key, text) => {
      // The first created key is gone from the listing that follows.
      if (creations++ > 0) entries.push({ key, value: text, revision: 2n, created: 2n, isReservation: false })
      return { revision: 2n, expiresAt: undefined }
    },
  }
  const options = { random: () => 0, log: recorder(), signal: AbortSignal.timeout(EVENT_MS) }
  const lease = await acquireLease(store, parseNetworkConfig('{"Network":"10.5.0.0/16"}'), attrs('192.0.2.1'), options)
  expect(creations).toBe(2)
  expect(entries.map(({ key }) => key)).toEqual([lease.key])
})

describe('acquiring', () => {
  const options = () => ({ random: () => 0, log: recorder(), signal: AbortSignal.timeout(EVENT_MS) })
  const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
  const both = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/48"}')

  it.each([
    ['IPv6', '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48"}', { ipv4: parseIpv4('1.1.1.1')! }],
    ['IPv4', '{"Network":"10.5.0.0/16"}', { ipv6: parseIpv6('fd00::1')! }],
  ])('fails without an address of the only enabled family, %s', async (family, text, publicIp) => {
    const asked = acquireLease(fakeStore({}), parseNetworkConfig(text), { publicIp, backendType: '' }, options())
    await expect(asked).rejects.toMatchObject({
      code: 'CONFIG',
      message: `the network is of ${family}, and this node has no ${family} address`,
      remedy: expect.stringContaining('give the host an address'),
    })
  })

  it.each<[what: string, mine: readonly string[], key: string, left: readonly string[]]>([
    [
      'reuses it if the address was its own, and publishes the new one',
      ['1.1.1.1'],
      '10.5.7.0-24',
      ['10.5.7.0-24', '10.5.8.0-24'],
    ],
    ['does not if the address is of another node', [], '10.5.1.0-24', ['10.5.1.0-24', '10.5.7.0-24', '10.5.8.0-24']],
    [
      'reuses it only for its previous subnet',
      ['8.8.8.8'],
      '10.5.1.0-24',
      ['10.5.1.0-24', '10.5.7.0-24', '10.5.8.0-24'],
    ],
  ])('of a lease under a former address %s', async (_what, mine, key, left) => {
    const store = createMemoryStore()
    store.put('10.5.7.0-24', value('1.1.1.1'))
    store.put('10.5.8.0-24', value('8.8.8.8'))
    const previous = { ipv4: parseIpv4Net('10.5.7.0/24')! }
    const isMine = async (address: Address): Promise<boolean> => mine.includes(formatAddress(address))
    const lease = await acquireLease(store, config, attrs('2.2.2.2'), { ...options(), previous, isMine })
    expect([lease.key, [...store.entries.keys()].toSorted()]).toEqual([key, left])
    expect(store.entries.get(key)?.value).toBe(value('2.2.2.2'))
    if (key !== '10.5.7.0-24') expect(store.entries.get('10.5.7.0-24')?.value).toBe(value('1.1.1.1'))
  })

  it('leaves a lease under a former address to another node that takes it meanwhile', async () => {
    const store = createMemoryStore()
    store.put('10.5.7.0-24', value('1.1.1.1'))
    const previous = { ipv4: parseIpv4Net('10.5.7.0/24')! }
    let isFirst = true
    const isMine = async (): Promise<boolean> => {
      if (isFirst) store.put('10.5.7.0-24', value('3.3.3.3')) // after the listing
      const was = isFirst
      isFirst = false
      return was
    }
    const lease = await acquireLease(store, config, attrs('2.2.2.2'), { ...options(), previous, isMine })
    expect([lease.key, store.entries.get('10.5.7.0-24')?.value]).toEqual(['10.5.1.0-24', value('3.3.3.3')])
  })

  it('lists and draws again if another node was faster', async () => {
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
    ['10.5.3.0-24', undefined],
    ['10.5.3.0-24&fc00:0:0:7::-64', undefined],
    ['10.5.3.0-24&fc01::-64', '10.5.3.0-24'],
    ['10.5.3.0-24&fc00:0:0:7::-66', '10.5.3.0-24'],
    ['10.5.3.0-25&fc00:0:0:7::-64', '10.5.1.0-24'],
  ])(
    'keeps what it can of its lease %s if both families are enabled but it has only an IPv4 address: %s',
    async (key, instead) => {
      const store = createMemoryStore()
      store.put(key, value('1.1.1.1'))
      const lease = await acquireLease(store, both, attrs('1.1.1.1'), options())
      expect([lease.key, ...store.entries.keys()]).toEqual([instead ?? key, instead ?? key])
      expect(lease.subnet).toEqual(parseLeaseKey(instead ?? key))
    },
  )

  it('ignores the lease of an IPv6-only node when it picks an IPv4 subnet', async () => {
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

  it('picks another subnet if the store refuses its previous one, although no listing has it', async () => {
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
  ])(
    'races with the overlapping key %s; the other is first: %s; this node ends with %s',
    async (other, isFirst, key, left) => {
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
    },
  )

  it('does not reuse its previous subnet if a lease of another length overlaps it', async () => {
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

  it('ends with an error if each draw turns out to overlap an earlier key', async () => {
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

describe('a dual-stack lease', () => {
  const both = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}')
  const only4 = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
  const only6 = parseNetworkConfig('{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}')
  const other6 = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:6::/48"}')
  const node = (last: number) => ({
    of4: attrs(`1.1.1.${last}`),
    of6: { publicIp: { ipv6: parseIpv6(`fd00::${last}`)! }, backendType: '' },
    dual: { publicIp: { ipv4: parseIpv4(`1.1.1.${last}`)!, ipv6: parseIpv6(`fd00::${last}`)! }, backendType: '' },
  })
  const me = node(1)
  const dualValue = '{"PublicIP":"1.1.1.1","PublicIPv6":"fd00::1"}'
  const of6Value = '{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::1"}'
  function acquire(store: Store, config: typeof both, as: LeaseAttrs, more: Partial<AcquireOptions> = {}) {
    const log = recorder()
    const options = { random: () => 0, log, signal: AbortSignal.timeout(EVENT_MS), ...more }
    return { log, lease: acquireLease(store, config, as, options) }
  }
  const dump = (store: ReturnType<typeof createMemoryStore>) =>
    Object.fromEntries([...store.entries].map(([key, { value: text }]) => [key, text]))

  it("draws its subnets independently, logs flannel's lines, and has one key with one value", async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24', value('2.2.2.2')) // a lease of one family reserves its subnet in a dual-stack network too
    store.put('10.5.3.0-24&fd00:5:0:1::-64', 'junk')
    store.put('0.0.0.0-0&fd00:5:0:2::-64', '{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::9"}')
    const draws = [1.5 / 100, 0]
    const { log, lease } = acquire(store, both, me.dual, { random: () => draws.shift()! })
    const { key, subnet } = await lease
    expect(key).toBe('10.5.4.0-24&fd00:5:0:3::-64')
    expect(subnet).toEqual(parseLeaseKey(key))
    expect(dump(store)[key]).toBe(dualValue)
    expect(log.lines).toEqual([
      'Picking subnet in range 10.5.1.0 ... 10.5.255.0',
      'Picking ipv6 subnet in range fd00:5:0:1:: ... fd00:5:0:ffff::',
      'Allocated lease (ip: 10.5.4.0/24 ipv6: fd00:5:0:3::/64) to current node (1.1.1.1) ',
    ])
  })

  it('is found again at the next start', async () => {
    const store = createMemoryStore()
    const first = await acquire(store, both, me.dual, { random: () => 0.5 }).lease
    const { log, lease } = acquire(store, both, me.dual)
    expect((await lease).key).toBe(first.key)
    expect(log.lines).toEqual([
      'Found lease (ip: 10.5.51.0/24 ipv6: fd00:5:0:33::/64) for current IP (1.1.1.1), reusing',
    ])
  })

  it('with IPv6 only has a key without IPv4, and belongs to the node with its IPv6 address', async () => {
    const store = createMemoryStore()
    const mine = await acquire(store, only6, me.of6).lease
    const { log, lease } = acquire(store, only6, node(2).of6)
    expect([mine.key, (await lease).key]).toEqual(['0.0.0.0-0&fd00:5:0:1::-64', '0.0.0.0-0&fd00:5:0:2::-64'])
    expect(dump(store)[mine.key]).toBe(of6Value)
    expect(log.lines.at(-1)).toBe('Allocated lease (ip: 0.0.0.0/0 ipv6: fd00:5:0:2::/64) to current node (fd00::2) ')
    const again = await acquire(store, only6, me.of6).lease
    expect([again.key, again.subnet]).toEqual([mine.key, { ipv4: undefined, ipv6: parseIpv6Net('fd00:5:0:1::/64') }])
  })

  it.each([
    ['on', only4, me.of4, both, me.dual, '10.5.34.0-24', '10.5.34.0-24&fd00:5:0:1::-64', '10.5.34.0/24'],
    ['off', both, me.dual, only4, me.of4, '10.5.34.0-24&fd00:5:0:7::-64', '10.5.34.0-24', '10.5.34.0/24'],
    [
      'to another network',
      both,
      me.dual,
      other6,
      me.dual,
      '10.5.34.0-24&fd00:5:0:7::-64',
      '10.5.34.0-24&fd00:6:0:1::-64',
      '10.5.34.0/24',
    ],
    [
      'alone',
      both,
      me.dual,
      only6,
      me.of6,
      '10.5.34.0-24&fd00:5:0:7::-64',
      '0.0.0.0-0&fd00:5:0:7::-64',
      'fd00:5:0:7::/64',
    ],
    [
      'no longer alone',
      only6,
      me.of6,
      both,
      me.dual,
      '0.0.0.0-0&fd00:5:0:7::-64',
      '10.5.1.0-24&fd00:5:0:7::-64',
      'fd00:5:0:7::/64',
    ],
  ])(
    'keeps the subnet of the other family, and its reservation, if IPv6 is switched %s',
    async (_how, _config, from, config, as, before, after, kept) => {
      for (const isReservation of [false, true]) {
        const store = createMemoryStore()
        store.put(before, encodeLeaseValue(from), isReservation)
        /** True if no other node can draw the kept subnet at this moment. */
        const isHeld = () =>
          [...store.entries.keys()].some((key) =>
            Object.values(parseLeaseKey(key)!).some((net) => net && formatNet(net) === kept),
          )
        const held: boolean[] = []
        store.onWrite = () => void held.push(isHeld())
        const { log, lease } = acquire(store, config, as)
        const { key, expiresAt, revision } = await lease
        expect([key, ...store.entries.keys()]).toEqual([after, after])
        // flanneld removes a subnet when its old key goes. So the new key must be written last.
        expect(revision).toBe((await store.list(new AbortController().signal)).revision)
        expect(held).not.toContain(false)
        expect(store.entries.get(after)).toMatchObject({ isReservation, revision, value: encodeLeaseValue(as) })
        expect(expiresAt === undefined).toBe(isReservation)
        expect(log.lines[0]).toMatch(/^Found lease .* but not compatible with current config, keeping /)
        expect(log.lines[0]).toContain(`keeping ${kept}`)
      }
    },
  )

  it.each([1, 2, 3, 4, 5, 6, 7])(
    'survives a crash at write or listing %i of a switch, and the next start completes the switch',
    async (at) => {
      for (const isReservation of [false, true]) {
        const store = createMemoryStore()
        store.put('10.5.34.0-24', value('1.1.1.1'), isReservation)
        let left = at
        const crashing: Store = { ...store }
        for (const name of ['list', 'create', 'update', 'delete'] as const) {
          const call = store[name].bind(store) as (...args: unknown[]) => Promise<unknown>
          // The store has done the call, but the caller gets an error instead of the answer.
          Reflect.set(crashing, name, async (...args: unknown[]) => {
            const result = await call(...args)
            if (--left === 0) throw new Error('crashed')
            return result
          })
        }
        const { lease } = acquire(crashing, both, me.dual)
        const crashed = await lease.then(
          () => false,
          () => true,
        )
        expect(crashed).toBe(at <= 6)
        const again = await acquire(store, both, me.dual, { previous: { ipv4: parseIpv4Net('10.5.34.0/24') } }).lease
        expect([...store.entries.keys()]).toEqual(['10.5.34.0-24&fd00:5:0:1::-64'])
        expect(again.key).toBe('10.5.34.0-24&fd00:5:0:1::-64')
        expect(store.entries.get(again.key)!.isReservation).toBe(isReservation)
        // Switches back, as if an upgrade were reverted halfway.
        expect((await acquire(store, only4, me.of4).lease).key).toBe('10.5.34.0-24')
        expect(store.entries.get('10.5.34.0-24')!.isReservation).toBe(isReservation)
      }
    },
  )

  it.each([
    ['10.5.1.0-24&fd00:5:0:9::-64', '10.5.2.0-24&fd00:5:0:1::-64', '10.5.1.0/24'],
    ['10.5.9.0-24&fd00:5:0:1::-64', '10.5.1.0-24&fd00:5:0:2::-64', 'fd00:5:0:1::/64'],
    ['0.0.0.0-0&fd00:5::-63', '10.5.1.0-24&fd00:5:0:2::-64', 'fd00:5:0:1::/64'],
    ['10.5.1.0-24', '10.5.2.0-24&fd00:5:0:1::-64', '10.5.1.0/24'],
  ])('races with the key %s for a subnet, and the first of the two keys keeps it', async (other, then, lost) => {
    for (const isFirst of [true, false]) {
      const store = createMemoryStore()
      const create = store.create.bind(store)
      let races = 1
      const putOther = (): void => {
        if (races-- <= 0) return
        store.put(other, '{"PublicIP":"9.9.9.9","PublicIPv6":"fd00::9"}')
      }
      store.create = async (...args) => {
        if (isFirst) putOther()
        const written = await create(...args)
        putOther()
        // A rewritten key counts from its creation.
        if (isFirst) store.put(other, '{"PublicIP":"9.9.9.9","PublicIPv6":"fd00::9","BackendType":"vxlan"}')
        return written
      }
      const { log, lease } = acquire(store, both, me.dual)
      const key = isFirst ? then : '10.5.1.0-24&fd00:5:0:1::-64'
      expect((await lease).key).toBe(key)
      expect([...store.entries.keys()].toSorted()).toEqual([key, other].toSorted())
      const said = `Subnet ${lost} overlaps ${other}, which another node took first; picking another`
      expect(log.lines.includes(said)).toBe(isFirst)
    }
  })

  it('that was created but not checked is checked at the next start', async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24&fd00:5:0:1::-64', '{"PublicIP":"2.2.2.2","PublicIPv6":"fd00::2"}')
    store.put('10.5.1.0-24&fd00:5:0:2::-64', dualValue)
    const { log, lease } = acquire(store, both, me.dual)
    expect((await lease).key).toBe('10.5.2.0-24&fd00:5:0:2::-64')
    expect([...store.entries.keys()]).toEqual(['10.5.1.0-24&fd00:5:0:1::-64', '10.5.2.0-24&fd00:5:0:2::-64'])
    expect(log.lines).toContain(
      'Subnet 10.5.1.0/24 overlaps 10.5.1.0-24&fd00:5:0:1::-64, which another node took first; picking another',
    )
    // The node whose key is older keeps its subnet.
    const other = { publicIp: { ipv4: parseIpv4('2.2.2.2')!, ipv6: parseIpv6('fd00::2')! }, backendType: '' }
    expect((await acquire(store, both, other).lease).key).toBe('10.5.1.0-24&fd00:5:0:1::-64')
  })

  it('that was checked once is kept, even if an operator adds an overlapping key', async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24&fd00:5:0:1::-64', '{"PublicIP":"2.2.2.2"}')
    store.put('10.5.1.0-24&fd00:5:0:2::-64', dualValue)
    store.put('10.5.1.0-24&fd00:5:0:2::-64', dualValue) // the node has renewed this lease
    expect((await acquire(store, both, me.dual).lease).key).toBe('10.5.1.0-24&fd00:5:0:2::-64')
  })

  it('keeps its subnet during a switch if another node creates an overlapping key', async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24', value('1.1.1.1'))
    const create = store.create.bind(store)
    let races = 1
    // A flanneld, or a node that listed before this node had its lease.
    store.create = async (...args) => {
      if (races-- > 0) store.put('10.5.1.0-24&fd00:5:0:9::-64', '{"PublicIP":"9.9.9.9","PublicIPv6":"fd00::9"}')
      return create(...args)
    }
    expect((await acquire(store, both, me.dual).lease).key).toBe('10.5.1.0-24&fd00:5:0:1::-64')
  })

  it('overwrites a newer lease of its very key, unless the other node has renewed that lease', async () => {
    for (const isSettled of [false, true]) {
      const store = createMemoryStore()
      store.put('10.5.1.0-24&fd00:5:0:1::-64', dualValue)
      store.put('10.5.1.0-24', value('9.9.9.9'))
      if (isSettled) store.put('10.5.1.0-24', value('9.9.9.9'))
      const key = isSettled ? '10.5.2.0-24' : '10.5.1.0-24'
      expect((await acquire(store, only4, me.of4).lease).key).toBe(key)
      expect(dump(store)[key]).toBe(value('1.1.1.1'))
    }
  })

  it('gives the store a test for overlapping keys that excludes its own old keys', async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24&fd00:5::-62', dualValue) // with another prefix length
    const create = store.create.bind(store)
    const across: string[] = []
    store.create = (key, text, signal, isAcross) => {
      const keys = ['10.5.1.0-24', '10.5.1.0-24&fd00:5::-62', '10.5.9.0-24&fd00:5:0:1::-64', '0.0.0.0-0&fd00::-16', 'x']
      across.push(key, ...keys.filter(isAcross!))
      return create(key, text, signal)
    }
    await acquire(store, both, me.dual).lease
    expect(across).toEqual([
      '10.5.1.0-24&fd00:5:0:1::-64',
      '10.5.1.0-24',
      '10.5.9.0-24&fd00:5:0:1::-64',
      '0.0.0.0-0&fd00::-16',
    ])
  })

  it('reuses each previous subnet that is free', async () => {
    const previous = { ipv4: parseIpv4Net('10.5.7.0/24')!, ipv6: parseIpv6Net('fd00:5:0:7::/64')! }
    const free = createMemoryStore()
    expect((await acquire(free, both, me.dual, { previous }).lease).key).toBe('10.5.7.0-24&fd00:5:0:7::-64')
    const taken = createMemoryStore()
    taken.put('10.5.9.0-24&fd00:5:0:7::-64', '{"PublicIP":"9.9.9.9","PublicIPv6":"fd00::9"}')
    const { log, lease } = acquire(taken, both, me.dual, { previous })
    expect((await lease).key).toBe('10.5.7.0-24&fd00:5:0:1::-64')
    expect(log.lines.slice(0, 3)).toEqual([
      'Found previously leased subnet (10.5.7.0/24), reusing',
      'The subnet of an earlier run, fd00:5:0:7::/64, is leased by 9.9.9.9 now (10.5.9.0-24&fd00:5:0:7::-64); ' +
        'taking another. Containers of the earlier run must be started again',
      'Picking ipv6 subnet in range fd00:5:0:1:: ... fd00:5:0:ffff::',
    ])
    const other = acquire(createMemoryStore(), other6, me.dual, { previous })
    expect((await other.lease).key).toBe('10.5.7.0-24&fd00:6:0:1::-64')
    expect(other.log.lines).toContain(
      'Found previously leased subnet (fd00:5:0:7::/64) that is not compatible with the Etcd network config, ignoring',
    )
  })

  it('overwrites an entry under its previous subnet that cannot be decoded, also when it switches', async () => {
    const previous = { ipv4: parseIpv4Net('10.5.7.0/24')! }
    const store = createMemoryStore()
    store.put('10.5.7.0-24', 'junk', true)
    expect((await acquire(store, both, me.dual, { previous }).lease).key).toBe('10.5.7.0-24&fd00:5:0:1::-64')
    expect([...store.entries.values()]).toMatchObject([{ value: dualValue, isReservation: false }])
  })

  it('keeps the lease with the previous subnet if the node has several', async () => {
    const store = createMemoryStore()
    store.put('10.5.8.0-24&fd00:5:0:8::-64', dualValue)
    store.put('10.5.7.0-24', value('1.1.1.1'))
    const previous = { ipv4: parseIpv4Net('10.5.7.0/24')! }
    expect((await acquire(store, both, me.dual, { previous }).lease).key).toBe('10.5.7.0-24&fd00:5:0:8::-64')
    expect([...store.entries.keys()]).toEqual(['10.5.7.0-24&fd00:5:0:8::-64'])
  })

  it('keeps both previous subnets if the node has them in two leases', async () => {
    const store = createMemoryStore()
    store.put('10.5.8.0-24&fd00:5:0:8::-64', dualValue)
    store.put('0.0.0.0-0&fd00:5:0:7::-64', of6Value)
    const previous = { ipv4: parseIpv4Net('10.5.8.0/24')!, ipv6: parseIpv6Net('fd00:5:0:7::/64')! }
    expect((await acquire(store, both, me.dual, { previous }).lease).key).toBe('10.5.8.0-24&fd00:5:0:7::-64')
    expect([...store.entries.keys()]).toEqual(['10.5.8.0-24&fd00:5:0:7::-64'])
  })

  it('lists again if another node creates the key of a subnet that this node already holds', async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24&fd00:5:0:1::-64', dualValue)
    const create = store.create.bind(store)
    store.create = async (...args) => {
      store.create = create
      store.put('10.5.1.0-24', value('9.9.9.9'))
      return create(...args)
    }
    expect((await acquire(store, only4, me.of4).lease).key).toBe('10.5.1.0-24')
    expect(dump(store)).toEqual({ '10.5.1.0-24': value('1.1.1.1') })
  })

  it('gives up a subnet if another node takes its key during the switch', async () => {
    const store = createMemoryStore()
    store.put('10.5.1.0-24', value('1.1.1.1'))
    const create = store.create.bind(store)
    store.create = async (...args) => {
      store.create = create
      const written = await create(...args)
      store.put('10.5.1.0-24', value('9.9.9.9')) // which this node had under a key that is gone now
      return written
    }
    expect((await acquire(store, both, me.dual).lease).key).toBe('10.5.2.0-24&fd00:5:0:1::-64')
    expect([...store.entries.keys()]).toEqual(['10.5.1.0-24', '10.5.2.0-24&fd00:5:0:1::-64'])
  })

  it('names the family that has no free subnet', async () => {
    const store = createMemoryStore()
    store.put('10.5.0.0-16', 'junk')
    await expect(acquire(store, both, me.dual).lease).rejects.toMatchObject({
      code: 'OUT_OF_SUBNETS',
      remedy: expect.stringMatching(/of \/24 in 10\.5\.0\.0\/16 .* the Network larger/),
    })
    store.remove('10.5.0.0-16')
    store.put('0.0.0.0-0&fd00::-16', 'junk')
    await expect(acquire(store, only6, me.of6).lease).rejects.toMatchObject({
      code: 'OUT_OF_SUBNETS',
      remedy: expect.stringMatching(/of \/64 in fd00:5::\/48 .* the IPv6Network larger/),
    })
  })

  it.each([
    ['a new node', {}, ['10.5.1.0-24']],
    ['a node without IPv6', { '10.5.7.0-24': value('1.1.1.1') }, ['10.5.7.0-24']],
    ['a node with IPv6 of another network', { '10.5.7.0-24&fd00:6:0:1::-64': dualValue }, ['10.5.7.0-24']],
    ['a node with IPv6', { '10.5.7.0-24&fd00:5:0:9::-64': dualValue }, ['10.5.7.0-24&fd00:5:0:9::-64']],
  ])('keeps IPv4 for %s if no IPv6 subnet is free, and logs that', async (_what, before, after) => {
    const store = createMemoryStore()
    store.put('0.0.0.0-0&fd00::-16', 'junk')
    for (const [key, text] of Object.entries(before)) {
      store.put(key, text)
      store.put(key, text) // A node rewrites its lease like this after it found no overlap.
    }
    const { log, lease } = acquire(store, both, me.dual)
    expect([(await lease).key]).toEqual(after)
    expect([...store.entries.keys()].slice(1)).toEqual(after)
    const said = log.lines.filter((line) =>
      line.startsWith('This node continues without an IPv6 subnet: out of subnets'),
    )
    expect(said).toHaveLength(after[0]!.includes('&') ? 0 : 1)
    // The node gets an IPv6 subnet at its next start after one became free.
    store.remove('0.0.0.0-0&fd00::-16')
    const { key } = await acquire(store, both, me.dual, { previous: parseLeaseKey(after[0]!)! }).lease
    expect(key).toMatch(new RegExp(`^${after[0]!.replace(/&.*/, '')}&fd00:5:`))
  })

  it('is renewed and released as one lease', async () => {
    const store = createMemoryStore()
    const holder = holderOf(store, both)
    const stop = new AbortController().signal
    const lease = await holder.obtain(me.dual, {}, recorder(), stop)
    const moved = { ...me.dual, publicIp: { ...me.dual.publicIp, ipv6: parseIpv6('fd00::77')! } }
    const renewed = await holder.renew(lease, moved, recorder(), stop)
    expect(dump(store)).toEqual({ [lease.key]: '{"PublicIP":"1.1.1.1","PublicIPv6":"fd00::77"}' })
    await holder.release!(renewed, stop)
    expect(dump(store)).toEqual({})
    await expect(holder.renew(renewed, moved, recorder(), stop)).rejects.toMatchObject({
      code: 'LEASE_LOST',
      message: `the lease of ${netsText(lease.subnet)} is gone from the store`,
    })
  })
})

const KEY = '10.5.1.0-24'
/** A node that holds the lease `KEY`, and the store of that lease. */
async function holding(ip = '1.1.1.1') {
  const store = createMemoryStore()
  const holder = holderOf(store, parseNetworkConfig('{"Network":"10.5.0.0/16"}'))
  const log = recorder()
  const stop = new AbortController().signal
  const lease = await holder.obtain(attrs(ip), { ipv4: parseIpv4Net('10.5.1.0/24') }, log, stop)
  expect(lease.key).toBe(KEY)
  return {
    store,
    log,
    lease,
    renew: (as = attrs(ip)) => holder.renew(lease, as, log, stop),
    release: () => holder.release!(lease, stop),
    /** Runs `what` once, between the next listing and the write that follows it. */
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

describe('releasing a lease', () => {
  it('deletes it from the store', async () => {
    const { store, release } = await holding()
    await release()
    expect([...store.entries]).toEqual([])
    await release()
  })

  it('deletes it also if this node rewrote it meanwhile', async () => {
    const { store, release, meanwhile } = await holding()
    meanwhile(() => store.put(KEY, value('1.1.1.1')))
    await release()
    expect([...store.entries]).toEqual([])
  })

  it.each<[what: string, text: string, isReservation: boolean]>([
    ['the lease of a node that took the subnet', value('2.2.2.2'), false],
    ['a reservation for this node', value('1.1.1.1'), true],
    ['a reservation for another node', value('2.2.2.2'), true],
    ['an entry that cannot be decoded', 'junk', false],
  ])('keeps %s, whether written before the release or during it', async (_what, text, isReservation) => {
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
    ['makes a junk reservation a lease that expires', 'junk', { isReservation: false, endless: false }],
    ['keeps its own lease a reservation', value('1.1.1.1'), { isReservation: true, endless: true }],
    [
      'keeps its own lease of another type a reservation',
      '{"PublicIP":"1.1.1.1","BackendType":"vxlan"}',
      {
        isReservation: true,
        endless: true,
      },
    ],
  ])('overwrites an entry that an operator put under its key: %s', async (_what, text, expected) => {
    const { store, renew } = await holding()
    store.put(KEY, text, true)
    const { expiresAt } = await renew()
    const { isReservation, value: written } = store.entries.get(KEY)!
    expect({ isReservation, endless: expiresAt === undefined }).toEqual(expected)
    expect(written).toBe(value('1.1.1.1'))
  })

  it.each([
    ['the old address', '{"PublicIP":"1.1.1.1","BackendType":"vxlan"}', true],
    ['the new address', '{"PublicIP":"3.3.3.3","BackendType":"vxlan"}', true],
    ['no address', '{}', true],
    ['the address of another node', '{"PublicIP":"2.2.2.2"}', false],
  ])('with a new address treats an entry with %s as its own: %s', async (_what, text, isOwn) => {
    const { store, renew } = await holding()
    store.put(KEY, text)
    if (isOwn) await renew(attrs('3.3.3.3'))
    else await expect(renew(attrs('3.3.3.3'))).rejects.toMatchObject({ code: 'LEASE_LOST' })
    expect(store.entries.get(KEY)!.value).toBe(isOwn ? value('3.3.3.3') : text)
  })
})
