// x25519.ts - X25519 (RFC 7748) with Node's crypto, and the import of keys of 32 bytes.
//
// Private keys stay in OpenSSL: a KeyObject does not reveal the key, and OpenSSL erases the key when it frees the
// object. Public keys are imported as a JWK, because Node takes ten times as long to import DER. weftd exports no key:
// Node 20 holds a key's lock while it creates the strings of a JWK, and a garbage collection at that moment waits for
// the same lock for ever. So the public key is computed as in RFC 7748, section 6.1: the private key times the base
// point.

import { createPrivateKey, createPublicKey, diffieHellman, generateKeyPairSync, type KeyObject } from 'node:crypto'

export type { KeyObject } from 'node:crypto'

export const KEY_BYTES = 32

export interface KeyPair {
  readonly privateKey: KeyObject
  readonly publicKey: Uint8Array
}

/** Imports a public key. Any 32 bytes are a valid key. */
export const publicKeyOf = (bytes: Uint8Array): KeyObject =>
  createPublicKey({ key: { kty: 'OKP', crv: 'X25519', x: Buffer.from(bytes).toString('base64url') }, format: 'jwk' })

/**
 * The base point of X25519 as a public key. It is created only when it is first needed, so that a Node.js without
 * X25519 can load this file, and weftd can report the lack.
 */
let basePoint: KeyObject | undefined

function pairOf(privateKey: KeyObject): KeyPair {
  basePoint ??= publicKeyOf(Uint8Array.of(9, ...new Uint8Array(KEY_BYTES - 1)))
  return { privateKey, publicKey: diffieHellman({ privateKey, publicKey: basePoint }) }
}

export const newKeyPair = (): KeyPair => pairOf(generateKeyPairSync('x25519').privateKey)

/** The header of an X25519 private key in PKCS #8 (RFC 8410, section 7), before the key's 32 bytes. */
const PKCS8_HEAD = Uint8Array.of(0x30, 46, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 34, 4, 32)

/**
 * Returns the key pair for a private key of any 32 bytes (RFC 7748, section 5). The caller must erase `privateBytes`.
 */
export function keyPairOf(privateBytes: Uint8Array): KeyPair {
  const der = Buffer.concat([PKCS8_HEAD, privateBytes])
  try {
    return pairOf(createPrivateKey({ key: der, format: 'der', type: 'pkcs8' }))
  } finally {
    der.fill(0)
  }
}

/**
 * Returns the X25519 shared secret. Returns undefined for a public key of small order, because the shared secret would
 * be all zeros, which OpenSSL refuses (RFC 7748, section 6.1).
 */
export function dh(privateKey: KeyObject, publicKey: KeyObject): Buffer | undefined {
  try {
    return diffieHellman({ privateKey, publicKey })
  } catch (error) {
    if (error instanceof TypeError) throw error // an argument is not such a key; the error code of the other case differs between versions of OpenSSL
    return undefined
  }
}
