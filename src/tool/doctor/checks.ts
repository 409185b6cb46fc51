// checks.ts - the checks of `weft doctor`, each of which evaluates the facts that facts.ts gathered. Pure.
//
// A check reports a fault only if the facts prove it, so that a healthy host has no findings. findings.ts lists all
// possible findings.

import { dotted, forwardingOf } from '../../host/sysctl-names.ts'
import { FAMILIES, FAMILY_NAMES, formatNet } from '../../net/address.ts'
import { kindOf, publishers } from '../../path/catalog.ts'
import type { Status } from '../../report/status.ts'
import { checkCrossing } from './crossing.ts'
import type { Facts } from './facts.ts'
import { each, firstRemove, type Finding } from './findings.ts'
import { checkFirewall, keepsFromLeaving } from './firewall.ts'
import { checkHandshakes } from './handshakes.ts'
import { blocksSending, checkIpsec } from './ipsec.ts'
import { checkIpv6Off } from './ipv6-off.ts'
import { checkKernelRoutes } from './kernel-routes.ts'
import { checkContainers, checkMtu } from './links.ts'
import { checkNeighbours } from './neighbours.ts'
import { checkPrograms } from './path-programs.ts'
import { checkLeases, checkPeers } from './peers.ts'
import { checkRoutes } from './routes.ts'
import { kindIn, networksOf } from './sides.ts'
import * as silenceCauses from './silence-causes.ts'
import { checkTracking } from './tracking.ts'
import { checkUnderlay } from './underlay.ts'
import { whyUnknown } from './unknowns.ts'

/** One check of `weft doctor`. `look` returns the findings, or undefined if the facts do not suffice for the check. */
interface Check {
  readonly name: string
  readonly look: (facts: Facts) => readonly Finding[] | undefined
}

export const CHECKS: readonly Check[] = [
  { name: 'daemon', look: checkDaemon },
  { name: 'tun', look: checkTun },
  { name: 'families', look: (facts) => checkFamilies(facts, checkIpv6Off(facts)) },
  { name: 'forwarding', look: checkForwarding },
  { name: 'firewall', look: firewallHere },
  { name: 'routes', look: routesHere },
  { name: 'neighbours', look: checkNeighbours },
  { name: 'store', look: checkStore },
  { name: 'clock', look: checkClock },
  { name: 'config', look: checkConfig },
  { name: 'leases', look: checkLeases },
  { name: 'peers', look: peersHere },
  { name: 'handshakes', look: checkHandshakes },
  { name: 'mtu', look: checkMtu },
  { name: 'containers', look: checkContainers },
  { name: 'crossing', look: checkCrossing },
  { name: 'drops', look: checkDrops },
]

/** The difference in ms between the clocks of this host and of the store above which the doctor reports a finding. */
const CLOCK_MS = 60_000
/** The lifetime of a new lease in ms: 24 hours, as in flanneld. */
const LEASE_MS = 24 * 3_600_000
/**
 * The age in seconds of the last comparison of the leases with the store above which the doctor reports that the leases
 * may be out of date.
 */
const STALE_S = 180

function checkDaemon({ status, silence, isForbidden, isRoot, unit }: Facts): Finding[] {
  const findings: Finding[] = isRoot ? [] : [{ name: 'not-root', detail: '' }]
  if (isForbidden) return findings
  if (!status || silence !== undefined) {
    const carrier = status?.dataPath?.engine
    const effect =
      carrier === 'kernel'
        ? 'the kernel still forwards packets with the devices and routes that weftd made'
        : carrier && carrier !== 'none'
          ? (status.dataPath?.fastPath?.promoted ?? 0) > 0
            ? 'at most for a minute after the end of weftd the eBPF programs of FastPath still carry packets; then the packets of this node are not forwarded'
            : 'the packets of this node are not forwarded'
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
    ...(dataPath?.open === true
      ? impairments
          .filter(({ by }) => by === 'path')
          .map(({ what }) => ({ name: 'data-path-down', detail: what }) as const)
      : []),
    ...impairments
      .filter(({ by }) => by === 'rules')
      .map(({ what }) => ({ name: 'rules-failing', detail: what }) as const),
    ...impairments
      .filter(({ by }) => by === 'bypass')
      .map(({ what }) => ({ name: 'path-bypassed', detail: what }) as const),
    ...publishedRoute(status),
    ...fastPath(status),
    ...missingKeys(status),
  ]
}

