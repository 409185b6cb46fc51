// native.ts - compiles the C++ programs of the benchmark when they are first used.

import { existsSync, mkdirSync, readdirSync, renameSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { output } from '../lab/command.ts'
import { packageRoot } from '../lab/lab.ts'

const FOLDERS = ['native', 'bench/native']
const FLAGS = ['-std=c++20', '-O2', '-Wall', '-Wextra', '-fno-exceptions']

/**
 * Compiles `bench/native/NAME.cc` with the source files `sources` of native/, unless the program is newer than all
 * source files. Returns the path of the program.
 */
export async function nativeProgram(name: string, sources: readonly string[] = []): Promise<string> {
  const program = join(packageRoot, 'build/bench', name)
  const files = FOLDERS.flatMap((folder) =>
    readdirSync(join(packageRoot, folder), { recursive: true, encoding: 'utf8' }).map((file) => join(folder, file)),
  )
  const newest = Math.max(...files.map((file) => statSync(join(packageRoot, file)).mtimeMs))
  if (!existsSync(program) || statSync(program).mtimeMs < newest) {
    mkdirSync(join(packageRoot, 'build/bench'), { recursive: true })
    const built = `${program}.${process.pid}`
    const inputs = [`bench/native/${name}.cc`, ...sources.map((source) => `native/${source}.cc`)]
    await output(['g++', ...FLAGS, ...inputs.map((file) => join(packageRoot, file)), '-o', built])
    renameSync(built, program) // another run may use the old program
  }
  return program
}
