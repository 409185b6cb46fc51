// catalog.test.ts - the table of backends, and that no other code knows a backend by its name.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { readSettings } from '../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../src/control/config/network-config.ts'
import {
  type BackendType,
  DEFAULT_TYPE,
  hasBackendName,
  isNamedBy,
  KINDS,
  outersOf,
  overheadBy,
  portOf,
  publishers,
  publishersOf,
  TEMPLATE_VARIABLES,
  WIREGUARD_KEY,
} from '../../../src/path/catalog.ts'

const source = join(import.meta.dirname, '../../../src')
const files = readdirSync(source, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))
const NAMES = new RegExp(`'(${Object.keys(KINDS).join('|')})'`)

/** The files in which these words have another meaning. */
const NOT_BACKENDS: ReadonlyMap<string, string> = new Map([
  ['host/ip-words.ts', "the kernel's types of devices"],
  ['host/kernel.ts', "the kernel's types of devices"],
  ['host/netlink/links.ts', "the kernel's types of devices"],
  ['host/netlink/wireguard.ts', 'a name of the kernel'],
  ['host/udp-ports.ts', 'a table of the kernel'],
  ['node/needs.ts', "the kernel's types of devices"],
  ['path/engine/encapsulation.ts', 'names of encapsulations'],
  ['tool/weft/packet-text.ts', 'an IP protocol'],
  ['tool/doctor/chain-walk.ts', 'an IP protocol'],
  ['tool/doctor/filter-walk.ts', 'an IP protocol'],
  ['tool/doctor/nft-walk.ts', 'an IP protocol'],
  ['tool/doctor/route-queries.ts', 'an IP protocol'],
  ['tool/measure/conversation.ts', 'an IP protocol'],
  ['tool/measure/listener.ts', 'an IP protocol'],
  ['tool/measure/run.ts', 'an IP protocol'],
])

describe('a backend', () => {
  it('is named only by the table, by its own files and by the file that loads them', () => {
    const naming = files.filter((file) => NAMES.test(readFileSync(join(source, file), 'utf8')))
    const others = naming.filter((file) => !/^path\/(catalog\.|backends\/)/.test(file) && file !== 'node/choose.ts')
    expect(others.toSorted()).toEqual([...NOT_BACKENDS.keys()].toSorted())
  })

  it.each(Object.keys(KINDS))('the code of %s names no other backend', (type) => {
    const own = files.filter((file) => file.startsWith(`path/backends/${type}`))
    const others = Object.keys(KINDS).filter((each) => each !== type)
    expect(own).not.toEqual([])
    for (const file of own)
      expect(readFileSync(join(source, file), 'utf8'), file).not.toMatch(new RegExp(`'(${others.join('|')})'`))
  })
})

it.each([
  ['udp', {}, 8285],
  ['udp', { Port: 9000 }, 9000],
  ['udp', { port: 0 }, 8285],
  ['vxlan', {}, 8472],
  ['wireguard', { LISTENPORT: 7 }, 7],
  ['vxlan', { VNI: 5, Port: 7 }, 7],
  ['vxlan', { VNI: 5 }, 8472],
  ['vxlan', { Port: '7' }, 8472],
  ['ipip', { port: 7 }, undefined],
  ['ipsec', { port: 7 }, undefined],
  ['host-gw', {}, undefined],
  ['', {}, undefined],
])('peers send to %s with the options %j at port %s', (type, backend, port) => {
  expect(portOf(type, backend)).toBe(port)
})

it.each([
  ['wireguard', {}, 51_821],
  ['wireguard', { mode: 'separate', ListenPort: 7 }, 51_821],
  ['wireguard', { Mode: '', listenPortV6: 8 }, 8],
  ['wireguard', { Mode: null }, 51_821],
  ['wireguard', { Mode: 'auto' }, 51_820],
  ['wireguard', { Mode: 'ipv6', ListenPort: 7, ListenPortV6: 8 }, 7],
  ['vxlan', {}, 8472],
  ['vxlan', { Mode: 'separate', Port: 7 }, 7],
])('peers send over IPv6 to %s with the options %j at port %s', (type, backend, port) => {
  expect(portOf(type, backend, 'ipv6')).toBe(port)
  expect(portOf(type, backend)).toBe(portOf(type, backend, 'ipv4'))
})

