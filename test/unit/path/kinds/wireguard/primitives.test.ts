// primitives.test.ts - what is told of a Node.js that lacks what WireGuard's handshake is made of.

import * as nodeCrypto from 'node:crypto'
import { expect, it } from 'vitest'
import { lackingPrimitives, type Crypto } from '../../../../../src/path/kinds/wireguard/primitives.ts'

/** As OpenSSL has it in FIPS mode, whose words differ by version. */
function refuse(): never {
  throw new Error('error:0308010C:digital envelope routines::unsupported')
}

it('is nothing of this one', () => expect(lackingPrimitives()).toEqual([]))

it.each<[names: readonly string[], without: Partial<Crypto>]>([
  [['X25519'], { generateKeyPairSync: refuse }],
  [['X25519'], { diffieHellman: refuse }],
  [['BLAKE2s'], { createHash: refuse }],
  [['BLAKE2s'], { createHmac: refuse }],
  [['ChaCha20-Poly1305'], { createCipheriv: refuse }],
  [
    ['X25519', 'BLAKE2s', 'ChaCha20-Poly1305'],
    { generateKeyPairSync: refuse, createHash: refuse, createCipheriv: refuse },
  ],
])('is %j where that is refused: case %#', (names, without) => {
  expect(lackingPrimitives({ ...nodeCrypto, ...without })).toEqual(names)
})
