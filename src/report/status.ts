// status.ts - the schema of /status.json: how a node is, in numbers and words; docs/status.md has every field. Pure.
//
// A field may be added under the same version; one that goes or changes its meaning takes another. What is not known is null, never
// left out. Times of day are ISO 8601 in UTC; everything else has its unit in its name.

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

/** `stored`: the store has its lease; `programmed`: the data path has it too; `answering`: and it answered the last probe. */
export type PeerState = 'stored' | 'programmed' | 'answering'

/** The keys that packets of one family to and from a peer are sealed by, and the handshakes by which both agree on them. */
export interface SessionStatus {
  /** The peer's, in base64. */
  readonly publicKey: string
  /** The time since the last handshake that gave keys; null when none did. */
  readonly handshakeSecondsAgo: number | null
  /** The age of the keys; null while there are none that may be used. */
  readonly ageSeconds: number | null
  /** The handshakes that were begun since the last one that gave keys; null where others than weftd carry, as the next three. */
  readonly attempts: number | null
  /**
   * Why the last of them gave no keys: nothing came back; what came back was sealed with another pre-shared key; the peer's key is one with
   * which there is no secret.
   */
  readonly failure: 'no-answer' | 'not-authentic' | 'bad-key' | null
  /** The peer's that were as old as one before, or older, and so were not answered. */
  readonly stale: number | null
  /** The peer's that were answered, without a packet under the keys. */
  readonly unconfirmed: number | null
  readonly txBytes: number | null
  readonly rxBytes: number | null
}

/** How packets of one family go to a peer, and whether it answers by them. */
export interface PeerSide {
  /** The destination of its packets. */
  readonly endpoint: string | null
  /**
   * The way of its packets: `direct`, routed to its host without a tunnel; `tunnel`, in datagrams of weftd's; `kernel`,
   * through a tunnel of the kernel's.
   */
  readonly way: 'direct' | 'tunnel' | 'kernel' | null
  readonly state: PeerState
  readonly roundTripMs: number | null
  /** The part of the last probes that was not answered. */
  readonly lossPercent: number | null
  readonly probedSecondsAgo: number | null
  /** The time since the first probe that was lost after the last answer; null when none was. */
  readonly unansweredSeconds: number | null
  readonly pathMtu: number | null
  /**
   * Whether a packet as long as containers may send comes back, `narrow` where only shorter ones do; null while that is not known, as of
   * a peer that does not answer at all.
   */
  readonly path: 'whole' | 'narrow' | null
  /** The longest packet that comes back; null while it is looked for. */
  readonly passesBytes: number | null
  /** The time since when the path is as it is. */
  readonly pathSince: string | null
  /** Null where nothing is sealed. */
  readonly session: SessionStatus | null
}

/**
 * True where long packets do not reach a peer whose short ones do, and nobody tells those who send them: their connections open and then
 * stall.
 */
const isSilentlyNarrow = ({ path, passesBytes, pathMtu }: Pick<PeerSide, 'path' | 'passesBytes' | 'pathMtu'>) =>
  path === 'narrow' && (pathMtu === null || (passesBytes ?? 0) < pathMtu)

/** Its own side is that of its worse family (`worstOf`): what is broken is not hidden by what is not. */
export interface PeerStatus extends PeerSide {
  readonly lease: string
  /** The name of its host, as that says itself; null where it says none, as a flanneld. */
  readonly name: string | null
  /** The IPv4 subnet, or that of IPv6 when it has that alone; so is the address after it. */
  readonly subnet: string
  readonly publicIp: string
  /** The IPv6 subnet, when it has one; so is the address after it. */
  readonly ipv6Subnet: string | null
  readonly publicIpv6: string | null
  /** By family; null for one that the peer, the network or the backend is without. */
  readonly families: Readonly<Record<Family, PeerSide | null>>
  /** The backend type that it published; empty for udp, which publishes none. */
  readonly type: string
  /** Kept though the store lacks it. */
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
  /** Null while peers are not probed, as the next two. */
  readonly answering: number | null
  /** The number of peers whose last probe has a result. */
  readonly probed: number | null
  /** The number of peers that long packets do not reach, while nobody tells the senders. */
  readonly narrow: number | null
  /** The interval at which each is probed: longer than was asked for when peers are very many. */
  readonly probeSeconds: number | null
  /**
   * The wholeness of the network as seen from here, 0 to 1: the part of the stored peers that are programmed, times the
   * part of the probed that answer.
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
  /** The name of another host that uses the public IP now, as it says itself. */
  readonly twin: string | null
}

