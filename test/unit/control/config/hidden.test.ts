// hidden.test.ts - hiding the secrets of a configuration, also in the errors about it.

import { inspect } from 'node:util'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Secret } from '../../../../src/base/secret.ts'
import { hideSecrets, parseJson, withoutSecrets } from '../../../../src/control/config/hidden.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'

describe('a configuration', () => {
  it.each([
    ['{"Backend":{"PSK":"x"}}', '{"Backend":{"PSK":"<hidden>"}}'],
    ['{"psk":5,"a":[{"myPassword":{"b":1}}]}', '{"psk":"<hidden>","a":[{"myPassword":"<hidden>"}]}'],
    ['{ "ApiToken": ["x"], "wgKey": true }', '{"ApiToken":"<hidden>","wgKey":"<hidden>"}'],
    ['{"PostStartupCommand":" curl --token x\\ty"}', '{"PostStartupCommand":"curl <hidden>"}'],
    ['{"A":{"subnetAddCommand":"/bin/add"},"Command":["x"]}', '{"A":{"subnetAddCommand":"/bin/add"},"Command":["x"]}'],
    ['{"Url":"http://jo:x@h/"}', '{"Url":"http://h/"}'],
    [
      '{"Headers":{"Authorization":"Bearer x","proxy-authorization":"y","Cookie":"z","Accept":"text/plain"}}',
      '{"Headers":{"Authorization":"<hidden>","proxy-authorization":"<hidden>","Cookie":"<hidden>","Accept":"text/plain"}}',
    ],
    // weftd replaces {credential} by the content of a file, so the text itself does not contain a secret.
    [
      '{"Authorization":"Bearer {credential}","X-Token":"{credential}"}',
      '{"Authorization":"Bearer {credential}","X-Token":"<hidden>"}',
    ],
    ['{"XCookie":"x","CookieJar":"y","Authorizations":"z"}', '{"XCookie":"x","CookieJar":"y","Authorizations":"z"}'],
    // Bodies of OpenFlow have a number with this name.
    [
      '{"cookie":7,"cookie_mask":255,"authorization":{"type":"x"}}',
      '{"cookie":7,"cookie_mask":255,"authorization":{"type":"x"}}',
    ],
    ['{"PublicKey":"x","Keyboard":"y","CommandLog":"z z"}', '{"PublicKey":"x","Keyboard":"y","CommandLog":"z z"}'],
    [
      '{ "Network": "10.5.0.0/16",\n "PSK": "", "Key": null }',
      '{ "Network": "10.5.0.0/16",\n "PSK": "", "Key": null }',
    ],
  ])('%j shows as %s', (text, shown) => {
    expect(withoutSecrets(text)).toBe(shown)
    expect(JSON.stringify(hideSecrets(hideSecrets(JSON.parse(text))))).toBe(JSON.stringify(JSON.parse(shown)))
  })

  it.each([
    ['"sesame"', 'sesame', false],
    ['5', '5', true],
    ['{"a":["b"]}', '{"a":["b"]}', true],
  ])('keeps the whole value of the secret %s', (value, text, isJson) => {
    const { psk } = hideSecrets(JSON.parse(`{"psk":${value}}`)) as { readonly psk: Secret }
    expect([psk.reveal(), psk.isJson]).toEqual([text, isJson])
  })

  it.each([
    ['{"Backend":{"PSK":"x","PSK":""}}', '{"Backend":{"PSK":""}}'],
    ['{ "PSK": "x", "Network": "n", "PSK": null }', '{"PSK":null,"Network":"n"}'],
    ['{"Backend":{"PSK":"x"},"Backend":{}}', '{"Backend":{}}'],
    ['{"Url":"http://jo:x@h","Url":"http://h"}', '{"Url":"http://h"}'],
  ])('%j, which has a member twice, shows as %s', (text, shown) => {
    expect(withoutSecrets(text)).toBe(shown)
  })

  it.each(['PSK', 'Network', 'SubnetLen', 'EnableIPv4', 'Backend', 'SubnetMin'])(
    'shows no secret in the value of %s, also if that value is wrong',
    (name) => {
      for (const value of ['sesame', { PSK: 'sesame' }, [{ Token: 'sesame' }], 'http://jo:sesame@h']) {
        if (name !== 'PSK' && value === 'sesame') continue
        const read = (): unknown => parseNetworkConfig(JSON.stringify({ Network: '10.5.0.0/16', [name]: value }))
        let said: unknown
        try {
          said = read()
        } catch (error) {
          said = error
        }
        expect(inspect(said, { depth: null }) + JSON.stringify(said) + String(said)).not.toContain('sesame')
      }
    },
  )
})

describe('invalid JSON', () => {
  it.each([
    ['{"PSK":sesame}', 'unexpected character at line 1, column 8'],
    ['{\n"PSK":"sesame",\n }', 'Expected double-quoted property name in JSON at position 19'],
    ['{\n"PSK":"sesame" sesame\n}', "Expected ',' or '}' after property value in JSON at position 17"],
    ['sesame', 'unexpected character at line 1, column 1'],
    ['{"a":[1,]}', 'unexpected character at line 1, column 9'],
    ['', 'Unexpected end of JSON input'],
  ])('%j is refused with %j', (text, why) => {
    const message = (): unknown => parseJson(text)
    expect(message).toThrow(why)
  })

  it.each([
    ['arrays', '[', ']'],
    ['objects', '{"a":', '}'],
    ['arrays with siblings', '[null,1,', ']'],
  ])('is refused if it nests %s more than 100 deep', (_what, open, close) => {
    const nested = (depth: number): string =>
      open.repeat(depth) + (open.endsWith(':') ? '1' : 'null') + close.repeat(depth)
    for (const depth of [1, 2, 99, 100])
      expect(parseJson(nested(depth)), String(depth)).toEqual(JSON.parse(nested(depth)))
    for (const depth of [101, 102, 5_000])
      expect(() => parseJson(nested(depth)), String(depth)).toThrow('it is nested more than 100 deep')
  })

  it('is never quoted in the error', () => {
    fc.assert(
      fc.property(fc.json(), fc.nat(), (json, at) => {
        const text = `${json.slice(0, at % json.length)}sesame${json.slice(at % json.length)}`
        try {
          parseJson(text)
        } catch (error) {
          expect(String(error)).not.toContain('sesam')
        }
      }),
    )
  })
})
