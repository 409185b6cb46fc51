// status.ts - the schema of /status.json: the state of a node in numbers and words. Pure. docs/status.md describes
// every field.
//
// Later versions of weft may add fields without a new schema version. Removing a field or changing its meaning needs a
// new schema version. Unknown values are null, never omitted. Times are ISO 8601 in UTC; the names of fields with other
// units contain the unit.

import {
  FAMILIES,
  FAMILY_NAMES,
  familyOf,
  parseNet,
  type Address,
  type ByFamily,
  type Family,
  type Net,
} from '../net/address.ts'
import { parseIpv4, parseIpv4Net } from '../net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../net/ipv6.ts'
import type { PeerEventKind } from './peer-events.ts'
import { readingOf, stateBefore, type Beginning, type State } from './states.ts'

export const STATUS_SCHEMA = 1

/**
 * How far weftd got with a peer. `stored`: the store has the peer's lease; `programmed`: the data path has the peer
 * too; `answering`: the peer also answered the last probe.
 */
export type PeerState = 'stored' | 'programmed' | 'answering'

/**
 * The WireGuard session with a peer in one family: the keys that encrypt the packets, and the handshakes that negotiate
 * the keys.
 */
export interface SessionStatus {
  /** The peer's public key in base64. */
  readonly publicKey: string
  /** The seconds since the last handshake that succeeded; null if no handshake has succeeded. */
  readonly handshakeSecondsAgo: number | null
  /** The seconds since the session keys were negotiated; null if there are no valid keys. */
  readonly ageSeconds: number | null
  /**
   * The number of handshakes begun since the last handshake that succeeded. `attempts`, `failure`, `stale` and
   * `unconfirmed` are null if the kernel carries the packets.
   */
  readonly attempts: number | null
  /**
   * Why the last handshake failed. `no-answer`: the peer did not answer; `not-authentic`: the peer's answer uses
   * another pre-shared key; `bad-key`: the peer's public key yields no shared secret.
   */
  readonly failure: 'no-answer' | 'not-authentic' | 'bad-key' | null
  /**
   * The number of the peer's handshakes that this node ignored, because their timestamp was not newer than that of an
   * earlier handshake.
   */
  readonly stale: number | null
  /**
   * The number of the peer's handshakes that this node answered, but after which the peer sent no packet with the new
   * keys.
   */
  readonly unconfirmed: number | null
  readonly txBytes: number | null
  readonly rxBytes: number | null
}

/** The path to a peer in one family, and the results of the probes over this path. */
export interface PeerSide {
  /** The underlay address and port to which this node sends packets for the peer. */
  readonly endpoint: string | null
  /**
   * How packets reach the peer. `direct`: by a route to the peer's host, without a tunnel; `tunnel`: through weftd's
   * tunnel; `kernel`: through a tunnel of the kernel.
   */
  readonly way: 'direct' | 'tunnel' | 'kernel' | null
  readonly state: PeerState
  readonly roundTripMs: number | null
  /** The percentage of the most recent probes that the peer did not answer. */
  readonly lossPercent: number | null
  readonly probedSecondsAgo: number | null
  /** The seconds since the peer's first lost probe after its last answer; null if no probe has been lost since. */
  readonly unansweredSeconds: number | null
  readonly pathMtu: number | null
  /**
   * Whether long packets reach the peer. `whole`: the peer answers the longest packet that containers may send;
   * `narrow`: the peer answers only shorter packets. Null if unknown, for example because the peer does not answer at
   * all.
   */
  readonly path: 'whole' | 'narrow' | null
  /** The length in bytes of the longest packet that the peer answers; null until weftd has found this length. */
  readonly passesBytes: number | null
  /** When `path` last changed, ISO 8601. */
  readonly pathSince: string | null
  /** The WireGuard session with the peer; null if the backend does not encrypt. */
  readonly session: SessionStatus | null
}

/**
 * Returns true if only short packets reach a peer, and senders of long packets get no ICMP error. Connections then open
 * but stall at the first long packet.
 */
const isSilentlyNarrow = ({ path, passesBytes, pathMtu }: Pick<PeerSide, 'path' | 'passesBytes' | 'pathMtu'>) =>
  path === 'narrow' && (pathMtu === null || (passesBytes ?? 0) < pathMtu)

