// status.ts - the schema of /status.json: how a node is, in numbers and words; docs/status.md has every field. Pure.
//
// A field may be added under the same version; one that goes or changes its meaning takes another. What is not known is null, never
// left out. Times of day are ISO 8601 in UTC; everything else has its unit in its name.

export const STATUS_SCHEMA = 1

/** `stored`: the store has its lease; `programmed`: the data path has it too; `answering`: and it answered the last probe. */
export type PeerState = 'stored' | 'programmed' | 'answering'

export interface PeerStatus {
  readonly lease: string
  readonly subnet: string
  readonly publicIp: string
  /** Where its packets go. */
  readonly endpoint: string | null
  /** How: `direct`, routed to its host without a tunnel; `tunnel`, in datagrams of weftd's; `kernel`, through a tunnel of the kernel's. */
  readonly way: 'direct' | 'tunnel' | 'kernel' | null
  /** The backend type that it published; empty for udp, which publishes none. */
  readonly type: string
  readonly state: PeerState
  /** Kept though the store lacks it. */
  readonly held: boolean
  readonly since: string
  readonly txPackets: number | null
  readonly txBytes: number | null
  readonly rxPackets: number | null
  readonly rxBytes: number | null
  readonly heardSecondsAgo: number | null
  readonly roundTripMs: number | null
  /** Of the last probes, how many were not answered. */
  readonly lossPercent: number | null
  readonly probedSecondsAgo: number | null
  readonly pathMtu: number | null
}

export interface PeersStatus {
  readonly stored: number
  readonly programmed: number
  /** Null while peers are not probed, as the next two. */
  readonly answering: number | null
  /** How many there is a result of. */
  readonly probed: number | null
  /** How often each is probed: less often than was asked for where peers are very many. */
  readonly probeSeconds: number | null
  /** How whole the network is as seen from here, 0 to 1: the part of the stored peers that are programmed, times the part of the probed that answer. */
  readonly whole: number
  readonly list: readonly PeerStatus[]
}

export interface StatusEvent {
  readonly at: string
  readonly level: 'info' | 'warn' | 'error'
  readonly text: string
}

export interface NodeStatus {
  readonly hostname: string
  readonly subnet: string
  readonly publicIp: string
  readonly externalInterface: string | null
  /** The name of another host that uses the public IP now, as it says itself. */
  readonly twin: string | null
}

/** What is known from the start on, and does not change. */
export interface DaemonStatus {
  readonly version: string
  readonly pid: number
  readonly startedAt: string
  readonly subnetFile: string
  /** Where leases are kept: endpoints with the prefix, the directory, or nodes; without user and password. */
  readonly leases: string
}

export interface Status extends NodeReport {
  readonly schema: typeof STATUS_SCHEMA
  readonly at: string
  readonly daemon: DaemonStatus
  readonly events: readonly StatusEvent[]
}

/** What only a node knows. */
export interface NodeReport {
  /** `starting`: it has no lease yet, and waits for what `trouble` says. `impaired`: it does not do its work, for the reason that `trouble` says. */
  readonly state: 'starting' | 'working' | 'impaired'
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
  }
  /** The rest is null until the node has a lease, but for the data path of one that forwards as last known. */
  readonly node: NodeStatus | null
  readonly config: {
    readonly network: string
    readonly subnetLength: number
    readonly subnetMin: string
    readonly subnetMax: string
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
    readonly mtu: number | null
    readonly device: string | null
    /** `native`, `naive`, `dgram`, `kernel`; `none` where something else carries packets. */
    readonly engine: string | null
    readonly features: readonly string[]
    readonly threads: readonly { readonly name: string; readonly hungSeconds: number | null }[]
    readonly counters: Readonly<Record<string, number>>
    /** Of the counters those of packets dropped, by reason, that are not 0. */
    readonly drops: Readonly<Record<string, number>>
  } | null
  readonly peers: PeersStatus | null
  readonly repairs: number
  readonly subnetFileWritten: boolean
}

/** Of a daemon that has no node yet; with a data path it forwards as last known. */
export const startingReport = (
  store: string,
  waitsFor: string,
  dataPath: NodeReport['dataPath'] = null,
): NodeReport => ({
  ...{ state: 'starting', trouble: waitsFor },
  summary: dataPath ? `${stateText({ state: 'starting', dataPath })}; ${waitsFor}` : waitsFor,
  store: { name: store, reachable: false, comparedSecondsAgo: null, held: 0, holds: 0 },
  ...{ node: null, config: null, lease: null, dataPath, peers: null, repairs: 0, subnetFileWritten: false },
})

/** The state in words for a person. */
export const stateText = ({ state, dataPath }: Pick<NodeReport, 'state' | 'dataPath'>): string =>
  state === 'starting' && dataPath?.open ? 'forwarding as last known' : state

/** Of the counters, those of packets that were dropped. */
export function dropsOf(counters: Readonly<Record<string, number>>): Readonly<Record<string, number>> {
  return Object.fromEntries(Object.entries(counters).filter(([name, count]) => isDrop(name) && count > 0))
}
/** Whether a counter is of packets that were dropped. */
export const isDrop = (counter: string): boolean => counter.includes('_drop_')

/** The numbers above the peers; `probeSeconds` is null while nobody probes. */
export function countPeers(list: readonly PeerStatus[], probeSeconds: number | null): PeersStatus {
  const isProbing = probeSeconds !== null
  const stored = list.length
  const programmed = list.filter(({ state }) => state !== 'stored').length
  const answering = list.filter(({ state }) => state === 'answering').length
  const probed = list.filter(({ state, probedSecondsAgo }) => state !== 'stored' && probedSecondsAgo !== null).length
  const part = (some: number, all: number): number => (all === 0 ? 1 : some / all)
  return {
    ...{ stored, programmed },
    ...{ answering: isProbing ? answering : null, probed: isProbing ? probed : null, probeSeconds },
    whole: part(programmed, stored) * (isProbing ? part(answering, probed) : 1),
    list,
  }
}
