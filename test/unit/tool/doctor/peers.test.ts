// peers.test.ts - weft doctor compares the leases of the nodes, and says which peers do not answer, why, and what to do.

import { describe, expect, it } from 'vitest'
import { countPeers, type PeerStatus, type SessionStatus, type Status } from '../../../../src/report/status.ts'
import type { Facts, Reach } from '../../../../src/tool/doctor/facts.ts'
import type { Finding } from '../../../../src/tool/doctor/findings.ts'
import { checkLeases, checkPeers } from '../../../../src/tool/doctor/peers.ts'
import * as silenceCauses from '../../../../src/tool/doctor/silence-causes.ts'
import {
  dualPeer,
  peerOfIpv6,
  silentSide,
  sound,
  soundDual,
  soundIpv6,
  soundPeer,
  soundStatus as status,
} from '../../../support/facts.ts'
import { routesBy } from '../../../support/kernel-routes.ts'

const lines = (findings: readonly Finding[] | undefined): string[] | undefined =>
  findings?.map(({ name, detail }) => `${name}: ${detail}`)
/** A peer with the subnet 10.5.NUMBER.0/24 and the address 192.0.2.NUMBER. */
const numbered = (number: number, part: Partial<PeerStatus> = {}): PeerStatus => ({
  ...soundPeer,
  lease: `10.5.${number}.0-24`,
  subnet: `10.5.${number}.0/24`,
  publicIp: `192.0.2.${number}`,
  endpoint: `192.0.2.${number}:8285`,
  ...part,
})
/** Returns the facts of a host with these peers, and with the results of weftd's probes alone. */
const withPeers = (list: readonly PeerStatus[], part: Partial<Status> = {}, seconds: number | null = 10): Facts => ({
  ...sound,
  status: { ...status, peers: countPeers(list, seconds), ...part },
  answers: new Map(),
})
const withDual = (...list: PeerStatus[]): Facts => ({
  ...soundDual,
  status: { ...soundDual.status, peers: countPeers(list, 10) },
  answers: new Map(),
})
const path = status.dataPath!
const silent = (number: number, part: Partial<PeerStatus> = {}): PeerStatus =>
  numbered(number, { ...silentSide, heardSecondsAgo: 400, ...part })

