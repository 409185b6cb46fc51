// firewall.ts - checks whether this host's firewall drops packets that nodes and containers send each other, by
// evaluating the rules of iptables and nftables for these packets. Also checks whether weft's own rules exist for one
// family only. rule-effects.ts checks for rules that change the packets. Pure.

import { dotted, ECHO_IGNORED } from '../../host/sysctl-names.ts'
import {
  FAMILIES,
  formatAddress,
  formatNet,
  isIpv4Net,
  netContains,
  netSize,
  parseAddress,
  type Address,
  type Family,
  type Net,
} from '../../net/address.ts'
import { kindOf, portOf } from '../../path/catalog.ts'
import { WORDS } from '../../path/firewall/flannel-rules.ts'
import { placeIn, type PeerStatus, type Status } from '../../report/status.ts'
import { echoOf, type Bridged, type FilteredPacket } from './chain-walk.ts'
import type { Facts } from './facts.ts'
import type { Finding, FindingName } from './findings.ts'
import { laterVerdicts, readRules, type HostRules, type HostVerdict } from './host-rules.ts'
import { ARP, tablesOf, type BaseChain } from './nft-walk.ts'
import { otherEnd, probePackets } from './probe-packets.ts'
import { changedBy, diversionsOf, unjudgedBy } from './rule-effects.ts'
import { bridgeOf, kindIn, outersIn, ownSides, portsOf, seenSides, type OwnSide, type SeenSide } from './sides.ts'

/** The maximum number of peers for whose packets weft doctor evaluates the firewall rules. */
const WALKED_PEERS = 16
/** The maximum number of peers that one suggested firewall command names. */
const COMMAND_PEERS = 8

export function checkFirewall(facts: Facts): Finding[] | undefined {
  const sides = facts.status ? ownSides(facts.status) : []
  if (sides.length === 0) return undefined
  const all = sides.flatMap((side) => droppedBy(side, facts))
  // A rule that drops all packets on a bridge is reported once.
  const dropped = all.filter(
    (one) =>
      one.name !== 'discovery-dropped' ||
      !all.some(({ name, detail }) => name === 'forward-dropped' && detail === one.detail),
  )
  // True if weft doctor could read neither the rules of nftables nor those of iptables, which makes the check
  // impossible.
  const isBlind = facts.nft === undefined && sides.every(({ family }) => listingOf(family, facts) === undefined)
  if (isBlind && dropped.length === 0) return undefined
  const isUnlessDrop = ({ name }: Dropped): boolean =>
    name === 'nft-drops' || name === 'iptables-drops' || name === 'rule-unjudged'
  return [
    ...merged(dropped.filter((one) => !isUnlessDrop(one))),
    ...missingRules(sides, facts),
    ...ignoredProbes(sides, facts),
    ...merged(dropped.filter(isUnlessDrop)),
  ]
}

/** Checks that the kernel of this host answers the echo requests with which other nodes probe this node. */
function ignoredProbes(sides: readonly OwnSide[], { status, ignoredEchoes = [] }: Facts): Finding[] {
  if ((kindIn(status)?.probe ?? 'nobody') === 'nobody') return []
  return sides
    .filter(({ family }) => ignoredEchoes.includes(family))
    .map(({ family }) => {
      const setting = dotted(ECHO_IGNORED[family])
      return {
        name: 'probes-dropped',
        detail: `${setting} is 1: the kernel answers no echo request`,
        fix: `run \`sysctl -w ${setting}=0\`, and remove this setting from the files of /etc/sysctl.d; a firewall rule can drop the echo requests of other hosts`,
      }
    })
}

const listingOf = (family: Family, { iptables, ip6tables }: Facts): string | undefined =>
  family === 'ipv4' ? iptables : ip6tables

/** Returns the address that the first container of a subnet usually has. */
const containerIn = (net: Net): Address => (isIpv4Net(net) ? net.address + 2 : net.address + 2n)

