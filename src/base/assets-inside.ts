// assets-inside.ts - loads the files that the one-file executable of weft contains. When scripts/release/bundle.mjs
// builds the executable, it uses this file in place of assets.ts.

import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { getAsset } from 'node:sea'
import type * as Addon from '../../native/addon.d.ts'
import type * as beside from './assets.ts'

/** The bundler replaces each call of `require` by the required package, which the executable contains. */
declare const require: (name: string) => unknown

export const version: typeof beside.version = () => getAsset('version', 'utf8')

export const runtime: typeof beside.runtime = () => process.execPath

/**
 * The folders in which weftd tries to write the native addon to a file, in this order. Some of these folders may be
 * mounted noexec, such as /tmp, or /dev/shm in containers, and the kernel loads no library from a noexec mount.
 */
const FOLDERS = [tmpdir(), '/tmp', '/dev/shm', '/run', '/var/tmp']

/**
 * Writes the native addon to a file in the folder `parent`, unlinks the file, and loads it through its open descriptor.
 * So no other program can replace the file, and no file is left behind.
 */
function loadFrom(parent: string, addon: Uint8Array): typeof Addon {
  const folder = mkdtempSync(join(parent, '.weft-'))
  let file: number
  try {
    file = openSync(join(folder, 'weft.node'), 'wx+', 0o500)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
  try {
    writeFileSync(file, addon)
    const module = { exports: {} as typeof Addon }
    process.dlopen(module, `/proc/self/fd/${file}`)
    return module.exports
  } finally {
    closeSync(file)
  }
}

/**
 * Returns the path of the native addon's file next to the executable; undefined if the file is missing or differs from
 * `addon`. Only the container image has this file, because in a container the kernel may refuse to load a file that
 * weftd wrote itself.
 */
function besideThis(addon: Uint8Array): string | undefined {
  const path = join(dirname(process.execPath), 'weft.node')
  try {
    return readFileSync(path).equals(addon) ? path : undefined
  } catch {
    return undefined // only the container image has the file
  }
}

/** Loads the native addon from a file, because the kernel maps shared libraries only from files, not from memory. */
export const loadAddon: typeof beside.loadAddon = () => {
  const addon = new Uint8Array(getAsset('weft.node'))
  const path = besideThis(addon)
  if (path !== undefined) {
    const module = { exports: {} as typeof Addon }
    process.dlopen(module, path)
    return module.exports
  }
  const failures: string[] = []
  for (const parent of new Set(FOLDERS)) {
    try {
      return loadFrom(parent, addon)
    } catch (error) {
      failures.push(`${parent}: ${(error as Error).message}`)
    }
  }
  throw new Error(`no folder allows to map the file (${failures.join('; ')})`)
}

export const addonRemedy: typeof beside.addonRemedy = () =>
  'set TMPDIR to a folder that can be written and is not mounted noexec'
export const pageText: typeof beside.pageText = async () => getAsset('page.html', 'utf8')

/**
 * The map from lines of the bundle to lines of source files, as scripts/release/bundle.mjs writes it. `runs` has three
 * numbers for each run of consecutive lines: its first line in the bundle, the index of the source file in `files` (-1
 * for none), and its first line in the source file.
 */
let lines: { readonly files: readonly string[]; readonly runs: Int32Array } | undefined

function linesInside(): NonNullable<typeof lines> {
  const { files, runs } = JSON.parse(getAsset('lines.json', 'utf8')) as { files: string[]; runs: number[] }
  return { files, runs: Int32Array.from(runs) }
}

export const placeOf: typeof beside.placeOf = (frame) => {
  const found = /:(\d+):\d+\)?$/.exec(frame)
  if (!found || frame.includes('node:')) return undefined
  const { files, runs } = (lines ??= linesInside())
  const bundled = Number(found[1])
  for (let at = runs.length - 3; at >= 0; at -= 3) {
    const from = runs[at] ?? 0
    if (from > bundled) continue
    const file = files[runs[at + 1] ?? -1]
    return file === undefined ? undefined : `${file}:${(runs[at + 2] ?? 0) + bundled - from}`
  }
  return undefined
}

export const loadGrpc: typeof beside.loadGrpc = () => require('@grpc/grpc-js') as ReturnType<typeof beside.loadGrpc>
export const loadEtcdPool: typeof beside.loadEtcdPool = () =>
  require('etcd3/lib/connection-pool.js') as ReturnType<typeof beside.loadEtcdPool>
export const loadEtcdRpc: typeof beside.loadEtcdRpc = () =>
  require('etcd3/lib/rpc.js') as ReturnType<typeof beside.loadEtcdRpc>
