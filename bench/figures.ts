// figures.ts - what stands of a result in the READMEs: tables between markers, and the chart. Pure.
//
// A block is what stands between `<!-- figures: NAME -->` and `<!-- end -->`. No figure there is written by hand:
// `npm run bench -- report` writes the blocks again from the result, and a test holds them to it.

import { median } from '../lab/measure.ts'
import { chart } from './chart.ts'
import { describeRun, markdown, number, pathTable, ratioTable, times, wideTable } from './report.ts'
import { findSeries, ratio, type Part, type Result } from './result.ts'

/** `case metric` of what a reader wants first, in their order. */
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

/** The README's figures: of which part and metric, what it is, and what it tells. */
const FOUR = [
  {
    of: ['containers', 'tcp', 'throughput'],
    what: 'One TCP stream between containers on two hosts',
    tells: 'This link carries superpackets, so kernel vxlan neither splits nor copies them; weft does both.',
  },
  {
    of: ['wire', 'tcp', 'throughput'],
    what: 'One TCP stream over a link that carries no superpackets',
    tells: 'Both split every packet, as with a network card without tunnel offloads.',
  },
  {
    of: ['containers', 'udp64', 'rate'],
    what: 'UDP of 64 bytes with at most 1% lost, between containers',
    tells: 'weft hands the kernel many packets in one message.',
  },
  {
    of: ['containers', 'ping-loaded', 'p50'],
    what: 'A ping beside a TCP stream, between containers',
    tells: 'The ping has its own lane, but on each host a thread has to wake up.',
  },
] as const

const linksOf = ({ parts }: Result): readonly Part[] =>
  parts.filter(({ name, link }) => link !== undefined && name === link)

/** A sentence with its figures for each of the four. */
function fourFigures({ parts }: Result): string | undefined {
  const items = FOUR.map(({ of: [name, of, metric], what, tells }) => {
    const part = parts.find((each) => each.name === name)
    const series = part && findSeries(part, of, metric)
    const value = series?.values['native']
    if (!series || !value || value.length === 0) return undefined
    const beside = (reference: string): string => times(ratio(value, series.values[reference]))
    const better = series.better === 'less' ? ' (less is better)' : ''
    const plain = `${number(median(value))} ${series.unit}`
    return `- **${what}: ${plain}**, ${beside('vxlan')} kernel vxlan, ${beside('naive')} one packet a system call${better}. ${tells}`
  })
  return items.includes(undefined) ? undefined : items.join('\n')
}

/** A row for each function and size: nanoseconds, bytes a cycle. */
function microTable(part: Part): string {
  const body = part.series
    .filter(({ metric }) => metric === 'ns')
    .flatMap(({ case: name, values }) => {
      const bytes = findSeries(part, name, 'bytes')?.values
      return Object.entries(values).map(([label, each]) => {
        const perCycle = bytes?.[label]
        return [`${name}, ${label}`, number(median(each)), perCycle ? number(median(perCycle)) : '-']
      })
    })
  const unit = part.series.find(({ metric }) => metric === 'bytes')?.unit ?? 'bytes/cycle'
  return markdown([['', 'ns', unit], ...body])
}

/** The blocks by name; without those whose part was not measured. */
export function figureBlocks(result: Result): Readonly<Record<string, string>> {
  const part = (name: string): Part | undefined => result.parts.find((each) => each.name === name)
  const methods = Object.assign({}, ...linksOf(result).map(({ method }) => method)) as Record<string, string>
  const blocks: Record<string, string | undefined> = {
    run: describeRun(result),
    four: fourFigures(result),
    headlines: ratioTable(
      [...linksOf(result), ...result.parts.filter(({ name }) => name === 'containers')],
      'native',
      HEADLINES,
    ),
    cases: Object.entries(methods)
      .map(([name, method]) => `- \`${name}\`: ${method}`)
      .join('\n'),
  }
  for (const name of ['plain', 'wire', 'containers']) {
    const measured = part(name)
    blocks[name] = measured && wideTable(measured)
  }
  const [features, micro] = [part('features'), part('micro')]
  blocks['features'] = features && pathTable(features, 'vxlan')
  blocks['micro'] = micro && microTable(micro)
  return Object.fromEntries(Object.entries(blocks).map(([name, text]) => [name, text ?? 'Not measured in this run.']))
}

/** The text with its blocks written again. A block of an unknown name is a mistake. */
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
    subtitle: `right is better; ${machine.cpu}, ${machine.cores} cores, Linux ${machine.kernel.split('-')[0]}; commit ${commit}, ${date.slice(0, 10)}`,
    path: 'native',
    rows: HEADLINES,
    references: [
      ['vxlan', 'kernel vxlan'],
      ['naive', 'one packet a system call'],
    ],
  })
}
