// primitives.ts - whether this Node.js has what WireGuard's handshake is made of: in FIPS mode OpenSSL has none of it.
//
// Loads nothing that needs any of them, so that it can be asked before they are.

import * as nodeCrypto from 'node:crypto'

export type Crypto = Pick<
  typeof nodeCrypto,
  'generateKeyPairSync' | 'diffieHellman' | 'createHash' | 'createHmac' | 'createCipheriv'
>

type Use = (crypto: Crypto) => unknown

/** Each as it will be used. */
const USES: readonly (readonly [name: string, use: Use])[] = [
  ['X25519', ({ generateKeyPairSync, diffieHellman }) => diffieHellman(generateKeyPairSync('x25519'))],
  [
    'BLAKE2s',
    ({ createHash, createHmac }) => [createHash('blake2s256').digest(), createHmac('blake2s256', 'key').digest()],
  ],
  [
    'ChaCha20-Poly1305',
    ({ createCipheriv }) =>
      createCipheriv('chacha20-poly1305', new Uint8Array(32), new Uint8Array(12), { authTagLength: 16 }).final(),
  ],
]

/** The names of those that it lacks. */
export const lackingPrimitives = (crypto: Crypto = nodeCrypto): readonly string[] =>
  USES.filter(([, use]) => {
    try {
      use(crypto)
      return false
    } catch {
      return true // whatever it says: the words differ by OpenSSL's version and by what keeps it from them
    }
  }).map(([name]) => name)
