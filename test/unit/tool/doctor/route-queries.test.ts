// route-queries.test.ts - weft doctor chooses the packets whose routes it looks up in the kernel.

import { describe, expect, it } from 'vitest'
import { formatAddress, parseAddress, type Address } from '../../../../src/net/address.ts'
import { countPeers, type PeerStatus, type Status } from '../../../../src/report/status.ts'
import {
  endsOf,
  marksIn,
  partsOf,
  peersOf,
  routeQueries,
  underlayQueries,
  type PeerQuery,
} from '../../../../src/tool/doctor/route-queries.ts'
import { ownSides } from '../../../../src/tool/doctor/sides.ts'
import { dualPeer, link, peerOfIpv6, sound, soundDual, soundIpv6, soundPeer } from '../../../support/facts.ts'
import { rulesIn } from '../../../support/kernel-routes.ts'

const status = sound.status!
const at = (text: string): Address => parseAddress(text)!
const third: PeerStatus = { ...soundPeer, lease: '10.5.3.0-24', subnet: '10.5.3.0/24', publicIp: '192.0.2.3' }
const withPeers = (peers: readonly PeerStatus[], of: Status = status): Status => ({
  ...of,
  peers: countPeers(peers, 10),
})
const many = (count: number): readonly PeerStatus[] =>
  Array.from({ length: count }, (_none, index) => ({
    ...soundPeer,
    lease: `10.5.${index + 2}.0-24`,
    subnet: `10.5.${index + 2}.0/24`,
    publicIp: `192.0.2.${index + 2}`,
  }))
const withBackend = (backendType: string, engine: string | null, of: Status = status): Status => ({
  ...of,
  config: { ...of.config!, backendType },
  dataPath: { ...of.dataPath!, engine },
})
/** Describes a lookup as `ip route get` is called. */
const words = ({ direction, query: { to, from, iif, oif, mark, part } }: PeerQuery): string =>
  [
    `${direction}:`,
    formatAddress(to),
    ...(from === undefined ? [] : ['from', formatAddress(from)]),
    ...(iif ? ['iif', iif.name] : []),
    ...(oif ? ['oif', oif.name] : []),
    ...(mark === undefined ? [] : ['mark', mark]),
    ...(part ? [JSON.stringify(part)] : []),
  ].join(' ')

