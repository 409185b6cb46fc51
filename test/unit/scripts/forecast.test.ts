// forecast.test.ts - the first line of `npm test`.

import { describe, expect, it } from 'vitest'
import { forecastLine, type Machine } from '../../../scripts/forecast.mjs'

const COSTS = [
  { file: 'unit', cpu: 100 },
  { file: 'netns/hosts.test.ts', cpu: 400, part: 100, hosts: true },
]
const QUIET: Machine = { slowness: 1, cores: 2, load: 0, isSetUp: true, hasHosts: true, lacks: [] }
const line = (machine: Partial<Machine> = {}): string => forecastLine(COSTS, { ...QUIET, ...machine })

describe('the forecast', () => {
  it('counts the part of a file that runs, on all cores', () => {
    expect(line()).toBe('This takes about 2 minutes on this machine. Nothing will be skipped.')
  })

  it.each([
    ['a machine that is four times slower', { slowness: 4 }, 'about 8 minutes'],
    ['two processes that never rest', { load: 2 }, 'about 4 minutes'],
    ['a quarter of a core', { cores: 0.25 }, 'about 16 minutes'],
    ['no hosts', { hasHosts: false }, 'about 55 seconds'],
  ])('takes account of %s', (_what, machine, about) => {
    expect(line(machine)).toContain(about)
  })

  it('names the set-up if it has not been done yet', () => {
    expect(line({ isSetUp: false })).toContain(
      'about 2 minutes on this machine, with about 35 seconds of set-up before.',
    )
  })

  it('names what is missing, and how to get it', () => {
    const lacks = ['this machine lacks wg: run: sudo apt-get install wireguard-tools', 'this kernel has no ipip device']
    expect(line({ lacks })).toMatch(
      / Tests will be skipped: this machine lacks wg: run: sudo .*; this kernel has no ipip device\.$/,
    )
  })
})