/**
 * A peer. The fields inherited from PeerSide have the values of the worse family (`worstOf`), so that a working family
 * does not hide a broken one.
 */
export interface PeerStatus extends PeerSide {
  readonly lease: string
  /** The host name that the peer's weftd publishes; null for flanneld, which publishes no name. */
  readonly name: string | null
  /**
   * The peer's IPv4 subnet, or its IPv6 subnet if it has no IPv4 subnet. `publicIp` is the peer's address in the same
   * family.
   */
  readonly subnet: string
  readonly publicIp: string
  /** The peer's IPv6 subnet; null if the peer has none. `publicIpv6` is the peer's IPv6 underlay address, or null. */
  readonly ipv6Subnet: string | null
  readonly publicIpv6: string | null
  /** The path to the peer in each family; null for a family that the peer, the network or the backend lacks. */
  readonly families: Readonly<Record<Family, PeerSide | null>>
  /** The backend type that the peer published in its lease; empty for udp, which publishes no type. */
  readonly type: string
  /** True if weftd keeps the peer although the store no longer has its lease. */
  readonly held: boolean
  /** True if weftd cannot use the peer's lease in at least one family; the log has the reason. */
  readonly unusable: boolean
  readonly since: string
  readonly txPackets: number | null
  readonly txBytes: number | null
  readonly rxPackets: number | null
  readonly rxBytes: number | null
  readonly heardSecondsAgo: number | null
}

export interface PeersStatus {
  readonly stored: number
  readonly programmed: number
  /**
   * The number of peers that answered their last probe. `answering`, `probed` and `narrow` are null if weftd sends no
   * probes.
   */
  readonly answering: number | null
  /** The number of peers whose last probe was answered or timed out. */
  readonly probed: number | null
  /** The number of peers that long packets do not reach, while the senders get no ICMP error. */
  readonly narrow: number | null
  /**
   * The interval in seconds between two probes of one peer. With very many peers this interval exceeds
   * `--probe-interval`.
   */
  readonly probeSeconds: number | null
  /**
   * The fraction of the network that this node reaches, from 0 to 1. It is the product of two fractions: of the stored
   * peers, those that the data path has; of the probed peers, those that answer.
   */
  readonly whole: number
  readonly list: readonly PeerStatus[]
}

export interface StatusEvent {
  readonly at: string
  readonly level: 'info' | 'warn' | 'error'
  readonly text: string
}

interface NodeStatus {
  readonly hostname: string
  readonly subnet: string
  readonly publicIp: string
  readonly ipv6Subnet: string | null
  readonly publicIpv6: string | null
  readonly externalInterface: string | null
  /** The name of another host that publishes the same public IP as this host; null if there is none. */
  readonly twin: string | null
}

/** The facts about the daemon that are known from its start and do not change. */
export interface DaemonStatus {
  readonly version: string
  readonly pid: number
  readonly startedAt: string
  readonly subnetFile: string
  /**
   * The location of the leases: the endpoints of etcd with the prefix, the lease directory, or `nodes` in Kubernetes;
   * without user name and password.
   */
  readonly leases: string
  /** The certificate files for TLS with etcd; null if the flags name none. */
  readonly etcdFiles: { readonly caFile?: string; readonly certFile?: string; readonly keyFile?: string } | null
  /**
   * Where weftd serves /network.json. `open`: at the health port and the socket; `guarded`: only at the socket; `off`:
   * at neither.
   */
  readonly network: 'off' | 'open' | 'guarded'
}

export interface Status extends NodeReport {
  readonly schema: typeof STATUS_SCHEMA
  readonly at: string
  readonly daemon: DaemonStatus
  readonly events: readonly StatusEvent[]
}

/** How much the data path's counters grew during the last `seconds` seconds. */
export interface RecentCounts {
  readonly seconds: number
  /** The number of packets sent to peers and accepted from peers during the last `seconds` seconds. */
  readonly packets: number
  /** The number of packets dropped during the last `seconds` seconds, by reason. Reasons without drops are left out. */
  readonly drops: Readonly<Record<string, number>>
}

