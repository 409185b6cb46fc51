// kernel.ts - the interface through which weft reads and changes the kernel's network configuration: network
// interfaces, addresses, routes, policy rules, neighbour and forwarding entries, and WireGuard devices.
//
// src/host/netlink implements the interface with netlink sockets (netlink(7)). Unit tests and simulations use the model
// in test/support/model-kernel.ts. This file has only types, so that its import does not delay the start of weftd.

import type { WeftError } from '../base/errors.ts'
import type { Secret } from '../base/secret.ts'
import type { Address, Family, Net } from '../net/address.ts'
import type { Ipv4 } from '../net/ipv4.ts'
import type { Ipv6 } from '../net/ipv6.ts'

/**
 * The interface that a request to the kernel is about. Requests use the index; they use the name only if the index is
 * undefined.
 */
export interface Device {
  readonly name: string
  readonly index?: number | undefined
}

/** An address of an interface, with the flags of ip-address(8). */
export interface LinkAddress<A extends Address = Address> {
  readonly address: A
  readonly prefixLength: number
  readonly dynamic: boolean
  readonly deprecated: boolean
  readonly secondary: boolean
  /** True for a temporary IPv6 address, which the kernel replaces from time to time for privacy (RFC 8981). */
  readonly temporary: boolean
  /**
   * True for an IPv6 address whose duplicate address detection is still running or has failed (RFC 4862 section 5.4).
   * Sockets cannot use a tentative address.
   */
  readonly tentative: boolean
  /** True for an IPv6 address that another host on the link uses too. */
  readonly duplicate?: boolean
}

/** The settings of a vxlan device (IFLA_VXLAN_* in linux/if_link.h). */
export interface VxlanSettings {
  readonly vni: number
  readonly local: Address | undefined
  /** The index of the external interface to which the device is bound; 0 if it is bound to none. */
  readonly underlay: number
  readonly port: number
  readonly learning: boolean
  readonly gbp: boolean
  /** True for a device that takes the VNI of each packet from the packet's metadata (collect_md). */
  readonly external: boolean
  readonly zeroChecksumIpv6Rx: boolean
}

/** The settings of an ipip device; an undefined address stands for any address. */
export interface IpipSettings {
  readonly local: Ipv4 | undefined
  readonly remote: Ipv4 | undefined
  /** The index of the interface to which the device is bound; 0 or left out if it is bound to none. */
  readonly underlay?: number
  readonly external: boolean
  /**
   * True if every outer packet has the flag DF (IFLA_IPTUN_PMTUDISC); else an outer packet has DF only if its inner
   * packet has DF.
   */
  readonly alwaysDf: boolean
}

/** The settings of a TUN or TAP device (IFLA_TUN_* in linux/if_link.h). */
export interface TunSettings {
  readonly mode: 'tun' | 'tap'
  readonly persist: boolean
  readonly isMultiQueue: boolean
  /** The number of queues that processes have open; undefined if the kernel does not report it. */
  readonly openQueues: number | undefined
}

export interface Link {
  readonly index: number
  readonly name: string
  readonly mtu: number
  /** True if the interface is set up (IFF_UP). */
  readonly up: boolean
  /**
   * True if the interface has a carrier (IFF_LOWER_UP). For a TUN device this means that a process has the device open.
   */
  readonly hasCarrier: boolean
  readonly loopback: boolean
  readonly queueLength: number
  /** The queueing discipline of the interface (IFLA_QDISC), such as `fq_codel`. */
  readonly queueDiscipline: string
  /** True if an XDP program is attached to the interface; left out if there is none. */
  readonly hasXdp?: true
  /** True for an interface with Ethernet frames (ARPHRD_ETHER in ifi_type). */
  readonly isEthernet: boolean
  /** The link-layer address in lower case, such as `02:11:22:33:44:55`; empty if the interface has none. */
  readonly mac: string
  /** The type of the device, such as `vxlan`, `bridge`, `tun`; empty for a physical interface. */
  readonly type: string
  /** The index of the bridge, VRF or bond to which the interface belongs; 0 if it belongs to none. */
  readonly master: number
  readonly vxlan?: VxlanSettings
  readonly ipip?: IpipSettings
  readonly tun?: TunSettings
  readonly addresses: { readonly ipv4: readonly LinkAddress<Ipv4>[]; readonly ipv6: readonly LinkAddress<Ipv6>[] }
}

