// report.ts - renders results: a table for the terminal, the same in Markdown, and two results side by side.

import { median } from '../lab/measure.ts'
import { ratio, spread, type Result, type Series } from './result.ts'

const number = (value: number): string =>
  value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)
const times = (value: number | undefined): string =>
  value === undefined ? '-' : `${value < 10 ? value.toFixed(2) : value.toFixed(1)} x`

/** Rows of one metric: path, median, spread, and how many times vxlan and naive it is. */
function rows(series: Series): string[][] {
  return Object.entries(series.values).map(([path, values]) => [
    path,
    number(median(values)),
    `+-${Math.round(spread(values) * 100)}%`,
    times(ratio(values, series.values['vxlan'])),
    times(ratio(values, series.values['naive'])),
  ])
}

const HEAD = ['median', 'spread', 'of vxlan', 'of naive']

function heading({ title, unit, better }: Series): string {
  return `${title}, ${unit}${better === 'less' ? ' (less is better)' : ''}`
}

export function describeRun({ machine, commit, date, link, rounds, seconds }: Result): string {
  const of = `${machine.cpu}, ${machine.cores} cores, Linux ${machine.kernel}, ${machine.congestionControl}, Node ${machine.node}`
  return `${date.slice(0, 10)}, commit ${commit}; ${of}; ${link} link; ${rounds} rounds, ${seconds} s a sample`
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

export function textTable(result: Result): string {
  const table: string[][] = []
  const breaks = new Set<number>()
  for (const series of result.series) {
    breaks.add(table.length)
    table.push([heading(series), ...HEAD], ...rows(series).map(([path = '', ...cells]) => [`  ${path}`, ...cells]))
  }
  return columns(table)
    .map((line, index) => (breaks.has(index) && index > 0 ? `\n${line}` : line))
    .join('\n')
}

export function markdownTable(result: Result): string {
  const lines = [`| | path | ${HEAD.join(' | ')} |`, '|---|---|---:|---:|---:|---:|']
  for (const series of result.series) {
    rows(series).forEach((row, index) => lines.push(`| ${index === 0 ? heading(series) : ''} | ${row.join(' | ')} |`))
  }
  return `${lines.join('\n')}\n\n${describeRun(result)}\n`
}

/**
 * What changed from one result to another. Plain figures of two runs are not comparable on a noisy machine, so each
 * is also put in relation to a path that the change cannot have touched, of the same run.
 */
export function compareTable(before: Result, after: Result, reference = 'vxlan'): string {
  const table = [['', 'before', 'after', 'after/before', `by ${reference}`]]
  for (const series of after.series) {
    const old = before.series.find((each) => each.case === series.case && each.metric === series.metric)
    if (!old) continue
    table.push([heading(series), '', '', '', ''])
    for (const [path, values] of Object.entries(series.values)) {
      const oldValues = old.values[path]
      if (!oldValues) continue
      const [now, then] = [ratio(values, series.values[reference]), ratio(oldValues, old.values[reference])]
      const related = now === undefined || then === undefined ? undefined : now / then
      const [a, b] = [median(oldValues), median(values)]
      table.push([`  ${path}`, number(a), number(b), times(b / a), times(related)])
    }
  }
  return columns(table).join('\n')
}
