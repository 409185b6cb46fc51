// tunnel.ts - a tunnel that the engine carries: a TUN device on one side, UDP sockets on the other, for each encapsulation.

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
import { createWays, type LastWay, type PeerChanges, type Way, type Ways } from './choose-carrier.ts'
import { createPeerFilter, reachedBy, type PeerFilter, type PeerFilterOptions } from './peer-filter.ts'
import { createStrangerLog } from './unknown-senders.ts'

/** The features of the engine that join received packets, each with its protocol. */
const JOINING = [
  ['coalesce-tcp', 'TCP'],
  ['coalesce-udp', 'UDP'],
] as const

/** Backends that have settings of a tunnel. */
type TunnelBackend = { [T in BackendType]: Settings<T> extends { tunnel: TunnelSettings } ? T : never }[BackendType]

export interface TunnelOptions<T extends TunnelBackend = TunnelBackend> extends BackendParts<T> {
  readonly startEngine: (config: EngineConfig) => Promise<Engine>
  readonly persistence: Persistence
}

/** The parts that a tunnel is made of, whichever backend's. */
interface TunnelParts extends Omit<TunnelOptions, 'settings'> {
  readonly settings: { readonly tunnel: TunnelSettings }
}

/** The data path's life beyond this process: what is to outlive it, and what another one left. */
export interface Persistence {
  /** True when the device is to stay when the process ends, however it ends. */
  readonly persist: boolean
  /** The devices of the daemon before. */
  readonly tunNames: readonly string[]
  /** True when the engine opens several queues, which a device has or has not for all its life. */
  readonly isMultiQueue: boolean
  /**
   * Takes the path of the daemon before, if it was opened for the same: that daemon forwards no more then. If it was
   * not, what it held is free.
   */
  inherit(
    wanted: Pick<OpenPath, 'bindAddress' | 'port' | 'tunName'> & { readonly subnets: Nets },
  ): Promise<OpenPath | undefined>
}

/** The properties in which one tunnel differs from others. */
interface TunnelKind {
  readonly encapsulation: EncapsulationName
  /** The families that it carries, as far as the node has subnets of them. */
  readonly families: readonly Family[]
  /** The family of its datagrams. */
  readonly outer: Family
  /** Their family to peers that do not answer by that one, or have no address of it; none where all are of one. */
  readonly other?: Family | undefined
  /** The underlay family in which this host has no address now. The tunnel is reopened when the host gets one. */
  readonly awaited?: Family | undefined
  /** The bytes that stand around an inner packet, with the longer of the outer IP headers that there may be. */
  readonly overhead: number
  /** The same with the header of a family; `overhead` where it is left out. */
  readonly overheadOf?: (outer: Family) => number
  /** The encapsulation's facts about this host, and about a peer; none when left out. */
  readonly ownEnd?: Uint8Array
  readonly endOf?: (peer: Lease) => Uint8Array
  /** The name of the TUN, or a pattern such as `flannel%d`. */
  readonly tunName: string
  /** UDP, of all hosts. */
  readonly port: number
  /** The longest packet that containers may send, in bytes. */
  readonly mtu: number
  /** The filter of peers beside what all backends ask. */
  readonly filter?: Pick<PeerFilterOptions, 'type' | 'alsoUnusable' | 'identity'>
  /** The scope of the route to the network, as the device's. */
  readonly scope?: 'link'
  /** Of an encapsulation with keys: who agrees on them with peers. */
  readonly keeper?: SessionKeeper
  /** Looks at what the backend alone knows of, whenever the device is looked at. */
  readonly look?: () => Promise<void>
  /** Removes what a backend of another kind may have in this one's place, once nobody runs that would mend it. */
  readonly clear?: () => Promise<void>
  /** True when peers that are reached without a router are routed to outside the tunnel. */
  readonly directRouting?: boolean
}

