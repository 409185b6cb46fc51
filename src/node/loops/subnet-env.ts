// subnet-env.ts - keeps subnet.env: written when the node is ready, and again when somebody removed or changed it.

import { describeError } from '../../base/errors.ts'
import { pause } from '../../host/bell.ts'
import { seldom } from '../../base/log.ts'
import { FAMILIES, netsOf } from '../../net/address.ts'
import { holdsSubnetEnv, writeSubnetEnv, type SubnetEnv } from './subnet-env-file.ts'
import { RESYNC_MS, type Node } from '../node.ts'
import { createRepairLog } from '../repairs.ts'

/** What Docker, the CNI plugin and scripts are to know; undefined while the data path is down. */
function subnetEnvOf({ options, config, lease, attrs, possession: { dataPath } }: Node): SubnetEnv | undefined {
  // By what the node is not reached nothing is routed to its containers.
  const families = FAMILIES.filter(
    (family) => config[family] && lease.subnet[family] && attrs.publicIp[family] !== undefined,
  )
  const network = netsOf(families.flatMap((family) => config[family]?.network ?? []))
  const subnet = netsOf(families.flatMap((family) => lease.subnet[family] ?? []))
  return dataPath && { network, subnet, mtu: dataPath.mtu, ipMasq: options['ip-masq'] }
}

export async function publish(node: Node, log = node.log): Promise<void> {
  const env = subnetEnvOf(node)
  // Containers start here only once their packets go by no other way than the data path.
  if (!env || (!node.isReady && node.pastPath.length > 0)) return
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
    // A file that an earlier run left may say the same.
    if (!env || (node.isPublished && (await holdsSubnetEnv(path, env)))) continue
    if (node.isPublished) repairs.add(`${path} was gone or changed`)
    await publish(node, quiet)
  }
}
