// main.ts - reads the command line of `npm run bench` and runs the requested benchmarks.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'
import { packageRoot } from '../lab/lab.ts'
import { becomeRoot } from '../lab/unprivileged.ts'
import { createProgress, type Progress } from '../scripts/progress.mjs'
import { describeError, isWeftError, messageOf, WeftError } from '../src/base/errors.ts'
import {
  BETWEEN_BACKENDS,
  BETWEEN_ENCRYPTED,
  BETWEEN_CONTAINERS,
  BETWEEN_FAMILIES,
  CASES,
  SHORT,
  SUITE,
  BETWEEN_FEATURES,
} from './cases.ts'
import { FAMILIES_SECONDS_A_ROUND, measureFamilies } from './families.ts'
import { figureBlocks, fillFigures, resultChart } from './figures.ts'
import { JUNK_SECONDS_A_ROUND, measureJunk } from './junk.ts'
import { KUBE_SECONDS_A_ROUND, measureKube } from './kube/scale.ts'
import { LEASES_SECONDS, measureLeases } from './leases.ts'
import { circumstances, estimate, measure, type Plan } from './measure.ts'
import { measureMicro, MICRO_SECONDS } from './micro.ts'
import {
  BACKEND_PATH_NAMES,
  BY_BACKEND,
  BY_FAMILY,
  ENDS,
  FEATURE_PATH_NAMES,
  LINKS,
  OLD_PATH_NAME,
  PATH_NAMES,
} from './paths.ts'
import { compareTable, textTable } from './report.ts'
import { measureRestarts, RESTARTS_SECONDS_A_ROUND } from './restarts.ts'
import type { Part, Result } from './result.ts'
import { measureWireguardPeers, WIREGUARD_PEERS_SECONDS_A_ROUND } from './wireguard-peers.ts'

const USAGE = `Usage: npm run bench -- [net] [CASE...] [--paths A,B] [--link plain|wire|shaped|both] [--ends hosts|containers] [--rounds N] [--seconds S] [--peer CMD] [--old FOLDER]
       npm run bench -- leases          from a change in a real etcd to the first packet
       npm run bench -- families        IPv4 alone and dual-stack, with 5,000 and 10,000 nodes
       npm run bench -- wireguard-peers weftd's WireGuard with 10,000 peers: memory, handshakes, idle cost
       npm run bench -- restarts        packets that a restart of weftd loses
       npm run bench -- kube            daemons of a Kubernetes cluster with 5,000 nodes: the API server's load, memory.
                                        The first run builds kube-apiserver, etcd and flannel with Go
       npm run bench -- junk            a flood of packets that weftd refuses
       npm run bench -- micro           functions of native/ that do no I/O, compared with memory speed
       npm run bench -- backends        the backends, between containers, on two links
       npm run bench -- wireguard       weftd's WireGuard and other encrypted tunnels, likewise
       npm run bench -- by-family       IPv4 and IPv6 inside IPv4 and IPv6, likewise
       npm run bench -- suite [PART...] all parts, or the named ones: micro, plain, wire, containers, features. Named parts
                                        replace those of the earlier result
       npm run bench -- report [FILE]   writes a result (bench/results/suite.json) into the READMEs and its chart
       npm run bench:compare -- BEFORE.json AFTER.json

Cases: ${Object.keys(CASES).join(' ')}; net alone means all; default: ${SHORT.join(' ')}
Paths: ${PATH_NAMES.join(' ')}
       backends: ${Object.keys(BY_BACKEND).join(' ')}
       families, inner in outer: ${Object.keys(BY_FAMILY).join(' ')}; IPv4 in IPv4 is native
       the native engine without one feature: ${FEATURE_PATH_NAMES.join(' ')}
       with --old: ${OLD_PATH_NAME}; with --peer: peer

  --link LINK   plain: an unchanged veth; wire: a veth with frames of at most the MTU; shaped: wire with
                1 Gbit/s; both: plain, then wire. Default: plain
  --ends ENDS   hosts: between two hosts; containers: between a container on each host. Default: hosts
  --rounds N    samples of each case on each path. Default: 5
  --seconds S   length of a throughput sample. Default: 1
  --old FOLDER  another checkout of weft, already built: adds its weftd with the udp backend as the path ${OLD_PATH_NAME};
                with families: measures its dual-stack networks too
  --peer CMD    adds another program as the path peer; bench/README.md says what it must do
  --json FILE   the file for the result. Default: bench/results/local/DATE.json; for suite: bench/results/suite.json
`

const usage = (message: string): WeftError => new WeftError('USAGE', message, { remedy: 'see --help' })

function positive(name: string, text: string): number {
  const value = Number(text)
  if (!Number.isInteger(value) || value < 1 || value > 1000)
    throw usage(`--${name} is ${text}; give it a whole number from 1`)
  return value
}

