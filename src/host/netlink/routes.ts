// routes.ts - netlink requests and answers about routes (rtnetlink(7), linux/rtnetlink.h). All functions are pure.
//
// The changes have the same meaning as `ip route add`, `ip route replace` and `ip route del`, including the defaults of
// iproute2 (ip/iproute.c, iproute_modify).

import {
  ADDRESS_BITS,
  addressKey,
  familyOf,
  formatAddress,
  formatNet,
  netAround,
  netContains,
  type Address,
  type AddressKey,
  type Family,
  type Net,
} from '../../net/address.ts'
import type { Change, Route, RouteFilter, RouteType } from '../kernel.ts'
import type { IndexOf, NameOf } from './interfaces.ts'
import {
  addressBytes,
  addressIn,
  type Attributes,
  FAMILY_NUMBERS,
  familyIn,
  messagesIn,
  MessageWriter,
  NLM_F,
  ReceivedMessage,
} from './message.ts'

export const RTM_NEWROUTE = 24
export const RTM_DELROUTE = 25
export const RTM_GETROUTE = 26

/** The length of `struct rtmsg` in bytes. */
const HEADER = 12
/** The types of the attributes of a route (RTA_* in linux/rtnetlink.h). */
export const RTA = {
  DST: 1,
  SRC: 2,
  IIF: 3,
  OIF: 4,
  GATEWAY: 5,
  PRIORITY: 6,
  PREFSRC: 7,
  MULTIPATH: 9,
  CACHEINFO: 12,
  TABLE: 15,
  MARK: 16,
  VIA: 18,
  IP_PROTO: 27,
  SPORT: 28,
  DPORT: 29,
  NH_ID: 30,
} as const
/** Flags of a route: the gateway is reachable on the link; the route is a copy in the routing cache. */
const RTNH_F_ONLINK = 4
const RTM_F_CLONED = 0x200
const SCOPES = { global: 0, link: 253, host: 254, nowhere: 255 } as const
const MAIN_TABLE = 254
const LOCAL_TABLE = 255

const TYPES: readonly RouteType[] = [
  'other',
  'unicast',
  'local',
  'broadcast',
  'anycast',
  'multicast',
  'blackhole',
  'unreachable',
  'prohibit',
  'throw',
]

/** The names that `ip` gives to the origins of routes (RTPROT_*, lib/rt_names.c). */
const PROTOCOLS: ReadonlyMap<number, string> = new Map([
  [0, 'unspec'],
  [1, 'redirect'],
  [2, 'kernel'],
  [3, 'boot'],
  [4, 'static'],
  [8, 'gated'],
  [9, 'ra'],
  [10, 'mrt'],
  [11, 'zebra'],
  [12, 'bird'],
  [13, 'dnrouted'],
  [14, 'xorp'],
  [15, 'ntk'],
  [16, 'dhcp'],
  [18, 'keepalived'],
  [42, 'babel'],
  [186, 'bgp'],
  [187, 'isis'],
  [188, 'ospf'],
  [189, 'rip'],
  [192, 'eigrp'],
])
const PROTOCOL_NUMBERS: ReadonlyMap<string, number> = new Map([...PROTOCOLS].map(([number, name]) => [name, number]))

export type RouteRequest = Extract<Change, { readonly kind: 'add route' | 'replace route' | 'delete route' }>

/** Returns the netlink request that makes a change of a route; undefined if the route's interface does not exist. */
export function routeRequest(change: RouteRequest, indexOf: IndexOf): Buffer | undefined {
  const { kind, destination, type, gateway, device, onlink = false, metric, source, table, protocol } = change
  const { nextHopObject } = change
  const index = device && indexOf(device)
  if (index === 0) return undefined
  const isNew = kind !== 'delete route'
  const writer = new MessageWriter(isNew ? RTM_NEWROUTE : RTM_DELROUTE, NLM_F.ACK | flagsOf(kind))
  const { prefixLength } = destination
  const into = table ?? (type !== undefined && LOCAL_TYPES.has(type) ? LOCAL_TABLE : MAIN_TABLE)
  writer
    .u8(FAMILY_NUMBERS[familyOf(destination)])
    .u8(prefixLength)
    .u8(0) // the length of the source prefix
    .u8(0) // TOS
    .u8(into > 0xff ? 0 : into)
    .u8(protocolNumber(protocol ?? (isNew ? 'boot' : 'unspec')))
    .u8(scopeOf(change))
    .u8(type === undefined && !isNew ? 0 : TYPES.indexOf(type ?? 'unicast'))
    .u32(onlink ? RTNH_F_ONLINK : 0)
  writer.address(RTA.DST, destination.address)
  if (gateway !== undefined) writeGateway(writer, destination, gateway)
  if (into > 0xff) writer.attributeU32(RTA.TABLE, into)
  if (source !== undefined) writer.address(RTA.PREFSRC, source)
  if (metric !== undefined) writer.attributeU32(RTA.PRIORITY, metric)
  if (index !== undefined) writer.attributeU32(RTA.OIF, index)
  if (nextHopObject !== undefined) writer.attributeU32(RTA.NH_ID, nextHopObject)
  return writer.finish()
}

