// metrics.ts - the status as Prometheus reads it (text exposition format 0.0.4), by its conventions for names; docs/metrics.md has all.
//
// Made anew from the status at each scrape: there is one source of truth, and nothing is kept or counted twice. What is told for each
// peer is left out where peers are very many: no server wants as many series as a network of thousands has pairs of hosts.

import { Counter, Gauge, Registry } from 'prom-client'
import { printable } from '../text.ts'
import type { PeerStatus, Status } from './status.ts'

/** With more peers than this nothing is told of each. */
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
  ...{ name, help, samples },
  type: 'counter',
})
const ofPeers =
  (value: (peer: PeerStatus, status: Status) => number | null) =>
  (status: Status): readonly Sample[] => {
    const list = status.peers?.list ?? []
    if (list.length > MOST_PEERS) return []
    return list.flatMap((peer): readonly Sample[] => {
      const known = value(peer, status)
      return known === null ? [] : [[known, { peer: peer.subnet }]]
    })
  }
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
    'What runs: always 1, with the version, the backend and who carries the packets as labels.',
    (status) => [
      [
        1,
        {
          version: status.daemon.version,
          backend: status.config?.backendType ?? '',
          engine: status.dataPath?.engine ?? '',
        },
      ],
    ],
  ),
  gauge('weft_working', '1 while the node does its work, 0 while it starts or does not.', ({ state }) =>
    one(bit(state === 'working')),
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
    'Inner packets sent to peers (transmit) and let in from them (receive), where weft carries them itself.',
    bothWays('packets'),
  ),
  counter(
    'weft_bytes_total',
    'Bytes of these packets, without what stands before each on the wire.',
    bothWays('bytes'),
  ),
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
  gauge('weft_peers_probed', 'Programmed peers that there is a result of. Absent while nobody probes.', ({ peers }) =>
    one(peers?.probed),
  ),
  gauge(
    'weft_network_whole_ratio',
    'How whole the network is as seen from here, 0 to 1: programmed of stored, times answering of probed.',
    ({ peers }) => one(peers?.whole),
  ),
  gauge(
    'weft_peer_answering',
    `1 while a peer answers probes, 0 while it does not. With more than ${MOST_PEERS} peers absent, as all that is told of each.`,
    ofPeers(({ state, lossPercent }) => (lossPercent === null ? null : bit(state === 'answering'))),
  ),
  gauge(
    'weft_peer_round_trip_seconds',
    'How long the last probe of a peer took that was answered.',
    ofPeers(({ roundTripMs }) => (roundTripMs === null ? null : roundTripMs / 1000)),
  ),
  gauge(
    'weft_peer_loss_ratio',
    'The part of the last ten probes of a peer that was lost, 0 to 1.',
    ofPeers(({ lossPercent }) => (lossPercent === null ? null : lossPercent / 100)),
  ),
  gauge(
    'weft_peer_last_heard_timestamp_seconds',
    'When the last packet of a peer came; with wireguard the last handshake.',
    ofPeers(({ heardSecondsAgo }, { at }) =>
      heardSecondsAgo === null ? null : Date.parse(at) / 1000 - heardSecondsAgo,
    ),
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
    'weft_lease_expiry_timestamp_seconds',
    "When this node's lease ends unless it is renewed. Absent for a reservation.",
    ({ lease }) => one(seconds(lease?.expiresAt ?? null)),
  ),
  counter(
    'weft_repairs_total',
    'Devices, addresses, routes, rules and files that were made right after others had changed them.',
    ({ repairs }) => one(repairs),
  ),
  gauge(
    'weft_subnet_file_written',
    '1 when subnet.env was written, from which containers get their subnet.',
    ({ node, subnetFileWritten }) => (node ? one(bit(subnetFileWritten)) : []),
  ),
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

/** What is answered to a scrape, and of which type that is. */
export async function formatMetrics(status: Status): Promise<{ readonly type: string; readonly body: string }> {
  const registry = new Registry()
  for (const { name, help, type, samples } of METRICS) {
    const all = samples(status)
    // One without a sample would be told as 0.
    if (all.length === 0) continue
    const labelNames = Object.keys(all[0]?.[1] ?? {})
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
