// neighbours.ts - counts the entries of the kernel's neighbour tables, and reads their limits.

import type { Family } from '../net/address.ts'
import type { HostKernel } from './kernel.ts'
import { getSysctl } from './sysctl.ts'

/** The kernel's neighbour table of one family, which maps IP addresses to link-layer addresses (arp(7)). */
export interface NeighbourTable {
  readonly family: Family
  /**
   * The number of entries that count against the kernel's limits. Entries that an operator added manually do not count.
   */
  readonly entries: number
  /**
   * The kernel's limits for the number of entries, `net.ipv4.neigh.default.gc_thresh1` to `gc_thresh3`; undefined
   * outside the host's network namespace, because other namespaces do not have these settings.
   */
  readonly thresholds: readonly [number, number, number] | undefined
}

/**
 * The states of neighbour entries that do not count against the kernel's limits: manually added entries, and entries
 * that need no ARP.
 */
const UNCOUNTED = new Set(['PERMANENT', 'NOARP'])

/** Counts the neighbour entries of a family, and reads the kernel's limits for their number. */
export async function neighboursOf(family: Family, kernel: HostKernel): Promise<NeighbourTable> {
  const limits = [1, 2, 3].map((which) => getSysctl(`net/${family}/neigh/default/gc_thresh${which}`))
  const [found, ...texts] = await Promise.all([kernel.neighbours(family), ...limits])
  const entries = found.filter(({ states }) => !states.some((each) => UNCOUNTED.has(each))).length
  const [first, second, third] = texts.map((text) => (text === undefined ? Number.NaN : Number(text)))
  const isKnown = first !== undefined && second !== undefined && third !== undefined && third > 0
  return { family, entries, thresholds: isKnown ? [first, second, third] : undefined }
}