describe('the leases', () => {
  const leases = (list: readonly Partial<PeerStatus>[], node: Partial<NonNullable<Status['node']>> = {}) =>
    lines(
      checkLeases(
        withPeers(
          list.map((one, at) => numbered(at + 2, one)),
          { node: { ...status.node!, ...node } },
        ),
      ),
    )

  it('are known only if weftd has a lease and knows its peers', () => {
    expect(checkLeases({ ...sound, status: undefined })).toBeUndefined()
    expect(checkLeases(withPeers([], { node: null }))).toBeUndefined()
    expect(checkLeases(withPeers([], { peers: null }))).toBeUndefined()
    expect(checkLeases(withPeers([]))).toEqual([])
  })

  it.each<[string, readonly Partial<PeerStatus>[], string[]]>([
    ['are neighbours', [{ subnet: '10.5.2.0/24' }, { subnet: '10.5.3.0/24' }, { subnet: '10.5.0.0/24' }], []],
    [
      'are equal',
      [{ subnet: '10.5.7.0/24' }, { subnet: '10.5.7.0/24' }],
      ['10.5.7.0/24 of 192.0.2.2 and 10.5.7.0/24 of 192.0.2.3'],
    ],
    [
      'of two peers are in the subnet of a third, which begins before both',
      [{ subnet: '10.5.8.0/22' }, { subnet: '10.5.8.0/24' }, { subnet: '10.5.9.0/24' }, { subnet: '10.5.12.0/24' }],
      [
        '10.5.8.0/22 of 192.0.2.2 and 10.5.8.0/24 of 192.0.2.3',
        '10.5.8.0/22 of 192.0.2.2 and 10.5.9.0/24 of 192.0.2.4',
      ],
    ],
    [
      'contain that of this node',
      [{ subnet: '10.5.0.0/23' }],
      ['10.5.0.0/23 of 192.0.2.2 and 10.5.1.0/24 of 192.0.2.1'],
    ],
    [
      'are equal, and one lease has an unreadable address',
      [{ subnet: '10.5.7.0/24' }, { subnet: '10.5.7.0/24', publicIp: 'x' }],
      ['10.5.7.0/24 of 192.0.2.2 and 10.5.7.0/24 of x'],
    ],
  ])('are found twice if two subnets overlap: subnets that %s', (_name, list, expected) =>
    expect(leases(list)).toEqual(expected.map((line) => `subnet-twice: ${line}`)),
  )

  it('are compared in each family', () => {
    const of6 = (part: Partial<PeerStatus>) => lines(checkLeases(withDual({ ...dualPeer(), ...part })))
    expect(of6({})).toEqual([])
    expect(of6({ ipv6Subnet: 'fd00:5:0:1::/64' })).toEqual([
      'subnet-twice: fd00:5:0:1::/64 of 2001:db8::1 and fd00:5:0:1::/64 of 2001:db8::2',
    ])
    expect(of6({ publicIpv6: '2001:db8::1' })).toEqual(['address-twice: 2001:db8::1, which 10.5.2.0/24 publishes too'])
    expect(of6({ publicIpv6: '2001:db8::1', name: 'host2' })).toEqual([
      'address-twice: 2001:db8::1, which host2 (10.5.2.0/24) publishes too',
    ])
    // A peer with the same address in both families is named once.
    expect(of6({ publicIp: '192.0.2.1', publicIpv6: '2001:db8::1' })).toEqual([
      'address-twice: 192.0.2.1, which 10.5.2.0/24 publishes too',
    ])
  })

  it('of an IPv6-only network are compared by their addresses', () => {
    const of6 = (publicIpv6: string) => {
      const list = [{ ...peerOfIpv6(), publicIpv6, publicIp: publicIpv6 }]
      return lines(checkLeases({ ...soundIpv6, status: { ...soundIpv6.status!, peers: countPeers(list, 10) } }))
    }
    expect(of6('2001:db8::2')).toEqual([])
    expect(of6('2001:db8::1')).toEqual(['address-twice: 2001:db8::1, which fd00:5:0:2::/64 publishes too'])
  })

  it('do not count an unreadable or missing address as a duplicate', () => {
    expect(leases([{ publicIp: 'x' }], { publicIp: 'x' })).toEqual([])
    expect(leases([{ publicIp: '192.0.2.1' }], { twin: 'b' })).toEqual([
      'address-twice: 192.0.2.1, which 10.5.2.0/24 publishes too',
      'address-twice: 192.0.2.1, which the host b uses too',
    ])
  })
})

const look = (facts: Facts, isSendingWrong = false) => checkPeers(facts, isSendingWrong, silenceCauses)
const reach = (part: Partial<Reach> = {}): Reach => ({
  port: undefined,
  portNumber: 8285,
  isPinged: undefined,
  isOffLink: false,
  ...part,
})
const reaches = (part: Partial<Reach>, lease = '10.5.2.0-24'): Pick<Facts, 'reaches'> => ({
  reaches: new Map([[lease, reach(part)]]),
})

