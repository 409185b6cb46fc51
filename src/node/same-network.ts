// same-network.ts - checks that a hand-over keeps the node in its network, with its subnet.

import { WeftError } from '../base/errors.ts'
import { seldom } from '../base/log.ts'
import type { LeaseAttrs } from '../control/lease/lease.ts'
import type { SubnetManager } from '../control/lease/subnet-manager.ts'
import { pause } from '../host/bell.ts'
import { addressText, formatAddress, listed } from '../net/address.ts'
import { waitFor, type Waiter } from './exit-or-wait.ts'

interface KeyAndIp {
  readonly key: string
  readonly publicIp: string
}

/**
 * The time in ms within which a predecessor that lost its lease acquires it again. If the lease is still missing after
 * this time, the predecessor has another store than this process. Only the pauses after listings without the lease
 * count towards this time, and a failed listing starts it again, because the predecessor cannot write its lease while
 * the store does not answer.
 */
const SAME_NETWORK_MS = 15_000
const RETRY_MS = 1_000

/**
 * Resolves when the store has the predecessor's lease, `leaseNow`, or when the predecessor has no lease. Throws
 * WeftError DEVICE if the store does not have the lease. The store then belongs to another network, and a hand-over
 * would cut the node off from its own network.
 */
export async function waitForSameNetwork(
  manager: SubnetManager,
  leaseNow: () => Promise<KeyAndIp | undefined>,
  waiter: Waiter,
): Promise<void> {
  const { log, signal } = waiter
  let lackedMs = 0
  const list = () =>
    manager.source.list(signal).catch((error: unknown) => {
      lackedMs = 0
      throw error
    })
  const calm = seldom(log)
  const name = 'the lease of the running weftd'
  const failure = 'failed to look for the lease of the weftd that runs: '
  for (;;) {
    const own = await leaseNow()
    if (!own) return
    const { entries } = await waitFor(name, { failure, find: list }, waiter)
    const there = entries.find(({ key }) => key === own.key)?.lease
    if (there && addressText(there.attrs.publicIp) === own.publicIp) return
    calm.info(
      `The ${manager.name} store does not have the lease of the running weftd, ${own.key} for ${own.publicIp}; checking for up to ${SAME_NETWORK_MS / 1000} s`,
    )
    if (lackedMs > SAME_NETWORK_MS)
      throw new WeftError(
        'DEVICE',
        `the weftd that runs on this host has the lease ${own.key} for ${own.publicIp}, which the ${manager.name} store of this one does not have`,
        { remedy: 'name the store of the network that this host is in, or stop the other weftd first' },
      )
    const pauseMs = RETRY_MS * (0.5 + Math.random() / 2)
    await pause(signal, pauseMs)
    lackedMs += pauseMs
  }
}

/**
 * Throws WeftError DEVICE if the predecessor's lease, `before`, has another public IP than this process would publish.
 */
export function refuseToMove({ publicIp }: LeaseAttrs, before: KeyAndIp | undefined): void {
  const own = addressText(publicIp)
  // A node that had only IPv6 keeps its IPv6 subnet when it gets its first IPv4 subnet, so it is enough that the IPv6
  // public address is unchanged.
  if (!before || listed(publicIp).some((address) => formatAddress(address) === before.publicIp)) return
  throw new WeftError(
    'DEVICE',
    `the weftd that runs on this host has the public IP ${before.publicIp}, and this one has ${own}: the node would move to ` +
      'another subnet, and its containers would be cut off',
    { remedy: 'name the same public IP with --public-ip or --iface, or stop the other weftd first' },
  )
}
