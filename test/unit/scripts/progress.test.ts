// progress.test.ts - the progress bar as text and on a terminal: other output stays intact, and nothing of the bar is left at the end.

import { spawnSync } from 'node:child_process'
import { constants } from 'node:os'
import { join } from 'node:path'
import { stripVTControlCharacters } from 'node:util'
import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import type { TestCase, TestModule, TestSpecification } from 'vitest/node'
import { packageRoot } from '../../../lab/lab.ts'
import { barLine, canShowBar, createProgress, progressOf } from '../../../scripts/progress.mjs'
import { isStepAlone, stepIn } from '../../support/long-step.ts'
import ProgressReporter from '../../support/progress-reporter.ts'

const state = { title: 'bench', step: 'tcp by native', done: 40, total: 100, counted: false, elapsedMs: 12_000 }
const bar = (more: object = {}, columns = 80, colour = false): string => barLine({ ...state, ...more }, columns, colour)

describe('the bar', () => {
  it.each([
    [{}, 'bench [########............] 40%, 12 s: tcp by native'],
    [{ leftMs: 300 }, 'bench [########............] 40%, 12 s, about 1 s left: tcp by native'],
    [{ leftMs: 18_000 }, 'bench [########............] 40%, 12 s, about 18 s left: tcp by native'],
    [
      { leftMs: 1_800_000, elapsedMs: 9_000_000 },
      'bench [########............] 40%, 2.5 h, about 30 min left: tcp by native',
    ],
    [{ counted: true, done: 2, total: 5 }, 'bench [########............] 3 of 5, 12 s: tcp by native'],
    [{ counted: true, done: 5, total: 5 }, 'bench [####################] 5 of 5, 12 s: tcp by native'],
    [{ done: 0, total: 0 }, 'bench [....................] 0%, 12 s: tcp by native'],
    [{ done: 130 }, 'bench [####################] 100%, 12 s: tcp by native'],
    [{ step: 'a\r\nb\u001B[2J' }, 'bench [########............] 40%, 12 s: a  b [2J'],
  ])('is formatted from %j', (more, expected) => expect(bar(more)).toBe(expected))

  it.each([
    [50, 'bench [####........] 40%, 12 s: tcp by native'],
    [40, 'bench [####......] 40%, 12 s: tcp by na'],
    [20, 'bench [##...] 40%, '],
    [19, 'bench 40%, 12 s: t'],
    [1, ''],
    [0, ''],
  ])('fits into %i columns', (columns, expected) => expect(bar({}, columns)).toBe(expected))

  it('is narrower than the terminal, which would otherwise wrap', () => {
    fc.assert(
      fc.property(fc.nat(300), fc.string(), fc.nat(100), (columns, step, done) => {
        expect(bar({ step, done }, columns).length).toBeLessThan(Math.max(1, columns))
      }),
    )
  })

  it('can be colored without becoming wider', () => {
    expect(stripVTControlCharacters(bar({}, 50, true))).toBe(bar({}, 50))
    expect(bar({}, 50, true)).toContain(' [\u001B[32m####\u001B[39m.')
  })
})

describe('the remaining time', () => {
  const work = { done: 0, size: 10, total: 100, pace: 'seconds', beforeMs: 0, withinMs: 0 } as const

  it.each([
    ['by the sizes, before anything is done', {}, { done: 0, leftMs: 100_000 }],
    ['by the clock within a step', { withinMs: 4_000 }, { done: 4, leftMs: 96_000 }],
    ['by the pace of what is done', { done: 20, beforeMs: 40_000 }, { done: 20, leftMs: 160_000 }],
    ['and by that within a step', { done: 20, beforeMs: 40_000, withinMs: 10_000 }, { done: 25, leftMs: 150_000 }],
    ['as if a step that takes longer were at its end', { withinMs: 99_000 }, { done: 10, leftMs: 90_000 }],
    ['not at all when that is the last', { done: 90, beforeMs: 90_000, withinMs: 99_000 }, { done: 100 }],
    ['not at all before the first of those that are only even', { pace: 'even', withinMs: 4_000 }, { done: 0 }],
    ['then by the first', { pace: 'even', done: 10, beforeMs: 7_000 }, { done: 10, leftMs: 63_000 }],
    ['not at all where the sizes say nothing', { pace: 'unknown', done: 10, beforeMs: 7_000 }, { done: 10 }],
  ] as const)('is told %s', (_, more, expected) => expect(progressOf({ ...work, ...more })).toEqual(expected))
})

