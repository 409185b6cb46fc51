// report.ts - renders results as tables, for a terminal, for the READMEs, and two beside each other. Pure.

import { median } from '../lab/measure.ts'
import { findSeries, ratio, ratios, spread, verdict, type Part, type Result, type Series } from './result.ts'

export const number = (value: number): string =>
  Number.isNaN(value) ? '-' : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)
export const times = (value: number | undefined): string => (value === undefined ? '-' : `${number(value)} x`)
function percent(values: readonly number[]): string {
  const share = Math.round(spread(values) * 100)
  return Number.isFinite(share) ? `+-${share}%` : '-'
}
const timesWithSpread = (values: readonly number[] | undefined): string =>
  values ? `${times(median(values))} ${percent(values)}` : '-'

/** The paths that others are held against, where a part has them and names none. */
const REFERENCES: readonly string[] = ['vxlan', 'naive']

function referencesOf({ series, references = REFERENCES }: Part): readonly string[] {
  return references.filter((reference) => series.some(({ values }) => reference in values))
}

/** Rows of one metric: path, median, spread, and how many times each reference it is. */
function rows({ values }: Series, references: readonly string[]): string[][] {
  return Object.entries(values).map(([path, each]) => [
    path,
    number(median(each)),
    percent(each),
    ...references.map((reference) => times(ratio(each, values[reference]))),
  ])
}

/**
 * What the longer headers of a path take of a throughput, where both carry as many packets: the bytes for TCP in a full one, as a ratio to
 * the reference's; and the ratio that is left with that allowed for.
 */
function allowanceCells(
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

/** The circumstances of a part, for the head of a column. */
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

/** Columns padded: the first to the left, numbers to the right. */
function columns(table: readonly (readonly string[])[]): string[] {
  const widths = (table[0] ?? []).map((_, column) => Math.max(...table.map((row) => (row[column] ?? '').length)))
  return table.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  )
}

/** Rows under a head, as Markdown. */
export function markdown([head = [], ...body]: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
  return [line(head), `|---|${'---:|'.repeat(head.length - 1)}`, ...body.map(line)].join('\n')
}

function partTable(part: Part): string {
  const references = referencesOf(part)
  const [first = ''] = references
  const isAllowed = part.references !== undefined && part.payloadBytes !== undefined
  const head = [
    'median',
    'spread',
    ...references.map((reference) => `of ${reference}`),
    ...(isAllowed ? ['by headers alone', `of ${first}, headers allowed`] : []),
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
        ...(isAllowed ? allowanceCells(part, series, path, first) : []),
      ]),
    )
  }
  return columns(table)
    .map((line, index) => (breaks.has(index) && index > 0 ? `\n${line}` : line))
    .join('\n')
}

/** All figures of a result, to read on a terminal. */
export function textTable(result: Result): string {
  const single = result.parts.length === 1
  const parts = result.parts.map((part) => `${single ? '' : `== ${describePart(part)}\n\n`}${partTable(part)}`)
  return `${parts.join('\n\n')}\n\n${describeRun(result)}`
}

/** All figures of a part: a row for each metric, a column for each path. */
export function wideTable(part: Part): string {
  const paths = Object.keys(part.series[0]?.values ?? {})
  const body = part.series.map((series) => [
    heading(series),
    ...paths.map((path) => {
      const values = series.values[path] ?? []
      return values.length === 0 ? '-' : `${number(median(values))} ${percent(values)}`
    }),
  ])
  return markdown([['', ...paths], ...body])
}

/** Ratios of one path to the references: a row for each metric, a column for each reference of each part. */
export function ratioTable(parts: readonly Part[], path: string, only?: readonly string[]): string {
  const cells = parts.flatMap((part) => referencesOf(part).map((reference) => ({ part, reference })))
  const head = cells.map(({ part, reference }) => `x ${reference}, ${conditionOf(part)}`)
  const all = parts[0]?.series.filter((series) => !only || only.includes(`${series.case} ${series.metric}`)) ?? []
  const body = all.map((series) => [
    heading(series),
    ...cells.map(({ part, reference }) => {
      const values = findSeries(part, series.case, series.metric)?.values
      return values ? timesWithSpread(ratios(values[path], values[reference])) : '-'
    }),
  ])
  return markdown([['', ...head], ...body])
}

/** Ratios to one reference: a row for each path, a column for each metric where more is better. */
export function pathTable(part: Part, reference: string): string {
  const more = part.series.filter(({ better }) => better === 'more')
  const body = Object.keys(more[0]?.values ?? {}).map((path) => [
    path,
    ...more.map(({ values }) => timesWithSpread(ratios(values[path], values[reference]))),
  ])
  return markdown([[`x ${reference}`, ...more.map(({ title }) => title)], ...body])
}

/**
 * Compares two results. Plain figures of two runs are not comparable on a noisy machine: compared is each path's ratio
 * to a reference of the same run that the change cannot have touched. The change is unresolved when the intervals of
 * the two runs overlap (result.ts).
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
        const said = change === 'unresolved' ? change : change === series.better ? 'better' : 'worse'
        const [a, b] = [median(oldValues), median(values)]
        const byReference = related ? median(is) / median(was) : undefined
        table.push([`  ${path}`, number(a), number(b), times(b / a), times(byReference), said])
      }
    }
  }
  return table.length === 1 ? 'The two results have no case in common.' : columns(table).join('\n')
}
