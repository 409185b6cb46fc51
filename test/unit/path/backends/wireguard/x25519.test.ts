// x25519.test.ts - X25519 and its keys, against the vectors of the RFC.

import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import { dh, keyPairOf, newKeyPair, publicKeyOf } from '../../../../../src/path/backends/wireguard/x25519.ts'

const bytes = (hex: string): Buffer => Buffer.from(hex, 'hex')
const hexOf = (of: Uint8Array | undefined): string | undefined => of && Buffer.from(of).toString('hex')

describe('X25519', () => {
  it('agrees on the secret of RFC 7748, section 6.1', () => {
    const bob = keyPairOf(bytes('5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb'))
    expect(hexOf(bob.publicKey)).toBe('de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f')
    const alice = publicKeyOf(bytes('8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a'))
    expect(hexOf(dh(bob.privateKey, alice))).toBe('4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742')
  })

  // Public keys of order 1, 2, 4 and 8 (https://cr.yp.to/ecdh.html#validate).
  it.each([
    '0000000000000000000000000000000000000000000000000000000000000000',
    '0100000000000000000000000000000000000000000000000000000000000000',
    'e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800',
    '5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157',
    'ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f',
  ])('has no secret with %s', (key) => {
    expect(dh(newKeyPair().privateKey, publicKeyOf(bytes(key)))).toBeUndefined()
  })

  it('creates different keys that agree, and never prints a private one', () => {
    const [a, b] = [newKeyPair(), newKeyPair()]
    expect(a.publicKey).toHaveLength(32)
    expect(a.publicKey).not.toEqual(b.publicKey)
    expect(dh(a.privateKey, publicKeyOf(b.publicKey))).toEqual(dh(b.privateKey, publicKeyOf(a.publicKey)))
    const { d } = a.privateKey.export({ format: 'jwk' })
    expect(inspect(a) + JSON.stringify(a)).not.toContain(d)
  })

  it('throws errors that the other key did not cause', () => {
    const { publicKey } = newKeyPair()
    expect(() => dh(publicKeyOf(publicKey), publicKeyOf(publicKey))).toThrow()
  })
})
