// nft-walk.test.ts - the verdict of nftables about a packet, for rule sets that common programs make: which chains see
// the packet, how chains, sets and counters are read, and which statements of a rule drop, accept or change the packet.

import { describe, expect, it } from 'vitest'
import { parseAddress } from '../../../../src/net/address.ts'
import type { Bridged, FilteredPacket } from '../../../../src/tool/doctor/chain-walk.ts'
import { ARP, readRuleset, tablesOf } from '../../../../src/tool/doctor/nft-walk.ts'

/** The first packet of a connection from a container of this host to a container of a peer. */
const outward: FilteredPacket = {
  chain: 'FORWARD',
  protocol: 'tcp',
  source: parseAddress('10.244.1.2')!,
  destination: parseAddress('10.244.2.2')!,
  port: 80,
  from: 'cni0',
  to: 'flannel.1',
  state: 'new',
}
/** A vxlan packet of a peer to this host. */
const arriving: FilteredPacket = {
  chain: 'INPUT',
  protocol: 'udp',
  source: parseAddress('192.0.2.2')!,
  destination: parseAddress('192.0.2.1')!,
  port: 8472,
  from: 'eth0',
  state: 'new',
}
/** A vxlan packet of this host to a peer. */
const leaving: FilteredPacket = {
  chain: 'OUTPUT',
  protocol: 'udp',
  source: parseAddress('192.0.2.1')!,
  destination: parseAddress('192.0.2.2')!,
  port: 8472,
  to: 'eth0',
  state: 'new',
}
const ipv6: FilteredPacket = {
  ...outward,
  source: parseAddress('fd00:244:1::2')!,
  destination: parseAddress('fd00:244:2::2')!,
}
const bridged = (way: Bridged['way'], ports: readonly string[] = ['veth1', 'veth2']): FilteredPacket => {
  const crosses = { bridge: 'cni0', way, ports }
  if (way === 'in') return { ...outward, chain: 'INPUT', from: 'cni0', to: '', bridged: crosses }
  if (way === 'out') return { ...outward, chain: 'OUTPUT', from: '', to: 'cni0', bridged: crosses }
  return { ...outward, to: 'cni0', bridged: crosses }
}

/** Indents a text by tabs, as `nft list ruleset` does. */
const nft = (text: string): string =>
  text.replace(/^\n/, '').replace(/^(?: {2})+/gm, (spaces) => '\t'.repeat(spaces.length / 2))
const walk = (text: string, packet: FilteredPacket, read?: ReadonlySet<number>) =>
  readRuleset(nft(text), read).walk(packet, [])
/** The verdict of each chain that sees the packet. */
const verdicts = (text: string, packet: FilteredPacket, read?: ReadonlySet<number>): string[] =>
  walk(text, packet, read).map(
    ({ isAccepted, isCertain, by }) => `${isCertain ? '' : 'perhaps '}${isAccepted ? 'accepted' : 'dropped'} by ${by}`,
  )
/** A table with a chain of forwarded packets, which accepts the packets that no rule drops. */
const forward = (...rules: readonly string[]): string => `
table inet own {
  chain forward {
    type filter hook forward priority filter; policy accept;
${rules.map((rule) => `    ${rule}\n`).join('')}  }

  chain drops {
    counter packets 0 bytes 0 drop
  }
}
`
const accepted = ['accepted by inet own forward: policy accept']

