// report.test.ts - tables, comparison and chart; and that the READMEs hold what the suite's result says.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { chart } from '../../../bench/chart.ts'
import { figureBlocks, fillFigures, resultChart } from '../../../bench/figures.ts'
import { microSeries } from '../../../bench/micro.ts'
import { compareTable, describeRun, summaryTable, textTable } from '../../../bench/report.ts'
import type { Part, Result } from '../../../bench/result.ts'
import { packageRoot } from '../../../lab/lab.ts'

const ROUNDS = [0.98, 1, 1.02, 0.99, 1.01]
const about = (value: number): number[] => ROUNDS.map((factor) => value * factor)

function result(native: number, { vxlan = 20, ping = 30 } = {}): Result {
  const values = { native: about(native), naive: about(2), vxlan: about(vxlan) }
  const part: Part = {
    name: 'plain',
    link: 'plain',
    rounds: ROUNDS.length,
    seconds: 1,
    method: { tcp: 'as it is' },
    series: [
      { case: 'tcp', metric: 'throughput', title: 'TCP <1>', unit: 'Gbit/s', better: 'more', values },
      {
        case: 'ping',
        metric: 'p50',
        title: 'ping',
        unit: 'us',
        better: 'less',
        values: { native: about(ping), naive: about(15), vxlan: about(3) },
      },
    ],
  }
  const machine = { kernel: '6.18', cpu: 'a CPU', cores: 2, memoryGiB: 4, node: '20', congestionControl: 'bbr' }
  return { schema: 2, date: '2026-01-02T00:00:00Z', commit: 'abc', machine, parts: [part] }
}

describe('tables', () => {
  it('show the median, the spread, and ratios to vxlan and naive', () => {
    const lines = textTable(result(10)).split('\n')
    expect(lines[0]).toMatch(/^TCP <1>, Gbit\/s +median +spread +of vxlan +of naive$/)
    expect(lines[1]).toMatch(/^ {2}native +10\.0 +\+-2% +0\.50 x +5\.00 x$/)
  })

  it('name the commit of a part if it differs from the commit of the result, and the ends of the part', () => {
    const run = result(10)
    const part = { ...run.parts[0]!, name: 'containers', ends: 'containers', commit: 'def' } as const
    expect(describeRun({ ...run, parts: [...run.parts, part] })).toMatch(
      /commit abc; .*; plain link: 5 rounds, 1 s a sample; containers: 5 rounds, 1 s a sample, commit def$/,
    )
  })

  it('show a case that failed in all rounds as missing', () => {
    const { parts, ...rest } = result(10)
    const [plain] = parts
    const series = [{ ...plain!.series[0]!, values: { native: [], naive: about(2), vxlan: [0, 0, 0, 0, 0] } }]
    const lines = textTable({ ...rest, parts: [{ ...plain!, series }] }).split('\n')
    expect(lines[1]).toMatch(/^ {2}native +- +- +- +-$/)
    expect(lines[3]).toMatch(/^ {2}vxlan +0\.00 +- +- +0\.00 x$/)
  })

  it('summarise the chosen metrics: medians, then a ratio with its spread', () => {
    const chosen = { rows: ['tcp throughput'], paths: ['native', 'vxlan', 'veth'], path: 'native', reference: 'vxlan' }
    const lines = summaryTable(result(10).parts[0]!, chosen).split('\n')
    expect(lines[1]).toBe('                 native  vxlan    x vxlan')
    expect(lines[2]).toBe('TCP <1>, Gbit/s    10.0   20.0  0.50 +-0%')
    expect(lines).toHaveLength(4)
  })
})

describe('compare', () => {
  const line = (before: Result, after: Result, start: number): string => compareTable(before, after).split('\n')[start]!

  it('decides between better and worse by the ratio to vxlan in the same run', () => {
    // The whole machine was twice as fast: the engine has not changed.
    expect(line(result(10, { vxlan: 20 }), result(20, { vxlan: 40 }), 2)).toMatch(
      /native .*2\.00 x +1\.00 x +unresolved/,
    )
    expect(line(result(10), result(12), 2)).toMatch(/native .*1\.20 x +1\.20 x +better/)
    expect(line(result(10), result(8), 2)).toMatch(/0\.80 x +worse/)
  })

  it('knows that less of a latency is better', () => {
    expect(line(result(10, { ping: 30 }), result(10, { ping: 20 }), 6)).toMatch(/native .*0\.67 x +better/)
  })

  it('reports that there is nothing to compare', () => {
    expect(compareTable({ ...result(1), parts: [] }, result(1))).toMatch(/no case in common/)
  })
})

