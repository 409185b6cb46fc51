// primitives.test.ts - the detection of a Node.js without the primitives of WireGuard's handshake.

import * as nodeCrypto from 'node:crypto'
import { expect, it, vi } from 'vitest'
import { lackingPrimitives, type Crypto } from '../../../../../src/path/backends/wireguard/primitives.ts'

/** The errors of OpenSSL in FIPS mode, whose texts differ between versions. */
function refuse(): never {
  throw new Error('error:0308010C:digital envelope routines::unsupported')
}

it('this Node.js lacks no primitive', () => expect(lackingPrimitives()).toEqual([]))

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
])('reports %j if OpenSSL refuses it: case %#', (names, without) => {
  expect(lackingPrimitives({ ...nodeCrypto, ...without })).toEqual(names)
})

it('the backend can be loaded without the primitives, because the kernel needs none', async () => {
  vi.resetModules()
  vi.doMock('node:crypto', async (original) => ({ ...(await original<typeof nodeCrypto>()), createHash: refuse }))
  try {
    const { createWireguardBackend } = await import('../../../../../src/path/backends/wireguard.ts')
    expect(createWireguardBackend).toBeTypeOf('function')
    // The code of weftd's own carrier is loaded only if it is used, because it hashes when it is loaded.
    await expect(import('../../../../../src/path/backends/wireguard/userspace.ts')).rejects.toThrow('unsupported')
  } finally {
    vi.doUnmock('node:crypto')
    vi.resetModules()
  }
})
