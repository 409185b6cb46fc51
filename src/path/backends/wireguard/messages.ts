// messages.ts - the layout of WireGuard's handshake messages (WireGuard paper, sections 5.4.2, 5.4.3 and 5.4.7).
// - Initiation: type 1, the sender's index, Noise message (noise.ts), mac1, mac2.
// - Response: type 2, the sender's index, the receiver's index, Noise message, mac1, mac2.
// - Cookie reply: type 3, the receiver's index, nonce, encrypted cookie (cookie.ts).
//
// Types and indices are little-endian numbers of 4 bytes.

import { COOKIE_REPLY_BYTES, TYPE_COOKIE_REPLY } from './cookie.ts'
import { MAC_BYTES } from './crypto.ts'
import { firstMessageBytes, secondMessageBytes } from './noise.ts'
import { STAMP_BYTES } from './tai64n.ts'

const TYPE_INITIATION = 1
const TYPE_RESPONSE = 2
/** The type of a data message. The engine reports the header of a data message whose session it does not know. */
export const TYPE_DATA = 4

/**
 * The length in bytes of an initiation's header before the Noise message. RESPONSE_HEAD is the length of a response's
 * header.
 */
const INITIATION_HEAD = 8
const RESPONSE_HEAD = 12
export const INITIATION_BYTES = INITIATION_HEAD + firstMessageBytes(STAMP_BYTES) + 2 * MAC_BYTES
export const RESPONSE_BYTES = RESPONSE_HEAD + secondMessageBytes(0) + 2 * MAC_BYTES

/** Returns the type of a handshake message, by its length and its first four bytes; undefined if no type has these. */
export function typeOf(message: Buffer): 'initiation' | 'response' | 'cookie-reply' | undefined {
  const hasForm = (type: number, bytes: number) => message.length === bytes && message.readUInt32LE(0) === type
  if (hasForm(TYPE_INITIATION, INITIATION_BYTES)) return 'initiation'
  if (hasForm(TYPE_RESPONSE, RESPONSE_BYTES)) return 'response'
  if (hasForm(TYPE_COOKIE_REPLY, COOKIE_REPLY_BYTES)) return 'cookie-reply'
  return undefined
}

/** Returns an initiation whose two MACs are still zeros. */
export function initiationOf(senderIndex: number, noise: Uint8Array): Buffer {
  const message = Buffer.alloc(INITIATION_BYTES)
  message[0] = TYPE_INITIATION
  message.writeUInt32LE(senderIndex, 4)
  message.set(noise, INITIATION_HEAD)
  return message
}

/** Returns a response whose two MACs are still zeros. */
export function responseOf(senderIndex: number, receiverIndex: number, noise: Uint8Array): Buffer {
  const message = Buffer.alloc(RESPONSE_BYTES)
  message[0] = TYPE_RESPONSE
  message.writeUInt32LE(senderIndex, 4)
  message.writeUInt32LE(receiverIndex, 8)
  message.set(noise, RESPONSE_HEAD)
  return message
}

export const senderIndexIn = (message: Buffer): number => message.readUInt32LE(4)
export const receiverIndexIn = (response: Buffer): number => response.readUInt32LE(8)
export const cookieReceiverIn = (reply: Buffer): number => reply.readUInt32LE(4)

export const noiseInInitiation = (message: Buffer): Buffer => message.subarray(INITIATION_HEAD, -2 * MAC_BYTES)
export const noiseInResponse = (message: Buffer): Buffer => message.subarray(RESPONSE_HEAD, -2 * MAC_BYTES)
