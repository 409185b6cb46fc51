// addon.mjs - compiles the addon for one architecture: for glibc with Debian's cross compiler, and for musl with zig.
//
// The addon for glibc is linked to an old version of glibc, so that the addon also runs on older systems.

import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { compileAll, mustRun } from '../compile.mjs'
import { ARCHITECTURES } from './architectures.mjs'
import { nodeRelease, sysroot, zig } from './inputs.mjs'

/**
 * Reads the build target from binding.gyp, which must therefore be plain JSON, although node-gyp also accepts comments
 * and Python syntax.
 */
const targetOf = (root) => JSON.parse(readFileSync(join(root, 'binding.gyp'), 'utf8')).targets[0]

/** Matches the shared libraries that the addon may require: those of glibc, which every system with glibc has. */
const OF_GLIBC = /^(?:lib(?:c|m|dl|pthread)\.so\.\d|ld[\w-]*\.so\.\d)$/
/** Matches the only shared library that the addon for musl may require. musl's dynamic linker is this library itself. */
const OF_MUSL = /^libc\.so$/
const STRIPPED = ['-s', '-Wl,--build-id=none']

/** Returns the flags with which every compiler compiles the addon. Compiles the eBPF programs into a header first. */
async function flags(root, target) {
  const { defines, cflags, cflags_cc } = targetOf(root)
  // The header with the eBPF programs, which clang compiles (native/bpf/build.mjs).
  const generated = join(dirname(target), 'generated')
  mkdirSync(generated, { recursive: true })
  await mustRun([process.execPath, 'native/bpf/build.mjs', join(generated, 'kernel_way_object.h')], root)
  return [
    ...cflags,
    ...cflags_cc,
    ...defines.map((each) => `-D${each}`),
    '-DNODE_GYP_MODULE_NAME=weft',
    '-fPIC',
    '-fno-rtti',
    '-pthread',
    `-ffile-prefix-map=${root}=.`,
    '-I',
    // The headers of Node.js are the same on every architecture and for every C library.
    join(nodeRelease(ARCHITECTURES[0]), 'include/node'),
    '-I',
    'node_modules/node-addon-api',
    '-I',
    generated,
  ]
}

/** Throws if the addon requires a shared library whose name does not match `allowed`. */
function checkLibraries(gnu, target, allowed) {
  const needed = execFileSync(`${gnu}-objdump`, ['-p', target], { encoding: 'utf8' })
  for (const [, library] of needed.matchAll(/^ +NEEDED +(\S+)$/gm))
    if (!allowed.test(library)) throw new Error(`${target} requires ${library}, which is not a part of the C library`)
}

/**
 * Compiles and links the addon for glibc, and writes it to `target`. Throws if the addon requires a shared library
 * outside glibc, or a glibc newer than the architecture's limit.
 */
export async function buildAddon(root, architecture, target) {
  const { gnu, glibc } = architecture
  const system = sysroot(architecture)
  // Without --sysroot and -L the linker would find the compiler's newer libraries first.
  const libraries = system ? [`--sysroot=${system}`, `-L${system}/lib/${gnu}`, `-L${system}/usr/lib/${gnu}`] : []
  const compiler = [`${gnu}-g++`, ...(await flags(root, target)), ...libraries]
  const objects = await compileAll({
    command: compiler,
    sources: [...targetOf(root).sources, 'scripts/release/glibc_floor.cc'],
    folder: join(dirname(target), 'objects'),
    cwd: root,
  })
  const linker = ['-shared', '-static-libstdc++', '-static-libgcc', ...STRIPPED, '-Wl,--exclude-libs,ALL']
  // On riscv64 GCC calls functions of libatomic for atomic accesses to bytes. Link the static library, because the
  // images do not have the shared library libatomic.so.1.
  await mustRun([...compiler, ...linker, ...objects, '-l:libatomic.a', '-o', target], root)
  checkLibraries(gnu, target, OF_GLIBC)
  const symbols = execFileSync('objdump', ['-T', target], { encoding: 'utf8' })
  for (const [, version = ''] of symbols.matchAll(/GLIBC_([\d.]+)/g)) {
    const [major = 0, minor = 0] = version.split('.').map(Number)
    if (major > glibc[0] || minor > glibc[1]) throw new Error(`${target} requires glibc ${version}`)
  }
}

/**
 * Compiles and links the addon for musl, the C library of Alpine, and writes it to `target`. The addon contains LLVM's
 * C++ library. Throws if the addon requires a shared library other than musl.
 */
export async function buildMuslAddon(root, { gnu, musl }, target) {
  const compiler = [
    ...zig(),
    'c++',
    '-target',
    musl,
    ...(await flags(root, target)),
    // Turn off the checks for undefined behaviour that zig compiles into programs by default.
    '-fno-sanitize=undefined',
    // Turn off this warning, because musl's macro CMSG_NXTHDR compares signed with unsigned numbers.
    '-Wno-sign-compare',
  ]
  const { sources } = targetOf(root)
  const folder = join(dirname(target), 'musl-objects')
  const objects = await compileAll({ command: compiler, sources, folder, cwd: root })
  // zig's library lacks __cpu_model, which __builtin_cpu_supports() reads on amd64. So link GCC's library too, which
  // has __cpu_model and needs no libc.
  const [libgcc = ''] = execFileSync(`${gnu}-g++`, ['-print-libgcc-file-name'], { encoding: 'utf8' }).split('\n')
  const inRoot = (path) => relative(root, path) // zig's linker cannot open a path with a comma
  await mustRun([...compiler, '-shared', ...STRIPPED, ...objects.map(inRoot), libgcc, '-o', inRoot(target)], root)
  checkLibraries(gnu, target, OF_MUSL)
}
