// network-view.ts - combines the states that all nodes returned (their views) into a report of the network: which node
// reaches which, and the findings. Pure.
//
// If one node does not reach another, the pair of nodes is broken. One dead node makes all its pairs broken. So the
// report attributes the broken pairs to as few nodes as possible (greedy vertex cover: the node with the most broken
// pairs comes first). Only the remaining broken pairs are reported one by one.

import {
  findingsOf,
  type AnswerKind,
  type QueriedNode,
  type Edge,
  type NetworkFinding,
  type NetworkNode,
} from './network-findings.ts'
import type { Reach, Sight } from './view.ts'

export const NETWORK_SCHEMA = 1

/**
 * The maximum number of nodes for which the report has a matrix of which node reaches which. The size of the matrix
 * grows with the square of the number of nodes.
 */
export const MOST_IN_MATRIX = 256
/**
 * How one node reaches another node by its probes: `[reach, round trip in ms, loss in percent, longest packet in
 * bytes]`.
 */
type Cell = readonly [Reach, number | null, number | null, number | null]

export interface NetworkReport {
  readonly schema: typeof NETWORK_SCHEMA
  readonly at: string
  readonly tookMs: number
  /** The number of nodes in the network. In a very large network weftd queries only some of these nodes. */
  readonly size: number
  /**
   * The fraction, from 0 to 1, of the known pairs of nodes that reach each other. A pair is known if its first node
   * probed the second node, or lacks the second node in its data path, for example because of another backend.
   */
  readonly whole: number
  readonly nodes: readonly NetworkNode[]
  /**
   * A row for each probing node, with a cell for each probed node. A row is null if its node did not return its state,
   * and a cell is null if it is not known whether the one node reaches the other. The whole matrix is null if there are
   * too many nodes.
   */
  readonly matrix: readonly (readonly (Cell | null)[] | null)[] | null
  readonly findings: readonly NetworkFinding[]
}

/**
 * Says which fraction of the known pairs of nodes (`whole`) reach each other. If no pair was probed, for example while
 * all nodes start, the fraction is left out, because it would say little.
 */
export const wholeText = (
  { nodes, matrix, whole }: Pick<NetworkReport, 'nodes' | 'matrix' | 'whole'>,
  percent: (part: number) => string,
): string =>
  nodes.some(({ seenBy }) => seenBy > 0) &&
  (matrix === null || matrix.some((row) => row?.some((cell) => cell?.[0] === 'reached' || cell?.[0] === 'silent')))
    ? `${percent(whole)} of the pairs whose state is known reach each other`
    : 'no pair was probed yet'

/**
 * Makes the report from the queried nodes. `all` is the number of nodes in the network, which exceeds the number of
 * queried nodes if weftd queried only some.
 */
export function networkReport(
  queried: readonly QueriedNode[],
  at: string,
  tookMs: number,
  all = queried.length,
): NetworkReport {
  const places = new Map(queried.map(({ lease }, place) => [lease, place]))
  const edges = queried.flatMap((node, from) =>
    sightsOf(node, queried).flatMap((sight): readonly Edge[] => {
      const to = places.get(sight.lease)
      return to === undefined || to === from ? [] : [{ from, to, sight }]
    }),
  )
  const clocks = clocksOf(queried)
  const counted = (among: readonly Edge[], isEnd: (edge: Edge) => number): readonly [number, number][] => {
    const counts = queried.map((): [number, number] => [0, 0])
    for (const edge of among) {
      const count = counts[isEnd(edge)]
      if (!count || edge.sight.reach === 'unknown') continue
      count[0]++
      if (edge.sight.reach === 'reached') count[1]++
    }
    return counts
  }
  const [seen, sees] = [counted(edges, ({ to }) => to), counted(edges, ({ from }) => from)]
  const nodes = queried.map((node, place): NetworkNode => {
    const { lease, name, subnet, publicIp, kind, why, view } = node
    const [seenBy = 0, reachedBy = 0] = seen[place] ?? []
    const [others = 0, reaches = 0] = sees[place] ?? []
    return {
      lease,
      name: name ?? view?.hostname ?? null,
      subnet,
      publicIp,
      answer: kind,
      why,
      version: view?.version ?? null,
      state: view?.state ?? null,
      trouble: view?.trouble ?? null,
      mtu: view?.mtu ?? null,
      clockAheadMs: clocks[place] ?? null,
      seenBy,
      reachedBy,
      sees: view ? others : null,
      reaches: view ? reaches : null,
    }
  })
  const known = edges.filter(({ sight }) => sight.reach !== 'unknown')
  const reached = known.filter(({ sight }) => sight.reach === 'reached')
  return {
    schema: NETWORK_SCHEMA,
    at,
    tookMs,
    size: all,
    whole: known.length === 0 ? 1 : reached.length / known.length,
    nodes,
    matrix: queried.length > MOST_IN_MATRIX ? null : matrixOf(queried, edges),
    findings: findingsOf(queried, nodes, edges),
  }
}

