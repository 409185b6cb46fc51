// status-network.ts - the loop that serves this node's view (the part of its status for peers) at the node's own
// addresses in the network.

import { messageOf } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { familyOf, formatAddress, listed, parseAddress, type Address } from '../../net/address.ts'
import { serveView, type ViewServer } from '../../report/health.ts'
import { readToken, showsToken } from '../ask-nodes.ts'
import type { Node } from '../node.ts'
import { forGood } from './probes.ts'

/** The interval in ms at which weftd checks the node's addresses, which change with the data path. */
const LOOK_MS = 1_000

export async function serveNetworkStatus(node: Node): Promise<never> {
  const { options, health, log, signal } = node
  const port = options['status-network']
  if (port === 0 || !health) return forGood(signal)
  const calm = seldom(log)
  const open = new Map<string, ViewServer>()
  const audience = {
    isNode: (address: string | undefined) => isNode(node, parseAddress(address ?? '')),
    async isTrusted(authorization: string | undefined) {
      const token = await readToken(options)
      return token === undefined || showsToken(authorization, token)
    },
  }
  try {
    for (;;) {
      const wanted = new Set(listed(node.ownership.dataPath?.probeSource ?? {}).map(formatAddress))
      for (const [address, server] of open) {
        if (wanted.has(address)) continue
        open.delete(address)
        await server.close()
      }
      for (const address of wanted) {
        if (open.has(address)) continue
        try {
          open.set(address, await serveView({ address, port }, health, audience))
          log.info(`Other nodes can query the status at ${address}, TCP port ${port}`)
        } catch (error) {
          // The address may not exist yet, or the previous weftd may still use the port. So log the failure and try
          // again.
          calm.warn(
            `Cannot serve the status to other nodes at ${address}: ${messageOf(error)}; name another port with --status-network, on all nodes`,
          )
        }
      }
      await pause(signal, LOOK_MS)
    }
  } finally {
    await Promise.all([...open.values()].map((server) => server.close()))
  }
}

/**
 * Returns true if `address` is an address from which the weftd of some node sends queries. Containers have different
 * addresses.
 */
function isNode({ ownership, view, lease }: Node, address: Address | undefined): boolean {
  if (address === undefined) return false
  const family = familyOf(address)
  const own = ownership.dataPath?.probeSource[family]
  const isOverlay = own !== undefined && own === lease.subnet[family]?.address
  for (const { subnet, attrs } of view.values())
    if ((isOverlay ? subnet[family]?.address : attrs.publicIp[family]) === address) return true
  return address === own
}
