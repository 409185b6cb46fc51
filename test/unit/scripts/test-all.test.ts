// test-all.test.ts - `npm run test:all` runs every test script once, and continues after an interruption.

import { spawn, type ChildProcess } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { ended, execute, output, type Finished } from '../../../lab/command.ts'
import { packageRoot } from '../../../lab/lab.ts'
import { eventually } from '../../support/event.ts'

let folder: string
let child: ChildProcess | undefined
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-all-'))
  mkdirSync(join(folder, 'scripts'))
  for (const name of ['test-all.mjs', 'progress.mjs', 'undo.mjs'])
    cpSync(join(packageRoot, 'scripts', name), join(folder, 'scripts', name))
  writeFileSync(join(folder, '.gitignore'), 'build\nruns\n')
  await output(['git', 'init', '--quiet', folder])
})
afterEach(async () => {
  child?.kill('SIGKILL')
  if (child) await ended(child)
  child = undefined
  rmSync(folder, { recursive: true })
})

/** Writes a package.json with these scripts; each notes its name in the file `runs` before it runs its command. */
function write(scripts: Readonly<Record<string, string>>): void {
  const noted = Object.entries(scripts).map(([name, command]) => [name, `echo ${name} >> runs; ${command}`] as const)
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ scripts: Object.fromEntries(noted) }))
  mkdirSync(join(folder, 'build/scripts'), { recursive: true })
  for (const [name, command] of noted) writeFileSync(join(folder, 'build/scripts', name), command)
}
/** Puts a fake npm into PATH, because starting npm takes most of the time of these tests. */
function replaceNpm(): void {
  mkdirSync(join(folder, 'build/bin'), { recursive: true })
  writeFileSync(join(folder, 'build/bin/npm'), '#!/bin/sh\nsh "build/scripts/$3"\n', { mode: 0o755 })
}
const runs = (): string[] => readFileSync(join(folder, 'runs'), 'utf8').trim().split('\n')
const command = [process.execPath, 'scripts/test-all.mjs']
const searchPath = (): string => [join(folder, 'build/bin'), process.env['PATH']].join(delimiter)
const testAll = (...words: string[]): Promise<Finished> =>
  execute(['env', '-C', folder, 'NO_COLOR=1', `PATH=${searchPath()}`, ...command, ...words])

it('runs test:whole first and then every other test script, also one that it does not know', async () => {
  write({
    test: 'exit 9',
    'test:all': 'exit 9',
    'test:new': 'echo 3 passed',
    'image:test': 'echo 2 passed',
    'test:whole': 'echo 1 passed',
  })
  const { code, stdout } = await testAll()
  expect(runs()).toEqual(['test:whole', 'image:test', 'test:new'])
  expect({ code, last: stdout.trimEnd().split('\n').at(-1) }).toEqual({
    code: 0,
    last: '3 passed, 0 failed, 0 skipped',
  })
  expect(stdout).toMatch(
    /\ntest:whole +passed +[\d:]+ +1 passed\nimage:test +passed +[\d:]+ +2 passed\ntest:new +passed +[\d:]+ +3 passed\n/,
  )
})

it('continues after a failure, names the failed script, and runs only that one again', async () => {
  replaceNpm()
  write({ 'test:whole': 'echo whole; test -e build/mended', 'test:page': 'echo page' })
  const first = await testAll()
  expect(first.code).toBe(1)
  expect(first.stdout).toMatch(/test:whole +FAILED \(exit code 1\) .*whole\n/)
  expect(first.stdout).toMatch(/\n1 passed, 1 failed, 0 skipped\n$/)
  writeFileSync(join(folder, 'build/mended'), '')
  expect((await testAll()).code).toBe(0)
  expect(runs()).toEqual(['test:whole', 'test:page', 'test:whole'])
})

it('ends its scripts when it is interrupted, and continues with the interrupted script next time', async () => {
  replaceNpm()
  write({ 'test:whole': 'true', 'test:page': 'test -e build/quick || { sleep 1000 & echo $! > build/pid; wait; }' })
  child = spawn(command[0]!, [command[1]!], {
    cwd: folder,
    stdio: 'ignore',
    env: { ...process.env, PATH: searchPath() },
  })
  const pid = await eventually(() => /\d+(?=\n)/.exec(readFileSync(join(folder, 'build/pid'), 'utf8'))![0])
  child.kill('SIGINT')
  await ended(child)
  await eventually(() => expect(() => process.kill(Number(pid), 0)).toThrow('ESRCH'))
  writeFileSync(join(folder, 'build/quick'), '')
  expect((await testAll()).code).toBe(0)
  expect(runs()).toEqual(['test:whole', 'test:page', 'test:page'])
})

