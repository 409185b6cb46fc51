// report.ts - renders a benchmark result, or a comparison of two results, as tables for a terminal and for README
// files. Does no I/O.

import { median } from '../lab/measure.ts'
import { findSeries, ratio, ratios, spread, verdict, type Part, type Result, type Series } from './result.ts'

export const number = (value: number): string =>
  Number.isNaN(value) ? '-' : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)
export const times = (value: number | undefined): string => (value === undefined ? '-' : `${number(value)} x`)
function percent(values: readonly number[]): string {
  const share = Math.round(spread(values) * 100)
  return Number.isFinite(share) ? `+-${share}%` : '-'
}
/** Returns a table cell with the median and the spread of ratios. The table's header names the reference path. */
const ratioCell = (values: readonly number[] | undefined): string =>
  values ? `${number(median(values))} ${percent(values)}` : '-'

/**
 * The reference paths: each ratio is the value of a path divided by the value of a reference path. A part of the result
 * may name other reference paths. A reference path that was not measured is left out.
 */
const REFERENCES: readonly string[] = ['vxlan', 'naive']

function referencesOf({ series, references = REFERENCES }: Part): readonly string[] {
  return references.filter((reference) => series.some(({ values }) => reference in values))
}

/**
 * Returns the table rows for one metric, one row per path, with the path's name, the median, the spread, and the ratio
 * to each reference path.
 */
function rows({ values }: Series, references: readonly string[]): string[][] {
  return Object.entries(values).map(([path, each]) => [
    path,
    number(median(each)),
    percent(each),
    ...references.map((reference) => times(ratio(each, values[reference]))),
  ])
}

/**
 * Returns two table cells that take the length of tunnel headers into account. The first cell is the expected ratio of
 * throughputs if both paths carry equally many full packets, that is, the ratio of the TCP payloads per packet. The
 * second cell is the measured ratio divided by the expected ratio.
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
  const of = `${cpu} with ${cores} cores, Linux ${kernel}, TCP ${congestionControl}, Node.js ${node}`
  return `Run of ${date.slice(0, 10)} at commit ${commit}; ${of}; ${parts.map(describePart).join('; ')}`
}

/** Returns a table as lines of text. The first column is left-aligned, and all other columns are right-aligned. */
function columns(table: readonly (readonly string[])[]): string[] {
  const widths = (table[0] ?? []).map((_, column) => Math.max(...table.map((row) => (row[column] ?? '').length)))
  return table.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  )
}

/**
 * Returns a table for Markdown as aligned text in a code block, which is also readable in a terminal. The first row of
 * `table` is the header.
 */
const textBlock = (table: readonly (readonly string[])[]): string => `\`\`\`\n${columns(table).join('\n')}\n\`\`\``

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
  /** The metrics that have a row in the table, each with its case, such as `tcp throughput`. */
  readonly rows: readonly string[]
  /** The data paths whose medians get a column. A data path that was not measured gets no column. */
  readonly paths: readonly string[]
  /** The path for which the last column shows the ratio to the path `reference`, with the spread. */
  readonly path: string
  readonly reference: string
}

/**
 * Returns a text table for Markdown with a row per metric. Its columns are the medians of several paths, and the ratio
 * of one path to the reference path.
 */
export function summaryTable(part: Part, { rows: names, paths, path, reference }: Summary): string {
  const shown = paths.filter((name) => name in (part.series[0]?.values ?? {}))
  const body = part.series
    .filter((series) => names.includes(`${series.case} ${series.metric}`))
    .map(({ title, unit, values }) => [
      `${title}, ${unit}`,
      ...shown.map((name) => number(median(values[name] ?? []))),
      ratioCell(ratios(values[path], values[reference])),
    ])
  return textBlock([['', ...shown, `x ${reference}`], ...body])
}

/**
 * Returns a text table for Markdown with a row per path. Its columns are the ratios to the reference path, for each
 * metric of which higher values are better.
 */
export function pathTable(part: Part, reference: string): string {
  const more = part.series.filter(({ better }) => better === 'more')
  const names = Object.keys(more[0]?.values ?? {}).filter((name) => name !== reference)
  const body = names.map((path) => [
    path,
    ...more.map(({ values }) => ratioCell(ratios(values[path], values[reference]))),
  ])
  return textBlock([[`x ${reference}`, ...more.map(({ title }) => title)], ...body])
}

/**
 * Compares two results. On a noisy machine absolute numbers of two runs cannot be compared. So the table compares
 * ratios: each path's value divided by the value of a reference path in the same run. The tested change must not affect
 * the reference path. The verdict is `unresolved` if the confidence intervals of the two runs overlap (result.ts).
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
