// assets.ts - loads the files of the package: its version, the native addon, the status page, and packages that are needed only sometimes.
//
// No other file uses paths relative to the program, so a bundler only has to replace this one. CommonJS packages are loaded by require,
// because Node 20 parses all files of an imported one for its export names, which takes a seventh of weftd's start.

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

/** Returns the top folder of the package, from src/ and from dist/src/; the root folder if there is no package.json. */
function packageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(folder, 'package.json')) && folder !== dirname(folder)) folder = dirname(folder)
  return folder
}

function manifest(): { readonly name: string; readonly version: string } | undefined {
  try {
    return JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as { name: string; version: string }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return undefined
  }
}

export const version = (): string => manifest()?.version ?? 'unknown'

/** Loads the prebuilt addon of the package, or else the one that was built here. Throws the Error of the failure. */
export const loadAddon = (): typeof Addon =>
  (require('node-gyp-build') as (folder: string) => typeof Addon)(packageRoot())

/** Returns the remedy if the addon cannot be loaded. A clone of the repository has scripts/, an installed package does not. */
export const addonRemedy = (): string =>
  existsSync(join(packageRoot(), 'scripts/setup.mjs'))
    ? 'build it with npm run setup'
    : `build it with npm rebuild -g ${manifest()?.name ?? 'weft'}, which needs make, g++ and python3`

/** Reads the status page, which scripts/build-page.mjs builds from src/report/page/; undefined if it was not built. */
export async function pageText(): Promise<string | undefined> {
  try {
    return await readFile(fileURLToPath(new URL('../report/page/page.html', import.meta.url)), 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return undefined
  }
}

/** Returns the place that a stack frame names, such as `loops/peers.js:12`. The folder is included, because file names are not unique. */
export function placeOf(frame: string): string | undefined {
  return /((?:[\w.-]+\/)?[\w.-]+\.[jt]s:\d+):\d+\)?$/.exec(frame)?.[1]
}

export const loadGrpc = (): typeof grpcJs => require('@grpc/grpc-js') as typeof grpcJs
/** Loads two files of etcd3 instead of its index, which takes half the time. The two read etcd's protocol from etcd3/proto. */
export const loadEtcdPool = (): typeof etcdPool => require('etcd3/lib/connection-pool.js') as typeof etcdPool
export const loadEtcdRpc = (): typeof etcdRpc => require('etcd3/lib/rpc.js') as typeof etcdRpc
