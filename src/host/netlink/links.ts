// links.ts - the rtnetlink messages of network interfaces and of their addresses (rtnetlink(7), linux/if_link.h).

import { ADDRESS_BITS, familyOf, formatAddress, type Address, type Family } from '../../net/address.ts'
import type { Ipv4 } from '../../net/ipv4.ts'
import type { Ipv6 } from '../../net/ipv6.ts'
import type {
  Change,
  IpipSettings,
  KernelEvent,
  Link,
  LinkAddress,
  NewDevice,
  NewIpip,
  TunSettings,
  VxlanSettings,
} from '../kernel.ts'
import type { IndexOf } from './interfaces.ts'
import { type Attributes, FAMILY_NUMBERS, messagesIn, MessageWriter, NLM_F, type ReceivedMessage } from './message.ts'

export const RTM_LINK = { NEW: 16, DELETE: 17, GET: 18 } as const
export const RTM_ADDRESS = { NEW: 20, DELETE: 21, GET: 22 } as const

/** The lengths of `struct ifinfomsg` and `struct ifaddrmsg` in bytes. */
const LINK_HEADER = 16
const ADDRESS_HEADER = 8
const IFF = { UP: 1, LOOPBACK: 8, LOWER_UP: 0x1_0000 } as const
/** The type of an interface with Ethernet frames (linux/if_arp.h). */
const ARPHRD_ETHER = 1
const IFLA = {
  ADDRESS: 1,
  NAME: 3,
  MTU: 4,
  QDISC: 6,
  MASTER: 10,
  QUEUE_LENGTH: 13,
  INFO: 18,
  STATS64: 23,
  EXT_MASK: 29,
  XDP: 43,
  ALT_NAME: 53,
} as const
/** The attribute within IFLA.XDP (linux/if_link.h). Its value says how a program is attached; 0 if none is. */
const XDP_ATTACHED = 2
/** The position in bytes of `tx_dropped` in `struct rtnl_link_stats64`. */
const TX_DROPPED_AT = 56
/**
 * Makes the kernel leave out the counters of an interface, which make up most of an answer (RTEXT_FILTER_SKIP_STATS).
 */
const WITHOUT_COUNTERS = 8
/** The longest name of an interface in bytes. A longer name is an alternative name (Linux 5.5). */
const MAX_NAME = 15
const MAX_ALT_NAME = 127
/** The attributes within IFLA.INFO, which depend on the type of the device. */
const INFO = { KIND: 1, DATA: 2 } as const
const VXLAN = {
  VNI: 1,
  UNDERLAY: 3,
  LOCAL: 4,
  LEARNING: 7,
  PORT: 15,
  LOCAL6: 17,
  ZERO_CHECKSUM_IPV6_RX: 20,
  GBP: 23,
  COLLECT_METADATA: 25,
} as const
const IPIP = { UNDERLAY: 1, LOCAL: 2, REMOTE: 3, PROTOCOL: 9, PMTU_DISCOVERY: 10, COLLECT_METADATA: 19 } as const
const TUN = { TYPE: 3, PERSIST: 6, MULTI_QUEUE: 7, QUEUES: 8 } as const
/** The value of TUN.TYPE for a device of IP packets (IFF_TUN in linux/if_tun.h). */
const IFF_TUN = 1
const VETH_PEER = 1

const IFA = { ADDRESS: 1, LOCAL: 2, FLAGS: 8 } as const
const IFA_F = {
  SECONDARY: 0x01,
  NO_DAD: 0x02,
  DAD_FAILED: 0x08,
  DEPRECATED: 0x20,
  TENTATIVE: 0x40,
  PERMANENT: 0x80,
} as const
/** IFA_F.SECONDARY has another meaning for an IPv6 address: the address is temporary. */
const TEMPORARY = IFA_F.SECONDARY
/** The scope of a loopback address (RT_SCOPE_HOST), as `ip` sets it. */
const HOST_SCOPE = 254

type LinkChange = Extract<Change, { readonly kind: 'add link' | 'set link' | 'delete link' }>
type AddressChange = Extract<Change, { readonly kind: 'replace address' | 'delete address' }>

const linkMessage = (type: number, flags: number, index: number, up?: boolean): MessageWriter =>
  new MessageWriter(type, flags)
    .u32(0)
    .u32(index)
    .u32(up ? IFF.UP : 0)
    .u32(up === undefined ? 0 : IFF.UP)

export const listLinks = (): Buffer =>
  linkMessage(RTM_LINK.GET, NLM_F.DUMP, 0).attributeU32(IFLA.EXT_MASK, WITHOUT_COUNTERS).finish()

/** Returns the request that reads an interface; undefined if no interface can have this name or index. */
export const getLink = (which: string | number): Buffer | undefined =>
  requestOfOne(which)?.attributeU32(IFLA.EXT_MASK, WITHOUT_COUNTERS).finish()

