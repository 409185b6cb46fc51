// model.ts - derives the content of the page from the status: peers, verdict (whether packets pass), changes since the
// previous status, items of the map. Pure.

import {
  FAMILIES,
  FAMILY_NAMES,
  addressKey,
  compareAddresses,
  familiesOf,
  formatNet,
  listed,
  netAround,
  netContains,
  parseNet,
  type Net,
} from '../../net/address.ts'
import { packetsText } from '../effects.ts'
import { peerEventText, type PeerEvent } from '../peer-events.ts'
import { readingOf } from '../states.ts'
import {
  conditionOf,
  conditionText,
  sidesOf,
  titleOf,
  type Condition,
  type PeerSide,
  type PeerStatus,
  type Status,
  type StatusEvent,
} from '../status.ts'
import { count, duration, milliseconds, or, percent } from './format.ts'

/** The conditions that a peer can have, most urgent first. */
export const CONDITIONS = [
  'silent',
  'stored',
  'narrow',
  'programmed',
  'answering',
] as const satisfies readonly Condition[]
/**
 * The look of each condition of a peer: a sign, so that the color is not the only difference, a name, and the
 * condition's meaning.
 */
export const LOOKS: Readonly<
  Record<Condition, { readonly sign: string; readonly name: string; readonly means: string }>
> = {
  answering: { sign: '✓', name: 'answering', means: 'packets reach it and come back' },
  programmed: { sign: '●', name: 'programmed', means: 'packets to it are sent; whether it answers is not known' },
  silent: { sign: '✕', name: 'not answering', means: 'packets to it are sent, but it did not answer the last probes' },
  narrow: {
    sign: '≈',
    name: 'narrow',
    means: 'short packets reach it and come back, but long ones do not, so connections open and then stall',
  },
  stored: {
    sign: '!',
    name: 'only stored',
    means: 'it has a lease that the data path cannot use, or does not use yet',
  },
}

/**
 * Returns the name of a peer's condition. If the condition differs between the families, names the family too, as in
 * `IPv6 not answering`.
 */
const wordsOf = (peer: PeerStatus): string => conditionText(peer, (condition) => LOOKS[condition].name)

const rank = (condition: Condition): number => CONDITIONS.indexOf(condition)

export interface Peer extends PeerStatus {
  readonly condition: Condition
  /** The peer's subnet; undefined if the store has an invalid value for it. */
  readonly net: Net | undefined
  /**
   * The name of the peer's condition. If the conditions of the two families differ, it is the name of the worse
   * condition.
   */
  readonly words: string
}

/** Returns the peers in the order of their subnets, which is also the order of the map. */
export function peersOf(status: Status): readonly Peer[] {
  return (status.peers?.list ?? [])
    .map((peer) => ({ ...peer, condition: conditionOf(peer), net: parseNet(peer.subnet), words: wordsOf(peer) }))
    .toSorted((a, b) => compareAddresses(a.net?.address ?? 0, b.net?.address ?? 0))
}

export const byNeed = (peers: readonly Peer[]): readonly Peer[] =>
  peers.toSorted((a, b) => rank(a.condition) - rank(b.condition))

type Counts = Readonly<Record<Condition, number>>

export function countsOf(peers: readonly Peer[]): Counts {
  const counts = { silent: 0, stored: 0, narrow: 0, programmed: 0, answering: 0 }
  for (const { condition } of peers) counts[condition]++
  return counts
}

/** Lists each condition that peers have, with the number of these peers, as in `2 answering`. */
export function countsText(counts: Counts): string {
  const there = CONDITIONS.filter((condition) => counts[condition] > 0)
  return there.map((condition) => `${counts[condition].toLocaleString('en')} ${LOOKS[condition].name}`).join(', ')
}

interface Verdict {
  readonly tone: 'good' | 'bad' | 'doubtful'
  readonly title: string
  readonly detail: string
}

