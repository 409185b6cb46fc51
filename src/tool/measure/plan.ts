// plan.ts - plans the samples of `weft bench`: their number, length, order and rate. Pure.

import type { Family } from '../../net/address.ts'
import { DATAGRAM_HEADER_BYTES, LIMITS } from './conversation.ts'

/**
 * The two paths to a peer. `outside`: to the peer's public IP, without the tunnel; `inside`: to the peer's overlay
 * address, through the data path.
 */
export const PATHS = ['outside', 'inside'] as const
export type PathName = (typeof PATHS)[number]
export type Both<Value> = Readonly<Record<PathName, Value>>

export interface Plan {
  readonly streams: number
  readonly seconds: number
  readonly pairs: number
  /** The UDP rate in bits per second; 0 to derive the rate from the measured TCP rates. */
  readonly bitsPerSecond: number
}

const MOST = { pairs: 50, megabitsPerSecond: 100_000 } as const

/** Returns the plan that the command line describes, or the problem with the command line. */
export function planOf(wanted: {
  readonly streams: number
  readonly seconds: string
  readonly pairs: number
  readonly rate: number
}): Plan | { readonly problem: string; readonly remedy: string } {
  const { streams, pairs, rate } = wanted
  const seconds = Number(wanted.seconds)
  const isWithin = (value: number, least: number, most: number): boolean => value >= least && value <= most
  if (!isWithin(streams, 1, LIMITS.streams)) {
    return { problem: `--streams is ${streams}`, remedy: `give 1 to ${LIMITS.streams}` }
  }
  if (!isWithin(seconds, 0.01, LIMITS.seconds)) {
    return { problem: `--seconds is ${wanted.seconds}`, remedy: `give 0.01 to ${LIMITS.seconds}` }
  }
  if (!isWithin(pairs, 1, MOST.pairs)) return { problem: `--pairs is ${pairs}`, remedy: `give 1 to ${MOST.pairs}` }
  if (!isWithin(rate, 0, MOST.megabitsPerSecond)) {
    return { problem: `--rate is ${rate}`, remedy: `give 1 to ${MOST.megabitsPerSecond} Mbit/s, 0 for one that fits` }
  }
  return { streams, seconds, pairs, bitsPerSecond: rate * 1e6 }
}

/**
 * Returns the order in which the two samples of pair number `pair` measure the two paths. The order alternates, so that
 * neither path is always the second.
 */
export const orderOf = (pair: number): readonly PathName[] => (pair % 2 === 0 ? PATHS : PATHS.toReversed())

/** The length in bytes of the IP header without options and the UDP header together. */
const HEADERS_BYTES: Readonly<Record<Family, number>> = { ipv4: 28, ipv6: 48 }

/**
 * Returns the payload length in bytes of the longest datagram that fits the overlay without fragmentation. Datagrams on
 * both paths have this length.
 */
export function datagramBytes(mtu: number, pathMtu: number | null, family: Family): number {
  return Math.max(DATAGRAM_HEADER_BYTES, Math.min(mtu, pathMtu ?? mtu) - HEADERS_BYTES[family])
}

/**
 * The upper limit for a derived UDP rate, in bits per second. A program that sends one datagram per system call, as
 * `weft bench` does, can reach this rate.
 */
const USUAL_MOST = 200e6
const USUAL_LEAST = 1e6

/**
 * Returns the rate of UDP payload in bits per second. The default is half of the lower of the two measured TCP rates,
 * so that an excessive rate does not cause losses.
 */
export function datagramRate({ bitsPerSecond }: Plan, tcp: Both<number>): number {
  if (bitsPerSecond > 0) return bitsPerSecond
  const carried = PATHS.map((path) => tcp[path]).filter((rate) => rate > 0)
  return Math.max(USUAL_LEAST, Math.min(USUAL_MOST, ...carried.map((rate) => rate / 2)))
}