describe('a chain sees', () => {
  const seen = (table: string, hook: string, packet: FilteredPacket): boolean =>
    walk(
      `\ntable ${table} {\n  chain c {\n    type filter hook ${hook} priority filter; policy drop;\n  }\n}\n`,
      packet,
    ).length > 0
  const arp = { ...bridged('in'), protocol: ARP }
  const ports = 'devices = { "veth1", "veth2" }'
  const { from: _from, ...unplaced } = arriving

  it.each<[what: string, table: string, hook: string, FilteredPacket]>([
    ['forwarded packets after routing', 'inet t', 'postrouting', outward],
    ['forwarded packets at their outgoing device', 'netdev t', 'egress device "flannel.1"', outward],
    ['forwarded packets at their outgoing device, in the family inet', 'inet t', 'egress device "flannel.1"', outward],
    ['packets of this host after routing', 'ip t', 'postrouting', leaving],
    ['packets of this host at their device', 'netdev t', 'egress device "eth0"', leaving],
    ['packets of peers at their device', 'netdev t', 'ingress device "eth0"', arriving],
    ['packets within a bridge before forwarding', 'bridge t', 'prerouting', bridged('through')],
    ['packets within a bridge after forwarding', 'bridge t', 'postrouting', bridged('through')],
    ['ARP of containers', 'arp t', 'input', arp],
    ['ARP of containers at all ports of their bridge', 'netdev t', `ingress ${ports}`, arp],
    ['packets of containers at all ports of their bridge', 'netdev t', `ingress ${ports}`, bridged('in')],
    ['packets to containers at all ports of their bridge', 'netdev t', `egress ${ports}`, bridged('out')],
    ['packets of containers at their bridge', 'netdev t', 'ingress device "cni0"', bridged('in')],
    ['packets to containers at their bridge', 'netdev t', 'egress device "cni0"', bridged('out')],
    // Most versions of nft do not quote the names of several devices.
    ['packets of peers at one of two devices', 'netdev t', 'ingress devices = { eth0, eth1 }', arriving],
    ['packets of peers at the second of two devices', 'inet t', 'ingress devices = { lo, eth0 }', arriving],
    ['packets of containers at ports without quotes', 'netdev t', 'ingress devices = { veth1, veth2 }', bridged('in')],
    ['packets of containers at ports by a wildcard', 'netdev t', 'ingress device "veth*"', bridged('in')],
    ['packets of peers by one of two wildcards', 'netdev t', 'ingress devices = { "vlan*", "eth*" }', arriving],
  ])('%s', (_, table, hook, packet) => expect(seen(table, hook, packet)).toBe(true))

  it.each<[what: string, table: string, hook: string, FilteredPacket]>([
    ['at the egress of another device', 'netdev t', 'egress device "eth1"', outward],
    ['at the egress of their incoming device', 'netdev t', 'egress device "cni0"', outward],
    ['at the ingress of their outgoing device', 'netdev t', 'ingress device "flannel.1"', outward],
    ['at a device whose name only begins like theirs', 'netdev t', 'egress device "flannel.10"', outward],
    [
      'at two devices whose names only begin like theirs',
      'netdev t',
      'egress devices = { flannel, flannel.10 }',
      outward,
    ],
    ['at no device, because the devices of the chain are gone', 'netdev t', 'ingress', arriving],
    ['from a device that weft does not know', 'netdev t', 'ingress device "eth*"', unplaced],
    ['of peers at an egress', 'netdev t', 'egress device "eth0"', arriving],
    ['of this host at an ingress', 'netdev t', 'ingress device "eth0"', leaving],
    ['that cross no bridge, in the family bridge', 'bridge t', 'forward', outward],
    ['within a bridge, as packets to this host', 'bridge t', 'input', bridged('through')],
    ['of containers, at an egress of their ports', 'netdev t', `egress ${ports}`, bridged('in')],
    ['to containers, at an ingress of their ports', 'netdev t', `ingress ${ports}`, bridged('out')],
    [
      'of containers, if the chain has only some ports',
      'netdev t',
      `ingress ${ports}`,
      bridged('in', ['veth1', 'veth3']),
    ],
    ['of containers, if weft does not know the ports', 'netdev t', `ingress ${ports}`, bridged('in', [])],
    ['of ARP, in the family inet', 'inet t', 'input', arp],
    ['of IPv6, in the family ip', 'ip t', 'forward', ipv6],
    ['of IPv4, in the family ip6', 'ip6 t', 'forward', outward],
  ])('no packets %s', (_, table, hook, packet) => expect(seen(table, hook, packet)).toBe(false))

  it.each(['prerouting', 'ingress device "cni0"'])('no outgoing interface before routing, in %s', (hook) => {
    const text = (rule: string) => `
table inet own {
  chain early {
    type filter hook ${hook} priority raw; policy accept;
    ${rule}
  }
}
`
    expect(verdicts(text('oifname "flannel.1" drop'), outward)).toEqual(['accepted by inet own early: policy accept'])
    expect(verdicts(text('iifname "cni0" drop'), outward)).toEqual(['dropped by inet own early: iifname "cni0" drop'])
  })
})

