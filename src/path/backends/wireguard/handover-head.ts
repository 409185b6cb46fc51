// handover-head.ts - the state that the session manager of one weftd process passes to the next process: numbers,
// endpoints and timestamps, without keys.
//
// The engine passes the keys to the next engine, so that exactly one engine has them (native/io/handover_state.h). The
// state is encoded as a MAC followed by JSON. The MAC proves that both processes have the same private key and
// pre-shared key. Times are in ms of the kernel's CLOCK_BOOTTIME, which is the same for all processes of a host.

import type { SecretBytes } from '../../../base/secret.ts'
import { formatAddress, parseAddress } from '../../../net/address.ts'
import type { UdpEndpoint } from '../../engine/engine.ts'
import { hmac, isEqual } from './crypto.ts'
import type { HandshakeMemory } from './handshakes.ts'

/** The version of the format in which one weftd process passes its state to the next. */
const FORM = 3
const PROOF_BYTES = 32

export interface HandoverHead {
  /** The random number, and the key, that hide the peers' numbers in indices (indices.ts). */
  readonly indexSecret: number
  readonly indexKey: Uint8Array
  /** The greatest session number that was assigned. */
  readonly lastNumber: number
  /** The number of the last tick (tai64n.ts) that the process may have used for a timestamp. */
  readonly lastTick: number
  readonly sessions: readonly HandoverSession[]
}

interface HandoverSession {
  readonly number: number
  /** The peer's public key in base64. */
  readonly publicKey: string
  /** The endpoint in the peer's lease; `endpoint` is the endpoint to which this node sends datagrams. */
  readonly leased: UdpEndpoint
  readonly endpoint: UdpEndpoint
  readonly anyPort: boolean
  readonly memory: HandshakeMemory
}

const textOf = ({ address, port }: UdpEndpoint): [string, number] => [formatAddress(address), port]
const endpointFrom = ([address, port]: readonly [string, number]): UdpEndpoint => ({
  address: parseAddress(address) ?? 0,
  port,
})

/**
 * Returns the state as JSON. In the JSON an endpoint is its address as text and its port, the index key is in base64,
 * and a timestamp is decimal text.
 */
const jsonOf = (head: HandoverHead) => ({
  ...head,
  form: FORM,
  indexKey: Buffer.from(head.indexKey).toString('base64'),
  sessions: head.sessions.map((session) => ({
    ...session,
    leased: textOf(session.leased),
    endpoint: textOf(session.endpoint),
    memory: { ...session.memory, greatest: String(session.memory.greatest) },
  })),
})

export function writeHead(head: HandoverHead, proofKey: SecretBytes): Buffer {
  const text = Buffer.from(JSON.stringify(jsonOf(head)))
  return Buffer.concat([hmac(proofKey.reveal(), text), text])
}

/**
 * Parses the state that another process wrote. Returns undefined if the bytes are invalid, have another format, or have
 * a MAC that was made with another key than `proofKey`.
 */
export function readHead(bytes: Uint8Array, proofKey: SecretBytes): HandoverHead | undefined {
  const text = Buffer.from(bytes.subarray(PROOF_BYTES))
  if (!isEqual(hmac(proofKey.reveal(), text), bytes.subarray(0, PROOF_BYTES))) return undefined
  const found = JSON.parse(text.toString()) as ReturnType<typeof jsonOf>
  if (found.form !== FORM) return undefined
  return {
    ...found,
    indexKey: Buffer.from(found.indexKey, 'base64'),
    sessions: found.sessions.map((session) => ({
      ...session,
      leased: endpointFrom(session.leased),
      endpoint: endpointFrom(session.endpoint),
      memory: { ...session.memory, greatest: BigInt(session.memory.greatest) },
    })),
  }
}
