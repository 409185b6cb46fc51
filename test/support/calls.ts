// calls.ts - counts how often a daemon ran a program: that is an event which shows that it looked at something, found nothing
// to do, and is done with it when it asks the next time.

import { execFileSync } from 'node:child_process'
import { appendFileSync, chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Lab } from '../../lab/lab.ts'
import { eventually } from './event.ts'

export interface Calls {
  /** The environment of the daemon whose calls are to be counted. */
  readonly env: { readonly PATH: string }
  /** The arguments of every call until now. */
  readonly seen: () => string[]
  /** Resolves when there are so many more calls than now, of those whose arguments match. */
  more(count: number, pattern?: RegExp): Promise<void>
}

/** Puts a program that notes each call in front of the one of this name; `label` tells two daemons' apart. */
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
