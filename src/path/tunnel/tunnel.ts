// tunnel.ts - a tunnel whose packets an engine of weft carries, for any encapsulation: the engine moves packets between
// a TUN device and UDP sockets.
//
// `Tunnel.open` has these steps. Until step 3 an earlier process may forward.
// 1. It refuses a network that is already routed to a foreign device.
// 2. It decides which of the known leases are usable peers, and gives a traffic slot to each peer.
// 3. It takes over the open descriptors of the predecessor, if there is a predecessor. From this step on no process
// forwards, and packets wait in the descriptors.
// 4. The session manager continues the predecessor's sessions, and gets the peers.
// 5. Without descriptors of a predecessor, it removes a kernel device with the TUN's name, takes over the TUN of a
//   process that ended, and refuses all foreign devices.
// 6. It starts the engine with the peers. If the TUN of an earlier process is still configured, packets flow from this
// step on.
// 7. The session manager begins: it sends handshakes, and answers the handshakes of peers.
// 8. It configures the TUN: MTU, address, route. Packets flow through a new TUN from this step on.
// 9. It loads the code that logs unknown senders.
// 10. If the configuration allows FastPath, it begins to load the eBPF programs (kernel-way.ts), and does not wait
// until they are loaded.

import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { NetworkConfig } from '../../control/config/network-config.ts'
import { sideOf, type Lease, type OwnLease } from '../../control/lease/lease.ts'
import { addon } from '../../host/addon.ts'
import { createTurn } from '../../host/bell.ts'
import type { ExternalInterface } from '../../host/external-interface.ts'
import { removeAll } from '../../host/kernel-errors.ts'
import { renamed, type Named } from '../../host/links.ts'
import {
  FAMILIES,
  familiesOf,
  FAMILY_NAMES,
  formatAddress,
  formatEndpoint,
  formatNet,
  netAround,
  netContains,
  type Address,
  type Addresses,
  type ByFamily,
  type Family,
  type Net,
} from '../../net/address.ts'
import { isNamedBy } from '../catalog.ts'
import type {
  Adapting,
  Counting,
  DataPath,
  FastPath,
  HandoverSide,
  Handshakes,
  Observing,
  PathPeer,
  PathSearching,
  PathSide,
  PathTraffic,
  Probing,
  Underlays,
} from '../contract.ts'
import {
  adoptTun,
  checkMtu,
  createTunDevice,
  refuseForeignRoute,
  refuseSharedTun,
  removeFamilies,
  type TunDevice,
} from '../device/tun-device.ts'
import type { Engine, EngineConfig, OpenPath, PeerTraffic } from '../engine/engine.ts'
import { TrafficSlots } from '../engine/traffic.ts'
import { sumCounters } from '../sums.ts'
import { InnerFamilies, type InnerFamily } from './inner-families.ts'
import type { KernelWay } from './kernel-way.ts'
import { QueueDrops } from './queue-drops.ts'
import type { TunnelKind, TunnelParts } from './tunnel-options.ts'
import { TunnelPeers } from './tunnel-peers.ts'
import { Underlay } from './underlay.ts'

/**
 * The engine's features that coalesce received packets, each with the name of the protocol whose packets are coalesced.
 */
const JOINING = [
  ['coalesce-tcp', 'TCP'],
  ['coalesce-udp', 'UDP'],
] as const

/**
 * Warns if a network contains this node's own address, because datagrams to some peers would then go into the tunnel.
 */
export function checkNetwork(config: NetworkConfig, own: Addresses, log: Log): void {
  for (const family of familiesOf(config)) {
    const [range, address] = [config[family], own[family]]
    if (!range || address === undefined || !netContains(range.network, address)) continue
    const last = netAround(range.subnetMax, range.subnetLength)
    const mayLease = address >= range.subnetMin && (address < range.subnetMax || netContains(last, address))
    // Warn, although such a network works if the host of each peer is on a link of this host. The kernel then prefers
    // the link's route, whose prefix is longer, to the network's route.
    log.warn(
      `the network ${formatNet(range.network)} contains this node's own address ${formatAddress(address)}` +
        `${mayLease ? ', and may lease it to containers' : ''}: datagrams to peers behind a router go into the tunnel; ` +
        'choose a Network that overlaps no network of the hosts',
    )
  }
}

