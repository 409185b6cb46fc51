// kernel-way-maps.ts - the maps of the eBPF programs: their sizes, and the layouts of their keys and values.
// native/bpf/kernel_way.bpf.c has the same layouts. Pure.

import { familyOf, isIpv4Net, type Address, type Family, type Nets } from '../../net/address.ts'
import type { Peer } from '../engine/peers.ts'

/**
 * True on a little-endian machine. In the maps, numbers have the machine's byte order; addresses and ports have network
 * byte order.
 */
export const IS_LITTLE = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1

const [HASH_PER_CPU, ARRAY, ARRAY_PER_CPU, LPM_TRIE] = [5, 2, 6, 11]
/**
 * The flag BPF_F_NO_PREALLOC (linux/bpf.h): the kernel allocates the memory of a map's entry only when the entry is
 * added.
 */
const ALLOCATED_LATER = 1
const MOST_PEERS = 65_536

const CONFIG_BYTES = 96
const PEER_BYTES = 16
export const TRAFFIC_BYTES = 40

/** The counters of the eBPF programs, in the order of native/bpf/kernel_way.bpf.c. */
export const COUNTERS = [
  'sent',
  'sentBytes',
  'received',
  'receivedBytes',
  'leftNoPeer',
  'leftNotPromoted',
  'leftKind',
  'leftHops',
  'leftLength',
  'leftRoom',
  'leftUserspace',
  'leftOuter',
  'leftSender',
  'leftDestination',
  'lost',
  'joined',
  'long',
  'lone',
] as const
export type CounterName = (typeof COUNTERS)[number]

/** The maps, by the names that the eBPF programs use. */
export const MAPS = {
  config: { type: ARRAY, keyBytes: 4, valueBytes: CONFIG_BYTES, entries: 1, flags: 0 },
  peers4: { type: LPM_TRIE, keyBytes: 8, valueBytes: PEER_BYTES, entries: MOST_PEERS, flags: ALLOCATED_LATER },
  peers6: { type: LPM_TRIE, keyBytes: 20, valueBytes: PEER_BYTES, entries: MOST_PEERS, flags: ALLOCATED_LATER },
  traffic: {
    type: HASH_PER_CPU,
    keyBytes: 4,
    valueBytes: TRAFFIC_BYTES,
    entries: 2 * MOST_PEERS, // a peer of both families has two entries
    flags: ALLOCATED_LATER,
  },
  counters: { type: ARRAY_PER_CPU, keyBytes: 4, valueBytes: 8, entries: COUNTERS.length, flags: 0 },
} as const
export type MapName = keyof typeof MAPS

const LEAVES_SYN = 2
const LEAVES_PROBES = 4

/** The configuration of the eBPF programs, which applies to all packets. */
export interface ProgramConfig {
  /** The time of CLOCK_MONOTONIC in ns from which the eBPF programs leave all packets to the engine. */
  readonly untilNs: bigint
  /**
   * The indices of the external interface, of the TUN device, and of the interface at which the kernel merges TCP
   * segments (0 if there is none).
   */
  readonly uplink: number
  readonly tunnel: number
  readonly join: number
  /** The source address of this host's datagrams. */
  readonly ownHost: number
  readonly port: number
  /** The TCP port at which nodes accept test connections (kernel-way-proof.ts). */
  readonly proofPort: number
  readonly subnets: Nets
  /** True if the engine must process each SYN packet, because the engine lowers the MSS in SYN packets. */
  readonly leavesSyn: boolean
  /**
   * True if the engine must send this host's ICMP packets, because the reply to a probe must use the outer family that
   * the probe names.
   */
  readonly leavesProbes: boolean
}

/**
 * This number is added to the slot of a peer's IPv6 subnet. The eBPF programs so count the packets of the peer's IPv4
 * subnet and of its IPv6 subnet separately, although both subnets have the same slot in the engine.
 */
const IPV6_SLOT = 2 ** 31
/** Returns the key in the map `traffic` for a peer's slot and the family of its subnet; 0 if the peer has no slot. */
export const trafficKey = (slot: number, family: Family): number =>
  slot === 0 || family === 'ipv4' ? slot : slot + IPV6_SLOT

