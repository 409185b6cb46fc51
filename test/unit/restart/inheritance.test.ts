// inheritance.test.ts - what is gone on with, of a daemon that runs or of the service manager's keeping, and what is closed.

import { closeSync, fstatSync, openSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import type { OpenPath } from '../../../src/dataplane/engine.ts'
import type { Holder } from '../../../src/restart/handover.ts'
import { createInheritance, keptName, takeKept, type WantedPath } from '../../../src/restart/inheritance.ts'
import { fdsOf, packPath, unpackPath } from '../../../src/restart/open-path.ts'

const open = (): number => openSync('/dev/null', 'r')
function isOpen(fd: number): boolean {
  try {
    fstatSync(fd)
    return true
  } catch {
    return false
  }
}

const wanted: WantedPath = {
  tunName: 'flannel%d',
  bindAddress: '192.0.2.1',
  port: 8285,
  workers: 2,
  without: ['udp-gso'],
}
const path = (): OpenPath => ({
  ...{ tunName: 'flannel0', bindAddress: '192.0.2.1', port: 8285, features: ['tun-csum'], without: ['udp-gso'] },
  loops: [
    { tun: open(), socket: open(), sender: open() },
    { tun: open(), socket: open() },
  ],
})

/** A daemon that runs, and what was asked of it. */
function holder(has: OpenPath | undefined) {
  const asked: string[] = []
  const running: Holder = {
    pid: 0,
    write: async () => {},
    takePath: async () => (asked.push('path'), has),
    end: async () => void asked.push('end'),
    close: () => void asked.push('close'),
  }
  return { running, asked }
}

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

describe('what fits', () => {
  it('is taken from the one that runs, which is ended when asked', async () => {
    const has = path()
    const { running, asked } = holder(has)
    const inheritance = createInheritance(running, [], undefined)
    expect(inheritance.isHeir).toBe(true)
    expect(await inheritance.take(wanted)).toBe(has)
    expect(asked).toEqual(['path'])
    await inheritance.settle()
    await inheritance.settle()
    await inheritance.settled
    expect(asked).toEqual(['path', 'end', 'close'])
    expect(fdsOf(has).every(isOpen)).toBe(true)
    expect(await inheritance.take(wanted)).toBeUndefined()
  })

  it('is taken from what is kept, once', async () => {
    const { description, fds } = packPath(path())
    const inheritance = createInheritance(undefined, fds, { tunName: 'flannel0', path: description })
    await inheritance.settled
    const taken = await inheritance.take(wanted)
    expect(taken && fdsOf(taken)).toEqual(fds)
    expect(await inheritance.take(wanted)).toBeUndefined()
    inheritance.close()
    expect(fds.every(isOpen)).toBe(true)
    fds.forEach(closeSync)
  })
})

describe('what does not fit', () => {
  it.each<[string, Partial<WantedPath>]>([
    ['another device', { tunName: 'flannel.1' }],
    ['a device of another kind', { tunName: 'flannel.%d' }],
    ['another address', { bindAddress: '192.0.2.2' }],
    ['another port', { port: 9000 }],
    ['other lanes', { workers: 8 }],
    ['other features', { without: [] }],
  ])('%s: the one that runs has ended and all is closed before anything is opened', async (_what, other) => {
    const has = path()
    const { running, asked } = holder(has)
    const inheritance = createInheritance(running, [], undefined)
    expect(await inheritance.take({ ...wanted, ...other })).toBeUndefined()
    expect(asked).toEqual(['path', 'end', 'close'])
    expect(fdsOf(has).some(isOpen)).toBe(false)
  })

  it('is closed when it was kept without a description', async () => {
    const fds = fdsOf(path())
    const inheritance = createInheritance(undefined, fds, undefined)
    expect(await inheritance.take(wanted)).toBeUndefined()
    expect(fds.some(isOpen)).toBe(false)
  })
})

describe('what the service manager kept', () => {
  it('is in the order of its names, ours alone, and the variables are gone', () => {
    const environment: NodeJS.ProcessEnv = {
      LISTEN_PID: '42',
      LISTEN_FDS: '4',
      LISTEN_FDNAMES: `${keptName(10)}:other:${keptName(9)}:${keptName(0)}`,
      PATH: '/bin',
    }
    expect(takeKept(environment, 42)).toEqual([6, 5, 3])
    expect(environment).toEqual({ PATH: '/bin' })
  })

  it.each([[{}], [{ LISTEN_PID: '41', LISTEN_FDS: '1', LISTEN_FDNAMES: keptName(0) }], [{ LISTEN_PID: '42' }]])(
    'is nothing by %j',
    (environment) => expect(takeKept({ ...environment }, 42)).toEqual([]),
  )
})
