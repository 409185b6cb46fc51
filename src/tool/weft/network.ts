// network.ts - `weft network`: shows the state of all nodes, and which node reaches which. This host's weftd collects
// the report.

import { jsonLine } from '../../base/text.ts'
import { isKnownFinding, isNetworkWell, NETWORK_FINDINGS, type NetworkNode } from '../../report/network-findings.ts'
import { cellLook, lookOf, NETWORK_SCHEMA, wholeText, type NetworkReport } from '../../report/network-view.ts'
import { briefly } from '../../report/status.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { fetchReport } from './daemon-client.ts'
import { count, milliseconds, percent, table, type Cell as Shown, type Colour, type Tone } from './look.ts'

/**
 * How long, in ms, `weft network` waits for weftd's report. If thousands of nodes hang, weftd needs most of this time
 * to collect the report.
 */
const TIMEOUT_MS = 30_000
/**
 * The maximum number of nodes for which `weft network` shows the matrix (which node reaches which). A larger matrix is
 * wider than a terminal.
 */
const MOST_COLUMNS = 12
/**
 * The maximum number of nodes for which `weft network` lists every node even without --all. If there are more nodes, it
 * lists only the nodes with a problem.
 */
const MOST_ROWS = 40
const SLOWEST = 3

export const networkCommand = command({
  name: 'network',
  does: 'query all nodes, and show which nodes reach each other',
  more: 'Nodes that run with --status-network report what they see. For the other nodes it shows what those nodes report about them. Exits with 3 if it finds a failure.',
  flags: {
    all: { default: false, help: 'list all nodes; by default a large network shows only those with a problem' },
    ...JSON_FLAG,
    ...SOCKET_FLAG,
  },
  async run({ options: { all, json, 'status-socket': socket }, screen, signal }) {
    const report = await fetchReport<NetworkReport>(socket, '/network.json', NETWORK_SCHEMA, signal, TIMEOUT_MS)
    screen.write(json ? jsonLine(report) : networkText(report, all, screen.colour))
    return isNetworkWell(report) ? EXIT.ok : EXIT.wrong
  },
})

export function networkText(report: NetworkReport, all: boolean, colour: Colour): string {
  const { nodes, matrix } = report
  const parts = [heading(report, colour), findingsText(report, colour)]
  parts.push(nodeTable(nodes, all, colour))
  if (matrix && nodes.length > 1)
    parts.push(nodes.length <= MOST_COLUMNS ? matrixText(nodes, matrix, colour) : spreadText(nodes, matrix))
  return parts.filter((part) => part !== '').join('\n')
}

function heading(report: NetworkReport, colour: Colour): string {
  const { nodes, size, tookMs, findings } = report
  const reported = nodes.filter(({ answer }) => answer === 'told').length
  const isWell = isNetworkWell({ findings })
  const queried =
    size > nodes.length ? `${nodes.length} of ${count(size, 'node')} queried` : count(nodes.length, 'node')
  return `${queried}, ${reported} reported their state within ${milliseconds(tookMs)}: ${colour(isWell ? 'good' : 'bad', wholeText(report, percent))}\n`
}

const TONES = { failure: 'bad', warning: 'doubtful', note: 'dim' } as const satisfies Record<string, Tone>

function findingsText({ findings }: NetworkReport, colour: Colour): string {
  const names = [...new Set(findings.map(({ name }) => name))]
  return names
    .map((name) => {
      const details = findings.filter((each) => each.name === name).map(({ detail }) => `    ${detail}\n`)
      if (!isKnownFinding({ name }))
        return `${colour('doubtful', name)}: this version of weft does not know this finding\n${details.join('')}`
      const { level, means, fix } = NETWORK_FINDINGS[name]
      return `${colour(TONES[level], level)}: ${means}\n${details.join('')}  to do: ${fix}\n`
    })
    .join('')
}

function nodeTable(nodes: readonly NetworkNode[], all: boolean, colour: Colour): string {
  const isMany = nodes.length > MOST_ROWS
  const wanted = all || !isMany ? nodes : nodes.filter((node) => lookOf(node)[0] !== 'good').slice(0, MOST_ROWS)
  if (wanted.length === 0) return ''
  const rows = wanted.map((node): Shown[] => {
    const { name, subnet, publicIp, version, mtu, clockAheadMs } = node
    const of = (some: number | null, whole: number | null): string =>
      some === null || whole === null ? '-' : `${some}/${whole}`
    return [
      String(nodes.indexOf(node) + 1),
      briefly(name ?? '-'),
      subnet,
      publicIp,
      lookOf(node),
      of(node.reachedBy, node.seenBy),
      of(node.reaches, node.sees),
      version === null ? '-' : briefly(version),
      mtu === null ? '-' : String(mtu),
      clockAheadMs === null ? '-' : clockText(clockAheadMs),
    ]
  })
  const left = nodes.length - wanted.length
  return (
    table(
      [['', 'NAME', 'SUBNET', 'AT', 'STATE', 'REACHED BY', 'REACHES', 'VERSION', 'MTU', 'CLOCK'], ...rows],
      colour,
    ) + (left > 0 ? colour('dim', `... and ${left} more${all ? '' : '; see --all'}\n`) : '')
  )
}

const clockText = (ms: number): string =>
  Math.abs(ms) < 500 ? 'right' : `${ms > 0 ? '+' : ''}${(ms / 1000).toFixed(1)} s`

type Matrix = NonNullable<NetworkReport['matrix']>

/**
 * Formats the matrix that shows which node reaches which. Each cell shows whether the node of its row reaches the node
 * whose number heads its column.
 */
function matrixText(nodes: readonly NetworkNode[], matrix: Matrix, colour: Colour): string {
  const head = ['FROM \\ TO', ...nodes.map((_node, at) => String(at + 1))]
  const rows = nodes.map((node, from): Shown[] => [
    `${from + 1} ${briefly(node.name ?? node.subnet)}`,
    ...nodes.map((_node, to): Shown =>
      from === to ? '.' : cellLook(matrix[from]?.[to] ?? null, node.mtu, milliseconds),
    ),
  ])
  return table([head, ...rows], colour)
}

/** Summarizes the round trips between many nodes in one line, and names the slowest pairs. */
function spreadText(nodes: readonly NetworkNode[], matrix: Matrix): string {
  const pairs = matrix.flatMap((row, from) =>
    (row ?? []).flatMap((cell, to) => (cell && cell[1] !== null ? [{ from, to, ms: cell[1] }] : [])),
  )
  const sorted = pairs.toSorted((a, b) => a.ms - b.ms)
  const at = (part: number): string => milliseconds(sorted[Math.floor((sorted.length - 1) * part)]?.ms ?? 0)
  if (sorted.length === 0) return ''
  const nameOf = (place: number): string => briefly(nodes[place]?.name ?? nodes[place]?.subnet ?? '')
  const slowest = sorted
    .slice(-SLOWEST)
    .toReversed()
    .map(({ from, to, ms }) => `${nameOf(from)} to ${nameOf(to)} ${milliseconds(ms)}`)
  return `round trips of ${sorted.length} pairs: median ${at(0.5)}, 99% within ${at(0.99)}; slowest ${slowest.join(', ')}\n`
}
