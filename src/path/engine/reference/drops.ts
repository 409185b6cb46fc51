// drops.ts - the packets that the dgram engine dropped last, each way; as native/core/drops.h.

import type { DroppedPacket, Drops } from '../../../../native/addon.d.ts'
import type { Address } from '../../../net/address.ts'
import { createBucket } from './bucket.ts'

/** The limits of native/core/drops.h. */
const KEPT = 256
const EVERY_US = 1_000
const HEADER_BYTES = 128

/** Facts about a dropped packet beside its bytes. */
export interface DropDetails {
  /** 0 when it is not known. */
  readonly peer?: Address
  /** The number of first bytes that the encapsulation put before a packet, if they are still there. */
  readonly encapBytes?: number
}

interface DropLog {
  add(reason: string, bytes: Buffer, details?: DropDetails): void
  read(after?: Drops['next']): Drops
}

/** `nowUs` is the time of the day in microseconds, `firstNumber` higher than those of an engine before. */
export function createDropLog(nowUs: () => number, firstNumber: number): DropLog {
  const ways = ['tx_', 'rx_'].map((prefix) => ({
    prefix,
    next: firstNumber,
    kept: [] as DroppedPacket[],
    mayKeep: createBucket(EVERY_US, KEPT),
  }))
  return {
    add(reason, bytes, { peer = 0, encapBytes = 0 } = {}) {
      const way = ways.find(({ prefix }) => reason.startsWith(prefix))
      const atUs = nowUs()
      if (!way?.mayKeep(atUs)) return
      const headers = Buffer.from(bytes.subarray(0, HEADER_BYTES))
      const about = { reason, packets: 1, length: bytes.length, peer, encapBytes: Math.min(encapBytes, headers.length) }
      way.kept.push({ ...about, atUs, headers })
      if (way.kept.length > KEPT) way.kept.shift()
      way.next++
    },
    read: (after = []) => ({
      next: ways.map(({ next }) => next),
      packets: ways.flatMap(({ next, kept }, at) => {
        const fresh = Math.min(kept.length, next - (after[at] ?? 0))
        return kept.slice(kept.length - fresh)
      }),
    }),
  }
}