export const PROMOTED = 1
export const TRIED = 2

function setIpv6(view: DataView, at: number, address: bigint): void {
  view.setBigUint64(at, address >> 64n)
  view.setBigUint64(at + 8, address & 0xffff_ffff_ffff_ffffn)
}

const maskOf = (bits: number, length: number): bigint => ((1n << BigInt(length)) - 1n) << BigInt(bits - length)

export function encodeConfig(config: ProgramConfig): Uint8Array {
  const value = new Uint8Array(CONFIG_BYTES)
  const view = new DataView(value.buffer)
  const flags = [config.leavesSyn ? LEAVES_SYN : 0, config.leavesProbes ? LEAVES_PROBES : 0]
  view.setBigUint64(0, config.untilNs, IS_LITTLE)
  view.setUint32(8, config.uplink, IS_LITTLE)
  view.setUint32(12, config.tunnel, IS_LITTLE)
  view.setUint32(16, config.join, IS_LITTLE)
  view.setUint32(
    20,
    flags.reduce((sum, flag) => sum | flag, 0),
    IS_LITTLE,
  )
  view.setUint32(24, config.ownHost)
  view.setUint16(28, config.port)
  view.setUint16(30, config.proofPort)
  const { ipv4, ipv6 } = config.subnets
  if (ipv4) {
    view.setUint32(32, ipv4.address)
    view.setUint32(36, Number(maskOf(32, ipv4.prefixLength)))
    view.setUint32(40, ipv4.address)
  }
  if (ipv6) {
    setIpv6(view, 48, ipv6.address)
    setIpv6(view, 64, maskOf(128, ipv6.prefixLength))
    setIpv6(view, 80, ipv6.address)
  }
  return value
}

/** Returns the key of a subnet, or of one address, in a map of peers. */
export function peerKey({ address, prefixLength }: { readonly address: Address; readonly prefixLength: number }) {
  const isV4 = typeof address === 'number'
  const key = new Uint8Array(isV4 ? 8 : 20)
  const view = new DataView(key.buffer)
  view.setUint32(0, prefixLength, IS_LITTLE)
  if (isV4) view.setUint32(4, address)
  else setIpv6(view, 4, address)
  return key
}

/** Returns the name of the map that has the entry of the peer. */
export const mapOf = ({ subnet }: Pick<Peer, 'subnet'>): 'peers4' | 'peers6' =>
  isIpv4Net(subnet) ? 'peers4' : 'peers6'

/**
 * Returns the value of a peer's entry in the map `peers4` or `peers6`. `limit` is the longest packet in bytes that
 * reaches the peer. If weftd reaches the peer over IPv6, the value has no flags, so that the program `egress` leaves the
 * packets to the engine. With `acceptsIpv4` the program `ingress` then still accepts datagrams from the peer's IPv4
 * address; otherwise the value has the address 0.
 */
export function encodePeer(peer: Peer, limit: number, flags: number, acceptsIpv4 = false): Uint8Array {
  const value = new Uint8Array(PEER_BYTES)
  const view = new DataView(value.buffer)
  view.setUint32(0, peer.outer === 'ipv4' || acceptsIpv4 ? (peer.hosts.ipv4 ?? 0) : 0)
  view.setUint16(4, peer.port)
  view.setUint16(6, limit, IS_LITTLE)
  view.setUint32(8, trafficKey(peer.slot ?? 0, familyOf(peer.subnet)), IS_LITTLE)
  view.setUint32(12, peer.outer === 'ipv4' ? flags : 0, IS_LITTLE)
  return value
}

/**
 * Sums the values of all CPUs. `values` has `bytes` bytes for each CPU. The result has one sum for each 64-bit number
 * of a CPU's value.
 */
export function sumOfCpus(values: Uint8Array, bytes: number): bigint[] {
  const view = new DataView(values.buffer, values.byteOffset, values.byteLength)
  const sums = Array.from({ length: bytes / 8 }, () => 0n)
  for (let at = 0; at < values.byteLength; at += 8) {
    const index = (at % bytes) / 8
    sums[index] = (sums[index] ?? 0n) + view.getBigUint64(at, IS_LITTLE)
  }
  return sums
}
