// status.ts - `weft status` and `weft peers`: show the state of this node and of its peers.

import { jsonLine } from '../../base/text.ts'
import { pause } from '../../host/bell.ts'
import { FAMILIES, FAMILY_NAMES, listed, type Family } from '../../net/address.ts'
import { packetsText } from '../../report/effects.ts'
import { readingOf } from '../../report/states.ts'
import {
  briefly,
  conditionOf,
  conditionRank,
  conditionText,
  knownWhole,
  sidesOf,
  type Condition,
  type PeersStatus,
  type PeerStatus,
  type Status,
} from '../../report/status.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { fetchStatus } from './daemon-client.ts'
import {
  bytes,
  carrierText,
  count,
  duration,
  milliseconds,
  percent,
  table,
  type Cell,
  type Colour,
  type Screen,
  type Tone,
} from './look.ts'

const WATCH_MS = 2_000
/** The maximum number of peers that `weft status` and `weft peers` show without --all. */
const SHOWN_PEERS = 100
const SHOWN_EVENTS = 5

const WATCH_FLAG = { watch: { default: false, help: `repeat every ${WATCH_MS / 1000} s, with rates` } } as const
const ALL_FLAG = { all: { default: false, help: `show all peers, not only the first ${SHOWN_PEERS}` } } as const
const NAMES_FLAG = {
  names: { default: false, help: 'print only names and subnets, one per line, for shell completion' },
} as const
const flags = { ...JSON_FLAG, ...WATCH_FLAG, ...ALL_FLAG, ...SOCKET_FLAG }

export const statusCommand = command({
  name: 'status',
  does: 'show the state of this node: its peers, store, lease and data path',
  more: 'Exits with 3 unless the node works and reaches all peers with packets of any length.',
  flags,
  isEndless: ({ watch }) => watch,
  run: ({ options, screen, signal }) =>
    show(
      options,
      screen,
      signal,
      (status, before) => heading(status, screen.colour) + peerTable(status, before, options.all, screen.colour),
    ),
})

export const peersCommand = command({
  name: 'peers',
  does: 'show what this node knows about the other nodes',
  more: 'Exits with 3 unless the node works and reaches all peers with packets of any length.',
  flags: { ...flags, ...NAMES_FLAG },
  isEndless: ({ watch, names }) => watch && !names,
  async run({ options, screen, signal }) {
    if (!options.names)
      return show(options, screen, signal, (status, before) => peerTable(status, before, options.all, screen.colour))
    const status = await fetchStatus(options['status-socket'], signal)
    screen.write(
      wordsFor(status)
        .map((word) => `${word}\n`)
        .join(''),
    )
    return EXIT.ok
  },
})

/**
 * Matches host names without special characters. Completion offers only these names, because a shell may expand special
 * characters.
 */
const PLAIN = /^[a-z\d][a-z\d._-]*$/i

/** Lists the words by which shell completion can name a peer: subnets, and host names without special characters. */
export const wordsFor = ({ peers }: Pick<Status, 'peers'>): readonly string[] => [
  ...new Set((peers?.list ?? []).flatMap(({ name, subnet }) => (name && PLAIN.test(name) ? [name, subnet] : [subnet]))),
]

async function show(
  {
    json,
    watch,
    'status-socket': socket,
  }: { readonly json: boolean; readonly watch: boolean; readonly 'status-socket': string },
  screen: Screen,
  signal: AbortSignal,
  text: (status: Status, before: Status | undefined) => string,
): Promise<number> {
  let before: Status | undefined
  for (;;) {
    const status = await fetchStatus(socket, signal)
    const isInPlace = watch && screen.isTerminal && !json
    const shown = json ? jsonLine(status) : text(status, before)
    screen.write(isInPlace ? inPlace(shown, before === undefined) : shown)
    if (!watch || !screen.isRead()) return isWell(status) ? EXIT.ok : EXIT.wrong
    before = status
    await pause(signal, WATCH_MS)
  }
}