/** Returns true if the firewall of this host certainly drops or diverts packets between the backend's ports of two nodes. */
export const keepsFromLeaving = (facts: Facts): boolean =>
  (facts.status ? ownSides(facts.status) : []).some((side) => {
    const walking = { facts, rules: readRules(facts, side.family) }
    return peersIn(side, facts).walked.some((peer) =>
      atPort(side, peer, walking).some(
        ({ chain, name }) => name === 'datagrams-changed' || (chain === 'OUTPUT' && name === 'port-dropped'),
      ),
    )
  })

/** Returns the finding about a firewall rule of this host that drops or diverts the datagrams; undefined if none. */
export function datagramFault(peer: SeenSide, facts: Facts): 'port-dropped' | 'datagrams-changed' | undefined {
  const [side] = facts.status ? ownSides(facts.status).filter(({ family }) => family === peer.family) : []
  const found = side ? atPort(side, peer, { facts, rules: readRules(facts, peer.family) }) : []
  return found.map(({ name }) => name).find((name) => name === 'port-dropped' || name === 'datagrams-changed')
}

interface Dropped extends Finding {
  readonly chain: FilteredPacket['chain']
  /**
   * The packet that the firewall drops. `base` is the nftables chain that drops it; undefined if iptables drops it. The
   * remedy of the finding names the packet and the chain.
   */
  readonly packet: FilteredPacket
  readonly base: BaseChain | undefined
  readonly side: OwnSide
  readonly isFlannels: boolean
}

/**
 * Returns an address that a container of another node could have. The address is in the last subnet of the network,
 * because the first subnet may be this node's.
 */
const lastIn = (net: Net): Address => {
  const size = netSize(net)
  return isIpv4Net(net) ? net.address + Number(size) - 2 : net.address + size - 2n
}

/**
 * Finds the packets that the firewall drops between this node and its peers. Examines the packets that the hosts
 * themselves send only for silent peers, or for the first peer if no peer is silent.
 */
function droppedBy(side: OwnSide, facts: Facts): Dropped[] {
  const { family, network, subnet } = side
  const walking = { facts, rules: readRules(facts, family) }
  const { walked, others } = peersIn(side, facts)
  const ofPeers = [
    ...walked.flatMap((peer) => droppedOf(side, peer, walking)),
    ...others.flatMap((peer) => forwarded(side, containerIn(peer.subnet ?? subnet), peer.way === 'direct', walking)),
  ]
  if (walked.length > 0) return [...ofPeers, ...onBridge(side, walking)]
  // If no peer is known, use an address in the network as the address of a peer's container.
  return facts.status?.peers ? [] : forwarded(side, lastIn(network), false, walking)
}

/** Lists the peers for whose packets the rules are evaluated; `others` are those for forwarded packets only. */
function peersIn(
  { family }: OwnSide,
  { status, answers }: Facts,
): { readonly walked: readonly SeenSide[]; readonly others: readonly SeenSide[] } {
  const known = (status?.peers?.list ?? [])
    .flatMap((peer) => seenSides(peer, answers))
    .filter((each) => each.family === family && each.state !== 'stored' && each.subnet)
  const silent = known.filter(isSilent).slice(0, WALKED_PEERS)
  const walked = silent.length > 0 ? silent : known.slice(0, 1)
  const others = known.filter((peer) => !walked.includes(peer)).slice(0, WALKED_PEERS - walked.length)
  return { walked, others }
}

interface Walking {
  readonly facts: Facts
  readonly rules: HostRules
}

/**
 * Finds the packets that the rules of a bridge drop between two containers of this node. Also finds the ARP requests
 * that rules drop between this host and its containers, without which they send each other no packets.
 */
