// subnet-env.ts - the loop that writes subnet.env when the node is ready, and again if another program removes or
// changes the file.

import { describeError } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { FAMILIES, FAMILY_NAMES, netsOf, type Family } from '../../net/address.ts'
import { LEAST_MTU } from '../../path/device/tun-device.ts'
import type { DataPaths } from '../data-paths.ts'
import { RESYNC_MS, type Node } from '../node.ts'
import { createRepairLog } from '../repairs.ts'
import { formatSubnetEnv, holdsSubnetEnv, writeSubnetEnv, type SubnetEnv } from './subnet-env-file.ts'

/**
 * How long, in ms, a family may be missing from the data path before weftd omits it from subnet.env. A container that
 * starts without an address of the family never gets one, so a short fault must not change the file.
 */
const LACKING_MS = 10_000

/**
 * Returns true if containers cannot have an address of the family: the kernel disables IPv6 on a link with a small MTU,
 * and CNI plugins then fail.
 */
const isRefused = (family: Family, { mtu }: DataPaths): boolean => family === 'ipv6' && mtu < LEAST_MTU

/**
 * Returns the content of subnet.env for Docker, CNI plugins and scripts; undefined while the data path is down. Omits
 * the families in which containers cannot have addresses now, but never all families.
 */
function subnetEnvOf(node: Node): SubnetEnv | undefined {
  const { options, config, lease, attrs, lackingSince } = node
  const { dataPath } = node.ownership
  if (!dataPath) return undefined
  const now = performance.now()
  for (const family of FAMILIES) {
    if (dataPath.lacking[family] === undefined) lackingSince.delete(family)
    else if (!lackingSince.has(family)) lackingSince.set(family, now)
  }
  // Peers send to the node's public IP. So containers have no connection over a family in which the node has no public
  // IP.
  const leased = FAMILIES.filter(
    (family) => config[family] && lease.subnet[family] && attrs.publicIp[family] !== undefined,
  )
  const isLacking = (family: Family): boolean => now - (lackingSince.get(family) ?? now) >= LACKING_MS
  const had = leased.filter((family) => !isRefused(family, dataPath) && !isLacking(family))
  const families = had.length > 0 ? had : leased
  const network = netsOf(families.flatMap((family) => config[family]?.network ?? []))
  const subnet = netsOf(families.flatMap((family) => lease.subnet[family] ?? []))
  const out = leased.filter((family) => !families.includes(family))
  if (node.leftOut !== out.join()) {
    const names = out.map((family) => FAMILY_NAMES[family]).join()
    if (out.length > 0)
      node.log.warn(
        `${options['subnet-file']} omits ${names}, because containers cannot have addresses of that family now`,
      )
    else node.log.info(`${options['subnet-file']} names all families of this node again`)
  }
  node.leftOut = out.join()
  return { network, subnet, mtu: dataPath.mtu, ipMasq: options['ip-masq'] }
}

export async function publish(node: Node, log = node.log): Promise<void> {
  const env = subnetEnvOf(node)
  // Do not write subnet.env yet: containers must not start on this node while routes make their packets bypass the data
  // path.
  if (!env || (!node.isReady && node.pastPath.length > 0)) return
  const path = node.options['subnet-file']
  node.isPublished = false
  try {
    await writeSubnetEnv(path, env)
    node.isPublished = true
    node.published = formatSubnetEnv(env)
    node.learnt.ring() // the last known state has the content of subnet.env
    log.info(`Wrote subnet file to ${path}`)
    node.isReady = true
    log.info('flannel is ready')
  } catch (error) {
    // Log the failure and continue, because the data path works without the file, and running containers need the data
    // path.
    log.warn(`Failed to write subnet file: ${describeError(error)}`)
  }
}

/**
 * Restores subnet.env if another program changed or removed it, because containers need the file to start. A successor
 * writes its own file.
 */
export async function keepSubnetEnv(node: Node): Promise<never> {
  const { options, log, signal } = node
  const path = options['subnet-file']
  const calm = seldom(log)
  const quiet = { ...log, warn: (message: string) => calm.warn(message) }
  const repairs = createRepairLog(node, node.log)
  for (;;) {
    await pause(signal, RESYNC_MS)
    const env = subnetEnvOf(node)
    // If `isPublished` is false, an earlier run wrote the file, so write it again even if its content is the same.
    if (!env || !node.ownership.isOurs || (node.isPublished && (await holdsSubnetEnv(path, env)))) continue
    const isOurChange = node.published !== formatSubnetEnv(env)
    if (node.isPublished && !isOurChange) repairs.add(`${path} was gone or changed`)
    await publish(node, quiet)
  }
}