describe('the peers', () => {
  it('are judged only if weftd knows them and something carries packets', () => {
    expect(look({ ...sound, status: undefined })).toBeUndefined()
    expect(look(withPeers([], { node: null }))).toBeUndefined()
    expect(look(withPeers([], { peers: null }))).toBeUndefined()
    const dead = (open: boolean) =>
      look({ ...withPeers([silent(2)], { dataPath: { ...path, open } }), silence: 'no socket' })
    expect(dead(false)).toBeUndefined()
    expect(lines(dead(true))).toEqual(['peer-silent: 10.5.2.0/24 at 192.0.2.2:8285: it does not answer'])
    expect(look({ ...withPeers([silent(2)], { dataPath: null }), silence: 'no socket' })).toBeUndefined()
  })

  it.each<[string, Facts, string[]]>([
    ['a peer answers', withPeers([numbered(2)]), []],
    ['weftd has not probed it yet', withPeers([silent(2, { lossPercent: null })]), []],
    [
      'the data path does not have it, because it is not open',
      withPeers([silent(2, { state: 'stored' })], { dataPath: { ...path, open: false } }),
      [],
    ],
    ['it answered the last probe, but few before', withPeers([numbered(2, { lossPercent: 90 })]), ['peer-lossy']],
    ['weftd no longer probes', withPeers([silent(2, { lossPercent: 10 })], {}, null), ['peers-unasked']],
    [
      'weftd does not probe, but weft doctor did',
      {
        ...withPeers([silent(2)], {}, null),
        answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]),
      },
      ['peer-silent'],
    ],
    [
      'it is silent to weftd, but answers weft doctor',
      {
        ...withPeers([silent(2, { lossPercent: 0 })]),
        answers: new Map([['10.5.2.0-24', { ipv4: { small: true, large: true } }]]),
      },
      [],
    ],
    [
      'it answers weft doctor, but lost many probes of weftd',
      { ...withPeers([silent(2)]), answers: new Map([['10.5.2.0-24', { ipv4: { small: true, large: true } }]]) },
      ['peer-lossy'],
    ],
    [
      'the backend has no probes',
      withPeers([silent(2, { lossPercent: null })], { config: { ...status.config!, backendType: 'alloc' } }, null),
      [],
    ],
    [
      'the backend is not known',
      withPeers([silent(2, { lossPercent: null })], { config: { ...status.config!, backendType: 'x' } }, null),
      ['peers-unasked'],
    ],
  ])('have these findings if %s', (_name, facts, expected) =>
    expect(look(facts)?.map(({ name }) => name)).toEqual(expected),
  )

  it('that weft cannot probe are reported with the reason', () => {
    const blind = withPeers([silent(2, { lossPercent: null }), numbered(3, { state: 'stored' })], {}, null)
    expect(lines(look({ ...blind, whyUnprobed: 'EPERM' }))?.at(-1)).toBe('peers-unasked: EPERM')
  })

  it('are listed once if no family reaches them, and once for each broken family if one family reaches them', () => {
    expect(lines(look(withDual(dualPeer({ state: 'stored' }, { state: 'stored' }))))).toEqual([
      'peer-unusable: 10.5.2.0/24 at 192.0.2.2',
    ])
    expect(
      lines(
        look(withDual(dualPeer({ state: 'stored' }, silentSide)))?.map((one) => ({
          ...one,
          detail: one.detail.split(': ')[0]!,
        })),
      ),
    ).toEqual(['peer-unusable: 10.5.2.0/24 at 192.0.2.2', 'peer-silent: fd00:5:0:2::/64 at [2001:db8::2]:8472'])
    expect(lines(look(withDual(dualPeer({ lossPercent: 20 }, { lossPercent: 30 }))))).toEqual([
      'peer-lossy: 10.5.2.0/24 at 192.0.2.2:8472: 20% of the probes lost',
      'peer-lossy: fd00:5:0:2::/64 at [2001:db8::2]:8472: 30% of the probes lost',
    ])
    expect(lines(look(withDual(dualPeer(silentSide, { state: 'stored' }))))).toHaveLength(2)
    expect(lines(look(withDual(dualPeer(silentSide, {}))))).toEqual([
      'family-broken: 10.5.2.0/24 at 192.0.2.2:8472: over IPv4 it does not answer',
    ])
  })

  it.each<[string, Facts, boolean]>([
    ['another type', withPeers([numbered(2, { state: 'stored', type: 'vxlan' })]), true],
    [
      'the address of this host, which another finding reports',
      withPeers([numbered(1, { state: 'stored', subnet: '10.5.2.0/24' })]),
      false,
    ],
    [
      'no place in a data path that is not open',
      withPeers([numbered(2, { state: 'stored' })], { dataPath: { ...path, open: false } }),
      false,
    ],
    ['no place, without a data path', withPeers([numbered(2, { state: 'stored' })], { dataPath: null }), false],
    [
      'no keys in charon, which another finding reports',
      withPeers([numbered(2, { state: 'stored', type: 'udp' })], {
        dataPath: { ...path, counters: { peers_without_keys: 1 } },
      }),
      false,
    ],
    [
      'another type than the peers without keys in charon',
      withPeers([numbered(2, { state: 'stored', type: 'vxlan' })], {
        dataPath: { ...path, counters: { peers_without_keys: 1 } },
      }),
      true,
    ],
    [
      'no configuration to compare the type with, although charon lacks keys',
      withPeers([numbered(2, { state: 'stored', type: 'udp' })], {
        config: null,
        dataPath: { ...path, counters: { peers_without_keys: 1 } },
      }),
      true,
    ],
    [
      'no place, although charon has all keys',
      withPeers([numbered(2, { state: 'stored', type: 'udp' })], {
        dataPath: { ...path, counters: { peers_without_keys: 0 } },
      }),
      true,
    ],
  ])('are unusable, or another finding says why: a lease with %s', (_name, facts, isUnusable) =>
    expect(look(facts)?.map(({ name }) => name)).toEqual(isUnusable ? ['peer-unusable'] : []),
  )

  it('that lack only a route are unusable only if no other finding names the route', () => {
    const kernel = { ...soundDual.status, peers: countPeers([dualPeer({ state: 'stored' }, { state: 'stored' })], 10) }
    const names = (routes: Facts['routes']) =>
      look({ ...soundDual, status: kernel, routes, answers: new Map() })?.map(({ name }) => name)
    expect(names(soundDual.routes)).toEqual(['peer-unusable'])
    expect(names(soundDual.routes.filter(({ destination }) => destination !== '10.5.2.0/24'))).toEqual([])
    // Without a subnet of its own weft doctor checks no routes.
    const node = { ...soundDual.status.node, subnet: 'x', ipv6Subnet: null }
    expect(look({ ...soundDual, status: { ...kernel, node }, routes: [] })?.map(({ name }) => name)).toEqual([
      'peer-unusable',
    ])
    // With udp there is one route for all peers, so a missing route does not explain a missing peer.
    const udp = withPeers([numbered(2, { state: 'stored' })])
    expect(look({ ...udp, routes: [] })?.map(({ name }) => name)).toEqual(['peer-unusable'])
  })
})

