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
import type * as Addon from '../native/addon.d.ts'

const require = createRequire(import.meta.url)

/** The package's top folder, from src/ and from dist/src/ alike; the file system's where no folder has the package. */
function packageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(folder, 'package.json')) && folder !== dirname(folder)) folder = dirname(folder)
  return folder
}

/** The package's version. */
export function version(): string {
  try {
    return (JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as { version: string }).version
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return 'unknown'
  }
}

/** A prebuilt addon where the package has one, else the one built here. Throws the Error of whatever is in the way. */
export const loadAddon = (): typeof Addon =>
  (require('node-gyp-build') as (folder: string) => typeof Addon)(packageRoot())

/** Whether the program runs from a clone of the repository: an installed package has no scripts/. */
export const isClone = (): boolean => existsSync(join(packageRoot(), 'scripts/setup.mjs'))

/** The page, which scripts/build-page.mjs makes of src/page/; undefined where it was not built. */
export async function pageText(): Promise<string | undefined> {
  try {
    return await readFile(fileURLToPath(new URL('page/page.html', import.meta.url)), 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return undefined
  }
}

export const loadGrpc = (): typeof grpcJs => require('@grpc/grpc-js') as typeof grpcJs
/** Of etcd3 two files and not the index: the rest takes as long again. They read etcd's protocol from etcd3/proto. */
export const loadEtcdPool = (): typeof etcdPool => require('etcd3/lib/connection-pool.js') as typeof etcdPool
export const loadEtcdRpc = (): typeof etcdRpc => require('etcd3/lib/rpc.js') as typeof etcdRpc
