// ping.test.ts - weft ping: names, families, and exit codes.

import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { OpenEcho } from '../../../../src/host/echo.ts'
import { countPeers, type Status } from '../../../../src/report/status.ts'
import { soundDual, soundIpv6, soundStatus } from '../../../support/facts.ts'
import { weft } from '../../../support/screen.ts'

/** The requests that are answered, by their order, for each family. */
let answered: readonly boolean[]
let answeredBy6: readonly boolean[]
/** The families for which this host has no source address. */
let without: readonly string[]
vi.mock('../../../../src/host/echo.ts', () => ({
  openEcho: ((source, onAnswer) => {
    if (without.includes(typeof source === 'number' ? 'IPv4' : 'IPv6'))
      throw Object.assign(new Error('bind failed: EADDRNOTAVAIL'), { code: 'EADDRNOTAVAIL' })
    let sent = 0
    return {
      send(to, sequence) {
        if ((typeof to === 'number' ? answered : answeredBy6)[sent++]) setImmediate(onAnswer, to, sequence, 1.5)
      },
      packet: () => new Uint8Array(),
      close: () => {},
    }
  }) satisfies OpenEcho,
}))

let status: Status
let folder: string
let server: Server
beforeEach(async () => {
  status = soundStatus
  ;[answeredBy6, without] = [[], []]
  folder = mkdtempSync(join(tmpdir(), 'weft-ping-'))
  server = createServer((_request, response) => response.end(JSON.stringify(status)))
  await new Promise<void>((resolve) => server.listen(join(folder, 'socket'), resolve))
})
afterEach(() => {
  server.close()
  rmSync(folder, { recursive: true })
})

it.each([
  [[true, true], 0, '2 of 2 answered (0% lost)'],
  [[true, false], 0, '1 of 2 answered (50% lost)'],
  [[false, true], 0, '1 of 2 answered (50% lost)'],
  [[false, false], 3, '0 of 2 answered (100% lost)'],
])('with the answers %j exits with %d', async (answers, code, sum) => {
  answered = answers
  const shown = await weft(['ping', '10.5.2.0/24', '--count', '2', '--status-socket', join(folder, 'socket')])
  expect([shown.code, shown.err]).toEqual([code, ''])
  expect(shown.out).toContain(sum)
})

const ping = (...words: readonly string[]) =>
  weft(['ping', '--count', '1', '--status-socket', join(folder, 'socket'), ...words])
const [by4, by6] = [
  '10.5.2.0/24 at 192.0.2.2:8472 (10.5.2.0): ',
  'fd00:5:0:2::/64 at [2001:db8::2]:8472 (fd00:5:0:2::): ',
]

describe('a peer name', () => {
  const peer = soundStatus.peers!.list[0]!
  const peersCalled = (...names: readonly (string | null)[]): void => {
    const list = names.map((name, at) => ({
      ...peer,
      name,
      subnet: `10.5.${at + 2}.0/24`,
      lease: `10.5.${at + 2}.0-24`,
      publicIp: `192.0.2.${at + 2}`,
    }))
    status = { ...soundStatus, peers: countPeers(list, 10) }
  }
  beforeEach(() => (answered = [true]))

  it.each([
    ['host2', ['host2', 'host3', null], 0],
    ['HOST3', ['host2', 'host3', null], 1],
    ['host3', ['host2', 'host3.example.org'], 1],
    ['host3.example.org', ['host3.example.net', 'host3.example.org'], 1],
    ['host2', ['host2', 'host2.example.org'], 0],
    // A text that is an address is never a name.
    ['10.5.3.0/24', ['10.5.3.0/24', 'host3'], 1],
    ['192.0.2.3', ['192.0.2.3', 'host3'], 1],
  ])('%s of %j is pinged', async (name, names, at) => {
    peersCalled(...names)
    const { code, out, err } = await ping(name)
    expect([code, err]).toEqual([0, ''])
    expect(out).toContain(`${names[at]} (10.5.${at + 2}.0/24) at`)
  })

  it('is in the JSON too', async () => {
    peersCalled('host2')
    expect(JSON.parse((await ping('host2', '--json')).out)).toMatchObject({ peer: '10.5.2.0/24', name: 'host2' })
  })

  it('that several peers have is refused with a list of these peers', async () => {
    peersCalled('web', 'web', 'other', 'web')
    expect(await ping('web')).toMatchObject({
      code: 2,
      out: '',
      err: expect.stringContaining(
        '3 peers are called web: 10.5.2.0/24 at 192.0.2.2, 10.5.3.0/24 at 192.0.2.3, 10.5.5.0/24 at 192.0.2.5',
      ),
    })
    peersCalled(...Array.from({ length: 9 }, () => 'web.example.org'))
    expect((await ping('web')).err).toMatch(/9 peers are called web: (?:\S+ at \S+, ){5}4 more/)
  })

  it('of this host, or of no host, is an error', async () => {
    peersCalled('host2')
    expect(await ping('a')).toMatchObject({ code: 2, err: expect.stringContaining('a is this host itself') })
    for (const name of ['', 'nobody', '2001:db8::9', 'host'])
      expect(await ping(name)).toMatchObject({ code: 2, err: expect.stringContaining(`there is no peer ${name}`) })
  })

  it('is escaped and shortened in the output', async () => {
    peersCalled(`\u001B[2J\n${'x'.repeat(60_000)}`)
    const { out } = await ping('10.5.2.0/24')
    expect(out.split('\n')[0]!.length).toBeLessThan(120)
    expect(out).toContain(String.raw`\u001b[2J\nxxx`)
  })

  it('that looks like a flag works after --', async () => {
    peersCalled('--json')
    expect(
      await weft(['ping', '--count', '1', '--status-socket', join(folder, 'socket'), '--', '--json']),
    ).toMatchObject({
      code: 0,
      out: expect.stringContaining('--json (10.5.2.0/24)'),
    })
  })
})

