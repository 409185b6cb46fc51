// limits.ts - the limits of WireGuard's handshakes, each with its unit and its source.
// docs/design/wireguard-sessions.md explains the values. The limits of keys and packets are in SessionLimits
// (native/core/session.h).
//
// The WireGuard paper is https://www.wireguard.com/papers/wireguard.pdf. The named files of Linux are in
// drivers/net/wireguard of Linux 6.1.

/** The minimum interval in ms between two initiations to one peer (Rekey-Timeout; WireGuard paper, section 6.1). */
export const REKEY_TIMEOUT_MS = 5_000
/**
 * The maximum random time in ms that this node adds to REKEY_TIMEOUT_MS. Without it, two nodes that began
 * simultaneously would always repeat their initiations simultaneously (WireGuard paper, section 6.1; Linux, messages.h:
 * a third of a second).
 */
export const JITTER_MS = 333
/**
 * How long, in ms, a node repeats an initiation that the peer does not answer (Rekey-Attempt-Time; WireGuard paper,
 * section 6.4).
 */
export const REKEY_ATTEMPT_MS = 90_000
/**
 * The minimum interval in ms between two accepted initiations of one peer (Linux, messages.h: INITIATIONS_PER_SECOND is
 * 50).
 */
export const ACCEPT_EVERY_MS = 20
/**
 * The rate limit of this node's own initiations to all peers together. Further initiations wait, so that the start of a
 * large cluster does not block weftd. The limit is weft's own.
 */
export const INITIATIONS = { perSecond: 250, burst: 50 } as const
/** The interval in ms at which this node again tries to send the initiations that wait for the rate limit. */
export const TURN_MS = 20

/**
 * How long, in ms, a node uses one secret for the cookies that it sends (WireGuard paper, section 5.4.7; Linux,
 * cookie.h: 120 s).
 */
export const COOKIE_SECRET_MS = 120_000
/**
 * How long, in ms, a node may use a cookie that it received. The time is 5 s shorter than COOKIE_SECRET_MS, because the
 * cookie took some time to arrive (Linux, cookie.h: COOKIE_SECRET_LATENCY).
 */
export const COOKIE_USE_MS = COOKIE_SECRET_MS - 5_000
/**
 * The rate limits of handshake messages, by class. With a cookie a sender proves that it receives packets at its source
 * address. `received`: all messages that this node checks. `free`: initiations that this node processes without this
 * proof. `requested`: responses that this node processes without this proof. The limit `requested` allows one response
 * for each initiation that a node may send, and some forged responses. `proved`: messages with the proof, from all
 * addresses together. `source`: messages with the proof, from one address. `cookies`: cookie replies that this node
 * sends. The limit `source` is that of Linux (ratelimiter.c: 20 per second, burst 5).
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
 * The maximum number of source addresses whose use of the rate `source` this node remembers. At this number, the node
 * drops messages from further addresses. The rate limits admit fewer addresses at any time.
 */
export const MAX_SOURCES = 1_024
/** The maximum number of public keys of senders that are not peers; this node remembers the latest ones. */
export const MOST_UNKNOWN = 16

/** Between two pauses, this node processes at most this number of messages from senders that are not peers. */
export const MOST_OF_OTHERS = 64
/**
 * The pauses in which weftd processes no handshake messages, so that a flood of such messages uses only a small part of
 * a core. A pause is `times` times as long as the processing before it. For each processed message or moved peer it is
 * at least `leastMs` and at most `mostMs` long.
 */
export const PAUSE = { times: 15, leastMs: 2, mostMs: 10 } as const
/** The maximum length of a pause in ms, so that many moving peers do not delay handshakes. */
export const MAX_PAUSE_MS = 500

/**
 * How long, in ms, the session number of a removed peer stays unused. Packets and messages with the number wait in
 * queues for less than this time. A thread of the engine needs less than this time for a batch of packets.
 */
export const NUMBER_REUSE_MS = 60_000
