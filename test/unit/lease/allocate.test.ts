// allocate.test.ts - which subnets are free for a new lease, and which one is drawn.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parseNetworkConfig } from '../../../src/config/network-config.ts'
import { CANDIDATES, freeSubnets, isCompatible, pickSubnet } from '../../../src/lease/allocate.ts'
import { formatIpv4Net, ipv4Net, ipv4NetsOverlap, parseIpv4Net } from '../../../src/net/ipv4.ts'

const net = (text: string) => parseIpv4Net(text)!
const rangeOf = (text: string) => parseNetworkConfig(text).ipv4!

describe('allocation', () => {
  const range = rangeOf('{"Network":"10.3.0.0/16","SubnetMin":"10.3.1.0","SubnetMax":"10.3.25.0"}')
  const taken = ['10.3.1.0/24', '10.3.2.0/24', '10.3.4.0/24', '10.3.5.0/24', '10.3.31.0/24'].map(net)

  it('offers what is in range and free', () => {
    const free = freeSubnets(range, taken).map(formatIpv4Net)
    expect(free).toHaveLength(21)
    expect(free.slice(0, 3)).toEqual(['10.3.3.0/24', '10.3.6.0/24', '10.3.7.0/24'])
    expect(isCompatible(net('10.3.6.0/24'), range)).toBe(true)
    for (const other of ['10.4.1.0/24', '10.3.26.0/24', '10.3.0.0/24', '10.3.6.0/25'])
      expect(isCompatible(net(other), range)).toBe(false)
  })

  it('hands out its first and its last subnet, and none beside them', () => {
    const fitting = ['10.3.0.0/24', '10.3.1.0/24', '10.3.25.0/24', '10.3.26.0/24'].map(net)
    expect(fitting.map((subnet) => isCompatible(subnet, range))).toEqual([false, true, true, false])
  })

  it('sees overlaps of any length', () => {
    expect(freeSubnets(range, [net('10.3.0.0/20')]).map(formatIpv4Net)[0]).toBe('10.3.16.0/24')
    expect(freeSubnets(range, [net('10.3.1.128/25')]).map(formatIpv4Net)[0]).toBe('10.3.2.0/24')
    expect(freeSubnets(range, [net('0.0.0.0/0')])).toEqual([])
  })

  it('draws each candidate, and nothing when full', () => {
    expect(formatIpv4Net(pickSubnet(range, taken, () => 0)!)).toBe('10.3.3.0/24')
    expect(formatIpv4Net(pickSubnet(range, taken, () => 0.999999)!)).toBe('10.3.25.0/24')
    expect(pickSubnet(range, [net('10.3.0.0/16')], () => 0)).toBeUndefined()
  })

  it('agrees with the plain walk', () => {
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

  it('takes 60,000 leases without a quadratic walk', () => {
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
    // What sorting takes, not what comparing each with each does.
    expect(looks).toBeGreaterThanOrEqual(leases)
    expect(looks).toBeLessThan(leases * 100)
  })
})
