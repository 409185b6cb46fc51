// weft.test.ts - the command line of weft: help, exit codes, flags anywhere, tables, units and colours.

import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { packageRoot } from '../../../../lab/lab.ts'
import { countPeers, startingReport, type PeerStatus, type Status } from '../../../../src/report/status.ts'
import { bitRate, bytes, createScreen, duration, milliseconds, table } from '../../../../src/tool/weft/look.ts'
import { end, loadCommands } from '../../../../src/tool/weft/weft.ts'
import {
  dualPeer,
  peerOfIpv6,
  silentSide,
  soundDual,
  soundIpv6,
  soundPeer,
  soundStatus,
} from '../../../support/facts.ts'
import { weft } from '../../../support/screen.ts'
import { beginningWith } from '../../../support/snapshot.ts'

const COMMANDS = await loadCommands()

it.each([
  ['EPIPE', '', []],
  [
    'ENOSPC',
    'weft: the output cannot be written: ENOSPC: no space left; check that the disk of the output file is not full\n',
    [1],
  ],
])(
  'prints one line and exits if the output cannot be written, but prints nothing if the reader closed it: %s',
  (code, err, exits) => {
    let [fail, said]: [(error: Error) => void, string] = [() => {}, '']
    const stdout = {
      isTTY: false,
      write: () => true,
      on: (_event: 'error', listener: typeof fail) => (fail = listener),
    }
    const codes: number[] = []
    const stderr = { write: (text: string) => ((said += text), true) }
    const screen = createScreen(stdout, stderr, {}, (exit) => codes.push(exit))
    expect(screen.isRead()).toBe(true)
    fail(Object.assign(new Error(`${code}: no space left`), { code }))
    expect([said, codes, screen.isRead()]).toEqual([err, exits, false])
  },
)

describe('the command line', () => {
  it.each([
    [[], 0],
    [['help'], 0],
    [['--help'], 0],
    [['version'], 0],
    [['version', '--json'], 0],
    [['version', '--help'], 0],
    [['version', '--jason'], 2],
    [['version', 'more'], 2],
    [['help', 'ping'], 0],
    [['ping', '--help'], 0],
    [['ping', '-h'], 0],
    [['lease', '--help'], 0],
    [['lease'], 2],
    [['lease', 'eat'], 2],
    [['nothing'], 2],
    [['status', '--nothing'], 2],
    [['status', 'more'], 2],
    [['ping'], 2],
    [['ping', 'a', 'b'], 2],
    [['ping', 'a', '--count', 'x'], 2],
    [['ping', 'a', '--count', '0'], 2],
    [['bench'], 2],
    [['bench', 'a', '--listen'], 2],
    [['bench', 'a', '--port', '0'], 2],
    [['bench', 'a', '--port', '65536'], 2],
    [['bench', 'a', '--seconds', 'long'], 2],
    [['bench', 'a', '--seconds', '61'], 2],
    [['bench', 'a', '--streams', '0'], 2],
    [['bench', 'a', '--pairs', '0'], 2],
    [['bench', 'a', '--rate', '-1'], 2],
    [['bench', '--listen', '--from', 'there'], 2],
    [['bench', '10.5.2.0/24', '--status-socket', '/nowhere'], 1],
    [['bench', '--listen', '--status-socket', '/nowhere'], 1],
    [['explain'], 2],
    [['capture', 'all'], 2],
    [['capture', '--status-socket', '/nowhere'], 1],
    [['explain', '10.5.1.2', '10.5.2.2', 'there'], 2],
    [['status', '--status-socket', '/nowhere'], 1],
  ])('weft %j exits with %d', async (words, code) => {
    const shown = await weft(words)
    expect(shown.code).toBe(code)
    if (code === 1) expect(shown.err).toContain('no weftd answers at /nowhere: the socket does not exist')
  })

  it('describes the flags for the store once in the help of a group', async () => {
    const { out } = await weft(['config', '--help'])
    expect(out.match(/--lease-dir/g)).toHaveLength(1)
    expect(out).toContain('\nOptions of config get, config set, config check:\n\n')
    expect(out).toContain('Usage: weft config check [OPTION]... [FILE]\n')
    expect((await weft(['config', 'get', '--help'])).out).toContain('--lease-dir TEXT')
  })

  it('prints the version for people, and with the platform for programs', async () => {
    const { version } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { version: string }
    expect((await weft(['version'])).out).toBe(`${version}\n`)
    const { out } = await weft(['version', '--json'])
    expect(out).toMatch(/^\{.*\}\n$/)
    expect(JSON.parse(out)).toEqual({
      version,
      node: process.versions.node,
      platform: 'linux',
      arch: process.arch,
      libc: expect.stringMatching(/^(?:glibc \d+\.\d+|musl)$/) as string,
      runtime: process.execPath,
    })
  })

  it('has a help for each command with its flags, and docs/weft.md has all of them', async () => {
    const page = readFileSync(join(packageRoot, 'docs/weft.md'), 'utf8')
    const all = (await weft(['help'])).out
    for (const { name, args, flags } of COMMANDS) {
      const { out } = await weft([...name.split(' '), '--help'])
      expect(out).toMatch(new RegExp(`^Usage: weft ${name}${Object.keys(flags).length > 0 ? ' \\[OPTION\\]' : ''}`))
      for (const flag of Object.keys(flags)) expect(out).toContain(`  --${flag}`)
      expect(all).toContain(`  ${`${name} ${args}`.trim()}  `)
      expect(page).toContain(`\`weft ${`${name} ${args}`.trim()}\``)
    }
  })
})

