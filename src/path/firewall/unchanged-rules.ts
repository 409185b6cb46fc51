// unchanged-rules.ts - skips a check of the firewall rules if the kernel shows that no program has changed a rule since
// the last check.

import type { HostKernel } from '../../host/kernel.ts'
import { FAMILIES, formatNet, type Nets } from '../../net/address.ts'
import type { Ensured } from './families.ts'

export class UnchangedRules {
  readonly #kernel: HostKernel
  /**
   * The generation number of nftables' rules, which the kernel raises at each change of a rule. It was read before the
   * last check if that check had no failures; otherwise it is undefined, so that `unless` checks the rules next time.
   */
  #generation: number | undefined
  /** This node's subnets at the last check, as text. */
  #subnet = ''
  /** True if `forget` was called since the last check began. */
  #isForgotten = false

  constructor(kernel: HostKernel) {
    this.#kernel = kernel
  }

  /**
   * Calls `check` unless no rule has changed since the last check. `isInNftables` must be true only if nftables holds
   * all rules that `check` reads, because the kernel has no generation number for rules of legacy iptables.
   */
  async unless(subnet: Nets, isInNftables: boolean, check: () => Promise<Ensured>): Promise<Ensured> {
    // Read the generation number before the rules. A change during the check, even a repair by the check, then raises
    // the number above the stored one, so another check follows.
    const generation = isInNftables ? await this.#kernel.nftGeneration() : undefined
    const text = FAMILIES.map((family) => subnet[family] && formatNet(subnet[family])).join()
    if (generation !== undefined && generation === this.#generation && text === this.#subnet)
      return { repaired: [], failures: [] }
    this.#generation = undefined
    this.#isForgotten = false
    const done = await check()
    this.#subnet = text
    if (done.failures.length === 0 && !this.#isForgotten) this.#generation = generation
    return done
  }

  /** Makes the next call of `unless` check the rules. */
  forget(): void {
    this.#isForgotten = true
    this.#generation = undefined
  }
}
