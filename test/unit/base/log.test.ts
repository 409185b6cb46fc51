// log.test.ts - the format of log lines, and the limits for repeated ones.

import { afterEach, describe, expect, it, vi } from 'vitest'
import { createLog, formatGoDuration, formatLogLine, seldom } from '../../../src/base/log.ts'

afterEach(() => {
  vi.useRealTimers()
})

describe('log', () => {
  it("has klog's header and one line a message", () => {
    const at = new Date(2026, 10, 21, 2, 3, 4, 567).getTime() * 1000 + 89
    expect(formatLogLine('warn', at, 42, 'a.ts:7', 'a line')).toBe(
      String.raw`W1121 02:03:04.567089      42 a.ts:7] a line`,
    )
  })

  it('escapes line breaks and control characters in the line and in the text for listeners', () => {
    const heard: string[] = []
    const lines: string[] = []
    const log = createLog(
      0,
      (line) => lines.push(line),
      (_level, text) => heard.push(text),
    )
    log.warn('two\nE1121 02:03:04.567089       1 a.ts:7] forged \u001B[2J\u009B31m\u202E\u2028\uD800')
    const text = String.raw`two\nE1121 02:03:04.567089       1 a.ts:7] forged \u001b[2J\u009b31m\u202e\u2028\ud800`
    expect(lines).toEqual([expect.stringMatching(/^W.*\n$/)])
    expect(lines[0]).toContain(`] ${text}\n`)
    expect(heard).toEqual([text])
  })

  it('writes before it returns, with the letter of the level and the caller', () => {
    const lines: string[] = []
    const log = createLog(2, (line) => lines.push(line))
    log.info('one')
    log.warn('two')
    log.error('three')
    expect(lines.map((line) => line[0])).toEqual(['I', 'W', 'E'])
    expect(lines[0]).toMatch(/^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ base\/log\.test\.ts:\d+\] one\n$/)
    expect([log.v(2), log.v(3)]).toEqual([true, false])
  })
})

describe("a line's time", () => {
  /** Returns the difference between the time of day and that of a line, in ms within a day. */
  function aheadOf(line: string): number {
    const [, hours, minutes, seconds] = /^I\d{4} (\d\d):(\d\d):(\d\d\.\d{6}) /.exec(line)!
    const now = new Date()
    const ofDay =
      now.getHours() * 3_600_000 + now.getMinutes() * 60_000 + now.getSeconds() * 1000 + now.getMilliseconds()
    return Number(hours) * 3_600_000 + Number(minutes) * 60_000 + Number(seconds) * 1000 - ofDay
  }

  it.each([
    ['was set back by 8 h', -8],
    ['was set forward, or the host was suspended, by 8 h', 8],
  ])('has the time of day, also after %s', (_title, hours) => {
    vi.useFakeTimers({ toFake: ['Date'] })
    const lines: string[] = []
    const log = createLog(0, (line) => lines.push(line))
    const noon = new Date(2026, 10, 21, 12, 0, 0, 500)
    for (const at of [noon.getTime(), noon.getTime() + hours * 3_600_000]) {
      vi.setSystemTime(at)
      log.info('now')
      expect(Math.abs(aheadOf(lines.at(-1)!))).toBeLessThan(2)
    }
  })

  it('has microseconds', () => {
    const lines: string[] = []
    const log = createLog(0, (line) => lines.push(line))
    for (let count = 0; count < 200; count++) log.info('now')
    const micros = lines.map((line) => /\.(\d{6}) /.exec(line)![1]!)
    expect(micros.some((text) => !text.endsWith('000'))).toBe(true)
  })
})

describe('a limited log', () => {
  it('repeats a line after half a minute, and logs four failures a minute', () => {
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

  it('names the caller', () => {
    const lines: string[] = []
    seldom(createLog(0, (line) => lines.push(line))).info('here')
    expect(lines[0]).toMatch(/ base\/log\.test\.ts:\d+\] here\n$/)
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
