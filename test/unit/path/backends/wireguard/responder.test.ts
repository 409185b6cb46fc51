// responder.test.ts - the secrets of an initiation that this node does not answer are erased.

import { afterEach, expect, it, vi } from 'vitest'
import { systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { Remote, writeFirst } from '../../../../../src/path/backends/wireguard/noise.ts'
import { A, pair, take } from '../../../../support/handshake-sides.ts'

afterEach(() => {
  vi.restoreAllMocks()
})

it('erases the secrets of a repeated initiation', () => {
  // Only the prototype of this transcript is used, because the responder's transcript is not accessible.
  const own = systemRandomness.keyPair()
  const { sent } = writeFirst(own, new Remote(own, own.publicKey), systemRandomness.keyPair(), Buffer.alloc(12))!
  const { a, b } = pair()
  a.handshakes.wanted(3, 0)
  const message = take(a)
  b.handshakes.message(A, message, 0)
  const wipe = vi.spyOn(Object.getPrototypeOf(sent.transcript) as typeof sent.transcript, 'wipe')
  b.handshakes.message(A, message, 1_000)
  expect(b.keys).toHaveLength(1)
  expect(wipe).toHaveBeenCalledOnce()
})
