// subnet-env.ts - keeps subnet.env: written when the node is ready, and again when somebody removed or changed it.

import { describeError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import { seldom } from '../log.ts'
import { holdsSubnetEnv, writeSubnetEnv, type SubnetEnv } from '../status/subnet-env.ts'
import { RESYNC_MS, type Node } from './node.ts'
import { createRepairLog } from './repairs.ts'

/** What Docker, the CNI plugin and scripts are to know; undefined while the data path is down. */
function subnetEnvOf({ options, config, lease, possession: { dataPath } }: Node): SubnetEnv | undefined {
  // Of IPv6 weft routes nothing: what a flanneld leased before is kept, and is not for containers.
  const network = { ipv4: config.ipv4?.network }
  const subnet = { ipv4: lease.subnet.ipv4 }
  return dataPath && { network, subnet, mtu: dataPath.mtu, ipMasq: options['ip-masq'] }
}

export async function publish(node: Node, log = node.log): Promise<void> {
  const env = subnetEnvOf(node)
  if (!env) return
  const path = node.options['subnet-file']
  node.isPublished = false
  try {
    await writeSubnetEnv(path, env)
    node.isPublished = true
    log.info(`Wrote subnet file to ${path}`)
    node.isReady = true
    log.info('flannel is ready')
  } catch (error) {
    // The data path works without it, and containers that run already need the data path.
    log.warn(`Failed to write subnet file: ${describeError(error)}`)
  }
}

/** Containers need it to start. */
export async function keepSubnetEnv(node: Node): Promise<never> {
  const { options, log, signal } = node
  const path = options['subnet-file']
  const calm = seldom(log)
  const quiet = { ...log, warn: (message: string) => calm.warn(message) }
  const repairs = createRepairLog(node, node.log)
  for (;;) {
    await pause(signal, RESYNC_MS)
    const env = subnetEnvOf(node)
    if (!env || (await holdsSubnetEnv(path, env))) continue
    if (node.isPublished) repairs.add(`${path} was gone or changed`)
    await publish(node, quiet)
  }
}
