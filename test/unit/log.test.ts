// log.test.ts - klog's line shape.

import { describe, expect, it } from 'vitest'
import { createLog, formatLogLine } from '../../src/log.ts'

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