describe('the formats', () => {
  it.each([
    [0.04, '0 s'],
    [9.94, '9.9 s'],
    [75, '75 s'],
    [150, '3 min'],
    [7_300, '2 h'],
    [200_000, '2 days'],
  ])('shows %d seconds as %s', (seconds, text) => expect(duration(seconds)).toBe(text))
  it.each([
    [0, '0 B'],
    [1023, '1023 B'],
    [1536, '1.5 KiB'],
    [200 * 1024, '200 KiB'],
    [5 * 2 ** 30, '5.0 GiB'],
  ])('shows %d bytes as %s', (count, text) => expect(bytes(count)).toBe(text))
  it.each([
    [0, '0 bit/s'],
    [999, '999 bit/s'],
    [1_540_000, '1.54 Mbit/s'],
    [20_500_000, '20.5 Mbit/s'],
    [199_600_000, '200 Mbit/s'],
    [12_340_000_000, '12.3 Gbit/s'],
  ])('shows %d bit/s as %s', (bits, text) => expect(bitRate(bits)).toBe(text))
  it.each([
    [0.0523, '0.052 ms'],
    [3.14, '3.1 ms'],
    [99.6, '100 ms'],
    [123.4, '123 ms'],
  ])('shows %d ms as %s', (ms, text) => expect(milliseconds(ms)).toBe(text))

  it('aligns columns without counting colour sequences', () => {
    const rows = [
      ['A', 'LONG', 'C'],
      [['good', 'x'], 'y', 'z'],
    ] as const
    expect(table(rows, (_tone, text) => text)).toBe('A  LONG  C\nx  y     z\n')
    expect(table(rows, (tone, text) => `<${tone}>${text}</>`)).toContain('<good>x</>  y     z\n')
    const many = [['A', 'B'], ...Array.from({ length: 200_000 }, (_, at) => [String(at), 'b'])]
    expect(table(many, (_tone, text) => text)).toMatch(/^A {7}B\n0 {7}b\n[\s\S]*\n199999  b\n$/)
  })
})