function onBridge(side: OwnSide, walking: Walking): Dropped[] {
  const bridged = bridgedOf(side, walking.facts)
  if (!bridged) return []
  const source = containerIn(side.subnet)
  const ends = { source, destination: neighbourOf(source) } as const
  const { bridge } = bridged('in')
  const through = { from: bridge, to: bridge, bridged: bridged('through') } as const
  return [
    { ...ends, ...through, chain: 'FORWARD', protocol: 'tcp', state: 'new' } as const,
    // IPv6 has neighbour discovery in place of ARP.
    ...(side.family === 'ipv4'
      ? [
          { ...ends, chain: 'INPUT', protocol: ARP, from: bridge, bridged: bridged('in') } as const,
          { ...ends, chain: 'OUTPUT', protocol: ARP, to: bridge, bridged: bridged('out') } as const,
        ]
      : []),
  ]
    .flatMap((packet) => judged('forward-dropped', packet, false, side, walking))
    .filter(({ detail }) => !isSeparation(detail, bridge))
    .concat(side.family === 'ipv6' ? discovery(side, bridged, walking) : [])
}

/** Returns true for Docker's rule that separates the containers of a bridge, if the operator set `"icc": false`. */
const isSeparation = (detail: string, bridge: string): boolean =>
  /^(?:docker|br-)/.test(bridge) &&
  (detail.includes(` -i ${bridge} -o ${bridge} -j DROP`) || detail.endsWith(' drop comment "ICC"'))

/** The first of the addresses ff02::1:ff00:0/104 (RFC 4291, section 2.7.1). */
const SOLICITED_NODES = 0xff02_0000_0000_0000_0000_0001_ff00_0000n

/**
 * Finds the packets of neighbour discovery (RFC 4861) that rules drop between this host and its containers, without
 * which they send each other no IPv6 packets. The kernel does not track these packets.
 */
function discovery(side: OwnSide, bridged: (way: Bridged['way']) => Bridged, walking: Walking): Dropped[] {
  const [there, here, { bridge }] = [containerIn(side.subnet), side.subnet.address, bridged('in')]
  // A host sends solicitations for an unknown neighbour to a multicast address (RFC 4861, section 7.2.2).
  const targetOf = (icmp: 'solicitation' | 'advertisement', to: Address): Address =>
    icmp === 'solicitation' ? SOLICITED_NODES + (BigInt(to) & 0xff_ff_ffn) : to
  const way = { protocol: echoOf('ipv6'), state: 'untracked' } as const
  return (['solicitation', 'advertisement'] as const)
    .flatMap((icmp): FilteredPacket[] => [
      {
        ...way,
        icmp,
        chain: 'INPUT',
        from: bridge,
        source: there,
        destination: targetOf(icmp, here),
        bridged: bridged('in'),
      },
      {
        ...way,
        icmp,
        chain: 'OUTPUT',
        to: bridge,
        source: here,
        destination: targetOf(icmp, there),
        bridged: bridged('out'),
      },
    ])
    .flatMap((packet) => judged('discovery-dropped', packet, false, side, walking))
}

/** Returns the findings about packets of neighbour discovery that rules drop on the bridge of the containers. */
export function undiscovered(side: OwnSide, facts: Facts): readonly Finding[] {
  const bridged = side.family === 'ipv6' ? bridgedOf(side, facts) : undefined
  return bridged ? merged(discovery(side, bridged, { facts, rules: readRules(facts, side.family) })) : []
}

const neighbourOf = (address: Address): Address => (typeof address === 'bigint' ? address + 1n : address + 1)

type BridgeFacts = Pick<Facts, 'links' | 'status' | 'bridgeFilter' | 'bridgeFilterIpv6'>

/** Returns the bridge of this node's containers as a function of a packet's way; undefined if weft does not know it. */
export function bridgedOf(
  { subnet }: Pick<OwnSide, 'subnet'>,
  { links, status, bridgeFilter, bridgeFilterIpv6 }: BridgeFacts,
): ((way: Bridged['way']) => Bridged) | undefined {
  const bridge = bridgeOf(links, subnet, status)
  if (bridge === undefined) return undefined
  const ports = portsOf(links, bridge)
  const isFiltered = (isIpv4Net(subnet) ? bridgeFilter : bridgeFilterIpv6) === '1'
  return (way) => ({ bridge, way, ports, isFiltered })
}

