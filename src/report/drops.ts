// drops.ts - the schema of /drops.json: the packets that were dropped last; docs/weft.md has every field. Pure.
//
// As with the status, a field may be added under the same version, and what is not known is null.

import type { Family } from '../net/address.ts'

export const DROPS_SCHEMA = 1

/** A packet that was dropped, as far as it was kept. */
export interface DroppedPacket {
  /** Microseconds since 1970: those that the engine read at once have the same. */
  readonly atUs: number
  /** The direction: to peers or from them. */
  readonly direction: 'out' | 'in'
  /** The counter that has it; `reasons` says what it means. */
  readonly reason: string
  /** The number of packets in it: a superpacket counts as its segments. */
  readonly packets: number
  readonly length: number
  /** The address that the datagram came from, or was for. */
  readonly peer: string | null
  /** The name of the host that has this address, as in the status. */
  readonly peerName: string | null
  /** The bytes that the encapsulation put before it, in hexadecimal: of a datagram in which no packet was found, else empty. */
  readonly encap: string
  /** The first bytes, likewise. */
  readonly headers: string
}

export interface DropsReport {
  readonly schema: typeof DROPS_SCHEMA
  readonly at: string
  /** The device of the data path, as in the status; null while there is none. */
  readonly device: string | null
  /** Those of the families, likewise. */
  readonly devices: Readonly<Record<Family, string | null>>
  readonly engine: string | null
  /** All reasons that there are: how many packets were dropped for it since the data path was opened, kept or not. */
  readonly reasons: Readonly<Record<string, { readonly packets: number; readonly means: string }>>
  /** The kept packets, in the order of time. */
  readonly packets: readonly DroppedPacket[]
  /** The value of `after` by which only later packets are told: `/drops.json?after=1,2`. */
  readonly next: readonly number[]
}

/** Reasons for which the kernel dropped a packet before the engine saw it: there is nothing but the count. */
export const HEADLESS: ReadonlySet<string> = new Set(['rx_drop_socket_full'])

/** The report of a daemon without a node. */
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

/** `1,2,3`; undefined for what is no such list. */
export function parseAfter(text: string): number[] | undefined {
  if (text === '') return []
  const numbers = text.split(',').map((word) => (/^\d{1,16}$/.test(word) ? Number(word) : NaN))
  return numbers.every((number) => Number.isSafeInteger(number)) ? numbers : undefined
}