describe('weft status', () => {
  let folder: string
  let server: Server
  let status: Status
  const peer: PeerStatus = {
    lease: '10.5.2.0-24',
    subnet: '10.5.2.0/24',
    publicIp: '192.0.2.2',
    endpoint: '192.0.2.2:8285',
    type: '',
    ipv6Subnet: null,
    publicIpv6: null,
    state: 'answering',
    held: false,
    unusable: false,
    way: 'tunnel',
    since: '',
    txPackets: 10,
    txBytes: 2048,
    rxPackets: 10,
    rxBytes: 4096,
    heardSecondsAgo: 3,
    roundTripMs: 1.25,
    lossPercent: 0,
    probedSecondsAgo: 3,
    unansweredSeconds: null,
    pathMtu: null,
    path: null,
    passesBytes: null,
    pathSince: null,
    session: null,
    name: null,
    families: { ipv4: null, ipv6: null },
  }
  const socket = (): string[] => ['--status-socket', join(folder, 'socket')]
  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'weft-cli-'))
    status = {
      schema: 1,
      at: '2026-11-22T10:00:00.000Z',
      state: 'impaired',
      impairments: [{ by: 'peers', what: '1 of 2 peers does not answer' }],
      trouble: '1 of 2 peers does not answer',
      summary: '',
      repairs: 2,
      daemon: {
        version: '1.2',
        pid: 7,
        startedAt: '2026-11-22T07:00:00.000Z',
        subnetFile: '/run/s',
        leases: '/var/lib/weft',
        etcdFiles: null,
        network: 'off',
      },
      store: {
        name: 'directory',
        reachable: true,
        comparedSecondsAgo: 5,
        held: 0,
        holds: 0,
        configGone: false,
        configDiffers: false,
      },
      node: {
        hostname: 'a',
        subnet: '10.5.1.0/24',
        publicIp: '192.0.2.1',
        ipv6Subnet: null,
        publicIpv6: null,
        externalInterface: 'eth0',
        twin: null,
      },
      config: {
        network: '10.5.0.0/16',
        ipv6Network: null,
        subnetLength: 24,
        subnetMin: '10.5.1.0',
        subnetMax: '10.5.255.0',
        ipv6SubnetLength: null,
        ipv6SubnetMin: null,
        ipv6SubnetMax: null,
        backendType: 'udp',
        backend: {},
      },
      lease: { key: '10.5.1.0-24', expiresAt: '2026-11-23T09:00:00Z', renewMarginSeconds: 3600, published: {} },
      dataPath: {
        open: true,
        families: ['ipv4'],
        lacking: { ipv4: null, ipv6: null },
        addressGone: { ipv4: null, ipv6: null },
        mtu: 1472,
        mtuAtStart: null,
        device: 'flannel0',
        devices: { ipv4: 'flannel0', ipv6: null },
        engine: 'native',
        features: ['udp-gso'],
        fastPath: null,
        threads: [],
        counters: {},
        drops: { tx_drop_no_route: 2 },
        recent: null,
        unknownKeys: null,
      },
      peers: countPeers(
        [peer, { ...peer, subnet: '10.5.3.0/24', state: 'programmed', lossPercent: 100, roundTripMs: null }],
        10,
      ),
      peerEvents: null,
      subnetFileWritten: true,
      events: [{ at: '2026-11-22T09:00:00.000Z', level: 'warn', text: 'It rains' }],
    }
    server = createServer((_request, response) => {
      response.end(JSON.stringify(status))
    })
    await new Promise<void>((resolve) => server.listen(join(folder, 'socket'), resolve))
  })
  afterEach(() => {
    server.close()
    rmSync(folder, { recursive: true })
  })

  it('gives up on a daemon that hangs, and weft doctor reports it', async () => {
    const hangs = createServer(() => {})
    const path = join(folder, 'hangs')
    await new Promise<void>((resolve) => hangs.listen(path, resolve))
    const [shown, found] = await Promise.all(
      ['status', 'doctor'].map((command) => weft([command, '--status-socket', path])),
    )
    hangs.closeAllConnections()
    hangs.close()
    expect(shown).toMatchObject({ code: 1, out: '' })
    expect(shown!.err).toContain(`no weftd answers at ${path}: it sent no answer for 5 s`)
    expect([found!.code, /daemon-silent/.test(found!.out)]).toEqual([3, true])
  })

  it('refuses a ping that is larger than the MTU of the data path', async () => {
    const { code, err } = await weft(['ping', '10.5.2.0/24', '--size', '1473', ...socket()])
    expect([code, err]).toEqual([2, expect.stringContaining('--size is 1473, but the MTU of the data path is 1472')])
  })

  it('shows the node and its peers, those with a problem first, and exits with 3 if there are any', async () => {
    const { code, out } = await weft(['status', ...socket()])
    expect(out).toBe(
      [
        'weftd 1.2 on a, impaired by its peers (up 3 h, pid 7)',
        '  1 of 2 peers does not answer',
        '  effect: packets to 10.5.3.0/24 are lost',
        '  remedy: `weft doctor` says what to do',
        '  node       10.5.1.0/24 of 10.5.0.0/16, reached at 192.0.2.1 by eth0',
        '  data path  udp by flannel0, the native engine, MTU 1472; udp-gso',
        '  store      directory, /var/lib/weft: reachable, compared 5 s ago',
        '  lease      10.5.1.0-24, until 2026-11-23T09:00:00Z',
        '  peers      2 stored, 2 programmed, 1 of 2 probed answer: 50% whole',
        '  drops      tx_drop_no_route 2',
        '  repairs    2',
        '',
        'LAST WARNINGS',
        '2026-11-22T09:00:00.000Z  It rains',
        '',
        'NAME  PEER         AT              WAY     STATE      RTT     LOSS  HEARD    SENT     RECEIVED',
        '-     10.5.3.0/24  192.0.2.2:8285  tunnel  silent     -       100%  3 s ago  2.0 KiB  4.0 KiB',
        '-     10.5.2.0/24  192.0.2.2:8285  tunnel  answering  1.3 ms  0%    3 s ago  2.0 KiB  4.0 KiB',
        '',
      ].join('\n'),
    )
    expect(code).toBe(3)
    status = { ...status, state: 'working', impairments: [], trouble: null, peers: countPeers([peer], 10) }
    expect((await weft(['peers', ...socket()])).code).toBe(0)
  })

  it('shows that a lease without an expiry time is reserved, or in Kubernetes ends with the Node object', async () => {
    status = { ...status, lease: { ...status.lease!, expiresAt: null } }
    expect((await weft(['status', ...socket()])).out).toContain('\n  lease      10.5.1.0-24, reserved\n')
    status = { ...status, store: { ...status.store, name: 'kubernetes' } }
    const { out } = await weft(['status', ...socket()])
    expect(out).toContain('\n  lease      10.5.1.0-24, until the Node object is deleted\n')
  })

  it('has a column for handshakes if packets are encrypted', async () => {
    const keys = { publicKey: 'K', attempts: 0, failure: null, stale: 0, unconfirmed: 0, txBytes: 0, rxBytes: 0 }
    const sessions = [
      { ...keys, handshakeSecondsAgo: 32, ageSeconds: 32 },
      { ...keys, handshakeSecondsAgo: 600, ageSeconds: null },
      { ...keys, handshakeSecondsAgo: null, ageSeconds: null },
      null,
    ]
    const list = sessions.map((session, at) => ({ ...peer, session, subnet: `10.5.${at}.0/24` }))
    status = { ...status, peers: countPeers(list, 10) }
    const { out } = await weft(['peers', ...socket()])
    expect(out.split('\n').map((line) => line.slice(line.search(/RECEIVED|4\.0 KiB/)))).toEqual([
      'RECEIVED  HANDSHAKE',
      '4.0 KiB   32 s ago',
      '4.0 KiB   10 min ago, no keys now',
      '4.0 KiB   none',
      '4.0 KiB   -',
      '',
    ])
  })

  it('separates recent drops from older ones, and counts only probed peers', async () => {
    const path = { ...status.dataPath!, drops: { tx_drop_refused: 120, rx_drop_ttl: 3 } }
    const drops = async (lately: Readonly<Record<string, number>>) => {
      status = { ...status, dataPath: { ...path, recent: { seconds: 64.2, packets: 9, drops: lately } } }
      return /^ {2}drops +(.*)$/m.exec((await weft(['status', ...socket()])).out)?.[1]
    }
    expect(await drops({ tx_drop_refused: 14 })).toBe('tx_drop_refused 120 (14 in the last 64 s), rx_drop_ttl 3')
    expect(await drops({})).toBe('tx_drop_refused 120, rx_drop_ttl 3; none in the last 64 s')
    const peers = async (...list: PeerStatus[]) => {
      status = { ...status, peers: countPeers(list, 10) }
      return /^ {2}peers +(.*)$/m.exec((await weft(['status', ...socket()])).out)?.[1]
    }
    const unasked = { ...peer, state: 'programmed', lossPercent: null, probedSecondsAgo: null } as const
    expect(await peers()).toBe('no other node has a lease')
    expect(await peers(unasked)).toBe('1 stored, 1 programmed, not probed yet')
    expect(await peers(unasked, { ...unasked, state: 'stored' })).toBe(
      '2 stored, 1 programmed, not probed yet: 50% whole',
    )
    const long = { ...soundPeer, path: 'whole' } as const
    expect(await peers(long)).toBe('1 stored, 1 programmed, 1 of 1 answers, also to long packets')
    expect(await peers(long, soundPeer)).toBe('2 stored, 2 programmed, 2 of 2 answer')
    // With --probe-interval 0 it is not known whether peers answer.
    status = { ...status, peers: countPeers([unasked], null) }
    expect((await weft(['status', ...socket()])).out).toContain('1 stored, 1 programmed, not probed\n')
  })

  it('shows one state if both families have the same, else the family with its state', async () => {
    const list = [
      dualPeer(),
      { ...dualPeer({}, silentSide), subnet: '10.5.3.0/24' },
      { ...dualPeer({}, { state: 'stored', endpoint: null }), subnet: '10.5.4.0/24' },
      { ...dualPeer(silentSide, silentSide), subnet: '10.5.5.0/24' },
    ]
    status = { ...soundDual.status, peers: countPeers(list, 10) }
    const { out } = await weft(['status', ...socket()])
    expect(out).toContain(
      '  node       10.5.1.0/24 and fd00:5:0:1::/64 of 10.5.0.0/16 and fd00:5::/48, reached at 192.0.2.1 and 2001:db8::1 by eth0\n',
    )
    expect(out).toContain(
      '4 stored, 3 programmed, 1 of 3 probed answer: 25% whole; over IPv4 3 of 4, over IPv6 1 of 4\n',
    )
    expect(
      out
        .split('\n')
        .filter((line) => / 10\.5\..*kernel/.test(line))
        .map((line) => line.split(/ {2,}/).slice(1, 5)),
    ).toEqual([
      ['10.5.4.0/24', '2001:db8::2', 'kernel', 'IPv6 stored'],
      ['10.5.3.0/24', '[2001:db8::2]:8472', 'kernel', 'IPv6 silent'],
      ['10.5.5.0/24', '192.0.2.2:8472', 'kernel', 'silent'],
      ['10.5.2.0/24', '192.0.2.2:8472', 'kernel', 'answering'],
    ])
    status = { ...soundIpv6.status!, peers: countPeers([peerOfIpv6()], 10) }
    const six = await weft(['status', ...socket()])
    expect(six.out).toContain('  node       fd00:5:0:1::/64 of fd00:5::/48, reached at 2001:db8::1 by eth0\n')
    expect([six.code, /fd00:5:0:2::\/64 +\[2001:db8::2\]:8472 +kernel +answering/.test(six.out)]).toEqual([0, true])
    // If both families are broken, or the network has one family, the families are not listed.
    status = { ...soundDual.status, peers: countPeers([dualPeer(silentSide, silentSide)], 10) }
    expect((await weft(['status', ...socket()])).out).toContain('0% whole\n')
  })

  it('names the peers that long packets do not reach, and exits with 3', async () => {
    const narrow = { path: 'narrow', passesBytes: 1252 } as const
    status = { ...soundStatus, peers: countPeers([soundPeer, { ...soundPeer, ...narrow, lease: 'b' }], 10) }
    const { code, out } = await weft(['status', ...socket()])
    expect(code).toBe(3)
    expect(out).toContain(
      '2 of 2 probed answer: 100% whole for short packets, but long packets of more than 1252 of 1472 bytes do not reach one peer\n',
    )
    expect(out.split('\n').filter((line) => line.includes('10.5.2.0/24'))).toEqual([
      expect.stringMatching(/ tunnel +narrow /),
      expect.stringMatching(/ tunnel +answering /),
    ])
    // The maximum length is not known yet, or senders get an ICMP error.
    status = { ...soundStatus, peers: countPeers([{ ...soundPeer, ...narrow, passesBytes: null }], 10) }
    expect((await weft(['status', ...socket()])).out).toContain(
      'whole for short packets, but long packets do not reach one peer\n',
    )
    const told = { ...soundPeer, ...narrow, passesBytes: 1372, pathMtu: 1372 }
    status = { ...soundStatus, peers: countPeers([told], 10) }
    const well = await weft(['status', ...socket()])
    expect([well.code, well.out.includes('answering')]).toEqual([0, true])
    expect(well.out).toContain(
      '1 of 1 answers; packets of more than 1372 of 1472 bytes are fragmented, or their senders get an ICMP error\n',
    )
  })

  it('reports whether a daemon without a lease forwards packets', async () => {
    const { dataPath } = status
    status = { ...status, ...startingReport('etcd', beginningWith('waiting for a lease')) }
    expect((await weft(['status', ...socket()])).out).toMatch(
      /^weftd 1\.2, starting .*\n {2}waiting for a lease\n {2}effect: this weftd forwards no packets yet.*\n {2}store/,
    )
    status = { ...status, ...startingReport('etcd', beginningWith('waiting for a lease', true), dataPath) }
    expect((await weft(['status', ...socket()])).out).toMatch(
      /^weftd 1\.2, forwarding as last known .*\n {2}waiting for a lease\n {2}effect: packets to and from the last known nodes pass.*\n {2}data path  as last known by flannel0, the native/,
    )
  })

  it('uses colours on a terminal, but not with NO_COLOR', async () => {
    const onTerminal = await weft(['status', ...socket()], { isTTY: true, env: { TERM: 'xterm' } })
    expect(onTerminal.out).toContain('\u001B[31msilent')
    for (const env of [{ NO_COLOR: '1' }, { TERM: 'dumb' }])
      expect((await weft(['status', ...socket()], { isTTY: true, env })).out).not.toContain('\u001B')
  })

  it('prints the status as JSON for programs', async () => {
    const { out } = await weft(['status', '--json', ...socket()])
    expect(JSON.parse(out)).toEqual(status)
    expect(out.endsWith('}\n')).toBe(true)
  })

  it('repeats the status with --watch, with rates', async () => {
    let shown = ''
    const hear = (text: string): void => void (shown = text)
    const watching = weft(['peers', '--watch', ...socket()], { isTTY: true, env: { TERM: 'dumb' }, hear })
    const screens = (): number => shown.split('\u001B[J').length - 1
    await expect.poll(screens).toBe(1)
    const later = { ...peer, txBytes: 4096, rxBytes: 4096 + 10 * 1024 }
    status = { ...status, at: '2026-11-22T10:00:02.000Z', peers: countPeers([later], 10) }
    await expect.poll(screens).toBe(2)
    process.emit('SIGINT')
    const { code, out } = await watching
    expect(code).toBe(0)
    expect(out.startsWith('\u001B[2J\u001B[HNAME')).toBe(true)
    const [, first = '', second = ''] = out.split('\u001B[H')
    for (const screen of [first, second]) expect(screen).toMatch(/^NAME/)
    expect(second.endsWith('\u001B[K\n\u001B[J')).toBe(true)
    // A shorter line clears the rest of the longer one.
    expect(second.replaceAll('\u001B[K\n', '')).not.toContain('\n')
    expect(out).toMatch(/10\.5\.2\.0\/24 .* 1\.0 KiB\/s {2}5\.0 KiB\/s/)
  })

  it('refuses a report of another version', async () => {
    status = { ...status, schema: 2 as unknown as 1 }
    expect(await weft(['status', ...socket()])).toMatchObject({ code: 1, err: expect.stringContaining('version 2') })
  })
})

