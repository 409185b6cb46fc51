// capture.test.ts - weft capture: lines, JSON, exit codes, and notes on packets that it cannot show. test/netns/capture.test.ts reads the
// capture file by tcpdump.

import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { packageRoot } from '../../../../lab/lab.ts'
import { noDrops, type DroppedPacket, type DropsReport } from '../../../../src/report/drops.ts'
import { createTally } from '../../../../src/tool/weft/capture.ts'
import { weft, type Terminal } from '../../../support/screen.ts'

let folder: string
let server: Server
let report: DropsReport
let asked: string[]
let code: number

const packet: DroppedPacket = {
  atUs: 1_795_353_422_000_042,
  direction: 'out',
  reason: 'tx_drop_ttl',
  packets: 1,
  length: 60,
  peer: '192.0.2.2',
  peerName: null,
  encap: '',
  headers: '4500003c0000000001060000000000000a0502070050',
}
const lost: DroppedPacket = { ...packet, direction: 'in', reason: 'rx_drop_ttl', packets: 3, peer: null, encap: '0800' }

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-capture-'))
  report = {
    schema: 1,
    at: '2026-11-22T10:00:00.000Z',
    device: 'flannel.1',
    engine: 'native',
    next: [7, 8],
    devices: { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' },
    reasons: {
      tx_drop_ttl: { packets: 10, means: 'TTL ran out' },
      rx_drop_ttl: { packets: 3, means: 'TTL ran out' },
      rx_drop_socket_full: { packets: 3, means: 'no room' },
      tx_drop_queue_full: { packets: 2, means: 'no room' },
    },
    packets: [packet, lost],
  }
  asked = []
  code = 200
  server = createServer((request, response) => {
    asked.push(request.url!)
    response.statusCode = code
    response.end(JSON.stringify(report))
  })
  await new Promise<void>((resolve) => server.listen(join(folder, 'socket'), resolve))
})
afterEach(() => {
  server.close()
  rmSync(folder, { recursive: true })
})
const capture = (words: readonly string[], terminal?: Terminal) =>
  weft(['capture', ...words, '--status-socket', join(folder, 'socket')], terminal)

it('shows a line per packet, and the number of packets', async () => {
  const shown = await capture([])
  expect(shown).toEqual({
    code: 0,
    err: '',
    out: [
      '2026-11-22T13:17:02.000042Z out 0.0.0.0 > 10.5.2.7 tcp, 60 bytes, to 192.0.2.2: TTL ran out (tx_drop_ttl)\n',
      '2026-11-22T13:17:02.000042Z in  0.0.0.0 > 10.5.2.7 tcp, 60 bytes, 3 packets in one, behind 0800: TTL ran out (rx_drop_ttl)\n',
      'shown: 4 of the 13 packets dropped since the data path was opened; of 5 more the kernel reports only the number: ',
      'tx_drop_queue_full, rx_drop_socket_full\n',
    ].join(''),
  })
  expect((await capture([], { isTTY: true })).out).toContain('\u001B[31mTTL ran out\u001B[0m')
  const none = { packets: 0, means: '' }
  const reasons = { ...report.reasons, rx_drop_socket_full: none, tx_drop_queue_full: { packets: 7, means: '' } }
  report = { ...report, reasons }
  expect((await capture([])).out).toMatch(/; of 7 more the kernel reports only the number: tx_drop_queue_full\n$/)
  report = { ...report, reasons: { tx_drop_ttl: none }, packets: [] }
  expect((await capture([])).out).toBe('no packet was dropped for tx_drop_ttl since the data path was opened\n')
})

it.each([
  ['ttl', 2],
  ['rx_drop_ttl', 1],
  ['socket_full', 0],
  ['queue_full', 0],
])('shows only packets with the reason %s', async (reason, count) => {
  const { out } = await capture(['--reason', reason, '--json'])
  const told = JSON.parse(out) as DropsReport
  expect(told.packets).toHaveLength(count)
  expect(Object.keys(told.reasons).every((name) => name.endsWith(reason))).toBe(true)
})

it('writes a file whose mode it cannot change, such as on a FAT file system, and says that others may read it', async () => {
  const file = join(folder, 'file')
  writeFileSync(file, 'an earlier file', { mode: 0o644 })
  const handle = await open(file)
  const chmod = vi.spyOn(Object.getPrototypeOf(handle) as FileHandle, 'chmod')
  chmod.mockRejectedValue(new Error('EPERM: operation not permitted, fchmod'))
  await handle.close()
  try {
    const shown = await capture(['--write', file])
    expect(shown.code).toBe(0)
    expect(shown.err).toContain(
      `other users may read ${file}, which has packets: EPERM: operation not permitted, fchmod`,
    )
    expect(readFileSync(file).readUInt32LE(0)).toBe(0x0a0d0d0a)
  } finally {
    chmod.mockRestore()
  }
})

