// rules.ts - the firewall rules of a network, as text for iptables-restore and nft, in flanneld's words.
//
// Pure. The rules are flannel's (pkg/trafficmngr/iptables/iptables.go and nftables/nftables.go), chain by chain.

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

/** A chain of flannel's in iptables, and the built-in chain that jumps to it (`jump` without its `-A CHAIN`). */
export interface IptablesChain {
  readonly table: 'nat' | 'filter'
  readonly chain: string
  readonly from: string
  readonly jump: string
}

const MASQ = '-m comment --comment "flanneld masq"'
const FORWARD = '-m comment --comment "flanneld forward"'

const POSTRTG: IptablesChain = {
  table: 'nat',
  chain: 'FLANNEL-POSTRTG',
  from: 'POSTROUTING',
  jump: `${MASQ} -j FLANNEL-POSTRTG`,
}
const FWD: IptablesChain = { table: 'filter', chain: 'FLANNEL-FWD', from: 'FORWARD', jump: `${FORWARD} -j FLANNEL-FWD` }
/** All there are, in the order in which flanneld makes them. */
export const FLANNEL_CHAINS = [POSTRTG, FWD] as const

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

export const NFT_TABLES = [
  { family: 'ip', name: 'flannel-ipv4' },
  { family: 'ip6', name: 'flannel-ipv6' },
] as const

/** Input of `nft -f -` that removes our tables; naming a table first makes it no error that there is none. */
export function nftRemoval(): string {
  return lines(
    NFT_TABLES.flatMap(({ family, name }) => [`add table ${family} ${name}`, `delete table ${family} ${name}`]),
  )
}

/**
 * Input of `nft -f -`, which is one transaction. Both tables are made, as flanneld does. The fourth rule of postrtg is iptables'
 * fourth: flanneld's own (`saddr != S daddr N return`) keeps the last one from ever being reached.
 */
export function nftInput({ network, subnet, masq, forward, randomFully }: FirewallWish): string {
  const n = formatIpv4Net(network)
  const s = formatIpv4Net(subnet)
  const masquerade = randomFully ? 'masquerade fully-random' : 'masquerade'
  const postrtg = [
    '  chain postrtg {',
    '    comment "chain to manage traffic masquerading by flannel"',
    '    type nat hook postrouting priority srcnat; policy accept;',
    '    meta mark 0x4000 return',
    `    ip saddr ${s} ip daddr ${n} return`,
    `    ip saddr ${n} ip daddr ${s} return`,
    `    ip saddr != ${n} ip daddr ${s} return`,
    `    ip saddr ${n} ip daddr != 224.0.0.0/4 ${masquerade}`,
    `    ip saddr != ${n} ip daddr ${n} ${masquerade}`,
    '  }',
  ]
  const forwarding = [
    '  chain forward {',
    '    comment "chain to accept flannel traffic"',
    '    type filter hook forward priority filter; policy accept;',
    `    ip saddr ${n} accept`,
    `    ip daddr ${n} accept`,
    '  }',
  ]
  return lines([
    ...nftRemoval().trimEnd().split('\n'),
    'table ip flannel-ipv4 {',
    '  comment "rules for flannel-ipv4"',
    ...(masq ? postrtg : []),
    ...(forward ? forwarding : []),
    '}',
    'table ip6 flannel-ipv6 {',
    '  comment "rules for flannel-ipv6"',
    '}',
  ])
}

/** iptables-restore waits so many seconds for its lock, less than a command may take. */
export const WAIT = ['--wait', '5'] as const

/** Whether this iptables knows --random-fully and iptables-restore --wait: 1.6.2 or later. `text` is what --version prints. */
export function isIptables162(text: string): boolean {
  const [major = 0, minor = 0, patch = 0] = (/v(\d+)\.(\d+)\.(\d+)/.exec(text) ?? []).slice(1).map(Number)
  return major !== 1 ? major > 1 : minor !== 6 ? minor > 6 : patch >= 2
}

const lines = (all: readonly string[]): string => all.map((line) => `${line}\n`).join('')