describe('a table with the flag', () => {
  const flagged = (flags: string): string => forward('drop').replace('own {\n', `own {\n  flags ${flags}\n\n`)
  it.each(['dormant', 'owner,dormant'])('%s drops no packets, because the kernel does not call its chains', (flags) =>
    expect(verdicts(flagged(flags), outward)).toEqual([]),
  )
  it.each(['owner', 'owner,persist'])('%s drops packets', (flags) =>
    expect(verdicts(flagged(flags), outward)).toEqual(['dropped by inet own forward: drop']),
  )
  it('dormant does not affect other tables, and a comment does not set a flag', () => {
    const all = flagged('dormant') + forward('comment "flags dormant" drop').replace('own', 'other').trimStart()
    expect(verdicts(all, outward)).toEqual(['dropped by inet other forward: comment "flags dormant" drop'])
  })
})

describe('firewalld', () => {
  const firewalld = (zones: string): string => `
table inet firewalld { # progname firewalld
  flags owner,persist

  ct helper helper-netbios-ns-udp {
    type "netbios-ns" protocol udp
    l3proto ip
  }

  chain mangle_PREROUTING {
    type filter hook prerouting priority mangle + 10; policy accept;
    jump mangle_PREROUTING_ZONES
  }

  chain mangle_PREROUTING_ZONES {
    iifname "eth0" goto mangle_PRE_public
    goto mangle_PRE_public
  }

  chain mangle_PRE_public {
  }

  chain filter_PREROUTING {
    type filter hook prerouting priority filter + 10; policy accept;
    icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
    meta nfproto ipv6 fib saddr . mark . iif oif missing drop
  }

  chain filter_FORWARD {
    type filter hook forward priority filter + 10; policy accept;
    ct state { established, related } accept
    ct status dnat accept
    iifname "lo" accept
    ct state invalid drop
    ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 addr-unreachable
    jump filter_FORWARD_ZONES
    reject with icmpx admin-prohibited
  }

  chain filter_FORWARD_ZONES {
    ${zones}goto filter_FWD_public
  }

  chain filter_FWD_public {
    jump filter_FWD_public_pre
    jump filter_FWD_public_log
    jump filter_FWD_public_allow
    reject with icmpx admin-prohibited
  }

  chain filter_FWD_public_pre {
  }

  chain filter_FWD_public_log {
    log prefix "FINAL_REJECT: " level info
  }

  chain filter_FWD_public_allow {
    oifname "eth0" accept
  }

  chain filter_FWD_trusted {
    jump filter_FWD_trusted_pre
    accept
  }

  chain filter_FWD_trusted_pre {
  }
}
`
  const early = [
    'accepted by inet firewalld mangle_PREROUTING: policy accept',
    'accepted by inet firewalld filter_PREROUTING: policy accept',
  ]
  it('rejects packets of a bridge in no zone', () =>
    expect(verdicts(firewalld(''), outward)).toEqual([
      ...early,
      'dropped by inet firewalld filter_FWD_public: reject with icmpx admin-prohibited',
    ]))
  it('accepts packets of a bridge in the zone trusted', () =>
    expect(verdicts(firewalld('iifname "cni0" goto filter_FWD_trusted\n    '), outward)).toEqual([
      ...early,
      'accepted by inet firewalld filter_FWD_trusted: accept',
    ]))
  it('accepts established connections, and packets to the external interface', () => {
    const [, , established] = verdicts(firewalld(''), { ...outward, state: 'established' })
    expect(established).toBe('accepted by inet firewalld filter_FORWARD: ct state { established, related } accept')
    expect(verdicts(firewalld(''), { ...outward, to: 'eth0' })[2]).toBe(
      'accepted by inet firewalld filter_FWD_public_allow: oifname "eth0" accept',
    )
  })
})

