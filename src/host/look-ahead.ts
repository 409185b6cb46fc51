// look-ahead.ts - what a start asks `ip` one after another before it forwards, asked all at once by one process for each family.

import { formatNet, type Net, type Nets } from '../net/address.ts'
import type { Run } from './command.ts'

export interface LookAhead {
  /** Answers the look-ups of links.ts from what was seen; runs all else, after which nothing seen is believed. */
  readonly run: Run
  /** Forgets what was seen: the host goes on changing. */
  forget(): void
}

/** What each line gave, by the line, behind `-6` where it was asked of IPv6. */
type Seen = readonly (readonly [asked: string, answer: string])[]

const LINKS = 'address show'
const routesFor = (network: Net): string[] => ['route show exact default', `route show exact ${formatNet(network)}`]

/** Looks at all links, and of each family that there is a network of at the default route and the routes to the network. */
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

/** Nothing where it cannot be had so: whoever asks singly is told why. */
async function see(run: Run, lines: readonly string[], family?: '-6'): Promise<Seen> {
  try {
    const flags = family === undefined ? ['-j', '-d'] : ['-j', '-d', family]
    const text = await run('ip', [...flags, '-batch', '-'], { input: `${lines.join('\n')}\n` })
    const answers = text.trimEnd().split('\n') // an array on a line for each
    if (answers.length !== lines.length) return []
    return lines.map((line, at) => [family === undefined ? line : `${family} ${line}`, answers[at] as string] as const)
  } catch {
    return []
  }
}

function answerOf(args: readonly string[], seen: ReadonlyMap<string, string> | undefined): string | undefined {
  // What `-d` adds is not in the way of those who do not ask for it, and the routes are IPv4's without a word.
  const asked = args.filter((word) => !word.startsWith('-') || word === '-6').join(' ')
  if (!args.includes('-j') || !seen) return undefined
  const [, name] = /^(?:address|link) show dev (\S+)$/.exec(asked) ?? []
  const links = seen.get(LINKS)
  if (name === undefined || links === undefined) return seen.get(asked)
  const found = (JSON.parse(links) as { readonly ifname?: string }[]).filter(({ ifname }) => ifname === name)
  return found.length > 0 ? JSON.stringify(found) : undefined // why there is none, `ip` says
}
