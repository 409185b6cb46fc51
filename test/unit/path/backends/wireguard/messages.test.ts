// messages.test.ts - the type of a handshake message, by its length and its first four bytes.

import { expect, it } from 'vitest'
import { typeOf } from '../../../../../src/path/backends/wireguard/messages.ts'

/** The types with their lengths in bytes (WireGuard paper, sections 5.4.2, 5.4.3 and 5.4.7). */
const TYPES = [
  ['initiation', 1, 148],
  ['response', 2, 92],
  ['cookie-reply', 3, 64],
] as const
const messageOf = (type: number, bytes: number): Buffer => {
  const message = Buffer.alloc(bytes)
  message.writeUInt32LE(type, 0)
  return message
}

it.each(TYPES)('%s has the type %i and %i bytes', (name, type, bytes) => {
  expect(typeOf(messageOf(type, bytes))).toBe(name)
  for (const other of [bytes - 1, bytes + 1]) expect(typeOf(messageOf(type, other))).toBeUndefined()
  for (const other of [0, 1, 2, 3, 4].filter((each) => each !== type))
    expect(typeOf(messageOf(other, bytes))).toBeUndefined()
})

it('has no type if one of the three reserved bytes is not zero', () => {
  for (const [, type, bytes] of TYPES)
    for (const at of [1, 2, 3]) {
      const message = messageOf(type, bytes)
      message[at] = 1
      expect(typeOf(message)).toBeUndefined()
    }
})

it('has no type if it is shorter than the shortest message', () => {
  for (const [, type] of TYPES)
    for (let bytes = 0; bytes < 64; bytes++) expect(typeOf(messageOf(type, 64).subarray(0, bytes))).toBeUndefined()
})
