// handshake-limiter.ts - decides which handshake messages weftd processes, because each message costs an X25519
// operation. A flood of messages must neither load weftd nor prevent the peers' handshakes.
//
// Up to the rate `free` (RATES in limits.ts), weftd processes all messages. Above this rate a sender must prove with a
// cookie that it receives packets at its address. Senders with this proof share a separate rate, of which each address
// gets a part. So a flood from forged addresses uses up only the rate `free`, and a flood from real addresses uses up
// only the parts of these addresses. The number of cookie replies is limited too.

import { addressKey, type Address, type AddressKey } from '../../../net/address.ts'
import { createBucket } from '../../engine/reference/bucket.ts'
import type { Cookies, Endpoint } from './cookie.ts'
import { MAX_SOURCES, RATES } from './limits.ts'

interface HandshakeLimiter {
  /**
   * Returns true if the rate limit allows weftd to check a received message. Even a check of the message's MACs costs
   * time.
   */
  mayReceive(now: number): boolean
  /**
   * Decides what happens to a message whose mac1 is correct: `process` it, `challenge` the sender with a cookie reply,
   * or `drop` it.
   */
  judge(message: Uint8Array, from: Endpoint, now: number): 'process' | 'challenge' | 'drop'
}

const bucketOf = ({ perSecond, burst }: { perSecond: number; burst: number }) => createBucket(1_000 / perSecond, burst)

/**
 * Returns the key under which this limiter counts a sender's messages: an IPv4 address, or the /64 prefix of an IPv6
 * address, because one host may have a whole /64.
 */
const sourceOf = (address: Address): AddressKey => addressKey(typeof address === 'number' ? address : address >> 64n)

/**
 * Returns a limiter of handshake messages. `through` names the rate for messages without proof of the sender's address.
 * Times are in ms of a monotonic clock.
 */
export function createHandshakeLimiter(
  cookies: Pick<Cookies, 'isProved'>,
  through: keyof typeof RATES = 'free',
): HandshakeLimiter {
  const received = bucketOf(RATES.received)
  const free = bucketOf(RATES[through])
  const proved = bucketOf(RATES.proved)
  const answered = bucketOf(RATES.cookies)
  const every = 1_000 / RATES.source.perSecond
  /**
   * For each sender's address, the time from which the sender may send a whole burst again, in ms of the caller's clock
   * (bucket.ts).
   */
  const sources = new Map<AddressKey, number>()
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
