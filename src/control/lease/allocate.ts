// allocate.ts - chooses free subnets for a new lease at random (flannel: pkg/subnet/etcd/local_manager.go).

import { compareAddresses, netAround, netSize, type Net } from '../../net/address.ts'
import type { SubnetRange } from '../config/network-config.ts'

/**
 * The maximum number of candidates for a new subnet. Like flannel, weftd draws a subnet at random from the lowest free
 * subnets of the network.
 */
export const CANDIDATES = 100

/**
 * Returns true if the configuration allows a node to use the subnet: the subnet has the prefix length of `range` and is
 * within `range`.
 */
export function isCompatible<N extends Net>(subnet: N, range: SubnetRange<N>): boolean {
  return (
    subnet.prefixLength === range.subnetLength && subnet.address >= range.subnetMin && subnet.address <= range.subnetMax
  )
}

/**
 * Returns the lowest free subnets of the range in ascending order, at most CANDIDATES. A subnet is free if it overlaps
 * none of the networks in `taken`, which have the range's family and any prefix length. The search skips a large taken
 * network in one step.
 */
export function freeSubnets<N extends Net>(range: SubnetRange<N>, taken: readonly N[]): N[] {
  const { network, subnetLength, subnetMin, subnetMax } = range
  const step = netSize(network, subnetLength)
  const last = BigInt(subnetMax)
  const busy = taken
    .map((net) => {
      const from = BigInt(net.address)
      return { from, to: from + netSize(net) }
    })
    .toSorted((a, b) => compareAddresses(a.from, b.from))
  const free: N[] = []
  let next = 0
  let reach = 0n // the end of the busy ranges that start before the end of the candidate
  for (let address = BigInt(subnetMin); address <= last && free.length < CANDIDATES;) {
    const end = address + step
    for (let other = busy[next]; other && other.from < end; other = busy[++next]) if (other.to > reach) reach = other.to
    if (reach <= address) free.push(subnetAt(range, address))
    address = reach <= address ? end : ((reach + step - 1n) / step) * step
  }
  return free
}

const subnetAt = <N extends Net>({ network, subnetLength }: SubnetRange<N>, address: bigint): N =>
  netAround(typeof network.address === 'number' ? Number(address) : address, subnetLength) as N

/**
 * Draws a free subnet at random. Returns undefined if no subnet of the range is free. `random` returns a number of at
 * least 0 and below 1.
 */
export function pickSubnet<N extends Net>(
  range: SubnetRange<N>,
  taken: readonly N[],
  random: () => number,
): N | undefined {
  const free = freeSubnets(range, taken)
  return free[Math.floor(random() * free.length)]
}
