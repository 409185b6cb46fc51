// network-findings.ts - finds the problems of the network in the answers of its nodes, and reports each cause once.
// docs/weft-network.md lists all findings. Pure.

import { publishers } from '../path/catalog.ts'
import type { NodeView, Sight } from './view.ts'

/** The minimum percentage of lost probes that the report shows as a finding. */
const LOSSY_PERCENT = 20
/** The maximum difference between a node's clock and the median clock, in ms, that does not count as a finding. */
const CLOCK_MS = 1_000
/** The maximum number of nodes that a finding names. */
const NAMED = 5
/** The maximum number of findings of one kind that the report lists. */
const MOST_DETAILS = 20

/**
 * The kind of a node's answer to the query for its view (the part of its status that it shows to its peers). `told`:
 * the node returned its view; `closed`: no process listens at the port; `refused`: the node rejected the query; `junk`:
 * the answer cannot be parsed; `silent`: no answer arrived.
 */
export type AnswerKind = 'told' | 'closed' | 'refused' | 'junk' | 'silent'

/** A node that weftd queried for its state, and the node's answer. */
export interface QueriedNode {
  readonly lease: string
  readonly name: string | null
  readonly subnet: string
  readonly publicIp: string
  readonly kind: AnswerKind
  /** Why the node did not return its state; null if the node returned it. */
  readonly why: string | null
  readonly view: NodeView | undefined
  /**
   * The backend type in the node's lease, if it differs from this host's backend type; undefined if the two types are
   * equal.
   */
  readonly otherType?: string | undefined
  /** How far the node's clock is ahead of this host's clock, in ms, and the uncertainty of this difference. */
  readonly clock: { readonly aheadMs: number; readonly uncertainMs: number } | undefined
}

export interface NetworkNode {
  readonly lease: string
  readonly name: string | null
  readonly subnet: string
  readonly publicIp: string
  readonly answer: AnswerKind
  readonly why: string | null
  readonly version: string | null
  readonly state: string | null
  readonly trouble: string | null
  readonly mtu: number | null
  readonly clockAheadMs: number | null
  /**
   * The number of other nodes that probe this node. `reachedBy` is the number of probing nodes to which this node
   * answers. Both numbers count only nodes that returned their state.
   */
  readonly seenBy: number
  readonly reachedBy: number
  /**
   * The number of other nodes that this node probes. `reaches` is the number of probed nodes that answer. Both are null
   * if this node did not return its state.
   */
  readonly sees: number | null
  readonly reaches: number | null
}

export interface NetworkFinding {
  readonly name: NetworkFindingName
  readonly detail: string
}

interface Possible {
  readonly level: 'failure' | 'warning' | 'note'
  readonly means: string
  readonly fix: string
}

