// test-etcd.mjs - `npm run test:etcd`: runs the tests of weft's store with several versions of etcd. Debian's etcd runs
// in `npm test`.
//
// The programs are built from Go modules, once, and kept in ~/.cache/weft or $XDG_CACHE_HOME/weft.

import { existsSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { build, cached } from './cluster-programs.mjs'
import { runAloud } from './progress.mjs'
import { undo } from './undo.mjs'

const VERSIONS = ['v3.5.35', 'v3.6.16']
/** The programs with the Go module of each. etcdutl has the commands that etcdctl 3.6 lacks. */
const MODULES = { etcd: 'server', etcdctl: 'etcdctl', etcdutl: 'etcdutl' }

/**
 * Returns the path of a folder with the programs of this version of etcd. Builds the programs that the cache lacks.
 * @param {string} version
 */
async function programs(version) {
  const folder = mkdtempSync(join(tmpdir(), 'weft-etcd-programs-'))
  undo(() => rmSync(folder, { recursive: true, force: true }))
  for (const [name, part] of Object.entries(MODULES)) {
    const set = { module: `go.etcd.io/etcd/${part}/v3`, version, programs: { [name]: '.' }, seconds: 90 }
    if (!existsSync(cached(name, set))) {
      process.stderr.write(`${name} ${version} is built from its Go module\n`)
      await build(set, [name])
    }
    symlinkSync(cached(name, set), join(folder, name))
  }
  return folder
}

const words = process.argv.slice(2)
try {
  for (const version of VERSIONS) {
    const folder = await programs(version)
    process.stderr.write(`the tests of the store with etcd ${version}\n`)
    const env = { ...process.env, PATH: `${folder}:${process.env.PATH}` }
    const args = ['run', ...(words.length > 0 ? words : ['test/store'])]
    const code = await runAloud('vitest', args, { stdout: process.stdout, env })
    if (code !== 0) {
      process.exitCode = 1
      break
    }
  }
} catch (error) {
  process.stderr.write(`etcd cannot be built: ${error.message}; the build needs Go 1.24 or later\n`)
  process.exitCode = 1
}
