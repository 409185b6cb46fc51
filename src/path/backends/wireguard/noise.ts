// noise.ts - the two messages of Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, from which two nodes derive the keys of a
// session.
//
// The protocol is Noise (revision 34, https://noiseprotocol.org/noise.html) with WireGuard's prologue. The initiator
// knows the responder's static key. The handshake has two messages:
// - `-> e, es, s, ss`: the initiator's ephemeral key; its static key, encrypted; a payload, encrypted: the timestamp.
// - `<- e, ee, se, psk`: the responder's ephemeral key; an empty payload, encrypted.
//
// Both nodes keep a transcript: the chaining key ck, and h, the hash of all sent data. Each result of a Diffie-Hellman
// exchange (DH) is mixed into ck, which yields the key of the next encryption, with h as associated data. So a node
// with a different key or transcript can decrypt nothing. The caller must check the lengths of messages.

import { SecretBytes } from '../../../base/secret.ts'
import { hash, hmac, open, seal, TAG_BYTES } from './crypto.ts'
import { dh, KEY_BYTES, publicKeyOf, type KeyObject, type KeyPair } from './x25519.ts'

const CONSTRUCTION = 'Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s'
const PROLOGUE = 'WireGuard v1 zx2c4 Jason@zx2c4.com'

const NOTHING = new Uint8Array(0)
const NO_PSK = new SecretBytes(new Uint8Array(KEY_BYTES))
const [ONE, TWO, THREE] = [Uint8Array.of(1), Uint8Array.of(2), Uint8Array.of(3)]

interface Start {
  readonly ck: Uint8Array
  readonly h: Uint8Array
}
/**
 * Returns the chaining key and the hash with which a handshake with this prologue begins. Only test vectors use a
 * prologue other than WireGuard's.
 */
export function startOf(prologue: string): Start {
  const ck = hash(CONSTRUCTION)
  return { ck, h: hash(ck, prologue) }
}
const WIREGUARD = startOf(PROLOGUE)

/**
 * The static public key of a peer, and values derived from it. Each value is computed when it is first needed, and is
 * then kept.
 */
export class Remote {
  readonly publicKey: Uint8Array
  readonly #own: KeyPair
  #key: KeyObject | undefined
  #shared: SecretBytes | undefined

  constructor(own: KeyPair, publicKey: Uint8Array) {
    this.#own = own
    this.publicKey = publicKey
  }

