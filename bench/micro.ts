// micro.ts - runs bench/native/micro.cc, which measures the duration of single functions of native/ that do no I/O.

import { output } from '../lab/command.ts'
import type { Progress } from '../scripts/progress.mjs'
import { nativeProgram } from './native.ts'
import type { Part, Series } from './result.ts'

interface Line {
  readonly name: string
  readonly label: string
  /** The number of bytes that one call processes; 0 if the duration of a call does not depend on a number of bytes. */
  readonly bytes: number
  readonly ns: number
  readonly cycles: number
  readonly clock: 'cycles' | 'tsc' | 'none'
}

const ABOUT: Readonly<Record<string, string>> = {
  memcpy: 'the speed of memory: a copy into one buffer',
  read: 'the speed of memory: the sum of 64-bit words',
  checksum: 'checksum_add()',
  parse: 'read_packet()',
  segment: 'Segmenter: the headers and checksums of all segments of a superpacket',
  coalesce: 'read_packet() and Coalescer: packets verified and joined to one write',
  lookup: 'PeerTable::find() for destinations in random order',
}

export const MICRO_SECONDS = 2

const CLOCKS = { cycles: 'bytes/cycle', tsc: 'bytes/tick of the time-stamp counter' }

/**
 * Converts the output of several runs of micro.cc into series of values: nanoseconds per call and, if the CPU's cycles
 * could be counted, bytes per cycle.
 */
export function microSeries(rounds: readonly (readonly Line[])[]): Series[] {
  const lines = rounds.flat()
  const byLabel = (name: string, value: (line: Line) => number): Record<string, number[]> => {
    const values: Record<string, number[]> = {}
    for (const line of lines.filter((each) => each.name === name)) (values[line.label] ??= []).push(value(line))
    return values
  }
  return [...new Set(lines.map(({ name }) => name))].flatMap((name): Series[] => {
    const ns: Series = {
      case: name,
      metric: 'ns',
      title: name,
      unit: 'ns',
      better: 'less',
      values: byLabel(name, (line) => line.ns),
    }
    const { bytes = 0, clock = 'none' } = lines.find((line) => line.name === name) ?? {}
    if (clock === 'none' || bytes === 0) return [ns]
    const values = byLabel(name, (line) => line.bytes / line.cycles)
    return [ns, { ...ns, metric: 'bytes', unit: CLOCKS[clock], better: 'more', values }]
  })
}

export async function measureMicro(rounds: number, progress: Progress): Promise<Part> {
  const program = await nativeProgram('micro', ['core/checksum', 'core/coalesce', 'core/peers', 'core/segment'])
  const runs: Line[][] = []
  for (let round = 0; round < rounds; round++) {
    progress.now(`micro: round ${round + 1} of ${rounds}`, MICRO_SECONDS)
    const text = await output([program])
    runs.push(
      text
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as Line),
    )
  }
  return { name: 'micro', rounds, seconds: 0.01, method: ABOUT, series: microSeries(runs) }
}
