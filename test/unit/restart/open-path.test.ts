// open-path.test.ts - a path on its way to another process: all of it arrives, and what is none is told.

import { closeSync, openSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import type { OpenPath } from '../../../src/dataplane/engine.ts'
import { fdsOf, packPath, unpackPath } from '../../../src/restart/open-path.ts'

const open = (): number => openSync('/dev/null', 'r')
const path = (): OpenPath => ({
  ...{ tunName: 'flannel0', bindAddress: '192.0.2.1', port: 8285, features: ['tun-csum'], without: ['udp-gso'] },
  loops: [
    { tun: open(), socket: open(), sender: open() },
    { tun: open(), socket: open() },
  ],
})

describe('a path on its way', () => {
  it('arrives as it was sent, with the numbers that it has there', () => {
    const sent = path()
    const { description, fds } = packPath(sent)
    expect(fds).toEqual(fdsOf(sent))
    const there = fds.map((fd) => fd + 100)
    const arrived = unpackPath(JSON.parse(JSON.stringify(description)), there)
    expect(arrived && fdsOf(arrived)).toEqual(there)
    expect(arrived && packPath(arrived).description).toEqual(description)
    fds.forEach(closeSync)
  })

  it.each([
    [undefined],
    [null],
    ['text'],
    [{}],
    [{ ...packPath(path()).description, loops: [] }],
    [{ ...packPath(path()).description, loops: 'all' }],
    [{ ...packPath(path()).description, port: '8285' }],
    [{ ...packPath(path()).description, features: [1] }],
    [{ ...packPath(path()).description, loops: [{ tun: 0, socket: 0 }] }],
    [{ ...packPath(path()).description, loops: [{ tun: 1, socket: 0 }] }],
    [{ ...packPath(path()).description, loops: [{}] }],
  ])('is none when it is described by %j', (description) => {
    expect(unpackPath(description, [7, 8])).toBeUndefined()
  })

  it('is what another version says of it beside', () => {
    const { description, fds } = packPath(path())
    expect(unpackPath({ ...description, laterOn: true }, fds)).toBeDefined()
  })
})
