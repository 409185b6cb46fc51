// peer.test.ts - the secrets of a peer are erased with it.

import { expect, it, vi } from 'vitest'
import { SecretBytes } from '../../../../../src/base/secret.ts'
import { systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { writeFirst } from '../../../../../src/path/backends/wireguard/noise.ts'
import { Peer } from '../../../../../src/path/backends/wireguard/peer.ts'

it('erases the cookie, the pending initiation and the shared secret of a peer', () => {
  const [own, other] = [systemRandomness.keyPair(), systemRandomness.keyPair()]
  const endpoint = { address: 0x0a00_0001, port: 51_820 }
  const peer = new Peer({ number: 3, publicKey: other.publicKey, endpoint }, own, 0)
  const cookie = Buffer.alloc(16, 0x5a)
  peer.cookie = { bytes: new SecretBytes(cookie), until: 1 }
  const { sent } = writeFirst(own, peer, systemRandomness.keyPair(), Buffer.alloc(12))!
  peer.pending = { ...sent, index: 1, sentAt: 0, failure: 'no-answer' }
  const wipe = vi.spyOn(sent.transcript, 'wipe')
  const shared = peer.shared!.reveal()
  expect([...shared].some((byte) => byte !== 0)).toBe(true)
  peer.wipe()
  expect(cookie).toEqual(Buffer.alloc(16))
  expect(Buffer.from(shared)).toEqual(Buffer.alloc(32))
  expect(wipe).toHaveBeenCalledOnce()
  expect([peer.pending, peer.cookie]).toEqual([undefined, undefined])
})
