// primitives.ts - checks whether this Node.js has the primitives of WireGuard's handshake, some of which OpenSSL lacks
// in FIPS mode. The file loads no module that needs these primitives, so weftd can run this check before it loads such
// a module.

import * as nodeCrypto from 'node:crypto'

export type Crypto = Pick<
  typeof nodeCrypto,
  'generateKeyPairSync' | 'diffieHellman' | 'createHash' | 'createHmac' | 'createCipheriv'
>

type Use = (crypto: Crypto) => unknown

/**
 * The primitives by name, each with a function that uses the primitive as the handshake does and throws if the
 * primitive is missing.
 */
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

export const lackingPrimitives = (crypto: Crypto = nodeCrypto): readonly string[] =>
  USES.filter(([, use]) => {
    try {
      use(crypto)
      return false
    } catch {
      return true // any error counts, because the messages differ between versions of OpenSSL
    }
  }).map(([name]) => name)
