// peer-filter.test.ts - judging only the changes gives the same peers, the same log lines and the same count as judging
// all leases.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import { addressText, netsOf, netText, parseNet, type Addresses } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { PeerFilter, type PeerFilterOptions } from '../../../../src/path/tunnel/peer-filter.ts'

const ip = (text: string): number => parseIpv4(text)!
const OWN_MAC = 'own'
const own: OwnLease = {
  key: '10.5.0.0-24',
  subnet: { ipv4: parseIpv4Net('10.5.0.0/24')! },
  attrs: { publicIp: { ipv4: ip('192.0.2.1') }, backendType: 'x' },
  expiresAt: 0,
  revision: 1n,
}
const macOf = ({ attrs }: Lease): string | undefined => attrs.backendData as string | undefined

function create(hasIdentity: boolean): { filter: PeerFilter; lines: string[] } {
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  const log = { info: say, warn: say, error: say, v: () => false }
  const identity = { name: 'MAC', own: OWN_MAC, of: macOf, remedy: 'take another' }
  const options: PeerFilterOptions = {
    type: 'x',
    lease: own,
    network: parseIpv4Net('10.5.0.0/16')!,
    log,
    ...(hasIdentity ? { identity } : {}),
  }
  return { filter: new PeerFilter(options), lines }
}

/** The rules of the filter in their simplest form, for all leases at once. */
function peersOf(leases: ReadonlyMap<string, Lease>, ownKey: string, hasIdentity: boolean): string[] {
  const isNewer = (a: Lease, b: Lease): boolean => {
    const [x, y] = [a.revision ?? -1n, b.revision ?? -1n]
    return x > y || (x === y && a.key < b.key)
  }
  const isSound = ({ key, subnet, attrs }: Lease): boolean =>
    key !== ownKey &&
    attrs.backendType === 'x' &&
    attrs.publicIp.ipv4 !== own.attrs.publicIp.ipv4 &&
    addressText(attrs.publicIp) !== '127.0.0.1' &&
    netText(subnet).startsWith('10.5.') &&
    !netText(subnet).startsWith('10.5.0.') &&
    !(hasIdentity && attrs.backendData === OWN_MAC)
  const sound = [...leases.values()].filter(isSound)
  const first = sound.filter(
    (lease) => !sound.some((other) => netText(other.subnet) === netText(lease.subnet) && isNewer(other, lease)),
  )
  const hostOf = (mac: string): number | undefined =>
    first.filter((lease) => macOf(lease) === mac).toSorted((a, b) => (isNewer(a, b) ? -1 : 1))[0]?.attrs.publicIp.ipv4
  return first
    .filter((lease) => {
      const mac = macOf(lease)
      return !hasIdentity || mac === undefined || hostOf(mac) === lease.attrs.publicIp.ipv4
    })
    .map(({ key }) => key)
    .toSorted()
}

/**
 * Use few values of each kind, so that leases conflict: two keys for a subnet, two lengths, foreign subnets; hosts with
 * several leases, and with none.
 */
const leaseOf = fc
  .record({
    third: fc.integer({ min: 0, max: 4 }),
    form: fc.constantFrom('-24', '-24&fc00::-64', '-24&fc01::-64', '-25'),
    network: fc.constantFrom('10.5', '10.5', '10.5', '10.6'),
    address: fc.constantFrom('192.0.2.1', '127.0.0.1', '192.0.2.2', '192.0.2.3', '192.0.2.4'),
    backendType: fc.constantFrom('x', 'x', 'x', 'y'),
    mac: fc.constantFrom(undefined, OWN_MAC, 'a', 'b'),
    revision: fc.constantFrom(undefined, 1n, 2n, 3n, 4n),
  })
  .map(({ third, form, network, address, backendType, mac, revision }): Lease => {
    const [length = ''] = form.slice(1).split('&')
    return {
      key: `${network}.${third}.0${form}`,
      subnet: { ipv4: parseIpv4Net(`${network}.${third}.0/${length}`)! },
      attrs: { publicIp: { ipv4: ip(address) }, backendType, ...(mac === undefined ? {} : { backendData: mac }) },
      ...(revision === undefined ? {} : { revision }),
    }
  })