/**
 * Adds control sequences to the text, so that it overwrites the terminal from the first line on, and clears the lines
 * after the text (ECMA-48: CUP, EL, ED).
 */
function inPlace(text: string, isFirst: boolean): string {
  return `${isFirst ? '\u001B[2J' : ''}\u001B[H${text.replaceAll('\n', '\u001B[K\n')}\u001B[J`
}

export const isWell = (status: Status): boolean => readingOf(status).exit === 0 && (status.peers?.narrow ?? 0) === 0

function heading(status: Status, colour: Colour): string {
  const { daemon, state, trouble, node, store, lease, dataPath, peers, config } = status
  const { tone, words }: { readonly tone: Tone; readonly words: string } = readingOf(status)
  const up = duration((Date.parse(status.at) - Date.parse(daemon.startedAt)) / 1000)
  const lines: (readonly [string, string])[] = []
  if (node) {
    const by = node.externalInterface === null ? '' : ` by ${node.externalInterface}`
    const [subnets, networks, addresses] = [
      bothText(node.subnet, node.ipv6Subnet),
      bothText(config?.network ?? '', config?.ipv6Network ?? null),
      bothText(node.publicIp, node.publicIpv6),
    ]
    lines.push(['node', `${subnets} of ${networks}, reached at ${addresses}${by}`])
  }
  if (dataPath) lines.push(['data path', dataPath.open ? pathText(status) : colour('bad', 'down')])
  const compared =
    store.comparedSecondsAgo === null ? 'not compared yet' : `compared ${duration(store.comparedSecondsAgo)} ago`
  const held = store.held === 0 ? '' : colour('doubtful', `, ${store.held} peers kept although their leases are gone`)
  const reached = store.reachable ? 'reachable' : colour(node ? 'bad' : 'doubtful', 'unreachable')
  lines.push(['store', `${store.name}, ${daemon.leases}: ${reached}, ${compared}${held}`])
  if (lease) lines.push(['lease', `${lease.key}, ${leaseEndText(status)}`])
  if (peers) lines.push(['peers', peersText(status, colour)])
  if (Object.keys(dataPath?.drops ?? {}).length > 0) lines.push(['drops', dropsText(status)])
  if (status.repairs > 0) lines.push(['repairs', String(status.repairs)])
  if (node && !status.subnetFileWritten)
    lines.push(['subnet.env', colour('bad', `${daemon.subnetFile} is not written`)])
  const troubles = status.events.filter(({ level }) => level !== 'info').slice(-SHOWN_EVENTS)
  return [
    `weftd ${daemon.version}${node ? ` on ${node.hostname}` : ''}, ${colour(tone, words)} ${colour('dim', `(up ${up}, pid ${daemon.pid})`)}\n`,
    ...(trouble === null ? [] : [`  ${colour(tone, trouble)}\n`]),
    ...(state === 'working' ? [] : [`  ${colour('dim', `effect: ${packetsText(status)}`)}\n`]),
    ...(state === 'impaired' ? [`  ${colour('dim', 'remedy: `weft doctor` says what to do')}\n`] : []),
    ...lines.map(([name, text]) => `  ${colour('dim', name.padEnd(11))}${text}\n`),
    ...(troubles.length > 0 ? [`\n${colour('dim', 'LAST WARNINGS')}\n`] : []),
    ...troubles.map(
      ({ at, level, text }) => `${colour('dim', at)}  ${colour(level === 'error' ? 'bad' : 'doubtful', text)}\n`,
    ),
    peers && peers.list.length > 0 ? '\n' : '',
  ].join('')
}

/** Describes when the lease ends. In Kubernetes a lease is a part of a Node object, and has no expiry time. */
function leaseEndText({ lease, store }: Status): string {
  const expiresAt = lease?.expiresAt ?? null
  if (expiresAt !== null) return `until ${expiresAt}`
  return store.name === 'kubernetes' ? 'until the Node object is deleted' : 'reserved'
}

/**
 * Joins the values of both families for display. In an IPv6-only network the two values are equal, so the result has
 * the value once.
 */