export interface NodeReport extends State {
  /** Why the daemon waits, is impaired or leaves; null if it is in the state `working`. */
  readonly trouble: string | null
  readonly summary: string
  readonly store: {
    readonly name: string
    readonly reachable: boolean
    readonly comparedSecondsAgo: number | null
    /**
     * The number of peers that weftd keeps although the store no longer has their leases. `holds` counts how many times
     * weftd began to keep such peers.
     */
    readonly held: number
    readonly holds: number
    /** True if the network configuration in the store is missing or invalid, so that no weftd can start. */
    readonly configGone: boolean
    /**
     * True if the configuration in the store differs from the configuration that the node uses, even if only a secret
     * differs.
     */
    readonly configDiffers: boolean
  }
  /**
   * The node's host name, subnets and addresses. Until the node has a lease, `node` and all fields after it are null.
   * The exception is `dataPath`, which is set as soon as weftd forwards.
   */
  readonly node: NodeStatus | null
  readonly config: {
    readonly network: string
    readonly ipv6Network: string | null
    readonly subnetLength: number
    readonly subnetMin: string
    readonly subnetMax: string
    /**
     * The prefix length of the nodes' IPv6 subnets. `ipv6SubnetLength`, `ipv6SubnetMin` and `ipv6SubnetMax` are null if
     * the network has no IPv6.
     */
    readonly ipv6SubnetLength: number | null
    readonly ipv6SubnetMin: string | null
    readonly ipv6SubnetMax: string | null
    readonly backendType: string
    /** The member `Backend` of the network configuration, with hidden secrets. */
    readonly backend: Readonly<Record<string, unknown>>
  } | null
  readonly lease: {
    readonly key: string
    readonly expiresAt: string | null
    /** How long before `expiresAt` weftd renews the lease, in seconds. */
    readonly renewMarginSeconds: number
    /**
     * Why the last try to renew the lease failed, or why the store does not have the lease now; null if the last try
     * succeeded. Older versions of weftd omit this field.
     */
    readonly unrenewed?: string | null
    readonly published: Readonly<Record<string, unknown>>
  } | null
  readonly dataPath: {
    readonly open: boolean
    /** The families that the network configuration enables. */
    readonly families: readonly Family[]
    /** For each enabled family, why the data path does not carry the family; null if it carries the family. */
    readonly lacking: Readonly<Record<Family, string | null>>
    /** For each family, the address that is missing from the external interface; null if no address is missing. */
    readonly addressGone: Readonly<Record<Family, string | null>>
    readonly mtu: number | null
    /** The MTU of the data path, in bytes, at the time when weftd got its lease; null before weftd has a lease. */
    readonly mtuAtStart: number | null
    /** The name of the data path's device for the first family. */
    readonly device: string | null
    /** The name of the data path's device for each family, or null. */
    readonly devices: Readonly<Record<Family, string | null>>
    /** The engine that carries the packets: `native`, `dgram` or `kernel`; `none` if another program carries them. */
    readonly engine: string | null
    readonly features: readonly string[]
    /**
     * The state of the eBPF programs that carry packets in place of the engine; null if the configuration does not
     * allow them.
     */
    readonly fastPath: {
      readonly isActive: boolean
      readonly reason: string | null
      readonly promoted: number
      readonly takenBack: number
      readonly lastTakenBack: { readonly subnet: string; readonly reason: string } | null
    } | null
    readonly threads: readonly { readonly name: string; readonly hungSeconds: number | null }[]
    readonly counters: Readonly<Record<string, number>>
    /** The number of packets dropped since the data path was opened, by reason. Reasons without drops are left out. */
    readonly drops: Readonly<Record<string, number>>
    /** How much the counters grew over about the last minute; null until weftd has a lease. */
    readonly recent: RecentCounts | null
    /**
     * The WireGuard public keys that are in no lease but that other hosts used in handshakes, each with the time of its
     * last handshake. Null if the data path cannot report these keys.
     */
    readonly unknownKeys:
      | readonly { readonly publicKey: string; readonly endpoint: string; readonly secondsAgo: number }[]
      | null
  } | null
  readonly peers: PeersStatus | null
  /** The number of peers' events of each kind; null until weftd has a lease. */
  readonly peerEvents: Readonly<Record<PeerEventKind, number>> | null
  readonly repairs: number
  readonly subnetFileWritten: boolean
}

