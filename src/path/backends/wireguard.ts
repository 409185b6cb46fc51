// wireguard.ts - the wireguard backend, which encrypts the packets between hosts. The whole network is routed to one
// device for each family, or to one device for both families.
//
// The options, devices, routes, key file and lease are those of flanneld (pkg/backend/wireguard). When weftd ends, it
// deletes the devices and keeps the key file.

import { WeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../../control/lease/lease.ts'
import { currentExternal, type ExternalInterface } from '../../host/external-interface.ts'
import {
  FAMILIES,
  familiesOf,
  FAMILY_NAMES,
  formatAddress,
  formatNet,
  isLinkLocal,
  listed,
  netsOf,
  onlyOf,
  type Family,
} from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, NeededPart, PlannedPath } from '../contract.ts'
import { checkFamily } from '../device/tun-device.ts'
import { unusableReason } from '../tunnel/peer-filter.ts'
import type { TunnelOptions } from '../tunnel/tunnel-options.ts'
import { checkNetwork } from '../tunnel/tunnel.ts'
import { addedLines, removedLines } from './peer-words.ts'
import { endpointText, type WireguardPeer } from './wireguard-device.ts'
import { chooseCarrier, type Carrier } from './wireguard/carrier.ts'
import { endOf, endpointIn, outerFamily, type Ports } from './wireguard/endpoint.ts'
import { keyFilePath } from './wireguard/key-file.ts'
import { OwnKeyFile, type OwnKey } from './wireguard/own-key.ts'
import { lackingPrimitives } from './wireguard/primitives.ts'

const TYPE = 'wireguard'
const { reserved, outside, devices, options: OPTIONS } = KINDS.wireguard
const [[, NAME], , [, NAME_V6]] = devices

type Parts = BackendParts<'wireguard'> &
  Pick<TunnelOptions, 'startEngine' | 'persistence'> & {
    /** The cryptographic primitives that weftd needs to carry WireGuard itself but that this Node.js lacks. */
    readonly lacks?: readonly string[]
  }

export function createWireguardBackend(options: Parts): Backend {
  const backend = new WireguardBackend(options)
  // Make each member a property of this object itself. The daemon copies a backend to replace one member
  // (node/loops/lease.ts), and a copy lacks the members of a class's prototype.
  return {
    name: TYPE,
    devices: backend.devices,
    isSealed: !options.settings.allowBypass,
    get external() {
      return backend.external
    },
    get tunNames() {
      return backend.tunNames
    },
    words: {
      added: (peer) => backend.addedLines(peer),
      removed: (peer) => removedLines(peer, familiesOf(options.config)),
    },
    prepare: () => backend.prepare(),
    needs: () => backend.needs(),
    plan: (lease) => backend.plan(lease),
  }
}

const nameIn = (family: Family): string => (family === 'ipv4' ? NAME : NAME_V6)
const portOptionOf = (name: string): string => (name === NAME_V6 ? OPTIONS.portV6 : OPTIONS.port).name

class WireguardBackend {
  /** The names of the data path's devices: one device for each family, or one device for all families. */
  readonly devices: readonly string[]
  readonly #options: Parts
  readonly #lacks: readonly string[]
  readonly #families: readonly Family[]
  /** True if one device carries both families. */
  readonly #isOneDevice: boolean
  readonly #ports: Ports
  readonly #key: OwnKeyFile
  /**
   * A log that drops repeated lines. In a dual-stack network weftd calls `prepare` and `open` again and again while one
   * of the two families does not work.
   */
  readonly #calm: Log
  #external: ExternalInterface
  #carrier: Carrier | undefined

  constructor(options: Parts) {
    const { config, settings, external, lacks = lackingPrimitives(), kernel, log } = options
    this.#options = options
    this.#lacks = lacks
    this.#families = familiesOf(config)
    this.#isOneDevice = settings.mode !== 'separate'
    const port = settings.port || outside.port
    this.#ports = { ipv4: port, ipv6: this.#isOneDevice ? port : settings.portV6 || outside.ofIpv6.port }
    this.#key = new OwnKeyFile(keyFilePath(), lacks.includes('X25519'), kernel, log)
    this.#calm = seldom(log)
    this.#external = external
    this.devices = this.#isOneDevice ? [NAME] : this.#families.map(nameIn)
  }

