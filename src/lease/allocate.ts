// allocate.ts - which subnets a new lease may take (upstream pkg/subnet/etcd/local_manager.go).

import type { SubnetRange } from '../config/network-config.ts'
import type { Net } from '../net/address.ts'
import { ipv4NetSize, type Ipv4Net } from '../net/ipv4.ts'

/** How many free subnets are looked at before one is drawn, as upstream. */
export const CANDIDATES = 100

/** Whether a subnet is one that the configuration hands out. */
export function isCompatible<N extends Net>(subnet: N, range: SubnetRange<N>): boolean {
  return (
    subnet.prefixLength === range.subnetLength && subnet.address >= range.subnetMin && subnet.address <= range.subnetMax
  )
}

/** The first free subnets in order, at most CANDIDATES. One is free if it overlaps none of `taken`, of any length. */
export function freeSubnets(range: SubnetRange<Ipv4Net>, taken: readonly Ipv4Net[]): Ipv4Net[] {
  const step = ipv4NetSize(range.subnetLength)
  const busy = taken
    .map((net) => ({ from: net.address, to: net.address + ipv4NetSize(net.prefixLength) }))
    .toSorted((a, b) => a.from - b.from)
  const free: Ipv4Net[] = []
  let next = 0
  let reach = 0 // end of all busy ranges that start before the candidate's end
  for (let address = range.subnetMin; address <= range.subnetMax && free.length < CANDIDATES; address += step) {
    for (let other = busy[next]; other && other.from < address + step; other = busy[++next])
      reach = Math.max(reach, other.to)
    if (reach <= address) free.push({ address, prefixLength: range.subnetLength })
  }
  return free
}

/** One free subnet at random, or undefined when there is none. `random` gives 0 <= x < 1. */
export function pickSubnet(
  range: SubnetRange<Ipv4Net>,
  taken: readonly Ipv4Net[],
  random: () => number,
): Ipv4Net | undefined {
  const free = freeSubnets(range, taken)
  return free[Math.floor(random() * free.length)]
}
