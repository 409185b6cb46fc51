// lint-keys.test.ts - the lint of map keys finds bigints among the keys of maps and sets, even if no type is written out.

import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'

let folder = ''
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'lint-keys-'))
  mkdirSync(join(folder, 'src'))
  const compilerOptions = { target: 'es2023', strict: true, types: [] }
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, include: ['src'] }))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** Runs the lint on a file with these lines. Returns its exit code and the numbers of the lines that it reports. */
function lint(...lines: string[]) {
  writeFileSync(join(folder, 'src/a.ts'), lines.join('\n'))
  const { status, stderr } = spawnSync(process.execPath, ['scripts/lint-keys.mjs', folder], { encoding: 'utf8' })
  return { status, found: [...stderr.matchAll(/^src\/a\.ts:(\d+):/gm)].map(([, line]) => Number(line)) }
}

it('finds keys that can be bigints, by their type', () => {
  const { status, found } = lint(
    'type Address = number | bigint',
    'export const a = new Map<Address, string>()',
    'const addresses: Address[] = []',
    'export const b = new Set(addresses.map((each) => each))',
    'export class C<K> { readonly of = new Map<K, string>() }',
    'export class D<K extends number | string> { readonly of = new Map<K, string>() }',
    'export const e = new Map<string, Address>()',
    'export const f = new Set(addresses.map(String))',
  )
  expect({ status, found }).toEqual({ status: 1, found: [2, 4, 5] })
})

it('accepts a project without such keys, and refuses a project in which it finds no map', () => {
  expect(lint('export const a = new Set<string>()')).toEqual({ status: 0, found: [] })
  expect(lint('export const a = 1')).toEqual({ status: 1, found: [] })
})
