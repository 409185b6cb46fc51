// keys.test.ts - the keys of a network configuration: weft names unknown keys, and the JSON Schema lists the known ones.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ajv } from 'ajv'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../../lab/lab.ts'
import { isWeftError } from '../../../../src/base/errors.ts'
import { readOptions } from '../../../../src/control/config/backend-options.ts'
import { checkedConfig } from '../../../../src/control/config/check.ts'
import { configSchema, HEAD, optionsOf, unknownKeys } from '../../../../src/control/config/keys.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { KINDS, type BackendType } from '../../../../src/path/catalog.ts'

const has = (backend: object, head: object = {}): readonly string[] =>
  unknownKeys(JSON.stringify({ Network: '10.5.0.0/16', ...head, Backend: backend }))

describe('unknown keys', () => {
  it.each([
    ['{"Network":"10.5.0.0/16","Bakcend":{}}', '"Bakcend", which nothing reads; did you mean Backend?'],
    ['{"Netwrok":"10.5.0.0/16"}', '"Netwrok", which nothing reads; did you mean Network?'],
    ['{"Network":"","Port":1}', '"Port", which nothing reads; it belongs into Backend'],
    ['{"Network":"","Colour":1}', '"Colour", which nothing reads'],
    [`{"${'x'.repeat(60)}":1}`, `"${'x'.repeat(60)}", which nothing reads`],
    [`{"${'x'.repeat(61)}":1}`, `"${'x'.repeat(60)}...", which nothing reads`],
    [`{"${'x'.repeat(1000)}":1}`, `"${'x'.repeat(60)}...", which nothing reads`],
  ])('%s', (text, says) => expect(unknownKeys(text)).toEqual([`the network configuration has ${says}`]))

  it.each([
    [{ Type: 'udp', Prot: 1 }, '"Prot", which udp does not read; did you mean Port?'],
    [{ Type: 'UDP', DirectRouting: true }, '"DirectRouting", which udp does not read; it is an option of vxlan, ipip'],
    [{ Type: 'host-gw', Network: '' }, '"Network", which host-gw does not read; it belongs beside Backend'],
    [{ Tpye: 'vxlan' }, '"Tpye", which nothing reads; did you mean Type?'],
    [{ Type: 'vxlan', VerifySuorce: 'off' }, '"VerifySuorce", which vxlan does not read; did you mean VerifySource?'],
  ])('%j', (backend, says) => expect(has(backend)).toEqual([`Backend has ${says}`]))

  it('do not include flannel’s keys in any case, nor those of its Windows nodes', () => {
    expect(
      has({ type: 'vxlan', vni: 4096, PORT: 4789, MacPrefix: '0E-2A', Name: 'vxlan0' }, { enableipv6: false }),
    ).toEqual([])
    expect(has({ Type: 'host-gw', DnsServerList: '', Name: 'cbr0' })).toEqual([])
  })
  it('are not reported for text that is not a JSON object', () => {
    for (const text of ['', '[]', 'null', '1', '{"Network":', '{"Backend":1}', '{"Backend":null}']) {
      expect(unknownKeys(text)).toEqual([])
    }
  })
  it('are reported for a Backend that other keys follow', () => {
    expect(unknownKeys('{"Backend":{"Type":"udp","Prot":1},"Network":"10.5.0.0/16"}')).toEqual([
      'Backend has "Prot", which udp does not read; did you mean Port?',
    ])
  })
  it('are reported for the last Backend, which is the one that counts', () => {
    expect(unknownKeys('{"backend":{"Type":"udp","Prot":1},"Backend":{"Type":"udp"}}')).toEqual([])
  })
})

describe('the table of keys', () => {
  it('has each key that the parser reads, and no other', () => {
    const values: Record<string, unknown> = { EnableIPv4: true, EnableIPv6: true, EnableNFTables: false }
    const given = { Network: '10.5.0.0/16', IPv6Network: 'fd00:5::/48', ...values }
    // The parser refuses a value of the wrong type.
    for (const key of Object.keys(HEAD)) {
      const text = JSON.stringify({ ...given, [key]: [] })
      expect(() => parseNetworkConfig(text), key).toThrow(new RegExp(`^${key} is array`))
    }
  })
  it('has each option of each backend', () => {
    const types = Object.keys(KINDS) as BackendType[]
    const named = types.flatMap((type) => optionsOf(KINDS[type].options).map(({ name }) => `${type} ${name}`))
    for (const option of ['vxlan VerifySource', 'wireguard PSK', 'udp Port', 'extension SubnetAddCommand'])
      expect(named).toContain(option)
    // The reader refuses a wrong value under the same name.
    for (const type of types)
      for (const { name } of optionsOf(KINDS[type].options))
        expect(
          () =>
            readOptions(KINDS[type].options, {
              puturl: 'http://switch/',
              ...(type === 'ipsec' ? { psk: 'p'.repeat(96) } : {}),
              [name.toLowerCase()]: [],
            }),
          `${type} ${name}`,
        ).toThrow(`Backend.${name} is`)
  })
})