describe('the route queries for packets between containers', () => {
  const DNS = '90:	from all ipproto udp dport 53 lookup 7'

  it('are made for each peer, mark and part', () => {
    const of = withPeers([soundPeer, third])
    expect(routeQueries(of, sound.links, [1, 2], { ipv4: rulesIn(DNS) }).map(words)).toEqual(
      ['10.5.2.2', '10.5.3.2'].flatMap((peer) => [
        `host: ${peer}`,
        `out: ${peer} from 10.5.1.2 iif cni0`,
        `out: ${peer} from 10.5.1.2 iif cni0 mark 1`,
        `out: ${peer} from 10.5.1.2 iif cni0 mark 2`,
        `in: 10.5.1.2 from ${peer} iif flannel0`,
        `host: ${peer} {"protocol":17,"dport":53}`,
        `out: ${peer} from 10.5.1.2 iif cni0 {"protocol":17,"dport":53}`,
        `in: 10.5.1.2 from ${peer} iif flannel0 {"protocol":17,"dport":53}`,
      ]),
    )
  })

  it('use only the policy rules of their own family', () => {
    const rules = { ipv4: rulesIn(DNS), ipv6: rulesIn('90:	from all ipproto ipv6-icmp lookup 7') }
    const of = routeQueries(soundDual.status, soundDual.links, [], rules).filter(({ query }) => query.part)
    expect(of.filter(({ direction }) => direction === 'host').map(words)).toEqual([
      'host: 10.5.2.2 {"protocol":17,"dport":53}',
      'host: fd00:5:0:2::2 {"protocol":58}',
    ])
    expect(of.every(({ family, query }) => (typeof query.to === 'number') === (family === 'ipv4'))).toBe(true)
  })

  it('are made for at most 16 peers, 8 marks and 8 parts', () => {
    const leases = (peers: number) =>
      new Set(routeQueries(withPeers(many(peers)), sound.links, []).map(({ lease }) => lease)).size
    expect([leases(15), leases(16), leases(17)]).toEqual([15, 16, 16])
    const marks = Array.from({ length: 9 }, (_none, index) => index + 1)
    const marked = routeQueries(status, sound.links, marks).flatMap(({ query }) => query.mark ?? [])
    expect(marked).toEqual([1, 2, 3, 4, 5, 6, 7, 8])
    const ports = Array.from({ length: 9 }, (_none, index) => `90: from all ipproto udp dport ${index + 1} lookup 7`)
    expect(partsOf(rulesIn(ports.join('\n')), 'ipv4').map(({ dport }) => dport)).toEqual([1, 2, 3, 4, 5, 6, 7, 8])
  })

  it('are not made for peers that are missing from the data path, or whose subnet is unreadable', () => {
    const all = [soundPeer, { ...third, state: 'stored' as const }, peerOfIpv6()]
    expect(routeQueries(withPeers(all), sound.links, []).map(words)).toEqual([
      'host: 10.5.2.2',
      'out: 10.5.2.2 from 10.5.1.2 iif cni0',
      'in: 10.5.1.2 from 10.5.2.2 iif flannel0',
    ])
    const dual = withPeers([dualPeer({}, { state: 'stored' })], soundDual.status)
    expect(routeQueries(dual, soundDual.links, []).map(({ family }) => family)).not.toContain('ipv6')
    expect(ownSides(status).flatMap((side) => peersOf(side, { ...status, peers: null }))).toEqual([])
    const unreadable = withPeers([{ ...third, subnet: '10.5.3.0' }])
    expect(routeQueries(unreadable, sound.links, [])).toEqual([])
  })

  it('are not made for the incoming direction if the data path has no device', () => {
    const devices = { ipv4: null, ipv6: null }
    const of = { ...status, dataPath: { ...status.dataPath!, device: null, devices } }
    expect(routeQueries(of, sound.links, []).map(({ direction }) => direction)).toEqual(['host', 'out'])
  })

  it('are made for a backend that only newer versions of weftd have', () =>
    expect(routeQueries(withBackend('newer', 'native'), sound.links, [])).toHaveLength(3))

  it.each<[string, Status]>([
    ['there is no data path', { ...status, dataPath: null }],
    ['weftd has not read its configuration', { ...status, config: null }],
    ['the data path has not chosen its engine', withBackend('udp', null)],
    ['the backend has no data path', withBackend('udp', 'none')],
    ['IPsec policies steer the packets', withBackend('ipsec', 'kernel')],
    ['the network of a cloud routes the packets', withBackend('gce', 'kernel')],
    ['this node has no subnet', { ...status, node: null }],
  ])('are not made if %s', (_why, of) => {
    expect(routeQueries(of, sound.links, [1], { ipv4: rulesIn(DNS) })).toEqual([])
    expect(underlayQueries(of, sound.links)).toEqual([])
  })
})