/** Checks by the counters of the data path that charon (strongSwan's IKE daemon) has keys for each peer. */
function missingKeys({ dataPath }: Pick<Status, 'dataPath'>): Finding[] {
  const { peers_without_keys: missing = 0 } = dataPath?.counters ?? {}
  return missing > 0 ? [{ name: 'peers-without-keys', detail: `${missing} peers` }] : []
}

/** Checks that the eBPF programs run, if the network configuration allows them (FastPath). */
function fastPath({ dataPath }: Pick<Status, 'dataPath'>): Finding[] {
  const { isActive = true, reason } = dataPath?.fastPath ?? {}
  return isActive ? [] : [{ name: 'fast-path-off', detail: reason ?? '' }]
}

/**
 * Checks by the data path's counters whether the route that the backend publishes in a cloud or a switch is in place,
 * and whether the route table is nearly full.
 */
function publishedRoute({ dataPath }: Pick<Status, 'dataPath'>): Finding[] {
  const { route_missing: missing = 0, table_routes: routes = 0, table_limit: limit = 0 } = dataPath?.counters ?? {}
  return [
    ...(missing > 0 ? [{ name: 'route-unpublished', detail: '' } as const] : []),
    ...(limit > 0 ? [{ name: 'route-table-full', detail: `${routes} of ${limit} routes` } as const] : []),
  ]
}

/**
 * Checks that weftd can open the TUN device, which is needed only by backends whose packets weftd itself carries.
 * Returns undefined if weft doctor does not run as root and lacks the permission to open the device, because weftd runs
 * as root and may have the permission.
 */
function checkTun({ status, tunProblem, lacksNetAdmin, isRoot }: Facts): Finding[] | undefined {
  if (status?.dataPath?.engine === 'kernel' || status?.dataPath?.engine === 'none') return []
  const lacking: Finding[] =
    lacksNetAdmin && status?.dataPath?.open !== true ? [{ name: 'capability-missing', detail: '' }] : []
  if (tunProblem === undefined) return lacking
  if (tunProblem === 'EACCES' && !isRoot) return undefined
  const isForbidden = tunProblem === 'EPERM' || tunProblem === 'EACCES'
  return [...lacking, { name: isForbidden ? 'tun-forbidden' : 'tun-missing', detail: tunProblem }]
}

/** Checks the families of the network. `off` are the findings about IPv6 that the kernel has disabled. */
function checkFamilies({ status, defaultRoutes }: Facts, off: readonly Finding[]): Finding[] | undefined {
  const { config, dataPath, node } = status ?? {}
  if (!config) return undefined
  const gone = FAMILIES.flatMap((family) => {
    const what = dataPath?.addressGone[family] ?? undefined
    if (what === undefined) return []
    const isOff = family === 'ipv6' && off.some(({ detail }) => detail.includes(`.${node?.externalInterface}.`))
    const detail = `${FAMILY_NAMES[family]}: ${what}`
    return [{ name: 'address-gone', detail, ...(isOff ? { fix: firstRemove('ipv6-disabled') } : {}) } as const]
  })
  const { ipv4, ipv6 } = networksOf(config)
  if (!ipv4 || !ipv6) return [...off, ...gone]
  const carried = dataPath?.open ? dataPath.families : undefined
  const without = FAMILIES.filter((family) => defaultRoutes[family] === false)
  const down = FAMILIES.flatMap((family) => {
    const why = dataPath?.lacking[family] ?? undefined
    return why === undefined ? [] : [`${FAMILY_NAMES[family]}: ${why}`]
  })
  return [
    ...off,
    ...gone,
    ...down.map((detail) => ({ name: 'family-down', detail }) as const),
    ...(carried?.includes('ipv6') === false ? [{ name: 'family-not-carried', detail: formatNet(ipv6) } as const] : []),
    ...(without.length === 1
      ? without.map((family) => ({ name: 'no-default-route', detail: FAMILY_NAMES[family] }) as const)
      : []),
  ]
}