describe('chart', () => {
  const draw = (native: number, ping: number): string =>
    chart(result(native, { ping }).parts, {
      title: 'a & b',
      subtitle: '',
      path: 'native',
      rows: ['tcp throughput', 'ping p50', 'crr rate'],
      references: [['vxlan', 'kernel vxlan']],
    })
  const bars = (svg: string): { x: number; width: number }[] =>
    [...svg.matchAll(/<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="10" rx="1.5"/g)]
      .map((match) => ({ x: Number(match[1]), width: Number(match[2]) }))
      .filter(({ width }) => width !== 10) // the legend

  it('draws a bar for each measured ratio, with the same length for 2 x and 0.5 x', () => {
    const [twice, half] = bars(draw(40, 6))
    expect(twice!.width).toBeCloseTo(half!.width, 0)
    expect(half!.x + half!.width).toBeCloseTo(twice!.x, 0)
    expect(bars(draw(40, 6))).toHaveLength(2)
  })

  it('keeps every bar inside the picture, whatever the ratios', () => {
    for (const { x, width } of bars(draw(1e9, 1e9))) {
      expect(x).toBeGreaterThan(0)
      expect(x + width).toBeLessThan(900)
    }
  })

  it('escapes text', () => {
    expect(draw(10, 10)).toContain('a &amp; b')
    expect(draw(10, 10)).toContain('TCP &lt;1&gt;')
    expect(draw(10, 10)).not.toMatch(/NaN|undefined/)
  })
})

describe('micro', () => {
  it('gives bytes a cycle only where bytes and cycles are known', () => {
    const line = { name: 'checksum', label: '64 B', bytes: 64, ns: 2, cycles: 8, clock: 'cycles' } as const
    const series = microSeries([[line, { ...line, name: 'lookup', bytes: 0 }], [{ ...line, ns: 3, cycles: 16 }]])
    expect(series.map(({ case: name, unit, values }) => [name, unit, values['64 B']])).toEqual([
      ['checksum', 'ns', [2, 3]],
      ['checksum', 'bytes/cycle', [8, 4]],
      ['lookup', 'ns', [2]],
    ])
    expect(microSeries([[{ ...line, clock: 'none' }]])).toHaveLength(1)
  })
})

describe('figures', () => {
  const suite = JSON.parse(readFileSync(join(packageRoot, 'bench/results/suite.json'), 'utf8')) as Result

  it.each(['README.md', 'bench/README.md'])('in %s are those of the result', (name) => {
    const text = readFileSync(join(packageRoot, name), 'utf8')
    expect(text).toContain('<!-- figures: ')
    expect(fillFigures(text, figureBlocks(suite)), 'run: npm run bench -- report').toBe(text)
  })

  it('in the chart are those of the result', () => {
    expect(resultChart(suite)).toBe(readFileSync(join(packageRoot, 'bench/results/chart.svg'), 'utf8'))
  })

  it('of the README are four, or none if one of the four was not measured', () => {
    const four = figureBlocks(suite)['four']!
    expect(four.split('\n')).toHaveLength(4)
    expect(four).toMatch(
      /\*\*One TCP stream .* Gbit\/s\*\*, \d+\.\d+ x kernel vxlan, \d+\.\d+ x a forwarder with one packet/,
    )
    expect(four).not.toMatch(/NaN|undefined/)
    expect(figureBlocks(result(10))['four']).toBe('Not measured in this run.')
  })

  it('of an unknown name are a mistake', () => {
    expect(() => fillFigures('<!-- figures: nothing -->\n<!-- end -->', {})).toThrow(/nothing: there is no such block/)
  })
})
