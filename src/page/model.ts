// model.ts - what the page tells of a status: how each peer is, the verdict, what changed, the map's places. Pure.

import { compareAddresses, formatNet, netAround, netContains, parseNet, type Net } from '../net/address.ts'
import type { PeerStatus, Status } from '../status/status.ts'
import { count, percent } from './format.ts'

/** A peer's state, and of one that is programmed whether it was asked in vain. The worst first. */
export const CONDITIONS = ['silent', 'stored', 'programmed', 'answering'] as const
export type Condition = (typeof CONDITIONS)[number]

/** A sign beside the colour, for whoever does not see that; what it is called; what it means. */
export const LOOKS: Readonly<
  Record<Condition, { readonly sign: string; readonly name: string; readonly means: string }>
> = {
  answering: { sign: '✓', name: 'answering', means: 'packets reach it and come back' },
  programmed: { sign: '●', name: 'programmed', means: 'packets to it go out; nobody knows whether it answers' },
  silent: { sign: '✕', name: 'not answering', means: 'packets to it go out, and the last probes were lost' },
  stored: { sign: '!', name: 'only stored', means: 'it has a lease, and the data path cannot use it, or not yet' },
}

export const conditionOf = ({ state, lossPercent }: PeerStatus): Condition =>
  state === 'programmed' && lossPercent !== null ? 'silent' : state

const rank = (condition: Condition): number => CONDITIONS.indexOf(condition)

export interface Peer extends PeerStatus {
  readonly condition: Condition
  /** Undefined where the store has something else there. */
  readonly net: Net | undefined
}

/** In the order of their subnets, which is that of the map. */
export function peersOf(status: Status): readonly Peer[] {
  return (status.peers?.list ?? [])
    .map((peer) => ({ ...peer, condition: conditionOf(peer), net: parseNet(peer.subnet) }))
    .toSorted((a, b) => compareAddresses(a.net?.address ?? 0, b.net?.address ?? 0))
}

/** Who needs a look stands first. */
export const byNeed = (peers: readonly Peer[]): readonly Peer[] =>
  peers.toSorted((a, b) => rank(a.condition) - rank(b.condition))

export type Counts = Readonly<Record<Condition, number>>

export function countsOf(peers: readonly Peer[]): Counts {
  const counts = { silent: 0, stored: 0, programmed: 0, answering: 0 }
  for (const { condition } of peers) counts[condition]++
  return counts
}

/** `2 answering`: each condition that occurs, with its number. */
export function countsText(counts: Counts): string {
  const there = CONDITIONS.filter((condition) => counts[condition] > 0)
  return there.map((condition) => `${counts[condition].toLocaleString('en')} ${LOOKS[condition].name}`).join(', ')
}

export interface Verdict {
  readonly tone: 'good' | 'bad' | 'doubtful'
  readonly title: string
  readonly detail: string
}

/** The first thing that a person wants to know. */
export function verdictOf({ state, trouble, dataPath, peers, store, summary }: Status): Verdict {
  if (state === 'starting') {
    const title = dataPath?.open ? 'Forwarding as last known' : 'Starting'
    return { tone: 'doubtful', title, detail: trouble ?? summary }
  }
  if (state === 'impaired') return { tone: 'bad', title: 'This node does not do its work', detail: trouble ?? summary }
  const list = peers?.list ?? []
  const silent = list.filter((peer) => conditionOf(peer) === 'silent').length
  const stored = list.filter((peer) => conditionOf(peer) === 'stored').length
  const of = list.length === 1 ? 'The only peer' : `${silent.toLocaleString('en')} of ${count(list.length, 'peer')}`
  if (silent > 0) {
    const verb = silent === 1 || list.length === 1 ? 'does' : 'do'
    return {
      tone: 'bad',
      title: `${of} ${verb} not answer`,
      detail: `The network is ${percent(peers?.whole ?? 0)} whole.`,
    }
  }
  if (stored > 0)
    return {
      tone: 'bad',
      title: `${count(stored, 'peer')} cannot be reached`,
      detail: 'The data path does not have them.',
    }
  if (!store.reachable)
    return { tone: 'bad', title: 'The store cannot be reached', detail: 'Known peers are forwarded to all the same.' }
  if (list.length === 0) return { tone: 'doubtful', title: 'No other nodes', detail: 'Nobody else has a lease.' }
  if (peers?.answering === null)
    return { tone: 'doubtful', title: 'All peers are programmed', detail: 'Nobody asks whether they answer.' }
  const waiting = list.length - (peers?.answering ?? 0)
  const all = list.length === 1 ? 'The only peer answers' : `All ${count(list.length, 'peer')} answer`
  if (waiting > 0)
    return { tone: 'good', title: 'The network is whole', detail: `${count(waiting, 'peer')} not asked yet.` }
  return { tone: 'good', title: 'The network is whole', detail: `${all}.` }
}

