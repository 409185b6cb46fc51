// rule-effects.ts - checks whether firewall rules of this host change packets between containers so that the packets are
// lost or have another source, and lists rules that drop packets by conditions that weft cannot evaluate. Pure.

import type { Link } from '../../host/kernel.ts'
import { familyOf, netContains, parseAddress, type Address } from '../../net/address.ts'
import type { Status } from '../../report/status.ts'
import { isWithin, type FilteredPacket, type SeenEffect } from './chain-walk.ts'
import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'
import type { HostRules, HostVerdict } from './host-rules.ts'
import { kindIn, type OwnSide } from './sides.ts'

/** A rule that certainly changes a packet, and the effect of this change on the network. */
export interface Change {
  readonly kind: 'diverted' | 'hops' | 'source'
  /** The rule, with the name of its program. */
  readonly rule: string
  /** True if the packet does not reach the container to which it is sent. */
  readonly isLost: boolean
}

/**
 * Returns the changes that rules certainly make to a forwarded packet, as far as the changes matter to the network.
 * Assumes that no rule has marked the packet, because programs such as kube-proxy mark the packets that they translate.
 */
export function changesOf(rules: HostRules, packet: FilteredPacket, side: OwnSide, status: Status): readonly Change[] {
  return rules.walk({ ...packet, mark: 0 }).flatMap((verdict) =>
    verdict.effects
      .filter(({ isCertain }) => isCertain)
      .flatMap((effect): Change[] => {
        const rule = `${verdict.tool}${effect.by}`
        switch (effect.kind) {
          case 'diverted':
            return [{ kind: 'diverted', rule, isLost: true }]
          case 'hops':
            return isTooFew(effect.hops ?? 0, verdict, packet, side, status)
              ? [{ kind: 'hops', rule, isLost: true }]
              : []
          case 'source':
            return isOutward(packet, side) && !isUsual(effect)
              ? [{ kind: 'source', rule, isLost: isRefused(effect, side, status) }]
              : []
          case 'untracked':
          case 'mapped':
          case 'marked':
            return []
        }
      }),
  )
}

/** The marks that the rules before routing give a packet. */
export interface Marking {
  /** The mark that the packet certainly has, and the last rule that changes it; undefined if weft does not know the mark. */
  readonly certain: { readonly mark: number; readonly rule: string } | undefined
  /** The marks that rules may give the packet. */
  readonly possible: ReadonlySet<number>
}

/** Evaluates the rules before routing, which may mark a forwarded packet. */
export function markingOf(rules: HostRules, packet: FilteredPacket): Marking {
  const marksOn = (marked: FilteredPacket) =>
    rules
      .walk(marked)
      .filter(({ hook }) => hook === 'prerouting')
      .flatMap(({ tool, effects }) => effects.map((effect) => ({ ...effect, rule: `${tool}${effect.by}` })))
      .filter(({ kind }) => kind === 'marked')
  // Without a mark in the packet, all conditions about marks are unknown. A rule changes the mark for the rules after it,
  // so the conditions about the mark 0 are right only up to the first such rule.
  const [all, unmarked] = [marksOn(packet), marksOn({ ...packet, mark: 0 })]
  const marks = all.length === 1 ? unmarked : all
  const last = marks.at(-1)
  const mark = marks.reduce((value, { clears = 0, inverts = 0 }) => ((value & ~clears) ^ inverts) >>> 0, 0)
  const isKnown = last !== undefined && marks.every(({ isCertain }) => isCertain)
  return {
    certain: isKnown ? { mark, rule: last.rule } : undefined,
    possible: new Set(all.map(({ inverts = 0 }) => inverts)),
  }
}

/**
 * Returns the rules that certainly change the destination of the backend's packet `packet`, or change its source so that
 * the peer drops it. With WireGuard, and if the kernel carries the packets, the receiver accepts them from any source.
 */
export function diversionsOf(
  rules: HostRules,
  packet: FilteredPacket,
  { config, dataPath }: Status,
  links: readonly Link[],
): readonly Pick<Change, 'kind' | 'rule'>[] {
  const isAnySource = kindIn({ config })?.provesSender === true || dataPath?.engine === 'kernel'
  return rules.walk({ ...packet, state: 'new', mark: 0 }).flatMap((verdict) =>
    verdict.effects
      .filter(({ isCertain }) => isCertain)
      .flatMap((effect): Pick<Change, 'kind' | 'rule'>[] => {
        const rule = `${verdict.tool}${effect.by}`
        if (effect.kind === 'diverted') return [{ kind: 'diverted', rule }]
        const isOther = effect.kind === 'source' && !isAnySource && changesSource(effect, packet, links)
        return isOther ? [{ kind: 'source', rule }] : []
      }),
  )
}

/**
 * Returns true if a rule gives a packet of this host another source address. For masquerading the kernel never chooses
 * a secondary address of the interface (inet_select_addr in net/ipv4/devinet.c).
 */
