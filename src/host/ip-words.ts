// ip-words.ts - writes changes of the kernel's network configuration as command lines of `ip`, `bridge` or `wg`, so
// that an operator can repeat the changes by hand. Also writes policy rules as `ip rule` prints them. All functions are
// pure.

import type { Secret } from '../base/secret.ts'
import { printable } from '../base/text.ts'
import {
  ADDRESS_BITS,
  familyOf,
  formatAddress,
  formatEndpoint,
  formatNet,
  type Family,
  type Net,
} from '../net/address.ts'
import type { Change, NewDevice, NewIpip, PolicyRule, RouteChange, WireguardPeerChange } from './kernel.ts'

/** The members of the union `C` whose `kind` can be `K`. */
type OfKind<K extends Change['kind'], C extends Change = Change> = C extends unknown
  ? K extends C['kind']
    ? C
    : never
  : never

/** The text in place of a secret key. `wg` reads secret keys from files, so an operator inserts the name of a file. */
const HIDDEN_KEY = '(hidden)'

/** Writes a change as a command line that an operator can type. Secret keys are replaced by `(hidden)`. */
export function wordsOf(change: Change): string {
  return wordListOf(change).map(quoted).join(' ')
}

function wordListOf(change: Change): readonly string[] {
  switch (change.kind) {
    case 'add link':
      return ['ip', 'link', 'add', ...wordsOfNewDevice(change.link)]
    case 'set link':
      return ['ip', 'link', 'set', 'dev', ...wordsOfSettings(change)]
    case 'delete link':
      return ['ip', 'link', 'del', 'dev', change.device.name]
    case 'replace address':
    case 'delete address':
      return ['ip', 'address', ...wordsOfAddress(change)]
    case 'add route':
    case 'replace route':
    case 'delete route':
      return [...ipWords(change.destination), 'route', verbOf(change.kind), ...wordsOfRoute(change)]
    case 'add rule':
    case 'delete rule':
      return [...ipWords(change.family), 'rule', verbOf(change.kind), ...wordsOfRule(change)]
    case 'replace neighbour':
    case 'delete neighbour':
      return ['ip', 'neigh', ...wordsOfNeighbour(change)]
    case 'replace forwarding':
    case 'delete forwarding':
      return ['bridge', 'fdb', ...wordsOfForwarding(change)]
    case 'set wireguard':
      return ['wg', 'set', ...wordsOfWireguard(change)]
  }
}

/** Puts a word in single quotes if a shell would change it, and escapes its control characters. */
const quoted = (word: string): string =>
  word === HIDDEN_KEY || /^[\w.:/@%+=,[\]-]+$/.test(word)
    ? word
    : `'${printable(word).replaceAll("'", String.raw`'\''`)}'`

/** Returns the verb that `ip` and `bridge` use for a kind of change: `add`, `replace` or `del`. */
function verbOf(kind: Change['kind']): string {
  const [verb = ''] = kind.split(' ')
  return verb === 'delete' ? 'del' : verb
}

/** Returns a word and its value as two words of a command line; an empty list if the value is undefined. */
const option = (word: string, value: string | number | undefined): readonly string[] =>
  value === undefined ? [] : [word, String(value)]

const ipWords = (of: Family | Net): readonly string[] => {
  const isIpv6 = typeof of === 'string' ? of === 'ipv6' : typeof of.address === 'bigint'
  return isIpv6 ? ['ip', '-6'] : ['ip']
}

function wordsOfNewDevice({ name, type, mac, mtu, vxlan, ipip, peer }: NewDevice): readonly string[] {
  return [
    name,
    ...option('address', mac),
    ...option('mtu', mtu),
    'type',
    type,
    ...(vxlan ? wordsOfVxlan(vxlan) : []),
    ...(ipip ? wordsOfIpip(ipip) : []),
    ...(peer ? ['peer', 'name', peer.name, ...option('mtu', peer.mtu)] : []),
  ]
}

const wordsOfIpip = ({ local }: NewIpip): readonly string[] => ['local', formatAddress(local), 'nopmtudisc']

function wordsOfVxlan({
  vni,
  local,
  underlay,
  port,
  learning,
  gbp,
}: NonNullable<NewDevice['vxlan']>): readonly string[] {
  return [
    'id',
    String(vni),
    ...option('local', local === undefined ? undefined : formatAddress(local)),
    ...option('dev', underlay?.name),
    'dstport',
    String(port),
    ...(learning === undefined ? [] : [learning ? 'learning' : 'nolearning']),
    ...(gbp ? ['gbp'] : []),
  ]
}

function wordsOfSettings({ device, mtu, up, mac, queueLength, ipip }: OfKind<'set link'>): readonly string[] {
  return [
    device.name,
    ...option('address', mac),
    ...option('mtu', mtu),
    ...option('txqueuelen', queueLength),
    ...(up === undefined ? [] : [up ? 'up' : 'down']),
    ...(ipip ? ['type', 'ipip', ...wordsOfIpip(ipip)] : []),
  ]
}

function wordsOfAddress(change: OfKind<'replace address'>): readonly string[] {
  const { kind, device, address, prefixLength, noDad } = change
  const isNew = kind === 'replace address'
  return [
    verbOf(kind),
    `${formatAddress(address)}/${prefixLength}`,
    'dev',
    device.name,
    ...(isNew && noDad ? ['nodad'] : []),
  ]
}

