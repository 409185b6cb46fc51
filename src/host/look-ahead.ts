// look-ahead.ts - what a start asks `ip` one after another before it forwards, asked all at once by one process.

import { formatIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import type { Run } from './command.ts'

export interface LookAhead {
  /** Answers the look-ups of links.ts from what was seen; runs all else, after which nothing seen is believed. */
  readonly run: Run
  /** Nothing seen is believed any more: the host goes on changing. */
  forget(): void
}

const LINKS = 'address show'
const routesTo = (destination: string): string => `route show exact ${destination}`

/** Looks at all links, the default route and the routes to `network`. */
export function lookAhead(run: Run, network: Ipv4Net): LookAhead {
  const lines = [LINKS, routesTo('default'), routesTo(formatIpv4Net(network))]
  let seen: Promise<Map<string, string> | undefined> | undefined = see(run, lines)
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

/** What each line gave; undefined where it cannot be had so, and whoever asks singly is told why. */
async function see(run: Run, lines: readonly string[]): Promise<Map<string, string> | undefined> {
  try {
    const text = await run('ip', ['-j', '-d', '-batch', '-'], { input: `${lines.join('\n')}\n` })
    const answers = text.trimEnd().split('\n') // an array on a line for each
    return answers.length === lines.length ? new Map(lines.map((line, at) => [line, answers[at] as string])) : undefined
  } catch {
    return undefined
  }
}

function answerOf(args: readonly string[], seen: ReadonlyMap<string, string> | undefined): string | undefined {
  // What `-d` adds is not in the way of those who do not ask for it, and the routes are IPv4's without a word.
  const asked = args.filter((word) => !word.startsWith('-')).join(' ')
  if (!args.includes('-j') || !seen) return undefined
  const [, name] = /^(?:address|link) show dev (\S+)$/.exec(asked) ?? []
  if (name === undefined) return seen.get(asked)
  const links = JSON.parse(seen.get(LINKS) as string) as { readonly ifname?: string }[]
  const found = links.filter(({ ifname }) => ifname === name)
  return found.length > 0 ? JSON.stringify(found) : undefined // why there is none, `ip` says
}
