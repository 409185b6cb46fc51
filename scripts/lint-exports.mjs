// lint-exports.mjs - finds exported names that no other file imports, and functions and constants of src/ that only
// tests import.
//
// A type may be exported for tests. A value that only tests import is allowed if scripts/exports-for-tests.json lists
// its name. A listed name that needs no exception is an error. `--list` prints the correct list.

import { readdirSync, readFileSync, statSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseSync } from 'rolldown/utils'

const TOP = resolve(dirname(fileURLToPath(import.meta.url)), '..')
const FOLDERS = ['src', 'lab', 'bench', 'test', 'scripts', 'bin']
const LIST = 'scripts/exports-for-tests.json'
/**
 * Files that are used although no file imports them: the build of the single-file executable uses assets-inside.ts in
 * place of assets.ts, and Stryker loads mutants-stryker.mjs by its path.
 */
const LOADED_OTHERWISE = new Set(['src/base/assets-inside.ts', 'scripts/mutants-stryker.mjs'])

const filesIn = (folder) =>
  readdirSync(join(TOP, folder), { recursive: true, encoding: 'utf8' })
    .map((name) => join(folder, name))
    .filter((path) => /\.(?:ts|mjs)$/.test(path) || folder === 'bin')
    .filter((path) => statSync(join(TOP, path)).isFile())
const paths = [...FOLDERS.flatMap(filesIn), ...readdirSync(TOP).filter((name) => name.endsWith('.config.ts'))]

const files = new Map(
  paths.map((path) => {
    const text = readFileSync(join(TOP, path), 'utf8')
    const { module, errors } = parseSync(path.startsWith('bin/') ? `${path}.mjs` : path, text)
    if (errors.length > 0) throw new Error(`${path}: ${errors[0].message}`)
    return [path, { text, module }]
  }),
)

/**
 * Returns the path of the source file that an import specifier names, even if the specifier names the compiled file in
 * dist/. Returns undefined for a package.
 */
function target(from, specifier) {
  if (!specifier.startsWith('.')) return undefined
  const path = relative(TOP, resolve(TOP, dirname(from), specifier)).replace(/^dist\//, '')
  return [path, path.replace(/\.js$/, '.ts')].find((each) => files.has(each))
}

/** Maps each exported name, as `FILE NAME`, to the files that import it. */
const users = new Map()
function use(file, name, by) {
  if (file === undefined || file === by) return
  const key = `${file} ${name}`
  users.set(key, [...(users.get(key) ?? []), by])
}
const exportsOf = (file) =>
  files
    .get(file)
    .module.staticExports.flatMap(({ entries }) => entries)
    .filter(({ exportName }) => exportName.kind === 'Name')
    .map(({ exportName, isType }) => ({ name: exportName.name, isType }))
/**
 * Records `by` as a user of each name that `file` exports and that occurs as a word in `text`, because `by` imports the
 * whole module.
 */
function useWords(file, text, by) {
  if (file === undefined) return
  for (const { name } of exportsOf(file))
    if (new RegExp(`\\b${name.replaceAll('$', '\\$')}\\b`).test(text)) use(file, name, by)
}

for (const [path, { text, module }] of files) {
  for (const { moduleRequest, entries } of module.staticImports) {
    const file = target(path, moduleRequest.value)
    for (const { importName } of entries)
      if (importName.kind === 'Name') use(file, importName.name, path)
      else if (importName.kind === 'NamespaceObject') useWords(file, text, path)
  }
  for (const { entries } of module.staticExports)
    for (const { moduleRequest, importName } of entries)
      if (moduleRequest && importName.kind === 'Name') use(target(path, moduleRequest.value), importName.name, path)
  // A dynamic import, an import type or a string with a path of dist/ uses all names of a module.
  for (const [, specifier] of text.matchAll(/\bimport\(\s*['"`](\.[^'"`]+)['"`]/g))
    useWords(target(path, specifier), text, path)
  for (const [, built] of text.matchAll(/\bdist\/([\w/-]+)\.js\b/g))
    if (files.has(`${built}.ts`)) useWords(`${built}.ts`, text, path)
}

const listed = JSON.parse(readFileSync(join(TOP, LIST), 'utf8'))
const isTest = (path) => path.startsWith('test/')
const problems = []
const forTests = new Set()
for (const path of files.keys()) {
  if (LOADED_OTHERWISE.has(path)) continue
  for (const { name, isType } of exportsOf(path)) {
    const by = users.get(`${path} ${name}`) ?? []
    if (by.length === 0) problems.push(`${path}: no file imports ${name}; do not export it`)
    else if (path.startsWith('src/') && !isType && by.every(isTest)) {
      forTests.add(name)
      if (!listed.includes(name))
        problems.push(
          `${path}: only tests import ${name}; test it through an export that the program uses, or list it in ${LIST}`,
        )
    }
  }
}
for (const name of listed)
  if (!forTests.has(name)) problems.push(`${LIST}: ${name} is not exported only for tests; remove it`)
if (process.argv.includes('--list'))
  process.stdout.write(
    `${JSON.stringify(
      [...forTests].toSorted((a, b) => a.localeCompare(b)),
      undefined,
      2,
    )}\n`,
  )
else for (const problem of problems) process.stderr.write(`${problem}\n`)
process.exitCode = problems.length > 0 ? 1 : 0
