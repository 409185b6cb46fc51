// open-path.test.ts - a path on its way to another process: all of it arrives, and what is none is told.

import { describe, expect, it } from 'vitest'
import type { OpenPath } from '../../../../src/path/engine/engine.ts'
import { fdsOf, packPath, unpackPath } from '../../../../src/node/restart/open-path.ts'

const path: OpenPath = {
  ...{ tunName: 'flannel0', bindAddress: '192.0.2.1', port: 8285, features: ['tun-csum', 'x'], without: ['udp-gso'] },
  loops: [
    { tun: 21, socket: 35, sender: 7 },
    { tun: 4, socket: 50 },
  ],
}
const FDS = [21, 35, 7, 4, 50]
/** As the other process reads it. */
const sent = (): Record<string, unknown> => JSON.parse(JSON.stringify(packPath(path).description))

describe('a path on its way', () => {
  it('arrives as it was sent, with the numbers that it has there', () => {
    const { description, fds } = packPath(path)
    expect([fds, fdsOf(path)]).toEqual([FDS, FDS])
    expect(description).toEqual({
      ...path,
      loops: [
        { tun: 0, socket: 1, sender: 2 },
        { tun: 3, socket: 4 },
      ],
    })
    const arrived = unpackPath(sent(), [9, 8, 7, 6, 5])
    expect(arrived).toStrictEqual({
      ...path,
      loops: [
        { tun: 9, socket: 8, sender: 7 },
        { tun: 6, socket: 5 },
      ],
    })
  })

  it.each([[undefined], [null], ['text'], [7], [[]], [{}]])('is not described by %j', (description) => {
    expect(unpackPath(description, [])).toBeUndefined()
    expect(unpackPath(description, FDS)).toBeUndefined()
  })

  it.each([
    ...['tunName', 'bindAddress', 'port', 'features', 'without', 'loops'].map((name) => ({ [name]: undefined })),
    ...[{ tunName: 7 }, { bindAddress: null }, { port: '8285' }],
    ...[{ features: 'all' }, { features: {} }, { features: ['a', 1] }, { without: null }, { without: [1, 'a'] }],
    ...[{ loops: 'all' }, { loops: {} }, { loops: [{ tun: 0, socket: 1 }, null] }],
    ...[{ loops: [{ tun: 0, socket: 1 }, {}] }, { loops: [{ tun: 0, socket: '1' }] }],
    { loops: [{ tun: 0, socket: 1, sender: '2' }] },
  ])('is none with %j', (wrong) => {
    expect(unpackPath({ ...sent(), ...wrong }, FDS)).toBeUndefined()
  })

  it.each([
    [[], []],
    [[{ tun: 0, socket: 1 }], [7]],
    [[{ tun: 0, socket: 1 }], [7, 8, 9]],
    [[{ tun: 1, socket: 0 }], [7, 8]],
    [[{ tun: 0, socket: 0 }], [7, 8]],
    [[{ tun: 0, socket: 1, sender: 3 }], [7, 8, 9]],
  ])('of the loops %j is none of the descriptors %j', (loops, fds) => {
    expect(unpackPath({ ...sent(), loops }, fds)).toBeUndefined()
  })

  it('is what another version says of it beside', () => {
    expect(unpackPath({ ...sent(), laterOn: true }, FDS)).toMatchObject(path)
  })
})
