// backend-options.test.ts - reading the options of each backend from its table, and refusing wrong values.

import { describe, expect, it } from 'vitest'
import { Secret } from '../../../../src/base/secret.ts'
import { readOptions, readSettings } from '../../../../src/control/config/backend-options.ts'
import type { Options } from '../../../../src/path/catalog.ts'

describe('options', () => {
  const options = {
    port: { name: 'Port', kind: 'number', default: 7, most: 65_535 },
    ttl: { name: 'TTL', kind: 'number', default: 7, most: 255 },
    isOn: { name: 'GBP', kind: 'flag' },
    group: {
      mode: { name: 'Mode', kind: 'word', words: ['auto', 'ipv4'] },
      way: { name: 'Way', kind: 'word', words: ['in', 'out'], default: 'in' },
    },
    key: { name: 'Key', kind: 'secret', form: /^k+$/, remedy: 'give it some k' },
    odd: { name: 'Odd', kind: 'secret', form: /^o$/ },
    verb: { name: 'Verb', kind: 'text', default: 'PUT', form: /^[A-Z]+$/, remedy: 'give it a verb' },
    path: { name: 'Path', kind: 'text', form: /^\//, remedy: 'give it a path' },
    list: { name: 'List', kind: 'texts', form: /^x/, remedy: 'give it x' },
    body: { name: 'Body', kind: 'object', orText: true, remedy: 'give it a body' },
    head: { name: 'Head', kind: 'object', remedy: 'give it an object' },
  } as const satisfies Options
  const read = (backend: Readonly<Record<string, unknown>>) => readOptions(options, backend)
  const nothing = { port: 7, ttl: 7, isOn: false, group: { mode: undefined, way: 'in' } }

  it.each([
    [{}, nothing],
    [{ port: null, gbp: null, mode: null, way: null, key: null }, nothing],
    [
      { port: 65_535, ttl: 0, gbp: true, mode: 'ipv4', way: 'out', other: 'x' },
      { port: 65_535, ttl: 0, isOn: true, group: { mode: 'ipv4', way: 'out' } },
    ],
  ])('reads %j as %j', (backend, expected) => {
    expect(read(backend)).toMatchObject(expected)
  })

  it('may be texts, lists of texts and objects', () => {
    expect(read({})).toMatchObject({ verb: 'PUT', path: '', list: [], body: undefined, head: undefined })
    const given = { verb: 'POST', path: '/a', list: ['x1', 'x2'], body: 'text', head: { a: 1 } }
    expect(read(given)).toMatchObject(given)
    expect(read({ list: 'x1', body: { a: [] } })).toMatchObject({ list: ['x1'], body: { a: [] } })
  })

  it('wraps a secret option in Secret, and reads a missing one as an empty secret', () => {
    const keyOf = (backend: Readonly<Record<string, unknown>>) => (read(backend)['key'] as Secret).reveal()
    expect([keyOf({}), keyOf({ key: 'kk' }), keyOf({ key: new Secret('k') })]).toEqual(['', 'kk', 'k'])
    // A value that the configuration shows as plain text is not secret because of its name.
    expect([String(read({ key: 'kk' })['key']), String(read({ key: new Secret('k') })['key'])]).toEqual([
      'kk',
      '<hidden>',
    ])
  })

  it.each([
    [{ ttl: 256 }, 'TTL is 256', 'give it a whole number from 0 to 255'],
    [{ port: -1 }, 'Port is -1', 'give it a whole number from 0 to 65535'],
    [{ port: 1.5 }, 'Port is 1.5', 'give it a whole number from 0 to 65535'],
    [{ port: '1' }, 'Port is "1"', 'give it a whole number from 0 to 65535'],
    [{ gbp: 0 }, 'GBP is 0', 'give it true or false'],
    [{ mode: 'Auto' }, 'Mode is "Auto"', 'give it one of auto, ipv4, or leave it out'],
    [{ way: '' }, 'Way is ""', 'give it one of in, out, or leave it out'],
    [{ way: ['in'] }, 'Way is ["in"]', 'give it one of in, out, or leave it out'],
    [{ key: 7 }, 'Key is 7', 'give it a text'],
    [{ key: new Secret('x') }, 'Key is "<hidden>"', 'give it some k'],
    [{ odd: new Secret('x') }, 'Odd is "<hidden>"', 'give it another one'],
    [{ verb: 'put' }, 'Verb is "put"', 'give it a verb'],
    [{ verb: '' }, 'Verb is ""', 'give it a verb'],
    [{ path: 'a' }, 'Path is "a"', 'give it a path'],
    [{ path: new Secret('/a') }, 'Path is "<hidden>"', 'give it a path'],
    [{ list: [] }, 'List is []', 'give it x'],
    [{ list: ['x', 'y'] }, 'List is ["x","y"]', 'give it x'],
    [{ list: 'y' }, 'List is "y"', 'give it x'],
    [{ list: [['x1']] }, 'List is [["x1"]]', 'give it x'],
    [{ body: [] }, 'Body is []', 'give it a body'],
    [{ head: 'x' }, 'Head is "x"', 'give it an object'],
  ])('refuses %j', (backend, message, remedy) => {
    expect(() => read(backend)).toThrow(
      expect.objectContaining({ code: 'CONFIG', message: `Backend.${message}`, remedy }),
    )
  })
})

const TUNNEL = { verifySource: 'strict', clampMss: false, probePathMtu: false }
const VXLAN = {
  vni: 1,
  port: 0,
  mtu: 0,
  gbp: false,
  learning: false,
  directRouting: false,
  dataPath: undefined,
  tunnel: TUNNEL,
}

describe('the settings of a backend', () => {
  it.each([
    ['udp', {}, { port: 0, underlay: 'auto', fastPath: 'off', tunnel: TUNNEL }],
    ['udp', { underlay: 'ipv6' }, { port: 0, underlay: 'ipv6', fastPath: 'off', tunnel: TUNNEL }],
    [
      'udp',
      { port: 9000, verifysource: 'off', clampmss: true, probepathmtu: true, fastpath: 'auto' },
      {
        port: 9000,
        underlay: 'auto',
        fastPath: 'auto',
        tunnel: { verifySource: 'off', clampMss: true, probePathMtu: true },
      },
    ],
    ['vxlan', {}, VXLAN],
    [
      'vxlan',
      { type: 'vxlan', vni: 9_999_999, port: 4789, mtu: 1400 },
      { ...VXLAN, vni: 9_999_999, port: 4789, mtu: 1400 },
    ],
    [
      'vxlan',
      { gbp: true, learning: true, directrouting: true, datapath: 'userspace' },
      { ...VXLAN, gbp: true, learning: true, directRouting: true, dataPath: 'userspace' },
    ],
    ['vxlan', { clampmss: true }, { ...VXLAN, tunnel: { ...TUNNEL, clampMss: true } }],
    ['host-gw', { port: 'x' }, {}],
    ['alloc', {}, {}],
    ['ipip', { directrouting: true }, { directRouting: true }],
  ] as const)('%s, of %j', (type, backend, settings) => {
    expect(readSettings(type, backend)).toEqual(settings)
  })

  it.each([
    ['udp', { port: 65_536 }, 'Port is 65536'],
    ['vxlan', { vni: 10_000_000 }, 'VNI is 10000000'],
    ['vxlan', { mtu: 1.5 }, 'MTU is 1.5'],
    ['vxlan', { datapath: 'user' }, 'DataPath is "user"'],
    ['vxlan', { verifysource: 'outer' }, 'VerifySource is "outer"'],
    ['vxlan', { probepathmtu: 'yes' }, 'ProbePathMTU is "yes"'],
    ['ipip', { directrouting: 1 }, 'DirectRouting is 1'],
    ['wireguard', { mode: 'both' }, 'Mode is "both"'],
    ['wireguard', { psk: new Secret('short') }, 'PSK is "<hidden>"'],
    ['wireguard', { listenportv6: -1 }, 'ListenPortV6 is -1'],
  ] as const)('%s, of %j: refused', (type, backend, message) => {
    expect(() => readSettings(type, backend)).toThrow(`Backend.${message}`)
  })

  it('refuse a PSK of ipsec that is too short, in the words of flanneld and with a remedy', () => {
    const refused = {
      code: 'CONFIG',
      message: 'config error, password is too short',
      remedy: 'Backend.PSK: give it at least 96 characters, for example of `openssl rand -hex 48`',
    }
    for (const psk of [undefined, '', 'p'.repeat(95), new Secret('p'.repeat(95))])
      expect(() => readSettings('ipsec', { psk })).toThrow(expect.objectContaining(refused))
    expect(readSettings('ipsec', { psk: 'p'.repeat(96) }).psk.reveal()).toBe('p'.repeat(96))
    expect(readSettings('ipsec', { psk: 'p'.repeat(97) }).psk.reveal()).toBe('p'.repeat(97))
  })
})
