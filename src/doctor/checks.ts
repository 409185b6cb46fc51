// checks.ts - what `weft doctor` looks at, and how each check judges what was seen. Pure.
//
// A check says nothing of what it cannot know: a healthy host is accused of nothing. What there is to find stands in findings.ts.

import { kindOf } from '../kinds.ts'
import { compareAddresses, netContains, parseNet } from '../net/address.ts'
import { formatIpv4, ipv4NetContains, parseIpv4Net } from '../net/ipv4.ts'
import type { PeerStatus, Status } from '../status/status.ts'
import type { Route } from '../host/links.ts'
import type { Facts } from './facts.ts'
import type { Finding, FindingName } from './findings.ts'
import { checkFirewall } from './firewall.ts'

/** In the order in which they are told. `look` returns undefined where it cannot know. */
interface Check {
  readonly name: string
  readonly look: (facts: Facts) => readonly Finding[] | undefined
}

export const CHECKS: readonly Check[] = [
  { name: 'daemon', look: checkDaemon },
  { name: 'tun', look: checkTun },
  { name: 'forwarding', look: ({ isForwarding }) => (isForwarding ? [] : [{ name: 'forwarding-off', detail: '' }]) },
  { name: 'firewall', look: checkFirewall },
  { name: 'routes', look: checkRoutes },
  { name: 'store', look: checkStore },
  { name: 'clock', look: checkClock },
  { name: 'leases', look: checkLeases },
  { name: 'peers', look: checkPeers },
  { name: 'mtu', look: checkMtu },
  { name: 'containers', look: checkContainers },
  { name: 'drops', look: checkDrops },
]

const LOSSY_PERCENT = 20
/** With so many lost, one that went has been silent for more than two intervals. */
const SILENT_PERCENT = 40
const CLOCK_MS = 60_000
const LEASE_MS = 24 * 3_600_000
const STALE_S = 180
/** Named of what may be many. */
const NAMED = 5

/** The first few, each as a finding of its own, and the rest as one. */
function each<T>(name: FindingName, all: readonly T[], detailOf: (one: T) => string): Finding[] {
  const shown = all.slice(0, NAMED).map((one) => ({ name, detail: detailOf(one) }))
  return all.length > NAMED ? [...shown, { name, detail: `and ${all.length - NAMED} more` }] : shown
}

function checkDaemon({ status, silence, isForbidden, isRoot }: Facts): Finding[] {
  const findings: Finding[] = isRoot ? [] : [{ name: 'not-root', detail: '' }]
  if (!status && isForbidden) return findings
  if (!status) return [...findings, { name: 'daemon-silent', detail: silence ?? '' }]
  if (status.state === 'starting') return [...findings, { name: 'daemon-waits', detail: status.trouble ?? '' }]
  const hung = status.dataPath?.threads.find(({ hungSeconds }) => hungSeconds !== null)
  if (status.dataPath?.open === false) return [...findings, { name: 'data-path-down', detail: status.trouble ?? '' }]
  return hung ? [...findings, { name: 'data-path-down', detail: `the thread ${hung.name} hangs` }] : findings
}

/** Only a backend that weftd itself carries needs it; whether it does is not known before it has its configuration. */
function checkTun({ status, tunProblem }: Facts): Finding[] | undefined {
  if (status?.dataPath?.engine === 'kernel' || status?.dataPath?.engine === 'none') return []
  if (tunProblem === undefined) return []
  const isForbidden = tunProblem === 'EPERM' || tunProblem === 'EACCES'
  return [{ name: isForbidden ? 'tun-forbidden' : 'tun-missing', detail: tunProblem }]
}