export function verdictOf(status: Status): Verdict {
  const { state, impairments, trouble, peers, summary, dataPath } = status
  const { tone, words } = readingOf(status)
  const list = peers?.list ?? []
  const isByPeers = state === 'impaired' && impairments.every(({ by }) => by === 'peers')
  if (state !== 'working' && !isByPeers)
    return {
      tone,
      title: `${words.charAt(0).toUpperCase()}${words.slice(1)}`,
      detail: `${trouble ?? summary}. Effect: ${packetsText(status)}.`,
    }
  const allSilent = list.filter((peer) => conditionOf(peer) === 'silent')
  const silent = allSilent.length
  const allStored = list.filter((peer) => conditionOf(peer) === 'stored')
  const stored = allStored.length
  const of = list.length === 1 ? 'The only peer' : `${silent.toLocaleString('en')} of ${count(list.length, 'peer')}`
  if (silent > 0) {
    const verb = silent === 1 ? 'does' : 'do'
    return {
      tone: 'bad',
      title: `${of} ${verb} not answer${byOneFamily(allSilent)}`,
      detail: `This node reaches ${percent(peers?.whole ?? 0)} of the network.`,
    }
  }
  if (stored > 0)
    return {
      tone: 'bad',
      title: `${count(stored, 'peer')} cannot be reached${byOneFamily(allStored)}`,
      detail: 'They have leases, but the data path does not have them.',
    }
  const narrow = list.filter((peer) => conditionOf(peer) === 'narrow')
  if (narrow.length > 0) {
    const most = Math.min(...narrow.map(({ passesBytes }) => passesBytes ?? Infinity))
    const size = most === Infinity ? '' : ` ${most.toLocaleString('en')} bytes pass.`
    return {
      tone: 'bad',
      title: `Long packets do not reach ${narrow.length === 1 ? '1 peer' : `${narrow.length.toLocaleString('en')} of ${count(list.length, 'peer')}`}`,
      detail: `Containers send up to ${or(dataPath?.mtu ?? null, (mtu) => mtu.toLocaleString('en'))} bytes.${size} Connections open and then stall.`,
    }
  }
  if (list.length === 0) return { tone: 'doubtful', title: 'No other nodes', detail: 'No other host has a lease.' }
  if (peers?.answering === null)
    return {
      tone: 'doubtful',
      title: 'All peers are programmed',
      detail: 'weftd does not probe them, so it does not know whether they answer.',
    }
  if (peers?.answering === 0)
    return { tone: 'doubtful', title: 'Not known yet', detail: 'No peer has been probed yet.' }
  const waiting = list.length - (peers?.answering ?? 0)
  const all = list.length === 1 ? 'The only peer answers' : `All ${count(list.length, 'peer')} answer`
  if (waiting > 0)
    return { tone: 'good', title: 'The network works', detail: `${count(waiting, 'peer')} not probed yet.` }
  return { tone: 'good', title: 'The network works', detail: `${all}.` }
}

/**
 * Returns ` over IPv6` if all given peers fail only over IPv6, ` over IPv4` if they fail only over IPv4, else an empty
 * text.
 */
function byOneFamily(peers: readonly PeerStatus[]): string {
  const only = FAMILIES.filter((family) =>
    peers.every((peer) => {
      const sides = sidesOf(peer)
      const well = FAMILIES.filter((each) => sides[each]?.state === 'answering')
      return well.length === 1 && !well.includes(family) && sides[family] !== undefined
    }),
  )
  return only.length === 1 ? ` over ${FAMILY_NAMES[only[0] ?? 'ipv4']}` : ''
}

const WAYS: Readonly<Record<NonNullable<Peer['way']>, string>> = {
  direct: 'a route to its host, without a tunnel',
  tunnel: 'the tunnel of weftd',
  kernel: 'a tunnel of the kernel',
}

function lengthText({ path, passesBytes }: PeerSide): string {
  if (path === null) return '–'
  if (path === 'whole') return 'as long as containers may send'
  return passesBytes === null ? 'less than containers may send' : `${passesBytes} bytes, less than containers may send`
}

