// noise.ts - the two messages of Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, by which two nodes get the keys of a session.
//
// Noise (revision 34, https://noiseprotocol.org/noise.html) with WireGuard's prologue. The initiator knows the responder's static key:
//
//   -> e, es, s, ss    the initiator's ephemeral key; its static key, sealed; a payload, sealed: the timestamp
//   <- e, ee, se, psk  the responder's ephemeral key; a payload, sealed: nothing
//
// Both keep a transcript, of which ck is the chaining key and h the hash of all that was said. Each DH is mixed into ck, and gives the
// key of what is sealed next, with h as associated data. So whoever has another key, or heard another message, opens nothing.
// In a message nothing is longer or shorter than it must be: who calls has checked its length.

import { SecretBytes } from '../../../base/secret.ts'
import { hash, hmac, open, seal, TAG_BYTES } from './crypto.ts'
import { dh, KEY_BYTES, publicKeyOf, type KeyObject, type KeyPair } from './x25519.ts'

const CONSTRUCTION = 'Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s'
const PROLOGUE = 'WireGuard v1 zx2c4 Jason@zx2c4.com'

const NOTHING = new Uint8Array(0)
const NO_PSK = new SecretBytes(new Uint8Array(KEY_BYTES))
const [ONE, TWO, THREE] = [Uint8Array.of(1), Uint8Array.of(2), Uint8Array.of(3)]

/** What all know before the first message. */
interface Start {
  readonly ck: Uint8Array
  readonly h: Uint8Array
}
/** Other prologues than WireGuard's are there for test vectors. */
export function startOf(prologue: string): Start {
  const ck = hash(CONSTRUCTION)
  return { ck, h: hash(ck, prologue) }
}
const WIREGUARD = startOf(PROLOGUE)

/** A static public key of another, with what is computed of it once, when it is first needed. */
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

  /** The DH of both static keys; undefined where the other's is of small order. */
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

/** ck, h and the key of what is sealed next. Whoever has one wipes it. */
class Transcript {
  readonly #ck: SecretBytes
  #h: Uint8Array
  #key = new SecretBytes(NOTHING)

  constructor(ck: Uint8Array, h: Uint8Array) {
    this.#ck = new SecretBytes(Buffer.from(ck))
    this.#h = h
  }

  heard(message: Uint8Array): void {
    this.#h = hash(this.#h, message)
  }

  /** Mixes in an ephemeral public key, which with a psk is mixed into ck too (section 9.2). */
  ephemeral(publicKey: Uint8Array): void {
    this.heard(publicKey)
    const [ck] = this.#derive(publicKey, 1)
    this.#become(ck)
  }

  /** Mixes in a DH, which is wiped unless it is kept; false where there is none. */
  mix(secret: Uint8Array | SecretBytes | undefined): boolean {
    if (!secret) return false
    const [ck, key] = this.#derive(secret instanceof SecretBytes ? secret.reveal() : secret, 2)
    if (!(secret instanceof SecretBytes)) secret.fill(0)
    this.#become(ck, key)
    return true
  }

  mixPsk(psk: SecretBytes = NO_PSK): void {
    const [ck, heard, key] = this.#derive(psk.reveal(), 3)
    this.heard(heard)
    heard.fill(0)
    this.#become(ck, key)
  }

  seal(text: Uint8Array): Buffer {
    const sealed = seal(this.#key.reveal(), text, this.#h)
    this.heard(sealed)
    return sealed
  }

  open(sealed: Uint8Array): Buffer | undefined {
    const text = open(this.#key.reveal(), sealed, this.#h)
    this.heard(sealed)
    return text
  }

  /** The two keys of the session: first the one that the initiator sends with. Wipes all else. */
  split(): readonly [Buffer, Buffer] {
    const [initiators, responders] = this.#derive(NOTHING, 2)
    this.wipe()
    return [initiators, responders]
  }

  /** Another that goes on from here, since what answers this one may be forged, and the true answer still on its way. */
  copy(): Transcript {
    return new Transcript(this.#ck.reveal(), this.#h)
  }

  wipe(): void {
    this.#ck.wipe()
    this.#key.wipe()
  }

  /** HKDF (section 4.3); outputs beyond `count` are empty. */
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

/** An initiation that was sent, until its answer is read or it is given up, and wiped. */
export interface Sent {
  readonly transcript: Transcript
  readonly ephemeral: KeyPair
}

/** The keys of a session, of 32 bytes each. Whoever has them wipes them. */
interface Keys {
  readonly sendKey: Buffer
  readonly receiveKey: Buffer
}

export const firstMessageBytes = (payload: number): number => KEY_BYTES + KEY_BYTES + TAG_BYTES + payload + TAG_BYTES
export const secondMessageBytes = (payload: number): number => KEY_BYTES + payload + TAG_BYTES

/** The first message to a node, with a payload; undefined where its key is of small order. */
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

/** A first message that was read: who sent it, and what it said. It is answered, or wiped. */
interface Received<R extends Remote> {
  readonly from: R
  readonly payload: Buffer
  readonly transcript: Transcript
  readonly ephemeral: KeyObject
}

/** Reads a first message to this node; undefined unless it is of one of those that `find` knows by the static key. */
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

/** Answers a first message, and gives the keys; undefined where a key of the other's is of small order. */
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

/** Reads the answer; undefined, and nothing of `sent` is changed, unless it is of the node that was asked, with the same psk. */
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
