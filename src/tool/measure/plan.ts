// plan.ts - what `weft bench` does, in which order and how much of it. Pure.

import type { Family } from '../../net/address.ts'
import { DATAGRAM_HEADER_BYTES, LIMITS } from './conversation.ts'

/** The two ways to a peer: to its public IP, and to its overlay address, through the data path. */
export const PATHS = ['outside', 'inside'] as const
export type PathName = (typeof PATHS)[number]
/** A value for each path. */
export type Both<Value> = Readonly<Record<PathName, Value>>

export interface Plan {
  /** TCP connections at once. */
  readonly streams: number
  /** The length of each sample. */
  readonly seconds: number
  /** The number of samples of each path. */
  readonly pairs: number
  /** The rate of UDP; 0 for one that the TCP streams choose. */
  readonly bitsPerSecond: number
}

const MOST = { pairs: 50, megabitsPerSecond: 100_000 } as const

/** The plan that a command line asks for; or what of it is not possible. */
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

/** The order of a pair: it alternates, so that neither path always follows the other. */
export const orderOf = (pair: number): readonly PathName[] => (pair % 2 === 0 ? PATHS : PATHS.toReversed())

/** IP without options, and UDP. */
const HEADERS_BYTES: Readonly<Record<Family, number>> = { ipv4: 28, ipv6: 48 }

/** The payload of a datagram of a family that fits the overlay whole: the same on both paths. */
export function datagramBytes(mtu: number, pathMtu: number | null, family: Family): number {
  return Math.max(DATAGRAM_HEADER_BYTES, Math.min(mtu, pathMtu ?? mtu) - HEADERS_BYTES[family])
}

/** The rate that a program which sends each datagram by a call of its own reaches without being the limit itself. */
const USUAL_MOST = 200e6
const USUAL_LEAST = 1e6

/** Bits a second of UDP payload: a rate that both paths carried with ease by TCP, so that what is lost is lost by the way itself. */
export function datagramRate({ bitsPerSecond }: Plan, tcp: Both<number>): number {
  if (bitsPerSecond > 0) return bitsPerSecond
  const carried = PATHS.map((path) => tcp[path]).filter((rate) => rate > 0)
  return Math.max(USUAL_LEAST, Math.min(USUAL_MOST, ...carried.map((rate) => rate / 2)))
}
