// addon.mjs - compiles the addon for one architecture, and links it to an old C library, so that the addon also runs on
// older systems.

import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { compileAll, mustRun } from '../compile.mjs'
import { ARCHITECTURES } from './architectures.mjs'
import { nodeRelease, sysroot } from './inputs.mjs'

/**
 * Reads the build target from binding.gyp, which must therefore be plain JSON, although node-gyp also accepts comments
 * and Python syntax.
 */
const targetOf = (root) => JSON.parse(readFileSync(join(root, 'binding.gyp'), 'utf8')).targets[0]

/** Matches the shared libraries that the addon may require: those of glibc, which every system has. */
const OF_GLIBC = /^(?:lib(?:c|m|dl|pthread)\.so\.\d|ld[\w-]*\.so\.\d)$/

/**
 * Compiles and links the addon, and writes it to `target`. Throws if the addon requires another shared library or a
 * newer glibc.
 */
export async function buildAddon(root, architecture, target) {
  const { gnu, glibc } = architecture
  const system = sysroot(architecture)
  // Without --sysroot and -L the linker would find the compiler's newer libraries first.
  const libraries = system ? [`--sysroot=${system}`, `-L${system}/lib/${gnu}`, `-L${system}/usr/lib/${gnu}`] : []
  const { sources, defines, cflags, cflags_cc } = targetOf(root)
  // The header with the eBPF programs, which clang compiles (native/bpf/build.mjs).
  const generated = join(dirname(target), 'generated')
  mkdirSync(generated, { recursive: true })
  await mustRun([process.execPath, 'native/bpf/build.mjs', join(generated, 'kernel_way_object.h')], root)
  const compiler = [
    `${gnu}-g++`,
    ...cflags,
    ...cflags_cc,
    ...defines.map((each) => `-D${each}`),
    '-DNODE_GYP_MODULE_NAME=weft',
    '-fPIC',
    '-fno-rtti',
    '-pthread',
    `-ffile-prefix-map=${root}=.`,
    '-I',
    // The headers of Node.js are the same on every architecture.
    join(nodeRelease(ARCHITECTURES[0]), 'include/node'),
    '-I',
    'node_modules/node-addon-api',
    '-I',
    generated,
    ...libraries,
  ]
  const objects = await compileAll({
    command: compiler,
    sources: [...sources, 'scripts/release/glibc_floor.cc'],
    folder: join(dirname(target), 'objects'),
    cwd: root,
  })
  const linker = ['-shared', '-static-libstdc++', '-static-libgcc', '-s', '-Wl,--build-id=none,--exclude-libs,ALL']
  // On riscv64 GCC calls functions of libatomic for atomic accesses to bytes. The images do not have the shared library
  // libatomic.so.1.
  await mustRun([...compiler, ...linker, ...objects, '-l:libatomic.a', '-o', target], root)
  const needed = execFileSync(`${gnu}-objdump`, ['-p', target], { encoding: 'utf8' })
  for (const [, library] of needed.matchAll(/^ +NEEDED +(\S+)$/gm))
    if (!OF_GLIBC.test(library)) throw new Error(`${target} requires ${library}, which is not a library of glibc`)
  const symbols = execFileSync('objdump', ['-T', target], { encoding: 'utf8' })
  for (const [, version = ''] of symbols.matchAll(/GLIBC_([\d.]+)/g)) {
    const [major = 0, minor = 0] = version.split('.').map(Number)
    if (major > glibc[0] || minor > glibc[1]) throw new Error(`${target} requires glibc ${version}`)
  }
}
