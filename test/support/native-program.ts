// native-program.ts - builds a program of test/native with the rooms of native/ that can be linked without Node.

import { mkdtempSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { output, PATIENCE } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'

/** The limit on a slow machine, which takes its time to compile with sanitizers and to run what comes of it. */
export const BUILD_MS = 600_000 * PATIENCE

const FLAGS = ['-std=c++20', '-Wall', '-Wextra', '-Werror', '-fno-exceptions']

/** Every source of these rooms. */
function sourcesOf(rooms: readonly string[]): string[] {
  return rooms.flatMap((room) =>
    readdirSync(join(packageRoot, 'native', room))
      .filter((name) => name.endsWith('.cc'))
      .map((name) => join(packageRoot, 'native', room, name)),
  )
}

/** The rooms that were compiled, by how. */
const compiled = new Map<string, Promise<string[]>>()

/** Their objects, compiled once for all programs that are built beside each other with the same flags: that is most of the work. */
function objectsOf(rooms: readonly string[], flags: readonly string[], beside: string): Promise<string[]> {
  const key = JSON.stringify([rooms, flags, beside])
  const known = compiled.get(key)
  if (known) return known
  const compile = async (): Promise<string[]> => {
    const sources = sourcesOf(rooms)
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

/** Builds test/native/NAME.cc as the program `to`; the folder that it is in has the objects of the rooms too. */
export async function buildNative(
  name: string,
  to: string,
  flags: readonly string[],
  rooms: readonly string[] = ['crypto', 'core', 'io'],
): Promise<void> {
  const source = join(packageRoot, 'test/native', `${name}.cc`)
  const objects = await objectsOf(rooms, flags, dirname(to))
  // What Node would bring along.
  const openssl = ['-Wl,--no-as-needed', '-l:libcrypto.so.3']
  await output(['g++', ...FLAGS, ...flags, source, ...objects, '-o', to, '-lpthread', ...openssl], {
    timeoutMs: BUILD_MS,
  })
}
