// leave-charon.ts - removes the connections of the backend ipsec from the charon that runs on this host. Such a charon keeps them when weftd
// ends, so that a restart of weftd does not interrupt the packets.

import type { Net } from '../../../net/address.ts'
import { connectRunning } from './charon.ts'
import { connectionsIn, unloadAll } from './connections.ts'
import type { ViciClient } from './vici-client.ts'

/** Lists the names of the connections that weftd loaded into the running charon for these networks. Rejects with WeftError. */
export const listConnections = (networks: readonly Net[], signal: AbortSignal): Promise<readonly string[]> =>
  inCharon(networks, signal, async (client, network) => [...(await connectionsIn(client, network))])

/** Removes these connections and their shared keys, and returns the names of the connections. Rejects with WeftError. */
export const leaveCharon = (networks: readonly Net[], signal: AbortSignal): Promise<readonly string[]> =>
  inCharon(networks, signal, unloadAll)

/** Calls `act` for each network, and returns all names. Without a running charon it returns none. */
async function inCharon(
  networks: readonly Net[],
  signal: AbortSignal,
  act: (client: ViciClient, network: Net) => Promise<readonly string[]>,
): Promise<readonly string[]> {
  const client = networks.length > 0 ? await connectRunning(signal) : undefined
  if (!client) return []
  const close = (): void => client.close()
  signal.addEventListener('abort', close)
  try {
    const names: string[] = []
    for (const network of networks) names.push(...(await act(client, network)))
    return names
  } finally {
    signal.removeEventListener('abort', close)
    close()
  }
}
