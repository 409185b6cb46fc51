// effects.ts - describes in words how weftd's state affects packets: which peers packets do not reach, and which
// problems of the host stop packets. Pure.

import { FAMILY_NAMES, listed } from '../net/address.ts'
import { kindOf, publishers } from '../path/catalog.ts'
import { CAUSES, readingOf, type Impairment } from './states.ts'
import { conditionOf, isSendingOnly, sidesOf, titleOf, type Condition, type PeerStatus, type Status } from './status.ts'

/** The maximum number of peers that one line of text names. */
const NAMED = 3

type Seen = Pick<Status, 'state' | 'impairments' | 'peers'> & Partial<Pick<Status, 'config'>>

/** Returns how the state of the node affects packets, as part of a sentence. */
export function packetsText(status: Seen): string {
  const { state, impairments } = status
  if (state !== 'impaired') return readingOf(status).packets
  const causes = CAUSES.filter((cause) => impairments.some(({ by }) => by === cause))
  return causes
    .map((by) => {
      const mine = impairments.filter((each) => each.by === by)
      const known = by === 'peers' ? peersEffect(status) : knownEffect(mine, EFFECTS[by] ?? [])
      const isByConfig = mine.every(({ what }) => CONFIG.test(what))
      if (known !== undefined && by === 'store' && isByConfig && causes.length === 1)
        return `all packets pass, but ${known}`
      return known ?? readingOf({ state, impairments: mine }).packets
    })
    .join('; ')
}

function peersEffect({ peers, config }: Pick<Seen, 'peers' | 'config'>): string | undefined {
  const { list, probeSeconds } = peers ?? { list: [], probeSeconds: null }
  const having = (peer: PeerStatus, ...conditions: readonly Condition[]): boolean =>
    listed(sidesOf(peer)).some((side) => conditions.includes(conditionOf(side)))
  const of = (is: (peer: PeerStatus) => boolean): string => {
    const all = list.filter(is)
    const names = all.slice(0, NAMED).map(titleOf).join(', ')
    return all.length > NAMED ? `${names} and ${all.length - NAMED} more` : names
  }
  const isDoubtful = (peer: PeerStatus): boolean =>
    !having(peer, 'stored') && having(peer, 'silent') && isSendingOnly(peer, probeSeconds)
  const lost = of((peer) => having(peer, 'silent', 'stored') && !isDoubtful(peer))
  const [doubtful, cut] = [of(isDoubtful), of((peer) => having(peer, 'narrow'))]
  // Name the backend types of the peers whose type differs from this node's. While an operator changes the backend of
  // the network, some nodes still publish the old type.
  const own = config?.backendType ?? ''
  const isOther = (peer: PeerStatus): boolean => having(peer, 'stored') && peer.type !== (kindOf(own)?.published ?? own)
  const others = own === '' ? [] : list.filter(isOther)
  const types = [...new Set(others.map(({ type }) => publishers(type)))].join(', ')
  const parts = [
    ...(lost === '' ? [] : [`packets to ${lost} are lost`]),
    ...(others.length > 0
      ? [`${of(isOther)} ${others.length === 1 ? 'runs' : 'run'} ${types}, this node runs ${own}`]
      : []),
    ...(doubtful === '' ? [] : [`packets to ${doubtful} may be lost, or the firewall there drops the echo requests`]),
    ...(cut === '' ? [] : [`long packets to ${cut} are lost, short ones pass`]),
  ]
  return parts.length === 0 ? undefined : parts.join('; ')
}

type Effects = readonly (readonly [words: RegExp, effect: string])[]

/**
 * For each problem of the data path, the host or the store that has an effect of its own, a pattern and the problem's
 * effect on packets. The patterns match the messages in node/report.ts, report/snapshot.ts and node/loops/config.ts.
 */
const HOST_EFFECTS: Effects = [
  [/does not forward IPv4/, `${FAMILY_NAMES.ipv4} packets of containers do not leave this host`],
  [/does not forward IPv6/, `${FAMILY_NAMES.ipv6} packets of containers do not leave this host`],
  [/is not written/, 'new containers do not start'],
  [/uses the same public IP/, 'another host gets some of the packets for this host'],
  [/IPv4 has no address/, 'no packets reach other hosts over IPv4'],
  [/IPv6 has no address/, 'no packets reach other hosts over IPv6'],
]

const PATH_EFFECTS: Effects = [
  [
    /cannot be checked or repaired/,
    'packets are lost if the data path is damaged; weftd tries to repair the data path at least every 30 seconds',
  ],
]
const CONFIG = /network configuration/
const STORE_EFFECTS: Effects = [
  [CONFIG, 'no weftd can start'],
  [
    /lease cannot be renewed/,
    "packets pass only while the store has this node's lease; without it the other nodes send no packets to this node",
  ],
]
const EFFECTS: Partial<Record<Impairment['by'], Effects>> = {
  path: PATH_EFFECTS,
  host: HOST_EFFECTS,
  store: STORE_EFFECTS,
}

/** Returns the effects of all the impairments; undefined if one of them has none in the list. */
function knownEffect(impairments: readonly Pick<Impairment, 'what'>[], among: Effects): string | undefined {
  const effects = new Set(impairments.map(({ what }) => among.find(([words]) => words.test(what))?.[1]))
  return effects.has(undefined) ? undefined : [...effects].join('; ')
}