const bothText = (first: string, ipv6: string | null): string =>
  ipv6 === null || ipv6 === first ? first : `${first} and ${ipv6}`

function pathText({ dataPath, config }: Status): string {
  if (!dataPath) return ''
  const hung = dataPath.threads.find(({ hungSeconds }) => hungSeconds !== null)
  const trouble = hung ? `; the thread ${hung.name} has hung for ${duration(hung.hungSeconds ?? 0)}` : ''
  return carrierText({ ...dataPath, backendType: config?.backendType ?? 'as last known' }) + trouble
}

function dropsText({ dataPath }: Status): string {
  const { drops = {}, recent } = dataPath ?? {}
  const all = Object.entries(drops).map(([name, number]) => {
    const lately = recent?.drops[name] ?? 0
    return `${name} ${number}${lately > 0 ? ` (${lately} in the last ${duration(recent?.seconds ?? 0)})` : ''}`
  })
  const isOver = recent !== undefined && recent !== null && Object.keys(recent.drops).length === 0
  return `${all.join(', ')}${isOver ? `; none in the last ${duration(recent.seconds)}` : ''}`
}

function peersText(status: Status, colour: Colour): string {
  const { peers } = status
  if (!peers) return ''
  const { stored, programmed, answering, probed, narrow } = peers
  if (stored === 0) return 'no other node has a lease'
  const whole = knownWhole(peers)
  if (whole === 1 && !narrow && answering !== null) {
    const isLong = peers.list.every((peer) => listed(sidesOf(peer)).every(({ path }) => path === 'whole'))
    const all = `${answering} of ${probed} answer${probed === 1 ? 's' : ''}${isLong ? ', also to long packets' : ''}`
    return `${stored} stored, ${programmed} programmed, ${colour('good', all)}${narrowText(status, colour)}`
  }
  const probing =
    answering === null ? 'not probed' : probed === 0 ? 'not probed yet' : `${answering} of ${probed} probed answer`
  const tone = whole === 1 && !narrow ? 'good' : 'bad'
  const forShort = narrow ? ' for short packets' : ''
  const part = whole === undefined ? '' : `: ${colour(tone, `${percent(whole)} whole${forShort}`)}`
  const broken = whole === undefined || whole === 1 ? '' : brokenText(peers)
  return `${stored} stored, ${programmed} programmed, ${probing}${part}${broken}${narrowText(status, colour)}`
}

/** Describes which lengths of packets do not reach some peers, or reach them only in fragments. */
function narrowText({ peers, dataPath }: Status, colour: Colour): string {
  const sides = (peers?.list ?? []).flatMap((peer) => listed(sidesOf(peer)).filter(({ path }) => path === 'narrow'))
  if (sides.length === 0) return ''
  const known = sides.flatMap(({ passesBytes }) => passesBytes ?? [])
  const size = known.length === sides.length ? ` of more than ${Math.min(...known)} of ${dataPath?.mtu} bytes` : ''
  const few = peers?.narrow ?? 0
  return few > 0
    ? colour('bad', `, but long packets${size} do not reach ${few === 1 ? 'one peer' : `${few} of them`}`)
    : `; ${size ? `packets${size}` : 'long packets'} are fragmented, or their senders get an ICMP error`
}

/** Returns how many peers answer over each family, if the numbers of the two families differ. */
function brokenText({ list, answering }: PeersStatus): string {
  const isReached = (condition: Condition): boolean =>
    condition === 'answering' || condition === 'narrow' || (answering === null && condition === 'programmed')
  const counts = FAMILIES.map((family): readonly [Family, number, number] => {
    const sides = list.flatMap((peer) => sidesOf(peer)[family] ?? [])
    return [family, sides.filter((side) => isReached(conditionOf(side))).length, sides.length]
  }).filter(([, , all]) => all > 0)
  const [one, other] = counts
  if (!one || !other || (one[1] === other[1] && one[2] === other[2])) return ''
  return `; ${counts.map(([family, some, all]) => `over ${FAMILY_NAMES[family]} ${some} of ${all}`).join(', ')}`
}

