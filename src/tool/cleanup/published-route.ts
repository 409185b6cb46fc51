// published-route.ts - finds the route that the last weftd published in a cloud or a switch, and withdraws this route.
//
// The file of the last known state, which is next to subnet.env, names the backend, the lease and the external
// interface. The file has no secrets, so a backend whose credentials are only in the network configuration cannot
// withdraw its route.

import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { HIDDEN } from '../../base/secret.ts'
import { parseNetworkConfig } from '../../control/config/network-config.ts'
import { hostKernel } from '../../host/netlink/host-kernel.ts'
import { netsText } from '../../net/address.ts'
import { createWithdrawing } from '../../node/choose.ts'
import { readLastKnown } from '../../node/restart/last-known.ts'
import type { Remains } from '../../path/remains.ts'

/** The time limit in ms for all requests together that withdraw the route. */
const WITHDRAW_MS = 60_000
/** Discards log lines. Parsing the configuration logs only warnings that the daemon already logged when it started. */
const QUIET: Log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }

/** Finds the published route, of which there is at most one. `file` is the file of the last known state. */
export async function findPublishedRoute(file: string): Promise<Remains[]> {
  const known = await readLastKnown(file, QUIET)
  if (!known?.external) return []
  const what = `the published route to ${netsText(known.lease.subnet)}`
  try {
    // The lease comes from the file of the last known state, so the configuration need not say from which range nodes
    // take their subnets (`areGiven`).
    const config = parseNetworkConfig(known.config, { areGiven: true })
    const backend = await createWithdrawing(config, known.external, hostKernel, QUIET)
    if (!backend?.withdraw) return []
    const remove = async (): Promise<void> => {
      const late = new AbortController()
      const timer = setTimeout(() => late.abort(new Error(`no answer within ${WITHDRAW_MS / 1000} s`)), WITHDRAW_MS)
      await backend.withdraw?.(known.lease, late.signal).finally(() => clearTimeout(timer))
    }
    return [{ things: [what], stays: [], remove }]
  } catch (error) {
    // If the configuration is invalid although it is complete (no secret was removed from it), no weftd can have
    // started with it, so no weftd has published a route.
    if (!known.config.includes(HIDDEN)) return []
    return [{ things: [], stays: [`${what}: ${messageOf(error)}; remove it by hand`], remove: async () => {} }]
  }
}
