// prepack.mjs - runs at `npm pack`: builds the contents of the npm package, and compiles the addon for this machine's
// architecture into prebuilds/.
//
// The package also gets the addons of other architectures that are already in prebuilds/. All output of this script
// goes to stderr, because npm prints only the package's file name to stdout.

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

/** Removes from dist/ the compiled files whose source file was deleted, because tsc does not remove them. */
function removeStale() {
  const compiled = join(root, 'dist/src')
  for (const path of readdirSync(compiled, { recursive: true })) {
    const isStale = path.endsWith('.js') && !existsSync(join(root, 'src', path.replace(/js$/, 'ts')))
    if (isStale) rmSync(join(compiled, path))
  }
}

/**
 * Compiles the addon in a copy of the project, because prebuildify empties build/, where a running weftd may use the
 * addon.
 */
function prebuild() {
  const copy = mkdtempSync(join(root, 'build/prebuild-')) // on the same file system, because the addon is renamed
  try {
    for (const name of ['binding.gyp', 'native', 'package.json'])
      cpSync(join(root, name), join(copy, name), { recursive: true })
    symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
    // One compiled addon works with all versions of Node.js (Node-API), but only with glibc. Tag the addon `glibc`, so
    // that systems with another C library compile an addon of their own.
    const target = ['--napi', '--tag-libc', '--strip', `--target=${process.versions.node}`]
    // Use the C++ headers that were installed with Node.js, because node-gyp would otherwise download the same headers
    // (as in setup.mjs).
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
