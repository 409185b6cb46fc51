// charts.ts - draws charts of the last hour with uPlot: traffic (sent upwards, received downwards), drops, round trips
// and lost probes.

import uPlot from 'uplot'
import { byId, createList, h, setText } from './dom.ts'
import { bitRate, count, dropReason, labelsOf, milliseconds, or, short } from './format.ts'
import type { History, Sample } from './history.ts'

const HEIGHT = 190
const LINE = { width: 2, points: { show: false } } as const
type Points = (number | null)[]

export function createCharts(history: History) {
  const traffic = createChart(byId('traffic'), (colour) => ({
    series: [
      {},
      { stroke: colour('--out'), fill: colour('--out-fill'), ...LINE },
      { stroke: colour('--in'), fill: colour('--in-fill'), ...LINE },
    ],
    values: (value) => bitRate(Math.abs(value)),
    /**
     * Give the sent and the received traffic the same scale. The range has a minimum, so that low traffic does not look
     * like peaks.
     */
    range: (low, high) => {
      const most = Math.max(1000, high, -low) * 1.1
      return [-most, most]
    },
  }))
  const drops = createChart(byId('drops'), (colour) => ({
    series: [{}, { stroke: colour('--bad'), fill: colour('--bad-fill'), ...LINE }],
    values: (value) => short(value),
    range: (_low, high) => [0, Math.max(10, high * 1.1)],
  }))

  const roundTrip = createChart(byId('round-trip'), (colour) => ({
    series: [{}, { stroke: colour('--info'), fill: colour('--info-fill'), ...LINE }],
    values: (value) => milliseconds(value),
    range: (_low, high) => [0, Math.max(1, high * 1.1)],
  }))
  const loss = createChart(byId('loss'), (colour) => ({
    series: [{}, { stroke: colour('--bad'), fill: colour('--bad-fill'), ...LINE }],
    values: (value) => `${value}%`,
    range: (_low, high) => [0, Math.min(100, Math.max(10, high * 1.1))],
  }))

  const showReasons = createList<readonly [string, number]>(
    byId('drop-reasons'),
    ([name]) => name,
    ([name]) => {
      const number = h('td')
      const element = h('tr', {}, h('th', { scope: 'row' }, dropReason(name)), number)
      return { element, show: ([, now]) => setText(number, now.toLocaleString('en')) }
    },
  )

  return {
    show(dropsByReason: Readonly<Record<string, number>>): void {
      const samples = history.samples()
      const last = samples.at(-1)
      setText(byId('out-now'), or(last?.tx, bitRate))
      setText(byId('in-now'), or(last?.rx, bitRate))
      setText(
        byId('drops-now'),
        or(last?.drops, (rate) => `${short(rate)}/s`),
      )
      const isCounted = samples.length === 0 || samples.some(({ tx }) => tx !== undefined)
      byId('uncounted').hidden = isCounted
      byId('traffic').hidden = !isCounted
      const at = samples.map((sample) => sample.at)
      const of = (value: (sample: Sample) => number | undefined): Points =>
        samples.map((sample) => value(sample) ?? null)
      traffic([at, of(({ tx }) => tx), of(({ rx }) => (rx === undefined ? undefined : -rx))])
      drops([at, of((sample) => sample.drops)])
      const hour = history.hour()
      byId('hour').hidden = hour.length < 2
      const times = hour.map((step) => step.at)
      roundTrip([times, hour.map(({ roundTripMs }) => roundTripMs ?? null)])
      loss([times, hour.map(({ lossPercent }) => lossPercent ?? null)])
      const now = hour.at(-1)
      byId('round-trip').setAttribute(
        'aria-label',
        `Round trip of the last hour, median of the peers, now ${or(now?.roundTripMs, milliseconds)}`,
      )
      byId('loss').setAttribute(
        'aria-label',
        `Loss of probes in the last hour, mean of the peers, now ${or(now?.lossPercent, (lost) => `${lost}%`)}`,
      )
      byId('traffic').setAttribute('aria-label', spoken(samples))
      const reasons = Object.entries(dropsByReason).toSorted(([, a], [, b]) => b - a)
      showReasons(reasons)
      const all = reasons.reduce((sum, [, each]) => sum + each, 0)
      setText(
        byId('drops-sum'),
        all === 0 ? 'No packet was dropped.' : `${count(all, 'packet')} since the data path was opened.`,
      )
      byId('drop-table').hidden = reasons.length === 0
      byId('drops').setAttribute('aria-label', `Dropped packets per second, now ${or(last?.drops, short)}.`)
    },
  }
}

/** Describes the traffic chart in words, for screen readers. */
function spoken(samples: readonly Sample[]): string {
  const most = (of: (sample: Sample) => number | undefined): string =>
    bitRate(Math.max(0, ...samples.map((sample) => of(sample) ?? 0)))
  const last = samples.at(-1)
  return `Traffic of the last minutes: out now ${or(last?.tx, bitRate)}, at most ${most(({ tx }) => tx)}; in now ${or(last?.rx, bitRate)}, at most ${most(({ rx }) => rx)}.`
}

/** Returns the width in px that an axis needs for its longest label. */
const widthOf = (_chart: uPlot, labels: readonly string[] | null): number =>
  16 + 7 * Math.max(...(labels ?? []).map(({ length }) => length), 3)

/**
 * Half the width of the longest label of the time axis, in px. Labels are centred on their ticks, so the last label
 * needs as much room to the right of its tick.
 */
const LABEL_HALF_PX = 30

interface Look {
  readonly series: uPlot.Series[]
  readonly values: (value: number) => string
  readonly range: (low: number, high: number) => [number, number]
}

/**
 * Creates a chart that fills `place`. Creates the chart again when the browser's color scheme changes between light and
 * dark.
 */
function createChart(place: HTMLElement, lookOf: (colour: (name: string) => string) => Look) {
  let data: uPlot.AlignedData = [[]]
  let chart: uPlot | undefined
  const sizeOf = () => ({ width: Math.max(200, place.clientWidth), height: Math.max(HEIGHT, place.clientHeight) })
  const make = (): void => {
    chart?.destroy()
    const style = getComputedStyle(document.documentElement)
    const colour = (name: string): string => style.getPropertyValue(name).trim()
    const { series, values, range } = lookOf(colour)
    const axis: uPlot.Axis = {
      stroke: colour('--muted'),
      font: '12px system-ui, sans-serif',
      grid: { stroke: colour('--line'), width: 1 },
      ticks: { show: false },
    }
    const options: uPlot.Options = {
      ...sizeOf(),
      padding: [8, LABEL_HALF_PX, 0, 0],
      series,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_chart, low, high) => range(low ?? 0, high ?? 0) } },
      axes: [
        { ...axis, grid: { show: false }, values: '{HH}:{mm}:{ss}', space: 80, size: 28 },
        { ...axis, size: widthOf, space: 48, values: (_chart, splits) => labelsOf(splits, values) },
      ],
    }
    chart = new uPlot(options, data, place)
  }
  make()
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', make)
  new ResizeObserver(() => {
    if (place.clientWidth > 0) chart?.setSize(sizeOf())
  }).observe(place)
  return (now: (number[] | Points)[]): void => {
    data = now as uPlot.AlignedData
    chart?.setData(data)
  }
}
