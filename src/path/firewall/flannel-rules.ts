// flannel-rules.ts - recognises the rules of every flannel version in a listing of iptables or nft, and no other rules.
// Pure.
//
// Up to version 0.5 flannel had a chain FLANNEL. Up to 0.19 its rules were in the chains POSTROUTING and FORWARD, since
// 0.16 with a comment. Since 0.20 they are in chains that only flannel uses (network/ipmasq.go, network/iptables.go of
// those versions). A rule is flannel's if it has flannel's comment or is in a chain with flannel's name. Any other rule
// counts as flannel's only if it is part of a complete set of flannel's rules, in order, for a network that is known to
// be flannel's.

import type { Family } from '../../net/address.ts'

/** The names that iptables and nft use for a family, and the family's multicast range, which is never masqueraded. */
export const WORDS = {
  ipv4: { iptables: 'iptables', nft: 'ip', table: 'flannel-ipv4', multicast: '224.0.0.0/4' },
  ipv6: { iptables: 'ip6tables', nft: 'ip6', table: 'flannel-ipv6', multicast: 'ff00::/8' },
} as const satisfies Readonly<Record<Family, object>>

/**
 * A chain of flannel in iptables. The built-in chain `from` jumps to it by the rule `jump`, which is given without `-A
 * CHAIN`.
 */
export interface IptablesChain {
  /** The member of FirewallWish that must be true for the chain to exist. */
  readonly wish: 'masq' | 'forward'
  readonly table: 'nat' | 'filter'
  readonly chain: string
  readonly from: string
  readonly jump: string
}

/** The match arguments of iptables for flannel's comments, which mark flannel's rules. */
export const MASQ = '-m comment --comment "flanneld masq"'
export const FORWARD = '-m comment --comment "flanneld forward"'

const POSTRTG: IptablesChain = {
  wish: 'masq',
  table: 'nat',
  chain: 'FLANNEL-POSTRTG',
  from: 'POSTROUTING',
  jump: `${MASQ} -j FLANNEL-POSTRTG`,
}
const FWD: IptablesChain = {
  wish: 'forward',
  table: 'filter',
  chain: 'FLANNEL-FWD',
  from: 'FORWARD',
  jump: `${FORWARD} -j FLANNEL-FWD`,
}
/** flannel's chains, in the order in which flanneld creates them. */
export const FLANNEL_CHAINS = [POSTRTG, FWD] as const

/** The output of iptables-save: for each table, the lines between its name and COMMIT. */
export type Tables = ReadonlyMap<string, readonly string[]>

interface FlannelRules {
  /** The rules and chains that are flannel's, in the notation of iptables-save. */
  readonly rules: readonly string[]
  /**
   * The commands that remove these rules, as input of `iptables-restore --noflush` between the table's name and COMMIT.
   */
  readonly removal: readonly string[]
  /** Rules of other programs that jump to a chain of flannel. weft empties such a chain, but does not delete it. */
  readonly stays: readonly string[]
}

export function readTables(save: string): Tables {
  const tables = new Map<string, string[]>()
  let current: string[] = []
  for (const line of save.split('\n')) {
    if (line.startsWith('*')) tables.set(line.slice(1), (current = []))
    else if (line !== '' && line !== 'COMMIT' && !line.startsWith('#')) current.push(line)
  }
  return tables
}

const NET = String.raw`([0-9a-f.:]+\/\d+)`
const masqForm = (match: string, target: string): RegExp =>
  new RegExp(`^-A POSTROUTING ${match} (-m comment --comment "flanneld masq" )?-j ${target}$`)
const forwardForm = (match: string): RegExp =>
  new RegExp(`^-A FORWARD ${match} (-m comment --comment "flanneld forward" )?-j ACCEPT$`)
const MASQUERADE = 'MASQUERADE(?: --random-fully)?'

/**
 * The forms of the rules that old versions of flannel put into built-in chains, each with the letter that MASQ_SETS
 * uses. The first group of each expression is the network, the second is flannel's comment.
 */
const FORMS: readonly (readonly [letter: string, form: RegExp])[] = [
  ['r', masqForm(String.raw`-s ${NET} -d \1`, 'RETURN')],
  ['m', masqForm(String.raw`-s ${NET} ! -d (?:224\.0\.0\.0\/4|ff00::\/8)`, MASQUERADE)],
  ['s', masqForm(String.raw`! -s ${NET} -d (?!\1 )[0-9a-f.:]+\/\d+`, 'RETURN')],
  ['h', masqForm(String.raw`! -s ${NET} -d \1`, MASQUERADE)],
  ['j', new RegExp(`^-A POSTROUTING -s ${NET} -j FLANNEL$`)],
  ['f', forwardForm(`-s ${NET}`)],
  ['t', forwardForm(`-d ${NET}`)],
]
/**
 * Matches the complete sets of masquerading rules of flannel 0.6 to 0.8, 0.9 to 0.19, and 0.5, written as the letters
 * of FORMS. FORWARD_SETS matches the set of forwarding rules of flannel 0.9 and later.
 */
