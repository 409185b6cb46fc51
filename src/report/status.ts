// status.ts - the schema of /status.json: the state of a node in numbers and words. docs/status.md describes every field. Pure.
//
// New fields may be added under the same version. Removing a field or changing its meaning needs a new version. Unknown values are null,
// never omitted. Times are ISO 8601 in UTC; the names of other values contain their units.

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

/** `stored`: the store has the peer's lease; `programmed`: the data path has the peer too; `answering`: the peer also answered the last probe. */
export type PeerState = 'stored' | 'programmed' | 'answering'

/** The keys that encrypt the packets of one family to and from a peer, and the handshakes that negotiate the keys. */
export interface SessionStatus {
  /** The peer's public key in base64. */
  readonly publicKey: string
  /** The time since the last handshake that succeeded; null if none did. */
  readonly handshakeSecondsAgo: number | null
  /** The age of the keys; null if there are no valid keys. */
  readonly ageSeconds: number | null
  /** The handshakes begun since the last one that succeeded. Null if the kernel carries the packets; so are the next three fields. */
  readonly attempts: number | null
  /**
   * Why the last handshake failed. `no-answer`: the peer did not answer; `not-authentic`: its answer uses another pre-shared key;
   * `bad-key`: its public key yields no shared secret.
   */
  readonly failure: 'no-answer' | 'not-authentic' | 'bad-key' | null
  /** The peer's handshakes that this node ignored, because their timestamp was not newer than that of an earlier one. */
  readonly stale: number | null
  /** The peer's handshakes that this node answered, but after which the peer sent no packet with the new keys. */
  readonly unconfirmed: number | null
  readonly txBytes: number | null
  readonly rxBytes: number | null
}

/** The path to a peer in one family, and the results of the probes over it. */
export interface PeerSide {
  /** The underlay destination of packets to the peer. */
  readonly endpoint: string | null
  /**
   * How packets reach the peer. `direct`: routed to its host without a tunnel; `tunnel`: through weftd's tunnel; `kernel`: through a
   * tunnel of the kernel.
   */
  readonly way: 'direct' | 'tunnel' | 'kernel' | null
  readonly state: PeerState
  readonly roundTripMs: number | null
  /** The percentage of the recent probes that the peer did not answer. */
  readonly lossPercent: number | null
  readonly probedSecondsAgo: number | null
  /** The time since the first probe that was lost after the last answer; null if none was lost. */
  readonly unansweredSeconds: number | null
  readonly pathMtu: number | null
  /**
   * `whole`: the longest packet that containers may send comes back; `narrow`: only shorter ones do. Null if unknown, for example because
   * the peer does not answer at all.
   */
  readonly path: 'whole' | 'narrow' | null
  /** The longest packet that comes back; null until weftd has found it. */
  readonly passesBytes: number | null
  /** The time of the last change of `path`. */
  readonly pathSince: string | null
  /** Null if the backend does not encrypt. */
  readonly session: SessionStatus | null
}

/**
 * True if only short packets reach a peer, and senders of long packets get no ICMP error. Their connections open and then stall.
 */
const isSilentlyNarrow = ({ path, passesBytes, pathMtu }: Pick<PeerSide, 'path' | 'passesBytes' | 'pathMtu'>) =>
  path === 'narrow' && (pathMtu === null || (passesBytes ?? 0) < pathMtu)

/** A peer. The fields of PeerSide have the values of its worse family (`worstOf`), so that a working family does not hide a broken one. */
export interface PeerStatus extends PeerSide {
  readonly lease: string
  /** The name of the peer's host, which the peer publishes; null for flanneld, which publishes none. */
  readonly name: string | null
  /** The IPv4 subnet, or the IPv6 subnet if the peer has no other. `publicIp` is the address of the same family. */
  readonly subnet: string
  readonly publicIp: string
  /** The IPv6 subnet, or null. `publicIpv6` is the IPv6 address, or null. */
  readonly ipv6Subnet: string | null
  readonly publicIpv6: string | null
  /** The path in each family; null for a family that the peer, the network or the backend lacks. */
  readonly families: Readonly<Record<Family, PeerSide | null>>
  /** The backend type that the peer published; empty for udp, which publishes none. */
  readonly type: string
  /** True if weftd keeps the peer although the store lacks it. */
  readonly held: boolean
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
  /** The number of peers that answered their last probe. Null if weftd does not probe; so are the next two fields. */
  readonly answering: number | null
  /** The number of peers whose last probe has a result. */
  readonly probed: number | null
  /** The number of peers that long packets do not reach, without an ICMP error to the senders. */
  readonly narrow: number | null
  /** The interval between the probes of one peer. With very many peers it is longer than `--probe-interval`. */
  readonly probeSeconds: number | null
  /**
   * The fraction of the network that this node reaches, 0 to 1: the fraction of the stored peers that are programmed, times the fraction
   * of the probed peers that answer.
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
  /** The host name that another host reports while it uses the same public IP; else null. */
  readonly twin: string | null
}

