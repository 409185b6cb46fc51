// silence-causes.test.ts - the finding about this host that explains why a peer does not answer over one family.

import { describe, expect, it } from 'vitest'
import { countPeers, type PeerStatus, type Status } from '../../../../src/report/status.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { routeQueries } from '../../../../src/tool/doctor/route-queries.ts'
import { sideIn } from '../../../../src/tool/doctor/sides.ts'
import { causeOf, hiddenCause } from '../../../../src/tool/doctor/silence-causes.ts'
import { dualPeer, route, silentSide, sound, soundDual, soundPeer, soundStatus } from '../../../support/facts.ts'
import { blockPolicy } from '../../../support/ipsec-policy.ts'
import { routesBy } from '../../../support/kernel-routes.ts'

const silentPeer: PeerStatus = { ...soundPeer, ...silentSide }
const silent: Facts & { readonly status: Status } = {
  ...sound,
  status: { ...soundStatus, peers: countPeers([silentPeer], 10) },
  answers: new Map(),
}
const dual: Facts & { readonly status: Status } = {
  ...soundDual,
  status: { ...soundDual.status, peers: countPeers([dualPeer({}, silentSide)], 10) },
  answers: new Map(),
}
const withPath = (facts: typeof silent, part: Partial<NonNullable<Status['dataPath']>>): Facts => ({
  ...facts,
  status: { ...facts.status, dataPath: { ...facts.status.dataPath!, ...part } },
})
const side = sideIn(silentPeer, 'ipv4')
const [side4, side6] = [sideIn(dualPeer(silentSide, {}), 'ipv4'), sideIn(dualPeer({}, silentSide), 'ipv6')]
const wrongWay = routesBy({ underlay: { device: 'tun7' } })
const PROBES = '-P INPUT ACCEPT\n-A INPUT -p icmp -j DROP'
const PORT = '-P INPUT ACCEPT\n-A INPUT -p udp --dport 8285 -j DROP'

