// main.ts - `npm run bench`: its command line.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'
import { packageRoot } from '../lab/lab.ts'
import { becomeRoot } from '../lab/unprivileged.ts'
import { CASES, GROUPS } from './cases.ts'
import { measure } from './measure.ts'
import { LINKS, PATH_NAMES } from './paths.ts'
import { compareTable, describeRun, markdownTable, textTable } from './report.ts'
import type { Result } from './result.ts'

const USAGE = `Usage: npm run bench -- [CASE...] [--paths A,B] [--link plain|wire] [--rounds N] [--seconds S] [--peer CMD] [--json FILE] [--markdown]
       npm run bench -- compare BEFORE.json AFTER.json

Cases: ${Object.keys(CASES).join(' ')}; or net for all, short for a few (the default)
Paths: ${PATH_NAMES.join(' ')}, and native-FEATURE for the native engine without a feature, such as native-udp-gso

  --link LINK   plain: a veth as it is; wire: one that carries only frames of at most the MTU (plain)
  --rounds N    samples of each case on each path (5)
  --seconds S   length of a throughput sample (2)
  --peer CMD    a program to measure beside them; bench/paths.ts says what it must do
  --json FILE   where the result goes (bench/results/local/DATE.json)
  --markdown    the table in Markdown
`

class UsageError extends Error {}

function positive(name: string, text: string): number {
  const value = Number(text)
  if (!Number.isInteger(value) || value < 1 || value > 1000)
    throw new UsageError(`--${name} is ${text}; give it a whole number from 1`)
  return value
}

function readResult(file: string | undefined): Result {
  if (file === undefined) throw new UsageError('compare takes two result files')
  let json: Partial<Result>
  try {
    json = JSON.parse(readFileSync(file, 'utf8')) as Partial<Result>
  } catch (error) {
    throw new UsageError(
      `${file} cannot be read as a result: ${error instanceof Error ? error.message : String(error)}`,
    )
  }
  if (json.schema !== 1) throw new UsageError(`${file} is no result of this version of the benchmark`)
  return json as Result
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      paths: { type: 'string', default: PATH_NAMES.join(',') },
      link: { type: 'string', default: 'plain' },
      rounds: { type: 'string', default: '5' },
      seconds: { type: 'string', default: '2' },
      peer: { type: 'string' },
      json: { type: 'string' },
      markdown: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  })
  if (values.help) return void process.stdout.write(USAGE)
  if (positionals[0] === 'compare') {
    return void process.stdout.write(`${compareTable(readResult(positionals[1]), readResult(positionals[2]))}\n`)
  }
  const wanted = positionals.length === 0 ? ['short'] : positionals
  const cases = [...new Set(wanted.flatMap((name) => GROUPS[name] ?? [name]))].map((name) => {
    const each = CASES[name]
    if (!each) throw new UsageError(`no such case: ${name}; there are ${Object.keys(CASES).join(', ')}`)
    return [name, each] as const
  })
  const paths = [...new Set([...values.paths.split(','), ...(values.peer === undefined ? [] : ['peer'])])]
  const link = LINKS.find((each) => each === values.link)
  if (!link) throw new UsageError(`--link is ${values.link}; it is ${LINKS.join(' or ')}`)
  const plan = {
    link,
    cases,
    paths,
    rounds: positive('rounds', values.rounds),
    seconds: positive('seconds', values.seconds),
    peer: values.peer,
  }

  await becomeRoot()
  process.on('SIGINT', () => process.exit(130)).on('SIGTERM', () => process.exit(143)) // the labs clean up on exit
  const result = await measure(plan)
  const file = values.json ?? join(packageRoot, 'bench/results/local', `${result.date.replaceAll(':', '')}.json`)
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(file, `${JSON.stringify(result, undefined, 2)}\n`)
  process.stdout.write(values.markdown ? markdownTable(result) : `\n${textTable(result)}\n\n${describeRun(result)}\n`)
  process.stderr.write(`written to ${file}\n`)
}

try {
  await main()
} catch (error) {
  // A wrong argument deserves the sentence alone.
  const mistake =
    error instanceof UsageError || error instanceof RangeError || (error instanceof TypeError && 'code' in error)
  process.stderr.write(
    `bench: ${error instanceof Error ? (mistake ? `${error.message}; see --help` : (error.stack ?? '')) : String(error)}\n`,
  )
  process.exitCode = mistake ? 2 : 1
}