/** Returns the request that reads an interface with its counters; undefined as in `getLink`. */
export const getLinkCounters = (which: string | number): Buffer | undefined => requestOfOne(which)?.finish()

function requestOfOne(which: string | number): MessageWriter | undefined {
  if (which === 0 || (typeof which === 'string' && Buffer.byteLength(which) > MAX_ALT_NAME)) return undefined
  const isIndex = typeof which === 'number'
  const request = linkMessage(RTM_LINK.GET, NLM_F.ACK, isIndex ? which : 0)
  if (!isIndex) request.text(Buffer.byteLength(which) > MAX_NAME ? IFLA.ALT_NAME : IFLA.NAME, which)
  return request
}

/**
 * Returns the request that lists the addresses of both families; with an index other than 0, only the addresses of that
 * interface (Linux 4.20).
 */
export const listAddresses = (index = 0): Buffer =>
  new MessageWriter(RTM_ADDRESS.GET, NLM_F.DUMP).u32(0).u32(index).finish()

/**
 * Returns the netlink request that makes a change of an interface; undefined if an interface that the change names does
 * not exist.
 */
export function linkRequest(change: LinkChange, indexOf: IndexOf): Buffer | undefined {
  if (change.kind === 'add link') return newLink(change.link, indexOf)
  const index = indexOf(change.device)
  if (index === 0) return undefined
  if (change.kind === 'delete link') return linkMessage(RTM_LINK.DELETE, NLM_F.ACK, index).finish()
  const { mtu, up, mac, queueLength, ipip } = change
  const request = linkMessage(RTM_LINK.NEW, NLM_F.ACK, index, up)
  if (mtu !== undefined) request.attributeU32(IFLA.MTU, mtu)
  if (mac !== undefined) request.mac(IFLA.ADDRESS, mac)
  if (queueLength !== undefined) request.attributeU32(IFLA.QUEUE_LENGTH, queueLength)
  if (ipip)
    request.nested(IFLA.INFO, (info) => info.text(INFO.KIND, 'ipip').nested(INFO.DATA, (data) => writeIpip(data, ipip)))
  return request.finish()
}

function newLink(link: NewDevice, indexOf: IndexOf): Buffer | undefined {
  const underlay = link.vxlan?.underlay && indexOf(link.vxlan.underlay)
  if (underlay === 0) return undefined
  const request = linkMessage(RTM_LINK.NEW, NLM_F.ACK | NLM_F.CREATE | NLM_F.EXCL, 0).text(IFLA.NAME, link.name)
  if (link.mtu !== undefined) request.attributeU32(IFLA.MTU, link.mtu)
  if (link.mac !== undefined) request.mac(IFLA.ADDRESS, link.mac)
  return request
    .nested(IFLA.INFO, (info) => {
      info.text(INFO.KIND, link.type)
      if (link.vxlan) info.nested(INFO.DATA, (data) => writeVxlan(data, link.vxlan, underlay))
      const { ipip } = link
      if (ipip) info.nested(INFO.DATA, (data) => writeIpip(data, ipip))
      if (link.peer) info.nested(INFO.DATA, (data) => writePeer(data, link.peer))
    })
    .finish()
}

function writeVxlan(data: MessageWriter, vxlan: NewDevice['vxlan'], underlay: number | undefined): void {
  if (!vxlan) return
  data.attributeU32(VXLAN.VNI, vxlan.vni).networkU16(VXLAN.PORT, vxlan.port)
  if (underlay !== undefined) data.attributeU32(VXLAN.UNDERLAY, underlay)
  if (vxlan.local !== undefined) data.address(typeof vxlan.local === 'number' ? VXLAN.LOCAL : VXLAN.LOCAL6, vxlan.local)
  if (vxlan.learning !== undefined) data.attributeU8(VXLAN.LEARNING, vxlan.learning ? 1 : 0)
  if (vxlan.gbp) data.flag(VXLAN.GBP)
}

/**
 * Writes the settings of an ipip device. Without PMTU_DISCOVERY the kernel would set DF on every outer packet
 * (ip_tunnel_netlink_parms in net/ipv4/ip_tunnel_core.c). PROTOCOL 0 is the value of flanneld's device (`ipip any`).
 */
const writeIpip = (data: MessageWriter, { local }: NewIpip): MessageWriter =>
  data.address(IPIP.LOCAL, local).attributeU8(IPIP.PROTOCOL, 0).attributeU8(IPIP.PMTU_DISCOVERY, 0)

/** Writes the other end of a veth pair, as `struct ifinfomsg` and attributes within an attribute. */
function writePeer(data: MessageWriter, peer: NewDevice['peer']): void {
  if (!peer) return
  data.nested(VETH_PEER, (inner) => {
    inner.raw(Buffer.alloc(LINK_HEADER)).text(IFLA.NAME, peer.name)
    if (peer.mtu !== undefined) inner.attributeU32(IFLA.MTU, peer.mtu)
  })
}

