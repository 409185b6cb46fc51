// compile.test.ts - tests that C++ sources are compiled in parallel into object files in the order of the sources.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { compileAll } from '../../../scripts/compile.mjs'

let folder: string
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'weft-compile-'))))
afterEach(() => rmSync(folder, { recursive: true }))

/** Returns a compiler that copies the source, if the source does not contain `error`. */
const compiler = () => {
  writeFileSync(join(folder, 'compiler'), '#!/bin/sh\n! grep -q error "$2" && cp "$2" "$4"\n', { mode: 0o755 })
  return [join(folder, 'compiler')]
}
const compile = (texts: Readonly<Record<string, string>>) => {
  for (const [name, text] of Object.entries(texts)) writeFileSync(join(folder, name), text)
  return compileAll({
    command: compiler(),
    sources: Object.keys(texts),
    folder: join(folder, 'objects'),
    cwd: folder,
  })
}

it('returns the object file of each source, in the order of the sources', async () => {
  const objects = await compile({ 'c.cc': 'C', 'a.cc': 'A', 'b.cc': 'B', 'd.cc': 'D' })
  expect(objects.map((path) => readFileSync(path, 'utf8'))).toEqual(['C', 'A', 'B', 'D'])
})

it('fails if a source does not compile, and names the command', async () => {
  await expect(compile({ 'a.cc': 'A', 'b.cc': 'error', 'c.cc': 'C' })).rejects.toThrow(
    /compiler -c b\.cc -o .* failed$/,
  )
})

it('fails if there is no compiler', async () => {
  const none = compileAll({
    command: ['/nonexistent/g++'],
    sources: ['a.cc'],
    folder: join(folder, 'objects'),
    cwd: folder,
  })
  await expect(none).rejects.toThrow(/failed: .*ENOENT/)
})
