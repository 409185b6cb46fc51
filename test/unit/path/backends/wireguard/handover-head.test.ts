// handover-head.test.ts - the state for the next process is read as it was written, and only with the same key and in the same format.

import { expect, it } from 'vitest'
import { SecretBytes } from '../../../../../src/base/secret.ts'
import { hmac } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { readHead, writeHead, type HandoverHead } from '../../../../../src/path/backends/wireguard/handover-head.ts'

const KEY = new SecretBytes(Buffer.alloc(32, 1))
const HEAD: HandoverHead = {
  indexSecret: 0xffff_ffff,
  indexKey: Buffer.alloc(32, 7),
  lastNumber: 9,
  lastTick: 107_734_536_000,
  sessions: [
    {
      number: 3,
      publicKey: Buffer.alloc(32, 5).toString('base64'),
      leased: { address: 0x0a00_0001, port: 51_820 },
      endpoint: { address: 0xfd00n << 112n, port: 4_000 },
      anyPort: true,
      memory: { greatest: 2n ** 94n, low: 4_095, completedAt: 123.5, at: 1_795_575_600_000, requestedAt: 130 },
    },
    {
      number: 4,
      publicKey: Buffer.alloc(32, 6).toString('base64'),
      leased: { address: 1, port: 1 },
      endpoint: { address: 1, port: 1 },
      anyPort: false,
      memory: { greatest: -1n, low: 0, completedAt: undefined, at: undefined, requestedAt: undefined },
    },
  ],
}

it('the head of a hand-over is read as it was written', () => {
  expect(readHead(writeHead(HEAD, KEY), KEY)).toEqual({ ...HEAD, form: 3 })
})

it('the head of a hand-over is refused with another key, with a changed byte, and in another format', () => {
  const bytes = writeHead(HEAD, KEY)
  expect(readHead(bytes, new SecretBytes(Buffer.alloc(32, 2)))).toBeUndefined()
  for (let at = 0; at < bytes.length; at += 1) {
    const changed = Buffer.from(bytes)
    changed[at]! ^= 1
    expect(readHead(changed, KEY)).toBeUndefined()
  }
  const text = Buffer.from(bytes.subarray(32).toString().replace('"form":3', '"form":2'))
  expect(text.equals(bytes.subarray(32))).toBe(false)
  expect(readHead(Buffer.concat([hmac(KEY.reveal(), text), text]), KEY)).toBeUndefined()
})
