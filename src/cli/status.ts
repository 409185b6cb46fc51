// status.ts - `weft status` and `weft peers`: how this node is, and what it knows of the others.

import { pause } from '../host/bell.ts'
import { stateText, type PeerStatus, type Status } from '../status/status.ts'
import { jsonLine } from '../text.ts'
import { askStatus } from './ask.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import {
  bytes,
  carrierText,
  count,
  duration,
  milliseconds,
  table,
  type Cell,
  type Colour,
  type Screen,
  type Tone,
} from './look.ts'

const WATCH_MS = 2_000
/** More than a person reads are cut, unless they are asked for. */
const SHOWN_PEERS = 100
/** What is shown of the log's warnings. */
const SHOWN_EVENTS = 5

const WATCH_FLAG = { watch: { default: false, help: `show it again every ${WATCH_MS / 1000} s, with rates` } } as const
const ALL_FLAG = { all: { default: false, help: `show all peers, not only ${SHOWN_PEERS}` } } as const
const flags = { ...JSON_FLAG, ...WATCH_FLAG, ...ALL_FLAG, ...SOCKET_FLAG }

export const statusCommand = command({
  name: 'status',
  does: 'show how this node is: its peers, store, lease, data path',
  more: 'Exits with 3 when it does not do its work, or not all peers are reached.',
  flags,
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
  does: 'show what this node knows of each other node',
  more: 'Exits with 3 when not all of them are reached.',
  flags,
  run: ({ options, screen, signal }) =>
    show(options, screen, signal, (status, before) => peerTable(status, before, options.all, screen.colour)),
})

/** What status and peers share: once or again and again, as JSON or for a person. */
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
    const status = await askStatus(socket, signal)
    const isInPlace = watch && screen.isTerminal && !json
    const shown = json ? jsonLine(status) : text(status, before)
    screen.write(isInPlace ? inPlace(shown, before === undefined) : shown)
    if (!watch || !screen.isRead()) return isWell(status) ? EXIT.ok : EXIT.wrong
    before = status
    await pause(signal, WATCH_MS)
  }
}

/** From the first line of the terminal on; of each line what stood there goes, and what stood below (ECMA-48: CUP, EL, ED). */
function inPlace(text: string, isFirst: boolean): string {
  return `${isFirst ? '\u001B[2J' : ''}\u001B[H${text.replaceAll('\n', '\u001B[K\n')}\u001B[J`
}

export const isWell = ({ state, peers }: Status): boolean => state === 'working' && peers?.whole === 1

function heading(status: Status, colour: Colour): string {
  const { daemon, state, trouble, node, store, lease, dataPath, peers, config } = status
  const tone: Tone = state === 'working' ? 'good' : state === 'starting' ? 'doubtful' : 'bad'
  const up = duration((Date.parse(status.at) - Date.parse(daemon.startedAt)) / 1000)
  const lines: (readonly [string, string])[] = []
  if (node) {
    const by = node.externalInterface === null ? '' : ` by ${node.externalInterface}`
    lines.push(['node', `${node.subnet} of ${config?.network}, reached at ${node.publicIp}${by}`])
  }
  if (dataPath) lines.push(['data path', dataPath.open ? pathText(status) : colour('bad', 'down')])
  const compared =
    store.comparedSecondsAgo === null ? 'not compared yet' : `compared ${duration(store.comparedSecondsAgo)} ago`
  const held = store.held === 0 ? '' : colour('doubtful', `, ${store.held} peers kept though it lacks them`)
  const reached = store.reachable ? 'reachable' : colour(state === 'starting' ? 'doubtful' : 'bad', 'unreachable')
  lines.push(['store', `${store.name}, ${daemon.leases}: ${reached}, ${compared}${held}`])
  if (lease)
    lines.push([
      'lease',
      lease.expiresAt === null ? `${lease.key}, reserved` : `${lease.key}, until ${lease.expiresAt}`,
    ])
  if (peers) lines.push(['peers', peersText(status, colour)])
  const drops = Object.entries(dataPath?.drops ?? {})
  if (drops.length > 0) lines.push(['drops', drops.map(([name, number]) => `${name} ${number}`).join(', ')])
  if (status.repairs > 0) lines.push(['repairs', String(status.repairs)])
  if (node && !status.subnetFileWritten)
    lines.push(['subnet.env', colour('bad', `${daemon.subnetFile} is not written`)])
  const troubles = status.events.filter(({ level }) => level !== 'info').slice(-SHOWN_EVENTS)
  return [
    `weftd ${daemon.version}${node ? ` on ${node.hostname}` : ''}, ${colour(tone, stateText(status))} ${colour('dim', `(up ${up}, pid ${daemon.pid})`)}\n`,
    ...(trouble === null ? [] : [`  ${colour(tone, trouble)}\n`]),
    ...lines.map(([name, text]) => `  ${colour('dim', name.padEnd(11))}${text}\n`),
    ...(troubles.length > 0 ? [`\n${colour('dim', 'LAST WARNINGS')}\n`] : []),
    ...troubles.map(
      ({ at, level, text }) => `${colour('dim', at)}  ${colour(level === 'error' ? 'bad' : 'doubtful', text)}\n`,
    ),
    peers && peers.list.length > 0 ? '\n' : '',
  ].join('')
}