/** All findings about a network. A test compares them with docs/weft-network.md. */
export const NETWORK_FINDINGS = {
  'node-dead': {
    level: 'failure',
    means: 'a node answers neither status queries nor the probes of any other node',
    fix: 'check that the host runs and is connected; then run `systemctl status weftd` and `weft doctor` on the host, because its firewall may drop only the queries and the probes',
  },
  'node-cut-off': {
    level: 'failure',
    means: 'several nodes do not reach a node, or the node does not reach them, although these nodes reach each other',
    fix: "run `weft doctor` on the named node; usually that node's firewall drops packets to the backend's port, or its address or a route is wrong",
  },
  'pair-broken': {
    level: 'failure',
    means: 'two nodes do not reach each other, although other nodes reach both of them',
    fix: 'check the routes, the firewall rules and the link between these two hosts; run `weft explain` on both hosts',
  },
  'node-impaired': {
    level: 'failure',
    means: 'a node reports that its own state is impaired',
    fix: 'run `weft doctor` on the named node',
  },
  'backend-differs': {
    level: 'failure',
    means: 'some nodes run another backend than the node that reports this finding, so they do not reach that node',
    fix: 'restart weftd on all nodes, so that each node runs the backend in the stored network configuration; see docs/change-the-backend.md',
  },
  'config-differs': {
    level: 'failure',
    means: 'nodes run different network configurations, so packets between these nodes may be lost',
    fix: 'restart weftd on the nodes with the old configuration; `weft config get` prints the configuration in the store',
  },
  'node-lossy': {
    level: 'warning',
    means: 'some packets between the named nodes are lost',
    fix: 'check whether packets are lost outside the tunnel too: `ping` one host from the other, and read the counters of the interfaces and the CPU load',
  },
  'node-narrow': {
    level: 'failure',
    means: 'long packets between the named nodes are lost, so connections open and then stall',
    fix: 'the smallest MTU on the path between the nodes is smaller than weftd assumes; see `path-mtu` in docs/findings-network.md',
  },
  'clock-off': {
    level: 'warning',
    means:
      "a node's clock is wrong, so leases end early or late on that node, and the times in its log differ from the times in other nodes' logs",
    fix: 'start an NTP client (chrony, systemd-timesyncd) on the named node, and check that it reaches its servers',
  },
  'version-differs': {
    level: 'warning',
    means: 'nodes run different versions of weft',
    fix: 'finish the upgrade or revert it; different versions work together until then',
  },
  'mtu-differs': {
    level: 'warning',
    means: 'nodes have different MTUs, so a node with a smaller MTU may drop packets that fit the larger MTU',
    fix: 'give the external interfaces of all hosts the same MTU, or set the smallest MTU as `MTU` in `Backend`, and restart weftd on all nodes',
  },
  'node-refuses': {
    level: 'warning',
    means:
      'other nodes reach a node, but the node does not answer the query for its status, refuses it, or sends a status that this node cannot parse',
    fix: 'accept the TCP port of --status-network from the network in the firewall of that host (`iptables -I INPUT -p tcp --dport 8287 -s NETWORK -j ACCEPT`); use the same token in --status-token-file and the same version of weft on all nodes',
  },
  'not-told': {
    level: 'note',
    means:
      'some nodes run flanneld, or weftd without --status-network, so only the probe results of other nodes describe them',
    fix: 'start weftd with the same --status-network port on each node',
  },
} as const satisfies Readonly<Record<string, Possible>>

export type NetworkFindingName = keyof typeof NETWORK_FINDINGS

/** Returns true if this version of weft knows the finding. A report of a newer weftd may have other findings. */
export const isKnownFinding = ({ name }: Pick<NetworkFinding, 'name'>): boolean => Object.hasOwn(NETWORK_FINDINGS, name)

/** Returns true if no finding is a failure. A finding that this version of weft does not know may be a failure. */
export const isNetworkWell = ({ findings }: { readonly findings: readonly NetworkFinding[] }): boolean =>
  findings.every((finding) => isKnownFinding(finding) && NETWORK_FINDINGS[finding.name].level !== 'failure')

const callOf = ({ name, subnet, publicIp }: Pick<NetworkNode, 'name' | 'subnet' | 'publicIp'>): string =>
  name ? `${name} (${subnet} at ${publicIp})` : `${subnet} at ${publicIp}`
const briefCallOf = ({ name, subnet }: Pick<NetworkNode, 'name' | 'subnet'>): string => name ?? subnet

/** Lists the first NAMED nodes, and says how many more nodes there are. */
function fewOf(nodes: readonly Pick<NetworkNode, 'name' | 'subnet'>[]): string {
  const few = nodes.slice(0, NAMED).map(briefCallOf).join(', ')
  return nodes.length > NAMED ? `${few} and ${nodes.length - NAMED} more` : few
}

/** The result of one node's probes of another node. `from` and `to` are indices in the list of queried nodes. */
export interface Edge {
  readonly from: number
  readonly to: number
  readonly sight: Sight
}

/** The nodes, and the pairs of nodes (edges), that have problems. Nodes are indices in the list of queried nodes. */
interface Troubles {
  /** The nodes that no other node reaches, although other nodes can send packets to them. */
  readonly dead: ReadonlySet<number>
  /** The edges (pairs of a probing and a probed node) of which neither node is dead. */
  readonly living: readonly Edge[]
  /** The edges in `living` whose probes get no answer, or whose probing node cannot send packets to the other node. */
  readonly broken: readonly Edge[]
  /** The edges in `living` on which too many probes are lost. */
  readonly lossy: readonly Edge[]
  /** The edges in `living` on which long packets are lost. */
  readonly narrow: readonly Edge[]
  /**
   * The nodes that probe a peer with a problem. Such a node may be impaired only because of that peer, so the report
   * has no separate finding for the impaired node.
   */
  readonly seesTrouble: ReadonlySet<number>
}

