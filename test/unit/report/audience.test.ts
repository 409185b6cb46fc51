// audience.test.ts - which requests may read the full status, by address, by host name and by browser headers.

import { describe, expect, it } from 'vitest'
import { isReachableAt, listenAt, refusalOf, type Sender } from '../../../src/report/audience.ts'

const here: Sender = {
  local: '127.0.0.1',
  remote: '127.0.0.1',
  host: 'localhost:8081',
  origin: undefined,
  site: undefined,
  dest: undefined,
}
const codeFor = (asking: Partial<Sender>, statusIp = '127.0.0.1'): number | undefined =>
  refusalOf({ ...here, ...asking }, statusIp, 'Node-1.example.net')?.status
const there = (local: string, remote = '10.5.3.7'): Partial<Sender> => ({ local, remote })

describe('the status is served', () => {
  it.each([
    ['127.0.0.1', { local: '127.0.0.1', remote: '127.0.0.1' }],
    ['127.0.0.1', { local: '::1', remote: '::1' }],
    ['127.0.0.1', { local: '::ffff:127.0.0.1', remote: '::ffff:127.0.0.1' }],
    ['::1', { local: '127.0.0.1', remote: '127.0.0.1' }],
    ['192.0.2.7', { local: '127.0.0.1', remote: '127.0.0.1' }],
    ['192.0.2.7', there('192.0.2.7')],
    ['192.0.2.7', there('::ffff:192.0.2.7')],
    ['fd00::7', there('fd00:0:0::7', 'fd00::8')],
    ['0.0.0.0', there('192.0.2.7')],
    ['::', there('fd00::7', 'fd00::8')],
    ['::0', there('fd00::7', 'fd00::8')],
    ['0:0:0:0:0:0:0:0', there('::ffff:192.0.2.7')],
    ['::ffff:c000:207', there('::ffff:192.0.2.7')],
    ['192.0.2.7', { local: '::ffff:7f00:1', remote: '::ffff:127.0.0.1' }],
  ])('with --status-ip %s at %j', (statusIp, ends) => {
    expect(codeFor(ends, statusIp)).toBeUndefined()
  })
  it.each([
    ['127.0.0.1', there('192.0.2.7')],
    ['127.0.0.1', there('192.0.2.7', '192.0.2.7')],
    ['127.0.0.1', there('127.0.0.1')], // possible with net.ipv4.route_localnet
    ['127.0.0.1', there('::1', 'fd00::8')],
    ['192.0.2.7', there('192.0.2.8')],
    ['192.0.2.7', there('::192.0.2.7')],
    ['192.0.2.7', there('1::ffff:92.0.2.7')],
    ['', { local: '127.0.0.1', remote: '127.0.0.1' }],
    ['127.0.0.1', { local: undefined, remote: undefined }],
    ['192.0.2.7', { local: undefined, remote: undefined }],
  ])('with --status-ip %j, but not at %j', (statusIp, ends) => {
    expect(codeFor(ends, statusIp)).toBe(403)
  })
})

describe('the host name of a request', () => {
  it.each([
    'localhost',
    'LOCALHOST:1',
    '127.0.0.1',
    '192.0.2.7:8081',
    '[::1]',
    '[fd00::7]:8081',
    'node-1',
    'NODE-1:8081',
    'node-1.example.net:8081',
  ])('may be %j', (host) => {
    expect(codeFor({ host })).toBeUndefined()
  })
  it.each([
    '',
    ':8081',
    'evil.example',
    'evil.example:8081',
    'node-1.evil.example',
    'localhost.evil.example',
    'node-2',
    '127.0.0.1.evil.example',
    '127.1',
    '0x7f.0.0.1',
    '127.0.0.1@evil.example',
    'evil.example#127.0.0.1',
    '::1',
    'evil.example[::1]',
    'evil.example[::1]:8081',
    '[::1',
    '[evil.example]',
    '[::1]evil.example',
    '127.0.0.1:80:80',
    'localhost.',
    ' localhost',
    'example',
    '[]',
  ])('may not be %j', (host) => {
    expect(codeFor({ host })).toBe(421)
  })
  it('is required, and an empty host name matches no request', () => {
    expect(codeFor({ host: undefined })).toBe(421)
    expect(refusalOf({ ...here, host: '' }, '127.0.0.1', '')?.status).toBe(421)
  })
})

describe('a browser request', () => {
  it.each([
    { site: 'same-origin' },
    { site: 'none' },
    { site: 'cross-site', dest: 'document' }, // the user followed a link
    { origin: 'http://localhost:8081' },
  ])('is answered with the headers %j', (said) => {
    expect(codeFor(said)).toBeUndefined()
  })
  it.each([
    { site: 'cross-site' },
    { site: 'same-site' },
    { site: 'cross-site', dest: 'iframe' },
    { site: '' },
    { origin: 'null' },
    { origin: 'http://localhost:9000' },
    { origin: 'https://evil.example' },
    { origin: 'http://evil.example', site: 'same-origin' },
  ])('is refused with the headers %j', (said) => {
    expect(codeFor(said)).toBe(403)
  })
})

it.each([
  ['0.0.0.0', '127.0.0.1', ['0.0.0.0']],
  ['0.0.0.0', '192.0.2.7', ['0.0.0.0']],
  ['0.0.0.0', '::1', ['0.0.0.0', '::1']],
  ['0.0.0.0', '::', ['::']],
  ['', '127.0.0.1', ['']],
  ['::', '127.0.0.1', ['::']],
  ['192.0.2.7', '127.0.0.1', ['192.0.2.7', '127.0.0.1']],
  ['192.0.2.7', '', ['192.0.2.7']],
  ['192.0.2.7', '0.0.0.0', ['0.0.0.0']],
  ['fd00::7', '0.0.0.0', ['fd00::7', '0.0.0.0']],
  ['127.0.0.1', '127.0.0.1', ['127.0.0.1']],
  ['::0', '127.0.0.1', ['::0']],
  ['::0', 'fd00::7', ['::0']],
  ['0:0::', '0.0.0.0', ['0:0::']],
  ['fd00:0::7', 'fd00::7', ['fd00:0::7']],
  ['FD00::7', 'fd00::7', ['FD00::7']],
  ['::ffff:127.0.0.1', '127.0.0.1', ['::ffff:127.0.0.1']],
  ['::ffff:192.0.2.7', '0.0.0.0', ['0.0.0.0']],
  ['::1', '127.0.0.1', ['::1', '127.0.0.1']],
  ['fe80::7%eth0', '127.0.0.1', ['fe80::7%eth0', '127.0.0.1']],
  ['fe80::7%eth0', '0.0.0.0', ['fe80::7%eth0', '0.0.0.0']],
  ['fe80::7%eth0', 'fe80::8%eth0', ['fe80::7%eth0', 'fe80::8%eth0']],
  ['fe80::7%eth0', 'fe80::7%eth0', ['fe80::7%eth0']],
])('health checks at %j and the status at %j need sockets at %j', (ip, statusIp, at) => {
  expect(listenAt(ip, statusIp)).toEqual(at)
})

it.each([
  ['', true],
  ['0.0.0.0', true],
  ['::', true],
  ['127.0.0.9', true],
  ['::1', true],
  ['192.0.2.1', true],
  ['2001:DB8:0::1', true],
  ['192.0.2.2', false],
  ['::0', true],
  ['::ffff:7f00:1', true],
  ['::ffff:192.0.2.1', true],
  ['2001:db8::2', false],
])('reports whether the status can be read at %s', (statusIp, can) => {
  expect(isReachableAt(statusIp, ['192.0.2.1', '2001:db8::1'])).toBe(can)
})