/** Facts that are known from the start and do not change. */
export interface DaemonStatus {
  readonly version: string
  readonly pid: number
  readonly startedAt: string
  readonly subnetFile: string
  /** The location of the leases: the endpoints of etcd with the prefix, the directory, or `nodes`; without user name and password. */
  readonly leases: string
  /** The certificate files for TLS with etcd; null if none is given. */
  readonly etcdFiles: { readonly caFile?: string; readonly certFile?: string; readonly keyFile?: string } | null
  /** `open`: the port serves /network.json; `guarded`: only the socket does; `off`: neither does. */
  readonly network: 'off' | 'open' | 'guarded'
}

export interface Status extends NodeReport {
  readonly schema: typeof STATUS_SCHEMA
  readonly at: string
  readonly daemon: DaemonStatus
  readonly events: readonly StatusEvent[]
}

/** The increase of the data path's counters over the last `seconds`. */
export interface RecentCounts {
  readonly seconds: number
  /** Packets sent to peers and accepted from them. */
  readonly packets: number
  /** The dropped packets by reason, without zeros. */
  readonly drops: Readonly<Record<string, number>>
}

export interface NodeReport extends State {
  /** The reason why the node waits, is impaired or leaves; null if it is working. */
  readonly trouble: string | null
  readonly summary: string
  readonly store: {
    readonly name: string
    readonly reachable: boolean
    readonly comparedSecondsAgo: number | null
    /** The number of peers that are kept although the store lacks them; `holds` is how often that began. */
    readonly held: number
    readonly holds: number
    /** True if the network configuration that this node got from the store is no longer there. */
    readonly configGone: boolean
    /** True if the store's configuration differs from the one in use, even if only a secret differs. */
    readonly configDiffers: boolean
  }
  /** The fields below are null until the node has a lease. Exception: `dataPath` while weftd forwards with the last known state. */
  readonly node: NodeStatus | null
  readonly config: {
    readonly network: string
    readonly ipv6Network: string | null
    readonly subnetLength: number
    readonly subnetMin: string
    readonly subnetMax: string
    /** The length of IPv6 subnets; null, as are the next two fields, if the network has no IPv6. */
    readonly ipv6SubnetLength: number | null
    readonly ipv6SubnetMin: string | null
    readonly ipv6SubnetMax: string | null
    readonly backendType: string
    /** The `Backend` object, with secrets hidden. */
    readonly backend: Readonly<Record<string, unknown>>
  } | null
  readonly lease: {
    readonly key: string
    readonly expiresAt: string | null
    readonly published: Readonly<Record<string, unknown>>
  } | null
  readonly dataPath: {
    readonly open: boolean
    /** The enabled families. */
    readonly families: readonly Family[]
    /** Why the data path does not carry an enabled family; null if it does. */
    readonly lacking: Readonly<Record<Family, string | null>>
    /** The address that is missing from the external interface, for each family. */
    readonly addressGone: Readonly<Record<Family, string | null>>
    readonly mtu: number | null
    /** The MTU when the node started; null if there is no node. */
    readonly mtuAtStart: number | null
    /** The device of the first family. */
    readonly device: string | null
    /** The device of each family, or null. */
    readonly devices: Readonly<Record<Family, string | null>>
    /** `native`, `dgram` or `kernel`; `none` if another program carries the packets. */
    readonly engine: string | null
    readonly features: readonly string[]
    readonly threads: readonly { readonly name: string; readonly hungSeconds: number | null }[]
    readonly counters: Readonly<Record<string, number>>
    /** The counters of dropped packets by reason, without zeros. */
    readonly drops: Readonly<Record<string, number>>
    /** The increase over about the last minute; null until there is a node. */
    readonly recent: RecentCounts | null
    /** The last handshake of each key that no lease has; null if unknown. */
    readonly unknownKeys:
      | readonly { readonly publicKey: string; readonly endpoint: string; readonly secondsAgo: number }[]
      | null
  } | null
  readonly peers: PeersStatus | null
  /** The number of events of each kind; null until there is a node. */
  readonly peerEvents: Readonly<Record<PeerEventKind, number>> | null
  readonly repairs: number
  readonly subnetFileWritten: boolean
}