/**
 * Returns true if a peer did not answer. The result of weft doctor's own probe counts; for a peer that weft doctor did
 * not probe, weftd's result counts.
 */
const isSilent = ({ answers, state }: SeenSide): boolean => !(answers?.small ?? state === 'answering')

/**
 * Returns the data path's device for packets of a family; undefined if the backend has no device, or if the device is
 * not known.
 */
function ownDevice({ family }: OwnSide, { status }: Facts): string | undefined {
  return status?.dataPath?.devices[family] ?? undefined
}

/**
 * Evaluates the firewall for packets between a container of this host and a container of another host. `isDirect` is
 * true if the packets use no tunnel.
 */
function forwarded(side: OwnSide, outside: Address, isDirect: boolean, walking: Walking): Dropped[] {
  const { facts } = walking
  const inside = containerIn(side.subnet)
  const bridge = bridgeOf(facts.links, side.subnet, facts.status)
  const device = isDirect ? undefined : ownDevice(side, facts)
  const bridged = bridgedOf(side, facts)
  const ends = (from: string | undefined, to: string | undefined, way: Bridged['way']) => ({
    ...(from === undefined ? {} : { from }),
    ...(to === undefined ? {} : { to }),
    ...(bridged ? { bridged: bridged(way) } : {}),
  })
  const way = { chain: 'FORWARD', protocol: 'tcp', state: 'new' } as const
  return [
    { ...way, source: inside, destination: outside, ...ends(bridge, device, 'in') },
    ...[inside, ...guardedIn(side, bridge, facts)].map((destination) => ({
      ...way,
      source: outside,
      destination,
      ...ends(device, bridge, 'out'),
    })),
  ].flatMap((packet) => {
    const dropped = judged('forward-dropped', packet, true, side, walking)
    if (dropped.some(({ name }) => name === 'forward-dropped')) return dropped
    const changed = changedBy(walking.rules, packet, side, facts).map((finding) => ({
      ...finding,
      chain: packet.chain,
      packet,
      base: undefined,
      side,
      isFlannels: false,
    }))
    return [...changed, ...dropped]
  })
}

/**
 * Returns the addresses of containers for which Docker 28 drops all packets that do not arrive on their bridge. Docker
 * makes one such rule in the table raw for each container, unless direct routing is allowed
 * (daemon/libnetwork/drivers/bridge of moby).
 */
function guardedIn({ family, subnet }: OwnSide, bridge: string | undefined, facts: Facts): readonly Address[] {
  const rules = (listingOf(family, facts) ?? '').matchAll(DOCKER_GUARD)
  const found = [...rules].flatMap(([, text = '', name]) => (name === bridge ? (parseAddress(text) ?? []) : []))
  return found
    .filter((address) => netContains(subnet, address) && address !== containerIn(subnet))
    .slice(0, GUARDED_CONTAINERS)
}
const DOCKER_GUARD = /-A PREROUTING -d ([\da-f.:]+)\/(?:32|128) ! -i (\S+) -j DROP/g
/** The maximum number of containers for whose packets weft doctor evaluates such rules. */
const GUARDED_CONTAINERS = 4

/** Finds the datagrams of the tunnel that the rules drop between this host and the host of a peer. */
function atPort(side: OwnSide, peer: SeenSide, walking: Walking): Dropped[] {
  const datagram = portPacket(walking.facts.status, peer.peer, side.family)
  return (datagram ? [datagram, sentBack(datagram)] : []).flatMap((packet) => [
    ...judged('port-dropped', packet, isSilent(peer), side, walking),
    ...changedAtPort(packet, side, peer, walking),
  ])
}

/**
 * Finds rules that change the addresses of the tunnel's datagrams. Examines only the datagrams of silent peers, because
 * the kernel does not apply such rules to the packets of an existing connection.
 */
