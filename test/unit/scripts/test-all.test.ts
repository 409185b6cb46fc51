// test-all.test.ts - `npm run test:all` runs every test script once, and continues after an interruption.

import { spawn, type ChildProcess } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
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
  const noted = Object.entries(scripts).map(([name, command]) => [name, `echo ${name} >> runs; ${command}`])
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ scripts: Object.fromEntries(noted) as object }))
}
const runs = (): string[] => readFileSync(join(folder, 'runs'), 'utf8').trim().split('\n')
const command = [process.execPath, 'scripts/test-all.mjs']
const testAll = (...words: string[]): Promise<Finished> =>
  execute(['env', '-C', folder, 'NO_COLOR=1', ...command, ...words])

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
    /\ntest:whole +passed +0:0\d +1 passed\nimage:test +passed +0:0\d +2 passed\ntest:new +passed +0:0\d +3 passed\n/,
  )
})

it('continues after a failure, names the failed script, and runs only that one again', async () => {
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
  write({ 'test:whole': 'true', 'test:page': 'echo $$ > build/pid; test -e build/quick || exec sleep 1000' })
  child = spawn(command[0]!, [command[1]!], { cwd: folder, stdio: 'ignore' })
  const pid = await eventually(() => readFileSync(join(folder, 'build/pid'), 'utf8').trim())
  child.kill('SIGINT')
  await ended(child)
  await eventually(() => expect(() => process.kill(Number(pid), 0)).toThrow('ESRCH'))
  writeFileSync(join(folder, 'build/quick'), '')
  expect((await testAll()).code).toBe(0)
  expect(runs()).toEqual(['test:whole', 'test:page', 'test:page'])
})

it('runs everything again when a file changed, or with --again', async () => {
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