describe('ufw, whose rules iptables-nft makes', () => {
  const ufw = `
# Warning: table ip filter is managed by iptables-nft, do not touch!
table ip filter {
  chain ufw-before-input {
    iifname "lo" counter packets 51822 bytes 4110211 accept
    ct state related,established counter packets 918273 bytes 645372819 accept
    ct state invalid counter packets 12 bytes 480 jump ufw-logging-deny
    ct state invalid counter packets 12 bytes 480 drop
    xt match "recent" counter packets 120 bytes 7200 drop
    counter packets 3105 bytes 201933 jump ufw-user-input
  }

  chain ufw-user-input {
    tcp dport 22 counter packets 77 bytes 4620 accept
    udp dport 51820 counter packets 4 bytes 704 accept
  }

  chain ufw-logging-deny {
    ct state invalid limit rate 3/minute burst 10 packets counter packets 11 bytes 440 return
    limit rate 3/minute burst 10 packets counter packets 1 bytes 40 log prefix "[UFW BLOCK] "
  }

  chain INPUT {
    type filter hook input priority filter; policy drop;
    counter packets 973212 bytes 649690123 jump ufw-before-input
  }
}
# Warning: table ip6 filter is managed by iptables-nft, do not touch!
table ip6 filter {
  chain INPUT {
    type filter hook input priority filter; policy drop;
  }
}
`
  it('drops the packets of peers by its policy, unless a rule accepts their port', () => {
    expect(verdicts(ufw, arriving)).toEqual(['dropped by ip filter INPUT: policy drop'])
    expect(verdicts(ufw, { ...arriving, port: 51_820 })).toEqual([
      'perhaps accepted by ip filter ufw-user-input: udp dport 51820 counter accept',
    ])
    expect(verdicts(ufw, { ...arriving, state: 'established' })).toEqual([
      'accepted by ip filter ufw-before-input: ct state related,established counter accept',
    ])
  })

  it('names a rule with a condition that weft cannot evaluate, with its packet count', () =>
    expect(walk(ufw, arriving).map(({ unjudged }) => unjudged)).toEqual([
      [{ by: 'ip filter ufw-before-input: xt match "recent" counter drop', packets: 120 }],
    ]))

  it('is hidden if iptables shows its chains', () =>
    expect(readRuleset(nft(ufw)).walk(arriving, ['ip filter INPUT'])).toEqual([]))

  it('has two tables, after a comment that belongs to no table', () =>
    expect(tablesOf(nft(ufw)).map(({ name }) => name)).toEqual(['', 'ip filter', 'ip6 filter']))
})

describe('kube-proxy in its mode nftables', () => {
  const kube = (extra = ''): string => `
table ip kube-proxy {
  comment "rules for kube-proxy"

  set cluster-ips {
    type ipv4_addr
    comment "Active ClusterIPs"
    elements = { 10.96.0.1, 10.96.0.10 }
  }

  set nodeport-ips {
    type ipv4_addr
    comment "IPs that accept NodePort traffic"
    elements = { 192.0.2.1 }
  }

  map no-endpoint-services {
    type ipv4_addr . inet_proto . inet_service : verdict
    comment "vmap to drop or reject packets to services with no endpoints"
    elements = { 10.96.7.7 . tcp . 80 comment "default/empty" : goto reject-chain }
  }

  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"
    elements = { 10.96.0.1 . tcp . 443 : goto service-2QRHZV4L-default/kubernetes/tcp/https,
           10.96.0.10 . udp . 53 : goto service-NWBZK7IH-kube-system/kube-dns/udp/dns }
  }

  chain filter-prerouting {
    type filter hook prerouting priority dstnat - 10; policy accept;
    ct state new jump firewall-check
  }

  chain filter-forward {
    type filter hook forward priority dstnat - 10; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }

  chain service-endpoints-check {
    ip daddr . meta l4proto . th dport vmap @no-endpoint-services
  }

  chain cluster-ips-check {
    ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
    ip daddr 10.96.0.0/12 drop comment "Drop traffic to unallocated ClusterIPs"
  }

  chain firewall-check {
  }

  chain nat-postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    jump masquerading
  }

  chain masquerading {
    meta mark & 0x00004000 == 0x00000000 return
    meta mark set meta mark ^ 0x00004000
    masquerade fully-random
  }

  chain reject-chain {
    reject
  }
${extra}}
`
  it('accepts packets between containers, and does not masquerade packets without its mark', () => {
    const seen = walk(kube(), { ...outward, mark: 0 })
    expect(seen.map(({ isAccepted, by }) => `${isAccepted} ${by}`)).toEqual([
      'true ip kube-proxy filter-prerouting: policy accept',
      'true ip kube-proxy filter-forward: policy accept',
      'true ip kube-proxy nat-postrouting: policy accept',
    ])
    expect(seen.flatMap(({ effects }) => effects)).toEqual([])
  })

  it('perhaps masquerades packets whose mark is not known', () =>
    expect(walk(kube(), outward).flatMap(({ effects }) => effects)).toEqual([
      { kind: 'source', by: 'ip kube-proxy masquerading: masquerade fully-random', isCertain: false },
    ]))

  it('drops packets to unused addresses of Services, and has a map of several fields, which weft cannot evaluate', () => {
    const to = { ...outward, destination: parseAddress('10.97.7.7')! }
    expect(verdicts(kube(), { ...to, destination: parseAddress('10.96.0.1')! })[1]).toBe(
      'dropped by ip kube-proxy cluster-ips-check: ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"',
    )
    expect(verdicts(kube(), to)[1]).toBe(
      'dropped by ip kube-proxy cluster-ips-check: ip daddr 10.96.0.0/12 drop comment "Drop traffic to unallocated ClusterIPs"',
    )
    const [, endpoints] = verdicts(kube(), outward)
    expect(endpoints).toBe('perhaps accepted by ip kube-proxy filter-forward: policy accept')
  })
})

