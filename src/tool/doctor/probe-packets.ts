// probe-packets.ts - lists the echo requests and replies by which two nodes probe each other, and finds the firewall
// rules of this host that drop them. Pure.

import type { Address } from '../../net/address.ts'
import { placeIn, type Status } from '../../report/status.ts'
import { echoOf, type FilteredPacket } from './chain-walk.ts'
import type { Facts } from './facts.ts'
import { readRules, type HostVerdict } from './host-rules.ts'
import { kindIn, ownSides, type OwnSide, type SeenSide } from './sides.ts'

interface ProbePackets {
  /** The echo requests of a peer, and the replies of this host. */
  readonly theirs: readonly FilteredPacket[]
  /** The echo requests of this host, and the replies of a peer. */
  readonly ours: readonly FilteredPacket[]
}

/** Returns the packets of the probes between this node and a peer, in the order in which they pass this host. */
export function probePackets(side: OwnSide, peer: SeenSide, { config, node, dataPath }: Status): ProbePackets {
  const target = kindIn({ config })?.probe ?? 'nobody'
  const isOverlay = target === 'overlay'
  const here = isOverlay ? side.subnet.address : node ? placeIn(node, side.family).publicIp : undefined
  const there = isOverlay ? peer.subnet?.address : peer.publicIp
  if (target === 'nobody' || here === undefined || there === undefined) return { theirs: [], ours: [] }
  const overlayDevice = peer.way === 'direct' ? undefined : dataPath?.devices[side.family]
  const device = (isOverlay ? overlayDevice : node?.externalInterface) ?? undefined
  const protocol = echoOf(side.family)
  const arriving = (icmp: 'request' | 'reply', state: 'new' | 'established'): FilteredPacket => {
    const from = device === undefined ? {} : { from: device }
    return { chain: 'INPUT', protocol, icmp, source: there, destination: here, state, ...from }
  }
  const leaving = (icmp: 'request' | 'reply', state: 'new' | 'established'): FilteredPacket => {
    const to = device === undefined ? {} : { to: device }
    return { chain: 'OUTPUT', protocol, icmp, source: here, destination: there, state, ...to }
  }
  return {
    theirs: [arriving('request', 'new'), leaving('reply', 'established')],
    ours: [leaving('request', 'new'), arriving('reply', 'established')],
  }
}

/**
 * Returns the verdicts of the firewall of this host that certainly drop the probes which this host sends to a peer, or
 * the replies. If there is such a verdict, the silence of the peer proves nothing.
 */
export function dropsOfOwnProbes(peer: SeenSide, facts: Facts): readonly HostVerdict[] {
  const { status } = facts
  const side = status && ownSides(status).find(({ family }) => family === peer.family)
  if (!side) return []
  const rules = readRules(facts, peer.family)
  return probePackets(side, peer, status).ours.flatMap((packet) =>
    rules.walk(packet).filter(({ isAccepted, isCertain }) => !isAccepted && isCertain),
  )
}

/** Returns the address of the other host in a packet of a probe. */
export const otherEnd = ({ chain, source, destination }: FilteredPacket): Address =>
  chain === 'INPUT' ? source : destination
