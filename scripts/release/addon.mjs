// addon.mjs - builds the addon of an architecture, linked so that it runs with an older C library than this machine's.

import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { nodeRelease, sysroot } from './inputs.mjs'

/** The newest version of glibc that the addon may require. Node.js requires the same; the addon is linked with a newer one. */
const GLIBC = [2, 28]

/** Reads binding.gyp. It must be plain JSON, although node-gyp allows more. */
const targetOf = (root) => JSON.parse(readFileSync(join(root, 'binding.gyp'), 'utf8')).targets[0]

/** Compiles and links the addon. Throws if it requires a newer glibc. */
export function buildAddon(root, architecture, target) {
  const { gnu } = architecture
  const system = sysroot(architecture)
  const { sources, defines, cflags, cflags_cc } = targetOf(root)
  execFileSync(
    `${gnu}-g++`,
    [
      ...cflags,
      ...cflags_cc,
      ...defines.map((each) => `-D${each}`),
      '-DNODE_GYP_MODULE_NAME=weft',
      '-fPIC',
      '-fno-rtti',
      '-pthread',
      `-ffile-prefix-map=${root}=.`,
      '-I',
      join(nodeRelease(architecture), 'include/node'),
      '-I',
      'node_modules/node-addon-api',
      // Without these paths the compiler would first search this machine's libraries.
      `--sysroot=${system}`,
      `-L${system}/lib/${gnu}`,
      `-L${system}/usr/lib/${gnu}`,
      '-shared',
      '-static-libstdc++',
      '-static-libgcc',
      '-s',
      '-Wl,--build-id=none,--exclude-libs,ALL',
      ...sources,
      'scripts/release/glibc_floor.cc',
      '-o',
      target,
    ],
    { cwd: root, stdio: ['ignore', 2, 'inherit'] },
  )
  const symbols = execFileSync('objdump', ['-T', target], { encoding: 'utf8' })
  for (const [, version = ''] of symbols.matchAll(/GLIBC_([\d.]+)/g)) {
    const [major = 0, minor = 0] = version.split('.').map(Number)
    if (major > GLIBC[0] || minor > GLIBC[1]) throw new Error(`${target} requires glibc ${version}`)
  }
}
