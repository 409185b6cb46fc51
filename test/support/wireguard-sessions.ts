// wireguard-sessions.ts - a small model of what an engine does with the keys that handshakes give it: which pair is used, when it wants
// another, and that no key is ever given, and no nonce ever used, twice.

import type { SessionEngine, SessionKeys } from '../../src/path/backends/wireguard/handshakes.ts'

/** A data message: by which key it was sealed, and for whom. */
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
  /** The pairs of a node were made in this order. */
  readonly number: number
  /** By the peer; of two pairs the higher one last. */
  used: number
}

const REKEY_AFTER_MS = 120_000
const REFRESH_MS = 165_000
const REJECT_AFTER_MS = 180_000
const SILENCE_MS = 15_000
const KEEPALIVE_MS = 10_000

export interface Sessions {
  setKeys: SessionEngine['setKeys']
  /** Data of the host's; it waits for keys where there are none. */
  data(now: number): void
  receive(packet: Packet, now: number): void
  /** Passive keepalives, and what follows from silence. */
  tick(now: number): void
  /** Packets that were opened. */
  readonly delivered: () => number
}

/** `everUsed` is of all nodes and all their lives: what occurs twice in it fails the test. */
export function createSessions(
  everUsed: Set<string>,
  say: { send(packet: Packet): void; wanted(now: number): void; confirmed(now: number): void },
  clock: () => number,
): Sessions {
  let current: Pair | undefined
  let previous: Pair | undefined
  let next: Pair | undefined
  let isStaged = false
  let sentAt: number | undefined // data, with nothing received since
  let keepaliveAt: number | undefined
  let delivered = 0
  let [uses, pairs] = [0, 0]

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
        number: (pairs += 1),
        used: 0,
      }
      if (!isInitiator) {
        next = pair
        return
      }
      replaceCurrent(pair)
      seal(pair) // a keepalive, or what waits
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
        // Of two handshakes at once our own came later.
        if (isYoung(current, now) && current.number > pair.number) previous = pair
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
