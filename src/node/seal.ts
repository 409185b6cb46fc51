// seal.ts - keeps the packets of a network from leaving unencrypted, and containers from getting unencrypted packets of
// the network, if the backend encrypts.

import { describeError, isWeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import type { HostKernel } from '../host/kernel.ts'
import { linkAgain } from '../host/links.ts'
import { familyOf, formatNet, listed, netContains, type Net } from '../net/address.ts'
import { keepRule, keepUnreachable } from '../path/device/userspace-guard.ts'
import type { NewNode, PathFacts } from './node.ts'

type External = Pick<PathFacts['backend']['external'], 'name' | 'index'>

type Sealed = Pick<PathFacts, 'config'> & {
  readonly backend: Pick<PathFacts['backend'], 'isSealed'> & { readonly external?: External }
}

/**
 * With a backend that encrypts, makes an unreachable route to the network of each family. Without this route the
 * packets of a family that the data path does not carry now would leave unencrypted by the default route. Also makes a
 * policy routing rule that drops forged packets of the network that arrive unencrypted at the external interface. If
 * the kernel refuses the route or the rule, only logs the failure, because a kernel without IPv6 sends and forwards no
 * IPv6 packets either.
 */
export async function seal(
  { kernel, log }: Pick<NewNode, 'kernel'> & { readonly log: Pick<Log, 'warn'> },
  { config, backend: { isSealed, external } }: Sealed,
): Promise<void> {
  if (!isSealed) return
  for (const { network } of listed(config)) {
    const text = formatNet(network)
    await keepUnreachable(kernel, network).catch((error: unknown) =>
      log.warn(`Unencrypted packets to ${text} are not blocked: ${refusalOf(error)}`),
    )
    if (!external) continue
    const { name } = external
    await refuseForged(kernel, network, external).catch((error: unknown) =>
      log.warn(`Unencrypted packets from ${name} to ${text} are not blocked: ${refusalOf(error)}`),
    )
  }
}

/** Describes the kernel's refusal, which is a WeftError. Throws any other error. */
function refusalOf(error: unknown): string {
  if (!isWeftError(error)) throw error
  return describeError(error)
}

/**
 * Makes the rule that drops unencrypted packets within the network from the external interface. If this interface has
 * an address within the network, removes the rule instead: other hosts, or containers of this host, on the link of the
 * interface may then have addresses of the network, and this host must forward their packets.
 */
async function refuseForged(kernel: HostKernel, network: Net, { name, index }: External): Promise<void> {
  const link = await linkAgain(kernel, name, index)
  if (!link) return
  const isWithin = link.addresses[familyOf(network)].some(({ address }) => netContains(network, address))
  await keepRule(kernel, network, isWithin ? undefined : link.name)
}
