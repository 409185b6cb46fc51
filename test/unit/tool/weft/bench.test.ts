// bench.test.ts - which hosts may use the listener of weft bench, the facts of a host, and the report.

import { describe, expect, it } from 'vitest'
import { parseAddress } from '../../../../src/net/address.ts'
import { countPeers, startingReport, type PeerStatus, type Status } from '../../../../src/report/status.ts'
import { textOf, type Report } from '../../../../src/tool/weft/bench-text.ts'
import { inUseOf, refusalOf, pathsTo } from '../../../../src/tool/weft/bench.ts'
import { beginningWith } from '../../../support/snapshot.ts'

const peer = (number: number): PeerStatus => ({
  lease: `10.5.${number}.0-24`,
  subnet: `10.5.${number}.0/24`,
  publicIp: `192.0.2.${number}`,
  type: '',
  ipv6Subnet: null,
  publicIpv6: null,
  endpoint: `192.0.2.${number}:8285`,
  way: 'tunnel',
  state: 'programmed',
  held: false,
  unusable: false,
  since: '',
  txPackets: 0,
  txBytes: 0,
  rxPackets: 0,
  rxBytes: 0,
  heardSecondsAgo: null,
  roundTripMs: null,
  lossPercent: null,
  probedSecondsAgo: null,
  unansweredSeconds: null,
  pathMtu: 1372,
  path: null,
  passesBytes: null,
  pathSince: null,
  session: null,
  name: null,
  families: { ipv4: null, ipv6: null },
})
const ofBoth = (number: number): PeerStatus => {
  const [ipv4, address] = [peer(number), `fd77::${number}`]
  const ipv6 = { ...ipv4, endpoint: `[${address}]:8472`, pathMtu: 1300 }
  const families = { ipv4, ipv6 }
  return { ...ipv4, families, ipv6Subnet: `fd00:5:0:${number}::/64`, publicIpv6: address }
}
const STATUS: Status = {
  ...startingReport('directory', beginningWith('')),
  schema: 1,
  at: '',
  events: [],
  daemon: { version: '1', pid: 1, startedAt: '', subnetFile: '', leases: '', etcdFiles: null, network: 'off' },
  node: {
    hostname: 'a',
    subnet: '10.5.1.0/24',
    publicIp: '192.0.2.1',
    ipv6Subnet: null,
    publicIpv6: null,
    externalInterface: 'eth0',
    twin: null,
  },
  dataPath: {
    open: true,
    families: ['ipv4'],
    lacking: { ipv4: null, ipv6: null },
    addressGone: { ipv4: null, ipv6: null },
    mtu: 1472,
    mtuAtStart: null,
    device: 'flannel0',
    devices: { ipv4: 'flannel0', ipv6: null },
    engine: 'native',
    features: ['udp-gso'],
    fastPath: null,
    threads: [],
    counters: {},
    drops: {},
    recent: null,
    unknownKeys: null,
  },
  peers: countPeers([peer(2), peer(3), ofBoth(4)], null),
}

describe('a host that connects', () => {
  it.each([
    ['a peer', '192.0.2.2', '10.5.2.0', undefined],
    ['whom the operator named', '198.51.100.7', '10.9.9.0', undefined],
    ['a stranger', '192.0.2.9', '10.5.2.0', /no peer of this node has the public IP 192.0.2.9/],
    ['a peer by IPv6', 'fd77::4', 'fd00:5:0:4::', undefined],
    ['a peer by the addresses of both families', '192.0.2.4', 'fd00:5:0:4::', undefined],
    ["a peer by another one's IPv6 subnet", 'fd77::4', 'fd00:5:0:5::', /fd00:5:0:5:: is not in the subnet of fd77::4/],
    ['a stranger by IPv6', 'fd77::9', 'fd00:5:0:4::', /no peer of this node has the public IP fd77::9/],
    ["a peer by another one's subnet", '192.0.2.2', '10.5.3.0', /10.5.3.0 is not in the subnet of 192.0.2.2/],
    ['what is no address', '192.0.2.2', 'x', /no address in the overlay/],
  ])('is accepted or refused: %s', (_who, address, inside, why) => {
    const refusal = refusalOf(STATUS, ['198.51.100.7'], address, inside)
    if (why) expect(refusal).toMatch(why)
    else expect(refusal).toBeUndefined()
  })

  it('must be named by the operator if no weftd answers', () => {
    expect(refusalOf(undefined, ['192.0.2.2'], '192.0.2.2', '10.5.2.0')).toBeUndefined()
    expect(refusalOf(undefined, ['192.0.2.2'], '192.0.2.3', '10.5.3.0')).toMatch(/no weftd answers/)
  })
})

describe('the paths to a peer', () => {
  const waysBy = (family: 'ipv4' | 'ipv6', endpoint: string, to: string) => {
    const four = ofBoth(4)
    const families = { ...four.families, [family]: { ...four.families[family], endpoint } }
    const probe = { family, from: parseAddress('::1')!, to: parseAddress(to)! }
    return pathsTo(STATUS, { ...four, families }, probe).outside.to
  }
  it.each([
    ['ipv4', '192.0.2.4:8285', '10.5.4.0', '192.0.2.4'],
    ['ipv6', '[fd77::4]:8472', 'fd00:5:0:4::', 'fd77::4'],
    ['ipv6', 'fd77::4', 'fd00:5:0:4::', 'fd77::4'],
    ['ipv6', '192.0.2.4:51820', 'fd00:5:0:4::', '192.0.2.4'],
    ['ipv4', '[fd77::4]:51820', '10.5.4.0', 'fd77::4'],
  ] as const)('over %s to %s with %s inside go to %s outside', (family, endpoint, to, outside) =>
    expect(waysBy(family, endpoint, to)).toBe(outside),
  )
  it('are refused if the backend does not encapsulate packets', () => {
    expect(() => waysBy('ipv4', '192.0.2.4', '192.0.2.4')).toThrow(/does not encapsulate packets/)
    expect(() => waysBy('ipv6', 'fd77::4', 'fd77::4')).toThrow(/does not encapsulate packets/)
  })
})

