// drops.ts - keeps the packets that the dgram engine dropped last, for each direction, like native/core/drops.h.

import type { DroppedPacket, Drops } from '../../../../native/addon.d.ts'
import type { Address } from '../../../net/address.ts'
import { createBucket } from './bucket.ts'

/**
 * The number of dropped packets that the log keeps for each direction. EVERY_US is the interval in microseconds between
 * two kept packets after a burst. These limits and the number of bytes kept of a packet are the same in
 * native/core/drops.h.
 */
const KEPT = 256
const EVERY_US = 1_000
const HEADER_BYTES = 128

export interface DropDetails {
  /** The address of the host that sent the packet or would receive it; 0 if it is not known. */
  readonly peer?: Address
  /** The number of bytes of the encapsulation's header at the start of the packet; 0 if the header was removed. */
  readonly encapBytes?: number
}

interface DropLog {
  add(reason: string, bytes: Buffer, details?: DropDetails): void
  read(after?: Drops['next']): Drops
}

/**
 * Creates an empty log of dropped packets. `nowUs` returns the time in microseconds since 1970. `firstNumber` must
 * exceed the packet numbers of all earlier engines, because readers request the packets after a given number.
 */
export function createDropLog(nowUs: () => number, firstNumber: number): DropLog {
  const directions = ['tx_', 'rx_'].map((prefix) => ({
    prefix,
    next: firstNumber,
    kept: [] as DroppedPacket[],
    mayKeep: createBucket(EVERY_US, KEPT),
  }))
  return {
    add(reason, bytes, { peer = 0, encapBytes = 0 } = {}) {
      const direction = directions.find(({ prefix }) => reason.startsWith(prefix))
      const atUs = nowUs()
      if (!direction?.mayKeep(atUs)) return
      const headers = Buffer.from(bytes.subarray(0, HEADER_BYTES))
      const about = { reason, packets: 1, length: bytes.length, peer, encapBytes: Math.min(encapBytes, headers.length) }
      direction.kept.push({ ...about, atUs, headers })
      if (direction.kept.length > KEPT) direction.kept.shift()
      direction.next++
    },
    read: (after = []) => ({
      next: directions.map(({ next }) => next),
      packets: directions.flatMap(({ next, kept }, at) => {
        const fresh = Math.min(kept.length, next - (after[at] ?? 0))
        return kept.slice(kept.length - fresh)
      }),
    }),
  }
}