/** The type of a route (rtm_type in rtnetlink(7)). */
export type RouteType =
  | 'unicast'
  | 'local'
  | 'broadcast'
  | 'anycast'
  | 'multicast'
  | 'blackhole'
  | 'unreachable'
  | 'prohibit'
  | 'throw'
  | 'other'

export interface Route {
  /**
   * The name and the index of the interface of the route's first next hop. For a route without an interface, such as a
   * blackhole, the name is empty and the index is 0.
   */
  readonly device: string
  readonly deviceIndex: number
  /** The destination as text, such as `10.5.2.0/24`, or `default`. */
  readonly destination: string
  readonly type: RouteType
  /** The origin of the route as `ip` writes it: `kernel`, `boot`, `static`, `ra`, `bgp`, or the number as text. */
  readonly protocol: string
  /** The gateway, an IPv4 or IPv6 address; undefined if the route has no gateway, or has several next hops. */
  readonly gateway: string | undefined
  readonly isMultipath?: boolean
  /**
   * The id of the next hop object (`ip nexthop`) from which the kernel takes the gateway and the device; left out if the
   * route has none.
   */
  readonly nextHopObject?: number
  /**
   * True if the kernel uses the route only for some of the packets to its destination: only for a certain TOS or, in
   * IPv6, only for packets from a certain source network. Only `HostKernel.routes` sets this member.
   */
  readonly isPartial?: boolean
  readonly metric: number
  /** The preferred source address of the route. */
  readonly source: Address | undefined
  /** The number of the routing table; 254 is the main table. */
  readonly table: number
  /** True if the gateway counts as reachable on the interface, whatever the other routes say (RTNH_F_ONLINK). */
  readonly isOnlink: boolean
}

/** Selects routes of one family. Without `table` only the main table is read. */
export interface RouteFilter {
  readonly family: Family
  /** Selects only routes to exactly these destinations. */
  readonly exactly?: readonly (Net | 'default')[]
  /** Selects only routes whose destination is this network or a part of it. */
  readonly within?: Net
  readonly device?: Device
  readonly table?: number | 'all'
}

/** A packet for which the kernel looks up the route. */
export interface RouteQuery {
  readonly to: Address
  /**
   * The source address of a packet that arrives on the interface `iif`. For a packet that this host itself sends, `iif`
   * is left out.
   */
  readonly from?: Address
  readonly iif?: Device
  /** The interface to which the sender of the packet is bound. */
  readonly oif?: Device
  readonly mark?: number
  /** The protocol, ports and TOS of the packet; the kernel assumes UDP over IPv4 if they are left out. */
  readonly part?: PacketPart
}

/** The properties of a packet by which policy rules select a part of the packets between two addresses. */
export interface PacketPart {
  /** The number of the IP protocol: 1 for ICMP, 6 for TCP, 17 for UDP, 58 for ICMPv6. */
  readonly protocol?: number
  readonly sport?: number
  readonly dport?: number
  /** The byte TOS of IPv4, or the traffic class of IPv6, whose upper six bits are the DSCP. */
  readonly tos?: number
}

/** The properties that packets must have to match a policy rule, beside addresses, interfaces and marks. */
export interface RulePart {
  readonly protocol?: number
  readonly sport?: readonly [first: number, last: number]
  readonly dport?: readonly [first: number, last: number]
  readonly tos?: number
  readonly dscp?: number
  /** The number of the tunnel (VNI) by which a device with external tunnel metadata received the packet. */
  readonly tunnel?: bigint
}

/** The kernel's answer to a route lookup: a route, or the reason why the kernel rejects the packet. */
export type RouteAnswer = { readonly route: Route } | { readonly refused: string; readonly errno: string }

/** A rule of policy routing (ip-rule(8)). */
export interface PolicyRule {
  readonly priority: number
  /** The table that the rule selects; undefined if the rule has an action such as `prohibit` instead. */
  readonly table: number | undefined
  readonly action: string
  readonly iif: string | undefined
  readonly oif: string | undefined
  readonly from: Net | undefined
  readonly to: Net | undefined
  /** The firewall mark that packets must have to match the rule; `mask` has the bits of the mark that are compared. */
  readonly mark: number | undefined
  readonly mask: number
  readonly isInverted: boolean
  /** Undefined if the rule matches packets of all protocols, ports and DSCPs. */
  readonly part?: RulePart
}