describe('the route queries for packets between hosts', () => {
  const from = (family: 'ipv4' | 'ipv6', of: Status, links = soundDual.links) =>
    underlayQueries(of, links)
      .filter((each) => each.family === family)
      .map(words)

  it('are made once for each peer, with the port of the backend', () =>
    expect(underlayQueries(withPeers([soundPeer, third]), sound.links).map(words)).toEqual([
      'underlay: 192.0.2.2 from 192.0.2.1 {"protocol":17,"dport":8285}',
      'from underlay: 192.0.2.1 from 192.0.2.2 iif eth0 {"protocol":17,"dport":8285}',
      'underlay: 192.0.2.3 from 192.0.2.1 {"protocol":17,"dport":8285}',
      'from underlay: 192.0.2.1 from 192.0.2.3 iif eth0 {"protocol":17,"dport":8285}',
    ]))

  it('are made for at most 16 peers', () => {
    const leases = (peers: number) =>
      new Set(underlayQueries(withPeers(many(peers)), sound.links).map(({ lease }) => lease)).size
    expect([leases(16), leases(17)]).toEqual([16, 16])
  })

  it('are made over IPv4 and IPv6, with the interface to which the kernel binds the packets of vxlan', () => {
    const of = soundDual.status
    expect(from('ipv4', of)).toEqual([
      'underlay: 192.0.2.2 from 192.0.2.1 oif eth0 {"protocol":17,"dport":8472}',
      'from underlay: 192.0.2.1 from 192.0.2.2 iif eth0 {"protocol":17,"dport":8472}',
    ])
    expect(from('ipv6', of)).toEqual([
      'underlay: 2001:db8::2 from 2001:db8::1 oif eth0 {"protocol":17,"dport":8472}',
      'from underlay: 2001:db8::1 from 2001:db8::2 iif eth0 {"protocol":17,"dport":8472}',
    ])
    expect(underlayQueries(soundIpv6.status!, soundIpv6.links)).toHaveLength(2)
  })

  it.each<[string, string, string | undefined]>([
    ['vxlan', 'kernel', 'eth0'],
    ['vxlan', 'native', undefined],
    ['wireguard', 'kernel', undefined],
    ['ipip', 'kernel', undefined],
    ['udp', 'native', undefined],
  ])('of the backend %s by the engine %s are bound to the interface %s', (backendType, engine, name) => {
    const [out] = underlayQueries(withBackend(backendType, engine), sound.links)
    expect(out!.query.oif?.name).toBe(name)
  })

  it('have the source address of an interface that has further addresses', () => {
    const [eth0] = [link('eth0', 1500, '192.0.2.1')]
    const more = link('eth0', 1500, '192.0.2.7').addresses.ipv4
    const links = [{ ...eth0, addresses: { ...eth0.addresses, ipv4: [...more, ...eth0.addresses.ipv4] } }]
    expect(underlayQueries(status, links).map(words)).toEqual(underlayQueries(status, sound.links).map(words))
  })

  it('are made once if the packets of both families use one underlay', () => {
    const backend = { Underlay: 'ipv6' }
    const endpoint = { endpoint: '[2001:db8::2]:8285' }
    const of = withBackend('udp', 'native', withPeers([dualPeer(endpoint, endpoint)], soundDual.status))
    const both = { ...of, config: { ...of.config!, backend } }
    expect(underlayQueries(both, soundDual.links).map(words)).toEqual([
      'underlay: 2001:db8::2 from 2001:db8::1 {"protocol":17,"dport":8285}',
      'from underlay: 2001:db8::1 from 2001:db8::2 iif eth0 {"protocol":17,"dport":8285}',
    ])
  })

  it.each<[string, string | null, number | undefined]>([
    ['udp', '192.0.2.2:8285', 8285],
    ['udp', '192.0.2.2:40000', 40_000],
    ['udp', '192.0.2.2', 8285],
    ['udp', null, 8285],
    ['vxlan', '192.0.2.2:8472', 8472],
    ['host-gw', '192.0.2.2', undefined],
    ['host-gw', '192.0.2.2:40000', undefined],
    ['ipip', '192.0.2.2', undefined],
  ])('of the backend %s to the endpoint %s have the port %s', (backendType, endpoint, port) => {
    const of = withBackend(backendType, 'native', withPeers([{ ...soundPeer, endpoint }]))
    const [out] = underlayQueries(of, sound.links)
    expect(out!.query.part).toEqual(port === undefined ? undefined : { protocol: 17, dport: port })
  })

  it('over IPv6 have the port of the endpoint, or the usual port if the endpoint is only an address', () => {
    const port = (endpoint: string) => {
      const peer = dualPeer({}, { endpoint })
      const of = underlayQueries(withPeers([peer], soundDual.status), soundDual.links)
      return of.find(({ family }) => family === 'ipv6')?.query.part?.dport
    }
    expect([port('[2001:db8::2]:40000'), port('[2001:db8::2]:8472'), port('2001:db8::2')]).toEqual([40_000, 8472, 8472])
    // The groups of an address can look like a port.
    expect([port('2001:db8::5:2'), port('2001:470::2')]).toEqual([8472, 8472])
  })

  it('have the port of the configuration', () => {
    const of = withPeers([{ ...soundPeer, endpoint: null }])
    const ports = underlayQueries({ ...of, config: { ...of.config!, backend: { Port: 4000 } } }, sound.links)
    expect(ports.map(({ query }) => query.part?.dport)).toEqual([4000, 4000])
  })

  it('are made without a source address if no interface has the public address, as behind a NAT router', () => {
    const translated = { ...status, node: { ...status.node!, publicIp: '203.0.113.1' } }
    expect(underlayQueries(translated, sound.links).map(words)).toEqual([
      'underlay: 192.0.2.2 {"protocol":17,"dport":8285}',
    ])
    expect(underlayQueries(status, [link('eth0', 1500, '192.0.2.7')])).toHaveLength(1)
    // Any interface may have the address, for example lo.
    expect(underlayQueries(status, [link('eth0', 1500, '192.0.2.7'), link('lo', 1500, '192.0.2.1')])).toHaveLength(2)
  })

  it('are not made if this host or the peer has no address of the family, or no external interface is known', () => {
    const own = { ...soundDual.status, node: { ...soundDual.status.node, publicIpv6: null } }
    expect(from('ipv6', own)).toEqual([])
    expect(from('ipv4', own)).toHaveLength(2)
    expect(from('ipv6', withPeers([{ ...dualPeer(), publicIpv6: null }], soundDual.status))).toEqual([])
    expect(underlayQueries({ ...status, node: { ...status.node!, externalInterface: null } }, sound.links)).toEqual([])
    const [side] = peersOf(ownSides(status)[0]!, status)
    expect(endsOf({ ...status, node: null }, side!)).toBeUndefined()
    expect(endsOf(status, side!)).toEqual({ family: 'ipv4', own: at('192.0.2.1'), host: at('192.0.2.2') })
  })
})

