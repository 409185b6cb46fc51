// families.ts - what a firewall has of each family, and how what one of them cannot do is kept from the other.

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
   * The first rules, and the end of those that other versions, other flags or the other mode left. As flanneld, it logs what
   * fails and returns where flanneld goes on, and throws WeftError where flanneld ends.
   */
  raise(subnet: Nets): Promise<void>
  /** Makes the rules right again, also for another subnet. */
  ensure(subnet: Nets): Promise<Ensured>
  /** Makes the next `ensure` search again for unwanted rules, because another daemon may have restored them since `raise`. */
  lookAgain?(): void
}

/** The repairs, in words, and what could not be made right. */
export interface Ensured {
  readonly mended: readonly string[]
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

/** The rules that one family is to have: none when `isOn` is false, and the nets mean nothing then. */
export interface FamilyWish extends Omit<FirewallWish, 'randomFully'> {
  readonly isOn: boolean
}

/** The part of the options that is one family's. */
export interface Part {
  readonly family: Family
  /** The family's network; when it is off, the earlier run's. */
  readonly network: Net
  /** The networks whose rules are this daemon's, as the tools write them: its own, and that of an earlier run. */
  readonly ours: ReadonlySet<string>
  /** A family is off where the configuration has none of it, or the node has no subnet of it. */
  readonly wishFor: (subnet: Nets) => FamilyWish
}

/** The parts of the families that are on, and of those that an earlier run had: its rules go. Nothing is asked of another one. */
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

/** Networks as iptables and nft write them. */
const networksOf = (...networks: readonly (Net | undefined)[]): ReadonlySet<string> =>
  new Set(networks.flatMap((network) => (network ? [formatNet(network)] : [])))

/** Does one work after another, each of which returns what it mended: what one cannot do does not keep the next from being done. */
export async function ensureEach(works: readonly (() => Promise<readonly string[]>)[]): Promise<Ensured> {
  const mended: string[] = []
  const failures: WeftError[] = []
  for (const work of works) {
    try {
      mended.push(...(await work()))
    } catch (error) {
      if (!isWeftError(error)) throw error
      failures.push(error)
    }
  }
  return { mended, failures }
}