describe('the cause of silence over one family', () => {
  const gone4 = { ipv4: 'eth0 has lost its address', ipv6: null }
  const gone6 = { ipv4: null, ipv6: 'eth0 has lost its address' }
  it.each<[string, Facts, typeof side, string | undefined]>([
    ['nothing', silent, side, undefined],
    ['the address of this host, which is gone', withPath(dual, { addressGone: gone6 }), side6, 'address-gone'],
    ['not the address of the other family', withPath(dual, { addressGone: gone4 }), side6, undefined],
    [
      'the setting that disables IPv6',
      { ...withPath(dual, { addressGone: gone6 }), withoutIpv6: ['eth0'] },
      side6,
      'ipv6-disabled',
    ],
    ['the address of IPv4, which is gone', withPath(dual, { addressGone: gone4 }), side4, 'address-gone'],
    ['a family that is down', withPath(dual, { lacking: { ipv4: null, ipv6: 'no device' } }), side6, 'family-down'],
    [
      'not the other family, which is down',
      withPath(dual, { lacking: { ipv4: null, ipv6: 'no device' } }),
      side4,
      undefined,
    ],
    ['a route to its host', { ...silent, kernelRoutes: wrongWay }, side, 'underlay-route'],
    [
      'a wrong route to its subnet',
      { ...silent, routes: [...sound.routes, route('10.5.2.0/24', 'eth1')] },
      side,
      'foreign-route',
    ],
    ['a wrong route to all subnets', { ...silent, routes: [route('10.5.0.0/16', 'eth1')] }, side, 'foreign-route'],
    [
      'not a wrong route to another subnet',
      { ...silent, routes: [...sound.routes, route('10.5.3.0/24', 'eth1')] },
      side,
      undefined,
    ],
    ['a missing route to all subnets', { ...silent, routes: [] }, side, 'no-route'],
    ['a rule that drops the datagrams of peers', { ...silent, iptables: PORT }, side, 'port-dropped'],
    ['a rule that drops the probes', { ...silent, iptables: PROBES }, side, 'probes-dropped'],
    [
      'the rule for the datagrams, because the rule for the probes drops fewer packets',
      { ...silent, iptables: `${PORT}\n-A INPUT -p icmp -j DROP` },
      side,
      'port-dropped',
    ],
    ['the route, because packets pass it first', { ...silent, iptables: PORT, routes: [] }, side, 'no-route'],
    [
      'the route to its host, because the tunnel of all packets needs it',
      { ...silent, iptables: PORT, routes: [], kernelRoutes: wrongWay },
      side,
      'underlay-route',
    ],
    [
      'not a route that only marked packets take, which a rule may mark',
      {
        ...silent,
        iptables: '*mangle\n-A PREROUTING -m set --match-set some src -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT',
        kernelRoutes: routesBy({ marked: { device: 'eth0', gateway: '192.0.2.9', table: 100 } }),
      },
      side,
      undefined,
    ],
    [
      'nothing with host-gw, which sends no datagrams',
      {
        ...silent,
        status: {
          ...silent.status,
          config: { ...silent.status.config!, backendType: 'host-gw' },
          dataPath: { ...soundStatus.dataPath!, engine: 'kernel', device: null, devices: { ipv4: null, ipv6: null } },
        },
        routes: [route('10.5.2.0/24', 'eth0', '192.0.2.2')],
        iptables: PORT,
        ipsec: {
          policies: [blockPolicy('out', '0.0.0.0/0', '0.0.0.0/0')],
          states: [],
          blockedByDefault: [],
          hasKeyDaemon: true,
          exempt: [],
        },
      },
      side,
      undefined,
    ],
    ['nothing, without a status', { ...silent, status: undefined, iptables: PORT }, side, undefined],
    [
      'nothing, without a data path',
      { ...silent, status: { ...silent.status, dataPath: null }, iptables: '-P INPUT ACCEPT' },
      side,
      undefined,
    ],
  ])('is %s', (_name, facts, of, cause) => expect(causeOf(of, facts)).toBe(cause))

  it('is the lost IPv4 address if weftd sends IPv6 packets over IPv4', () => {
    const config = { ...dual.status.config!, backendType: 'wireguard', backend: { Mode: 'ipv4' } }
    const over4 = (addressGone: typeof gone4 | typeof gone6) =>
      causeOf(
        { ...side6, endpoint: '192.0.2.2:51820' },
        withPath({ ...dual, status: { ...dual.status, config } }, { addressGone }),
      )
    expect(over4(gone4)).toBe('address-gone')
    expect(over4(gone6)).not.toBe('address-gone')
  })

  it('is an IPsec policy that blocks the incoming or the outgoing datagrams', () => {
    const by = (direction: 'in' | 'out', [from, to]: readonly [string, string], hasMark = false) => {
      const policy = blockPolicy(direction, from, to, hasMark ? { mark: 1 } : {})
      const ipsec = { policies: [policy], states: [], blockedByDefault: [], hasKeyDaemon: true, exempt: [] }
      return causeOf(side, { ...silent, ipsec })
    }
    const hosts = ['192.0.2.1/32', '192.0.2.2/32'] as const
    expect(by('out', hosts)).toBe('ipsec-blocked')
    expect(by('in', ['192.0.2.2/32', '192.0.2.1/32'])).toBe('ipsec-blocked')
    expect(by('out', ['192.0.2.1/32', '192.0.2.9/32'])).toBeUndefined()
    expect(by('out', hosts, true)).toBeUndefined()
  })

  it('is a rule for the sources of probes, or for all packets to the network', () => {
    const query = routeQueries(silent.status, silent.links, []).find(({ direction }) => direction === 'host')
    expect(query).toBeDefined()
    const answer = { refused: 'no route', errno: 'EINVAL' }
    expect(causeOf(side, { ...silent, kernelRoutes: { answers: [{ ...query!, answer }], rules: {} } })).toBe(
      'route-refused',
    )
  })

  it('is not a route if the subnet in the lease of the peer is unreadable', () => {
    const elsewhere = { ...side, subnet: undefined }
    expect(causeOf(elsewhere, { ...silent, routes: [] })).toBeUndefined()
  })
})

describe('the cause that makes a sound host look silent', () => {
  it.each<[string, Facts, boolean, string | undefined]>([
    ['nothing', silent, true, undefined],
    ['a route to its host', { ...silent, kernelRoutes: wrongWay }, false, 'underlay-route'],
    ['the rule that drops the probes', { ...silent, iptables: PROBES }, true, 'probes-dropped'],
    ['not a rule, if weft doctor has no rules', { ...silent, iptables: PROBES }, false, undefined],
    ['not a rule for other packets', { ...silent, iptables: PORT }, true, undefined],
    [
      'the route, because packets pass it first',
      { ...silent, iptables: PROBES, kernelRoutes: wrongWay },
      true,
      'underlay-route',
    ],
  ])('is %s', (_name, facts, hasRules, cause) => expect(hiddenCause(side, facts, hasRules)).toBe(cause))
})
