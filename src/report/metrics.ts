// metrics.ts - the status as Prometheus reads it (text exposition format 0.0.4), by its conventions for names; docs/metrics.md has all.
//
// Made anew from the status at each scrape: there is one source of truth, and nothing is kept or counted twice. What is told for each
// peer is left out where peers are very many: no server wants as many series as a network of thousands has pairs of hosts.

import { Counter, Gauge, Registry } from 'prom-client'
import { printable } from '../base/text.ts'
import { FAMILIES, type Family } from '../net/address.ts'
import { CAUSES, readingOf, STATE_NAMES } from './states.ts'
import { briefly, sidesOf, type PeerSide, type PeerStatus, type Status } from './status.ts'

/** With more peers than this the metrics of single peers are left out. */
export const MOST_PEERS = 500

interface Metric {
  readonly name: string
  readonly help: string
  readonly type: 'counter' | 'gauge'
  /** Each with its labels; none where it is not known. */
  readonly samples: (status: Status) => readonly Sample[]
}
type Sample = readonly [value: number, labels?: Readonly<Record<string, string>>]

const seconds = (iso: string | null): number | null => (iso === null ? null : Date.parse(iso) / 1000)
const bit = (is: boolean): number => (is ? 1 : 0)
/** One sample, or none where the value is not known. */
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
/** The families of a network that has both; of one that has one alone its peers tell all. */
const familiesBeside = ({ dataPath }: Status): readonly Family[] =>
  dataPath?.families.length === FAMILIES.length ? FAMILIES : []
/** Counts the peers of each family of two. */
const byFamily =
  (isSo: (side: PeerSide) => boolean, isKnown: (status: Status) => boolean = () => true) =>
  (status: Status): readonly Sample[] =>
    isKnown(status)
      ? familiesBeside(status).map((family): Sample => {
          const sides = (status.peers?.list ?? []).flatMap((peer) => sidesOf(peer)[family] ?? [])
          return [sides.filter(isSo).length, { family }]
        })
      : []