describe('a dual-stack peer', () => {
  beforeEach(() => {
    status = soundDual.status
    answered = [true, true]
    answeredBy6 = [true, false]
  })

  it.each([
    '10.5.2.0/24',
    '10.5.2.9',
    '192.0.2.2',
    '10.5.2.0-24&fd00:5:0:2::-64',
    'fd00:5:0:2::/64',
    'fd00:5:0:2:0::9',
    '2001:DB8::2',
  ])('with the name %s is pinged over both families', async (name) => {
    const sum = '1 of 1 answered (0% lost), 1.5 ms to 1.5 ms'
    const { code, err, out } = await ping(name)
    expect([code, err, out.split('\n')]).toEqual([
      0,
      '',
      [`${by4}1.5 ms`, `${by6}1.5 ms`, `IPv4: ${sum}`, `IPv6: ${sum}`, ''],
    ])
  })

  it('has the answers of each family, and in JSON those of the first family at the top too', async () => {
    const { code, out } = await ping('10.5.2.0/24', '--count', '2')
    expect([code, out.split('\n')]).toEqual([
      0,
      [
        `${by4}1.5 ms`,
        `${by6}1.5 ms`,
        `${by4}1.5 ms`,
        `${by6}no answer`,
        'IPv4: 2 of 2 answered (0% lost), 1.5 ms to 1.5 ms',
        'IPv6: 1 of 2 answered (50% lost), 1.5 ms to 1.5 ms',
        '',
      ],
    ])
    answeredBy6 = []
    const first = { address: '10.5.2.0', roundTripsMs: [1.5], lossPercent: 0 }
    const second = { address: 'fd00:5:0:2::', roundTripsMs: [null], lossPercent: 100 }
    const json = await ping('10.5.2.0/24', '--json')
    expect([json.code, JSON.parse(json.out)]).toEqual([
      3,
      { peer: '10.5.2.0/24', name: null, ...first, families: { ipv4: first, ipv6: second } },
    ])
  })

  it('is pinged over one family if that is requested', async () => {
    answeredBy6 = []
    expect((await ping('10.5.2.0/24', '--family', 'ipv4')).code).toBe(0)
    const { code, out } = await ping('10.5.2.0/24', '--family', 'ipv6')
    expect([code, out]).toEqual([3, `${by6}no answer\n0 of 1 answered (100% lost)\n`])
  })

  it.each([
    ['IPv6', `${by4}1.5 ms`, `${by6}no answer`],
    ['IPv4', `${by4}no answer`, `${by6}1.5 ms`],
  ])('is pinged over the other family if this host lacks an address of %s', async (family, ...lines) => {
    without = [family]
    const { code, err, out } = await ping('10.5.2.0/24')
    expect([code, out.split('\n').slice(0, 2)]).toEqual([3, lines])
    expect(err).toBe(
      'weft ping: no peer can be pinged: bind failed: EADDRNOTAVAIL; check that the data path is up: `weft status`\n',
    )
  })

  it('is not pinged if this host has no address of either family', async () => {
    without = ['IPv4', 'IPv6']
    expect(await ping('10.5.2.0/24')).toMatchObject({ code: 1, out: '', err: expect.stringContaining('EADDRNOTAVAIL') })
  })

  it.each(['ipv5', 'IPv4'])('is refused with the family %s', async (family) => {
    expect(await ping('10.5.2.0/24', '--family', family)).toMatchObject({
      code: 2,
      err: expect.stringContaining(`--family is ${family}; give ipv4 or ipv6, or leave it out`),
    })
  })
})

it('pings an IPv6-only peer, and refuses IPv4', async () => {
  status = soundIpv6.status!
  answeredBy6 = [true]
  const { code, out } = await ping('fd00:5:0:2::7')
  expect([code, out]).toEqual([0, `${by6}1.5 ms\n1 of 1 answered (0% lost), 1.5 ms to 1.5 ms\n`])
  expect(await ping('fd00:5:0:2::7', '--family', 'ipv4')).toMatchObject({
    code: 2,
    err: expect.stringContaining(
      '--family is ipv4, but the peer has no address of that family; give ipv6, or leave it out',
    ),
  })
})