/** Agrees with peers on the keys of their sessions. */
export interface SessionKeeper {
  /** Goes on as another keeper did, by what its `pause` gave; false for what is none, or of other keys. Before all else. */
  inherit(head: Uint8Array): boolean
  /** Takes over the sessions of an engine that runs, as far as it kept some of the one before, which has ended. */
  begin(sessions: EngineSessions): void
  /** Does nothing until `begin`; what another one goes on by, which tells no key. */
  pause(): Uint8Array
  /** The engine has mail. */
  onMail(): void
  /** Takes over who the peers are; before the engine has their records. */
  setPeers(peers: ReadonlyMap<string, Lease>): void
  /** Where a peer's datagrams go: as its lease says, or where it has moved since. */
  endpointOf(peer: Lease): UdpEndpoint
  /** True where what is sent to a peer must leave from the port that this host listens on. */
  isFromKnownPort(peer: Lease): boolean
  /** What there is of the keys with a peer, but for what the engine counts; undefined of one that has no key. */
  stateOf(peer: Lease): Omit<PeerSession, 'txBytes' | 'rxBytes'> | undefined
  unknownKeys(): readonly UnknownKey[]
  /** `moved` is told of a peer, by its lease's key, that is to be sent to elsewhere. */
  listen(moved: (key: string) => void): void
  stop(): void
}

/**
 * The source of ICMP errors into the TUN: the network's own address, which no host has; the next subnet's where ours is
 * the first. The kernel refuses a packet from the TUN with an IPv4 address of this host, whoever made it, and must go on to
 * do so; of IPv6 filters of reverse paths do.
 */
function networkAddressFor(network: Net, subnet: Net): Address {
  if (network.address !== subnet.address) return network.address
  return isIpv4Net(subnet) ? subnet.address + Number(netSize(subnet)) : subnet.address + netSize(subnet)
}

/** Warns of a network that has this host's own address. */
export function checkNetwork(config: NetworkConfig, own: Addresses, log: Log): void {
  for (const family of familiesOf(config)) {
    const [range, address] = [config[family], own[family]]
    if (!range || address === undefined || !netContains(range.network, address)) continue
    const last = netAround(range.subnetMax, range.subnetLength)
    const mayLease = address >= range.subnetMin && (address < range.subnetMax || netContains(last, address))
    // Works as long as every peer is on a network that this host is on, since that route is longer.
    log.warn(
      `the network ${formatNet(range.network)} contains this node's own address ${formatAddress(address)}` +
        `${mayLease ? ', and may lease it to containers' : ''}: datagrams to peers behind a router go into the tunnel; ` +
        'choose a Network that overlaps no network of the hosts',
    )
  }
}

/** A family that a tunnel carries. */
interface Side {
  readonly family: Family
  readonly network: Net
  readonly subnet: Net
  readonly filter: PeerFilter
  readonly ways: Ways
  /** The engine's way, and those before it, in order. */
  readonly through: LastWay
  readonly beside: readonly Way[]
}

