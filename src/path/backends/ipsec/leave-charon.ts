// leave-charon.ts - removes the connections of the backend ipsec from the charon that runs on this host. If charon was
// not started by weftd, it keeps these connections when weftd ends, so that a restart of weftd does not interrupt the
// packets.

import type { Net } from '../../../net/address.ts'
import { connectRunning } from './charon.ts'
import { connectionsIn, unloadAll } from './connections.ts'
import type { ViciClient } from './vici-client.ts'

/**
 * Lists the names of the connections that weftd loaded into the running charon for the given networks. Rejects with
 * WeftError.
 */
export const listConnections = (networks: readonly Net[], signal: AbortSignal): Promise<readonly string[]> =>
  inCharon(networks, signal, async (client, network) => [...(await connectionsIn(client, network))])

/**
 * Removes the connections and shared keys of the given networks, and returns the names of the connections. Rejects with
 * WeftError.
 */
export const leaveCharon = (networks: readonly Net[], signal: AbortSignal): Promise<readonly string[]> =>
  inCharon(networks, signal, unloadAll)

/**
 * Connects to charon, calls `act` for each network, and returns the names of connections from all calls. Returns an
 * empty list if no charon runs.
 */
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