/** Returns the netlink request that makes a change of an address; undefined if the interface does not exist. */
export function addressRequest(change: AddressChange, indexOf: IndexOf): Buffer | undefined {
  const { kind, device, address, prefixLength, noDad = false } = change
  const index = indexOf(device)
  if (index === 0) return undefined
  const isReplacement = kind === 'replace address'
  const flags = isReplacement ? NLM_F.CREATE | NLM_F.REPLACE : 0
  const isLoopback = typeof address === 'number' && address >>> 24 === 127
  return new MessageWriter(isReplacement ? RTM_ADDRESS.NEW : RTM_ADDRESS.DELETE, NLM_F.ACK | flags)
    .u8(FAMILY_NUMBERS[familyOf(address)])
    .u8(prefixLength)
    .u8(noDad ? IFA_F.NO_DAD : 0)
    .u8(isLoopback ? HOST_SCOPE : 0)
    .u32(index)
    .address(IFA.LOCAL, address)
    .address(IFA.ADDRESS, address)
    .finish()
}

/** An address, and the index of its interface. */
interface FoundAddress {
  readonly deviceIndex: number
  readonly family: Family
  readonly found: LinkAddress
  /** The number of the address's scope (rtm_scope), and its flags (IFA_F_*). */
  readonly scope: number
  readonly flags: number
}

/** Returns the interfaces that the messages `links` list, each with its addresses from the messages `addresses`. */
export function linksIn(links: Buffer, addresses: Buffer): Link[] {
  const ofLinks = new Map<number, FoundAddress[]>()
  for (const message of messagesIn(addresses)) {
    const found = addressOf(message)
    if (!found) continue
    const list = ofLinks.get(found.deviceIndex)
    if (list) list.push(found)
    else ofLinks.set(found.deviceIndex, [found])
  }
  const all: Link[] = []
  for (const message of messagesIn(links)) {
    const link = linkOf(message, ofLinks)
    if (link) all.push(link)
  }
  return all
}

/** Reads from the answer to `getLinkCounters` the number of outgoing packets that the interface has dropped. */
export function sendDropsIn(data: Buffer): number | undefined {
  for (const message of messagesIn(data)) {
    const dropped = message.attributes(LINK_HEADER).u64(IFLA.STATS64, TX_DROPPED_AT)
    if (message.type === RTM_LINK.NEW && dropped !== undefined) return Number(dropped)
  }
  return undefined
}

/**
 * Returns the interface that a message describes; undefined for a message of another kind, such as a message about a
 * bridge's port.
 */
function linkOf(message: ReceivedMessage, addresses: ReadonlyMap<number, readonly FoundAddress[]>): Link | undefined {
  if (message.type !== RTM_LINK.NEW && message.type !== RTM_LINK.DELETE) return undefined
  if (message.u8(0) !== 0) return undefined
  const index = message.u32(4)
  const flags = message.u32(8)
  const attributes = message.attributes(LINK_HEADER)
  const ofLink = addresses.get(index) ?? []
  return {
    index,
    name: attributes.text(IFLA.NAME) ?? '',
    mtu: attributes.u32(IFLA.MTU) ?? 0,
    up: (flags & IFF.UP) !== 0,
    hasCarrier: (flags & IFF.LOWER_UP) !== 0,
    loopback: (flags & IFF.LOOPBACK) !== 0,
    queueLength: attributes.u32(IFLA.QUEUE_LENGTH) ?? 0,
    queueDiscipline: attributes.text(IFLA.QDISC) ?? '',
    ...(attributes.nested(IFLA.XDP)?.u8(XDP_ATTACHED) ? { hasXdp: true } : {}),
    isEthernet: message.u16(2) === ARPHRD_ETHER,
    mac: linkLayerAddressIn(attributes),
    master: attributes.u32(IFLA.MASTER) ?? 0,
    ...typeIn(attributes.nested(IFLA.INFO)),
    addresses: {
      ipv4: ofLink.flatMap(({ found }) => (isIpv4(found) ? [found] : [])),
      ipv6: ofLink.flatMap(({ found }) => (isIpv4(found) ? [] : [found as LinkAddress<Ipv6>])),
    },
  }
}

const isIpv4 = (found: LinkAddress): found is LinkAddress<Ipv4> => typeof found.address === 'number'

/**
 * Returns the link-layer address of an interface; an empty text for a tunnel, for which the kernel reports an IP
 * address in this attribute.
 */
function linkLayerAddressIn(attributes: Attributes): string {
  const bytes = attributes.bytes(IFLA.ADDRESS)
  return !bytes || bytes.length === 4 || bytes.length === 16 ? '' : (attributes.mac(IFLA.ADDRESS) ?? '')
}

