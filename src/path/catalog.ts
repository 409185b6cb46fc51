// catalog.ts - the backends that there are, a line for each: its options, and what else must know of it. Pure.
//
// Whoever knows a backend by its name reads it here: the configuration's check, the doctor, the cleanup, the page. So this file
// imports nothing that a browser lacks. Where a backend's code is stands in choose.ts, which loads what is chosen.

import type { Secret } from '../base/secret.ts'

/** An option of the `Backend` object; its name there is compared in any case. */
export type Option = {
  readonly name: string
  /** True where two nodes that have different values lose what they send each other. */
  readonly isShared?: true
} & (
  | { readonly kind: 'flag' }
  | { readonly kind: 'number'; readonly default: number; readonly most: number }
  /** One of a few words. */
  | {
      readonly kind: 'word'
      readonly words: readonly string[]
      readonly default?: string
    }
  /** A text that may be secret, or have a part that is; empty where it is left out. */
  | { readonly kind: 'secret'; readonly form?: RegExp; readonly remedy?: string }
  /** A text without secrets; the default, or empty, if it is left out. */
  | {
      readonly kind: 'text'
      readonly default?: string
      readonly form: RegExp
      readonly remedy: string
      readonly isRequired?: true
    }
  /** A text or a list of texts; an empty list if it is left out. */
  | { readonly kind: 'texts'; readonly form: RegExp; readonly remedy: string }
  /** An object, or also a text if `orText`, whose values may be secret; undefined if it is left out. The backend checks its members. */
  | { readonly kind: 'object'; readonly orText?: true; readonly remedy: string }
)

/**
 * Options by the name that the code has for each; a group of options is read into a group of settings, which is handed
 * on whole.
 */
export interface Options {
  readonly [name: string]: Option | Options
}

type Value<O> = O extends { readonly kind: 'flag' }
  ? boolean
  : O extends { readonly kind: 'number' }
    ? number
    : O extends { readonly kind: 'word'; readonly words: readonly (infer Word)[] }
      ? O extends { readonly default: string }
        ? Word
        : Word | undefined
      : O extends { readonly kind: 'secret' }
        ? Secret
        : O extends { readonly kind: 'text' }
          ? string
          : O extends { readonly kind: 'texts' }
            ? readonly string[]
            : O extends { readonly kind: 'object' }
              ? unknown
              : Values<O>

/** The values that are read of options, one for each. */
type Values<O> = { readonly [K in keyof O]: Value<O[K]> }

export interface Kind {
  readonly options: Options
  /** Options of flannel's for its nodes with Windows, which share the configuration: nothing here reads them (backend, *_windows.go). */
  readonly ofWindows?: readonly string[]
  /** The bytes that stand around an inner packet on the wire, with the outer IPv4 header. */
  readonly overhead: number
  /** The bytes that are left for it instead, where that is more. */
  readonly reserved?: number
  /**
   * The packets that peers send here, for a firewall to let pass: UDP to the port of `option`, or an IP protocol by its
   * name in /etc/protocols.
   */
  readonly outside?:
    | { readonly protocol: 'udp'; readonly option: string; readonly port: number }
    | { readonly protocol: 'ipencap' }
  /** The routes to peers where the kernel carries the packets: one to the network, or one to each peer; none that weft makes. */
  readonly routes: 'network' | 'peers' | 'none'
  /** The address that answers for a peer: its overlay address, or its host's public one; nobody's known. */
  readonly probe: 'overlay' | 'host' | 'nobody'
  /** True where it carries no IPv6. */
  readonly isIpv4Alone?: true
  /**
   * True where packets of both families travel to a peer in datagrams of one, whichever it is reached by: `outersOf`. Left out: each
   * travels by its own.
   */
  readonly choosesUnderlay?: true
  /** True if a key proves the sender of a packet. Then a node may send only from its own subnet. */
  readonly provesSender?: true
  /** True if the backend publishes a route to this node's subnet outside of the host, which it withdraws when the node leaves. */
  readonly publishesRoute?: true
  /** The type that a lease publishes; empty for those of flannel's backends that publish none. */
  readonly published: string
  /** Devices that its daemons make, and flannel's, as the kernel's type and a name or a pattern such as `flannel%d`; ours is the first. */
  readonly devices: readonly (readonly [type: string, name: string])[]
}

