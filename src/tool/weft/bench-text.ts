// bench-text.ts - defines the report of `weft bench`, and formats it as text for a person. Pure.

import { titleOf } from '../../report/status.ts'
import type { Counts, InUse } from '../measure/conversation.ts'
import type { Both, Plan } from '../measure/plan.ts'
import type { Compared, Length, Result, Samples } from '../measure/result.ts'
import { bitRate, carrierText, milliseconds, table, type Screen } from './look.ts'

/**
 * The smallest percentage that the report shows as a number. A smaller percentage is shown as `less than` this number.
 */
const LEAST_PERCENT = 0.001

export interface About extends Both<string> {
  readonly peer: string
  readonly name?: string | null
  readonly port: number
  /**
   * The longest packet that passes inside the tunnel; undefined in a report of the project's own benchmark, which does
   * not measure it.
   */
  readonly length?: Length | null
}

export interface Report extends Result, About {
  readonly plan: Plan
  readonly samples: Samples
  readonly inUse: { readonly here: InUse; readonly there: InUse | null }
  readonly drops: { readonly here: Counts; readonly there: Counts | null }
}

export function textOf(report: Report, { colour }: Pick<Screen, 'colour'>): string {
  const { peer, name = null, outside, inside, plan, tcp, udp, roundTripMs, inUse, drops, notes } = report
  const or = (value: number | null, text: (value: number) => string): string => (value === null ? '-' : text(value))
  const times = (ratio: number): string => `${ratio.toFixed(2)} x`
  const percent = (value: number): string =>
    value > 0 && value < LEAST_PERCENT ? `< ${LEAST_PERCENT}%` : `${Number(value.toPrecision(3))}%`
  const compared = ({ outside: out, inside: within, ratio }: Compared, text: (value: number) => string): string[] => [
    or(out, text),
    or(within, text),
    or(ratio, times),
  ]
  const spread =
    tcp.leastRatio === null || tcp.mostRatio === null ? '' : `${times(tcp.leastRatio)} to ${times(tcp.mostRatio)}`
  const heading = `${titleOf({ name, subnet: peer })}, outside to ${outside}, inside to ${inside}; each path ${plan.pairs} x ${plan.seconds} s in turns\n\n`
  const rows = [
    ['', 'OUTSIDE', 'INSIDE', 'RATIO', 'OF EACH PAIR'],
    [`TCP, ${plan.streams} connection${plan.streams === 1 ? '' : 's'}`, ...compared(tcp, bitRate), spread],
    [
      `UDP, ${udp.datagramBytes} B, sent`,
      bitRate(udp.outside.sentBitsPerSecond),
      bitRate(udp.inside.sentBitsPerSecond),
    ],
    ['UDP, lost', percent(udp.outside.lossPercent), percent(udp.inside.lossPercent)],
    ['round trip, idle', ...compared(roundTripMs, milliseconds)],
  ]
  const carrier = (end: 'here' | 'there'): string => {
    const used = inUse[end]
    if (!used) return 'no weftd answers'
    const path = used.pathMtu === null ? '' : `, ${used.pathMtu} to the other end`
    return `${used.subnet}, ${carrierText(used)}${path}`
  }
  const dropped = (counts: Counts | null): string => {
    if (!counts) return '-'
    const all = Object.entries(counts).map(([reason, count]) => `${reason} ${count}`)
    return all.length === 0 ? 'none' : colour('doubtful', all.join(', '))
  }
  const facts = [
    ['here', carrier('here')],
    ['there', carrier('there')],
    ['drops here', dropped(drops.here)],
    ['drops there', dropped(drops.there)],
  ] as const
  return [
    heading,
    table(rows, colour),
    '\n',
    ...facts.map(([what, text]) => `${colour('dim', what.padEnd(13))}${text}\n`),
    ...(notes.length > 0 ? ['\n', ...notes.map((note) => `${colour('doubtful', note)}\n`)] : []),
  ].join('')
}
