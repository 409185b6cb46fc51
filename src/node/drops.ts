// drops.ts - reports the packets that the data path dropped last, as the content of /drops.json.

import { addon } from '../host/addon.ts'
import { formatAddress } from '../net/address.ts'
import { DROPS_SCHEMA, type DropsReport } from '../report/drops.ts'
import { isDrop } from '../report/status.ts'
import type { Node } from './node.ts'
import { devicesOf } from './report.ts'

/** An explanation of each reason for which packets are dropped, by the reason's name. */
const TEXTS: ReadonlyMap<string, string> = new Map(
  addon.counterNames.map((name, at) => [name, addon.counterTexts[at] ?? ''] as const).filter(([name]) => isDrop(name)),
)

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex')

/**
 * Reports the packets that the engine dropped since an earlier report. `after` is the member `next` of that earlier
 * report.
 */
export function dropsReportOf(
  { ownership: { dataPath }, config, names }: Pick<Node, 'ownership' | 'config' | 'names'>,
  after: DropsReport['next'],
): DropsReport {
  const carrier = dataPath?.carrier()
  // Read the counters first. A packet that is dropped after that appears in this report's list and in the next report's
  // count.
  const counts = Object.entries(dataPath?.counters() ?? {}).filter(([name]) => TEXTS.has(name))
  const { packets, next } = dataPath?.drops(after) ?? { packets: [], next: [] }
  return {
    schema: DROPS_SCHEMA,
    at: new Date().toISOString(),
    device: carrier?.device ?? null,
    devices: devicesOf(dataPath, config),
    engine: carrier?.engine ?? null,
    reasons: Object.fromEntries(
      counts.map(([name, count]) => [name, { packets: Number(count), means: TEXTS.get(name) ?? '' }]),
    ),
    packets: packets
      .map(({ atUs, reason, packets: number, length, peer, encapBytes, headers }) => ({
        atUs,
        reason,
        direction: reason.startsWith('tx_') ? ('out' as const) : ('in' as const),
        packets: number,
        length: length - encapBytes,
        peer: peer === 0 ? null : formatAddress(peer),
        peerName: names.get(formatAddress(peer)) ?? null,
        encap: hex(headers.subarray(0, encapBytes)),
        headers: hex(headers.subarray(encapBytes)),
      }))
      .toSorted((a, b) => a.atUs - b.atUs),
    next: [...next],
  }
}