/**
 * Returns how a node reaches its peers. The view of a node with thousands of peers lists the peers with
 * problems first, and omits others. If the last listed peer is reached, the node reaches the omitted peers too. Without
 * them, the fraction of pairs that reach each other would be too low.
 */
function sightsOf({ lease: own, view }: QueriedNode, queried: readonly QueriedNode[]): readonly Sight[] {
  if (!view) return []
  const { seen, peers } = view
  if (peers <= seen.length || seen.at(-1)?.reach !== 'reached') return seen
  const listed = new Set(seen.map(({ lease }) => lease))
  const omitted = queried.filter(({ lease }) => lease !== own && !listed.has(lease))
  // If the view omits fewer peers than that, the node does not know all queried nodes.
  if (omitted.length > peers - seen.length) return seen
  const unmeasured = { reach: 'reached', roundTripMs: null, lossPercent: null, passesBytes: null } as const
  return [...seen, ...omitted.map(({ lease }) => ({ lease, ...unmeasured }))]
}

function matrixOf(queried: readonly QueriedNode[], edges: readonly Edge[]): NonNullable<NetworkReport['matrix']> {
  const rows = queried.map(({ view }) => (view ? queried.map((): Cell | null => null) : null))
  for (const { from, to, sight } of edges) {
    const row = rows[from]
    if (row) row[to] = [sight.reach, sight.roundTripMs, sight.lossPercent, sight.passesBytes]
  }
  return rows
}

/**
 * Returns how far each node's clock is ahead of the median clock, in ms. The median is the reference because this
 * host's own clock may be wrong.
 */
function clocksOf(queried: readonly QueriedNode[]): readonly (number | undefined)[] {
  const all = queried.flatMap(({ clock }) => (clock ? [clock.aheadMs] : [])).toSorted((a, b) => a - b)
  // If the number of clocks is even, use the lower of the two middle clocks as the reference. The choice of the lower
  // one is arbitrary: of two clocks it is not known which one is right.
  const middle = all[Math.floor((all.length - 1) / 2)] ?? 0
  return queried.map(({ clock }) => clock && Math.round(clock.aheadMs - middle))
}

type Tone = 'good' | 'bad' | 'doubtful' | 'dim'

/** The word for each kind of answer of a node that did not return its state. */
const ANSWERS: Readonly<Record<Exclude<AnswerKind, 'told'>, string>> = {
  closed: 'no status',
  refused: 'refuses',
  junk: 'unreadable',
  silent: 'silent',
}

/**
 * Returns a node's state in one or two words, and how it is coloured: `good` or `dim` if the node has no problem,
 * otherwise `bad`.
 */
export function lookOf({ answer, state, seenBy, reachedBy, sees, reaches }: NetworkNode): readonly [Tone, string] {
  if (answer === 'told') {
    const isRight = state === 'working' && seenBy === reachedBy && sees === reaches
    return [isRight ? 'good' : 'bad', state ?? '-']
  }
  return [answer === 'closed' && seenBy === reachedBy ? 'dim' : 'bad', ANSWERS[answer]]
}

/**
 * Describes how one node reaches another (a cell of the matrix): the round trip, the loss if there is any, and the
 * longest packet if it is shorter than the MTU.
 */
export function cellLook(
  cell: Cell | null,
  mtu: number | null,
  timeText: (ms: number) => string,
): readonly [Tone, string] {
  if (!cell) return ['dim', '?']
  const [reach, ms, loss, passes] = cell
  if (reach === 'unknown') return ['dim', 'not probed']
  if (reach !== 'reached') return ['bad', reach]
  const isNarrow = passes !== null && mtu !== null && passes < mtu
  const parts = [
    ms === null ? 'reached' : timeText(ms),
    ...(loss ? [`${loss}% lost`] : []),
    ...(isNarrow ? [`${passes} B`] : []),
  ]
  return [isNarrow ? 'bad' : loss ? 'doubtful' : 'good', parts.join(', ')]
}
