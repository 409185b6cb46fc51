// checks.ts - what `weft doctor` looks at, and how each check judges what was seen. Pure.
//
// A check says nothing of what it cannot know: a healthy host is accused of nothing. What there is to find stands in findings.ts.

import { isBackendType, kindOf, KINDS, outerOf, overheadBy, publishers } from '../../path/kinds.ts'
import {
  FAMILIES,
  FAMILY_NAMES,
  formatAddress,
  formatNet,
  netContains,
  parseAddress,
  parseNet,
  type Address,
  type Family,
  type Net,
} from '../../net/address.ts'
import { conditionOf, type Status } from '../../report/status.ts'
import type { Link, Route } from '../../host/links.ts'
import type { Facts } from './facts.ts'
import { each, type Finding } from './findings.ts'
import { checkFirewall, keepsFromLeaving } from './firewall.ts'
import { checkLeases, checkPeers } from './peers.ts'
import { isOwnDevice, networksOf, ownSides, seenSides, sideIn, sideText, type OwnSide, type SeenSide } from './sides.ts'

/** Checks are told in this order. `look` returns undefined when it cannot know. */
interface Check {
  readonly name: string
  readonly look: (facts: Facts) => readonly Finding[] | undefined
}

export const CHECKS: readonly Check[] = [
  { name: 'daemon', look: checkDaemon },
  { name: 'tun', look: checkTun },
  { name: 'families', look: checkFamilies },
  { name: 'forwarding', look: checkForwarding },
  { name: 'firewall', look: checkFirewall },
  { name: 'routes', look: checkRoutes },
  { name: 'store', look: checkStore },
  { name: 'clock', look: checkClock },
  { name: 'config', look: checkConfig },
  { name: 'leases', look: checkLeases },
  { name: 'peers', look: peersHere },
  { name: 'mtu', look: checkMtu },
  { name: 'containers', look: checkContainers },
  { name: 'drops', look: checkDrops },
]

const CLOCK_MS = 60_000
const LEASE_MS = 24 * 3_600_000
const STALE_S = 180
function checkDaemon({ status, silence, isForbidden, isRoot, unit }: Facts): Finding[] {
  const findings: Finding[] = isRoot ? [] : [{ name: 'not-root', detail: '' }]
  if (isForbidden) return findings
  if (!status || silence !== undefined) {
    const carrier = status?.dataPath?.engine
    const effect =
      carrier === 'kernel'
        ? 'the kernel goes on forwarding by what weftd set up last'
        : carrier && carrier !== 'none'
          ? 'nobody carries the packets of this node'
          : ''
    const details = [silence ?? '', unit ?? '', effect].filter((text) => text !== '')
    return [...findings, ...each('daemon-silent', details.length > 0 ? details : [''], (detail) => detail)]
  }
  const { state, impairments, trouble, dataPath } = status
  const detail = trouble ?? ''
  if (state === 'starting') return [...findings, { name: 'daemon-waits', detail }]
  if (state === 'forwarding') return [...findings, { name: 'daemon-as-known', detail }]
  if (state === 'leaving') return [...findings, { name: 'daemon-leaves', detail }]
  const hung = dataPath?.threads.find(({ hungSeconds }) => hungSeconds !== null)
  const down = dataPath?.open === false ? detail : hung && `the thread ${hung.name} hangs`
  return [
    ...findings,
    ...(down === undefined ? [] : [{ name: 'data-path-down', detail: down } as const]),
    ...impairments
      .filter(({ by }) => by === 'rules')
      .map(({ what }) => ({ name: 'rules-failing', detail: what }) as const),
  ]
}

/** The TUN is needed only by a backend that weftd itself carries; which one it is is not known before the configuration. */
function checkTun({ status, tunProblem }: Facts): Finding[] | undefined {
  if (status?.dataPath?.engine === 'kernel' || status?.dataPath?.engine === 'none') return []
  if (tunProblem === undefined) return []
  const isForbidden = tunProblem === 'EPERM' || tunProblem === 'EACCES'
  return [{ name: isForbidden ? 'tun-forbidden' : 'tun-missing', detail: tunProblem }]
}

