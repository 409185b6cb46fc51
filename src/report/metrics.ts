// metrics.ts - formats the status for Prometheus (text exposition format 0.0.4). docs/metrics.md lists all metrics.
//
// Each scrape computes all metrics from the status, so metrics and status never disagree. With very many peers weftd
// omits the metrics of single peers. Otherwise every node would export metrics of every other node, and their total
// would grow with the square of the number of nodes.

import { Counter, Gauge, Registry } from 'prom-client'
import { printable } from '../base/text.ts'
import { FAMILIES, type Family } from '../net/address.ts'
import { CAUSES, readingOf, STATE_NAMES } from './states.ts'
import { briefly, sidesOf, type PeerSide, type PeerStatus, type Status } from './status.ts'

/** The largest number of peers with which weftd still exports metrics of each single peer. */
export const MOST_PEERS = 500

interface Metric {
  readonly name: string
  readonly help: string
  readonly type: 'counter' | 'gauge'
  /**
   * Returns the metric's samples with their labels; an empty list if the status does not have the values for this
   * metric.
   */
  readonly samples: (status: Status) => readonly Sample[]
}
type Sample = readonly [value: number, labels?: Readonly<Record<string, string>>]

const seconds = (iso: string | null): number | null => (iso === null ? null : Date.parse(iso) / 1000)
const bit = (is: boolean): number => (is ? 1 : 0)
const one = (value: number | null | undefined): readonly Sample[] =>
  value === null || value === undefined ? [] : [[value]]

const gauge = (name: string, help: string, samples: Metric['samples']): Metric => ({
  name,
  help,
  type: 'gauge',
  samples,
})
const counter = (name: string, help: string, samples: Metric['samples']): Metric => ({
  name,
  help,
  samples,
  type: 'counter',
})
const ofPeers =
  (value: (peer: PeerStatus, status: Status) => number | null) =>
  (status: Status): readonly Sample[] => {
    const list = status.peers?.list ?? []
    if (list.length > MOST_PEERS) return []
    return list.flatMap((peer): readonly Sample[] => {
      const known = value(peer, status)
      return known === null ? [] : [[known, { peer: peer.subnet, ...(peer.name ? { name: briefly(peer.name) } : {}) }]]
    })
  }
/**
 * Returns both families in a dual-stack network, and no family in other networks. In a network with one family the
 * metrics without a family label suffice.
 */
const dualStackFamilies = ({ dataPath }: Status): readonly Family[] =>
  dataPath?.families.length === FAMILIES.length ? FAMILIES : []
/** Makes a function that counts, for each family of a dual-stack network, the peers that match a condition. */
const byFamily =
  (isSo: (side: PeerSide) => boolean, isKnown: (status: Status) => boolean = () => true) =>
  (status: Status): readonly Sample[] =>
    isKnown(status)
      ? dualStackFamilies(status).map((family): Sample => {
          const sides = (status.peers?.list ?? []).flatMap((peer) => sidesOf(peer)[family] ?? [])
          return [sides.filter(isSo).length, { family }]
        })
      : []
/**
 * Makes a function that returns, for each family of a dual-stack network, one sample per peer with the peer's `value`.
 */
const ofSides =
  (value: (side: PeerSide) => number | null) =>
  (status: Status): readonly Sample[] =>
    dualStackFamilies(status).flatMap((family) =>
      ofPeers((peer) => {
        const side = sidesOf(peer)[family]
        return side ? value(side) : null
      })(status).map(([known, labels]): Sample => [known, { ...labels, family }]),
    )
const answering = ({ state, lossPercent }: PeerSide): number | null =>
  lossPercent === null ? null : bit(state === 'answering')
const roundTripSeconds = ({ roundTripMs }: PeerSide): number | null =>
  roundTripMs === null ? null : roundTripMs / 1000
const lossRatio = ({ lossPercent }: PeerSide): number | null => (lossPercent === null ? null : lossPercent / 100)
const isProbing = ({ peers }: Status): boolean => peers !== null && peers.answering !== null
const counted =
  (name: string) =>
  ({ dataPath }: Status): number | null =>
    dataPath?.counters[name] ?? null
const bothWays =
  (what: string, begin = '') =>
  (status: Status): readonly Sample[] =>
    (['tx', 'rx'] as const).flatMap((way): readonly Sample[] => {
      const value = counted(`${begin}${way}_${what}`)(status)
      return value === null ? [] : [[value, { direction: way === 'tx' ? 'transmit' : 'receive' }]]
    })

