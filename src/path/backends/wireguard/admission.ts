// admission.ts - decides which received handshake messages weftd processes. It checks mac1 first, because that check is
// cheap, and then the cookie and the rate limits. Each type of message has its own limits, so that a flood of
// initiations does not displace responses.

import { createCookies, hasMac1, type Cookies, type Endpoint, type MacKeys } from './cookie.ts'
import type { Randomness } from './crypto.ts'
import { createHandshakeLimiter } from './handshake-limiter.ts'

export interface AdmissionCounters {
  /**
   * The number of messages that were dropped as invalid: messages with a wrong length, type or mac1, messages from
   * unknown senders, responses that answer no message of this node, and messages that could not be decrypted.
   */
  junk: number
  /**
   * The number of messages that exceeded a rate limit (handshake-limiter.ts), plus initiations that came less than
   * ACCEPT_EVERY_MS after an earlier initiation of the same peer.
   */
  limited: number
  cookiesSent: number
}

export class Admission {
  readonly counters: AdmissionCounters = { junk: 0, limited: 0, cookiesSent: 0 }
  /** The keys with which this node checks the MACs of received messages. */
  readonly #own: MacKeys
  readonly #cookies: Cookies
  /**
   * The rate limits, separate for each type of message. Responses have a higher limit, because this node drops most
   * forged responses earlier: it expects no response with their index.
   */
  readonly #limiters
  readonly #send: (to: Endpoint, message: Uint8Array) => void

  constructor(own: MacKeys, random: Randomness, send: (to: Endpoint, message: Uint8Array) => void) {
    this.#own = own
    this.#cookies = createCookies(own, random)
    this.#limiters = {
      initiation: createHandshakeLimiter(this.#cookies),
      response: createHandshakeLimiter(this.#cookies, 'requested'),
      cookieReply: createHandshakeLimiter(this.#cookies),
    }
    this.#send = send
  }

  /**
   * Returns whether this node must process an initiation or a response. Counts a dropped message. Sends a cookie reply
   * if the sender must first prove its address.
   */
  judge(
    kind: 'initiation' | 'response',
    message: Uint8Array,
    from: Endpoint,
    now: number,
  ): 'accepted' | 'limited' | 'junk' {
    const limiter = this.#limiters[kind]
    if (!limiter.mayReceive(now)) return this.countLimited()
    if (!hasMac1(message, this.#own)) return this.refuse()
    const verdict = limiter.judge(message, from, now)
    if (verdict === 'process') return 'accepted'
    if (verdict === 'challenge') {
      this.counters.cookiesSent += 1
      this.#send(from, this.#cookies.reply(message, from, now))
    }
    return this.countLimited()
  }

  /** Returns true if this node may decrypt a received cookie reply. If not, counts the reply as dropped. */
  mayOpenCookieReply(now: number): boolean {
    if (this.#limiters.cookieReply.mayReceive(now)) return true
    this.countLimited()
    return false
  }

  /** Counts a message that is dropped because the message is invalid, and returns 'junk'. */
  refuse(): 'junk' {
    this.counters.junk += 1
    return 'junk'
  }

  /** Counts a message that is dropped because of a rate limit, and returns 'limited'. */
  countLimited(): 'limited' {
    this.counters.limited += 1
    return 'limited'
  }

  /** Erases the secret from which this node's cookies are made. */
  close(): void {
    this.#cookies.wipe()
  }
}
