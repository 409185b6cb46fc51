// fips.ts - loaded with NODE_OPTIONS=--import, removes WireGuard's primitives from Node.js, as OpenSSL's FIPS mode does.

import crypto from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'

type Call = (...args: unknown[]) => unknown
const functions = crypto as unknown as Record<string, Call>

/** Makes a function of node:crypto throw if its first argument is one of `words`; always if `words` is empty. */
function refuse(name: string, words: readonly string[] = []): void {
  const before = functions[name] as Call
  functions[name] = (...args) => {
    if (words.length > 0 && !words.includes(String(args[0]))) return before(...args)
    throw new Error('error:0308010C:digital envelope routines::unsupported')
  }
}
refuse('generateKeyPairSync', ['x25519'])
for (const name of ['diffieHellman', 'createPublicKey', 'createPrivateKey']) refuse(name)
for (const name of ['createHash', 'createHmac']) refuse(name, ['blake2s256'])
for (const name of ['createCipheriv', 'createDecipheriv']) refuse(name, ['chacha20-poly1305'])
syncBuiltinESMExports()
