// facts.ts - what the doctor looks at on this host: gathered here, judged in checks.ts.

import { open, readFile } from 'node:fs/promises'
import { get as httpGet } from 'node:http'
import { get as httpsGet } from 'node:https'
import { parseEnv } from 'node:util'
import { isWeftError } from '../../base/errors.ts'
import type { Run } from '../../host/command.ts'
import { knock, type Knocked } from '../../host/knock.ts'
import { ipJson, listLinks, routesTo, routesWithin, type Link, type Route } from '../../host/links.ts'
import { neighboursOf, type NeighbourTable } from '../../host/neighbours.ts'
import { getSysctl } from '../../host/sysctl.ts'
import { askWays, policyRules } from '../../host/ways.ts'
import { FAMILIES, familiesOf, formatAddress, listed, type ByFamily, type Family } from '../../net/address.ts'
import { lengthsUpTo, longestOf } from '../../net/lengths.ts'
import { kindOf } from '../../path/catalog.ts'
import { placeIn, sidesOf, type PeerSide, type PeerStatus, type Status } from '../../report/status.ts'
import { networksOf, type AllAnswers, type Answers } from './sides.ts'
import { marksIn, waysToAsk, type KernelWays } from './way-questions.ts'

/** The number of peers that are asked; for the others the daemon's own knowledge has to do. */
const ASKED_PEERS = 16
const CLOCK_WAIT_MS = 2_000

export interface Facts {
  /** The daemon's status; undefined when it does not answer, for the reason in `silence`. */
  readonly status: Status | undefined
  readonly silence: string | undefined
  /** True when that is because we may not ask. */
  readonly isForbidden?: boolean
  /** The clock of the day, in ms. */
  readonly now: number
  readonly isRoot: boolean
  /** The reason why /dev/net/tun cannot be opened, as an errno's name; undefined when it can. */
  readonly tunProblem: string | undefined
  /** True if this process is root without CAP_NET_ADMIN. Then a weftd in the same container lacks it too. */
  readonly lacksNetAdmin: boolean
  /** True where the kernel forwards IPv4. */
  readonly isForwarding: boolean
  /** The same of IPv6; undefined where the network has none, or the kernel. */
  readonly isForwardingIpv6: boolean | undefined
  /** True for each family of which there is a default route; left out where that was not asked. */
  readonly defaultRoutes: ByFamily<boolean>
  readonly links: readonly Link[]
  /** The routes to the network and to parts of it. */
  readonly routes: readonly Route[]
  /** `iptables -S`, `ip6tables -S` and `nft list ruleset`; undefined where they cannot be asked, or the node has nothing of IPv6. */
  readonly iptables: string | undefined
  readonly ip6tables: string | undefined
  readonly nft: string | undefined
  /** subnet.env's variables; undefined when there is no such file. */
  readonly subnetEnv: Readonly<Record<string, string | undefined>> | undefined
  /** The milliseconds by which the store's clock is ahead of ours, if it tells its time. */
  readonly storeAheadMs: number | undefined
  /** The answers of the peers that were asked now, by lease and by each family that they were asked by. */
  readonly answers: AllAnswers
  /** The reason why nobody could be asked. */
  readonly unasked: string | undefined
  /** What comes back from the hosts of those that did not answer, outside of the data path, by lease. */
  readonly reaches: ReadonlyMap<string, Reach>
  /** What the store itself says now, whatever the daemon knows; undefined where it was not asked. */
  readonly store: StoreSeen | undefined
  /** The reason why the store was not queried, or why the query failed. */
  readonly storeUnasked?: string | undefined
  /** How the service manager has weftd, in words, where that is silent and there is one. */
  readonly unit?: string | undefined
  /** The kernel's neighbour tables; undefined if they were not read. */
  readonly neighbours?: readonly NeighbourTable[] | undefined
  /** The kernel's routes for packets to peers and from them; undefined if they were not looked up. */
  readonly kernelWays?: KernelWays | undefined
  /** net.bridge.bridge-nf-call-iptables; undefined where br_netfilter is not loaded. */
  readonly bridgeFilter?: string | undefined
}

/** What came back from a host, outside of the data path. */
export interface Reach {
  /** From the backend's port; undefined when nothing did, or the backend has none. */
  readonly port: Knocked | undefined
  /** The number of the port. */
  readonly portNumber: number | undefined
  /** True when the host answers a ping; undefined where it could not be asked. */
  readonly isPinged: boolean | undefined
  /** True for a host of the same link that nobody answers for. */
  readonly isOffLink: boolean
}

/** The store, as the doctor finds it. */
export interface StoreSeen {
  /** The reason why it does not answer. */
  readonly problem?: string
  /** The network configuration there, as the status has it; undefined where it cannot be read. */
  readonly config?: Status['config'] | undefined
}

/** Asks a peer by a family; rejects when nobody can be asked by it. */
type AskPeer = (peer: PeerStatus, family: Family, bytes: number) => Promise<boolean>

