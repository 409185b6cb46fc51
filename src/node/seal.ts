// seal.ts - keeps the packets of a network from leaving unencrypted, if the backend encrypts.

import { describeError, isWeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { formatNet, listed } from '../net/address.ts'
import { keepUnreachable } from '../path/device/userspace-guard.ts'
import type { NewNode, PathFacts } from './node.ts'

/**
 * With a backend that encrypts, makes an unreachable route to the network of each family. Without this route the
 * packets of a family that the data path does not carry now would leave unencrypted by the default route. If the kernel
 * refuses the route, only logs the failure, because a kernel without IPv6 sends no IPv6 packets either.
 */
export async function seal(
  { kernel, log }: Pick<NewNode, 'kernel'> & { readonly log: Pick<Log, 'warn'> },
  { config, backend }: Pick<PathFacts, 'config'> & { readonly backend: Pick<PathFacts['backend'], 'isSealed'> },
): Promise<void> {
  if (!backend.isSealed) return
  for (const { network } of listed(config)) {
    try {
      await keepUnreachable(kernel, network)
    } catch (error) {
      if (!isWeftError(error)) throw error
      log.warn(`Unencrypted packets to ${formatNet(network)} are not blocked: ${describeError(error)}`)
    }
  }
}
