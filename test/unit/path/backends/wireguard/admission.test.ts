// admission.test.ts - a cookie proves an address until the node erases its secrets.

import { expect, it } from 'vitest'
import { Admission } from '../../../../../src/path/backends/wireguard/admission.ts'
import { macKeysOf, openCookieReply, writeMacs } from '../../../../../src/path/backends/wireguard/cookie.ts'
import { systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { RATES } from '../../../../../src/path/backends/wireguard/limits.ts'
import { INITIATION_BYTES } from '../../../../../src/path/backends/wireguard/messages.ts'

it('accepts a proved address until the secret of the cookies is erased', () => {
  const own = macKeysOf(systemRandomness.keyPair().publicKey)
  const replies: Uint8Array[] = []
  const admission = new Admission(own, systemRandomness, (_to, reply) => void replies.push(reply))
  const from = { address: 0x0a00_0001, port: 51_820 }
  const message = Buffer.alloc(INITIATION_BYTES, 1)
  const mac1 = writeMacs(message, own, undefined)
  const judge = () => admission.judge('initiation', message, from, 0)
  for (let count = 0; count < RATES.free.burst; count++) expect(judge()).toBe('accepted')
  message.fill(0, INITIATION_BYTES - 16) // no proof
  expect([judge(), replies.length, admission.counters.cookiesSent]).toEqual(['limited', 1, 1])
  writeMacs(message, own, openCookieReply(replies[0]!, own, mac1))
  expect(judge()).toBe('accepted')
  admission.close()
  expect(judge()).toBe('limited')
})