function wordsOfRoute(route: RouteChange): readonly string[] {
  const { destination, type, gateway, device, nextHopObject, onlink, metric, scope, source, table, protocol } = route
  const isOtherFamily = gateway !== undefined && typeof gateway !== typeof destination.address
  const family = typeof gateway === 'number' ? 'inet' : 'inet6'
  return [
    ...(type === undefined || type === 'unicast' ? [] : [type]),
    destination.prefixLength === 0 ? 'default' : formatNet(destination),
    ...(gateway === undefined ? [] : ['via', ...(isOtherFamily ? [family] : []), formatAddress(gateway)]),
    ...option('dev', device?.name),
    ...option('nhid', nextHopObject),
    ...option('table', table),
    ...option('proto', protocol),
    ...option('scope', scope),
    ...option('src', source === undefined ? undefined : formatAddress(source)),
    ...option('metric', metric),
    ...(onlink ? ['onlink'] : []),
  ]
}

function wordsOfRule({ priority, iif, from, to, action }: OfKind<'add rule'>): readonly string[] {
  return [
    'priority',
    String(priority),
    ...option('iif', iif),
    ...option('from', from && formatNet(from)),
    ...option('to', to && formatNet(to)),
    ...(typeof action === 'string' ? [action] : ['lookup', String(action.table)]),
  ]
}

function wordsOfNeighbour(change: OfKind<'replace neighbour' | 'delete neighbour'>): readonly string[] {
  const { kind, device, address } = change
  return [
    verbOf(kind),
    formatAddress(address),
    ...(kind === 'replace neighbour' ? ['lladdr', change.mac] : []),
    'dev',
    device.name,
    ...(kind === 'replace neighbour' ? ['nud', 'permanent'] : []),
  ]
}

function wordsOfForwarding({ kind, device, mac, host }: OfKind<'replace forwarding'>): readonly string[] {
  const isNew = kind === 'replace forwarding'
  return [verbOf(kind), mac, 'dev', device.name, 'dst', formatAddress(host), 'self', ...(isNew ? ['permanent'] : [])]
}

function wordsOfWireguard({ device, privateKey, port, peers = [] }: OfKind<'set wireguard'>): readonly string[] {
  return [
    device.name,
    ...option('listen-port', port),
    ...keyWords('private-key', privateKey),
    ...peers.flatMap(wordsOfPeer),
  ]
}

function wordsOfPeer(peer: WireguardPeerChange): readonly string[] {
  const { publicKey, isRemoved, presharedKey, endpoint, keepaliveSeconds, allowedIps } = peer
  if (isRemoved) return ['peer', publicKey, 'remove']
  return [
    'peer',
    publicKey,
    ...keyWords('preshared-key', presharedKey),
    ...option('endpoint', endpoint && formatEndpoint(endpoint.address, endpoint.port)),
    ...option('persistent-keepalive', keepaliveSeconds),
    ...option('allowed-ips', allowedIps?.map(formatNet).join(',')),
  ]
}

/**
 * Returns the option `word` with a key, which `wg` reads from a file. If the key must be removed, the file is
 * /dev/null, because `wg` removes a key if its file is empty.
 */
const keyWords = (word: string, key: Secret | undefined): readonly string[] =>
  option(word, key && (key.isEmpty ? '/dev/null' : HIDDEN_KEY))

/** The numbers of the routing tables that every host has, and their names in `ip`. */
export const MAIN_TABLE = 254
export const LOCAL_TABLE = 255
const TABLE_NAMES: ReadonlyMap<number, string> = new Map([
  [253, 'default'],
  [MAIN_TABLE, 'main'],
  [LOCAL_TABLE, 'local'],
])

export const tableName = (table: number): string => TABLE_NAMES.get(table) ?? String(table)

const ALL_BITS = 0xff_ff_ff_ff

/** Writes a network as `ip` prints it: a single address without its prefix length. */
const netText = (net: Net): string =>
  net.prefixLength === ADDRESS_BITS[familyOf(net)] ? formatAddress(net.address) : formatNet(net)

/** The names of protocols, as `ip rule` prints them (protocols(5)). */
const PROTOCOL_NAMES: ReadonlyMap<number, string> = new Map([
  [1, 'icmp'],
  [6, 'tcp'],
  [17, 'udp'],
  [58, 'ipv6-icmp'],
])

const rangeText = ([first, last]: readonly [number, number]): string =>
  first === last ? `${first}` : `${first}-${last}`

/** Writes a policy rule as `ip rule` prints it, such as `5270: from all lookup 52`. */
export function ruleText(rule: PolicyRule): string {
  const { priority, table, action, iif, oif, from, to, mark, mask, isInverted, part = {} } = rule
  const bits = mask === ALL_BITS ? '' : `/0x${mask.toString(16)}`
  return [
    `${priority}:${isInverted ? ' not' : ''} from ${from ? netText(from) : 'all'}`,
    ...option('to', to && netText(to)),
    ...option('tos', part.tos && `0x${part.tos.toString(16)}`),
    ...option('fwmark', mark === undefined ? undefined : `0x${mark.toString(16)}${bits}`),
    ...option('iif', iif),
    ...option('oif', oif),
    ...option('ipproto', part.protocol && (PROTOCOL_NAMES.get(part.protocol) ?? part.protocol)),
    ...option('sport', part.sport && rangeText(part.sport)),
    ...option('dport', part.dport && rangeText(part.dport)),
    ...option('dscp', part.dscp),
    ...option('tun_id', part.tunnel === undefined ? undefined : String(part.tunnel)),
    table === undefined ? action : `lookup ${tableName(table)}`,
  ].join(' ')
}