/** Returns the report of a daemon that has no node yet. A `dataPath` means that it forwards with the last known state. */
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

/** Selects the counters of dropped packets that are not 0. */
export function dropsOf(counters: Readonly<Record<string, number>>): Readonly<Record<string, number>> {
  return Object.fromEntries(Object.entries(counters).filter(([name, count]) => isDrop(name) && count > 0))
}
export const isDrop = (counter: string): boolean => counter.includes('_drop_')

/** The conditions of a path, the worst first: the states, and `silent` (probed without an answer) and `narrow` (long packets are lost). */
const CONDITIONS = ['stored', 'silent', 'narrow', 'programmed', 'answering'] as const
export type Condition = (typeof CONDITIONS)[number]

export function conditionOf(
  side: Pick<PeerSide, 'state' | 'lossPercent' | 'path' | 'passesBytes' | 'pathMtu'>,
): Condition {
  const { state, lossPercent } = side
  if (state === 'programmed' && lossPercent !== null) return 'silent'
  return state === 'answering' && isSilentlyNarrow(side) ? 'narrow' : state
}

/** The rank of a condition; the worst has 0. */
export const conditionRank = (condition: Condition): number => CONDITIONS.indexOf(condition)

/** Returns the worst of the paths, by condition and then by loss. Returns the first of equal ones. */
export function worstOf(sides: readonly PeerSide[]): PeerSide | undefined {
  const rank = (side: PeerSide): number => conditionRank(conditionOf(side)) * 101 - (side.lossPercent ?? 0)
  const [worst] = sides.toSorted((a, b) => rank(a) - rank(b))
  return worst
}

/** Returns the paths of a peer by family. A peer with one family has that path in its own fields. */
export function sidesOf(peer: PeerStatus): ByFamily<PeerSide> {
  const { ipv4, ipv6 } = peer.families
  if (ipv4 && ipv6) return { ipv4, ipv6 }
  const net = parseNet(peer.subnet)
  return ipv6 || (!ipv4 && net && familyOf(net) === 'ipv6') ? { ipv6: peer } : { ipv4: peer }
}

/** Returns a node's subnet and address in a family; undefined if it has none. */
export function placeIn(
  { subnet, publicIp, ipv6Subnet, publicIpv6 }: Pick<PeerStatus, 'subnet' | 'publicIp' | 'ipv6Subnet' | 'publicIpv6'>,
  family: Family,
): { readonly subnet: Net | undefined; readonly publicIp: Address | undefined } {
  if (family === 'ipv6') return { subnet: parseIpv6Net(ipv6Subnet ?? ''), publicIp: parseIpv6(publicIpv6 ?? '') }
  return { subnet: parseIpv4Net(subnet), publicIp: parseIpv4(publicIp) }
}

/** Describes the condition of a peer. If its families differ, describes each family that does not answer. */
export function conditionText(peer: PeerStatus, wordOf: (condition: Condition) => string): string {
  const { ipv4, ipv6 } = sidesOf(peer)
  if (!ipv4 || !ipv6 || conditionOf(ipv4) === conditionOf(ipv6)) return wordOf(conditionOf(peer))
  const conditions = { ipv4: conditionOf(ipv4), ipv6: conditionOf(ipv6) }
  return FAMILIES.filter((family) => conditions[family] !== 'answering')
    .map((family) => `${FAMILY_NAMES[family]} ${wordOf(conditions[family])}`)
    .join(', ')
}

/** The maximum number of characters of a name in a line. */
const BRIEF = 40
/** Shortens a name, because other hosts choose its length. */
export const briefly = (name: string): string => (name.length > BRIEF ? `${name.slice(0, BRIEF - 1)}…` : name)

/** Returns the name of a peer with its subnet, as in `host2 (10.5.2.0/24)`; without a name only the subnet. */
export const titleOf = ({ name, subnet }: Pick<PeerStatus, 'name' | 'subnet'>): string =>
  name ? `${briefly(name)} (${subnet})` : subnet

/** Counts the peers. `probeSeconds` is null if weftd does not probe. */
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

/** Returns `whole`; undefined if there are no peers, or if none was probed yet. */
export const knownWhole = ({ whole, stored, answering, probed }: Omit<PeersStatus, 'list'>): number | undefined =>
  whole === 1 && (stored === 0 || (answering !== null && probed === 0)) ? undefined : whole

/** Lists the devices of a data path, each once; null if it has none of its own. */
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
