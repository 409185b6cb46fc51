// indices.test.ts - an index reveals the peer's number only with the key.

import fc from 'fast-check'
import { expect, it } from 'vitest'
import {
  createIndices,
  INDEX_KEY_BYTES,
  LOW_BITS,
  LOW_MASK,
} from '../../../../../src/path/backends/wireguard/indices.ts'

const bits = fc.integer({ min: 0, max: 0xffff_ffff })
const peers = fc.integer({ min: 0, max: 2 ** (32 - LOW_BITS) - 1 })
const lows = fc.integer({ min: 0, max: LOW_MASK })
const keys = fc.uint8Array({ minLength: INDEX_KEY_BYTES, maxLength: INDEX_KEY_BYTES })

it('an index contains the number of the peer, with any key', () => {
  fc.assert(
    fc.property(bits, keys, peers, lows, (secret, key, peer, low) => {
      const { of, peerOf } = createIndices(secret, key)
      const index = of(peer, low)
      expect(index).toBe(index >>> 0)
      expect(peerOf(index)).toBe(peer)
    }),
  )
})

it('an index differs for each peer and each handshake', () => {
  fc.assert(
    fc.property(bits, keys, (secret, key) => {
      const { of } = createIndices(secret, key)
      const all = Array.from({ length: 4_000 }, (_, value) => of(value >> 4, value & 15))
      expect(new Set(all).size).toBe(all.length)
    }),
    { numRuns: 20 },
  )
})

it('an index reveals nothing about the indices of other peers', () => {
  const key = Uint8Array.from({ length: INDEX_KEY_BYTES }, (_, at) => (at * 73 + 41) & 0xff)
  const { of } = createIndices(0x1234_5678, key)
  // If the secret were only mixed in, the difference of two peers' indices would be that of their numbers, except in
  // the 12 lowest bits.
  const differences = Array.from({ length: 1_000 }, (_, low) => ((of(1, low) ^ of(2, low)) >>> LOW_BITS) >>> 0)
  expect(new Set(differences).size).toBeGreaterThan(990)
  const sameUpper = differences.filter((difference) => difference === (1 ^ 2))
  expect(sameUpper.length).toBeLessThan(3)
  // The indices of one peer also begin differently.
  const beginnings = Array.from({ length: 1_000 }, (_, low) => of(1, low) >>> LOW_BITS)
  expect(new Set(beginnings).size).toBeGreaterThan(990)
})

it('an index equals that of test_index_code in core_test.cc', () => {
  const key = Uint8Array.from({ length: INDEX_KEY_BYTES }, (_, at) => (at * 73 + 41) & 0xff)
  const { of } = createIndices(0x89ab_cdef, key)
  const found = [of(0, 0), of(1, 1), of(7, 0xabc), of(0xf_ffff, 0xfff)]
  expect(found.map((index) => index.toString(16))).toEqual(['866a21e1', 'e7ce4209', '6b2f096a', '70319ca6'])
  expect(createIndices(0x89ab_cdef).of(7, 0xabc)).toBe((0x7abc ^ 0x89ab_cdef) >>> 0)
})
