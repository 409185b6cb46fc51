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

/** A chain of ours in iptables, and the built-in chain that jumps to it. Rules without their `-A CHAIN`. */
export interface IptablesChain {
  readonly table: 'nat' | 'filter'
  readonly chain: string
  readonly from: string
  readonly jump: string
  readonly rules: readonly string[]
}

const MASQ = '-m comment --comment "flanneld masq"'
const FORWARD = '-m comment --comment "flanneld forward"'

/** The chains that are wanted, in the order in which flanneld makes them. */
export function iptablesChains({
  network,
  subnet,
  masq,
  forward,
  randomFully,
}: FirewallWish): readonly IptablesChain[] {
  const n = formatIpv4Net(network)
  const s = formatIpv4Net(subnet)
  const masquerade = `-j MASQUERADE${randomFully ? ' --random-fully' : ''}`
  const masqChain: IptablesChain = {
    table: 'nat',
    chain: 'FLANNEL-POSTRTG',
    from: 'POSTROUTING',
    jump: `${MASQ} -j FLANNEL-POSTRTG`,
    rules: [
      // The mark by which kube-proxy asks for a masquerade of its own.
      `-m mark --mark 0x4000/0x4000 ${MASQ} -j RETURN`,
      `-s ${s} -d ${n} ${MASQ} -j RETURN`,
      `-s ${n} -d ${s} ${MASQ} -j RETURN`,
      `! -s ${n} -d ${s} ${MASQ} -j RETURN`,
      `-s ${n} ! -d 224.0.0.0/4 ${MASQ} ${masquerade}`,
      `! -s ${n} -d ${n} ${MASQ} ${masquerade}`,
    ],
  }
  const forwardChain: IptablesChain = {
    table: 'filter',
    chain: 'FLANNEL-FWD',
    from: 'FORWARD',
    jump: `${FORWARD} -j FLANNEL-FWD`,
    rules: [`-s ${n} ${FORWARD} -j ACCEPT`, `-d ${n} ${FORWARD} -j ACCEPT`],
  }
  return [...(masq ? [masqChain] : []), ...(forward ? [forwardChain] : [])]
}

/** What iptables-save shows of a chain of ours: its rules and the jumps to it, in order, and nothing of others. */
export function oursInSave(save: string, { chain }: Pick<IptablesChain, 'chain'>): readonly string[] {
  return save.split('\n').filter((line) => line.startsWith(`-A ${chain} `) || line.endsWith(` -j ${chain}`))
}

/**
 * Input of `iptables-restore --noflush`: one COMMIT, so that no packet ever meets an empty chain. Naming the chain
 * empties it within the transaction. The jumps that there are (lines of iptables-save) are taken away, and one is added at the end.
 */
export function restoreInput({ table, chain, from, jump, rules }: IptablesChain, ours: readonly string[]): string {
  const jumps = ours.filter((line) => line.endsWith(` -j ${chain}`))
  return lines([
    `*${table}`,
    `:${chain} - [0:0]`,
    ...jumps.map((line) => line.replace(/^-A/, '-D')),
    ...rules.map((rule) => `-A ${chain} ${rule}`),
    `-A ${from} ${jump}`,
    'COMMIT',
  ])
}

/** Input of `iptables-restore --noflush` that removes a chain of ours and the jumps to it. */
export function removeInput({ table, chain }: Pick<IptablesChain, 'table' | 'chain'>, ours: readonly string[]): string {
  const jumps = ours.filter((line) => line.endsWith(` -j ${chain}`))
  return lines([
    `*${table}`,
    `:${chain} - [0:0]`,
    ...jumps.map((line) => line.replace(/^-A/, '-D')),
    `-X ${chain}`,
    'COMMIT',
  ])
}

export const NFT_TABLES = ['ip flannel-ipv4', 'ip6 flannel-ipv6'] as const

/** Input of `nft -f -` that removes our tables; naming a table first makes it no error that there is none. */
export function nftRemoval(): string {
  return lines(NFT_TABLES.flatMap((table) => [`add table ${table}`, `delete table ${table}`]))
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

/** Whether this iptables knows --random-fully and iptables-restore --wait: 1.6.2 or later. `text` is what --version prints. */
export function isIptables162(text: string): boolean {
  const [major = 0, minor = 0, patch = 0] = (/v(\d+)\.(\d+)\.(\d+)/.exec(text) ?? []).slice(1).map(Number)
  return major !== 1 ? major > 1 : minor !== 6 ? minor > 6 : patch >= 2
}

const lines = (all: readonly string[]): string => all.map((line) => `${line}\n`).join('')