/** An entry of the kernel's neighbour table, which maps an IP address to a link-layer address. */
export interface Neighbour {
  readonly deviceIndex: number
  readonly address: Address
  /** The link-layer address; empty if the kernel does not know it. */
  readonly mac: string
  /** The states as `ip neighbour` writes them, such as `PERMANENT`, `NOARP`, `REACHABLE`. */
  readonly states: readonly string[]
}

/**
 * An entry of a vxlan device's own forwarding table: the device sends frames for `mac` in datagrams to the host `host`.
 */
export interface Forwarding {
  readonly deviceIndex: number
  readonly mac: string
  readonly host: Address | undefined
  readonly isPermanent: boolean
}

/** A peer of a WireGuard device, as the kernel reports it (linux/wireguard.h). */
export interface WireguardPeerState {
  /** The peer's public key: 32 bytes in base64. */
  readonly publicKey: string
  readonly hasPresharedKey: boolean
  readonly presharedKey: Secret
  readonly endpoint: { readonly address: Address; readonly port: number } | undefined
  readonly keepaliveSeconds: number
  /** The time of the last handshake in ms since 1970; undefined if there was none. */
  readonly handshakeAt: number | undefined
  readonly receivedBytes: number
  readonly sentBytes: number
  readonly allowedIps: readonly Net[]
}

export interface WireguardState {
  /** The device's public key: 32 bytes in base64; empty if the device has no private key. */
  readonly publicKey: string
  readonly port: number
  readonly peers: readonly WireguardPeerState[]
}

/** The wanted settings of a WireGuard peer. `isRemoved` removes the peer; the other settings then have no effect. */
export interface WireguardPeerChange {
  readonly publicKey: string
  readonly isRemoved?: boolean
  readonly presharedKey?: Secret
  readonly endpoint?: { readonly address: Address; readonly port: number }
  readonly keepaliveSeconds?: number
  /** The complete list of the networks behind the peer (allowed IPs), which replaces the kernel's list. */
  readonly allowedIps?: readonly Net[]
}

/** A table of nftables; nft and iptables-nft store their rules in such tables. */
export interface NftTable {
  /** The family as nft writes it: `ip`, `ip6`, `inet` and others. */
  readonly family: string
  readonly name: string
  /** The number of chains, sets and other objects in the table; rules do not count. */
  readonly objects: number
}

/** The directions of packets for which the kernel has IPsec policies: to this host, from it, and forwarded by it. */
export type IpsecDirection = 'in' | 'out' | 'fwd'

/** The protection that a policy demands, or that a state (SA) gives: the ends of the tunnel and the kind of protection. */
export interface IpsecTemplate {
  readonly family: Family
  /** The ends of the tunnel; 0 stands for any address. */
  readonly source: Address
  readonly destination: Address
  /** The number of the protocol, such as 50 for ESP. */
  readonly protocol: number
  readonly requestId: number
  /** The kernel's number of the mode: 0 for transport, 1 for tunnel. */
  readonly mode: number
  /** True if packets may pass without this protection (`level use`). */
  readonly isOptional: boolean
}

/** An IPsec policy (ip-xfrm(8)): which packets the kernel drops, and which it lets pass only if they are protected. */
export interface IpsecPolicy {
  readonly direction: IpsecDirection
  readonly family: Family
  readonly source: Net
  readonly destination: Net
  /** The number of the IP protocol that the policy matches; 0 for every protocol. */
  readonly protocol: number
  /** True if the policy matches only packets with certain ports. */
  readonly hasPorts: boolean
  /** The index of the interface through which a packet must leave to match; 0 for every interface. */
  readonly deviceIndex: number
  /** The mark that a packet must have to match; undefined if the policy matches packets with any mark. */
  readonly mark: number | undefined
  /** The number of the xfrm interface to whose packets the policy applies; 0 for all other packets. */
  readonly interfaceId: number
  readonly isBlock: boolean
  /** The kernel uses the matching policy with the lowest number. */
  readonly priority: number
  /** The protections that the policy demands; empty if matching packets pass unprotected. */
  readonly templates: readonly IpsecTemplate[]
}

