// iptables.ts - sets and repairs the firewall rules with iptables and ip6tables.

import { access } from 'node:fs/promises'
import { describeError, isWeftError, prefixed } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { isRefusal, notInstalled, type Run } from '../../host/command.ts'
import { isIptables162, isNfTables, WAIT } from '../../host/iptables.ts'
import type { HostKernel, NftTable } from '../../host/kernel.ts'
import { FAMILIES, formatNet, type Family, type Net, type Nets } from '../../net/address.ts'
import { ensureEach, partsOf, type Firewall, type FirewallOptions, type Part } from './families.ts'
import {
  findFlannelRules,
  FLANNEL_CHAINS,
  isAnothers,
  readTables,
  removalInput,
  WORDS,
  type IptablesChain,
  type Tables,
} from './flannel-rules.ts'
import { listNftTable } from './nft-listing.ts'
import { iptablesRules, nftRemoval, oursIn, restoreInput } from './rules.ts'
import { UnchangedRules } from './unchanged-rules.ts'

/** The texts of flanneld's log lines for each family, which must stay the same. */
const SAYS = {
  ipv4: {
    masq: 'Setting up masking rules',
    forward: 'Changing default FORWARD chain policy to ACCEPT',
    noProgram: 'Failed to setup IPTables.',
    noNet: '0.0.0.0/0',
  },
  ipv6: {
    masq: 'Setting up masking rules for IPv6',
    forward: 'IPv6: Changing default FORWARD chain policy to ACCEPT',
    noProgram: 'Failed to setup IP6Tables.',
    noNet: '::/0',
  },
} as const

/**
 * A text that equals no listing. weftd stores it in place of a listing if another program changed the rules immediately
 * after weftd set them, so that the next `ensure` sets them again.
 */
const UNDONE = 'undone'

/** The maximum number of chains and sets in nftables up to which weftd reads all rules with one iptables-save. */
const FEW_CHAINS = 200

/** Returns the rules of all tables of one family. */
type ReadTables = () => Promise<Tables>

/** A chain that weftd has set. */
interface SetChain {
  readonly chain: IptablesChain
  /** The beginning of the chain's entry in `#shown`, which consists of this node's subnet and a line feed. */
  readonly wanted: string
  /** The number of rules that weftd has set: the rules of the chain, and the jumps to it. */
  readonly count: number
}

export function createIptables(options: FirewallOptions): Firewall {
  const { run, kernel, log, masq, forward } = options
  const parts = partsOf(options)
  const families = parts.map((part) => new FamilyChains(part, options))
  const unchanged = new UnchangedRules(kernel)
  let isOtherToGo = false
  const tryLater = (): void => {
    isOtherToGo = true
    unchanged.forget()
  }
  return {
    lookAgain() {
      tryLater()
      for (const family of families) family.lookAgain()
    },
    ensure(subnet) {
      const isInNftables = families.every((family) => family.isInNftables(subnet))
      return unchanged.unless(subnet, isInNftables, async () => {
        if (isOtherToGo) {
          isOtherToGo = false // before the removal, because `lookAgain` may be called meanwhile
          await removeNftRules(parts, run, kernel).catch((error: unknown) => {
            // Ignore a refusal, as `raise` does, because nft would refuse the removal again.
            if (!isRefusal(error) && notInstalled(error) === undefined) tryLater()
          })
        }
        const works = families.flatMap((family) => family.works(subnet))
        return ensureEach(works.map((work) => () => prefixed('Failed to ensure iptables rules: ', work())))
      })
    },
    async raise(subnet) {
      log.info('Cleaning-up unused traffic manager rules')
      log.info('Cleaning-up nftables rules...')
      await removeNftRules(parts, run, kernel).catch((error: unknown) => log.v(2) && log.info(describeError(error)))
      log.info('Starting flannel in iptables mode...')
      if (masq || forward)
        for (const { family, wishFor } of parts) if (wishFor(subnet).isOn) await checkBridgeNetfilter(family, log)
      const readings = families.map((family) => family.reading())
      for (const chain of FLANNEL_CHAINS)
        for (const [at, family] of families.entries()) await family.bootstrap(subnet, chain, readings[at])
      for (const family of families) await family.confirmLogged()
    },
  }
}

/** Removes the nftables rules that an earlier run of this daemon set in nftables mode; rules of other daemons stay. */
async function removeNftRules(parts: readonly Part[], run: Run, kernel: HostKernel): Promise<void> {
  const listings = await Promise.all(
    FAMILIES.map(async (family) => ({
      family,
      ours: parts.find((part) => part.family === family)?.ours ?? new Set<string>(),
      text: await listNftTable(run, kernel, family),
    })),
  )
  const input = nftRemoval(listings)
  if (input !== '') await run('nft', ['-f', '-'], { input })
}