function pathText({ dataPath, config }: Status): string {
  if (!dataPath) return ''
  const hung = dataPath.threads.find(({ hungSeconds }) => hungSeconds !== null)
  const trouble = hung ? `; the thread ${hung.name} has hung for ${duration(hung.hungSeconds ?? 0)}` : ''
  return carrierText({ ...dataPath, backendType: config?.backendType ?? 'as last known' }) + trouble
}

function peersText({ peers }: Status, colour: Colour): string {
  if (!peers) return ''
  const { stored, programmed, answering, probed, whole } = peers
  const asked = answering === null ? 'not asked whether they answer' : `${answering} of ${probed} asked answer`
  const part = `${whole === 1 ? 100 : Math.min(99.9, Math.floor(whole * 1000) / 10)}%`
  return `${stored} stored, ${programmed} programmed, ${asked}: ${colour(whole === 1 ? 'good' : 'bad', `${part} whole`)}`
}

function peerTable({ peers, at }: Status, before: Status | undefined, all: boolean, colour: Colour): string {
  if (!peers || peers.list.length === 0) return 'There are no other nodes.\n'
  const earlier = new Map(before?.peers?.list.map((peer) => [peer.lease, peer]))
  const seconds = before ? (Date.parse(at) - Date.parse(before.at)) / 1000 : 0
  const isProbed = peers.answering !== null
  // Who needs a look stands first.
  const rank = ({ state }: PeerStatus): number => ['stored', 'programmed', 'answering'].indexOf(state)
  const sorted = peers.list.toSorted(
    (a, b) => rank(a) - rank(b) || a.subnet.localeCompare(b.subnet, 'en', { numeric: true }),
  )
  const shown = all ? sorted : sorted.slice(0, SHOWN_PEERS)
  const rows = shown.map((peer) => peerRow(peer, earlier.get(peer.lease), seconds, isProbed))
  const rest = sorted.length - shown.length
  return (
    table([['PEER', 'AT', 'WAY', 'STATE', 'RTT', 'LOSS', 'HEARD', 'SENT', 'RECEIVED'], ...rows], colour) +
    (rest > 0 ? colour('dim', `... and ${count(rest, 'more peer')}; see --all\n`) : '')
  )
}

function peerRow(peer: PeerStatus, before: PeerStatus | undefined, seconds: number, isProbed: boolean): Cell[] {
  const tone: Tone =
    peer.state === 'answering'
      ? 'good'
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
  const state = peer.state === 'programmed' && peer.lossPercent !== null ? 'silent' : peer.state
  return [
    peer.subnet,
    peer.endpoint ?? peer.publicIp,
    peer.way ?? '-',
    [tone, peer.held ? `${state}, kept` : state],
    or(peer.roundTripMs, milliseconds),
    or(peer.lossPercent, (percent) => `${percent}%`),
    or(peer.heardSecondsAgo, (ago) => `${duration(ago)} ago`),
    traffic(peer.txBytes, before?.txBytes),
    traffic(peer.rxBytes, before?.rxBytes),
  ]
}