function readResult(file: string | undefined): Result {
  if (file === undefined) throw usage('a result file is missing')
  let json: Partial<Result>
  try {
    json = JSON.parse(readFileSync(file, 'utf8')) as Partial<Result>
  } catch (error) {
    throw usage(`${file} cannot be read as a result: ${messageOf(error)}`)
  }
  if (json.schema !== 2) throw usage(`${file} is not a result of this version of the benchmark`)
  return json as Result
}

/**
 * The benchmarks that do not compare data paths between two hosts. Each has a function that estimates its duration in
 * seconds for a number of rounds, and the function that measures.
 */
const OTHERS: Readonly<
  Record<
    string,
    {
      readonly seconds: (rounds: number) => number
      readonly measure: (rounds: number, progress: Progress, old?: string) => Promise<Part>
    }
  >
> = {
  micro: { seconds: (rounds) => rounds * MICRO_SECONDS, measure: measureMicro },
  leases: { seconds: () => LEASES_SECONDS, measure: (_rounds, progress) => measureLeases(progress) },
  families: { seconds: (rounds) => rounds * FAMILIES_SECONDS_A_ROUND, measure: measureFamilies },
  restarts: { seconds: (rounds) => rounds * RESTARTS_SECONDS_A_ROUND, measure: measureRestarts },
  kube: { seconds: (rounds) => rounds * KUBE_SECONDS_A_ROUND, measure: measureKube },
  junk: { seconds: (rounds) => rounds * JUNK_SECONDS_A_ROUND, measure: measureJunk },
  'wireguard-peers': {
    seconds: (rounds) => rounds * WIREGUARD_PEERS_SECONDS_A_ROUND,
    measure: measureWireguardPeers,
  },
}

/**
 * The benchmarks that compare data paths between containers, over the two simulated links `plain` and `wire`
 * (paths.ts). `cases` lists the measurements that a benchmark takes if the command line names no case.
 */
const BESIDE: Readonly<
  Record<
    string,
    { readonly paths: readonly string[]; readonly cases: readonly string[]; readonly references?: readonly string[] }
  >
> = {
  backends: { paths: BACKEND_PATH_NAMES, cases: BETWEEN_BACKENDS },
  wireguard: {
    paths: ['native', 'vxlan', 'wireguard-userspace', 'wireguard-go', 'nebula'],
    cases: BETWEEN_ENCRYPTED,
    references: ['native', 'vxlan', 'wireguard-go', 'nebula'],
  },
  'by-family': {
    paths: ['native', ...Object.keys(BY_FAMILY)],
    cases: BETWEEN_FAMILIES,
    references: ['native', 'vxlan-ipv6'],
  },
}

function casesNamed(names: readonly string[]): Plan['cases'] {
  return names.map((name) => {
    const each = CASES[name]
    if (!each) throw usage(`no such case: ${name}; there are ${Object.keys(CASES).join(', ')}`)
    return [name, each]
  })
}

function plansFor(words: readonly string[], options: Options): Plan[] {
  const ends = ENDS.find((each) => each === options.ends)
  if (!ends) throw usage(`--ends is ${options.ends}; it is ${ENDS.join(' or ')}`)
  const common = {
    rounds: positive('rounds', options.rounds),
    seconds: positive('seconds', options.seconds),
    peer: options.peer,
    old: options.old,
    ends,
  }
  const peer = options.peer === undefined ? [] : ['peer']
  const old = options.old === undefined ? [] : [OLD_PATH_NAME]
  const [first = ''] = words
  if (Object.hasOwn(OTHERS, first)) return []
  const beside = Object.hasOwn(BESIDE, first) ? BESIDE[first] : undefined
  if (beside) {
    const { paths, references } = beside
    const cases = casesNamed(words.length > 1 ? words.slice(1) : beside.cases)
    return BOTH.map((link) => ({
      ...common,
      ends: 'containers',
      cases,
      paths: [...paths, ...old, ...peer],
      references,
      name: `${first}, ${link}`,
      link,
    }))
  }
  if (words[0] === 'suite') {
    const references = ['naive', 'vxlan']
    const all: Plan[] = [
      ...BOTH.map((link) => ({
        ...common,
        name: link,
        link,
        cases: casesNamed(SUITE),
        paths: [...(link === 'plain' ? PATH_NAMES : ['native', ...references, 'veth']), ...peer],
      })),
      {
        ...common,
        name: 'containers',
        link: 'plain',
        ends: 'containers',
        cases: casesNamed(BETWEEN_CONTAINERS),
        paths: ['native', ...references, 'veth'],
      },
      {
        ...common,
        name: 'features',
        link: 'plain',
        cases: casesNamed(BETWEEN_FEATURES),
        paths: ['native', ...FEATURE_PATH_NAMES, 'native-bare', ...references],
      },
    ]
    const names = ['micro', ...all.map(({ name }) => name)]
    const unknown = words.slice(1).find((word) => !names.includes(word))
    if (unknown !== undefined) throw usage(`the suite has no part ${unknown}; it has ${names.join(', ')}`)
    return words.length === 1 ? all : all.filter(({ name }) => words.includes(name))
  }
  const [group, ...rest] = words
  const named = group === 'net' ? (rest.length > 0 ? rest : Object.keys(CASES)) : words.length > 0 ? words : SHORT
  const links = options.link === 'both' ? BOTH : LINKS.filter((link) => link === options.link)
  if (links.length === 0) throw usage(`--link is ${options.link}; it is ${LINKS.join(', ')} or both`)
  const cases = casesNamed([...new Set(named)])
  const paths = [...new Set([...options.paths.split(','), ...old, ...peer])]
  return links.map((link) => ({ ...common, name: link, link, cases, paths }))
}

