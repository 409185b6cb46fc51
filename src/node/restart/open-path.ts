// open-path.ts - packs open paths for another process: descriptions as JSON, and a list of descriptors to which the descriptions refer.

import type { OpenPath } from '../../path/engine/engine.ts'

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
    .flatMap(({ loops, handoverState }) => [
      ...loops.flatMap((loop) => [loop.tun, loop.socket, loop.sender, loop.otherSocket, loop.otherSender]),
      handoverState,
    ])
    .filter((fd) => fd !== undefined)
}

/** Returns no paths if the descriptions are invalid or do not match the descriptors. */
export function unpackPaths(descriptions: unknown, fds: readonly number[]): readonly OpenPath[] {
  if (!Array.isArray(descriptions) || !descriptions.every(isPath)) return []
  const places = fdsOf(descriptions)
  const isWhole = places.length === fds.length && places.every((place, index) => place === index)
  return isWhole ? descriptions.map((path) => withFds(path, (place) => fds[place] as number)) : []
}

function withFds(path: OpenPath, map: (fd: number) => number): OpenPath {
  const loops = path.loops.map(({ tun, socket, sender, otherSocket, otherSender }) => ({
    tun: map(tun),
    socket: map(socket),
    ...(sender === undefined ? {} : { sender: map(sender) }),
    ...(otherSocket === undefined ? {} : { otherSocket: map(otherSocket) }),
    ...(otherSender === undefined ? {} : { otherSender: map(otherSender) }),
  }))
  return { ...path, loops, ...(path.handoverState === undefined ? {} : { handoverState: map(path.handoverState) }) }
}

function isLoop(value: unknown): boolean {
  const { tun, socket, ...more } = (value ?? {}) as { readonly [name: string]: unknown }
  const { sender = 0, otherSocket = 0, otherSender = 0 } = more
  return [tun, socket, sender, otherSocket, otherSender].every((fd) => typeof fd === 'number')
}

/** Checks a description, which another version of weft may have written. Unknown members are ignored. */
function isPath(value: unknown): value is OpenPath {
  const path = (value ?? {}) as { readonly [Name in keyof OpenPath]?: unknown }
  const areStrings = (list: unknown): boolean => Array.isArray(list) && list.every((each) => typeof each === 'string')
  return (
    typeof path.tunName === 'string' &&
    typeof path.bindAddress === 'string' &&
    ['string', 'undefined'].includes(typeof path.otherAddress) &&
    typeof path.port === 'number' &&
    ['number', 'undefined'].includes(typeof path.handoverState) &&
    areStrings(path.features) &&
    areStrings(path.without) &&
    Array.isArray(path.loops) &&
    path.loops.length > 0 &&
    path.loops.every(isLoop)
  )
}