function flagsOf(kind: RouteRequest['kind']): number {
  if (kind === 'delete route') return 0
  return NLM_F.CREATE | (kind === 'add route' ? NLM_F.EXCL : NLM_F.REPLACE)
}

const protocolNumber = (name: string): number => PROTOCOL_NUMBERS.get(name) ?? Number(name)

/** The types of routes that `ip` puts into the table `local` unless a table is named. */
const LOCAL_TYPES: ReadonlySet<RouteType> = new Set(['local', 'broadcast', 'anycast'])

/**
 * Returns the scope of a changed route as iproute2 chooses it. A deletion without a scope finds routes of any scope.
 * The kernel ignores the scope of IPv6 routes.
 */
function scopeOf({ kind, type = 'unicast', scope, gateway, destination }: RouteRequest): number {
  if (scope !== undefined) return SCOPES[scope]
  if (familyOf(destination) === 'ipv6') return SCOPES.global
  if (type === 'local') return SCOPES.host
  if (type === 'broadcast' || type === 'multicast' || type === 'anycast') return SCOPES.link
  if (kind === 'delete route') return SCOPES.nowhere
  return type === 'unicast' && gateway === undefined ? SCOPES.link : SCOPES.global
}

/**
 * Appends the gateway. If the gateway's family is not that of the destination, uses the attribute RTA_VIA, which begins
 * with the family.
 */
function writeGateway(writer: MessageWriter, destination: Net, gateway: Address): void {
  if (familyOf(gateway) === familyOf(destination)) {
    writer.address(RTA.GATEWAY, gateway)
    return
  }
  writer.nestedRaw(RTA.VIA, () => {
    writer.u16(FAMILY_NUMBERS[familyOf(gateway)]).raw(addressBytes(gateway))
  })
}

/** Returns true for a copy of a route in the routing cache, which is not a route of its own. */
export const isCached = (message: ReceivedMessage): boolean => (message.u32(8) & RTM_F_CLONED) !== 0

/** Returns true for a route with a source prefix (`from` in `ip -6 route`) or with a TOS. */
const isPartial = (message: ReceivedMessage): boolean => message.u8(2) !== 0 || message.u8(3) !== 0

/** Reads a route from a message; undefined if the message does not describe a route for IPv4 or IPv6. */
export function routeIn(message: ReceivedMessage, nameOf: NameOf): Route | undefined {
  return readRoute(message, message.attributes(HEADER), nameOf)
}

function readRoute(message: ReceivedMessage, attributes: Attributes, nameOf: NameOf): Route | undefined {
  const destination = destinationIn(message, attributes)
  if (destination === undefined) return undefined
  const multipath = attributes.bytes(RTA.MULTIPATH)
  const deviceIndex = attributes.u32(RTA.OIF) ?? (multipath ? firstHopIn(multipath) : 0)
  const gateway = multipath ? undefined : gatewayIn(attributes)
  const nextHopObject = attributes.u32(RTA.NH_ID)
  return {
    device: deviceIndex === 0 ? '' : nameOf(deviceIndex),
    deviceIndex,
    destination: textOf(destination),
    type: TYPES[message.u8(7)] ?? 'other',
    protocol: PROTOCOLS.get(message.u8(5)) ?? String(message.u8(5)),
    gateway: gateway === undefined ? undefined : formatAddress(gateway),
    ...(multipath ? { isMultipath: true } : {}),
    ...(nextHopObject ? { nextHopObject } : {}),
    metric: attributes.u32(RTA.PRIORITY) ?? 0,
    source: attributes.address(RTA.PREFSRC),
    table: tableIn(message, attributes),
    isOnlink: (message.u32(8) & RTNH_F_ONLINK) !== 0,
  }
}

const textOf = (destination: Net): string => (destination.prefixLength === 0 ? 'default' : formatNet(destination))

const tableIn = (message: ReceivedMessage, attributes: Attributes): number => attributes.u32(RTA.TABLE) ?? message.u8(4)

