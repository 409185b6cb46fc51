// log.test.ts - klog's line shape.

import { describe, expect, it } from 'vitest'
import { createLog, formatGoDuration, formatLogLine, seldom } from '../../src/log.ts'

describe('log', () => {
  it("has klog's header and one line a message", () => {
    const at = new Date(2026, 10, 21, 2, 3, 4, 567).getTime() * 1000 + 89
    expect(formatLogLine('warn', at, 42, 'a.ts:7', 'two\nlines')).toBe(
      String.raw`W1121 02:03:04.567089      42 a.ts:7] two\nlines`,
    )
  })

  it('writes before it returns, with the letter of the level and the caller', () => {
    const lines: string[] = []
    const log = createLog(2, (line) => lines.push(line))
    log.info('one')
    log.warn('two')
    log.error('three')
    expect(lines.map((line) => line[0])).toEqual(['I', 'W', 'E'])
    expect(lines[0]).toMatch(/^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ log\.test\.ts:\d+\] one\n$/)
    expect([log.v(2), log.v(3)]).toEqual([true, false])
  })
})

describe('what is said seldom', () => {
  it('is each line every half minute, four failures a minute, and every other line at once', () => {
    const lines: string[] = []
    let now = 0
    const log = seldom(
      createLog(0, (line) => lines.push(line)),
      () => now,
    )
    const texts = (): string[] => lines.splice(0).map((line) => line.replace(/^(.).*\] (.*)\n$/, '$1 $2'))
    for (now = 0; now < 70_000; now += 1000) {
      log.error('refused')
      log.info('trying')
    }
    log.info('done')
    expect(texts()).toEqual([...Array.from({ length: 3 }, () => ['E refused', 'I trying']).flat(), 'I done'])
    now = 200_000
    for (let number = 0; number < 10; number++) log.error(`failure ${number}`)
    log.info('done')
    expect(texts()).toEqual(['E failure 0', 'E failure 1', 'E failure 2', 'E failure 3', 'I done'])
  })

  it('names whoever said it', () => {
    const lines: string[] = []
    seldom(createLog(0, (line) => lines.push(line))).info('here')
    expect(lines[0]).toMatch(/ log\.test\.ts:\d+\] here\n$/)
  })
})

describe('formatGoDuration', () => {
  it.each([
    [0, '0s'],
    [59_999, '59s'],
    [60_000, '1m0s'],
    [82_800_000, '23h0m0s'],
    [3_661_000, '1h1m1s'],
  ])('%d is %s', (ms, text) => {
    expect(formatGoDuration(ms)).toBe(text)
  })
})