/** What befalls a family that the network has, whichever peer is asked. */
function checkFamilies({ status, defaultRoutes }: Facts): Finding[] | undefined {
  const { config, dataPath } = status ?? {}
  if (!config) return undefined
  const gone = FAMILIES.flatMap((family) => {
    const what = dataPath?.addressGone?.[family] ?? undefined
    return what === undefined ? [] : [{ name: 'address-gone', detail: `${FAMILY_NAMES[family]}: ${what}` } as const]
  })
  const { ipv4, ipv6 } = networksOf(config)
  if (!ipv4 || !ipv6) return gone
  // A weftd of before tells of none.
  const carried = dataPath?.open ? dataPath.families : undefined
  const without = FAMILIES.filter((family) => defaultRoutes[family] === false)
  const down = FAMILIES.flatMap((family) => {
    const why = dataPath?.lacking?.[family] ?? undefined
    return why === undefined ? [] : [`${FAMILY_NAMES[family]}: ${why}`]
  })
  return [
    ...gone,
    ...down.map((detail) => ({ name: 'family-down', detail }) as const),
    ...(carried?.includes('ipv6') === false ? [{ name: 'family-not-carried', detail: formatNet(ipv6) } as const] : []),
    ...(without.length === 1
      ? without.map((family) => ({ name: 'no-default-route', detail: FAMILY_NAMES[family] }) as const)
      : []),
  ]
}

function checkForwarding({ status, isForwarding, isForwardingIpv6, bridgeFilter }: Facts): Finding[] {
  const hasIpv4 = !status?.config || networksOf(status.config).ipv4 !== undefined
  // Without it what a pod sends to a Service, and another pod of its bridge answers, is not translated back.
  const isUnfiltered = status?.store.name === 'kubernetes' && bridgeFilter !== '1'
  return [
    ...(isUnfiltered ? [{ name: 'bridge-filter-off', detail: '' } as const] : []),
    ...(isForwarding || !hasIpv4 ? [] : [{ name: 'forwarding-off', detail: '' } as const]),
    ...(isForwardingIpv6 === false ? [{ name: 'forwarding-off-ipv6', detail: '' } as const] : []),
  ]
}

/** The metric of a usual route: one of a lower metric comes first (net/ipv6/route.c, IP6_RT_PRIO_USER). */
const USUAL_METRIC: Readonly<Record<Family, number>> = { ipv4: 0, ipv6: 1024 }

function checkRoutes({ status, routes, silence }: Facts): Finding[] | undefined {
  const path = status?.dataPath
  if (!status || !path || path.engine === null || path.engine === 'none') return undefined
  // What a dead weftd left is to stand as it did.
  if (!path.open && silence === undefined) return undefined
  const sides = ownSides(status).filter(({ family }) => path.families?.includes(family) ?? family === 'ipv4')
  return sides.length === 0 ? undefined : sides.flatMap((side) => checkRoutesOf(side, status, routes))
}

function checkRoutesOf({ family, network, subnet }: OwnSide, status: Status, routes: readonly Route[]): Finding[] {
  // A path that weftd carries itself has one route to the whole network; one that the kernel carries has that, or one
  // to each peer.
  const isOneRoute =
    status.dataPath?.engine !== 'kernel' || kindOf(status.config?.backendType ?? '')?.routes === 'network'
  const peers = (status.peers?.list ?? []).flatMap((peer) => {
    const { subnet: net, publicIp, state } = sideIn(peer, family)
    return net ? [{ net: formatNet(net), publicIp, state }] : []
  })
  const hosts = new Map(peers.map(({ net, publicIp }) => [net, publicIp]))
  const whole = formatNet(network)
  const isRight = ({ destination, device, gateway }: Route): boolean => {
    const net = parseNet(destination)
    if (!net || isOwnDevice(status, family, device)) return true
    if (destination === whole) return !isOneRoute
    const isOwn = net.prefixLength >= subnet.prefixLength && netContains(subnet, net.address)
    // Past the tunnel, as host-gw does and DirectRouting may.
    return isOwn || (gateway !== undefined && hosts.get(destination) === parseAddress(gateway))
  }
  const first = routes.filter(({ destination, metric }) => {
    const net = parseNet(destination)
    return metric <= USUAL_METRIC[family] && net !== undefined && netContains(network, net.address)
  })
  const there = new Set(first.map(({ destination }) => destination))
  const wanted = isOneRoute ? [whole] : peers.filter(({ state }) => state !== 'stored').map(({ net }) => net)
  return [
    ...each(
      'foreign-route',
      first.filter((route) => !isRight(route)),
      ({ destination, device, gateway }) =>
        `${destination} goes ${gateway === undefined ? '' : `via ${gateway} `}to ${device === '' ? 'nowhere' : device}`,
    ),
    ...each(
      'no-route',
      wanted.filter((destination) => !there.has(destination)),
      (destination) => destination,
    ),
  ]
}