it('peers send over IPv4 to a wireguard backend with two devices at the first port', () => {
  expect(portOf('wireguard', { Mode: 'separate', ListenPortV6: 8 })).toBe(51_820)
})

it.each([
  ['', 'udp, alloc or a cloud backend'],
  ['vxlan', 'vxlan'],
  ['http', 'http'],
  ['ipsec', 'ipsec'],
  ['of another program', 'of another program'],
])('a lease with type %j was published by %s', (published, type) => {
  expect(publishers(published)).toBe(type)
})

it('a lease has the type of its backend or an empty type', () => {
  const others = Object.entries(KINDS).filter(([type, { published }]) => published !== '' && published !== type)
  expect(others).toEqual([])
})

it.each([
  ['vxlan', ['vxlan']],
  ['host-gw', ['host-gw']],
  ['', ['udp', 'alloc', 'aws-vpc', 'gce', 'ali-vpc', 'tencent-vpc']],
  ['udp', []],
  ['of another program', []],
])('leases with the type %j are of the backends %j', (published, types) => {
  expect(publishersOf(published)).toEqual(types.map((type) => KINDS[type as BackendType]))
})

it('means by "a cloud backend" only types that publish a route', () => {
  const empty = Object.entries(KINDS).filter(([, kind]) => kind.published === '')
  const others = empty.filter(([, kind]) => !('publishesRoute' in kind)).map(([type]) => type)
  expect(others).toEqual(['udp', 'alloc'])
})

it.each([
  ['udp', 28, 48],
  ['vxlan', 50, 70],
  ['wireguard', 60, 80],
] as const)('%s makes a packet longer by %i bytes, by %i where IPv6 carries it', (type, ipv4, ipv6) => {
  expect([overheadBy(type, 'ipv4'), overheadBy(type, 'ipv6')]).toEqual([ipv4, ipv6])
})

it.each([
  ['udp', {}, ['ipv4'], 'ipv4', 'ipv4'],
  ['udp', {}, ['ipv6'], 'ipv6', 'ipv6'],
  ['udp', {}, ['ipv4', 'ipv6'], 'ipv4 ipv6', 'ipv4 ipv6'],
  ['udp', { Underlay: 'auto' }, ['ipv4', 'ipv6'], 'ipv4 ipv6', 'ipv4 ipv6'],
  ['udp', { underLAY: 'ipv6' }, ['ipv4', 'ipv6'], 'ipv6 ipv4', 'ipv6 ipv4'],
  ['udp', { Underlay: 'ipv4' }, ['ipv4', 'ipv6'], 'ipv4 ipv6', 'ipv4 ipv6'],
  // The backend refuses this case, because it has no address of the family.
  ['udp', { Underlay: 'ipv6' }, ['ipv4'], 'ipv6', 'ipv6'],
  ['udp', { Underlay: 'ipv4' }, ['ipv6'], 'ipv4', 'ipv4'],
  ['vxlan', { Underlay: 'ipv6' }, ['ipv4', 'ipv6'], 'ipv4', 'ipv6'],
  ['wireguard', {}, ['ipv4', 'ipv6'], 'ipv4', 'ipv6'],
  ['wireguard', { Mode: 'separate', Underlay: 'ipv6' }, ['ipv4', 'ipv6'], 'ipv4', 'ipv6'],
  ['wireguard', { mode: 'ipv6' }, ['ipv4', 'ipv6'], 'ipv6', 'ipv6'],
  ['wireguard', { Mode: 'ipv4' }, ['ipv4', 'ipv6'], 'ipv4', 'ipv4'],
  ['wireguard', { Mode: 'auto' }, ['ipv4', 'ipv6'], 'ipv4 ipv6', 'ipv4 ipv6'],
  ['wireguard', { Mode: 'auto' }, ['ipv6'], 'ipv6', 'ipv6'],
  ['vxlan', { Mode: 'ipv6' }, ['ipv4', 'ipv6'], 'ipv4', 'ipv6'],
  ['ipip', {}, ['ipv4', 'ipv6'], 'ipv4', 'ipv4'],
  ['of another program', {}, ['ipv4', 'ipv6'], 'ipv4', 'ipv6'],
] as const)('%s with %j in a network of %j has outer headers of %s around IPv4, of %s around IPv6', (...row) => {
  const [type, backend, families, around4, around6] = row
  const told = (inner: 'ipv4' | 'ipv6') => outersOf(type, inner, backend, families).join(' ')
  expect([told('ipv4'), told('ipv6')]).toEqual([around4, around6])
})

