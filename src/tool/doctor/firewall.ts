// firewall.ts - whether this host's firewall drops what it should let pass: iptables rule by rule, nftables by its policies; and
// whether it has weft's rules of one family alone. Pure.

import { kindOf, portOf } from '../../path/kinds.ts'
import { WORDS } from '../../path/firewall/flannel-rules.ts'
import { formatNet, isIpv4Net, netSize, type Address, type Family, type Net } from '../../net/address.ts'
import { placeIn, type PeerStatus, type Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import { walkFilter, type FilteredPacket } from './filter-walk.ts'
import type { Finding } from './findings.ts'
import { outersIn, ownSides, seenSides, type OwnSide } from './sides.ts'

export function checkFirewall(facts: Facts): Finding[] | undefined {
  const sides = facts.status ? ownSides(facts.status) : []
  if (sides.length === 0) return undefined
  const dropped = sides.flatMap((side) => droppedBy(side, facts))
  const chains = droppingChains(facts.nft ?? '').filter((chain) => isSuspect(chain, sides, facts))
  // One direction is enough to say it.
  const unique = dropped.filter(
    ({ name, detail }, at) => dropped.findIndex((one) => one.name === name && one.detail === detail) === at,
  )
  return [
    ...unique.map(({ name, detail }): Finding => ({ name, detail })),
    ...missingRules(sides, facts),
    ...chains.map(({ name }): Finding => ({ name: 'nft-drops', detail: name })),
  ]
}

const listingOf = (family: Family, { iptables, ip6tables }: Facts): string | undefined =>
  family === 'ipv4' ? iptables : ip6tables

/** A container's address. */
const containerIn = (net: Net): Address => (isIpv4Net(net) ? net.address + 2 : net.address + 2n)

/** True where iptables here drops what goes to other nodes' port. */
export const keepsFromLeaving = (facts: Facts): boolean =>
  (facts.status ? ownSides(facts.status) : []).some((side) =>
    droppedBy(side, facts).some(({ chain }) => chain === 'OUTPUT'),
  )

interface Dropped extends Finding {
  readonly chain: FilteredPacket['chain']
}

/** A container's address of another node: the first subnet may be this one's. */
const lastIn = (net: Net): Address => {
  const size = netSize(net)
  return isIpv4Net(net) ? net.address + Number(size) - 2 : net.address + size - 2n
}

/** The findings of what iptables drops between this node and a peer. */
function droppedBy({ family, network, subnet }: OwnSide, facts: Facts): Dropped[] {
  const listing = listingOf(family, facts)
  const { peer, subnet: there } =
    (facts.status?.peers?.list ?? [])
      .flatMap((each) => seenSides(each, facts.answers))
      .find((side) => side.family === family && side.state !== 'stored' && side.subnet) ?? {}
  // Where nobody knows the others, any address of the network is as good as one of theirs.
  const outside = there ? containerIn(there) : facts.status?.peers ? undefined : lastIn(network)
  if (listing === undefined || outside === undefined) return []
  const inside = containerIn(subnet)
  const forwarded = { chain: 'FORWARD', protocol: 'tcp' } as const
  const datagram = peer && portPacket(facts.status, peer, family)
  const walked = [
    ['forward-dropped', { ...forwarded, source: inside, destination: outside }],
    ['forward-dropped', { ...forwarded, source: outside, destination: inside }],
    ['port-dropped', datagram],
    ['port-dropped', datagram && sentBack(datagram)],
  ] as const
  return walked.flatMap(([name, packet]) => {
    const verdict = packet && walkFilter(listing, packet)
    if (!verdict || verdict.isAccepted || !verdict.isCertain) return []
    const { chain } = packet
    return [{ name, chain, detail: family === 'ipv4' ? verdict.by : `ip6tables: ${verdict.by}` }]
  })
}

/** The packet that a peer sends here outside the tunnel; undefined when there is none of that kind. */
export function portPacket(
  { config, node }: Pick<Status, 'config' | 'node'> | { config?: undefined; node?: undefined } = {},
  peer: PeerStatus,
  family: Family = 'ipv4',
): FilteredPacket | undefined {
  const type = config?.backendType ?? ''
  const source = placeIn(peer, family).publicIp
  const destination = node ? placeIn(node, family).publicIp : undefined
  if (source === undefined || destination === undefined) return undefined
  const way = {
    chain: 'INPUT',
    source,
    destination,
    ...(node?.externalInterface ? { from: node.externalInterface } : {}),
  } as const
  const kind = kindOf(type)
  const protocol = kind?.outside?.protocol
  // The backend's mode decides which of two ports it is.
  const isUnsure = family === 'ipv6' && kind !== undefined && 'portV6' in kind.options
  const port = isUnsure ? undefined : portOf(type, config?.backend ?? {})
  if (!protocol || !config || !outersIn({ config }, family).includes(family)) return undefined
  return { ...way, protocol, ...(port === undefined ? {} : { port }) }
}

/** The packet that this host sends to that peer outside the tunnel. */
export function sentBack({ source, destination, from, ...packet }: FilteredPacket): FilteredPacket {
  return {
    ...packet,
    ...{ chain: 'OUTPUT', source: destination, destination: source },
    ...(from === undefined ? {} : { to: from }),
  }
}

/** Finds the one of two families that has no rules, although both are weft's to make. */
function missingRules(sides: readonly OwnSide[], facts: Facts): Finding[] {
  const { nft } = facts
  /** True when the rules of a family stand, as one of the tools shows it; undefined where it shows nothing. */
  const shown: readonly ((side: OwnSide) => boolean | undefined)[] = [
    ({ family, network }) => listingOf(family, facts)?.includes(`\n-A FLANNEL-FWD -s ${formatNet(network)} `),
    ({ family, network }) =>
      nft === undefined
        ? undefined
        : tablesOf(nft).some(
            ({ name, text }) =>
              name === `${WORDS[family].nft} ${WORDS[family].table}` && text.includes(` ${formatNet(network)} `),
          ),
  ]
  return sides
    .filter((side) => shown.every((isShown) => isShown(side) !== true))
    .filter((side) =>
      shown.some((isShown) => isShown(side) === false && sides.some((other) => other !== side && isShown(other))),
    )
    .map(({ family }) => ({ name: 'rules-missing', detail: family === 'ipv4' ? 'IPv4' : 'IPv6' }))
}

/** The tables of a ruleset. */
const tablesOf = (ruleset: string): { readonly name: string; readonly text: string }[] =>
  ruleset.split(/^(?=table )/m).map((text) => ({ name: /^table (\S+ \S+) \{/.exec(text)?.[1] ?? '', text }))

interface NftChain {
  readonly name: string
  readonly hook: string
  /** The rules of the chain, and what stands before them. */
  readonly text: string
}

/** Chains of nftables with policy drop, but those that iptables shows itself (its tables are `ip filter` and the like). */
function droppingChains(ruleset: string): NftChain[] {
  const found: NftChain[] = []
  for (const { name, text } of tablesOf(ruleset)) {
    if (/^ip6? (filter|nat|mangle|raw|security)$/.test(name)) continue
    for (const part of text.split(/^(?=\s+chain )/m)) {
      const [, chain = ''] = /^\s+chain (\S+) \{/.exec(part) ?? []
      const [, hook] = /type filter hook (input|forward|output) .*policy drop;/.exec(part) ?? []
      if (hook !== undefined) found.push({ name: `${name} ${chain}`, hook, text: part })
    }
  }
  return found
}

/**
 * True when a chain that drops may be what stops packets: a chain that names the networks, or lets in what answers, is
 * somebody's deliberate work.
 */
function isSuspect({ name, hook, text }: NftChain, sides: readonly OwnSide[], { status, answers }: Facts): boolean {
  const { dataPath, peers } = status ?? {}
  // A table of one family sees nothing of the other.
  const seen = sides.filter(({ family }) => !/^ip6? /.test(name) || name.startsWith(`${WORDS[family].nft} `))
  if (seen.length === 0) return false
  const has = (word: string | null | undefined): boolean => Boolean(word) && text.includes(word ?? '')
  const devices = [dataPath?.device, ...seen.map(({ family }) => dataPath?.devices?.[family])]
  if (hook === 'forward') return !devices.some(has) && !seen.every(({ network }) => has(formatNet(network)))
  const programmed = (peers?.list ?? [])
    .flatMap((peer) => seenSides(peer, answers))
    .filter(({ family, state }) => state !== 'stored' && seen.some((side) => side.family === family))
  return !programmed.every(({ answers: now, state }) => now?.small ?? state === 'answering')
}
