// indices.ts - hides a peer's number in the indices of WireGuard's messages by a permutation of 32-bit numbers. Pure.
// native/core/index_code.h implements the same permutation and explains it.

/**
 * The number of low bits of an unpermuted index. These bits count the handshakes of a peer; the higher bits are the
 * peer's number.
 */
export const LOW_BITS = 12
export const LOW_MASK = (1 << LOW_BITS) - 1
export const INDEX_KEY_BYTES = 32

const ROUNDS = [0, 1, 2, 3] as const

interface Indices {
  /**
   * Returns the index for a peer's handshake; `low` is the handshake's number, which counts only the handshakes of this
   * peer.
   */
  readonly of: (peer: number, low: number) => number
  /**
   * Returns the peer's number from an index that this process made. For any other index the result is an arbitrary
   * number.
   */
  readonly peerOf: (index: number) => number
}

/**
 * Returns the permutation and its inverse. `secret` is a random number of 32 bits. If `key` is left out, only the
 * secret hides the peers' numbers.
 */
export function createIndices(secret: number, key: Uint8Array = new Uint8Array(INDEX_KEY_BYTES)): Indices {
  const view = new DataView(key.buffer, key.byteOffset, INDEX_KEY_BYTES)
  /**
   * Returns a 16-bit hash of half an index and two words of the key: the round function of the permutation (a Feistel
   * network).
   */
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