export async function openTunnel(
  { config, settings: { tunnel: settings }, external, startEngine, persistence, run, log }: TunnelParts,
  { encapsulation, overhead, overheadOf = () => overhead, ownEnd, endOf, tunName, port, mtu, ...kind }: TunnelKind,
  lease: OwnLease,
  leases: ReadonlyMap<string, Lease>,
  byOther: readonly string[] = [],
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
  let counted = (_slot?: number): Float64Array => new Float64Array() // of the engine that is not there yet
  const slots = createTrafficSlots((slot) => counted(slot))
  const limits: { [F in Family]: ReadonlyMap<string, number> } = { ipv4: new Map(), ipv6: new Map() }
  /** The families that were chosen for peers, where they are not the first that both have, by lease key. */
  const chosen = new Map<string, Family>(kind.other ? byOther.map((key) => [key, kind.other as Family]) : [])
  /** The family of the datagrams to a peer. A filter passes over a lease without an address by which its node is reached. */
  function outerOf(peer: Lease): Family {
    if (kind.keeper) return familyOf(kind.keeper.endpointOf(peer).address)
    const can = reachedBy(peer, own, outers)
    return can.find((family) => family === chosen.get(peer.key)) ?? can[0] ?? kind.outer
  }
  const placeOf = (peer: Lease): UdpEndpoint =>
    kind.keeper?.endpointOf(peer) ?? { address: peer.attrs.publicIp[outerOf(peer)] ?? 0, port }
  /** The address that a peer's datagrams may come from besides. */
  function otherHostOf(peer: Lease): Address | undefined {
    const outer = outerOf(peer)
    const other = reachedBy(peer, own, outers).find((family) => family !== outer)
    return other && peer.attrs.publicIp[other]
  }
  /** No sender of IPv6 can be told to send less: its packets are fragmented on their way then. */
  const least = (family: Family): number => (family === 'ipv6' ? Math.min(LEAST_MTU, mtu) : 0)
  const known = (peer: Lease, family: Family): number => {
    const outer = outerOf(peer)
    const bytes =
      addon.pathMtu(formatAddress(bound.get(outer) ?? 0), formatAddress(placeOf(peer).address)) - overheadOf(outer)
    return bytes > 0 && bytes < mtu ? Math.max(bytes, least(family)) : mtu
  }
  const throughTo = (family: Family): LastWay => ({
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
  /** What the node publishes since it moved. */
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
    // Loaded by those alone that ask for it: packets wait for a start.
    const direct = kind.directRouting ? await import('./direct-routing.ts') : undefined
    const beside = direct ? [direct.createDirectWay({ network, run, log })] : []
    const through = throughTo(family)
    const ways = createWays(family, beside, through, () => filter.peers())
    sides.push({ family, network, subnet, filter, ways, through, beside })
  }
  const sideFor = (family: Family): Side | undefined => sides.find((side) => side.family === family)
  const networks = netsOf(sides.map(({ network }) => network))
  const subnets = netsOf(sides.map(({ subnet }) => subnet))

  const calm = seldom(log)
  /** The families that cannot be had for now, each with the reason. */
  const lacking: { [F in Family]?: string } = {}
  const carried = (): readonly Side[] => sides.filter(({ family }) => lacking[family] === undefined)
  function lack(family: Family, error: unknown): void {
    lacking[family] = messageOf(error)
    calm.error(`${FAMILY_NAMES[family]} is not carried, and tried again: ${describeError(error)}`)
  }
  /** Does it for each family that is carried. What is in the way of one alone is said, and the other goes on. */
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

  // A device that is ours by its name is looked at when nobody runs any more.
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
  /** The ends that became different, by what changed of each family. */
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
    // Peers that go come first: the subnet of one that goes may be another's from now on.
    return [...gone.map((subnet): Peer => ({ subnet, endpoint: 0, port: 0, isGone: true })), ...came]
  }
  const tellKeeper = (): void => kind.keeper?.setPeers(new Map(sides.flatMap(({ filter }) => [...filter.peers()])))
  for (const { filter } of sides) filter.take(leases, lease.key)
  slots.keep(peerKeys())
  const inherited = await persistence.inherit({ tunName, bindAddress, port, subnets })
  // From here on packets wait, if there is something inherited.
  const head = inherited?.handoverState === undefined ? undefined : addon.handoverHead(inherited.handoverState)
  const keepsSessions = head && kind.keeper?.inherit(head)
  tellKeeper()
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
  const strangers = createStrangerLog(
    { ...settings, network: networks, subnet: subnets, provesSender: kind.keeper !== undefined },
    log,
  )
  strangers.setPeers(ends)
  /** Has the packets of a peer go where they are to go now. */
  function redirect(key: string): void {
    const its = sides.flatMap((side) => {
      const peer = side.filter.peers().get(key)
      return peer ? [endTo(side, peer)] : []
    })
    engine.changePeers(encodePeers(its))
    strangers.changePeers(its)
  }
  // What was chosen before is of no use without sockets of that family, and nobody chooses again then.
  if (!engine.hasOther)
    for (const key of Array.from(chosen.keys())) {
      chosen.delete(key)
      redirect(key)
    }
  kind.keeper?.listen(redirect)
  beginSessions() // which may tell at once of peers that moved while nobody forwarded
  async function end(): Promise<void> {
    kind.keeper?.stop()
    await engine.stop()
    // A device that persists does not go with the engine; it is gone where it was deleted, which ended the engine.
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
    sides.map(({ family, network, subnet, beside }) => {
      const isOwnRoute = (destination: string): boolean => beside.some((way) => way.hasRoute?.(destination))
      return [
        family,
        createTunDevice({ name: engine.tunName, network, subnet, mtu, run, log, isOwnRoute, ...scope }),
      ] as const
    }),
  )
  const configure = async ({ family }: Side): Promise<void> => devices.get(family)?.configure()
  let tell!: (reason: Error) => void
  const ended = new Promise<Error>((resolve) => (tell = resolve))
  try {
    // By which family a peer is reached is not for this node alone to change where there are keys.
    if (kind.keeper && otherAddress !== undefined && !engine.hasOther)
      throw new WeftError('PORT_IN_USE', engine.notes.join('; '), {
        remedy: `see that nothing else has UDP port ${port} of either family (\`ss -ulnp sport = :${port}\`)`,
      })
    const others = FAMILIES.filter((each) => !sides.some(({ family }) => family === each))
    if (inherited) await removeFamilies(run, engine.tunName, others)
    await eachSide(configure)
  } catch (error) {
    // A device that was there before stays: the other daemon may have taken it back.
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
    const its = carried().flatMap(({ family, filter, ways }) => {
      const peer = filter.peers().get(key)
      return peer ? [[family, ways.side(peer)] as const] : []
    })
    return its.length > 0 ? { key, ...Object.fromEntries(its) } : undefined
  }
  /** A peer's traffic, by its lease key, with the session that it has: one for all its families. */
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
      const { filter, ways, through } = sideFor(family) ?? {}
      const peer = filter?.peers().get(key)
      return peer && ways?.of(peer) === through ? known(peer, family) : undefined
    },
    ...(settings.probePathMtu ? { limit } : {}),
  }
  /** The choosing between the two, where there is one. */
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
        // What was found of the one path says nothing of the other.
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
  /** Has the sockets of the other family at the address that this host has now. */
  async function bindOther({ address }: ExternalInterface): Promise<void> {
    const { other } = kind
    const local = other && address[other]
    if (!other || local === undefined || local === bound.get(other) || !engine.bindOther) return
    bound.set(other, local)
    await engine.bindOther(formatAddress(local)).catch((error: unknown) => {
      if (kind.keeper) tell(new Error(messageOf(error)))
      else log.warn(messageOf(error))
    })
    beginSessions() // of the engine that runs on them
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
      if (watch.news !== undefined) log.info(`Peers are told that ${watch.news}`)
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
      tellKeeper()
      const differing = changes.flatMap(([side, changed]) => (changed ? [[side, changed] as const] : []))
      // The engine has every peer: a packet that one sends through the tunnel is let in, by whichever way packets go to it.
      if (differing.length === changes.length) {
        const differ = changedEnds(differing)
        engine.changePeers(encodePeers(differ))
        strangers.changePeers(differ)
      } else {
        slots.keep(peerKeys())
        for (const key of chosen.keys()) if (!hasPeer(key)) chosen.delete(key)
        engine.setPeers(encodePeers(ends()))
        strangers.setPeers(ends)
      }
      for (const [{ ways }, changed] of changes) await ways.apply(changed)
    },
    async resync() {
      if (await watch.hasMoved()) return []
      await kind.look?.()
      followSwitches()
      const mended: string[] = []
      // A device that is gone the engine reports as a fault.
      await eachSide(async ({ family, ways }) => {
        for (const each of [devices.get(family), ways]) mended.push(...((await each?.resync()) ?? []))
      })
      return mended
    },
    gone: () => onlyOf([kind.outer, ...awaited], watch.gone()),
    carrier: () => ({ device: engine.tunName, engine: engine.kind, features: engine.offloads }),
    probeSource: byFamily(sides.map(({ subnet }) => subnet.address)),
    families: sides.map(({ family }) => family),
    peers: () => [...peerKeys(carried())].flatMap((key) => pathPeer(key) ?? []),
    peer: pathPeer,
    traffic: async () => new Map(sides.flatMap(({ ways }) => [...ways.traffic()].map(withSessions))),
    ...(kind.keeper ? { unknownKeys: () => kind.keeper?.unknownKeys() ?? [] } : {}),
    pathMtu({ key }, family) {
      const { filter, ways } = sideFor(family) ?? {}
      const peer = filter?.peers().get(key)
      return peer && ways?.pathMtu(peer)
    },
    pathSearch,
    // Who agrees on keys chooses by itself, and what is not sealed is for nobody.
    ...(kind.other && engine.hasOther && !kind.keeper ? { underlays: underlaysWith(kind.outer, kind.other) } : {}),
    counters: () => ({
      ...engine.counters(),
      peers_unusable: BigInt(sides.reduce((sum, { filter }) => sum + filter.skipped(), 0)),
    }),
    drops: (after) => engine.drops(after),
    threads: () => engine.threads(),
    look: () => strangers.name(engine.takeStrangers()),
    ...(persist ? { leave } : {}),
    ...(engine.takeBack ? { takeBack: async () => takeBack() } : {}),
    close: end,
  })
}