describe("flannel's tables", () => {
  const flannel = `
table ip flannel-ipv4 {
  comment "rules for flannel-ipv4"

  chain forward {
    type filter hook forward priority filter; policy accept;
    ip saddr 10.244.0.0/16 accept
    ip daddr 10.244.0.0/16 accept
  }

  chain postrtg {
    comment "chain to manage traffic masquerading by flannel"
    type nat hook postrouting priority srcnat; policy accept;
    meta mark 0x00004000 return
    ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
    ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
    ip saddr != 10.244.1.0/24 ip daddr 10.244.0.0/16 return
    ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
    ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
  }
}
`
  const sources = (packet: FilteredPacket) =>
    walk(flannel, { ...packet, mark: 0 }).flatMap(({ effects }) => effects.map(({ by }) => by))

  it('accept packets between containers, and do not masquerade them', () => {
    expect(verdicts(flannel, { ...outward, mark: 0 })).toEqual([
      'accepted by ip flannel-ipv4 forward: ip saddr 10.244.0.0/16 accept',
      'accepted by ip flannel-ipv4 postrtg: policy accept',
    ])
    const { source, destination } = outward
    for (const packet of [outward, { ...outward, source: destination, destination: source }])
      expect(sources(packet)).toEqual([])
  })

  it('masquerade the packets of containers to other networks', () =>
    expect(sources({ ...outward, destination: parseAddress('198.51.100.7')!, to: 'eth0' })).toEqual([
      'ip flannel-ipv4 postrtg: ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random',
    ]))

  it('translate no later packets of a connection', () => {
    const hooks = (state: 'new' | 'established') => walk(flannel, { ...outward, state }).map(({ base }) => base.hook)
    expect([hooks('new'), hooks('established')]).toEqual([['forward', 'postrouting'], ['forward']])
  })
})

