// rules.ts - the text of a network's firewall rules for iptables-restore and nft. Pure.
//
// The rules are flannel's, chain by chain (pkg/trafficmngr/iptables/iptables.go, nftables/nftables.go).

import { familyOf, formatNet, type Family, type Net } from '../../net/address.ts'
import { FORWARD, isAnothers, MASQ, WORDS, type IptablesChain } from './flannel-rules.ts'

/** The rules that one family should have. */
export interface FirewallWish {
  readonly network: Net
  /** This node's subnet, which is a part of `network`. */
  readonly subnet: Net
  readonly masq: boolean
  readonly forward: boolean
  /** True if masquerading must choose source ports fully at random. */
  readonly randomFully: boolean
}

/** Returns the rules of a chain, without `-A CHAIN` at their beginning; undefined if the chain is not wanted. */
export function iptablesRules(chain: IptablesChain, wish: FirewallWish): readonly string[] | undefined {
  if (!wish[chain.wish]) return undefined
  const n = formatNet(wish.network)
  const s = formatNet(wish.subnet)
  if (chain.wish === 'forward') return [`-s ${n} ${FORWARD} -j ACCEPT`, `-d ${n} ${FORWARD} -j ACCEPT`]
  const masquerade = `-j MASQUERADE${wish.randomFully ? ' --random-fully' : ''}`
  return [
    // kube-proxy marks the packets that it masquerades itself with 0x4000, so flannel's rules skip such packets.
    `-m mark --mark 0x4000/0x4000 ${MASQ} -j RETURN`,
    `-s ${s} -d ${n} ${MASQ} -j RETURN`,
    `-s ${n} -d ${s} ${MASQ} -j RETURN`,
    `! -s ${n} -d ${s} ${MASQ} -j RETURN`,
    `-s ${n} ! -d ${WORDS[familyOf(wish.network)].multicast} ${MASQ} ${masquerade}`,
    `! -s ${n} -d ${n} ${MASQ} ${masquerade}`,
  ]
}

/**
 * Returns the lines of an iptables-save table that are jumps to the chain, and then the lines that are the chain's
 * rules. So the result does not depend on the order in which a program lists the chains of a table.
 */
export function oursIn(table: readonly string[], { chain }: IptablesChain): readonly string[] {
  return [
    ...table.filter((line) => line.endsWith(` -j ${chain}`)),
    ...table.filter((line) => line.startsWith(`-A ${chain} `)),
  ]
}

/**
 * Returns input of `iptables-restore --noflush` for one table. The input is one transaction, so that no packet sees an
 * empty chain; the line that declares the chain empties it. `ours` has the chain's present rules and jumps. The input
 * removes the present jumps and appends one jump. `removal` lists further commands that remove rules.
 */
export function restoreInput(
  { table, chain, from, jump }: IptablesChain,
  rules: readonly string[],
  ours: readonly string[],
  removal: readonly string[] = [],
): string {
  const jumps = ours.filter((line) => line.endsWith(` -j ${chain}`))
  return lines([
    `*${table}`,
    ...removal,
    `:${chain} - [0:0]`,
    ...jumps.map((line) => line.replace(/^-A/, '-D')),
    ...rules.map((rule) => `-A ${chain} ${rule}`),
    `-A ${from} ${jump}`,
    'COMMIT',
  ])
}

/**
 * The text of flannel's nftables table of a family, as `nft list table` prints it; empty if the table does not exist.
 */
interface NftListing {
  readonly family: Family
  readonly text: string
  /** The networks whose rules belong to this daemon; rules for other networks belong to other daemons. */
  readonly ours: ReadonlySet<string>
}

/**
 * Returns input of `nft -f -` that removes this daemon's rules, and both families' tables if no other daemon has rules
 * in them. Returns an empty text if there are no rules to remove.
 */
export function nftRemoval(listings: readonly NftListing[]): string {
  const there = listings.filter(({ text }) => text !== '')
  const split = there.map(({ family, text, ours }) => ({ family, text, ...splitNftTable(text, ours) }))
  const isShared = split.some(({ others }) => others.postrtg.length + others.forward.length > 0)
  // Precede the deletion by `add table`, because the deletion would fail if another program had already deleted the
  // table.
  const gone = ({ nft, table }: { nft: string; table: string }) =>
    ['add', 'delete'].map((verb) => `${verb} table ${nft} ${table}`)
  if (!isShared) return lines(there.flatMap(({ family }) => gone(WORDS[family])))
  // If another daemon has rules in a table, keep these rules, and keep an empty table of the second family too, because
  // that daemon made both tables.
  return split
    .filter(({ own }) => NFT_RULE.test(own))
    .map(({ family, others }) => nftChains(family, { postrtg: [], forward: [] }, others))
    .join('')
}

