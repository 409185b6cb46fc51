// open-path.ts - packs open data paths for another process: their descriptions as JSON, and a list of the file
// descriptors to which the descriptions refer.

import { FAMILIES, familyOfText, type Family } from '../../net/address.ts'
import type { OpenPath } from '../../path/engine/engine.ts'

type LoopDescriptors = OpenPath['loops'][number]
type LoopSockets = NonNullable<LoopDescriptors['sockets']['ipv4']>

interface PackedPaths {
  /**
   * The descriptions of the open data paths. In place of a descriptor a description has the index of the descriptor in
   * `fds`.
   */
  readonly descriptions: readonly OpenPath[]
  readonly fds: readonly number[]
}

export function packPaths(paths: readonly OpenPath[]): PackedPaths {
  const fds: number[] = []
  const descriptions = paths.map((path) => withFds(path, (fd) => fds.push(fd) - 1))
  return { descriptions, fds }
}

/** Returns all descriptors of the data paths, in the order of their indices in the descriptions. */
export function fdsOf(paths: readonly OpenPath[]): number[] {
  return paths
    .flatMap(({ loops, handoverState }) => [...loops.flatMap(fdsOfLoop), handoverState])
    .filter((fd) => fd !== undefined)
}

const fdsOfLoop = ({ tun, sockets }: LoopDescriptors): (number | undefined)[] => [
  tun,
  ...FAMILIES.flatMap((family) => [sockets[family]?.receiver, sockets[family]?.sender]),
]

/**
 * Returns the data paths with their descriptors. Returns no data paths if the descriptions are invalid or do not match
 * the descriptors.
 */
export function unpackPaths(descriptions: unknown, fds: readonly number[]): readonly OpenPath[] {
  if (!Array.isArray(descriptions) || !descriptions.every(isPath)) return []
  const places = fdsOf(descriptions)
  const isWhole = places.length === fds.length && places.every((place, index) => place === index)
  return isWhole ? descriptions.map((path) => withFds(path, (place) => fds[place] as number)) : []
}

function withFds(path: OpenPath, map: (fd: number) => number): OpenPath {
  const mapSockets = ({ receiver, sender }: LoopSockets): LoopSockets => ({
    receiver: map(receiver),
    ...(sender === undefined ? {} : { sender: map(sender) }),
  })
  const loops = path.loops.map(({ tun, sockets: { ipv4, ipv6 } }) => ({
    tun: map(tun),
    sockets: { ...(ipv4 ? { ipv4: mapSockets(ipv4) } : {}), ...(ipv6 ? { ipv6: mapSockets(ipv6) } : {}) },
  }))
  return { ...path, loops, ...(path.handoverState === undefined ? {} : { handoverState: map(path.handoverState) }) }
}

interface Unchecked {
  readonly [name: string]: unknown
}

/**
 * Returns true if the value describes the descriptors of one forwarding thread, with sockets in exactly the given
 * families.
 */
function isLoop(value: unknown, families: ReadonlySet<Family>): boolean {
  const { tun, sockets } = (value ?? {}) as Unchecked
  const of = (sockets ?? {}) as Unchecked
  return (
    typeof tun === 'number' &&
    FAMILIES.every((family) => (families.has(family) ? areSockets(of[family]) : of[family] === undefined))
  )
}

function areSockets(value: unknown): boolean {
  const { receiver, sender = 0 } = (value ?? {}) as Unchecked
  return typeof receiver === 'number' && typeof sender === 'number'
}

const areStrings = (list: unknown): list is readonly string[] =>
  Array.isArray(list) && list.every((each) => typeof each === 'string')

/**
 * Returns true if a description is valid. Another version of weft may have written the description. Unknown members are
 * ignored.
 */
function isPath(value: unknown): value is OpenPath {
  const path = (value ?? {}) as { readonly [Name in keyof OpenPath]?: unknown }
  const { bindAddresses } = path
  if (!areStrings(bindAddresses)) return false
  const families = new Set(bindAddresses.map(familyOfText))
  return (
    typeof path.tunName === 'string' &&
    families.size > 0 &&
    families.size === bindAddresses.length &&
    typeof path.port === 'number' &&
    ['number', 'undefined'].includes(typeof path.handoverState) &&
    ['number', 'undefined'].includes(typeof path.queueDrops) &&
    areStrings(path.features) &&
    areStrings(path.without) &&
    Array.isArray(path.loops) &&
    path.loops.length > 0 &&
    path.loops.every((loop) => isLoop(loop, families))
  )
}
