// assets.ts - loads the files of the package: its version, the native addon, the status page, and packages that are
// needed only sometimes.
//
// No other module of weft loads a file by a path relative to the program, so a bundler has to replace only assets.ts.
// CommonJS packages are loaded by require, because Node 20 parses all files of an imported package for its export
// names, which takes a seventh of weftd's start time.

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

/**
 * Returns the top folder of the package, whether this module runs from src/base/ or from dist/src/base/. Returns the
 * root folder `/` if no package.json is found.
 */
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

/** Returns the path of the program that contains Node.js: `node`, or weft's executable. */
export const runtime = (): string => process.execPath

/**
 * Loads the native addon: the prebuilt addon of the package if there is one, otherwise the addon that was built on this
 * host. Throws the Error of the failed load.
 */
export const loadAddon = (): typeof Addon =>
  (require('node-gyp-build') as (folder: string) => typeof Addon)(packageRoot())

/**
 * Returns the remedy for the error that the native addon cannot be loaded. A clone of the repository has the folder
 * scripts/, which builds the addon; in an installed package npm rebuilds it.
 */
export const addonRemedy = (): string =>
  existsSync(join(packageRoot(), 'scripts/setup.mjs'))
    ? 'build it with npm run setup'
    : `build it with npm rebuild -g ${manifest()?.name ?? 'weft'}, which needs make, g++ and python3`

/**
 * Reads the HTML of the status page, which scripts/build-page.mjs builds from src/report/page/. Returns undefined if
 * the page was not built.
 */
export async function pageText(): Promise<string | undefined> {
  try {
    return await readFile(fileURLToPath(new URL('../report/page/page.html', import.meta.url)), 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return undefined
  }
}

/**
 * Returns the file and line of a stack frame with the file's folder, such as `loops/peers.js:12`, because several
 * source files of weft have the same name.
 */
export function placeOf(frame: string): string | undefined {
  return /((?:[\w.-]+\/)?[\w.-]+\.[jt]s:\d+):\d+\)?$/.exec(frame)?.[1]
}

export const loadGrpc = (): typeof grpcJs => require('@grpc/grpc-js') as typeof grpcJs
/**
 * Loads the connection pool of the package etcd3. Together, this function and `loadEtcdRpc` load two files of the
 * package in half the time that the whole package would take. The two files read etcd's protocol from the folder
 * etcd3/proto.
 */
export const loadEtcdPool = (): typeof etcdPool => require('etcd3/lib/connection-pool.js') as typeof etcdPool
export const loadEtcdRpc = (): typeof etcdRpc => require('etcd3/lib/rpc.js') as typeof etcdRpc
