// wireguard.ts - reads and sets WireGuard devices with the generic netlink family `wireguard` (linux/wireguard.h).
//
// Requests and answers contain secret keys. The functions in this file overwrite the bytes of requests and answers with
// zeros after use.

import { Secret } from '../../base/secret.ts'
import { ADDRESS_BITS, familyOf, netAround, type Address, type Net } from '../../net/address.ts'
import type { Change, Device, WireguardPeerChange, WireguardPeerState, WireguardState } from '../kernel.ts'
import { addressBytes, addressIn, messagesIn, MessageWriter, NLM_F, type Attributes } from './message.ts'
import type { Answer, NetlinkSocket } from './socket.ts'

type WireguardChange = Extract<Change, { readonly kind: 'set wireguard' }>

/** Generic netlink's own family, which reports the number of each other family (linux/genetlink.h). */
const CONTROL = { TYPE: 0x10, VERSION: 1, GET_FAMILY: 3, FAMILY_ID: 1, FAMILY_NAME: 2 } as const
/** The length of `struct genlmsghdr` in bytes, and the length of a key in bytes. */
const GENERIC_HEADER = 4
const KEY_BYTES = 32

const VERSION = 1
const COMMAND = { GET_DEVICE: 0, SET_DEVICE: 1 } as const
const DEVICE = { IFINDEX: 1, IFNAME: 2, PRIVATE_KEY: 3, PUBLIC_KEY: 4, LISTEN_PORT: 6, PEERS: 8 } as const
const PEER = {
  PUBLIC_KEY: 1,
  PRESHARED_KEY: 2,
  FLAGS: 3,
  ENDPOINT: 4,
  KEEPALIVE: 5,
  LAST_HANDSHAKE: 6,
  RX_BYTES: 7,
  TX_BYTES: 8,
  ALLOWED_IPS: 9,
} as const
const PEER_FLAG = { REMOVE_ME: 1, REPLACE_ALLOWED_IPS: 2 } as const
const ALLOWED_IP = { FAMILY: 1, ADDRESS: 2, PREFIX_LENGTH: 3 } as const
/** The numbers of address families (AF_INET and AF_INET6 in socket.h). */
const AF = { INET: 2, INET6: 10 } as const
/** The answer to use if the kernel's answer is missing or incomplete. Its error number is EPROTO. */
const UNANSWERED: Answer = { data: Buffer.alloc(0), errno: 71, explanation: undefined }
/** The lengths of `struct sockaddr_in` and `struct sockaddr_in6` in bytes. */
const SOCKADDR = { INET: 16, INET6: 28 } as const

/**
 * Once a request has this length in bytes, the next peer goes into a new request, because the attribute that contains
 * the peers is limited to 64 KiB.
 */
const LONG_REQUEST = 32 * 1024
/** The maximum number of allowed IPs in one description of a peer; each takes up to 44 bytes. */
const ALLOWED_IPS_AT_ONCE = 500

/**
 * The kernel's answer to a request that reads a device, and the device's state if the kernel did not refuse the
 * request.
 */
interface WireguardReading {
  readonly answer: Answer
  readonly state: WireguardState | undefined
}

/** Reads the state of a WireGuard device through a socket of generic netlink. */
export async function readWireguard(socket: NetlinkSocket, device: Device): Promise<WireguardReading> {
  const { answer: found, family } = await findFamily(socket)
  if (family === undefined) return { answer: found, state: undefined }
  const [answer = UNANSWERED] = await socket.exchange([getRequest(family, device)])
  try {
    return { answer, state: answer.errno === 0 ? stateIn(answer.data) : undefined }
  } finally {
    answer.data.fill(0)
  }
}

/**
 * Requests all changes of WireGuard devices in the given order, even if the kernel refuses one of them. Returns for
 * each change the kernel's first refusal, or an answer without an error number.
 */
export async function setWireguard(
  socket: NetlinkSocket,
  changes: readonly WireguardChange[],
): Promise<readonly Answer[]> {
  const { answer: found, family } = await findFamily(socket)
  if (family === undefined) return changes.map(() => found)
  const requests = changes.map((change) => setRequests(family, change))
  try {
    const answers = await socket.exchange(requests.flat())
    let at = 0
    return requests.map(({ length }) => {
      const own = answers.slice(at, (at += length))
      return own.find(({ errno }) => errno !== 0) ?? own[0] ?? UNANSWERED
    })
  } finally {
    for (const request of requests.flat()) request.fill(0)
  }
}

/**
 * Looks up the number of WireGuard's generic netlink family. For this request the kernel loads the WireGuard module if
 * necessary. The number changes when the module is loaded again, so each use of the family begins with this request.
 */
