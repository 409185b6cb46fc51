// peer.ts - the state of the handshakes with one peer. docs/design/wireguard-sessions.md explains the states.
//
// Times are in ms of CLOCK_BOOTTIME (session-clock.ts), except `at`, which is in ms since 1970.

import type { SecretBytes } from '../../../base/secret.ts'
import type { PeerSession } from '../../contract.ts'
import { macKeysOf, type Endpoint, type MacKeys } from './cookie.ts'
import { Remote, type Sent } from './noise.ts'
import type { KeyPair } from './x25519.ts'

type Failure = NonNullable<PeerSession['failure']>

/** A peer as the caller of Handshakes.setPeers describes it. */
export interface HandshakePeer {
  /** The peer's session number, below MOST_PEERS. A public key keeps its number as long as the process runs. */
  readonly number: number
  readonly publicKey: Uint8Array
  readonly psk?: SecretBytes | undefined
  /** The endpoint to which datagrams to the peer are sent. */
  readonly endpoint: Endpoint
}

/** An initiation that the peer has not answered yet, with the secrets that decrypt the response. */
interface Pending extends Sent {
  /** The index in the initiation, which the response repeats. */
  readonly index: number
  readonly sentAt: number
  /** The reason that weftd's status shows for the failed handshake, if no valid response to this initiation arrives. */
  failure: Failure
}

export class Peer extends Remote {
  readonly number: number
  psk: SecretBytes | undefined
  /** The endpoint to which datagrams to the peer are sent. */
  endpoint: Endpoint
  /**
   * The counter in the low 12 bits of the indices (indices.ts) that this node uses for its handshakes with the peer. It
   * starts at a random number. So an index repeats only after 4096 handshakes. Session::set_keys
   * (native/core/session.h) erases an older pair of keys with an equal index.
   */
  low: number
  /**
   * The time of the last handshake whose keys came into use, in ms of CLOCK_BOOTTIME; -Infinity if there was none, or
   * if the keys are lost.
   */
  completedAt = -Infinity

  /**
   * The time, in ms of CLOCK_BOOTTIME, at which the engine first wanted the keys that are still missing; undefined
   * if the engine wants no keys. Only initiator.ts changes `wantedAt`, `pending`, `dueAt` and `lastTick`.
   */
  wantedAt: number | undefined
  /** The initiation that the peer has not answered; undefined if there is none. */
  pending: Pending | undefined
  /**
   * The time, in ms of CLOCK_BOOTTIME, at which this node gives up waiting for the response to `pending` and may
   * send another initiation.
   */
  dueAt = -Infinity
  /** The tick (tai64n.ts) of the last timestamp that this node sent to the peer; -1 if this node sent none. */
  lastTick = -1

  /**
   * The greatest timestamp of the peer's accepted initiations; -1 if there was none. Only responder.ts changes
   * `greatest`, `acceptedAt` and `answered`.
   */
  greatest = -1n
  /** The time at which the peer's last initiation was accepted, in ms of CLOCK_BOOTTIME. */
  acceptedAt = -Infinity
  /**
   * The endpoint from which the peer's last initiation came. It becomes the peer's endpoint only after a packet proves
   * that the initiation was not a replay.
   */
  answered: Endpoint | undefined

  #macKeys: MacKeys | undefined
  /** mac1 of the last message to the peer, which decrypts the peer's cookie reply; undefined after the reply. */
  sentMac1: Uint8Array | undefined
  /** The index in the last message to the peer, which the peer's cookie reply repeats. */
  sentIndex = 0
  /**
   * The cookie from the peer's last cookie reply; undefined if there was none. This node may use the cookie before the
   * time `until`, in ms of CLOCK_BOOTTIME.
   */
  cookie: { readonly bytes: SecretBytes; readonly until: number } | undefined

  /** The time, in ms since 1970, of the last handshake whose keys came into use; undefined if there was none. */
  at: number | undefined
  /** The number of initiations to the peer since the last handshake that made keys. */
  attempts = 0
  /** Why the last initiation made no keys; undefined if it made keys. */
  failure: Failure | undefined
  /**
   * The number of initiations from the peer with a timestamp older than that of an earlier initiation, since the last
   * handshake that made keys.
   */
  stale = 0
  /**
   * The number of initiations from the peer that this node answered, but after which no packet with the new keys
   * arrived, since the last handshake that made keys.
   */
  unconfirmed = 0

  constructor({ number, publicKey, psk, endpoint }: HandshakePeer, own: KeyPair, low: number) {
    super(own, Uint8Array.from(publicKey))
    this.number = number
    this.psk = psk
    this.endpoint = endpoint
    this.low = low
  }

  get macKeys(): MacKeys {
    return (this.#macKeys ??= macKeysOf(this.publicKey))
  }

  /** Erases the secrets of the unanswered initiation. */
  forgetPending(): void {
    this.pending?.transcript.wipe()
    this.pending = undefined
  }

  override wipe(): void {
    super.wipe()
    this.forgetPending()
    this.cookie?.bytes.wipe()
    this.cookie = undefined
  }
}