function troublesOf(queried: readonly QueriedNode[], nodes: readonly NetworkNode[], edges: readonly Edge[]): Troubles {
  // The nodes to which at least one other node can send packets. A node with another backend gets no packets from the
  // other nodes, so its silence does not show that it is dead.
  const probed = new Set(edges.filter(({ sight }) => sight.reach !== 'stored').map(({ to }) => to))
  const isOfOther = (place: number): boolean => queried[place]?.otherType !== undefined
  const isDead = ({ answer, reachedBy, seenBy }: NetworkNode, place: number): boolean =>
    answer === 'silent' && reachedBy === 0 && !isOfOther(place) && (probed.has(place) || seenBy === 0)
  const dead = new Set(nodes.flatMap((node, place) => (isDead(node, place) ? [place] : [])))
  const living = edges.filter(
    ({ from, to, sight }) => !dead.has(from) && !dead.has(to) && !(sight.reach === 'stored' && isOfOther(to)),
  )
  const isLost = ({ sight }: Edge): boolean => sight.reach === 'silent' || sight.reach === 'stored'
  const lossy = living.filter(({ sight }) => sight.reach === 'reached' && (sight.lossPercent ?? 0) >= LOSSY_PERCENT)
  const narrow = living.filter(({ from, sight }) => {
    const mtu = nodes[from]?.mtu ?? 0
    return sight.reach === 'reached' && sight.passesBytes !== null && sight.passesBytes < mtu
  })
  const troubled = [...edges.filter(isLost), ...lossy, ...narrow]
  const seesTrouble = new Set(troubled.map(({ from }) => from))
  return { dead, living, broken: living.filter(isLost), lossy, narrow, seesTrouble }
}

/**
 * Returns a finding for each detail, but not more than MOST_DETAILS; one more finding says how many details are left
 * out.
 */
function listFindings(name: NetworkFindingName, details: readonly string[]): readonly NetworkFinding[] {
  const more = details.length > MOST_DETAILS ? [`and ${details.length - MOST_DETAILS} more`] : []
  return [...details.slice(0, MOST_DETAILS), ...more].map((detail) => ({ name, detail }))
}

export function findingsOf(
  queried: readonly QueriedNode[],
  nodes: readonly NetworkNode[],
  edges: readonly Edge[],
): readonly NetworkFinding[] {
  const troubles = troublesOf(queried, nodes, edges)
  return [
    ...listFindings('node-dead', deadOf(nodes, troubles)),
    ...causes(troubles.broken, troubles.living, nodes, ['node-cut-off', 'pair-broken'], () => [
      'does not reach',
      'is not reached by',
    ]),
    ...listFindings('node-impaired', impairedOf(nodes, troubles)),
    ...listFindings('backend-differs', othersOf(queried, nodes)),
    ...listFindings('config-differs', differences(queried)),
    ...pathFindings(nodes, troubles),
    ...listFindings('clock-off', clocksOf(queried, nodes)),
    ...listFindings(
      'version-differs',
      groupsOf(nodes, ({ version }) => version),
    ),
    ...listFindings(
      'mtu-differs',
      groupsOf(nodes, ({ mtu }) => mtu?.toString() ?? null),
    ),
    ...silenceFindings(queried, nodes, troubles),
  ]
}

const deadOf = (nodes: readonly NetworkNode[], { dead }: Troubles): readonly string[] =>
  nodes.flatMap((node, place) =>
    dead.has(place) ? [`${callOf(node)}${node.seenBy > 0 ? `: 0 of ${node.seenBy} nodes reach it` : ''}`] : [],
  )

const impairedOf = (nodes: readonly NetworkNode[], { seesTrouble }: Troubles): readonly string[] =>
  nodes.flatMap(({ state, trouble, ...node }, place) =>
    state === 'impaired' && (trouble !== null || !seesTrouble.has(place))
      ? [`${callOf(node)}: ${trouble ?? 'it gives no reason'}`]
      : [],
  )

const othersOf = (queried: readonly QueriedNode[], nodes: readonly NetworkNode[]): readonly string[] =>
  nodes.flatMap((node, place) => {
    const type = queried[place]?.otherType
    return type === undefined ? [] : [`${callOf(node)} publishes ${publishers(type)}`]
  })

/**
 * Returns the findings about paths that lose only some of the packets: paths with many lost probes, and paths that lose
 * all long packets.
 */