function checkForwarding(facts: Facts): Finding[] {
  const { status, isForwarding, isForwardingIpv6, bridgeFilter, unforwarded = [] } = facts
  const hasIpv4 = !status?.config || networksOf(status.config).ipv4 !== undefined
  // Without br_netfilter, packets between two pods of one bridge bypass iptables. If one of these pods reaches the
  // other through a Service, the kernel then does not translate the answer back.
  const isUnfiltered = status?.store.name === 'kubernetes' && bridgeFilter !== '1'
  return [
    ...(isUnfiltered ? [{ name: 'bridge-filter-off', detail: '' } as const] : []),
    ...(isForwarding || !hasIpv4 ? [] : [{ name: 'forwarding-off', detail: '' } as const]),
    ...unforwarded.map((device) => {
      const setting = dotted(forwardingOf(device))
      const fix = `run \`sysctl -w ${setting}=1\`, and find the program or file of /etc/sysctl.d that sets it to 0`
      return { name: 'interface-forwarding-off', detail: `${setting} is 0`, fix } as const
    }),
    ...(isForwardingIpv6 === false ? [{ name: 'forwarding-off-ipv6', detail: '' } as const] : []),
    ...checkTracking(facts),
  ]
}

function checkStore({ status, silence, store: seen }: Facts): Finding[] | undefined {
  const invalid: Finding[] = seen?.invalid === undefined ? [] : [{ name: 'config-missing', detail: seen.invalid }]
  if (silence !== undefined)
    return seen && (seen.problem === undefined ? invalid : [{ name: 'store-away', detail: seen.problem }])
  if (!status?.node) return invalid.length > 0 ? invalid : undefined
  const { store } = status
  const age = store.comparedSecondsAgo
  const where = `${store.name}: ${status.daemon.leases}`
  if (!store.reachable) return [{ name: 'store-away', detail: where }]
  const unrenewed = status.lease?.unrenewed ?? undefined
  const ending: Finding[] = unrenewed === undefined ? [] : [{ name: 'lease-unrenewed', detail: unrenewed }]
  if (age !== null && age > STALE_S)
    return [{ name: 'store-stale', detail: `${where}: compared ${Math.round(age)} s ago` }, ...ending]
  return [
    ...ending,
    ...(store.held > 0 ? [{ name: 'peers-held', detail: `${store.held} peers` } as const] : []),
    ...(store.configGone && invalid.length === 0 ? [{ name: 'config-missing', detail: where } as const] : invalid),
  ]
}

const OTHER_CONFIG =
  'this node runs with an earlier configuration than the one in the store: they differ in a value that is not shown, such as a PSK, or in options for subnets and firewall rules'

/** Compares the network configuration in the store with the configurations that this node and its peers use. */
function checkConfig({ status, store, silence }: Facts): Finding[] | undefined {
  // Use the running daemon's own comparison of its configuration with the store's, because only this comparison
  // includes secrets. A daemon that does not run uses no configuration now, and reads the store's configuration at its
  // next start. If the store's configuration is invalid, the finding config-missing reports it instead.
  const isOther = silence === undefined && status?.store.configDiffers === true && !status.store.configGone
  const other: Finding[] = isOther ? [{ name: 'config-differs', detail: OTHER_CONFIG }] : []
  if (!store || store.problem !== undefined) return isOther ? other : undefined
  const wanted = store.config
  if (!wanted || !status?.config) return other
  const { config, peers } = status
  const backendOf = ({ backendType, backend }: NonNullable<Status['config']>): string =>
    `${backendType} ${JSON.stringify(Object.entries(backend).toSorted(([a], [b]) => (a < b ? -1 : 1)))}`
  // A daemon that does not run reads the configuration from the store at its next start, so its configuration cannot
  // differ from the store's.
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
    (who) => `${who}, but the configuration in the store says ${wanted.backendType}`,
  ).concat(here === undefined ? other : [])
}