const steps = fc.array(
  fc.record({
    puts: fc.array(leaseOf, { maxLength: 6 }),
    /** Positions in the list of leases. */
    removals: fc.array(fc.nat(), { maxLength: 3 }),
    /** Keys that are named as touched but did not change. */
    more: fc.array(fc.nat(), { maxLength: 2 }),
    ownKey: fc.constantFrom(own.key, own.key, own.key, '10.5.1.0-24'),
  }),
  { minLength: 1, maxLength: 25 },
)

describe.each([
  ['by subnet', false],
  ['by subnet and MAC', true],
])('conflicting leases %s', (_title, hasIdentity) => {
  it('judges leases by their changes exactly as all leases together, after any sequence of changes', () => {
    fc.assert(
      fc.property(steps, fc.integer({ min: 0, max: 3 }), (all, wholeEvery) => {
        const [some, anew] = [create(hasIdentity), create(hasIdentity)]
        const leases = new Map<string, Lease>()
        let told = new Map<string, Lease>()
        all.forEach(({ puts, removals, more, ownKey }, index) => {
          const touched = new Set<string>()
          for (const at of removals) {
            const key = [...leases.keys()][at % Math.max(1, leases.size)] ?? 'none'
            leases.delete(key)
            touched.add(key)
          }
          for (const lease of puts) {
            leases.set(lease.key, lease)
            touched.add(lease.key)
          }
          for (const at of more) touched.add([...leases.keys()][at % Math.max(1, leases.size)] ?? 'none')
          const before = some.filter.peers()
          const known = new Map(before)
          const changed = some.filter.take(
            leases,
            ownKey,
            wholeEvery > 0 && index % (4 * wholeEvery) === 3 ? undefined : touched,
          )
          const peers = some.filter.peers()
          expect([...peers.keys()].toSorted()).toEqual(peersOf(leases, ownKey, hasIdentity))
          expect(
            anew.filter
              .usable(leases, ownKey)
              .map(({ key }) => key)
              .toSorted(),
          ).toEqual([...peers.keys()].toSorted())
          for (const [key, lease] of peers) expect(lease).toBe(leases.get(key))
          expect(some.filter.unusable()).toEqual(anew.filter.unusable())
          expect(some.lines.splice(0).toSorted()).toEqual(anew.lines.splice(0).toSorted())
          // A caller that follows only the returned changes reaches the same peers.
          if (!changed) told = new Map(peers)
          for (const [key, was] of changed ?? []) {
            expect(was).toBe(known.get(key))
            const lease = peers.get(key)
            if (lease) told.set(key, lease)
            else told.delete(key)
          }
          const said = (of: ReadonlyMap<string, Lease>) =>
            [...of]
              .map(([key, { attrs }]) => `${key} ${addressText(attrs.publicIp)} ${String(attrs.backendData)}`)
              .toSorted()
          expect(said(told)).toEqual(said(peers))
        })
      }),
      { numRuns: 300 },
    )
  })
})

it('accepts no peer without an IPv4 subnet or IPv4 address', () => {
  const { filter, lines } = create(false)
  const subnet = { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: { address: 0xfc00n << 112n, prefixLength: 64 } }
  const publicIp = { ipv4: ip('192.0.2.2'), ipv6: (0xfd00n << 112n) + 2n }
  const lease = (key: string, of: Pick<Lease, 'subnet'>, at: Addresses): [string, Lease] => [
    key,
    { key, ...of, attrs: { publicIp: at, backendType: 'x' } },
  ]
  const leases = new Map([
    lease('both', { subnet }, publicIp),
    lease('subnet of IPv6', { subnet: { ipv6: subnet.ipv6 } }, publicIp),
    lease('address of IPv6', { subnet }, { ipv6: publicIp.ipv6 }),
  ])
  expect(filter.usable(leases, own.key).map(({ key }) => key)).toEqual(['both'])
  expect([...filter.take(leases, own.key, leases.keys())!]).toEqual([])
  expect([lines, filter.unusable().size]).toEqual([
    [
      'Lease subnet of IPv6 is not used: its subnet is not within the network 10.5.0.0/16',
      'Lease address of IPv6 is not used: its node publishes no IPv4 address',
    ],
    2,
  ])
})