function changesSource({ address }: SeenEffect, { source, to }: FilteredPacket, links: readonly Link[]): boolean {
  if (address !== undefined) {
    // If the source is in the range of a rule, the kernel keeps it (get_unique_tuple in net/netfilter/nf_nat_core.c).
    const [, range = ''] = /^\[?((?:\d[\d.]*(?![\d.]*:.*:)|[\da-f:]+)(?:[-/][\da-f.:]*)?)/i.exec(address) ?? []
    const [text = ''] = typeof source === 'number' ? range.split(':') : [range]
    return isWithin(source, text) === false
  }
  const own = links.find(({ name }) => name === to)?.addresses[familyOf(source)] ?? []
  return own.some((each) => each.address === source && each.secondary)
}

/** Reports the changes that rules certainly make to a forwarded packet. */
export function changedBy(rules: HostRules, packet: FilteredPacket, side: OwnSide, { status }: Facts): Finding[] {
  return (status ? changesOf(rules, packet, side, status) : []).map(({ kind, rule, isLost }): Finding => {
    if (kind === 'diverted') return { name: 'packets-diverted', detail: rule }
    if (kind === 'hops') return { name: 'hops-too-few', detail: rule }
    return { name: isLost ? 'source-refused' : 'source-changed', detail: rule }
  })
}

const isOutward = ({ source }: FilteredPacket, { subnet }: OwnSide): boolean => netContains(subnet, source)

/**
 * Returns true if a new TTL or hop limit is so small that a host drops the packet. Each host that forwards the packet
 * drops it if the TTL is 1, and else decrements the TTL. With some backends weftd decrements the TTL on both hosts too.
 */
function isTooFew(
  hops: number,
  { hook }: HostVerdict,
  packet: FilteredPacket,
  side: OwnSide,
  { config }: Status,
): boolean {
  const isBeforeRouting = hook === 'prerouting' || hook === 'ingress'
  if (!isOutward(packet, side)) return isBeforeRouting && hops < 2
  return hops < (isBeforeRouting ? 3 : 2) + (kindIn({ config })?.decrementsTtl ? 2 : 0)
}

/**
 * The chains and tables in which CNI plugins (`ipMasq`) and podman masquerade, as iptables and as nft print them
 * (pkg/ip/ipmasq_nftables_linux.go of the CNI plugins).
 */
const MASQUERADING = /(?:-A |^\S+ \S+ )(?:CNI-|NETAVARK)|^inet (?:cni_plugins_masquerade|netavark) /

/**
 * Returns true for a rule by which CNI plugins, podman and Docker masquerade all packets that leave a bridge. The
 * packets get the address of the data path's device, which is in the subnet of this node.
 */
const isUsual = ({ address, by }: SeenEffect): boolean =>
  address === undefined && (MASQUERADING.test(by) || / ! -o \S+ -j MASQUERADE/.test(by) || /\boifname != /.test(by))

/** Returns the first address in the text of a rule, which may be a range of addresses, or have a port after the address. */
function firstAddressIn(text: string): Address | undefined {
  const [, first = ''] = /^(\d[\d.]*(?![\d.]*:.*:)|[\da-f:]+)/i.exec(text) ?? []
  return parseAddress(first)
}

/** Returns true if peers drop the packets whose source a rule changes: WireGuard accepts only the sender's subnet. */
function isRefused({ address }: SeenEffect, { subnet }: OwnSide, { config }: Status): boolean {
  const source = firstAddressIn(address ?? '')
  return kindIn({ config })?.provesSender === true && source !== undefined && !netContains(subnet, source)
}

/**
 * The chains and tables of programs that drop packets by policies that an operator declares, such as NetworkPolicy.
 * weft doctor does not report their rules.
 */
const POLICY_CHAIN =
  /(?:-A |^\S+ \S+ )(?:KUBE-|cali-|CILIUM_|WEAVE-|DOCKER|CNI-|ufw6?-|f2b-|CROWDSEC|nixos-fw|LIBVIRT_|NETAVARK|ts-)/
const POLICY_TABLE = /^\S+ (?:firewalld|kube-|cilium|calico|cali|docker|f2b|crowdsec|cni|netavark|libvirt|tailscale)/

/**
 * Without a counter, weft does not know whether a rule has dropped packets. A rule with such a condition usually applies
 * to few packets.
 */
const USUALLY_NARROW = /\blimit\b|\brecent\b|\bquota\b|--match-set\b|\bmark\b|@/

/**
 * Matches rules against listed senders or too many packets, such as block lists. Operators make these rules on purpose,
 * and on a healthy host too these rules drop packets. A negated set (`! --match-set`) is not matched, because a rule
 * with it may drop all packets of the network.
 */
const BLOCK_LIST = /\b(?:conn|hash)?limit\b|\brecent\b|\bquota\b|(?<!! )--match-set\b|(?<!!= )@/

/** Returns the rules that dropped packets, or may drop packets, by a condition that weft cannot evaluate. */
export const unjudgedOf = (verdicts: readonly HostVerdict[]): readonly string[] =>
  verdicts.flatMap(({ tool, unjudged }) =>
    unjudged
      .filter(({ packets, by }) => (packets === undefined ? !USUALLY_NARROW.test(by) : packets > 0))
      .map(
        ({ packets, by }) =>
          `${tool}${by}${packets === undefined ? '' : ` (${packets} ${packets === 1 ? 'packet' : 'packets'})`}`,
      ),
  )

/** Reports those rules of unjudgedOf that neither a program nor an operator made to enforce policies. */
export const unjudgedBy = (verdicts: readonly HostVerdict[]): Finding[] =>
  unjudgedOf(
    verdicts.map((verdict) => ({
      ...verdict,
      unjudged: verdict.unjudged.filter(
        ({ by }) => ![POLICY_CHAIN, POLICY_TABLE, BLOCK_LIST].some((pattern) => pattern.test(by)),
      ),
    })),
  ).map((detail): Finding => ({ name: 'rule-unjudged', detail }))
