// crypto.ts - the primitives of WireGuard's handshake: Node's crypto, and @noble for the two that it lacks.
//
// ChaCha20-Poly1305 is RFC 8439, BLAKE2s RFC 7693, HMAC RFC 2104, XChaCha20-Poly1305 draft-irtf-cfrg-xchacha. Nothing here reads a clock;
// what is drawn at random is drawn in `systemRandomness`, which is handed to whoever needs it.

import { createCipheriv, createDecipheriv, createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { xchacha20poly1305 } from '@noble/ciphers/chacha.js'
import { blake2s } from '@noble/hashes/blake2.js'
import { newKeyPair, type KeyPair } from './x25519.ts'

export const TAG_BYTES = 16
export const MAC_BYTES = 16
export const XNONCE_BYTES = 24

/** All that is drawn at random. */
export interface Randomness {
  bytes(length: number): Uint8Array
  /** An ephemeral key. */
  keyPair(): KeyPair
}

export const systemRandomness: Randomness = {
  bytes: (length) => randomBytes(length),
  keyPair: newKeyPair,
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
