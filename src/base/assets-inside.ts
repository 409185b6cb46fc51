// assets-inside.ts - what assets.ts finds beside the program, for the executable that has all of it inside: scripts/release/bundle.mjs
// takes this file in that one's place.

import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { getAsset } from 'node:sea'
import type * as Addon from '../../native/addon.d.ts'
import type * as beside from './assets.ts'

/** The bundler resolves what is asked of it. */
declare const require: (name: string) => unknown

export const version: typeof beside.version = () => getAsset('version', 'utf8')

/** Some hosts let no program be mapped from /tmp (noexec), containers often none from /dev/shm. */
const FOLDERS = [tmpdir(), '/tmp', '/dev/shm', '/run', '/var/tmp']

/** Maps it from a file of that folder, which has no name any more then: nobody can put another there, and none is left. */
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

/** The addon where a container's image has it beside the executable, since nothing that is written there need be mapped. */
function besideThis(addon: Uint8Array): string | undefined {
  const path = join(dirname(process.execPath), 'weft.node')
  try {
    return readFileSync(path).equals(addon) ? path : undefined
  } catch {
    return undefined // there is none, as on most hosts
  }
}

/** The kernel maps files only. */
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
  throw new Error(`there is no folder from which it may be mapped (${failures.join('; ')})`)
}

export const addonRemedy: typeof beside.addonRemedy = () =>
  'set TMPDIR to a folder that can be written and is not mounted noexec'
export const pageText: typeof beside.pageText = async () => getAsset('page.html', 'utf8')

/**
 * As scripts/release/bundle.mjs writes them, three numbers a run: from this line of the bundle on, the lines of this file, -1 for none,
 * from that one on.
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
