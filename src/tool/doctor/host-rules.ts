// host-rules.ts - evaluates all firewall rules of this host for a packet: those of iptables, of iptables-legacy and of
// nftables. Pure.

import type { Family } from '../../net/address.ts'
import type { FilteredPacket, Verdict } from './chain-walk.ts'
import type { Facts } from './facts.ts'
import { readListing, type Listing } from './filter-walk.ts'
import { ARP, readRuleset, type BaseChain } from './nft-walk.ts'

/** The verdict of one base chain of nftables, or of one built-in chain of iptables. */
export interface HostVerdict extends Verdict {
  /** Words before the text of a rule that name the program, such as `nft: `; empty for iptables. */
  readonly tool: string
  /** The chain of nftables; undefined if the rule is a rule of iptables. */
  readonly base: BaseChain | undefined
  /** The table of iptables, such as `filter`; undefined for a chain of nftables. */
  readonly table: string | undefined
  /** The name of the hook, such as `forward`. */
  readonly hook: string
  /** All rules of the chain, or of the table of iptables. */
  readonly text: string
}

export interface HostRules {
  /** True if the rules of iptables of the family could be read. */
  readonly hasIptables: boolean
  /** Returns the verdicts of all chains that see the packet: first the chains of iptables, then those of nftables. */
  readonly walk: (packet: FilteredPacket) => readonly HostVerdict[]
}

/** The verdicts about the later packets of a connection. */
interface LaterVerdicts {
  readonly verdicts: readonly HostVerdict[]
  /** The verdicts that certainly drop the later packets, of chains that accept the first packet. */
  readonly drops: readonly HostVerdict[]
  /** The verdicts that may drop the later packets, of chains that accept the first packet. */
  readonly likely: readonly HostVerdict[]
}

/**
 * Evaluates the rules for the later packets of a connection, which a rule with `--ctstate ESTABLISHED` may drop.
 * `firsts` are the verdicts about the first packet.
 */
export function laterVerdicts(rules: HostRules, packet: FilteredPacket, firsts: readonly HostVerdict[]): LaterVerdicts {
  if (packet.isOneWay) return { verdicts: [], drops: [], likely: [] }
  const verdicts = rules.walk({ ...packet, state: 'established' })
  const later = verdicts.filter(
    (verdict) =>
      !verdict.isAccepted &&
      !isBeforeTracking(verdict) &&
      firsts.every((first) => first.isAccepted || !isSameChain(first, verdict)),
  )
  return {
    verdicts,
    drops: later.filter(({ isCertain }) => isCertain),
    likely: later.filter(({ isCertain }) => !isCertain),
  }
}

/**
 * Returns true if a chain sees packets before connection tracking, so that no packet is established there: the table
 * raw of iptables, and in nftables the hook ingress and priorities up to -200 (NF_IP_PRI_CONNTRACK).
 */
const isBeforeTracking = ({ table, hook, base }: HostVerdict): boolean =>
  table === 'raw' || hook === 'ingress' || /priority (?:raw\b|-(?:[2-9]|[1-9]\d)\d\d\b)/.test(base?.head ?? '')

/** Returns true if two verdicts are those of the same chain about two packets. */
export const isSameChain = (one: HostVerdict, other: HostVerdict): boolean =>
  one.tool === other.tool && one.table === other.table && one.hook === other.hook && one.base === other.base

type RuleFacts = Pick<Facts, 'iptables' | 'ip6tables' | 'iptablesLegacy' | 'ip6tablesLegacy' | 'nft' | 'queues'>

const read = new WeakMap<RuleFacts, Partial<Record<Family, HostRules>>>()

/** Returns the rules in the facts. Reads the rules of each family once, because 50,000 rules take seconds. */
export function readRules(facts: RuleFacts, family: Family): HostRules {
  const known = read.get(facts) ?? {}
  read.set(facts, known)
  return (known[family] ??= parseRules(facts, family))
}

function parseRules(facts: RuleFacts, family: Family): HostRules {
  const isIpv4 = family === 'ipv4'
  const tool = isIpv4 ? 'iptables' : 'ip6tables'
  const [main, legacy] = isIpv4 ? [facts.iptables, facts.iptablesLegacy] : [facts.ip6tables, facts.ip6tablesLegacy]
  const listings = [
    ...(main === undefined ? [] : [{ tool: isIpv4 ? '' : `${tool}: `, listing: readListing(main, facts.queues) }]),
    ...(legacy === undefined ? [] : [{ tool: `${tool}-legacy: `, listing: readListing(legacy, facts.queues) }]),
  ]
  const ruleset = readRuleset(facts.nft ?? '', facts.queues)
  const hidden = listings.flatMap(({ listing }) => chainsInNft(listing, isIpv4 ? 'ip' : 'ip6'))
  const walkAs = (packet: FilteredPacket): readonly HostVerdict[] => [
    ...listings
      .filter(() => isOfHost(packet))
      .flatMap(({ tool: by, listing }) =>
        listing.walk(packet).map((verdict) => ({
          ...verdict,
          tool: by,
          base: undefined,
          hook: verdict.chain.toLowerCase(),
        })),
      ),
    ...ruleset.walk(packet, hidden).map((verdict) => ({
      ...verdict,
      tool: 'nft: ',
      table: undefined,
      hook: verdict.base.hook,
      text: verdict.base.text,
    })),
  ]
  const walkTracked = (packet: FilteredPacket): readonly HostVerdict[] => {
    const verdicts = walkAs(packet)
    const untracked = effectsOf(verdicts, 'untracked')
    if (untracked.length === 0) return verdicts
    const isCertain = untracked.some((effect) => effect.isCertain)
    return walkAs({ ...packet, ...(isCertain ? { state: 'untracked' } : { mayBeUntracked: true }) })
  }
  // Several checks evaluate the rules for the same packet, and 50,000 rules take a tenth of a second for each packet.
  const walked = new Map<string, readonly HostVerdict[]>()
  return {
    hasIptables: main !== undefined,
    walk: (packet) => {
      const key = keyOf(packet)
      const verdicts = walked.get(key) ?? walkTracked(packet)
      walked.set(key, verdicts)
      return verdicts
    },
  }
}

/** Returns a text that differs for two packets if any of their properties differ. */
const keyOf = (packet: FilteredPacket): string =>
  JSON.stringify(
    Object.entries(packet).toSorted(([a], [b]) => (a < b ? -1 : 1)),
    (_name, value: unknown) => (typeof value === 'bigint' ? `${value}n` : value),
  )

/** Returns the names by which `nft list ruleset` shows the chains of iptables; none for iptables-legacy. */
const chainsInNft = ({ builtIns, isOfNftables }: Listing, family: string): readonly string[] =>
  isOfNftables ? builtIns.map((name) => `${family} ${name}`) : []

/**
 * Returns true for a packet that the rules of the host see, and false for ARP. The rules see packets within a bridge only
 * with br_netfilter.
 */
const isOfHost = ({ protocol, bridged }: FilteredPacket): boolean =>
  protocol !== ARP && (bridged?.way !== 'through' || bridged.isFiltered === true)

const effectsOf = (verdicts: readonly HostVerdict[], kind: string) =>
  verdicts.flatMap(({ effects }) => effects.filter((effect) => effect.kind === kind))