function changedAtPort(packet: FilteredPacket, side: OwnSide, peer: SeenSide, { facts, rules }: Walking): Dropped[] {
  const { status, links } = facts
  const found = status && isSilent(peer) ? diversionsOf(rules, packet, status, links) : []
  const { chain, source, destination, port } = packet
  const about = { chain, packet, base: undefined, side, isFlannels: false }
  const way = `from ${formatAddress(source)} to ${formatAddress(destination)}${port === undefined ? '' : ` port ${port}`}`
  return found.map(({ kind, rule }) => ({
    ...about,
    name: 'datagrams-changed',
    detail: `the ${kind === 'source' ? 'source' : 'destination'} of ${packet.protocol} packets ${way}: ${rule}`,
  }))
}

function droppedOf(side: OwnSide, peer: SeenSide, walking: Walking): Dropped[] {
  const there = peer.subnet ?? side.subnet
  const datagrams = atPort(side, peer, walking)
  const { theirs, ours } = walking.facts.status
    ? probePackets(side, peer, walking.facts.status)
    : { theirs: [], ours: [] }
  return [
    ...forwarded(side, containerIn(there), peer.way === 'direct', walking),
    ...datagrams,
    // If the firewall drops the tunnel's datagrams when they arrive or leave, it also drops the probes inside them. So
    // report only the dropped datagrams, and not the probes.
    // The probes of this host to a peer that answers are not lost.
    ...[...theirs, ...(isSilent(peer) ? ours : [])]
      .filter((probe) => !datagrams.some(({ chain }) => chain === probe.chain))
      .flatMap((probe) => judged('probes-dropped', probe, false, side, walking)),
  ]
}

/**
 * Evaluates the firewall for a packet, and returns the rules that drop it. If `isMissed` is false, no such packet is
 * known to be lost, so only a rule that certainly drops the packet is returned. A packet whose conntrack state is not
 * given is evaluated first with an unknown state, and then as the first packet of a connection, because a firewall may
 * accept only packets of established connections. Then the later packets of the connection are evaluated.
 */
function judged(
  name: 'forward-dropped' | 'port-dropped' | 'probes-dropped' | 'discovery-dropped',
  packet: FilteredPacket,
  isMissed: boolean,
  side: OwnSide,
  { facts, rules }: Walking,
): Dropped[] {
  const about = { chain: packet.chain, packet, side, isFlannels: hasRules(side, facts) }
  const found = ({ base, tool, by }: HostVerdict, as: FindingName, note = ''): Dropped => ({
    ...about,
    name: as,
    base,
    detail: `${tool}${by}${note}`,
  })
  const anyState = rules.walk(packet)
  const certain = anyState.filter(({ isAccepted, isCertain }) => !isAccepted && isCertain)
  if (certain.length > 0) return certain.map((verdict) => found(verdict, name))
  if (!isMissed) return []
  const first = rules.walk({ ...packet, state: 'new' })
  const news = first.filter(({ isAccepted, isCertain }) => !isAccepted && isCertain)
  if (news.length > 0) return news.map((verdict) => found(verdict, name, FIRST_ALONE))
  const later = laterVerdicts(rules, packet, first)
  if (later.drops.length > 0) return later.drops.map((verdict) => found(verdict, name, LATER_ALONE))
  const likely = [...first, ...later.likely].filter(
    (verdict) => !verdict.isAccepted && !(packet.chain === 'FORWARD' && isDeliberate(verdict, side, facts)),
  )
  return [
    ...likely.map((verdict) => found(verdict, verdict.base ? 'nft-drops' : 'iptables-drops')),
    ...unjudgedBy([...first, ...later.verdicts]).map((finding) => ({ ...about, ...finding, base: undefined })),
  ]
}

const LATER_ALONE = ' (only the first packet of a connection is accepted)'
const FIRST_ALONE = ' (only answers to packets of this host are accepted)'

