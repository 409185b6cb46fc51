// crypto.ts - the primitives of WireGuard's handshake: Node's crypto, and @noble for the two that it lacks.
//
// X25519 is RFC 7748, ChaCha20-Poly1305 RFC 8439, BLAKE2s RFC 7693, HMAC RFC 2104, XChaCha20-Poly1305 draft-irtf-cfrg-xchacha. Keys are of 32
// bytes. Nothing here reads a clock; what is drawn at random is drawn in `systemRandomness`, which is handed to whoever needs it.
// Private keys stay in OpenSSL, whose KeyObject shows nothing of them and is wiped as it is freed. They are made there, and public ones
// imported as a JWK, since Node takes ten times as long for a key in DER. None is exported: Node 20 holds a key's lock while it makes the
// strings of a JWK, and a garbage collection at that moment waits for the same lock, to free what generated the key, for ever. So
// the public key is computed as RFC 7748, section 6.1, does: the secret with the base point.

import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  createPrivateKey,
  createPublicKey,
  diffieHellman,
  generateKeyPairSync,
  randomBytes,
  timingSafeEqual,
  type KeyObject,
} from 'node:crypto'
import { xchacha20poly1305 } from '@noble/ciphers/chacha.js'
import { blake2s } from '@noble/hashes/blake2.js'

export type { KeyObject } from 'node:crypto'

export const KEY_BYTES = 32
export const TAG_BYTES = 16
export const MAC_BYTES = 16
export const XNONCE_BYTES = 24

export interface KeyPair {
  readonly privateKey: KeyObject
  readonly publicKey: Uint8Array
}

/** All that is drawn at random. */
export interface Randomness {
  bytes(length: number): Uint8Array
  /** An ephemeral key. */
  keyPair(): KeyPair
}

/** Any 32 bytes are a public key. */
export const publicKeyOf = (bytes: Uint8Array): KeyObject =>
  createPublicKey({ key: { kty: 'OKP', crv: 'X25519', x: Buffer.from(bytes).toString('base64url') }, format: 'jwk' })

const BASE_POINT = publicKeyOf(Uint8Array.of(9, ...new Uint8Array(KEY_BYTES - 1)))

const pairOf = (privateKey: KeyObject): KeyPair => ({
  privateKey,
  publicKey: diffieHellman({ privateKey, publicKey: BASE_POINT }),
})

export const systemRandomness: Randomness = {
  bytes: (length) => randomBytes(length),
  keyPair: () => pairOf(generateKeyPairSync('x25519').privateKey),
}

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

/** BLAKE2s-256 of all of it, one part after the other. */
export function hash(...parts: readonly (Uint8Array | string)[]): Buffer {
  const state = createHash('blake2s256')
  for (const part of parts) state.update(part)
  return state.digest()
}

export function hmac(key: Uint8Array, ...parts: readonly Uint8Array[]): Buffer {
  const state = createHmac('blake2s256', key)
  for (const part of parts) state.update(part)
  return state.digest()
}

/** BLAKE2s with a key, 16 bytes of it: not its first 16 of 32, since the length is hashed too. */
export const mac = (key: Uint8Array, message: Uint8Array): Uint8Array => blake2s(message, { key, dkLen: MAC_BYTES })

/** In constant time; false where the lengths differ. */
export const isEqual = (a: Uint8Array, b: Uint8Array): boolean => a.length === b.length && timingSafeEqual(a, b)

const AEAD = 'chacha20-poly1305'
const OPTIONS = { authTagLength: TAG_BYTES } as const
/** A handshake's keys seal one text each. */
const FIRST_NONCE = new Uint8Array(12)

/** ChaCha20-Poly1305 with nonce 0; the tag comes last. */
export function seal(key: Uint8Array, text: Uint8Array, associated: Uint8Array): Buffer {
  const cipher = createCipheriv(AEAD, key, FIRST_NONCE, OPTIONS)
  cipher.setAAD(associated, { plaintextLength: text.length })
  return Buffer.concat([cipher.update(text), cipher.final(), cipher.getAuthTag()])
}

/** Undefined for what was not sealed so; `sealed` has a tag at least. */
export function open(key: Uint8Array, sealed: Uint8Array, associated: Uint8Array): Buffer | undefined {
  const length = sealed.length - TAG_BYTES
  const decipher = createDecipheriv(AEAD, key, FIRST_NONCE, OPTIONS)
  decipher.setAAD(associated, { plaintextLength: length })
  decipher.setAuthTag(sealed.subarray(length))
  const text = decipher.update(sealed.subarray(0, length))
  try {
    decipher.final()
    return text
  } catch {
    text.fill(0)
    return undefined // there is one reason: the tag is another
  }
}

/** XChaCha20-Poly1305; the tag comes last. */
export const sealX = (key: Uint8Array, nonce: Uint8Array, text: Uint8Array, associated: Uint8Array): Uint8Array =>
  xchacha20poly1305(key, nonce, associated).encrypt(text)

/** Undefined for what was not sealed so. */
export function openX(
  key: Uint8Array,
  nonce: Uint8Array,
  sealed: Uint8Array,
  associated: Uint8Array,
): Uint8Array | undefined {
  const cipher = xchacha20poly1305(key, nonce, associated)
  try {
    return cipher.decrypt(sealed)
  } catch {
    return undefined // there is one reason where the lengths are right: the tag is another
  }
}
