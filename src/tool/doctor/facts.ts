// facts.ts - gathers the facts about this host that weft doctor evaluates in checks.ts.

import { open, readFile } from 'node:fs/promises'
import { get as httpGet } from 'node:http'
import { get as httpsGet } from 'node:https'
import { parseEnv } from 'node:util'
import { isWeftError } from '../../base/errors.ts'
import type { Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import type { Link, Route } from '../../host/kernel.ts'
import { neighboursOf, type NeighbourTable } from '../../host/neighbours.ts'
import { programsOn, type PathProgram } from '../../host/path-programs.ts'
import { disablingIpv6, ECHO_IGNORED, forwardingOf } from '../../host/sysctl-names.ts'
import { getSysctl } from '../../host/sysctl.ts'
import { probeUdpPort, type UdpProbeResult } from '../../host/udp-probe.ts'
import { FAMILIES, familiesOf, familyOf, listed, type Address, type ByFamily, type Family } from '../../net/address.ts'
import { lengthsUpTo, longestOf } from '../../net/lengths.ts'
import { placeIn, sidesOf, type PeerSide, type PeerStatus, type Status } from '../../report/status.ts'
import { bridgeProbes, type BridgeAnswer } from './bridge-probes.ts'
import { containerGateways } from './container-gateways.ts'
import { readListing } from './filter-walk.ts'
import { gatherIpsec, type IpsecFacts } from './ipsec-facts.ts'
import { marksIn, routeQueries, underlayQueries, type KernelRoutes } from './route-queries.ts'
import { bridgeOf, kindIn, networksOf, ownSides, pathLinks, type AllAnswers, type Answers } from './sides.ts'

/**
 * The maximum number of peers that weft doctor itself probes. For all other peers it uses the probe results in weftd's
 * status.
 */
const PROBED_PEERS = 16
const CLOCK_WAIT_MS = 2_000

export interface Facts {
  /** weftd's status, or the status that recall.ts reconstructs if no weftd runs. Undefined if neither is available. */
  readonly status: Status | undefined
  /** Why weftd did not answer; undefined if it answered. */
  readonly silence: string | undefined
  /** True if weftd did not answer because this user may not open weftd's socket. */
  readonly isForbidden?: boolean
  /** The time of day in ms since 1970. */
  readonly now: number
  readonly isRoot: boolean
  /**
   * The errno name of the error that opening /dev/net/tun gave, such as `ENOENT`; undefined if weft doctor could open
   * the device.
   */
  readonly tunProblem: string | undefined
  /**
   * True if this process is root but lacks CAP_NET_ADMIN. Then a weftd in the same container lacks the capability as
   * well.
   */
  readonly lacksNetAdmin: boolean
  readonly isForwarding: boolean
  /** True if the kernel forwards IPv6 packets; undefined if the network or the kernel has no IPv6. */
  readonly isForwardingIpv6: boolean | undefined
  /** For each family, true if this host has a default route. A family whose routes were not read is left out. */
  readonly defaultRoutes: ByFamily<boolean>
  /** The gateways of the default routes of this host. */
  readonly defaultGateways?: readonly string[]
  readonly links: readonly Link[]
  /** The routes of the kernel's main table that lead to the network or to a part of it. */
  readonly routes: readonly Route[]
  /** The output of `iptables-save -c`, or of `iptables -S` if that command failed; undefined if both failed. */
  readonly iptables: string | undefined
  /** The output of the same commands for ip6tables; undefined if both failed, or if the network has no IPv6. */
  readonly ip6tables: string | undefined
  /** The output of `iptables-legacy-save -c`, if iptables-legacy has rules that `iptables-save` does not show. */
  readonly iptablesLegacy?: string | undefined
  readonly ip6tablesLegacy?: string | undefined
  /** The output of `nft list ruleset`; undefined if the command failed. */
  readonly nft: string | undefined
  /** The numbers of the queues of netfilter that a program reads; undefined if this user may not list them. */
  readonly queues?: ReadonlySet<number> | undefined
  /** The variables in the file subnet.env; undefined if the file does not exist. */
  readonly subnetEnv: Readonly<Record<string, string | undefined>> | undefined
  /**
   * How far the store's clock is ahead of this host's clock, in ms; undefined if the store does not report its time.
   */
  readonly storeAheadMs: number | undefined
  /**
   * Which peers answered the probes that weft doctor has just sent. The probes are listed by the peer's lease and the
   * probe's family.
   */
  readonly answers: AllAnswers
  /** Why weft doctor could not probe any peer; undefined if it could probe at least one. */
  readonly whyUnprobed: string | undefined
  /** The eBPF programs, tc filters and lossy queueing disciplines on the interfaces that packets of the network pass. */
  readonly programs?: readonly PathProgram[]
  /** The answers of the bridges of peers, if the underlay carries packets with the addresses of containers (host-gw). */
  readonly bridgeAnswers?: readonly BridgeAnswer[]
  /** The result of an attempt to reach a silent peer's host without the data path, by lease. */
  readonly reaches: ReadonlyMap<string, Reach>
  /** The data that weft doctor has just read from the store; undefined if it did not query the store. */
  readonly store: StoreSeen | undefined
  /** Why weft doctor did not query the store, or why the query failed. */
  readonly whyStoreUnknown?: string | undefined
  /**
   * The state of weftd's unit in systemd, in words; empty if systemd has no such unit. weft doctor looks it up only if
   * weftd did not answer.
   */
  readonly unit?: string | undefined
  readonly neighbours?: readonly NeighbourTable[] | undefined
  /** The kernel's routes for packets to and from peers; undefined if weft doctor did not look them up. */
  readonly kernelRoutes?: KernelRoutes | undefined
  /** The gateways of the default routes in the network namespaces of other processes, such as those of containers. */
  readonly gateways?: readonly Address[]
  /** The IPsec policies; undefined if there are none, or if this user may not list them. */
  readonly ipsec?: IpsecFacts | undefined
  /** The number of connections that the kernel tracks, and its limit; undefined if the kernel tracks no connections. */
  readonly tracking?: { readonly entries: number; readonly limit: number } | undefined
  /**
   * The interfaces on which IPv4 packets of containers arrive, but whose packets the kernel does not forward
   * (net.ipv4.conf.INTERFACE.forwarding is 0) although net.ipv4.ip_forward is 1.
   */
  readonly unforwarded?: readonly string[]
  /**
   * The bridges, the devices of the data path and the external interface on which a kernel setting disables IPv6
   * (net.ipv6.conf.INTERFACE.disable_ipv6 is 1).
   */
  readonly withoutIpv6?: readonly string[]
  /** The families whose echo requests the kernel does not answer (net.ipv4.icmp_echo_ignore_all). */
  readonly ignoredEchoes?: readonly Family[]
  /** The value of net.bridge.bridge-nf-call-iptables; undefined if the module br_netfilter is not loaded. */
  readonly bridgeFilter?: string | undefined
  /** The value of net.bridge.bridge-nf-call-ip6tables. */
  readonly bridgeFilterIpv6?: string | undefined
}

export interface Reach {
  /**
   * The error that sending a datagram to the backend's port on the peer's host gave, such as an ICMP error. Undefined
   * if there was no error, or if the backend has no port.
   */
  readonly port: UdpProbeResult | undefined
  readonly portNumber: number | undefined
  /** True if the peer's host answers a ping outside the data path; undefined if weft doctor could send no ping. */
  readonly isPinged: boolean | undefined
  /**
   * True if the address of the peer's host is on a link of this host, but no host on that link answers for the address
   * (ARP, neighbour discovery).
   */
  readonly isOffLink: boolean
}

export interface StoreSeen {
  readonly problem?: string
  /**
   * The network configuration in the store, as weftd's status would report it; undefined if the configuration cannot be
   * read.
   */
  readonly config?: Status['config'] | undefined
  /** The reason why no weftd can start with the network configuration in the store. */
  readonly invalid?: string
}

/**
 * Sends the peer a probe of `bytes` bytes over a family, and resolves with true if the peer answered. Rejects if this
 * host cannot send probes over the family.
 */
type ProbePeer = (peer: PeerStatus, family: Family, bytes: number) => Promise<boolean>

export interface Sources {
  readonly status: Status | undefined
  readonly silence: string | undefined
  readonly isForbidden?: boolean
  readonly subnetFile: string
  readonly run: Run
  readonly kernel: HostKernel
  /** The function that probes peers; undefined if the data path is not open, because then no probe can reach a peer. */
  readonly probe: ProbePeer | undefined
  /**
   * Pings the host of a peer outside the data path. Resolves with undefined if the peer has no public address of the
   * family. Rejects if this host cannot send pings over the family.
   */
  readonly ping?: ((peer: PeerStatus, family: Family) => Promise<boolean | undefined>) | undefined
  /**
   * Pings an address from an address of this host; undefined if the operator wants no probes. Rejects if this host cannot
   * send pings from the address.
   */
  readonly pingFrom?: ((from: Address, to: Address) => Promise<boolean>) | undefined
  readonly store?: StoreSeen | undefined
  readonly whyStoreUnknown?: string | undefined
}

export async function gatherFacts({
  status,
  silence,
  isForbidden = false,
  subnetFile,
  run,
  kernel,
  probe,
  ping,
  pingFrom,
  store,
  whyStoreUnknown,
}: Sources): Promise<Facts> {
  const networks = status?.config ? networksOf(status.config) : {}
  const hasIpv6 = networks.ipv6 !== undefined
  const file = status?.daemon.subnetFile ?? subnetFile
  const defaultsOf = async (family: Family): Promise<readonly Route[]> =>
    (await kernel.routes({ family, exactly: ['default'] })).filter(({ type }) => type === 'unicast')
  const [probed, ...looked] = await Promise.all([
    probePeers(status, probe),
    tunProblem(),
    getSysctl('net/ipv4/ip_forward'),
    hasIpv6 ? getSysctl('net/ipv6/conf/all/forwarding') : undefined,
    kernel.links(),
    Promise.all(listed(networks).map((within) => kernel.routes({ family: familyOf(within), within }))),
    Promise.all(familiesOf(networks).map(async (family) => [family, await defaultsOf(family)] as const)),
    tablesOf('iptables', run),
    hasIpv6 ? tablesOf('ip6tables', run) : undefined,
    unlessRefused(run('nft', ['list', 'ruleset'])),
    readFile(file, 'utf8').then(parseEnv, () => undefined),
    storeAheadMs(status),
    filterSettings(),
    silence === undefined ? undefined : unlessRefused(unitState(run)),
  ])
  const [
    tun,
    forwarding,
    forwardingIpv6,
    links,
    routes,
    defaults,
    iptables,
    ip6tables,
    nft,
    subnetEnv,
    ahead,
    settings,
    unit,
  ] = looked
  const isRoot = process.getuid?.() === 0
  const rules = [nft, iptables.all, iptables.legacy, ip6tables?.all, ip6tables?.legacy].join('\n')
  const [lacksNetAdmin, reaches, kernelRoutes, neighbours, ipsec, ofContainers] = await Promise.all([
    isRoot && readFile('/proc/self/status', 'utf8').then(lacksNetAdminBy, () => false),
    reachesOf(status, probed.answers, ping, kernel),
    unlessRefused(kernelRoutesOf(status, links, marksIn(rules), kernel)),
    unlessRefused(Promise.all(familiesOf(networks).map((family) => neighboursOf(family, kernel)))),
    unlessRefused(gatherIpsec(kernel, links)),
    containerFacts(status, links, forwarding !== '0', pingFrom),
  ])
  return {
    status,
    silence,
    isForbidden,
    now: Date.now(),
    isRoot,
    tunProblem: tun,
    links,
    routes: routes.flat(),
    defaultRoutes: Object.fromEntries(defaults.map(([family, found]) => [family, found.length > 0])),
    defaultGateways: defaults.flatMap(([, found]) => found.flatMap(({ gateway }) => gateway ?? [])),
    iptables: iptables.all,
    ip6tables: ip6tables?.all,
    iptablesLegacy: iptables.legacy,
    ip6tablesLegacy: ip6tables?.legacy,
    nft,
    isForwarding: forwarding !== '0',
    subnetEnv,
    storeAheadMs: ahead,
    ...probed,
    reaches,
    store,
    whyStoreUnknown,
    ...settings,
    unit,
    kernelRoutes,
    neighbours,
    ipsec,
    ...ofContainers,
    lacksNetAdmin,
    isForwardingIpv6: forwardingIpv6 === undefined ? undefined : forwardingIpv6 !== '0',
  }
}

const unlessRefused = <T>(work: Promise<T>): Promise<T | undefined> =>
  work.catch((error: unknown) => {
    if (isWeftError(error)) return undefined
    throw error
  })

/** The kernel's lists of the tables of iptables-legacy and ip6tables-legacy (net/netfilter/x_tables.c). */
const LEGACY_TABLES = { iptables: '/proc/net/ip_tables_names', ip6tables: '/proc/net/ip6_tables_names' } as const

/**
 * Reads all tables of iptables or ip6tables, with counters. Also reads the tables of iptables-legacy if the kernel has
 * any and if `iptables` itself is not iptables-legacy.
 */
async function tablesOf(
  tool: keyof typeof LEGACY_TABLES,
  run: Run,
): Promise<{ readonly all: string | undefined; readonly legacy: string | undefined }> {
  const [saved, names] = await Promise.all([
    unlessRefused(run(`${tool}-save`, ['-c'])),
    readFile(LEGACY_TABLES[tool], 'utf8').catch(() => ''),
  ])
  const all = saved ?? (await unlessRefused(run(tool, ['-w', '5', '-S'])))
  const isLegacy = saved?.startsWith('# Generated by ') === true && !readListing(saved).isOfNftables
  const legacy = names === '' || isLegacy ? undefined : await unlessRefused(run(`${tool}-legacy-save`, ['-c']))
  return { all, legacy }
}

async function kernelRoutesOf(
  status: Status | undefined,
  links: readonly Link[],
  marks: readonly number[],
  kernel: HostKernel,
): Promise<KernelRoutes | undefined> {
  if (!status) return undefined
  const rules = Object.fromEntries(
    await Promise.all(FAMILIES.map(async (family) => [family, (await kernel.rules(family)) ?? []] as const)),
  )
  const wanted = [...routeQueries(status, links, marks, rules), ...underlayQueries(status, links)]
  if (wanted.length === 0) return undefined
  const byFamily = await Promise.all(
    FAMILIES.map(async (family) => {
      const mine = wanted.filter((each) => each.family === family)
      const queries = mine.map(({ query }) => query)
      const found = queries.length === 0 ? [] : await kernel.lookUp(family, queries)
      return mine.flatMap((each, at) => {
        const answer = found[at]
        return answer ? [{ ...each, answer }] : []
      })
    }),
  )
  return { answers: byFamily.flat(), rules }
}

async function probePeers(
  status: Status | undefined,
  probe: ProbePeer | undefined,
): Promise<Pick<Facts, 'answers' | 'whyUnprobed'>> {
  const mtu = status?.dataPath?.mtu ?? undefined
  const known = (status?.peers?.list ?? []).filter((peer) =>
    listed(sidesOf(peer)).some(({ state }) => state !== 'stored'),
  )
  if (!probe || mtu === undefined) return { answers: new Map(), whyUnprobed: undefined }
  const overhead = kindIn(status)?.overhead ?? 0
  const probeBy = async (peer: PeerStatus, family: Family, { pathMtu }: PeerSide): Promise<Answers> => {
    // Probes up to two times, so that a single lost packet does not make a peer look silent.
    const twice = async (bytes: number): Promise<boolean> =>
      (await probe(peer, family, bytes)) || (await probe(peer, family, bytes))
    const small = await twice(0)
    // If the kernel knows a path MTU below the MTU of the data path, it answers longer packets with an ICMP error, so
    // that their senders send shorter ones. So the longest probe is as long as the path MTU.
    const most = pathMtu ?? mtu
    const large = small && (await twice(most))
    const longest = small && !large ? await longestOf(lengthsUpTo(most, overhead), twice) : undefined
    return { small, large, longest }
  }
  let whyUnprobed: string | undefined
  const probeSide = async (peer: PeerStatus, family: Family): Promise<readonly [Family, Answers] | undefined> => {
    const side = sidesOf(peer)[family]
    if (!side || side.state === 'stored') return undefined
    try {
      return [family, await probeBy(peer, family, side)]
    } catch (error) {
      if (!isWeftError(error)) throw error
      whyUnprobed = error.message
      return undefined
    }
  }
  const answers = await Promise.all(
    known.slice(0, PROBED_PEERS).map(async (peer) => {
      const sides = await Promise.all(FAMILIES.map((family) => probeSide(peer, family)))
      return [peer.lease, Object.fromEntries(sides.filter((side) => side !== undefined))] as const
    }),
  )
  return { answers: new Map(answers.filter(([, sides]) => Object.keys(sides).length > 0)), whyUnprobed }
}

/**
 * How long, in ms, weft doctor waits for an ICMP error after a datagram. The error arrives within milliseconds, or
 * never.
 */
const ICMP_WAIT_MS = 1_000

/**
 * Contacts the hosts of silent peers outside the data path, at the underlay addresses to which this node sends packets
 * for these peers.
 */
async function reachesOf(
  status: Status | undefined,
  answers: AllAnswers,
  ping: Sources['ping'],
  kernel: HostKernel,
): Promise<Facts['reaches']> {
  if (!ping) return new Map() // the operator wants no probes
  const silent = (status?.peers?.list ?? []).slice(0, PROBED_PEERS).filter(({ lease, state }) => {
    const probed = Object.values(answers.get(lease) ?? {})
    return state !== 'stored' && (probed.length > 0 ? probed.every(({ small }) => !small) : state !== 'answering')
  })
  const found = await Promise.all(
    silent.map(async (peer) => {
      const [family] = familiesOf(sidesOf(peer))
      const host = family && placeIn(peer, family).publicIp
      if (!family || host === undefined) return []
      const text = /:(\d+)$/.exec(sidesOf(peer)[family]?.endpoint ?? '')?.[1]
      const portNumber = text === undefined ? undefined : Number(text)
      const [port, isPinged] = await Promise.all([
        portNumber === undefined ? undefined : probeUdpPort(host, portNumber, ICMP_WAIT_MS),
        ping(peer, family).catch((error: unknown) => {
          if (isWeftError(error)) return undefined
          throw error
        }),
      ])
      const isOffLink = isPinged !== true && port === undefined && (await hasNoNeighbour(kernel, host))
      return [[peer.lease, { port, portNumber, isPinged, isOffLink }] as const]
    }),
  )
  return new Map(found.flat())
}

/**
 * Returns true if the kernel recently tried to resolve the address on a link, and no host answered (ip-neighbour(8)).
 */
async function hasNoNeighbour(kernel: HostKernel, address: Address): Promise<boolean> {
  const found = await kernel.neighbours(familyOf(address)).catch((error: unknown) => {
    if (isWeftError(error)) return []
    throw error
  })
  const states = found.flatMap((entry) => (entry.address === address ? entry.states : []))
  return states.length > 0 && states.every((state) => state === 'FAILED' || state === 'INCOMPLETE')
}

/**
 * Describes the state of weftd's unit, such as `failed since Mon 2026-11-23 03:12:08 UTC (exit-code)`. Returns an empty
 * text if systemd has no such unit.
 */
async function unitState(run: Run): Promise<string> {
  const words = ['show', 'weftd', '--property=LoadState,ActiveState,InactiveEnterTimestamp,Result']
  const { LoadState, ActiveState, InactiveEnterTimestamp, Result } = parseEnv(await run('systemctl', words))
  if (LoadState !== 'loaded') return ''
  const since = InactiveEnterTimestamp ? ` since ${InactiveEnterTimestamp}` : ''
  return `systemd says: ${ActiveState ?? 'no state'}${since}${Result && Result !== 'success' ? ` (${Result})` : ''}`
}

/**
 * Returns true if the capabilities in the text of /proc/PID/status lack CAP_NET_ADMIN, which is bit 12 of CapEff
 * (linux/capability.h, proc_pid_status(5)).
 */
const lacksNetAdminBy = (status: string): boolean => {
  const effective = /^CapEff:\s*([\da-f]+)$/m.exec(status)?.[1]
  return effective !== undefined && ((BigInt(`0x${effective}`) >> 12n) & 1n) === 0n
}

/**
 * Lists the queues of netfilter that a program reads. Without the module nfnetlink_queue the kernel has no such list,
 * and no program can read a queue. The first column of the list is the number of the queue (seq_show in
 * net/netfilter/nfnetlink_queue.c).
 */
const readQueues = (): Promise<ReadonlySet<number> | undefined> =>
  readFile('/proc/net/netfilter/nfnetlink_queue', 'utf8').then(queuesIn, (error: NodeJS.ErrnoException) =>
    error.code === 'ENOENT' ? new Set<number>() : undefined,
  )

/** Reads the settings and tables of the kernel that decide which packets it filters, tracks and answers. */
async function filterSettings(): Promise<
  Pick<Facts, 'bridgeFilter' | 'bridgeFilterIpv6' | 'queues' | 'ignoredEchoes' | 'tracking'>
> {
  const [bridgeFilter, bridgeFilterIpv6, queues, ignored, tracking] = await Promise.all([
    getSysctl('net/bridge/bridge-nf-call-iptables'),
    getSysctl('net/bridge/bridge-nf-call-ip6tables'),
    readQueues(),
    ignoredEchoes(),
    trackedConnections(),
  ])
  return { bridgeFilter, bridgeFilterIpv6, queues, ignoredEchoes: ignored, tracking }
}

async function trackedConnections(): Promise<Facts['tracking']> {
  const [entries, limit] = await Promise.all(
    ['count', 'max'].map((name) => getSysctl(`net/netfilter/nf_conntrack_${name}`)),
  )
  return entries === undefined || limit === undefined ? undefined : { entries: Number(entries), limit: Number(limit) }
}

/** Lists the interfaces on which packets of containers arrive and whose IPv4 packets the kernel does not forward. */
async function unforwardedIn(status: Status | undefined, links: readonly Link[]): Promise<readonly string[]> {
  const [side] = status ? ownSides(status).filter(({ family }) => family === 'ipv4') : []
  if (!status || !side) return []
  const isDirect = (status.peers?.list ?? []).some(({ way }) => way === 'direct')
  const isFromHosts = isDirect || kindIn(status)?.probe === 'host'
  const names = [
    bridgeOf(links, side.subnet, status),
    status.dataPath?.devices.ipv4 ?? undefined,
    isFromHosts ? (status.node?.externalInterface ?? undefined) : undefined,
  ].filter((name) => name !== undefined)
  const values = await Promise.all(names.map((name) => getSysctl(forwardingOf(name))))
  return names.filter((_name, at) => values[at] === '0')
}

/** Gathers the facts about the interfaces and bridges that the packets of containers pass. */
async function containerFacts(
  status: Status | undefined,
  links: readonly Link[],
  isForwarding: boolean,
  pingFrom: Sources['pingFrom'],
): Promise<Pick<Facts, 'gateways' | 'unforwarded' | 'withoutIpv6' | 'bridgeAnswers' | 'programs'>> {
  const [gateways, unforwarded, withoutIpv6, bridgeAnswers, programs] = await Promise.all([
    containerGateways(),
    isForwarding ? unforwardedIn(status, links) : [],
    withoutIpv6In(status, links),
    bridgeAnswersOf(status, links, pingFrom),
    programsOf(status, links),
  ])
  return { gateways, unforwarded, withoutIpv6, bridgeAnswers, programs }
}

/** Lists the bridges, the devices of the data path and the external interface on which a setting disables IPv6. */
async function withoutIpv6In(status: Status | undefined, links: readonly Link[]): Promise<readonly string[]> {
  const own = [status?.node?.externalInterface, status?.dataPath?.devices.ipv6]
  const bridges = links.filter(({ type }) => type === 'bridge').map(({ name }) => name)
  const names = [...new Set([...own.filter((name) => typeof name === 'string'), ...bridges])]
  const values = await Promise.all(names.map((name) => getSysctl(disablingIpv6(name))))
  return names.filter((_name, at) => values[at] === '1')
}

/** Probes the bridges of peers from the bridge of this node and from this host. Leaves out probes that cannot be sent. */
async function bridgeAnswersOf(
  status: Status | undefined,
  links: readonly Link[],
  pingFrom: Sources['pingFrom'],
): Promise<readonly BridgeAnswer[]> {
  if (!status || !pingFrom) return []
  const answers = await Promise.all(
    bridgeProbes(status, links).map(async (probe) => {
      const sources = [probe.fromBridge, probe.fromHost]
      const found = await unlessRefused(Promise.all(sources.map((from) => pingFrom(from, probe.to))))
      return found ? [{ ...probe, isBridgeAnswered: found[0] === true, isHostAnswered: found[1] === true }] : []
    }),
  )
  return answers.flat()
}

async function programsOf(status: Status | undefined, links: readonly Link[]): Promise<readonly PathProgram[]> {
  const found = await Promise.all(
    (status ? pathLinks(status, links) : []).map(async (link) =>
      (await programsOn(link)).map((what) => ({ device: link.name, what })),
    ),
  )
  return found.flat()
}

async function ignoredEchoes(): Promise<readonly Family[]> {
  const values = await Promise.all(FAMILIES.map((family) => getSysctl(ECHO_IGNORED[family])))
  return FAMILIES.filter((_family, at) => values[at] === '1')
}

export const queuesIn = (text: string): ReadonlySet<number> =>
  new Set([...text.matchAll(/^\s*(\d+)/gm)].map(([, number]) => Number(number)))

async function tunProblem(): Promise<string | undefined> {
  try {
    await (await open('/dev/net/tun', 'r+')).close()
    return undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? 'an error'
  }
}

/**
 * Returns how far etcd's clock is ahead of this host's clock, in ms. Reads the Date header (RFC 9110 section 6.6.1)
 * that etcd sends with every HTTP answer, even without a login. Returns undefined if there is no such header. Adds half
 * a second, because the header has whole seconds.
 */
function storeAheadMs(status: Status | undefined): Promise<number | undefined> {
  const [endpoint = ''] = status?.store.name === 'etcd' ? (status.daemon.leases.split(/[ ,]/) ?? []) : []
  if (!/^https?:\/\//.test(endpoint)) return Promise.resolve(undefined)
  const signal = AbortSignal.timeout(CLOCK_WAIT_MS)
  return new Promise((resolve) => {
    const began = Date.now()
    const options = { signal, rejectUnauthorized: false }
    const get = endpoint.startsWith('https') ? httpsGet : httpGet
    get(`${endpoint}/version`, options, (response) => {
      response.resume()
      const date = Date.parse(response.headers.date ?? '')
      resolve(Number.isNaN(date) ? undefined : date + 500 - (began + Date.now()) / 2)
    }).once('error', () => resolve(undefined))
  })
}
