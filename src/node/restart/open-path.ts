// open-path.ts - an open path on its way to another process: a description as JSON, and descriptors in the order that it tells.

import type { OpenPath } from '../../path/engine/engine.ts'

export interface PackedPath {
  /** The path with places among `fds` where it has descriptors. */
  readonly description: OpenPath
  readonly fds: readonly number[]
}

export function packPath(path: OpenPath): PackedPath {
  const fds: number[] = []
  const description = withFds(path, (fd) => fds.push(fd) - 1)
  return { description, fds }
}

/** All descriptors of a path, in the order of their places. */
export function fdsOf({ loops }: OpenPath): number[] {
  return loops.flatMap(({ tun, socket, sender = [] }) => [tun, socket].concat(sender))
}

/** Undefined when the description is none, or of other descriptors than these. */
export function unpackPath(description: unknown, fds: readonly number[]): OpenPath | undefined {
  if (!isPath(description)) return undefined
  const places = fdsOf(description)
  const isWhole = places.length === fds.length && places.every((place, index) => place === index)
  return isWhole ? withFds(description, (place) => fds[place] as number) : undefined
}

function withFds(path: OpenPath, map: (fd: number) => number): OpenPath {
  const loops = path.loops.map(({ tun, socket, sender }) => ({
    tun: map(tun),
    socket: map(socket),
    ...(sender === undefined ? {} : { sender: map(sender) }),
  }))
  return { ...path, loops }
}

function isLoop(value: unknown): boolean {
  const { tun, socket, sender = 0 } = (value ?? {}) as { readonly [name: string]: unknown }
  return [tun, socket, sender].every((fd) => typeof fd === 'number')
}

/**
 * Checks a description that another version of weft may have written: one that lacks something is refused, anything
 * extra is ignored.
 */
function isPath(value: unknown): value is OpenPath {
  const path = (value ?? {}) as { readonly [Name in keyof OpenPath]?: unknown }
  const areStrings = (list: unknown): boolean => Array.isArray(list) && list.every((each) => typeof each === 'string')
  return (
    typeof path.tunName === 'string' &&
    typeof path.bindAddress === 'string' &&
    typeof path.port === 'number' &&
    areStrings(path.features) &&
    areStrings(path.without) &&
    Array.isArray(path.loops) &&
    path.loops.length > 0 &&
    path.loops.every(isLoop)
  )
}