/**
 * Returns the report of a weftd that has no lease yet. `dataPath` is given if weftd forwards with the last known state.
 */
export const startingReport = (
  store: string,
  beginning: Beginning,
  dataPath: NodeReport['dataPath'] = null,
): NodeReport => {
  const state = stateBefore(beginning)
  const trouble = beginning.leaving ?? beginning.waitsFor
  const { words } = readingOf(state)
  return {
    ...state,
    trouble,
    summary: words === trouble ? words : `${words}; ${trouble}`,
    store: {
      name: store,
      reachable: false,
      comparedSecondsAgo: null,
      held: 0,
      holds: 0,
      configGone: false,
      configDiffers: false,
    },
    node: null,
    config: null,
    lease: null,
    dataPath,
    peers: null,
    peerEvents: null,
    repairs: 0,
    subnetFileWritten: false,
  }
}

/** Selects the drop counters that are not 0, by reason. */
export function dropsOf(counters: Readonly<Record<string, number>>): Readonly<Record<string, number>> {
  return Object.fromEntries(Object.entries(counters).filter(([name, count]) => isDrop(name) && count > 0))
}
export const isDrop = (counter: string): boolean => counter.includes('_drop_')

/**
 * The conditions of the path to a peer, worst first: the peer's states (`PeerState`), and `silent` (no answer to
 * probes) and `narrow` (long packets are lost).
 */
const CONDITIONS = ['stored', 'silent', 'narrow', 'programmed', 'answering'] as const
export type Condition = (typeof CONDITIONS)[number]

export function conditionOf(
  side: Pick<PeerSide, 'state' | 'lossPercent' | 'path' | 'passesBytes' | 'pathMtu'>,
): Condition {
  const { state, lossPercent } = side
  if (state === 'programmed' && lossPercent !== null) return 'silent'
  return state === 'answering' && isSilentlyNarrow(side) ? 'narrow' : state
}

/** Returns the rank of a path's condition; the worst condition has rank 0. */
export const conditionRank = (condition: Condition): number => CONDITIONS.indexOf(condition)

/**
 * Returns the worst of a peer's paths, by condition and then by loss. If several paths are equally bad, returns the
 * first of these. Returns undefined for an empty list.
 */
export function worstOf(sides: readonly PeerSide[]): PeerSide | undefined {
  const rank = (side: PeerSide): number => conditionRank(conditionOf(side)) * 101 - (side.lossPercent ?? 0)
  const [worst] = sides.toSorted((a, b) => rank(a) - rank(b))
  return worst
}

/**
 * Returns the path to a peer in each family. If the peer has only one family, returns the peer itself, because its own
 * fields describe that path.
 */
export function sidesOf(peer: PeerStatus): ByFamily<PeerSide> {
  const { ipv4, ipv6 } = peer.families
  if (ipv4 && ipv6) return { ipv4, ipv6 }
  const net = parseNet(peer.subnet)
  return ipv6 || (!ipv4 && net && familyOf(net) === 'ipv6') ? { ipv6: peer } : { ipv4: peer }
}

/** Returns a node's subnet and public address in a family; undefined if the node lacks the family. */
export function placeIn(
  { subnet, publicIp, ipv6Subnet, publicIpv6 }: Pick<PeerStatus, 'subnet' | 'publicIp' | 'ipv6Subnet' | 'publicIpv6'>,
  family: Family,
): { readonly subnet: Net | undefined; readonly publicIp: Address | undefined } {
  if (family === 'ipv6') return { subnet: parseIpv6Net(ipv6Subnet ?? ''), publicIp: parseIpv6(publicIpv6 ?? '') }
  return { subnet: parseIpv4Net(subnet), publicIp: parseIpv4(publicIp) }
}

/** The default of --probe-interval, in seconds. */
const PROBE_SECONDS = 10
/**
 * A peer counts as sending if its last packet arrived less than RECENT_INTERVALS probe intervals ago. A peer that
 * probes this node sends one packet per interval, and two of these packets may be lost. The interval is the larger of
 * the default and this node's interval.
 */