async function findFamily(
  socket: NetlinkSocket,
): Promise<{ readonly answer: Answer; readonly family: number | undefined }> {
  const [answer = UNANSWERED] = await socket.exchange([
    new MessageWriter(CONTROL.TYPE, NLM_F.ACK)
      .raw(Uint8Array.of(CONTROL.GET_FAMILY, CONTROL.VERSION, 0, 0))
      .text(CONTROL.FAMILY_NAME, 'wireguard')
      .finish(),
  ])
  const [message] = messagesIn(answer.data)
  const family = answer.errno === 0 ? message?.attributes(GENERIC_HEADER).u16(CONTROL.FAMILY_ID) : undefined
  return { answer: answer.errno === 0 && family === undefined ? UNANSWERED : answer, family }
}

function getRequest(family: number, device: Device): Buffer {
  return beginRequest(family, NLM_F.DUMP, COMMAND.GET_DEVICE, device).finish()
}

function beginRequest(family: number, flags: number, command: number, { name, index }: Device): MessageWriter {
  const request = new MessageWriter(family, flags).raw(Uint8Array.of(command, VERSION, 0, 0))
  return index === undefined ? request.text(DEVICE.IFNAME, name) : request.attributeU32(DEVICE.IFINDEX, index)
}

/** Encodes a change as one or more requests, because the length of a request is limited. */
function setRequests(family: number, { device, privateKey, port, peers = [] }: WireguardChange): Buffer[] {
  const begin = (): MessageWriter => beginRequest(family, NLM_F.ACK, COMMAND.SET_DEVICE, device)
  const requests: MessageWriter[] = []
  const parts = peers.flatMap(partsOf)
  for (let at = 0; at < parts.length || requests.length === 0;) {
    const request = begin()
    if (requests.length === 0) {
      if (privateKey) writeKey(request, DEVICE.PRIVATE_KEY, privateKey)
      if (port !== undefined) request.attributeU16(DEVICE.LISTEN_PORT, port)
    }
    if (at < parts.length)
      request.nested(DEVICE.PEERS, () => {
        for (; at < parts.length && request.length < LONG_REQUEST; at++) writePeer(request, parts[at] as PeerPart)
      })
    requests.push(request)
  }
  return requests.map((request) => request.finish())
}

/**
 * A part of the description of a WireGuard peer, which is divided if it is long. Only the first part has settings other
 * than the allowed IPs.
 */
interface PeerPart {
  readonly peer: WireguardPeerChange
  readonly isFirst: boolean
  readonly allowedIps: readonly Net[] | undefined
}

/** Divides a peer with many allowed IPs into several parts, whose allowed IPs the kernel combines. */
function partsOf(peer: WireguardPeerChange): PeerPart[] {
  const { allowedIps = [] } = peer
  const parts: PeerPart[] = [{ peer, isFirst: true, allowedIps: peer.allowedIps?.slice(0, ALLOWED_IPS_AT_ONCE) }]
  for (let at = ALLOWED_IPS_AT_ONCE; at < allowedIps.length; at += ALLOWED_IPS_AT_ONCE)
    parts.push({ peer, isFirst: false, allowedIps: allowedIps.slice(at, at + ALLOWED_IPS_AT_ONCE) })
  return parts
}

function writePeer(request: MessageWriter, { peer, isFirst, allowedIps }: PeerPart): void {
  const { publicKey, isRemoved, presharedKey, endpoint, keepaliveSeconds } = peer
  request.nested(0, () => {
    request.bytes(PEER.PUBLIC_KEY, Buffer.from(publicKey, 'base64'))
    if (isRemoved) return void request.attributeU32(PEER.FLAGS, PEER_FLAG.REMOVE_ME)
    if (isFirst) {
      if (allowedIps) request.attributeU32(PEER.FLAGS, PEER_FLAG.REPLACE_ALLOWED_IPS)
      if (presharedKey) writeKey(request, PEER.PRESHARED_KEY, presharedKey)
      if (endpoint) request.bytes(PEER.ENDPOINT, sockaddrOf(endpoint))
      if (keepaliveSeconds !== undefined) request.attributeU16(PEER.KEEPALIVE, keepaliveSeconds)
    }
    if (allowedIps) request.nested(PEER.ALLOWED_IPS, () => allowedIps.forEach((net) => writeAllowedIp(request, net)))
  })
}

function writeAllowedIp(request: MessageWriter, { address, prefixLength }: Net): void {
  request.nested(0, () =>
    request
      .attributeU16(ALLOWED_IP.FAMILY, typeof address === 'number' ? AF.INET : AF.INET6)
      .address(ALLOWED_IP.ADDRESS, address)
      .attributeU8(ALLOWED_IP.PREFIX_LENGTH, prefixLength),
  )
}

/** Writes a key. An empty secret is written as zeros, which make the kernel remove the key. */
function writeKey(request: MessageWriter, type: number, key: Secret): void {
  const bytes = key.isEmpty ? Buffer.alloc(KEY_BYTES) : Buffer.from(key.reveal(), 'base64')
  request.bytes(type, bytes)
  bytes.fill(0)
}

type Endpoint = NonNullable<WireguardPeerChange['endpoint']>

