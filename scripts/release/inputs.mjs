// inputs.mjs - downloads the inputs of a release that are neither in this clone nor in its npm packages: Node.js, the C
// library to which the addons are linked, and the compiler for musl. The downloads are kept in ~/.cache/weft or $XDG_CACHE_HOME/weft, so a
// second release needs no network.

import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { dirname, isAbsolute, join, relative, resolve } from 'node:path'
import { NODE_VERSION, ZIG_INTEGRITY, ZIG_VERSION } from './architectures.mjs'

/**
 * The server with Debian's packages. It no longer has the updates of old Debian releases, so the build uses only the
 * packages of the release itself.
 */
const MIRROR = 'http://deb.debian.org/debian'
/** The oldest Debian release on which the executables run; it has glibc 2.31. */
const OLDEST = 'bullseye'

/** Ignore XDG_CACHE_HOME if it is a relative path, as the XDG Base Directory Specification requires. */
const { XDG_CACHE_HOME = '' } = process.env
const cache = join(isAbsolute(XDG_CACHE_HOME) ? XDG_CACHE_HOME : join(homedir(), '.cache'), 'weft')

/** Removes from the cache the unfinished folders of release builds that were killed. */
function removeUnfinished() {
  for (const name of readdirSync(cache)) {
    const pid = /^new-(\d+)-/.exec(name)?.[1]
    if (pid && !existsSync(`/proc/${pid}`)) rmSync(join(cache, name), { recursive: true, force: true })
  }
}

/**
 * Returns the path of a folder in the cache. If the folder does not exist, `make` fills a temporary folder, which is
 * then renamed, so that an incomplete folder is never used.
 */
export function made(name, make) {
  const folder = join(cache, name)
  if (existsSync(folder)) return folder
  mkdirSync(cache, { recursive: true })
  removeUnfinished()
  const work = mkdtempSync(join(cache, `new-${process.pid}-`))
  try {
    make(work)
    chmodSync(work, 0o755) // the folder may become the root of a container
    renameSync(work, folder)
  } catch (error) {
    if (!existsSync(folder)) throw error // otherwise a simultaneous run has made the folder
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
  return folder
}

/**
 * Returns the folder of Node.js for an architecture, with bin/node, include/node and LICENSE. Downloads Node.js if
 * necessary. Throws if the checksum of the npm package differs from `integrity`.
 */
export function nodeRelease({ name, integrity }) {
  return made(`node-${NODE_VERSION}-${name}`, (folder) => {
    const pack = ['pack', '--loglevel=error', `node-linux-${name}@${NODE_VERSION}`, '--pack-destination', folder]
    const archive = join(folder, execFileSync('npm', pack, { encoding: 'utf8', stdio: ['ignore', 'pipe', 2] }).trim())
    const found = createHash('sha512').update(readFileSync(archive)).digest('base64')
    if (found !== integrity) throw new Error(`node-linux-${name}@${NODE_VERSION} has another checksum: sha512-${found}`)
    execFileSync('tar', ['-xzf', archive, '-C', folder, '--strip-components=1'])
    rmSync(archive)
  })
}

/**
 * Returns the command that runs zig, whose compiler has musl and LLVM's C++ library for every architecture. Downloads
 * zig's Python package for amd64 if necessary. pip fails if the checksum of the package differs from ZIG_INTEGRITY.
 */
export function zig() {
  const folder = made(`zig-${ZIG_VERSION}`, (work) => {
    const wanted = join(work, 'requirements.txt')
    writeFileSync(wanted, `ziglang==${ZIG_VERSION} --hash=sha256:${ZIG_INTEGRITY}\n`)
    const words = ['-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:', '--require-hashes']
    execFileSync('python3', [...words, '--dest', work, '--requirement', wanted], { stdio: ['ignore', 2, 'inherit'] })
    const wheel = join(work, readdirSync(work).find((name) => name.endsWith('.whl')) ?? '')
    execFileSync('python3', ['-m', 'zipfile', '-e', wheel, work])
    rmSync(wheel)
    chmodSync(join(work, 'ziglang/zig'), 0o755)
  })
  // zig compiles musl and the C++ library once, and keeps the results in this folder.
  const compiled = join(cache, `zig-${ZIG_VERSION}-cache`)
  const places = ['GLOBAL', 'LOCAL'].map((kind) => `ZIG_${kind}_CACHE_DIR=${compiled}`)
  return ['env', ...places, join(folder, 'ziglang/zig')]
}

/**
 * Matches the suite of Debian's security updates in apt sources of either format (sources.list(5)), such as
 * `deb [OPTIONS] URI trixie-security main`, but not such words in a URI or in a line of source packages.
 */
const SECURITY_SUITE = /^(?:deb\s+(?:\[.*?\]\s+)?\S+|Suites:.*)\s\S+-security(?:\s|$)/m

/**
 * Returns the apt sources of the packages in weft's images. `files` is empty for Debian's own servers, else it has the
 * path in WEFT_DEBIAN_SOURCES. `suffix` separates the packages of different sources in the cache. `isSecure` is false
 * if the sources have no line for Debian's security updates. Throws an error if the file cannot be read.
 */
export function debianSources() {
  const file = process.env.WEFT_DEBIAN_SOURCES
  if (!file) return { files: [], suffix: '', isSecure: true }
  let text
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    throw new Error(`WEFT_DEBIAN_SOURCES must name a file with apt sources: ${error.message}`, { cause: error })
  }
  const suffix = `-${createHash('sha256').update(text).digest('hex').slice(0, 12)}`
  return { files: [resolve(file)], suffix, isSecure: SECURITY_SUITE.test(text) }
}

/**
 * Runs mmdebstrap. If it fails, throws an error with its error lines, in which apt names each file that it could not
 * download.
 */
export function mmdebstrap(...words) {
  const { status, stderr, error } = spawnSync('mmdebstrap', words, {
    encoding: 'utf8',
    stdio: ['ignore', 2, 'pipe'],
    maxBuffer: 2 ** 26,
  })
  if (error) throw error
  if (status === 0) return
  const lines = stderr.split('\n').filter((line) => line.startsWith('E: '))
  throw new Error(lines.length > 0 ? lines.join('\n') : `mmdebstrap failed: ${stderr.trim()}`)
}

/**
 * Makes absolute symbolic links relative, because absolute links would lead to files of this machine instead of files
 * in the folder.
 */
function relinkAll(root, folder) {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name)
    const stat = lstatSync(path)
    if (stat.isDirectory()) relinkAll(root, path)
    if (!stat.isSymbolicLink() || !readlinkSync(path).startsWith('/')) continue
    const target = relative(dirname(path), join(root, readlinkSync(path)))
    rmSync(path)
    symlinkSync(target, path)
  }
}

/**
 * Returns a folder with the C headers and libraries of the Debian release OLDEST, for the linker and for the emulator
 * that runs programs of other architectures. Returns undefined if the architecture's addon is linked to the C library
 * of the cross compiler.
 * @param {import('./architectures.mjs').Architecture} architecture
 */
export function sysroot({ debian, integrity }) {
  if (integrity === undefined) return undefined
  return made(`${OLDEST}-${debian}`, (folder) => {
    const include = '--include=libc6-dev,libstdc++6,libgcc-s1'
    mmdebstrap('--variant=extract', `--arch=${debian}`, include, OLDEST, folder, MIRROR)
    for (const name of ['lib', 'lib64', 'usr/lib'])
      if (existsSync(join(folder, name))) relinkAll(folder, join(folder, name))
  })
}
