// catalog.ts - the table of backends: the options of each backend, and all facts about it that the rest of weft needs.
// Pure.
//
// The configuration check, the doctor, the cleanup and the status page read this table. The file imports only modules
// that also run in a browser. The code of a backend is loaded by choose.ts when the backend is chosen.

import type { Secret } from '../base/secret.ts'

/** An option of the `Backend` object. The case of its name in the configuration does not matter. */
export type Option = {
  readonly name: string
  /**
   * True if all nodes need the same value of the option. Nodes with different values lose the packets that they send to
   * each other.
   */
  readonly isShared?: true
} & (
  | { readonly kind: 'flag' }
  | { readonly kind: 'number'; readonly default: number; readonly most: number }
  | {
      readonly kind: 'word'
      readonly words: readonly string[]
      readonly default?: string
    }
  /**
   * A text that may contain a secret. If the option is left out, the text is empty; a required option must not be left
   * out. `refusal` is flanneld's error message for a text of the wrong form.
   */
  | {
      readonly kind: 'secret'
      readonly form?: RegExp
      readonly remedy?: string
      readonly isRequired?: true
      readonly refusal?: string
    }
  /**
   * An option whose value is a text without secrets. If the configuration omits the option, the option has its default
   * value, or an empty text if it has no default.
   */
  | {
      readonly kind: 'text'
      readonly default?: string
      readonly form: RegExp
      readonly remedy: string
      readonly isRequired?: true
    }
  /** A text or a list of texts. If the option is left out, its value is an empty list. */
  | { readonly kind: 'texts'; readonly form: RegExp; readonly remedy: string }
  /**
   * An object whose values may be secret; if `orText` is set, a text is allowed too. The value is undefined if the
   * option is left out. The backend checks the object's members.
   */
  | { readonly kind: 'object'; readonly orText?: true; readonly remedy: string }
)

/**
 * The options of a backend in the network configuration. Each key is the name under which weft's code stores the
 * option's value. Nested options are stored as nested objects.
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

type Values<O> = { readonly [K in keyof O]: Value<O[K]> }

export interface Kind {
  readonly options: Options
  /**
   * The names of flannel's options for Windows nodes, which use the same network configuration. weft ignores these
   * options (flannel: pkg/backend, *_windows.go).
   */
  readonly ofWindows?: readonly string[]
  /** The number of bytes that the backend adds to an inner packet if the outer header is IPv4. */
  readonly overhead: number
  /** The number of bytes by which the backend's MTU is smaller than the MTU of the underlay; defaults to `overhead`. */
  readonly reserved?: number
  /**
   * The packets from peers that this host's firewall must accept: UDP to the port in the option `option` (by default
   * `port`), or an IP protocol by its name in /etc/protocols. `isOneWay` is true if the packets in the other direction
   * have other ports, so that connection tracking takes each packet for the first one of a connection.
   */
  readonly outside?:
    | {
        readonly protocol: 'udp'
        readonly option: string
        readonly port: number
        readonly isOneWay?: true
        /** The option and the default port of the IPv6 device, if the backend has one device for each family. */
        readonly ofIpv6?: { readonly option: string; readonly port: number }
      }
    | { readonly protocol: 'ipencap' | 'esp'; readonly isOneWay?: undefined }
  /**
   * The routes to peers in the kernel: `network` is one route for the whole network, `peers` one route for each peer,
   * and `none` no route.
   */
  readonly routes: 'network' | 'peers' | 'none'
  /**
   * Which address of a peer's node answers weftd's probes. `overlay`: the node's address in its own subnet. `host`: the
   * public address of the node's host. `nobody`: weftd knows no such address, and sends no probes.
   */
  readonly probe: 'overlay' | 'host' | 'nobody'
  readonly isIpv4Alone?: true
  /**
   * True if weftd reaches each peer over one outer family, whatever the family of the inner packet (see `outersOf`).
   * Otherwise a packet's outer family equals its inner family.
   */
  readonly choosesUnderlay?: true
  /** True if weftd decrements the TTL of each packet that it sends or receives, as a router does. */
  readonly decrementsTtl?: true
  /**
   * True if a key proves which node sent a packet, so that the receiver accepts from each node only packets with a
   * source in that node's subnet.
   */
  readonly provesSender?: true
  /**
   * The option, in lower case, that allows packets past the backend. Unless it is true, weftd blocks the packets to the
   * network that the data path does not carry. Undefined if weftd does not block such packets.
   */
  readonly isSealedUnless?: string
  /** True if options of the backend have templates (path/backends/fabric/template.ts). */
  readonly hasTemplates?: true
  /**
   * True if the backend makes a route to this node's subnet in a cloud or a switch, outside of this host. The backend
   * withdraws this route when the node leaves.
   */
  readonly publishesRoute?: true
  /** The `BackendType` in leases of this backend; empty for backends that, as in flannel, publish no type. */
  readonly published: string
  /**
   * The devices that weftd and flanneld create for this backend, by the kernel's link type and a name or pattern such
   * as `flannel%d`. weftd's own device comes first.
   */
  readonly devices: readonly (readonly [type: string, name: string])[]
}