function keysText({ ageSeconds, failure }: NonNullable<PeerSide['session']>): string {
  const keys = ageSeconds === null ? 'none now' : `${duration(ageSeconds)} old`
  return failure === null ? keys : `${keys}; ${FAILURES[failure]}`
}
const FAILURES: Readonly<Record<NonNullable<NonNullable<PeerSide['session']>['failure']>, string>> = {
  'no-answer': 'the last handshake was not answered',
  'not-authentic': 'the answer to the last handshake could not be decrypted',
  'bad-key': 'its public key cannot be used',
}

type Fact = readonly [name: string, text: string]

/** Lists the facts about the path to a peer. A fact that differs between the families has one line per family. */
export function factsOf(peer: Peer): readonly Fact[] {
  const sides = sidesOf(peer)
  const families = familiesOf(sides)
  const of = (name: string, text: (side: PeerSide) => string): readonly Fact[] => {
    const facts = families.flatMap((family) => {
      const side = sides[family]
      return side ? [[family, text(side)] as const] : []
    })
    const [first] = facts
    const isOne = facts.every(([, each]) => each === first?.[1])
    return first && isOne
      ? [[name, first[1]]]
      : facts.map(([family, each]): Fact => [`${name}, ${FAMILY_NAMES[family]}`, each])
  }
  return [
    ...(families.length > 1 ? of('State', (side) => LOOKS[conditionOf(side)].name) : []),
    ...of('Packets go to', ({ endpoint }) => or(endpoint, String)),
    ...of('Packets go through', ({ way }) => or(way, (each) => WAYS[each])),
    ...of('Round trip', ({ roundTripMs }) => or(roundTripMs, milliseconds)),
    ...of('Loss of the last probes', ({ lossPercent }) => or(lossPercent, (lost) => `${lost}%`)),
    ...of('Probed', ({ probedSecondsAgo }) => or(probedSecondsAgo, (ago) => `${duration(ago)} ago`)),
    ...of('Longest packet', lengthText),
    ...of('Path MTU', ({ pathMtu }) => or(pathMtu, (mtu) => `${mtu} bytes`)),
    ...(families.some((family) => sides[family]?.session)
      ? [
          ...of('Last handshake', ({ session }) => or(session?.handshakeSecondsAgo, (ago) => `${duration(ago)} ago`)),
          ...of('Keys', ({ session }) => or(session, keysText)),
          ...of('Public key', ({ session }) => or(session?.publicKey, String)),
        ]
      : []),
  ]
}

/**
 * Returns the median round trip of the answering peers in ms. For an even number of peers the median is the mean of the
 * middle two.
 */
export function medianOf(peers: readonly Peer[]): number | undefined {
  const answering = peers.filter(({ condition }) => condition === 'answering')
  const times = answering.flatMap(({ roundTripMs }) => roundTripMs ?? []).toSorted((a, b) => a - b)
  const [low, high] = [times[Math.floor((times.length - 1) / 2)], times[Math.floor(times.length / 2)]]
  return low === undefined || high === undefined ? undefined : (low + high) / 2
}

const LEVELS: Readonly<Record<PeerEvent['what'], StatusEvent['level']>> = {
  silent: 'error',
  'one-way': 'error',
  narrow: 'error',
  moved: 'warn',
  rerouted: 'warn',
  slow: 'warn',
  back: 'info',
  whole: 'info',
  usual: 'info',
}

/** Merges the lines of the log with the events of the peers, ordered by time. */
export function linesOf(lines: readonly StatusEvent[], events: readonly PeerEvent[]): readonly StatusEvent[] {
  const ofPeers = events.map((event): StatusEvent => ({
    at: event.at,
    level: LEVELS[event.what],
    text: `${event.peer} at ${event.publicIp}: ${peerEventText(event, duration)}`,
  }))
  return [...lines, ...ofPeers].toSorted((a, b) => Date.parse(a.at) - Date.parse(b.at))
}

/** The maximum number of peers that a sentence names. A sentence about more peers says only how many there are. */
const NAMED = 3

