// firewall.ts - whether this host's firewall drops what it should let pass: iptables rule by rule, nftables by its policies. Pure.

import { kindOf, portOf } from '../kinds.ts'
import { parseIpv4, parseIpv4Net } from '../net/ipv4.ts'
import type { PeerStatus, Status } from '../status/status.ts'
import type { Facts } from './facts.ts'
import { walkFilter, type FilteredPacket } from './filter-walk.ts'
import type { Finding } from './findings.ts'

export function checkFirewall(facts: Facts): Finding[] | undefined {
  const { status, iptables, nft } = facts
  const { config, node, peers } = status ?? {}
  const network = parseIpv4Net(config?.network ?? '')
  const subnet = parseIpv4Net(node?.subnet ?? '')
  if (!config || !node || !network || !subnet) return undefined
  const findings: Finding[] = []
  const peer = peers?.list.find(({ state }) => state !== 'stored')
  const there = parseIpv4Net(peer?.subnet ?? '')
  if (iptables !== undefined && peer && there) {
    const [inside, outside] = [subnet.address + 2, there.address + 2]
    for (const [source, destination] of [
      [inside, outside],
      [outside, inside],
    ] as const) {
      const verdict = walkFilter(iptables, { chain: 'FORWARD', protocol: 'tcp', source, destination })
      if (!verdict.isAccepted && verdict.isCertain) findings.push({ name: 'forward-dropped', detail: verdict.by })
    }
    const packet = portPacket(status, peer)
    const verdict = packet && walkFilter(iptables, packet)
    if (verdict && !verdict.isAccepted && verdict.isCertain) findings.push({ name: 'port-dropped', detail: verdict.by })
  }
  const chains = droppingChains(nft ?? '').filter((chain) => isSuspect(chain, facts))
  // One direction is enough to say it.
  const unique = findings.filter(
    ({ name, detail }, at) => findings.findIndex((one) => one.name === name && one.detail === detail) === at,
  )
  return [...unique, ...chains.map(({ name }): Finding => ({ name: 'nft-drops', detail: name }))]
}

/** What a peer sends here outside; undefined where there is nothing of that kind. */
export function portPacket(
  { config, node }: Pick<Status, 'config' | 'node'> | { config?: undefined; node?: undefined } = {},
  peer: PeerStatus,
): FilteredPacket | undefined {
  const type = config?.backendType ?? ''
  const [source, destination] = [parseIpv4(peer.publicIp), parseIpv4(node?.publicIp ?? '')]
  if (source === undefined || destination === undefined) return undefined
  const way = {
    chain: 'INPUT',
    source,
    destination,
    ...(node?.externalInterface ? { from: node.externalInterface } : {}),
  } as const
  const protocol = kindOf(type)?.outside?.protocol
  const port = portOf(type, config?.backend ?? {})
  return protocol && { ...way, protocol, ...(port === undefined ? {} : { port }) }
}

interface NftChain {
  readonly name: string
  readonly hook: string
  /** Its rules, and what stands before them. */
  readonly text: string
}

/** Chains of nftables with policy drop, but those that iptables shows itself (its tables are `ip filter` and the like). */
function droppingChains(ruleset: string): NftChain[] {
  const found: NftChain[] = []
  let table = ''
  for (const part of ruleset.split(/^(?=table |\s+chain )/m)) {
    table = /^table (\S+ \S+) \{/.exec(part)?.[1] ?? table
    const [, chain = ''] = /^\s+chain (\S+) \{/.exec(part) ?? []
    const [, hook] = /type filter hook (input|forward) .*policy drop;/.exec(part) ?? []
    const isSeen = /^ip (filter|nat|mangle|raw|security)$/.test(table) || table.startsWith('ip6 ')
    if (hook !== undefined && !isSeen) found.push({ name: `${table} ${chain}`, hook, text: part })
  }
  return found
}

/** Whether a chain that drops may be what stops packets: one that names the network, or lets in what answers, is somebody's work. */
function isSuspect({ hook, text }: NftChain, { status, answers }: Facts): boolean {
  const { config, dataPath, peers } = status ?? {}
  if (hook === 'forward') return ![config?.network, dataPath?.device].some((name) => name && text.includes(name))
  const programmed = (peers?.list ?? []).filter(({ state }) => state !== 'stored')
  return !programmed.every(({ lease, state }) => answers.get(lease)?.small ?? state === 'answering')
}