/** Facts that are known from the start on, and do not change. */
export interface DaemonStatus {
  readonly version: string
  readonly pid: number
  readonly startedAt: string
  readonly subnetFile: string
  /** The place of the leases: endpoints with the prefix, the directory, or nodes; without user and password. */
  readonly leases: string
  /** The certificate files for TLS with etcd; null if none is given. */
  readonly etcdFiles: { readonly caFile?: string; readonly certFile?: string; readonly keyFile?: string } | null
  /** `open`: /network.json tells what all nodes say; `guarded`: at the socket alone; `off`: nowhere. */
  readonly network: 'off' | 'open' | 'guarded'
}

export interface Status extends NodeReport {
  readonly schema: typeof STATUS_SCHEMA
  readonly at: string
  readonly daemon: DaemonStatus
  readonly events: readonly StatusEvent[]
}

/** What the data path counted lately. */
export interface RecentCounts {
  readonly seconds: number
  /** Packets sent to peers and let in from them. */
  readonly packets: number
  /** The packets dropped, by reason; without those that are 0. */
  readonly drops: Readonly<Record<string, number>>
}

/** Facts that only a node knows. */
export interface NodeReport extends State {
  /** What it waits for, what it is impaired by, or why it is leaving. */
  readonly trouble: string | null
  /** One line for a person. */
  readonly summary: string
  readonly store: {
    readonly name: string
    readonly reachable: boolean
    readonly comparedSecondsAgo: number | null
    /** Peers kept now though the store lacks them, and how often that began. */
    readonly held: number
    readonly holds: number
    /** True while it has no network configuration, though this node has one from there. */
    readonly configGone: boolean
    /** True while it has another one than this node runs by, if only by a secret. */
    readonly configDiffers: boolean
  }
  /** The rest is null until the node has a lease, but for the data path of one that forwards as last known. */
  readonly node: NodeStatus | null
  readonly config: {
    readonly network: string
    readonly ipv6Network: string | null
    readonly subnetLength: number
    readonly subnetMin: string
    readonly subnetMax: string
    /** The same of IPv6, where the network has it. */
    readonly ipv6SubnetLength: number | null
    readonly ipv6SubnetMin: string | null
    readonly ipv6SubnetMax: string | null
    readonly backendType: string
    /** The `Backend` object; what is secret of it prints as hidden. */
    readonly backend: Readonly<Record<string, unknown>>
  } | null
  readonly lease: {
    readonly key: string
    readonly expiresAt: string | null
    readonly published: Readonly<Record<string, unknown>>
  } | null
  readonly dataPath: {
    readonly open: boolean
    /** The families that it is to carry. */
    readonly families: readonly Family[]
    /** The reason why it does not carry a family of them now. */
    readonly lacking: Readonly<Record<Family, string | null>>
    /** Of each family what of the external interface is gone for the moment. */
    readonly addressGone: Readonly<Record<Family, string | null>>
    readonly mtu: number | null
    /** What it was when the node came to be; null while there is none. */
    readonly mtuAtStart: number | null
    /** That of the first family. */
    readonly device: string | null
    /** That of each family, null where there is none. */
    readonly devices: Readonly<Record<Family, string | null>>
    /** `native`, `dgram`, `kernel`; `none` where something else carries packets. */
    readonly engine: string | null
    readonly features: readonly string[]
    readonly threads: readonly { readonly name: string; readonly hungSeconds: number | null }[]
    readonly counters: Readonly<Record<string, number>>
    /** The counters of dropped packets, by reason, that are not 0. */
    readonly drops: Readonly<Record<string, number>>
    /** The same of about the last minute; null until there is a node. */
    readonly recent: RecentCounts | null
    /** The last handshakes by keys that no lease has, one of each key; null where nobody knows. */
    readonly unknownKeys:
      | readonly { readonly publicKey: string; readonly endpoint: string; readonly secondsAgo: number }[]
      | null
  } | null
  readonly peers: PeersStatus | null
  /** How often each kind of event befell a peer; null until there is a node. */
  readonly peerEvents: Readonly<Record<PeerEventKind, number>> | null
  readonly repairs: number
  readonly subnetFileWritten: boolean
}

