// compile.mjs - compiles C++ sources into object files, as many at a time as the machine has processors.

import { mkdirSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join, relative } from 'node:path'
import { runAloud } from './progress.mjs'

/** Runs a program and copies its output to this process's output. Throws if the program fails. */
export async function mustRun([file, ...words], cwd) {
  const end = await runAloud(file, words, { cwd }).catch((error) => error.message)
  if (end === 0) return
  throw new Error(`${[file, ...words].join(' ')} failed${typeof end === 'string' ? `: ${end}` : ''}`)
}

/**
 * Compiles each source, and returns the paths of the object files in the order of the sources. Throws if a source does
 * not compile.
 * @param {{ command: readonly string[], sources: readonly string[], folder: string, cwd: string }} what `command` is the compiler with its
 *   flags. `folder` receives the object files. The sources are paths relative to `cwd`.
 */
export async function compileAll({ command, sources, folder, cwd }) {
  mkdirSync(folder, { recursive: true })
  const objects = sources.map((source) => join(folder, `${source.replaceAll('/', '-')}.o`))
  const queue = [...sources.keys()]
  const compileNext = async () => {
    for (let index = queue.shift(); index !== undefined; index = queue.shift())
      await mustRun([...command, '-c', sources[index], '-o', relative(cwd, objects[index])], cwd).catch((error) => {
        queue.length = 0 // compile nothing more
        throw error
      })
  }
  const ends = await Promise.allSettled(Array.from({ length: availableParallelism() }, compileNext))
  const failed = ends.find(({ status }) => status === 'rejected')
  if (failed) throw failed.reason
  return objects
}