const pathFindings = (
  nodes: readonly NetworkNode[],
  { narrow, lossy, living }: Troubles,
): readonly NetworkFinding[] => [
  ...causes(narrow, living, nodes, ['node-narrow', 'node-narrow'], (some) => {
    const passes = some.reduce((least, { sight }) => Math.min(least, sight.passesBytes ?? least), Infinity)
    return [`gets no more than ${passes} bytes to`, `gets no more than ${passes} bytes from`]
  }),
  ...causes(lossy, living, nodes, ['node-lossy', 'node-lossy'], (some) => {
    const lost = Math.round(some.reduce((most, { sight }) => Math.max(most, sight.lossPercent ?? 0), 0))
    return [`loses up to ${lost}% of the probes to`, `loses up to ${lost}% of the probes from`]
  }),
]

const clocksOf = (queried: readonly QueriedNode[], nodes: readonly NetworkNode[]): readonly string[] =>
  nodes.flatMap((node, place) => {
    const ahead = node.clockAheadMs ?? 0
    const off = Math.abs(ahead) - (queried[place]?.clock?.uncertainMs ?? 0)
    const way = ahead > 0 ? 'ahead of' : 'behind'
    return off > CLOCK_MS ? [`${callOf(node)}: ${(Math.abs(ahead) / 1000).toFixed(1)} s ${way} the others`] : []
  })

/**
 * Returns the findings about nodes that did not return their state, except nodes that no other node reaches: the
 * findings `node-dead` and `node-cut-off` report these.
 */
function silenceFindings(
  queried: readonly QueriedNode[],
  nodes: readonly NetworkNode[],
  { dead, broken }: Troubles,
): readonly NetworkFinding[] {
  const closed = nodes.filter(({ answer }) => answer === 'closed')
  const refusing = nodes.filter(({ answer }) => answer === 'refused' || answer === 'junk')
  const silent = nodes.filter(
    ({ answer }, place) =>
      answer === 'silent' &&
      !dead.has(place) &&
      queried[place]?.otherType === undefined &&
      !broken.some(({ to }) => to === place),
  )
  const reasons = (some: readonly NetworkNode[]): readonly string[] =>
    some.map((node) => `${callOf(node)}: ${node.why}`)
  return [
    ...listFindings('node-refuses', reasons(refusing)),
    ...listFindings('node-refuses', reasons(silent)),
    ...listFindings('not-told', closed.length > 0 ? [fewOf(closed)] : []),
  ]
}

/**
 * The broken pairs of nodes (edges) that are not attributed to a node yet. Hundreds of nodes may have 100,000 broken
 * pairs, so the constructor groups and counts the pairs of each node once.
 */
class BrokenPairs {
  /** The pairs of each node, in the order of all pairs. */
  readonly #ofNode = new Map<number, Edge[]>()
  /** The number of remaining pairs of each node that has any. */
  readonly #counts = new Map<number, number>()
  /** The nodes to which pairs were attributed. */
  readonly #taken = new Set<number>()

  constructor(edges: readonly Edge[]) {
    for (const edge of edges)
      for (const end of [edge.from, edge.to]) {
        const others = this.#ofNode.get(end)
        if (others) others.push(edge)
        else this.#ofNode.set(end, [edge])
        this.#counts.set(end, (this.#counts.get(end) ?? 0) + 1)
      }
  }

