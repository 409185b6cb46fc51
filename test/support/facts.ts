// facts.ts - a host on which nothing is wrong, as the doctor sees it.

import type { Facts } from '../../src/doctor/facts.ts'
import type { Link, Route } from '../../src/host/links.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { countPeers, type PeerStatus, type Status } from '../../src/status/status.ts'

export const soundNow = Date.parse('2026-11-22T10:00:00Z')
export const soundPeer: PeerStatus = {
  ...{ lease: '10.5.2.0-24', subnet: '10.5.2.0/24', publicIp: '192.0.2.2', endpoint: '192.0.2.2:8285', type: '' },
  ...{ state: 'answering', held: false, way: 'tunnel', since: '', txPackets: 1, txBytes: 1, rxPackets: 1, rxBytes: 1 },
  ...{ heardSecondsAgo: 3, roundTripMs: 1, lossPercent: 0, probedSecondsAgo: 3, pathMtu: null },
}
export const soundStatus: Status = {
  ...{ schema: 1, at: '2026-11-22T10:00:00Z', state: 'working', trouble: null, summary: '', repairs: 0, events: [] },
  daemon: {
    version: '1',
    pid: 1,
    startedAt: '',
    subnetFile: '/run/flannel/subnet.env',
    leases: 'http://192.0.2.9:2379 /n',
  },
  store: { name: 'etcd', reachable: true, comparedSecondsAgo: 5, held: 0, holds: 0 },
  node: { hostname: 'a', subnet: '10.5.1.0/24', publicIp: '192.0.2.1', externalInterface: 'eth0', twin: null },
  config: {
    ...{ network: '10.5.0.0/16', subnetLength: 24, subnetMin: '10.5.1.0', subnetMax: '10.5.255.0' },
    ...{ backendType: 'udp', backend: {} },
  },
  lease: { key: '10.5.1.0-24', expiresAt: '2026-11-23T09:00:00Z', published: {} },
  dataPath: {
    ...{ open: true, mtu: 1472, device: 'flannel0', engine: 'native', features: [] },
    ...{ threads: [{ name: 'weft-loop0', hungSeconds: null }], counters: { rx_packets: 9, tx_packets: 9 }, drops: {} },
  },
  peers: countPeers([soundPeer], 10),
  subnetFileWritten: true,
}
export const link = (name: string, mtu: number, address: string): Link => ({
  ...{ index: 1, name, mtu, up: true, loopback: false, queueLength: 0 },
  addresses: [{ address: parseIpv4(address)!, prefixLength: 24, dynamic: false, deprecated: false, secondary: false }],
})
export const route = (destination: string, device: string, gateway?: string): Route => ({
  ...{ destination, device, gateway, type: 'unicast', metric: 0, source: undefined },
})
export const sound: Facts = {
  ...{
    status: soundStatus,
    silence: undefined,
    now: soundNow,
    isRoot: true,
    tunProblem: undefined,
    isForwarding: true,
  },
  links: [link('eth0', 1500, '192.0.2.1'), link('cni0', 1472, '10.5.1.1'), link('docker0', 1500, '172.17.0.1')],
  routes: [route('10.5.0.0/16', 'flannel0'), route('10.5.1.0/24', 'cni0')],
  ...{ iptables: '-P INPUT ACCEPT\n-P FORWARD ACCEPT', nft: '' },
  subnetEnv: { FLANNEL_SUBNET: '10.5.1.1/24', FLANNEL_MTU: '1472' },
  storeAheadMs: 300,
  answers: new Map([['10.5.2.0-24', { small: true, large: true }]]),
  unasked: undefined,
}