it('the backend of a configuration without one is udp', () => {
  expect([DEFAULT_TYPE, parseNetworkConfig('{"Network":"10.5.0.0/16"}').backendType]).toEqual(['udp', 'udp'])
})

/** The variables that docs/cloud-http.md explains, without {credential}. */
const URL_VARIABLES = [
  'subnet',
  'subnetAddress',
  'prefixLength',
  'netmask',
  'publicIp',
  'address',
  'node',
  'instance',
  'id',
]
const REMEDIES = {
  key: 'give it a key of the cloud, or leave it out and set the environment variables of the cloud',
  url: `give it an http or https URL without user and password; the variables ${URL_VARIABLES.map((name) => `{${name}}`).join(', ')} may follow its host`,
  method: 'give it GET, PUT, POST, PATCH or DELETE',
  file: 'give it the absolute path of a file',
  member: 'give it the name of a member of the JSON answer, or a path of names with dots',
} as const

describe('the options of the cloud backends', () => {
  /** Reads the options of the backend `type` with this value for `option`, and returns the option's value. */
  const read = (type: 'ali-vpc' | 'http', option: string, text: string): unknown => {
    const given = { puturl: 'https://switch.example', [option.toLowerCase()]: text }
    const values: Readonly<Record<string, unknown>> = readSettings(type, given)
    const name = Object.keys(values).find((each) => each.toLowerCase() === option.toLowerCase())
    return values[name ?? '']
  }

  it.each([['a'.repeat(16)], ['a'.repeat(128)], ['LTAI4FoLmvQ9urWXgSRpDvh1'], ['with/the+other=signs-of_keys']])(
    'may have the API key %s',
    (key) => {
      for (const option of ['accessKeyId', 'accessKeySecret'])
        expect(String(read('ali-vpc', option, key)), option).toBe(key)
    },
  )

  it.each([
    ['PutURL', 'https://switch.example'],
    ['PutURL', 'http://192.0.2.1:8080/routes?a=b'],
    ['PutURL', 'https://[fd00::1]:8443/routes'],
    ...URL_VARIABLES.map((name) => ['PutURL', `https://switch.example/routes/{${name}}`] as const),
    ['RemoveURL', 'https://switch.example?of={subnet}&by={instance}'],
    ...['GET', 'PUT', 'POST', 'PATCH', 'DELETE'].map((method) => ['PutMethod', method] as const),
    ...['routes', 'r', 'data.routes', 'a.b.c', 'Route-Set_1.of-2.x'].map((path) => ['ListRoutes', path] as const),
    ['CAFile', '/etc/ca.pem'],
  ] as const)('of the backend http may have %s %s', (option, text) => {
    expect(read('http', option, text)).toBe(text)
  })

  it.each([
    ['a'.repeat(15), 'too short'],
    ['a'.repeat(129), 'too long'],
    [`a ${'a'.repeat(20)}`, 'two words'],
    [`${'a'.repeat(20)} a`, 'two words'],
    [` ${'a'.repeat(20)}`, 'a space before the key'],
    ['<AccessKeySecret of the cloud>', 'a placeholder'],
    ['<access-key-secret>', 'a placeholder'],
    ['<>'.repeat(10), 'signs of a placeholder'],
    [' '.repeat(20), 'spaces'],
  ])('may not have the API key "%s", which is %s', (key) => {
    for (const option of ['AccessKeyID', 'AccessKeySecret'])
      expect(() => read('ali-vpc', option, key), option).toThrow(
        expect.objectContaining({
          message: `Backend.${option} is ${JSON.stringify(key)}`,
          remedy: REMEDIES.key,
        }),
      )
  })

  const urls = [
    'ftp://switch.example',
    'switch.example/routes',
    'https://',
    ' https://switch.example',
    'https://user:password@switch.example/routes',
    'https://{instance}.example/routes',
    'https://switch.example/{credential}',
    'https://switch.example/{other}',
    'https://switch.example/{}',
    'https://switch.example/{subnet',
    'https://switch.example/a b',
    'https://switch.example/#a',
  ]
  it.each([
    ...urls.flatMap((url) => ['PutURL', 'RemoveURL', 'ListURL'].map((option) => [option, url, 'url'] as const)),
    ...['XGET', 'GETS', 'get', 'HEAD', 'GET PUT'].map((method) => ['ListMethod', method, 'method'] as const),
    ...['.routes', 'routes.', 'a..b', 'a b', '!routes', 'routes!', 'a.!', 'a.b!', '$', 'a/b', '*.b'].map(
      (path) => ['ListRoutes', path, 'member'] as const,
    ),
    ['CredentialFile', 'credentials', 'file'],
    ['CAFile', './ca.pem', 'file'],
  ] as const)('of the backend http may not have %s %s', (option, text, kind) => {
    expect(() => read('http', option, text)).toThrow(
      expect.objectContaining({ message: `Backend.${option} is ${JSON.stringify(text)}`, remedy: REMEDIES[kind] }),
    )
  })

  it('know the variables that the documentation explains', () => {
    const page = readFileSync(join(source, '../docs/cloud-http.md'), 'utf8')
    const explained = page.slice(page.indexOf('weftd replaces these variables:')).split('\n\n', 1).join('')
    const names = [...explained.matchAll(/`\{(\w+)\}`/g)].map(([, name]) => name)
    expect(names).toEqual([...URL_VARIABLES, 'credential'])
    expect(TEMPLATE_VARIABLES).toEqual(names)
  })
})