/** A WireGuard key: 32 bytes in base64. */
export const WIREGUARD_KEY = /^[A-Za-z\d+/]{42}[AEIMQUYcgkosw048]=$/
/**
 * The age in ms at which WireGuard keys expire: neither side may use them any longer
 * (https://www.wireguard.com/papers/wireguard.pdf, section 6.1).
 */
export const REJECT_AFTER_MS = 180_000
const MOST_PORT = 65_535
const MOST_MTU = 65_535

/**
 * The options of a tunnel whose packets weftd carries itself. weftd passes their values to its packet engine as one
 * object.
 */
const TUNNEL = {
  verifySource: { name: 'VerifySource', kind: 'word', words: ['strict', 'inner', 'off'], default: 'strict' },
  /** Makes weftd lower the maximum segment size (MSS) in TCP SYN packets to what fits into the tunnel. */
  clampMss: { name: 'ClampMSS', kind: 'flag' },
  /** Makes weftd search for the longest packet that reaches each peer. */
  probePathMtu: { name: 'ProbePathMTU', kind: 'flag' },
} as const satisfies Options
export type TunnelSettings = Values<typeof TUNNEL>

/**
 * Matches a key of a cloud's API, which has at least 16 characters and no `<`. So the placeholder of a secret, which
 * contains `<`, does not match.
 */
const API_KEY = /^[^\s<>]{16,128}$/
const API_KEY_REMEDY = 'give it a key of the cloud, or leave it out and set the environment variables of the cloud'
/** The options for the keys of the cloud's API, with the names in flannel's documentation. */
const CLOUD_KEYS = {
  accessKeyId: { name: 'AccessKeyID', kind: 'secret', form: API_KEY, remedy: API_KEY_REMEDY },
  accessKeySecret: { name: 'AccessKeySecret', kind: 'secret', form: API_KEY, remedy: API_KEY_REMEDY },
} as const satisfies Options
/**
 * Returns the option for the ids of the route tables. If the option is left out, weftd uses the table of this node's
 * cloud subnet.
 */
const routeTables = <F extends RegExp>(form: F, example: string) =>
  ({
    name: 'RouteTableID',
    kind: 'texts',
    form,
    remedy: `give it a text or a list of texts such as ${example}`,
  }) as const
/**
 * The variables that templates of the backend `http` may contain. The variable {credential} is not allowed in URLs,
 * because the log shows URLs.
 */
