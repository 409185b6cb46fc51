// local-node.ts - the objects that initiator.ts and responder.ts share: this node's key pair, its peers, and the
// functions that pass messages and keys to the engine.

import type { SecretBytes } from '../../../base/secret.ts'
import type { SessionKeys } from '../../engine/engine.ts'
import { macKeysOf, writeMacs, type Endpoint, type MacKeys } from './cookie.ts'
import type { Randomness } from './crypto.ts'
import { createIndices, LOW_MASK } from './indices.ts'
import { Peer, type HandshakePeer } from './peer.ts'
import { keyPairOf, type KeyPair } from './x25519.ts'

export interface SessionEngine {
  send(to: Endpoint, datagram: Uint8Array): void
  /** Gives a session's keys to the engine, which copies them; the caller then erases its own copy. */
  setKeys(peer: number, keys: SessionKeys): void
}

export interface LocalNodeParts {
  /** This node's private key, 32 bytes. LocalNode copies the key, so the caller may erase its own copy. */
  readonly privateKey: SecretBytes
  /**
   * A random 32-bit number that scrambles the indices in messages, so that the indices do not reveal how many peers
   * this node has. The engine needs the same number.
   */
  readonly indexSecret: number
  /**
   * The key that permutes the peers' numbers in indices (indices.ts); all zeros if left out. The engine needs the same
   * key.
   */
  readonly indexKey?: Uint8Array
  readonly engine: SessionEngine
  readonly random: Randomness
  /** Returns the time in ms since 1970. */
  readonly wall: () => number
  /** Called when this node begins to send a peer's datagrams to a new endpoint. */
  readonly roamed: (peer: number, to: Endpoint) => void
}

const nameOf = (publicKey: Uint8Array): string => Buffer.from(publicKey).toString('base64')
const isSame = (a: Endpoint, b: Endpoint): boolean => a.address === b.address && a.port === b.port

export class LocalNode {
  /** This node's static key pair. `macKeys` has the keys of the MACs in messages to this node. */
  readonly own: KeyPair
  readonly macKeys: MacKeys
  readonly peers = new Map<number, Peer>()
  readonly #byName = new Map<string, Peer>()
  #indices: ReturnType<typeof createIndices>
  readonly #engine: SessionEngine
  readonly random: Randomness
  readonly wall: () => number
  readonly #roamed: (peer: number, to: Endpoint) => void

  constructor({ privateKey, indexSecret, indexKey, engine, random, wall, roamed }: LocalNodeParts) {
    this.own = keyPairOf(privateKey.reveal())
    this.macKeys = macKeysOf(this.own.publicKey)
    this.#indices = createIndices(indexSecret, indexKey)
    this.#engine = engine
    this.random = random
    this.wall = wall
    this.#roamed = roamed
  }

  /** Uses the indices of an earlier process, whose sessions this process continues. */
  useIndices(secret: number, key?: Uint8Array): void {
    this.#indices = createIndices(secret, key)
  }

  isSelf(publicKey: Uint8Array): boolean {
    return Buffer.compare(publicKey, this.own.publicKey) === 0
  }

  add(given: HandshakePeer): void {
    const low = Buffer.from(this.random.bytes(4)).readUInt32LE() & LOW_MASK
    const peer = new Peer(given, this.own, low)
    this.peers.set(peer.number, peer)
    this.#byName.set(nameOf(peer.publicKey), peer)
  }

  remove(peer: Peer): void {
    this.peers.delete(peer.number)
    this.#byName.delete(nameOf(peer.publicKey))
    peer.wipe()
  }

  peerWithKey(publicKey: Uint8Array): Peer | undefined {
    return this.#byName.get(nameOf(publicKey))
  }

  peerOfIndex(index: number): Peer | undefined {
    return this.peers.get(this.#indices.peerOf(index))
  }

  newIndex(peer: Peer): number {
    peer.low = (peer.low + 1) & LOW_MASK
    return this.#indices.of(peer.number, peer.low)
  }

  /** Writes the MACs into a handshake message with the index `index`, and sends the message. */
  send(peer: Peer, to: Endpoint, index: number, message: Buffer, now: number): void {
    const { cookie } = peer
    const usable = cookie && now < cookie.until ? cookie.bytes.reveal() : undefined
    peer.sentMac1 = writeMacs(message, peer.macKeys, usable)
    peer.sentIndex = index
    this.#engine.send(to, message)
  }

  /** Sends a message that needs no answer. */
  sendReply(to: Endpoint, message: Uint8Array): void {
    this.#engine.send(to, message)
  }

  /** Gives a session's new keys to the engine, and erases the caller's copy of the keys. */
  install(peer: Peer, keys: SessionKeys): void {
    try {
      this.#engine.setKeys(peer.number, keys)
    } finally {
      keys.sendKey.fill(0)
      keys.receiveKey.fill(0)
    }
  }

  /** Makes `to` the endpoint to which this node sends the peer's datagrams. */
  roam(peer: Peer, to: Endpoint): void {
    if (isSame(peer.endpoint, to)) return
    peer.endpoint = to
    this.#roamed(peer.number, to)
  }
}
