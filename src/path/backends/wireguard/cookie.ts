// cookie.ts - the two MACs at the end of a WireGuard handshake message, and the cookie.
//
// mac1 proves that the sender knows the receiver's public key; messages with a wrong mac1 are dropped. mac2 proves that
// the sender receives packets at its address: the key of mac2 is the cookie, which a receiver under load sends to that
// address. A cookie is a MAC over the sender's address with a secret of the receiver, so the receiver stores nothing
// about senders. (WireGuard, sections 5.4.4 and 5.4.7 of https://www.wireguard.com/papers/wireguard.pdf.)

import { formatAddress, type Address } from '../../../net/address.ts'
import { hash, isEqual, mac, MAC_BYTES, openX, sealX, TAG_BYTES, XNONCE_BYTES, type Randomness } from './crypto.ts'
import { COOKIE_SECRET_MS } from './limits.ts'
import { KEY_BYTES } from './x25519.ts'

export interface Endpoint {
  readonly address: Address
  readonly port: number
}

/**
 * The keys of mac1 and of the cookie's encryption, both derived from the public key of the node that receives the
 * message.
 */
export interface MacKeys {
  readonly mac1: Uint8Array
  readonly cookie: Uint8Array
}
export const macKeysOf = (publicKey: Uint8Array): MacKeys => ({
  mac1: hash('mac1----', publicKey),
  cookie: hash('cookie--', publicKey),
})

const COOKIE_BYTES = MAC_BYTES
/** The length of a cookie reply: type (4 bytes), receiver's index (4 bytes), nonce, encrypted cookie. */
export const COOKIE_REPLY_BYTES = 8 + XNONCE_BYTES + COOKIE_BYTES + TAG_BYTES
export const TYPE_COOKIE_REPLY = 3
/**
 * The offset in bytes of the sender's index in an initiation or a response. In a cookie reply the receiver's index is
 * at this offset.
 */
const INDEX = 4

const mac1Of = (message: Uint8Array): Uint8Array =>
  message.subarray(message.length - 2 * MAC_BYTES, message.length - MAC_BYTES)
const beforeMac1 = (message: Uint8Array): Uint8Array => message.subarray(0, message.length - 2 * MAC_BYTES)
const beforeMac2 = (message: Uint8Array): Uint8Array => message.subarray(0, message.length - MAC_BYTES)

/**
 * Writes mac1, and mac2 if there is a cookie, at the end of a message. Returns mac1, with which a cookie reply to this
 * message can be decrypted.
 */
export function writeMacs(message: Buffer, to: MacKeys, cookie: Uint8Array | undefined): Uint8Array {
  const mac1 = mac(to.mac1, beforeMac1(message))
  message.set(mac1, message.length - 2 * MAC_BYTES)
  if (cookie) message.set(mac(cookie, beforeMac2(message)), message.length - MAC_BYTES)
  return mac1
}

export const hasMac1 = (message: Uint8Array, own: MacKeys): boolean =>
  isEqual(mac1Of(message), mac(own.mac1, beforeMac1(message)))

/**
 * Returns the cookie from the reply to the message that had `mac1`; undefined if the reply is not from the node with
 * the keys `from`.
 */
export const openCookieReply = (reply: Uint8Array, from: MacKeys, mac1: Uint8Array): Uint8Array | undefined =>
  openX(from.cookie, reply.subarray(8, 8 + XNONCE_BYTES), reply.subarray(8 + XNONCE_BYTES), mac1)

export interface Cookies {
  isProved(message: Uint8Array, from: Endpoint, now: number): boolean
  reply(message: Uint8Array, from: Endpoint, now: number): Buffer
  /** Erases the secret from which this node's cookies are made. */
  wipe(): void
}

/**
 * Returns the functions that make and check this node's cookies. The functions take times in ms of a monotonic clock.
 */
export function createCookies(own: MacKeys, random: Randomness): Cookies {
  let secret: Uint8Array = new Uint8Array(KEY_BYTES)
  let until = -Infinity
  function cookieOf({ address, port }: Endpoint, now: number): Uint8Array {
    if (now >= until) {
      secret.fill(0)
      secret = random.bytes(KEY_BYTES)
      until = now + COOKIE_SECRET_MS
    }
    return mac(secret, Buffer.from(`${formatAddress(address)} ${port}`))
  }
  return {
    isProved(message, from, now) {
      const mac2 = message.subarray(message.length - MAC_BYTES)
      // Messages of a flood usually have a mac2 of zeros. Refuse these messages without computing a cookie.
      return mac2.some((byte) => byte !== 0) && isEqual(mac2, mac(cookieOf(from, now), beforeMac2(message)))
    },
    reply(message, from, now) {
      const reply = Buffer.alloc(COOKIE_REPLY_BYTES)
      reply[0] = TYPE_COOKIE_REPLY
      reply.set(message.subarray(INDEX, INDEX + 4), INDEX)
      const nonce = random.bytes(XNONCE_BYTES)
      reply.set(nonce, 8)
      reply.set(sealX(own.cookie, nonce, cookieOf(from, now), mac1Of(message)), 8 + XNONCE_BYTES)
      return reply
    },
    wipe() {
      secret.fill(0)
      until = -Infinity
    },
  }
}
