// allocate.test.ts - finding the free subnets for a new lease, and drawing one of them.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { CANDIDATES, freeSubnets, isCompatible, pickSubnet } from '../../../../src/control/lease/allocate.ts'
import { formatIpv4Net, ipv4Net, ipv4NetsOverlap, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { formatIpv6Net, ipv6Net, ipv6NetsOverlap, parseIpv6Net } from '../../../../src/net/ipv6.ts'

const net = (text: string) => parseIpv4Net(text)!
const rangeOf = (text: string) => parseNetworkConfig(text).ipv4!

describe('allocation', () => {
  const range = rangeOf('{"Network":"10.3.0.0/16","SubnetMin":"10.3.1.0","SubnetMax":"10.3.25.0"}')
  const taken = ['10.3.1.0/24', '10.3.2.0/24', '10.3.4.0/24', '10.3.5.0/24', '10.3.31.0/24'].map(net)

  it('offers the free subnets of the range', () => {
    const free = freeSubnets(range, taken).map(formatIpv4Net)
    expect(free).toHaveLength(21)
    expect(free.slice(0, 3)).toEqual(['10.3.3.0/24', '10.3.6.0/24', '10.3.7.0/24'])
    expect(isCompatible(net('10.3.6.0/24'), range)).toBe(true)
    for (const other of ['10.4.1.0/24', '10.3.26.0/24', '10.3.0.0/24', '10.3.6.0/25'])
      expect(isCompatible(net(other), range)).toBe(false)
  })

  it('hands out the first and the last subnet of the range, and none outside it', () => {
    const fitting = ['10.3.0.0/24', '10.3.1.0/24', '10.3.25.0/24', '10.3.26.0/24'].map(net)
    expect(fitting.map((subnet) => isCompatible(subnet, range))).toEqual([false, true, true, false])
  })

  it('finds overlaps with leases of any prefix length', () => {
    expect(freeSubnets(range, [net('10.3.0.0/20')]).map(formatIpv4Net)[0]).toBe('10.3.16.0/24')
    expect(freeSubnets(range, [net('10.3.1.128/25')]).map(formatIpv4Net)[0]).toBe('10.3.2.0/24')
    expect(freeSubnets(range, [net('0.0.0.0/0')])).toEqual([])
  })

  it('draws each candidate, and none if the range is full', () => {
    expect(formatIpv4Net(pickSubnet(range, taken, () => 0)!)).toBe('10.3.3.0/24')
    expect(formatIpv4Net(pickSubnet(range, taken, () => 0.999999)!)).toBe('10.3.25.0/24')
    expect(pickSubnet(range, [net('10.3.0.0/16')], () => 0)).toBeUndefined()
  })

  it('agrees with a simple search', () => {
    const small = rangeOf('{"Network":"10.3.0.0/22","SubnetLen":28}')
    const leases = fc.array(
      fc
        .tuple(fc.integer({ min: 0x0a030000, max: 0x0a0303ff }), fc.integer({ min: 24, max: 30 }))
        .map(([ip, length]) => ipv4Net(ip, length)),
    )
    fc.assert(
      fc.property(leases, (busy) => {
        const plain = []
        for (let address = small.subnetMin; address <= small.subnetMax; address += 16) {
          const subnet = { address, prefixLength: 28 }
          if (!busy.some((other) => ipv4NetsOverlap(subnet, other))) plain.push(subnet)
        }
        expect(freeSubnets(small, busy)).toEqual(plain.slice(0, CANDIDATES))
      }),
    )
  })

  it('handles 60,000 leases without quadratic time', () => {
    const wide = rangeOf('{"Network":"10.0.0.0/8"}')
    const leases = 60_000
    let looks = 0
    const busy = Array.from({ length: leases }, (_, index) => ({
      prefixLength: 24,
      get address() {
        looks++
        return wide.subnetMin + index * 256
      },
    }))
    expect(freeSubnets(wide, busy)).toHaveLength(CANDIDATES)
    // Sorting stays below this number of reads; comparing each pair would not.
    expect(looks).toBeGreaterThanOrEqual(leases)
    expect(looks).toBeLessThan(leases * 100)
  })
})

describe('allocation of IPv6', () => {
  const net6 = (text: string) => parseIpv6Net(text)!
  const rangeOf6 = (config: object) =>
    parseNetworkConfig(JSON.stringify({ EnableIPv4: false, EnableIPv6: true, ...config })).ipv6!
  const usual = rangeOf6({ IPv6Network: 'fd00:5::/48' })

  it('offers the free subnets from the first one on', () => {
    const free = freeSubnets(usual, ['fd00:5:0:1::/64', 'fd00:5:0:3::7/128', 'fd00:5:0:4::/63'].map(net6)).map(
      formatIpv6Net,
    )
    expect(free).toHaveLength(CANDIDATES)
    expect(free.slice(0, 3)).toEqual(['fd00:5:0:2::/64', 'fd00:5:0:6::/64', 'fd00:5:0:7::/64'])
    expect(formatIpv6Net(pickSubnet(usual, [], () => 0.999999)!)).toBe('fd00:5:0:64::/64')
  })

  it('hands out the first and the last subnet of the range, and none outside it', () => {
    const fitting = ['fd00:5::/64', 'fd00:5:0:1::/64', 'fd00:5:0:ffff::/64', 'fd00:5:1::/64', 'fd00:5:0:1::/65'].map(
      net6,
    )
    expect(fitting.map((subnet) => isCompatible(subnet, usual))).toEqual([false, true, true, false, false])
    const few = rangeOf6({ IPv6Network: 'fd00::/124' })
    expect(freeSubnets(few, []).map(formatIpv6Net)).toEqual(['fd00::4/126', 'fd00::8/126', 'fd00::c/126'])
    expect(pickSubnet(usual, [net6('fd00:5::/48')], Math.random)).toBeUndefined()
  })

  it('agrees with a simple search', () => {
    const small = rangeOf6({ IPv6Network: 'fd00::ff00/120', IPv6SubnetLen: 126 })
    const leases = fc.array(
      fc
        .tuple(fc.integer({ min: 0, max: 0x1ff }), fc.integer({ min: 119, max: 128 }))
        .map(([low, length]) => ipv6Net(small.network.address - 0x80n + BigInt(low), length)),
    )
    fc.assert(
      fc.property(leases, (busy) => {
        const plain = []
        for (let address = small.subnetMin; address <= small.subnetMax; address += 4n) {
          const subnet = { address, prefixLength: 126 }
          if (!busy.some((other) => ipv6NetsOverlap(subnet, other))) plain.push(subnet)
        }
        expect(freeSubnets(small, busy)).toEqual(plain.slice(0, CANDIDATES))
      }),
    )
  })

  it('skips a large leased network in one step, although it has more subnets than can be counted', () => {
    const wide = rangeOf6({ IPv6Network: 'fd00::/16', IPv6SubnetLen: 126 })
    expect(freeSubnets(wide, [net6('fd00::/17')]).map(formatIpv6Net)[0]).toBe('fd00:8000::/126')
    expect(freeSubnets(wide, [net6('::/0')])).toEqual([])
  })

  it('handles 60,000 leases without quadratic time', () => {
    const leases = 60_000
    let looks = 0
    const busy = Array.from({ length: leases }, (_, index) => ({
      prefixLength: 64,
      get address() {
        looks++
        return usual.subnetMin + (BigInt(leases - index) << 64n)
      },
    }))
    expect(freeSubnets(usual, busy).map(formatIpv6Net).slice(0, 2)).toEqual(['fd00:5:0:1::/64', 'fd00:5:0:ea62::/64'])
    expect(looks).toBeLessThan(leases * 100)
  })
})
