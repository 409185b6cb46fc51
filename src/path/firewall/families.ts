// families.ts - the interface `Firewall`, and the wanted firewall rules of each family. If the rules of one family
// cannot be set, weftd still sets the rules of the second family.

import { isWeftError, type WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { FAMILIES, formatNet, type Family, type Net, type Nets } from '../../net/address.ts'
import type { FirewallWish } from './rules.ts'

export interface Firewall {
  /**
   * Finds out with iptables or nft whether `raise` would throw WeftError, and throws that error, but changes no rules.
   * Does not throw if the tool does not answer in time. Left out if `raise` never throws.
   */
  check?(): Promise<void>
  /**
   * Sets the rules for the first time. Removes rules that other versions of weftd or flanneld left, or that a run with
   * other flags or with the second tool (iptables or nft) left. Logs a failure after which flanneld would continue.
   * Throws WeftError for a failure with which flanneld would exit.
   */
  raise(subnet: Nets): Promise<void>
  /** Repairs the rules, or changes the rules if this node has another subnet now. */
  ensure(subnet: Nets): Promise<Ensured>
  /**
   * Makes the next `ensure` search again for rules that must be removed, because another daemon may have restored them
   * since `raise`.
   */
  lookAgain?(): void
}

/**
 * The result of `ensure`: descriptions of the repairs, and the errors of the rules that could not be checked or set.
 */
export interface Ensured {
  readonly repaired: readonly string[]
  readonly failures: readonly WeftError[]
}

export interface FirewallOptions extends Pick<FirewallWish, 'masq' | 'forward'> {
  readonly network: Nets
  /** True if masquerading must not use fully random source ports (--ip-masq-fully-random-disable). */
  readonly plainPorts: boolean
  /** The network and the subnet that an earlier run wrote to subnet.env. */
  readonly previous: { readonly network: Nets; readonly subnet: Nets }
  readonly run: Run
  readonly kernel: HostKernel
  readonly log: Log
}

/**
 * The wanted rules of one family. If `isOn` is false, the family must have no rules, and `network` and `subnet` are not
 * used.
 */
export interface FamilyWish extends Omit<FirewallWish, 'randomFully'> {
  readonly isOn: boolean
}

/** The networks and wanted rules of one family. */
export interface Part {
  readonly family: Family
  /**
   * The family's network. If the configuration does not enable the family, the network of the earlier run, whose rules
   * weftd must remove.
   */
  readonly network: Net
  /**
   * The networks whose rules belong to this daemon, in the notation of iptables and nft: the present network, and the
   * network of the earlier run.
   */
  readonly ours: ReadonlySet<string>
  /**
   * Returns the family's wanted rules for this node's subnets. No rules are wanted if the network configuration or the
   * node lacks the family.
   */
  readonly wishFor: (subnet: Nets) => FamilyWish
}

/**
 * Returns a Part for each enabled family, and for each family that an earlier run had, because weftd must remove the
 * rules of the earlier run.
 */
export function partsOf({ network, previous, masq, forward }: FirewallOptions): readonly Part[] {
  return FAMILIES.flatMap((family) => {
    const [now, before] = [network[family], previous.network[family]]
    const either = now ?? before
    if (!either) return []
    const wishFor = ({ [family]: own }: Nets): FamilyWish => {
      const isOn = now !== undefined && own !== undefined
      return { isOn, network: either, subnet: own ?? either, masq: isOn && masq, forward: isOn && forward }
    }
    return [{ family, network: either, ours: networksOf(now, before), wishFor }]
  })
}

/** Formats networks in the notation in which iptables and nft print them. */
const networksOf = (...networks: readonly (Net | undefined)[]): ReadonlySet<string> =>
  new Set(networks.flatMap((network) => (network ? [formatNet(network)] : [])))

/**
 * Runs all functions in `works` in order, and collects their repairs and errors. If one function fails, the next
 * function still runs.
 */
export async function ensureEach(works: readonly (() => Promise<readonly string[]>)[]): Promise<Ensured> {
  const repaired: string[] = []
  const failures: WeftError[] = []
  for (const work of works) {
    try {
      repaired.push(...(await work()))
    } catch (error) {
      if (!isWeftError(error)) throw error
      failures.push(error)
    }
  }
  return { repaired, failures }
}
