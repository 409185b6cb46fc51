// own-memory.test.ts - after a start weftd releases pages of the program's file, but no pages that were written.

import { spawnSync } from 'node:child_process'
import { expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'

/**
 * Runs in a process of its own. Reports, in KiB, how much of the program's file is mapped before and after, and how
 * much anonymous memory.
 */
const LOOK = `
const { readFileSync } = require('node:fs')
const { giveBackMemory } = require('node-gyp-build')(process.argv[1])
const total = (name, isOf) => {
  let sum = 0
  let counts = false
  for (const line of readFileSync('/proc/self/smaps', 'utf8').split('\\n')) {
    if (/^[0-9a-f]+-/.test(line)) counts = isOf(line)
    else if (counts && line.startsWith(name + ':')) sum += Number.parseInt(line.slice(name.length + 1), 10)
  }
  return sum
}
const program = () => total('Rss', (line) => line.endsWith(process.execPath) && !/^\\S+ .w/.test(line))
const anonymous = () => total('Anonymous', () => true)
const kept = Buffer.alloc(32 * 2 ** 20, 7)
const before = [program(), anonymous()]
giveBackMemory()
const after = [program(), anonymous()]
console.log(JSON.stringify({ before, after, isWhole: kept.every((byte) => byte === 7) }))`

it('frees the memory of the program that can be read from its file again, and keeps written memory', () => {
  const { stdout, stderr, status } = spawnSync(process.execPath, ['-e', LOOK, packageRoot], { encoding: 'utf8' })
  expect([stderr, status]).toEqual(['', 0])
  const { before, after, isWhole } = JSON.parse(stdout) as Record<'before' | 'after', [number, number]> & {
    isWhole: boolean
  }
  expect(before[0]).toBeGreaterThan(10_000)
  expect(after[0]).toBeLessThan(before[0] / 2)
  expect(after[1]).toBeGreaterThan(32 * 1024)
  expect(isWhole).toBe(true)
})

it('does nothing if the program is in anonymous memory', () => {
  const words = ['--use-largepages=on', '-e', LOOK, packageRoot]
  expect(spawnSync(process.execPath, words, { encoding: 'utf8' })).toMatchObject({ status: 0 })
})