function destinationIn(message: ReceivedMessage, attributes: Attributes): Net | undefined {
  const family = familyIn(message)
  if (family === undefined) return undefined
  const prefixLength = message.u8(1)
  const address = attributes.address(RTA.DST) ?? (family === 'ipv4' ? 0 : 0n)
  const isRight = familyOf(address) === family && prefixLength <= ADDRESS_BITS[family]
  return isRight ? netAround(address, prefixLength) : undefined
}

/** Returns the index of the interface of the first next hop in the attribute RTA_MULTIPATH; 0 if there is none. */
const firstHopIn = (multipath: Buffer): number => new ReceivedMessage(0, 0, multipath).u32(4)

function gatewayIn(attributes: Attributes): Address | undefined {
  const via = attributes.bytes(RTA.VIA)
  return attributes.address(RTA.GATEWAY) ?? (via && addressIn(via.subarray(2)))
}

/**
 * Returns the route of a report as text, without its lifetime; undefined for a route without a lifetime. Reports with
 * the same text only renew the lifetime.
 */
export function textWithoutLifetime(message: ReceivedMessage): string | undefined {
  const attributes = message.attributes(HEADER)
  const cacheInfo = attributes.bytes(RTA.CACHEINFO)
  const expires = cacheInfo ? new ReceivedMessage(0, 0, cacheInfo).u32(8) : 0
  if (!cacheInfo || expires === 0) return undefined
  const start = cacheInfo.byteOffset - message.body.byteOffset
  return message.body.toString('latin1', 0, start) + message.body.toString('latin1', start + cacheInfo.length)
}

/** Requests the routes that a filter selects, and reads them from the kernel's answer. */
export class RouteDump {
  /**
   * The request, which names the table and the interface of the wanted routes. Since Linux 4.20 the kernel lists only
   * these routes, if the socket has the option NETLINK_GET_STRICT_CHK. Otherwise the kernel lists all routes, and
   * `routesIn` drops the unwanted routes.
   */
  readonly request: Buffer
  readonly #filter: RouteFilter
  /** The number of the table; undefined for all tables. */
  readonly #table: number | undefined
  /** The index of the interface whose routes are wanted; undefined for the routes of all interfaces. */
  readonly #deviceIndex: number | undefined
  /** The keys and the texts of the destinations that the filter names; undefined if the filter names none. */
  readonly #addresses: ReadonlySet<AddressKey> | undefined
  readonly #destinations: ReadonlySet<string> | undefined

  /** `deviceIndex` is the index of `filter.device`. */
  constructor(filter: RouteFilter, deviceIndex?: number) {
    const { family, exactly, table = MAIN_TABLE } = filter
    this.#filter = filter
    this.#table = table === 'all' ? undefined : table
    this.#deviceIndex = deviceIndex
    if (exactly) {
      this.#addresses = new Set(exactly.map((net) => addressKey(net === 'default' ? addressZero(family) : net.address)))
      this.#destinations = new Set(exactly.map((net) => (net === 'default' ? net : textOf(net))))
    }
    const writer = new MessageWriter(RTM_GETROUTE, NLM_F.DUMP)
    writer.u8(FAMILY_NUMBERS[family]).raw(new Uint8Array(HEADER - 1))
    if (this.#table !== undefined) writer.attributeU32(RTA.TABLE, this.#table)
    if (deviceIndex !== undefined) writer.attributeU32(RTA.OIF, deviceIndex)
    this.request = writer.finish()
  }

  /** Reads the selected routes from the kernel's answer. */
  routesIn(data: Buffer, nameOf: NameOf): Route[] {
    const routes: Route[] = []
    for (const message of messagesIn(data)) {
      if (message.type !== RTM_NEWROUTE || familyIn(message) !== this.#filter.family || isCached(message)) continue
      const attributes = message.attributes(HEADER)
      if (!this.#isSelected(message, attributes)) continue
      const route = readRoute(message, attributes, nameOf)
      if (!route || (this.#deviceIndex !== undefined && route.deviceIndex !== this.#deviceIndex)) continue
      if (this.#destinations && !this.#destinations.has(route.destination)) continue
      routes.push(isPartial(message) ? { ...route, isPartial: true } : route)
    }
    return routes
  }

  /** Returns false for most of the routes that the filter excludes, so that weftd need not format them. */
  #isSelected(message: ReceivedMessage, attributes: Attributes): boolean {
    if (this.#table !== undefined && tableIn(message, attributes) !== this.#table) return false
    const { within } = this.#filter
    if (!this.#addresses && !within) return true
    const destination = destinationIn(message, attributes)
    if (!destination || (this.#addresses && !this.#addresses.has(addressKey(destination.address)))) return false
    return !within || (destination.prefixLength >= within.prefixLength && netContains(within, destination.address))
  }
}

const addressZero = (family: Family): Address => (family === 'ipv4' ? 0 : 0n)