/** A WireGuard key: 32 bytes in base64. */
export const WIREGUARD_KEY = /^[A-Za-z\d+/]{42}[AEIMQUYcgkosw048]=$/
/** The age at which WireGuard's keys are of no use any more (its paper, section 6.1), in ms. */
export const REJECT_AFTER_MS = 180_000
const MOST_PORT = 65_535
const MOST_MTU = 65_535

/** The options of a tunnel that weftd carries itself; handed from the configuration to the engine as a whole. */
const TUNNEL = {
  /** Chooses the packets from peers that are let in. */
  verifySource: { name: 'VerifySource', kind: 'word', words: ['strict', 'inner', 'off'], default: 'strict' },
  /** Makes TCP connections begin with segments that fit. */
  clampMss: { name: 'ClampMSS', kind: 'flag' },
  /** Makes weftd search for the longest packet that reaches each peer. */
  probePathMtu: { name: 'ProbePathMTU', kind: 'flag' },
} as const satisfies Options
export type TunnelSettings = Values<typeof TUNNEL>

/** A key of a cloud's API, which has at least 16 characters and no `<`: the placeholder of a secret that only the store has is refused. */
const API_KEY = /^[^\s<>]{16,128}$/
const API_KEY_REMEDY = 'give it a key of the cloud, or leave it out and set the environment variables of the cloud'
/** Keys of the cloud's API, by the names of flannel's documents. */
const CLOUD_KEYS = {
  accessKeyId: { name: 'AccessKeyID', kind: 'secret', form: API_KEY, remedy: API_KEY_REMEDY },
  accessKeySecret: { name: 'AccessKeySecret', kind: 'secret', form: API_KEY, remedy: API_KEY_REMEDY },
} as const satisfies Options
/** The route tables, by number; the table of this node's cloud subnet if it is left out. */
const routeTables = <F extends RegExp>(form: F, example: string) =>
  ({
    name: 'RouteTableID',
    kind: 'texts',
    form,
    remedy: `give it a text or a list of texts such as ${example}`,
  }) as const
