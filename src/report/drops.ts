// drops.ts - the schema of /drops.json: the packets that were dropped most recently. docs/weft.md describes every field. Pure.
//
// New fields may be added under the same version, and unknown values are null, as in the status.

import type { Family } from '../net/address.ts'

export const DROPS_SCHEMA = 1

/** A dropped packet: its first bytes and its metadata. */
export interface DroppedPacket {
  /** Microseconds since 1970. Packets that the engine read in one batch have the same time. */
  readonly atUs: number
  /** `out`: to a peer; `in`: from a peer. */
  readonly direction: 'out' | 'in'
  /** The name of the counter that counted the packet; `reasons` explains it. */
  readonly reason: string
  /** The number of packets: a superpacket counts once for each segment. */
  readonly packets: number
  readonly length: number
  /** The address that the datagram came from (`in`) or was destined for (`out`). */
  readonly peer: string | null
  /** The name of the host that has this address, as in the status. */
  readonly peerName: string | null
  /** The bytes of the encapsulation header, in hexadecimal, if the datagram contained no valid packet; else empty. */
  readonly encap: string
  /** The first bytes of the packet, in hexadecimal. */
  readonly headers: string
}

export interface DropsReport {
  readonly schema: typeof DROPS_SCHEMA
  readonly at: string
  /** The device of the data path, as in the status; null if the data path is not open. */
  readonly device: string | null
  /** The device of each family. */
  readonly devices: Readonly<Record<Family, string | null>>
  readonly engine: string | null
  /** All possible reasons, each with the number of packets dropped since the data path was opened, including those not listed below. */
  readonly reasons: Readonly<Record<string, { readonly packets: number; readonly means: string }>>
  /** The recorded packets, oldest first. */
  readonly packets: readonly DroppedPacket[]
  /** The value of the parameter `after` that selects only later packets: `/drops.json?after=1,2`. */
  readonly next: readonly number[]
}

/** Reasons that have only a count, because the kernel dropped the packet before the engine saw it. */
export const HEADLESS: ReadonlySet<string> = new Set(['rx_drop_socket_full'])

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

/** Parses a list such as `1,2,3`. Returns undefined if the text is not a list of numbers. */
export function parseAfter(text: string): number[] | undefined {
  if (text === '') return []
  const numbers = text.split(',').map((word) => (/^\d{1,16}$/.test(word) ? Number(word) : NaN))
  return numbers.every((number) => Number.isSafeInteger(number)) ? numbers : undefined
}
