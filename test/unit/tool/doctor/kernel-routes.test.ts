// kernel-routes.test.ts - weft doctor judges the routes that the kernel uses, by all tables and rules.

import { describe, expect, it } from 'vitest'
import { ruleText } from '../../../../src/host/ip-words.ts'
import type { PolicyRule, RouteQuery, RulePart } from '../../../../src/host/kernel.ts'
import { formatAddress, parseAddress, type Address } from '../../../../src/net/address.ts'
import { countPeers } from '../../../../src/report/status.ts'
import { explain } from '../../../../src/tool/doctor/explain.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import {
  checkKernelRoutes,
  faultsOfParts,
  faultsOfProbes,
  markedFault,
  ruleFor,
} from '../../../../src/tool/doctor/kernel-routes.ts'
import {
  marksIn,
  partsOf,
  peersOf,
  routeQueries,
  type KernelRoutes,
  type PeerQuery,
} from '../../../../src/tool/doctor/route-queries.ts'
import { ownSides, type OwnSide, type SeenSide } from '../../../../src/tool/doctor/sides.ts'
import { dualPeer, route, sound, soundDual, soundPeer } from '../../../support/facts.ts'
import { answersTo, policyRule, routesBy, rulesIn } from '../../../support/kernel-routes.ts'

const found = (part: Partial<Facts>, isTold = false): string[] =>
  checkKernelRoutes({ ...sound, ...part }, isTold).map(({ name, detail }) => `${name}: ${detail}`)
const by = (changed: Parameters<typeof routesBy>[0], part: Partial<Facts> = {}): string[] =>
  found({ kernelRoutes: routesBy(changed), ...part })

const at = (text: string): Address => parseAddress(text)!

