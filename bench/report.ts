// report.ts - renders one result or a comparison of two as tables, for a terminal and for the READMEs. No I/O.

import { median } from '../lab/measure.ts'
import { findSeries, ratio, ratios, spread, verdict, type Part, type Result, type Series } from './result.ts'

export const number = (value: number): string =>
  Number.isNaN(value) ? '-' : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)
export const times = (value: number | undefined): string => (value === undefined ? '-' : `${number(value)} x`)
function percent(values: readonly number[]): string {
  const share = Math.round(spread(values) * 100)
  return Number.isFinite(share) ? `+-${share}%` : '-'
}
/** Returns the median of ratios with their spread, for a table whose head names the reference. */
const ratioCell = (values: readonly number[] | undefined): string =>
  values ? `${number(median(values))} ${percent(values)}` : '-'

/** The paths that ratios refer to, unless a part names others. A path that the part did not measure is left out. */
const REFERENCES: readonly string[] = ['vxlan', 'naive']

function referencesOf({ series, references = REFERENCES }: Part): readonly string[] {
  return references.filter((reference) => series.some(({ values }) => reference in values))
}

/** Returns a row for each path of one metric: path, median, spread, and the ratio to each reference. */
function rows({ values }: Series, references: readonly string[]): string[][] {
  return Object.entries(values).map(([path, each]) => [
    path,
    number(median(each)),
    percent(each),
    ...references.map((reference) => times(ratio(each, values[reference]))),
  ])
}

/**
 * Returns two cells that correct a throughput for longer headers. The first is the ratio of the TCP payloads of full packets: the
 * expected ratio if both paths carry equally many packets. The second is the measured ratio divided by the first.
 */
function correctionCells(
  { payloadBytes = {} }: Part,
  { values, unit }: Series,
  path: string,
  reference: string,
): string[] {
  const [own, its] = [payloadBytes[path], payloadBytes[reference]]
  if (unit !== 'Gbit/s' || own === undefined || its === undefined) return ['', '']
  const measured = ratio(values[path], values[reference])
  return [`${(own / its).toFixed(3)} x`, times(measured && measured / (own / its))]
}

function heading({ title, unit, better }: Series): string {
  return `${title}, ${unit}${better === 'less' ? ' (less is better)' : ''}`
}

const conditionOf = ({ link, ends }: Part): string => (ends === 'containers' ? 'containers' : `${link} link`)

function describePart(part: Part): string {
  const { name, link, rounds, seconds, commit } = part
  const on =
    link === undefined ? name : [link, 'containers'].includes(name) ? conditionOf(part) : `${name}, ${link} link`
  return `${on}: ${rounds} rounds, ${seconds} s a sample${commit === undefined ? '' : `, commit ${commit}`}`
}

export function describeRun({ machine, commit, date, parts }: Result): string {
  const { cpu, cores, kernel, congestionControl, node } = machine
  const of = `${cpu}, ${cores} cores, Linux ${kernel}, ${congestionControl}, Node ${node}`
  return `${date.slice(0, 10)}, commit ${commit}; ${of}; ${parts.map(describePart).join('; ')}`
}

/** Returns a table as lines: the first column is left-aligned, the others right-aligned. */
function columns(table: readonly (readonly string[])[]): string[] {
  const widths = (table[0] ?? []).map((_, column) => Math.max(...table.map((row) => (row[column] ?? '').length)))
  return table.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  )
}

/** Returns a table as Markdown. The first row is the head. */
function markdown([head = [], ...body]: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
  return [line(head), `|---|${'---:|'.repeat(head.length - 1)}`, ...body.map(line)].join('\n')
}

