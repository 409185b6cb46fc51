// tunnel.ts - opens a tunnel that an engine of weft carries, for any encapsulation: a TUN device on one side, UDP
// sockets on the other.

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

/** The features of the engine that join received packets, each with its protocol. */
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

/** The parts of the data path that survive this process, and those that an earlier process left. */
export interface Persistence {
  /** True if the device must stay when the process ends, even if the process is killed. */
  readonly persist: boolean
  /** The names of the devices of the earlier process. */
  readonly tunNames: readonly string[]
  /** True if the engine opens several queues. A device has either one queue or several until it is deleted. */
  readonly isMultiQueue: boolean
  /**
   * Takes over the open path of the predecessor if it was opened with the same options; the predecessor then no longer
   * forwards. Otherwise it closes whatever the predecessor lent.
   */
  inherit(
    wanted: Pick<OpenPath, 'bindAddress' | 'port' | 'tunName'> & { readonly subnets: Nets },
  ): Promise<OpenPath | undefined>
}

interface TunnelKind {
  readonly encapsulation: EncapsulationName
  /** The families of inner packets. The tunnel carries those of which the node has a subnet. */
  readonly families: readonly Family[]
  readonly outer: Family
  /**
   * The family of datagrams to peers that do not answer over `outer`, or have no address of it; left out if all
   * datagrams have one family.
   */
  readonly other?: Family | undefined
  /** The underlay family in which this host has no address now. The tunnel is reopened when the host gets one. */
  readonly awaited?: Family | undefined
  /** The bytes that are added around an inner packet, with the longer of the possible outer IP headers. */
  readonly overhead: number
  /** The bytes that are added with an outer header of this family; defaults to `overhead`. */
  readonly overheadOf?: (outer: Family) => number
  /** The encapsulation's facts about this host, and about a peer; left out if it needs none. */
  readonly ownEnd?: Uint8Array
  readonly endOf?: (peer: Lease) => Uint8Array
  readonly tunName: string
  readonly port: number
  /** The longest packet that containers may send, in bytes. */
  readonly mtu: number
  /** The checks of peers that this backend adds to those of all backends. */
  readonly filter?: Pick<PeerFilterOptions, 'type' | 'alsoUnusable' | 'identity'>
  /** The scope of the route to the network; defaults to that of the device. */
  readonly scope?: 'link'
  /** Agrees with peers on keys; left out if the encapsulation has no keys. */
  readonly keeper?: SessionKeeper
  /** Checks, together with the device, what only the backend knows of. */
  readonly check?: () => Promise<void>
  /** Removes the device of another carrier that has this device's place, once no process runs that would repair it. */
  readonly clear?: () => Promise<void>
  /** True if packets to peers that are reached without a router bypass the tunnel. */
  readonly directRouting?: boolean
}

export interface SessionKeeper {
  /**
   * Continues the sessions of another keeper from the bytes that its `pause` returned. Returns false if they are
   * invalid or belong to other keys. Must be called first.
   */
  inherit(head: Uint8Array): boolean
  /**
   * Starts to work with a running engine, and with the sessions that this engine kept of the previous one, which has
   * ended.
   */
  begin(sessions: EngineSessions): void
  /** Stops all work until `begin`. Returns what another keeper needs to continue; it contains no secret key. */
  pause(): Uint8Array
  /** Handles the control messages and events of the engine; called when `takeMail` has something to return. */
  onMail(): void
  /** Sets the peers. Must be called before the engine gets their records. */
  setPeers(peers: ReadonlyMap<string, Lease>): void
  /**
   * The destination of a peer's datagrams: the address in its lease, or the address to which the peer has moved since.
   */
  endpointOf(peer: Lease): UdpEndpoint
  /** True if datagrams to this peer must leave from the port on which this host listens. */
  isFromKnownPort(peer: Lease): boolean
  /**
   * The state of the session with a peer, without the bytes that the engine counts; undefined for a peer without a key.
   */
  stateOf(peer: Lease): Omit<PeerSession, 'txBytes' | 'rxBytes'> | undefined
  unknownKeys(): readonly UnknownKey[]
  /** Sets the function that is called with the lease key of a peer whose destination has changed. */
  listen(moved: (key: string) => void): void
  stop(): void
}

