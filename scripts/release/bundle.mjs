// bundle.mjs - the whole program as one CommonJS file, for the executable (src/executable.ts), with what is inside it.
//
// Three things of the packages need a file beside them when they run, and are given it here: src/base/assets.ts what it reads,
// etcd3 the protocol of etcd, protobufjs the package of 64-bit integers, without which they would lose digits.

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

/** etcd's protocol, of several files, as JSON. */
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
    if (changed === code) throw new Error('etcd3 loads its protocol in another way than LOADING says')
    return { code: changed, map: { mappings: '' } }
  },
})

/**
 * By runs of lines: from which line of the bundle on which file's lines follow. Of each run three numbers: the first line in the bundle,
 * the file, -1 for what is not weft's, and the line there.
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
 * The same program of ASCII alone, line by line: V8 keeps a program of which one letter is none of Latin-1's in twice the memory.
 * Throws where that would change what a template is without its escapes.
 */
export function inAscii(code) {
  if (/String\.raw`[^`]*[^\0-\x7f]/.test(code))
    throw new Error('a String.raw has a letter that is not of ASCII: write it by its number')
  return code.replace(/[^\0-\x7f]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

/** The packages of which something is inside: their folders. */
const foldersOf = (root, ids) =>
  [...new Set(ids.flatMap((id) => /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1] ?? []))]
    .map((folder) => relative(root, folder))
    .toSorted((a, b) => (a < b ? -1 : 1))

/**
 * Of a clone that is built. Throws when something cannot be resolved.
 * @returns {Promise<{ code: string, lines: string, packages: readonly { name: string, version: string, license: string, folder: string }[] }>}
 */
export async function bundle(root) {
  const bundled = await rolldown({
    cwd: root,
    input: join(root, ENTRY),
    platform: 'node',
    plugins: [inside(root)],
    onLog(level, log, handle) {
      // What stays unresolved would be missed on somebody's host. A package's own eval is no news.
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
    dir: root, // the paths of the source map are from there
  })
  await bundled.close()
  const [chunk] = output
  const packages = foldersOf(root, chunk.moduleIds).map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(root, folder, 'package.json'), 'utf8'))
    return { name, version, license, folder }
  })
  return { code: inAscii(chunk.code), lines: JSON.stringify(linesOf(chunk.code, chunk.map)), packages }
}
