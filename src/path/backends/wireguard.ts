// wireguard.ts - the wireguard backend, which encrypts the packets between hosts. The whole network is routed to one device for each
// family, or to one device for both families.
//
// The options, devices, routes, key file and lease are those of flanneld (pkg/backend/wireguard). When the daemon ends, the devices are
// deleted and the key file stays.

import { isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import type { Secret } from '../../base/secret.ts'
import { sideOf, type Lease, type LeaseAttrs, type OwnLease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { addDevice } from '../../host/links.ts'
import {
  FAMILIES,
  familiesOf,
  FAMILY_NAMES,
  formatAddress,
  formatEndpoint,
  formatNet,
  isLinkLocal,
  netsOf,
  netText,
  type Addresses,
  type Family,
} from '../../net/address.ts'
import { ipv4NetContains, parseIpv4Net } from '../../net/ipv4.ts'
import type { Ipv6 } from '../../net/ipv6.ts'
import { KINDS, type Settings } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, NeededPart, PlannedPath } from '../contract.ts'
import { checkFamily } from '../device/tun-device.ts'
import { unusableReason } from '../tunnel/peer-filter.ts'
import type { TunnelOptions } from '../tunnel/tunnel-options.ts'
import { checkNetwork } from '../tunnel/tunnel.ts'
import { isKey, type WireguardPeer } from './wireguard-device.ts'
import type { KeeperPeer } from './wireguard/keeper.ts'
import { changeOf, keyFilePath, privateKeyOf, publicKeyTo } from './wireguard/key-file.ts'
import { lackingPrimitives } from './wireguard/primitives.ts'

const TYPE = 'wireguard'
const { reserved, outside, devices, options: OPTIONS } = KINDS.wireguard
const [[, NAME], , [, NAME_V6]] = devices
/** The default port of the IPv6 device, as in flanneld (pkg/backend/wireguard). */
const PORT_V6 = outside.port + 1
const NODE_REMEDY = 'run weftd with a Node.js whose OpenSSL has the ciphers (3.x, not in FIPS mode)'
/** The name of a device that weftd creates and deletes to test whether the kernel supports WireGuard. */
const TRIED = 'weft-wg-try'

type Mode = Settings<'wireguard'>['mode']

/** The port on which this node listens, for each family. Both ports are equal if one device carries both families. */
type Ports = Readonly<Record<Family, number>>

/**
 * Returns the public key and the port that a lease publishes for a family; undefined if the lease has no valid key or
 * port. flanneld's leases contain no port; for them the result has this node's own port.
 */
function keyAndPort(
  lease: Lease,
  family: Family,
  { [family]: usual }: Ports,
): { readonly publicKey: string; readonly port: number; readonly anyPort: boolean } | undefined {
  const { data } = sideOf(lease, family)
  const members = (typeof data === 'object' && data !== null ? data : {}) as Readonly<Record<string, unknown>>
  const { PublicKey: publicKey, Port: given = usual, AnyPort: anyPort } = members
  const port = given === 0 ? usual : given
  if (typeof publicKey !== 'string' || !isKey(publicKey)) return undefined
  if (typeof port !== 'number' || !Number.isInteger(port) || port < 1 || port > 65_535) return undefined
  return { publicKey, port, anyPort: anyPort === true }
}

/** True unless the address is link-local or unique local (RFC 4193). flanneld checks only for unique local addresses. */
const isGlobal = (address: Ipv6): boolean => address >> 121n !== 0xfcn >> 1n && !isLinkLocal(address)
/**
 * The private IPv4 networks of RFC 1918. For its mode `auto` flanneld considers only these networks private (Go's
 * net.IP.IsPrivate).
 */
const PRIVATE = ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16'].flatMap((text) => parseIpv4Net(text) ?? [])

/**
 * Returns the outer family of datagrams to a peer if one device carries both families. The rules are those of flanneld
 * (pkg/backend/wireguard, selectMode).
 */
function outerFamily(mode: Mode, own: Addresses, peer: Addresses): Family {
  if (mode === 'ipv4' || mode === 'ipv6') return mode
  const { ipv4, ipv6 } = peer
  if (ipv6 === undefined) return 'ipv4'
  if (ipv4 === undefined) return 'ipv6'
  if (own.ipv4 !== undefined && !PRIVATE.some((net) => ipv4NetContains(net, ipv4))) return 'ipv4'
  return own.ipv6 !== undefined && isGlobal(own.ipv6) && isGlobal(ipv6) ? 'ipv6' : 'ipv4'
}

/**
 * Returns a peer's key and its endpoint in the outer family; undefined if the peer's lease lacks either. A node with
 * one device for both families listens on the port that it publishes for IPv4, or for IPv6 if it publishes no IPv4. The
 * IPv6 port in a flanneld's lease is not used then.
 */
function endpointIn(lease: Lease, outer: Family, isOneDevice: boolean, ports: Ports): KeeperPeer | undefined {
  const address = lease.attrs.publicIp[outer]
  const published = isOneDevice
    ? (keyAndPort(lease, 'ipv4', ports) ?? keyAndPort(lease, 'ipv6', ports))
    : keyAndPort(lease, outer, ports)
  return address === undefined || !published ? undefined : { ...published, address }
}

export function endOf(lease: Lease, outer: Family, isOneDevice: boolean, ports: Ports): WireguardPeer | undefined {
  const found = endpointIn(lease, outer, isOneDevice, ports)
  if (!found) return undefined
  const nets = isOneDevice ? FAMILIES : [outer]
  return {
    publicKey: found.publicKey,
    endpoint: formatEndpoint(found.address, found.port),
    allowedIps: nets.flatMap((family) => lease.subnet[family] ?? []).map(formatNet),
  }
}

/** The key pair of this node, which stays the same while the daemon runs. */
interface OwnKey {
  readonly privateKey: Secret
  readonly publicKey: string
}

type Parts = BackendParts<'wireguard'> &
  Pick<TunnelOptions, 'startEngine' | 'persistence'> & {
    /** The cryptographic primitives that this Node.js lacks but that weftd needs to carry WireGuard itself. */
    readonly lacks?: readonly string[]
  }
type Carrier = NonNullable<Settings<'wireguard'>['dataPath']>

export function createWireguardBackend(options: Parts): Backend {
  const { config, settings, external: found, lacks = lackingPrimitives(), run, log } = options
  const { psk, keepalive, mtu: givenMtu, mode } = settings
  const families = familiesOf(config)
  const isOneDevice = mode !== 'separate'
  const port = settings.port || outside.port
  const ports = { ipv4: port, ipv6: isOneDevice ? port : settings.portV6 || PORT_V6 }
  const keyFile = keyFilePath()
  let external = found
  let keyAtStart: Promise<OwnKey> | undefined
  let changed: string | undefined
  let carrier: Carrier | undefined
  // Log the same warning only seldom, because the daemon calls `prepare` and `open` again and again while one of two
  // families cannot be carried.
  const calm = seldom(log)
  const mtuNow = (): number => (givenMtu || external.mtu) - reserved
  const nameIn = (family: Family): string => (family === 'ipv4' ? NAME : NAME_V6)
  const outerOf = ({ attrs }: Lease, family: Family): Family =>
    isOneDevice ? outerFamily(mode, external.publicIp, attrs.publicIp) : family
  const endIn = (peer: Lease, family: Family): WireguardPeer | undefined =>
    endOf(peer, outerOf(peer, family), isOneDevice, ports)
  // True if each forwarding thread may send from its own port. Behind NAT all datagrams must leave from the published
  // port, because a NAT lets packets in only to a port from which a packet has left.
  const hasLanes = (): boolean =>
    keepalive === 0 &&
    FAMILIES.every(
      (family) => external.address[family] === undefined || external.publicIp[family] === external.address[family],
    )

  return {
    name: TYPE,
    devices: isOneDevice ? [NAME] : families.map(nameIn),
    isSealed: !settings.allowBypass,
    get external() {
      return external
    },
    get tunNames() {
      return carrier === 'userspace' ? (isOneDevice ? [NAME] : families.map(nameIn)) : undefined
    },
    words: {
      added: (peer) => {
        const [family] = familiesOf(peer.subnet)
        const end = peer.attrs.backendType === TYPE && family ? endIn(peer, family) : undefined
        return `Subnet added: ${netText(peer.subnet)}${end ? ` via ${end.endpoint}` : ''}`
      },
    },
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      if (isOneDevice && mode !== 'auto' && external.address[mode] === undefined && config[mode])
        throw new WeftError(
          'ADDRESS',
          `${external.name} has no ${FAMILY_NAMES[mode]} address, which Backend.${OPTIONS.mode.name} "${mode}" needs`,
          {
            remedy: 'give the interface such an address, or set another mode',
          },
        )
      if (isOneDevice && mode !== 'auto' && external.address[mode] === undefined)
        throw new WeftError(
          'CONFIG',
          `Backend.${OPTIONS.mode.name} is "${mode}", and the network has no ${FAMILY_NAMES[mode]}`,
          {
            remedy: `set "Enable${FAMILY_NAMES[mode]}": true, or another mode`,
          },
        )
      checkNetwork(config, external.address, calm)
      const { publicKey } = await ownKey()
      carrier ??= await choose()
      const lanes = carrier === 'userspace' && hasLanes() ? { AnyPort: true } : {}
      const dataOf = (family: Family) => ({ PublicKey: publicKey, Port: ports[family], ...lanes })
      return {
        publicIp: external.publicIp,
        backendType: TYPE,
        ...(config.ipv4 && external.publicIp.ipv4 !== undefined ? { backendData: dataOf('ipv4') } : {}),
        ...(config.ipv6 && external.publicIp.ipv6 !== undefined ? { backendV6Data: dataOf('ipv6') } : {}),
      }
    },
    needs: () =>
      isOneDevice
        ? [partOf(NAME, port, families)]
        : families.filter((family) => isHere(family)).map((family) => partOf(nameIn(family), ports[family], [family])),
    plan: (lease) => (isOneDevice ? [planOne(lease)] : families.map(planSeparate)),
  }

  /** Plans the data path of the device that carries both families. */
  function planOne(lease: OwnLease): PlannedPath {
    const [first = 'ipv4'] = familiesOf(lease.subnet)
    if (carrier === 'userspace')
      return {
        families,
        mtu: mtuNow(),
        open: (own, leases) => openUserspaceTunnel(NAME, port, families, own, leases),
      }
    return {
      families,
      mtu: mtuNow(),
      external: { families: [first], isBound: false },
      open: (own) => openDevice(NAME, port, families, own),
    }
  }

  /** Plans the data path of a device that carries one family. */
  function planSeparate(family: Family): PlannedPath {
    const isOurs = carrier === 'userspace'
    return {
      families: [family],
      mtu: mtuNow(),
      external: { families: [family], isBound: isOurs },
      async open(own, leases) {
        if (!isOurs) return openDevice(nameIn(family), ports[family], [family], own)
        checkFamily(family, mtuNow(), external)
        return openUserspaceTunnel(nameIn(family), ports[family], [family], own, leases)
      },
    }
  }

  /**
   * True if the node can have a subnet of the family. If weftd itself carries the packets, the host also needs an
   * address of the family from which it can send.
   */
  function isHere(family: Family): boolean {
    if (external.publicIp[family] === undefined) return false
    return carrier !== 'userspace' || external.address[family] !== undefined
  }

  /** Returns the ports, the device and the MTU that the device for these families needs. */
  function partOf(name: string, listenPort: number, carried: readonly Family[]): NeededPart {
    const [first = 'ipv4'] = carried
    const option = (name === NAME_V6 ? OPTIONS.portV6 : OPTIONS.port).name
    const networks = netsOf(carried.flatMap((family) => config[family]?.network ?? []))
    const isOurs = carrier === 'userspace'
    const bound = isOurs
      ? outersOf(first).flatMap((family = first) => {
          const address = external.address[family]
          return address === undefined ? [] : [[family, formatAddress(address)] as const]
        })
      : // The kernel binds the port on all addresses of both families.
        ([
          ['ipv4', '0.0.0.0'],
          ['ipv6', '::'],
        ] as const)
    return {
      ports: bound.map(([family, address]) => ({ family, address, port: listenPort, option })),
      device: isOurs
        ? { name, type: 'tun', networks, replaces: ['wireguard'] }
        : { name, type: TYPE, networks, replaces: 'any' },
      sides: carried
        .filter((family) => external.publicIp[family] !== undefined)
        .map((family) => ({ family, network: config[family]?.network, mtu: mtuNow(), external: external.name })),
      programs: isOurs ? [] : ['wg'],
    }
  }

  /**
   * Returns the key that was in the key file at the start. Sessions and leases depend on this key, so a change of the file has no effect
   * until weftd is restarted.
   */
  async function ownKey(): Promise<OwnKey> {
    keyAtStart ??= readOwn()
    try {
      return await keyAtStart
    } catch (error) {
      keyAtStart = undefined // the file may be repaired
      throw error
    }
  }
  async function readOwn(): Promise<OwnKey> {
    const privateKey = await privateKeyOf(keyFile)
    const publicKey = lacks.includes('X25519')
      ? (await run('wg', ['pubkey'], { input: privateKey.reveal() })).trim()
      : publicKeyTo(privateKey)
    return { privateKey, publicKey }
  }
  /** Logs once when the key file has changed, and once when it contains this node's key again. */
  async function checkKey({ privateKey }: OwnKey): Promise<void> {
    const change = await changeOf(keyFile, privateKey)
    if (change === changed) return
    changed = change
    if (change === undefined) log.info(`The key file ${keyFile} holds the key of this node again`)
    else
      log.warn(
        `This node continues with the key that it read at its start, although ${change}: restart weftd to use the file`,
      )
  }

  /**
   * Chooses whether the kernel or weftd carries the packets. If the configuration names neither, the kernel does if it
   * supports WireGuard, otherwise weftd.
   */
  async function choose(): Promise<Carrier> {
    const { name: option } = OPTIONS.dataPath
    const lack = `this Node.js has no ${lacks.join(', no ')}`
    if (settings.dataPath === 'userspace' && lacks.length > 0)
      throw new WeftError('DEVICE', `${lack}: weftd cannot carry WireGuard itself`, {
        remedy: `${NODE_REMEDY}, or leave out Backend.${option}`,
      })
    if (settings.dataPath !== undefined) {
      const who = settings.dataPath === 'userspace' ? 'weftd itself' : 'the kernel'
      log.info(`WireGuard is carried by ${who}: "${option}" is "${settings.dataPath}"`)
      return settings.dataPath
    }
    try {
      await addDevice(run, TRIED, 'wireguard', [])
      await run('ip', ['link', 'del', TRIED])
      return 'kernel'
    } catch (error) {
      if (!isWeftError(error, 'NO_DEVICE_TYPE')) throw error
      if (lacks.length > 0)
        throw new WeftError('DEVICE', `WireGuard cannot be carried: ${messageOf(error)}, and ${lack}`, {
          remedy: NODE_REMEDY + ', or load the module `wireguard` into the kernel',
          cause: error,
        })
      log.info(`WireGuard is carried by weftd itself: ${messageOf(error)}`)
      return 'userspace'
    }
  }

  function peersIn(family: Family, lease: OwnLease, { publicKey }: OwnKey) {
    return {
      type: TYPE,
      alsoUnusable: (peer: Lease): string | undefined =>
        // If one device carries both families, the datagrams may have another family than the inner packets. So check
        // the address in the family of the datagrams.
        unusableReason(peer, lease, outerOf(peer, family)) ??
        (endIn(peer, family) ? undefined : 'it publishes no WireGuard key and port'),
      identity: {
        name: 'key',
        own: publicKey,
        of: (peer: Lease) => endIn(peer, family)?.publicKey,
        remedy: `if both hosts exist, delete ${keyFile} on one of the two and restart its daemon`,
      },
    }
  }

  /** Opens a data path for the families `carried` through one TUN. weftd, not the kernel, forwards the packets. */
  async function openUserspaceTunnel(
    name: string,
    listenPort: number,
    carried: readonly Family[],
    lease: OwnLease,
    leases: ReadonlyMap<string, Lease>,
  ): Promise<DataPath> {
    const [family = 'ipv4'] = carried
    const { openUserspace } = await import('./wireguard/userspace.ts') // loads ciphers that some Node.js lack
    const own = await ownKey()
    return openUserspace(
      {
        parts: { ...options, external },
        name,
        families: carried,
        outers: outersOf(family),
        port: listenPort,
        mtu: mtuNow(),
        awaited: mode === 'auto' ? families.find((each) => external.address[each] === undefined) : undefined,
        privateKey: own.privateKey,
        psk,
        keepalive,
        stampFile: `${keyFile}-${name}.time`,
        log: calm,
        hasLanes,
        peerOf: (peer) => endpointIn(peer, outerOf(peer, family), isOneDevice, ports),
        filter: peersIn(family, lease, own),
        check: () => checkKey(own),
      },
      lease,
      leases,
    )
  }

  /**
   * Returns the outer families of datagrams for the TUN that carries this family: one, or two in mode `auto` if the host has addresses in
   * both families.
   */
  function outersOf(family: Family): readonly [Family, Family?] {
    if (mode === 'separate') return [family]
    if (mode !== 'auto') return [mode]
    const { ipv4, ipv6 } = external.address
    const [first, second] = familiesOf({ ipv4, ipv6: ipv6 === undefined || isLinkLocal(ipv6) ? undefined : ipv6 })
    return first === undefined ? [family] : second === undefined ? [first] : [first, second]
  }

  /** Opens a data path for the families `carried` through one device of the kernel. */
  async function openDevice(
    name: string,
    listenPort: number,
    carried: readonly Family[],
    lease: OwnLease,
  ): Promise<DataPath> {
    const { openKernel } = await import('./wireguard/kernel.ts')
    const own = await ownKey()
    return openKernel(
      {
        config,
        run,
        log,
        calm,
        name,
        families: carried,
        port: { number: listenPort, option: (name === NAME_V6 ? OPTIONS.portV6 : OPTIONS.port).name },
        mtu: mtuNow(),
        external: external.name,
        keyFile,
        privateKey: own.privateKey,
        ownKey: own.publicKey,
        psk,
        keepalive,
        endOf: endIn,
        filterOf: (family) => peersIn(family, lease, own),
        check: () => checkKey(own),
      },
      lease,
    )
  }
}