export const TEMPLATE_VARIABLES = [
  'subnet',
  'subnetAddress',
  'prefixLength',
  'netmask',
  'publicIp',
  'address',
  'node',
  'instance',
  'id',
  'credential',
]
const URL_VARIABLES = TEMPLATE_VARIABLES.filter((name) => name !== 'credential')
/** Matches a URL whose host has no variables, so that a template sends requests only to the host that it names. */
const URL_FORM = new RegExp(
  String.raw`^https?:\/\/[^\s/?#@{}\\]+(?:[/?](?:[^\s#@{}\\]|\{(?:${URL_VARIABLES.join('|')})\})*)?$`,
)
const URL_REMEDY = `give it an http or https URL without user and password; the variables ${URL_VARIABLES.map((name) => `{${name}}`).join(', ')} may follow its host`
const METHOD_FORM = /^(?:GET|PUT|POST|PATCH|DELETE)$/
const METHOD_REMEDY = 'give it GET, PUT, POST, PATCH or DELETE'
const FILE_REMEDY = 'give it the absolute path of a file'
const MEMBER_FORM = /^[\w-]+(?:\.[\w-]+)*$/
const MEMBER_REMEDY = 'give it the name of a member of the JSON answer, or a path of names with dots'
/** The options that describe the HTTP requests with which weftd adds, removes and lists routes (docs/cloud-http.md). */
const HTTP_OPTIONS = {
  putUrl: { name: 'PutURL', kind: 'text', form: URL_FORM, remedy: URL_REMEDY, isRequired: true },
  putMethod: { name: 'PutMethod', kind: 'text', default: 'PUT', form: METHOD_FORM, remedy: METHOD_REMEDY },
  putBody: { name: 'PutBody', kind: 'object', orText: true, remedy: 'give it a text or an object' },
  removeUrl: { name: 'RemoveURL', kind: 'text', form: URL_FORM, remedy: URL_REMEDY },
  removeMethod: { name: 'RemoveMethod', kind: 'text', default: 'DELETE', form: METHOD_FORM, remedy: METHOD_REMEDY },
  removeBody: { name: 'RemoveBody', kind: 'object', orText: true, remedy: 'give it a text or an object' },
  /**
   * The URL that lists the routes. Without this option weftd does not see the routes of other nodes, and repeats at
   * regular intervals the request that adds this node's route.
   */
  listUrl: { name: 'ListURL', kind: 'text', form: URL_FORM, remedy: URL_REMEDY },
  listMethod: { name: 'ListMethod', kind: 'text', default: 'GET', form: METHOD_FORM, remedy: METHOD_REMEDY },
  listBody: { name: 'ListBody', kind: 'object', orText: true, remedy: 'give it a text or an object' },
  /**
   * The name of the member of the JSON answer whose value is the array of routes. `ListDestination`, `ListGateway` and
   * `ListID` name the members of each route in this array.
   */
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
  /** The maximum number of routes that the switch accepts; 0 if the number is not known. */
  limit: { name: 'Limit', kind: 'number', default: 0, most: 1_000_000 },
  headers: { name: 'Headers', kind: 'object', remedy: 'give it an object of texts' },
  /**
   * If this option is given, weftd signs requests by AWS Signature Version 4, which other clouds use too. The option's
   * value names the region and the service.
   */
  signAws4: {
    name: 'SignAWS4',
    kind: 'text',
    form: /^[\w-]+\/[\w-]+$/,
    remedy: 'give it a region and a service, such as "cn-beijing-6/vpc"',
  },
  /**
   * The path of the file with the credentials that replace {credential} in requests. Each line has a URL origin
   * (scheme, host and port) and the credential for it. The file may be mounted from a Kubernetes Secret.
   */
  credentialFile: { name: 'CredentialFile', kind: 'text', form: /^\//, remedy: FILE_REMEDY },
  /**
   * The path of a PEM file with the certificates of the certificate authorities that weftd trusts, instead of the
   * authorities built into Node.js.
   */
  caFile: { name: 'CAFile', kind: 'text', form: /^\//, remedy: FILE_REMEDY },
} as const satisfies Options
/** The properties of all backends whose routes are in a cloud or a switch. */
const FABRIC = { overhead: 0, routes: 'none', probe: 'nobody', publishesRoute: true, devices: [] } as const

const UNDERLAY = 'Underlay'
const MODE = 'Mode'

/** The backends by their `Type` in the network configuration, in the order in which messages list them. */
export const KINDS = {
  udp: {
    options: {
      port: { name: 'Port', kind: 'number', default: 0, most: MOST_PORT, isShared: true },
      /**
       * The outer family that weftd tries first for each peer; `auto` means IPv4 if the network has IPv4. Nodes may
       * have different values, because every node accepts packets over both families.
       */
      underlay: { name: UNDERLAY, kind: 'word', words: ['auto', 'ipv4', 'ipv6'], default: 'auto' },
      /** Whether eBPF programs may carry the packets to a peer after a test connection to this peer succeeded. */
      fastPath: { name: 'FastPath', kind: 'word', words: ['auto', 'off'], default: 'off' },
      tunnel: TUNNEL,
    },
    overhead: 28, // the IPv4 header and the UDP header
    outside: { protocol: 'udp', option: 'Port', port: 8285 },
    routes: 'network',
    probe: 'overlay',
    choosesUnderlay: true,
    decrementsTtl: true,
    published: '',
    devices: [['tun', 'flannel%d']],
  },
  vxlan: {
    options: {
      // The largest VNI is the largest number that fits into a device name after `flannel.`, because the kernel limits
      // names to 15 characters (IFNAMSIZ). RFC 7348 allows 24 bits.
      vni: { name: 'VNI', kind: 'number', default: 1, most: 9_999_999, isShared: true },
      port: { name: 'Port', kind: 'number', default: 0, most: MOST_PORT, isShared: true },
      /** The MTU of the underlay in bytes; with 0 weftd uses the MTU of the external interface. */
      mtu: { name: 'MTU', kind: 'number', default: 0, most: MOST_MTU },
      gbp: { name: 'GBP', kind: 'flag', isShared: true },
      learning: { name: 'Learning', kind: 'flag' },
      directRouting: { name: 'DirectRouting', kind: 'flag' },
      /**
       * Whether the kernel or weftd carries the packets. If the option is left out, the kernel carries them if it can,
       * otherwise weftd.
       */
      dataPath: { name: 'DataPath', kind: 'word', words: ['kernel', 'userspace'] },
      tunnel: TUNNEL,
    },
    ofWindows: ['Name', 'MacPrefix'],
    overhead: 50, // IPv4, UDP, VXLAN and the inner Ethernet header (RFC 7348 section 5)
    // The port is the kernel's default, which is older than the IANA port 4789. The source port is a hash of the packet inside.
    outside: { protocol: 'udp', option: 'Port', port: 8472, isOneWay: true },
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
    overhead: 20, // the IPv4 header
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
      /** The MTU of the underlay in bytes; with 0 weftd uses the MTU of the external interface. */
      mtu: { name: 'MTU', kind: 'number', default: 0, most: MOST_MTU },
      psk: {
        name: 'PSK',
        kind: 'secret',
        isShared: true,
        form: WIREGUARD_KEY,
        remedy: 'give it a key as `wg genpsk` makes it',
      },
      keepalive: { name: 'PersistentKeepaliveInterval', kind: 'number', default: 0, most: 65_535 },
      /**
       * Whether the kernel or weftd carries the packets. If the option is left out, the kernel carries them if it can,
       * otherwise weftd.
       */
      dataPath: { name: 'DataPath', kind: 'word', words: ['kernel', 'userspace'] },
      /**
       * `separate` creates one device for each inner family. Each other mode creates one device for both inner
       * families, and differs in the outer family: IPv4 (`ipv4`), IPv6 (`ipv6`), or a family that weftd chooses for
       * each peer (`auto`).
       */
      mode: {
        name: MODE,
        kind: 'word',
        words: ['separate', 'auto', 'ipv4', 'ipv6'],
        default: 'separate',
        isShared: true,
      },
      /** Allows routes of an operator that lead past WireGuard's device, so that packets to other nodes are unencrypted. */
      allowBypass: { name: 'AllowBypass', kind: 'flag' },
    },
    overhead: 60, // IPv4, UDP, and WireGuard's header and tag
    reserved: 80, // the overhead with IPv6, which flannel reserves with IPv4 too
    // The default port of the IPv6 device is the IPv4 port plus one, as in flanneld (pkg/backend/wireguard).
    outside: {
      protocol: 'udp',
      option: 'ListenPort',
      port: 51_820,
      ofIpv6: { option: 'ListenPortV6', port: 51_821 },
    },
    routes: 'network',
    probe: 'overlay',
    provesSender: true,
    isSealedUnless: 'allowbypass',
    published: 'wireguard',
    devices: [
      ['wireguard', 'flannel-wg'],
      ['tun', 'flannel-wg'],
      ['wireguard', 'flannel-wg-v6'],
      ['tun', 'flannel-wg-v6'],
    ],
  },
  ipsec: {
    options: {
      udpEncap: { name: 'UDPEncap', kind: 'flag', isShared: true },
      espProposal: {
        name: 'ESPProposal',
        kind: 'text',
        default: 'aes128gcm16-sha256-prfsha256-ecp256',
        form: /^[a-z\d]+(?:-[a-z\d_]+)*$/,
        remedy: 'give it a proposal of strongSwan, such as "aes256gcm16-sha256-prfsha256-ecp256"',
        isShared: true,
      },
      // The pre-shared key; flanneld requires at least 96 bytes (pkg/backend/ipsec/ipsec.go).
      psk: {
        name: 'PSK',
        kind: 'secret',
        isShared: true,
        isRequired: true,
        form: /^[\s\S]{96,}$/,
        refusal: 'config error, password is too short',
        remedy: 'give it at least 96 characters, for example of `openssl rand -hex 48`',
      },
      /**
       * Whether the kernel or charon carries the ESP packets. If the option is left out, the kernel carries them if it
       * can, otherwise charon.
       */
      dataPath: { name: 'DataPath', kind: 'word', words: ['kernel', 'userspace'] },
    },
    overhead: 77, // IPv4, ESP header, IV, padding, trailer and ICV (flannel: pkg/backend/ipsec/ipsec_network.go)
    outside: { protocol: 'esp' },
    routes: 'none',
    probe: 'nobody',
    isIpv4Alone: true,
    provesSender: true,
    published: 'ipsec',
    devices: [],
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
  // `published` is empty, because flannel's cloud backends publish no type (v0.13, backend/awsvpc and others).
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
  http: { ...FABRIC, options: HTTP_OPTIONS, hasTemplates: true, published: 'http' },
} as const satisfies Readonly<Record<string, Kind>>

export type BackendType = keyof typeof KINDS
export type Settings<T extends BackendType> = { readonly [K in BackendType]: Values<(typeof KINDS)[K]['options']> }[T]

/** The number of bytes by which an IPv6 header (40 bytes, RFC 8200 section 3) is longer than an IPv4 header. */
const IPV6_MORE = 20
/** Returns the number of bytes that the backend adds to an inner packet if the outer header has the family `family`. */
export const overheadBy = (type: BackendType, family: 'ipv4' | 'ipv6'): number =>
  KINDS[type].overhead + (family === 'ipv6' ? IPV6_MORE : 0)

/**
 * Returns the families of the outer header for inner packets of one family: first the family that weftd tries first,
 * then the family for peers that do not answer over the first family. `backend` is the `Backend` object of the network
 * configuration, and `families` lists the network's families.
 */
export function outersOf(
  type: string,
  inner: 'ipv4' | 'ipv6',
  backend: Readonly<Record<string, unknown>>,
  families: readonly ('ipv4' | 'ipv6')[],
): readonly ['ipv4' | 'ipv6', ...('ipv4' | 'ipv6')[]] {
  const { isIpv4Alone, choosesUnderlay } = kindOf(type) ?? {}
  if (isIpv4Alone) return ['ipv4']
  if (choosesUnderlay) return underlaysOf(memberOf(backend, UNDERLAY), families)
  const mode = type === 'wireguard' ? memberOf(backend, MODE) : undefined
  if (mode === 'ipv4' || mode === 'ipv6') return [mode]
  return mode === 'auto' ? underlaysOf('auto', families) : [inner]
}

/**
 * Returns the outer families, in the order of `outersOf`, for a value of the option `Underlay`. The value may name a
 * family that the network lacks; the backend refuses the value later.
 */
export function underlaysOf(
  underlay: unknown,
  families: readonly ('ipv4' | 'ipv6')[],
): readonly ['ipv4' | 'ipv6', ...('ipv4' | 'ipv6')[]] {
  if (families.length < 2) return [underlay === 'ipv4' || underlay === 'ipv6' ? underlay : (families[0] ?? 'ipv4')]
  return underlay === 'ipv6' ? ['ipv6', 'ipv4'] : ['ipv4', 'ipv6']
}

/**
 * The packets that firewalls between the nodes must accept, as text. For a backend with its own UDP port, callers show
 * the port instead.
 */
export const PROTOCOL_TEXTS = {
  udp: 'UDP',
  ipencap: 'IP protocol 4 (IPIP)',
  esp: 'UDP ports 500 and 4500 (IKE) and IP protocol 50 (ESP)',
} as const

export const isIpv4Alone = (type: BackendType): boolean => (KINDS[type] as Kind).isIpv4Alone === true

export const isBackendType = (type: string): type is BackendType => Object.hasOwn(KINDS, type)
export const kindOf = (type: string): Kind | undefined => (isBackendType(type) ? KINDS[type] : undefined)

/** The backend type of a network configuration that has no `Backend` object, as in flanneld (pkg/subnet/config.go). */
export const DEFAULT_TYPE: BackendType = 'udp'

/** Returns the value of an option in the `Backend` object, ignoring the case of the option's name. */
const memberOf = (backend: Readonly<Record<string, unknown>>, option: string): unknown =>
  Object.entries(backend).find(([name]) => name.toLowerCase() === option.toLowerCase())?.[1]

/**
 * Returns the UDP port to which peers send datagrams of the family `outer`, according to a `Backend` object; undefined
 * if the backend does not use UDP.
 */
export function portOf(
  type: string,
  backend: Readonly<Record<string, unknown>>,
  outer: 'ipv4' | 'ipv6' = 'ipv4',
): number | undefined {
  const outside = kindOf(type)?.outside
  if (outside?.protocol !== 'udp') return undefined
  const hasTwoDevices = ['separate', '', null, undefined].some((mode) => mode === memberOf(backend, MODE))
  const { option, port } = (outer === 'ipv6' && hasTwoDevices ? outside.ofIpv6 : undefined) ?? outside
  const given = memberOf(backend, option)
  return typeof given === 'number' && given > 0 ? given : port
}

/**
 * Returns the backends whose leases publish this `BackendType`; for an empty text, the backends that publish no type.
 */
export const publishersOf = (published: string): readonly Kind[] =>
  Object.values<Kind>(KINDS).filter((kind) => kind.published === published)

/**
 * Returns, as text, the backends that publish this type in leases, such as `udp, alloc or a cloud backend` for the
 * empty type. Each other type is the name of its backend.
 */
export const publishers = (published: string): string =>
  published === '' ? 'udp, alloc or a cloud backend' : published

/** Returns the remedy for a `Type` in the network configuration that weft does not support. */
export function remedyFor(): string {
  const types = Object.keys(KINDS)
  const known = `${types.slice(0, -1).join(', ')} or ${types.at(-1)}`
  return `set "Backend": {"Type": ...} in the network configuration to ${known}`
}

/** Returns true if the kernel may have made the device name `name` from a pattern such as `flannel%d`. */
export const isNamedBy = (pattern: string, name: string): boolean => {
  const [before = '', after] = pattern.split('%d')
  return after === undefined ? name === pattern : name.startsWith(before) && /^\d+$/.test(name.slice(before.length))
}

/**
 * Returns true if the device has a name that weft or flannel gives to devices. A device of weft that another program
 * has renamed has no such name.
 */
export const hasBackendName = (device: string): boolean =>
  Object.values<Kind>(KINDS).some(({ devices }) => devices.some(([, pattern]) => isNamedBy(pattern, device)))

/**
 * flanneld's request id (pkg/backend/ipsec/ipsec_network.go), which connects the IPsec policies of the backend ipsec with
 * charon's security associations.
 */
export const IPSEC_REQUEST_ID = 11
/**
 * The priorities of weftd's own IPsec policies. The kernel prefers the policy with the lower number, and the policies for
 * peers have the priority 0. The numbers are unusual, so that weftd recognises its own policies after a restart.
 */
export const IPSEC_ALLOW_PRIORITY = 0x77_65_66_73
export const IPSEC_BLOCK_PRIORITY = 0x77_65_66_74