/**
 * Returns the source of ICMP errors into the TUN: the network's own address, which no host has, or the address of the
 * next subnet if this node has the first one. It must not be an address of this host: the kernel refuses packets from
 * the TUN with a local IPv4 source, and reverse path filters drop those with a local IPv6 source.
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
    // Such a network works if each peer is on a link of this host, because the link's route has a longer prefix.
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
  /** The engine, and the carriers that are tried before it, in order. */
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
  const [bindAddress = '', otherAddress] = [...bound.values()].map(formatAddress)
  let counted = (_slot?: number): Float64Array => new Float64Array() // until the engine runs
  const slots = createTrafficSlots((slot) => counted(slot))
  const limits: { [F in Family]: ReadonlyMap<string, number> } = { ipv4: new Map(), ipv6: new Map() }
  /** The family chosen for each peer, by lease key, if it is not the first family of both hosts. */
  const chosen = new Map<string, Family>(kind.other ? overOther.map((key) => [key, kind.other as Family]) : [])
  /**
   * Returns the family of the datagrams to a peer. Peers have at least one usable address, because the filter skips
   * other leases.
   */
  function outerOf(peer: Lease): Family {
    if (kind.keeper) return familyOf(kind.keeper.endpointOf(peer).address)
    const can = reachedBy(peer, own, outers)
    return can.find((family) => family === chosen.get(peer.key)) ?? can[0] ?? kind.outer
  }
  const placeOf = (peer: Lease): UdpEndpoint =>
    kind.keeper?.endpointOf(peer) ?? { address: peer.attrs.publicIp[outerOf(peer)] ?? 0, port }
  /** The peer's address of the other family, from which its datagrams may also come. */
  function otherHostOf(peer: Lease): Address | undefined {
    const outer = outerOf(peer)
    const other = reachedBy(peer, own, outers).find((family) => family !== outer)
    return other && peer.attrs.publicIp[other]
  }
  /**
   * The minimum path MTU. For IPv6 it is 1280, because no ICMPv6 error can announce less: datagrams are fragmented
   * instead.
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
  /** The attributes that the node has published since its address changed. */
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
      isOneOfTwo: kind.families.length > 1,
      log,
    })
    // Loaded only if it is needed, because packets wait for the start.
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
  /** Runs `act` for each carried family. If only one family fails, its failure is logged and the other continues. */
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

  // A device with this backend's name does not count as foreign; it is checked when no other process forwards any more.
  await eachSide((side) => refuseRoute(side, (name) => isNamedBy(tunName, name)))
  const endTo = ({ family }: Side, peer: Lease): Peer => {
    const { address: endpoint, port: to } = placeOf(peer)
    const what = { slot: slots.slotOf(peer.key), limit: limits[family].get(peer.key) ?? 0 }
    const place = { subnet: sideOf(peer, family).subnet, endpoint, port: to, ...what }
    const other = outers.length > 1 ? { other: otherHostOf(peer) } : {}
    const by = kind.keeper?.isFromKnownPort(peer) ? { isFromKnownPort: true as const } : {}
    return { ...place, ...(endOf ? { encap: endOf(peer) } : {}), ...other, ...by }
  }
  const ends = (): Peer[] => sides.flatMap((side) => [...side.filter.peers().values()].map((peer) => endTo(side, peer)))
  const hasPeer = (key: string): boolean => sides.some(({ filter }) => filter.peers().has(key))
  const peerKeys = (of: readonly Side[] = sides): ReadonlySet<string> =>
    new Set(of.flatMap(({ filter }) => [...filter.peers().keys()]))
  /** Returns the records that differ, for the changes of each family. */
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
    // Removals come first, because the subnet of a removed peer may belong to another peer now.
    return [...gone.map((subnet): Peer => ({ subnet, endpoint: 0, port: 0, isGone: true })), ...came]
  }
  const updateKeeper = (): void => kind.keeper?.setPeers(new Map(sides.flatMap(({ filter }) => [...filter.peers()])))
  for (const { filter } of sides) filter.take(leases, lease.key)
  slots.keep(peerKeys())
  const inherited = await persistence.inherit({ tunName, bindAddress, port, subnets })
  // If a path was inherited, packets wait in it from here on.
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
    bindAddress,
    ...(otherAddress === undefined ? {} : { otherAddress }),
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
  // Without sockets of the other family, the choices of the earlier process have no effect, and no process would revise
  // them.
  if (!engine.hasOther)
    for (const key of Array.from(chosen.keys())) {
      chosen.delete(key)
      redirect(key)
    }
  kind.keeper?.listen(redirect)
  beginSessions() // may immediately report peers that moved while no process forwarded
  async function end(): Promise<void> {
    kind.keeper?.stop()
    await engine.stop()
    // A persistent device survives the engine and must be deleted, unless its deletion is what ended the engine.
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
    // With keys both hosts must agree on the family of their datagrams, so this node cannot continue with one family.
    if (kind.keeper && otherAddress !== undefined && !engine.hasOther)
      throw new WeftError('PORT_IN_USE', engine.notes.join('; '), {
        remedy: `see that nothing else has UDP port ${port} of either family (\`ss -ulnp sport = :${port}\`)`,
      })
    const others = FAMILIES.filter((each) => !sides.some(({ family }) => family === each))
    if (inherited) await removeFamilies(run, engine.tunName, others)
    await eachSide(configure)
  } catch (error) {
    // An existing device stays, because the predecessor may have taken it back.
    await (inherited || adopted !== undefined ? engine.stop() : end())
    throw error
  }
  const bindings = [...bound.values()].slice(0, engine.hasOther ? 2 : 1).map((address) => formatEndpoint(address, port))
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
  /** Adds a peer's session to its traffic. A peer has one session for all families. */
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
  /** Returns the means to choose between the two families of the underlay. */
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
        // The path MTU of one family is not valid for the other.
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
  async function bindOther({ address }: ExternalInterface): Promise<void> {
    const { other } = kind
    const local = other && address[other]
    if (!other || local === undefined || local === bound.get(other) || !engine.bindOther) return
    bound.set(other, local)
    await engine.bindOther(formatAddress(local)).catch((error: unknown) => {
      if (kind.keeper) reportFault(new Error(messageOf(error)))
      else log.warn(messageOf(error))
    })
    beginSessions() // a new engine may run now
  }
  /** Makes the engine follow the device's offload switches, which control the joining of received packets, and logs a change. */
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
      await bindOther(watch.now())
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
      // The engine knows every peer, also those with a direct route, because it accepts packets that they send through
      // the tunnel.
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
      // The engine reports a missing device as a fault.
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
    // With keys the keeper chooses the family, and unencrypted datagrams would reach no peer.
    ...(kind.other && engine.hasOther && !kind.keeper ? { underlays: underlaysWith(kind.outer, kind.other) } : {}),
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