// moby: integration/network/bridge/nftablesdoc
describe("Docker's table", () => {
  const docker = `
table ip docker-bridges {
  map filter-forward-in-jumps {
    type ifname : verdict
    elements = { "docker0" : jump filter-forward-in__docker0,
           "br-5d0f" : jump filter-forward-in__br-5d0f }
  }

  map filter-forward-out-jumps {
    type ifname : verdict
    elements = { "docker0" : jump filter-forward-out__docker0 }
  }

  chain filter-FORWARD {
    type filter hook forward priority filter; policy accept;
    oifname vmap @filter-forward-in-jumps
    iifname vmap @filter-forward-out-jumps
  }

  chain nat-POSTROUTING {
    type nat hook postrouting priority srcnat; policy accept;
    oifname != "docker0" ip saddr 10.244.1.0/24 counter packets 31 bytes 1860 masquerade comment "MASQUERADE"
  }

  chain raw-PREROUTING {
    type filter hook prerouting priority raw; policy accept;
    ip daddr 10.244.1.2 iifname != "docker0" counter packets 12 bytes 720 drop comment "DROP DIRECT ACCESS"
  }

  chain filter-forward-in__docker0 {
    ct state established,related counter packets 420 bytes 25200 accept
    iifname "docker0" counter packets 0 bytes 0 accept comment "ICC"
    counter packets 7 bytes 420 drop comment "UNPUBLISHED PORT DROP"
  }

  chain filter-forward-in__br-5d0f {
    counter packets 0 bytes 0 drop comment "UNPUBLISHED PORT DROP"
  }

  chain filter-forward-out__docker0 {
    ct state established,related counter packets 9 bytes 540 accept
    counter packets 31 bytes 1860 accept comment "OUTGOING"
  }
}
`
  const out: FilteredPacket = { ...outward, from: 'docker0' }
  const back: FilteredPacket = {
    ...outward,
    source: outward.destination,
    destination: outward.source,
    from: 'flannel.1',
    to: 'docker0',
  }
  it('accepts and masquerades the packets of containers to peers', () => {
    expect(verdicts(docker, out)).toEqual([
      'accepted by ip docker-bridges filter-forward-out__docker0: counter accept comment "OUTGOING"',
      'accepted by ip docker-bridges nat-POSTROUTING: oifname != "docker0" ip saddr 10.244.1.0/24 counter masquerade comment "MASQUERADE"',
      'accepted by ip docker-bridges raw-PREROUTING: policy accept',
    ])
    expect(walk(docker, out).flatMap(({ effects }) => effects.map(({ kind }) => kind))).toEqual(['source'])
  })

  it('drops the packets of peers to containers, before routing and in the chain of the bridge', () =>
    expect(verdicts(docker, back)).toEqual([
      'dropped by ip docker-bridges filter-forward-in__docker0: counter drop comment "UNPUBLISHED PORT DROP"',
      'accepted by ip docker-bridges nat-POSTROUTING: policy accept',
      'dropped by ip docker-bridges raw-PREROUTING: ip daddr 10.244.1.2 iifname != "docker0" counter drop comment "DROP DIRECT ACCESS"',
    ]))

  it('accepts the answers to a container', () =>
    expect(verdicts(docker, { ...back, state: 'established' })[0]).toBe(
      'accepted by ip docker-bridges filter-forward-in__docker0: ct state established,related counter accept',
    ))
})

describe('sets', () => {
  const withSet = (set: string, head = ''): string =>
    forward('ip saddr @trusted accept', 'drop').replace('own {\n', `own {\n${head}  set trusted {\n${set}  }\n\n`)
  const inSet = ['accepted by inet own forward: ip saddr @trusted accept']
  const notInSet = ['dropped by inet own forward: drop']
  const perhapsInSet = ['perhaps dropped by inet own forward: drop']
  const type = '    type ipv4_addr\n'
  const elements = (text: string): string => `    elements = { ${text} }\n`

  it.each([
    ['of networks', `${type}    flags interval\n${elements('10.244.0.0/16, 192.0.2.0/24')}`, inSet],
    ['over several lines', type + elements('10.244.1.1, 10.244.1.2,\n           10.244.1.3'), inSet],
    ['of other addresses', type + elements('10.244.1.1, 10.244.1.3'), notInSet],
    ['of other networks', `${type}    flags interval\n${elements('10.245.0.0/16')}`, notInSet],
    [
      'with timeouts and counters',
      `${type}    flags timeout\n${elements('10.244.1.2 timeout 1h expires 59m12s784ms counter packets 12 bytes 720')}`,
      inSet,
    ],
    ['to which programs add elements', `${type}    flags dynamic,timeout\n    timeout 10m\n`, perhapsInSet],
    [
      'of networks to which programs add elements for some time',
      `${type}    flags interval,timeout\n${elements('10.245.0.0/16')}`,
      perhapsInSet,
    ],
    ['that is empty', type, perhapsInSet],
    [
      'whose comment has words of other lines',
      `${type}    comment "the wiki says: flags dynamic, timeout"\n${elements('10.244.1.1')}`,
      notInSet,
    ],
  ])('%s', (_, set, expected) => expect(verdicts(withSet(set), outward)).toEqual(expected))

  it('are read even if the comment of their table contains the words of a set', () =>
    expect(
      verdicts(withSet(type + elements('10.244.1.2'), '  comment "the set trusted { 10.9.9.9 } grows"\n'), outward),
    ).toEqual(inSet))

  it('are read beside flow tables, counters, quotas and maps', () => {
    const others = `  counter in {
    packets 12 bytes 720
  }

  quota month {
    over 25 mbytes used 2 mbytes
  }

  map ways {
    type ifname : verdict
    elements = { "lo" : accept, "cni0" : jump drops }
  }

  flowtable fast {
    hook ingress priority filter
    devices = { eth0, flannel.1 }
    counter
  }

`
    expect(verdicts(withSet(type + elements('10.244.1.2'), others), outward)).toEqual(inSet)
    const mapped = forward('ip protocol { tcp, udp } flow add @fast', 'iifname vmap @ways')
    expect(verdicts(mapped.replace('own {\n', `own {\n${others}`), outward)).toEqual([
      'dropped by inet own drops: counter drop',
    ])
  })
})

