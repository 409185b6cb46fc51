// wireguard-netlink.ts - the kernel's side of WireGuard's generic netlink family, as drivers/net/wireguard/netlink.c has
// it: decodes requests, keeps devices and peers, and encodes answers.

import { messagesIn, MessageWriter, type Attributes, type ReceivedMessage } from '../../src/host/netlink/message.ts'
import type { Answer, NetlinkSocket } from '../../src/host/netlink/socket.ts'

const FAMILY = 0x1d
/** The kernel begins another message of a dump when this one is full. */
const PAGE = 4096
const [EINVAL, ENODEV, ENOENT, ENOTSUP] = [22, 19, 2, 95]

/** A peer as the kernel keeps it; values are the bytes of the attributes. */
interface FakePeer {
  readonly publicKey: Buffer
  presharedKey: Buffer
  endpoint: Buffer | undefined
  keepalive: number
  allowedIps: { readonly family: number; readonly address: Buffer; readonly prefixLength: number }[]
  /** Seconds and nanoseconds. */
  handshake: readonly [bigint, bigint]
  received: bigint
  sent: bigint
}

export class FakeWireguard implements NetlinkSocket {
  readonly name: string
  readonly index: number
  privateKey: Buffer = Buffer.alloc(32)
  port = 0
  readonly peers = new Map<string, FakePeer>()
  /** The peer that has each network, or had it last. */
  readonly #owners = new Map<string, FakePeer>()
  /** The lengths of the requests. */
  readonly lengths: number[] = []
  /** The requests and the answers themselves, to check that secrets are erased. */
  readonly buffers: Buffer[] = []
  /** False if the kernel has no WireGuard. */
  isLoaded = true

  constructor(name: string, index: number) {
    this.name = name
    this.index = index
  }

  async exchange(requests: readonly Buffer[]): Promise<readonly Answer[]> {
    await Promise.resolve()
    return requests.map((request) => {
      this.lengths.push(request.length)
      const [message] = messagesIn(request)
      const answer = this.#answer(message!)
      this.buffers.push(request, answer.data)
      return answer
    })
  }

  #answer(message: ReceivedMessage): Answer {
    const from = message.attributes(4)
    if (message.type === 0x10 && message.u8(0) === 3) return this.#family(from)
    if (message.type !== FAMILY || message.u8(1) !== 1) return refusal(ENOENT)
    if ((from.text(2) ?? this.name) !== this.name || (from.u32(1) ?? this.index) !== this.index) return refusal(ENODEV)
    if (message.u8(0) === 0 && (message.flags & 0x300) === 0x300) return accepted(this.#dump())
    return message.u8(0) === 1 ? this.#set(from) : refusal(ENOTSUP)
  }

