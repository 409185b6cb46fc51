// fips.ts - for NODE_OPTIONS=--import: a Node.js whose OpenSSL has none of WireGuard's primitives, as in FIPS mode.

import crypto from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'

type Call = (...args: unknown[]) => unknown
const functions = crypto as unknown as Record<string, Call>

/** Refuses where the first word is one of these; always where there are none. */
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