function peerTable({ peers, at }: Status, before: Status | undefined, all: boolean, colour: Colour): string {
  if (!peers || peers.list.length === 0) return 'There are no other nodes.\n'
  const earlier = new Map(before?.peers?.list.map((peer) => [peer.lease, peer]))
  const seconds = before ? (Date.parse(at) - Date.parse(before.at)) / 1000 : 0
  const isProbed = peers.answering !== null
  // Returns the rank by which a list of peers is sorted, in which peers with a problem come first.
  const rank = (peer: PeerStatus): number => conditionRank(conditionOf(peer))
  const sorted = peers.list.toSorted(
    (a, b) => rank(a) - rank(b) || a.subnet.localeCompare(b.subnet, 'en', { numeric: true }),
  )
  const shown = all ? sorted : sorted.slice(0, SHOWN_PEERS)
  const rows = shown.map((peer) => peerRow(peer, earlier.get(peer.lease), seconds, isProbed))
  const heads = ['NAME', 'PEER', 'AT', 'WAY', 'STATE', 'RTT', 'LOSS', 'HEARD', 'SENT', 'RECEIVED']
  const handshakes = peers.list.some(({ session }) => session)
    ? [['HANDSHAKE'], ...shown.map(({ session }) => [handshakeText(session)])]
    : []
  const rest = sorted.length - shown.length
  return (
    table(
      [heads, ...rows].map((row, line) => [...row, ...(handshakes[line] ?? [])]),
      colour,
    ) + (rest > 0 ? colour('dim', `... and ${count(rest, 'more peer')}; see --all\n`) : '')
  )
}

/** Describes when the last handshake with a peer was, and whether the keys of the session have expired. */
function handshakeText(session: PeerStatus['session']): string {
  if (!session) return '-'
  const { handshakeSecondsAgo: ago, ageSeconds } = session
  if (ago === null) return 'none'
  return `${duration(ago)} ago${ageSeconds === null ? ', no keys now' : ''}`
}

/**
 * Returns the address that `weft peers` shows for a peer without an endpoint: its underlay address in the family over
 * which this node cannot send it packets (IPv4 if it can send over neither family).
 */
function hostOf(peer: PeerStatus): string {
  const { ipv4, ipv6 } = sidesOf(peer)
  return ipv4 && ipv6 && ipv4.state !== 'stored' ? (peer.publicIpv6 ?? peer.publicIp) : peer.publicIp
}

function peerRow(peer: PeerStatus, before: PeerStatus | undefined, seconds: number, isProbed: boolean): Cell[] {
  const tone: Tone =
    peer.state === 'answering'
      ? conditionOf(peer) === 'narrow'
        ? 'bad'
        : 'good'
      : peer.state === 'stored' || peer.lossPercent !== null
        ? 'bad'
        : isProbed
          ? 'doubtful'
          : 'good'
  const or = (value: number | null, text: (value: number) => string): string => (value === null ? '-' : text(value))
  const traffic = (now: number | null, then: number | null = null): string => {
    if (now === null) return '-'
    return seconds > 0 && then !== null ? `${bytes(Math.max(0, now - then) / seconds)}/s` : bytes(now)
  }
  const state = conditionText(peer, (condition) => condition)
  return [
    // Show a dash for a peer without a host name, because flanneld does not publish a host name.
    peer.name ? briefly(peer.name) : '-',
    peer.subnet,
    peer.endpoint ?? hostOf(peer),
    peer.way ?? '-',
    [tone, peer.held ? `${state}, kept` : state],
    or(peer.roundTripMs, milliseconds),
    or(peer.lossPercent, (lost) => `${lost}%`),
    or(peer.heardSecondsAgo, (ago) => `${duration(ago)} ago`),
    traffic(peer.txBytes, before?.txBytes),
    traffic(peer.rxBytes, before?.rxBytes),
  ]
}