/**
 * Returns true if the rules name the network or its device. An operator or a program made such rules for the network.
 * Such rules may accept the network's packets by conditions that this code does not evaluate.
 */
function isDeliberate({ text }: Pick<HostVerdict, 'text'>, { network }: OwnSide, { status }: Facts): boolean {
  const { device, devices } = status?.dataPath ?? {}
  const words = [formatNet(network), device, devices?.ipv4, devices?.ipv6]
  return words.some((word) => word && text.includes(word))
}

function merged(dropped: readonly Dropped[]): Finding[] {
  return dropped.flatMap((one) => {
    const { name, detail } = one
    const all = dropped.filter((other) => other.name === name && other.detail === detail)
    if (all[0] !== one) return []
    const fix = fixOf(one, all)
    return [{ name, detail, ...(fix === undefined ? {} : { fix }) }]
  })
}

/** Returns the remedy for packets that a firewall rule drops; undefined if the remedy in the table FINDINGS applies. */
function fixOf({ name, base, isFlannels, side, detail }: Dropped, all: readonly Dropped[]): string | undefined {
  if (name === 'discovery-dropped') return discoveryFix(base, all)
  if (name === 'probes-dropped') return probesFix(all)
  if (name === 'port-dropped') return portFix(all)
  if (name !== 'forward-dropped') return undefined
  if (base && /^(?:arp|bridge|netdev) /.test(base.name))
    return `accept the packets of containers before the rule that drops: \`nft insert rule ${base.name} accept\`, or delete that rule (perhaps ebtables or arptables made it); put the change also into the file from which this table is loaded`
  // A table of the nftables family inet can drop both IPv4 and IPv6 packets.
  const networks = FAMILIES.flatMap((family) => all.find((each) => each.side.family === family)?.side ?? [])
  if (isFirewallds(base)) {
    const sources = networks.map(({ network }) => ` --add-source=${formatNet(network)}`)
    return `have firewalld trust the network: \`firewall-cmd --permanent --zone=trusted${sources.join('')}\`, then \`firewall-cmd --reload\``
  }
  if (base) {
    const commands = networks.map(
      ({ family, network }) =>
        `\`nft insert rule ${base.name} ${WORDS[family].nft} saddr ${formatNet(network)} accept\``,
    )
    return `accept the network before the rule that drops: ${commands.join(' and ')} and the same with \`daddr\`; put these rules also into the file from which this table is loaded`
  }
  const [tool, net] = [WORDS[side.family].iptables, formatNet(side.network)]
  const flag = isFlannels
    ? ''
    : '; or, if weftd was started with --iptables-forward-rules=false, start it without that option'
  // A rule that accepts the network in the table filter has no effect on the rules of other tables.
  if (/(?:^|: )-t /.test(detail))
    return `delete the rule that this finding names, or let it leave out the packets from and to ${net}`
  const program = detail.startsWith(`${tool}-legacy: `) ? `${tool}-legacy` : tool
  return `accept both directions: \`${program} -I FORWARD -s ${net} -j ACCEPT\` and \`${program} -I FORWARD -d ${net} -j ACCEPT\`${flag}`
}

/**
 * Returns true for a chain of firewalld. Newer versions of firewalld own their table (NftablesTableOwner), so that the
 * kernel refuses changes of the table by nft. Older versions remove such changes when they reload their rules.
 */
const isFirewallds = (base: BaseChain | undefined): boolean => base?.name.startsWith('inet firewalld ') === true

/**
 * Returns the remedy for packets to or from this host that firewalld drops. `what` names the packets, and `sourceOf`
 * returns the address or network from which firewalld must accept packets; undefined for any source.
 */