class FamilyChains {
  readonly #family: Family
  /** The networks whose rules belong to this daemon, in iptables' notation. */
  readonly #ours: ReadonlySet<string>
  /** Returns the wanted rules for a subnet of this node. */
  readonly #wishFor: Part['wishFor']
  readonly #run: Run
  readonly #kernel: HostKernel
  readonly #log: Log
  /** True if masquerading must not use fully random source ports. */
  readonly #plainPorts: boolean
  /** The network and the subnet that an earlier run wrote to subnet.env. */
  readonly #previous: FirewallOptions['previous']
  readonly #program: 'iptables' | 'ip6tables'
  /** For each chain: the subnet, and the chain's rules as iptables printed them after weftd had last set them. */
  readonly #shown = new Map<string, string>()
  /** The chains that weftd has checked or removed since the start, or since the last `lookAgain`. */
  #tidy = new Set<IptablesChain>()
  /** The chains that weftd has set and whose rules it has not read back from iptables yet. */
  #unconfirmed: readonly SetChain[] = []
  /** True if iptables has version 1.6.2 or later; undefined until weftd has read the version. */
  #isModern: boolean | undefined
  /**
   * True if iptables can print a single chain without reading all rules; undefined until weftd has read the version.
   */
  #isByChain: boolean | undefined

  constructor({ family, ours, wishFor }: Part, { run, kernel, log, plainPorts, previous }: FirewallOptions) {
    this.#family = family
    this.#ours = ours
    this.#wishFor = wishFor
    this.#run = run
    this.#kernel = kernel
    this.#log = log
    this.#plainPorts = plainPorts
    this.#previous = previous
    this.#program = WORDS[family].iptables
  }

