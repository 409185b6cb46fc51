// primitives.test.ts - what is told of a Node.js that lacks what WireGuard's handshake is made of.

import * as nodeCrypto from 'node:crypto'
import { expect, it, vi } from 'vitest'
import { lackingPrimitives, type Crypto } from '../../../../../src/path/backends/wireguard/primitives.ts'

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

it('does not keep the backend from being loaded: the kernel needs none of it', async () => {
  vi.resetModules()
  vi.doMock('node:crypto', async (original) => ({ ...(await original<typeof nodeCrypto>()), createHash: refuse }))
  try {
    const { createWireguardBackend } = await import('../../../../../src/path/backends/wireguard.ts')
    expect(createWireguardBackend).toBeTypeOf('function')
    // What weftd carries by itself is loaded only where it does: it hashes as it is loaded.
    await expect(import('../../../../../src/path/backends/wireguard/userspace.ts')).rejects.toThrow('unsupported')
  } finally {
    vi.doUnmock('node:crypto')
    vi.resetModules()
  }
})