/** A value of each peer and each family of two. */
const ofSides =
  (value: (side: PeerSide) => number | null) =>
  (status: Status): readonly Sample[] =>
    familiesBeside(status).flatMap((family) =>
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
  (what: string) =>
  (status: Status): readonly Sample[] =>
    (['tx', 'rx'] as const).flatMap((way): readonly Sample[] => {
      const value = counted(`${way}_${what}`)(status)
      return value === null ? [] : [[value, { direction: way === 'tx' ? 'transmit' : 'receive' }]]
    })

export const METRICS: readonly Metric[] = [
  gauge(
    'weft_info',
    'Always 1; its labels are the version, the backend, the engine, which is what carries the packets, and the subnet, by which others know the node.',
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
    '1 while weftd forwards, also if it does so with its last known configuration. 0 while it starts or leaves, while its data path, its firewall rules or one of two families are not right, and while packets leave past the data path.',
    (status) => one(readingOf(status).working),
  ),
  gauge(
    'weft_state',
    '1 for the state that weftd is in, 0 for the others: starting, forwarding, working, impaired, leaving.',
    ({ state }) => STATE_NAMES.map((each): Sample => [bit(each === state), { state: each }]),
  ),
  gauge(
    'weft_impaired',
    '1 while the node is impaired by this, else 0: thread, path, bypass, family, host, rules, peers, store.',
    ({ impairments }) => CAUSES.map((by): Sample => [bit(impairments.some((each) => each.by === by)), { by }]),
  ),
  gauge('weft_data_path_open', '1 while packets can be carried.', ({ dataPath }) =>
    dataPath ? one(bit(dataPath.open)) : [],
  ),
  gauge('weft_data_path_mtu_bytes', 'The largest packet that a container may send.', ({ dataPath }) =>
    one(dataPath?.mtu),
  ),
  gauge('weft_data_path_hung_threads', 'Forwarding threads that hang.', ({ dataPath }) =>
    one(dataPath?.threads.filter(({ hungSeconds }) => hungSeconds !== null).length),
  ),
  counter(
    'weft_packets_total',
    'Inner packets sent to peers (transmit) and accepted from them (receive), where weft carries them itself.',
    bothWays('packets'),
  ),
  counter('weft_bytes_total', 'Bytes of these packets, without the headers of the tunnel.', bothWays('bytes')),
  counter(
    'weft_dropped_packets_total',
    'Packets dropped, by direction and reason; native/core/counters.h says what each means.',
    ({ dataPath }) =>
      Object.entries(dataPath?.counters ?? {}).flatMap(([name, value]): readonly Sample[] => {
        const [, way, reason] = /^(tx|rx)_drop_(\w+)$/.exec(name) ?? []
        return reason === undefined ? [] : [[value, { direction: way === 'tx' ? 'transmit' : 'receive', reason }]]
      }),
  ),
  gauge('weft_peers_stored', 'Other nodes that have a lease in the store.', ({ peers }) => one(peers?.stored)),
  gauge('weft_peers_programmed', 'Of these, those that the data path has: packets to them go out.', ({ peers }) =>
    one(peers?.programmed),
  ),
  gauge(
    'weft_peers_answering',
    'Of these, those that answered the last probe through the data path. Absent while nobody probes.',
    ({ peers }) => one(peers?.answering),
  ),
  gauge(
    'weft_peers_probed',
    'Programmed peers whose last probe has a result. Absent while nobody probes.',
    ({ peers }) => one(peers?.probed),
  ),
  gauge(
    'weft_peers_narrow',
    'Peers that long packets do not reach, though short ones do, while nobody tells the senders. Absent while nobody probes.',
    ({ peers }) => one(peers?.narrow),
  ),
  gauge(
    'weft_network_whole_ratio',
    'How whole the network is as seen from here, 0 to 1: programmed of stored, times answering of probed.',
    ({ peers }) => one(peers?.whole),
  ),
  gauge(
    'weft_peer_answering',
    `1 while a peer answers probes, by each of its families, 0 while it does not. Absent with more than ${MOST_PEERS} peers, like everything about a single peer.`,
    ofPeers(answering),
  ),
  gauge(
    'weft_peer_round_trip_seconds',
    'Round-trip time of the last probe that a peer answered.',
    ofPeers(roundTripSeconds),
  ),
  gauge('weft_peer_loss_ratio', 'The part of the last ten probes of a peer that was lost, 0 to 1.', ofPeers(lossRatio)),
  gauge(
    'weft_peer_longest_packet_bytes',
    'The longest packet that comes back from a peer: weft_data_path_mtu_bytes where the path is whole. Absent while that is not known.',
    ofPeers(({ passesBytes }) => passesBytes),
  ),
  gauge(
    'weft_family_peers_programmed',
    'Peers that the data path has, by family (ipv4, ipv6): those to which its packets go out. Absent in a network of one family, as the next five.',
    byFamily(({ state }) => state !== 'stored'),
  ),
  gauge(
    'weft_family_peers_probed',
    'Of these, those whose last probe of the family has a result.',
    byFamily(({ state, probedSecondsAgo }) => state !== 'stored' && probedSecondsAgo !== null, isProbing),
  ),
  gauge(
    'weft_family_peers_answering',
    'Of these, those that answered it.',
    byFamily(({ state }) => state === 'answering', isProbing),
  ),
  gauge(
    'weft_peer_family_answering',
    '1 while a peer answers probes of a family, 0 while it does not.',
    ofSides(answering),
  ),
  gauge(
    'weft_peer_family_round_trip_seconds',
    'Round-trip time of the last probe of a family that a peer answered.',
    ofSides(roundTripSeconds),
  ),
  gauge(
    'weft_peer_family_loss_ratio',
    'The part of the last ten probes of a family that was lost, 0 to 1.',
    ofSides(lossRatio),
  ),
  gauge(
    'weft_peer_last_heard_timestamp_seconds',
    'When the last packet of a peer came; where others than weft carry wireguard, the last handshake.',
    ofPeers(({ heardSecondsAgo }, { at }) =>
      heardSecondsAgo === null ? null : Date.parse(at) / 1000 - heardSecondsAgo,
    ),
  ),
  gauge(
    'weft_peer_last_handshake_timestamp_seconds',
    'When the last handshake with a peer gave keys, of the family of two that is worse. Absent while none did, and where nothing is encrypted.',
    ofPeers(({ session }, { at }) => {
      const ago = session?.handshakeSecondsAgo ?? null
      return ago === null ? null : Date.parse(at) / 1000 - ago
    }),
  ),
  gauge(
    'weft_peer_handshake_attempts',
    'Handshakes that were begun with a peer since the last one that gave keys: 0 while all is well. Absent where others than weft encrypt.',
    ofPeers(({ session }) => session?.attempts ?? null),
  ),
  counter(
    'weft_peer_transmit_packets_total',
    'Packets sent to a peer, where they are counted.',
    ofPeers(({ txPackets }) => txPackets),
  ),
  counter(
    'weft_peer_transmit_bytes_total',
    'Their bytes.',
    ofPeers(({ txBytes }) => txBytes),
  ),
  counter(
    'weft_peer_receive_packets_total',
    'Packets let in from a peer, where they are counted.',
    ofPeers(({ rxPackets }) => rxPackets),
  ),
  counter(
    'weft_peer_receive_bytes_total',
    'Their bytes.',
    ofPeers(({ rxBytes }) => rxBytes),
  ),
  counter(
    'weft_peer_events_total',
    'What befell peers since the start, by event: silent and back, one-way, moved, narrow and whole, slow and usual, rerouted.',
    ({ peerEvents }) => Object.entries(peerEvents ?? {}).map(([event, number]): Sample => [number, { event }]),
  ),
  gauge('weft_store_reachable', '1 while the last call to the store worked.', ({ node, store }) =>
    node ? one(bit(store.reachable)) : [],
  ),
  gauge(
    'weft_store_last_comparison_timestamp_seconds',
    'When all leases were last compared with the store: a minute ago at most while all is well.',
    ({ at, store }) => one(store.comparedSecondsAgo === null ? null : Date.parse(at) / 1000 - store.comparedSecondsAgo),
  ),
  gauge(
    'weft_store_held_peers',
    'Peers that are kept though the store lacks them, since most vanished at once.',
    ({ node, store }) => (node ? one(store.held) : []),
  ),
  gauge(
    'weft_store_config_gone',
    '1 while the store has no network configuration, though this node has one from there.',
    ({ node, store }) => (node ? one(bit(store.configGone)) : []),
  ),
  gauge(
    'weft_lease_expiry_timestamp_seconds',
    "When this node's lease ends unless it is renewed. Absent for a reservation.",
    ({ lease }) => one(seconds(lease?.expiresAt ?? null)),
  ),
  counter(
    'weft_repairs_total',
    'Devices, addresses, routes, rules and files that were repaired after others had changed them.',
    ({ repairs }) => one(repairs),
  ),
  gauge(
    'weft_subnet_file_written',
    '1 when subnet.env was written, from which containers get their subnet.',
    ({ node, subnetFileWritten }) => (node ? one(bit(subnetFileWritten)) : []),
  ),
  gauge('weft_time_seconds', "The host's clock of the day when this was told.", ({ at }) => one(seconds(at))),
  gauge('process_start_time_seconds', 'When the process started, by the clock of the day.', ({ daemon }) =>
    one(seconds(daemon.startedAt)),
  ),
  counter('process_cpu_seconds_total', 'CPU time of the process, forwarding threads and all.', () => {
    const { user, system } = process.cpuUsage()
    return one((user + system) / 1e6)
  }),
  gauge('process_resident_memory_bytes', 'Memory of the process.', () => one(process.memoryUsage.rss())),
]

/** Whoever looks at it may do so on a terminal; the backend's name is the configuration's to say. */
const shown = (labels: Readonly<Record<string, string>> = {}): Record<string, string> =>
  Object.fromEntries(Object.entries(labels).map(([name, value]) => [name, printable(value)]))

/** The answer to a scrape, and its content type. */
export async function formatMetrics(status: Status): Promise<{ readonly type: string; readonly body: string }> {
  const registry = new Registry()
  for (const { name, help, type, samples } of METRICS) {
    const all = samples(status)
    // A metric without a sample would be told as 0.
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