export interface IpsecSetup {
  /** The policies in the order in which they were made. */
  readonly policies: readonly IpsecPolicy[]
  /** The states (SAs), which have the keys for the templates of the policies. */
  readonly states: readonly IpsecTemplate[]
  /** The directions in which the kernel drops packets that match no policy (`ip xfrm policy setdefault`). */
  readonly blockedByDefault: readonly IpsecDirection[]
}

/** The settings that weft gives an ipip device. The device has no remote address, and its `alwaysDf` is false. */
export interface NewIpip {
  readonly local: Ipv4
}

export interface NewDevice {
  readonly name: string
  readonly type: 'vxlan' | 'ipip' | 'wireguard' | 'veth' | 'bridge' | 'dummy'
  readonly mac?: string
  readonly mtu?: number
  readonly vxlan?: {
    readonly vni: number
    readonly local?: Address
    readonly underlay?: Device
    readonly port: number
    readonly learning?: boolean
    readonly gbp?: boolean
  }
  readonly ipip?: NewIpip
  /** The other end of the veth pair that the request creates. */
  readonly peer?: { readonly name: string; readonly mtu?: number }
}

export interface RouteChange {
  readonly destination: Net
  readonly type?: RouteType
  readonly gateway?: Address
  readonly device?: Device
  /** The id of a next hop object. The kernel refuses it together with a gateway or a device. */
  readonly nextHopObject?: number
  readonly onlink?: boolean
  readonly metric?: number
  readonly scope?: 'global' | 'link'
  readonly source?: Address
  /** The number of the routing table; the main table if left out. */
  readonly table?: number
  /** The origin that the kernel records; `boot` if left out, as with `ip route`. */
  readonly protocol?: string
}

/**
 * One change of the kernel's configuration. `wordsOf` in ip-words.ts writes it as a command line of `ip` or `bridge`.
 */
export type Change =
  | { readonly kind: 'add link'; readonly link: NewDevice }
  | {
      readonly kind: 'set link'
      readonly device: Device
      readonly mtu?: number
      readonly up?: boolean
      readonly mac?: string
      readonly queueLength?: number
      /** The new settings of an ipip device. The kernel changes the device without loss of packets. */
      readonly ipip?: NewIpip
    }
  | { readonly kind: 'delete link'; readonly device: Device }
  | {
      readonly kind: 'replace address' | 'delete address'
      readonly device: Device
      /** The address, without its prefix length. */
      readonly address: Address
      readonly prefixLength: number
      /** True to use an IPv6 address without duplicate address detection (RFC 4862). */
      readonly noDad?: boolean
    }
  | ({ readonly kind: 'add route' | 'replace route' | 'delete route' } & RouteChange)
  | {
      readonly kind: 'add rule' | 'delete rule'
      readonly family: Family
      readonly priority: number
      readonly iif?: string
      readonly from?: Net
      readonly to?: Net
      readonly action: 'blackhole' | 'unreachable' | 'prohibit' | { readonly table: number }
    }
  | { readonly kind: 'replace neighbour'; readonly device: Device; readonly address: Address; readonly mac: string }
  | { readonly kind: 'delete neighbour'; readonly device: Device; readonly address: Address }
  | {
      readonly kind: 'replace forwarding' | 'delete forwarding'
      readonly device: Device
      readonly mac: string
      readonly host: Address
    }
  | {
      readonly kind: 'set wireguard'
      readonly device: Device
      readonly privateKey?: Secret
      readonly port?: number
      readonly peers?: readonly WireguardPeerChange[]
    }

export type Topic = 'links' | 'addresses' | 'routes' | 'rules' | 'neighbours' | 'ipsec policies'