describe('a silent peer', () => {
  const says = (facts: Facts, isSendingWrong = false) =>
    look(facts, isSendingWrong)
      ?.filter(({ name }) => name === 'peer-silent')
      .map(({ detail }) => detail.replace(/^.*?: /, ''))
  const sending: Partial<PeerStatus> = { heardSecondsAgo: 3, unansweredSeconds: 20 }
  const arrives =
    'its last packet came 3 s ago; packets from it arrive, so packets to it are lost, or its firewall drops the echo requests'
  const firewall = ': check the firewall on its host first'

  it.each<[string, Partial<Reach> | undefined, boolean, string]>([
    ['nothing more is known', undefined, false, firewall],
    ['its host answers no ping', { isPinged: false }, false, firewall],
    ['weft doctor may not ping', {}, false, firewall],
    ['its host answers a ping', { isPinged: true }, false, ': its host is up and answers a ping'],
    ['its port is refused', { port: 'refused' }, false, ': its host is up and refuses UDP port 8285'],
    ['this host misroutes packets to other nodes', undefined, true, ''],
    ['this host misroutes packets, and its port is refused', { port: 'refused' }, true, ''],
  ])('that sends has a fault on the way to it: %s', (_name, known, isSendingWrong, end) => {
    const facts = { ...withPeers([silent(2, sending)]), ...(known ? reaches(known) : {}) }
    const [text = ''] = says(facts, isSendingWrong) ?? []
    expect(text.startsWith(`${arrives}${end}`)).toBe(true)
    if (end === '' || end === firewall) expect(text).toBe(`${arrives}${end}`)
  })

  it.each<[string, Partial<Reach> | undefined, string]>([
    ['nothing more is known', undefined, 'it does not answer'],
    ['its host answers no ping', { isPinged: false }, 'no answer comes from its host, not even to a ping'],
    ['this host has no route', { port: 'no-route' }, 'this host has no route to its address'],
  ])('of a dead weftd has no time of its last packet: %s', (_name, known, begin) => {
    const facts = { ...withPeers([silent(2)]), silence: 'no socket', ...(known ? reaches(known) : {}) }
    const [text = ''] = says(facts) ?? []
    expect(text.startsWith(begin)).toBe(true)
    expect(text).not.toContain('last packet')
  })

  const session: SessionStatus = {
    publicKey: 'k',
    handshakeSecondsAgo: null,
    ageSeconds: null,
    attempts: 3,
    failure: 'no-answer',
    stale: 0,
    unconfirmed: 0,
    txBytes: 0,
    rxBytes: 0,
  }
  it.each<[string, Partial<SessionStatus>, Partial<Reach> | undefined, boolean]>([
    ['another key', { failure: 'not-authentic' }, undefined, true],
    ['a clock that was set back', { stale: 2 }, undefined, true],
    ['answers that do not arrive', { unconfirmed: 2 }, { isPinged: true }, true],
    ['answers that do not arrive, and a port that is refused', { unconfirmed: 2 }, { port: 'refused' }, false],
    ['no handshakes at all', {}, undefined, false],
    ['an invalid key', { failure: 'bad-key' }, undefined, false],
  ])('whose handshakes arrive is alive: %s', (_name, known, reached, isAlive) => {
    const facts = {
      ...withPeers([silent(2, { session: { ...session, ...known } })]),
      ...(reached ? reaches(reached) : {}),
    }
    expect(says(facts)?.map((text) => /; handshake messages arrive .* see the check handshakes$/.test(text))).toEqual([
      isAlive,
    ])
  })

  const drop = '-P OUTPUT ACCEPT\n-A OUTPUT -p icmp -j DROP'
  it('is explained by a cause on this host, unless the port of the peer refuses packets', () => {
    const facts = { ...withPeers([silent(2)]), iptables: drop }
    const texts = (part: Partial<Facts>) =>
      look({ ...facts, ...part })?.map(({ detail, fix }) => `${detail.replace(/^.*?: /, '')}, FIX ${fix}`)
    const cause = 'the firewall of this host drops the probes: see `probes-dropped`'
    expect(texts({})).toEqual([`${cause}, FIX first remove the fault that \`probes-dropped\` names`])
    expect(texts(reaches({ isPinged: true }))).toEqual([
      `${cause}, FIX first remove the fault that \`probes-dropped\` names`,
    ])
    expect(texts(reaches({ port: 'refused' }))).toEqual([
      expect.stringMatching(
        /see `probes-dropped`; its host is up and refuses UDP port 8285.*, FIX run `weft doctor` on/,
      ),
    ])
    const [half] = checkPeers({ ...withDual(dualPeer(silentSide, {})), iptables: drop }, false) ?? []
    expect(half?.detail).toMatch(/: over IPv4 it does not answer$/)
    // The status page does not know the firewall rules of this host.
    const [page] = checkPeers(facts, false) ?? []
    expect(page?.detail).toMatch(/: its last packet came 7 min ago$/)
  })

  it('is explained by a wrong route to its host', () => {
    const facts = { ...withPeers([silent(2)]), kernelRoutes: routesBy({ underlay: { device: 'tun7' } }) }
    expect(says(facts)).toEqual(['the route to its host, or from its host, is wrong here: see `underlay-route`'])
  })

  it('is explained by a cause on this host only for the first 16 peers, because each search takes time', () => {
    const list = Array.from({ length: 18 }, (_, at) => silent(at + 2))
    const known = says({ ...withPeers(list), iptables: drop })?.map((text) => text.includes('see `probes-dropped`'))
    expect(known).toEqual(list.map((_, at) => at < 16))
    const halves = Array.from({ length: 18 }, (_, at) => ({
      ...dualPeer(silentSide, {}),
      lease: `lease ${at}`,
      subnet: `10.5.${at + 2}.0/24`,
    }))
    const broken = look({ ...withDual(...halves), iptables: drop })?.filter(({ name }) => name === 'family-broken')
    expect(broken?.map(({ detail }) => /: see `(probes-dropped|no-route)`$/.test(detail))).toEqual(
      list.map((_, at) => at < 16),
    )
  })

  it.each<[number, string]>([
    [0.4, '0 s'],
    [119, '119 s'],
    [3_000, '50 min'],
    [86_400, '24 h'],
  ])('sent its last packet %f s ago, which the finding writes as %s', (heardSecondsAgo, words) =>
    expect(says(withPeers([silent(2, { heardSecondsAgo })]))).toEqual([`its last packet came ${words} ago`]),
  )

  const fixes = (facts: Facts): string[] =>
    (look(facts) ?? []).flatMap(({ name, fix }) => (name === 'peer-silent' ? [fix ?? ''] : []))
  const withType = (backendType: string, backend: Record<string, unknown> = {}, part: Partial<PeerStatus> = {}) =>
    withPeers([silent(2, { endpoint: null, ...part })], { config: { ...status.config!, backendType, backend } })
  const ends = 'between 192.0.2.1 and 192.0.2.2'
  const kernel = (facts: Facts): Facts => ({
    ...facts,
    status: { ...facts.status!, dataPath: { ...path, engine: 'kernel', device: 'flannel.1' } },
  })
  it.each<[string, Facts, string]>([
    ['udp', withType('udp'), `accept UDP port 8285 ${ends}, both ways and from any source port, in the firewalls`],
    [
      'udp with a port of the configuration',
      withType('udp', { Port: 9000 }),
      `accept UDP port 9000 ${ends}, both ways and from any source port, in the firewalls`,
    ],
    [
      'udp with the port of the endpoint, which a NAT changed',
      withType('udp', { Port: 9000 }, { endpoint: '192.0.2.2:4001' }),
      `accept UDP port 4001 ${ends}, both ways and from any source port, in the firewalls`,
    ],
    ['vxlan of the kernel', kernel(withType('vxlan')), `accept UDP port 8472 ${ends}, both ways, in the firewalls`],
    [
      'ipip of the kernel',
      kernel(withType('ipip')),
      `accept IP protocol 4 (IPIP) ${ends}, both ways, in the firewalls of both hosts and of the network`,
    ],
    ['ipip of weftd', withType('ipip'), `accept IP protocol 4 (IPIP) ${ends}, both ways, in the firewalls`],
    [
      'host-gw',
      kernel(withType('host-gw')),
      `accept packets of 10.5.0.0/16 ${ends}, in the firewalls of both hosts and of the network`,
    ],
    [
      'udp before weftd has a data path',
      { ...withType('udp'), status: { ...withType('udp').status!, dataPath: null } },
      `accept UDP port 8285 ${ends}, both ways and from any source port, in the firewalls`,
    ],
    [
      'an unknown configuration',
      { ...withType('udp'), status: { ...withType('udp').status!, config: null } },
      `accept packets of the network ${ends}, in the firewalls`,
    ],
    [
      'an unreadable address',
      withType('udp', {}, { publicIp: 'x' }),
      'accept UDP port 8285, both ways and from any source port, in the firewalls',
    ],
  ])('has a remedy that names what the firewalls must accept: %s', (_name, facts, words) => {
    expect(fixes(facts)).toEqual([expect.stringContaining(`check that weftd runs there; ${words}`)])
    expect(fixes(facts)[0]).toMatch(/ of both hosts and of the network$/)
  })

  it('names the port of the IPv6 device of WireGuard for a peer that is silent over IPv6', () => {
    const { families, ...dual } = dualPeer({}, { ...silentSide, endpoint: null })
    const peer = silent(2, { ...dual, ...silentSide, endpoint: null, families: { ipv4: null, ipv6: families.ipv6 } })
    const config = { ...status.config!, ipv6Network: 'fd00:5::/48', backendType: 'wireguard', backend: {} }
    expect(fixes(withPeers([peer], { config }))).toEqual([expect.stringContaining('accept UDP port 51821')])
  })

  it('has the remedy for NAT with WireGuard, whose keepalive keeps the mapping of a NAT', () => {
    const wireguard = withType('wireguard')
    expect(fixes(wireguard)).toEqual([
      expect.stringMatching(/accept UDP port 51820 .*; if one of the hosts is behind NAT, set `PersistentKeepaliveInt/),
    ])
  })

  it('has a remedy with the addresses of the outer family', () => {
    const dual = withDual(dualPeer(silentSide, silentSide))
    expect(fixes(dual)).toEqual([expect.stringContaining(`accept UDP port 8472 ${ends}, both ways, in`)])
    const of6: Facts = {
      ...soundIpv6,
      status: { ...soundIpv6.status!, peers: countPeers([peerOfIpv6(silentSide)], 10) },
      answers: new Map(),
    }
    expect(fixes(of6)).toEqual([
      expect.stringContaining('accept UDP port 8472 between 2001:db8::1 and 2001:db8::2, both ways, in'),
    ])
  })

  it.each<[string, Partial<Reach>, RegExp]>([
    ['off the link', { isOffLink: true }, /; no host on the link answers for its address/],
    ['off the link, without a ping', { isOffLink: true, isPinged: false }, /; no host on the link answers/],
    ['on the link, because it answers a ping', { isOffLink: true, isPinged: true }, /; its host is up/],
    ['reached by no ping', { isPinged: false }, /; no answer comes from its host, not even to a ping/],
    ['not pinged', {}, /; no answer comes from its host$/],
  ])('has a host that is %s', (_name, known, words) =>
    expect(says({ ...withPeers([silent(2)]), ...reaches(known) })).toEqual([expect.stringMatching(words)]),
  )
})