it('looks up a packet of a container, of this host, of a peer, and one with each mark', () => {
  expect(routeQueries(sound.status!, sound.links, [1]).map(({ direction, query }) => [direction, query])).toEqual([
    ['host', { to: at('10.5.2.2') }],
    ['out', { to: at('10.5.2.2'), from: at('10.5.1.2'), iif: { name: 'cni0' } }],
    ['out', { to: at('10.5.2.2'), from: at('10.5.1.2'), iif: { name: 'cni0' }, mark: 1 }],
    ['in', { to: at('10.5.1.2'), from: at('10.5.2.2'), iif: { name: 'flannel0' } }],
  ])
  const devices = { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' }
  const dual = { ...soundDual.status, dataPath: { ...soundDual.status.dataPath, devices } }
  expect(routeQueries(dual, soundDual.links, []).map(({ query }) => formatAddress(query.to))).toEqual([
    '10.5.2.2',
    '10.5.2.2',
    '10.5.1.2',
    'fd00:5:0:2::2',
    'fd00:5:0:2::2',
    'fd00:5:0:1::2',
  ])
  // Without a bridge of containers there are only queries for packets of this host.
  expect(routeQueries(sound.status!, [], [1]).map(({ direction }) => direction)).toEqual(['host'])
  const none = { ...sound.status!, dataPath: { ...sound.status!.dataPath!, engine: 'none' } }
  expect(routeQueries(none, sound.links, [])).toEqual([])
})

const direct = { ...sound.status!, peers: countPeers([{ ...soundPeer, way: 'direct' as const }], 10) }
it('does not look up packets from a directly routed peer, because rp_filter depends on their interface', () => {
  expect(routeQueries(direct, sound.links, []).map(({ direction }) => direction)).toEqual(['host', 'out'])
})

it('finds the marks that nftables and iptables set', () => {
  expect(
    marksIn('meta mark set 0x00000001\n meta mark set 0x00000001 accept\n ct mark set 0x2\n meta mark 0x3'),
  ).toEqual([1])
  expect(marksIn('-j MARK --set-xmark 0x5/0xffffffff\n-j MARK --set-xmark 0x0/0x3\n-m mark --mark 0x7')).toEqual([5])
})

describe('a policy routing rule', () => {
  const elsewhere = { device: 'ts0', table: 52 }

  it('for all packets is reported once, with the table', () => {
    expect(by({ host: elsewhere, out: elsewhere })).toEqual([
      'policy-route: 10.5.2.0/24 (from cni0) goes to ts0, by the table 52 and the rule "5270: from all lookup 52"',
    ])
    // The routes of the main table are right, so they are not reported.
    expect(found({ kernelRoutes: routesBy({ out: elsewhere }) }, true)).toHaveLength(1)
  })

  it('for packets of containers is found even if this host itself reaches the peer', () => {
    const via = { device: 'eth0', gateway: '192.0.2.254', table: 30400 }
    expect(by({ out: via })).toEqual([
      'policy-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.254, by the table 30400 and the rule "30400: from all iif cni0 lookup 30400"',
    ])
  })

  it('for incoming packets is found', () => {
    expect(by({ in: { device: 'eth0', gateway: '192.0.2.254', table: 52 } })).toEqual([
      'policy-route: from 10.5.2.0/24 (to 10.5.1.2) goes to eth0 via 192.0.2.254, by the table 52 and the rule "5270: from all lookup 52"',
    ])
  })

  it('gets a remedy that uses the main table first', () => {
    const [one] = checkKernelRoutes({ ...sound, kernelRoutes: routesBy({ out: elsewhere }) }, false)
    expect(one!.fix).toContain('`ip rule add pref 5269 to 10.5.0.0/16 lookup main`')
  })

  it.each<[string, Parameters<typeof routesBy>[0], string]>([
    [
      'this host',
      { host: elsewhere },
      '10.5.2.0/24 goes to ts0, by the table 52 and the rule "5270: from all lookup 52"',
    ],
    ['this host before those of the peer', { host: elsewhere, in: elsewhere }, '10.5.2.0/24 goes to ts0'],
    ['this host before those with a mark', { host: elsewhere, marked: elsewhere }, '10.5.2.0/24 goes to ts0'],
    ['the peer before those with a mark', { marked: elsewhere, in: elsewhere }, 'from 10.5.2.0/24 (to 10.5.1.2) goes'],
    [
      'containers before those of this host',
      { host: elsewhere, out: elsewhere },
      '10.5.2.0/24 (from cni0) goes to ts0',
    ],
    [
      'containers before those with a mark',
      { out: elsewhere, marked: elsewhere },
      '10.5.2.0/24 (from cni0) goes to ts0',
    ],
  ])('for several packets is reported once, with the packets of %s', (_whose, changed, detail) => {
    // The first set of firewall rules certainly marks the packets of containers, and the second one perhaps.
    for (const rule of ['-i cni0', '-m statistic --mode nth --every 2']) {
      const iptables = `*mangle\n-A PREROUTING ${rule} -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT`
      const all = by(changed, { iptables })
      expect(all).toEqual([expect.stringContaining(`policy-route: ${detail}`)])
      expect(all[0]).not.toMatch(/mark/)
    }
  })

  it('is named without its rule if weft doctor knows no rule for the table', () => {
    const detail = '10.5.2.0/24 (from cni0) goes to ts0, by the table 52'
    for (const rules of [{}, { ipv4: rulesIn('32766:	from all lookup main') }])
      expect(checkKernelRoutes({ ...sound, kernelRoutes: { ...routesBy({ out: elsewhere }), rules } }, false)).toEqual([
        { name: 'policy-route', detail },
      ])
  })

  it('for incoming packets is found even if the main table has no route to the bridge', () => {
    const routes = sound.routes.filter(({ device }) => device !== 'cni0')
    expect(by({ in: { device: 'eth0', table: 52 } }, { routes })).toEqual([
      expect.stringMatching(/^policy-route: from 10\.5\.2\.0\/24 /),
    ])
  })

  it('for packets of this host is found even if the kernel forwards no packets', () =>
    expect(by({ host: elsewhere, out: elsewhere, in: elsewhere }, { isForwarding: false })).toEqual([
      'policy-route: 10.5.2.0/24 goes to ts0, by the table 52 and the rule "5270: from all lookup 52"',
    ]))

  it('for a mark is only a warning', () => {
    const iptables =
      '*mangle\n-A PREROUTING -m statistic --mode nth --every 2 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
    expect(by({ marked: { device: 'eth0', gateway: '192.0.2.254', table: 100 } }, { iptables })).toEqual([
      'marked-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.254, by the table 100 and the rule "30000: from all fwmark 0x1/0x1 lookup 100", if it has the mark 0x1 that a firewall rule sets',
    ])
  })

  it('for a mark is a failure if a rule of the firewall certainly sets the mark', () => {
    const viaRouter = { device: 'eth0', gateway: '192.0.2.254', table: 100 }
    const mangle = '*mangle\n-A PREROUTING -i cni0 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
    const detail = `policy-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.254, by the table 100 and the rule "30000: from all fwmark 0x1/0x1 lookup 100", because it has the mark 0x1 by the firewall rule`
    expect(by({ marked: viaRouter }, { iptables: mangle })).toEqual([
      `${detail} -t mangle -A PREROUTING -i cni0 -j MARK --set-xmark 0x1/0xffffffff`,
    ])
    const nft =
      'table ip own {\n\tchain c {\n\t\ttype filter hook prerouting priority mangle; policy accept;\n\t\tiifname "cni0" meta mark set 0x00000001\n\t}\n}\n'
    expect(by({ marked: viaRouter }, { nft })).toEqual([
      `${detail} nft: ip own c: iifname "cni0" meta mark set 0x00000001`,
    ])
    expect(by({ marked: 'EACCES' }, { nft })).toEqual([
      expect.stringMatching(/^route-refused: .* because it has the mark/),
    ])
    // The first packet of a TCP connection decides, since it opens the connection.
    const first = mangle.replace('-i cni0', '-i cni0 -p tcp -m conntrack --ctstate NEW')
    expect(by({ marked: viaRouter }, { iptables: first })).toEqual([expect.stringMatching(/^policy-route: /)])
    // A wrong route of the main table also counts, even if another check reports the main table.
    const toMain = { marked: { device: 'eth0', gateway: '192.0.2.254' } }
    expect(found({ kernelRoutes: routesBy(toMain), iptables: mangle }, true)).toEqual([
      expect.stringMatching(/^foreign-route: .* because it has the mark 0x1/),
    ])
    // A later rule may give the packet another mark, and a condition may keep the rule from marking the packet.
    const overwritten = mangle.replace('COMMIT', '-A PREROUTING -j MARK --set-xmark 0x2/0x3\nCOMMIT')
    expect(by({ marked: viaRouter }, { iptables: overwritten })).toEqual([])
    const perhaps = mangle.replace('-i cni0', '-m set --match-set some src')
    expect(by({ marked: viaRouter }, { iptables: perhaps })).toEqual([expect.stringMatching(/^marked-route: /)])
    expect(by({}, { iptables: mangle })).toEqual([])
  })

  it('for a mark that no rule gives the packets of containers is not reported', () => {
    const viaRouter = { device: 'eth0', gateway: '192.0.2.254', table: 100 }
    const saved = (...rules: readonly string[]) => ({ iptables: ['*mangle', ...rules, 'COMMIT'].join('\n') })
    // A host with two providers marks the connections that arrive from one of them.
    const provider = saved(
      '-A PREROUTING -i eth1 -m conntrack --ctstate NEW -j CONNMARK --set-xmark 0x1/0xffffffff',
      '-A PREROUTING -i eth1 -j MARK --set-xmark 0x1/0xffffffff',
      '-A PREROUTING -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff',
    )
    expect(by({ marked: viaRouter }, provider)).toEqual([])
    // Cilium marks the packets of its proxy, and routes them to the host itself.
    const proxy = saved('-A PREROUTING -m socket --transparent -j MARK --set-xmark 0x1/0xffffffff')
    expect(by({ marked: { device: 'lo', type: 'local', table: 2004 } }, proxy)).toEqual([])
  })

  it('for a mark is only a warning if a later rule depends on the mark of an earlier rule', () => {
    const rules = [
      '-A PREROUTING -i cni0 -j MARK --set-xmark 0x2/0xffffffff',
      '-A PREROUTING -m mark --mark 0x0 -j MARK --set-xmark 0x1/0xffffffff',
    ]
    const iptables = ['*mangle', ...rules, 'COMMIT'].join('\n')
    const viaRouter = { device: 'eth0', gateway: '192.0.2.254', table: 100 }
    expect(by({ marked: viaRouter }, { iptables })).toEqual([expect.stringMatching(/^marked-route: /)])
    // A condition about the mark before the only rule that marks is known.
    const restored = iptables.replace(rules[0]!, '-A PREROUTING -m mark ! --mark 0x0 -j ACCEPT')
    expect(by({ marked: viaRouter }, { iptables: restored })).toEqual([expect.stringMatching(/^policy-route: /)])
  })
})

describe('a routing table that sends packets of containers to this host itself', () => {
  const rules = rulesIn(`
0:	from all lookup local
100:	from all fwmark 0x1 lookup 100
110:	from all iif cni0 lookup 110
32766:	from all lookup main`)
  const fault = (changed: Parameters<typeof routesBy>[0], part: Partial<Facts> = {}) =>
    checkKernelRoutes({ ...sound, ...part, kernelRoutes: { ...routesBy(changed), rules: { ipv4: rules } } }, false)
  const proxy = (table: number) => ({ device: 'lo', type: 'local', table }) as const

  it('is named with its rule and a remedy if this host does not have the address', () =>
    expect(fault({ out: proxy(110) })).toEqual([
      {
        name: 'policy-route',
        detail:
          '10.5.2.0/24 (from cni0) goes to this host itself, by the table 110 and the rule "110: from all iif cni0 lookup 110"',
        fix: expect.stringContaining('`ip rule add pref 109 to 10.5.0.0/16 lookup main`'),
      },
    ]))

  it('is named with the firewall rule that marks the packets', () => {
    const iptables = '*mangle\n-A PREROUTING -i cni0 -p tcp -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
    expect(fault({ marked: proxy(100) }, { iptables })).toEqual([
      expect.objectContaining({
        name: 'policy-route',
        detail: expect.stringMatching(/this host itself, by the table 100 .*fwmark 0x1 .*because it has the mark 0x1/),
      }),
    ])
  })

  it('is not named if this host has the address of the container', () => {
    const [one] = fault({ out: proxy(255) })
    expect(one).toEqual({
      name: 'foreign-route',
      detail: '10.5.2.0/24 (from cni0) goes to this host itself, which has the address',
    })
  })
})

describe('a refusal by the kernel', () => {
  it('names the prohibiting rule', () => {
    expect(by({ out: 'EACCES' })).toEqual([
      'route-refused: 10.5.2.0/24 (from cni0): Permission denied, by the rule "100: from all to 10.5.2.0/24 prohibit"',
    ])
  })

  it.each([
    ['prohibit', 'EACCES', 'Permission denied'],
    ['unreachable', 'ENETUNREACH', 'Network is unreachable'],
    ['blackhole', 'EINVAL', 'a blackhole drops the packets'],
  ])('by a rule with the action %s names this rule, and not the table before it', (action, errno, says) => {
    const rules = rulesIn(`
0:	from all lookup local
90:	from all to 10.5.2.0/24 lookup 7
100:	from all to 10.5.2.0/24 ${action}
32766:	from all lookup main`)
    const [one] = checkKernelRoutes(
      { ...sound, kernelRoutes: { ...routesBy({ host: errno }), rules: { ipv4: rules } } },
      false,
    )
    expect(one).toEqual({
      name: 'route-refused',
      detail: `10.5.2.0/24: ${says}, by the rule "100: from all to 10.5.2.0/24 ${action}"`,
      fix: expect.stringContaining('`ip rule add pref 99 to 10.5.0.0/16 lookup main`'),
    })
  })

  it.each([
    ['a blackhole', 'EINVAL', 'a blackhole drops the packets'],
    ['an unreachable route', 'EHOSTUNREACH', 'No route to host'],
    ['a prohibiting route', 'EACCES', 'Permission denied'],
  ])('by %s names no rule that refuses packets with another error', (_route, errno, says) => {
    const rules = { ipv4: rulesIn('100:	from all lookup 7\n32767:	from all unreachable') }
    const kernelRoutes = { ...routesBy({ host: errno }), rules }
    const detail = `10.5.2.0/24: ${says}`
    expect(checkKernelRoutes({ ...sound, kernelRoutes }, false)).toEqual([{ name: 'route-refused', detail }])
  })

  it('without a rule that refuses packets names the error, and no remedy', () => {
    const kernelRoutes = {
      ...routesBy({ in: 'ENETUNREACH' }),
      rules: { ipv4: rulesIn('32766:	from all lookup main') },
    }
    const detail = 'from 10.5.2.0/24 (to 10.5.1.2): Network is unreachable'
    expect(checkKernelRoutes({ ...sound, kernelRoutes }, false)).toEqual([{ name: 'route-refused', detail }])
    expect(checkKernelRoutes({ ...sound, kernelRoutes: { ...kernelRoutes, rules: {} } }, false)).toEqual([
      { name: 'route-refused', detail },
    ])
  })

  it('of packets of all protocols is explained by a blackhole, or by a source address of this host', () => {
    expect(by({ in: 'EINVAL' })).toEqual([
      'route-refused: from 10.5.2.0/24 (to 10.5.1.2): a blackhole drops the packets, or this host also has their source address',
    ])
  })

  it('of packets of all protocols is a blackhole if a rule with this action applies to them', () => {
    const rules = { ipv4: rulesIn('100:	from 10.5.2.0/24 blackhole') }
    expect(found({ kernelRoutes: { ...routesBy({ in: 'EINVAL' }), rules } })).toEqual([
      'route-refused: from 10.5.2.0/24 (to 10.5.1.2): a blackhole drops the packets, by the rule "100: from 10.5.2.0/24 blackhole"',
    ])
  })

  it('of IPv6 packets is a blackhole, because the kernel does not compare their source with its own addresses', () => {
    const queries = routeQueries(soundDual.status, soundDual.links, []).filter(
      ({ family, direction }) => family === 'ipv6' && direction === 'in',
    )
    const answers = answersTo(queries, () => 'EINVAL', 'flannel-v6.1')
    expect(found({ ...soundDual, kernelRoutes: { answers, rules: {} } })).toEqual([
      'route-refused: from fd00:5:0:2::/64 (to fd00:5:0:1::2): a blackhole drops the packets',
    ])
  })

  it('of a packet that perhaps has a mark is a warning', () => {
    const iptables =
      '*mangle\n-A PREROUTING -m statistic --mode nth --every 2 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
    expect(by({ marked: 'EACCES' }, { iptables })).toEqual([
      expect.stringMatching(/^marked-route: .*Permission denied, by the rule .*, if it has the mark 0x1 /),
    ])
  })

  it('because of rp_filter names rp_filter', () => {
    const [one] = checkKernelRoutes({ ...sound, kernelRoutes: routesBy({ in: 'EXDEV' }) }, false)
    expect([one!.name, one!.detail]).toEqual([
      'route-refused',
      'from 10.5.2.0/24 (to 10.5.1.2): rp_filter: the route back uses another interface',
    ])
    expect(one!.fix).toContain('net.ipv4.conf.flannel0.rp_filter=2')
    // A rule that refuses other packets is not the cause.
    const rules = { ipv4: rulesIn('100:	from all iif flannel0 prohibit') }
    expect(found({ kernelRoutes: { ...routesBy({ in: 'EXDEV' }), rules } })).toEqual([
      'route-refused: from 10.5.2.0/24 (to 10.5.1.2): rp_filter: the route back uses another interface',
    ])
  })

  it('to forward is not reported if the kernel forwards no packets at all', () => {
    expect(by({ out: 'EHOSTUNREACH', in: 'EHOSTUNREACH' }, { isForwarding: false })).toEqual([])
    // The kernel refuses these packets because it does not forward, and not because a rule marks the packets.
    const iptables = '*mangle\n-A PREROUTING -i cni0 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
    const all = { out: 'EHOSTUNREACH', marked: 'EHOSTUNREACH', in: 'EHOSTUNREACH' }
    expect(by(all, { isForwarding: false, iptables })).toEqual([])
    expect(by({ ...all, in: {} }, { unforwarded: ['cni0'], iptables })).toEqual([])
    expect(by({ out: 'EHOSTUNREACH' }, { unforwarded: ['cni0'] })).toEqual([])
    expect(by({ out: 'EHOSTUNREACH' }, { unforwarded: ['eth0', 'cni0'] })).toEqual([])
    expect(by({ out: 'EHOSTUNREACH' }, { unforwarded: ['flannel0'] })).toHaveLength(1)
  })
})

describe('a route of the main table', () => {
  it('is reported unless the check of the main table reports it', () => {
    const via = { device: 'eth0', gateway: '192.0.2.254' }
    expect(by({ host: via, out: via })).toEqual(['foreign-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.254'])
    expect(found({ kernelRoutes: routesBy({ out: via }) }, true)).toEqual([])
    // A route to the own subnet through a gateway is wrong too.
    expect(by({ in: via })).toEqual(['foreign-route: from 10.5.2.0/24 (to 10.5.1.2) goes to eth0 via 192.0.2.254'])
  })

  it('is not reported if only the route to the bridge of the containers is missing', () => {
    const routes = sound.routes.filter(({ device }) => device !== 'cni0')
    expect(by({ in: { device: 'flannel0' } }, { routes })).toEqual([])
    expect(by({ in: { device: 'flannel0' } })).toHaveLength(1)
  })

  it('is right if it leads to the peer itself, as with host-gw, or to an address of this host', () => {
    const toHost = { device: 'eth0', gateway: '192.0.2.2' }
    expect(by({ out: toHost, host: toHost }, { status: direct })).toEqual([])
    const toOther = { device: 'eth0', gateway: '192.0.2.254' }
    expect(by({ out: toOther }, { status: direct })).toEqual([
      expect.stringMatching(/^foreign-route: .* via 192\.0\.2\.254$/),
    ])
    // With a tunnel such a route is wrong.
    expect(by({ out: toHost, host: toHost })).toEqual([
      'foreign-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.2',
    ])
    expect(by({ in: { device: 'lo', type: 'local', table: 255 } })).toEqual([])
    // The address of the container is a broadcast address of this host, for example because of a wrong netmask.
    expect(by({ host: { type: 'broadcast', table: 255 } })).toEqual(['foreign-route: 10.5.2.0/24 goes to flannel0'])
    expect(by({ out: { device: 'lo', type: 'local', table: 255 } })).toEqual([
      'foreign-route: 10.5.2.0/24 (from cni0) goes to this host itself, which has the address',
    ])
  })

  it('is not judged if the routes were not looked up', () => expect(found({})).toEqual([]))
})

describe('a policy routing rule for a part of the packets', () => {
  const partial = (part: RulePart, of: Partial<PolicyRule> = {}) => policyRule(90, { table: 7, part, ...of })
  const parts = (...rules: PolicyRule[]) => partsOf(rules, 'ipv4')

  it('makes weft doctor look up a packet of that part', () => {
    expect(parts(partial({ protocol: 1 }), partial({ protocol: 1 }))).toEqual([{ protocol: 1 }])
    expect(parts(partial({ dport: [53, 54] }))).toEqual([{ protocol: 6, dport: 53 }])
    expect(parts(partial({ protocol: 17, sport: [7, 7] }))).toEqual([{ protocol: 17, sport: 7 }])
    expect(parts(partial({ tos: 16 }), partial({ dscp: 46 }))).toEqual([{ tos: 16 }, { tos: 184 }])
    // sing-box makes "not from all dport 53 lookup main": packets to port 53 take the next rules.
    expect(parts(partial({ protocol: 17 }, { isInverted: true }))).toEqual([{ protocol: 17 }, { protocol: 6 }])
    expect(parts(partial({ dport: [53, 53] }, { isInverted: true }))).toEqual([
      { protocol: 6, dport: 53 },
      { protocol: 6 },
    ])
    // The kernel looks up no packets of SCTP and of another family's ICMP, and containers send none with a tunnel.
    expect(parts(partial({ protocol: 132 }), partial({ protocol: 58 }), partial({ tunnel: 5n }))).toEqual([])
    expect(partsOf([partial({ protocol: 58 })], 'ipv6')).toEqual([{ protocol: 58 }])
    const queries = routeQueries(sound.status!, sound.links, [1], { ipv4: [partial({ protocol: 1 })] })
    expect(queries.filter(({ query }) => query.part).map(({ direction }) => direction)).toEqual(['host', 'out', 'in'])
  })

  /** Returns the answers of a kernel that treats the packets of a rule's part in another way. */
  function routesOf(
    part: RulePart,
    changed: Parameters<typeof routesBy>[0],
    of: Partial<PolicyRule> = {},
  ): KernelRoutes {
    const rules = [...routesBy({}).rules.ipv4!, partial(part, of)].toSorted((a, b) => a.priority - b.priority)
    const queries = routeQueries(sound.status!, sound.links, [], { ipv4: rules }).filter(({ query }) => query.part)
    const answers = queries.flatMap((each) => {
      const { answer } = routesBy(changed).answers.find(({ direction }) => direction === each.direction)!
      return [{ ...each, answer }]
    })
    return { answers: [...routesBy({}).answers, ...answers], rules: { ipv4: rules } }
  }
  const explained = (kernelRoutes: KernelRoutes, [source, destination]: readonly [string, string]) =>
    explain({
      source: at(source),
      destination: at(destination),
      status: sound.status!,
      facts: { ...sound, kernelRoutes },
      route: route('', source === '10.5.1.2' ? 'flannel0' : 'cni0'),
    })
      .filter(({ passes }) => passes !== true)
      .map(({ step, passes, says }) => `${step} ${passes} ${says}`)
  const [out, back] = [
    ['10.5.1.2', '10.5.2.2'],
    ['10.5.2.2', '10.5.1.2'],
  ] as const

  it('is reported with the rule if the packets go to another interface or to a blackhole', () => {
    const gone = routesOf({ protocol: 1 }, { host: 'EINVAL', out: 'EINVAL' })
    const detail =
      '10.5.2.0/24 (from cni0): a blackhole drops the packets, by the rule "90: from all ipproto icmp lookup 7", which is for a part of the packets'
    expect(found({ kernelRoutes: gone })).toEqual([`route-refused: ${detail}`])
    expect(explained(gone, out)).toEqual([`route undefined ${detail}`])
    expect(explained(gone, back)).toEqual([])
    const [one] = checkKernelRoutes({ ...sound, kernelRoutes: gone }, false)
    expect(one!.fix).toContain('`ip rule add pref 89 to 10.5.0.0/16 lookup main`')

    const vpn = routesOf({ protocol: 17, dport: [53, 53] }, { in: { device: 'vpn0', table: 7 } })
    const elsewhere =
      'from 10.5.2.0/24 (to 10.5.1.2) goes to vpn0, by the table 7 and the rule "90: from all ipproto udp dport 53 lookup 7", which is for a part of the packets'
    expect(found({ kernelRoutes: vpn })).toEqual([`policy-route: ${elsewhere}`])
    expect(explained(vpn, back)).toEqual([`route undefined ${elsewhere}`])
  })

  /** Returns the answers of a kernel in which several rules each select a part of the packets. */
  function routesOfAll(listing: string, change: Parameters<typeof answersTo>[1]): KernelRoutes {
    const rules = { ipv4: rulesIn(listing) }
    return { answers: answersTo(routeQueries(sound.status!, sound.links, [1], rules), change, 'flannel0'), rules }
  }
  const DNS_AND_PING = `
0:	from all lookup local
90:	from all ipproto udp dport 53 lookup 7
91:	from all ipproto icmp lookup 7
100:	from all fwmark 0x1 lookup 8
32766:	from all lookup main`
  const vpn = { device: 'vpn0', table: 7 }

  it('is reported for each of the parts, first for packets of containers', () => {
    const details = (isFaulty: (each: PeerQuery) => boolean) =>
      found({ kernelRoutes: routesOfAll(DNS_AND_PING, (each) => (isFaulty(each) ? vpn : undefined)) })
    expect(details(({ query }) => query.part !== undefined)).toEqual([
      expect.stringMatching(/^policy-route: 10\.5\.2\.0\/24 \(from cni0\) goes to vpn0, .* dport 53 lookup 7"/),
      expect.stringMatching(/^policy-route: 10\.5\.2\.0\/24 \(from cni0\) goes to vpn0, .* icmp lookup 7"/),
    ])
    expect(details(({ query, direction }) => query.part?.protocol === 1 && direction !== 'out')).toEqual([
      expect.stringMatching(/^policy-route: 10\.5\.2\.0\/24 goes to vpn0, .* icmp lookup 7"/),
    ])
    expect(details(({ query, direction }) => query.part?.protocol === 1 && direction === 'in')).toEqual([
      expect.stringMatching(/^policy-route: from 10\.5\.2\.0\/24 \(to 10\.5\.1\.2\) goes to vpn0, .* icmp lookup 7"/),
    ])
  })

  it('is not reported if all packets of this host take a wrong route', () => {
    const change = ({ query, direction }: PeerQuery) => (direction === 'host' || query.part ? vpn : undefined)
    expect(found({ kernelRoutes: routesOfAll(DNS_AND_PING, change) })).toEqual([
      'policy-route: 10.5.2.0/24 goes to vpn0, by the table 7',
    ])
  })

  it('is reported together with a wrong route of packets that perhaps have a mark', () => {
    const iptables =
      '*mangle\n-A PREROUTING -m statistic --mode nth --every 2 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
    const change = ({ query }: PeerQuery) =>
      query.mark === 1 ? { device: 'eth1', table: 8 } : query.part?.protocol === 1 ? vpn : undefined
    const kernelRoutes = routesOfAll(DNS_AND_PING, change)
    expect(found({ kernelRoutes, iptables })).toEqual([
      expect.stringMatching(/^policy-route: .* goes to vpn0, .* icmp lookup 7"/),
      expect.stringMatching(/^marked-route: .* goes to eth1, .* fwmark 0x1 lookup 8", if it has the mark 0x1 /),
    ])
    expect(explained(kernelRoutes, out)).toEqual([expect.stringMatching(/^route undefined .* goes to vpn0, .* icmp /)])
  })

  it('is reported even if its route is in the main table, and another check reports that table', () => {
    // All packets take the table 52 to the data path, but those to DNS servers take the main table.
    const listing = `
0:	from all lookup local
90:	from all ipproto udp dport 53 lookup main
100:	from all lookup 52
32766:	from all lookup main`
    const kernelRoutes = routesOfAll(listing, ({ query }) =>
      query.part ? { device: 'eth0', gateway: '192.0.2.254' } : { table: 52 },
    )
    const detail = '10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.254, which is for a part of the packets'
    expect(found({ kernelRoutes }, true)).toEqual([`foreign-route: ${detail}`])
    expect(explained(kernelRoutes, out)).toEqual([`route undefined ${detail}`])
  })

  it('is reported with the error and the rule if the kernel refuses the packets', () => {
    const kernelRoutes = routesOfAll(
      `
0:	from all lookup local
80:	from all to 10.5.2.0/24 lookup 7
90:	from all ipproto tcp dport 25 prohibit
32766:	from all lookup main`,
      ({ query }) => (query.part ? 'EACCES' : undefined),
    )
    expect(found({ kernelRoutes })).toEqual([
      'route-refused: 10.5.2.0/24 (from cni0): Permission denied, by the rule "90: from all ipproto tcp dport 25 prohibit", which is for a part of the packets',
    ])
  })

  it('is not named as the cause of a wrong route of all packets', () => {
    const elsewhere = { device: 'ts0', table: 52 }
    const all = routesOf({ protocol: 1 }, { out: elsewhere })
    const answers = all.answers.map((each) => (each.direction === 'out' ? { ...each, ...answerOf(elsewhere) } : each))
    const kernelRoutes = { ...all, answers }
    expect(found({ kernelRoutes })).toEqual([
      'policy-route: 10.5.2.0/24 (from cni0) goes to ts0, by the table 52 and the rule "5270: from all lookup 52"',
    ])
    expect(explained(kernelRoutes, out)).toEqual([])
  })
  const answerOf = (changed: Parameters<typeof routesBy>[0]['out']) => ({
    answer: routesBy({ out: changed! }).answers.find(({ direction }) => direction === 'out')!.answer,
  })

  it('is not reported if its table gives the packets to this host itself, as for a transparent proxy', () => {
    const proxied = (table: number) => routesOf({ protocol: 6 }, { out: { device: 'lo', type: 'local', table } })
    expect(found({ kernelRoutes: proxied(7) })).toEqual([])
    expect(explained(proxied(7), out)).toEqual([])
    expect(found({ kernelRoutes: proxied(255) })).toHaveLength(1)
  })

  it('is not reported if its table sends the packets as the main table does', () =>
    expect(found({ kernelRoutes: routesOf({ protocol: 1 }, {}) })).toEqual([]))
})

describe('the policy rule by which the kernel chose a table', () => {
  const ofHost: RouteQuery = { to: at('10.5.2.2') }
  const ofContainer: RouteQuery = { ...ofHost, from: at('10.5.1.2'), iif: { name: 'cni0' } }
  const ofPeer: RouteQuery = { to: at('10.5.1.2'), from: at('10.5.2.2'), iif: { name: 'flannel0' } }
  const ofHost6: RouteQuery = { to: at('fd00:5:0:2::2') }
  const ofContainer6: RouteQuery = { ...ofHost6, from: at('fd00:5:0:1::2'), iif: { name: 'cni0' } }
  const packet = (part: RouteQuery['part'], query = ofContainer): RouteQuery => ({ ...query, part: part! })
  const [tcp, udp, icmp] = [6, 17, 1]

  const TAILSCALE = `
0:	from all lookup local
5210:	from all fwmark 0x80000/0xff0000 lookup main
5230:	from all fwmark 0x80000/0xff0000 lookup default
5250:	from all fwmark 0x80000/0xff0000 unreachable
5270:	from all lookup 52
32766:	from all lookup main
32767:	from all lookup default`
  // wg-quick with AllowedIPs = 0.0.0.0/0.
  const WG_QUICK = `
0:	from all lookup local
32764:	from all lookup main suppress_prefixlength 0
32765:	not from all fwmark 0xca6c lookup 51820
32766:	from all lookup main
32767:	from all lookup default`
  // sing-box with auto_route (sing-tun, tun_linux.go).
  const SING_BOX = `
0:	from all lookup local
9000:	from all to 172.19.0.0/30 lookup 2022
9001:	not from all dport 53 lookup main suppress_prefixlength 0
9002:	not from all iif lo lookup 2022
9003:	from 0.0.0.0 iif lo lookup 2022
9004:	from 172.19.0.0/30 iif lo lookup 2022
32766:	from all lookup main
32767:	from all lookup default`
  // A second provider for a part of the containers and for the mail of this host, with a route to each uplink.
  const PROVIDERS = `
0:	from all lookup local
100:	from all to 192.0.2.0/24 lookup 7
110:	from 10.5.3.0/24 lookup 7
120:	from all iif eth1 lookup 7
130:	from all oif eth1 lookup 7
140:	from all fwmark 0x7/0xff lookup 7
150:	from all ipproto tcp dport 25 lookup 7
160:	from all ipproto udp sport 5060-5070 lookup 7
170:	from all tos 0x10 lookup 7
180:	from all dscp 46 lookup 7
190:	from all tun_id 5 lookup 7
32766:	from all lookup main`
  // Rules that each compare one property of a packet, and rules with `not`.
  const MATCHING = `
100:	from all to 10.5.2.0/24 lookup 1
110:	from 10.5.1.0/24 lookup 2
120:	from all iif cni0 lookup 3
130:	from all iif lo lookup 4
200:	not from all to 10.5.2.0/24 lookup 11
210:	not from 10.5.1.0/24 lookup 12
220:	not from all iif cni0 lookup 13
230:	not from all fwmark 0x7/0xff lookup 14
240:	not from all ipproto udp dport 53 lookup 15`
  const IPV6 = `
0:	from all lookup local
90:	from all ipproto udp lookup 7
100:	from fd00:5:0:1::/64 lookup 7
110:	from all to fd00:5:0:2::/64 lookup 7
120:	from all ipproto ipv6-icmp lookup 9`

  it.each<[string, string, RouteQuery, number, number | undefined]>([
    ['tailscale takes the packets of containers', TAILSCALE, ofContainer, 52, 5270],
    ['wg-quick takes all packets without its own mark', WG_QUICK, ofContainer, 51_820, 32_765],
    ['wg-quick leaves its own packets to the main table', WG_QUICK, { ...ofHost, mark: 0xca_6c }, 51_820, undefined],
    ['sing-box takes packets that arrive on other interfaces', SING_BOX, ofContainer, 2022, 9002],
    ['sing-box takes packets of this host without a source address', SING_BOX, ofHost, 2022, 9003],
    [
      'sing-box takes packets of this host with its tunnel address',
      SING_BOX,
      { ...ofHost, from: at('172.19.0.1') },
      2022,
      9004,
    ],
    [
      'sing-box leaves packets of this host with other addresses',
      SING_BOX,
      { ...ofHost, from: at('192.0.2.1') },
      2022,
      undefined,
    ],
    ['a rule for other destinations, sources, interfaces and marks', PROVIDERS, ofContainer, 7, undefined],
    ['a packet of this host without a source', PROVIDERS, ofHost, 7, undefined],
    ['a packet to another network', PROVIDERS, { ...ofContainer, to: at('192.0.2.7') }, 7, 100],
    ['a packet of another subnet', PROVIDERS, { ...ofContainer, from: at('10.5.3.2') }, 7, 110],
    ['a packet that arrives on another interface', PROVIDERS, { ...ofContainer, iif: { name: 'eth1' } }, 7, 120],
    ['a packet of a socket that is bound to an interface', PROVIDERS, { ...ofHost, oif: { name: 'eth1' } }, 7, 130],
    ['a packet of a socket that is bound elsewhere', PROVIDERS, { ...ofHost, oif: { name: 'eth0' } }, 7, undefined],
    ['a packet with the mark, among other bits', PROVIDERS, { ...ofContainer, mark: 0xf07 }, 7, 140],
    ['a packet with another mark', PROVIDERS, { ...ofContainer, mark: 0x8 }, 7, undefined],
    // The kernel compares only the bits of the mask, and does not clear the other bits of the rule's mark.
    ['the bits of the mask', '140: from all fwmark 0x17/0xf lookup 7', { ...ofContainer, mark: 0x27 }, 7, 140],
    ['other bits of the mask', '140: from all fwmark 0x17/0xf lookup 7', { ...ofContainer, mark: 0x13 }, 7, undefined],
    [
      'the highest mark',
      '140: from all fwmark 0xf0000000/0xf0000000 lookup 7',
      { ...ofHost, mark: 0xff_ff_ff_ff },
      7,
      140,
    ],
    ['a mail', PROVIDERS, packet({ protocol: tcp, dport: 25 }), 7, 150],
    ['a packet to another TCP port', PROVIDERS, packet({ protocol: tcp, dport: 26 }), 7, undefined],
    ['a datagram to the port 25', PROVIDERS, packet({ protocol: udp, dport: 25 }), 7, undefined],
    ['a ping', PROVIDERS, packet({ protocol: icmp }), 7, undefined],
    ['the port below the range', PROVIDERS, packet({ protocol: udp, sport: 5059 }), 7, undefined],
    ['the first port of the range', PROVIDERS, packet({ protocol: udp, sport: 5060 }), 7, 160],
    ['the last port of the range', PROVIDERS, packet({ protocol: udp, sport: 5070 }), 7, 160],
    ['the port above the range', PROVIDERS, packet({ protocol: udp, sport: 5071 }), 7, undefined],
    ['a packet to a port of the range', PROVIDERS, packet({ protocol: udp, dport: 5060 }), 7, undefined],
    ['a packet with the TOS', PROVIDERS, packet({ tos: 0x10 }), 7, 170],
    ['a packet with the DSCP', PROVIDERS, packet({ tos: 46 << 2 }), 7, 180],
    ['a packet with the DSCP and with ECN', PROVIDERS, packet({ tos: (46 << 2) | 1 }), 7, 180],
    ['a packet with another TOS', PROVIDERS, packet({ tos: 0x20 }), 7, undefined],
    ['the destination', MATCHING, ofContainer, 1, 100],
    ['the source', MATCHING, ofContainer, 2, 110],
    ['the interface', MATCHING, ofContainer, 3, 120],
    ['the interface lo does not send the packets of containers', MATCHING, ofContainer, 4, undefined],
    ['the interface lo sends the packets of this host', MATCHING, ofHost, 4, 130],
    [
      'the socket is bound, but the rule names no such interface',
      MATCHING,
      { ...ofHost, oif: { name: 'eth0' } },
      4,
      130,
    ],
    ['all packets but those to a network, to it', MATCHING, ofContainer, 11, undefined],
    ['all packets but those to a network', MATCHING, ofPeer, 11, 200],
    ['all packets but those from a network, from it', MATCHING, ofContainer, 12, undefined],
    ['all packets but those from a network', MATCHING, ofPeer, 12, 210],
    ['all packets but those from an interface, from it', MATCHING, ofContainer, 13, undefined],
    ['all packets but those from an interface', MATCHING, ofPeer, 13, 220],
    ['all packets but those with a mark', MATCHING, ofContainer, 14, 230],
    ['all packets but those with a mark, with it', MATCHING, { ...ofContainer, mark: 7 }, 14, undefined],
    ['all packets but those to the DNS server', MATCHING, packet({ protocol: tcp, dport: 53 }), 15, 240],
    ['all packets but those to the DNS server, to it', MATCHING, packet({ protocol: udp, dport: 53 }), 15, undefined],
    // The kernel looks up an IPv4 packet without a protocol as UDP, and an IPv6 packet as a packet of no protocol.
    ['a rule for UDP and a lookup over IPv4', '90: from all ipproto udp lookup 7', ofContainer, 7, 90],
    ['a rule for TCP and a lookup over IPv4', '90: from all ipproto tcp lookup 7', ofContainer, 7, undefined],
    ['a rule for UDP and a lookup over IPv6', IPV6, ofContainer6, 7, 100],
    ['a rule for UDP and a lookup for UDP over IPv6', IPV6, packet({ protocol: udp }, ofContainer6), 7, 90],
    ['a rule for a source, and a packet of this host', IPV6, ofHost6, 7, 110],
    ['a ping over IPv6', IPV6, packet({ protocol: 58 }, ofContainer6), 9, 120],
    ['no ping over IPv6', IPV6, ofContainer6, 9, undefined],
  ])('is found: %s', (_setup, listing, query, table, priority) =>
    expect(ruleFor(rulesIn(listing), query, (rule) => rule.table === table)?.priority).toBe(priority),
  )

  it('is written as `ip rule` prints it', () => {
    for (const listing of [TAILSCALE, PROVIDERS, MATCHING, IPV6])
      expect(`\n${rulesIn(listing).map(ruleText).join('\n')}`).toBe(listing.replaceAll('\t', ' '))
  })

  it('is unknown if weft doctor does not know the rules', () =>
    expect(ruleFor(undefined, ofContainer, () => true)).toBeUndefined())
})

describe('the routes that lose the probes of a peer', () => {
  const [side] = ownSides(sound.status!)
  const [peer] = peersOf(side!, sound.status!)
  const probes = (part: Partial<Facts>) => faultsOfProbes(peer!, { ...sound, ...part }).map(({ name }) => name)

  it.each<[string, string, number]>([
    ['ICMP', '90: from all ipproto icmp lookup 7', 1],
    ['ICMP with a TOS that probes do not have', '90: from all tos 0x10 ipproto icmp lookup 7', 0],
    ['a TOS', '90: from all tos 0x10 lookup 7', 0],
    ['TCP', '90: from all ipproto tcp lookup 7', 0],
    ['a UDP port', '90: from all ipproto udp dport 53 lookup 7', 0],
  ])('include a wrong route for %s only if the probes take it', (_part, listing, count) => {
    const rules = { ipv4: rulesIn(listing) }
    const queries = routeQueries(sound.status!, sound.links, [], rules)
    const answers = answersTo(
      queries,
      ({ query }) => (query.part ? { device: 'vpn0', table: 7 } : undefined),
      'flannel0',
    )
    expect(checkKernelRoutes({ ...sound, kernelRoutes: { answers, rules } }, false)).toHaveLength(1)
    expect(probes({ kernelRoutes: { answers, rules } })).toEqual(Array.from({ length: count }, () => 'policy-route'))
  })

  it('are not the routes of containers, because this host itself sends the probes', () => {
    const elsewhere = { device: 'eth1', table: 30_400 }
    const iptables = '*mangle\n-A PREROUTING -i cni0 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
    expect(probes({ kernelRoutes: routesBy({ out: elsewhere, in: elsewhere }) })).toEqual([])
    expect(probes({ kernelRoutes: routesBy({ out: 'EXDEV', in: 'EACCES' }) })).toEqual([])
    expect(probes({ kernelRoutes: routesBy({ marked: elsewhere }), iptables })).toEqual([])
    // rp_filter rejects the answers of the peer too.
    expect(probes({ kernelRoutes: routesBy({ in: 'EXDEV' }) })).toEqual(['route-refused'])
  })

  it('include wrong routes of the main table', () =>
    expect(probes({ kernelRoutes: routesBy({ host: { device: 'eth0', gateway: '192.0.2.254' } }) })).toEqual([
      'foreign-route',
    ]))

  it('are none if weft doctor looked up no routes, or if this node has no subnet', () => {
    expect(probes({})).toEqual([])
    const kernelRoutes = routesBy({ host: 'EACCES' })
    expect(probes({ kernelRoutes, status: { ...sound.status!, node: null } })).toEqual([])
    expect(probes({ kernelRoutes, status: undefined })).toEqual([])
  })
})

describe('in a dual-stack network with two peers, a wrong route', () => {
  const third = {
    ...dualPeer(),
    lease: '10.5.3.0-24&fd00:5:0:3::-64',
    subnet: '10.5.3.0/24',
    publicIp: '192.0.2.3',
    ipv6Subnet: 'fd00:5:0:3::/64',
    publicIpv6: '2001:db8::3',
  }
  const status = { ...soundDual.status, peers: countPeers([dualPeer(), third], 10) }
  const mangle = '*mangle\n-A PREROUTING -i cni0 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
  const facts: Facts = { ...soundDual, status, iptables: mangle, ip6tables: mangle }
  const LISTING = `
0:	from all lookup local
90:	from all ipproto tcp dport 25 lookup 7
100:	from all fwmark 0x1 lookup 7
110:	from all iif cni0 lookup 7
32766:	from all lookup main`
  const rules = { ipv4: rulesIn(LISTING), ipv6: rulesIn(LISTING) }
  const queries = routeQueries(status, facts.links, [1], rules)
  const answering = (isWrong: (each: PeerQuery) => boolean, part: Partial<Facts> = {}): Facts => {
    const change = (each: PeerQuery) => (isWrong(each) ? { device: 'eth1', table: 7 } : undefined)
    const of = (family: 'ipv4' | 'ipv6', device: string) =>
      answersTo(
        queries.filter((each) => each.family === family),
        change,
        device,
      )
    const answers = [...of('ipv4', 'flannel.1'), ...of('ipv6', 'flannel-v6.1')]
    return { ...facts, ...part, kernelRoutes: { answers, rules } }
  }
  /** Returns the details of the findings that a check returns for all peers and both families. */
  const all = (check: (peer: SeenSide, side: OwnSide) => readonly { detail: string }[]): readonly string[] =>
    ownSides(status).flatMap((side) =>
      peersOf(side, status).flatMap((peer) => check(peer, side).map(({ detail }) => detail)),
    )

  it.each([
    ['ipv4', dualPeer().lease, '10.5.2.0/24', 'ip rule add pref 109 to 10.5.0.0/16 lookup main'],
    ['ipv4', third.lease, '10.5.3.0/24', 'ip rule add pref 109 to 10.5.0.0/16 lookup main'],
    ['ipv6', dualPeer().lease, 'fd00:5:0:2::/64', 'ip -6 rule add pref 109 to fd00:5::/48 lookup main'],
    ['ipv6', third.lease, 'fd00:5:0:3::/64', 'ip -6 rule add pref 109 to fd00:5::/48 lookup main'],
  ])('over %s to %s is reported only for that peer and family', (family, lease, subnet, fix) => {
    const isTo = (each: PeerQuery) => each.family === family && each.lease === lease && each.direction === 'out'
    const detail = new RegExp(`^${subnet.replaceAll('.', '\\.')} \\(from cni0\\) goes to eth1, by the table 7 `)

    const whole = answering((each) => isTo(each) && !each.query.part && each.query.mark === undefined)
    expect(checkKernelRoutes(whole, false)).toEqual([
      { name: 'policy-route', detail: expect.stringMatching(detail), fix: expect.stringContaining(fix) },
    ])

    const partial = answering((each) => isTo(each) && each.query.part !== undefined)
    expect(all((peer, side) => faultsOfParts(peer, side, 'out', partial))).toEqual([expect.stringMatching(detail)])
    expect(all((peer, side) => faultsOfParts(peer, side, 'in', partial))).toEqual([])

    const marked = answering((each) => isTo(each) && each.query.mark === 1)
    expect(all((peer, side) => markedFault(peer, side, marked))).toEqual([expect.stringMatching(detail)])
    expect(checkKernelRoutes(marked, false)).toHaveLength(1)
    // Without the rule that marks packets of containers there is no fault.
    const unmarked = { iptables: mangle.replace('cni0', 'eth1'), ip6tables: mangle.replace('cni0', 'eth1') }
    expect(all((peer, side) => markedFault(peer, side, { ...marked, ...unmarked }))).toEqual([])
  })

  it.each<[string, Partial<Facts>, readonly string[]]>([
    ['if the kernel forwards only IPv4', { isForwardingIpv6: false }, ['10.5.2.0/24', '10.5.3.0/24']],
    ['if the kernel forwards only IPv6', { isForwarding: false }, ['fd00:5:0:2::/64', 'fd00:5:0:3::/64']],
    ['if it forwards no IPv4 of cni0', { unforwarded: ['cni0'] }, ['fd00:5:0:2::/64', 'fd00:5:0:3::/64']],
    [
      'if it forwards no IPv4 of eth0',
      { unforwarded: ['eth0'] },
      ['10.5.2.0/24', '10.5.3.0/24', 'fd00:5:0:2::/64', 'fd00:5:0:3::/64'],
    ],
  ])('of containers is reported only for families that the kernel forwards: %s', (_when, part, subnets) => {
    const findings = checkKernelRoutes(
      answering(({ direction }) => direction === 'out', part),
      false,
    )
    expect(findings.map(({ detail }) => detail.split(' ')[0])).toEqual(subnets)
  })

  it('is not reported if weft does not know the routes that the kernel chose', () => {
    for (const part of [{}, { ...answering(() => true), status: undefined }]) {
      expect(all((peer, side) => faultsOfParts(peer, side, 'out', { ...facts, ...part }))).toEqual([])
      expect(all((peer, side) => markedFault(peer, side, { ...facts, ...part }))).toEqual([])
    }
  })
})