function firewalldFix(
  what: string,
  all: readonly Dropped[],
  sourceOf: (dropped: Dropped) => string | undefined,
): string {
  const rules = all
    .filter(({ packet }) => packet.chain === 'INPUT')
    .map((dropped) => {
      const [{ packet, side }, source] = [dropped, sourceOf(dropped)]
      const { protocol, port } = packet
      // The file /etc/protocols has different names for IPIP: ipencap on Debian and ipv4 on RHEL.
      const value = protocol === 'ipencap' ? '4' : protocol
      const of = port === undefined ? `protocol value="${value}"` : `port port="${port}" protocol="${protocol}"`
      const from = source === undefined ? '' : ` source address="${source}"`
      return ` --add-rich-rule='rule family="${side.family}"${from} ${of} accept'`
    })
  const named = [...new Set(rules)].slice(0, COMMAND_PEERS)
  const accept = `have firewalld accept ${what}: \`firewall-cmd --permanent${named.join('')}\` (with \`--zone=ZONE\` if they arrive in another zone than the default zone), then \`firewall-cmd --reload\``
  const change = 'change the policy of firewalld for packets of this host: `firewall-cmd --list-all-policies` shows it'
  const isOut = all.some(({ packet }) => packet.chain === 'OUTPUT')
  return [...(named.length > 0 ? [accept] : []), ...(isOut ? [change] : [])].join('; ')
}

/** Returns the remedy for datagrams of the tunnel that a firewall drops. */
function portFix(all: readonly Dropped[]): string {
  const isIpv6 = all.some(({ side }) => side.family === 'ipv6')
  const neighbours = isIpv6 ? ', and accept `ipv6-icmp`, which hosts need to find each other' : ''
  const others = `; the same for other nodes, if there are more${neighbours}`
  if (isFirewallds(all[0]?.base))
    return `${firewalldFix('these packets', all, ({ packet }) => formatAddress(packet.source))}${others}`
  const commands = (['INPUT', 'OUTPUT'] as const).flatMap((chain) =>
    FAMILIES.flatMap((family) =>
      portCommand(
        chain,
        family,
        all.filter(({ packet, side }) => packet.chain === chain && side.family === family),
      ),
    ),
  )
  return `accept these packets: ${commands.join(' and ')}${others}`
}

/** Returns the command that accepts datagrams of one family in one chain; an empty list if there are no datagrams. */
function portCommand(chain: 'INPUT' | 'OUTPUT', family: Family, dropped: readonly Dropped[]): readonly string[] {
  const [first] = dropped
  if (!first) return []
  const { base, detail, packet } = first
  const { protocol, port } = packet
  const isIn = chain === 'INPUT'
  const hosts = new Set(
    dropped.map(({ packet: { source, destination } }) => formatAddress(isIn ? source : destination)),
  )
  const named = [...hosts].slice(0, COMMAND_PEERS)
  const end = isIn ? 's' : 'd'
  if (!base) {
    const toPort = port === undefined ? '' : ` --dport ${port}`
    const program = insertedAt(WORDS[family].iptables, chain, detail)
    return [`\`${program} -p ${protocol}${toPort} -${end} ${named.join(',')} -j ACCEPT\``]
  }
  const what = port === undefined ? `meta l4proto ${protocol}` : `${protocol} dport ${port}`
  const whose = named.length === 1 ? named[0] : `{ ${named.join(', ')} }`
  return [`\`nft insert rule ${base.name} ${WORDS[family].nft} ${end}addr ${whose} ${what} accept\``]
}

/** Returns the remedy for packets of neighbour discovery that a firewall drops. */
function discoveryFix(base: BaseChain | undefined, all: readonly Dropped[]): string {
  if (isFirewallds(base)) return firewalldFix('the packets of neighbour discovery', all, () => undefined)
  const commands = all.map(({ packet: { chain, from, to }, detail }) =>
    base
      ? `\`nft insert rule ${base.name} meta l4proto ipv6-icmp accept\``
      : `\`${insertedAt('ip6tables', chain, detail)} ${chain === 'INPUT' ? `-i ${from}` : `-o ${to}`} -p ipv6-icmp -j ACCEPT\``,
  )
  return `accept the packets of neighbour discovery: ${[...new Set(commands)].join(' and ')}`
}