it('writes a file that only its owner may read, and summarizes it on stderr', async () => {
  const file = join(folder, 'file')
  writeFileSync(file, 'an earlier file', { mode: 0o644 })
  expect(await capture(['--write', file])).toMatchObject({ code: 0, out: '', err: /^written: 4 of the 13/ })
  expect(statSync(file).mode & 0o777).toBe(0o600)
  expect(readFileSync(file).readUInt32LE(0)).toBe(0x0a0d0d0a)
  expect(readFileSync(file).toString()).toContain('flannel.1 and flannel-v6.1')
  expect(readFileSync(file).toString()).toContain('rx_drop_ttl: TTL ran out; 3 packets in one; behind 0800')
})

it.each([
  [
    'a reason that there is not',
    ['--reason', 'rain'],
    2,
    'there is no reason rain for drops; give one of tx_drop_ttl, ',
  ],
  ['a file on a terminal', ['--write', '-'], 2, 'a capture file is not for a terminal'],
  ['a file of JSON', ['--write', 'x', '--json'], 2, '--json and --write exclude each other'],
  ['a file that cannot be', ['--write', '/nowhere/file'], 1, '/nowhere/file cannot be written: ENOENT'],
  ['an argument', ['more'], 2, 'takes no arguments'],
])('refuses %s', async (_what, words, expected, why) => {
  const shown = await capture(words, { isTTY: true })
  expect([shown.code, shown.out]).toEqual([expected, ''])
  expect(shown.err).toContain(why)
})

it.each([
  ['kernel', 'weft does not carry the packets of this backend'],
  [null, 'weftd has no data path yet'],
])('explains why there are no packets with engine %s', async (engine, why) => {
  report = { ...noDrops('2026-11-22T10:00:00.000Z'), engine }
  const shown = await capture([])
  expect([shown.code, shown.out]).toEqual([1, ''])
  expect(shown.err).toContain(why)
})

it("reports that the daemon is older, or prints the daemon's message", async () => {
  code = 404
  expect((await capture([])).err).toContain('is older than this weft; restart weftd')
  report = { ...report, schema: 2 as 1 }
  code = 200
  expect((await capture([])).err).toContain('the report of weftd has version 2')
})

it('documents exactly the fields of its JSON', () => {
  const page = readFileSync(join(packageRoot, 'docs/other-json.md'), 'utf8')
  const [, section = ''] = /^## Dropped packets$(.*)/ms.exec(page) ?? []
  const documented = [...section.matchAll(/^\| `([^`]+)` \|/gm)].map(([, name = '']) => name)
  const ofPackets = Object.keys(packet).map((name) => `packets[].${name}`)
  const others = Object.keys(report).filter((name) => name !== 'packets')
  expect(documented.toSorted()).toEqual([...others, ...ofPackets].toSorted())
})

it('counts packets that could not be kept, and no packet twice', () => {
  const tally = createTally()
  const told = (seen: number, shown: number): number =>
    tally({
      ...report,
      reasons: { tx_drop_ttl: { packets: seen, means: '' }, rx_drop_socket_full: { packets: seen * 7, means: '' } },
      packets: Array.from({ length: shown }, () => packet),
    })
  expect(told(1_000, 256)).toBe(0) // before anybody looked
  expect(told(1_000, 0)).toBe(0)
  expect(told(1_010, 10)).toBe(0)
  expect(told(2_010, 256)).toBe(744)
  expect(told(2_012, 4)).toBe(0) // two were shown before they were counted
  expect(told(2_020, 6)).toBe(0)
  expect(told(2_020, 0)).toBe(0)
  expect(told(3, 3)).toBe(0) // the data path was opened again
  expect(told(5, 1)).toBe(1)
})

it('does not take encrypted bytes for a packet', async () => {
  const encap = '04000000010000000900000000000000'
  report = { ...report, packets: [{ ...packet, length: 140, encap, headers: '' }] }
  expect((await capture([])).out).toContain(
    `Z out an encrypted packet, 140 bytes, to 192.0.2.2, behind ${encap}: TTL ran out (tx_drop_ttl)\n`,
  )
  const file = join(folder, 'file')
  await capture(['--write', file])
  expect(readFileSync(file).includes(`to 192.0.2.2; behind ${encap}`)).toBe(true)
})
