// network-findings.ts - the nodes of a network, as they answer, and what is wrong with it: each cause once; docs/operating.md has all that
// can be found. Pure.

import { publishers } from '../path/catalog.ts'
import type { NodeView, Sight } from './view.ts'

const LOSSY_PERCENT = 20
const CLOCK_MS = 1_000
/** Named of what may be many, within a finding, and findings of a kind. */
const NAMED = 5
const MOST_DETAILS = 20

/** What a node answered: `told` its view; `closed`: nobody listens there; `refused`: not to us; `junk`; `silent`: nothing. */
export type AnswerKind = 'told' | 'closed' | 'refused' | 'junk' | 'silent'

/** A node that was asked, and its answer. */
export interface AskedNode {
  readonly lease: string
  readonly name: string | null
  readonly subnet: string
  readonly publicIp: string
  readonly kind: AnswerKind
  /** The reason, where it told nothing. */
  readonly why: string | null
  readonly view: NodeView | undefined
  /** The backend type that its lease publishes, if this node runs another backend; undefined if both run the same. */
  readonly otherType?: string | undefined
  /** How far its clock is ahead of ours, and how uncertain that is, in ms. */
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
  /** Of the nodes that told, how many see it, and how many of these reach it. */
  readonly seenBy: number
  readonly reachedBy: number
  /** The same of the nodes that it sees; null where it told nothing. */
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

/** All that can be found of a network; docs/operating.md has the same, which a test compares. */
export const NETWORK_FINDINGS = {
  'node-dead': {
    level: 'failure',
    means: 'a node answers nobody: neither its status nor a probe of any other node',
    fix: 'look whether the host runs and has its network, then whether weftd runs there: `systemctl status weftd`, `weft doctor`',
  },
  'node-cut-off': {
    level: 'failure',
    means: 'a node is not reached by others, or reaches them not, though they reach one another',
    fix: "run `weft doctor` there: most often its firewall drops the backend's port, or its address or route is wrong",
  },
  'pair-broken': {
    level: 'failure',
    means: 'two nodes do not reach each other, though others reach both',
    fix: 'look at what is between these two hosts alone: a route, a firewall by address, a link; `weft explain` on both',
  },
  'node-impaired': {
    level: 'failure',
    means: 'a node says itself that it does not do its work',
    fix: 'run `weft doctor` there',
  },
  'backend-differs': {
    level: 'failure',
    means: 'nodes run another backend than the node that was asked: no packet passes between these and those',
    fix: 'restart weftd on all nodes, so that each runs the backend in the store; see docs/change-the-backend.md',
  },
  'config-differs': {
    level: 'failure',
    means: 'nodes run different network configurations: they may not understand one another',
    fix: 'restart weftd on the nodes that run the old one; `weft config get` shows the one in the store',
  },
  'node-lossy': {
    level: 'warning',
    means: 'packets between these nodes are lost now and then',
    fix: 'look for the loss outside the tunnel too: `ping` from host to host, the counters of its interface, its CPU',
  },
  'node-narrow': {
    level: 'failure',
    means: 'long packets do not pass between these nodes: connections open and then stall',
    fix: 'the narrowest MTU on the way is smaller than the data path counts on: see `path-mtu` in docs/doctor.md',
  },
  'clock-off': {
    level: 'warning',
    means: "a node's clock is off: leases end early or late there, and its log does not match those of others",
    fix: 'start an NTP client there (chrony, systemd-timesyncd), and look whether it reaches its servers',
  },
  'version-differs': {
    level: 'warning',
    means: 'nodes run different versions of weft',
    fix: 'go on with the upgrade, or back; the versions work together meanwhile',
  },
  'mtu-differs': {
    level: 'warning',
    means: 'nodes have data paths of different MTUs: what the larger ones send whole may not pass at the others',
    fix: "give the hosts' external interfaces one MTU, or set the smallest one as `MTU` in `Backend`, and restart weftd",
  },
  'node-refuses': {
    level: 'warning',
    means: 'a node does not tell this one its status, or tells what cannot be read',
    fix: 'give all nodes the same --status-token-file, and the same version of weft',
  },
  'not-told': {
    level: 'note',
    means:
      'nodes are there and tell nothing: they run flanneld, or weftd without --status-network; what others see of them is known',
    fix: 'give weftd the same --status-network port on each node',
  },
} as const satisfies Readonly<Record<string, Possible>>

export type NetworkFindingName = keyof typeof NETWORK_FINDINGS

/** True unless something fails. */
export const isNetworkWell = ({ findings }: { readonly findings: readonly NetworkFinding[] }): boolean =>
  findings.every(({ name }) => NETWORK_FINDINGS[name].level !== 'failure')

/** A node in a sentence. */
const callOf = ({ name, subnet, publicIp }: Pick<NetworkNode, 'name' | 'subnet' | 'publicIp'>): string =>
  name ? `${name} (${subnet} at ${publicIp})` : `${subnet} at ${publicIp}`
const briefCallOf = ({ name, subnet }: Pick<NetworkNode, 'name' | 'subnet'>): string => name ?? subnet

/** The first few, and how many there are. */
function fewOf(nodes: readonly Pick<NetworkNode, 'name' | 'subnet'>[]): string {
  const few = nodes.slice(0, NAMED).map(briefCallOf).join(', ')
  return nodes.length > NAMED ? `${few} and ${nodes.length - NAMED} more` : few
}

/** One node's sight of another, by their places among the nodes. */
export interface Edge {
  readonly from: number
  readonly to: number
  readonly sight: Sight
}

export function findingsOf(
  asked: readonly AskedNode[],
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
  const isOfOther = (place: number): boolean => asked[place]?.otherType !== undefined
  const isDeadAt = (place: number): boolean => {
    const { answer, reachedBy = 1 } = nodes[place] ?? {}
    return (
      answer === 'silent' && reachedBy === 0 && !isOfOther(place) && (probed.has(place) || nodes[place]?.seenBy === 0)
    )
  }
  const isDead = (node: NetworkNode): boolean => isDeadAt(nodes.indexOf(node))
  const dead = new Set(nodes.flatMap((_, place) => (isDeadAt(place) ? [place] : [])))
  const others = nodes.flatMap((node, place) =>
    isOfOther(place) ? [{ ...node, type: asked[place]?.otherType ?? '' }] : [],
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
          `${callOf(node)}: ${trouble ?? 'it does not say why'}`,
      ),
    ),
    ...of(
      'backend-differs',
      others.map(({ type, ...node }) => `${callOf(node)} publishes ${publishers(type)}`),
    ),
    ...of('config-differs', differences(asked)),
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
        const off = Math.abs(ahead) - (asked[place]?.clock?.uncertainMs ?? 0)
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
    // One that all reach, and whose status does not come: where some do not, that is told above.
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

/** Lays broken pairs to the fewest nodes: whoever has most of them first, as long as these are many of its own; the rest pair by pair. */
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
  const told: NetworkFinding[] = []
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
    told.push({ name: ofNode, detail: `${callOf(node)}: ${parts.join('; ')}` })
    left = left.filter((edge) => edge.from !== place && edge.to !== place)
  }
  const pairs = left.map((edge) => {
    const [from, to] = [nodes[edge.from], nodes[edge.to]]
    return from && to ? `${briefCallOf(from)} ${wordsOf([edge])[0]} ${callOf(to)}` : ''
  })
  const more = pairs.length > NAMED ? [`and ${pairs.length - NAMED} more`] : []
  return [...told, ...[...pairs.slice(0, NAMED), ...more].map((detail) => ({ name: ofPair, detail }))]
}

/** A node is to blame when one in so many of its own pairs is broken. */
const MANY = 4

function grouped<T>(all: readonly T[], keyOf: (one: T) => string): readonly (readonly [string, readonly T[]])[] {
  const groups = new Map<string, T[]>()
  for (const one of all) groups.set(keyOf(one), [...(groups.get(keyOf(one)) ?? []), one])
  return [...groups].toSorted((a, b) => b[1].length - a[1].length)
}

/** `0.1.0: host1, host2; 0.2.0: host3`; nothing where all are alike. */
function groupsOf(nodes: readonly NetworkNode[], keyOf: (node: NetworkNode) => string | null): readonly string[] {
  const groups = grouped(
    nodes.filter((node) => keyOf(node) !== null),
    (node) => keyOf(node) ?? '',
  )
  return groups.length < 2 ? [] : [groups.map(([key, group]) => `${key}: ${fewOf(group)}`).join('; ')]
}

/** Each member of the configuration that is not everywhere the same. A node that has none yet waits for it. */
function differences(asked: readonly AskedNode[]): readonly string[] {
  const having = asked.flatMap(({ view, ...node }) =>
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