function checkClock({ status, now, storeAheadMs, silence }: Facts): Finding[] | undefined {
  if (storeAheadMs !== undefined && Math.abs(storeAheadMs) > CLOCK_MS) {
    const [by, which] = [Math.round(Math.abs(storeAheadMs) / 1000), storeAheadMs > 0 ? 'behind' : 'ahead of']
    return [{ name: 'clock-off', detail: `${by} s ${which} the store's` }]
  }
  // A daemon that does not run does not renew its lease, so do not check the lease's expiry in that case.
  const ends = silence === undefined ? status?.lease?.expiresAt : undefined
  // If weftd cannot renew the lease, the lease ends although the clock is right.
  const isRenewed = status?.store.reachable === true && (status.lease?.unrenewed ?? null) === null
  if (!ends) return storeAheadMs === undefined ? undefined : []
  const leftMs = Date.parse(ends) - now
  // weftd writes a lease with a lifetime of 24 hours and renews it later. So if the lease expires more than 24 hours
  // from now by this host's clock, this clock and the store's clock differ.
  if (leftMs > LEASE_MS + CLOCK_MS)
    return [
      {
        name: 'clock-off',
        detail: `the lease is valid for one day, but ends in ${Math.round(leftMs / 3_600_000)} h by this host's clock`,
      },
    ]
  return isRenewed && leftMs < -CLOCK_MS
    ? [
        {
          name: 'clock-off',
          detail: `the lease that this node renews ended ${Math.round(-leftMs / 60_000)} min ago by this host's clock`,
        },
      ]
    : []
}

/** Checks the firewall rules and the IPsec policies, and reports eBPF programs and tc filters if packets are lost. */
function firewallHere(facts: Facts): Finding[] | undefined {
  const [byRules, others] = [checkFirewall(facts), [...checkIpsec(facts), ...checkPrograms(facts)]]
  return byRules === undefined && others.length === 0 ? undefined : [...(byRules ?? []), ...others]
}

/**
 * Checks the routes of the main table, and then the routes that the kernel chooses for sample packets. The choice
 * depends on all tables and policy rules.
 */
function routesHere(facts: Facts): Finding[] | undefined {
  const found = checkRoutes(facts)
  return found && [...found, ...checkKernelRoutes(facts, found.length > 0), ...checkUnderlay(facts)]
}

function peersHere(facts: Facts): Finding[] | undefined {
  return checkPeers(
    facts,
    isRefusing(facts) || isSendingElsewhere(facts) || keepsFromLeaving(facts) || blocksSending(facts),
    silenceCauses,
  )
}

/**
 * Checks the peers with weftd's status alone. The status page uses this function, and must not load the code that
 * examines the host.
 */
const peersByStatus = (facts: Facts): Finding[] | undefined => checkPeers(facts, isRefusing(facts))

/**
 * Returns true if the drop counters show that this host's kernel refuses to send the packets of the data path to other
 * nodes.
 */
const isRefusing = (facts: Facts): boolean =>
  (checkDrops(facts) ?? []).some(({ detail }) => detail.startsWith('tx_drop_refused'))

/** Returns true if the routes of this host make packets for other nodes bypass the data path. */
const isSendingElsewhere = (facts: Facts): boolean =>
  (routesHere(facts) ?? []).some(({ name }) =>
    ['foreign-route', 'policy-route', 'route-refused', 'underlay-route'].includes(name),
  )

/**
 * The drop counters whose increase shows a fault. Other drops occur in a healthy network too. Examples are packets to a
 * node that has left, and a peer's first packets before this node has the peer's lease.
 */
const FAULT_DROPS = [
  'tx_drop_queue_full',
  'rx_drop_socket_full',
  'rx_drop_spoofed_source',
  'tx_drop_too_big',
  'tx_drop_socket_full',
  'tx_drop_refused',
  'rx_drop_truncated',
]
/**
 * The doctor reports the drops of the last minute if they are more than FAULT_DROP_COUNT packets and more than the
 * fraction FAULT_DROP_SHARE of all packets.
 */