  /** Returns the node with the most remaining pairs, and their number; undefined if no pair remains. */
  most(): readonly [place: number, count: number] | undefined {
    let most: readonly [number, number] | undefined
    for (const each of this.#counts) if (!most || each[1] > most[1]) most = each
    return most
  }

  /** Returns the remaining pairs that begin or end at the node. */
  of(place: number): readonly Edge[] {
    return (this.#ofNode.get(place) ?? []).filter((edge) => this.isLeft(edge))
  }

  isLeft({ from, to }: Edge): boolean {
    return !this.#taken.has(from) && !this.#taken.has(to)
  }

  /** Attributes the remaining pairs of the node to the node. */
  take(place: number): void {
    for (const { from, to } of this.of(place)) {
      const other = from === place ? to : from
      const count = (this.#counts.get(other) ?? 0) - 1
      if (count > 0) this.#counts.set(other, count)
      else this.#counts.delete(other)
    }
    this.#counts.delete(place)
    this.#taken.add(place)
  }
}

/**
 * Attributes broken pairs of nodes (one of which does not reach the other) to as few nodes as possible. Repeatedly
 * takes the node with the most broken pairs, if at least one in MANY of its pairs is broken. Reports the remaining
 * broken pairs one by one.
 */
function causes(
  broken: readonly Edge[],
  all: readonly Edge[],
  nodes: readonly NetworkNode[],
  [ofNode, ofPair]: readonly [NetworkFindingName, NetworkFindingName],
  wordsOf: (edges: readonly Edge[]) => readonly [outward: string, inward: string],
): readonly NetworkFinding[] {
  if (broken.length === 0) return []
  const totals = new Map<number, number>()
  for (const { from, to } of all) for (const end of [from, to]) totals.set(end, (totals.get(end) ?? 0) + 1)
  const pairsLeft = new BrokenPairs(broken)
  const details: string[] = []
  for (let most = pairsLeft.most(); most; most = pairsLeft.most()) {
    const [place, count] = most
    const node = nodes[place]
    const left = pairsLeft.of(place)
    const outward = left.filter(({ from }) => from === place)
    const inward = left.filter(({ to }) => to === place)
    const [to, from] = [outward.map((edge) => edge.to), inward.map((edge) => edge.from)]
    if (!node || new Set([...to, ...from]).size < 2 || count * MANY < (totals.get(place) ?? 0)) break
    const namesOf = (ends: readonly number[]): string => fewOf(ends.flatMap((end) => nodes[end] ?? []))
    const parts = [
      ...(to.length > 0 ? [`${wordsOf(outward)[0]} ${namesOf(to)}`] : []),
      ...(from.length > 0 ? [`${wordsOf(inward)[1]} ${namesOf(from)}`] : []),
    ]
    details.push(`${callOf(node)}: ${parts.join('; ')}`)
    pairsLeft.take(place)
  }
  const rest = broken.filter((edge) => pairsLeft.isLeft(edge))
  const pairs = rest.slice(0, NAMED).map((edge) => {
    const [from, to] = [nodes[edge.from], nodes[edge.to]]
    return from && to ? `${briefCallOf(from)} ${wordsOf([edge])[0]} ${callOf(to)}` : ''
  })
  const more = rest.length > NAMED ? [`and ${rest.length - NAMED} more`] : []
  return [...listFindings(ofNode, details), ...[...pairs, ...more].map((detail) => ({ name: ofPair, detail }))]
}

/**
 * A node counts as the cause of broken pairs (pairs of nodes that do not reach each other) if at least one in MANY of
 * the node's pairs is broken.
 */
const MANY = 4

function grouped<T>(all: readonly T[], keyOf: (one: T) => string): readonly (readonly [string, readonly T[]])[] {
  const groups = new Map<string, T[]>()
  for (const one of all) groups.set(keyOf(one), [...(groups.get(keyOf(one)) ?? []), one])
  return [...groups].toSorted((a, b) => b[1].length - a[1].length)
}

/**
 * Groups the nodes by a value, as in `0.1.0: host1, host2; 0.2.0: host3`. Returns an empty list if all values are
 * equal.
 */
function groupsOf(nodes: readonly NetworkNode[], keyOf: (node: NetworkNode) => string | null): readonly string[] {
  const groups = grouped(
    nodes.filter((node) => keyOf(node) !== null),
    (node) => keyOf(node) ?? '',
  )
  return groups.length < 2 ? [] : [groups.map(([key, group]) => `${key}: ${fewOf(group)}`).join('; ')]
}

/**
 * Lists the members of the network configuration that differ between nodes. Ignores nodes that still wait for their
 * configuration.
 */
function differences(queried: readonly QueriedNode[]): readonly string[] {
  const having = queried.flatMap(({ view, ...node }) =>
    view && Object.keys(view.config).length > 0
      ? [{ ...node, name: node.name ?? view.hostname, config: view.config }]
      : [],
  )
  const names = [...new Set(having.flatMap(({ config }) => Object.keys(config)))]
  return names.flatMap((name) => {
    const groups = grouped(having, ({ config }) => (Object.hasOwn(config, name) ? config[name] : undefined) ?? 'none')
    return groups.length < 2
      ? []
      : [`${name}: ${groups.map(([value, group]) => `${value} on ${fewOf(group)}`).join('; ')}`]
  })
}
