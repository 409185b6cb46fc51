// events.test.ts - the most recent lines are kept in their order, and routine lines do not displace warnings.

import { expect, it } from 'vitest'
import { createLog } from '../../../src/base/log.ts'
import { createEvents } from '../../../src/report/events.ts'

it('keeps fifty warnings or errors and fifty other lines, with their times', () => {
  let now = 0
  const events = createEvents(() => now)
  events.add('error', 'it broke')
  for (now = 1_000; now <= 60_000; now += 1_000) events.add('info', `line ${now}`)
  events.add('warn', 'it smells')
  const last = events.last()
  expect(last).toHaveLength(52)
  expect(last[0]).toEqual({ at: '1970-01-01T00:00:00.000Z', level: 'error', text: 'it broke' })
  expect(last[1]!.text).toBe('line 11000')
  expect(last.at(-1)).toMatchObject({ level: 'warn', text: 'it smells' })
})

it('gets each message of the log as one line', () => {
  const events = createEvents(() => 0)
  const written: string[] = []
  const log = createLog(
    0,
    (line) => void written.push(line),
    (level, text) => events.add(level, text),
  )
  log.warn('one\ntwo')
  log.info('three')
  expect(events.last().map(({ level, text }) => [level, text])).toEqual([
    ['warn', String.raw`one\ntwo`],
    ['info', 'three'],
  ])
  expect(written).toHaveLength(2)
})
