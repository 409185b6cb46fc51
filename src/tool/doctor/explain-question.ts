// explain-question.ts - describes the packet that weft explain explains, and finds out who owns its addresses. Pure.

import type { Route } from '../../host/kernel.ts'
import { familyOf, netAround, netContains, type Address, type Net } from '../../net/address.ts'
import { placeIn, type Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import { networksOf, sideIn, type SeenSide } from './sides.ts'

export interface Step {
  /** The name of the step, such as `source`, `route` or `firewall`. */
  readonly step: string
  /**
   * True if the packet passes this step, false if the packet ends at this step; undefined if the facts of this host do
   * not show which.
   */
  readonly passes: boolean | undefined
  readonly says: string
}

/**
 * The location of an address. `here`: a container of this node; `host`: this host itself; `peer`: another node;
 * `unassigned`: inside the network, but in no lease; `outside`: not in the network.
 */
export type Side =
  | { readonly kind: 'here' | 'host' | 'unassigned' | 'outside' }
  | { readonly kind: 'peer'; readonly peer: SeenSide }

/** The direction of a packet, seen from this host: to other hosts, from other hosts, or between addresses of this host. */
export type Direction = 'out' | 'in' | 'local'

/** A packet to explain, with the facts about this host. Source and destination have the same family. */
export interface Question {
  readonly source: Address
  readonly destination: Address
  readonly status: Status
  readonly facts: Facts
  /** The kernel's route for the packet; undefined if the kernel finds no route or rejects the packet. */
  readonly route: Route | undefined
  /** The text of the policy rule that selected the route, if the route is not in the main table. */
  readonly byRule?: string | undefined
  readonly refused?: string | undefined
  /**
   * True if the packet may be an answer, which a firewall may accept although the firewall drops the first packet of a
   * connection in this direction.
   */
  readonly isAnswer?: boolean
}

export function directionOf(
  source: Address,
  destination: Address,
  status: Status,
  facts: Pick<Facts, 'links'>,
): Direction {
  const isLocal = (address: Address): boolean => ['here', 'host'].includes(sideOf(address, status, facts).kind)
  return isLocal(source) ? (isLocal(destination) ? 'local' : 'out') : isLocal(destination) ? 'in' : 'out'
}

/**
 * Returns true if weft can also explain the answer to a packet: one end is on this host, and the other end is on a peer.
 */
export function hasAnswer(source: Address, destination: Address, status: Status, facts: Pick<Facts, 'links'>): boolean {
  const kinds = [source, destination].map((address) => sideOf(address, status, facts).kind)
  return kinds.includes('peer') && kinds.some((kind) => kind === 'here' || kind === 'host')
}

export function sideOf(address: Address, { node, config, peers }: Status, facts: Pick<Facts, 'links'>): Side {
  const family = familyOf(address)
  const has = (net: Net | undefined): boolean => net !== undefined && netContains(net, address)
  if (facts.links.some(({ addresses }) => addresses[family].some((each) => each.address === address)))
    return { kind: 'host' }
  if (has(node ? placeIn(node, family).subnet : undefined)) return { kind: 'here' }
  const [peer] = (peers?.list ?? [])
    .map((each) => sideIn(each, family))
    .filter(({ subnet }) => has(subnet))
    .toSorted((a, b) => (b.subnet?.prefixLength ?? 0) - (a.subnet?.prefixLength ?? 0))
  if (peer) return { kind: 'peer', peer }
  return { kind: has(config ? networksOf(config)[family] : undefined) ? 'unassigned' : 'outside' }
}

/**
 * Returns true if an address belongs to this host, to its containers, or to a network to which the host is connected,
 * such as a network of other containers.
 */
export function isOnHost(address: Address, status: Status, facts: Pick<Facts, 'links'>): boolean {
  const { kind } = sideOf(address, status, facts)
  if (kind === 'here' || kind === 'host') return true
  const family = familyOf(address)
  const isConnected = facts.links.some(({ addresses }) =>
    addresses[family].some(
      (own) => own.prefixLength > 0 && netContains(netAround(own.address, own.prefixLength), address),
    ),
  )
  return kind === 'outside' && isConnected
}
