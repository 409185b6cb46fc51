// bundle.mjs - bundles weft and its npm packages into one CommonJS file for the single-file executable
// (src/executable.ts), and lists the bundled packages.
//
// Three modules normally load files at run time, so the bundle embeds their files: the assets of src/base/assets.ts,
// the protocol definitions of the package etcd3, and the package for 64-bit integers that protobufjs needs for exact
// large numbers.

import { readFileSync } from 'node:fs'
import { createRequire, SourceMap } from 'node:module'
import { dirname, join, relative, resolve } from 'node:path'
import { rolldown } from 'rolldown'

const require = createRequire(import.meta.url)
const ENTRY = 'dist/src/executable.js'
const BESIDE = 'dist/src/base/assets.js'
const INSIDE = 'dist/src/base/assets-inside.js'
const PROTOCOL = 'weft:etcd-protocol'
const OPTIONAL = '@protobufjs/inquire'
const LOADING = '(0, proto_loader_1.loadSync)(`${__dirname}/../proto/rpc.proto`'

/**
 * Returns the definitions of etcd's protocol as one JSON text. The package etcd3 has the definitions in several files
 * and loads them at run time.
 */
function etcdProtocol(root) {
  const protobuf = require('protobufjs')
  const file = join(root, 'node_modules/etcd3/proto/rpc.proto')
  const all = new protobuf.Root()
  all.resolvePath = (_origin, target) => join(dirname(file), target.replace(`${dirname(file)}/`, ''))
  return JSON.stringify(all.loadSync(file, { keepCase: true }).toJSON())
}

const inside = (root) => ({
  name: 'inside',
  resolveId(id, importer = '') {
    if (resolve(dirname(importer), id) === join(root, BESIDE)) return join(root, INSIDE)
    return [PROTOCOL, OPTIONAL].includes(id) ? `\0${id}` : undefined
  },
  load(id) {
    if (id === `\0${PROTOCOL}`) return `module.exports = JSON.parse(${JSON.stringify(etcdProtocol(root))})`
    if (id === `\0${OPTIONAL}`)
      return "module.exports = (name) => (name === 'long' ? require('long') : name === 'fs' ? require('fs') : null)"
  },
  transform(code, id) {
    if (!id.endsWith('/etcd3/lib/connection-pool.js')) return
    const changed = code.replace(LOADING, `(0, proto_loader_1.fromJSON)(require('${PROTOCOL}')`)
    if (changed === code) throw new Error('etcd3 no longer loads its protocol with the code in LOADING')
    return { code: changed, map: { mappings: '' } }
  },
})

/**
 * Returns a table that maps lines of the bundle to lines of weft's source files, for stack traces. Each entry has three
 * numbers: the first line of a block in the bundle, the index of the block's source file (-1 if the code is not
 * weft's), and the block's first line in that file.
 */
function linesOf(code, map) {
  const sources = new SourceMap(map)
  const files = []
  const runs = []
  let last = [0, null, 0]
  for (const [index, text] of code.split('\n').entries()) {
    const { originalSource: path, originalLine } = sources.findEntry(index, /\S|$/.exec(text).index)
    const own = /(?:^|\/)dist\/src\/(.*)$/.exec(path ?? '')?.[1]
    const [bundled, line] = [index + 1, (originalLine ?? 0) + 1]
    const file = own ? ['src', ...own.split('/')].slice(-2).join('/') : null
    if (file === last[1] && (file === null || line - last[2] === bundled - last[0])) continue
    if (file !== null && !files.includes(file)) files.push(file)
    last = [bundled, file, file === null ? 0 : line]
    runs.push(bundled, files.indexOf(file), last[2])
  }
  return { files, runs }
}

/**
 * Replaces characters outside ASCII by escapes, without changing the number of lines. V8 uses twice the memory for a
 * program that contains a character outside Latin-1. Throws if a String.raw template has a character outside ASCII,
 * because an escape would change its value.
 */
export function inAscii(code) {
  if (/String\.raw`[^`]*[^\0-\x7f]/.test(code))
    throw new Error(
      'a String.raw template has a character that is not ASCII: write it as an escape outside of the template',
    )
  return code.replace(/[^\0-\x7f]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

/** Returns the folders of the npm packages that have a module in the bundle. */
const foldersOf = (root, ids) =>
  [...new Set(ids.flatMap((id) => /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1] ?? []))]
    .map((folder) => relative(root, folder))
    .toSorted((a, b) => (a < b ? -1 : 1))

/**
 * Bundles the compiled files in dist/ of the clone at `root`. Throws if an import cannot be resolved.
 * @returns {Promise<{ code: string, lines: string, packages: readonly { name: string, version: string, license: string,
 * folder: string }[] }>}
 */
export async function bundle(root) {
  const bundled = await rolldown({
    cwd: root,
    input: join(root, ENTRY),
    platform: 'node',
    plugins: [inside(root)],
    onLog(level, log, handle) {
      // Fail on an unresolved import, because the program would fail on a user's host. Hide warnings about `eval`,
      // because the packages that use it are known.
      if (log.code === 'UNRESOLVED_IMPORT') throw new Error(log.message)
      if (log.code !== 'EVAL') handle(level, log)
    },
  })
  const { output } = await bundled.generate({
    format: 'cjs',
    codeSplitting: false,
    strictExecutionOrder: true,
    sourcemap: true,
    comments: false,
    dir: root, // the paths of the source map are relative to it
  })
  await bundled.close()
  const [chunk] = output
  const packages = foldersOf(root, chunk.moduleIds).map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(root, folder, 'package.json'), 'utf8'))
    return { name, version, license, folder }
  })
  return { code: inAscii(chunk.code), lines: JSON.stringify(linesOf(chunk.code, chunk.map)), packages }
}