/** Returns the command that inserts a rule before the rule of iptables that drops a packet. */
function insertedAt(tool: 'iptables' | 'ip6tables', chain: string, detail: string): string {
  const [, table] = /(?:^|: )-t (\S+) /.exec(detail) ?? []
  const program = detail.startsWith(`${tool}-legacy: `) ? `${tool}-legacy` : tool
  return `${program} -I ${table === undefined ? chain : `${/ -[AP] (\S+)/.exec(detail)?.[1] ?? chain} -t ${table}`}`
}

/** Returns the remedy for probes that a firewall drops. */
function probesFix(all: readonly Dropped[]): string {
  const hostsOf = ({ packet, side: { network } }: Dropped): string => {
    const end = otherEnd(packet)
    return netContains(network, end) ? formatNet(network) : formatAddress(end)
  }
  if (isFirewallds(all[0]?.base)) return firewalldFix('echo requests and replies', all, hostsOf)
  const commands = all.map((dropped) => {
    const [{ packet, base, detail, side }, whose] = [dropped, hostsOf(dropped)]
    const { family } = side
    const isIn = packet.chain === 'INPUT'
    const icmp = echoOf(family)
    return base
      ? `\`nft insert rule ${base.name} ${WORDS[family].nft} ${isIn ? 's' : 'd'}addr ${whose} meta l4proto ${icmp} accept\``
      : `\`${insertedAt(WORDS[family].iptables, packet.chain, detail)} -p ${icmp} -${isIn ? 's' : 'd'} ${whose} -j ACCEPT\``
  })
  return `accept echo requests and replies: ${[...new Set(commands)].join(' and ')}`
}

/**
 * Returns the packet that a peer's host sends to the backend's port on this host; undefined if the backend sends no
 * packets of its own over the underlay.
 */
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
  const outside = kindOf(type)?.outside
  const port = portOf(type, config?.backend ?? {}, family)
  if (!outside || !config || !outersIn({ config }, family).includes(family)) return undefined
  return {
    ...way,
    protocol: outside.protocol,
    ...(port === undefined ? {} : { port }),
    ...(outside.isOneWay ? { isOneWay: true } : {}),
  }
}

export function sentBack({ source, destination, from, ...packet }: FilteredPacket): FilteredPacket {
  return {
    ...packet,
    chain: 'OUTPUT',
    source: destination,
    destination: source,
    ...(from === undefined ? {} : { to: from }),
  }
}

/**
 * For iptables and for nftables, a function that returns whether the tool's output shows weft's rules of a family. The
 * function returns undefined if the output is missing.
 */
const rulesShown: readonly ((side: OwnSide, facts: Facts) => boolean | undefined)[] = [
  ({ family, network }, facts) => listingOf(family, facts)?.includes(`-A FLANNEL-FWD -s ${formatNet(network)} `),
  ({ family, network }, { nft }) =>
    nft === undefined
      ? undefined
      : tablesOf(nft).some(
          ({ name, text }) =>
            name === `${WORDS[family].nft} ${WORDS[family].table}` && text.includes(` ${formatNet(network)} `),
        ),
]
const hasRules = (side: OwnSide, facts: Facts): boolean => rulesShown.some((isShown) => isShown(side, facts) === true)

/**
 * Finds a family for which a tool's output lacks weft's rules, although the output shows weft's rules for the second
 * family.
 */
function missingRules(sides: readonly OwnSide[], facts: Facts): Finding[] {
  return sides
    .filter((side) => !hasRules(side, facts))
    .filter((side) =>
      rulesShown.some((isShown) => isShown(side, facts) === false && sides.some((other) => isShown(other, facts))),
    )
    .map(({ family }) => ({ name: 'rules-missing', detail: family === 'ipv4' ? 'IPv4' : 'IPv6' }))
}
