// rules.ts - the firewall rules of a network, as text for iptables-restore and nft, in flanneld's words.
//
// Pure. The rules are flannel's (pkg/trafficmngr/iptables/iptables.go and nftables/nftables.go), chain by chain.

import { FLANNEL_CHAINS, FORWARD, MASQ, NFT_TABLES, type IptablesChain } from '../cleanup/flannel-rules.ts'
import { formatIpv4Net, type Ipv4Net } from '../net/ipv4.ts'

export interface FirewallWish {
  readonly network: Ipv4Net
  /** This node's own. */
  readonly subnet: Ipv4Net
  readonly masq: boolean
  readonly forward: boolean
  /** Masquerade from fully random source ports. */
  readonly randomFully: boolean
}

const [, FWD] = FLANNEL_CHAINS

/** The rules of one of our chains; undefined when it is not wanted. */
export function iptablesRules(
  { chain }: IptablesChain,
  { network, subnet, masq, forward, randomFully }: FirewallWish,
): readonly string[] | undefined {
  const n = formatIpv4Net(network)
  const s = formatIpv4Net(subnet)
  if (chain === FWD.chain) return forward ? [`-s ${n} ${FORWARD} -j ACCEPT`, `-d ${n} ${FORWARD} -j ACCEPT`] : undefined
  const masquerade = `-j MASQUERADE${randomFully ? ' --random-fully' : ''}`
  const rules = [
    // The mark by which kube-proxy asks for a masquerade of its own.
    `-m mark --mark 0x4000/0x4000 ${MASQ} -j RETURN`,
    `-s ${s} -d ${n} ${MASQ} -j RETURN`,
    `-s ${n} -d ${s} ${MASQ} -j RETURN`,
    `! -s ${n} -d ${s} ${MASQ} -j RETURN`,
    `-s ${n} ! -d 224.0.0.0/4 ${MASQ} ${masquerade}`,
    `! -s ${n} -d ${n} ${MASQ} ${masquerade}`,
  ]
  return masq ? rules : undefined
}

/** Of a table's lines in iptables-save: the rules of a chain and the jumps to it, in order, and nothing of others. */
export function oursIn(table: readonly string[], { chain }: IptablesChain): readonly string[] {
  return table.filter((line) => line.startsWith(`-A ${chain} `) || line.endsWith(` -j ${chain}`))
}

const NET = String.raw`\d+\.\d+\.\d+\.\d+\/\d+`
/** A rule of ours that names networks, as iptables-save and `nft list` show it. */
const NETWORK_RULE = new RegExp(
  `^-A FLANNEL-\\S+( (! )?-[sd] ${NET})+ -m comment --comment "flanneld (masq|forward)" -j [A-Z]+( --random-fully)?$` +
    `|^\\s*ip [sd]addr (!= )?${NET}( ip daddr (!= )?${NET})? (return|accept|masquerade( fully-random)?)$`,
)

/**
 * Whether a rule is that of another daemon on this host: flannel's, and for none of `networks`. Each has its own network in
 * the chains that all share.
 */
export function isAnothers(rule: string, networks: ReadonlySet<string>): boolean {
  return NETWORK_RULE.test(rule) && !(rule.match(new RegExp(NET, 'g')) ?? []).some((network) => networks.has(network))
}

/**
 * A table of the input of `iptables-restore --noflush`: one COMMIT, so that no packet ever meets an empty chain. Naming the
 * chain empties it within the transaction. `ours` are the lines that there are: their jumps are taken away, and one is added
 * at the end. `removal` is what else goes.
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

/** Input of `nft -f -` that removes our tables; naming a table first makes it no error that there is none. */
export function nftRemoval(): string {
  return lines(
    NFT_TABLES.flatMap(({ family, name }) => [`add table ${family} ${name}`, `delete table ${family} ${name}`]),
  )
}

/** Our chains in the table of IPv4. */
const NFT_CHAINS = ['postrtg', 'forward'] as const

/** The rules of other daemons in the nftables mode's table. */
export interface NftOthers {
  readonly postrtg: readonly string[]
  readonly forward: readonly string[]
}

/** What `nft list table` prints of our chains, without the rules of other daemons, and those. */
export function splitNftTable(
  text: string,
  networks: ReadonlySet<string>,
): { readonly own: string; readonly others: NftOthers } {
  const others = { postrtg: [] as string[], forward: [] as string[] }
  /** What stands in the table beside our chains is nobody's business here. */
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
 * Input of `nft -f -`, which is one transaction. Both tables are made, as flanneld does. Our chains are made anew, whatever they were,
 * and nothing else in the tables is touched. The fourth rule of postrtg is iptables'
 * fourth: flanneld's own (`saddr != S daddr N return`) keeps the last one from ever being reached.
 */
export function nftInput(
  { network, subnet, masq, forward, randomFully }: FirewallWish,
  others: NftOthers = { postrtg: [], forward: [] },
): string {
  const n = formatIpv4Net(network)
  const s = formatIpv4Net(subnet)
  const masquerade = randomFully ? 'masquerade fully-random' : 'masquerade'
  const masqRules = [
    `ip saddr ${s} ip daddr ${n} return`,
    `ip saddr ${n} ip daddr ${s} return`,
    `ip saddr != ${n} ip daddr ${s} return`,
    `ip saddr ${n} ip daddr != 224.0.0.0/4 ${masquerade}`,
    `ip saddr != ${n} ip daddr ${n} ${masquerade}`,
  ]
  const postrtg = [
    '  chain postrtg {',
    '    comment "chain to manage traffic masquerading by flannel"',
    '    type nat hook postrouting priority srcnat; policy accept;',
    '    meta mark 0x4000 return',
    ...[...(masq ? masqRules : []), ...others.postrtg].map((rule) => `    ${rule}`),
    '  }',
  ]
  const forwardRules = [`ip saddr ${n} accept`, `ip daddr ${n} accept`]
  const forwarding = [
    '  chain forward {',
    '    comment "chain to accept flannel traffic"',
    '    type filter hook forward priority filter; policy accept;',
    ...[...(forward ? forwardRules : []), ...others.forward].map((rule) => `    ${rule}`),
    '  }',
  ]
  return lines([
    // The comment of a table that is there stays as it is.
    'add table ip flannel-ipv4 { comment "rules for flannel-ipv4"; }',
    // Added first, so that deleting it is no error where there is none.
    ...NFT_CHAINS.flatMap((name) => ['add', 'flush', 'delete'].map((verb) => `${verb} chain ip flannel-ipv4 ${name}`)),
    'table ip flannel-ipv4 {',
    ...(masq || others.postrtg.length > 0 ? postrtg : []),
    ...(forward || others.forward.length > 0 ? forwarding : []),
    '}',
    'table ip6 flannel-ipv6 {',
    '  comment "rules for flannel-ipv6"',
    '}',
  ])
}

const lines = (all: readonly string[]): string => all.map((line) => `${line}\n`).join('')