const BOTH = ['plain', 'wire'] as const

const OPTIONS = {
  paths: { type: 'string', default: PATH_NAMES.join(',') },
  link: { type: 'string', default: 'plain' },
  ends: { type: 'string', default: 'hosts' },
  rounds: { type: 'string', default: '5' },
  seconds: { type: 'string', default: '1' },
  peer: { type: 'string' },
  old: { type: 'string' },
  json: { type: 'string' },
  help: { type: 'boolean', default: false },
} as const

const readArguments = () => parseArgs({ allowPositionals: true, options: OPTIONS })
type Options = ReturnType<typeof readArguments>['values']

const SUITE_FILE = join(packageRoot, 'bench/results/suite.json')

/**
 * Returns the parts (results of single benchmarks) of an earlier result that stay in the result file next to newly
 * measured parts. A part gets a field `commit` if it was measured at a commit other than `now`.
 */
function partsBeside({ parts, commit }: Result, now: string): Part[] {
  return parts.map((part) => (commit === now ? part : { commit, ...part }))
}

function report(result: Result): void {
  writeFileSync(SUITE_FILE, `${JSON.stringify(result, undefined, 2)}\n`)
  const blocks = figureBlocks(result)
  for (const name of ['README.md', 'bench/README.md']) {
    const file = join(packageRoot, name)
    writeFileSync(file, fillFigures(readFileSync(file, 'utf8'), blocks))
  }
  writeFileSync(join(packageRoot, 'bench/results/chart.svg'), resultChart(result))
  process.stderr.write(`written: README.md, bench/README.md, bench/results/suite.json, bench/results/chart.svg\n`)
}

async function main(): Promise<void> {
  const { values: options, positionals: words } = readArguments()
  if (options.help) return void process.stdout.write(USAGE)
  if (words[0] === 'compare') {
    return void process.stdout.write(`${compareTable(readResult(words[1]), readResult(words[2]))}\n`)
  }
  if (words[0] === 'report') return report(readResult(words[1] ?? SUITE_FILE))
  const plans = plansFor(words, options)
  const rounds = positive('rounds', options.rounds)
  const hasMicro = words[0] === 'suite' && (words.length === 1 || words.includes('micro'))
  const other = OTHERS[hasMicro ? 'micro' : (words[0] ?? '')]
  const seconds = plans.reduce((sum, plan) => sum + estimate(plan), 0) + (other?.seconds(rounds) ?? 0)
  process.stderr.write(
    `about ${seconds < 120 ? `${Math.ceil(seconds)} seconds` : `${Math.round(seconds / 60)} minutes`}\n`,
  )

  // The benchmark `micro` needs neither root nor network namespaces, because it measures only functions.
  if (plans.length > 0 || (other && other !== OTHERS['micro'])) await becomeRoot()
  process.on('SIGINT', () => process.exit(130)).on('SIGTERM', () => process.exit(143)) // the labs clean up on exit
  const start = circumstances()
  const local = join(packageRoot, 'bench/results/local', `${start.date.replaceAll(':', '')}.json`)
  const file = options.json ?? (words[0] === 'suite' ? SUITE_FILE : local)
  mkdirSync(dirname(file), { recursive: true })
  const before = words[0] === 'suite' && words.length > 1 && existsSync(file) ? readResult(file) : undefined
  let result: Result = { ...start, parts: before ? partsBeside(before, start.commit) : [] }
  /**
   * Adds a measured part to the result and writes the result file immediately, so that a later failure does not lose
   * the part.
   */
  const add = (part: Part): void => {
    result = { ...result, parts: [...result.parts.filter(({ name }) => name !== part.name), part] }
    writeFileSync(file, `${JSON.stringify(result, undefined, 2)}\n`)
  }
  const progress = createProgress('bench', { total: seconds, pace: 'seconds' })
  try {
    if (other) add(await other.measure(rounds, progress, options.old))
    for (const plan of plans) add(await measure(plan, progress))
  } finally {
    progress.end()
  }
  process.stdout.write(`\n${textTable(result)}\n`)
  process.stderr.write(`written to ${file}\n`)
}

try {
  await main()
} catch (error) {
  // For a wrong option parseArgs throws a TypeError with a field `code`. A TypeError without `code` is a bug in the
  // benchmark.
  const mistake = isWeftError(error) || (error instanceof TypeError && 'code' in error)
  process.stderr.write(
    `bench: ${mistake && !isWeftError(error) ? `${messageOf(error)}; see --help` : describeError(error)}\n`,
  )
  process.exitCode = mistake ? 2 : 1
}