/** Returns sentences for screen readers about what changed between the previous status and the present one. */
export function changesOf(
  [before, peersBefore]: readonly [Status, readonly Peer[]],
  [after, peersAfter]: readonly [Status, readonly Peer[]],
): readonly string[] {
  const old = new Map(peersBefore.map((peer) => [peer.lease, peer]))
  const kinds = new Map<string, string[]>()
  const add = (what: string, peer: Peer): void => void kinds.set(what, [...(kinds.get(what) ?? []), titleOf(peer)])
  for (const peer of peersAfter) {
    const known = old.get(peer.lease)
    old.delete(peer.lease)
    if (!known) add('new', peer)
    else if (known.words !== peer.words) add(peer.words, peer)
  }
  for (const peer of old.values()) add('gone', peer)
  const peers = [...kinds].map(([what, subnets]) =>
    subnets.length > NAMED ? `${count(subnets.length, 'peer')}: ${what}` : `${subnets.join(', ')}: ${what}`,
  )
  const words = nodeWords(after)
  const node = nodeWords(before) === words ? [] : [`This node is ${words}${after.trouble ? `: ${after.trouble}` : ''}`]
  return [...node, ...peers]
}

/**
 * Returns the node's state in words, without the problems of peers, because a separate sentence describes each peer.
 */
function nodeWords({ state, impairments }: Status): string {
  const others = impairments.filter(({ by }) => by !== 'peers')
  return readingOf({ state: state === 'impaired' && others.length === 0 ? 'working' : state, impairments: others })
    .words
}

/**
 * Selects the peers that have the given condition and match the search text: their subnet is inside the subnet `text`,
 * or their name or address contains `text`.
 */
export function matching(peers: readonly Peer[], text: string, condition: Condition | ''): readonly Peer[] {
  const wanted = text.trim().toLowerCase()
  const within = parseNet(wanted)
  const isWanted = (peer: Peer): boolean => {
    if (within && peer.net) {
      const nets = [peer.net, parseNet(peer.ipv6Subnet ?? '')].filter((net) => net !== undefined)
      return nets.some((net) => netContains(within, net.address))
    }
    const ends = listed(sidesOf(peer)).map(({ endpoint }) => endpoint)
    const texts = [peer.name, peer.subnet, peer.publicIp, peer.ipv6Subnet, peer.publicIpv6, peer.type, ...ends]
    return texts.some((each) => each?.toLowerCase().includes(wanted))
  }
  return peers.filter((peer) => (condition === '' || peer.condition === condition) && isWanted(peer))
}

/** An item of the map: one peer or, if there are too many peers, all peers of a larger subnet. */
export interface Place {
  readonly key: string
  readonly name: string
  /** The worst condition among the peers of this map item. */
  readonly condition: Condition
  readonly peers: readonly Peer[]
  readonly isGroup: boolean
}

export const MOST_PLACES = 256

/**
 * Groups the peers into at most `most` map items. The peers of an item share a subnet prefix, which is as long as
 * possible.
 */
export function placesOf(peers: readonly Peer[], most = MOST_PLACES): readonly Place[] {
  if (peers.length <= most)
    return peers.map((peer) => ({
      key: peer.lease,
      name: titleOf(peer),
      condition: peer.condition,
      peers: [peer],
      isGroup: false,
    }))
  const addresses = peers.map(({ net }) => net?.address ?? 0)
  let bits = peers.reduce((longest, { net }) => Math.max(longest, net?.prefixLength ?? 0), 0)
  for (; bits > 0; bits--)
    if (new Set(addresses.map((each) => addressKey(netAround(each, bits).address))).size <= most) break
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

/**
 * Returns the position of map item number `at` of `all` in the circle around this node, as fractions of the map's width
 * and height.
 */
export function around(at: number, all: number): { readonly x: number; readonly y: number } {
  const angle = Math.PI + (2 * Math.PI * at) / all
  return { x: 0.5 + 0.39 * Math.cos(angle), y: 0.5 + 0.36 * Math.sin(angle) }
}

const POLL_MS = 1000
/**
 * The maximum fraction of the browser's time for fetching and showing the status. With very many peers the page fetches
 * the status less often to keep this limit.
 */
const BUSY_SHARE = 0.05

/** Returns the pause in ms before the next fetch, after fetching and showing the status took `tookMs`. */
export const pauseAfter = (tookMs: number): number => Math.max(POLL_MS, tookMs / BUSY_SHARE) - tookMs
