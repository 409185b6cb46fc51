// effects.ts - describes in words how weftd's state affects packets: which peers they do not reach, and which problems of the host stop
// them. Pure.

import { FAMILY_NAMES, listed } from '../net/address.ts'
import { CAUSES, readingOf, type Impairment } from './states.ts'
import { conditionOf, sidesOf, titleOf, type Condition, type Status } from './status.ts'

/** The maximum number of peers that one line of text names. */
const NAMED = 3

/** Returns how the state of the node affects packets, as a part of a sentence. */
export function packetsText(status: Pick<Status, 'state' | 'impairments' | 'peers'>): string {
  const { state, impairments } = status
  if (state !== 'impaired') return readingOf(status).packets
  return CAUSES.filter((cause) => impairments.some(({ by }) => by === cause))
    .map((by) => {
      const mine = impairments.filter((each) => each.by === by)
      const known = by === 'peers' ? peersEffect(status) : by === 'host' ? hostEffect(mine) : undefined
      return known ?? readingOf({ state, impairments: mine }).packets
    })
    .join('; ')
}

function peersEffect({ peers }: Pick<Status, 'peers'>): string | undefined {
  const of = (...conditions: readonly Condition[]): string => {
    const all = (peers?.list ?? []).filter((peer) =>
      listed(sidesOf(peer)).some((side) => conditions.includes(conditionOf(side))),
    )
    const names = all.slice(0, NAMED).map(titleOf).join(', ')
    return all.length > NAMED ? `${names} and ${all.length - NAMED} more` : names
  }
  const [lost, cut] = [of('silent', 'stored'), of('narrow')]
  const parts = [
    ...(lost === '' ? [] : [`packets to ${lost} are lost`]),
    ...(cut === '' ? [] : [`long packets to ${cut} are lost, short ones pass`]),
  ]
  return parts.length === 0 ? undefined : parts.join('; ')
}

/** How each problem of the host affects packets. The patterns match the messages of node/report.ts and report/snapshot.ts. */
const HOST_EFFECTS: readonly (readonly [words: RegExp, effect: string])[] = [
  [/does not forward IPv4/, `${FAMILY_NAMES.ipv4} packets of containers do not leave this host`],
  [/does not forward IPv6/, `${FAMILY_NAMES.ipv6} packets of containers do not leave this host`],
  [/is not written/, 'new containers do not start'],
  [/uses the same public IP/, 'another host gets some of the packets for this one'],
  [/^IPv4 has no address/, 'no packets reach other hosts over IPv4'],
  [/^IPv6 has no address/, 'no packets reach other hosts over IPv6'],
]

function hostEffect(impairments: readonly Pick<Impairment, 'what'>[]): string | undefined {
  const effects = impairments.map(({ what }) => HOST_EFFECTS.find(([words]) => words.test(what))?.[1])
  const known = [...new Set(effects)].filter((effect) => effect !== undefined)
  return effects.includes(undefined) || known.length === 0 ? undefined : known.join('; ')
}