it.each([
  [{ isTTY: true }, { TERM: 'xterm' }, true],
  [{ isTTY: true }, {}, true],
  [{ isTTY: true }, { TERM: 'dumb' }, false],
  [{ isTTY: false }, { TERM: 'xterm' }, false],
  [{}, { TERM: 'xterm' }, false],
])('%j with %j: a bar %s', (stream, environment, expected) =>
  expect(canShowBar({ ...stream, write: () => true }, environment)).toBe(expected),
)

it('writes only lines without a terminal', () => {
  let said = ''
  const stream = { write: (text: string) => ((said += text), true) }
  const progress = createProgress('bench', { total: 2, stream, environment: { TERM: 'xterm' } })
  progress.now('first')
  progress.plain('first is done')
  progress.now('second')
  progress.end()
  expect(said).toBe('first is done\n')
})

it.each([
  ['step: first\nstep: second\n', 'second', true],
  ['step: first\nfound it\n', 'first', false],
  ['one step: none\n', undefined, false],
  ['\n', undefined, false],
])('of %j shows the step %s, and removes it from the output: %s', (content, step, isAlone) => {
  expect([stepIn(content), isStepAlone(content)]).toEqual([step, isAlone])
})

it('writes each step of a long test once without a terminal', () => {
  const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true)
  const reporter = new ProgressReporter()
  const module = { id: '1', relativeModuleId: 'test/netns/soak.test.ts', children: { allTests: () => [1] } }
  const test = { name: 'loses nothing', module } as unknown as TestCase
  reporter.onTestRunStart([{} as TestSpecification])
  reporter.onTestModuleCollected(module as unknown as TestModule)
  reporter.onUserConsoleLog({ content: 'step: what a hook tells\n', type: 'stdout', time: 0, size: 0 })
  reporter.onTestCaseReady(test)
  reporter.onTestCaseAnnotate(test, { type: 'step', message: '35%, a link is down' })
  reporter.onTestCaseAnnotate(test, { type: 'notice', message: 'something else' })
  reporter.onTestCaseResult(test)
  reporter.onTestRunEnd()
  const lines = said.mock.calls.map(([line]) => line)
  said.mockRestore()
  expect(lines).toEqual(['netns/soak.test.ts: 35%, a link is down\n'])
})

/** Long work with its own lines, partial lines of a child (if the child is slow, a bar is drawn between them), and a result. */
const WORK = `
import { spawn } from 'node:child_process'
import { createProgress } from ${JSON.stringify(join(packageRoot, 'scripts/progress.mjs'))}
const progress = createProgress('work', { total: 3 })
progress.now('the first of three steps, whose name is rather long')
process.stdout.write('ok the first\\n')
progress.plain('the first is done')
progress.now('a child')
const child = spawn('sh', ['-c', 'printf "half a "; sleep "$0"; echo line; echo oops >&2', process.argv[2] === 'slow' ? '0.6' : '0'])
child.stdout.on('data', (data) => process.stdout.write(data))
child.stderr.on('data', (data) => process.stderr.write(data))
await new Promise((resolve) => child.on('close', resolve))
progress.now('the last')
progress.plain('the last is done')
if (process.argv[2] === 'fail') throw new Error('it failed')
if (process.argv[2] === 'interrupt') {
  process.kill(process.pid, 'SIGINT')
  setInterval(() => {}, 1000) // so that nothing but the signal ends it
  await new Promise(() => {})
}
progress.end()
process.stdout.write('3 passed, 0 failed, 0 skipped\\n')
`
const work = (...args: string[]): string[] => [
  process.execPath,
  '--input-type=module',
  '-e',
  WORK,
  '--',
  'work',
  ...args,
]
const quoted = (word: string): string => `'${word.replaceAll("'", String.raw`'\''`)}'`

