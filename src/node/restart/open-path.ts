// open-path.ts - packs open paths for another process: descriptions as JSON, and a list of descriptors to which the descriptions refer.

import { FAMILIES } from '../../net/address.ts'
import type { OpenPath } from '../../path/engine/engine.ts'

type LoopDescriptors = OpenPath['loops'][number]
type LoopSockets = NonNullable<LoopDescriptors['sockets']['ipv4']>

interface PackedPaths {
  /** The paths, with places in `fds` instead of descriptors. */
  readonly descriptions: readonly OpenPath[]
  readonly fds: readonly number[]
}

export function packPaths(paths: readonly OpenPath[]): PackedPaths {
  const fds: number[] = []
  const descriptions = paths.map((path) => withFds(path, (fd) => fds.push(fd) - 1))
  return { descriptions, fds }
}

/** Returns all descriptors of paths, in the order of their places. */
export function fdsOf(paths: readonly OpenPath[]): number[] {
  return paths
    .flatMap(({ loops, handoverState }) => [...loops.flatMap(fdsOfLoop), handoverState])
    .filter((fd) => fd !== undefined)
}

const fdsOfLoop = ({ tun, sockets }: LoopDescriptors): (number | undefined)[] => [
  tun,
  ...FAMILIES.flatMap((family) => [sockets[family]?.receiver, sockets[family]?.sender]),
]

/** Returns no paths if the descriptions are invalid or do not match the descriptors. */
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

function isLoop(value: unknown): boolean {
  const { tun, sockets } = (value ?? {}) as Unchecked
  const { ipv4, ipv6 } = (sockets ?? {}) as Unchecked
  const all = [ipv4, ipv6].filter((each) => each !== undefined)
  return typeof tun === 'number' && all.length > 0 && all.every(areSockets)
}

function areSockets(value: unknown): boolean {
  const { receiver, sender = 0 } = (value ?? {}) as Unchecked
  return typeof receiver === 'number' && typeof sender === 'number'
}

/** Checks a description, which another version of weft may have written. Unknown members are ignored. */
function isPath(value: unknown): value is OpenPath {
  const path = (value ?? {}) as { readonly [Name in keyof OpenPath]?: unknown }
  const areStrings = (list: unknown): boolean => Array.isArray(list) && list.every((each) => typeof each === 'string')
  return (
    typeof path.tunName === 'string' &&
    areStrings(path.bindAddresses) &&
    typeof path.port === 'number' &&
    ['number', 'undefined'].includes(typeof path.handoverState) &&
    areStrings(path.features) &&
    areStrings(path.without) &&
    Array.isArray(path.loops) &&
    path.loops.length > 0 &&
    path.loops.every(isLoop)
  )
}
