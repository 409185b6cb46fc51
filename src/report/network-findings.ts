// network-findings.ts - the problems of a network, found in the answers of its nodes. Each cause is reported once. docs/weft-network.md lists
// all findings. Pure.

import { publishers } from '../path/catalog.ts'
import type { NodeView, Sight } from './view.ts'

/** The loss of probes, in percent, from which it is a finding. */
const LOSSY_PERCENT = 20
/** The maximum difference of a clock that is not a finding. */
const CLOCK_MS = 1_000
/** The maximum number of nodes that a finding names. */
const NAMED = 5
/** The maximum number of findings of one kind. */
const MOST_DETAILS = 20

/**
 * The kind of a node's answer: `told`: its view; `closed`: no process listens at the port; `refused`: it rejected the query; `junk`: an
 * answer that cannot be parsed; `silent`: no answer.
 */
export type AnswerKind = 'told' | 'closed' | 'refused' | 'junk' | 'silent'

/** A node that was queried, and its answer. */
export interface QueriedNode {
  readonly lease: string
  readonly name: string | null
  readonly subnet: string
  readonly publicIp: string
  readonly kind: AnswerKind
  /** Why the node returned no view; null if it did. */
  readonly why: string | null
  readonly view: NodeView | undefined
  /** The backend type that its lease publishes, if this node runs another backend; undefined if both run the same. */
  readonly otherType?: string | undefined
  /** How far the node's clock is ahead of ours, and the uncertainty of that value, in ms. */
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
  /** The number of nodes that probe this node, and the number of these that reach it. Counts only nodes that returned a view. */
  readonly seenBy: number
  readonly reachedBy: number
  /** The number of nodes that this node probes, and the number of these that it reaches; null if it returned no view. */
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

/** All possible findings. A test compares them with docs/weft-network.md. */
export const NETWORK_FINDINGS = {
  'node-dead': {
    level: 'failure',
    means: 'a node answers neither status queries nor the probes of any other node',
    fix: 'check that the host runs and is connected, then that weftd runs there: `systemctl status weftd`, `weft doctor`',
  },
  'node-cut-off': {
    level: 'failure',
    means: 'several nodes do not reach a node, or it does not reach them, though they reach each other',
    fix: "run `weft doctor` there; usually its firewall drops the backend's port, or its address or a route is wrong",
  },
  'pair-broken': {
    level: 'failure',
    means: 'two nodes do not reach each other, though other nodes reach both of them',
    fix: 'check what only these two hosts share: a route, a firewall rule for their addresses, a link; run `weft explain` on both',
  },
  'node-impaired': {
    level: 'failure',
    means: 'a node reports a problem of its own',
    fix: 'run `weft doctor` there',
  },
  'backend-differs': {
    level: 'failure',
    means: 'nodes run a different backend from the node that was queried; no packets pass between the two groups',
    fix: 'restart weftd on all nodes, so that each runs the backend in the store; see docs/change-the-backend.md',
  },
  'config-differs': {
    level: 'failure',
    means: 'nodes run different network configurations, and may not understand each other',
    fix: 'restart weftd on the nodes with the old configuration; `weft config get` shows the one in the store',
  },
  'node-lossy': {
    level: 'warning',
    means: 'some packets between these nodes are lost',
    fix: 'look for the loss outside the tunnel too: `ping` from host to host, the counters of the interface, the CPU load',
  },
  'node-narrow': {
    level: 'failure',
    means: 'long packets do not pass between these nodes, so connections open and then stall',
    fix: 'the smallest MTU on the path is smaller than the data path assumes; see `path-mtu` in docs/doctor.md',
  },
  'clock-off': {
    level: 'warning',
    means:
      "a node's clock is wrong, so leases end early or late there, and the times in its log do not match those of other nodes",
    fix: 'start an NTP client there (chrony, systemd-timesyncd), and check that it reaches its servers',
  },
  'version-differs': {
    level: 'warning',
    means: 'nodes run different versions of weft',
    fix: 'finish the upgrade or revert it; the versions work together meanwhile',
  },
  'mtu-differs': {
    level: 'warning',
    means: 'nodes have different MTUs; packets that fit the larger MTU may not pass at the nodes with the smaller one',
    fix: 'give the external interfaces of all hosts the same MTU, or set the smallest one as `MTU` in `Backend`, and restart weftd',
  },
  'node-refuses': {
    level: 'warning',
    means: 'a node refuses to send its status to this node, or sends one that cannot be parsed',
    fix: 'use the same token in --status-token-file and the same version of weft on all nodes',
  },
  'not-told': {
    level: 'note',
    means:
      'nodes do not serve their status, because they run flanneld, or weftd without --status-network; only the results of other nodes are known',
    fix: 'start weftd with the same --status-network port on each node',
  },
} as const satisfies Readonly<Record<string, Possible>>

export type NetworkFindingName = keyof typeof NETWORK_FINDINGS

export const isNetworkWell = ({ findings }: { readonly findings: readonly NetworkFinding[] }): boolean =>
  findings.every(({ name }) => NETWORK_FINDINGS[name].level !== 'failure')

const callOf = ({ name, subnet, publicIp }: Pick<NetworkNode, 'name' | 'subnet' | 'publicIp'>): string =>
  name ? `${name} (${subnet} at ${publicIp})` : `${subnet} at ${publicIp}`
const briefCallOf = ({ name, subnet }: Pick<NetworkNode, 'name' | 'subnet'>): string => name ?? subnet

/** Lists the first few nodes, and the number of the others. */
function fewOf(nodes: readonly Pick<NetworkNode, 'name' | 'subnet'>[]): string {
  const few = nodes.slice(0, NAMED).map(briefCallOf).join(', ')
  return nodes.length > NAMED ? `${few} and ${nodes.length - NAMED} more` : few
}

/** The result of one node's probes of another. `from` and `to` are indices in the list of nodes. */
export interface Edge {
  readonly from: number
  readonly to: number
  readonly sight: Sight
}

export function findingsOf(
  queried: readonly QueriedNode[],
  nodes: readonly NetworkNode[],
  edges: readonly Edge[],
): readonly NetworkFinding[] {
  const of = (name: NetworkFindingName, details: readonly string[]): readonly NetworkFinding[] => {
    const more = details.length > MOST_DETAILS ? [`and ${details.length - MOST_DETAILS} more`] : []
    return [...details.slice(0, MOST_DETAILS), ...more].map((detail) => ({ name, detail }))
  }
  const having = <T>(kind: (node: NetworkNode, place: number) => T | false | undefined): readonly T[] =>
    nodes.flatMap((node, place) => kind(node, place) || [])
  // A node that no other node probes cannot be called dead: no node can send packets to a node of another backend.
  const probed = new Set(edges.flatMap(({ to, sight: { reach } }) => (reach === 'stored' ? [] : [to])))
  const isOfOther = (place: number): boolean => queried[place]?.otherType !== undefined
  const isDeadAt = (place: number): boolean => {
    const { answer, reachedBy = 1 } = nodes[place] ?? {}
    return (
      answer === 'silent' && reachedBy === 0 && !isOfOther(place) && (probed.has(place) || nodes[place]?.seenBy === 0)
    )
  }
  const isDead = (node: NetworkNode): boolean => isDeadAt(nodes.indexOf(node))
  const dead = new Set(nodes.flatMap((_, place) => (isDeadAt(place) ? [place] : [])))
  const others = nodes.flatMap((node, place) =>
    isOfOther(place) ? [{ ...node, type: queried[place]?.otherType ?? '' }] : [],
  )
  const living = edges.filter(
    ({ from, to, sight }) => !dead.has(from) && !dead.has(to) && !(sight.reach === 'stored' && isOfOther(to)),
  )
  const broken = living.filter(({ sight }) => sight.reach === 'silent' || sight.reach === 'stored')
  const lossy = living.filter(({ sight }) => sight.reach === 'reached' && (sight.lossPercent ?? 0) >= LOSSY_PERCENT)
  const narrow = living.filter(({ from, sight }) => {
    const mtu = nodes[from]?.mtu ?? 0
    return sight.reach === 'reached' && sight.passesBytes !== null && sight.passesBytes < mtu
  })
  /** The nodes that may be impaired by their peers alone. The findings about those peers give the cause, once. */
  const seesTrouble = new Set(
    [...edges.filter(({ sight }) => sight.reach === 'silent' || sight.reach === 'stored'), ...lossy, ...narrow].map(
      ({ from }) => from,
    ),
  )
  const closed = nodes.filter(({ answer }) => answer === 'closed')
  return [
    ...of(
      'node-dead',
      having(
        (node) => isDead(node) && `${callOf(node)}${node.seenBy > 0 ? `: 0 of ${node.seenBy} nodes reach it` : ''}`,
      ),
    ),
    ...causes(broken, living, nodes, ['node-cut-off', 'pair-broken'], () => ['does not reach', 'is not reached by']),
    ...of(
      'node-impaired',
      having(
        ({ state, trouble, ...node }, place) =>
          state === 'impaired' &&
          (trouble !== null || !seesTrouble.has(place)) &&
          `${callOf(node)}: ${trouble ?? 'it gives no reason'}`,
      ),
    ),
    ...of(
      'backend-differs',
      others.map(({ type, ...node }) => `${callOf(node)} publishes ${publishers(type)}`),
    ),
    ...of('config-differs', differences(queried)),
    ...causes(narrow, living, nodes, ['node-narrow', 'node-narrow'], (some) => {
      const passes = some.reduce((least, { sight }) => Math.min(least, sight.passesBytes ?? least), Infinity)
      return [`gets no more than ${passes} bytes to`, `gets no more than ${passes} bytes from`]
    }),
    ...causes(lossy, living, nodes, ['node-lossy', 'node-lossy'], (some) => {
      const lost = Math.round(some.reduce((most, { sight }) => Math.max(most, sight.lossPercent ?? 0), 0))
      return [`loses up to ${lost}% of the probes to`, `loses up to ${lost}% of the probes from`]
    }),
    ...of(
      'clock-off',
      having((node, place) => {
        const ahead = node.clockAheadMs ?? 0
        const off = Math.abs(ahead) - (queried[place]?.clock?.uncertainMs ?? 0)
        const way = ahead > 0 ? 'ahead of' : 'behind'
        return off > CLOCK_MS && `${callOf(node)}: ${(Math.abs(ahead) / 1000).toFixed(1)} s ${way} the others`
      }),
    ),
    ...of(
      'version-differs',
      groupsOf(nodes, ({ version }) => version),
    ),
    ...of(
      'mtu-differs',
      groupsOf(nodes, ({ mtu }) => mtu?.toString() ?? null),
    ),
    ...of(
      'node-refuses',
      having((node) => (node.answer === 'refused' || node.answer === 'junk') && `${callOf(node)}: ${node.why}`),
    ),
    // A node that all others reach, but that does not answer the status query. Unreached nodes are reported above.
    ...of(
      'node-refuses',
      having(
        (node, place) =>
          node.answer === 'silent' &&
          !isDead(node) &&
          !isOfOther(place) &&
          !broken.some(({ to }) => to === place) &&
          `${callOf(node)}: ${node.why}`,
      ),
    ),
    ...of('not-told', closed.length > 0 ? [fewOf(closed)] : []),
  ]
}

/**
 * Attributes broken pairs to as few nodes as possible: repeatedly to the node with the most broken pairs, if they are at least one in MANY
 * of its pairs. Reports the remaining pairs one by one.
 */
function causes(
  broken: readonly Edge[],
  all: readonly Edge[],
  nodes: readonly NetworkNode[],
  [ofNode, ofPair]: readonly [NetworkFindingName, NetworkFindingName],
  wordsOf: (edges: readonly Edge[]) => readonly [outward: string, inward: string],
): readonly NetworkFinding[] {
  const countsOf = (edges: readonly Edge[]): ReadonlyMap<number, number> => {
    const counts = new Map<number, number>()
    for (const { from, to } of edges) for (const end of [from, to]) counts.set(end, (counts.get(end) ?? 0) + 1)
    return counts
  }
  const totals = countsOf(all)
  const found: NetworkFinding[] = []
  let left = broken
  while (left.length > 0) {
    const [place, count] = [...countsOf(left)].reduce((most, each) => (each[1] > most[1] ? each : most))
    const node = nodes[place]
    const outward = left.filter(({ from }) => from === place)
    const inward = left.filter(({ to }) => to === place)
    const [to, from] = [outward.map((edge) => edge.to), inward.map((edge) => edge.from)]
    if (!node || new Set([...to, ...from]).size < 2 || count * MANY < (totals.get(place) ?? 0)) break
    const namesOf = (ends: readonly number[]): string => fewOf(ends.flatMap((end) => nodes[end] ?? []))
    const parts = [
      ...(to.length > 0 ? [`${wordsOf(outward)[0]} ${namesOf(to)}`] : []),
      ...(from.length > 0 ? [`${wordsOf(inward)[1]} ${namesOf(from)}`] : []),
    ]
    found.push({ name: ofNode, detail: `${callOf(node)}: ${parts.join('; ')}` })
    left = left.filter((edge) => edge.from !== place && edge.to !== place)
  }
  const pairs = left.map((edge) => {
    const [from, to] = [nodes[edge.from], nodes[edge.to]]
    return from && to ? `${briefCallOf(from)} ${wordsOf([edge])[0]} ${callOf(to)}` : ''
  })
  const more = pairs.length > NAMED ? [`and ${pairs.length - NAMED} more`] : []
  return [...found, ...[...pairs.slice(0, NAMED), ...more].map((detail) => ({ name: ofPair, detail }))]
}

/** A node is the cause if at least one in MANY of its pairs is broken. */
const MANY = 4

function grouped<T>(all: readonly T[], keyOf: (one: T) => string): readonly (readonly [string, readonly T[]])[] {
  const groups = new Map<string, T[]>()
  for (const one of all) groups.set(keyOf(one), [...(groups.get(keyOf(one)) ?? []), one])
  return [...groups].toSorted((a, b) => b[1].length - a[1].length)
}

/** Lists the nodes by value, as in `0.1.0: host1, host2; 0.2.0: host3`. Returns an empty list if all values are equal. */
function groupsOf(nodes: readonly NetworkNode[], keyOf: (node: NetworkNode) => string | null): readonly string[] {
  const groups = grouped(
    nodes.filter((node) => keyOf(node) !== null),
    (node) => keyOf(node) ?? '',
  )
  return groups.length < 2 ? [] : [groups.map(([key, group]) => `${key}: ${fewOf(group)}`).join('; ')]
}

/** Lists the members of the configuration that differ between nodes. Ignores nodes that still wait for their configuration. */
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