const FAULT_DROP_COUNT = 10
const FAULT_DROP_SHARE = 0.001

function checkDrops({ status, silence }: Facts): Finding[] | undefined {
  if (silence !== undefined) return undefined // only a running weftd counts drops
  const { recent, device, features = [] } = status?.dataPath ?? {}
  if (!recent) return undefined
  const { drops, packets, seconds } = recent
  // True if the kernel can merge UDP datagrams for the TUN device (GRO), but the device's setting rx-udp-gro-forwarding
  // is off.
  const mayJoin = features.includes('tun-uso') && !features.includes('coalesce-udp')
  const advice = mayJoin
    ? `; if these are UDP packets, \`ethtool -K ${device} rx-udp-gro-forwarding on\` makes weftd join them, so that fewer are lost, but packet filters on this host then see several datagrams as one packet`
    : ''
  const faultText = (name: string): string | undefined => {
    const number = drops[name] ?? 0
    const isFault = number > Math.max(FAULT_DROP_COUNT, packets * FAULT_DROP_SHARE)
    return isFault ? `${name}: ${number} in the last ${Math.round(seconds)} s` : undefined
  }
  // With WireGuard the keys prove that the sender is a node of the network. So the counter `rx_drop_unknown_sender`
  // counts packets with a source address outside that node's subnet.
  const provesSender = kindIn(status)?.provesSender === true
  const outside = provesSender ? faultText('rx_drop_unknown_sender') : undefined
  // If hosts use different lease directories by mistake, the hosts of each directory form a network of their own.
  // Packets from unknown senders are the only sign of this mistake.
  const unknown = !provesSender && status?.store.name === 'directory' ? faultText('rx_drop_unknown_sender') : undefined
  return [
    ...FAULT_DROPS.flatMap((name) => {
      const detail = faultText(name)
      if (detail === undefined) return []
      return [{ name: 'packets-dropped', detail: `${detail}${name === 'rx_drop_socket_full' ? advice : ''}` } as const]
    }),
    ...(outside === undefined ? [] : [{ name: 'source-outside', detail: outside } as const]),
    ...(unknown === undefined ? [] : [{ name: 'unknown-senders', detail: unknown } as const]),
  ]
}

export interface Diagnosis {
  readonly check: string
  readonly findings: readonly Finding[] | undefined
  /** Why the facts did not suffice for the check. */
  readonly why?: string
}

export const diagnose = (facts: Facts): readonly Diagnosis[] =>
  CHECKS.map(({ name, look }) => {
    const findings = look(facts)
    return { check: name, findings, ...(findings === undefined ? { why: whyUnknown(name, facts) } : {}) }
  })

/** The checks that need only weftd's status. All other checks need facts that tools of the host provide. */
const BY_STATUS = [
  checkDaemon,
  (facts: Facts) => checkFamilies(facts, []),
  checkStore,
  checkClock,
  checkLeases,
  peersByStatus,
  checkHandshakes,
  checkMtu,
  checkDrops,
]
const WITHOUT_HOST: Omit<Facts, 'status' | 'now'> = {
  silence: undefined,
  isRoot: true,
  tunProblem: undefined,
  lacksNetAdmin: false,
  isForwarding: true,
  links: [],
  routes: [],
  isForwardingIpv6: undefined,
  defaultRoutes: {},
  iptables: undefined,
  ip6tables: undefined,
  nft: undefined,
  subnetEnv: undefined,
  storeAheadMs: undefined,
  answers: new Map(),
  whyUnprobed: undefined,
  reaches: new Map(),
  store: undefined,
}

/** Returns the findings that follow from weftd's status alone, for the status page. */
export function diagnoseStatus(status: Status): readonly Finding[] {
  const facts = { ...WITHOUT_HOST, status, now: Date.parse(status.at) }
  return BY_STATUS.flatMap((look) => look(facts) ?? [])
}
