// noise.test.ts - the two messages, against a recorded vector of another implementation, and with all kinds of errors.

import { inspect } from 'node:util'
import { describe, expect, it, vi } from 'vitest'
import { SecretBytes } from '../../../../../src/base/secret.ts'
import { seal, systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import {
  firstMessageBytes,
  readFirst,
  readSecond,
  Remote,
  secondMessageBytes,
  startOf,
  writeFirst,
  writeSecond,
} from '../../../../../src/path/backends/wireguard/noise.ts'
import { keyPairOf } from '../../../../../src/path/backends/wireguard/x25519.ts'

const bytes = (hex: string): Buffer => Buffer.from(hex, 'hex')

describe('the vector of cacophony (vectors/cacophony.txt, Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s)', () => {
  const start = startOf('John Galt')
  const psk = new SecretBytes(Buffer.from('This is my Austrian perspective!'))
  const initiator = keyPairOf(bytes('e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1'))
  const responder = keyPairOf(bytes('4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893'))
  const ephemerals = [
    keyPairOf(bytes('893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a')),
    keyPairOf(bytes('bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b')),
  ] as const
  const MESSAGES = [
    'ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944001e21de9f98ddd8e2ad57527207feb56253c9c94a9e4967' +
      '82ecfcb2a75fbcaf1b52948cc48daefe660c62119ab5000980c84831215f2441eba616548e832985464cf17e51ee93109008399a21f7e13f',
    '95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843cb765f2caef0751b8f007572dab0322217755c0632f36571' +
      '7edbf34d33e87a',
    '8153ca9833bc3c1b91a7e66e5f4d4f5b59bf9e64c2f20d15f0bba7',
    '07af0c9c86e1b4e80f36b04ff7688d51141af3debd0332f0a705ef',
  ]

  it('is written and read exactly, and gives its keys', () => {
    const to = new Remote(initiator, responder.publicKey)
    const first = writeFirst(initiator, to, ephemerals[0], Buffer.from('Ludwig von Mises'), start)!
    expect(first.message.toString('hex')).toBe(MESSAGES[0])
    expect(first.message).toHaveLength(firstMessageBytes('Ludwig von Mises'.length))
    const known = new Remote(responder, initiator.publicKey)
    const received = readFirst(
      responder,
      first.message,
      (key) => (known.publicKey.every((byte, at) => byte === key[at]) ? known : undefined),
      start,
    )!
    expect(received.from).toBe(known)
    expect(received.payload.toString()).toBe('Ludwig von Mises')
    const second = writeSecond(received, ephemerals[1], psk, Buffer.from('Murray Rothbard'))!
    expect(second.message.toString('hex')).toBe(MESSAGES[1])
    expect(second.message).toHaveLength(secondMessageBytes('Murray Rothbard'.length))
    const answer = readSecond(initiator, first.sent, second.message, psk)!
    expect(answer.payload.toString()).toBe('Murray Rothbard')
    const sealed = (key: Uint8Array, text: string): string =>
      seal(key, Buffer.from(text), Buffer.alloc(0)).toString('hex')
    expect(sealed(answer.keys.sendKey, 'F. A. Hayek')).toBe(MESSAGES[2])
    expect(sealed(second.keys.sendKey, 'Carl Menger')).toBe(MESSAGES[3])
    expect(answer.keys.receiveKey).toEqual(second.keys.sendKey)
    expect(second.keys.receiveKey).toEqual(answer.keys.sendKey)
  })
})

describe('the prologue of WireGuard', () => {
  it('begins a handshake with the chaining key and the hash that every WireGuard has', () => {
    // Computed with hashlib.blake2s of Python, from the texts in section 5.4 of the paper.
    const start = startOf('WireGuard v1 zx2c4 Jason@zx2c4.com')
    expect(Buffer.from(start.ck).toString('hex')).toBe(
      '60e26daef327efc02ec335e2a025d2d016eb4206f87277f52d38d1988b78cd36',
    )
    expect(Buffer.from(start.h).toString('hex')).toBe(
      '2211b361081ac566691243db458ad5322d9c6c662293e8b70ee19c65ba079ef3',
    )
    const [a, b] = [systemRandomness.keyPair(), systemRandomness.keyPair()]
    const { message } = writeFirst(a, new Remote(a, b.publicKey), systemRandomness.keyPair(), Buffer.alloc(12))!
    expect(readFirst(b, message, () => new Remote(b, a.publicKey), start)).toBeDefined()
    expect(readFirst(b, message, () => new Remote(b, a.publicKey), startOf(''))).toBeUndefined()
  })
})

describe('two nodes', () => {
  const [a, b] = [systemRandomness.keyPair(), systemRandomness.keyPair()]
  const toB = new Remote(a, b.publicKey)
  const toA = new Remote(b, a.publicKey)
  const payload = Buffer.from('twelve bytes')
  const begin = () => writeFirst(a, toB, systemRandomness.keyPair(), payload)!
  const psk = () => new SecretBytes(Buffer.alloc(32, 7))

  it('send messages of fixed lengths that never repeat', () => {
    const { message } = begin()
    expect(message).toHaveLength(firstMessageBytes(12))
    expect(begin().message).not.toEqual(message)
    const received = readFirst(b, message, () => toA)!
    expect(writeSecond(received, systemRandomness.keyPair(), undefined)!.message).toHaveLength(secondMessageBytes(0))
  })

  it('treat a missing psk as one of zeros', () => {
    const { message, sent } = begin()
    const second = writeSecond(
      readFirst(b, message, () => toA)!,
      systemRandomness.keyPair(),
      undefined,
    )!
    expect(readSecond(a, sent, second.message, new SecretBytes(Buffer.alloc(32)))?.keys.receiveKey).toEqual(
      second.keys.sendKey,
    )
  })

  it('get no keys with different psks, keys or messages', () => {
    const { message, sent } = begin()
    const second = writeSecond(
      readFirst(b, message, () => toA)!,
      systemRandomness.keyPair(),
      psk(),
    )!
    expect(readSecond(a, sent, second.message, undefined)).toBeUndefined()
    expect(readSecond(b, sent, second.message, psk())).toBeUndefined()
    expect(readSecond(a, begin().sent, second.message, psk())).toBeUndefined()
    for (const at of [0, 31, 32, 47]) {
      const other = Buffer.from(second.message)
      other[at]! ^= 1
      expect(readSecond(a, sent, other, psk())).toBeUndefined()
    }
    // None of these attempts changed the state.
    expect(readSecond(a, sent, second.message, psk())?.keys.sendKey).toEqual(second.keys.receiveKey)
  })

  it('refuse a first message for another node, from an unknown node, or changed', () => {
    const { message } = begin()
    expect(readFirst(systemRandomness.keyPair(), message, () => toA)).toBeUndefined()
    expect(readFirst(b, message, () => undefined)).toBeUndefined()
    expect(readFirst(b, message, () => new Remote(b, systemRandomness.keyPair().publicKey))).toBeUndefined()
    for (let at = 0; at < message.length; at += 1) {
      const other = Buffer.from(message)
      other[at]! ^= 0x10
      expect(readFirst(b, other, () => toA)).toBeUndefined()
    }
  })

  it('get no keys with a public key of small order in any position', () => {
    const zeros = new Uint8Array(32)
    expect(writeFirst(a, new Remote(a, zeros), systemRandomness.keyPair(), payload)).toBeUndefined()
    const { message, sent } = begin()
    expect(readFirst(b, Buffer.concat([zeros, message.subarray(32)]), () => toA)).toBeUndefined()
    expect(readFirst(b, message, () => new Remote(b, zeros))).toBeUndefined()
    expect(readSecond(a, sent, Buffer.alloc(48), undefined)).toBeUndefined()
    const received = readFirst(b, message, () => toA)!
    const from = new Remote(b, zeros)
    expect(writeSecond({ ...received, from }, systemRandomness.keyPair(), undefined)).toBeUndefined()
  })

  it('wipe and never print their secrets', () => {
    const { message, sent } = begin()
    expect(inspect([sent.transcript, toB.shared], { depth: 9, showHidden: true })).toBe(
      '[ Transcript {}, <hidden>, [length]: 2 ]',
    )
    const received = readFirst(b, message, () => toA)!
    const wipe = vi.spyOn(received.transcript, 'wipe')
    const second = writeSecond(received, systemRandomness.keyPair(), undefined)!
    expect(wipe).toHaveBeenCalledOnce()
    sent.transcript.wipe()
    expect(readSecond(a, sent, second.message, undefined)).toBeUndefined()
    const shared = toB.shared!
    expect(toB.shared).toBe(shared) // it is computed once
    const copy = Buffer.from(shared.reveal())
    toB.wipe()
    expect(Buffer.from(shared.reveal())).toEqual(Buffer.alloc(32))
    expect(toB.shared!.reveal()).toEqual(copy)
    const result = Buffer.alloc(32, 0x5a)
    begin().sent.transcript.mix(result)
    expect(result).toEqual(Buffer.alloc(32))
  })
})
