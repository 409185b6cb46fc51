// handshake-limiter.ts - decides which handshake messages are processed, which costs an X25519 operation. So a flood
// neither loads the daemon nor costs a peer its session.
//
// Up to a rate all messages are processed. Above it a sender must prove with a cookie that it receives at its address.
// Proved senders have their own rate, of which each address has a share. So a flood from forged addresses uses up only
// the first rate, and a flood from real addresses only their shares. The cookie replies are limited too.

import type { Address } from '../../../net/address.ts'
import { createBucket } from '../../engine/reference/bucket.ts'
import type { Cookies, Endpoint } from './cookie.ts'

/**
 * The rate limits of message classes. `received`: all messages. `free`: messages that are processed without proof.
 * `requested`: the same for responses, of which there are as many as initiations that a node may send, plus forged
 * ones. `proved`: messages with proof. `source`: messages with proof from one address. `cookies`: cookie replies.
 */
export const RATES = {
  received: { perSecond: 1_500, burst: 150 },
  free: { perSecond: 100, burst: 50 },
  requested: { perSecond: 300, burst: 100 },
  proved: { perSecond: 100, burst: 50 },
  source: { perSecond: 20, burst: 5 },
  cookies: { perSecond: 200, burst: 50 },
} as const
/**
 * The maximum number of addresses with a share. It exceeds what the other rates allow while a share is remembered;
 * messages from further addresses are dropped.
 */
const MAX_SOURCES = 1_024

interface HandshakeLimiter {
  /** True if a message may be checked at all, because even its MACs cost a little. */
  mayReceive(now: number): boolean
  /** Decides about a message with a correct mac1: process it, send a cookie reply, or drop it. */
  judge(message: Uint8Array, from: Endpoint, now: number): 'process' | 'challenge' | 'drop'
}

const bucketOf = ({ perSecond, burst }: { perSecond: number; burst: number }) => createBucket(1_000 / perSecond, burst)

/** Returns an IPv4 address itself, or the /64 prefix of an IPv6 address, because one host may have a whole /64. */
const sourceOf = (address: Address): Address => (typeof address === 'number' ? address : address >> 64n)

/** `through` names the rate for messages without proof. Times are in ms of a monotonic clock. */
export function createHandshakeLimiter(cookies: Cookies, through: keyof typeof RATES = 'free'): HandshakeLimiter {
  const received = bucketOf(RATES.received)
  const free = bucketOf(RATES[through])
  const proved = bucketOf(RATES.proved)
  const answered = bucketOf(RATES.cookies)
  const every = 1_000 / RATES.source.perSecond
  /** For each address, the time at which its bucket is full again (bucket.ts). */
  const sources = new Map<Address, number>()
  function mayOfSource(address: Address, now: number): boolean {
    const source = sourceOf(address)
    if (sources.size >= MAX_SOURCES) for (const [each, full] of sources) if (full <= now) sources.delete(each)
    const from = Math.max(sources.get(source) ?? now, now)
    if (from - now > (RATES.source.burst - 1) * every) return false
    if (sources.size >= MAX_SOURCES && !sources.has(source)) return false
    sources.set(source, from + every)
    return true
  }
  return {
    mayReceive: received,
    judge(message, from, now) {
      if (free(now)) return 'process'
      if (cookies.isProved(message, from, now))
        return mayOfSource(from.address, now) && proved(now) ? 'process' : 'drop'
      return answered(now) ? 'challenge' : 'drop'
    },
  }
}
