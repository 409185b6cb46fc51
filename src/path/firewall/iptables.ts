// iptables.ts - the rules by iptables and ip6tables, each family by its own tool.

import { access } from 'node:fs/promises'
import { describeError, isWeftError, prefixed } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { notInstalled, type Run } from '../../host/command.ts'
import { isIptables162, isNfTables, WAIT } from '../../host/iptables.ts'
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

/** flanneld's words for a family. */
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

/** A state that no listing equals: another program was there right after the rules were set, so they are set again. */
const UNDONE = 'undone'

export function createIptables(options: FirewallOptions): Firewall {
  const { run, log, masq, forward } = options
  const parts = partsOf(options)
  const families = parts.map((part) => createFamily(part, options))
  let isOtherToGo = false
  return {
    lookAgain() {
      isOtherToGo = true
      for (const { lookAgain } of families) lookAgain()
    },
    async ensure(subnet) {
      if (isOtherToGo) await removeNftRules(parts, run).catch(() => {}) // as `raise` does
      isOtherToGo = false
      const works = families.flatMap((family) => family.works(subnet))
      return ensureEach(works.map((work) => () => prefixed('Failed to ensure iptables rules: ', work())))
    },
    async raise(subnet) {
      log.info('Cleaning-up unused traffic manager rules')
      log.info('Cleaning-up nftables rules...')
      await removeNftRules(parts, run).catch((error: unknown) => log.v(2) && log.info(describeError(error)))
      log.info('Starting flannel in iptables mode...')
      if (masq || forward)
        for (const { family, wishFor } of parts) if (wishFor(subnet).isOn) await checkBridgeNetfilter(family, log)
      for (const chain of FLANNEL_CHAINS) for (const { bootstrap } of families) await bootstrap(subnet, chain)
    },
  }
}

/** Removes the rules that an earlier run of this daemon left in nftables mode; the rules of other daemons stay. */
async function removeNftRules(parts: readonly Part[], run: Run): Promise<void> {
  const listings = await Promise.all(
    FAMILIES.map(async (family) => ({
      family,
      ours: parts.find((part) => part.family === family)?.ours ?? new Set<string>(),
      text: await listNftTable(run, family),
    })),
  )
  const input = nftRemoval(listings)
  if (input !== '') await run('nft', ['-f', '-'], { input })
}

