// facts.ts - the facts of a host without any fault, as the doctor gathers them.

import type { Link, LinkAddress, Route } from '../../src/host/kernel.ts'
import type { Address } from '../../src/net/address.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { parseIpv6 } from '../../src/net/ipv6.ts'
import { countPeers, worstOf, type PeerSide, type PeerStatus, type Status } from '../../src/report/status.ts'
import type { Facts } from '../../src/tool/doctor/facts.ts'

export const soundNow = Date.parse('2026-11-22T10:00:00Z')
export const soundPeer: PeerStatus = {
  lease: '10.5.2.0-24',
  subnet: '10.5.2.0/24',
  publicIp: '192.0.2.2',
  endpoint: '192.0.2.2:8285',
  type: '',
  ipv6Subnet: null,
  publicIpv6: null,
  state: 'answering',
  held: false,
  unusable: false,
  way: 'tunnel',
  since: '',
  txPackets: 1,
  txBytes: 1,
  rxPackets: 1,
  rxBytes: 1,
  heardSecondsAgo: 3,
  roundTripMs: 1,
  lossPercent: 0,
  probedSecondsAgo: 3,
  unansweredSeconds: null,
  pathMtu: null,
  path: null,
  passesBytes: null,
  pathSince: null,
  session: null,
  name: null,
  families: { ipv4: null, ipv6: null },
}
export const soundStatus: Status = {
  schema: 1,
  at: '2026-11-22T10:00:00Z',
  state: 'working',
  impairments: [],
  trouble: null,
  summary: '',
  repairs: 0,
  events: [],
  daemon: {
    version: '1',
    pid: 1,
    startedAt: '',
    subnetFile: '/run/flannel/subnet.env',
    leases: 'http://192.0.2.9:2379 /n',
    etcdFiles: null,
    network: 'off',
  },
  store: {
    name: 'etcd',
    reachable: true,
    comparedSecondsAgo: 5,
    held: 0,
    holds: 0,
    configGone: false,
    configDiffers: false,
  },
  node: {
    hostname: 'a',
    subnet: '10.5.1.0/24',
    publicIp: '192.0.2.1',
    ipv6Subnet: null,
    publicIpv6: null,
    externalInterface: 'eth0',
    twin: null,
  },
  config: {
    network: '10.5.0.0/16',
    ipv6Network: null,
    subnetLength: 24,
    subnetMin: '10.5.1.0',
    subnetMax: '10.5.255.0',
    ipv6SubnetLength: null,
    ipv6SubnetMin: null,
    ipv6SubnetMax: null,
    backendType: 'udp',
    backend: {},
  },
  lease: { key: '10.5.1.0-24', expiresAt: '2026-11-23T09:00:00Z', renewMarginSeconds: 3600, published: {} },
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
    features: [],
    fastPath: null,
    threads: [{ name: 'weft-loop0', hungSeconds: null }],
    counters: { rx_packets: 9, tx_packets: 9 },
    drops: {},
    recent: { seconds: 60, packets: 18, drops: {} },
    unknownKeys: null,
  },
  peers: countPeers([soundPeer], 10),
  peerEvents: null,
  subnetFileWritten: true,
}
export const linkAddress = <A extends Address>(address: A, prefixLength: number): LinkAddress<A> => ({
  address,
  prefixLength,
  dynamic: false,
  deprecated: false,
  secondary: false,
  temporary: false,
  tentative: false,
})
const [soundSide4, soundSide6]: readonly [PeerSide, PeerSide] = [
  { endpoint: '192.0.2.2:8472', way: 'kernel', state: 'answering', ...lastProbes() },
  { endpoint: '[2001:db8::2]:8472', way: 'kernel', state: 'answering', ...lastProbes() },
]
function lastProbes() {
  return {
    roundTripMs: 1,
    lossPercent: 0,
    probedSecondsAgo: 3,
    unansweredSeconds: null,
    pathMtu: null,
    path: null,
    passesBytes: null,
    pathSince: null,
    session: null,
  }
}
/** Returns a dual-stack peer, which answers over both families unless the arguments say otherwise. */
export function dualPeer(known4: Partial<PeerSide> = {}, known6: Partial<PeerSide> = {}): PeerStatus {
  const families = { ipv4: { ...soundSide4, ...known4 }, ipv6: { ...soundSide6, ...known6 } }
  const dual = { lease: '10.5.2.0-24&fd00:5:0:2::-64', ipv6Subnet: 'fd00:5:0:2::/64', publicIpv6: '2001:db8::2' }
  return { ...soundPeer, ...dual, ...worstOf([families.ipv4, families.ipv6]), families }
}
/** A side of a peer that did not answer the probes. */
export const silentSide = { state: 'programmed', lossPercent: 100, roundTripMs: null } as const
export const link = (name: string, mtu: number, address: string): Link => ({
  index: 1,
  name,
  mtu,
  up: true,
  hasCarrier: true,
  loopback: false,
  queueLength: 0,
  queueDiscipline: 'noqueue',
  isEthernet: true,
  mac: '',
  type: '',
  master: 0,
  addresses: { ipv4: [linkAddress(parseIpv4(address)!, 24)], ipv6: [] },
})
export const route = (destination: string, device: string, gateway?: string): Route => ({
  destination,
  device,
  deviceIndex: 1,
  gateway,
  type: 'unicast',
  protocol: 'boot',
  metric: 0,
  source: undefined,
  table: 254,
  isOnlink: false,
})
export const sound: Facts = {
  status: soundStatus,
  silence: undefined,
  now: soundNow,
  isRoot: true,
  tunProblem: undefined,
  lacksNetAdmin: false,
  isForwarding: true,
  isForwardingIpv6: undefined,
  defaultRoutes: { ipv4: true },
  links: [link('eth0', 1500, '192.0.2.1'), link('cni0', 1472, '10.5.1.1'), link('docker0', 1500, '172.17.0.1')],
  routes: [route('10.5.0.0/16', 'flannel0'), route('10.5.1.0/24', 'cni0')],
  iptables: '-P INPUT ACCEPT\n-P FORWARD ACCEPT',
  ip6tables: undefined,
  nft: '',
  subnetEnv: { FLANNEL_SUBNET: '10.5.1.1/24', FLANNEL_MTU: '1472' },
  storeAheadMs: 300,
  answers: new Map([['10.5.2.0-24', { ipv4: { small: true, large: true } }]]),
  whyUnprobed: undefined,
  reaches: new Map(),
  neighbours: [{ family: 'ipv4', entries: 7, thresholds: [128, 512, 1024] }],
  store: {},
}