/** The report of a daemon that has no node yet; with a data path it forwards as last known. */
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

/** The counters of dropped packets. */
export function dropsOf(counters: Readonly<Record<string, number>>): Readonly<Record<string, number>> {
  return Object.fromEntries(Object.entries(counters).filter(([name, count]) => isDrop(name) && count > 0))
}
/** True for a counter of dropped packets. */
export const isDrop = (counter: string): boolean => counter.includes('_drop_')

/** A side's state, of one that is programmed whether it was asked in vain, of one that answers whether long packets reach it. The worst first. */
const CONDITIONS = ['stored', 'silent', 'narrow', 'programmed', 'answering'] as const
export type Condition = (typeof CONDITIONS)[number]

export function conditionOf(
  side: Pick<PeerSide, 'state' | 'lossPercent' | 'path' | 'passesBytes' | 'pathMtu'>,
): Condition {
  const { state, lossPercent } = side
  if (state === 'programmed' && lossPercent !== null) return 'silent'
  return state === 'answering' && isSilentlyNarrow(side) ? 'narrow' : state
}

/** The places of conditions in a list: the worst first. */
export const conditionRank = (condition: Condition): number => CONDITIONS.indexOf(condition)

/** The worst of some sides, by condition and then by loss; of those that are alike the first. */
export function worstOf(sides: readonly PeerSide[]): PeerSide | undefined {
  const rank = (side: PeerSide): number => conditionRank(conditionOf(side)) * 101 - (side.lossPercent ?? 0)
  const [worst] = sides.toSorted((a, b) => rank(a) - rank(b))
  return worst
}

/** The sides of a peer by family. One that has a single side has it as its own. */
export function sidesOf(peer: PeerStatus): ByFamily<PeerSide> {
  const { ipv4, ipv6 } = peer.families
  if (ipv4 && ipv6) return { ipv4, ipv6 }
  const net = parseNet(peer.subnet)
  return ipv6 || (!ipv4 && net && familyOf(net) === 'ipv6') ? { ipv6: peer } : { ipv4: peer }
}

/** A node's subnet and address of a family, as far as it has them. */
export function placeIn(
  { subnet, publicIp, ipv6Subnet, publicIpv6 }: Pick<PeerStatus, 'subnet' | 'publicIp' | 'ipv6Subnet' | 'publicIpv6'>,
  family: Family,
): { readonly subnet: Net | undefined; readonly publicIp: Address | undefined } {
  if (family === 'ipv6') return { subnet: parseIpv6Net(ipv6Subnet ?? ''), publicIp: parseIpv6(publicIpv6 ?? '') }
  return { subnet: parseIpv4Net(subnet), publicIp: parseIpv4(publicIp) }
}

/** The condition of a peer in words; where its families are not alike, those that do not answer with their names. */
export function conditionText(peer: PeerStatus, wordOf: (condition: Condition) => string): string {
  const { ipv4, ipv6 } = sidesOf(peer)
  if (!ipv4 || !ipv6 || conditionOf(ipv4) === conditionOf(ipv6)) return wordOf(conditionOf(peer))
  const conditions = { ipv4: conditionOf(ipv4), ipv6: conditionOf(ipv6) }
  return FAMILIES.filter((family) => conditions[family] !== 'answering')
    .map((family) => `${FAMILY_NAMES[family]} ${wordOf(conditions[family])}`)
    .join(', ')
}

/** A line has room for so many characters of a name. */
const BRIEF = 40
/** A name, which is others' text, as long as a line has room for it. */
export const briefly = (name: string): string => (name.length > BRIEF ? `${name.slice(0, BRIEF - 1)}…` : name)

/** A peer by its name, where it has one, and its subnet: `host2 (10.5.2.0/24)`. */
export const titleOf = ({ name, subnet }: Pick<PeerStatus, 'name' | 'subnet'>): string =>
  name ? `${briefly(name)} (${subnet})` : subnet

/** The numbers above the peers; `probeSeconds` is null while nobody probes. */
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

/** How whole the network is; undefined where nobody has been asked yet, and where there is nobody to ask. */
export const knownWhole = ({ whole, stored, answering, probed }: Omit<PeersStatus, 'list'>): number | undefined =>
  whole === 1 && (stored === 0 || (answering !== null && probed === 0)) ? undefined : whole

/** The devices of a data path, each once; null where it has none of its own. */
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
