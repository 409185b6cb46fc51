// addon.mjs - compiles the addon for one architecture, and links it to an old C library, so that the addon also runs on
// older systems.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { nodeRelease, sysroot } from './inputs.mjs'

/** The newest version of glibc that the finished addon may require: the version that Node.js itself requires. */
const GLIBC = [2, 28]

/**
 * Reads the build target from binding.gyp, which must therefore be plain JSON, although node-gyp also accepts comments
 * and Python syntax.
 */
const targetOf = (root) => JSON.parse(readFileSync(join(root, 'binding.gyp'), 'utf8')).targets[0]

/** Compiles and links the addon, and writes it to `target`. Throws if the addon requires a newer glibc than GLIBC. */
export function buildAddon(root, architecture, target) {
  const { gnu } = architecture
  const system = sysroot(architecture)
  const { sources, defines, cflags, cflags_cc } = targetOf(root)
  const generated = mkdtempSync(join(tmpdir(), 'weft-addon-'))
  try {
    execFileSync(process.execPath, ['native/bpf/build.mjs', join(generated, 'kernel_way_object.h')], { cwd: root })
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
        '-I',
        generated,
        // Without --sysroot and -L the linker would find this machine's newer libraries first.
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
  } finally {
    rmSync(generated, { recursive: true, force: true })
  }
  const symbols = execFileSync('objdump', ['-T', target], { encoding: 'utf8' })
  for (const [, version = ''] of symbols.matchAll(/GLIBC_([\d.]+)/g)) {
    const [major = 0, minor = 0] = version.split('.').map(Number)
    if (major > GLIBC[0] || minor > GLIBC[1]) throw new Error(`${target} requires glibc ${version}`)
  }
}
