// checks.test.ts - what each check makes of what was seen: a sound host is accused of nothing, a broken one of what is broken; and
// docs/doctor.md has every finding.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { CHECKS, diagnose, diagnoseStatus } from '../../../src/doctor/checks.ts'
import type { Facts } from '../../../src/doctor/facts.ts'
import { FINDINGS, type FindingName } from '../../../src/doctor/findings.ts'
import { countPeers, startingReport, type PeerStatus, type Status } from '../../../src/status/status.ts'
import { link, route, sound, soundNow, soundPeer, soundStatus } from '../../support/facts.ts'

const NOW = soundNow
const peer = soundPeer
const status = soundStatus
/** As `nft list ruleset` prints it. */
const nft = (hook: string, rule: string): string =>
  `table inet mine {\n\tchain c {\n\t\ttype filter hook ${hook} priority filter; policy drop;\n\t\t${rule}\n\t}\n}\n`
const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
const withPeers = (...list: Partial<PeerStatus>[]): Partial<Facts> => ({
  ...withStatus({
    peers: countPeers(
      list.map((one) => ({ ...peer, ...one })),
      10,
    ),
  }),
  answers: new Map(),
})
const found = (part: Partial<Facts>): FindingName[] =>
  diagnose({ ...sound, ...part }).flatMap(({ findings = [] }) => findings.map(({ name }) => name))

