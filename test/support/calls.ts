// calls.ts - counts how often a daemon ran a program. The count shows a test that the daemon has checked something,
// because the previous check is finished at the next call.

import { execFileSync } from 'node:child_process'
import { appendFileSync, chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Lab } from '../../lab/lab.ts'
import { eventually } from './event.ts'

interface Calls {
  /** The environment of the daemon whose calls are counted. */
  readonly env: { readonly PATH: string }
  /** Returns the arguments of every call so far. */
  readonly seen: () => string[]
  /** Resolves after `count` more calls whose arguments match. */
  more(count: number, pattern?: RegExp): Promise<void>
}

/** Puts a program that records each call in front of the one with this name; `label` distinguishes the records of two daemons. */
export function countCalls(lab: Lab, program: string, label = ''): Calls {
  const folder = join(lab.folder, `calls-of-${program}-${label}`)
  const [file, list] = [join(folder, program), join(folder, 'list')]
  const real = execFileSync('sh', ['-c', `command -v ${program}`], { encoding: 'utf8' }).trim()
  mkdirSync(folder)
  appendFileSync(list, '')
  writeFileSync(file, `#!/bin/sh\necho "$*" >> '${list}'\nexec '${real}' "$@"\n`)
  chmodSync(file, 0o755)
  const seen = (): string[] => readFileSync(list, 'utf8').split('\n').slice(0, -1)
  return {
    env: { PATH: `${folder}:${process.env['PATH']}` },
    seen,
    async more(count, pattern = /^/) {
      const found = (): number => seen().filter((args) => pattern.test(args)).length
      const wanted = found() + count
      await eventually(() => {
        if (found() < wanted) throw new Error(`${program} was called ${found()} times of ${wanted}`)
      })
    },
  }
}