function checkStore({ status, silence, store: seen }: Facts): Finding[] | undefined {
  if (silence !== undefined)
    return seen && (seen.problem === undefined ? [] : [{ name: 'store-away', detail: seen.problem }])
  if (!status?.node) return undefined
  const { store } = status
  const age = store.comparedSecondsAgo
  const where = `${store.name}: ${status.daemon.leases}`
  if (!store.reachable) return [{ name: 'store-away', detail: where }]
  if (age !== null && age > STALE_S)
    return [{ name: 'store-stale', detail: `${where}: compared ${Math.round(age)} s ago` }]
  return [
    ...(store.held > 0 ? [{ name: 'peers-held', detail: `${store.held} peers` } as const] : []),
    ...(store.configGone ? [{ name: 'config-missing', detail: where } as const] : []),
  ]
}

/** The store's configuration against what this node and the others run by. */
function checkConfig({ status, store, silence }: Facts): Finding[] | undefined {
  if (!store || store.problem !== undefined) return undefined
  const wanted = store.config
  if (!wanted || !status?.config) return [] // nothing to compare
  const { config, peers } = status
  const backendOf = ({ backendType, backend }: NonNullable<Status['config']>): string =>
    `${backendType} ${JSON.stringify(Object.entries(backend).toSorted(([a], [b]) => (a < b ? -1 : 1)))}`
  // A dead weftd would begin by what the store has.
  const here =
    silence !== undefined
      ? undefined
      : config.backendType !== wanted.backendType
        ? `this node runs ${config.backendType}`
        : [config.network, config.ipv6Network].join() !== [wanted.network, wanted.ipv6Network].join()
          ? `this node has the network ${[config.network, config.ipv6Network ?? []].flat().join(' and ')}`
          : backendOf(config) !== backendOf(wanted)
            ? `this node runs ${config.backendType} with other options`
            : undefined
  const published = kindOf(wanted.backendType)?.published
  const others = (peers?.list ?? []).filter(({ type }) => published !== undefined && type !== published)
  return each(
    'config-differs',
    [
      ...(here === undefined ? [] : [here]),
      ...others.map(({ subnet, publicIp, type }) => `${subnet} at ${publicIp} runs ${publishers(type)}`),
    ],
    (who) => `${who}, and the store says ${wanted.backendType}`,
  )
}

function checkClock({ status, now, storeAheadMs, silence }: Facts): Finding[] | undefined {
  if (storeAheadMs !== undefined && Math.abs(storeAheadMs) > CLOCK_MS) {
    const [by, which] = [Math.round(Math.abs(storeAheadMs) / 1000), storeAheadMs > 0 ? 'behind' : 'ahead of']
    return [{ name: 'clock-off', detail: `${by} s ${which} the store's` }]
  }
  // A dead weftd renews nothing.
  const ends = silence === undefined ? status?.lease?.expiresAt : undefined
  if (!ends) return storeAheadMs === undefined ? undefined : []
  const leftMs = Date.parse(ends) - now
  // A lease is for a day from when it was written, and renewed before it ends.
  if (leftMs > LEASE_MS + CLOCK_MS)
    return [{ name: 'clock-off', detail: `the lease of a day ends in ${Math.round(leftMs / 3_600_000)} h` }]
  return leftMs < -CLOCK_MS
    ? [{ name: 'clock-off', detail: `the lease that is held ended ${Math.round(-leftMs / 60_000)} min ago` }]
    : []
}

function peersHere(facts: Facts): Finding[] | undefined {
  return checkPeers(facts, isSendingWrong(facts))
}

