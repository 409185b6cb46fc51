// figures.ts - renders the numbers of a benchmark result for README.md and bench/README.md: tables and lists between
// markers, and the chart. Does no I/O.
//
// A block is the text between `<!-- figures: NAME -->` and `<!-- end -->`. `npm run bench -- report` writes all blocks
// from the saved result. A test fails if a block differs from that result, which prevents edits by hand.

import { median } from '../lab/measure.ts'
import { chart } from './chart.ts'
import { describeRun, number, pathTable, summaryTable, times, type Summary } from './report.ts'
import { findSeries, ratio, type Part, type Result } from './result.ts'

/** The rows of the chart from top to bottom. Each row is a metric of a case, such as `tcp throughput`. */
const HEADLINES = [
  'tcp throughput',
  'tcp8 throughput',
  'tcp-cubic throughput',
  'tcp8-cubic throughput',
  'udp64 rate',
  'udp1400 rate',
  'udp64-polled rate',
  'udp1400-polled rate',
  'rr rate',
  'rr-idle p50',
  'crr rate',
  'ping p50',
  'ping-loaded p50',
  'ping-loaded p99',
  'ping-loaded8 p50',
  'ping-loaded8 p99',
  'rr-loaded rate',
]

const SUMMARY: Summary = {
  rows: [...HEADLINES.filter((row) => !row.includes('cubic')), 'tcp cpu', 'udp64 cpu'],
  paths: ['native', 'dgram', 'naive', 'vxlan', 'veth'],
  path: 'native',
  reference: 'vxlan',
}

/**
 * The four numbers that README.md shows. Each entry names a part of the benchmark result, a case and a metric in that
 * part, the name of the number in README.md, and an explanation.
 */
const FOUR = [
  {
    of: ['containers', 'tcp', 'throughput'],
    what: 'One TCP stream between containers on two hosts, over a link that carries superpackets',
    why: 'weft splits and copies each superpacket (a large packet of many segments), and kernel vxlan does not.',
  },
  {
    of: ['wire', 'tcp', 'throughput'],
    what: 'One TCP stream over a link that carries only packets of at most the MTU',
    why: 'If a link carries no superpackets (large packets of many segments), both weft and kernel vxlan split each superpacket.',
  },
  {
    of: ['containers', 'udp64', 'rate'],
    what: 'UDP packets of 64 bytes between containers, with at most 1% lost',
    why: 'weft passes many small packets to the kernel with one system call.',
  },
  {
    of: ['containers', 'ping-loaded', 'p50'],
    what: 'The round trip of a ping during a TCP stream, between containers',
    why: 'With weft a ping does not wait behind the packets of a simultaneous TCP stream, but a thread of weftd must wake up on each host for the ping.',
  },
] as const

const linksOf = ({ parts }: Result): readonly Part[] =>
  parts.filter(({ name, link }) => link !== undefined && name === link)

function fourFigures({ parts }: Result): string | undefined {
  const items = FOUR.map(({ of: [name, of, metric], what, why }) => {
    const part = parts.find((each) => each.name === name)
    const series = part && findSeries(part, of, metric)
    const value = series?.values['native']
    if (!series || !value || value.length === 0) return undefined
    const beside = (reference: string): string => times(ratio(value, series.values[reference]))
    const better = series.better === 'less' ? '; less is better' : ''
    const plain = `${number(median(value))} ${series.unit}`
    return `- **${what}: ${plain}**, ${beside('vxlan')} kernel vxlan, ${beside('naive')} a forwarder with one packet per system call (flanneld's method${better}). ${why}`
  })
  return items.includes(undefined) ? undefined : items.join('\n')
}

export function figureBlocks(result: Result): Readonly<Record<string, string>> {
  const part = (name: string): Part | undefined => result.parts.find((each) => each.name === name)
  const methods = Object.assign({}, ...linksOf(result).map(({ method }) => method)) as Record<string, string>
  const blocks: Record<string, string | undefined> = {
    run: describeRun(result),
    four: fourFigures(result),
    cases: Object.entries(methods)
      .map(([name, method]) => `- \`${name}\`: ${method}`)
      .join('\n'),
  }
  for (const name of ['plain', 'wire', 'containers']) {
    const measured = part(name)
    blocks[name] = measured && summaryTable(measured, SUMMARY)
  }
  const features = part('features')
  blocks['features'] = features && pathTable(features, 'vxlan')
  return Object.fromEntries(Object.entries(blocks).map(([name, text]) => [name, text ?? 'Not measured in this run.']))
}

/**
 * Returns the text of a document with new text in its blocks, which are the parts between markers. Throws a RangeError
 * if the document has a block whose name is not in `blocks`.
 */
export function fillFigures(text: string, blocks: Readonly<Record<string, string>>): string {
  return text.replaceAll(
    /(<!-- figures: (\w+) -->\n)[\s\S]*?(<!-- end -->)/g,
    (_all, begin: string, name: string, end: string) => {
      const block = blocks[name]
      if (block === undefined) throw new RangeError(`figures: ${name}: there is no such block`)
      return `${begin}\n${block}\n\n${end}`
    },
  )
}

export function resultChart(result: Result): string {
  const { machine, date, commit } = result
  return chart(linksOf(result), {
    title: 'weft, native engine',
    subtitle: `longer to the right is better; ${machine.cpu}, ${machine.cores} cores, Linux ${machine.kernel.split('-')[0]}; commit ${commit}, ${date.slice(0, 10)}`,
    path: 'native',
    rows: HEADLINES,
    references: [
      ['vxlan', 'kernel vxlan'],
      ['naive', 'one packet a system call'],
    ],
  })
}
