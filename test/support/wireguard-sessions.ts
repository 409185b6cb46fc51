// wireguard-sessions.ts - a small model of how an engine uses the keys of handshakes: which pair it uses and when it requests another one.
// It checks that no key and no nonce is ever used twice.

import type { SessionEngine } from '../../src/path/backends/wireguard/local-node.ts'
import type { SessionKeys } from '../../src/path/engine/engine.ts'

/** A data message: the key that sealed it, and its receiver. */
export interface Packet {
  readonly index: number
  readonly key: string
  readonly nonce: number
}

interface Pair {
  readonly isInitiator: boolean
  readonly ownIndex: number
  readonly peerIndex: number
  readonly sendKey: string
  readonly receiveKey: string
  readonly since: number
  nonce: number
  readonly received: Set<number>
  /** True if this node installed a pair of its own handshake since. */
  isOutdated: boolean
  /** Grows with each use by the peer: of two pairs the one with the higher value was used last. */
  used: number
}

const REKEY_AFTER_MS = 120_000
const REFRESH_MS = 165_000
const REJECT_AFTER_MS = 180_000
const SILENCE_MS = 15_000
const KEEPALIVE_MS = 10_000

export interface Sessions {
  setKeys: SessionEngine['setKeys']
  /** Sends data of the host, which waits if there are no keys. */
  data(now: number): void
  receive(packet: Packet, now: number): void
  /** Sends passive keepalives, and reacts to silence. */
  tick(now: number): void
  /** The number of packets that were opened. */
  readonly delivered: () => number
}

/** `everUsed` holds the keys and nonces of all nodes in all their sessions; a duplicate fails the test. */
export function createSessions(
  everUsed: Set<string>,
  say: { send(packet: Packet): void; wanted(now: number): void; confirmed(now: number): void },
  clock: () => number,
): Sessions {
  let current: Pair | undefined
  let previous: Pair | undefined
  let next: Pair | undefined
  let isStaged = false
  let sentAt: number | undefined // the time of data since which nothing was received
  let keepaliveAt: number | undefined
  let delivered = 0
  let uses = 0

  const once = (what: string): void => {
    if (everUsed.has(what)) throw new Error(`twice: ${what}`)
    everUsed.add(what)
  }
  const isYoung = (pair: Pair | undefined, now: number): pair is Pair =>
    pair !== undefined && now - pair.since < REJECT_AFTER_MS
  function seal(pair: Pair): void {
    pair.nonce += 1
    once(`nonce ${pair.sendKey} ${pair.nonce}`)
    keepaliveAt = undefined
    say.send({ index: pair.peerIndex, key: pair.sendKey, nonce: pair.nonce })
  }
  function replaceCurrent(pair: Pair): void {
    if (!previous || (current && current.used >= previous.used)) previous = current
    current = pair
  }
  function data(now: number): void {
    if (!isYoung(current, now)) {
      isStaged = true
      say.wanted(now)
      return
    }
    seal(current)
    sentAt ??= now
    if (current.isInitiator && now - current.since > REKEY_AFTER_MS) say.wanted(now)
  }
  return {
    setKeys(_peer, { isInitiator, ownIndex, peerIndex, sendKey, receiveKey }: SessionKeys) {
      const [send, receive] = [sendKey, receiveKey].map((key) => Buffer.from(key).toString('base64')) as [
        string,
        string,
      ]
      if (/^A+=*$/.test(send) || /^A+=*$/.test(receive)) throw new Error('a key of zeros')
      once(`sends by ${send}`)
      once(`receives by ${receive}`)
      if ([current, previous, next].some((pair) => pair?.ownIndex === ownIndex))
        throw new Error('an index of two pairs')
      const pair = {
        isInitiator,
        ownIndex,
        peerIndex,
        sendKey: send,
        receiveKey: receive,
        since: clock(),
        nonce: -1,
        received: new Set<number>(),
        isOutdated: false,
        used: 0,
      }
      if (!isInitiator) {
        next = pair
        return
      }
      replaceCurrent(pair)
      if (next) next.isOutdated = true
      seal(pair) // a keepalive, or the waiting data
      isStaged = false
    },
    data,
    receive({ index, key, nonce }, now) {
      const pair = [current, previous, next].find((each) => each?.ownIndex === index)
      if (!isYoung(pair, now) || pair.receiveKey !== key || pair.received.has(nonce)) return
      pair.received.add(nonce)
      delivered += 1
      sentAt = undefined
      if (pair === next) {
        next = undefined
        if (pair.isOutdated && isYoung(current, now)) previous = pair
        else replaceCurrent(pair)
        say.confirmed(now)
        if (isStaged) data(now)
        isStaged = false
      }
      pair.used = uses += 1
      keepaliveAt ??= now + KEEPALIVE_MS
      if (current?.isInitiator && now - current.since > REFRESH_MS) say.wanted(now)
    },
    tick(now) {
      if (keepaliveAt !== undefined && now >= keepaliveAt && isYoung(current, now)) seal(current)
      if (sentAt !== undefined && now - sentAt >= SILENCE_MS) {
        sentAt = undefined
        say.wanted(now)
      }
    },
    delivered: () => delivered,
  }
}
