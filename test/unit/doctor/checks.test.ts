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
    [
      'address-twice',
      withStatus({
        events: [
          { at: '', level: 'error', text: "Another host uses this node's public IP 192.0.2.1 too: b. Both hold" },
        ],
      }),
    ],
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
