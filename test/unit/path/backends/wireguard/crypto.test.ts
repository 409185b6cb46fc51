// crypto.test.ts - the primitives against the test vectors of their specifications.

import { describe, expect, it } from 'vitest'
import {
  hash,
  hmac,
  isEqual,
  mac,
  open,
  openX,
  seal,
  sealX,
} from '../../../../../src/path/backends/wireguard/crypto.ts'

const bytes = (hex: string): Buffer => Buffer.from(hex, 'hex')
const counting = (length: number, from = 0): Uint8Array => Uint8Array.from({ length }, (_, index) => from + index)
const hexOf = (of: Uint8Array | undefined): string | undefined => of && Buffer.from(of).toString('hex')

describe('BLAKE2s', () => {
  it('hashes as RFC 7693, appendix B, in one part or many', () => {
    const abc = '508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982'
    expect(hexOf(hash('abc'))).toBe(abc)
    expect(hexOf(hash('a', Buffer.from('bc'), ''))).toBe(abc)
  })

  // The values are from hashlib of Python 3, which contains the reference code of BLAKE2.
  it.each([
    [32, 0, '9536f9b267655743dee97b8a670f9f53'],
    [32, 116, '072e94ffbfc684bd8ab2a1b9dade2fd5'],
    [16, 64, 'dd55c51c98f8ab96ed272882941f0b6a'],
  ])('with a key of %i bytes and a message of %i', (key, message, expected) => {
    expect(hexOf(mac(counting(key), counting(message)))).toBe(expected)
  })

  it('gives the HMAC of the concatenated parts', () => {
    expect(hmac(counting(32), counting(40))).toEqual(hmac(counting(32), counting(30), counting(10, 30)))
    expect(hmac(counting(32), counting(40))).not.toEqual(hash(counting(32), counting(40)))
  })
})

it('compares values of different lengths', () => {
  expect(isEqual(counting(16), counting(16))).toBe(true)
  expect(isEqual(counting(16), counting(16, 1))).toBe(false)
  expect(isEqual(counting(16), counting(15))).toBe(false)
})

describe('ChaCha20-Poly1305', () => {
  it('decrypts only what was encrypted with the same key and data', () => {
    const sealed = seal(counting(32), counting(12), counting(32))
    expect(sealed).toHaveLength(28)
    expect(open(counting(32), sealed, counting(32))).toEqual(Buffer.from(counting(12)))
    expect(open(counting(32, 1), sealed, counting(32))).toBeUndefined()
    expect(open(counting(32), sealed, counting(32, 1))).toBeUndefined()
    for (let at = 0; at < sealed.length; at += 1) {
      const other = Buffer.from(sealed)
      other[at]! ^= 1
      expect(open(counting(32), other, counting(32))).toBeUndefined()
    }
    expect(open(counting(32), seal(counting(32), new Uint8Array(0), counting(32)), counting(32))).toHaveLength(0)
  })
})

describe('XChaCha20-Poly1305', () => {
  const key = counting(32, 0x80)
  const nonce = counting(24, 0x40)
  const associated = bytes('50515253c0c1c2c3c4c5c6c7')
  const text = Buffer.from(
    "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.",
  )

  it('encrypts the vector of draft-irtf-cfrg-xchacha-03, appendix A.3.1', () => {
    expect(hexOf(sealX(key, nonce, text, associated))).toBe(
      'bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa6440bf3a82f4eda7e39' +
        'ae64c6708c54c216cb96b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9' +
        '21f9664c97637da9768812f615c68b13b52ec0875924c1c7987947deafd8780acf49',
    )
  })

  it('decrypts the vector, and refuses changed input', () => {
    const sealed = sealX(key, nonce, text, associated)
    expect(openX(key, nonce, sealed, associated)).toEqual(new Uint8Array(text))
    expect(openX(key, nonce, sealed, bytes('00'))).toBeUndefined()
    expect(openX(key, counting(24), sealed, associated)).toBeUndefined()
    expect(openX(counting(32), nonce, sealed, associated)).toBeUndefined()
    expect(openX(key, nonce, sealed.subarray(1), associated)).toBeUndefined()
  })
})