function checkRoutes({ status, routes }: Facts): Finding[] | undefined {
  const path = status?.dataPath
  const [whole, subnet] = [status?.config?.network ?? '', parseIpv4Net(status?.node?.subnet ?? '')]
  if (!status || !subnet || !path?.open || path.engine === 'none') return undefined
  // What weftd carries itself has one route to the whole network; what the kernel carries has that, or one to each peer.
  const isOneRoute = path.engine !== 'kernel' || kindOf(status.config?.backendType ?? '')?.routes === 'network'
  const peers = new Map((status.peers?.list ?? []).map((peer) => [peer.subnet, peer]))
  const isRight = ({ destination, device, gateway }: Route): boolean => {
    const net = parseIpv4Net(destination)
    if (!net || device === path.device) return true
    if (destination === whole) return !isOneRoute
    const isOwn = net.prefixLength >= subnet.prefixLength && ipv4NetContains(subnet, net.address)
    // Past the tunnel, as host-gw does and DirectRouting may.
    return isOwn || (gateway !== undefined && peers.get(destination)?.publicIp === gateway)
  }
  const main = routes.filter(({ metric }) => metric === 0)
  const there = new Set(main.map(({ destination }) => destination))
  const wanted = isOneRoute
    ? [whole]
    : [...peers.values()].filter(({ state }) => state !== 'stored').map((peer) => peer.subnet)
  return [
    ...each(
      'foreign-route',
      main.filter((route) => !isRight(route)),
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

function checkStore({ status }: Facts): Finding[] | undefined {
  if (!status?.node) return undefined
  const { store } = status
  const age = store.comparedSecondsAgo
  const seen = `${store.name}: ${status.daemon.leases}`
  if (!store.reachable) return [{ name: 'store-away', detail: seen }]
  if (age !== null && age > STALE_S)
    return [{ name: 'store-stale', detail: `${seen}: compared ${Math.round(age)} s ago` }]
  return store.held > 0 ? [{ name: 'peers-held', detail: `${store.held} peers` }] : []
}

function checkClock({ status, now, storeAheadMs }: Facts): Finding[] | undefined {
  if (storeAheadMs !== undefined && Math.abs(storeAheadMs) > CLOCK_MS) {
    const [by, which] = [Math.round(Math.abs(storeAheadMs) / 1000), storeAheadMs > 0 ? 'behind' : 'ahead of']
    return [{ name: 'clock-off', detail: `${by} s ${which} the store's` }]
  }
  const ends = status?.lease?.expiresAt
  if (!ends) return storeAheadMs === undefined ? undefined : []
  const leftMs = Date.parse(ends) - now
  // A lease is for a day from when it was written, and renewed before it ends.
  if (leftMs > LEASE_MS + CLOCK_MS)
    return [{ name: 'clock-off', detail: `the lease of a day ends in ${Math.round(leftMs / 3_600_000)} h` }]
  return leftMs < -CLOCK_MS
    ? [{ name: 'clock-off', detail: `the lease that is held ended ${Math.round(-leftMs / 60_000)} min ago` }]
    : []
}

function checkLeases({ status }: Facts): Finding[] | undefined {
  const { node, peers } = status ?? {}
  if (!node || !peers) return undefined
  const nodes = [{ subnet: node.subnet, publicIp: node.publicIp }, ...peers.list]
  const sorted = nodes
    .flatMap((one) => {
      const net = parseNet(one.subnet)
      return net ? [{ ...one, net }] : []
    })
    .toSorted((a, b) => compareAddresses(a.net.address, b.net.address) || a.net.prefixLength - b.net.prefixLength)
  const across = sorted.slice(1).flatMap((one, at) => {
    const before = sorted[at]
    return before && netContains(before.net, one.net.address) ? [[before, one] as const] : []
  })
  const twice = peers.list.filter(({ publicIp }) => publicIp === node.publicIp)
  return [
    ...each('subnet-twice', across, ([a, b]) => `${a.subnet} of ${a.publicIp} and ${b.subnet} of ${b.publicIp}`),
    ...each('address-twice', twice, ({ subnet, publicIp }) => `${publicIp} leases ${subnet} too`),
    // A weftd of before tells of none.
    ...(node.twin ? [{ name: 'address-twice', detail: `${node.publicIp}, as ${node.twin}` } as const] : []),
  ]
}

function checkPeers({ status, answers, unasked }: Facts): Finding[] | undefined {
  if (!status?.peers || !status.node) return undefined
  const own = status.node.publicIp
  const { list, answering, probeSeconds } = status.peers
  const unusable = list.filter(({ state, publicIp }) => state === 'stored' && publicIp !== own)
  const programmed = list.filter(({ state }) => state !== 'stored')
  const isSilent = ({ lease, state, lossPercent }: PeerStatus): boolean =>
    answers.has(lease)
      ? !answers.get(lease)?.small
      : answering !== null && lossPercent !== null && state !== 'answering'
  const silent = programmed.filter(isSilent)
  const lossy = programmed.filter((peer) => !isSilent(peer) && (peer.lossPercent ?? 0) >= LOSSY_PERCENT)
  // Heard since it was last asked, or while it was asked in vain: it lives, and one direction is open.
  // A status of a moment ago, in which it answers still, tells nothing of that.
  const isOneWay = ({ state, heardSecondsAgo: heard, probedSecondsAgo: asked, lossPercent }: PeerStatus): boolean =>
    state !== 'answering' &&
    heard !== null &&
    asked !== null &&
    (heard + 1 < asked || (SILENT_PERCENT <= (lossPercent ?? 0) && heard < 2 * (probeSeconds ?? 0)))
  const heard = (peer: PeerStatus): string =>
    peer.heardSecondsAgo === null
      ? 'nothing was ever heard of it'
      : `last heard ${Math.round(peer.heardSecondsAgo)} s ago` +
        (isOneWay(peer) ? '; it sends, and what is sent to it is lost: look at the firewall there first' : '')
  const isBlind = answering === null && answers.size === 0 && programmed.length > 0
  return [
    ...each(
      'peer-unusable',
      status.dataPath?.open ? unusable : [],
      (peer) => `${peer.subnet} at ${peer.publicIp}${peer.type === '' ? '' : `, of type ${peer.type}`}`,
    ),
    ...each('peer-silent', silent, (peer) => `${peer.subnet} at ${peer.endpoint ?? peer.publicIp}: ${heard(peer)}`),
    ...each('peer-lossy', lossy, (peer) => `${peer.subnet} at ${peer.endpoint ?? peer.publicIp}: ${peer.lossPercent}%`),
    ...(isBlind ? [{ name: 'peers-unasked', detail: unasked ?? '' } as const] : []),
  ]
}

function checkMtu({ status, links, answers }: Facts): Finding[] | undefined {
  const { config, dataPath, node, peers } = status ?? {}
  const mtu = dataPath?.mtu
  const subnet = parseIpv4Net(node?.subnet ?? '')
  if (!mtu || !subnet || !config) return undefined
  const cut = (peers?.list ?? []).filter(({ lease }) => answers.get(lease)?.small && !answers.get(lease)?.large)
  const external = links.find(({ name }) => name === node?.externalInterface)
  const whole = mtu + (kindOf(config.backendType)?.overhead ?? 0)
  const bridges = links.filter(
    (link) =>
      link.mtu > mtu &&
      isContainers(link.name) &&
      link.addresses.some(({ address }) => ipv4NetContains(subnet, address)),
  )
  return [
    ...each(
      'path-mtu',
      cut,
      (peer) => `${peer.subnet} at ${peer.endpoint ?? peer.publicIp}: packets of ${mtu} bytes do not come back`,
    ),
    ...(external && whole > external.mtu
      ? [
          {
            name: 'mtu-too-large',
            detail: `${mtu} bytes and what stands before them are ${whole}, and ${external.name} takes ${external.mtu}`,
          } as const,
        ]
      : []),
    ...each('bridge-mtu', bridges, (link) => `${link.name} has ${link.mtu}, the data path ${mtu}`),
  ]
}

const isContainers = (name: string): boolean => /^(docker|cni|br-|cbr|bridge|podman|nerdctl)/.test(name)

function checkContainers({ status, links, subnetEnv }: Facts): Finding[] | undefined {
  const { config, node, dataPath, daemon } = status ?? {}
  const [network, subnet] = [parseIpv4Net(config?.network ?? ''), parseIpv4Net(node?.subnet ?? '')]
  if (!network || !subnet || !node || !daemon || !dataPath?.open) return undefined
  const elsewhere = links
    .filter(({ name }) => isContainers(name))
    .flatMap(({ name, addresses }) => addresses.map(({ address }) => ({ name, address })))
    .filter(({ address }) => ipv4NetContains(network, address) && !ipv4NetContains(subnet, address))
  const says = subnetEnv?.['FLANNEL_SUBNET'] ?? ''
  const wrong =
    subnetEnv === undefined
      ? `${daemon.subnetFile} is not there`
      : says !== `${formatIpv4(subnet.address + 1)}/${subnet.prefixLength}`
        ? `${daemon.subnetFile} says ${says === '' ? 'no subnet' : says}, and this node has ${node.subnet}`
        : subnetEnv['FLANNEL_MTU'] === String(dataPath.mtu)
          ? undefined
          : `${daemon.subnetFile} says MTU ${subnetEnv['FLANNEL_MTU']}, and the data path has ${dataPath.mtu}`
  return [
    ...(wrong === undefined ? [] : [{ name: 'subnet-env-wrong', detail: wrong } as const]),
    ...each(
      'bridge-elsewhere',
      elsewhere,
      ({ name, address }) => `${name} has ${formatIpv4(address)}, and this node ${node.subnet}`,
    ),
  ]
}

/** Of what a healthy network drops now and then (no route to a node that has gone, the first packets before a lease) nothing is said. */
const TELLING = [
  'rx_drop_socket_full',
  'rx_drop_spoofed_source',
  'tx_drop_too_big',
  'tx_drop_socket_full',
  'rx_drop_truncated',
]
const TELLING_SHARE = 0.001

function checkDrops({ status }: Facts): Finding[] | undefined {
  const { drops, counters } = status?.dataPath ?? {}
  if (!drops || !counters) return undefined
  const all = (counters['rx_packets'] ?? 0) + (counters['tx_packets'] ?? 0)
  return TELLING.flatMap((name) => {
    const number = drops[name] ?? 0
    return number > Math.max(10, all * TELLING_SHARE)
      ? [{ name: 'packets-dropped', detail: `${name}: ${number}` } as const]
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
const BY_STATUS = [checkDaemon, checkStore, checkClock, checkLeases, checkPeers, checkDrops]
const NOTHING_ELSE: Omit<Facts, 'status' | 'now'> = {
  ...{ silence: undefined, isRoot: true, tunProblem: undefined, isForwarding: true, links: [], routes: [] },
  ...{ iptables: undefined, nft: undefined, subnetEnv: undefined, storeAheadMs: undefined },
  ...{ answers: new Map(), unasked: undefined },
}

/** What can be found of a status alone, as the page does that a browser shows. */
export function diagnoseStatus(status: Status): readonly Finding[] {
  const facts = { ...NOTHING_ELSE, status, now: Date.parse(status.at) }
  return BY_STATUS.flatMap((look) => look(facts) ?? [])
}
