// checks.ts - all that `weft doctor` can find, as one table, and how each check judges what was seen. Pure.
//
// docs/doctor.md has the same table, which a test compares. A check says nothing of what it cannot know: a healthy host is accused of
// nothing.

import { formatIpv4, ipv4NetContains, ipv4NetsOverlap, parseIpv4, parseIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import type { PeerStatus, Status } from '../status/status.ts'
import type { Route } from '../host/links.ts'
import type { Facts } from './facts.ts'
import { walkFilter, type FilteredPacket } from './filter-walk.ts'

export type Level = 'warning' | 'failure'

interface Possible {
  /** Of CHECKS. */
  readonly check: string
  readonly level: Level
  /** What it is, and what it does to the network. */
  readonly means: string
  readonly fix: string
}

/** By the name that programs match. */
export const FINDINGS = {
  'daemon-silent': {
    ...{ check: 'daemon', level: 'failure' },
    means: 'weftd does not run, or does not answer: routes and rules are not kept, and with udp no packet crosses',
    fix: 'start it (`systemctl start weftd`), and read the last line of its log; a second daemon on the host has its socket elsewhere: --status-socket',
  },
  'daemon-waits': {
    ...{ check: 'daemon', level: 'failure' },
    means: 'weftd has no lease yet, and no packet crosses',
    fix: 'see what it waits for, and the errors above it in its log',
  },
  'data-path-down': {
    ...{ check: 'daemon', level: 'failure' },
    means: 'packets are not forwarded',
    fix: 'see the errors in its log; where a thread hangs only a restart mends that: `systemctl restart weftd`',
  },
  'not-root': {
    ...{ check: 'daemon', level: 'warning' },
    means: 'not all can be looked at, and nobody can be asked',
    fix: 'run weft doctor as root',
  },
  'tun-missing': {
    ...{ check: 'tun', level: 'failure' },
    means: 'the kernel or this container has no /dev/net/tun, without which weftd cannot carry packets',
    fix: 'load the module (`modprobe tun`), or give the container the device (`--device /dev/net/tun`)',
  },
  'tun-forbidden': {
    ...{ check: 'tun', level: 'failure' },
    means: '/dev/net/tun may not be opened',
    fix: 'in a container, allow the device: `--device /dev/net/tun`; else see its mode, which is 0666',
  },
  'forwarding-off': {
    ...{ check: 'forwarding', level: 'failure' },
    means: 'net.ipv4.ip_forward is 0: no packet of a container leaves this host, and none comes in',
    fix: '`sysctl -w net.ipv4.ip_forward=1`, and in /etc/sysctl.d for the next boot',
  },
  'forward-dropped': {
    ...{ check: 'firewall', level: 'failure' },
    means: "the FORWARD chain drops packets between this node's containers and others",
    fix: 'start weftd without --iptables-forward-rules=false, or accept both directions: `iptables -I FORWARD -s NETWORK -j ACCEPT`, and `-d`',
  },
  'port-dropped': {
    ...{ check: 'firewall', level: 'failure' },
    means: "this host's firewall drops what other nodes send to it",
    fix: "let the other nodes in at the backend's port: `iptables -I INPUT -p udp --dport PORT -s NODE -j ACCEPT`",
  },
  'nft-drops': {
    ...{ check: 'firewall', level: 'warning' },
    means: 'a chain of nftables drops what its rules do not accept; weft does not read its rules',
    fix: "see that it accepts the network in `forward` and the backend's port in `input`: `nft list ruleset`",
  },
  'foreign-route': {
    ...{ check: 'routes', level: 'failure' },
    means: "a route that is not weft's takes packets to a part of the network elsewhere",
    fix: 'remove it with `ip route del`, unless it is wanted',
  },
  'no-route': {
    ...{ check: 'routes', level: 'failure' },
    means: 'there is no route to the network, or to a peer: packets to it leave by the default route',
    fix: 'weftd puts it back within seconds while it runs; see the errors in its log',
  },
  'store-away': {
    ...{ check: 'store', level: 'failure' },
    means:
      'the store does not answer: known peers are reached on, new ones are not, and the lease ends when it is not renewed',
    fix: 'see whether it runs and can be reached from here, and the errors in the log of weftd',
  },
  'store-stale': {
    ...{ check: 'store', level: 'failure' },
    means: 'the leases were not compared with the store for minutes: what changed meanwhile is not known',
    fix: 'see the errors in the log of weftd; over NFS see that the server answers',
  },
  'peers-held': {
    ...{ check: 'store', level: 'warning' },
    means: 'most leases vanished from the store at once; their nodes are still forwarded to',
    fix: 'if the store was restored or wiped, restart nothing: each node writes its lease again',
  },
  'clock-off': {
    ...{ check: 'clock', level: 'warning' },
    means:
      "this host's clock differs from the store's, or from its own when the lease was written: leases and certificates seem to end at other times",
    fix: 'have it set: `timedatectl set-ntp true`, chrony or the like',
  },
  'subnet-twice': {
    ...{ check: 'leases', level: 'failure' },
    means: 'two nodes have one subnet, or parts of one: packets to what both have reach only one of them',
    fix: 'delete the lease that is wrong (`weft lease release SUBNET`), and restart its node',
  },
  'address-twice': {
    ...{ check: 'leases', level: 'failure' },
    means: 'two hosts say that they have one public IP: both hold one subnet, and packets reach only one of them',
    fix: 'give each its own with --public-ip or --iface, and release the lease that nobody holds: `weft lease release SUBNET`',
  },
  'peer-unusable': {
    ...{ check: 'peers', level: 'failure' },
    means: 'a node has a lease that this one cannot use: no packet goes there',
    fix: 'read why in the log of weftd (`is not used`, `Ignoring`); all nodes must have one backend type',
  },
  'peer-silent': {
    ...{ check: 'peers', level: 'failure' },
    means: 'a peer does not answer through the data path',
    fix: "see whether its daemon runs, and whether both hosts' firewalls, and what is between them, let the backend's port pass, both ways; run weft doctor there",
  },
  'peer-lossy': {
    ...{ check: 'peers', level: 'warning' },
    means: 'of the last probes of a peer some were lost',
    fix: 'see whether packets are lost between the hosts too, and what is dropped: `weft status`',
  },
  'peers-unasked': {
    ...{ check: 'peers', level: 'warning' },
    means: 'nobody asks the peers whether they answer',
    fix: 'set net.ipv4.ping_group_range to include the group of weftd (systemd sets 0 2147483647), grant CAP_NET_RAW, or set --probe-interval',
  },
  'path-mtu': {
    ...{ check: 'mtu', level: 'failure' },
    means: 'small packets reach a peer, and those of the full MTU do not: connections open and then stall',
    fix: 'the external interface of the peer, or something between the hosts, takes less than this host\'s: raise the MTU there, or lower that of the external interface on all nodes; or have weft look for what it takes: `"ProbePathMTU": true` in `Backend`',
  },
  'mtu-too-large': {
    ...{ check: 'mtu', level: 'failure' },
    means: "the data path's MTU and what stands before each packet are more than the external interface takes",
    fix: 'restart weftd, which takes the MTU from the interface; leave MTU out of the network configuration',
  },
  'bridge-mtu': {
    ...{ check: 'mtu', level: 'warning' },
    means: "containers' bridge has a larger MTU than the data path: packets are cut, or refused where they may not be",
    fix: 'give Docker or CNI the MTU of subnet.env (`weft docker-opts`), and start the containers again',
  },
  'bridge-elsewhere': {
    ...{ check: 'containers', level: 'failure' },
    means:
      "a bridge of containers has an address of the network that is outside of this node's subnet: nothing finds its containers",
    fix: 'it was made by an older subnet.env: give Docker the new one (`weft docker-opts`, restart it), or delete the bridge of CNI (`ip link del cni0`) and start the pods again',
  },
  'subnet-env-wrong': {
    ...{ check: 'containers', level: 'failure' },
    means:
      'subnet.env is missing, or says another subnet or MTU than weftd has: containers start with the wrong one, or not at all',
    fix: 'see that weftd can write it; it does within seconds',
  },
  'packets-dropped': {
    ...{ check: 'drops', level: 'warning' },
    means: 'packets were dropped for want of room, or because of what they said',
    fix: 'docs/status.md and native/core/counters.h have each reason; for rx_drop_socket_full raise net.core.rmem_max',
  },
} as const satisfies Readonly<Record<string, Possible>>

export type FindingName = keyof typeof FINDINGS

export interface Finding {
  readonly name: FindingName
  /** What was seen: of which peer, by which rule. */
  readonly detail: string
}

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

/** What stands before an inner packet on the wire, with the outer IPv4 header: bytes. */
const OVERHEAD: Readonly<Record<string, number>> = { udp: 28, vxlan: 50, ipip: 20, wireguard: 60, 'host-gw': 0 }
/** UDP ports where the configuration names none. */
const PORTS: Readonly<Record<string, readonly [option: string, port: number]>> = {
  udp: ['port', 8285],
  vxlan: ['port', 8472],
  wireguard: ['listenport', 51_820],
}
const LOSSY_PERCENT = 20
/** With so many lost, one that went has been silent for more than two intervals. */
const SILENT_PERCENT = 40
const CLOCK_MS = 60_000
const LEASE_MS = 24 * 3_600_000
const STALE_S = 180
/** Named of what may be many. */
const NAMED = 5

const netOf = (text: string): Ipv4Net | undefined => parseIpv4Net(text)
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

function checkFirewall(facts: Facts): Finding[] | undefined {
  const { status, iptables, nft } = facts
  const { config, node, peers } = status ?? {}
  const network = netOf(config?.network ?? '')
  const subnet = netOf(node?.subnet ?? '')
  if (!config || !node || !network || !subnet) return undefined
  const findings: Finding[] = []
  const peer = peers?.list.find(({ state }) => state !== 'stored')
  const there = netOf(peer?.subnet ?? '')
  if (iptables !== undefined && peer && there) {
    const [inside, outside] = [subnet.address + 2, there.address + 2]
    for (const [source, destination] of [
      [inside, outside],
      [outside, inside],
    ] as const) {
      const verdict = walkFilter(iptables, { chain: 'FORWARD', protocol: 'tcp', source, destination })
      if (!verdict.isAccepted && verdict.isCertain) findings.push({ name: 'forward-dropped', detail: verdict.by })
    }
    const packet = portPacket(status, peer)
    const verdict = packet && walkFilter(iptables, packet)
    if (verdict && !verdict.isAccepted && verdict.isCertain) findings.push({ name: 'port-dropped', detail: verdict.by })
  }
  const chains = droppingChains(nft ?? '').filter((chain) => isSuspect(chain, facts))
  // One direction is enough to say it.
  const unique = findings.filter(
    ({ name, detail }, at) => findings.findIndex((one) => one.name === name && one.detail === detail) === at,
  )
  return [...unique, ...chains.map(({ name }): Finding => ({ name: 'nft-drops', detail: name }))]
}

/** What a peer sends here outside; undefined where there is nothing of that kind. */
export function portPacket(
  { config, node }: Pick<Status, 'config' | 'node'> | { config?: undefined; node?: undefined } = {},
  peer: PeerStatus,
): FilteredPacket | undefined {
  const type = config?.backendType ?? ''
  const [source, destination] = [parseIpv4(peer.publicIp), parseIpv4(node?.publicIp ?? '')]
  if (source === undefined || destination === undefined) return undefined
  const way = {
    chain: 'INPUT',
    source,
    destination,
    ...(node?.externalInterface ? { from: node.externalInterface } : {}),
  } as const
  if (type === 'ipip') return { ...way, protocol: 'ipencap' }
  const port = portOf(type, config?.backend ?? {})
  return port === undefined ? undefined : { ...way, protocol: 'udp', port }
}

function portOf(type: string, backend: Readonly<Record<string, unknown>>): number | undefined {
  const known = PORTS[type]
  if (!known) return undefined
  const [, given] = Object.entries(backend).find(([name]) => name.toLowerCase() === known[0]) ?? []
  return typeof given === 'number' && given > 0 ? given : known[1]
}

interface NftChain {
  readonly name: string
  readonly hook: string
  /** Its rules, and what stands before them. */
  readonly text: string
}

/** Chains of nftables with policy drop, but those that iptables shows itself (its tables are `ip filter` and the like). */
function droppingChains(ruleset: string): NftChain[] {
  const found: NftChain[] = []
  let table = ''
  for (const part of ruleset.split(/^(?=table |\s+chain )/m)) {
    table = /^table (\S+ \S+) \{/.exec(part)?.[1] ?? table
    const [, chain = ''] = /^\s+chain (\S+) \{/.exec(part) ?? []
    const [, hook] = /type filter hook (input|forward) .*policy drop;/.exec(part) ?? []
    const isSeen = /^ip (filter|nat|mangle|raw|security)$/.test(table) || table.startsWith('ip6 ')
    if (hook !== undefined && !isSeen) found.push({ name: `${table} ${chain}`, hook, text: part })
  }
  return found
}

/** Whether a chain that drops may be what stops packets: one that names the network, or lets in what answers, is somebody's work. */
function isSuspect({ hook, text }: NftChain, { status, answers }: Facts): boolean {
  const { config, dataPath, peers } = status ?? {}
  if (hook === 'forward') return ![config?.network, dataPath?.device].some((name) => name && text.includes(name))
  const programmed = (peers?.list ?? []).filter(({ state }) => state !== 'stored')
  return !programmed.every(({ lease, state }) => answers.get(lease)?.small ?? state === 'answering')
}

function checkRoutes({ status, routes }: Facts): Finding[] | undefined {
  const path = status?.dataPath
  const [whole, subnet] = [status?.config?.network ?? '', netOf(status?.node?.subnet ?? '')]
  if (!status || !subnet || !path?.open || path.engine === 'none') return undefined
  // With udp, wireguard and vxlan that weftd carries one route takes the whole network; with the others each peer has one.
  const isOneRoute = path.engine !== 'kernel' || status.config?.backendType === 'wireguard'
  const peers = new Map((status.peers?.list ?? []).map((peer) => [peer.subnet, peer]))
  const isRight = ({ destination, device, gateway }: Route): boolean => {
    const net = netOf(destination)
    if (!net || device === path.device) return true
    if (destination === whole) return !isOneRoute
    const isOwn = net.prefixLength >= subnet.prefixLength && ipv4NetContains(subnet, net.address)
    // Past the tunnel, as host-gw does and DirectRouting may.
    return isOwn || peers.get(destination)?.publicIp === gateway
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
  const { node, peers, events } = status ?? {}
  if (!node || !peers) return undefined
  const nodes = [{ subnet: node.subnet, publicIp: node.publicIp }, ...peers.list]
  const sorted = nodes
    .flatMap((one) => {
      const net = netOf(one.subnet)
      return net ? [{ ...one, net }] : []
    })
    .toSorted((a, b) => a.net.address - b.net.address || a.net.prefixLength - b.net.prefixLength)
  const across = sorted.slice(1).flatMap((one, at) => {
    const before = sorted[at]
    return before && ipv4NetsOverlap(before.net, one.net) ? [[before, one] as const] : []
  })
  const twice = peers.list.filter(({ publicIp }) => publicIp === node.publicIp)
  // The daemon notices who writes its claim; what it said is not said again while that lasts.
  const twin = events?.findLast(({ text }) => text.startsWith("Another host uses this node's public IP"))
  return [
    ...each('subnet-twice', across, ([a, b]) => `${a.subnet} of ${a.publicIp} and ${b.subnet} of ${b.publicIp}`),
    ...each('address-twice', twice, ({ subnet, publicIp }) => `${publicIp} leases ${subnet} too`),
    ...(twin
      ? [{ name: 'address-twice', detail: twin.text.replace(/^.*: (.*?)\. .*/, `${node.publicIp}, as $1`) } as const]
      : []),
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
  const subnet = netOf(node?.subnet ?? '')
  if (!mtu || !subnet || !config) return undefined
  const cut = (peers?.list ?? []).filter(({ lease }) => answers.get(lease)?.small && !answers.get(lease)?.large)
  const external = links.find(({ name }) => name === node?.externalInterface)
  const whole = mtu + (OVERHEAD[config.backendType] ?? 0)
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
  const [network, subnet] = [netOf(config?.network ?? ''), netOf(node?.subnet ?? '')]
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