  /** Returns a function that reads all tables at its first call, and returns the same rules at each later call. */
  reading(): ReadTables {
    let reading: Promise<Tables> | undefined
    return () => (reading ??= this.#readAll())
  }

  /** Returns true if all rules that `works` checks are in nftables, and none in legacy iptables. */
  isInNftables(subnet: Nets): boolean {
    return this.#isByChain === true || this.#chainsToCheck(subnet, FLANNEL_CHAINS).length === 0
  }

  /**
   * Returns one function for each chain that must be checked or removed, and a last function that reads the chains that
   * the earlier functions have set. All functions except the last share one reading of the tables.
   */
  works(subnet: Nets): readonly (() => Promise<readonly string[]>)[] {
    return [
      ...this.#chainWorks(subnet, FLANNEL_CHAINS, this.reading()),
      async () => {
        await this.#confirm()
        return []
      },
    ]
  }

  /** Returns the chains of `chains` that must be set, or that may have to be removed. */
  #chainsToCheck(subnet: Nets, chains: readonly IptablesChain[]): readonly IptablesChain[] {
    const wish = this.#wishFor(subnet)
    return chains.filter((chain) => wish[chain.wish] || this.#shown.has(chain.chain) || !this.#tidy.has(chain))
  }

  #chainWorks(
    subnet: Nets,
    chains: readonly IptablesChain[],
    all: ReadTables,
  ): readonly (() => Promise<readonly string[]>)[] {
    const wish = this.#wishFor(subnet)
    return this.#chainsToCheck(subnet, chains).map((chain) => async () => {
      const tidy = this.#tidy
      const isRepaired = await this.#ensureChain(chain, all, subnet).catch((error: unknown) => {
        // If iptables is not installed, this run has set no rules and cannot remove those of an earlier run, so the
        // failure is not an error.
        if (wish[chain.wish] || this.#shown.has(chain.chain) || notInstalled(error) === undefined) throw error
        return false
      })
      tidy.add(chain)
      return isRepaired ? [`rules of ${chain.chain}${this.#family === 'ipv6' ? ' (IPv6)' : ''}`] : []
    })
  }

  /**
   * Sets the rules of one chain for the first time. Only logs failures, because the functions of `works` set the rules
   * later.
   */
  async bootstrap(subnet: Nets, chain: IptablesChain, all: ReadTables = this.reading()): Promise<void> {
    const says = SAYS[this.#family]
    const wish = this.#wishFor(subnet)
    const isWanted = wish[chain.wish]
    if (isWanted && chain.wish === 'masq')
      logRecycling(
        this.#log,
        says.noNet,
        [wish.network, wish.subnet],
        [this.#previous.network[this.#family], this.#previous.subnet[this.#family]],
      )
    if (isWanted) this.#log.info(says[chain.wish])
    await this.#runLogged(this.#chainWorks(subnet, [chain], all))
  }

  /** Reads the rules that `bootstrap` has set. Only logs failures, because `works` then sets the rules again. */
  async confirmLogged(): Promise<void> {
    await this.#runLogged([
      async () => {
        await this.#confirm()
        return []
      },
    ])
  }

  async #runLogged(works: readonly (() => Promise<readonly string[]>)[]): Promise<void> {
    const { failures } = await ensureEach(works)
    for (const failure of failures) {
      const missing = notInstalled(failure)
      this.#log.error(
        missing
          ? `${SAYS[this.#family].noProgram} ${missing.replace(/^ip6/, 'ip')} binary was not found: ${describeError(failure)}`
          : `Failed to bootstrap IPTables: ${describeError(failure)}`,
      )
    }
  }

  /** Makes the next call of `works()` search again for rules that must be removed. */
  lookAgain(): void {
    this.#tidy = new Set() // a running check adds its chains to the former set
  }

  /**
   * Reads the rules of all tables. The command has no option -t, because with -t legacy iptables would create a missing
   * table, and creating the nat table starts connection tracking.
   */
  async #readAll(): Promise<Tables> {
    if (this.#isByChain && (await this.#tables())?.length === 0) return new Map()
    const text = await this.#run(`${this.#program}-save`, [])
    // If the kernel has no tables, iptables-save prints no header line, so the version stays unknown.
    const [, version] = /^# Generated by ip6?tables-save (v\d.*)$/m.exec(text) ?? []
    if (version !== undefined) this.#setVersion(version)
    return readTables(text)
  }

  #setVersion(version: string): void {
    this.#isByChain = isNfTables(version)
    this.#isModern = isIptables162(version)
  }

  /**
   * Reads the lines of a table that concern one chain. Only iptables-nft can show a single chain without reading all
   * rules of the host, of which kube-proxy makes tens of thousands. If the chain must be deleted, reads all rules,
   * because any rule may jump to the chain.
   */
  async #readLines(chain: IptablesChain, isWanted: boolean, all: ReadTables): Promise<readonly string[]> {
    const { table } = chain
    const isByChain = this.#isByChain && !hasFewChains(await this.#tables())
    const some = isByChain ? await readChains(this.#run, this.#program, chain, !this.#tidy.has(chain)) : undefined
    const goes = some && findFlannelRules(table, some, this.#ours, isWanted ? chain : undefined).removal
    return some && !goes?.some((line) => line.startsWith('-X ')) ? some : ((await all()).get(table) ?? [])
  }

  /**
   * Sets the rules of one chain, or removes a chain that is not wanted. Returns true if rules were missing and had to
   * be restored. `all` reads all tables.
   */
  async #ensureChain(chain: IptablesChain, all: ReadTables, subnet: Nets): Promise<boolean> {
    if (this.#isModern === undefined) {
      const tables = await this.#tables()
      // The header line that iptables-save prints contains the version of iptables. If there are few chains, weftd
      // reads all rules with iptables-save in any case (#readLines), so it reads the rules now and need not run
      // `iptables --version`. If there are many chains, iptables-save would take longer than `iptables --version`.
      if (tables?.length !== 0 && hasFewChains(tables)) await all()
    }
    if (this.#isModern === undefined) this.#setVersion(await this.#run(this.#program, ['--version']))
    const wish = this.#wishFor(subnet)
    const rules = iptablesRules(chain, { ...wish, randomFully: this.#isModern === true && !this.#plainPorts })
    const lines = await this.#readLines(chain, rules !== undefined, all)
    const restore = (input: string) =>
      this.#run(`${this.#program}-restore`, ['--noflush', ...(this.#isModern ? WAIT : [])], { input, patient: true })
    if (!rules) {
      const input = removalInput(new Map([[chain.table, findFlannelRules(chain.table, lines, this.#ours)]]))
      if (input !== '') await restore(input)
      this.#shown.delete(chain.chain)
      return false
    }
    const known = this.#shown.get(chain.chain)
    const wanted = `${formatNet(wish.subnet)}\n`
    const there = oursIn(lines, chain)
    if (known === wanted + this.#ownOf(there).join('\n')) return false
    const others = there
      .filter((line) => isAnothers(line, this.#ours))
      .map((line) => line.slice(`-A ${chain.chain} `.length))
    const { removal } = findFlannelRules(chain.table, lines, this.#ours, chain)
    const isMending = known?.startsWith(wanted) ?? false
    if (isMending) this.#log.info('Some iptables rules are missing; deleting and recreating rules')
    await restore(restoreInput(chain, [...rules, ...others], there, removal))
    this.#log.info('bootstrap done')
    this.#unconfirmed = [...this.#unconfirmed, { chain, wanted, count: rules.length + 1 }]
    return isMending
  }

  /** Reads the rules of the chains that weftd has set, as iptables prints them. */
  async #confirm(): Promise<void> {
    const chains = this.#unconfirmed
    this.#unconfirmed = []
    if (chains.length === 0) return
    const all = hasFewChains(await this.#tables()) ? this.reading() : undefined
    for (const { chain, wanted, count } of chains) {
      const readTable = async () => readTables(await this.#run(`${this.#program}-save`, ['-t', chain.table]))
      const now = this.#ownOf(oursIn(await this.#readLines(chain, true, all ?? readTable), chain))
      this.#shown.set(chain.chain, wanted + (now.length === count ? now.join('\n') : UNDONE))
    }
  }

  /** Lists the family's tables of iptables-nft and nft; undefined if the kernel does not list them. */
  async #tables(): Promise<readonly NftTable[] | undefined> {
    return (await this.#kernel.nftTables())?.filter(({ family }) => family === WORDS[this.#family].nft)
  }

  /** Returns the rules of this daemon, without those of other daemons. */
  #ownOf(lines: readonly string[]): readonly string[] {
    return lines.filter((line) => !isAnothers(line, this.#ours))
  }
}

/**
 * Returns true if there are so few chains of iptables-nft that reading all rules costs less than starting a program for
 * each chain. kube-proxy makes at least two chains for each service.
 */
const hasFewChains = (tables: readonly NftTable[] | undefined): boolean =>
  tables !== undefined && tables.reduce((sum, { objects }) => sum + objects, 0) <= FEW_CHAINS

/**
 * Matches the error with which iptables reports a missing chain. The wording changed around version 1.8.8; this
 * expression matches both wordings.
 */
const NO_CHAIN = /No chain\/target\/match by that name|does not exist|is incompatible/

/**
 * Reads with iptables-nft the chain of flannel and the built-in chain that jumps to it, and returns their lines in the
 * notation of iptables-save. If `isFirst` is true, also reads the chain of flannel 0.5. Returns undefined if the tool
 * failed for a chain that may exist, for example because the built-in chain contains a rule from nft that this iptables
 * cannot print. The caller then reads all rules: if weftd considered the chain missing, it would rebuild the chain
 * without the rules of other daemons.
 */
async function readChains(
  run: Run,
  program: string,
  { table, chain, from }: IptablesChain,
  isFirst: boolean,
): Promise<readonly string[] | undefined> {
  const show = (name: string): Promise<string | undefined> =>
    run(program, ['-t', table, '-S', name]).catch((error: unknown) => {
      if (!isWeftError(error, 'COMMAND') || notInstalled(error)) throw error
      return name !== from && NO_CHAIN.test(error.message) ? '' : undefined
    })
  const shown: string[] = []
  for (const name of [from, chain, ...(isFirst && table === 'nat' ? ['FLANNEL'] : [])]) {
    const text = await show(name)
    if (text === undefined) return undefined
    shown.push(...text.split('\n').filter((line) => line !== ''))
  }
  return shown.map((line) => line.replace(/^-N (\S+)$/, ':$1 - [0:0]').replace(/^-P (\S+) (\S+)$/, ':$1 $2 [0:0]'))
}

/**
 * Logs flanneld's line about a changed network if the network or subnet differs from that in subnet.env. `none` is the
 * text for a missing network in subnet.env.
 */
function logRecycling(log: Log, none: string, now: readonly Net[], before: readonly (Net | undefined)[]): void {
  const text = (nets: readonly (Net | undefined)[]): string =>
    nets.map((net) => (net ? formatNet(net) : none)).join(', ')
  if (text(now) === text(before)) return
  log.info(
    `Current network or subnet (${text(now)}) is not equal to previous one (${text(before)}), ` +
      'trying to recycle old iptables rules',
  )
}

/**
 * Warns if the kernel module br_netfilter is not loaded. Without this module, packets between two ports of a bridge
 * bypass iptables. flanneld exits without the module. weft continues, because only containers on the same bridge are
 * affected.
 */
async function checkBridgeNetfilter(family: Family, log: Log): Promise<void> {
  const file = `/proc/sys/net/bridge/bridge-nf-call-${WORDS[family].iptables}`
  try {
    await access(file)
  } catch {
    log.warn(
      `Failed to check br_netfilter: stat ${file}: no such file or directory; ` +
        'if containers are on a bridge, load it with `modprobe br_netfilter`, or rules do not see traffic within the bridge',
    )
  }
}