/**
 * Throws WeftError if the MTU is too small for the family, or if a foreign device has a route to the family's network.
 */
async function refuseRoute(
  { external, kernel }: TunnelParts,
  mtu: number,
  { family, network }: InnerFamily,
  isOwn: (device: string) => boolean,
  subnet?: Net,
): Promise<void> {
  checkMtu(family, mtu, external.name)
  await refuseForeignRoute(kernel, network, isOwn, subnet)
}

/**
 * Removes devices that prevent the creation of the TUN, and refuses networks that are routed to foreign devices. Called
 * only when no other process forwards. Returns the name of a TUN of an earlier process that the engine can use;
 * undefined if the engine must create the TUN.
 */
async function adoptDevice(
  parts: TunnelParts,
  kind: TunnelKind,
  innerFamilies: InnerFamilies,
): Promise<string | undefined> {
  const { kernel, persistence } = parts
  await kind.clear?.()
  const adopted = await adoptTun(kernel, {
    name: kind.tunName,
    last: persistence.tunNames,
    networks: innerFamilies.networks,
    subnets: innerFamilies.subnets,
    isMultiQueue: persistence.isMultiQueue,
  })
  await innerFamilies.each((each) => refuseRoute(parts, kind.mtu, each, (name) => name === adopted))
  if (adopted === undefined) await refuseSharedTun(kernel, kind.tunName)
  return adopted
}

/** Returns the engine's options, except the options that depend on an earlier process and the peers. */
function engineConfig(
  { settings, persistence }: TunnelParts,
  { encapsulation, ownEnd, port, mtu, sessionManager }: TunnelKind,
  innerFamilies: InnerFamilies,
  underlay: Underlay,
): Omit<EngineConfig, 'tunName'> {
  return {
    encapsulation,
    ...(ownEnd ? { ownEnd } : {}),
    persistent: persistence.persist,
    ...(sessionManager ? { onMail: () => sessionManager.onMail() } : {}),
    bindAddresses: underlay.addresses.map(formatAddress),
    port,
    mtu,
    tunAddress: innerFamilies.ownAddresses,
    networkAddress: innerFamilies.icmpSources,
    settings: settings.tunnel,
    network: innerFamilies.networks,
    subnet: innerFamilies.subnets,
  }
}

/** The state of a FastPath whose eBPF programs are not loaded yet. */
const NOT_OPEN: FastPath = {
  isActive: false,
  reason: 'the programs are not loaded yet',
  promoted: 0,
  takenBack: 0,
  lastTakenBack: null,
}

export class Tunnel implements DataPath, Adapting, Counting, Observing {
  /**
   * Resolves with the reason if the data path must be opened again: the engine can no longer forward, or the sockets of
   * the second outer family are lost while datagrams are encrypted.
   */
  readonly fault: Promise<Error>
  /** The families of inner packets that the tunnel can carry, even if a family is missing now. */
  readonly families: readonly Family[]
  /** The source of probes, which is the TUN device's address in each family. */
  readonly probing: Probing
  readonly adapting: Adapting = this
  readonly counting: Counting = this
  readonly observing: Observing = this
  readonly pathSearch: PathSearching
  /** Reports the public keys that unknown hosts used in handshakes; undefined if the tunnel does not encrypt. */
  readonly handshakes?: Handshakes
  /** Passes the open descriptors on to the next process; undefined if the TUN device must not outlive this process. */
  readonly handover?: HandoverSide
  /** The configuration, the log, and the functions that act on the host. */
  readonly #parts: TunnelParts
  /** The differences between this backend's tunnel and other tunnels, such as the encapsulation. */
  readonly #kind: TunnelKind
  readonly #engine: Engine
  readonly #queueDrops: QueueDrops
  readonly #innerFamilies: InnerFamilies
  /** The outer family, the endpoint and the path MTU for each peer. */
  readonly #underlay: Underlay
  /** The object that decides which leases are usable peers, and gives the peers' records to the engine. */
  readonly #peers: TunnelPeers
  /** For each family of inner packets, the object that configures the TUN device and repairs its configuration. */
  readonly #devices: ReadonlyMap<Family, TunDevice>
  /**
   * Runs operations one after another, in the order of the calls. Otherwise an older list of peers could be set last, a
   * repair could report objects as missing that another operation is creating, and `close` could close descriptors that
   * are being passed on.
   */
  readonly #inTurn = createTurn()
  /**
   * True if the last `apply` failed, so that weftd does not know which peers the engine has. In that case `peers` lists
   * no peers.
   */
  #isUnapplied = false
  /** Chooses the outer family for each peer; undefined if weftd does not choose it. */
  readonly #underlays: Underlays | undefined
  /** The logged messages about the sockets of the second outer family, since these sockets were bound last. */
  readonly #bindFailures: Set<string>
  /** The name of the TUN device as of the last `resync`. */
  #knownName: string
  /** The eBPF programs that carry packets to some peers; undefined if the configuration does not allow them. */
  #kernelWay: KernelWay | undefined
  /** True after `close` was called. */
  #isClosing = false
  #reportFault!: (reason: Error) => void

