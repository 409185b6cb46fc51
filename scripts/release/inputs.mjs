// inputs.mjs - downloads the inputs of a release that are neither in this clone nor in its npm packages: Node.js, and
// the C library to which the addons are linked. The downloads are kept in ~/.cache/weft or $XDG_CACHE_HOME/weft, so a
// second release needs no network.

import { execFileSync } from 'node:child_process'
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
} from 'node:fs'
import { homedir } from 'node:os'
import { dirname, isAbsolute, join, relative } from 'node:path'

/** The version of Node.js in weft's executables. The script takes Node.js from packages of the npm registry. */
export const NODE_VERSION = '24.21.0'

/**
 * An architecture of a release: its name in Node.js (`name`), in Debian (`debian`) and in the compiler (`gnu`), the
 * emulator that runs its programs (`qemu`), and npm's checksum of the Node.js package (`integrity`).
 * @typedef {{ name: string, debian: string, gnu: string, qemu?: string, integrity: string }} Architecture
 * @type {readonly Architecture[]}
 */
export const ARCHITECTURES = [
  {
    name: 'x64',
    debian: 'amd64',
    gnu: 'x86_64-linux-gnu',
    integrity: '3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==',
  },
  {
    name: 'arm64',
    debian: 'arm64',
    gnu: 'aarch64-linux-gnu',
    qemu: 'qemu-aarch64-static',
    integrity: 'FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g==',
  },
]

/** The oldest Debian release on which the addon must run. It has glibc 2.31; Node.js itself needs only 2.28. */
const DEBIAN = 'bullseye'
/**
 * Debian's mirrors have deleted the updates of the release DEBIAN, so only the packages of the release itself are used.
 */
const MIRROR = 'http://deb.debian.org/debian'

/** Ignore XDG_CACHE_HOME if it is a relative path, as the XDG Base Directory Specification requires. */
const { XDG_CACHE_HOME = '' } = process.env
const cache = join(isAbsolute(XDG_CACHE_HOME) ? XDG_CACHE_HOME : join(homedir(), '.cache'), 'weft')

/** Removes from the cache the unfinished folders of runs that were killed. */
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
 * Returns a folder with C headers and libraries of the Debian release DEBIAN, for the linker and for the emulator that
 * runs programs of other architectures.
 */
export function sysroot({ debian }) {
  return made(`${DEBIAN}-${debian}`, (folder) => {
    const include = '--include=libc6-dev,libstdc++6,libgcc-s1'
    execFileSync('mmdebstrap', ['--quiet', '--variant=extract', `--arch=${debian}`, include, DEBIAN, folder, MIRROR], {
      stdio: ['ignore', 2, 'inherit'],
    })
    for (const name of ['lib', 'lib64', 'usr/lib'])
      if (existsSync(join(folder, name))) relinkAll(folder, join(folder, name))
  })
}