const RECENT_INTERVALS = 3

/**
 * Returns true if packets of a peer arrive although the peer does not answer: a packet from the peer arrived recently,
 * and later than the first lost probe. In that case the peer's weftd runs. Either packets to the peer are lost, or the
 * firewall of its host drops the probes. `probeSeconds` is `PeersStatus.probeSeconds`.
 */
export function isSendingOnly(
  { state, families, heardSecondsAgo, unansweredSeconds }: PeerStatus,
  probeSeconds: number | null,
): boolean {
  return (
    state !== 'answering' &&
    // If the peer answers over one family, the packets that arrive from it may be of this family, and prove nothing
    // about the second family.
    !Object.values(families).some((side) => side?.state === 'answering') &&
    heardSecondsAgo !== null &&
    heardSecondsAgo < RECENT_INTERVALS * Math.max(probeSeconds ?? 0, PROBE_SECONDS) &&
    unansweredSeconds !== null &&
    heardSecondsAgo + 1 < unansweredSeconds
  )
}

/**
 * Describes the condition of a peer. If its two families have different conditions, describes each family over which
 * the peer does not answer.
 */
export function conditionText(peer: PeerStatus, wordOf: (condition: Condition) => string): string {
  const { ipv4, ipv6 } = sidesOf(peer)
  if (!ipv4 || !ipv6 || conditionOf(ipv4) === conditionOf(ipv6)) return wordOf(conditionOf(peer))
  const conditions = { ipv4: conditionOf(ipv4), ipv6: conditionOf(ipv6) }
  return FAMILIES.filter((family) => conditions[family] !== 'answering')
    .map((family) => `${FAMILY_NAMES[family]} ${wordOf(conditions[family])}`)
    .join(', ')
}

/** The maximum number of characters of a host name in a line of text. */
const BRIEF = 40
/** Shortens a host name, because other hosts choose their names and may choose long ones. */
export const briefly = (name: string): string => (name.length > BRIEF ? `${name.slice(0, BRIEF - 1)}…` : name)

/** Returns a peer's host name with its subnet, as in `host2 (10.5.2.0/24)`; only the subnet if the peer has no name. */
export const titleOf = ({ name, subnet }: Pick<PeerStatus, 'name' | 'subnet'>): string =>
  name ? `${briefly(name)} (${subnet})` : subnet

/** Counts the peers by state. `probeSeconds` is null if weftd sends no probes. */
export function countPeers(list: readonly PeerStatus[], probeSeconds: number | null): PeersStatus {
  const isProbing = probeSeconds !== null
  const stored = list.length
  const programmed = list.filter(({ state }) => state !== 'stored').length
  const answering = list.filter(({ state }) => state === 'answering').length
  const probed = list.filter(({ state, probedSecondsAgo }) => state !== 'stored' && probedSecondsAgo !== null).length
  const narrow = list.filter((peer) => conditionOf(peer) === 'narrow').length
  const part = (some: number, all: number): number => (all === 0 ? 1 : some / all)
  return {
    stored,
    programmed,
    answering: isProbing ? answering : null,
    probed: isProbing ? probed : null,
    narrow: isProbing ? narrow : null,
    probeSeconds,
    whole: part(programmed, stored) * (isProbing ? part(answering, probed) : 1),
    list,
  }
}

/**
 * Returns the fraction of the network that this node reaches. Returns undefined if there are no peers, or if weftd has
 * probed no peer yet, so that it is not known which peers answer.
 */
export const knownWhole = ({ whole, probed }: Pick<PeersStatus, 'whole' | 'probed'>): number | undefined =>
  whole === 1 && !probed ? undefined : whole

/** Lists the device names of a data path, each once; null if the data path has no device of its own. */
export function devicesText({
  device,
  devices,
}: {
  readonly device: string | null
  readonly devices?: Readonly<Record<Family, string | null>>
}): string | null {
  const names = new Set([device, devices?.ipv4, devices?.ipv6].filter((name) => typeof name === 'string'))
  return names.size === 0 ? null : [...names].join(' and ')
}