describe('the schema', () => {
  it('equals deploy/net-conf.schema.json, which editors can use', () => {
    const path = join(packageRoot, 'deploy/net-conf.schema.json')
    expect(readFileSync(path, 'utf8')).toBe(`${JSON.stringify(configSchema(), undefined, 2)}\n`) // `weft config schema` writes this file
  })
  const validate = new Ajv({ strict: true, strictRequired: false, strictTypes: false }).compile(configSchema())
  it.each([
    [{ Network: '10.5.0.0/16' }, true],
    [{ Network: '10.5.0.0/16', SubnetLen: 24, Backend: { Type: 'udp', Port: 8285, VerifySource: 'inner' } }, true],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'vxlan', VNI: 4096, MacPrefix: '0E-2A', DataPath: 'kernel' } }, true],
    [{ EnableIPv4: false, EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: { Type: 'host-gw' } }, true],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'wireguard', PSK: '', Mode: 'auto' } }, true],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'aws-vpc', RouteTableID: 'rtb-0a1b' } }, true],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'aws-vpc', RouteTableID: ['rtb-0a1b', 'rtb-2'] } }, true],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'aws-vpc', RouteTableID: [] } }, false],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'http', PutURL: 'https://switch/{subnet}', PutBody: { a: 1 } } }, true],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'http', PutURL: 'https://{node}/{subnet}' } }, false],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'http' } }, false],
    [{}, false],
    [{ Network: '10.5.0.0/16', Bakcend: {} }, false],
    [{ Network: '10.5.0.0/16', Backend: {} }, false],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'udp', Prot: 1 } }, false],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'udp', VNI: 1 } }, false],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'udp', Port: 65_536 } }, false],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'vxlna' } }, false],
    [{ Network: '10.5.0.0/16', Backend: { Type: 'wireguard', PSK: 'short' } }, false],
    [{ Network: '10.5.0.0/16', SubnetLen: '24' }, false],
  ])('says of %j: valid is %s', (config, isValid) => expect(validate(config)).toBe(isValid))

  it('requires the network of each enabled family, as weftd does', () => {
    const perhaps = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined })
    const heads = fc.record({
      Network: perhaps(fc.constant('10.5.0.0/16')),
      IPv6Network: perhaps(fc.constant('fd00:5::/48')),
      EnableIPv4: perhaps(fc.boolean()),
      EnableIPv6: perhaps(fc.boolean()),
    })
    fc.assert(
      fc.property(heads, (config) => {
        let isTaken = true
        try {
          checkedConfig(JSON.stringify({ ...config, Backend: { Type: 'udp' } }), { warn: () => {} })
        } catch (error) {
          if (!isWeftError(error, 'CONFIG')) throw error
          isTaken = false
        }
        expect(validate(JSON.parse(JSON.stringify(config)))).toBe(isTaken)
      }),
      { numRuns: 200, seed: 1 },
    )
  })
  it('accepts a value of an option if and only if weftd does', () => {
    const types = Object.keys(KINDS) as BackendType[]
    const anyValue = fc.oneof(
      fc.boolean(),
      fc.integer({ min: -2, max: 10_000_001 }),
      fc.constantFrom('', 'off', 'kernel', 'auto', 'x'),
    )
    const options = types.flatMap((type) => optionsOf(KINDS[type].options).map(({ name }) => [type, name] as const))
    fc.assert(
      fc.property(fc.constantFrom(...options), anyValue, ([type, name], value) => {
        const required = { http: { PutURL: 'http://switch/' }, ipsec: { PSK: 'p'.repeat(96) } }
        const given = type === 'http' || type === 'ipsec' ? required[type] : {}
        const config = { Network: '10.5.0.0/16', Backend: { Type: type, ...given, [name]: value } }
        let isTaken = true
        try {
          checkedConfig(JSON.stringify(config), { warn: () => {} })
        } catch (error) {
          if (!isWeftError(error, 'CONFIG')) throw error
          isTaken = false
        }
        expect(validate(config)).toBe(isTaken)
      }),
      { numRuns: 500, seed: 1 },
    )
  })
})
