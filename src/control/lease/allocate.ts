// allocate.ts - which subnets a new lease may take (upstream pkg/subnet/etcd/local_manager.go).

import { compareAddresses, netAround, netSize, type Net } from '../../net/address.ts'
import type { SubnetRange } from '../config/network-config.ts'

/** The number of free subnets from which one is drawn, as upstream. */
export const CANDIDATES = 100

/** True when the configuration hands out such a subnet. */
export function isCompatible<N extends Net>(subnet: N, range: SubnetRange<N>): boolean {
  return (
    subnet.prefixLength === range.subnetLength && subnet.address >= range.subnetMin && subnet.address <= range.subnetMax
  )
}

/**
 * The first free subnets in order, at most CANDIDATES. One is free if it overlaps none of `taken`, which are of the range's family and of
 * any length. What is taken is passed at once, however many subnets it has.
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
  let reach = 0n // end of all busy ranges that start before the candidate's end
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

/** One free subnet at random, or undefined when there is none. `random` gives 0 <= x < 1. */
export function pickSubnet<N extends Net>(
  range: SubnetRange<N>,
  taken: readonly N[],
  random: () => number,
): N | undefined {
  const free = freeSubnets(range, taken)
  return free[Math.floor(random() * free.length)]
}