  private constructor(
    parts: TunnelParts,
    kind: TunnelKind,
    engine: Engine,
    innerFamilies: InnerFamilies,
    underlay: Underlay,
    peers: TunnelPeers,
    queueDrops: QueueDrops,
  ) {
    this.#parts = parts
    this.#kind = kind
    this.#engine = engine
    this.#queueDrops = queueDrops
    this.#innerFamilies = innerFamilies
    this.#underlay = underlay
    this.#peers = peers
    const { persistence } = parts
    const { sessionManager } = kind
    this.#knownName = engine.tunName
    this.families = innerFamilies.all.map(({ family }) => family)
    this.probing = { source: innerFamilies.ownAddresses }
    this.#devices = new Map(innerFamilies.all.map((each) => [each.family, this.#createDevice(each)]))
    const reported = new Promise<Error>((resolve) => (this.#reportFault = resolve))
    this.fault = Promise.race([engine.fault, reported])
    this.pathSearch = this.#createPathSearch()
    // If the tunnel encrypts, the object that negotiates keys chooses the outer family, and weftd does not probe the
    // families: weftd sends its probes unencrypted, and peers would not accept them.
    this.#underlays = kind.other && !sessionManager ? this.#createUnderlays(kind.outer, kind.other) : undefined
    this.#bindFailures = new Set(engine.outers.length < underlay.families.length ? engine.notes : [])
    if (sessionManager) this.handshakes = sessionManager
    if (persistence.persist)
      this.handover = {
        isLendable: engine.takeBack !== undefined,
        leave: () => this.#inTurn(() => this.#leave()),
        takeBack: () => this.#inTurn(async () => this.#takeBack()),
      }
  }

  /**
   * Opens the tunnel with the peers of `leases`. `overOther` lists the lease keys of the peers that are reached over
   * the second outer family. When the node publishes other attributes, it replaces the member `attrs` of `own`.
   */
  static async open(
    parts: TunnelParts,
    kind: TunnelKind,
    own: OwnLease,
    leases: ReadonlyMap<string, Lease>,
    overOther: readonly string[] = [],
  ): Promise<Tunnel> {
    const { external, startEngine, persistence } = parts
    const { tunName, port, sessionManager } = kind
    const underlay = new Underlay(kind, own, external.address, overOther)
    const slots = new TrafficSlots()
    const innerFamilies = await InnerFamilies.create(parts, kind, own, underlay, slots)
    // Accept a route through a device with this backend's name or this node's address, because another process may
    // still forward with that device. The device is checked later, when no other process forwards.
    const isOwn = (name: string): boolean => isNamedBy(tunName, name)
    await innerFamilies.each((each) => refuseRoute(parts, kind.mtu, each, isOwn, each.subnet))
    const peers = new TunnelPeers(kind, innerFamilies, underlay, slots)
    peers.takeFirst(leases, own.key)
    const config = engineConfig(parts, kind, innerFamilies, underlay)
    const { bindAddresses, subnet: subnets } = config
    const inherited = await persistence.inherit({ tunName, bindAddresses, port, subnets })
    // If descriptors were inherited, no process forwards from now on, and packets wait in the descriptors until the
    // engine runs.
    const head = inherited?.handoverState === undefined ? undefined : addon.handoverHead(inherited.handoverState)
    const keepsSessions = head && sessionManager?.inherit(head)
    peers.informSessionManager()
    const adopted = inherited ? undefined : await adoptDevice(parts, kind, innerFamilies)
    const engine = await startEngine({
      ...config,
      tunName: adopted ?? tunName,
      inherited,
      keepsSessions,
      peers: () => peers.encoded(),
    })
    peers.follow(engine)
    const queueDrops = new QueueDrops(parts.kernel, inherited?.queueDrops)
    const tunnel = new Tunnel(parts, kind, engine, innerFamilies, underlay, peers, queueDrops)
    tunnel.#begin()
    try {
      await tunnel.#configureAll(inherited !== undefined)
    } catch (error) {
      // If the configuration fails, keep a TUN device that an earlier process created, because that process may
      // continue to use it. Delete a device that this process created.
      await (inherited || adopted !== undefined ? engine.stop() : tunnel.#end())
      throw error
    }
    tunnel.#logStart()
    void queueDrops.read(engine.tunName)
    if (kind.fastPath)
      tunnel.#inTurn(() => tunnel.#openKernelWay()).catch((error: unknown) =>
        parts.log.error(`FastPath: the eBPF programs cannot be used: ${messageOf(error)}`),
      )
    return tunnel
  }

  /** True if the node must call `renew`, because a family is not carried. */
  get isOutdated(): boolean {
    return this.#innerFamilies.carried().length < this.#innerFamilies.all.length
  }

  /** The present name of the TUN device, which another program may rename. */
  get tunNames(): readonly string[] {
    return [this.#engine.tunName]
  }

  /**
   * Chooses the outer family for each peer. Undefined while the engine has sockets of only one outer family, and if the
   * key negotiation chooses the family.
   */
  get underlays(): Underlays | undefined {
    return this.#engine.outers.length > 1 ? this.#underlays : undefined
  }

  get lacking(): ByFamily<string> {
    return this.#innerFamilies.lacking
  }

  renew(external: ExternalInterface): Promise<void> {
    return this.#inTurn(() => this.#renew(external))
  }

  apply(leases: ReadonlyMap<string, Lease>, ownKey: string, touched?: ReadonlySet<string>): Promise<void> {
    return this.#inTurn(async () => {
      try {
        await this.#peers.apply(leases, ownKey, touched)
        this.#isUnapplied = false
      } catch (error) {
        this.#isUnapplied = true
        throw error
      }
    })
  }

  resync(): Promise<readonly string[]> {
    return this.#inTurn(() => this.#resync())
  }

  close(): Promise<void> {
    this.#isClosing = true
    return this.#inTurn(() => this.#end())
  }

  carrier(): ReturnType<DataPath['carrier']> {
    const { tunName, kind, offloads } = this.#engine
    return { device: tunName, engine: kind, features: offloads }
  }

  peers(): readonly PathPeer[] {
    if (this.#isUnapplied) return []
    return [...this.#innerFamilies.keys(this.#innerFamilies.carried())].flatMap((key) => this.peer(key) ?? [])
  }

  unusable(): ReadonlySet<string> {
    return this.#innerFamilies.unusable()
  }

  peer(key: string): PathPeer | undefined {
    const sides = this.#innerFamilies
      .withPeer(key)
      .filter(([{ family }]) => this.#innerFamilies.lacking[family] === undefined)
      .map(([inner, peer]) => [inner.family, this.#sideOf(inner, peer)] as const)
    return sides.length > 0 ? { key, ...Object.fromEntries(sides) } : undefined
  }

  async traffic(keys?: ReadonlySet<string>): Promise<ReadonlyMap<string, PathTraffic>> {
    const counted = this.#innerFamilies.all.flatMap((inner) => [...inner.traffic(keys)])
    return new Map(counted.map(([key, traffic]) => [key, this.#withSessions(key, traffic)]))
  }

  pathMtu({ key }: Lease, family: Family): number | undefined {
    const inner = this.#innerFamilies.of(family)
    const peer = inner?.peers().get(key)
    return peer && inner?.pathMtu(peer)
  }

  counters(): Readonly<Record<string, bigint>> {
    const dropped = { tx_drop_queue_full: BigInt(this.#queueDrops.counted) }
    return sumCounters([this.#engine.counters(), this.#kernelWay?.counters() ?? {}, dropped])
  }

  drops(after?: Parameters<Engine['drops']>[0]): ReturnType<Engine['drops']> {
    return this.#engine.drops(after)
  }

  threads(): Readonly<Record<string, number>> {
    return this.#engine.threads()
  }

  look(): void {
    this.#peers.reportUnknownSenders()
    this.#kernelWay?.look()
    void this.#queueDrops.read(this.#engine.tunName)
  }

  get fastPath(): FastPath | undefined {
    return this.#kernelWay?.state ?? (this.#kind.fastPath ? NOT_OPEN : undefined)
  }

  /** Describes whether packets reach a peer through the engine, through the eBPF programs, or by a direct route. */
  #sideOf(inner: InnerFamily, peer: Lease): PathSide {
    const side = inner.pathSide(peer)
    const isByKernel = side.way === 'tunnel' && this.#kernelWay?.carries(sideOf(peer, inner.family).subnet)
    return isByKernel ? { ...side, way: 'kernel' } : side
  }

  /** Loads kernel-way.ts and its eBPF programs, and gives the peers to the programs. */
  async #openKernelWay(): Promise<void> {
    if (this.#isClosing) return
    const { KernelWay: Way } = await import('./kernel-way.ts')
    const { kernel, log, external, settings } = this.#parts
    const way = new Way({
      bpf: addon,
      kernel,
      log,
      engine: this.#engine,
      uplink: external.name,
      ownHost: () => this.#underlay.addresses.find((address) => typeof address === 'number'),
      port: this.#kind.port,
      mtu: this.#kind.mtu,
      networks: this.#innerFamilies.networks,
      subnets: this.#innerFamilies.subnets,
      settings: settings.tunnel,
      hasTwoOuters: this.#underlay.families.length > 1,
      pathMtu: (from, to) => addon.pathMtu(from, to),
    })
    this.#peers.followKernelWay(way)
    this.#kernelWay = way
    await way.check()
  }

  /** Adapts the outer families of the peers to the running engine, and starts the session manager. */
  #begin(): void {
    // Without sockets of the second outer family, the peers for which the earlier process chose that family would be
    // unreachable. In that case use the first family for all peers.
    if (this.#engine.outers.length === 1) this.#peers.forgetChoices()
    this.#kind.sessionManager?.listen((key) => this.#peers.redirect(key))
    this.#beginSessions() // may immediately report peers that moved while no process forwarded
  }

  #beginSessions(): void {
    if (this.#engine.sessions) this.#kind.sessionManager?.begin(this.#engine.sessions)
  }

  async #configureAll(isInherited: boolean): Promise<void> {
    const { kernel, log, settings } = this.#parts
    const { sessionManager, other, port } = this.#kind
    // If the tunnel encrypts, both hosts must agree on the outer family of their datagrams, so the tunnel cannot
    // continue with only one family.
    if (sessionManager && other !== undefined && this.#engine.outers.length === 1)
      throw new WeftError('PORT_IN_USE', this.#engine.notes.join('; '), {
        remedy: `see that nothing else has UDP port ${port} of either family (\`ss -ulnp sport = :${port}\`)`,
      })
    const absent = FAMILIES.filter((family) => !this.families.includes(family))
    if (isInherited) await removeFamilies(kernel, this.#engine.tunName, absent)
    await this.#innerFamilies.each((each) => this.#configure(each))
    // Load this module last, because packets wait until the engine runs and the device is configured.
    const { UnknownSenderLog } = await import('./unknown-senders.ts')
    const filter = {
      ...settings.tunnel,
      network: this.#innerFamilies.networks,
      subnet: this.#innerFamilies.subnets,
      provesSender: sessionManager !== undefined,
    }
    this.#peers.logUnknownSenders(new UnknownSenderLog(filter, log))
  }

  #createDevice(inner: InnerFamily): TunDevice {
    const { kernel, log } = this.#parts
    const { scope } = this.#kind
    const engine = this.#engine
    const device: Named = {
      get name() {
        return engine.tunName
      },
    }
    return createTunDevice({
      device,
      network: inner.network,
      subnet: inner.subnet,
      mtu: this.#kind.mtu,
      kernel,
      log,
      isOwnRoute: (destination) => inner.hasRoute(destination),
      ...(scope ? { scope } : {}),
    })
  }

  async #configure({ family }: InnerFamily): Promise<void> {
    await this.#devices.get(family)?.configure()
  }

  #logStart(): void {
    const { log } = this.#parts
    const { tunName, kind, notes, details, offloads, outers } = this.#engine
    const bound = this.#underlay.addresses.slice(0, outers.length)
    const bindings = bound.map((address) => formatEndpoint(address, this.#kind.port))
    for (const note of notes) log.warn(note)
    if (log.v(1)) for (const detail of details) log.info(detail)
    log.info(
      `Forwarding between ${tunName} and UDP ${bindings.join(' and ')} with the ${kind} engine` +
        (offloads.length > 0 ? `: ${offloads.join(', ')}` : ''),
    )
  }

  async #resync(): Promise<readonly string[]> {
    this.#followName()
    if (await this.#isMoved()) {
      this.#reportFault(new Error(`${this.#engine.tunName} is no longer in the network namespace of weftd`))
      return []
    }
    await this.#kind.check?.()
    await this.#bindSecond()
    await this.#followSwitches()
    await this.#kernelWay?.check()
    const repaired: string[] = []
    // Do not repair a deleted device, because the engine reports it as a fault.
    await this.#innerFamilies.each(async (inner) => {
      for (const each of [this.#devices.get(inner.family), inner]) repaired.push(...((await each?.resync()) ?? []))
    })
    return repaired
  }

  /**
   * Returns true if the TUN device is missing in this network namespace although it has not been deleted. The engine
   * reports no fault in this case.
   */
  async #isMoved(): Promise<boolean> {
    const { tunName } = this.#engine
    return !(await this.#parts.kernel.link(tunName)) && this.#engine.tunName === tunName
  }

  /** Logs a new name of the TUN device. The engine learns the name from the device's descriptor. */
  #followName(): void {
    const { tunName } = this.#engine
    if (tunName !== this.#knownName) this.#parts.log.info(renamed(this.#knownName, tunName))
    this.#knownName = tunName
  }

  async #renew(external: ExternalInterface): Promise<void> {
    const { log } = this.#parts
    this.#underlay.follow(external.address)
    await this.#bindSecond()
    for (const inner of this.#innerFamilies.all) {
      if (this.#innerFamilies.lacking[inner.family] === undefined) continue
      try {
        await refuseRoute(this.#parts, this.#kind.mtu, inner, (name) => name === this.#engine.tunName)
        await this.#configure(inner)
        this.#innerFamilies.restore(inner.family)
        log.info(`${FAMILY_NAMES[inner.family]} is carried again`)
      } catch (error) {
        this.#innerFamilies.lack(inner.family, error)
      }
    }
  }

  /**
   * Opens sockets at this host's present address of the second outer family, if the engine has none. The sockets can
   * fail, because another program has the port or the kernel removes the address; then the next `resync` tries again.
   */
  async #bindSecond(): Promise<void> {
    const { second } = this.#underlay
    const local = this.#underlay.unbound(this.#engine.outers)
    if (local === undefined && second !== undefined) this.#endBindFailures(second) // the former address is back
    if (local === undefined || !this.#engine.rebind) return
    const { log } = this.#parts
    try {
      if (!(await this.#engine.rebind(formatAddress(local)))) return
      this.#underlay.bind(local)
      this.#endBindFailures(local)
    } catch (error) {
      const message = messageOf(error)
      if (this.#kind.sessionManager) this.#reportFault(new Error(message))
      else if (!this.#bindFailures.has(message)) log.warn(message)
      this.#bindFailures.add(message)
      return
    }
    this.#beginSessions() // a new engine runs now
  }

  #endBindFailures(address: Address): void {
    if (this.#bindFailures.size === 0) return
    this.#bindFailures.clear()
    this.#parts.log.info(`Peers can be reached from ${formatAddress(address)} again`)
  }

  /**
   * Makes the engine read the TUN device's offload settings, which decide whether the engine may coalesce received
   * packets. Logs a change of these settings.
   */
  async #followSwitches(): Promise<void> {
    const { tunName } = this.#engine
    const before = this.#engine.offloads
    await this.#engine.followSwitches?.()
    const after = this.#engine.offloads
    for (const [feature, what] of JOINING) {
      if (before.includes(feature) === after.includes(feature)) continue
      const joined = after.includes(feature) ? 'joined' : 'no longer joined'
      this.#parts.log.info(`Received ${what} packets are ${joined} for ${tunName}: see \`ethtool -k ${tunName}\``)
    }
  }

  /**
   * Adds the state of the peer's session to the peer's traffic, for each inner family. A peer has only one session, so
   * the byte counts of the session are those of the traffic.
   */
  #withSessions(key: string, traffic: PeerTraffic): PathTraffic {
    const { txBytes, rxBytes } = traffic
    const sessions = this.#innerFamilies.withPeer(key).flatMap(([{ family }, peer]) => {
      const state = this.#kind.sessionManager?.stateOf(peer)
      return state ? [[family, { ...state, txBytes, rxBytes }] as const] : []
    })
    return sessions.length > 0 ? { ...traffic, sessions: Object.fromEntries(sessions) } : traffic
  }

  #createPathSearch(): PathSearching {
    return {
      overhead: this.#kind.overhead,
      knownMtu: (key, family) => {
        const inner = this.#innerFamilies.of(family)
        const peer = inner?.peers().get(key)
        return peer && inner?.isTunnelled(peer) ? this.#underlay.knownMtu(peer, family) : undefined
      },
      ...(this.#parts.settings.tunnel.probePathMtu
        ? { limit: (bytes: ReadonlyMap<string, number>, family: Family) => this.#peers.limit(bytes, family) }
        : {}),
    }
  }

  #createUnderlays(first: Family, other: Family): Underlays {
    const reachedOverBoth = (key: string): Lease | undefined => {
      const [inner] = this.#innerFamilies.withPeer(key)
      const peer = inner?.[1]
      return peer && this.#underlay.reachesOverBoth(peer) ? peer : undefined
    }
    return {
      first,
      other,
      others: () => this.#underlay.chosen,
      has: (key) => reachedOverBoth(key) !== undefined,
      choose: (key, family) => {
        this.#underlay.choose(key, family)
        this.#peers.redirect(key)
      },
      send: (key, family, packet) => {
        const to = reachedOverBoth(key)?.attrs.publicIp[family]
        if (to !== undefined) this.#engine.send?.(to, this.#kind.port, packet)
      },
    }
  }

  async #leave(): Promise<readonly OpenPath[]> {
    const engine = this.#engine
    await this.#kernelWay?.pause()
    const path = await (engine.lend ? engine.lend(this.#kind.sessionManager?.pause()) : engine.stop())
    return path ? [{ ...path, queueDrops: this.#queueDrops.lend() }] : []
  }

  #takeBack(): void {
    this.#queueDrops.takeBack()
    this.#engine.takeBack?.()
    this.#beginSessions()
    void this.#kernelWay?.resume()
  }

  async #end(): Promise<void> {
    const { kernel, persistence } = this.#parts
    const { tunName } = this.#engine
    this.#kind.sessionManager?.stop()
    await this.#kernelWay?.close()
    await this.#engine.stop()
    // Delete a persistent device, which would survive the engine. The device may already be gone, because its deletion
    // may have stopped the engine.
    if (persistence.persist) await removeAll(kernel, [{ kind: 'delete link', device: { name: tunName } }])
  }
}
