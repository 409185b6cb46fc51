// template.test.ts - Type `http`: the allowed contents of its templates, and the values of their variables.

import { describe, expect, it } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import { parseAddress } from '../../../../../src/net/address.ts'
import { parseIpv4Net } from '../../../../../src/net/ipv4.ts'
import { parseIpv6Net } from '../../../../../src/net/ipv6.ts'
import {
  checkTemplates,
  fillBody,
  fillHeaders,
  fillUrl,
  variablesOf,
} from '../../../../../src/path/backends/fabric/template.ts'
import { httpSettings } from '../../../../support/http-settings.ts'

const PUT = 'https://switch.example:8443/api'

describe('a template', () => {
  const subnet = parseIpv4Net('10.5.1.0/24')!
  const [host, other] = [parseAddress('203.0.113.7')!, parseAddress('192.0.2.7')!]
  const place = { publicIp: host, address: other, nodeName: 'a "node" / é', environment: { WEFT_INSTANCE: 'i-1' } }
  const variables = { ...variablesOf(subnet, place), credential: 's3cret' }

  it('has the variables of a route', () => {
    expect(variablesOf(subnet, place)).toEqual({
      subnet: '10.5.1.0/24',
      subnetAddress: '10.5.1.0',
      prefixLength: '24',
      netmask: '255.255.255.0',
      publicIp: '203.0.113.7',
      address: '192.0.2.7',
      node: 'a "node" / é',
      instance: 'i-1',
    })
    expect(variablesOf(parseIpv6Net('fd00:5:0:1::/64')!, place)).toMatchObject({
      subnet: 'fd00:5:0:1::/64',
      subnetAddress: 'fd00:5:0:1::',
      prefixLength: '64',
      netmask: '',
    })
  })

  it.each([
    ['0.0.0.0/0', '0.0.0.0'],
    ['128.0.0.0/1', '128.0.0.0'],
    ['10.5.1.0/25', '255.255.255.128'],
    ['10.5.1.0/31', '255.255.255.254'],
    ['10.5.1.1/32', '255.255.255.255'],
  ])('has for %s the netmask %s', (net, netmask) => {
    expect(variablesOf(parseIpv4Net(net)!, place)).toMatchObject({ netmask })
  })

  it('escapes a value for its place', () => {
    expect(fillUrl('https://a/{subnet}?n={node}', variables, 'PutURL')).toBe(
      'https://a/10.5.1.0%2F24?n=a%20%22node%22%20%2F%20%C3%A9',
    )
    expect(fillBody({ n: '{node}', deep: [{ bits: 24, to: 'via {publicIp}' }] }, variables, 'PutBody')).toEqual({
      body: '{"n":"a \\"node\\" / é","deep":[{"bits":24,"to":"via 203.0.113.7"}]}',
      type: 'application/json',
    })
    expect(fillBody('ip route {subnetAddress} {netmask} {address}', variables, 'PutBody')?.body).toBe(
      'ip route 10.5.1.0 255.255.255.0 192.0.2.7',
    )
    expect(fillHeaders({ Authorization: new Secret('Bearer {credential}') }, variables)).toEqual({
      authorization: 'Bearer s3cret',
    })
  })

  it('fills all texts of a body, and nothing else in it', () => {
    const secret = new Secret('{credential}/{node}')
    const template = { '{subnet}': ['{subnet}', { a: secret }], b: [1, true, false, null, '{}', '{1}', ''] }
    expect(JSON.parse(fillBody(template, variables, 'PutBody')!.body)).toEqual({
      '{subnet}': ['10.5.1.0/24', { a: 's3cret/a "node" / é' }],
      b: [1, true, false, null, '{}', '{1}', ''],
    })
    expect(fillBody(null, variables, 'PutBody')).toEqual({ body: 'null', type: 'application/json' })
    expect(fillBody(secret, variables, 'PutBody')).toEqual({
      body: 's3cret/a "node" / é',
      type: 'text/plain; charset=utf-8',
    })
    expect(fillBody(undefined, variables, 'PutBody')).toBeUndefined()
  })

  it.each([
    ['...', '...'],
    ['.a', '.a'],
    ['a..', 'a..'],
    ['\u{1f600}', '%F0%9F%98%80'],
    ['', ''],
  ])('accepts the value %j in a URL', (id, shown) => {
    expect(fillUrl('https://a/{id}/{prefixLength}', { ...variables, id }, 'RemoveURL')).toBe(`https://a/${shown}/24`)
  })

  it('sets the headers of `Headers`, and none if `Headers` is missing', () => {
    expect(fillHeaders(undefined, variables)).toEqual({})
    expect(fillHeaders({ 'X-a.b_1!': '', Hosts: 'a\tb ~', c: '\u0080\u00ff' }, variables)).toEqual({
      'x-a.b_1!': '',
      hosts: 'a\tb ~',
      c: '\u0080\u00ff',
    })
  })

  it.each([
    'Host',
    'content-length',
    'Transfer-Encoding',
    'connection',
    'UPGRADE',
    'TE',
    'trailer',
    'a b',
    ' a',
    'a ',
    'a:',
    'é',
    '',
  ])('refuses the header name %j', (name) => {
    expect(() => fillHeaders({ [name]: 'x' }, variables)).toThrow(
      expect.objectContaining({
        code: 'CONFIG',
        message: `Backend.Headers has the name ${JSON.stringify(name)}`,
        remedy: 'use only names and values that HTTP allows in headers',
      }),
    )
  })

  const LEGAL = 'use only names and values that HTTP allows in headers'
  const KNOWN =
    'take one of {subnet}, {subnetAddress}, {prefixLength}, {netmask}, {publicIp}, {address}, {node}, {instance}, {id}, {credential}'
  it.each<[unknown, string, string]>([
    [1, 'Backend.Headers.a is not a text', LEGAL],
    [null, 'Backend.Headers.a is not a text', LEGAL],
    ['x\r\nHost: y', 'Backend.Headers.a has a character that no header can have', LEGAL],
    ['\nx', 'Backend.Headers.a has a character that no header can have', LEGAL],
    ['x\n', 'Backend.Headers.a has a character that no header can have', LEGAL],
    ['\u007f', 'Backend.Headers.a has a character that no header can have', LEGAL],
    ['\u0100', 'Backend.Headers.a has a character that no header can have', LEGAL],
    ['{password}', 'Backend.Headers.a has the unknown variable {password}', KNOWN],
    ['{toString}', 'Backend.Headers.a has the unknown variable {toString}', KNOWN],
    ...['<hidden>', new Secret('x <hidden>')].map((value): [unknown, string, string] => [
      value,
      'Backend.Headers.a has a secret that only the store has',
      'put the secret into a file, and name the file in Backend.CredentialFile',
    ]),
  ])('refuses the value %j of a header: %s', (value, message, remedy) => {
    expect(() => fillHeaders({ a: value }, variables)).toThrow(
      expect.objectContaining({ code: 'CONFIG', message, remedy }),
    )
  })

  it.each([
    ['text <hidden>', 'Backend.PutBody has a secret that only the store has'],
    [{ a: [new Secret('<hidden>')] }, 'Backend.PutBody has a secret that only the store has'],
    [{ a: '{password}' }, 'Backend.PutBody has the unknown variable {password}'],
    ['{password}', 'Backend.PutBody has the unknown variable {password}'],
  ])('refuses the body %j: %s', (body, message) => {
    expect(() => fillBody(body, variables, 'PutBody')).toThrow(message)
  })

  it.each([
    ['PutURL', 'ftp://switch/x'],
    ['PutURL', 'https://{node}.example/x'],
    ['PutURL', 'https://switch{node}/x'],
    ['PutURL', 'https://user:pass@switch/x'],
    ['PutURL', String.raw`https://switch\@evil.example/x`],
    ['PutURL', 'https://switch/{credential}'],
    ['PutURL', 'https://switch/{password}'],
    ['PutURL', 'https://switch/a#b'],
    ['PutURL', ''],
    ['ListURL', 'file:///etc/shadow'],
    ['PutMethod', 'CONNECT'],
    ['CredentialFile', 'relative/path'],
    ['Headers', 'Authorization: x'],
    ['ListRoutes', 'a b'],
  ])('is refused if %s is %j', (name, value) => {
    expect(() => httpSettings({ PutURL: PUT, [name]: value })).toThrow(`Backend.${name} is `)
  })

  const OTHER_NAME = 'give the route another id, or the node another name'
  it.each([
    [
      {},
      'Backend.RemoveURL has {id}, and the list of routes has no id for this route',
      'use {id} only in RemoveURL, RemoveBody and Headers, and set ListURL and ListID',
    ],
    [{ id: '..' }, 'Backend.RemoveURL gets the value "..", which no URL can have', OTHER_NAME],
    [{ id: '.' }, 'Backend.RemoveURL gets the value ".", which no URL can have', OTHER_NAME],
    [{ id: 'a\ud800b' }, String.raw`Backend.RemoveURL gets the value "a\ud800b", which no URL can have`, OTHER_NAME],
  ])('whose URL would name more than one route is refused: %j', (more, message, remedy) => {
    expect(() => fillUrl('https://a/routes/{id}/x', { ...variables, ...more }, 'RemoveURL')).toThrow(
      expect.objectContaining({ code: 'CONFIG', message, remedy }),
    )
  })

  it.each([
    [
      '{instance}',
      'Backend.PutURL has {instance}, and WEFT_INSTANCE is not set',
      "set WEFT_INSTANCE in the environment of weftd to the cloud's name of this host",
    ],
    [
      '{credential}',
      'Backend.PutURL has {credential}, and there is no CredentialFile',
      'set Backend.CredentialFile to a file with the credential',
    ],
  ])('is refused if its variable %s has no value', (variable, message, remedy) => {
    const without = variablesOf(subnet, { ...place, environment: {} })
    expect(() => fillUrl(`https://a/${variable}`, without, 'PutURL')).toThrow(
      expect.objectContaining({ code: 'CONFIG', message, remedy }),
    )
  })

  it.each([{}, { WEFT_INSTANCE: '' }])('has no instance if the environment is %j', (environment) => {
    expect(variablesOf(subnet, { ...place, environment })).not.toHaveProperty('instance')
  })

  it('is refused without a URL, and with {credential} without a file', () => {
    expect(() => httpSettings({})).toThrow('Backend.PutURL is undefined')
    expect(() => checkTemplates(httpSettings({ PutURL: PUT, Headers: { a: '{credential}' } }))).toThrow(
      'Backend.Headers.a has {credential}, and there is no CredentialFile',
    )
    expect(() =>
      checkTemplates(httpSettings({ PutURL: PUT, PutBody: { a: ['{credential}'] }, CredentialFile: '/x' })),
    ).not.toThrow()
  })

  it.each([
    ['Headers', { a: '{password}' }, 'Headers.a'],
    ['PutBody', '{password}', 'PutBody'],
    ['RemoveBody', { a: '{password}' }, 'RemoveBody'],
    ['ListBody', '{password}', 'ListBody'],
  ])('is checked before the first request: %s', (name, template, what) => {
    expect(() => checkTemplates(httpSettings({ PutURL: PUT, [name]: template }))).toThrow(
      `Backend.${what} has the unknown variable {password}`,
    )
  })

  it('keeps numbers and objects of a body, also if their names are those of secrets', () => {
    const body = { cookie: 7, flowKey: 8, token: { kind: 'x', value: '{credential}' } }
    const { putBody, headers } = httpSettings({
      PutURL: PUT,
      PutBody: body,
      Headers: { Token: 5 },
      CredentialFile: '/x',
    })
    const { headers: wrong } = httpSettings({ PutURL: PUT, Headers: { Token: { a: 5 } } })
    expect(String((putBody as Record<string, unknown>)['token'])).toBe('<hidden>')
    const filled = JSON.parse(fillBody(putBody, { credential: 's3cret' }, 'PutBody')!.body)
    expect(filled).toEqual({ ...body, token: { kind: 'x', value: 's3cret' } })
    expect(fillHeaders(headers, {})).toEqual({ token: '5' })
    expect(() => fillHeaders(wrong, {})).toThrow('Backend.Headers.Token is not a text')
  })

  it('may use every variable: checkTemplates needs no route', () => {
    const all = '{subnet}{subnetAddress}{prefixLength}{netmask}{publicIp}{address}{node}{instance}{id}'
    const settings = { PutURL: PUT, PutBody: all, RemoveBody: all, ListBody: all, Headers: { a: all } }
    expect(() => checkTemplates(httpSettings(settings))).not.toThrow()
  })
})