const nets = (text: string) => netsOf(text.split(' ').map((each) => parseNet(each)!))

it('does not log a lease of this node under another key, as of a successor with one more family', () => {
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  const log = { info: say, warn: say, error: say, v: () => false }
  const network = parseIpv4Net('10.5.0.0/16')!
  const lease = {
    key: 'own',
    subnet: nets('10.5.0.0/24'),
    attrs: { publicIp: { ipv4: ip('192.0.2.9') }, backendType: '' },
  }
  const filter = new PeerFilter({ lease: { ...lease, expiresAt: undefined, revision: 0n }, network, log })
  const twin = { ...lease, key: 'both', subnet: nets('10.5.0.0/24 fc00:0:0:7::/64') }
  const elsewhere = { ...lease, key: 'other', subnet: nets('10.5.9.0/24') }
  expect(filter.usable(new Map([twin, elsewhere].map((each) => [each.key, each])), 'own')).toEqual([])
  expect(lines).toEqual(["Lease other is not used: 192.0.2.9 is this node's own address"])
})

it("accepts no peer with this node's subnet or a part of it in any family, which would cut off this node's containers", () => {
  const said: string[] = []
  const say = (line: string): void => void said.push(line)
  const both: OwnLease = { ...own, subnet: nets('10.5.0.0/24 fc00:0:0:7::/64') }
  const parts = { isOneOfTwo: true, lease: both, log: { info: say, warn: say, error: say, v: () => false } }
  const filters = ['10.5.0.0/16', 'fc00::/48'].map(
    (network) => new PeerFilter({ ...parts, network: parseNet(network)! }),
  )
  const publicIp = { ipv4: ip('192.0.2.2'), ipv6: (0xfd00n << 112n) + 2n }
  const leases = new Map(
    [
      '10.5.0.0/24 fc00:0:0:8::/64', // two nodes that know only whole keys may both lease this
      '10.5.0.128/25 fc00:0:0:7:8000::/65',
      '10.5.0.0/23 fc00:0:0:6::/63',
    ].map((text) => [text, { key: text, subnet: nets(text), attrs: { publicIp, backendType: '' } }]),
  )
  const peers = filters.map((filter) => filter.usable(leases, own.key).map(({ key }) => key))
  const [same, part, around] = [...leases.keys()]
  // This node's own route has a longer prefix than a subnet that contains it.
  expect(peers).toEqual([[around], [same, around]])
  expect(said).toEqual([
    `Lease ${same} is not used for IPv4: its subnet is this node's 10.5.0.0/24, or a part of it`,
    `Lease ${part} is not used for IPv4: its subnet is this node's 10.5.0.0/24, or a part of it`,
    `Lease ${part} is not used for IPv6: its subnet is this node's fc00:0:0:7::/64, or a part of it`,
  ])
})

const lines: string[] = []
const say = (line: string): void => void lines.push(line)
const log = { info: say, warn: say, error: say, v: () => false }
/** Returns a filter for each family of a dual-stack network. */
function createBoth(alsoUnusable?: () => string | undefined) {
  lines.length = 0
  const parts = { isOneOfTwo: true, lease: own, log, ...(alsoUnusable ? { alsoUnusable } : {}) }
  return [
    new PeerFilter({ ...parts, network: parseIpv4Net('10.5.0.0/16')! }),
    new PeerFilter({ ...parts, network: { address: 0xfc00n << 112n, prefixLength: 16 } }),
  ]
}
const ofBoth = (key: string, third: number, host: number, revision = 1n): Lease => ({
  key,
  revision,
  subnet: {
    ipv4: { address: ip('10.5.0.0') + third * 256, prefixLength: 24 },
    ...(key.includes('&') ? { ipv6: { address: (0xfc00n << 112n) + (BigInt(third) << 64n), prefixLength: 64 } } : {}),
  },
  attrs: { publicIp: { ipv4: ip('192.0.0.0') + host, ipv6: (0xfd00n << 112n) + BigInt(host) }, backendType: 'x' },
})

