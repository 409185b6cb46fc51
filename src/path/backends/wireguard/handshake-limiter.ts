// handshake-limiter.ts - which handshake messages are worth what X25519 costs, so that a flood costs the daemon little and no peer its session.
//
// Up to a rate all are let through. Above it a sender has to prove that it receives at its address, by the cookie that it is sent;
// one that did has a rate of its own, with all others that did, of which each address has a share. So a flood from forged
// addresses takes the first rate alone, and one from true addresses its shares. What is sent back is limited too.

import type { Address } from '../../../net/address.ts'
import { createBucket } from '../../engine/reference/bucket.ts'
import type { Cookies, Endpoint } from './cookie.ts'

/**
 * So many a second, and so many at once, of messages: heard at all; let through; the same of answers that were asked for, which are as many
 * as the initiations that a node sends at most, and some that are forged; let through as proved; of each address; answered.
 */
export const RATES = {
  heard: { perSecond: 1_500, burst: 150 },
  free: { perSecond: 100, burst: 50 },
  asked: { perSecond: 300, burst: 100 },
  proved: { perSecond: 100, burst: 50 },
  source: { perSecond: 20, burst: 5 },
  cookies: { perSecond: 200, burst: 50 },
} as const
/** More addresses than are let through in the time that one is remembered: what is behind is dropped then. */
const MOST_SOURCES = 1_024

interface Gate {
  /** True when a message may be looked at: its MACs cost little, but not nothing. */
  mayBeHeard(now: number): boolean
  /** What becomes of a message whose mac1 is right. */
  judge(message: Uint8Array, from: Endpoint, now: number): 'process' | 'ask' | 'drop'
}

const bucketOf = ({ perSecond, burst }: { perSecond: number; burst: number }) => createBucket(1_000 / perSecond, burst)

/** An IPv4 address, or the /64 of an IPv6 address, which one host may have all of. */
const sourceOf = (address: Address): Address => (typeof address === 'number' ? address : address >> 64n)

/** `through` is what is let through without a proof. Times are in ms, of a clock that never goes back. */
export function createGate(cookies: Cookies, through: keyof typeof RATES = 'free'): Gate {
  const heard = bucketOf(RATES.heard)
  const free = bucketOf(RATES[through])
  const proved = bucketOf(RATES.proved)
  const answered = bucketOf(RATES.cookies)
  const every = 1_000 / RATES.source.perSecond
  /** As of bucket.ts: when each is full again. */
  const sources = new Map<Address, number>()
  function mayOfSource(address: Address, now: number): boolean {
    const source = sourceOf(address)
    if (sources.size >= MOST_SOURCES) for (const [each, full] of sources) if (full <= now) sources.delete(each)
    const from = Math.max(sources.get(source) ?? now, now)
    if (from - now > (RATES.source.burst - 1) * every) return false
    if (sources.size >= MOST_SOURCES && !sources.has(source)) return false
    sources.set(source, from + every)
    return true
  }
  return {
    mayBeHeard: heard,
    judge(message, from, now) {
      if (free(now)) return 'process'
      if (cookies.isProved(message, from, now))
        return mayOfSource(from.address, now) && proved(now) ? 'process' : 'drop'
      return answered(now) ? 'ask' : 'drop'
    },
  }
}
