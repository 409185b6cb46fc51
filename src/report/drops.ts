// drops.ts - the schema of /drops.json, the report of the packets that were dropped most recently. Pure. docs/weft.md
// describes every field.
//
// Later versions of weft may add fields without a new schema version. Unknown values are null.

import type { Family } from '../net/address.ts'

export const DROPS_SCHEMA = 1

/** The first bytes and the metadata of one dropped packet. */
export interface DroppedPacket {
  /**
   * When the engine read the dropped packet, in microseconds since 1970. Packets that the engine read in one batch have
   * the same time.
   */
  readonly atUs: number
  /** The direction of the dropped packet. `out`: to a peer; `in`: from a peer. */
  readonly direction: 'out' | 'in'
  /** The name of the drop counter that counted this packet; the member `reasons` of the report explains the counter. */
  readonly reason: string
  /**
   * The number of dropped packets in this entry. It is more than 1 for a superpacket, which consists of several merged
   * segments.
   */
  readonly packets: number
  readonly length: number
  /**
   * The underlay address of the dropped datagram: its source if `direction` is `in`, its destination if `direction` is
   * `out`.
   */
  readonly peer: string | null
  /** The host name of the peer with the address `peer`, as in the status. */
  readonly peerName: string | null
  /** The encapsulation header in hexadecimal, if the datagram contained no valid packet; else empty. */
  readonly encap: string
  /** The first bytes of the packet in hexadecimal; empty if the packet is encrypted. */
  readonly headers: string
}

export interface DropsReport {
  readonly schema: typeof DROPS_SCHEMA
  readonly at: string
  /** The name of the data path's device, as in the status; null if the data path is not open. */
  readonly device: string | null
  readonly devices: Readonly<Record<Family, string | null>>
  readonly engine: string | null
  /**
   * All reasons for drops, with the number of packets dropped since the data path was opened. The number also counts
   * dropped packets that the list `packets` does not contain.
   */
  readonly reasons: Readonly<Record<string, { readonly packets: number; readonly means: string }>>
  /** The recorded dropped packets, oldest first. */
  readonly packets: readonly DroppedPacket[]
  /**
   * The value for the parameter `after` of the next request, as in `/drops.json?after=1,2`. The report for that request
   * lists only packets that were dropped later.
   */
  readonly next: readonly number[]
}

/**
 * The reasons for which weft knows only the number of dropped packets, because the kernel dropped them before the
 * engine read them.
 */
export const HEADLESS: ReadonlySet<string> = new Set(['tx_drop_queue_full', 'rx_drop_socket_full'])

export const noDrops = (at: string): DropsReport => ({
  schema: DROPS_SCHEMA,
  at,
  device: null,
  devices: { ipv4: null, ipv6: null },
  engine: null,
  reasons: {},
  packets: [],
  next: [],
})

/** Parses the parameter `after`, such as `1,2,3`. Returns undefined if the text is not a list of numbers. */
export function parseAfter(text: string): number[] | undefined {
  if (text === '') return []
  const numbers = text.split(',').map((word) => (/^\d{1,16}$/.test(word) ? Number(word) : NaN))
  return numbers.every((number) => Number.isSafeInteger(number)) ? numbers : undefined
}
