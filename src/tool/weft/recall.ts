// recall.ts - reconstructs the status of a node whose weftd does not run, from the store, the file of the last known
// state, subnet.env, and the devices that weftd left.

import { isWeftError } from '../../base/errors.ts'
import { checkedConfig } from '../../control/config/check.ts'
import { parseNetworkConfig, type NetworkConfig } from '../../control/config/network-config.ts'
import type { Lease } from '../../control/lease/lease.ts'
import type { Link } from '../../host/kernel.ts'
import {
  addressText,
  FAMILIES,
  familiesOf,
  formatAddress,
  formatNet,
  listed,
  netText,
  parseNet,
  primary,
  type Family,
  type Nets,
} from '../../net/address.ts'
import { configOf, peerOf } from '../../node/report.ts'
import type { LastKnown } from '../../node/restart/last-known.ts'
import { isNamedBy, kindOf, KINDS, portOf } from '../../path/catalog.ts'
import { countPeers, STATUS_SCHEMA, type PeerSide, type Status } from '../../report/status.ts'
import type { StoreSeen } from '../doctor/facts.ts'

export interface Remains {
  readonly subnetFile: string
  readonly subnetEnv: Readonly<Record<string, string | undefined>> | undefined
  readonly known: LastKnown | undefined
  readonly stored: { readonly config: string | undefined; readonly leases: readonly Lease[] } | undefined
  /** The text of net-conf.json, which a Kubernetes pod mounts; undefined if the file does not exist. */
  readonly netConf: string | undefined
  readonly links: readonly Link[]
  /** The store's name, and the location of the leases in the form of DaemonStatus.leases. */
  readonly place: { readonly store: string; readonly leases: string }
  readonly at: Date
}

/** Parses a network configuration; returns undefined if there is no text, or if the configuration is invalid. */
function readConfig(text: string | undefined): NetworkConfig | undefined {
  try {
    // In Kubernetes the node objects assign the subnets (`areGiven`), so the configuration needs no range of subnets.
    return text === undefined ? undefined : parseNetworkConfig(text, { areGiven: true })
  } catch (error) {
    if (isWeftError(error, 'CONFIG')) return undefined
    throw error
  }
}

/**
 * Converts the network configuration of a store to the form in which weftd's status reports it, with its secrets hidden.
 * If no weftd can start with the configuration, returns the reason instead.
 */
export function storedConfig(text: string): StoreSeen {
  try {
    const config = configOf(checkedConfig(text, { warn: () => {} }))
    return { config: JSON.parse(JSON.stringify(config)) as StoreSeen['config'] }
  } catch (error) {
    if (!isWeftError(error, 'CONFIG')) throw error
    return { invalid: error.message }
  }
}

function subnetsIn(env: Remains['subnetEnv']): Nets {
  const netOf = (name: string) => parseNet(env?.[name] ?? '')
  const [ipv4, ipv6] = [netOf('FLANNEL_SUBNET'), netOf('FLANNEL_IPV6_SUBNET')]
  return { ...(ipv4 ? { ipv4 } : {}), ...(ipv6 ? { ipv6 } : {}) } as Nets
}

/**
 * Derives a network configuration from subnet.env and from the backend's device on this host; returns undefined if
 * subnet.env or the device is missing.
 */
function guessConfig(env: Remains['subnetEnv'], links: readonly Link[]): NetworkConfig | undefined {
  const isThere = (type: string): boolean =>
    links.some(({ name }) => kindOf(type)?.devices.some(([, pattern]) => isNamedBy(pattern, name)))
  const type = Object.keys(KINDS).find(isThere)
  if (!env || type === undefined) return undefined
  const [network, ipv6] = [env['FLANNEL_NETWORK'], env['FLANNEL_IPV6_NETWORK']]
  const families = {
    ...(network ? { Network: network } : { EnableIPv4: false }),
    ...(ipv6 ? { EnableIPv6: true, IPv6Network: ipv6 } : {}),
  }
  return readConfig(JSON.stringify({ ...families, Backend: { Type: type } }))
}

const isSame = (a: Nets, b: Nets): boolean =>
  FAMILIES.every((family) => (a[family] && formatNet(a[family])) === (b[family] && formatNet(b[family])))

/** The data path of a node whose weftd does not run, as far as the files and devices that weftd left show it. */
interface RecalledPath {
  readonly config: NetworkConfig
  readonly kind: ReturnType<typeof kindOf>
  readonly engine: 'native' | 'kernel' | 'none'
  readonly device: string | null
  readonly devices: Readonly<Record<Family, string | null>>
  /** True if the kernel carries the packets even while weftd does not run. */
  readonly isUp: boolean
}

/**
 * Returns the device of each family of the subnets `own`: the device that has the first address of this node's subnet.
 * If no device has this address, takes another device of the backend for the first family, and null for the second.
 */
function recallDevices(
  config: NetworkConfig,
  own: Nets,
  { known, links }: Pick<Remains, 'known' | 'links'>,
): RecalledPath['devices'] {
  const patterns = kindOf(config.backendType)?.devices ?? []
  const named = links.filter(
    ({ name }) => known?.tunNames.includes(name) || patterns.some(([, pattern]) => isNamedBy(pattern, name)),
  )
  const withAddress = (family: Family): string | undefined =>
    named.find(({ addresses }) => addresses[family].some(({ address }) => address === own[family]?.address))?.name
  const [ipv4, ipv6] = [withAddress('ipv4'), withAddress('ipv6')]
  const other = known?.tunNames[0] ?? named.find(({ name }) => name !== (own.ipv4 ? ipv6 : ipv4))?.name ?? null
  return { ipv4: ipv4 ?? (own.ipv4 ? other : null), ipv6: ipv6 ?? (own.ipv4 ? null : other) }
}

