// nftables.ts - sets and repairs the firewall rules with nft: one table for each family, each of which weftd sets in
// one transaction.

import { describeError, isWeftError, prefixed, type WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { isRefusal, notInstalled, type Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { FAMILIES, formatNet, type Family, type Nets } from '../../net/address.ts'
import { ensureEach, partsOf, type FamilyWish, type Firewall, type FirewallOptions, type Part } from './families.ts'
import { WORDS } from './flannel-rules.ts'
import { listNftTable } from './nft-listing.ts'
import { findIptablesRemains } from './rule-remains.ts'
import { nftInput, nftTable, splitNftTable } from './rules.ts'
import { UnchangedRules } from './unchanged-rules.ts'

/** The texts of flanneld's log lines for each family, which must stay the same. */
const SAYS = {
  ipv4: {
    masq: 'nftables: setting up masking rules (ipv4)',
    forward: 'Changing default FORWARD chain policy to ACCEPT',
  },
  ipv6: {
    masq: 'nftables: setting up masking rules (ipv6)',
    forward: 'Changing default FORWARD chain policy to ACCEPT (ipv6)',
  },
} as const

/**
 * A text that equals no listing. weftd stores it in place of a listing if another program changed the rules immediately
 * after weftd set them, so that the next `ensure` sets them again.
 */
const UNDONE = 'undone'

export function createNftables(options: FirewallOptions): Firewall {
  const { run, kernel, log, masq, forward, plainPorts } = options
  const parts = partsOf(options)
  const ports = new MasqueradePorts(!plainPorts, log)
  // Like flanneld, create the tables of both families, even if the network has only one family.
  const others = FAMILIES.filter((family) => !parts.some((part) => part.family === family))
  const beside = others.map(nftTable).join('')
  const tables = parts.map((part) => ({ ...part, workFor: createTable(part, run, kernel, ports, beside) }))
  const removeOther = () => removeIptablesRules(run, kernel, new Set(parts.flatMap(({ ours }) => [...ours])), log)
  const unchanged = new UnchangedRules(kernel)
  let isOtherToGo = false
  /** True if nft has accepted the rules, which shows that nft is installed and works. */
  let isNftSound = false
  /**
   * Returns the wanted rules of a family before this node's subnet is known. The rules have the network in place of the
   * subnet, because the kernel accepts rules with the network if and only if it accepts rules with a subnet.
   */
  const preliminary = ({ family, network, wishFor }: Part) => wishFor({ [family]: network })
  const inputOf = (part: Part): string => nftInput({ ...preliminary(part), randomFully: false })
  /** Makes nft list flannel's tables, and check the rules of all families without setting them. */
  const tryAll = async (): Promise<void> => {
    for (const { family } of parts) await listNftTable(run, kernel, family)
    await run('nft', ['-c', '-f', '-'], { input: parts.map(inputOf).join('') })
    isNftSound = true
  }
  /**
   * Returns the first failure if weftd must exit: flanneld exits if masquerading is enabled and the table of no family
   * could be set. Returns undefined if weftd can continue.
   */
  const fatalOf = (failures: readonly WeftError[], isUp: boolean): WeftError | undefined =>
    isUp || (forward && !masq) ? undefined : failures[0]
  return {
    async check() {
      try {
        return await answered(tryAll())
      } catch (error) {
        if (!isWeftError(error)) throw error
      }
      await prefixed('no nftables support: ', answered(run('nft', ['--version'])))
      const failures: WeftError[] = []
      let isUp = false
      for (const part of parts) {
        const { family } = part
        const wish = preliminary(part)
        try {
          const words = `${wish.masq ? 'Failed to setup masq rules, ' : ''}${failedWords(family, wish)}`
          await prefixed(words, answered(listNftTable(run, kernel, family)))
          await prefixed(words, answered(run('nft', ['-c', '-f', '-'], { input: inputOf(part) })))
          isUp ||= wish.isOn
        } catch (error) {
          if (!isWeftError(error)) throw error
          failures.push(error)
        }
      }
      const fatal = fatalOf(failures, isUp)
      if (fatal) throw fatal
    },
    ensure: (subnet) =>
      unchanged.unless(subnet, true, async () => {
        if (isOtherToGo) {
          isOtherToGo = false // before the removal, because `lookAgain` may be called meanwhile
          await removeOther()
        }
        return ensureEach(tables.map(({ workFor }) => workFor(subnet)))
      }),
    lookAgain() {
      isOtherToGo = true
      unchanged.forget()
    },
    async raise(subnet) {
      log.info('Cleaning-up unused traffic manager rules')
      log.info('Cleaning-up iptables rules...')
      await removeOther()
      log.info('Starting flannel in nftables mode...')
      if (!isNftSound) await prefixed('no nftables support: ', run('nft', ['--version']))
      for (const rules of ['masq', 'forward'] as const)
        for (const { family, wishFor } of parts) if (wishFor(subnet)[rules]) log.info(SAYS[family][rules])
      const failures: WeftError[] = []
      let isUp = false
      for (const { wishFor, workFor } of tables) {
        const wish = wishFor(subnet)
        try {
          await prefixed(wish.masq ? 'Failed to setup masq rules, ' : '', workFor(subnet)())
          isUp ||= wish.isOn
        } catch (error) {
          if (!isWeftError(error)) throw error
          failures.push(error)
        }
      }
      const fatal = fatalOf(failures, isUp)
      for (const failure of failures) if (failure !== fatal) log.error(describeError(failure))
      if (fatal) throw fatal
    },
  }
}

/**
 * Waits for a command of nft. Rejects if nft refused the command or is not installed. Resolves if nft did not answer in
 * time, because a later try may succeed.
 */
async function answered(command: Promise<unknown>): Promise<void> {
  await command.catch((error: unknown) => {
    if (isRefusal(error) || notInstalled(error) !== undefined) throw error
  })
}

/** Returns the beginning of flanneld's error message for a family whose table cannot be set. */
function failedWords(family: Family, { masq, forward }: FamilyWish): string {
  if (masq) return "nftables: couldn't setup masq rules: "
  return forward
    ? "nftables: couldn't setup forward rules: "
    : `nftables: couldn't initialise table ${WORDS[family].table}: `
}

/**
 * Returns a function that, for this node's subnets, sets one family's table and returns a description of each repair.
 */
function createTable(
  { family, ours, wishFor }: Part,
  run: Run,
  kernel: HostKernel,
  ports: MasqueradePorts,
  /** Input of `nft` that creates the tables of the families that the network does not have, as flanneld does. */
  beside: string,
): (subnet: Nets) => () => Promise<readonly string[]> {
  const { table } = WORDS[family]
  let shown: string | undefined
  const read = () => listNftTable(run, kernel, family)

  /** Sets the rules that `inputFor` returns. Returns the input that nft accepted. */
  async function put(inputFor: (randomFully: boolean) => string, randomFully: boolean): Promise<string> {
    const input = inputFor(randomFully)
    const write = (all: string): Promise<string> => run('nft', ['-f', '-'], { input: all })
    try {
      await write(input + beside)
    } catch (error) {
      if (!isRefusal(error)) throw error
      if (randomFully && !(await knowsFullyRandom(run))) {
        const plain = await put(inputFor, false)
        ports.giveUpRandom()
        return plain
      }
      if (beside === '') throw error
      await write(input) // a kernel without the other family cannot have its table
    }
    return input
  }

  async function ensure(wish: FamilyWish): Promise<readonly string[]> {
    const wanted = `${formatNet(wish.subnet)}\n`
    const { own, others } = splitNftTable(await read(), ours)
    if (shown === wanted + own) return []
    const inputFor = (randomFully: boolean): string => nftInput({ ...wish, randomFully }, others)
    const input = await put(inputFor, wish.masq && ports.areRandom)
    const now = splitNftTable(await read(), ours)
    const rules = countNftRules(now.own) + now.others.postrtg.length + now.others.forward.length
    const repaired = shown?.startsWith(wanted) ? [`the table ${table}`] : []
    shown = wanted + (rules === countNftRules(input) ? now.own : UNDONE)
    return repaired
  }

  return (subnet) => () => {
    const wish = wishFor(subnet)
    return prefixed(failedWords(family, wish), ensure(wish))
  }
}

const countNftRules = (text: string): number =>
  text.match(/^\s+(ip6?|meta) .*(return|accept|masquerade.*)$/gm)?.length ?? 0

/** How the masquerading rules of both families choose source ports. */
class MasqueradePorts {
  readonly #log: Log
  #areRandom: boolean

  constructor(areRandom: boolean, log: Log) {
    this.#areRandom = areRandom
    this.#log = log
  }

  /** True to choose ports fully at random. */
  get areRandom(): boolean {
    return this.#areRandom
  }

  /** Makes `areRandom` false, because nft does not support the option `fully-random`. */
  giveUpRandom(): void {
    if (this.#areRandom) this.#log.warn('nftables: random fully unsupported')
    this.#areRandom = false
  }
}

/**
 * Returns true if nft supports the option `fully-random`. Like flanneld, tests the option with an IPv4 table for both
 * families. Rejects if nft does not answer.
 */
async function knowsFullyRandom(run: Run): Promise<boolean> {
  const input =
    'table ip masqueradeTest { chain test { type nat hook postrouting priority srcnat; masquerade fully-random; }; }\n'
  try {
    await run('nft', ['-c', '-f', '-'], { input })
    return true
  } catch (error) {
    if (!isRefusal(error)) throw error
    return false
  }
}

/**
 * Removes the iptables rules that an earlier run in iptables mode left. Only logs failures, because the node can work
 * without the removal.
 */
async function removeIptablesRules(
  run: Run,
  kernel: HostKernel,
  networks: ReadonlySet<string>,
  log: Log,
): Promise<void> {
  try {
    const { remains, unseen } = await findIptablesRemains(run, kernel, networks, false)
    for (const each of remains) {
      await each.remove()
      for (const reason of each.stays) log.warn(`Not removed: ${reason}`)
    }
    for (const where of unseen) log.warn(`Rules that an iptables mode left may stay: ${where}`)
  } catch (error) {
    if (!isWeftError(error)) throw error
    log.warn(`Rules that an iptables mode left, if any, stay: ${describeError(error)}`)
  }
}