export interface Sources {
  readonly status: Status | undefined
  readonly silence: string | undefined
  readonly isForbidden?: boolean
  readonly subnetFile: string
  readonly run: Run
  /** Undefined where the backend has nobody to ask. */
  readonly ask: AskPeer | undefined
  /** Pings the host of a peer, outside of the data path; undefined where that has no address. Rejects as `ask` does. */
  readonly ping?: ((peer: PeerStatus, family: Family) => Promise<boolean | undefined>) | undefined
  readonly store?: StoreSeen | undefined
  readonly storeUnasked?: string | undefined
}

export async function gatherFacts({
  status,
  silence,
  isForbidden = false,
  subnetFile,
  run,
  ask,
  ping,
  store,
  storeUnasked,
}: Sources): Promise<Facts> {
  const networks = status?.config ? networksOf(status.config) : {}
  const hasIpv6 = networks.ipv6 !== undefined
  const file = status?.daemon.subnetFile ?? subnetFile
  const unlessRefused = <T>(work: Promise<T>): Promise<T | undefined> =>
    work.catch((error: unknown) => {
      if (isWeftError(error)) return undefined
      throw error
    })
  const hasDefault = async (family: Family): Promise<boolean> =>
    (await routesTo(run, family)).some(({ type }) => type === 'unicast')
  const [asked, ...looked] = await Promise.all([
    askPeers(status, ask),
    tunProblem(),
    getSysctl('net/ipv4/ip_forward'),
    hasIpv6 ? getSysctl('net/ipv6/conf/all/forwarding') : undefined,
    listLinks(run),
    Promise.all(listed(networks).map((network) => routesWithin(run, network))),
    Promise.all(familiesOf(networks).map(async (family) => [family, await hasDefault(family)] as const)),
    unlessRefused(run('iptables', ['-w', '5', '-S'])),
    hasIpv6 ? unlessRefused(run('ip6tables', ['-w', '5', '-S'])) : undefined,
    unlessRefused(run('nft', ['list', 'ruleset'])),
    readFile(file, 'utf8').then(parseEnv, () => undefined),
    storeAheadMs(status),
    getSysctl('net/bridge/bridge-nf-call-iptables'),
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
    bridgeFilter,
    unit,
  ] = looked
  const isRoot = process.getuid?.() === 0
  const [lacksNetAdmin, reaches, kernelWays, neighbours] = await Promise.all([
    isRoot && readFile('/proc/self/status', 'utf8').then(lacksNetAdminBy, () => false),
    reachesOf(status, asked.answers, ping, run),
    unlessRefused(kernelWaysOf(status, links, nft ?? '', run)),
    unlessRefused(Promise.all(familiesOf(networks).map((family) => neighboursOf(family, run)))),
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
    defaultRoutes: Object.fromEntries(defaults),
    iptables,
    ip6tables,
    nft,
    isForwarding: forwarding !== '0',
    subnetEnv,
    storeAheadMs: ahead,
    ...asked,
    reaches,
    store,
    storeUnasked,
    bridgeFilter,
    unit,
    kernelWays,
    neighbours,
    lacksNetAdmin,
    isForwardingIpv6: forwardingIpv6 === undefined ? undefined : forwardingIpv6 !== '0',
  }
}

/** Looks up the kernel's routes for packets to peers and from them. */
async function kernelWaysOf(
  status: Status | undefined,
  links: readonly Link[],
  nft: string,
  run: Run,
): Promise<KernelWays | undefined> {
  if (!status) return undefined
  const wanted = waysToAsk(status, links, marksIn(nft))
  if (wanted.length === 0) return undefined
  const families = FAMILIES.filter((family) => wanted.some((each) => each.family === family))
  const found = await Promise.all(
    families.map(async (family) => {
      const mine = wanted.filter((each) => each.family === family)
      const [answers, rules] = await Promise.all([
        askWays(
          run,
          family,
          mine.map(({ question }) => question),
        ),
        policyRules(run, family),
      ])
      const ways = mine.flatMap((each, at) => {
        const answer = answers[at]
        return answer ? [{ ...each, answer }] : []
      })
      return { family, ways, rules }
    }),
  )
  return {
    ways: found.flatMap(({ ways }) => ways),
    rules: Object.fromEntries(found.map(({ family, rules }) => [family, rules])),
  }
}

async function askPeers(
  status: Status | undefined,
  ask: AskPeer | undefined,
): Promise<Pick<Facts, 'answers' | 'unasked'>> {
  const mtu = status?.dataPath?.mtu ?? undefined
  const known = (status?.peers?.list ?? []).filter((peer) =>
    listed(sidesOf(peer)).some(({ state }) => state !== 'stored'),
  )
  if (!ask || mtu === undefined) return { answers: new Map(), unasked: undefined }
  const overhead = kindOf(status?.config?.backendType ?? '')?.overhead ?? 0
  const askBy = async (peer: PeerStatus, family: Family, { pathMtu }: PeerSide): Promise<Answers> => {
    // A second try keeps one lost packet from deciding the answer.
    const twice = async (bytes: number): Promise<boolean> =>
      (await ask(peer, family, bytes)) || (await ask(peer, family, bytes))
    const small = await twice(0)
    // The senders are told what the kernel knows of the path.
    const most = pathMtu ?? mtu
    const large = small && (await twice(most))
    const longest = small && !large ? await longestOf(lengthsUpTo(most, overhead), twice) : undefined
    return { small, large, longest }
  }
  let unasked: string | undefined
  const askSide = async (peer: PeerStatus, family: Family): Promise<readonly [Family, Answers] | undefined> => {
    const side = sidesOf(peer)[family]
    if (!side || side.state === 'stored') return undefined
    try {
      return [family, await askBy(peer, family, side)]
    } catch (error) {
      if (!isWeftError(error)) throw error
      unasked = error.message
      return undefined
    }
  }
  const answers = await Promise.all(
    known.slice(0, ASKED_PEERS).map(async (peer) => {
      const sides = await Promise.all(FAMILIES.map((family) => askSide(peer, family)))
      return [peer.lease, Object.fromEntries(sides.filter((side) => side !== undefined))] as const
    }),
  )
  return { answers: new Map(answers.filter(([, sides]) => Object.keys(sides).length > 0)), unasked }
}

/** ICMP errors come at once, or never. */
const KNOCK_MS = 1_000

/** Asks the hosts of those peers that were asked and did not answer by any family, at the addresses where their packets go. */
async function reachesOf(
  status: Status | undefined,
  answers: AllAnswers,
  ping: Sources['ping'],
  run: Run,
): Promise<Facts['reaches']> {
  if (!ping) return new Map() // nothing is to be sent
  const silent = (status?.peers?.list ?? []).slice(0, ASKED_PEERS).filter(({ lease, state }) => {
    const asked = Object.values(answers.get(lease) ?? {})
    return state !== 'stored' && (asked.length > 0 ? asked.every(({ small }) => !small) : state !== 'answering')
  })
  const found = await Promise.all(
    silent.map(async (peer) => {
      const [family] = familiesOf(sidesOf(peer))
      const host = family && placeIn(peer, family).publicIp
      if (!family || host === undefined) return []
      const text = /:(\d+)$/.exec(sidesOf(peer)[family]?.endpoint ?? '')?.[1]
      const portNumber = text === undefined ? undefined : Number(text)
      const [port, isPinged] = await Promise.all([
        portNumber === undefined ? undefined : knock(host, portNumber, KNOCK_MS),
        ping(peer, family).catch((error: unknown) => {
          if (isWeftError(error)) return undefined
          throw error
        }),
      ])
      const isOffLink = isPinged !== true && port === undefined && (await hasNoNeighbour(run, formatAddress(host)))
      return [[peer.lease, { port, portNumber, isPinged, isOffLink }] as const]
    }),
  )
  return new Map(found.flat())
}

/** True where this host has asked its link for the address just now, and nobody has it (ip-neighbour(8)). */
async function hasNoNeighbour(run: Run, address: string): Promise<boolean> {
  const found = await ipJson<{ state?: readonly string[] }>(run, ['neighbour', 'show', 'to', address]).catch(
    (error: unknown) => {
      if (isWeftError(error)) return []
      throw error
    },
  )
  const states = found.flatMap(({ state = [] }) => state)
  return states.length > 0 && states.every((state) => state === 'FAILED' || state === 'INCOMPLETE')
}

/** How systemd has the unit, such as `failed since Mon 2026-11-23 03:12:08 UTC (exit-code)`; empty where it has none. */
async function unitState(run: Run): Promise<string> {
  const words = ['show', 'weftd', '--property=LoadState,ActiveState,InactiveEnterTimestamp,Result']
  const { LoadState, ActiveState, InactiveEnterTimestamp, Result } = parseEnv(await run('systemctl', words))
  if (LoadState !== 'loaded') return ''
  const since = InactiveEnterTimestamp ? ` since ${InactiveEnterTimestamp}` : ''
  return `systemd has it ${ActiveState ?? 'in no state'}${since}${Result && Result !== 'success' ? ` (${Result})` : ''}`
}

/** CAP_NET_ADMIN is bit 12 of the effective capabilities (linux/capability.h, proc_pid_status(5)). */
const lacksNetAdminBy = (status: string): boolean => {
  const effective = /^CapEff:\s*([\da-f]+)$/m.exec(status)?.[1]
  return effective !== undefined && ((BigInt(`0x${effective}`) >> 12n) & 1n) === 0n
}

async function tunProblem(): Promise<string | undefined> {
  try {
    await (await open('/dev/net/tun', 'r+')).close()
    return undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? 'an error'
  }
}

/**
 * Compares clocks by the Date of an answer of etcd's HTTP side (RFC 9110 section 6.6.1), which tells it to anybody;
 * whatever the answer is.
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
