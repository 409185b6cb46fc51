// x25519.ts - X25519 (RFC 7748) by Node's crypto, and its keys, of 32 bytes.
//
// Private keys stay in OpenSSL, whose KeyObject shows nothing of them and is wiped as it is freed. They are made there, and public ones
// imported as a JWK, since Node takes ten times as long for a key in DER. None is exported: Node 20 holds a key's lock while it makes the
// strings of a JWK, and a garbage collection at that moment waits for the same lock, to free what generated the key, for ever. So
// the public key is computed as RFC 7748, section 6.1, does: the secret with the base point.

import { createPrivateKey, createPublicKey, diffieHellman, generateKeyPairSync, type KeyObject } from 'node:crypto'

export type { KeyObject } from 'node:crypto'

export const KEY_BYTES = 32

export interface KeyPair {
  readonly privateKey: KeyObject
  readonly publicKey: Uint8Array
}

/** Any 32 bytes are a public key. */
export const publicKeyOf = (bytes: Uint8Array): KeyObject =>
  createPublicKey({ key: { kty: 'OKP', crv: 'X25519', x: Buffer.from(bytes).toString('base64url') }, format: 'jwk' })

/** Made when it is first needed: a Node.js without X25519 is to say so, and not to fail as it loads this. */
let basePoint: KeyObject | undefined

function pairOf(privateKey: KeyObject): KeyPair {
  basePoint ??= publicKeyOf(Uint8Array.of(9, ...new Uint8Array(KEY_BYTES - 1)))
  return { privateKey, publicKey: diffieHellman({ privateKey, publicKey: basePoint }) }
}

/** An ephemeral key. */
export const newKeyPair = (): KeyPair => pairOf(generateKeyPairSync('x25519').privateKey)

/** The head of a private key of X25519 in PKCS #8 (RFC 8410 section 7). */
const PKCS8_HEAD = Uint8Array.of(0x30, 46, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 34, 4, 32)

/** The key pair of a private key; any 32 bytes are one (RFC 7748 section 5). The caller wipes what it gave. */
export function keyPairOf(privateBytes: Uint8Array): KeyPair {
  const der = Buffer.concat([PKCS8_HEAD, privateBytes])
  try {
    return pairOf(createPrivateKey({ key: der, format: 'der', type: 'pkcs8' }))
  } finally {
    der.fill(0)
  }
}

/** X25519; undefined where it would be all zeros, by a public key of small order: OpenSSL refuses those (RFC 7748 section 6.1). */
export function dh(privateKey: KeyObject, publicKey: KeyObject): Buffer | undefined {
  try {
    return diffieHellman({ privateKey, publicKey })
  } catch (error) {
    if (error instanceof TypeError) throw error // what was given is no such key; the code of the other differs by OpenSSL's version
    return undefined
  }
}
