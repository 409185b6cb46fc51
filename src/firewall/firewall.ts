// firewall.ts - makes the kernel's rules equal the wish, by iptables or by nft, and says when they had to be mended.
//
// What the kernel shows right after the rules were applied is what it must show from then on, rule by rule and in
// order: versions of iptables and nft spell one rule in several ways. The log's texts are flanneld's.

import { access } from 'node:fs/promises'
import { describeError, isWeftError, prefixed } from '../errors.ts'
import {
  findFlannelRules,
  FLANNEL_CHAINS,
  readTables,
  removalInput,
  type IptablesChain,
  type Tables,
} from '../cleanup/flannel-rules.ts'
import { findIptablesRemains } from '../cleanup/rule-remains.ts'
import { isRefusal, notInstalled, type Run } from '../host/command.ts'
import { isIptables162, isNfTables, WAIT } from '../host/iptables.ts'
import type { Log } from '../log.ts'
import { formatIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import { createBlackhole } from './blackhole.ts'
import {
  iptablesRules,
  isAnothers,
  nftInput,
  nftRemoval,
  oursIn,
  restoreInput,
  splitNftTable,
  type FirewallWish,
} from './rules.ts'

/** With the module br_netfilter the kernel shows packets between two ports of a bridge to iptables. */
const BRIDGE_NETFILTER = '/proc/sys/net/bridge/bridge-nf-call-iptables'

/** What no listing equals: another program was there right after the rules were set, so they are set again. */
const UNDONE = 'undone'

export interface Firewall {
  /**
   * The first rules, and the end of those that other versions, other flags or the other mode left. As flanneld, it logs what
   * fails and returns where flanneld goes on, and throws WeftError where flanneld ends.
   */
  raise(subnet: Ipv4Net): Promise<void>
  /** Makes the rules right again, also for another subnet. Returns what was mended, in words; throws WeftError when it cannot. */
  ensure(subnet: Ipv4Net): Promise<readonly string[]>
}

export interface FirewallOptions extends Pick<FirewallWish, 'network' | 'masq' | 'forward'> {
  /** --ip-masq-fully-random-disable */
  readonly plainPorts: boolean
  /** Of an earlier run. */
  readonly previous: { readonly network?: Ipv4Net | undefined; readonly subnet?: Ipv4Net | undefined }
  readonly run: Run
  readonly log: Log
}

/**
 * The firewall by the tool that the network configuration names. There is work for it also when nothing is wanted: an earlier
 * run may have left some rules.
 */
export function createFirewall(
  tool: 'iptables' | 'nftables',
  options: FirewallOptions & { readonly blackhole: boolean },
): Firewall {
  const rules = tool === 'nftables' ? createNftables(options) : createIptables(options)
  return options.blackhole ? withBlackhole(rules, options) : rules
}

/** The rules, and the route beside them: what cannot be had of it at the start is only said. */
function withBlackhole(rules: Firewall, { network, run, log }: FirewallOptions): Firewall {
  const blackhole = createBlackhole(run, network)
  const ensureRoute = (subnet: Ipv4Net) => prefixed('Failed to setup blackhole route, ', blackhole.ensure(subnet))
  return {
    async raise(subnet) {
      await rules.raise(subnet)
      await ensureRoute(subnet).catch((error: unknown) => log.error(describeError(error)))
    },
    ensure: async (subnet) => (await Promise.all([rules.ensure(subnet), ensureRoute(subnet)])).flat(),
  }
}

export function createIptables({ run, log, plainPorts, previous, ...wish }: FirewallOptions): Firewall {
  const ours = networksOf(wish.network, previous.network)
  const shown = new Map<string, string>()
  const tidy = new Set<IptablesChain>()
  let isModern: boolean | undefined
  let isByChain: boolean | undefined

  /** All that there is. Without -t, since asking the legacy kind for a table makes it, and with it, for nat, connection tracking. */
  const readAll = async (): Promise<Tables> => readTables(await run('iptables-save', []))

  /**
   * Of a chain's table what has to do with it. Only the kind of nf_tables can show one chain without reading all of them, of which
   * kube-proxy has tens of thousands; where a chain is to go, all are read, since each may jump to it.
   */
  async function readLines(
    chain: IptablesChain,
    isWanted: boolean,
    all: () => Promise<Tables>,
  ): Promise<readonly string[]> {
    const { table } = chain
    const some = isByChain ? await readChains(run, chain, !tidy.has(chain)) : undefined
    const goes = some && findFlannelRules(table, some, ours, isWanted ? chain : undefined).removal
    return some && !goes?.some((line) => line.startsWith('-X ')) ? some : ((await all()).get(table) ?? [])
  }

  /** Makes one chain right; true when it had to be mended. `all` reads all tables. */
  async function ensureChain(chain: IptablesChain, all: () => Promise<Tables>, subnet: Ipv4Net): Promise<boolean> {
    const rules = iptablesRules(chain, { ...wish, subnet, randomFully: isModern === true && !plainPorts })
    if (!rules && tidy.has(chain)) return false
    const lines = await readLines(chain, rules !== undefined, all)
    const restore = (input: string) =>
      run('iptables-restore', ['--noflush', ...(isModern ? WAIT : [])], { input, patient: true })
    if (!rules) {
      const input = removalInput(new Map([[chain.table, findFlannelRules(chain.table, lines, ours)]]))
      if (input !== '') await restore(input)
      return false
    }
    const known = shown.get(chain.chain)
    const wanted = `${formatIpv4Net(subnet)}\n`
    const there = oursIn(lines, chain)
    const own = (some: readonly string[]): readonly string[] => some.filter((line) => !isAnothers(line, ours))
    if (known === wanted + own(there).join('\n')) return false
    const others = there.filter((line) => isAnothers(line, ours)).map((line) => line.slice(`-A ${chain.chain} `.length))
    const { removal } = findFlannelRules(chain.table, lines, ours, chain)
    const isMending = known?.startsWith(wanted) ?? false
    if (isMending) log.info('Some iptables rules are missing; deleting and recreating rules')
    await restore(restoreInput(chain, [...rules, ...others], there, removal))
    log.info('bootstrap done')
    const readTable = async () => readTables(await run('iptables-save', ['-t', chain.table]))
    const now = own(oursIn(await readLines(chain, true, readTable), chain))
    shown.set(chain.chain, wanted + (now.length === rules.length + 1 ? now.join('\n') : UNDONE))
    return isMending
  }

  async function ensure(
    subnet: Ipv4Net,
    chains: readonly IptablesChain[] = FLANNEL_CHAINS,
  ): Promise<readonly string[]> {
    if (!wish.masq && !wish.forward && chains.every((chain) => tidy.has(chain))) return []
    if (isModern === undefined) {
      const version = await run('iptables', ['--version'])
      isByChain = isNfTables(version)
      isModern = isIptables162(version)
    }
    let reading: Promise<Tables> | undefined
    const all = (): Promise<Tables> => (reading ??= readAll())
    const mended: string[] = []
    const failures: unknown[] = []
    for (const chain of chains) {
      try {
        if (await ensureChain(chain, all, subnet)) mended.push(`rules of ${chain.chain}`)
        tidy.add(chain)
      } catch (error) {
        failures.push(error) // a kernel without NAT can still forward
      }
    }
    if (failures.length > 0) throw failures[0]
    return mended
  }

  /** The first time for one chain: what fails is said, and tried again by `ensure`. */
  async function bootstrap(subnet: Ipv4Net, chain: IptablesChain, isWanted: boolean): Promise<void> {
    try {
      await ensure(subnet, [chain])
    } catch (error) {
      if (!isWeftError(error)) throw error
      const missing = notInstalled(error)
      if (missing && !isWanted) return
      log.error(
        missing
          ? `Failed to setup IPTables. ${missing} binary was not found: ${describeError(error)}`
          : `Failed to bootstrap IPTables: ${describeError(error)}`,
      )
    }
  }

  return {
    ensure: (subnet) => prefixed('Failed to ensure iptables rules: ', ensure(subnet)),
    async raise(subnet) {
      log.info('Cleaning-up unused traffic manager rules')
      log.info('Cleaning-up nftables rules...')
      await run('nft', ['-f', '-'], { input: nftRemoval() }).catch(
        (error: unknown) => log.v(2) && log.info(describeError(error)),
      )
      log.info('Starting flannel in iptables mode...')
      if (wish.masq || wish.forward) await checkBridgeNetfilter(log)
      const [masquerade, forward] = FLANNEL_CHAINS
      if (wish.masq) {
        logRecycling(log, [wish.network, subnet], [previous.network, previous.subnet])
        log.info('Setting up masking rules')
      }
      await bootstrap(subnet, masquerade, wish.masq)
      if (wish.forward) log.info('Changing default FORWARD chain policy to ACCEPT')
      await bootstrap(subnet, forward, wish.forward)
    },
  }
}

/** What iptables says of a chain that is not there: versions before and since 1.8.8 or so. */
const NO_CHAIN = /No chain\/target\/match by that name|does not exist|is incompatible/

/**
 * By the kind of nf_tables: a chain and the one that jumps to it, with `isFirst` also that of flannel 0.5, as iptables-save shows
 * them. Undefined where the tool does not show one that may be there: the built-in one where nft put something into it that this
 * iptables does not know, any where it did not answer. Taken for gone it would be made anew, without the rules of other daemons.
 */
async function readChains(
  run: Run,
  { table, chain, from }: IptablesChain,
  isFirst: boolean,
): Promise<readonly string[] | undefined> {
  const show = (name: string): Promise<string | undefined> =>
    run('iptables', ['-t', table, '-S', name]).catch((error: unknown) => {
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

export function createNftables({ run, log, plainPorts, previous, ...wish }: FirewallOptions): Firewall {
  const setup = wish.masq
    ? "nftables: couldn't setup masq rules: "
    : wish.forward
      ? "nftables: couldn't setup forward rules: "
      : "nftables: couldn't initialise table flannel-ipv4: "
  const ours = networksOf(wish.network, previous.network)
  let shown: string | undefined
  let randomFully: boolean | undefined
  const read = () =>
    run('nft', ['-s', 'list', 'table', 'ip', 'flannel-ipv4']).catch((error: unknown) => {
      // There is none. Taken for gone where nft did not answer it would be made anew, without the rules of other daemons.
      if (isWeftError(error, 'COMMAND') && isRefusal(error)) return ''
      throw error
    })

  async function ensure(subnet: Ipv4Net): Promise<readonly string[]> {
    randomFully ??= !plainPorts && (await knowsFullyRandom(run, log))
    const wanted = `${formatIpv4Net(subnet)}\n`
    const { own, others } = splitNftTable(await read(), ours)
    if (shown === wanted + own) return []
    const input = nftInput({ ...wish, subnet, randomFully }, others)
    await run('nft', ['-f', '-'], { input })
    const now = splitNftTable(await read(), ours)
    const rules = countNftRules(now.own) + now.others.postrtg.length + now.others.forward.length
    const mended = shown?.startsWith(wanted) ? ['the table flannel-ipv4'] : []
    shown = wanted + (rules === countNftRules(input) ? now.own : UNDONE)
    return mended
  }

  return {
    ensure: (subnet) => prefixed(setup, ensure(subnet)),
    async raise(subnet) {
      log.info('Cleaning-up unused traffic manager rules')
      await removeIptablesRules(run, ours, log)
      log.info('Starting flannel in nftables mode...')
      await prefixed('no nftables support: ', run('nft', ['--version']))
      if (wish.masq) log.info('nftables: setting up masking rules (ipv4)')
      if (wish.forward) log.info('Changing default FORWARD chain policy to ACCEPT')
      try {
        await prefixed(wish.masq ? `Failed to setup masq rules, ${setup}` : setup, ensure(subnet))
      } catch (error) {
        if (wish.masq || !wish.forward || !isWeftError(error)) throw error
        log.error(describeError(error))
      }
    },
  }
}

const countNftRules = (text: string): number =>
  text.match(/^\s+(ip|meta) .*(return|accept|masquerade.*)$/gm)?.length ?? 0

/** Networks as iptables writes them. */
const networksOf = (...networks: readonly (Ipv4Net | undefined)[]): ReadonlySet<string> =>
  new Set(networks.flatMap((network) => (network ? [formatIpv4Net(network)] : [])))

/** What flanneld says when subnet.env, which for it is `0.0.0.0/0` where there is none, names another network or subnet. */
function logRecycling(log: Log, now: readonly Ipv4Net[], before: readonly (Ipv4Net | undefined)[]): void {
  const text = (nets: readonly (Ipv4Net | undefined)[]): string =>
    nets.map((net) => (net ? formatIpv4Net(net) : '0.0.0.0/0')).join(', ')
  if (text(now) === text(before)) return
  log.info(
    `Current network or subnet (${text(now)}) is not equal to previous one (${text(before)}), ` +
      'trying to recycle old iptables rules',
  )
}

/** Where flanneld ends, weft goes on: without a bridge, or with one whose ports do not talk to each other, all works. */
async function checkBridgeNetfilter(log: Log): Promise<void> {
  try {
    await access(BRIDGE_NETFILTER)
  } catch {
    log.warn(
      `Failed to check br_netfilter: stat ${BRIDGE_NETFILTER}: no such file or directory; ` +
        'if containers are on a bridge, load it with `modprobe br_netfilter`, or rules do not see traffic within the bridge',
    )
  }
}

async function knowsFullyRandom(run: Run, log: Log): Promise<boolean> {
  const input =
    'table ip masqueradeTest { chain test { type nat hook postrouting priority srcnat; masquerade fully-random; }; }\n'
  try {
    await run('nft', ['-c', '-f', '-'], { input })
    return true
  } catch {
    log.warn('nftables: random fully unsupported')
    return false
  }
}

/** Removes what an iptables mode left. What cannot be removed does not keep the node from starting. */
async function removeIptablesRules(run: Run, networks: ReadonlySet<string>, log: Log): Promise<void> {
  log.info('Cleaning-up iptables rules...')
  try {
    const { remains, unseen } = await findIptablesRemains(run, networks, false)
    for (const each of remains) {
      await each.remove()
      for (const reason of each.stays) log.warn(`There stays ${reason}`)
    }
    for (const where of unseen) log.warn(`Rules that an iptables mode left may stay: ${where}`)
  } catch (error) {
    if (!isWeftError(error)) throw error
    log.warn(`Rules that an iptables mode left, if any, stay: ${describeError(error)}`)
  }
}