/** Returns the output of a command on a terminal of 70 columns, which util-linux's `script` creates. */
const onTerminal = (...args: Parameters<typeof endOnTerminal>): string => endOnTerminal(...args).stdout
function endOnTerminal(command: readonly string[], environment: Record<string, string> = { NO_COLOR: '1' }) {
  const line = `stty cols 70 rows 24; exec ${command.map(quoted).join(' ')}`
  return spawnSync('script', ['-qec', line, '/dev/null'], {
    encoding: 'utf8',
    timeout: 60_000,
    cwd: packageRoot,
    env: { PATH: process.env['PATH'], TERM: 'xterm', SHELL: '/bin/sh', ...environment },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
}

/** Returns the final screen after this output. Understands carriage return, erasing to the end of the line, and newline. */
function screen(text: string): string[] {
  const lines = ['']
  let column = 0
  for (const part of text.match(/\r|\n|\p{Cc}\[[?\d;]*\w|\P{Cc}+/gu) ?? []) {
    const line = lines.at(-1)!
    if (part === '\r') column = 0
    else if (part === '\n') lines.push('')
    else if (part.endsWith('[K')) lines[lines.length - 1] = line.slice(0, column)
    else if (!part.startsWith('\u001B')) {
      lines[lines.length - 1] = line.slice(0, column) + part + line.slice(column + part.length)
      column += part.length
    }
    if (part === '\n') column = 0
  }
  return lines
}

describe('on a terminal', () => {
  const hasScript = spawnSync('script', ['--version']).status === 0

  it('is below the other output, and is gone at the end', ({ skip }) => {
    if (!hasScript) skip('this machine lacks script, of util-linux')
    const text = onTerminal(work('slow'))
    expect(screen(text)).toEqual(['ok the first', 'half a line', 'oops', '3 passed, 0 failed, 0 skipped', ''])
    const bars = text.match(/work\P{Cc}*/gu) ?? []
    expect(bars[0]).toMatch(/^work \[\.{17}\] 1 of 3, \d s: the first of three steps, whose$/)
    expect(bars).toContainEqual(expect.stringMatching(/^work \[#{5}\.{12}\] 2 of 3, \d s: a child$/))
    expect(bars.at(-1)).toMatch(/^work \[#{11}\.{6}\] 3 of 3, \d s: the last$/)
    // NO_COLOR is set, so there is no color.
    expect(text).not.toMatch(/\p{Cc}\[\d*m/u)
  })

  it('is gone before an error is written', ({ skip }) => {
    if (!hasScript) skip('this machine lacks script, of util-linux')
    const shown = screen(onTerminal(work('fail')))
    expect(shown).toContain('Error: it failed')
    expect(shown.join('\n')).not.toMatch(/work .*3 of 3/)
  })

  it('is gone after Ctrl-C', ({ skip }) => {
    if (!hasScript) skip('this machine lacks script, of util-linux')
    const { stdout, status } = endOnTerminal(work('interrupt'))
    expect(screen(stdout)).toEqual(['ok the first', 'half a line', 'oops', ''])
    expect(status).toBe(128 + constants.signals.SIGINT)
  })

  it('is replaced by one line per step on a dumb terminal and without a terminal', ({ skip }) => {
    const lines = [
      'ok the first',
      'the first is done',
      'half a line',
      'oops',
      'the last is done',
      '3 passed, 0 failed, 0 skipped',
      '',
    ]
    const [file = '', ...args] = work()
    const { stdout, stderr } = spawnSync(file, args, { encoding: 'utf8' })
    expect([stdout, stderr]).toEqual([
      'ok the first\nhalf a line\n3 passed, 0 failed, 0 skipped\n',
      'the first is done\noops\nthe last is done\n',
    ])
    if (!hasScript) skip('this machine lacks script, of util-linux')
    expect(onTerminal(work(), { TERM: 'dumb' }).split('\r\n')).toEqual(lines)
  })

  it('is below a long run of tests, whose last line stays the same', ({ skip }) => {
    if (!hasScript) skip('this machine lacks script, of util-linux')
    const vitest = [process.execPath, 'node_modules/vitest/vitest.mjs', 'run', 'test/unit/net/nets.test.ts']
    const text = onTerminal(vitest, { NO_COLOR: '1', WEFT_LONG: '1', npm_lifecycle_event: 'test:long' })
    expect(text).toMatch(/test:long \[#*\.*\] 1 of 1, \d+ s: unit\/net\/nets\.test\.ts: /)
    const shown = screen(text).join('\n')
    expect(shown).toMatch(/^\d+ passed, 0 failed, 0 skipped$/m)
    expect(shown).not.toContain('test:long')
  })
})