describe('the doctor', () => {
  it('accuses a sound host of nothing, and knows all of it', () => {
    expect(diagnose(sound)).toEqual(CHECKS.map(({ name }) => ({ check: name, findings: [] })))
  })

  it.each<[string, Partial<Facts>]>([
    [
      'host-gw',
      {
        ...withStatus({
          config: { ...status.config!, backendType: 'host-gw' },
          dataPath: { ...status.dataPath!, device: null, engine: 'kernel', mtu: 1500 },
        }),
        routes: [route('10.5.2.0/24', 'eth0', '192.0.2.2')],
        subnetEnv: { FLANNEL_SUBNET: '10.5.1.1/24', FLANNEL_MTU: '1500' },
      },
    ],
    ['a route past the tunnel', { routes: [...sound.routes, route('10.5.2.0/24', 'eth0', '192.0.2.2')] }],
    ['a blackhole for its own subnet', { routes: [...sound.routes, route('10.5.1.0/24', '')] }],
    ["Docker's own bridge", { links: [...sound.links, link('docker1', 1500, '10.6.0.1')] }],
    [
      'what its log says of another host with its address, which is over',
      withStatus({
        events: [
          { at: '', level: 'error', text: "Another host uses this node's public IP 192.0.2.1 too: b. Both hold" },
        ],
      }),
    ],
    ['a reservation', withStatus({ lease: { ...status.lease!, expiresAt: null } })],
    [
      'peers that are not asked yet',
      withPeers({ state: 'programmed', lossPercent: null, roundTripMs: null, probedSecondsAgo: null }),
    ],
    [
      'a few drops',
      withStatus({ dataPath: { ...status.dataPath!, drops: { rx_drop_spoofed_source: 3, tx_drop_no_route: 9_999 } } }),
    ],
    [
      'a firewall whose states it cannot know',
      { iptables: '-P INPUT DROP\n-A INPUT -m conntrack --ctstate NEW -j ACCEPT' },
    ],
    ['a firewall of nftables that lets in what answers', { nft: nft('input', 'udp dport 8285 accept') }],
    ['a firewall of nftables that names the network', { nft: nft('forward', 'ip saddr 10.5.0.0/16 accept') }],
    ['a firewall of nftables that names the device', { nft: nft('forward', 'iifname "flannel0" accept') }],
    [
      "iptables' own tables in nft",
      { nft: 'table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n' },
    ],
  ])('has nothing against %s', (_name, part) => {
    expect(found(part)).toEqual([])
  })

  it.each<[FindingName, Partial<Facts>]>([
    ['daemon-silent', { status: undefined, silence: 'nobody' }],
    [
      'daemon-waits',
      withStatus({
        state: 'starting',
        trouble: 'waiting for a lease',
        node: null,
        config: null,
        lease: null,
        dataPath: null,
        peers: null,
      }),
    ],
    [
      'data-path-down',
      withStatus({ dataPath: { ...status.dataPath!, threads: [{ name: 'weft-loop0', hungSeconds: 12 }] } }),
    ],
    ['data-path-down', withStatus({ dataPath: { ...status.dataPath!, open: false, mtu: null } })],
    ['not-root', { isRoot: false }],
    ['not-root', { isRoot: false, status: undefined, isForbidden: true }],
    ['tun-missing', { tunProblem: 'ENOENT' }],
    ['tun-forbidden', { tunProblem: 'EPERM' }],
    ['forwarding-off', { isForwarding: false }],
    ['forward-dropped', { iptables: '-P FORWARD DROP\n-A FORWARD -s 10.5.1.0/24 -j ACCEPT' }],
    ['port-dropped', { iptables: '-A INPUT -i eth0 -p udp -m udp --dport 8285 -j REJECT' }],
    ['nft-drops', { nft: nft('forward', 'ip saddr 10.9.0.0/16 accept') }],
    ['foreign-route', { routes: [...sound.routes, route('10.5.2.0/24', 'eth1', '192.0.2.254')] }],
    ['foreign-route', { routes: [...sound.routes, route('10.5.0.0/16', 'tun9')] }],
    ['no-route', { routes: [route('10.5.1.0/24', 'cni0')] }],
    ['store-away', withStatus({ store: { ...status.store, reachable: false } })],
    ['store-stale', withStatus({ store: { ...status.store, comparedSecondsAgo: 200 } })],
    ['peers-held', withStatus({ store: { ...status.store, held: 3 } })],
    ['clock-off', { storeAheadMs: -3_600_000 }],
    ['clock-off', { now: NOW - 7_200_000 }],
    ['clock-off', { now: NOW + 86_400_000 }],
    ['subnet-twice', withPeers({ subnet: '10.5.1.128/25' })],
    ['address-twice', withPeers({ publicIp: '192.0.2.1', state: 'stored' })],
    ['address-twice', withStatus({ node: { ...status.node!, twin: 'b' } })],
    ['peer-unusable', withPeers({ state: 'stored', type: 'vxlan' })],
    ['peer-silent', withPeers({ state: 'programmed', lossPercent: 100 })],
    ['peer-silent', { answers: new Map([['10.5.2.0-24', { small: false, large: false }]]) }],
    ['peer-lossy', withPeers({ lossPercent: 30 })],
    [
      'peers-unasked',
      {
        ...withStatus({ peers: countPeers([{ ...peer, state: 'programmed', lossPercent: null }], null) }),
        answers: new Map(),
        unasked: 'not allowed',
      },
    ],
    ['path-mtu', { answers: new Map([['10.5.2.0-24', { small: true, large: false }]]) }],
    ['mtu-too-large', { links: [link('eth0', 1400, '192.0.2.1')] }],
    ['bridge-mtu', { links: [...sound.links, link('docker1', 1500, '10.5.1.1')] }],
    ['bridge-elsewhere', { links: [...sound.links, link('docker1', 1472, '10.5.9.1')] }],
    ['subnet-env-wrong', { subnetEnv: undefined }],
    ['subnet-env-wrong', { subnetEnv: { ...sound.subnetEnv, FLANNEL_SUBNET: '10.5.9.1/24' } }],
    ['subnet-env-wrong', { subnetEnv: { ...sound.subnetEnv, FLANNEL_MTU: '1500' } }],
    ['packets-dropped', withStatus({ dataPath: { ...status.dataPath!, drops: { rx_drop_socket_full: 500 } } })],
  ])('names %s and nothing else', (name, part) => {
    expect(found(part)).toEqual([name])
  })

  it('names a firewall of nftables beside the peer that does not answer', () => {
    const answers = new Map([['10.5.2.0-24', { small: false, large: false }]])
    expect(found({ nft: nft('input', 'tcp dport 22 accept'), answers })).toEqual(['nft-drops', 'peer-silent'])
  })

  it.each([
    ['heard since it was last asked', { heardSecondsAgo: 3, probedSecondsAgo: 6, lossPercent: 20 }, true],
    ['heard while it was asked in vain', { heardSecondsAgo: 8, probedSecondsAgo: 4, lossPercent: 40 }, true],
    [
      'heard for the last time before it was asked',
      { heardSecondsAgo: 8, probedSecondsAgo: 4, lossPercent: 20 },
      false,
    ],
    ['not heard for longer than two intervals', { heardSecondsAgo: 22, probedSecondsAgo: 4, lossPercent: 100 }, false],
    ['answering when the status was taken', { state: 'answering', heardSecondsAgo: 2, probedSecondsAgo: 8 }, false],
    ['never heard', { heardSecondsAgo: null, probedSecondsAgo: 4, lossPercent: 100 }, false],
  ] as const)('says of a silent peer that was %s whether it sends', (_, changes, sends) => {
    const answers = new Map([['10.5.2.0-24', { small: false, large: false }]])
    const facts = { ...sound, ...withPeers({ state: 'programmed', ...changes }), answers }
    const check = diagnose(facts).find((each) => each.check === 'peers')
    expect(check!.findings!.map(({ detail }) => /; it sends,/.test(detail))).toEqual([sends])
  })

  it.each([
    [3_600_000, "3600 s behind the store's"],
    [-3_600_000, "3600 s ahead of the store's"],
  ])('says of a clock that the store is %d ms ahead of: %s', (storeAheadMs, detail) => {
    const check = diagnose({ ...sound, storeAheadMs }).find((each) => each.check === 'clock')
    expect(check!.findings).toEqual([{ name: 'clock-off', detail }])
  })

  it('allows a lease its day and a minute, which clocks may differ by', () => {
    const ends = Date.parse(status.lease!.expiresAt!)
    const at = (leftMs: number): FindingName[] => found({ now: ends - leftMs })
    expect([at(86_400_000 + 60_000), at(86_400_000 + 60_001)]).toEqual([[], ['clock-off']])
    expect([at(-60_000), at(-60_001)]).toEqual([[], ['clock-off']])
  })

  it.each([
    [10, []],
    [20, ['peer-lossy']],
    [30, ['peer-lossy']],
  ])('takes a peer that loses %d percent of the probes for %j', (lossPercent, names) => {
    expect(found(withPeers({ lossPercent }))).toEqual(names)
  })

  // What stands before a packet: of IPv4 20, UDP 8, VXLAN 8 and Ethernet 14, IPIP an IPv4 header, WireGuard 16 and its tag 16.
  it.each([
    ['udp', 28],
    ['vxlan', 50],
    ['ipip', 20],
    ['wireguard', 60],
    ['host-gw', 0],
    ['alloc', 0],
  ])('knows that %s takes %d bytes of what the interface carries', (backendType, bytes) => {
    const names = (mtu: number): readonly string[] | undefined =>
      diagnose({
        ...sound,
        ...withStatus({ config: { ...status.config!, backendType }, dataPath: { ...status.dataPath!, mtu } }),
        links: [link('eth0', 1500, '192.0.2.1')],
      })
        .find(({ check }) => check === 'mtu')!
        .findings?.map(({ name }) => name)
    expect([names(1500 - bytes), names(1501 - bytes)]).toEqual([[], ['mtu-too-large']])
  })

  it('names the first few of many, and how many more there are', () => {
    const many = Array.from({ length: 9 }, (_, at) => ({ subnet: `10.5.${at + 2}.0/24`, state: 'stored' as const }))
    const check = diagnose({ ...sound, ...withPeers(...many) }).find((each) => each.check === 'peers')
    expect(check!.findings!.map(({ detail }) => detail).slice(-2)).toEqual(['10.5.6.0/24 at 192.0.2.2', 'and 4 more'])
  })

  it('has each finding tried here, and in docs/doctor.md as it stands in the code', () => {
    const page = readFileSync(join(packageRoot, 'docs/doctor.md'), 'utf8')
    const rows = Object.entries(FINDINGS).map(
      ([name, { check, level, means, fix }]) => `| \`${name}\` | ${check} | ${level} | ${means} | ${fix} |`,
    )
    expect(page.split('\n').filter((line) => line.startsWith('| `'))).toEqual(rows)
    const source = readFileSync(import.meta.filename, 'utf8')
    expect(Object.keys(FINDINGS).filter((name) => !source.includes(`'${name}',`))).toEqual([])
    expect(Object.values(FINDINGS).filter(({ check }) => !CHECKS.some(({ name }) => name === check))).toEqual([])
  })
})