describe('chains', () => {
  it('have the policy accept if nft prints no policy', () =>
    expect(verdicts(forward('tcp dport 22 drop').replace(' policy accept;', ''), outward)).toEqual(accepted))

  it('may have comments, names of several words, and rules with braces and semicolons in comments', () => {
    const text = `
table inet own {
  comment "chain a { type filter hook forward; policy drop; }"
  chain to-peers/ipv4 {
    comment "packets to peers; see chain b {"
    type filter hook forward priority filter - 1; policy accept;
    comment "nothing" tcp dport { 22, 80 } counter packets 1000 bytes 60000 drop comment "a; b } c { accept"
  }
}
`
    expect(walk(text, outward).map(({ by, base }) => [by, base.name])).toEqual([
      [
        'inet own to-peers/ipv4: comment "nothing" tcp dport { 22, 80 } counter drop comment "a; b } c { accept"',
        'inet own to-peers/ipv4',
      ],
    ])
  })

  it('continue after a chain that returns', () => {
    const returns = forward('jump early', 'tcp dport 80 drop').replace(
      '  chain drops',
      '  chain early {\n    tcp dport 80 return\n    accept\n  }\n\n  chain drops',
    )
    expect(verdicts(returns, outward)).toEqual(['dropped by inet own forward: tcp dport 80 drop'])
    expect(verdicts(returns, { ...outward, port: 81 })).toEqual(['accepted by inet own early: accept'])
  })

  it('name the rules that drop or reject packets by a condition that weft cannot evaluate', () => {
    const text = forward(
      'ct mark 0x00000007 counter packets 1234 bytes 74040 reject with tcp reset',
      'ct mark 0x00000008 drop',
      'ct mark 0x00000009 counter packets 5 bytes 300 accept',
    )
    expect(walk(text, outward).flatMap(({ unjudged }) => unjudged)).toEqual([
      { by: 'inet own forward: ct mark 0x00000007 counter reject with tcp reset', packets: 1234 },
      { by: 'inet own forward: ct mark 0x00000008 drop', packets: undefined },
    ])
  })
})

describe('a rule that decides after other statements', () => {
  const dropped = (rule: string): string[] => [`dropped by inet own forward: ${rule}`]

  it.each([
    ['counter name "from containers" drop', outward],
    ['counter name "new" tcp dport 80 drop', outward],
    ['ct mark set 0x00000001 drop', outward],
    ['ip dscp set cs1 drop', outward],
    ['ip6 dscp set cs1 drop', ipv6],
    ['ip ttl set 64 drop', outward],
    ['ether saddr set 02:00:00:00:00:01 drop', outward],
    ['tcp dport set 8080 drop', outward],
    ['udp dport set 8080 drop', { ...outward, protocol: 'udp' }],
    ['th dport set 8080 drop', outward],
    ['log prefix "accept " group 2 snaplen 128 queue-threshold 20 drop', outward],
    ['log prefix "dropped: " level warn flags all drop', outward],
  ] as const)('%s', (rule, packet) => expect(verdicts(forward(rule), packet)).toEqual(dropped(rule)))

  it.each(['meta mark set 0x00000001', 'log prefix "drop"', 'counter name "drop"', 'notrack', 'continue'])(
    'does not mistake the words of a statement for a verdict: %s',
    (rule) => expect(verdicts(forward(rule), outward)).toEqual(accepted),
  )
})