/** The variables of the templates of `http`. {credential} is not for URLs, because the log shows them. */
export const TEMPLATE_VARIABLES = [
  'subnet',
  'subnetAddress',
  'prefixLength',
  'netmask',
  'publicIp',
  'address',
  'node',
  'id',
  'credential',
]
const URL_VARIABLES = TEMPLATE_VARIABLES.filter((name) => name !== 'credential')
/** No variable can stand in the host, so that a template reaches no other one. */
const URL_FORM = new RegExp(
  String.raw`^https?:\/\/[^\s/?#@{}\\]+(?:[/?](?:[^\s#@{}\\]|\{(?:${URL_VARIABLES.join('|')})\})*)?$`,
)
const URL_REMEDY = `give it an http or https URL without user and password; the variables ${URL_VARIABLES.map((name) => `{${name}}`).join(', ')} may follow its host`
const METHOD_FORM = /^(?:GET|PUT|POST|PATCH|DELETE)$/
const METHOD_REMEDY = 'give it GET, PUT, POST, PATCH or DELETE'
const FILE_REMEDY = 'give it the absolute path of a file'
const MEMBER_FORM = /^[\w-]+(?:\.[\w-]+)*$/
const MEMBER_REMEDY = 'give it the name of a member of the JSON answer, or a path of names with dots'
/** The requests that put, remove and list a route (docs/cloud.md). */
const HTTP_OPTIONS = {
  putUrl: { name: 'PutURL', kind: 'text', form: URL_FORM, remedy: URL_REMEDY, isRequired: true },
  putMethod: { name: 'PutMethod', kind: 'text', default: 'PUT', form: METHOD_FORM, remedy: METHOD_REMEDY },
  putBody: { name: 'PutBody', kind: 'object', orText: true, remedy: 'give it a text or an object' },
  removeUrl: { name: 'RemoveURL', kind: 'text', form: URL_FORM, remedy: URL_REMEDY },
  removeMethod: { name: 'RemoveMethod', kind: 'text', default: 'DELETE', form: METHOD_FORM, remedy: METHOD_REMEDY },
  removeBody: { name: 'RemoveBody', kind: 'object', orText: true, remedy: 'give it a text or an object' },
  /** Lists the routes. Without it weftd puts the route again regularly, and sees no route of another node. */
  listUrl: { name: 'ListURL', kind: 'text', form: URL_FORM, remedy: URL_REMEDY },
  listMethod: { name: 'ListMethod', kind: 'text', default: 'GET', form: METHOD_FORM, remedy: METHOD_REMEDY },
  listBody: { name: 'ListBody', kind: 'object', orText: true, remedy: 'give it a text or an object' },
  /** The members of the answer: the array of routes, and in each route its destination, gateway and number. */
  listRoutes: { name: 'ListRoutes', kind: 'text', form: MEMBER_FORM, remedy: MEMBER_REMEDY },
  listDestination: {
    name: 'ListDestination',
    kind: 'text',
    default: 'destination',
    form: MEMBER_FORM,
    remedy: MEMBER_REMEDY,
  },
  listGateway: { name: 'ListGateway', kind: 'text', default: 'gateway', form: MEMBER_FORM, remedy: MEMBER_REMEDY },
  listId: { name: 'ListID', kind: 'text', form: MEMBER_FORM, remedy: MEMBER_REMEDY },
  /** The maximum number of routes that the switch takes; 0 if it is not known. */
  limit: { name: 'Limit', kind: 'number', default: 0, most: 1_000_000 },
  headers: { name: 'Headers', kind: 'object', remedy: 'give it an object of texts' },
  /** A file whose text is the value of {credential}, for example of a mounted Secret. */
  credentialFile: { name: 'CredentialFile', kind: 'text', form: /^\//, remedy: FILE_REMEDY },
  /** Certificates of the authorities to trust instead of the usual ones, in PEM. */
  caFile: { name: 'CAFile', kind: 'text', form: /^\//, remedy: FILE_REMEDY },
} as const satisfies Options
/** What all backends have in common whose routes others keep. */
const FABRIC = { overhead: 0, routes: 'none', probe: 'nobody', publishesRoute: true, devices: [] } as const

const UNDERLAY = 'Underlay'
const MODE = 'Mode'

/** The backends by `Type`, in the order in which they are named to an operator. */
export const KINDS = {
  udp: {
    options: {
      port: { name: 'Port', kind: 'number', default: 0, most: MOST_PORT, isShared: true },
      /** The family of the datagrams that is tried first; `auto`: IPv4 where the network has it. Not shared: a peer takes those of both. */
      underlay: { name: UNDERLAY, kind: 'word', words: ['auto', 'ipv4', 'ipv6'], default: 'auto' },
      tunnel: TUNNEL,
    },
    overhead: 28, // IPv4, UDP
    outside: { protocol: 'udp', option: 'Port', port: 8285 },
    routes: 'network',
    probe: 'overlay',
    choosesUnderlay: true,
    published: '',
    devices: [['tun', 'flannel%d']],
  },
  vxlan: {
    options: {
      // As many digits as fit a device's name after `flannel.` (IFNAMSIZ), of the 24 bits of RFC 7348.
      vni: { name: 'VNI', kind: 'number', default: 1, most: 9_999_999, isShared: true },
      port: { name: 'Port', kind: 'number', default: 0, most: MOST_PORT, isShared: true },
      /** The MTU of the underlay, in bytes; 0: the external interface's. */
      mtu: { name: 'MTU', kind: 'number', default: 0, most: MOST_MTU },
      gbp: { name: 'GBP', kind: 'flag', isShared: true },
      learning: { name: 'Learning', kind: 'flag' },
      directRouting: { name: 'DirectRouting', kind: 'flag' },
      /** The carrier of the packets; left out: the kernel if it can. */
      dataPath: { name: 'DataPath', kind: 'word', words: ['kernel', 'userspace'] },
      tunnel: TUNNEL,
    },
    ofWindows: ['Name', 'MacPrefix'],
    overhead: 50, // IPv4, UDP, VXLAN and the inner Ethernet header (RFC 7348 section 5)
    outside: { protocol: 'udp', option: 'Port', port: 8472 }, // the kernel's own, from before IANA gave it 4789
    routes: 'peers',
    probe: 'overlay',
    published: 'vxlan',
    devices: [
      ['vxlan', 'flannel.%d'],
      ['tun', 'flannel.%d'],
      ['vxlan', 'flannel-v6.%d'],
      ['tun', 'flannel-v6.%d'],
    ],
  },
  'host-gw': {
    options: {},
    ofWindows: ['Name', 'DNSServerList'],
    overhead: 0,
    routes: 'peers',
    probe: 'host',
    published: 'host-gw',
    devices: [],
  },
  ipip: {
    options: { directRouting: { name: 'DirectRouting', kind: 'flag' } },
    overhead: 20, // IPv4
    outside: { protocol: 'ipencap' },
    routes: 'peers',
    probe: 'overlay',
    isIpv4Alone: true,
    published: 'ipip',
    devices: [['ipip', 'flannel.ipip']],
  },
  wireguard: {
    options: {
      port: { name: 'ListenPort', kind: 'number', default: 0, most: MOST_PORT, isShared: true },
      portV6: { name: 'ListenPortV6', kind: 'number', default: 0, most: MOST_PORT, isShared: true },
      /** The MTU of the underlay, in bytes; 0: the external interface's. */
      mtu: { name: 'MTU', kind: 'number', default: 0, most: MOST_MTU },
      psk: {
        name: 'PSK',
        kind: 'secret',
        isShared: true,
        form: WIREGUARD_KEY,
        remedy: 'give it a key as `wg genpsk` makes it',
      },
      keepalive: { name: 'PersistentKeepaliveInterval', kind: 'number', default: 0, most: 65_535 },
      /** The carrier of the packets; left out: the kernel if it can, else weftd itself. */
      dataPath: { name: 'DataPath', kind: 'word', words: ['kernel', 'userspace'] },
      /** A device for each family, or one for both with datagrams of one family, or of the better one for each peer. */
      mode: {
        name: MODE,
        kind: 'word',
        words: ['separate', 'auto', 'ipv4', 'ipv6'],
        default: 'separate',
        isShared: true,
      },
      /** Lets packets to other nodes leave unencrypted through routes past the device, which an operator made on purpose. */
      allowBypass: { name: 'AllowBypass', kind: 'flag' },
    },
    overhead: 60, // IPv4, UDP, and WireGuard's header and tag
    reserved: 80, // upstream leaves it over IPv6 too
    outside: { protocol: 'udp', option: 'ListenPort', port: 51_820 },
    routes: 'network',
    probe: 'overlay',
    provesSender: true,
    published: 'wireguard',
    devices: [
      ['wireguard', 'flannel-wg'],
      ['tun', 'flannel-wg'],
      ['wireguard', 'flannel-wg-v6'],
      ['tun', 'flannel-wg-v6'],
    ],
  },
  alloc: { options: {}, overhead: 0, routes: 'none', probe: 'nobody', published: '', devices: [] },
  extension: {
    options: {
      PreStartupCommand: { name: 'PreStartupCommand', kind: 'secret' },
      PostStartupCommand: { name: 'PostStartupCommand', kind: 'secret' },
      SubnetAddCommand: { name: 'SubnetAddCommand', kind: 'secret' },
      SubnetRemoveCommand: { name: 'SubnetRemoveCommand', kind: 'secret' },
    },
    overhead: 0,
    routes: 'none',
    probe: 'nobody',
    published: 'extension',
    devices: [],
  },
  // flannel's cloud backends publish no type (v0.13, backend/awsvpc and others).
  'aws-vpc': {
    ...FABRIC,
    options: { routeTables: routeTables(/^rtb-[\da-f]+$/, '"rtb-0a1b2c3d"') },
    isIpv4Alone: true,
    published: '',
  },
  gce: { ...FABRIC, options: {}, isIpv4Alone: true, published: '' },
  'ali-vpc': {
    ...FABRIC,
    options: { ...CLOUD_KEYS, routeTables: routeTables(/^vtb-[\da-z]+$/, '"vtb-bp1abc"') },
    isIpv4Alone: true,
    published: '',
  },
  'tencent-vpc': {
    ...FABRIC,
    options: { ...CLOUD_KEYS, routeTables: routeTables(/^rtb-[\da-z]+$/, '"rtb-1a2b3c4d"') },
    isIpv4Alone: true,
    published: '',
  },
  http: { ...FABRIC, options: HTTP_OPTIONS, published: 'http' },
} as const satisfies Readonly<Record<string, Kind>>

export type BackendType = keyof typeof KINDS
/** The settings that are read of a backend's options. */
export type Settings<T extends BackendType> = { readonly [K in BackendType]: Values<(typeof KINDS)[K]['options']> }[T]

/** An outer IPv6 header has so much more than one of IPv4, in bytes (RFC 8200 section 3). */
const IPV6_MORE = 20
/** The bytes that stand around an inner packet when the outer header is of this family. */
export const overheadBy = (type: BackendType, family: 'ipv4' | 'ipv6'): number =>
  KINDS[type].overhead + (family === 'ipv6' ? IPV6_MORE : 0)

/**
 * The families of the outer header, if there is one, around a packet of `inner`, by a `Backend` object and the families of the network:
 * that which is tried first, and the one that takes its place for a peer that does not answer by it, or is chosen for it.
 */
export function outersOf(
  type: string,
  inner: 'ipv4' | 'ipv6',
  backend: Readonly<Record<string, unknown>>,
  families: readonly ('ipv4' | 'ipv6')[],
): readonly ['ipv4' | 'ipv6', ('ipv4' | 'ipv6')?] {
  const { isIpv4Alone, choosesUnderlay } = kindOf(type) ?? {}
  if (isIpv4Alone) return ['ipv4']
  if (choosesUnderlay) return underlaysOf(memberOf(backend, UNDERLAY), families)
  const mode = type === 'wireguard' ? memberOf(backend, MODE) : undefined
  if (mode === 'ipv4' || mode === 'ipv6') return [mode]
  return mode === 'auto' ? underlaysOf('auto', families) : [inner]
}

/** The same by the word of the option; one that names a family which the network lacks is refused by the backend. */
export function underlaysOf(
  underlay: unknown,
  families: readonly ('ipv4' | 'ipv6')[],
): readonly ['ipv4' | 'ipv6', ('ipv4' | 'ipv6')?] {
  if (families.length < 2) return [underlay === 'ipv4' || underlay === 'ipv6' ? underlay : (families[0] ?? 'ipv4')]
  return underlay === 'ipv6' ? ['ipv6', 'ipv4'] : ['ipv4', 'ipv6']
}

/** True of a backend that carries no IPv6. */
export const isIpv4Alone = (type: BackendType): boolean => (KINDS[type] as Kind).isIpv4Alone === true

export const isBackendType = (type: string): type is BackendType => Object.hasOwn(KINDS, type)
export const kindOf = (type: string): Kind | undefined => (isBackendType(type) ? KINDS[type] : undefined)

/** The type of a network configuration without a `Backend` object, as flanneld's (pkg/subnet/config.go). */
export const DEFAULT_TYPE: BackendType = 'udp'

/** A member by its name in any case. */
const memberOf = (backend: Readonly<Record<string, unknown>>, option: string): unknown =>
  Object.entries(backend).find(([name]) => name.toLowerCase() === option.toLowerCase())?.[1]

/** The UDP port that peers send to, of a `Backend` object by names in any case; undefined where there is none. */
export function portOf(type: string, backend: Readonly<Record<string, unknown>>): number | undefined {
  const outside = kindOf(type)?.outside
  if (outside?.protocol !== 'udp') return undefined
  const given = memberOf(backend, outside.option)
  return typeof given === 'number' && given > 0 ? given : outside.port
}

/** The backends of a lease by the type that it publishes: `udp or alloc` of none. */
export function publishers(published: string): string {
  const types = Object.entries<Kind>(KINDS).filter(([, kind]) => kind.published === published)
  return types.map(([type]) => type).join(' or ') || published
}

/** Backends that flannel removed, and what takes their place. */
const REMOVED: ReadonlyMap<string, string> = new Map([['ipsec', 'take wireguard']])

/** Says what to do about a `Type` that is none of them. */
export function remedyFor(type: string): string {
  const types = Object.keys(KINDS)
  const known = `${types.slice(0, -1).join(', ')} or ${types.at(-1)}`
  const instead = REMOVED.get(type)
  return `set "Backend": {"Type": ...} in the network configuration to ${known}${instead === undefined ? '' : `: ${instead}`}`
}
