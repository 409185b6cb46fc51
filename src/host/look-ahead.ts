// look-ahead.ts - runs in advance the queries that weftd's start makes with `ip`: one process for each family instead
// of one process for each query.

import { formatNet, type Net, type Nets } from '../net/address.ts'
import type { Run } from './command.ts'

export interface LookAhead {
  /**
   * Returns the stored result if the command is one of the queries that were run in advance. For any other command,
   * discards the stored results, because the command may change the host, and runs the command.
   */
  readonly run: Run
  /** Discards the stored results, because the caller is about to change the host. */
  forget(): void
}

/** Pairs of a query and its stored result. Queries about IPv6 begin with `-6`. */
type Seen = readonly (readonly [query: string, answer: string])[]

const LINKS = 'address show'
const routesFor = (network: Net): string[] => ['route show exact default', `route show exact ${formatNet(network)}`]

/**
 * Runs in advance the queries that links.ts will make: all links, and for each family of the network the default route
 * and the routes to the network.
 */
export function lookAhead(run: Run, networks: Nets): LookAhead {
  const looks = [
    see(run, [LINKS, ...(networks.ipv4 ? routesFor(networks.ipv4) : [])]),
    ...(networks.ipv6 ? [see(run, routesFor(networks.ipv6), '-6')] : []),
  ]
  let seen: Promise<ReadonlyMap<string, string>> | undefined = Promise.all(looks).then((all) => new Map(all.flat()))
  return {
    async run(file, args, options) {
      const answer = file === 'ip' && options === undefined ? answerOf(args, await seen) : undefined
      if (answer !== undefined) return answer
      seen = undefined
      return run(file, args, options)
    },
    forget: () => (seen = undefined),
  }
}

/**
 * Runs several queries by one process of `ip`. Returns an empty list if the process fails; later each query then runs
 * in a process of its own and reports the reason.
 */
async function see(run: Run, lines: readonly string[], family?: '-6'): Promise<Seen> {
  try {
    const flags = family === undefined ? ['-j', '-d'] : ['-j', '-d', family]
    const text = await run('ip', [...flags, '-batch', '-'], { input: `${lines.join('\n')}\n` })
    const answers = text.trimEnd().split('\n') // `ip` prints an array on one line for each query
    if (answers.length !== lines.length) return []
    return lines.map((line, at) => [family === undefined ? line : `${family} ${line}`, answers[at] as string] as const)
  } catch {
    return []
  }
}

function answerOf(args: readonly string[], seen: ReadonlyMap<string, string> | undefined): string | undefined {
  // The stored results come from `ip -d`; its additional details do not matter for a query without -d. A query for
  // routes without a family means IPv4.
  const query = args.filter((word) => !word.startsWith('-') || word === '-6').join(' ')
  if (!args.includes('-j') || !seen) return undefined
  const [, name] = /^(?:address|link) show dev (\S+)$/.exec(query) ?? []
  const links = seen.get(LINKS)
  if (name === undefined || links === undefined) return seen.get(query)
  const found = (JSON.parse(links) as { readonly ifname?: string }[]).filter(({ ifname }) => ifname === name)
  return found.length > 0 ? JSON.stringify(found) : undefined // `ip` is run for its error message
}