it('names the device of the family', () => {
  const dataPath = { ...STATUS.dataPath!, device: 'flannel.1', devices: { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' } }
  const of = (family: 'ipv4' | 'ipv6') => inUseOf({ ...STATUS, dataPath }, ofBoth(4), family).device
  expect([of('ipv4'), of('ipv6')]).toEqual(['flannel.1', 'flannel-v6.1'])
})

it('reports the facts of the measured family', () => {
  const both = { ...STATUS, node: { ...STATUS.node!, ipv6Subnet: 'fd00:5:0:1::/64', publicIpv6: 'fd77::1' } }
  expect(inUseOf(both, ofBoth(4), 'ipv4')).toMatchObject({ subnet: '10.5.1.0/24', pathMtu: 1372 })
  expect(inUseOf(both, ofBoth(4), 'ipv6')).toMatchObject({ subnet: 'fd00:5:0:1::/64', pathMtu: 1300 })
})

const IN_USE = inUseOf(STATUS, STATUS.peers!.list[0], 'ipv4')
const REPORT: Report = {
  peer: '10.5.2.0/24',
  outside: '192.0.2.2',
  inside: '10.5.2.0',
  port: 8286,
  isBroken: false,
  notes: [],
  samples: {
    roundTripsMs: { outside: [], inside: [] },
    tcp: { outside: [], inside: [] },
    udp: { outside: [], inside: [] },
    datagramBytes: 1344,
  },
  plan: { streams: 8, seconds: 2, pairs: 3, bitsPerSecond: 0 },
  tcp: { outside: 9.24e9, inside: 8.31e9, ratio: 0.906, leastRatio: 0.84, mostRatio: 0.951 },
  udp: {
    datagramBytes: 1344,
    outside: { sent: 100, sentBitsPerSecond: 198e6, lost: 0, lossPercent: 0, reordered: 0, overflowed: 0 },
    inside: { sent: 100, sentBitsPerSecond: 197.6e6, lost: 1, lossPercent: 0.0123, reordered: 0, overflowed: 0 },
  },
  roundTripMs: { outside: 0.123, inside: 0.254, ratio: 2.065 },
  inUse: { here: IN_USE, there: { ...IN_USE, subnet: '10.5.2.0/24', engine: 'kernel', features: [], pathMtu: null } },
  drops: { here: {}, there: { rx_drop_socket_full: 34 } },
}
const plain = { colour: (_tone: unknown, text: string) => text }

describe('a report', () => {
  it('has a table, the data paths, and the drops', () =>
    expect(textOf(REPORT, plain)).toBe(
      [
        '10.5.2.0/24, outside to 192.0.2.2, inside to 10.5.2.0; each path 3 x 2 s in turns',
        '',
        '                    OUTSIDE      INSIDE       RATIO   OF EACH PAIR',
        'TCP, 8 connections  9.24 Gbit/s  8.31 Gbit/s  0.91 x  0.84 x to 0.95 x',
        'UDP, 1344 B, sent   198 Mbit/s   198 Mbit/s',
        'UDP, lost           0%           0.0123%',
        'round trip, idle    0.12 ms      0.25 ms      2.06 x',
        '',
        'here         10.5.1.0/24,  by flannel0, the native engine, MTU 1472; udp-gso, 1372 to the other end',
        'there        10.5.2.0/24,  by flannel0, the kernel, MTU 1472',
        'drops here   none',
        'drops there  rx_drop_socket_full 34',
        '',
      ].join('\n'),
    ))

  it.each([
    [0, '0%'],
    [0.00004, '< 0.001%'],
    [0.0512345, '0.0512%'],
    [99.74, '99.7%'],
    [100, '100%'],
  ])('shows a loss of %d percent as %s', (lossPercent, text) => {
    const udp = { ...REPORT.udp, outside: { ...REPORT.udp.outside, lossPercent } }
    expect(textOf({ ...REPORT, udp }, plain)).toContain(`\nUDP, lost           ${text} `)
  })

  it('shows missing figures as -, and has the notes', () => {
    const text = textOf(
      {
        ...REPORT,
        plan: { ...REPORT.plan, streams: 1 },
        tcp: { outside: 9e9, inside: 0, ratio: null, leastRatio: null, mostRatio: null },
        roundTripMs: { outside: 0.1, inside: null, ratio: null },
        inUse: { here: IN_USE, there: null },
        drops: { here: {}, there: null },
        notes: ['inside nothing arrives'],
      },
      plain,
    )
    expect(text).toMatch(/^TCP, 1 connection +9.00 Gbit\/s +0 bit\/s +-$/m)
    expect(text).toMatch(/^round trip, idle +0.10 ms +- +-$/m)
    expect(text).toMatch(/^there +no weftd answers\ndrops here +none\ndrops there +-\n\ninside nothing arrives\n$/m)
  })
})
