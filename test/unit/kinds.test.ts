// kinds.test.ts - the table of backends: what is told of each, and that nobody else knows them by name.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { checkBackend } from '../../src/choose.ts'
import { parseNetworkConfig } from '../../src/config/network-config.ts'
import { KINDS, portOf, publishers } from '../../src/kinds.ts'

const source = join(import.meta.dirname, '../../src')
const files = readdirSync(source, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))
const NAMES = new RegExp(`'(${Object.keys(KINDS).join('|')})'`)

/** Where these words are names of something else. */
const NOT_BACKENDS: ReadonlyMap<string, string> = new Map([
  ['dataplane/encapsulation.ts', 'encapsulations, of which each stands before a packet in a datagram'],
  ['cli/packet-text.ts', 'a protocol of IP'],
  ['doctor/filter-walk.ts', 'a protocol of IP'],
  ['measure/conversation.ts', 'a protocol of IP'],
  ['measure/listener.ts', 'a protocol of IP'],
  ['measure/run.ts', 'a protocol of IP'],
])

describe('a backend', () => {
  it('is named by the table, by its own files and by where they are loaded, and by nobody else', () => {
    const naming = files.filter((file) => NAMES.test(readFileSync(join(source, file), 'utf8')))
    const others = naming.filter((file) => !file.startsWith('backend/') && file !== 'kinds.ts' && file !== 'choose.ts')
    expect(others.toSorted()).toEqual([...NOT_BACKENDS.keys()].toSorted())
  })

  it.each(Object.keys(KINDS))('%s names no other', (type) => {
    const own = files.filter((file) => file.startsWith(`backend/${type}`))
    const others = Object.keys(KINDS).filter((each) => each !== type)
    expect(own).not.toEqual([])
    for (const file of own)
      expect(readFileSync(join(source, file), 'utf8'), file).not.toMatch(new RegExp(`'(${others.join('|')})'`))
  })

  it('is checked by its type and its options', () => {
    const check = (backend: string): void =>
      checkBackend(parseNetworkConfig(`{"Network":"10.5.0.0/16","Backend":${backend}}`))
    for (const type of Object.keys(KINDS)) expect(() => check(`{"Type":"${type}"}`), type).not.toThrow()
    expect(() => check('{"Type":"ipip","DirectRouting":1}')).toThrow('Backend.DirectRouting is 1')
    const known = 'to udp, vxlan, host-gw, ipip, wireguard, alloc or extension'
    for (const [type, remedy] of [
      ['bridge', known],
      ['constructor', known],
      ['ipsec', `${known}: take wireguard`],
    ])
      expect(() => check(`{"Type":"${type}"}`)).toThrow(
        expect.objectContaining({
          message: `Error fetching backend: unknown backend type: ${type!.toLowerCase()}`,
          remedy: `set "Backend": {"Type": ...} in the network configuration ${remedy}`,
        }),
      )
  })
})

it.each([
  ['udp', {}, 8285],
  ['udp', { Port: 9000 }, 9000],
  ['udp', { port: 0 }, 8285],
  ['vxlan', {}, 8472],
  ['wireguard', { LISTENPORT: 7 }, 7],
  ['ipip', { port: 7 }, undefined],
  ['host-gw', {}, undefined],
  ['', {}, undefined],
])('%s of %j is sent to at port %s', (type, backend, port) => {
  expect(portOf(type, backend)).toBe(port)
})

it.each([
  ['', 'udp or alloc'],
  ['vxlan', 'vxlan'],
  ['gce', 'gce'],
])('a lease of type %j is of %s', (published, type) => {
  expect(publishers(published)).toBe(type)
})