describe('the doctor, by the status alone', () => {
  it('finds nothing on a sound node, though it knows nothing of the host', () => {
    expect(diagnoseStatus(soundStatus)).toEqual([])
  })

  it('finds what the status has, as weft doctor does', () => {
    const silent: PeerStatus = { ...soundPeer, state: 'programmed', lossPercent: 100 }
    const sick: Status = {
      ...{ ...soundStatus, peers: countPeers([silent], 10), store: { ...soundStatus.store, reachable: false } },
    }
    expect(diagnoseStatus(sick).map(({ name }) => name)).toEqual(['store-away', 'peer-silent'])
    const starting: Status = { ...soundStatus, ...startingReport('etcd', 'waiting for a lease') }
    expect(diagnoseStatus(starting)).toEqual([{ name: 'daemon-waits', detail: 'waiting for a lease' }])
  })
})

describe('at its limits, the doctor', () => {
  const said = (part: Partial<Facts>): string[] =>
    diagnose({ ...sound, ...part }).flatMap(({ findings = [] }) =>
      findings.map(({ name, detail }) => `${name}: ${detail}`),
    )
  const unknown = (part: Partial<Facts>): string[] =>
    diagnose({ ...sound, ...part }).flatMap(({ check, findings }) => (findings === undefined ? [check] : []))
  const path = status.dataPath!
  const silent = { answers: new Map([['10.5.2.0-24', { small: false, large: false }]]) }
  const notAsked: Partial<PeerStatus> = { state: 'programmed', lossPercent: null }

  it.each<[string, Partial<Facts>, string[]]>([
    ['nobody answers', { status: undefined, silence: 'no socket' }, ['daemon-silent: no socket']],
    ['nobody may ask', { status: undefined, isForbidden: true }, []],
    ['nobody answers an ordinary user', { status: undefined, isRoot: false }, ['not-root: ', 'daemon-silent: ']],
    [
      'a thread hangs',
      withStatus({
        dataPath: {
          ...path,
          threads: [
            { name: 'a', hungSeconds: null },
            { name: 'b', hungSeconds: 0 },
          ],
        },
      }),
      ['data-path-down: the thread b hangs'],
    ],
    [
      'the data path is down',
      withStatus({ trouble: 'why', dataPath: { ...path, open: false } }),
      ['data-path-down: why'],
    ],
    ['there is no TUN', { tunProblem: 'ENOENT' }, ['tun-missing: ENOENT']],
    ['a TUN is forbidden', { tunProblem: 'EPERM' }, ['tun-forbidden: EPERM']],
    ['a TUN is forbidden by its mode', { tunProblem: 'EACCES' }, ['tun-forbidden: EACCES']],
    [
      'no TUN is needed, with the kernel',
      {
        ...withStatus({
          config: { ...status.config!, backendType: 'ipip' },
          dataPath: { ...path, engine: 'kernel' },
        }),
        tunProblem: 'EPERM',
      },
      ['no-route: 10.5.2.0/24'], // which each peer has, then
    ],
    [
      'no TUN is needed, with nothing',
      { ...withStatus({ dataPath: { ...path, engine: 'none' } }), tunProblem: 'EPERM' },
      [],
    ],
    ['its clock is a minute ahead', { storeAheadMs: -60_000 }, []],
    ['its clock is more ahead', { storeAheadMs: -60_001 }, ["clock-off: 60 s ahead of the store's"]],
    ['its clock is a minute behind', { storeAheadMs: 60_000 }, []],
    ['its clock is more behind', { storeAheadMs: 3_600_000 }, ["clock-off: 3600 s behind the store's"]],
    // The lease ends 23 hours from now.
    ['the lease ends in a day and a minute', { now: NOW - 3_600_000 - 60_000 }, []],
    ['the lease ends later', { now: NOW - 3_600_000 - 60_001 }, ['clock-off: the lease of a day ends in 24 h']],
    ['the lease ended a minute ago', { now: NOW + 23 * 3_600_000 + 60_000 }, []],
    [
      'the lease ended before',
      { now: NOW + 23 * 3_600_000 + 120_000 },
      ['clock-off: the lease that is held ended 2 min ago'],
    ],
    ['all was compared three minutes ago', withStatus({ store: { ...status.store, comparedSecondsAgo: 180 } }), []],
    [
      'all was compared before',
      withStatus({ store: { ...status.store, comparedSecondsAgo: 180.6 } }),
      ['store-stale: etcd: http://192.0.2.9:2379 /n: compared 181 s ago'],
    ],
    ['nothing was compared', withStatus({ store: { ...status.store, comparedSecondsAgo: null } }), []],
    [
      'the store is away',
      withStatus({ store: { ...status.store, reachable: false } }),
      ['store-away: etcd: http://192.0.2.9:2379 /n'],
    ],
    ['one peer is held', withStatus({ store: { ...status.store, held: 1 } }), ['peers-held: 1 peers']],
    ['19% are lost', withPeers({ lossPercent: 19 }), []],
    ['20% are lost', withPeers({ lossPercent: 20 }), ['peer-lossy: 10.5.2.0/24 at 192.0.2.2:8285: 20%']],
    [
      'a peer is silent',
      withPeers({ state: 'programmed', lossPercent: 100, heardSecondsAgo: null, endpoint: null }),
      ['peer-silent: 10.5.2.0/24 at 192.0.2.2: nothing was ever heard of it'],
    ],
    [
      'a peer has another type',
      withPeers({ state: 'stored', type: 'vxlan' }),
      ['peer-unusable: 10.5.2.0/24 at 192.0.2.2, of type vxlan'],
    ],
    [
      'nobody may ask peers',
      { ...withStatus({ peers: countPeers([{ ...peer, ...notAsked }], null) }), answers: new Map(), unasked: 'EPERM' },
      ['peers-unasked: EPERM'],
    ],
    ['nobody asks, and there are no peers', { ...withStatus({ peers: countPeers([], null) }), answers: new Map() }, []],
    [
      'nobody asks, and the only peer is not used',
      {
        ...withStatus({ dataPath: { ...path, open: false }, peers: countPeers([{ ...peer, state: 'stored' }], null) }),
        answers: new Map(),
      },
      ['data-path-down: '],
    ],
    [
      'two leases lie across each other',
      withPeers({ subnet: '10.5.1.128/25' }),
      ['subnet-twice: 10.5.1.0/24 of 192.0.2.1 and 10.5.1.128/25 of 192.0.2.2'],
    ],
    ['a lease cannot be read', withPeers({ subnet: 'x' }), []],
    [
      'another has its address',
      withPeers({ publicIp: '192.0.2.1', state: 'stored' }),
      ['address-twice: 192.0.2.1 leases 10.5.2.0/24 too'],
    ],
    ['a twin was noticed', withStatus({ node: { ...status.node!, twin: 'b' } }), ['address-twice: 192.0.2.1, as b']],
    [
      'packets of the MTU do not come back',
      { answers: new Map([['10.5.2.0-24', { small: true, large: false }]]) },
      ['path-mtu: 10.5.2.0/24 at 192.0.2.2:8285: packets of 1472 bytes do not come back'],
    ],
    [
      'the MTU is one byte too large',
      { links: [link('eth0', 1499, '192.0.2.1')] },
      ['mtu-too-large: 1472 bytes and what stands before them are 1500, and eth0 takes 1499'],
    ],
    [
      'a bridge takes one byte more',
      { links: [...sound.links, link('cni1', 1473, '10.5.1.1')] },
      ['bridge-mtu: cni1 has 1473, the data path 1472'],
    ],
    ['what is no bridge of containers takes more', { links: [...sound.links, link('veth1', 1500, '10.5.1.1')] }, []],
    [
      'a bridge is of the network and not of the subnet',
      { links: [...sound.links, link('br-1', 1472, '10.5.0.255')] },
      ['bridge-elsewhere: br-1 has 10.5.0.255, and this node 10.5.1.0/24'],
    ],
    ['what is no bridge is elsewhere', { links: [...sound.links, link('veth1', 1472, '10.5.9.1')] }, []],
    ['subnet.env is missing', { subnetEnv: undefined }, ['subnet-env-wrong: /run/flannel/subnet.env is not there']],
    [
      'subnet.env is empty',
      { subnetEnv: {} },
      ['subnet-env-wrong: /run/flannel/subnet.env says no subnet, and this node has 10.5.1.0/24'],
    ],
    [
      'subnet.env is of before',
      { subnetEnv: { FLANNEL_SUBNET: '10.5.1.1/25' } },
      ['subnet-env-wrong: /run/flannel/subnet.env says 10.5.1.1/25, and this node has 10.5.1.0/24'],
    ],
    [
      'subnet.env has another MTU',
      { subnetEnv: { ...sound.subnetEnv, FLANNEL_MTU: '1450' } },
      ['subnet-env-wrong: /run/flannel/subnet.env says MTU 1450, and the data path has 1472'],
    ],
    ['ten packets are dropped', withStatus({ dataPath: { ...path, drops: { tx_drop_too_big: 10 } } }), []],
    [
      'eleven packets are dropped',
      withStatus({ dataPath: { ...path, drops: { tx_drop_too_big: 11 } } }),
      ['packets-dropped: tx_drop_too_big: 11'],
    ],
    [
      'one in a thousand is dropped',
      withStatus({
        dataPath: { ...path, counters: { rx_packets: 60_000, tx_packets: 40_000 }, drops: { rx_drop_truncated: 100 } },
      }),
      [],
    ],
    [
      'more are dropped',
      withStatus({
        dataPath: { ...path, counters: { rx_packets: 60_000, tx_packets: 40_000 }, drops: { rx_drop_truncated: 101 } },
      }),
      ['packets-dropped: rx_drop_truncated: 101'],
    ],
    [
      'what a healthy host drops',
      withStatus({ dataPath: { ...path, counters: {}, drops: { tx_drop_no_route: 99 } } }),
      [],
    ],
    [
      'each that tells something is dropped',
      withStatus({
        dataPath: {
          ...path,
          drops: Object.fromEntries(
            [
              'rx_drop_socket_full',
              'rx_drop_spoofed_source',
              'tx_drop_too_big',
              'tx_drop_socket_full',
              'rx_drop_truncated',
            ].map((name) => [name, 99]),
          ),
        },
      }),
      [
        'rx_drop_socket_full',
        'rx_drop_spoofed_source',
        'tx_drop_too_big',
        'tx_drop_socket_full',
        'rx_drop_truncated',
      ].map((name) => `packets-dropped: ${name}: 99`),
    ],
    [
      'a route leads away',
      { routes: [...sound.routes, route('10.5.2.0/24', 'eth1', '192.0.2.254')] },
      ['foreign-route: 10.5.2.0/24 goes via 192.0.2.254 to eth1'],
    ],
    [
      'a route leads nowhere',
      { routes: [...sound.routes, route('10.5.2.0/24', '')] },
      ['foreign-route: 10.5.2.0/24 goes to nowhere'],
    ],
    [
      'a route of less weight leads away',
      { routes: [...sound.routes, { ...route('10.5.2.0/24', 'eth1'), metric: 100 }] },
      [],
    ],
    [
      'a route of a wider net leads away',
      { routes: [...sound.routes, route('10.5.0.0/23', 'eth1')] },
      ['foreign-route: 10.5.0.0/23 goes to eth1'],
    ],
    ['a part of its own subnet is elsewhere', { routes: [...sound.routes, route('10.5.1.128/25', 'veth9')] }, []],
    ['what is no network has a route', { routes: [...sound.routes, route('default', 'eth0')] }, []],
    [
      'no route leads to the network',
      { routes: [{ ...route('10.5.0.0/16', 'flannel0'), metric: 7 }] },
      ['no-route: 10.5.0.0/16'],
    ],
  ])('where %s', (_, part, expected) => expect(said(part)).toEqual(expected))

  it('asks for a route to each peer where none takes the whole network, and for none to a peer that is not used', () => {
    const kernel = (backendType: string) =>
      withStatus({
        config: { ...status.config!, backendType },
        dataPath: { ...path, engine: 'kernel' },
        peers: countPeers([peer, { ...peer, lease: 'b', subnet: '10.5.3.0/24', state: 'stored' }], 10),
      })
    const wide = { links: [link('eth0', 9000, '192.0.2.1')] }
    const routes = [route('10.5.1.0/24', 'cni0')]
    expect(said({ ...kernel('vxlan'), ...wide, routes })).toEqual([
      'no-route: 10.5.2.0/24',
      'peer-unusable: 10.5.3.0/24 at 192.0.2.2',
    ])
    expect(found({ ...kernel('wireguard'), ...wide, routes })).toContain('no-route')
    expect(said({ ...kernel('wireguard'), ...wide, routes }).filter((line) => line.startsWith('no-route'))).toEqual([
      'no-route: 10.5.0.0/16',
    ])
    // The whole network by another way is nobody's error there.
    expect(
      found({
        ...{ ...kernel('vxlan'), ...wide },
        routes: [...routes, route('10.5.0.0/16', 'eth9'), route('10.5.2.0/24', 'flannel0')],
      }),
    ).toEqual(['peer-unusable'])
  })

  it('names five of many, and counts what is more than that', () => {
    const many = (count: number) =>
      said(withPeers(...Array.from({ length: count }, (_, at) => ({ subnet: `10.5.${at + 2}.0/24`, lossPercent: 50 }))))
    expect(many(5)).toHaveLength(5)
    expect(many(6).at(-1)).toBe('peer-lossy: and 1 more')
  })

  it('says of one that sends that it is to be looked at there first, and how long ago it was heard', () => {
    const facts = { ...withPeers({ state: 'programmed', heardSecondsAgo: 3.4, probedSecondsAgo: 6 }), ...silent }
    expect(said(facts)).toEqual([
      'peer-silent: 10.5.2.0/24 at 192.0.2.2:8285: last heard 3 s ago; it sends, and what is sent to it is lost: look at the firewall there first',
    ])
    const sends = (changes: Partial<PeerStatus>): boolean =>
      said({ ...withPeers({ state: 'programmed', lossPercent: 0, ...changes }), ...silent }).some((line) =>
        line.includes('it sends'),
      )
    expect([
      sends({ heardSecondsAgo: 4.9, probedSecondsAgo: 6 }),
      sends({ heardSecondsAgo: 5, probedSecondsAgo: 6 }),
      sends({ heardSecondsAgo: 19, probedSecondsAgo: 6, lossPercent: 40 }),
      sends({ heardSecondsAgo: 20, probedSecondsAgo: 6, lossPercent: 40 }),
      sends({ heardSecondsAgo: 19, probedSecondsAgo: 6, lossPercent: 39 }),
      sends({ heardSecondsAgo: 1, probedSecondsAgo: null }),
    ]).toEqual([true, false, true, false, false, false])
  })

  it('says that it cannot know what takes a node, and knows what does not', () => {
    const nothing = { node: null, config: null, lease: null, dataPath: null, peers: null }
    expect(unknown(withStatus(nothing))).toEqual([
      'firewall',
      'routes',
      'store',
      'leases',
      'peers',
      'mtu',
      'containers',
      'drops',
    ])
    expect(unknown({ status: undefined, silence: '', storeAheadMs: undefined })).toEqual([
      ...['firewall', 'routes', 'store', 'clock', 'leases', 'peers', 'mtu', 'containers', 'drops'],
    ])
    expect(unknown(withStatus({ dataPath: { ...path, open: false } }))).toEqual(['routes', 'containers'])
    expect(unknown(withStatus({ dataPath: { ...path, engine: 'none' } }))).toEqual(['routes'])
    expect(unknown(withStatus({ dataPath: { ...path, mtu: null } }))).toEqual(['mtu'])
    expect(unknown({ ...withStatus({ lease: null }), storeAheadMs: undefined })).toEqual(['clock'])
    expect(unknown(withStatus({ lease: null }))).toEqual([])
  })
})