const MASQ_SETS = /rms?h|jh?/g
const FORWARD_SETS = /ft/g

interface Placed {
  readonly line: string
  readonly letter: string
  readonly network: string
  readonly commented: boolean
}

function placed(lines: readonly string[]): Placed[] {
  const isOldChain = hasChainOf05(lines)
  return lines.flatMap((line) => {
    for (const [letter, form] of FORMS) {
      const match = form.exec(line)
      if (match && (letter !== 'j' || isOldChain))
        return [{ line, letter, network: match[1] ?? '', commented: match[2] !== undefined }]
    }
    return []
  })
}

/**
 * Returns the rules that form complete sets of flannel's rules, each set for one network and in flannel's order. Rules
 * of other programs may be between them.
 */
function inSets(rules: readonly Placed[], sets: RegExp): Placed[] {
  const networks = new Set(rules.map(({ network }) => network))
  return [...networks].flatMap((network) => {
    const candidates = rules.filter((rule) => rule.network === network)
    const letters = candidates.map(({ letter }) => letter).join('')
    return [...letters.matchAll(sets)].flatMap(({ index, 0: set }) => candidates.slice(index, index + set.length))
  })
}

/**
 * Returns true if the chain FLANNEL contains exactly the two rules of flannel 0.5, which shows that no other program
 * made the chain.
 */
function hasChainOf05(lines: readonly string[]): boolean {
  const rules = lines.filter((line) => line.startsWith('-A FLANNEL ')).join('\n')
  return new RegExp(String.raw`^-A FLANNEL -d ${NET} -j ACCEPT\n-A FLANNEL ! -d 224\.0\.0\.0/4 -j MASQUERADE$`).test(
    rules,
  )
}

const rulesOf = (lines: readonly string[], chain: string): string[] =>
  lines.filter((line) => line.startsWith(`-A ${chain} `))
const networksIn = (text: string): string[] => text.match(new RegExp(NET, 'g')) ?? []

/** Matches a rule that names networks and is in a chain of flannel, as iptables-save and `nft list` print it. */
const NETWORK_RULE = new RegExp(
  `^-A FLANNEL-\\S+( (! )?-[sd] ${NET})+ -m comment --comment "flanneld (masq|forward)" -j [A-Z]+( --random-fully)?$` +
    `|^\\s*(?<ip>ip6?) [sd]addr (!= )?${NET}( \\k<ip> daddr (!= )?${NET})? (return|accept|masquerade( fully-random)?)$`,
)

/**
 * Returns true for a rule of flannel that names networks, but none of `networks`. All daemons on a host use the same
 * chains, so such a rule belongs to the daemon of another network.
 */
export function isAnothers(rule: string, networks: ReadonlySet<string>): boolean {
  return NETWORK_RULE.test(rule) && !networksIn(rule).some((network) => networks.has(network))
}

/** Returns the networks in rules that certainly belong to flannel. */
export function flannelNetworks(lines: readonly string[]): string[] {
  const rules = placed(lines)
  const sure = [...rules.filter(({ commented }) => commented), ...inSets(rules, MASQ_SETS)]
  // In the chains of flannel 0.20 and later, the rules that this expression matches name the network first. All other
  // rules name the node's subnet first.
  const own = lines.filter((line) => /^-A FLANNEL-(?:POSTRTG -s \S+ ! -d|FWD -[sd]) /.test(line))
  return [...new Set([...sure.map(({ network }) => network), ...own.flatMap((line) => networksIn(line).slice(0, 1))])]
}

/**
 * Finds in one table the rules of flannel for `networks`, which are in iptables' notation. Ignores the chain `except`
 * and the jumps to it. If a chain also contains rules of another daemon, weft keeps the chain, and removes from it only
 * the rules for `networks`.
 */
export function findFlannelRules(
  table: string,
  lines: readonly string[],
  networks: ReadonlySet<string>,
  except?: Pick<IptablesChain, 'chain'>,
): FlannelRules {
  const ours = placed(lines).filter(({ network }) => networks.has(network))
  const uncommented = ours.filter(({ commented }) => !commented)
  const wanted = new Set([
    ...ours.filter(({ commented }) => commented),
    ...inSets(uncommented, table === 'nat' ? MASQ_SETS : FORWARD_SETS),
  ])
  const rules = [...wanted].map(({ line }) => line)
  const removal = rules.map((line) => line.replace(/^-A/, '-D'))
  const stays: string[] = []

  for (const { chain, jump } of chainsIn(table, lines)) {
    if (chain === except?.chain) continue
    const own = rulesOf(lines, chain)
    const about = networksIn(own.join('\n'))
    if (about.length > 0 && !about.some((network) => networks.has(network))) continue
    if (own.some((rule) => isAnothers(rule, networks))) {
      const leaving = own.filter((rule) => networksIn(rule).some((network) => networks.has(network)))
      rules.push(...leaving)
      removal.push(...leaving.map((rule) => rule.replace(/^-A/, '-D')))
      continue
    }
    const jumps = lines.filter((line) => line === jump)
    const foreign = lines.filter((line) => line !== jump && line.endsWith(` -j ${chain}`) && !rules.includes(line))
    rules.push(...jumps, ...own, ...(foreign.length > 0 ? [] : [`-N ${chain}`]))
    removal.push(...jumps.map((line) => line.replace(/^-A/, '-D')), `-F ${chain}`)
    if (foreign.length === 0) removal.push(`-X ${chain}`)
    stays.push(...foreign)
  }
  return { rules, removal, stays }
}