/** Matches a rule that names a network in the output of `nft list table`. */
const NFT_RULE = /^\s+ip6? [sd]addr /m

const NFT_CHAINS = ['postrtg', 'forward'] as const

/** The rules of each chain of flannel's nftables table, by the name of the chain. */
interface NftOthers {
  readonly postrtg: readonly string[]
  readonly forward: readonly string[]
}

/**
 * Splits the output of `nft list table` into flannel's chains without the rules of other daemons (`own`), and the rules
 * of other daemons (`others`).
 */
export function splitNftTable(
  text: string,
  networks: ReadonlySet<string>,
): { readonly own: string; readonly others: NftOthers } {
  const others = { postrtg: [] as string[], forward: [] as string[] }
  /**
   * The header of the block that contains the current line, such as `chain postrtg`. Only lines in flannel's chains are
   * kept.
   */
  let block = ''
  const own = text.split('\n').filter((line) => {
    const isEnd = /^(\t| {2})\}$/.test(line)
    block = /^(?:\t| {2})(\w+ \S+) \{$/.exec(line)?.[1] ?? block
    const chain = NFT_CHAINS.find((name) => block === `chain ${name}`)
    const isOurs = block === '' || chain !== undefined
    if (isEnd) block = ''
    if (!chain || !isAnothers(line, networks)) return isOurs
    others[chain].push(line.trim())
    return false
  })
  return { own: own.join('\n'), others }
}

/**
 * Returns input of `nft -f -` that creates a family's table if it does not exist. An existing table keeps its comment.
 */
export function nftTable(family: Family): string {
  const { nft, table } = WORDS[family]
  return lines([`add table ${nft} ${table} { comment "rules for ${table}"; }`])
}

/**
 * Returns input of `nft -f -` that sets a family's table. The input is one transaction, which rebuilds flannel's chains
 * and leaves the rest of the table unchanged. The fourth rule of the chain postrtg is the rule that flanneld sets in
 * iptables mode. The rule that flanneld sets with nft (`saddr != SUBNET daddr NETWORK return`) would make the last rule
 * unreachable.
 */
export function nftInput(
  { network, subnet, masq, forward, randomFully }: FirewallWish,
  others: NftOthers = { postrtg: [], forward: [] },
): string {
  const family = familyOf(network)
  const { nft: ip, multicast } = WORDS[family]
  const n = formatNet(network)
  const s = formatNet(subnet)
  const masquerade = randomFully ? 'masquerade fully-random' : 'masquerade'
  const masqRules = [
    `${ip} saddr ${s} ${ip} daddr ${n} return`,
    `${ip} saddr ${n} ${ip} daddr ${s} return`,
    `${ip} saddr != ${n} ${ip} daddr ${s} return`,
    `${ip} saddr ${n} ${ip} daddr != ${multicast} ${masquerade}`,
    `${ip} saddr != ${n} ${ip} daddr ${n} ${masquerade}`,
  ]
  const forwardRules = [`${ip} saddr ${n} accept`, `${ip} daddr ${n} accept`]
  const own = { postrtg: masq ? masqRules : [], forward: forward ? forwardRules : [] }
  return nftTable(family) + nftChains(family, own, others)
}

/**
 * Returns input of `nft -f -` that rebuilds flannel's chains with this daemon's rules and the rules of other daemons.
 * Leaves out chains without rules.
 */
function nftChains(family: Family, own: NftOthers, others: NftOthers): string {
  const { nft: ip, table } = WORDS[family]
  const [masq, forward] = [
    [...own.postrtg, ...others.postrtg],
    [...own.forward, ...others.forward],
  ]
  const postrtg = [
    '  chain postrtg {',
    '    comment "chain to manage traffic masquerading by flannel"',
    '    type nat hook postrouting priority srcnat; policy accept;',
    '    meta mark 0x4000 return',
    ...masq.map((rule) => `    ${rule}`),
    '  }',
  ]
  const forwarding = [
    '  chain forward {',
    '    comment "chain to accept flannel traffic"',
    '    type filter hook forward priority filter; policy accept;',
    ...forward.map((rule) => `    ${rule}`),
    '  }',
  ]
  return lines([
    // Add each chain before deleting it, because nft refuses to delete a missing chain.
    ...NFT_CHAINS.flatMap((name) => ['add', 'flush', 'delete'].map((verb) => `${verb} chain ${ip} ${table} ${name}`)),
    `table ${ip} ${table} {`,
    ...(masq.length > 0 ? postrtg : []),
    ...(forward.length > 0 ? forwarding : []),
    '}',
  ])
}

const lines = (all: readonly string[]): string => all.map((line) => `${line}\n`).join('')