/** Encodes `struct sockaddr_in` or `struct sockaddr_in6` (ip(7), ipv6(7)), with the scope 0. */
function sockaddrOf({ address, port }: Endpoint): Buffer {
  const isIpv4 = typeof address === 'number'
  const bytes = Buffer.alloc(isIpv4 ? SOCKADDR.INET : SOCKADDR.INET6)
  bytes.set(u16Bytes(isIpv4 ? AF.INET : AF.INET6))
  bytes.writeUInt16BE(port, 2)
  bytes.set(addressBytes(address), isIpv4 ? 4 : 8)
  return bytes
}

function endpointIn(bytes: Buffer | undefined): Endpoint | undefined {
  if (!bytes || bytes.length < SOCKADDR.INET) return undefined
  const family = new Uint16Array(Uint8Array.from(bytes.subarray(0, 2)).buffer)[0]
  const port = bytes.readUInt16BE(2)
  const address: Address | undefined =
    family === AF.INET
      ? addressIn(bytes.subarray(4, 8))
      : family === AF.INET6
        ? addressIn(bytes.subarray(8, 24))
        : undefined
  return address === undefined ? undefined : { address, port }
}

/** Returns a number of 16 bits in the byte order of the host. */
const u16Bytes = (value: number): Uint8Array => new Uint8Array(Uint16Array.of(value).buffer)

/** Decodes the messages of a dump. Each message has a part of the device's peers. */
function stateIn(data: Buffer): WireguardState {
  let publicKey = ''
  let port = 0
  const peers = new PeerList()
  for (const message of messagesIn(data)) {
    const device = message.attributes(GENERIC_HEADER)
    publicKey = keyIn(device, DEVICE.PUBLIC_KEY) ?? publicKey
    port = device.u16(DEVICE.LISTEN_PORT) ?? port
    for (const peer of device.nested(DEVICE.PEERS)?.elements() ?? []) peers.add(peer)
  }
  return { publicKey, port, peers: peers.all }
}

const keyIn = (from: Attributes, type: number): string | undefined => {
  const bytes = from.bytes(type)
  return bytes?.length === KEY_BYTES ? bytes.toString('base64') : undefined
}

const NO_KEY = new Secret('')

/** Collects the peers from the messages of a dump (the kernel's answer about a device). */
class PeerList {
  readonly all: (WireguardPeerState & { readonly allowedIps: Net[] })[] = []
  /**
   * The pre-shared key of the last peer that has one. Most networks have one pre-shared key for all peers, which then
   * share this object.
   */
  #lastKey = NO_KEY

  /**
   * Adds a peer, or more allowed IPs of the last peer. If a peer's allowed IPs do not fit in a message, the kernel
   * repeats the peer in the next message, with its public key and more allowed IPs only.
   */
  add(from: Attributes): void {
    const publicKey = keyIn(from, PEER.PUBLIC_KEY)
    if (publicKey === undefined) return
    const allowedIps = from.nested(PEER.ALLOWED_IPS)?.elements().flatMap(allowedIpIn) ?? []
    const last = this.all.at(-1)
    if (last?.publicKey === publicKey) {
      last.allowedIps.push(...allowedIps)
      return
    }
    const presharedKey = this.#presharedKeyIn(from)
    this.all.push({
      publicKey,
      hasPresharedKey: !presharedKey.isEmpty,
      presharedKey,
      endpoint: endpointIn(from.bytes(PEER.ENDPOINT)),
      keepaliveSeconds: from.u16(PEER.KEEPALIVE) ?? 0,
      handshakeAt: timeIn(from.bytes(PEER.LAST_HANDSHAKE)),
      receivedBytes: Number(from.u64(PEER.RX_BYTES) ?? 0n),
      sentBytes: Number(from.u64(PEER.TX_BYTES) ?? 0n),
      allowedIps,
    })
  }

  #presharedKeyIn(from: Attributes): Secret {
    const bytes = from.bytes(PEER.PRESHARED_KEY)
    if (!bytes || bytes.length !== KEY_BYTES || bytes.every((byte) => byte === 0)) return NO_KEY
    const text = bytes.toString('base64')
    if (this.#lastKey.reveal() !== text) this.#lastKey = new Secret(text)
    return this.#lastKey
  }
}

function allowedIpIn(from: Attributes): Net[] {
  const address = from.address(ALLOWED_IP.ADDRESS)
  const prefixLength = from.u8(ALLOWED_IP.PREFIX_LENGTH)
  if (address === undefined || prefixLength === undefined || prefixLength > ADDRESS_BITS[familyOf(address)]) return []
  return [netAround(address, prefixLength)]
}

/** Decodes `struct __kernel_timespec` as ms since 1970; undefined for the time 0, which stands for no handshake. */
function timeIn(bytes: Buffer | undefined): number | undefined {
  if (bytes?.length !== 16) return undefined
  const [seconds = 0n, nanoseconds = 0n] = new BigInt64Array(Uint8Array.from(bytes).buffer)
  return seconds === 0n && nanoseconds === 0n
    ? undefined
    : Number(seconds) * 1000 + Math.floor(Number(nanoseconds) / 1e6)
}
