// cleanup.ts - `weft cleanup`: removes what weft or flannel left on this host, and nothing else.

import { existsSync } from 'node:fs'
import { readFile, unlink } from 'node:fs/promises'
import { parseArgs, parseEnv } from 'node:util'
import { describeError, messageOf, WeftError } from '../errors.ts'
import { run } from '../host/command.ts'
import { formatIpv4Net, parseIpv4Net } from '../net/ipv4.ts'
import { formatIpv6Net, parseIpv6Net } from '../net/ipv6.ts'
import { handoverLock, handoverSocket } from '../restart/rendezvous.ts'
import { lastKnownFile } from '../restart/last-known.ts'
import { findBlackholeRemains, findDeviceRemains } from './device-remains.ts'
import type { Remains } from './remains.ts'
import { findIptablesRemains, findNftablesRemains } from './rule-remains.ts'
import { findRunning } from './running.ts'

export const CLEANUP_HELP = `Usage: weft cleanup [--dry-run] [-f FILE]

Removes what weftd or a flanneld, also an old one, left on this host: rules and chains of iptables and nftables, devices with
their routes, subnet.env and what stands beside it. Prints a line for each thing; refuses while a daemon runs.

  -f, --subnet-file FILE  the daemon's file (default /run/flannel/subnet.env); it also tells which rules of flannels
                          before 0.16, which had no comments, are its own
  --dry-run               only print
`

/** What is printed: on stdout what is removed, on stderr what stays. */
export interface Output {
  readonly say: (line: string) => void
  readonly warn: (line: string) => void
}

/**
 * Whether all is removed that was found, or would be. Throws WeftError USAGE, or DEVICE while a daemon runs; COMMAND or PERMISSION when the
 * host cannot be looked at.
 */
export async function cleanup(args: readonly string[], output: Output): Promise<boolean> {
  const { file, dryRun } = readArguments(args)
  return removeRemains(file, dryRun, await findRunning(run), output)
}

/** As `cleanup`, beside the daemons that were found to run. */
export async function removeRemains(
  file: string,
  dryRun: boolean,
  running: readonly string[],
  { say, warn }: Output,
): Promise<boolean> {
  const refusal = new WeftError('DEVICE', running.join(', '), { remedy: 'stop it, then clean up' })
  if (running.length > 0 && !dryRun) throw refusal

  const forFile = { 'subnet-file': file }
  const env = parseEnv(await readIfThere(file))
  const networks = netsOf(env, ['FLANNEL_NETWORK', 'FLANNEL_IPV6_NETWORK'])
  const subnets = netsOf(env, ['FLANNEL_SUBNET', 'FLANNEL_IPV6_SUBNET'])
  const iptables = await findIptablesRemains(run, networks, true)
  const remains = [
    ...(await findDeviceRemains(run)),
    ...(await findBlackholeRemains(run, subnets)),
    ...iptables.remains,
    ...(await findNftablesRemains(run)),
    ...fileRemains(file, env),
    ...[lastKnownFile(forFile), handoverSocket(forFile), handoverLock(forFile)].filter(existsSync).map(fileRemain),
  ]
  let isClean = iptables.unseen.length === 0
  for (const each of remains) {
    try {
      if (!dryRun) await each.remove()
      for (const thing of each.things) say(`${dryRun ? 'would remove' : 'removed'} ${thing}`)
    } catch (error) {
      for (const thing of each.things) warn(`cannot remove ${thing}: ${describeError(error)}`)
      isClean = false
    }
    for (const reason of each.stays) warn(`there stays ${reason}`)
    if (each.stays.length > 0) isClean = false
  }
  for (const where of iptables.unseen) warn(`rules may stay: ${where}`)
  if (remains.length === 0) say('There is nothing of flannel or weft here.')
  if (running.length > 0) throw refusal
  return isClean
}

function readArguments(args: readonly string[]) {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        'subnet-file': { type: 'string', short: 'f', default: '/run/flannel/subnet.env' },
        'dry-run': { type: 'boolean', default: false },
      },
    })
    return { file: values['subnet-file'], dryRun: values['dry-run'] }
  } catch (error) {
    throw new WeftError('USAGE', messageOf(error), { remedy: 'see weft cleanup -h', cause: error })
  }
}

async function readIfThere(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return ''
    throw new WeftError('PERMISSION', `cannot read ${path}: ${messageOf(error)}`, { remedy: 'run as root' })
  }
}

type Env = Readonly<Record<string, string | undefined>>

/** The networks in the variables, as iptables and ip write them, host bits cleared. Each may hold several. */
function netsOf(env: Env, keys: readonly string[]): ReadonlySet<string> {
  const texts = keys.flatMap((key) => (env[key] ?? '').split(',').map((text) => text.trim()))
  return new Set(
    texts.flatMap((text) => {
      const four = parseIpv4Net(text)
      if (four) return formatIpv4Net(four)
      const six = parseIpv6Net(text)
      return six ? formatIpv6Net(six) : []
    }),
  )
}

/** A file without flannel's variables is somebody else's. */
function fileRemains(path: string, env: Env): Remains[] {
  if (env['FLANNEL_SUBNET'] === undefined && env['FLANNEL_IPV6_SUBNET'] === undefined) return []
  return [fileRemain(path)]
}

function fileRemain(path: string): Remains {
  return { things: [`file ${path}`], stays: [], remove: () => unlink(path) }
}
