// native-program.ts - builds a program of test/native with the folders of native/ that can be linked without Node.
//
// A program is kept in build/test-native under a name derived from its sources and flags. So each program is compiled once for all test
// files, and a second run compiles only the changed programs.

import { createHash } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { output, PATIENCE } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'

/** The time limit in ms on a slow machine, for compiling with sanitizers and for running the program. */
export const BUILD_MS = 600_000 * PATIENCE

const FLAGS = ['-std=c++20', '-Wall', '-Wextra', '-Werror', '-fno-exceptions']

const FOLDERS = ['crypto', 'core', 'io'] as const

const native = join(packageRoot, 'native')

/** Returns every source of these parts below native/. A part is a folder or a source in one. */
function sourcesOf(parts: readonly string[]): string[] {
  return parts.flatMap((part) =>
    part.endsWith('.cc')
      ? [part]
      : readdirSync(join(native, part))
          .filter((name) => name.endsWith('.cc'))
          .map((name) => join(part, name)),
  )
}

/** The compiled parts, by part and flags. */
const compiled = new Map<string, Promise<string[]>>()

/**
 * Returns the objects of these parts. They are compiled once for all programs with the same flags that are built in parallel, because
 * compiling them is most of the work.
 */
function objectsOf(parts: readonly string[], flags: readonly string[], beside: string): Promise<string[]> {
  const key = JSON.stringify([parts, flags, beside])
  const known = compiled.get(key)
  if (known) return known
  const compile = async (): Promise<string[]> => {
    const sources = sourcesOf(parts).map((source) => join(native, source))
    if (sources.length === 0) return []
    const folder = mkdtempSync(join(beside, 'rooms-'))
    // The compiler writes objects into its working directory.
    await output(['sh', '-c', 'cd "$0" && exec g++ "$@"', folder, ...FLAGS, ...flags, '-c', ...sources], {
      timeoutMs: BUILD_MS,
    })
    return readdirSync(folder).map((name) => join(folder, name))
  }
  const objects = compile()
  compiled.set(key, objects)
  return objects
}

/** The libraries that Node.js would provide. */
const LIBRARIES = ['-lpthread', '-Wl,--no-as-needed', '-l:libcrypto.so.3']

async function link(name: string, to: string, flags: readonly string[], objects: readonly string[]): Promise<void> {
  const source = join(packageRoot, 'test/native', `${name}.cc`)
  await output(['g++', ...FLAGS, ...flags, source, ...objects, '-o', to, ...LIBRARIES], { timeoutMs: BUILD_MS })
}

const KEPT = join(packageRoot, 'build/test-native')

/** Returns a digest of all inputs of a program: native/, test/native/ and the compiler's version. */
let sourceDigest: Promise<string> | undefined
async function digestSources(): Promise<string> {
  const hash = createHash('sha256').update(await output(['g++', '--version']))
  for (const folder of [native, join(packageRoot, 'test/native')])
    for (const name of readdirSync(folder, { recursive: true, encoding: 'utf8' }).toSorted())
      if (/\.(cc|h)$/.test(name)) hash.update(name).update(readFileSync(join(folder, name)))
  return hash.digest('hex')
}

/**
 * Builds test/native/NAME.cc, with these parts of native/, as the program `to`. A kept program of the same sources and flags is
 * copied. Two processes may build the same program: the later one replaces it.
 */
export async function buildNative(
  name: string,
  to: string,
  flags: readonly string[],
  parts: readonly string[] = FOLDERS,
): Promise<void> {
  const sources = await (sourceDigest ??= digestSources())
  const how = createHash('sha256')
    .update(JSON.stringify([flags, parts]))
    .digest('hex')
    .slice(0, 12)
  const kept = join(KEPT, `${name}-${how}-${sources.slice(0, 16)}`)
  if (!existsSync(kept)) {
    await link(name, to, flags, await objectsOf(parts, flags, dirname(to)))
    mkdirSync(KEPT, { recursive: true })
    for (const old of readdirSync(KEPT)) if (old.startsWith(`${name}-${how}-`)) rmSync(join(KEPT, old), { force: true })
    copyFileSync(to, `${kept}.${process.pid}`)
    renameSync(`${kept}.${process.pid}`, kept)
  } else copyFileSync(kept, to)
}

/** Builds test/native/NAME.cc as the program `to` with the addon's own objects, which are already compiled. */
export async function buildOnAddon(name: string, to: string): Promise<void> {
  const built = join(packageRoot, 'build/Release')
  const { mtimeMs } = statSync(join(built, 'weft.node'), { throwIfNoEntry: false }) ?? { mtimeMs: 0 }
  const changed = readdirSync(native, { recursive: true, encoding: 'utf8' }).find(
    (file) => /\.(cc|h)$/.test(file) && statSync(join(native, file)).mtimeMs > mtimeMs,
  )
  if (changed !== undefined)
    throw new Error(`the addon is not there, or older than native/${changed}; run npm run build:native`)
  const objects = sourcesOf(FOLDERS).map((file) => join(built, 'obj.target/weft/native', file.replace(/cc$/, 'o')))
  await link(name, to, ['-O2'], objects)
}
