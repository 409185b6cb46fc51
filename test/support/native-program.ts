// native-program.ts - builds a program of test/native with the rooms of native/ that can be linked without Node.

import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { output, PATIENCE } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'

/** For a slow machine, which takes its time to compile with sanitizers and to run what comes of it. */
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

/** Builds test/native/NAME.cc as the program `to`. */
export async function buildNative(
  name: string,
  to: string,
  flags: readonly string[],
  rooms: readonly string[] = ['core', 'io'],
): Promise<void> {
  const source = join(packageRoot, 'test/native', `${name}.cc`)
  await output(['g++', ...FLAGS, ...flags, source, ...sourcesOf(rooms), '-o', to, '-lpthread'], { timeoutMs: BUILD_MS })
}