function partTable(part: Part): string {
  const references = referencesOf(part)
  const [first = ''] = references
  const isCorrected = part.references !== undefined && part.payloadBytes !== undefined
  const head = [
    'median',
    'spread',
    ...references.map((reference) => `of ${reference}`),
    ...(isCorrected ? ['by headers alone', `of ${first}, corrected`] : []),
  ]
  const table: string[][] = []
  const breaks = new Set<number>()
  for (const series of part.series) {
    breaks.add(table.length)
    table.push(
      [heading(series), ...head],
      ...rows(series, references).map(([path = '', ...cells]) => [
        `  ${path}`,
        ...cells,
        ...(isCorrected ? correctionCells(part, series, path, first) : []),
      ]),
    )
  }
  return columns(table)
    .map((line, index) => (breaks.has(index) && index > 0 ? `\n${line}` : line))
    .join('\n')
}

export function textTable(result: Result): string {
  const single = result.parts.length === 1
  const parts = result.parts.map((part) => `${single ? '' : `== ${describePart(part)}\n\n`}${partTable(part)}`)
  return `${parts.join('\n\n')}\n\n${describeRun(result)}`
}

export interface Summary {
  /** The metrics, as `case metric`. */
  readonly rows: readonly string[]
  /** The paths whose medians are shown, if the part has them. */
  readonly paths: readonly string[]
  /** The path whose ratio to `reference` is shown with its spread. */
  readonly path: string
  readonly reference: string
}

/** Returns a Markdown table with a row for each metric: the medians of the paths, then the ratio of one path to the reference. */
export function summaryTable(part: Part, { rows: names, paths, path, reference }: Summary): string {
  const shown = paths.filter((name) => name in (part.series[0]?.values ?? {}))
  const body = part.series
    .filter((series) => names.includes(`${series.case} ${series.metric}`))
    .map(({ title, unit, values }) => [
      `${title}, ${unit}`,
      ...shown.map((name) => number(median(values[name] ?? []))),
      ratioCell(ratios(values[path], values[reference])),
    ])
  return markdown([['', ...shown, `x ${reference}`], ...body])
}

/** Returns a Markdown table with a row for each path: its ratio to the reference for each metric where more is better. */
export function pathTable(part: Part, reference: string): string {
  const more = part.series.filter(({ better }) => better === 'more')
  const names = Object.keys(more[0]?.values ?? {}).filter((name) => name !== reference)
  const body = names.map((path) => [
    path,
    ...more.map(({ values }) => ratioCell(ratios(values[path], values[reference]))),
  ])
  return markdown([[`x ${reference}`, ...more.map(({ title }) => title)], ...body])
}

/**
 * Compares two results. Absolute figures of two runs are not comparable on a noisy machine. So the table compares each path's ratio
 * to a reference of the same run that the change cannot affect. The verdict is `unresolved` if the intervals of the two runs
 * overlap (result.ts).
 */
export function compareTable(before: Result, after: Result, reference = 'vxlan'): string {
  const table = [['', 'before', 'after', 'after/before', `by ${reference}`, '']]
  for (const part of after.parts) {
    const oldPart = before.parts.find(({ name }) => name === part.name)
    for (const series of part.series) {
      const old = oldPart && findSeries(oldPart, series.case, series.metric)
      if (!old) continue
      table.push([`${heading(series)}${part.link === undefined ? '' : ` [${part.name}]`}`, '', '', '', '', ''])
      for (const [path, values] of Object.entries(series.values)) {
        const oldValues = old.values[path]
        if (!oldValues || oldValues.length === 0 || values.length === 0) continue
        const [was, is] = [ratios(oldValues, old.values[reference]), ratios(values, series.values[reference])]
        const related = path !== reference && was && is
        const change = related ? verdict(was, is) : verdict(oldValues, values)
        const word = change === 'unresolved' ? change : change === series.better ? 'better' : 'worse'
        const [a, b] = [median(oldValues), median(values)]
        const byReference = related ? median(is) / median(was) : undefined
        table.push([`  ${path}`, number(a), number(b), times(b / a), times(byReference), word])
      }
    }
  }
  return table.length === 1 ? 'The two results have no case in common.' : columns(table).join('\n')
}
