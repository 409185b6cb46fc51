// events.test.ts - the source of the events, and the values of --since on a host whose time zone is not UTC.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it, vi } from 'vitest'
import { isWeftError } from '../../../../src/base/errors.ts'
import { writeEvents } from '../../../../src/report/events-file.ts'
import { sinceOf } from '../../../../src/tool/weft/events.ts'
import { weft } from '../../../support/screen.ts'

// Kathmandu is 5:45 hours ahead of UTC, and has no daylight saving time.
vi.stubEnv('TZ', 'Asia/Kathmandu')
afterAll(() => vi.unstubAllEnvs())

const NOW = Date.parse('2026-11-23T12:00:00Z')

it('says that the events come from the file, or that no events are known because the file is missing, if weftd does not answer', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-events-'))
  const file = join(folder, 'subnet.env')
  const events = (...words: string[]) =>
    weft(['events', ...words, '--status-socket', join(folder, 'none'), '--subnet-file', file])
  try {
    const missing = await events()
    expect(missing).toMatchObject({ code: 0, out: 'No events of peers are recorded.\n' })
    expect(missing.err).toMatch(
      /the socket does not exist; no events are known, because there is no .*subnet\.env\.events\n$/,
    )
    expect((await events('--since', '1h')).out).toBe('No later events of peers are recorded.\n')
    await writeEvents(`${file}.events`, [])
    expect((await events()).err).toMatch(/the socket does not exist; the events are from .*subnet\.env\.events\n$/)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

it.each([
  ['90s', 90],
  ['30m', 1_800],
  ['1.5min', 90],
  ['12h', 43_200],
  ['7d', 604_800],
  ['0s', 0],
])('%s means %d seconds ago', (text, seconds) => expect(sinceOf(text, NOW)).toBe(NOW - seconds * 1000))

it('accepts a time of day, in the time zone of the host unless it names a zone', () => {
  expect(sinceOf('2026-11-23T03:00:00Z', NOW)).toBe(Date.parse('2026-11-23T03:00:00Z'))
  for (const text of ['2026-11-23T03:00', '2026-11-23 03:00', '2026-11-23T03:00:00', '2026-11-23T03:00+05:45'])
    expect(sinceOf(text, NOW)).toBe(Date.parse('2026-11-22T21:15:00Z'))
  expect(sinceOf('2026-11-23T03:00-01:00', NOW)).toBe(Date.parse('2026-11-23T04:00:00Z'))
  expect(sinceOf('', NOW)).toBe(-Infinity)
})

it('reads a date as the beginning of that day in the time zone of the host', () => {
  expect(sinceOf('2026-11-23', NOW)).toBe(Date.parse('2026-11-22T18:15:00Z'))
  expect(sinceOf('2028-02-29', NOW)).toBe(Date.parse('2028-02-28T18:15:00Z'))
})

it.each([
  '30',
  'm',
  '-5m',
  '5 m',
  '5w',
  '1e9s',
  'yesterday',
  '2026-13-01',
  '2026-02-30',
  '2026-02-29T03:00',
  '2026-04-31 03:00Z',
  '2026-11-00',
  '23',
  '2026-11-23T99:00',
  '2026-11-23T24:01',
  '5constructor',
])('refuses %j, and lists the accepted forms', (text) => {
  try {
    sinceOf(text, NOW)
    expect.unreachable()
  } catch (error) {
    expect(isWeftError(error, 'USAGE') && [error.message, error.remedy]).toEqual([
      `--since is ${text}`,
      'write the time as 30m, 12h, 7d, or 2026-11-23T03:00',
    ])
  }
})
