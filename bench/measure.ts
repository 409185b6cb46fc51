// measure.ts - measures every case on every path, interleaved.
//
// All paths are up all the time and one works at a time. Round by round each case visits all paths before the next
// case, in an order that turns with the round: drift of a shared machine then falls on all alike.

import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { cpus, release, totalmem } from 'node:os'
import { packageRoot } from '../lab/lab.ts'
import type { Case } from './cases.ts'
import { openPath, type Path, type PathOptions } from './paths.ts'
import type { Machine, Part, Result, Series } from './result.ts'

function machine(): Machine {
  return {
    kernel: release(),
    cpu: cpus()[0]?.model.trim() ?? 'unknown CPU',
    cores: cpus().length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    node: process.versions.node,
    congestionControl: readFileSync('/proc/sys/net/ipv4/tcp_congestion_control', 'utf8').trim(),
  }
}

/** The commit, with `+` when files differ from it; `unknown` outside of a repository. */
function commit(): string {
  try {
    const git = (...args: string[]): string =>
      execFileSync('git', args, { cwd: packageRoot, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()
    return `${git('rev-parse', '--short', 'HEAD')}${git('status', '--porcelain', '--untracked-files=no') === '' ? '' : '+'}`
  } catch {
    return 'unknown'
  }
}

/** What a result says beside its parts. */
export const circumstances = (): Omit<Result, 'parts'> => ({
  schema: 2,
  date: new Date().toISOString(),
  commit: commit(),
  machine: machine(),
})

const BAR_CELLS = 20

/** How far a part is: a bar that is written over on a terminal, a line for each round elsewhere. */
function createProgress(part: string, rounds: number, samples: number) {
  const start = performance.now()
  let taken = 0
  return {
    show(text: string): void {
      if (!process.stderr.isTTY) return
      const share = taken / samples
      const full = Math.round(share * BAR_CELLS)
      const left =
        taken === 0 ? '' : `, ${Math.ceil(((performance.now() - start) / 60_000) * (1 / share - 1))} min left`
      const bar = '#'.repeat(full) + '.'.repeat(BAR_CELLS - full)
      process.stderr.write(`\r\u001B[K${part} [${bar}] ${Math.round(share * 100)}%${left}: ${text}`)
    },
    sampled: () => void taken++,
    round(number: number): void {
      if (!process.stderr.isTTY) process.stderr.write(`${part}: round ${number} of ${rounds} is done\n`)
    },
    end(): void {
      if (process.stderr.isTTY) process.stderr.write('\r\u001B[K')
    },
  }
}

export interface Plan extends PathOptions {
  /** Of the part. */
  readonly name: string
  /** By name. */
  readonly cases: readonly (readonly [string, Case])[]
  readonly paths: readonly string[]
  readonly rounds: number
  /** Length of a throughput sample. */
  readonly seconds: number
}

/** Seconds that a plan will take, about; a path takes one to come up. */
export function estimate({ cases, paths, rounds, seconds }: Plan): number {
  const round = cases.reduce((sum, [, each]) => sum + each.lasts(seconds) + 0.1, 0)
  return paths.length * (1 + rounds * round)
}

/** Runs a plan from the labs to its part of the result. Everything it made is gone when it returns or throws. */
export async function measure({ name: part, cases, paths: names, rounds, seconds, ...options }: Plan): Promise<Part> {
  const open: Path[] = []
  const values = new Map<string, number[]>()
  const key = (...words: string[]): string => words.join(' ')
  const progress = createProgress(part, rounds, rounds * cases.length * names.length)
  try {
    for (const name of names) {
      progress.show(`setting up ${name}`)
      open.push(await openPath(name, options))
    }
    for (let round = 0; round < rounds; round++) {
      const first = round % open.length
      for (const [name, each] of cases) {
        for (const path of [...open.slice(first), ...open.slice(0, first)]) {
          progress.show(`${name} by ${path.name}`)
          const sample = await each.sample(path, seconds)
          progress.sampled()
          for (const [metric, value] of Object.entries(sample)) {
            const series = key(name, metric, path.name)
            values.set(series, [...(values.get(series) ?? []), value])
          }
        }
      }
      progress.round(round + 1)
    }
  } finally {
    progress.end()
    for (const path of open) await path.close()
  }
  const series: Series[] = cases.flatMap(([name, { metrics }]) =>
    Object.entries(metrics).map(([metric, about]) => ({
      case: name,
      metric,
      ...about,
      values: Object.fromEntries(names.map((path) => [path, values.get(key(name, metric, path)) ?? []])),
    })),
  )
  const method = Object.fromEntries(cases.map(([name, each]) => [name, each.method]))
  return { name: part, link: options.link, ends: options.ends, rounds, seconds, method, series }
}