function recallPath(config: NetworkConfig, own: Nets, remains: Remains): RecalledPath {
  const { known } = remains
  const kind = kindOf(config.backendType)
  const devices = recallDevices(config, own, remains)
  const device = devices.ipv4 ?? devices.ipv6
  // A weftd that carries the packets itself writes the file of its last known state. So if the file is missing, or is
  // only for cleanup, the kernel carried the packets. The exception is a backend that has only TUN devices, whose
  // packets the kernel never carries.
  const isOurs = kind !== undefined && kind.devices.length > 0 && kind.devices.every(([type]) => type === 'tun')
  const isKernel = (known === undefined || known.isForCleanup === true) && !isOurs
  const engine = kind?.routes === 'none' || !kind ? 'none' : isKernel ? 'kernel' : 'native'
  const isUp = engine === 'kernel' && (device !== null || kind?.devices.length === 0)
  return { config, kind, engine, device, devices, isUp }
}

/**
 * Returns the status of the path to a peer in one family; null if the peer has no subnet or no address in the family.
 */
function sideOf(lease: Lease, family: Family, { config, kind, isUp }: RecalledPath): PeerSide | null {
  const host = lease.attrs.publicIp[family]
  if (!lease.subnet[family] || host === undefined || !familiesOf(config).includes(family)) return null
  const isUsed = lease.attrs.backendType === kind?.published
  return {
    endpoint: isUp && isUsed ? endpointOf(config, family, formatAddress(host)) : null,
    way: null,
    state: isUsed ? 'programmed' : 'stored',
    roundTripMs: null,
    lossPercent: null,
    probedSecondsAgo: null,
    unansweredSeconds: null,
    pathMtu: null,
    path: null,
    passesBytes: null,
    pathSince: null,
    session: null,
  }
}

function recallPeer(lease: Lease, path: RecalledPath, at: Date): ReturnType<typeof peerOf> {
  const families = { ipv4: sideOf(lease, 'ipv4', path), ipv6: sideOf(lease, 'ipv6', path) }
  const found = { families, name: null, traffic: undefined, isHeld: false, isUnusable: false, cameAt: at.getTime() }
  return peerOf(lease, found, at.getTime())
}

function recallDataPath(path: RecalledPath, { subnetEnv }: Remains): Status['dataPath'] {
  const { config, engine, device, devices, isUp } = path
  const mtu = Number(subnetEnv?.['FLANNEL_MTU'])
  return {
    open: isUp,
    families: familiesOf(config),
    lacking: { ipv4: null, ipv6: null },
    addressGone: { ipv4: null, ipv6: null },
    mtu: mtu > 0 ? mtu : null,
    mtuAtStart: null,
    device,
    devices,
    engine,
    features: [],
    fastPath: null,
    threads: [],
    counters: {},
    drops: {},
    recent: null,
    unknownKeys: null,
  }
}

function recallNode(lease: Lease | undefined, own: Nets, links: readonly Link[]): Status['node'] {
  const publicIp = lease?.attrs.publicIp ?? {}
  const external = links.find(({ addresses }) =>
    FAMILIES.some((family) => addresses[family].some(({ address }) => address === publicIp[family])),
  )
  const [ipv6, publicIpv6] = [own.ipv6, publicIp.ipv6]
  return {
    hostname: '',
    subnet: netText(own),
    publicIp: listed(publicIp).length > 0 ? addressText(publicIp) : '',
    ipv6Subnet: ipv6 ? formatNet(ipv6) : null,
    publicIpv6: publicIpv6 === undefined ? null : formatAddress(publicIpv6),
    externalInterface: external?.name ?? null,
    twin: null,
  }
}

/**
 * Reconstructs the status of a node whose weftd does not run. Returns undefined if neither subnet.env nor the file of
 * the last known state shows the node's subnet, or if no configuration is found.
 */
export function recall(remains: Remains): Status | undefined {
  const { subnetFile, subnetEnv, known, stored, netConf, links, place, at } = remains
  const config =
    [stored?.config, known?.config, netConf].map(readConfig).find((each) => each !== undefined) ??
    guessConfig(subnetEnv, links)
  const own = primary(subnetsIn(subnetEnv)) ? subnetsIn(subnetEnv) : known?.lease.subnet
  const leases = stored?.leases ?? known?.leases ?? []
  if (!own || !config) return undefined
  const lease = leases.find(({ subnet }) => isSame(subnet, own)) ?? known?.lease
  const path = recallPath(config, own, remains)
  const peers = leases.filter((each) => each !== lease && !isSame(each.subnet, own))
  const list = peers.map((each) => recallPeer(each, path, at))
  return {
    schema: STATUS_SCHEMA,
    at: at.toISOString(),
    trouble: null,
    summary: '',
    events: [],
    state: 'starting',
    impairments: [],
    daemon: { version: '', pid: 0, startedAt: '', subnetFile, leases: place.leases, etcdFiles: null, network: 'off' },
    store: {
      name: place.store,
      reachable: stored !== undefined,
      comparedSecondsAgo: null,
      held: 0,
      holds: 0,
      configGone: false,
      configDiffers: false,
    },
    node: recallNode(lease, own, links),
    config: configOf(config),
    lease: null,
    dataPath: recallDataPath(path, remains),
    peers: stored || known ? countPeers(list, null) : null,
    peerEvents: null,
    repairs: 0,
    subnetFileWritten: false,
  }
}

function endpointOf({ backendType, backend }: NetworkConfig, family: Family, host: string): string {
  const port = portOf(backendType, backend, family)
  if (port === undefined) return host
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`
}
