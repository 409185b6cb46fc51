// manual.test.ts - completion, as the shells themselves do it where they are there, and the manual page.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { COMMANDS } from '../../../src/cli/weft.ts'
import { SHELLS } from '../../../src/cli/manual.ts'
import { weft } from '../../support/screen.ts'

const has = (program: string): boolean => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0
const scriptFor = async (shell: string): Promise<string> => (await weft(['completion', shell])).out

it.each([
  [['weft', ''], expect.arrayContaining(['status', 'lease', 'config', 'doctor', 'cleanup', 'help'])],
  [['weft', 'st'], ['status']],
  [
    ['weft', 'lease', ''],
    ['ls', 'show', 'release', 'reserve'],
  ],
  [
    ['weft', 'lease', 're'],
    ['release', 'reserve'],
  ],
  [['weft', 'lease', 'ls', '--js'], ['--json']],
  [['weft', 'status', '--'], expect.arrayContaining(['--json', '--watch', '--help'])],
  [['weft', 'status', '--watch', '--a'], ['--all']],
])('completes %j in bash', async (words, expected) => {
  const script = `${await scriptFor('bash')}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weft; printf '%s\\n' "\${COMPREPLY[@]}"`
  const { stdout, stderr } = spawnSync('bash', ['-c', script, 'bash', ...words], { encoding: 'utf8' })
  expect([stdout.trim().split('\n'), stderr]).toEqual([expected, ''])
})

it.each(SHELLS)('is a script that %s can read', async (shell) => {
  const script = await scriptFor(shell)
  for (const { name } of COMMANDS) for (const word of name.split(' ')) expect(script).toContain(word)
  if (!has(shell)) return
  // As a file: fish 3.6 takes a socket, which spawnSync gives for standard input, for a directory.
  const folder = mkdtempSync(join(tmpdir(), 'weft-completion-'))
  try {
    writeFileSync(join(folder, 'script'), script)
    const read = spawnSync(shell, ['-n', join(folder, 'script')], { encoding: 'utf8' })
    expect(read).toMatchObject({ status: 0, stderr: '' })
  } finally {
    rmSync(folder, { recursive: true })
  }
})

it('knows three shells', async () => {
  expect(await weft(['completion', 'csh'])).toMatchObject({ code: 2, err: expect.stringContaining('bash, zsh, fish') })
})

it('has a manual page with each command and flag, of which nothing is lost on the way to the reader', async () => {
  const { code, out } = await weft(['man'])
  expect(code).toBe(0)
  for (const { name, flags } of COMMANDS) {
    expect(out).toContain(`weft ${name}`)
    for (const flag of Object.keys(flags)) expect(out).toContain(`\\-\\-${flag.replaceAll('-', String.raw`\-`)}`)
  }
  if (!has('groff')) return
  const shown = spawnSync('groff', ['-man', '-Tascii', '-ww'], { input: out, encoding: 'utf8' })
  expect(shown.stderr).toBe('')
  expect(shown.stdout).toContain('weft')
})