describe('a name of a device', () => {
  it.each([
    ['flannel%d', 'flannel0', true],
    ['flannel%d', 'flannel10', true],
    ['flannel%d', 'flannel', false],
    ['flannel%d', 'flannel.1', false],
    ['flannel%d', 'flannelx7', false],
    ['flannel%d', 'flannel7x', false],
    ['flannel%d', 'flannel%d', false],
    ['flannel%d', '7', false],
    ['flannel%d', 'weave7', false],
    ['flannel%d', 'container7', false],
    ['flannel.%d', 'flannel.4096', true],
    ['flannel.%d', 'flannel4096', false],
    ['flannel-v6.%d', 'flannel-v6.1', true],
    ['flannel-v6.%d', 'flannel.1', false],
    ['flannel-wg', 'flannel-wg', true],
    ['flannel-wg', 'flannel-wg-v6', false],
    ['flannel-wg', 'flannel-w', false],
    ['flannel-wg', '', false],
  ])('of the pattern %s may be %s: %s', (pattern, name, expected) => {
    expect(isNamedBy(pattern, name)).toBe(expected)
  })

  it.each([
    ['flannel0', true],
    ['flannel.1', true],
    ['flannel-v6.1', true],
    ['flannel.ipip', true],
    ['flannel-wg', true],
    ['flannel-wg-v6', true],
    ['flannel', false],
    ['eth0', false],
    ['wg0', false],
    ['vxlan1', false],
  ])('%s is a name that weft or flannel gives: %s', (name, expected) => {
    expect(hasBackendName(name)).toBe(expected)
  })
})

describe('a key of WireGuard', () => {
  const keyOf = (byte: number): string => Buffer.alloc(32, byte).toString('base64')
  it('may be any 32 bytes', () => {
    for (let byte = 0; byte < 256; byte++) expect(keyOf(byte)).toMatch(WIREGUARD_KEY)
  })

  it.each([
    ['', 'empty'],
    [Buffer.alloc(31, 7).toString('base64'), 'a byte too short'],
    [Buffer.alloc(33, 7).toString('base64'), 'a byte too long'],
    [`x${keyOf(7)}`, 'a letter too long before it'],
    [`${keyOf(7)}x`, 'a letter too long behind it'],
    [keyOf(7).replaceAll('=', ''), 'without its padding'],
    [`${keyOf(0).slice(0, 42)}B=`, 'of 32 bytes and a bit'],
    [`-${keyOf(7).slice(1)}`, 'of the alphabet for URLs'],
  ])('is not %j, which is %s', (text) => {
    expect(text).not.toMatch(WIREGUARD_KEY)
  })
})
