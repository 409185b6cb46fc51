// network-view.ts - the whole network from what each node tells: who reaches whom, and what is wrong with it, each cause once. Pure.
//
// A node that is dead makes all others see it silent. So what does not work between pairs is laid to the fewest nodes that explain it
// (a vertex cover, found greedily: the node with the most broken pairs first), and only what is left is told pair by pair.

import {
  findingsOf,
  type AnswerKind,
  type AskedNode,
  type Edge,
  type NetworkFinding,
  type NetworkNode,
} from './network-findings.ts'
import type { Reach } from './view.ts'

export const NETWORK_SCHEMA = 1

/** Of more nodes there is no matrix, which has the square of their number. */
export const MOST_IN_MATRIX = 256
/** How one node sees another: `[reach, round trip in ms, loss in percent, longest packet in bytes]`. */
type Cell = readonly [Reach, number | null, number | null, number | null]

export interface NetworkReport {
  readonly schema: typeof NETWORK_SCHEMA
  readonly at: string
  readonly tookMs: number
  /** The number of nodes that there are; of very many not all are asked. */
  readonly size: number
  /** The part of the pairs that were probed which reach one another, 0 to 1. */
  readonly whole: number
  readonly nodes: readonly NetworkNode[]
  /** A row for each node, in their order, with what it sees of each; null for what nobody tells. Null of too many nodes. */
  readonly matrix: readonly (readonly (Cell | null)[] | null)[] | null
  readonly findings: readonly NetworkFinding[]
}

/** How whole the network is, in words. */
export const wholeText = (
  { nodes, whole }: Pick<NetworkReport, 'nodes' | 'whole'>,
  percent: (part: number) => string,
): string =>
  nodes.some(({ seenBy }) => seenBy > 0)
    ? `${percent(whole)} of the pairs that were probed reach each other`
    : 'no pair was probed yet'

/** `all`: how many nodes there are; of very many not all are asked. */
export function networkReport(
  asked: readonly AskedNode[],
  at: string,
  tookMs: number,
  all = asked.length,
): NetworkReport {
  const places = new Map(asked.map(({ lease }, place) => [lease, place]))
  const edges = asked.flatMap(({ view }, from) =>
    (view?.seen ?? []).flatMap((sight): readonly Edge[] => {
      const to = places.get(sight.lease)
      return to === undefined || to === from ? [] : [{ from, to, sight }]
    }),
  )
  const clocks = clocksOf(asked)
  const counted = (among: readonly Edge[], isEnd: (edge: Edge) => number): readonly [number, number][] => {
    const counts = asked.map((): [number, number] => [0, 0])
    for (const edge of among) {
      const count = counts[isEnd(edge)]
      if (!count || edge.sight.reach === 'unknown') continue
      count[0]++
      if (edge.sight.reach === 'reached') count[1]++
    }
    return counts
  }
  const [seen, sees] = [counted(edges, ({ to }) => to), counted(edges, ({ from }) => from)]
  const nodes = asked.map((node, place): NetworkNode => {
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
    matrix: asked.length > MOST_IN_MATRIX ? null : matrixOf(asked, edges),
    findings: findingsOf(asked, nodes, edges),
  }
}

function matrixOf(asked: readonly AskedNode[], edges: readonly Edge[]): NonNullable<NetworkReport['matrix']> {
  const rows = asked.map(({ view }) => (view ? asked.map((): Cell | null => null) : null))
  for (const { from, to, sight } of edges) {
    const row = rows[from]
    if (row) row[to] = [sight.reach, sight.roundTripMs, sight.lossPercent, sight.passesBytes]
  }
  return rows
}

/** How far each clock is ahead of the middle one: where ours is off, all others are not. */
function clocksOf(asked: readonly AskedNode[]): readonly (number | undefined)[] {
  const all = asked.flatMap(({ clock }) => (clock ? [clock.aheadMs] : [])).toSorted((a, b) => a - b)
  // Of two the lower one, which is ours or the other's: it cannot be told whose is right.
  const middle = all[Math.floor((all.length - 1) / 2)] ?? 0
  return asked.map(({ clock }) => clock && Math.round(clock.aheadMs - middle))
}

type Tone = 'good' | 'bad' | 'doubtful' | 'dim'

/** An answer in a word; empty of a node that told how it is. */
const ANSWERS: Readonly<Record<AnswerKind, string>> = {
  told: '',
  closed: 'tells nothing',
  refused: 'refuses',
  junk: 'not understood',
  silent: 'silent',
}

/** The state of a node in a word, and whether it is as it should be. */
export function lookOf({ answer, state, seenBy, reachedBy, sees, reaches }: NetworkNode): readonly [Tone, string] {
  if (answer === 'told') {
    const isRight = state === 'working' && seenBy === reachedBy && sees === reaches
    return [isRight ? 'good' : 'bad', state ?? '-']
  }
  return [answer === 'closed' && seenBy === reachedBy ? 'dim' : 'bad', ANSWERS[answer]]
}

/** How a node sees another: the round trip; with the loss, and the longest packet where that is not the whole MTU. */
export function cellLook(
  cell: Cell | null,
  mtu: number | null,
  timeText: (ms: number) => string,
): readonly [Tone, string] {
  if (!cell) return ['dim', '?']
  const [reach, ms, loss, passes] = cell
  if (reach === 'unknown') return ['dim', 'not asked']
  if (reach !== 'reached') return ['bad', reach]
  const isNarrow = passes !== null && mtu !== null && passes < mtu
  const parts = [
    ms === null ? 'reached' : timeText(ms),
    ...(loss ? [`${loss}% lost`] : []),
    ...(isNarrow ? [`${passes} B`] : []),
  ]
  return [isNarrow ? 'bad' : loss ? 'doubtful' : 'good', parts.join(', ')]
}