export const METRICS: readonly Metric[] = [
  gauge(
    'weft_info',
    'Always 1. The labels of weft_info are version, backend, engine (what forwards the packets: native or dgram in weftd, or kernel) and subnet (of this node).',
    (status) => [
      [
        1,
        {
          version: status.daemon.version,
          backend: status.config?.backendType ?? '',
          engine: status.dataPath?.engine ?? '',
          subnet: status.node?.subnet ?? '',
        },
      ],
    ],
  ),
  gauge(
    'weft_working',
    '1 while weftd forwards packets, even if it knows only the configuration of the previous run. 0 while weftd starts or stops, while the data path, the firewall rules or one of two address families fails, and while packets bypass the data path.',
    (status) => one(readingOf(status).working),
  ),
  gauge(
    'weft_state',
    '1 for the current state of weftd, 0 for its other states. The states are starting, forwarding, working, impaired and leaving.',
    ({ state }) => STATE_NAMES.map((each): Sample => [bit(each === state), { state: each }]),
  ),
  gauge(
    'weft_impaired',
    '1 while the cause that the label by names impairs the node, else 0. The causes are thread, path, bypass, family, host, rules, peers and store.',
    ({ impairments }) => CAUSES.map((by): Sample => [bit(impairments.some((each) => each.by === by)), { by }]),
  ),
  gauge('weft_data_path_open', '1 while the data path can forward packets, else 0.', ({ dataPath }) =>
    dataPath ? one(bit(dataPath.open)) : [],
  ),
  gauge('weft_data_path_mtu_bytes', 'The largest packet that a container may send, in bytes.', ({ dataPath }) =>
    one(dataPath?.mtu),
  ),
  gauge(
    'weft_data_path_hung_threads',
    'The number of forwarding threads that have not responded for 10 s.',
    ({ dataPath }) => one(dataPath?.threads.filter(({ hungSeconds }) => hungSeconds !== null).length),
  ),
  counter(
    'weft_packets_total',
    'Packets of containers sent to peers (transmit) and accepted from peers (receive). Absent if the kernel, and not weftd, forwards the packets.',
    bothWays('packets'),
  ),
  counter(
    'weft_bytes_total',
    'Bytes of the packets that weft_packets_total counts, without the headers of the tunnel.',
    bothWays('bytes'),
  ),
  gauge(
    'weft_fast_path_active',
    '1 while the eBPF programs of a FastPath are attached, else 0. Absent unless the network configuration allows a FastPath.',
    ({ dataPath }) => (dataPath?.fastPath ? one(bit(dataPath.fastPath.isActive)) : []),
  ),
  gauge(
    'weft_fast_path_subnets',
    'The number of subnets of peers to which the eBPF programs of a FastPath carry the packets now. Absent unless the network configuration allows a FastPath.',
    ({ dataPath }) => one(dataPath?.fastPath?.promoted),
  ),
  counter(
    'weft_fast_path_taken_back_total',
    'How often weftd took a subnet back from the eBPF programs of a FastPath. Absent unless the network configuration allows a FastPath.',
    ({ dataPath }) => one(dataPath?.fastPath?.takenBack),
  ),
  counter(
    'weft_fast_path_packets_total',
    'The part of weft_packets_total that the eBPF programs of a FastPath carried. Absent unless they were attached.',
    bothWays('packets', 'kernel_'),
  ),
  counter(
    'weft_dropped_packets_total',
    'Packets that weftd dropped, or that the kernel dropped before weftd read them, by direction and reason. native/core/counters.h explains each reason.',
    ({ dataPath }) =>
      Object.entries(dataPath?.counters ?? {}).flatMap(([name, value]): readonly Sample[] => {
        const [, way, reason] = /^(tx|rx)_drop_(\w+)$/.exec(name) ?? []
        return reason === undefined ? [] : [[value, { direction: way === 'tx' ? 'transmit' : 'receive', reason }]]
      }),
  ),
  gauge(
    'weft_peers_stored',
    'The number of other nodes that have a lease in the store (etcd, a lease directory or the Kubernetes API).',
    ({ peers }) => one(peers?.stored),
  ),
  gauge('weft_peers_programmed', 'The number of peers to which the data path sends packets.', ({ peers }) =>
    one(peers?.programmed),
  ),
  gauge(
    'weft_peers_answering',
    'The number of peers that answered the last probe through the data path. Absent if weftd sends no probes.',
    ({ peers }) => one(peers?.answering),
  ),
  gauge(
    'weft_peers_probed',
    'The number of peers to which the data path sends packets, and for which weftd knows whether the last probe was answered or lost. Absent if weftd sends no probes.',
    ({ peers }) => one(peers?.probed),
  ),
  gauge(
    'weft_peers_narrow',
    'The number of peers that short packets reach but long packets do not, without any ICMP error to the senders of long packets. Absent if weftd sends no probes.',
    ({ peers }) => one(peers?.narrow),
  ),
  gauge(
    'weft_network_whole_ratio',
    'The part of the network that this node reaches, from 0 to 1: (weft_peers_programmed / weft_peers_stored) x (weft_peers_answering / weft_peers_probed).',
    ({ peers }) => one(peers?.whole),
  ),
  gauge(
    'weft_peer_answering',
    `1 if the peer answered its last probes over each of its address families, else 0. Absent with more than ${MOST_PEERS} peers, like all metrics of a single peer.`,
    ofPeers(answering),
  ),
  gauge(
    'weft_peer_round_trip_seconds',
    'Round-trip time in seconds of the last probe that the peer answered.',
    ofPeers(roundTripSeconds),
  ),
  gauge(
    'weft_peer_loss_ratio',
    'The part of the last ten probes of the peer that was lost, 0 to 1.',
    ofPeers(lossRatio),
  ),
  gauge(
    'weft_peer_longest_packet_bytes',
    'The longest probe that the peer answered, in bytes. Equals weft_data_path_mtu_bytes if the peer answers probes of the full MTU. Absent while this length is unknown.',
    ofPeers(({ passesBytes }) => passesBytes),
  ),
  gauge(
    'weft_family_peers_programmed',
    'The number of peers to which the data path sends packets of the family in the label (ipv4 or ipv6). Absent in a network with only one family, like all metrics with the label family.',
    byFamily(({ state }) => state !== 'stored'),
  ),
  gauge(
    'weft_family_peers_probed',
    'The number of peers to which the data path sends packets of the family in the label, and for which weftd knows whether the last probe over this family was answered or lost.',
    byFamily(({ state, probedSecondsAgo }) => state !== 'stored' && probedSecondsAgo !== null, isProbing),
  ),
  gauge(
    'weft_family_peers_answering',
    'The number of peers that answered their last probe over the family in the label.',
    byFamily(({ state }) => state === 'answering', isProbing),
  ),
  gauge(
    'weft_peer_family_answering',
    '1 if the peer answered its last probes over the family in the label, else 0.',
    ofSides(answering),
  ),
  gauge(
    'weft_peer_family_round_trip_seconds',
    'Round-trip time in seconds of the last probe that the peer answered. The label family names the address family of the probe.',
    ofSides(roundTripSeconds),
  ),
  gauge(
    'weft_peer_family_loss_ratio',
    'The part of the last ten probes of the peer over the family in the label that was lost, 0 to 1.',
    ofSides(lossRatio),
  ),
  gauge(
    'weft_peer_last_heard_timestamp_seconds',
    'When the last packet arrived from the peer, in seconds since 1970. If the kernel, and not weftd, encrypts wireguard packets, when the last handshake with the peer happened.',
    ofPeers(({ heardSecondsAgo }, { at }) =>
      heardSecondsAgo === null ? null : Date.parse(at) / 1000 - heardSecondsAgo,
    ),
  ),
  gauge(
    'weft_peer_last_handshake_timestamp_seconds',
    'When the last WireGuard handshake with the peer succeeded, in seconds since 1970. If the peer has a session for each family, the value is the time in its worse family. Absent before the first successful handshake, and with all backends except wireguard.',
    ofPeers(({ session }, { at }) => {
      const ago = session?.handshakeSecondsAgo ?? null
      return ago === null ? null : Date.parse(at) / 1000 - ago
    }),
  ),
  gauge(
    'weft_peer_handshake_attempts',
    'Handshakes with the peer that this node started after the last successful handshake; normally 0. Absent unless weftd, and not the kernel, encrypts wireguard packets.',
    ofPeers(({ session }) => session?.attempts ?? null),
  ),
  counter(
    'weft_peer_transmit_packets_total',
    'Packets sent to the peer. Absent with backends that do not count packets by peer.',
    ofPeers(({ txPackets }) => txPackets),
  ),
  counter(
    'weft_peer_transmit_bytes_total',
    'Bytes sent to the peer. Absent with backends that do not count bytes by peer.',
    ofPeers(({ txBytes }) => txBytes),
  ),
  counter(
    'weft_peer_receive_packets_total',
    'Packets accepted from the peer. Absent with backends that do not count packets by peer.',
    ofPeers(({ rxPackets }) => rxPackets),
  ),
  counter(
    'weft_peer_receive_bytes_total',
    'Bytes accepted from the peer. Absent with backends that do not count bytes by peer.',
    ofPeers(({ rxBytes }) => rxBytes),
  ),
  counter(
    'weft_peer_events_total',
    'Events of peers since the start of weftd, by kind: silent, back, one-way, moved, narrow, whole, slow, usual, rerouted.',
    ({ peerEvents }) => Object.entries(peerEvents ?? {}).map(([event, number]): Sample => [number, { event }]),
  ),
  gauge(
    'weft_store_reachable',
    "1 if weftd's last request for the leases of all nodes in the store (etcd, the lease directory or the Kubernetes API) succeeded, else 0.",
    ({ node, store }) => (node ? one(bit(store.reachable)) : []),
  ),
  gauge(
    'weft_store_last_comparison_timestamp_seconds',
    'When weftd last compared its copy of all leases with the store (etcd, a lease directory or the Kubernetes API), in seconds since 1970; normally less than 60 s ago.',
    ({ at, store }) => one(store.comparedSecondsAgo === null ? null : Date.parse(at) / 1000 - store.comparedSecondsAgo),
  ),
  gauge(
    'weft_store_held_peers',
    'The number of peers that weftd keeps although their leases are missing from the store (etcd, a lease directory or the Kubernetes API), because most leases vanished at the same time.',
    ({ node, store }) => (node ? one(store.held) : []),
  ),
  gauge(
    'weft_store_config_gone',
    '1 while the network configuration in the store (etcd, a lease directory or the Kubernetes API) is missing or invalid, so that no weftd can start, else 0.',
    ({ node, store }) => (node ? one(bit(store.configGone)) : []),
  ),
  gauge(
    'weft_lease_expiry_timestamp_seconds',
    "When this node's lease ends unless weftd renews it, in seconds since 1970. Absent for a reservation, which never ends, and in Kubernetes, where the lease ends when the Node object is deleted.",
    ({ lease }) => one(seconds(lease?.expiresAt ?? null)),
  ),
  gauge(
    'weft_lease_renew_margin_seconds',
    "How long before the end of this node's lease weftd renews the lease, in seconds (--subnet-lease-renew-margin). Absent for a reservation and in Kubernetes.",
    ({ lease }) => one(lease && lease.expiresAt !== null ? lease.renewMarginSeconds : null),
  ),
  counter(
    'weft_repairs_total',
    'How often weftd repaired a device, address, route, firewall rule or file that another program had changed.',
    ({ repairs }) => one(repairs),
  ),
  gauge(
    'weft_subnet_file_written',
    '1 once weftd has written subnet.env, from which containers get their subnet; 0 before that.',
    ({ node, subnetFileWritten }) => (node ? one(bit(subnetFileWritten)) : []),
  ),
  gauge(
    'weft_time_seconds',
    "The time by the host's clock when weftd answered the request for the metrics, in seconds since 1970.",
    ({ at }) => one(seconds(at)),
  ),
  gauge(
    'process_start_time_seconds',
    "When the process of weftd started by the host's clock, in seconds since 1970.",
    ({ daemon }) => one(seconds(daemon.startedAt)),
  ),
  counter(
    'process_cpu_seconds_total',
    'CPU time in seconds of the process of weftd, including its forwarding threads.',
    () => {
      const { user, system } = process.cpuUsage()
      return one((user + system) / 1e6)
    },
  ),
  gauge('process_resident_memory_bytes', 'Resident memory of the process of weftd, in bytes.', () =>
    one(process.memoryUsage.rss()),
  ),
]

/**
 * Escapes control characters in label values. Other hosts choose some of these texts, and a person may read them on a
 * terminal.
 */
const shown = (labels: Readonly<Record<string, string>> = {}): Record<string, string> =>
  Object.fromEntries(Object.entries(labels).map(([name, value]) => [name, printable(value)]))

export async function formatMetrics(status: Status): Promise<{ readonly type: string; readonly body: string }> {
  const registry = new Registry()
  for (const { name, help, type, samples } of METRICS) {
    const all = samples(status)
    // Skip a metric without samples, because prom-client would export it with the value 0.
    if (all.length === 0) continue
    const labelNames = [...new Set(all.flatMap(([, labels = {}]) => Object.keys(labels)))]
    const options = { name, help, labelNames, registers: [registry] }
    if (type === 'counter') {
      const metric = new Counter(options)
      for (const [value, labels] of all) metric.inc(shown(labels), value)
    } else {
      const metric = new Gauge(options)
      for (const [value, labels] of all) metric.set(shown(labels), value)
    }
  }
  return { type: registry.contentType, body: await registry.metrics() }
}
