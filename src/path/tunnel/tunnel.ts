// tunnel.ts - opens a tunnel whose packets an engine of weft carries, for any encapsulation: the engine moves packets between a TUN device
// and UDP sockets.

import { describeError, messageOf, WeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import type { NetworkConfig } from '../../control/config/network-config.ts'
import { sideOf, type Lease, type LeaseAttrs, type OwnLease } from '../../control/lease/lease.ts'
import { addon } from '../../host/addon.ts'
import type { ExternalInterface } from '../../host/external-interface.ts'
import { findLink, isNamedBy } from '../../host/links.ts'
import {
  byFamily,
  FAMILIES,
  familiesOf,
  FAMILY_NAMES,
  familyOf,
  formatAddress,
  formatEndpoint,
  formatNet,
  isIpv4Net,
  netAround,
  netContains,
  netSize,
  netsOf,
  onlyOf,
  type Address,
  type Addresses,
  type Family,
  type Net,
  type Nets,
} from '../../net/address.ts'
import type { BackendType, Settings, TunnelSettings } from '../catalog.ts'
import type {
  BackendParts,
  DataPath,
  PathPeer,
  PathSearching,
  PathTraffic,
  PeerSession,
  Underlays,
  UnknownKey,
} from '../contract.ts'
import { watchExternal } from '../device/external-watch.ts'
import {
  adoptTun,
  checkMtu,
  createTunDevice,
  LEAST_MTU,
  refuseForeignRoute,
  refuseSharedTun,
  removeFamilies,
} from '../device/tun-device.ts'
import type { EncapsulationName } from '../engine/encapsulation.ts'
import type { Engine, EngineConfig, EngineSessions, OpenPath, PeerTraffic, UdpEndpoint } from '../engine/engine.ts'
import { encodePeers, type Peer } from '../engine/peers.ts'
import { createTrafficSlots } from '../engine/traffic.ts'
import { inTurn } from '../in-turn.ts'
import {
  createCarriers,
  type FallbackCarrier,
  type PeerChanges,
  type Carrier,
  type Carriers,
} from './choose-carrier.ts'
import { createPeerFilter, reachedBy, type PeerFilter, type PeerFilterOptions } from './peer-filter.ts'
import { createUnknownSenderLog } from './unknown-senders.ts'

/** The engine's features that coalesce received packets, each with the protocol's name for the log. */
const JOINING = [
  ['coalesce-tcp', 'TCP'],
  ['coalesce-udp', 'UDP'],
] as const

type TunnelBackend = { [T in BackendType]: Settings<T> extends { tunnel: TunnelSettings } ? T : never }[BackendType]

export interface TunnelOptions<T extends TunnelBackend = TunnelBackend> extends BackendParts<T> {
  readonly startEngine: (config: EngineConfig) => Promise<Engine>
  readonly persistence: Persistence
}

interface TunnelParts extends Omit<TunnelOptions, 'settings'> {
  readonly settings: { readonly tunnel: TunnelSettings }
}

/** The devices and queues that survive a restart of the daemon: those of an earlier process, and those that this process will leave. */
export interface Persistence {
  /** True if the TUN device must stay when this process ends, even if it is killed. */
  readonly persist: boolean
  /** The names of the TUN devices that the earlier process had. */
  readonly tunNames: readonly string[]
  /** True if the engine opens several TUN queues. An existing device cannot change between one queue and several. */
  readonly isMultiQueue: boolean
  /**
   * Takes over the predecessor's open descriptors if they were opened with the same options; the predecessor then no longer forwards. If
   * the options differ, it closes the descriptors that the predecessor passed and returns undefined.
   */
  inherit(
    wanted: Pick<OpenPath, 'bindAddresses' | 'port' | 'tunName'> & { readonly subnets: Nets },
  ): Promise<OpenPath | undefined>
}

interface TunnelKind {
  readonly encapsulation: EncapsulationName
  /** The families of inner packets that the tunnel can carry. It carries those in which the node has a subnet. */
  readonly families: readonly Family[]
  readonly outer: Family
  /**
   * The outer family for peers that do not answer over the family `outer` or have no address in it; left out if all datagrams use one
   * family.
   */
  readonly other?: Family | undefined
  /** The outer family in which this host has no address yet. When the host gets an address in it, the data path is opened again. */
  readonly awaited?: Family | undefined
  /** The number of bytes that the encapsulation adds to an inner packet, with the longest outer header that the tunnel may use. */
  readonly overhead: number
  /** Returns the number of bytes that the encapsulation adds with an outer header of this family; defaults to `overhead`. */
  readonly overheadOf?: (outer: Family) => number
  /**
   * The encapsulation's data about this host (`ownEnd`), such as its MAC, and about a peer (`endOf`); left out if the encapsulation needs
   * none.
   */
  readonly ownEnd?: Uint8Array
  readonly endOf?: (peer: Lease) => Uint8Array
  readonly tunName: string
  readonly port: number
  /** The longest packet in bytes that containers may send. */
  readonly mtu: number
  /** The backend's own checks of peers' leases, in addition to those that all backends share. */
  readonly filter?: Pick<PeerFilterOptions, 'type' | 'alsoUnusable' | 'identity'>
  /** The scope of the kernel's route to the network; left out if the device's default scope is right. */
  readonly scope?: 'link'
  /** Negotiates keys with peers; left out if the encapsulation has no keys. */
  readonly keeper?: SessionKeeper
  /** Checks objects that only the backend knows. It is called with each check of the device. */
  readonly check?: () => Promise<void>
  /**
   * Removes a device of the kernel that carried the packets under the name of the TUN device. It is called only when no other process
   * forwards, because that process would create the device again.
   */
  readonly clear?: () => Promise<void>
  /** True if packets to peers on the same link use a route to the peer's host instead of the tunnel. */
  readonly directRouting?: boolean
}

export interface SessionKeeper {
  /**
   * Continues the sessions of the predecessor's keeper from the bytes that its `pause` returned. Returns false if the bytes are invalid or
   * were made with other keys. It must be called before all other functions.
   */
  inherit(head: Uint8Array): boolean
  /** Starts to work with a running engine, including the sessions that the engine kept from the engine before it. */
  begin(sessions: EngineSessions): void
  /** Stops all work until `begin` is called. Returns the state, without secret keys, from which another keeper can continue. */
  pause(): Uint8Array
  /** Handles the engine's control messages and events. It is called when the engine's `takeMail` has something to return. */
  onMail(): void
  /** Sets the peers. It must be called before the engine gets the peers' records, which contain the session numbers. */
  setPeers(peers: ReadonlyMap<string, Lease>): void
  /**
   * Returns the destination of datagrams to a peer: the address in the peer's lease, or a newer address from which the peer has sent
   * authentic packets.
   */
  endpointOf(peer: Lease): UdpEndpoint
  /**
   * True if datagrams to this peer must leave from the port on which this host listens, because the peer replies to the port from which it
   * received a datagram.
   */
  isFromKnownPort(peer: Lease): boolean
  /** Returns the state of the session with a peer, without the byte counts, which the engine has; undefined for a peer without a key. */
  stateOf(peer: Lease): Omit<PeerSession, 'txBytes' | 'rxBytes'> | undefined
  unknownKeys(): readonly UnknownKey[]
  /** Sets the function that is called with a peer's lease key when the destination of its datagrams has changed. */
  listen(moved: (key: string) => void): void
  stop(): void
}

/**
 * Returns the source address of ICMP errors that the engine writes into the TUN. It is the network's own address, which no host has; if
 * this node has the first subnet, it is the first address of the next subnet. It must not be an address of this host: the kernel refuses
 * packets from the TUN with a local IPv4 source, and reverse path filters drop those with a local IPv6 source.
 */
function networkAddressFor(network: Net, subnet: Net): Address {
  if (network.address !== subnet.address) return network.address
  return isIpv4Net(subnet) ? subnet.address + Number(netSize(subnet)) : subnet.address + netSize(subnet)
}

export function checkNetwork(config: NetworkConfig, own: Addresses, log: Log): void {
  for (const family of familiesOf(config)) {
    const [range, address] = [config[family], own[family]]
    if (!range || address === undefined || !netContains(range.network, address)) continue
    const last = netAround(range.subnetMax, range.subnetLength)
    const mayLease = address >= range.subnetMin && (address < range.subnetMax || netContains(last, address))
    // A network that contains this node's own address works only if all peers are on links of this host, because a link's route has a
    // longer prefix than the network's route.
    log.warn(
      `the network ${formatNet(range.network)} contains this node's own address ${formatAddress(address)}` +
        `${mayLease ? ', and may lease it to containers' : ''}: datagrams to peers behind a router go into the tunnel; ` +
        'choose a Network that overlaps no network of the hosts',
    )
  }
}

interface Side {
  readonly family: Family
  readonly network: Net
  readonly subnet: Net
  readonly filter: PeerFilter
  readonly carriers: Carriers
  /** The carriers of this family: `through` is the engine's tunnel, which is tried last; `earlier` are those tried before it. */
  readonly through: FallbackCarrier
  readonly earlier: readonly Carrier[]
}

export async function openTunnel(
  { config, settings: { tunnel: settings }, external, startEngine, persistence, run, log }: TunnelParts,
  { encapsulation, overhead, overheadOf = () => overhead, ownEnd, endOf, tunName, port, mtu, ...kind }: TunnelKind,
  lease: OwnLease,
  leases: ReadonlyMap<string, Lease>,
  overOther: readonly string[] = [],
): Promise<DataPath> {
  const { persist, isMultiQueue } = persistence
  const outers = [kind.outer, kind.other].filter((family) => family !== undefined)
  const bound = new Map(
    outers.map((family) => {
      const local = external.address[family]
      if (local === undefined) throw new Error(`the external interface has no address of ${FAMILY_NAMES[family]}`)
      return [family, local] as const
    }),
  )
  const bindAddresses = [...bound.values()].map(formatAddress)
  let counted = (_slot?: number): Float64Array => new Float64Array() // until the engine runs
  const slots = createTrafficSlots((slot) => counted(slot))
  const limits: { [F in Family]: ReadonlyMap<string, number> } = { ipv4: new Map(), ipv6: new Map() }
  /** The outer family for each peer, by lease key, if it is not the first family in which both hosts have an address. */
  const chosen = new Map<string, Family>(kind.other ? overOther.map((key) => [key, kind.other as Family]) : [])
  /**
   * Returns the outer family of datagrams to a peer. Each peer has a usable address in at least one family, because the filter skips other
   * leases.
   */
  function outerOf(peer: Lease): Family {
    if (kind.keeper) return familyOf(kind.keeper.endpointOf(peer).address)
    const can = reachedBy(peer, own, outers)
    return can.find((family) => family === chosen.get(peer.key)) ?? can[0] ?? kind.outer
  }
  const placeOf = (peer: Lease): UdpEndpoint =>
    kind.keeper?.endpointOf(peer) ?? { address: peer.attrs.publicIp[outerOf(peer)] ?? 0, port }
  /**
   * Returns the addresses of a peer's host, from which its datagrams may come, in each outer family in which this host reaches it. `place`
   * is the destination of datagrams to the peer, which may differ from the address in the lease.
   */
  function hostsOf(peer: Lease, place: Address): Addresses {
    const reached = reachedBy(peer, own, outers).filter((family) => family !== familyOf(place))
    return byFamily([place, ...reached.flatMap((family) => peer.attrs.publicIp[family] ?? [])])
  }
  /**
   * Returns the smallest path MTU in bytes that counts for inner packets of a family. It is 1280 for IPv6, because hosts ignore smaller
   * values in ICMPv6 errors; if the path takes less, the kernel fragments the datagrams.
   */
  const least = (family: Family): number => (family === 'ipv6' ? Math.min(LEAST_MTU, mtu) : 0)
  const known = (peer: Lease, family: Family): number => {
    const outer = outerOf(peer)
    const bytes =
      addon.pathMtu(formatAddress(bound.get(outer) ?? 0), formatAddress(placeOf(peer).address)) - overheadOf(outer)
    return bytes > 0 && bytes < mtu ? Math.max(bytes, least(family)) : mtu
  }
  const throughTo = (family: Family): FallbackCarrier => ({
    name: 'tunnel',
    endpointOf(peer) {
      const place = placeOf(peer)
      return formatEndpoint(place.address, place.port)
    },
    traffic: () => slots.read(),
    pathMtu(peer) {
      const found = Math.max(limits[family].get(peer.key) ?? mtu, least(family))
      const bytes = Math.min(known(peer, family), found)
      return bytes < mtu ? bytes : undefined
    },
  })
  /** The attributes that the node publishes since an address of the host changed; undefined if none has changed. */
  let renewed: LeaseAttrs | undefined
  const own: OwnLease = {
    ...lease,
    get attrs() {
      return renewed ?? lease.attrs
    },
  }
  const sides: Side[] = []
  for (const family of kind.families) {
    const [network, subnet] = [config[family]?.network, lease.subnet[family]]
    if (!network || !subnet) continue
    const filter = createPeerFilter<Net>({
      ...kind.filter,
      lease: own,
      network,
      outers,
      // A device may carry one family of a dual-stack network.
      isOneOfTwo: familiesOf(config).length > 1,
      log,
    })
    // The module is imported only if needed, because packets wait until the tunnel is open and the import takes time.
    const direct = kind.directRouting ? await import('./direct-routing.ts') : undefined
    const earlier = direct ? [direct.createDirectCarrier({ network, run, log })] : []
    const through = throughTo(family)
    const carriers = createCarriers(family, earlier, through, () => filter.peers())
    sides.push({ family, network, subnet, filter, carriers, through, earlier })
  }
  const sideFor = (family: Family): Side | undefined => sides.find((side) => side.family === family)
  const networks = netsOf(sides.map(({ network }) => network))
  const subnets = netsOf(sides.map(({ subnet }) => subnet))

  const calm = seldom(log)
  const lacking: { [F in Family]?: string } = {}
  const carried = (): readonly Side[] => sides.filter(({ family }) => lacking[family] === undefined)
  function lack(family: Family, error: unknown): void {
    lacking[family] = messageOf(error)
    calm.error(`Cannot carry ${FAMILY_NAMES[family]}, trying again: ${describeError(error)}`)
  }
  /**
   * Runs `act` for each carried family. If only some families fail, their failures are logged and the others continue; if all fail,
   * rejects.
   */
  async function eachSide(act: (side: Side) => Promise<void>): Promise<void> {
    const all = carried()
    const done = await Promise.allSettled(all.map(act))
    const failures = all.flatMap(({ family }, at) => {
      const result = done[at]
      return result?.status === 'rejected' ? [[family, result.reason as unknown] as const] : []
    })
    const [first] = failures
    if (first && failures.length === all.length) throw first[1]
    for (const [family, error] of failures) lack(family, error)
  }
  async function refuseRoute({ family, network }: Side, isOwn: (device: string) => boolean): Promise<void> {
    checkMtu(family, mtu, external.name)
    await refuseForeignRoute(run, network, isOwn)
  }

  // The route of a device with this backend's name is accepted here, because another process may still forward with that device. It is
  // checked later, when no other process forwards.
  await eachSide((side) => refuseRoute(side, (name) => isNamedBy(tunName, name)))
  const endTo = ({ family }: Side, peer: Lease): Peer => {
    const { address, port: to } = placeOf(peer)
    const what = { slot: slots.slotOf(peer.key), limit: limits[family].get(peer.key) ?? 0 }
    const hosts = { hosts: hostsOf(peer, address), outer: familyOf(address), port: to }
    const by = kind.keeper?.isFromKnownPort(peer) ? { isFromKnownPort: true as const } : {}
    return { subnet: sideOf(peer, family).subnet, ...hosts, ...what, ...(endOf ? { encap: endOf(peer) } : {}), ...by }
  }
  const ends = (): Peer[] => sides.flatMap((side) => [...side.filter.peers().values()].map((peer) => endTo(side, peer)))
  const hasPeer = (key: string): boolean => sides.some(({ filter }) => filter.peers().has(key))
  const peerKeys = (of: readonly Side[] = sides): ReadonlySet<string> =>
    new Set(of.flatMap(({ filter }) => [...filter.peers().keys()]))
  /** Updates the slots for these changes of each family's peers, and returns the records of the changed peers. */
  const changedEnds = (changes: readonly (readonly [Side, PeerChanges])[]): Peer[] => {
    const keys = new Set(changes.flatMap(([, changed]) => [...changed.keys()]))
    for (const key of keys) {
      if (hasPeer(key)) continue
      slots.remove(key)
      chosen.delete(key)
    }
    for (const key of keys) if (hasPeer(key)) slots.add(key)
    const gone = changes.flatMap(([{ family, filter }, changed]) =>
      [...changed].flatMap(([key, before]) =>
        before && !filter.peers().has(key) ? sideOf(before, family).subnet : [],
      ),
    )
    const came = changes.flatMap(([side, changed]) =>
      [...changed.keys()].flatMap((key) => {
        const peer = side.filter.peers().get(key)
        return peer ? endTo(side, peer) : []
      }),
    )
    // Removals come first, because a removed peer's subnet may now belong to another peer.
    return [...gone.map((subnet): Peer => ({ subnet, hosts: {}, outer: 'ipv4', port: 0, isGone: true })), ...came]
  }
  const updateKeeper = (): void => kind.keeper?.setPeers(new Map(sides.flatMap(({ filter }) => [...filter.peers()])))
  for (const { filter } of sides) filter.take(leases, lease.key)
  slots.keep(peerKeys())
  const inherited = await persistence.inherit({ tunName, bindAddresses, port, subnets })
  // If descriptors were inherited, no process forwards from here on, and packets wait in the descriptors until the engine runs.
  const head = inherited?.handoverState === undefined ? undefined : addon.handoverHead(inherited.handoverState)
  const keepsSessions = head && kind.keeper?.inherit(head)
  updateKeeper()
  let adopted: string | undefined
  if (!inherited) {
    await kind.clear?.()
    adopted = await adoptTun(run, { name: tunName, last: persistence.tunNames, networks, subnets, isMultiQueue })
    await eachSide((side) => refuseRoute(side, (name) => name === adopted))
    if (adopted === undefined) await refuseSharedTun(run, tunName)
  }
  const engine = await startEngine({
    encapsulation,
    ...(ownEnd ? { ownEnd } : {}),
    tunName: adopted ?? tunName,
    inherited,
    keepsSessions,
    persistent: persist,
    ...(kind.keeper ? { onMail: () => kind.keeper?.onMail() } : {}),
    peers: () => encodePeers(ends()),
    bindAddresses,
    port,
    mtu,
    tunAddress: byFamily(sides.map(({ subnet }) => subnet.address)),
    networkAddress: byFamily(sides.map(({ network, subnet }) => networkAddressFor(network, subnet))),
    settings,
    network: networks,
    subnet: subnets,
  })
  counted = (slot) => engine.traffic(slot)
  const beginSessions = (): void => {
    if (engine.sessions) kind.keeper?.begin(engine.sessions)
  }
  const unknownSenders = createUnknownSenderLog(
    { ...settings, network: networks, subnet: subnets, provesSender: kind.keeper !== undefined },
    log,
  )
  unknownSenders.setPeers(ends)
  function redirect(key: string): void {
    const its = sides.flatMap((side) => {
      const peer = side.filter.peers().get(key)
      return peer ? [endTo(side, peer)] : []
    })
    engine.changePeers(encodePeers(its))
    unknownSenders.changePeers(its)
  }
  // Without sockets of the second outer family, the peers for which the earlier process chose that family would be unreachable. So all
  // peers return to the first family.
  const hasSecond = engine.outers.length > 1
  if (!hasSecond)
    for (const key of Array.from(chosen.keys())) {
      chosen.delete(key)
      redirect(key)
    }
  kind.keeper?.listen(redirect)
  beginSessions() // may immediately report peers that moved while no process forwarded
  async function end(): Promise<void> {
    kind.keeper?.stop()
    await engine.stop()
    // A persistent device survives the engine and must be deleted here, unless the engine stopped because the device was deleted.
    if (persist && (await findLink(run, engine.tunName))) await run('ip', ['link', 'del', 'dev', engine.tunName])
  }
  function takeBack(): void {
    engine.takeBack?.()
    beginSessions()
  }
  async function leave(): Promise<readonly OpenPath[]> {
    const path = await (engine.lend ? engine.lend(kind.keeper?.pause()) : engine.stop())
    return path ? [path] : []
  }
  const scope = kind.scope ? { scope: kind.scope } : {}
  const devices = new Map(
    sides.map(({ family, network, subnet, earlier }) => {
      const isOwnRoute = (destination: string): boolean => earlier.some((carrier) => carrier.hasRoute?.(destination))
      return [
        family,
        createTunDevice({ name: engine.tunName, network, subnet, mtu, run, log, isOwnRoute, ...scope }),
      ] as const
    }),
  )
  const configure = async ({ family }: Side): Promise<void> => devices.get(family)?.configure()
  let reportFault!: (reason: Error) => void
  const ended = new Promise<Error>((resolve) => (reportFault = resolve))
  try {
    // With encryption both hosts must agree on the outer family of their datagrams, so the tunnel cannot continue with only one family.
    if (kind.keeper && bindAddresses.length > 1 && !hasSecond)
      throw new WeftError('PORT_IN_USE', engine.notes.join('; '), {
        remedy: `see that nothing else has UDP port ${port} of either family (\`ss -ulnp sport = :${port}\`)`,
      })
    const others = FAMILIES.filter((each) => !sides.some(({ family }) => family === each))
    if (inherited) await removeFamilies(run, engine.tunName, others)
    await eachSide(configure)
  } catch (error) {
    // A device that existed before stays, because the predecessor may have taken it back; a new device is deleted.
    await (inherited || adopted !== undefined ? engine.stop() : end())
    throw error
  }
  const bindings = [...bound.values()].slice(0, engine.outers.length).map((address) => formatEndpoint(address, port))
  for (const note of engine.notes) log.warn(note)
  if (log.v(1)) for (const detail of engine.details) log.info(detail)
  log.info(
    `Forwarding between ${engine.tunName} and UDP ${bindings.join(' and ')} with the ${engine.kind} engine` +
      (engine.offloads.length > 0 ? `: ${engine.offloads.join(', ')}` : ''),
  )
  const awaited = kind.awaited === undefined ? [] : [kind.awaited]
  const watch = watchExternal(run, external, [kind.outer, ...awaited], kind.directRouting === true)
  const pathPeer = (key: string): PathPeer | undefined => {
    const its = carried().flatMap(({ family, filter, carriers }) => {
      const peer = filter.peers().get(key)
      return peer ? [[family, carriers.side(peer)] as const] : []
    })
    return its.length > 0 ? { key, ...Object.fromEntries(its) } : undefined
  }
  /**
   * Adds the session's state to a peer's traffic, under each inner family. A peer has one session, whose byte counts are those of the
   * traffic.
   */
  function withSessions([key, traffic]: readonly [string, PeerTraffic]): readonly [string, PathTraffic] {
    const { txBytes, rxBytes } = traffic
    const its = sides.flatMap(({ family, filter }) => {
      const peer = filter.peers().get(key)
      const state = peer && kind.keeper?.stateOf(peer)
      return state ? [[family, { ...state, txBytes, rxBytes }] as const] : []
    })
    return [key, its.length > 0 ? { ...traffic, sessions: Object.fromEntries(its) } : traffic]
  }
  const pathSearch: PathSearching = {
    overhead,
    knownMtu(key, family) {
      const { filter, carriers, through } = sideFor(family) ?? {}
      const peer = filter?.peers().get(key)
      return peer && carriers?.of(peer) === through ? known(peer, family) : undefined
    },
    ...(settings.probePathMtu ? { limit } : {}),
  }
  /** Returns the functions that choose between the two families of the underlay for each peer. */
  function underlaysWith(first: Family, other: Family): Underlays {
    const bothOf = (key: string): Lease | undefined => {
      const peer = sides.flatMap(({ filter }) => filter.peers().get(key) ?? [])[0]
      return peer && reachedBy(peer, own, outers).length > 1 ? peer : undefined
    }
    return {
      first,
      other,
      others: () => [...chosen.keys()],
      has: (key) => bothOf(key) !== undefined,
      choose(key, family) {
        if (family === first) chosen.delete(key)
        else chosen.set(key, family)
        // Removes the limits of the peer's packets, because they were found over the earlier outer family, and the path of the new family
        // may differ.
        for (const { family: inner } of sides)
          limits[inner] = new Map([...limits[inner]].filter(([each]) => each !== key))
        redirect(key)
      },
      send(key, family, packet) {
        const to = bothOf(key)?.attrs.publicIp[family]
        if (to !== undefined) engine.send?.(to, port, packet)
      },
    }
  }
  /** Binds the sockets of the second outer family to the host's present address. */
  async function rebind({ address }: ExternalInterface): Promise<void> {
    const { other } = kind
    const local = other && address[other]
    if (!other || local === undefined || local === bound.get(other) || !engine.rebind) return
    bound.set(other, local)
    await engine.rebind(formatAddress(local)).catch((error: unknown) => {
      if (kind.keeper) reportFault(new Error(messageOf(error)))
      else log.warn(messageOf(error))
    })
    beginSessions() // a new engine may run now
  }
  /** Makes the engine read the device's offload settings, which control if received packets are coalesced, and logs a change. */
  function followSwitches(): void {
    const before = engine.offloads
    engine.followSwitches?.()
    const after = engine.offloads
    for (const [feature, what] of JOINING) {
      if (before.includes(feature) === after.includes(feature)) continue
      const joined = after.includes(feature) ? 'joined' : 'no longer joined'
      log.info(`Received ${what} packets are ${joined} for ${engine.tunName}: see \`ethtool -k ${engine.tunName}\``)
    }
  }
  function limit(bytes: ReadonlyMap<string, number>, family: Family): void {
    const before = limits[family]
    limits[family] = bytes
    const differ = new Set([...before.keys(), ...bytes.keys()])
    const changed = [...differ].filter((key) => before.get(key) !== bytes.get(key))
    const side = sideFor(family)
    const peers = changed.flatMap((key) => side?.filter.peers().get(key) ?? [])
    if (side) engine.changePeers(encodePeers(peers.map((peer) => endTo(side, peer))))
  }
  return inTurn({
    mtu,
    tunNames: [engine.tunName],
    fault: Promise.race([engine.fault, watch.moved, ended]),
    lacking,
    get isOutdated() {
      return carried().length < sides.length || watch.news !== undefined
    },
    async renew(attrs) {
      renewed = attrs
      if (watch.news !== undefined) log.info(`Publishing a change to the peers: ${watch.news}`)
      watch.markPublished()
      await rebind(watch.now())
      for (const side of sides) {
        if (lacking[side.family] === undefined) continue
        try {
          await refuseRoute(side, (name) => name === engine.tunName)
          await configure(side)
          delete lacking[side.family]
          log.info(`${FAMILY_NAMES[side.family]} is carried again`)
        } catch (error) {
          lack(side.family, error)
        }
      }
    },
    async apply(all, ownKey, touched) {
      const changes = sides.map((side) => [side, side.filter.take(all, ownKey, touched)] as const)
      updateKeeper()
      const differing = changes.flatMap(([side, changed]) => (changed ? [[side, changed] as const] : []))
      // The engine gets every peer, even one with a direct route, because it must accept packets that this peer sends through the tunnel.
      if (differing.length === changes.length) {
        const differ = changedEnds(differing)
        engine.changePeers(encodePeers(differ))
        unknownSenders.changePeers(differ)
      } else {
        slots.keep(peerKeys())
        for (const key of chosen.keys()) if (!hasPeer(key)) chosen.delete(key)
        engine.setPeers(encodePeers(ends()))
        unknownSenders.setPeers(ends)
      }
      for (const [{ carriers }, changed] of changes) await carriers.apply(changed)
    },
    async resync() {
      if (await watch.hasMoved()) return []
      await kind.check?.()
      followSwitches()
      const repaired: string[] = []
      // A missing device is not repaired here, because the engine reports it as a fault.
      await eachSide(async ({ family, carriers }) => {
        for (const each of [devices.get(family), carriers]) repaired.push(...((await each?.resync()) ?? []))
      })
      return repaired
    },
    gone: () => onlyOf([kind.outer, ...awaited], watch.gone()),
    carrier: () => ({ device: engine.tunName, engine: engine.kind, features: engine.offloads }),
    probeSource: byFamily(sides.map(({ subnet }) => subnet.address)),
    families: sides.map(({ family }) => family),
    peers: () => [...peerKeys(carried())].flatMap((key) => pathPeer(key) ?? []),
    peer: pathPeer,
    traffic: async () => new Map(sides.flatMap(({ carriers }) => [...carriers.traffic()].map(withSessions))),
    ...(kind.keeper ? { unknownKeys: () => kind.keeper?.unknownKeys() ?? [] } : {}),
    pathMtu({ key }, family) {
      const { filter, carriers } = sideFor(family) ?? {}
      const peer = filter?.peers().get(key)
      return peer && carriers?.pathMtu(peer)
    },
    pathSearch,
    // With encryption the keeper chooses the outer family, and the probes of the choice, which are sent unencrypted, would not be accepted.
    ...(kind.other && hasSecond && !kind.keeper ? { underlays: underlaysWith(kind.outer, kind.other) } : {}),
    counters: () => ({
      ...engine.counters(),
      peers_unusable: BigInt(sides.reduce((sum, { filter }) => sum + filter.skipped(), 0)),
    }),
    drops: (after) => engine.drops(after),
    threads: () => engine.threads(),
    look: () => unknownSenders.report(engine.takeUnknownSenders()),
    ...(persist ? { leave } : {}),
    ...(engine.takeBack ? { takeBack: async () => takeBack() } : {}),
    close: end,
  })
}
