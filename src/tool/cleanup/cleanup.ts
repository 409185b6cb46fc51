// cleanup.ts - `weft cleanup`: removes the devices, routes, rules and files that weft or flannel left on this host, and
// nothing else.

import { existsSync } from 'node:fs'
import { readdir, readFile, unlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { parseArgs, parseEnv } from 'node:util'
import { describeError, messageOf, WeftError } from '../../base/errors.ts'
import { run } from '../../host/command.ts'
import { hostKernel as kernel } from '../../host/netlink/host-kernel.ts'
import { formatNet, parseNet } from '../../net/address.ts'
import { lastKnownFile } from '../../node/restart/last-known.ts'
import { handoverLock, handoverSocket } from '../../node/restart/rendezvous.ts'
import { eventsFile } from '../../options.ts'
import { findKernelWayRemains } from '../../path/device/kernel-way-remains.ts'
import { findIptablesRemains, findNftablesRemains } from '../../path/firewall/rule-remains.ts'
import type { Remains } from '../../path/remains.ts'
import {
  findBlackholeRemains,
  findCharonRemains,
  findDeviceRemains,
  findHostRouteRemains,
  findIpsecRemains,
  findUnreachableRemains,
} from './device-remains.ts'
import { findPublishedRoute } from './published-route.ts'
import { findLocking, findRunning } from './running.ts'

export const CLEANUP_HELP = `Usage: weft cleanup [--dry-run] [-f FILE]

Removes what weftd, or flanneld of any version, left on this host: rules and chains of iptables and nftables, devices and
their routes, routes to other nodes, the route that a backend published in a cloud or a switch, subnet.env and the files beside
it, including WireGuard keys. Prints one line for each item. Refuses to run while a daemon runs.

  -f, --subnet-file FILE  the daemon's subnet file (default /run/flannel/subnet.env). It also identifies rules of flannel
                          before 0.16, which have no comments
  --dry-run               only print what would be removed
`

interface Output {
  readonly say: (line: string) => void
  readonly warn: (line: string) => void
}

/**
 * Removes the remains of weft and flannel, or only lists them if --dry-run is given. Returns false if some remains
 * cannot be removed. Throws WeftError USAGE if the arguments are wrong; DEVICE if a daemon runs; COMMAND or PERMISSION
 * if the host cannot be examined.
 */
export async function cleanup(args: readonly string[], output: Output): Promise<boolean> {
  const { file, dryRun } = readArguments(args)
  const visible = await findRunning(kernel)
  const running = visible.length > 0 ? visible : findLocking(handoverLock({ 'subnet-file': file }))
  return removeRemains(file, dryRun, running, output)
}

/**
 * Removes the remains of weft and flannel from this host, or only lists them if `dryRun` is true. `running` describes
 * the daemons that run now; if the list is not empty and `dryRun` is false, throws WeftError DEVICE and removes
 * nothing.
 */
export async function removeRemains(
  file: string,
  dryRun: boolean,
  running: readonly string[],
  { say, warn }: Output,
): Promise<boolean> {
  const refusal = new WeftError('DEVICE', running.join(', '), { remedy: 'stop it first, and then clean up' })
  if (running.length > 0 && !dryRun) throw refusal

  const forFile = { 'subnet-file': file }
  const isThere = existsSync(file)
  const env = parseEnv(await readIfThere(file))
  const networks = netsOf(env, ['FLANNEL_NETWORK', 'FLANNEL_IPV6_NETWORK'])
  const subnets = netsOf(env, ['FLANNEL_SUBNET', 'FLANNEL_IPV6_SUBNET'])
  const iptables = await findIptablesRemains(run, kernel, networks, true)
  const devices = await findDeviceRemains(kernel, subnets)
  const published = await findPublishedRoute(lastKnownFile(forFile))
  const identifying = fileRemains(file, env)
  const remains = [
    ...published,
    ...(await findKernelWayRemains(kernel)),
    ...devices,
    ...(await findHostRouteRemains(kernel, networks, subnets)),
    ...(await findBlackholeRemains(kernel, subnets)),
    ...(await findUnreachableRemains(kernel, networks)),
    ...(await findCharonRemains(networks)),
    ...(await findIpsecRemains({ kernel, run }, networks)),
    ...iptables.remains,
    ...(await findNftablesRemains(run, kernel)),
    ...identifying,
    ...[lastKnownFile(forFile), eventsFile(forFile), handoverSocket(forFile), handoverLock(forFile)]
      .filter(existsSync)
      .concat(await keysBeside(file))
      .map(fileRemain),
  ]
  let isClean = iptables.unseen.length === 0
  /**
   * True if a published route could not be withdrawn. In that case `weft cleanup` keeps the file that describes the
   * route, so that a later call can withdraw the route.
   */
  let isPublished = false
  /**
   * True if an item other than the published route could not be listed or removed. In that case `weft cleanup` keeps
   * subnet.env, because a later call finds some items (such as routes to other hosts) only by the networks in this file.
   */
  let isLeft = iptables.unseen.length > 0
  for (const each of remains) {
    if (isPublished && each.things.includes(`file ${lastKnownFile(forFile)}`)) continue
    if (isLeft && identifying.includes(each)) {
      if (!dryRun) warn(`${file} stays, because the next weft cleanup needs this file to find the items that are left`)
      continue
    }
    try {
      if (!dryRun) await each.remove()
      for (const thing of each.things) say(`${dryRun ? 'would remove' : 'removed'} ${thing}`)
    } catch (error) {
      for (const thing of each.things) warn(`cannot remove ${thing}: ${describeError(error)}`)
      isClean = false
      if (published.includes(each)) isPublished = true
      else isLeft = true
    }
    for (const reason of each.stays) warn(`not removed: ${reason}`)
    if (each.stays.length > 0) isClean = false
    // If an item has no things, it could not be listed. A later call finds the published route without subnet.env.
    if (each.stays.length > 0 && each.things.length === 0 && !published.includes(each)) isLeft = true
  }
  for (const where of iptables.unseen) warn(`rules may stay: ${where}`)
  if (!isThere && devices.length > 0)
    warn(`there is no ${file}: files beside it, and routes that only this file identifies, may stay`)
  if (remains.length === 0) say('Nothing of flannel or weft is left on this host.')
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
    throw new WeftError('PERMISSION', `cannot read ${path}: ${messageOf(error)}`, {
      remedy: 'run weft cleanup as root',
    })
  }
}