/** True where this host itself is known to keep packets to other nodes from leaving, or to send them elsewhere. */
function isSendingWrong(facts: Facts): boolean {
  const found = [checkRoutes, checkDrops].flatMap((look) => look(facts) ?? [])
  const isRefused = found.some(
    ({ name, detail }) =>
      name === 'foreign-route' || (name === 'packets-dropped' && detail.startsWith('tx_drop_refused')),
  )
  return isRefused || keepsFromLeaving(facts)
}

function checkMtu({ status, links, answers }: Facts): Finding[] | undefined {
  const { config, dataPath, node, peers } = status ?? {}
  const mtu = dataPath?.mtu
  if (!status || !mtu || !config) return undefined
  const sides = ownSides(status)
  if (sides.length === 0) return undefined
  const seen = (peers?.list ?? []).flatMap((peer) => seenSides(peer, answers))
  // Whoever answers now is believed before what the daemon last saw.
  const isCut = (side: SeenSide): boolean =>
    side.answers ? side.answers.small && !side.answers.large : conditionOf(side) === 'narrow'
  const isWhole = (side: SeenSide): boolean => side.answers?.large ?? side.path === 'whole'
  const cut = seen.filter(isCut)
  const external = links.find(({ name }) => name === node?.externalInterface)
  const whole = mtu + overheadOf(config.backendType, dataPath.families ?? [])
  const bridges = links.filter(
    (link) =>
      link.mtu > mtu &&
      isContainers(link.name) &&
      addressesOf(link).some((address) => sides.some(({ subnet }) => netContains(subnet, address))),
  )
  const whose =
    external && whole > external.mtu
      ? `it is this host's ${external.name}, which takes ${external.mtu} bytes`
      : seen.some((side) => isWhole(side) && side.state !== 'stored')
        ? 'others take them: look at the external interface of that host first, then at what is between'
        : cut.length > 1
          ? 'no peer takes them: look at this host first, and at the network that it is in'
          : "look at both hosts' external interfaces, then at what is between: weft doctor there knows its own"
  const cutText = (side: SeenSide): string => {
    const longest = side.answers ? side.answers.longest : (side.passesBytes ?? undefined)
    const since = side.pathSince !== null && conditionOf(side) === 'narrow' ? ` since ${side.pathSince}` : ''
    const found = longest === undefined ? '' : `, of up to ${longest} they do`
    return `${sideText(side)}: packets of ${mtu} bytes do not come back${since}${found}; ${whose}`
  }
  return [
    ...each('path-mtu', cut, cutText),
    ...(external && whole > external.mtu
      ? [
          {
            name: 'mtu-too-large',
            detail: `${mtu} bytes plus the tunnel's headers are ${whole}, but ${external.name} takes ${external.mtu}`,
          } as const,
        ]
      : []),
    ...(mtu < (dataPath.mtuAtStart ?? mtu)
      ? [
          {
            name: 'mtu-shrunk',
            detail: `${mtu} bytes${external ? ` since ${external.name} takes ${external.mtu}` : ''}, and ${dataPath.mtuAtStart} when weftd started`,
          } as const,
        ]
      : []),
    ...each('bridge-mtu', bridges, (link) => `${link.name} has ${link.mtu}, the data path ${mtu}`),
  ]
}

/** The bytes around a packet, by the longer of the outer headers where there are any. */
function overheadOf(type: string, families: readonly Family[]): number {
  if (!isBackendType(type) || KINDS[type].overhead === 0) return 0
  return overheadBy(type, outerOf(type, families.includes('ipv6') ? 'ipv6' : 'ipv4'))
}

const addressesOf = ({ addresses }: Link): readonly Address[] =>
  [...addresses.ipv4, ...addresses.ipv6].map(({ address }) => address)

const isContainers = (name: string): boolean => /^(docker|cni|br-|cbr|bridge|podman|nerdctl)/.test(name)