it('runs everything again when a file changed, or with --again', async () => {
  replaceNpm()
  write({ 'test:whole': 'true' })
  await testAll()
  await testAll()
  expect(runs()).toHaveLength(1)
  writeFileSync(join(folder, 'new.ts'), '')
  await testAll()
  expect(runs()).toHaveLength(2)
  await testAll('--again')
  expect(runs()).toHaveLength(3)
})

it('runs only the named scripts, and keeps the results of other runs', async () => {
  replaceNpm()
  write({ 'test:whole': 'true', 'test:page': 'exit 3', 'test:soak': 'true' })
  expect((await testAll('test:soak')).stdout).toMatch(/test:whole +not run\n(.*\n)*1 passed, 0 failed, 0 skipped\n$/)
  const both = await testAll('test:page', 'test:soak')
  expect(both).toMatchObject({ code: 1, stdout: expect.stringMatching(/\n1 passed, 1 failed, 0 skipped\n$/) })
  expect(runs()).toEqual(['test:soak', 'test:page'])
  await testAll('--again', 'test:soak')
  await testAll()
  expect(runs().slice(2)).toEqual(['test:soak', 'test:whole', 'test:page'])
})

it('keeps the results that a second run in the same folder recorded meanwhile', async () => {
  replaceNpm()
  write({
    'test:whole': 'touch build/began; while test -e build/began && ! test -e build/done; do sleep 0.01; done',
    'test:page': 'true',
  })
  const whole = testAll('test:whole')
  await eventually(() => readFileSync(join(folder, 'build/began')))
  await testAll('test:page')
  writeFileSync(join(folder, 'build/done'), '')
  expect((await whole).code).toBe(0)
  expect((await testAll()).stdout).toMatch(/^0 of 2 test scripts will run/)
})

it('refuses a name that no test script has', async () => {
  write({ 'test:whole': 'true' })
  expect(await testAll('test:hole')).toEqual({
    code: 2,
    stdout: '',
    stderr: 'test:all: there is no test script test:hole; choose from test:whole\n',
  })
})

it('records the tree that it tests if several runs begin at the same time', async () => {
  replaceNpm()
  write({ 'test:whole': 'true', 'test:page': 'true', 'test:soak': 'true', 'test:vm': 'true' })
  await Promise.all(['test:whole', 'test:page', 'test:soak', 'test:vm'].map((name) => testAll(name)))
  const state = JSON.parse(readFileSync(join(folder, 'build/test-all/state.json'), 'utf8')) as { tree: string }
  await output(['git', '-C', folder, 'add', '--all'])
  expect(state.tree).toBe((await output(['git', '-C', folder, 'write-tree'])).trim())
})

it('keeps its own results if a run with other files records in between', async () => {
  replaceNpm()
  const files = 'touch new.ts; node scripts/test-all.mjs test:page; rm new.ts'
  write({ 'test:whole': 'true', 'test:paths': `test -e new.ts || { ${files}; }`, 'test:page': 'test -e new.ts' })
  await testAll('test:whole', 'test:paths')
  expect((await testAll('test:whole', 'test:paths')).stdout).toMatch(/^0 of 2 test scripts will run/)
})

it('continues an interrupted --again', async () => {
  replaceNpm()
  write({ 'test:whole': 'true', 'test:page': 'test ! -e build/slow || { touch build/began; sleep 1000; }' })
  await testAll()
  writeFileSync(join(folder, 'build/slow'), '')
  child = spawn(command[0]!, [command[1]!, '--again'], {
    cwd: folder,
    stdio: 'ignore',
    env: { ...process.env, PATH: searchPath() },
  })
  await eventually(() => readFileSync(join(folder, 'build/began')))
  child.kill('SIGINT')
  await ended(child)
  rmSync(join(folder, 'build/slow'))
  expect((await testAll()).stdout).toMatch(/^1 of 2 test scripts will run/)
})
