// open-path.test.ts - paths are packed for another process: all of them arrive, and an invalid one is detected.

import { describe, expect, it } from 'vitest'
import { fdsOf, packPaths, unpackPaths } from '../../../../src/node/restart/open-path.ts'
import type { OpenPath } from '../../../../src/path/engine/engine.ts'

const path: OpenPath = {
  tunName: 'flannel0',
  bindAddresses: ['192.0.2.1'],
  port: 8285,
  features: ['tun-csum', 'x'],
  without: ['udp-gso'],
  loops: [
    { tun: 21, sockets: { ipv4: { receiver: 35, sender: 7 } } },
    { tun: 4, sockets: { ipv4: { receiver: 50 } } },
  ],
}
const FDS = [21, 35, 7, 4, 50]
/** Packs and unpacks, as the other process does. */
const sent = (): Record<string, unknown> => JSON.parse(JSON.stringify(packPaths([path]).descriptions[0]))

describe('a path on its way', () => {
  it("arrives as it was sent, with the receiver's descriptor numbers", () => {
    const { descriptions, fds } = packPaths([path])
    expect([fds, fdsOf([path])]).toEqual([FDS, FDS])
    expect(descriptions).toEqual([
      {
        ...path,
        loops: [
          { tun: 0, sockets: { ipv4: { receiver: 1, sender: 2 } } },
          { tun: 3, sockets: { ipv4: { receiver: 4 } } },
        ],
      },
    ])
    const arrived = unpackPaths([sent()], [9, 8, 7, 6, 5])
    expect(arrived).toStrictEqual([
      {
        ...path,
        loops: [
          { tun: 9, sockets: { ipv4: { receiver: 8, sender: 7 } } },
          { tun: 6, sockets: { ipv4: { receiver: 5 } } },
        ],
      },
    ])
  })

  it('arrives together with another one, each with its own descriptors, or not at all', () => {
    const other = { ...path, tunName: 'flannel1', loops: [{ tun: 11, sockets: { ipv4: { receiver: 12 } } }] }
    const { descriptions, fds } = packPaths([path, other])
    expect(fds).toEqual([...FDS, 11, 12])
    expect(unpackPaths(JSON.parse(JSON.stringify(descriptions)), fds)).toStrictEqual([path, other])
    for (const wrong of [fds.slice(1), [...fds, 1], []]) expect(unpackPaths(descriptions, wrong)).toEqual([])
    expect(unpackPaths(descriptions.toReversed(), fds)).toEqual([])
    expect(unpackPaths([descriptions[0], {}], FDS)).toEqual([])
  })

  it("arrives with the count of the TUN's dropped packets, which must be a number", () => {
    const { descriptions, fds } = packPaths([{ ...path, queueDrops: 7 }])
    expect(unpackPaths(JSON.parse(JSON.stringify(descriptions)), fds)).toMatchObject([{ queueDrops: 7 }])
    expect(unpackPaths([{ ...descriptions[0]!, queueDrops: '7' }], fds)).toEqual([])
  })

  it('arrives with the sockets of both families', () => {
    const both: OpenPath = {
      ...path,
      bindAddresses: ['192.0.2.1', 'fd77::1'],
      loops: [
        { tun: 21, sockets: { ipv4: { receiver: 35, sender: 7 }, ipv6: { receiver: 8, sender: 9 } } },
        { tun: 4, sockets: { ipv4: { receiver: 50 }, ipv6: { receiver: 51 } } },
      ],
    }
    const { descriptions, fds } = packPaths([both])
    expect([fds, fdsOf([both])]).toEqual([
      [21, 35, 7, 8, 9, 4, 50, 51],
      [21, 35, 7, 8, 9, 4, 50, 51],
    ])
    expect(unpackPaths(JSON.parse(JSON.stringify(descriptions)), fds)).toStrictEqual([both])
    for (const wrong of [
      { bindAddresses: ['192.0.2.1', 7] },
      { loops: [{ tun: 0, sockets: { ipv4: { receiver: 1 }, ipv6: { receiver: '2' } } }] },
    ])
      expect(unpackPaths([{ ...descriptions[0]!, ...wrong }], fds)).toEqual([])
  })

  it('arrives with the descriptor of the sessions after all its other descriptors', () => {
    const all = [
      { ...path, handoverState: 3 },
      { ...path, tunName: 'flannel1', loops: [{ tun: 11, sockets: { ipv4: { receiver: 12 } } }] },
    ]
    const { descriptions, fds } = packPaths(all)
    expect([fds, fdsOf(all)]).toEqual([
      [...FDS, 3, 11, 12],
      [...FDS, 3, 11, 12],
    ])
    expect(unpackPaths(JSON.parse(JSON.stringify(descriptions)), fds)).toStrictEqual(all)
    expect(unpackPaths([{ ...descriptions[0]!, handoverState: '4' }], fds)).toEqual([])
  })

  it.each([[undefined], [null], ['text'], [7], [[]], [{}]])('is refused with the description %j', (description) => {
    for (const described of [description, [description]])
      for (const fds of [[], FDS]) expect(unpackPaths(described, fds)).toEqual([])
  })

  it.each([
    ...['tunName', 'bindAddresses', 'port', 'features', 'without', 'loops'].map((name) => ({ [name]: undefined })),
    { tunName: 7 },
    { bindAddresses: null },
    { bindAddresses: '192.0.2.1' },
    { bindAddresses: [7] },
    // An earlier build described a path with these members.
    { bindAddresses: undefined, bindAddress: '192.0.2.1', loops: [{ tun: 0, socket: 1 }] },
    { loops: [{ tun: 0, socket: 1 }] },
    { loops: [{ tun: 0, sockets: {} }] },
    { bindAddresses: [], loops: [{ tun: 0, sockets: {} }] },
    { bindAddresses: ['192.0.2.1', '192.0.2.2'] },
    { bindAddresses: ['192.0.2.1', 'fd77::1'] },
    { bindAddresses: ['fd77::1'] },
    { loops: [{ tun: 0, sockets: { ipv6: null } }] },
    { port: '8285' },
    { features: 'all' },
    { features: {} },
    { features: ['a', 1] },
    { without: null },
    { without: [1, 'a'] },
    { loops: 'all' },
    { loops: {} },
    { loops: [{ tun: 0, sockets: { ipv4: { receiver: 1 } } }, null] },
    { loops: [{ tun: 0, sockets: { ipv4: { receiver: 1 } } }, {}] },
    { loops: [{ tun: 0, sockets: { ipv4: { receiver: '1' } } }] },
    { loops: [{ tun: 0, sockets: { ipv4: { receiver: 1, sender: '2' } } }] },
  ])('is none with %j', (wrong) => {
    expect(unpackPaths([{ ...sent(), ...wrong }], FDS)).toEqual([])
  })

  it.each([
    [[], []],
    [[{ tun: 0, sockets: { ipv4: { receiver: 1 } } }], [7]],
    [[{ tun: 0, sockets: { ipv4: { receiver: 1 } } }], [7, 8, 9]],
    [[{ tun: 1, sockets: { ipv4: { receiver: 0 } } }], [7, 8]],
    [[{ tun: 0, sockets: { ipv4: { receiver: 0 } } }], [7, 8]],
    [[{ tun: 0, sockets: { ipv4: { receiver: 1, sender: 3 } } }], [7, 8, 9]],
    [[{ sockets: { ipv4: { receiver: 0 } } }], [7]],
    [[{ tun: '0', sockets: { ipv4: { receiver: 1 } } }], [7, 8]],
    [[{ tun: 0, sockets: { ipv4: { receiver: 1, sender: '2' } } }], [7, 8, 9]],
    [[{ tun: 0, sockets: { ipv4: { receiver: 1 }, ipv6: { receiver: 2 } } }], [7, 8, 9]],
  ])('of the loops %j does not fit the descriptors %j', (loops, fds) => {
    expect(unpackPaths([{ ...sent(), loops }], fds)).toEqual([])
  })

  it('is refused if it has no bind address', () => {
    const loops = [{ tun: 0, sockets: {} }]
    expect(unpackPaths([{ ...sent(), bindAddresses: [], loops }], [7])).toEqual([])
  })

  it('may have additional members, which another version of weftd added', () => {
    expect(unpackPaths([{ ...sent(), laterOn: true }], FDS)).toMatchObject([path])
  })
})