/** Returns the chains of flannel that exist in the table, each with the rule that jumps to it. */
function chainsIn(table: string, lines: readonly string[]): { readonly chain: string; readonly jump: string }[] {
  const chains = FLANNEL_CHAINS.filter((each) => each.table === table).map(({ chain, from, jump }) => ({
    chain,
    jump: `-A ${from} ${jump}`,
  }))
  if (table === 'nat' && hasChainOf05(lines)) chains.push({ chain: 'FLANNEL', jump: '' })
  return chains.filter(({ chain }) => lines.some((line) => line.startsWith(`:${chain} `)))
}

/** Returns input of `iptables-restore --noflush` that removes the found rules; an empty text if no rules were found. */
export function removalInput(found: ReadonlyMap<string, FlannelRules>): string {
  return [...found]
    .filter(([, { removal }]) => removal.length > 0)
    .map(([table, { removal }]) => [`*${table}`, ...removal, 'COMMIT', ''].join('\n'))
    .join('')
}

interface NftRule {
  readonly chain: string
  readonly handle: number
  readonly expr: readonly Readonly<Record<string, unknown>>[]
}

/**
 * Finds flannel's chains, and the jumps to them, in a table that iptables-nft made, for hosts on which iptables is not
 * installed; `json` is the output of `nft -j -a list table`. If `networks` is left out, finds the chains of any
 * network. Does not find the rules of flannel up to 0.19, which have no chains of their own, because nft does not print
 * the comments of rules. `removal` in the result is input for `nft -f`.
 */
export function findFlannelNftRules(
  family: string,
  table: string,
  json: string,
  networks?: ReadonlySet<string>,
): FlannelRules {
  const { nftables = [] } = JSON.parse(json) as { nftables?: { chain?: { name: string }; rule?: NftRule }[] }
  const names = new Set(nftables.flatMap(({ chain }) => (chain ? [chain.name] : [])))
  const all = nftables.flatMap(({ rule }) => (rule ? [rule] : []))
  const rules: string[] = []
  const removal: string[] = []
  const stays: string[] = []
  for (const { chain, from } of FLANNEL_CHAINS.filter((each) => each.table === table)) {
    if (!names.has(chain)) continue
    const own = all.filter((rule) => rule.chain === chain)
    const ours = own.filter((rule) => !networks || networksOf(rule).some((network) => networks.has(network)))
    // If another daemon has rules in a chain, weft deletes only the rules for `networks` and keeps the chain.
    if (own.some((rule) => !ours.includes(rule) && networksOf(rule).length > 0)) {
      rules.push(...(ours.length > 0 ? [`${ours.length} rules of chain ${chain}`] : []))
      removal.push(...ours.map(({ handle }) => `delete rule ${family} ${table} ${chain} handle ${handle}`))
      continue
    }
    const jumps = all.filter(({ expr }) =>
      expr.some(({ jump }) => (jump as { target?: string } | null)?.target === chain),
    )
    const isExact = (rule: NftRule): boolean => rule.chain === from && rule.expr.every(restrictsNothing)
    const foreign = jumps.filter((rule) => !isExact(rule))
    for (const { handle } of jumps.filter(isExact)) {
      rules.push(`jump from ${from} to ${chain}`)
      removal.push(`delete rule ${family} ${table} ${from} handle ${handle}`)
    }
    removal.push(`flush chain ${family} ${table} ${chain}`)
    rules.push(`${foreign.length > 0 ? 'rules of ' : ''}chain ${chain} (${own.length} rules)`)
    if (foreign.length === 0) removal.push(`delete chain ${family} ${table} ${chain}`)
    stays.push(...foreign.map((rule) => `rule ${rule.handle} of ${rule.chain}, which jumps to ${chain}`))
  }
  return { rules, removal, stays }
}

/** Returns the networks that a rule of `nft -j` names, in iptables' notation. */
const networksOf = (rule: NftRule): string[] =>
  [...JSON.stringify(rule).matchAll(/"addr":"([^"]+)","len":(\d+)/g)].map(([, addr, len]) => `${addr}/${len}`)

/**
 * Returns true if the expression of a rule does not limit which packets match: the jump itself, a counter, and a
 * comment, which nft prints without its text.
 */
function restrictsNothing(expression: Readonly<Record<string, unknown>>): boolean {
  if ('jump' in expression || 'counter' in expression) return true
  const { xt } = expression as { xt?: { name?: string } | null }
  return xt === null || xt?.name === 'comment' // nft before 1.0.6 prints null
}
