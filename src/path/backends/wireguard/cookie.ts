// cookie.ts - the two MACs at the end of a handshake message, and the cookie that one of them is made with.
//
// mac1 shows that the sender knows the receiver's public key: who sends at random is heard no further. mac2 shows that it receives at the
// address that it sends from: its key is the cookie, which a receiver under load sends there. A cookie is a MAC over the address by a
// secret of the receiver's, which so keeps nothing of anybody that it has sent one to.
// (WireGuard, section 5.4.4 and 5.4.7 of https://www.wireguard.com/papers/wireguard.pdf.)

import { formatAddress, type Address } from '../../../net/address.ts'
import { hash, isEqual, mac, MAC_BYTES, openX, sealX, TAG_BYTES, XNONCE_BYTES, type Randomness } from './crypto.ts'
import { KEY_BYTES } from './x25519.ts'

/** Where datagrams come from and go to. */
export interface Endpoint {
  readonly address: Address
  readonly port: number
}

/** Both keys of these follow from the public key of the node that is sent to. */
export interface MacKeys {
  readonly mac1: Uint8Array
  readonly cookie: Uint8Array
}
export const macKeysOf = (publicKey: Uint8Array): MacKeys => ({
  mac1: hash('mac1----', publicKey),
  cookie: hash('cookie--', publicKey),
})

/** How long a cookie may be used by whom it was sent to: less than the secret is, since it was on its way for a while. */
export const COOKIE_USE_MS = 115_000
const SECRET_MS = 120_000

const COOKIE_BYTES = MAC_BYTES
/** Of a cookie reply: type, receiver's index, nonce, the sealed cookie. */
export const COOKIE_REPLY_BYTES = 8 + XNONCE_BYTES + COOKIE_BYTES + TAG_BYTES
export const TYPE_COOKIE_REPLY = 3
/** The place of the sender's index in the messages that a cookie reply answers, and of the receiver's in that. */
const INDEX = 4

const mac1Of = (message: Uint8Array): Uint8Array =>
  message.subarray(message.length - 2 * MAC_BYTES, message.length - MAC_BYTES)
const beforeMac1 = (message: Uint8Array): Uint8Array => message.subarray(0, message.length - 2 * MAC_BYTES)
const beforeMac2 = (message: Uint8Array): Uint8Array => message.subarray(0, message.length - MAC_BYTES)

/** Writes both at the end of a message, mac2 only with a cookie. Returns mac1, by which a cookie reply is opened. */
export function writeMacs(message: Buffer, to: MacKeys, cookie: Uint8Array | undefined): Uint8Array {
  const mac1 = mac(to.mac1, beforeMac1(message))
  message.set(mac1, message.length - 2 * MAC_BYTES)
  if (cookie) message.set(mac(cookie, beforeMac2(message)), message.length - MAC_BYTES)
  return mac1
}

export const hasMac1 = (message: Uint8Array, own: MacKeys): boolean =>
  isEqual(mac1Of(message), mac(own.mac1, beforeMac1(message)))

/** The cookie of a reply to the message with this mac1; undefined unless the node with these keys has sent it. */
export const openCookieReply = (reply: Uint8Array, from: MacKeys, mac1: Uint8Array): Uint8Array | undefined =>
  openX(from.cookie, reply.subarray(8, 8 + XNONCE_BYTES), reply.subarray(8 + XNONCE_BYTES), mac1)

export interface Cookies {
  /** True when mac2 was made with the cookie of this sender. */
  isProved(message: Uint8Array, from: Endpoint, now: number): boolean
  /** The datagram that brings the sender of this message its cookie. */
  reply(message: Uint8Array, from: Endpoint, now: number): Buffer
}

/** The cookies that this node makes. Times are in ms, of a clock that never goes back. */
export function createCookies(own: MacKeys, random: Randomness): Cookies {
  let secret = new Uint8Array(KEY_BYTES)
  let until = -Infinity
  function cookieOf({ address, port }: Endpoint, now: number): Uint8Array {
    if (now >= until) {
      secret.fill(0)
      secret = new Uint8Array(random.bytes(KEY_BYTES))
      until = now + SECRET_MS
    }
    return mac(secret, Buffer.from(`${formatAddress(address)} ${port}`))
  }
  return {
    isProved(message, from, now) {
      const mac2 = message.subarray(message.length - MAC_BYTES)
      // None costs nothing: it is what a flood has.
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
  }
}