/** More of a kind than this are told as a number. */
const NAMED = 3

/** What a person who only listens is told: what became different since the status before. */
export function changesOf(
  [before, peersBefore]: readonly [Status, readonly Peer[]],
  [after, peersAfter]: readonly [Status, readonly Peer[]],
): readonly string[] {
  const old = new Map(peersBefore.map((peer) => [peer.lease, peer]))
  const kinds = new Map<string, string[]>()
  const add = (what: string, { subnet }: Peer): void => void kinds.set(what, [...(kinds.get(what) ?? []), subnet])
  for (const peer of peersAfter) {
    const known = old.get(peer.lease)
    old.delete(peer.lease)
    if (!known) add('new', peer)
    else if (known.condition !== peer.condition) add(LOOKS[peer.condition].name, peer)
  }
  for (const peer of old.values()) add('gone', peer)
  const peers = [...kinds].map(([what, subnets]) =>
    subnets.length > NAMED ? `${count(subnets.length, 'peer')}: ${what}` : `${subnets.join(', ')}: ${what}`,
  )
  const node =
    before.state === after.state ? [] : [`This node is ${after.state}${after.trouble ? `: ${after.trouble}` : ''}`]
  return [...node, ...peers]
}

/** Which peers are listed: within a subnet, with this text in an address, and in this condition. */
export function matching(peers: readonly Peer[], text: string, condition: Condition | ''): readonly Peer[] {
  const wanted = text.trim().toLowerCase()
  const within = parseNet(wanted)
  const isWanted = ({ net, subnet, publicIp, endpoint, type }: Peer): boolean =>
    within && net
      ? netContains(within, net.address)
      : [subnet, publicIp, endpoint ?? '', type].some((each) => each.toLowerCase().includes(wanted))
  return peers.filter((peer) => (condition === '' || peer.condition === condition) && (wanted === '' || isWanted(peer)))
}

/** A place on the map: a peer, or where there are too many for that, those of a larger subnet. */
export interface Place {
  readonly key: string
  readonly name: string
  /** Of the worst of them. */
  readonly condition: Condition
  readonly peers: readonly Peer[]
  readonly isGroup: boolean
}

/** The map has no more places than this. */
export const MOST_PLACES = 256

/** Peers in the order of their subnets to places: as many bits of the address as leave few enough. */
export function placesOf(peers: readonly Peer[], most = MOST_PLACES): readonly Place[] {
  if (peers.length <= most)
    return peers.map((peer) => ({
      key: peer.lease,
      name: peer.subnet,
      condition: peer.condition,
      peers: [peer],
      isGroup: false,
    }))
  const addresses = peers.map(({ net }) => net?.address ?? 0)
  let bits = peers.reduce((longest, { net }) => Math.max(longest, net?.prefixLength ?? 0), 0)
  for (; bits > 0; bits--) if (new Set(addresses.map((each) => netAround(each, bits).address)).size <= most) break
  const groups = new Map<string, Peer[]>()
  peers.forEach((peer, at) => {
    const name = formatNet(netAround(addresses[at] ?? 0, bits))
    const group = groups.get(name)
    if (group) group.push(peer)
    else groups.set(name, [peer])
  })
  return [...groups].map(([name, members]) => {
    const condition = byNeed(members)[0]?.condition ?? 'programmed'
    return { key: name, name, condition, peers: members, isGroup: true }
  })
}

/** Where peer `at` of `all` stands around this node: parts of the width and of the height. */
export function around(at: number, all: number): { readonly x: number; readonly y: number } {
  const angle = Math.PI + (2 * Math.PI * at) / all
  return { x: 0.5 + 0.39 * Math.cos(angle), y: 0.5 + 0.4 * Math.sin(angle) }
}

const ASKED_EVERY_MS = 1000
/** At most this part of the time goes into asking and showing: where peers are very many it is done less often. */
const BUSY_SHARE = 0.05

/** How long to wait after a round that took so long, in ms. */
export const pauseAfter = (tookMs: number): number => Math.max(ASKED_EVERY_MS, tookMs / BUSY_SHARE) - tookMs