function typeIn(info: Attributes | undefined): Pick<Link, 'type' | 'vxlan' | 'ipip' | 'tun'> {
  const type = info?.text(INFO.KIND) ?? ''
  const data = info?.nested(INFO.DATA)
  if (data && type === 'vxlan') return { type, vxlan: vxlanIn(data) }
  if (data && type === 'ipip') return { type, ipip: ipipIn(data) }
  if (data && type === 'tun') return { type, tun: tunIn(data) }
  return { type }
}

const vxlanIn = (data: Attributes): VxlanSettings => ({
  vni: data.u32(VXLAN.VNI) ?? 0,
  local: data.address(VXLAN.LOCAL) ?? data.address(VXLAN.LOCAL6),
  underlay: data.u32(VXLAN.UNDERLAY) ?? 0,
  port: data.networkU16(VXLAN.PORT) ?? 0,
  learning: data.u8(VXLAN.LEARNING) === 1,
  gbp: data.has(VXLAN.GBP),
  external: data.u8(VXLAN.COLLECT_METADATA) === 1,
  zeroChecksumIpv6Rx: data.u8(VXLAN.ZERO_CHECKSUM_IPV6_RX) === 1,
})

const ipipIn = (data: Attributes): IpipSettings => ({
  local: ipv4In(data, IPIP.LOCAL),
  remote: ipv4In(data, IPIP.REMOTE),
  underlay: data.u32(IPIP.UNDERLAY) ?? 0,
  external: data.has(IPIP.COLLECT_METADATA),
  alwaysDf: data.u8(IPIP.PMTU_DISCOVERY) === 1,
})

/** Reads an IPv4 address; undefined for 0.0.0.0. */
function ipv4In(data: Attributes, type: number): Ipv4 | undefined {
  const address = data.address(type)
  return typeof address === 'number' && address !== 0 ? address : undefined
}

const tunIn = (data: Attributes): TunSettings => ({
  mode: data.u8(TUN.TYPE) === IFF_TUN ? 'tun' : 'tap',
  persist: data.u8(TUN.PERSIST) === 1,
  isMultiQueue: data.u8(TUN.MULTI_QUEUE) === 1,
  openQueues: data.u32(TUN.QUEUES),
})

function addressOf(message: ReceivedMessage): FoundAddress | undefined {
  if (message.type !== RTM_ADDRESS.NEW && message.type !== RTM_ADDRESS.DELETE) return undefined
  const attributes = message.attributes(ADDRESS_HEADER)
  // For a point-to-point address IFA_ADDRESS is the address of the other end of the link.
  const address = attributes.address(IFA.LOCAL) ?? attributes.address(IFA.ADDRESS)
  if (address === undefined || message.u8(0) !== FAMILY_NUMBERS[familyOf(address)]) return undefined
  const flags = attributes.u32(IFA.FLAGS) ?? message.u8(2)
  const family = familyOf(address)
  const isDuplicate = (flags & IFA_F.DAD_FAILED) !== 0
  return {
    deviceIndex: message.u32(4),
    family,
    scope: message.u8(3),
    flags,
    found: {
      address,
      prefixLength: Math.min(message.u8(1), ADDRESS_BITS[family]),
      dynamic: (flags & IFA_F.PERMANENT) === 0,
      deprecated: (flags & IFA_F.DEPRECATED) !== 0,
      secondary: family === 'ipv4' && (flags & IFA_F.SECONDARY) !== 0,
      temporary: family === 'ipv6' && (flags & TEMPORARY) !== 0,
      tentative: isDuplicate || (flags & IFA_F.TENTATIVE) !== 0,
      ...(isDuplicate ? { duplicate: true } : {}),
    },
  }
}

/**
 * Returns the event that a message reports about an interface, without the interface's addresses; undefined for a
 * message of another kind.
 */
export function linkEventOf(message: ReceivedMessage): KernelEvent | undefined {
  const link = linkOf(message, new Map())
  return link && { of: 'link', link, gone: message.type === RTM_LINK.DELETE }
}

/** Returns the event that a message reports about an address; undefined for a message of another kind. */
export function addressEventOf(message: ReceivedMessage): KernelEvent | undefined {
  const of = addressOf(message)
  if (!of) return undefined
  const { address, prefixLength } = of.found
  return {
    of: 'address',
    deviceIndex: of.deviceIndex,
    address,
    prefixLength,
    text: addressText(of, address, prefixLength),
    gone: message.type === RTM_ADDRESS.DELETE,
  }
}

const addressText = ({ deviceIndex, scope, flags }: FoundAddress, address: Address, prefixLength: number): string =>
  `${deviceIndex} ${formatAddress(address)}/${prefixLength} scope ${scope} flags ${flags.toString(16)}`