const dualStatus = {
  ...soundStatus,
  node: { ...soundStatus.node!, ipv6Subnet: 'fd00:5:0:1::/64', publicIpv6: '2001:db8::1' },
  config: {
    ...soundStatus.config!,
    ipv6Network: 'fd00:5::/48',
    ipv6SubnetLength: 64,
    backendType: 'vxlan',
    ipv6SubnetMin: 'fd00:5:0:1::',
    ipv6SubnetMax: 'fd00:5:0:ffff::',
  },
  dataPath: {
    ...soundStatus.dataPath!,
    families: ['ipv4', 'ipv6'],
    engine: 'kernel',
    mtu: 1430,
    device: 'flannel.1',
    devices: { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' },
    threads: [],
    counters: {},
  },
  peers: countPeers([dualPeer()], 10),
} satisfies Status
const both = (of4: Link, of6: string): Link => ({
  ...of4,
  addresses: { ...of4.addresses, ipv6: [linkAddress(parseIpv6(of6)!, 64)] },
})
/** The facts of a dual-stack host with the kernel's vxlan and without any fault. */
export const soundDual = {
  ...sound,
  status: dualStatus,
  isForwardingIpv6: true,
  defaultRoutes: { ipv4: true, ipv6: true },
  links: [
    both(link('eth0', 1500, '192.0.2.1'), '2001:db8::1'),
    both(link('cni0', 1430, '10.5.1.1'), 'fd00:5:0:1::1'),
    both(link('docker0', 1500, '172.17.0.1'), 'fd00:17::1'),
  ],
  routes: [
    route('10.5.1.0/24', 'cni0'),
    route('10.5.2.0/24', 'flannel.1', '10.5.2.0'),
    { ...route('fd00:5:0:1::/64', 'cni0'), metric: 256 },
    { ...route('fd00:5:0:1::/128', 'flannel-v6.1'), metric: 256 },
    { ...route('fd00:5:0:2::/64', 'flannel-v6.1', 'fd00:5:0:2::'), metric: 1024 },
  ],
  ip6tables: '-P INPUT ACCEPT\n-P FORWARD ACCEPT',
  subnetEnv: { FLANNEL_SUBNET: '10.5.1.1/24', FLANNEL_IPV6_SUBNET: 'fd00:5:0:1::1/64', FLANNEL_MTU: '1430' },
  answers: new Map([[dualPeer().lease, { ipv4: { small: true, large: true }, ipv6: { small: true, large: true } }]]),
}
/** The facts of a host without any fault in an IPv6-only network. */
export const soundIpv6: Facts = {
  ...soundDual,
  status: {
    ...dualStatus,
    node: { ...dualStatus.node, subnet: 'fd00:5:0:1::/64', publicIp: '2001:db8::1' },
    config: {
      ...dualStatus.config,
      network: 'fd00:5::/48',
      subnetLength: 64,
      subnetMin: 'fd00:5:0:1::',
      subnetMax: 'fd00:5:0:ffff::',
    },
    dataPath: { ...dualStatus.dataPath, families: ['ipv6'], device: 'flannel-v6.1' },
    peers: countPeers([peerOfIpv6()], 10),
  },
  isForwarding: false,
  defaultRoutes: { ipv6: true },
  iptables: undefined,
  routes: soundDual.routes.filter(({ destination }) => destination.includes(':')),
  subnetEnv: { FLANNEL_IPV6_SUBNET: 'fd00:5:0:1::1/64', FLANNEL_MTU: '1430' },
  answers: new Map([[peerOfIpv6().lease, { ipv6: { small: true, large: true } }]]),
}
export function peerOfIpv6(known: Partial<PeerSide> = {}): PeerStatus {
  const peer = dualPeer({}, known)
  const side = peer.families.ipv6!
  const place = { lease: '0.0.0.0-0&fd00:5:0:2::-64', subnet: 'fd00:5:0:2::/64', publicIp: '2001:db8::2' }
  return { ...peer, ...place, ...side, families: { ipv4: null, ipv6: side } }
}
