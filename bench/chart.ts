// chart.ts - draws a benchmark result as an SVG chart. The chart shows how many times faster one data path, such as
// weft's udp backend, is than the reference paths. Does no I/O.
//
// Bars start at 1 x (equally fast) on a logarithmic axis. So the bars of a path that is twice as fast and of a path
// that is half as fast have the same length. A bar to the right means that the path is faster. For latencies, of which
// lower values are better, the chart therefore inverts the ratios. A thin line on a bar shows the confidence interval
// of the median. The colours follow the light or dark scheme of the reader's browser.

import { median } from '../lab/measure.ts'
import { findSeries, interval, ratios, type Part, type Series } from './result.ts'

interface Chart {
  readonly title: string
  readonly subtitle: string
  readonly path: string
  /** The rows of the chart from top to bottom. Each row is a metric of a case, such as `tcp throughput`. */
  readonly rows: readonly string[]
  /**
   * The panels of the chart: for each panel, the reference path by whose values all values are divided, and the name of
   * this path in the chart.
   */
  readonly references: readonly (readonly [path: string, words: string])[]
}

const WIDTH = 900
const MARGIN = 16
const LABELS = 196
const GAP = 28
const TOP = 92
const BAR = 10
const ROW = 34
/** The space that is reserved for a number at the left and the right end of a bar, in pixels. */
const VALUE_SPACE = 38
const COLOURS = ['#3b7dd8', '#e08a1e']
const TICKS = [-3, -2, -1, 0, 1, 2].flatMap((decade) => [1, 2, 5].map((digit) => Number(`${digit}e${decade}`)))
/**
 * The minimum distance between the axis ticks 1 and 2, in pixels. If these ticks would be closer, only powers of ten
 * get ticks.
 */
const TICK_SPACE = 27

const STYLE = `text{font:12px system-ui,sans-serif;fill:#24292f}
.title{font-size:15px;font-weight:600}.quiet{fill:#656d76}.quiet,.value{font-size:11px}.grid{stroke:#d8dee4}.one{stroke:#656d76}
.whisker{stroke:#24292f;stroke-width:1.2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}.grid{stroke:#30363d}.one{stroke:#9198a1}
.whisker{stroke:#e6edf3}}`

interface Bar {
  readonly middle: number
  readonly low: number
  readonly high: number
}

const escape = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;')
const at = (value: number): string => value.toFixed(1)
const label = (value: number): string =>
  value >= 10 ? value.toFixed(0) : value.toFixed(value >= 1 ? 1 : value >= 0.095 ? 2 : 3)

/**
 * Returns how many times better a path is than the path `reference`, with the confidence interval. Returns undefined if
 * one of the two paths was not measured.
 */
function bar(series: Series | undefined, path: string, reference: string): Bar | undefined {
  const [of, to] = [series?.values[path], series?.values[reference]]
  const each = series?.better === 'less' ? ratios(to, of) : ratios(of, to)
  if (!each) return undefined
  return interval(each) ?? { middle: median(each), low: Math.min(...each), high: Math.max(...each) }
}

export function chart(parts: readonly Part[], { title, subtitle, path, rows: wanted, references }: Chart): string {
  const rows = wanted.flatMap((name) => {
    const [each = '', metric = ''] = name.split(' ')
    const series = parts.map((part) => findSeries(part, each, metric))
    const words = series.find((one) => one !== undefined)?.title
    const panels = references.map(([reference]) => series.map((one) => bar(one, path, reference)))
    return words === undefined || panels.flat().every((one) => one === undefined) ? [] : [{ words, panels }]
  })
  const panelWidth = (WIDTH - 2 * MARGIN - LABELS - GAP * (references.length - 1)) / references.length
  const bottom = TOP + rows.length * ROW
  const out: string[] = []

  references.forEach(([, words], panel) => {
    const left = MARGIN + LABELS + panel * (panelWidth + GAP)
    const all = rows.flatMap(({ panels }) => panels[panel] ?? []).filter((one) => one !== undefined)
    const ends = [0.5, 2, ...all.flatMap((one) => [one.low, one.high])].filter((end) => end > 0)
    const low = TICKS.findLast((tick) => tick <= Math.min(...ends)) ?? TICKS[0] ?? 1
    const high = TICKS.find((tick) => tick >= Math.max(...ends)) ?? TICKS.at(-1) ?? 1
    const scale = (value: number): number => {
      const share = Math.log(Math.min(high, Math.max(low, value)) / low) / Math.log(high / low)
      return left + VALUE_SPACE + share * (panelWidth - 2 * VALUE_SPACE)
    }
    out.push(`<text x="${at(left + VALUE_SPACE)}" y="${TOP - 28}">times ${escape(words)}</text>`)
    const ticks = TICKS.filter((tick) => tick >= low && tick <= high)
    const roomy = scale(2) - scale(1) >= TICK_SPACE
    for (const tick of roomy ? ticks : ticks.filter((each) => Number.isInteger(Math.log10(each)))) {
      const x = at(scale(tick))
      out.push(
        `<line class="${tick === 1 ? 'one' : 'grid'}" x1="${x}" x2="${x}" y1="${TOP - 4}" y2="${bottom}"/>`,
        `<text class="quiet" x="${x}" y="${TOP - 9}" text-anchor="middle">${tick}</text>`,
      )
    }
    rows.forEach(({ panels }, row) =>
      panels[panel]?.forEach((each, part) => {
        if (!each) return
        const y = TOP + row * ROW + (ROW - parts.length * (BAR + 2)) / 2 + part * (BAR + 2)
        const [from, to] = [scale(1), scale(each.middle)].toSorted((a, b) => a - b)
        const slower = each.middle < 1
        const textX = slower ? Math.min(scale(each.low), scale(1)) - 4 : Math.max(scale(each.high), scale(1)) + 4
        const whiskerY = at(y + BAR / 2)
        out.push(
          `<rect x="${at(from ?? 0)}" y="${at(y)}" width="${at(Math.max(1, (to ?? 0) - (from ?? 0)))}" height="${BAR}" rx="1.5" fill="${COLOURS[part] ?? ''}"/>`,
          `<line class="whisker" x1="${at(scale(each.low))}" x2="${at(scale(each.high))}" y1="${whiskerY}" y2="${whiskerY}"/>`,
          `<text x="${at(textX)}" y="${at(y + BAR - 0.5)}" class="value"${slower ? ' text-anchor="end"' : ''}>${label(each.middle)}</text>`,
        )
      }),
    )
  })
  rows.forEach(({ words }, row) =>
    out.push(
      `<text x="${MARGIN + LABELS - 2}" y="${at(TOP + row * ROW + ROW / 2 + 4)}" text-anchor="end">${escape(words)}</text>`,
    ),
  )
  parts.forEach(({ link, name }, part) => {
    const x = MARGIN + part * 100
    out.push(
      `<rect x="${x}" y="${TOP - 37}" width="${BAR}" height="${BAR}" rx="1.5" fill="${COLOURS[part] ?? ''}"/>`,
      `<text x="${x + BAR + 5}" y="${TOP - 28}">${escape(link === undefined ? name : `${link} link`)}</text>`,
    )
  })
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${bottom + 14}" width="${WIDTH}" height="${bottom + 14}" role="img" aria-label="${escape(title)}">
<style>${STYLE}</style>
<text class="title" x="${MARGIN}" y="22">${escape(title)}</text>
<text class="quiet" x="${MARGIN}" y="40">${escape(subtitle)}</text>
${out.join('\n')}
</svg>
`
}