describe('a rule with a condition that weft cannot evaluate', () => {
  const perhaps = ['perhaps accepted by inet own forward: policy accept']

  it.each([
    'xt match "recent" jump drops',
    'xt match "recent" goto drops',
    'xt match "recent" counter packets 4 bytes 240 drop',
    'xt match "recent" drop',
    'ip saddr . tcp dport vmap { 10.244.1.2 . 80 : drop }',
    'socket transparent 1 jump drops',
    'xt match "recent" queue num 3',
    'ip saddr . ip daddr { 10.244.1.2 . 10.244.2.2 } jump drops',
  ])('may drop the packet: %s', (rule) => expect(verdicts(forward(rule), outward, new Set())).toEqual(perhaps))

  it.each([
    'limit rate 10/second burst 5 packets counter name "drop"',
    'limit rate 10/second burst 5 packets log prefix "drop"',
    'xt match "recent" comment "drop"',
  ])('does not mistake the words of a statement for a verdict: %s', (rule) =>
    expect(verdicts(forward(rule), outward)).toEqual(accepted),
  )
})

describe('a queue that no program reads', () => {
  it.each([
    [
      'tcp dport 80 queue num 3',
      ['dropped by inet own forward: tcp dport 80 queue num 3 (no program reads this queue)'],
    ],
    ['tcp dport 443 queue num 3', accepted],
    ['ip daddr != 10.244.0.0/16 queue flags fanout to 0-3', accepted],
  ])('drops the packets that match: %s', (rule, expected) =>
    expect(verdicts(forward(rule), outward, new Set([7]))).toEqual(expected),
  )
})

describe('a rule changes', () => {
  const changes = (rule: string, packet = outward) =>
    walk(forward(rule), packet).flatMap(({ effects }) =>
      effects.map(({ by, isCertain, ...effect }) => {
        expect([by, isCertain]).toEqual([`inet own forward: ${rule}`, true])
        return effect
      }),
    )
  const accepts = (rule: string): boolean => walk(forward(rule, 'drop'), outward).every(({ isAccepted }) => isAccepted)

  it.each([
    ['masquerade', { kind: 'source' }],
    ['oifname "flannel.1" masquerade fully-random', { kind: 'source' }],
    ['snat to 192.0.2.1', { kind: 'source', address: '192.0.2.1' }],
    ['snat ip addr . port to ip saddr map { 10.244.1.2 : 192.0.2.1 . 1024-65535 }', { kind: 'source' }],
    ['tcp dport 80 dnat to 10.244.1.9:8080', { kind: 'diverted' }],
    ['tcp dport 80 redirect to :15001', { kind: 'diverted' }],
    ['tcp dport 80 tproxy to :15001 accept', { kind: 'diverted' }],
  ])('the address, and accepts the packet: %s', (rule, effect) => {
    expect(changes(rule)).toEqual([effect])
    expect(accepts(rule)).toBe(true)
  })

  it.each([
    ['notrack', { kind: 'untracked' }],
    ['meta mark set 0x00004000', { kind: 'marked', clears: 0xff_ff_ff_ff, inverts: 0x40_00 }],
    ['ip ttl set 1', { kind: 'hops', hops: 1 }],
    ['tcp dport 80 tproxy to :15001', { kind: 'diverted' }],
  ])('the packet, and continues: %s', (rule, effect) => {
    expect(changes(rule)).toEqual([effect])
    expect(accepts(rule)).toBe(false)
  })
  it('the hop limit of IPv6', () => expect(changes('ip6 hoplimit set 2', ipv6)).toEqual([{ kind: 'hops', hops: 2 }]))

  it.each([
    'ct mark set 0x00000001',
    'meta mark set ct mark',
    'meta priority set 1:10',
    'ip ttl < 5 counter packets 9 bytes 540',
    'ip dscp set 0x08',
    'udp dport set 53',
    'tcp dport set 53',
  ])('nothing that matters to weft: %s', (rule) => expect(changes(rule)).toEqual([]))
})