describe('the part of the packets that a rule selects', () => {
  it.each<[string, string, 'ipv4' | 'ipv6', readonly unknown[]]>([
    ['TCP', 'from all ipproto tcp lookup 7', 'ipv4', [{ protocol: 6 }]],
    ['UDP from a port', 'from all ipproto udp sport 5060-5070 lookup 7', 'ipv4', [{ protocol: 17, sport: 5060 }]],
    ['both ports', 'from all ipproto udp sport 68 dport 67 lookup 7', 'ipv4', [{ protocol: 17, sport: 68, dport: 67 }]],
    ['only a source port', 'from all sport 22 lookup 7', 'ipv4', [{ protocol: 6, sport: 22 }]],
    ['only a destination port', 'from all dport 22 lookup 7', 'ipv4', [{ protocol: 6, dport: 22 }]],
    ['a TOS of UDP', 'from all tos 0x10 ipproto udp lookup 7', 'ipv4', [{ protocol: 17, tos: 0x10 }]],
    ['the lowest DSCP', 'from all dscp 0 lookup 7', 'ipv4', [{ tos: 0 }]],
    ['the highest DSCP', 'from all dscp 63 lookup 7', 'ipv4', [{ tos: 0xfc }]],
    ['ICMP', 'from all ipproto icmp lookup 7', 'ipv4', [{ protocol: 1 }]],
    ['ICMP over IPv6', 'from all ipproto icmp lookup 7', 'ipv6', []],
    ['ICMPv6', 'from all ipproto ipv6-icmp lookup 7', 'ipv6', [{ protocol: 58 }]],
    ['ICMPv6 over IPv4', 'from all ipproto ipv6-icmp lookup 7', 'ipv4', []],
    ['SCTP', 'from all ipproto 132 dport 80 lookup 7', 'ipv4', []],
    ['all packets but SCTP', 'not from all ipproto 132 lookup 7', 'ipv4', [{ protocol: 6 }]],
    ['all packets but UDP', 'not from all ipproto udp lookup 7', 'ipv4', [{ protocol: 17 }, { protocol: 6 }]],
    ['all packets but TCP', 'not from all ipproto tcp lookup 7', 'ipv4', [{ protocol: 6 }]],
    ['packets of a tunnel', 'from all ipproto tcp tun_id 5 lookup 7', 'ipv4', []],
    ['packets of no tunnel', 'not from all tun_id 5 lookup 7', 'ipv4', []],
    ['all packets', 'from all lookup 52', 'ipv4', []],
    ['all packets but those with a mark', 'not from all fwmark 0xca6c lookup 51820', 'ipv4', []],
  ])('is examined: %s', (_what, rule, family, expected) =>
    expect(partsOf(rulesIn(`90:	${rule}`), family)).toEqual(expected),
  )

  it('is examined only once if two rules select it', () =>
    expect(
      partsOf(rulesIn('90: from all ipproto icmp lookup 7\n91: from all iif eth1 ipproto icmp lookup 8'), 'ipv4'),
    ).toEqual([{ protocol: 1 }]))
})

describe('the marks of firewall rules', () => {
  it.each<[string, string, readonly number[]]>([
    ['nftables', 'iifname "cni0" meta mark set 0x00000001 accept', [1]],
    ['nftables, at the end of the rule', 'meta mark set 0x0000ca6c', [0xca_6c]],
    ['iptables', '-A PREROUTING -i eth1 -j MARK --set-xmark 0x2/0xffffffff', [2]],
    ['kube-proxy', '-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000', [0x40_00]],
    ['the highest mark', '-A PREROUTING -j MARK --set-xmark 0xffffffff/0xffffffff', [0xff_ff_ff_ff]],
    ['several rules, two with the same mark', '--set-xmark 0x2/0xff\n--set-xmark 0x2/0xf\nmeta mark set 0x1', [2, 1]],
    ['a rule that removes a mark', '-A PREROUTING -j MARK --set-xmark 0x0/0xff\nmeta mark set 0x00000000', []],
    ['rules that compare marks', '-m mark --mark 0x7 -j ACCEPT\nmeta mark 0x00000007 accept', []],
    ['rules that mark connections', 'ct mark set 0x00000007', []],
  ])('are found: %s', (_what, rules, marks) => expect(marksIn(rules)).toEqual(marks))
})
