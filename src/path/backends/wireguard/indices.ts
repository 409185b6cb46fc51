// indices.ts - hides a peer's number in the indices of WireGuard's messages. native/core/index_code.h implements the same permutation and
// explains it. Pure.

/** The lowest bits of an index, which number the handshakes of a peer; the bits above them are the peer's number. */
export const LOW_BITS = 12
export const LOW_MASK = (1 << LOW_BITS) - 1
export const INDEX_KEY_BYTES = 32

const ROUNDS = [0, 1, 2, 3] as const

interface Indices {
  /** Returns the index of a peer's handshake; `low` is the handshake's number among those of the peer. */
  readonly of: (peer: number, low: number) => number
  /** Returns the peer's number, if this process made the index; else any number. */
  readonly peerOf: (index: number) => number
}

/** `secret` has 32 bits. Without a key the permutation uses zeros, so that the secret alone hides the numbers. */
export function createIndices(secret: number, key: Uint8Array = new Uint8Array(INDEX_KEY_BYTES)): Indices {
  const view = new DataView(key.buffer, key.byteOffset, INDEX_KEY_BYTES)
  /** The round function: mixes a half of 16 bits with two words of the key. */
  const mixed = (half: number, round: number): number => {
    const once = Math.imul(half + 1, view.getUint32(8 * round, true))
    return Math.imul(once ^ (once >>> 15), view.getUint32(8 * round + 4, true)) >>> 16
  }
  return {
    of(peer, low) {
      const value = (peer << LOW_BITS) | low
      let [left, right] = [value >>> 16, value & 0xffff]
      for (const round of ROUNDS) [left, right] = [right, left ^ mixed(right, round)]
      return (((left << 16) | right) ^ secret) >>> 0
    },
    peerOf(index) {
      const value = index ^ secret
      let [left, right] = [value >>> 16, value & 0xffff]
      for (const round of ROUNDS.toReversed()) [left, right] = [right ^ mixed(left, round), left]
      return ((left << 16) | right) >>> LOW_BITS
    },
  }
}
