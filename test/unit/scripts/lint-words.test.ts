// lint-words.test.ts - the lint of wording reads comments, names of tests and documents, and skips quoted text and code.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'

let folder = ''
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'lint-words-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** Runs the lint on one file with this text. Returns its exit code and one `line: rule` for each finding. */
function lint(name: string, text: string) {
  const file = join(folder, name)
  writeFileSync(file, text)
  const { status, stdout } = spawnSync(process.execPath, ['scripts/lint-words.mjs', file], { encoding: 'utf8' })
  const found = stdout.split('\n').flatMap((line) => {
    const [, number, rule] = /:(\d+): ([\w-]+):/.exec(line) ?? []
    return number === undefined ? [] : [`${number}: ${rule}`]
  })
  return { status, found }
}

describe('lint-words', () => {
  it.each([
    ['a comment of one line', 'a.ts', 'const a = 1\n// The route is mended.\n', ['2: old-word']],
    ['a comment after code', 'a.ts', 'const a = 1 // It is told later.\n', ['1: told']],
    [
      'a block comment',
      'a.h',
      '/**\n * Returns the peer.\n * @param x What is known by messages of before.\n */\n',
      ['3: clause-as-noun', '3: of-before'],
    ],
    ['a match that spans two lines', 'a.ts', '// Names the host where\n// it is known.\n', ['1: where-if']],
    ['the name of a test', 'a.test.ts', "it('repairs where it is known', () => {})\n", ['1: where-if']],
    ['a paragraph', 'a.md', 'weft runs.\n\nThe peers that are there\nare probed.\n', ['3: that-is-there']],
    ['a table cell', 'a.md', '| a | b |\n|---|---|\n| x | weft is told of it |\n', ['3: told']],
  ])('checks %s', (_, name, text, expected) => {
    expect(lint(name, text)).toEqual({ status: 1, found: expected })
  })

  it.each([
    ['plain words', 'a.ts', '// Repairs the route if the kernel lost it.\n'],
    ['a string', 'a.ts', "const a = 'http://x // mended'\n"],
    ['code spans', 'a.md', 'The log has `the route is mended`.\n'],
    ['code blocks', 'a.md', '```\nmended where it is known\n```\n'],
    ['quoted text', 'a.md', 'flanneld logs "is told of it".\n'],
  ])('accepts %s', (_, name, text) => {
    expect(lint(name, text)).toEqual({ status: 0, found: [] })
  })
})
