// families.ts - the firewall's interface, and its parts for each family. A failure of one family does not affect the other.

import { isWeftError, type WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Run } from '../../host/command.ts'
import { FAMILIES, formatNet, type Family, type Net, type Nets } from '../../net/address.ts'
import type { FirewallWish } from './rules.ts'

export interface Firewall {
  /**
   * Throws WeftError if `raise` would, as far as the tool shows it without a change. A tool that does not answer in time is no reason to
   * throw. Left out if `raise` never throws.
   */
  check?(): Promise<void>
  /**
   * Sets the rules for the first time, and removes rules that other versions, flags or the other mode left. If flanneld would continue after
   * a failure, it logs the failure; if flanneld would end, it throws WeftError.
   */
  raise(subnet: Nets): Promise<void>
  /** Repairs the rules, or sets them for another subnet. */
  ensure(subnet: Nets): Promise<Ensured>
  /** Makes the next `ensure` search again for unwanted rules, because another daemon may have restored them since `raise`. */
  lookAgain?(): void
}

/** The repairs in words, and the failures. */
export interface Ensured {
  readonly repaired: readonly string[]
  readonly failures: readonly WeftError[]
}

export interface FirewallOptions extends Pick<FirewallWish, 'masq' | 'forward'> {
  readonly network: Nets
  /** --ip-masq-fully-random-disable */
  readonly plainPorts: boolean
  /** The network and the subnet of an earlier run. */
  readonly previous: { readonly network: Nets; readonly subnet: Nets }
  readonly run: Run
  readonly log: Log
}

/** The wanted rules of one family. If `isOn` is false there are none, and the nets have no meaning. */
export interface FamilyWish extends Omit<FirewallWish, 'randomFully'> {
  readonly isOn: boolean
}

/** The options of one family. */
export interface Part {
  readonly family: Family
  /** The family's network; if the family is off, the network of the earlier run. */
  readonly network: Net
  /** The networks whose rules belong to this daemon, as the tools print them: its own network and that of an earlier run. */
  readonly ours: ReadonlySet<string>
  /** Returns the wanted rules. The family is off if the configuration or the node lacks it. */
  readonly wishFor: (subnet: Nets) => FamilyWish
}

/** Returns the parts of the enabled families, and of the families of an earlier run, whose rules must go. */
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

/** Returns networks as iptables and nft print them. */
const networksOf = (...networks: readonly (Net | undefined)[]): ReadonlySet<string> =>
  new Set(networks.flatMap((network) => (network ? [formatNet(network)] : [])))

/** Runs all works in order and collects their repairs. A work that fails does not prevent the next one. */
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