  #family(from: Attributes): Answer {
    if (from.text(2) !== 'wireguard' || !this.isLoaded) return refusal(ENOENT)
    return accepted([
      new MessageWriter(0x10)
        .raw(Uint8Array.of(1, 2, 0, 0))
        .text(2, 'wireguard')
        .attributeU16(1, FAMILY)
        .finish(),
    ])
  }

  #set(from: Attributes): Answer {
    const privateKey = from.bytes(3)
    if (privateKey && privateKey.length !== 32) return refusal(EINVAL)
    if (privateKey) this.privateKey = Buffer.from(privateKey)
    this.port = from.u16(6) ?? this.port
    for (const peer of from.nested(8)?.elements() ?? []) {
      const errno = this.#setPeer(peer)
      if (errno !== 0) return refusal(errno)
    }
    return accepted([])
  }

  #setPeer(from: Attributes): number {
    const key = from.bytes(1)
    if (key?.length !== 32) return EINVAL
    const text = key.toString('base64')
    const flags = from.u32(3) ?? 0
    if (flags & 1) return this.peers.delete(text) ? 0 : 0
    const peer = this.peers.get(text) ?? newPeer(key)
    this.peers.set(text, peer)
    if (flags & 2) peer.allowedIps = []
    for (const each of from.nested(9)?.elements() ?? []) {
      const [family, address, prefixLength] = [each.u16(1), each.bytes(2), each.u8(3)]
      if (address?.length !== (family === 2 ? 4 : 16) || prefixLength === undefined) return EINVAL
      this.#allow(peer, { family: family!, address: Buffer.from(address), prefixLength })
    }
    const [presharedKey, endpoint] = [from.bytes(2), from.bytes(4)]
    if (presharedKey) peer.presharedKey = Buffer.from(presharedKey)
    if (endpoint) peer.endpoint = Buffer.from(endpoint)
    peer.keepalive = from.u16(5) ?? peer.keepalive
    return 0
  }

  /** Gives a network to a peer. Only one peer of a device has a network, so its former peer loses it. */
  #allow(peer: FakePeer, allowed: FakePeer['allowedIps'][number]): void {
    const network = `${allowed.address.toString('hex')}/${allowed.prefixLength}`
    const former = this.#owners.get(network)
    if (former)
      former.allowedIps = former.allowedIps.filter(
        ({ address, prefixLength }) => prefixLength !== allowed.prefixLength || !address.equals(allowed.address),
      )
    this.#owners.set(network, peer)
    peer.allowedIps.push(allowed)
  }

  /** Encodes the device as the kernel does: peers, and the allowed IPs of one peer, continue in the next message. */
  #dump(): Buffer[] {
    const messages: Buffer[] = []
    const parts = [...this.peers.values()].flatMap((peer) => {
      const all: (readonly [FakePeer, boolean, FakePeer['allowedIps']])[] = [[peer, true, peer.allowedIps.slice(0, 50)]]
      for (let at = 50; at < peer.allowedIps.length; at += 50)
        all.push([peer, false, peer.allowedIps.slice(at, at + 50)])
      return all
    })
    for (let at = 0; at < parts.length || messages.length === 0;) {
      const message = new MessageWriter(FAMILY).raw(Uint8Array.of(0, 1, 0, 0))
      if (messages.length === 0) {
        message.attributeU16(6, this.port).attributeU32(7, 0).attributeU32(1, this.index)
        if (this.privateKey.some((byte) => byte !== 0))
          message.bytes(3, this.privateKey).bytes(4, this.privateKey.toReversed())
      }
      message.text(2, this.name).nested(8, () => {
        for (; at < parts.length && message.length < PAGE; at++) encodePeer(message, ...parts[at]!)
      })
      messages.push(message.finish())
    }
    return messages
  }
}

const newPeer = (publicKey: Buffer): FakePeer => ({
  publicKey: Buffer.from(publicKey),
  presharedKey: Buffer.alloc(32),
  endpoint: undefined,
  keepalive: 0,
  allowedIps: [],
  handshake: [0n, 0n],
  received: 0n,
  sent: 0n,
})

function encodePeer(to: MessageWriter, peer: FakePeer, isFirst: boolean, allowedIps: FakePeer['allowedIps']): void {
  to.nested(0, () => {
    to.bytes(1, peer.publicKey)
    if (isFirst) {
      to.bytes(2, peer.presharedKey)
      to.bytes(6, new Uint8Array(BigInt64Array.of(...peer.handshake).buffer))
      to.attributeU16(5, peer.keepalive).attributeU64(8, peer.sent).attributeU64(7, peer.received).attributeU32(10, 1)
      if (peer.endpoint) to.bytes(4, peer.endpoint)
    }
    to.nested(9, () => {
      for (const { family, address, prefixLength } of allowedIps)
        to.nested(0, () => to.attributeU8(3, prefixLength).attributeU16(1, family).bytes(2, address))
    })
  })
}

const refusal = (errno: number): Answer => ({ data: Buffer.alloc(0), errno, explanation: undefined })
const accepted = (messages: readonly Buffer[]): Answer => ({
  data: Buffer.concat(messages),
  errno: 0,
  explanation: undefined,
})