type Env = Readonly<Record<string, string | undefined>>

/**
 * Reads the networks in the variables `keys` of subnet.env. Returns the networks as iptables and ip write them, with
 * the host bits cleared. A variable may contain several networks.
 */
function netsOf(env: Env, keys: readonly string[]): ReadonlySet<string> {
  const texts = keys.flatMap((key) => (env[key] ?? '').split(',').map((text) => text.trim()))
  const nets = texts.map(parseNet).filter((net) => net !== undefined)
  return new Set(nets.map(formatNet))
}

/**
 * Finds a subnet.env that a daemon left. A file without flannel's variables belongs to another program, so `weft
 * cleanup` does not remove it.
 */
function fileRemains(path: string, env: Env): Remains[] {
  if (env['FLANNEL_SUBNET'] === undefined && env['FLANNEL_IPV6_SUBNET'] === undefined) return []
  return [fileRemain(path)]
}

/**
 * The names of the key file, of the files with the times of handshakes, and of a key file that a killed weftd has not
 * named yet (backends/wireguard/key-file.ts).
 */
const KEY_FILES = /^(wgkey(-[\w-]+\.time(\.new)?)?|\.wgkey\.[0-9a-f]{16})$/

/**
 * Finds, in the folder of the WireGuard key file, the key that a daemon generated and the files with the times of
 * handshakes. If WIREGUARD_KEY_FILE names the key file, an operator made it, so `weft cleanup` does not remove it.
 */
async function keysBeside(file: string): Promise<string[]> {
  const folder = dirname(file)
  const names = await readdir(folder).catch(() => [])
  return names.filter((name) => KEY_FILES.test(name)).map((name) => join(folder, name))
}

function fileRemain(path: string): Remains {
  return { things: [`file ${path}`], stays: [], remove: () => unlink(path) }
}
