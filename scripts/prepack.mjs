// prepack.mjs - `npm pack` runs it: builds what the package holds, and prebuilds the addon for this machine's architecture.
//
// A prebuilt addon of another architecture that stands in prebuilds/ already is packed too. All output goes to stderr:
// stdout is npm's, whose last line there is the package's name.

import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

function run(script, args, env = {}) {
  const stdio = ['ignore', 2, 'inherit']
  const { status } = spawnSync(process.execPath, [script, ...args], {
    cwd: root,
    stdio,
    env: { ...process.env, ...env },
  })
  if (status !== 0) throw new Error(`${script} failed`)
}

/** What was compiled from a source that is no longer there: tsc leaves it. */
function removeStale() {
  const compiled = join(root, 'dist/src')
  for (const path of readdirSync(compiled, { recursive: true })) {
    const isStale = path.endsWith('.js') && !existsSync(join(root, 'src', path.replace(/js$/, 'ts')))
    if (isStale) rmSync(join(compiled, path))
  }
}

/** Builds on a copy: prebuildify begins with an empty build/, and a daemon may run on the one that is there. */
function prebuild() {
  const copy = mkdtempSync(join(root, 'build/prebuild-')) // on the same file system, since the addon is renamed
  try {
    for (const name of ['binding.gyp', 'native', 'package.json'])
      cpSync(join(root, name), join(copy, name), { recursive: true })
    symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
    // Node-API is the same for every Node.js, the C library is not: elsewhere than on glibc the addon is built from source.
    const target = ['--napi', '--tag-libc', '--strip', `--target=${process.versions.node}`]
    // As in setup.mjs: node-gyp would download the headers that are beside the program.
    const prefix = dirname(dirname(process.execPath))
    const hasHeaders = existsSync(join(prefix, 'include/node/node_api.h'))
    run(join(root, 'node_modules/prebuildify/bin.js'), [...target, `--cwd=${copy}`, `--out=${root}`], {
      npm_config_jobs: 'max',
      ...(hasHeaders ? { npm_config_nodedir: prefix } : {}),
    })
  } finally {
    rmSync(copy, { recursive: true, force: true })
  }
}

run(join(root, 'scripts/setup.mjs'), ['build'])
removeStale()
prebuild()
