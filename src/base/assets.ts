// assets.ts - what lies beside the program: its version, the native addon, the page, and packages that are loaded when they are needed.
//
// Nobody else finds a file by where the program is, so that a bundler, or an executable that has all of it inside, has this file to
// replace. Packages of CommonJS are not imported: Node 20 reads all of one for the names of its exports then, a seventh of weftd's start.

import { existsSync, readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type * as grpcJs from '@grpc/grpc-js'
import type * as etcdPool from 'etcd3/lib/connection-pool.js'
import type * as etcdRpc from 'etcd3/lib/rpc.js'
import type * as Addon from '../../native/addon.d.ts'

const require = createRequire(import.meta.url)

/** The package's top folder, from src/ and from dist/src/ alike; the file system's where no folder has the package. */
function packageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(folder, 'package.json')) && folder !== dirname(folder)) folder = dirname(folder)
  return folder
}

/** What the package says of itself; undefined where there is none. */
function manifest(): { readonly name: string; readonly version: string } | undefined {
  try {
    return JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as { name: string; version: string }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return undefined
  }
}

/** The package's version. */
export const version = (): string => manifest()?.version ?? 'unknown'

/** A prebuilt addon where the package has one, else the one built here. Throws the Error of whatever is in the way. */
export const loadAddon = (): typeof Addon =>
  (require('node-gyp-build') as (folder: string) => typeof Addon)(packageRoot())

/** What to do where it cannot be loaded. A clone of the repository has scripts/, an installed package has none. */
export const addonRemedy = (): string =>
  existsSync(join(packageRoot(), 'scripts/setup.mjs'))
    ? 'build it with npm run setup'
    : `build it with npm rebuild -g ${manifest()?.name ?? 'weft'}, which needs make, g++ and python3`

/** The page, which scripts/build-page.mjs makes of src/report/page/; undefined where it was not built. */
export async function pageText(): Promise<string | undefined> {
  try {
    return await readFile(fileURLToPath(new URL('../report/page/page.html', import.meta.url)), 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return undefined
  }
}

/** `loops/peers.js:12` of a line of an Error's stack: with the folder, since names occur twice. */
export function placeOf(frame: string): string | undefined {
  return /((?:[\w.-]+\/)?[\w.-]+\.[jt]s:\d+):\d+\)?$/.exec(frame)?.[1]
}

export const loadGrpc = (): typeof grpcJs => require('@grpc/grpc-js') as typeof grpcJs
/** Loads two files of etcd3 instead of its index: the rest takes as long again. They read etcd's protocol from etcd3/proto. */
export const loadEtcdPool = (): typeof etcdPool => require('etcd3/lib/connection-pool.js') as typeof etcdPool
export const loadEtcdRpc = (): typeof etcdRpc => require('etcd3/lib/rpc.js') as typeof etcdRpc
