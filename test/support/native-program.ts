// native-program.ts - builds a program of test/native with the rooms of native/ that can be linked without Node.

import { mkdtempSync, readdirSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { output, PATIENCE } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'

/** The limit on a slow machine, which takes its time to compile with sanitizers and to run what comes of it. */
export const BUILD_MS = 600_000 * PATIENCE

const FLAGS = ['-std=c++20', '-Wall', '-Wextra', '-Werror', '-fno-exceptions']

const ROOMS = ['crypto', 'core', 'io'] as const

const native = join(packageRoot, 'native')

/** Every source of these parts, below native/: a part is a room, or a source of one. */
function sourcesOf(parts: readonly string[]): string[] {
  return parts.flatMap((part) =>
    part.endsWith('.cc')
      ? [part]
      : readdirSync(join(native, part))
          .filter((name) => name.endsWith('.cc'))
          .map((name) => join(part, name)),
  )
}

/** The parts that were compiled, by how. */
const compiled = new Map<string, Promise<string[]>>()

/** Their objects, compiled once for all programs that are built beside each other with the same flags: that is most of the work. */
function objectsOf(parts: readonly string[], flags: readonly string[], beside: string): Promise<string[]> {
  const key = JSON.stringify([parts, flags, beside])
  const known = compiled.get(key)
  if (known) return known
  const compile = async (): Promise<string[]> => {
    const sources = sourcesOf(parts).map((source) => join(native, source))
    if (sources.length === 0) return []
    const folder = mkdtempSync(join(beside, 'rooms-'))
    // They go where it is run.
    await output(['sh', '-c', 'cd "$0" && exec g++ "$@"', folder, ...FLAGS, ...flags, '-c', ...sources], {
      timeoutMs: BUILD_MS,
    })
    return readdirSync(folder).map((name) => join(folder, name))
  }
  const objects = compile()
  compiled.set(key, objects)
  return objects
}

/** What Node would bring along. */
const LIBRARIES = ['-lpthread', '-Wl,--no-as-needed', '-l:libcrypto.so.3']

async function link(name: string, to: string, flags: readonly string[], objects: readonly string[]): Promise<void> {
  const source = join(packageRoot, 'test/native', `${name}.cc`)
  await output(['g++', ...FLAGS, ...flags, source, ...objects, '-o', to, ...LIBRARIES], { timeoutMs: BUILD_MS })
}

/** Builds test/native/NAME.cc as the program `to`; the folder that it is in has the objects of the parts of native/ too. */
export async function buildNative(
  name: string,
  to: string,
  flags: readonly string[],
  parts: readonly string[] = ROOMS,
): Promise<void> {
  await link(name, to, flags, await objectsOf(parts, flags, dirname(to)))
}

/** Builds test/native/NAME.cc as the program `to` on the objects of the addon: what is shipped, and nothing to compile again. */
export async function buildOnAddon(name: string, to: string): Promise<void> {
  const built = join(packageRoot, 'build/Release')
  const { mtimeMs } = statSync(join(built, 'weft.node'), { throwIfNoEntry: false }) ?? { mtimeMs: 0 }
  const changed = readdirSync(native, { recursive: true, encoding: 'utf8' }).find(
    (file) => /\.(cc|h)$/.test(file) && statSync(join(native, file)).mtimeMs > mtimeMs,
  )
  if (changed !== undefined)
    throw new Error(`the addon is not there, or older than native/${changed}; run npm run build:native`)
  const objects = sourcesOf(ROOMS).map((file) => join(built, 'obj.target/weft/native', file.replace(/cc$/, 'o')))
  await link(name, to, ['-O2'], objects)
}