/** The chains of one family. */
function createFamily({ family, ours, wishFor }: Part, { run, log, plainPorts, previous }: FirewallOptions) {
  const program = WORDS[family].iptables
  const shown = new Map<string, string>()
  const tidy = new Set<IptablesChain>()
  let isModern: boolean | undefined
  let isByChain: boolean | undefined

  /**
   * Reads all rules. Called without -t, since asking the legacy kind for a table makes it, and with it, for nat,
   * connection tracking.
   */
  const readAll = async (): Promise<Tables> => readTables(await run(`${program}-save`, []))

  /**
   * The lines of a table that have to do with a chain. Only the kind of nf_tables can show one chain without reading
   * all of them, of which kube-proxy has tens of thousands; when a chain is to go, all are read, since each may jump to
   * it.
   */
  async function readLines(
    chain: IptablesChain,
    isWanted: boolean,
    all: () => Promise<Tables>,
  ): Promise<readonly string[]> {
    const { table } = chain
    const some = isByChain ? await readChains(run, program, chain, !tidy.has(chain)) : undefined
    const goes = some && findFlannelRules(table, some, ours, isWanted ? chain : undefined).removal
    return some && !goes?.some((line) => line.startsWith('-X ')) ? some : ((await all()).get(table) ?? [])
  }

  /** Makes one chain right; true when it had to be mended. `all` reads all tables. */
  async function ensureChain(chain: IptablesChain, all: () => Promise<Tables>, subnet: Nets): Promise<boolean> {
    if (isModern === undefined) {
      const version = await run(program, ['--version'])
      isByChain = isNfTables(version)
      isModern = isIptables162(version)
    }
    const wish = wishFor(subnet)
    const rules = iptablesRules(chain, { ...wish, randomFully: isModern && !plainPorts })
    const lines = await readLines(chain, rules !== undefined, all)
    const restore = (input: string) =>
      run(`${program}-restore`, ['--noflush', ...(isModern ? WAIT : [])], { input, patient: true })
    if (!rules) {
      const input = removalInput(new Map([[chain.table, findFlannelRules(chain.table, lines, ours)]]))
      if (input !== '') await restore(input)
      shown.delete(chain.chain)
      return false
    }
    const known = shown.get(chain.chain)
    const wanted = `${formatNet(wish.subnet)}\n`
    const there = oursIn(lines, chain)
    const own = (some: readonly string[]): readonly string[] => some.filter((line) => !isAnothers(line, ours))
    if (known === wanted + own(there).join('\n')) return false
    const others = there.filter((line) => isAnothers(line, ours)).map((line) => line.slice(`-A ${chain.chain} `.length))
    const { removal } = findFlannelRules(chain.table, lines, ours, chain)
    const isMending = known?.startsWith(wanted) ?? false
    if (isMending) log.info('Some iptables rules are missing; deleting and recreating rules')
    await restore(restoreInput(chain, [...rules, ...others], there, removal))
    log.info('bootstrap done')
    const readTable = async () => readTables(await run(`${program}-save`, ['-t', chain.table]))
    const now = own(oursIn(await readLines(chain, true, readTable), chain))
    shown.set(chain.chain, wanted + (now.length === rules.length + 1 ? now.join('\n') : UNDONE))
    return isMending
  }

  /** For each chain that there is something to do with, the work that makes it right; they read the tables once. */
  function works(
    subnet: Nets,
    chains: readonly IptablesChain[] = FLANNEL_CHAINS,
  ): readonly (() => Promise<readonly string[]>)[] {
    const wish = wishFor(subnet)
    let reading: Promise<Tables> | undefined
    const all = (): Promise<Tables> => (reading ??= readAll())
    return chains
      .filter((chain) => wish[chain.wish] || shown.has(chain.chain) || !tidy.has(chain))
      .map((chain) => async () => {
        const isMended = await ensureChain(chain, all, subnet).catch((error: unknown) => {
          // Whatever an earlier run left is not to be had without the tool, and this one has made nothing.
          if (wish[chain.wish] || shown.has(chain.chain) || notInstalled(error) === undefined) throw error
          return false
        })
        tidy.add(chain)
        return isMended ? [`rules of ${chain.chain}${family === 'ipv6' ? ' (IPv6)' : ''}`] : []
      })
  }

  /** The first time for one chain: what fails is said, and tried again by `works`. */
  async function bootstrap(subnet: Nets, chain: IptablesChain): Promise<void> {
    const says = SAYS[family]
    const wish = wishFor(subnet)
    const isWanted = wish[chain.wish]
    if (isWanted && chain.wish === 'masq')
      logRecycling(log, says.noNet, [wish.network, wish.subnet], [previous.network[family], previous.subnet[family]])
    if (isWanted) log.info(says[chain.wish])
    const { failures } = await ensureEach(works(subnet, [chain]))
    for (const failure of failures) {
      const missing = notInstalled(failure)
      log.error(
        missing
          ? `${says.noProgram} ${missing.replace(/^ip6/, 'ip')} binary was not found: ${describeError(failure)}`
          : `Failed to bootstrap IPTables: ${describeError(failure)}`,
      )
    }
  }

  return { works, bootstrap, lookAgain: () => tidy.clear() }
}

/** iptables' messages about a chain that is not there: versions before and since 1.8.8 or so. */
const NO_CHAIN = /No chain\/target\/match by that name|does not exist|is incompatible/

/**
 * Reads, by the kind of nf_tables, a chain and the one that jumps to it, with `isFirst` also that of flannel 0.5, as
 * iptables-save shows them. Undefined when the tool does not show one that may be there: the built-in one where nft put
 * something into it that this iptables does not know, any when it did not answer. A chain taken for gone would be made
 * anew, without the rules of other daemons.
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

/** Logs flanneld's line when subnet.env names another network or subnet; where it names none, that is `none` for flanneld. */
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
 * With the module br_netfilter the kernel shows packets between two ports of a bridge to iptables. Where flanneld ends without it, weft
 * goes on: without a bridge, or with one whose ports do not talk to each other, all works.
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
