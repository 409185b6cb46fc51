// neighbours.ts - counts the entries of the kernel's neighbour tables, and reads their limits.

import type { Family } from '../net/address.ts'
import type { Run } from './command.ts'
import { ipFlag, ipJson } from './links.ts'
import { getSysctl } from './sysctl.ts'

/** The neighbour table of one family (arp(7)). */
export interface NeighbourTable {
  readonly family: Family
  /** The number of entries that the kernel may drop: those of ARP and neighbour discovery, without manually added entries. */
  readonly entries: number
  /** `net.ipv4.neigh.default.gc_thresh1` to `3`; undefined inside a network namespace, which cannot see them. */
  readonly thresholds: readonly [number, number, number] | undefined
}

/** The states of entries that the kernel does not count against its limits: manually added ones, and those that need no ARP. */
const UNCOUNTED = new Set(['PERMANENT', 'NOARP'])

/** Counts the neighbours of a family, and reads the limits of their number. */
export async function neighboursOf(family: Family, run: Run): Promise<NeighbourTable> {
  const limits = [1, 2, 3].map((which) => getSysctl(`net/${family}/neigh/default/gc_thresh${which}`))
  const [found, ...texts] = await Promise.all([
    ipJson<{ state?: readonly string[] }>(run, [ipFlag(family), 'neighbour', 'show', 'nud', 'all']),
    ...limits,
  ])
  const entries = found.filter(({ state = [] }) => !state.some((each) => UNCOUNTED.has(each))).length
  const [first, second, third] = texts.map((text) => (text === undefined ? Number.NaN : Number(text)))
  const isKnown = first !== undefined && second !== undefined && third !== undefined && third > 0
  return { family, entries, thresholds: isKnown ? [first, second, third] : undefined }
}
