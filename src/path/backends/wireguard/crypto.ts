// crypto.ts - the cryptographic primitives of WireGuard's handshake. Node's crypto has most of them; the packages
// @noble/hashes and @noble/ciphers have the two that Node lacks, keyed BLAKE2s and XChaCha20-Poly1305.
//
// ChaCha20-Poly1305 is defined in RFC 8439, BLAKE2s in RFC 7693, HMAC in RFC 2104, and XChaCha20-Poly1305 in
// draft-irtf-cfrg-xchacha. No function reads a clock, and only `systemRandomness` draws random numbers.

import { createCipheriv, createDecipheriv, createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { xchacha20poly1305 } from '@noble/ciphers/chacha.js'
import { blake2s } from '@noble/hashes/blake2.js'
import { newKeyPair, type KeyPair } from './x25519.ts'

export const TAG_BYTES = 16
export const MAC_BYTES = 16
export const XNONCE_BYTES = 24

export interface Randomness {
  /** Returns a new array, which the caller may erase. */
  bytes(length: number): Uint8Array
  keyPair(): KeyPair
}

export const systemRandomness: Randomness = {
  bytes: (length) => randomBytes(length),
  keyPair: newKeyPair,
}

/** Returns the BLAKE2s-256 hash (32 bytes) of the concatenated parts. */
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

/**
 * Returns keyed BLAKE2s with 16 bytes of output. This output differs from the first 16 bytes of the 32-byte output,
 * because BLAKE2s hashes the output's length too.
 */
export const mac = (key: Uint8Array, message: Uint8Array): Uint8Array => blake2s(message, { key, dkLen: MAC_BYTES })

/** Compares two byte arrays in a time that does not depend on their content. Returns false if their lengths differ. */
export const isEqual = (a: Uint8Array, b: Uint8Array): boolean => a.length === b.length && timingSafeEqual(a, b)

const AEAD = 'chacha20-poly1305'
const OPTIONS = { authTagLength: TAG_BYTES } as const
/** The nonce for `seal` and `open`. It is always 0, because each key of a handshake encrypts only one message. */
const FIRST_NONCE = new Uint8Array(12)

/** Encrypts with ChaCha20-Poly1305 and nonce 0, and appends the tag. */
export function seal(key: Uint8Array, text: Uint8Array, associated: Uint8Array): Buffer {
  const cipher = createCipheriv(AEAD, key, FIRST_NONCE, OPTIONS)
  cipher.setAAD(associated, { plaintextLength: text.length })
  return Buffer.concat([cipher.update(text), cipher.final(), cipher.getAuthTag()])
}

/**
 * Decrypts a result of `seal`; returns undefined if the tag is wrong. The caller must ensure that `sealed` is at least
 * as long as a tag.
 */
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
    return undefined // the only possible reason is a wrong tag
  }
}

/** Encrypts with XChaCha20-Poly1305, and appends the tag. */
export const sealX = (key: Uint8Array, nonce: Uint8Array, text: Uint8Array, associated: Uint8Array): Uint8Array =>
  xchacha20poly1305(key, nonce, associated).encrypt(text)

/** Decrypts a result of `sealX`; returns undefined if the tag is wrong. */
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
    return undefined // if the lengths are right, the only possible reason is a wrong tag
  }
}