it("does not warn about a host's old lease if its new one has another family too", () => {
  const [filter] = createBoth()
  const [old, now] = [ofBoth('10.5.1.0-24', 1, 9), ofBoth('10.5.1.0-24&fc00:0:0:1::-64', 1, 9, 2n)]
  const leases = new Map([old, now].map((each) => [each.key, each]))
  expect(filter!.usable(leases, own.key)).toEqual([now])
  expect([lines, filter!.unusable().size]).toEqual([[], 0])
  const other = ofBoth(old.key, 1, 10)
  leases.set(old.key, other)
  filter!.take(leases, own.key, [old.key])
  expect(lines).toEqual([
    'Lease 10.5.1.0-24 is not used for IPv4: its subnet 10.5.1.0/24 is that of 192.0.0.9 too, whose lease is newer',
  ])
  expect([...filter!.unusable()]).toEqual([old.key])
})

it('names the family for which a lease is not used in a dual-stack network', () => {
  const filters = createBoth(() => 'it publishes no MAC')
  const lease = ofBoth('10.5.1.0-24&fc00:0:0:1::-64', 1, 9)
  for (const filter of filters) filter.take(new Map([[lease.key, lease]]), own.key)
  expect(lines).toEqual([
    `Lease ${lease.key} is not used for IPv4: it publishes no MAC`,
    `Lease ${lease.key} is not used for IPv6: it publishes no MAC`,
  ])
})

it('processes thousands of IPv6 subnets in linear time', () => {
  const leases = new Map(
    Array.from({ length: 20_000 }, (_, at) =>
      ofBoth(`10.5.${at}.0-24&fc00:0:0:${at.toString(16)}::-64`, at, at + 1_000),
    ).map((each) => [each.key, each]),
  )
  const filter = createBoth()[1]!
  const took = (): number => {
    const { user } = process.cpuUsage()
    filter.take(leases, own.key)
    return process.cpuUsage({ user, system: 0 }).user / 1_000
  }
  // The lookups take 40 ms. They would take 20 s if all subnets had the same hash.
  expect(Math.min(took(), took())).toBeLessThan(1_000)
  expect(filter.peers().size).toBe(20_000)
})

it('returns exactly the peers that changed', () => {
  const { filter } = create(false)
  const lease = (key: string, address: string, revision: bigint): Lease => ({
    key,
    subnet: { ipv4: parseIpv4Net(key.replace(/-(\d+).*/, '/$1'))! },
    revision,
    attrs: { publicIp: { ipv4: ip(address) }, backendType: 'x' },
  })
  const leases = new Map(
    [lease('10.5.1.0-24', '192.0.2.2', 1n), lease('10.5.2.0-24', '192.0.2.3', 2n)].map((each) => [each.key, each]),
  )
  expect(filter.take(leases, own.key, ['10.5.1.0-24'])).toBeUndefined() // undefined, because nothing was taken before
  expect([...filter.take(leases, own.key, ['10.5.1.0-24'])!]).toEqual([])
  const renewed = lease('10.5.1.0-24', '192.0.2.2', 3n)
  leases.set(renewed.key, renewed)
  expect([...filter.take(leases, own.key, [renewed.key])!]).toEqual([])
  const rival = lease('10.5.2.0-24&fc00::-64', '192.0.2.9', 9n)
  leases.set(rival.key, rival)
  const changed = filter.take(leases, own.key, [rival.key])!
  expect([...changed].map(([key, was]) => [key, was?.key])).toEqual([
    ['10.5.2.0-24&fc00::-64', undefined],
    ['10.5.2.0-24', '10.5.2.0-24'],
  ])
  // If two leases have no revision, every node chooses the same one, regardless of their order.
  for (const order of [0, 1]) {
    const two = [lease('10.5.7.0-24', '192.0.2.2', 5n), lease('10.5.7.0-24&fc00::-64', '192.0.2.3', 5n)]
    const fresh = create(false).filter
    const keys = fresh.usable(new Map((order ? two.toReversed() : two).map((each) => [each.key, each])), own.key)
    expect(keys.map(({ key }) => key)).toEqual(['10.5.7.0-24'])
  }
})
