// measure.ts - takes each measurement (case) of a benchmark on each data path, and alternates between the data paths.
//
// All paths exist during the whole run, and only one path carries traffic at a time. In each round a case is measured
// on all paths before the next case begins, and each round begins with another path. So if a shared machine becomes
// slower during the run, all paths are affected alike.

import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { cpus, release, totalmem } from 'node:os'
import { packageRoot } from '../lab/lab.ts'
import type { Progress } from '../scripts/progress.mjs'
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

/**
 * Returns the current git commit, with `+` if files have uncommitted changes, or `unknown` outside a git repository.
 */
function commit(): string {
  try {
    const git = (...args: string[]): string =>
      execFileSync('git', args, { cwd: packageRoot, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()
    return `${git('rev-parse', '--short', 'HEAD')}${git('status', '--porcelain', '--untracked-files=no') === '' ? '' : '+'}`
  } catch {
    return 'unknown'
  }
}

export const circumstances = (): Omit<Result, 'parts'> => ({
  schema: 2,
  date: new Date().toISOString(),
  commit: commit(),
  machine: machine(),
})

export interface Plan extends PathOptions {
  readonly name: string
  readonly cases: readonly (readonly [string, Case])[]
  readonly paths: readonly string[]
  readonly rounds: number
  readonly seconds: number
  readonly references?: readonly string[] | undefined
}

const SETUP_SECONDS = 1
const secondsOf = (each: Case, seconds: number): number => each.lasts(seconds) + 0.1

/** Returns the approximate duration of a benchmark plan, in seconds. */
export function estimate({ cases, paths, rounds, seconds }: Plan): number {
  const round = cases.reduce((sum, [, each]) => sum + secondsOf(each, seconds), 0)
  return paths.length * (SETUP_SECONDS + rounds * round)
}

/**
 * Measures all cases of a plan and returns the results as one part of the result file. Removes all simulated hosts
 * before it returns or throws.
 */
export async function measure(plan: Plan, progress: Progress): Promise<Part> {
  const { name: part, cases, paths: names, rounds, seconds, references, ...options } = plan
  const open: Path[] = []
  const payloadBytes: Record<string, number> = {}
  const values = new Map<string, number[]>()
  const key = (...words: string[]): string => words.join(' ')
  try {
    for (const name of names) {
      progress.now(`${part}: setting up ${name}`, SETUP_SECONDS)
      const path = await openPath(name, options)
      open.push(path)
      if (path.payloadBytes !== undefined) payloadBytes[name] = path.payloadBytes
    }
    for (let round = 0; round < rounds; round++) {
      const first = round % open.length
      for (const [name, each] of cases) {
        for (const path of [...open.slice(first), ...open.slice(0, first)]) {
          progress.now(`${part}: ${name} by ${path.name}`, secondsOf(each, seconds))
          const sample = await each.sample(path, seconds)
          for (const [metric, value] of Object.entries(sample)) {
            const series = key(name, metric, path.name)
            values.set(series, [...(values.get(series) ?? []), value])
          }
        }
      }
      progress.plain(`${part}: round ${round + 1} of ${rounds} is done`)
    }
  } finally {
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
  return {
    name: part,
    link: options.link,
    ends: options.ends,
    rounds,
    seconds,
    ...(references ? { references, payloadBytes } : {}),
    method,
    series,
  }
}