  get key(): KeyObject {
    return (this.#key ??= publicKeyOf(this.publicKey))
  }

  /** The DH result of this node's and the peer's static keys; undefined if the peer's key is of small order. */
  get shared(): SecretBytes | undefined {
    if (this.#shared) return this.#shared
    const bytes = dh(this.#own.privateKey, this.key)
    return bytes && (this.#shared = new SecretBytes(bytes))
  }

  wipe(): void {
    this.#shared?.wipe()
    this.#shared = undefined
  }
}

/**
 * The transcript of a handshake: the chaining key `ck`, the hash `h` and the key of the next encryption. The owner of a
 * transcript must call `wipe`.
 */
class Transcript {
  readonly #ck: SecretBytes
  #h: Uint8Array
  #key = new SecretBytes(NOTHING)

  constructor(ck: Uint8Array, h: Uint8Array) {
    this.#ck = new SecretBytes(Buffer.from(ck))
    this.#h = h
  }

  mixHash(message: Uint8Array): void {
    this.#h = hash(this.#h, message)
  }

  /**
   * Mixes an ephemeral public key into the hash `h` and into the chaining key `ck`, as Noise requires for handshakes
   * with a psk (Noise, section 9.2).
   */
  ephemeral(publicKey: Uint8Array): void {
    this.mixHash(publicKey)
    const [ck] = this.#derive(publicKey, 1)
    this.#become(ck)
  }

  /**
   * Mixes the result of a Diffie-Hellman exchange into the chaining key `ck` and derives the next key. Erases `secret`,
   * unless it is a SecretBytes, which its owner keeps for reuse. Returns false if `secret` is undefined.
   */
  mix(secret: Uint8Array | SecretBytes | undefined): boolean {
    if (!secret) return false
    const [ck, key] = this.#derive(secret instanceof SecretBytes ? secret.reveal() : secret, 2)
    if (!(secret instanceof SecretBytes)) secret.fill(0)
    this.#become(ck, key)
    return true
  }

  mixPsk(psk: SecretBytes = NO_PSK): void {
    const [ck, hashed, key] = this.#derive(psk.reveal(), 3)
    this.mixHash(hashed)
    hashed.fill(0)
    this.#become(ck, key)
  }

  seal(text: Uint8Array): Buffer {
    const sealed = seal(this.#key.reveal(), text, this.#h)
    this.mixHash(sealed)
    return sealed
  }

  open(sealed: Uint8Array): Buffer | undefined {
    const text = open(this.#key.reveal(), sealed, this.#h)
    this.mixHash(sealed)
    return text
  }

  /** Returns the two keys of the session, the initiator's sending key first. Erases the transcript. */
  split(): readonly [Buffer, Buffer] {
    const [initiators, responders] = this.#derive(NOTHING, 2)
    this.wipe()
    return [initiators, responders]
  }

  /**
   * Returns a copy of the transcript, for the check of one response. A response may be forged, so the check must not
   * change the original, with which this node checks the next response.
   */
  copy(): Transcript {
    return new Transcript(this.#ck.reveal(), this.#h)
  }

  wipe(): void {
    this.#ck.wipe()
    this.#key.wipe()
  }

  /**
   * Derives `count` keys from the chaining key `ck` and `input` by HKDF (Noise, section 4.3). Returns three results, of
   * which those beyond `count` are empty.
   */
  #derive(input: Uint8Array, count: 1 | 2 | 3): readonly [Buffer, Buffer, Buffer] {
    const extracted = hmac(this.#ck.reveal(), input)
    const first = hmac(extracted, ONE)
    const second = count > 1 ? hmac(extracted, first, TWO) : Buffer.alloc(0)
    const third = count > 2 ? hmac(extracted, second, THREE) : Buffer.alloc(0)
    extracted.fill(0)
    return [first, second, third]
  }

  #become(ck: Buffer, key?: Buffer): void {
    this.#ck.reveal().set(ck)
    ck.fill(0)
    if (!key) return
    this.#key.wipe()
    this.#key = new SecretBytes(key)
  }
}

const begin = ({ ck, h }: Start, responder: Uint8Array): Transcript => new Transcript(ck, hash(h, responder))

/**
 * The state of an initiation that was sent. The owner must wipe the transcript after the response has arrived, or when
 * this node gives the initiation up.
 */
export interface Sent {
  readonly transcript: Transcript
  readonly ephemeral: KeyPair
}

/** The keys of a session, 32 bytes each. The owner of the object must erase the keys. */
interface Keys {
  readonly sendKey: Buffer
  readonly receiveKey: Buffer
}

export const firstMessageBytes = (payload: number): number => KEY_BYTES + KEY_BYTES + TAG_BYTES + payload + TAG_BYTES
export const secondMessageBytes = (payload: number): number => KEY_BYTES + payload + TAG_BYTES

/**
 * Returns a handshake initiation that contains `payload`, and the state with which this node decrypts the response.
 * Returns undefined if the peer's key is of small order.
 */
export function writeFirst(
  own: KeyPair,
  to: Remote,
  ephemeral: KeyPair,
  payload: Uint8Array,
  start = WIREGUARD,
): { readonly message: Buffer; readonly sent: Sent } | undefined {
  const transcript = begin(start, to.publicKey)
  transcript.ephemeral(ephemeral.publicKey)
  if (transcript.mix(dh(ephemeral.privateKey, to.key))) {
    const sealedStatic = transcript.seal(own.publicKey)
    if (transcript.mix(to.shared)) {
      const sealedPayload = transcript.seal(payload)
      const message = Buffer.concat([ephemeral.publicKey, sealedStatic, sealedPayload])
      return { message, sent: { transcript, ephemeral } }
    }
  }
  transcript.wipe()
  return undefined
}

/**
 * The result of `readFirst`: the sender and the payload of a handshake initiation. The caller must either answer the
 * initiation with `writeSecond` or wipe `transcript`, which contains keys.
 */
interface Received<R extends Remote> {
  readonly from: R
  readonly payload: Buffer
  readonly transcript: Transcript
  readonly ephemeral: KeyObject
}

/**
 * Reads an initiation to this node. `find` returns the sender for a static public key. `readFirst` returns undefined if
 * `find` returns no sender or the message is invalid.
 */
export function readFirst<R extends Remote>(
  own: KeyPair,
  message: Uint8Array,
  find: (publicKey: Uint8Array) => R | undefined,
  start = WIREGUARD,
): Received<R> | undefined {
  const afterStatic = KEY_BYTES + KEY_BYTES + TAG_BYTES
  const publicKey = message.subarray(0, KEY_BYTES)
  const transcript = begin(start, own.publicKey)
  transcript.ephemeral(publicKey)
  const ephemeral = publicKeyOf(publicKey)
  if (transcript.mix(dh(own.privateKey, ephemeral))) {
    const theirs = transcript.open(message.subarray(KEY_BYTES, afterStatic))
    const from = theirs && find(theirs)
    if (from && transcript.mix(from.shared)) {
      const payload = transcript.open(message.subarray(afterStatic))
      if (payload) return { from, payload, transcript, ephemeral }
    }
  }
  transcript.wipe()
  return undefined
}

/** Returns the response to an initiation, and the session's keys; undefined if a key of the peer is of small order. */
export function writeSecond(
  received: Received<Remote>,
  ephemeral: KeyPair,
  psk: SecretBytes | undefined,
  payload: Uint8Array = NOTHING,
): { readonly message: Buffer; readonly keys: Keys } | undefined {
  const { transcript } = received
  transcript.ephemeral(ephemeral.publicKey)
  const isMixed =
    transcript.mix(dh(ephemeral.privateKey, received.ephemeral)) &&
    transcript.mix(dh(ephemeral.privateKey, received.from.key))
  if (!isMixed) {
    transcript.wipe()
    return undefined
  }
  transcript.mixPsk(psk)
  const sealed = transcript.seal(payload)
  const [receiveKey, sendKey] = transcript.split()
  return { message: Buffer.concat([ephemeral.publicKey, sealed]), keys: { sendKey, receiveKey } }
}

/**
 * Reads a response and returns its payload and the session's keys. Returns undefined if the response is not from the
 * node to which this node sent the initiation, or if that node has another psk. `sent` does not change.
 */
export function readSecond(
  own: KeyPair,
  sent: Sent,
  message: Uint8Array,
  psk: SecretBytes | undefined,
): { readonly payload: Buffer; readonly keys: Keys } | undefined {
  const publicKey = message.subarray(0, KEY_BYTES)
  const transcript = sent.transcript.copy()
  transcript.ephemeral(publicKey)
  const ephemeral = publicKeyOf(publicKey)
  if (transcript.mix(dh(sent.ephemeral.privateKey, ephemeral)) && transcript.mix(dh(own.privateKey, ephemeral))) {
    transcript.mixPsk(psk)
    const payload = transcript.open(message.subarray(KEY_BYTES))
    if (payload) {
      const [sendKey, receiveKey] = transcript.split()
      return { payload, keys: { sendKey, receiveKey } }
    }
  }
  transcript.wipe()
  return undefined
}