function checkContainers({ status, links, subnetEnv, silence }: Facts): Finding[] | undefined {
  const { node, dataPath, daemon } = status ?? {}
  const sides = status ? ownSides(status) : []
  if (sides.length === 0 || !node || !daemon || !dataPath || (!dataPath.open && silence === undefined)) return undefined
  const elsewhere = links
    .filter(({ name }) => isContainers(name))
    .flatMap((link) => addressesOf(link).map((address) => ({ name: link.name, address })))
    .flatMap(({ name, address }) => {
      const side = sides.find(({ network, subnet }) => netContains(network, address) && !netContains(subnet, address))
      return side ? [{ name, address, side }] : []
    })
  const unlike = sides.flatMap(({ family, subnet }) => {
    const says = subnetEnv?.[family === 'ipv4' ? 'FLANNEL_SUBNET' : 'FLANNEL_IPV6_SUBNET'] ?? ''
    return says === firstAddressOf(subnet) ? [] : [{ family, subnet, says }]
  })
  const [first] = unlike
  const wrong =
    subnetEnv === undefined
      ? `${daemon.subnetFile} is not there`
      : first
        ? `${daemon.subnetFile} says ${first.says === '' ? (first.family === 'ipv4' ? 'no subnet' : 'no IPv6 subnet') : first.says}, and this node has ${formatNet(first.subnet)}`
        : subnetEnv['FLANNEL_MTU'] === String(dataPath.mtu)
          ? undefined
          : `${daemon.subnetFile} says MTU ${subnetEnv['FLANNEL_MTU']}, and the data path has ${dataPath.mtu}`
  return [
    ...(wrong === undefined ? [] : [{ name: 'subnet-env-wrong', detail: wrong } as const]),
    ...each(
      'bridge-elsewhere',
      elsewhere,
      ({ name, address, side }) => `${name} has ${formatAddress(address)}, and this node ${formatNet(side.subnet)}`,
    ),
  ]
}

/** As subnet.env has a subnet: `10.5.1.1/24`. */
const firstAddressOf = ({ address, prefixLength }: Net): string =>
  `${formatAddress(typeof address === 'number' ? address + 1 : address + 1n)}/${prefixLength}`

/**
 * The drops that tell of trouble. Those of a healthy network now and then (no route to a node that has gone, the first
 * packets before a lease) are left out.
 */
const TELLING = [
  'rx_drop_socket_full',
  'rx_drop_spoofed_source',
  'tx_drop_too_big',
  'tx_drop_socket_full',
  'tx_drop_refused',
  'rx_drop_truncated',
]
/** So many, and such a part of all, are told of: lately, since what is over is to be left alone. */
const TELLING_NUMBER = 10
const TELLING_SHARE = 0.001

function checkDrops({ status, silence }: Facts): Finding[] | undefined {
  if (silence !== undefined) return undefined // counted by nobody
  const { recent } = status?.dataPath ?? {}
  if (!recent) return undefined
  const { drops, packets, seconds } = recent
  return TELLING.flatMap((name) => {
    const number = drops[name] ?? 0
    return number > Math.max(TELLING_NUMBER, packets * TELLING_SHARE)
      ? [{ name: 'packets-dropped', detail: `${name}: ${number} in the last ${Math.round(seconds)} s` } as const]
      : []
  })
}

export interface Diagnosis {
  readonly check: string
  /** Undefined where it could not be known. */
  readonly findings: readonly Finding[] | undefined
}

export const diagnose = (facts: Facts): readonly Diagnosis[] =>
  CHECKS.map(({ name, look }) => ({ check: name, findings: look(facts) }))

/** Checks that need no more than what the daemon says of itself; the rest need the host's own tools. */
const BY_STATUS = [checkDaemon, checkFamilies, checkStore, checkClock, checkLeases, peersHere, checkMtu, checkDrops]
const NOTHING_ELSE: Omit<Facts, 'status' | 'now'> = {
  ...{ silence: undefined, isRoot: true, tunProblem: undefined, isForwarding: true, links: [], routes: [] },
  ...{ isForwardingIpv6: undefined, defaultRoutes: {} },
  ...{ iptables: undefined, ip6tables: undefined, nft: undefined, subnetEnv: undefined, storeAheadMs: undefined },
  ...{ answers: new Map(), unasked: undefined, reaches: new Map(), store: undefined },
}

/** The findings of a status alone, as the page for browsers shows them. */
export function diagnoseStatus(status: Status): readonly Finding[] {
  const facts = { ...NOTHING_ELSE, status, now: Date.parse(status.at) }
  return BY_STATUS.flatMap((look) => look(facts) ?? [])
}