/** A change that the kernel reported. `gone` is true if the object was deleted. */
export type KernelEvent =
  | { readonly of: 'link'; readonly link: Link; readonly gone: boolean }
  | {
      readonly of: 'address'
      readonly deviceIndex: number
      readonly address: Address
      readonly prefixLength: number
      /**
       * The address with its flags but without its lifetimes, as text, to recognise a report about an unchanged
       * address.
       */
      readonly text: string
      readonly gone: boolean
    }
  | {
      readonly of: 'route'
      readonly route: Route
      readonly family: Family
      /**
       * The route without its lifetime, as text, to recognise a report that only renews the lifetime; undefined for a
       * route without a lifetime.
       */
      readonly text?: string | undefined
      readonly gone: boolean
    }
  | { readonly of: 'rule'; readonly family: Family; readonly gone: boolean }
  | { readonly of: 'neighbour'; readonly neighbour: Neighbour; readonly gone: boolean }
  | { readonly of: 'forwarding'; readonly forwarding: Forwarding; readonly gone: boolean }
  | { readonly of: 'ipsec policies' }
  /**
   * The kernel's reports were lost (ENOBUFS), or the subscription was renewed. The receiver must read all objects
   * again.
   */
  | { readonly of: 'anything' }

/**
 * Receives a report of the kernel. `isOwn` is true if the kernel names this process as the one that requested the
 * change. The kernel names no process for forwarding entries and IPv6 addresses, nor for changes that follow from
 * another change.
 */
export type OnKernelEvent = (event: KernelEvent, isOwn: boolean) => void

export interface HostKernel {
  /** Lists all interfaces with their addresses. */
  links(): Promise<readonly Link[]>
  /** Finds an interface by its name or its index. */
  link(which: string | number): Promise<Link | undefined>
  /**
   * Returns the number of outgoing packets that the interface has dropped since it was created (tx_dropped); undefined
   * if the interface does not exist.
   */
  sendDrops(which: string | number): Promise<number | undefined>
  routes(which: RouteFilter): Promise<readonly Route[]>
  /** Looks up the routes of these packets and returns the answers in the same order. */
  lookUp(family: Family, queries: readonly RouteQuery[]): Promise<readonly RouteAnswer[]>
  /**
   * Lists the policy rules in the order in which the kernel applies them; undefined if the kernel has no policy
   * routing.
   */
  rules(family: Family): Promise<readonly PolicyRule[] | undefined>
  neighbours(family: Family, device?: Device): Promise<readonly Neighbour[]>
  forwarding(device: Device): Promise<readonly Forwarding[]>
  wireguard(device: Device): Promise<WireguardState>
  /** Lists the tables of nftables; undefined if the kernel has no nftables or refuses to list them. */
  nftTables(): Promise<readonly NftTable[] | undefined>
  /**
   * Returns the generation of nftables' rules. Each change of a table, chain or rule raises the number, whether nft or
   * iptables-nft makes the change. Returns undefined if the kernel has no nftables or refuses the request.
   */
  nftGeneration(): Promise<number | undefined>
  /** Lists the names of the tables of legacy iptables; undefined if this process may not list them. */
  legacyTables(family: Family): Promise<readonly string[] | undefined>
  /**
   * Returns true if the kernel has IPsec policies (ip-xfrm(8)), which may encrypt or drop packets. Returns false on a
   * kernel without IPsec.
   */
  hasIpsecPolicies(): Promise<boolean>
  /** Lists the IPsec policies and the states, without their keys. All lists are empty on a kernel without IPsec. */
  ipsec(): Promise<IpsecSetup>
  /**
   * Makes the changes in the given order, all of them even if one fails. Returns the error of each change, in the same
   * order, or undefined if the kernel accepted the change. An error has the code PERMISSION (EPERM), NO_DEVICE_TYPE
   * (the kernel does not support the type of a new device) or KERNEL; its cause is a KernelRefusal with the errno.
   */
  change(changes: readonly Change[]): Promise<readonly (WeftError | undefined)[]>
  /**
   * Calls `onEvent` for each change that the kernel reports on these topics, until `signal` aborts. Resolves as soon as
   * the subscription is active; the kernel does not report earlier changes.
   */
  watch(topics: readonly Topic[], onEvent: OnKernelEvent, signal: AbortSignal): Promise<void>
}

/** The error with which the kernel refused a request. */
export interface KernelRefusal {
  /** The name of the error number (errno(3)), such as `EEXIST`. */
  readonly errno: string
  /** The kernel's own explanation (NLMSGERR_ATTR_MSG, Linux 4.12); undefined if it gave none. */
  readonly explanation: string | undefined
}