describe('a signal, if weftd never answers,', () => {
  let folder: string
  let server: Server
  let asked: Promise<unknown>
  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'weft-cli-'))
    server = createServer()
    asked = once(server, 'request')
    await new Promise<void>((resolve) => server.listen(join(folder, 'socket'), resolve))
  })
  afterEach(async () => {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
    rmSync(folder, { recursive: true })
  })
  const interrupted = async (words: readonly string[], signal: 'SIGINT' | 'SIGTERM') => {
    const running = weft([...words, '--status-socket', join(folder, 'socket')])
    await asked
    process.emit(signal)
    return running
  }

  it.each([
    [['ready'], 'SIGINT', 130],
    [['ready', '--wait', '60'], 'SIGTERM', 143],
    [['lease', 'release', '10.5.1.0/24'], 'SIGINT', 130],
    [['doctor', '--json'], 'SIGTERM', 143],
    [['bench', '10.5.1.0/24'], 'SIGINT', 130],
    [['status'], 'SIGINT', 130],
    [['peers', '--names', '--watch'], 'SIGINT', 130],
    [['capture'], 'SIGINT', 130],
  ] as const)('interrupts weft %j: %s gives the exit code %d', async (words, signal, code) => {
    const name = words[0] === 'lease' ? 'lease release' : words[0]
    const err = `weft ${name}: ${signal} interrupted the command before it was done\n`
    expect(await interrupted(words, signal)).toEqual({ code, out: '', err })
  })

  it.each([
    [['status', '--watch'], 'SIGTERM'],
    [['peers', '--watch', '--json'], 'SIGINT'],
    [['capture', '--follow'], 'SIGINT'],
    [['bench', '--listen'], 'SIGTERM'],
  ] as const)('is how weft %j ends: %s gives the exit code 0', async (words, signal) => {
    expect(await interrupted(words, signal)).toEqual({ code: 0, out: '', err: '' })
  })

  it('kills the process itself if the exit code is that of an interruption, so that bash ends its script', () => {
    const kill = vi.spyOn(process, 'kill').mockReturnValue(true)
    const before = process.exitCode
    try {
      const ends = [0, 1, 130, 143].map((code) => {
        kill.mockClear()
        end(code)
        return [process.exitCode, [...kill.mock.calls]]
      })
      expect(ends).toEqual([
        [0, []],
        [1, []],
        [130, [[process.pid, 'SIGINT']]],
        [143, [[process.pid, 'SIGTERM']]],
      ])
    } finally {
      process.exitCode = before
      kill.mockRestore()
    }
  })
})

it.each([
  [['docter'], 'weft: there is no command docter; did you mean weft doctor?; see weft help'],
  [['statsu'], 'weft: there is no command statsu; did you mean weft status?; see weft help'],
  [['lease', 'sohw'], 'weft: there is no command lease sohw; did you mean weft lease show?; see weft help'],
  [['doctor', '--jsno'], 'weft doctor: flag provided but not defined: -jsno; see --help; did you mean --json?'],
  [['nothing-like-it'], 'weft: there is no command nothing-like-it; see weft help'],
])('suggests for %j the command that was meant', async (words, said) => {
  const { code, err } = await weft(words)
  expect([code, err.trimEnd()]).toEqual([2, said])
})