  get external(): ExternalInterface {
    return this.#external
  }

  get tunNames(): readonly string[] | undefined {
    return this.#carrier === 'userspace' ? this.devices : undefined
  }

  /** Returns flanneld's lines for a peer (pkg/backend/wireguard/wireguard_network.go). */
  addedLines(peer: Lease): readonly string[] {
    const textOf = (lease: Lease): string | undefined => {
      const [family] = familiesOf(lease.subnet)
      const end = lease.attrs.backendType === TYPE && family ? this.#endIn(lease, family) : undefined
      return end && endpointText(end.endpoint)
    }
    if (!this.#isOneDevice) return addedLines(peer, this.#families, textOf)
    const end = textOf(peer)
    const nets = listed(onlyOf(this.#families, peer.subnet)).map(formatNet)
    return [`Subnet(s) added: [${nets.join(' ')}]${end === undefined ? '' : ` via ${end}`}`]
  }

  async prepare(): Promise<LeaseAttrs> {
    const { config, settings, kernel, log } = this.#options
    this.#external = await currentExternal(kernel, this.#external)
    this.#checkOuterAddress()
    checkNetwork(config, this.#external.address, this.#calm)
    // If this Node.js lacks X25519, the kernel computes the public key, so weftd first finds out whether the kernel
    // supports WireGuard.
    this.#carrier ??= await chooseCarrier(settings.dataPath, this.#lacks, kernel, log)
    const { publicKey } = await this.#key.read()
    const lanes = this.#carrier === 'userspace' && this.#hasLanes() ? { AnyPort: true } : {}
    const dataOf = (family: Family) => ({ PublicKey: publicKey, Port: this.#ports[family], ...lanes })
    const { publicIp } = this.#external
    return {
      publicIp,
      backendType: TYPE,
      ...(config.ipv4 && publicIp.ipv4 !== undefined ? { backendData: dataOf('ipv4') } : {}),
      ...(config.ipv6 && publicIp.ipv6 !== undefined ? { backendV6Data: dataOf('ipv6') } : {}),
    }
  }

  needs(): readonly NeededPart[] {
    if (this.#isOneDevice) return [this.#partOf(NAME, this.#ports.ipv4, this.#families)]
    return this.#families
      .filter((family) => this.#isHere(family))
      .map((family) => this.#partOf(nameIn(family), this.#ports[family], [family]))
  }

  plan(lease: OwnLease): readonly PlannedPath[] {
    return this.#isOneDevice ? [this.#planOne(lease)] : this.#families.map((family) => this.#planSeparate(family))
  }

  /** Throws WeftError if the configured mode needs an address that this host lacks. */
  #checkOuterAddress(): void {
    const { config, settings } = this.#options
    const { mode } = settings
    if (mode === 'separate' || mode === 'auto' || this.#external.address[mode] !== undefined) return
    if (config[mode])
      throw new WeftError(
        'ADDRESS',
        `${this.#external.name} has no ${FAMILY_NAMES[mode]} address, which Backend.${OPTIONS.mode.name} "${mode}" needs`,
        { remedy: 'give the interface an address of that family, or set another mode' },
      )
    throw new WeftError(
      'CONFIG',
      `Backend.${OPTIONS.mode.name} is "${mode}", and the network has no ${FAMILY_NAMES[mode]}`,
      { remedy: `set "Enable${FAMILY_NAMES[mode]}": true, or another mode` },
    )
  }

  #mtu(): number {
    return (this.#options.settings.mtu || this.#external.mtu) - reserved
  }

  /** Returns the outer family of datagrams that carry inner packets of the family `family` to a peer. */
  #outerOf({ attrs }: Lease, family: Family): Family {
    return this.#isOneDevice
      ? outerFamily(this.#options.settings.mode, this.#external.publicIp, attrs.publicIp)
      : family
  }

  #endIn(peer: Lease, family: Family): WireguardPeer | undefined {
    return endOf(peer, this.#outerOf(peer, family), this.#isOneDevice, this.#ports)
  }

  /**
   * Returns true if each forwarding thread may send from a port of its own. Behind NAT all datagrams must leave from
   * the published port, because a NAT lets packets in only to a port from which a packet has left.
   */
  #hasLanes(): boolean {
    const { address, publicIp } = this.#external
    return (
      this.#options.settings.keepalive === 0 &&
      FAMILIES.every((family) => address[family] === undefined || publicIp[family] === address[family])
    )
  }

  /**
   * Returns true if the node can have a subnet of the family. If weftd itself carries the packets, the host also needs
   * an address of the family from which it can send.
   */
  #isHere(family: Family): boolean {
    if (this.#external.publicIp[family] === undefined) return false
    return this.#carrier !== 'userspace' || this.#external.address[family] !== undefined
  }

  /** Returns the ports, the device and the MTU that the data path for the families `carried` needs. */
  #partOf(name: string, port: number, carried: readonly Family[]): NeededPart {
    const { config } = this.#options
    const external = this.#external
    const isOurs = this.#carrier === 'userspace'
    const option = portOptionOf(name)
    const networks = netsOf(carried.flatMap((family) => config[family]?.network ?? []))
    return {
      ports: this.#boundBy(carried).map(([family, address]) => ({ family, address, port, option })),
      device: isOurs
        ? { name, type: 'tun', networks, replaces: ['wireguard'] }
        : { name, type: TYPE, networks, replaces: 'any' },
      sides: carried
        .filter((family) => external.publicIp[family] !== undefined)
        .map((family) => ({ family, network: config[family]?.network, mtu: this.#mtu(), external: external.name })),
    }
  }

  /** Returns the addresses at which the device for the families `carried` receives datagrams, each with its family. */
  #boundBy(carried: readonly Family[]): readonly (readonly [Family, string])[] {
    // The kernel binds the port on all addresses of both families, so use the wildcard addresses.
    if (this.#carrier !== 'userspace')
      return [
        ['ipv4', '0.0.0.0'],
        ['ipv6', '::'],
      ]
    const [first = 'ipv4'] = carried
    return this.#outersOf(first).flatMap((family = first) => {
      const address = this.#external.address[family]
      return address === undefined ? [] : [[family, formatAddress(address)] as const]
    })
  }

  /**
   * Returns the outer families of datagrams for the TUN that carries `family`: two in mode `auto` if the host has
   * addresses in both families, otherwise one.
   */
  #outersOf(family: Family): readonly [Family, Family?] {
    const { mode } = this.#options.settings
    if (mode === 'separate') return [family]
    if (mode !== 'auto') return [mode]
    const { ipv4, ipv6 } = this.#external.address
    const [first, second] = familiesOf({ ipv4, ipv6: ipv6 === undefined || isLinkLocal(ipv6) ? undefined : ipv6 })
    return first === undefined ? [family] : second === undefined ? [first] : [first, second]
  }

  #filterOf(family: Family, lease: OwnLease, { publicKey }: OwnKey) {
    return {
      type: TYPE,
      alsoUnusable: (peer: Lease): string | undefined =>
        // If one device carries both families, the datagrams may have another family than the inner packets. So check
        // the address in the family of the datagrams.
        unusableReason(peer, lease, this.#outerOf(peer, family)) ??
        (this.#endIn(peer, family) ? undefined : 'it publishes no WireGuard key and port'),
      identity: {
        name: 'key',
        own: publicKey,
        of: (peer: Lease) => this.#endIn(peer, family)?.publicKey,
        remedy: `if both hosts exist, delete ${this.#key.path} on one of the two and restart its daemon`,
      },
    }
  }

  /** Plans the data path of the device that carries both families. */
  #planOne(lease: OwnLease): PlannedPath {
    const families = this.#families
    const port = this.#ports.ipv4
    const [first = 'ipv4'] = familiesOf(lease.subnet)
    // The datagrams carry the packets of both inner families, so the host needs an address only in the outer family.
    const [outer] = this.#outersOf(first)
    if (this.#carrier === 'userspace') {
      const { address } = this.#external
      // The outer families in which this host has no address yet. When the host gets such an address, weftd opens the
      // data path again.
      const awaited =
        this.#options.settings.mode === 'auto' ? families.filter((each) => address[each] === undefined) : []
      return {
        families,
        mtu: this.#mtu(),
        external: { families: [outer, ...awaited], isBound: true },
        open: (own, leases) => this.#openUserspace(NAME, port, families, own, leases),
      }
    }
    return {
      families,
      mtu: this.#mtu(),
      external: { families: [outer], isBound: false },
      isUnreported: true, // the kernel sends no rtnetlink messages about keys and peers
      open: (own) => this.#openKernel(NAME, port, families, own),
    }
  }

  /** Plans the data path of a device that carries one family. */
  #planSeparate(family: Family): PlannedPath {
    const isOurs = this.#carrier === 'userspace'
    const name = nameIn(family)
    const port = this.#ports[family]
    return {
      families: [family],
      mtu: this.#mtu(),
      external: { families: [family], isBound: isOurs },
      isUnreported: !isOurs, // the kernel sends no rtnetlink messages about keys and peers
      open: async (own, leases) => {
        if (!isOurs) return this.#openKernel(name, port, [family], own)
        checkFamily(family, this.#mtu(), this.#external)
        return this.#openUserspace(name, port, [family], own, leases)
      },
    }
  }

  /**
   * Opens a data path for the families `carried` through one TUN device. weftd, not the kernel, forwards the packets.
   */
  async #openUserspace(
    name: string,
    port: number,
    carried: readonly Family[],
    lease: OwnLease,
    leases: ReadonlyMap<string, Lease>,
  ): Promise<DataPath> {
    const { psk, keepalive } = this.#options.settings
    const [family = 'ipv4'] = carried
    const { openUserspace } = await import('./wireguard/userspace.ts') // loads ciphers that some Node.js lack
    const own = await this.#key.read()
    return openUserspace(
      {
        parts: { ...this.#options, external: this.#external },
        name,
        families: carried,
        outers: this.#outersOf(family),
        port,
        mtu: this.#mtu(),
        privateKey: own.privateKey,
        psk,
        keepalive,
        stampFile: `${this.#key.path}-${name}.time`,
        log: this.#calm,
        hasLanes: () => this.#hasLanes(),
        peerOf: (peer) => endpointIn(peer, this.#outerOf(peer, family), this.#isOneDevice, this.#ports),
        filter: this.#filterOf(family, lease, own),
        check: () => this.#key.check(own),
      },
      lease,
      leases,
    )
  }

  /** Opens a data path for the families `carried` through one device of the kernel. */
  async #openKernel(name: string, port: number, carried: readonly Family[], lease: OwnLease): Promise<DataPath> {
    const { config, settings, kernel, log } = this.#options
    const { openKernel } = await import('./wireguard/kernel.ts')
    const own = await this.#key.read()
    return openKernel(
      {
        config,
        kernel,
        log,
        calm: this.#calm,
        name,
        families: carried,
        port: { number: port, option: portOptionOf(name) },
        mtu: this.#mtu(),
        external: this.#external.name,
        keyFile: this.#key.path,
        privateKey: own.privateKey,
        ownKey: own.publicKey,
        psk: settings.psk,
        keepalive: settings.keepalive,
        endOf: (peer, family) => this.#endIn(peer, family),
        filterOf: (family) => this.#filterOf(family, lease, own),
        check: () => this.#key.check(own),
      },
      lease,
    )
  }
}
