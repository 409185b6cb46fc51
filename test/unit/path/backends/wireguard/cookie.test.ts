// cookie.test.ts - the MACs of a message, and the cookie that proves that a sender receives at its address.

import { describe, expect, it } from 'vitest'
import {
  COOKIE_REPLY_BYTES,
  createCookies,
  hasMac1,
  macKeysOf,
  openCookieReply,
  writeMacs,
} from '../../../../../src/path/backends/wireguard/cookie.ts'
import { mac, systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { recordedSecrets } from '../../../../support/handshake-sides.ts'

const own = macKeysOf(systemRandomness.keyPair().publicKey)
const other = macKeysOf(systemRandomness.keyPair().publicKey)
const from = { address: 0x0a00_0001, port: 51_820 }
const message = (): Buffer => Buffer.from(Array.from({ length: 148 }, (_, at) => (at < 116 ? at : 0)))

it('derives the keys of the MACs from the public key as every WireGuard does', () => {
  // Computed with hashlib.blake2s of Python: a label from section 5.4 of the paper, followed by the public key.
  const keys = macKeysOf(Uint8Array.from({ length: 32 }, (_, at) => at))
  expect(Buffer.from(keys.mac1).toString('hex')).toBe(
    '4fb2527ac956001553dc1ad9b55171b7d9daa3de1cdbcd71451830170c7e6cac',
  )
  expect(Buffer.from(keys.cookie).toString('hex')).toBe(
    '3dd5869c5202e45146936d1644f76ff697061661c181f3fd450eae43932eacec',
  )
})

describe('mac1', () => {
  it('covers everything before it, with the key of the receiver', () => {
    const sent = message()
    const mac1 = writeMacs(sent, own, undefined)
    expect(sent.subarray(116, 132)).toEqual(Buffer.from(mac1))
    expect(mac1).toEqual(mac(own.mac1, message().subarray(0, 116)))
    expect(sent.subarray(132)).toEqual(Buffer.alloc(16))
    expect(hasMac1(sent, own)).toBe(true)
    expect(hasMac1(sent, other)).toBe(false)
    for (const at of [0, 115, 116, 131]) {
      const changed = Buffer.from(sent)
      changed[at]! ^= 1
      expect(hasMac1(changed, own)).toBe(false)
    }
  })
})

describe('a cookie', () => {
  const requested = () => {
    const sent = message()
    const mac1 = writeMacs(sent, own, undefined)
    const cookies = createCookies(own, systemRandomness)
    const cookieAt = (now: number) => openCookieReply(cookies.reply(sent, from, now), own, mac1)!
    return { sent, mac1, cookies, cookieAt }
  }

  it('is sent to the sender, encrypted for the message that it answers', () => {
    const { sent, mac1, cookies } = requested()
    const reply = cookies.reply(sent, from, 0)
    expect(reply).toHaveLength(COOKIE_REPLY_BYTES)
    expect(COOKIE_REPLY_BYTES).toBe(64)
    expect([...reply.subarray(0, 8)]).toEqual([3, 0, 0, 0, 4, 5, 6, 7])
    expect(openCookieReply(reply, own, mac1)).toHaveLength(16)
    expect(openCookieReply(reply, other, mac1)).toBeUndefined()
    expect(openCookieReply(reply, own, new Uint8Array(16))).toBeUndefined()
    expect(cookies.reply(sent, from, 0).subarray(8, 32)).not.toEqual(reply.subarray(8, 32))
  })

  it('proves its sender only from that address and port, until the secret changes', () => {
    const { sent, cookies, cookieAt } = requested()
    expect(cookies.isProved(sent, from, 0)).toBe(false)
    const cookie = cookieAt(0)
    writeMacs(sent, own, cookie)
    expect(sent.subarray(132)).not.toEqual(Buffer.alloc(16))
    expect(cookies.isProved(sent, from, 0)).toBe(true)
    expect(cookies.isProved(sent, from, 119_999)).toBe(true)
    expect(cookies.isProved(sent, { ...from, port: 51_821 }, 0)).toBe(false)
    expect(cookies.isProved(sent, { ...from, address: from.address + 1 }, 0)).toBe(false)
    expect(cookies.isProved(sent, { ...from, address: BigInt(from.address) }, 0)).toBe(false)
    const changed = Buffer.from(sent)
    changed[131]! ^= 1
    expect(cookies.isProved(changed, from, 0)).toBe(false)
    expect(cookies.isProved(sent, from, 120_000)).toBe(false)
    expect(cookieAt(120_000)).not.toEqual(cookie)
  })

  it('is constant for a sender while the secret is, and different for other senders', () => {
    const { sent, mac1, cookies, cookieAt } = requested()
    expect(cookieAt(0)).toEqual(cookieAt(60_000))
    expect(openCookieReply(cookies.reply(sent, { ...from, port: 1 }, 0), own, mac1)).not.toEqual(cookieAt(0))
  })

  it('proves nothing after the secret was erased', () => {
    const { sent, cookies, cookieAt } = requested()
    writeMacs(sent, own, cookieAt(0))
    expect(cookies.isProved(sent, from, 0)).toBe(true)
    cookies.wipe()
    expect(cookies.isProved(sent, from, 0)).toBe(false)
    // After `wipe`, cookies have a new random secret.
    const second = requested()
    second.cookies.wipe()
    expect(cookieAt(0)).not.toEqual(second.cookieAt(0))
  })

  it('has a secret that is erased when it is replaced, and by `wipe`', () => {
    const { random, erased } = recordedSecrets()
    const cookies = createCookies(own, random)
    cookies.reply(message(), from, 0)
    expect(erased()).toEqual([false])
    cookies.reply(message(), from, 120_000)
    expect(erased()).toEqual([true, false])
    cookies.wipe()
    expect(erased()).toEqual([true, true])
  })

  it('proves its sender even if a byte of mac2 is zero', () => {
    const { sent, cookies, cookieAt } = requested()
    const cookie = cookieAt(0)
    let isFound = false
    for (let at = 0; at < 1_000 && !isFound; at++) {
      sent.writeUInt32LE(at, 8)
      writeMacs(sent, own, cookie)
      isFound = sent.subarray(132).includes(0)
    }
    expect(isFound).toBe(true)
    expect(cookies.isProved(sent, from, 0)).toBe(true)
  })

  it('is not computed for a mac2 of zeros, as in a flood', () => {
    let drawn = 0
    const bytes = (length: number) => {
      drawn++
      return systemRandomness.bytes(length)
    }
    const cookies = createCookies(own, { ...systemRandomness, bytes })
    const sent = message()
    writeMacs(sent, own, undefined)
    expect(cookies.isProved(sent, from, 0)).toBe(false)
    expect(drawn).toBe(0)
    sent[147] = 1
    expect(cookies.isProved(sent, from, 0)).toBe(false)
    expect(drawn).toBe(1)
  })
})
