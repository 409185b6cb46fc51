// main.ts - the script of the status page. It fetches /status.json, and less often /history.json, from its own origin
// and shows both. It changes nothing on the node.

import { parseToShow } from '../../base/text.ts'
import { HISTORY_SCHEMA, type HistoryReport } from '../hour.ts'
import { EVENTS_SCHEMA, type EventsReport } from '../peer-events.ts'
import { STATUS_SCHEMA, type Status } from '../status.ts'
import { createCharts } from './charts.ts'
import { createDetails } from './details.ts'
import { byId, setAttribute, setText } from './dom.ts'
import { createEventList } from './events.ts'
import { createFindings } from './findings.ts'
import { clockText } from './format.ts'
import { createHistory } from './history.ts'
import { PeerMap } from './map.ts'
import { changesOf, linesOf, pauseAfter, peersOf, type Peer } from './model.ts'
import { createNetworkView } from './network.ts'
import { createNodeView } from './node.ts'
import { createTable } from './table.ts'

const TIMEOUT_MS = 10_000

const history = createHistory()
const details = createDetails(history)
const table = createTable(history, (lease) => details.open(lease))
const map = new PeerMap(history, { open: (lease) => details.open(lease), list: (subnet) => table.list(subnet) })
const charts = createCharts(history)
const events = createEventList()
const findings = createFindings()
const node = createNodeView()
const network = createNetworkView()

/** The interval in ms at which the page fetches weftd's history. */
const HISTORY_MS = 10_000
let fetchedHistoryAt = -Infinity
let peerEvents: EventsReport['events'] = []

let last: readonly [Status, readonly Peer[]] | undefined
let silentSince: Date | undefined

function show(status: Status): void {
  const peers = peersOf(status)
  history.add(status)
  node.show(status, peers)
  findings.show(status)
  map.show(peers, status.node?.hostname ?? 'this node', status.node?.subnet ?? '')
  charts.show(status.dataPath?.drops ?? {})
  table.show(peers)
  details.show(peers)
  events.show(linesOf(status.events, peerEvents))
  network.show(status)
  const now = [status, peers] as const
  if (last) announce(changesOf(last, now))
  last = now
}

function announce(sentences: readonly string[]): void {
  if (sentences.length > 0) setText(byId('said'), `${sentences.join('. ')}.`)
}

async function get(path: string): Promise<unknown> {
  // The URL is relative to the page's URL, so that it also works behind a proxy that adds a path prefix.
  const answer = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) })
  if (!answer.ok) throw new Error(`it answers ${answer.status}`)
  return parseToShow(await answer.text())
}

/**
 * Fetches the daemon's history of the last hour at intervals. If the daemon does not answer, the page shows no history.
 */
async function fetchHistory(): Promise<void> {
  if (performance.now() - fetchedHistoryAt < HISTORY_MS) return
  fetchedHistoryAt = performance.now()
  try {
    const [past, recent] = (await Promise.all([get('history.json'), get('events.json')])) as [
      HistoryReport,
      EventsReport,
    ]
    if (past.schema === HISTORY_SCHEMA) history.setHour(past)
    if (recent.schema === EVENTS_SCHEMA) peerEvents = recent.events
  } catch {
    // Ignore the error, because fetching the status then fails too and shows that weftd does not answer.
  }
}

async function fetchStatus(): Promise<Status> {
  const status = (await get('status.json')) as Status
  if (status.schema !== STATUS_SCHEMA) throw new Error('weftd now has another version; reload this page')
  return status
}

function lost(why: string): void {
  if (!silentSince) {
    silentSince = new Date()
    announce(['weftd does not answer'])
  }
  const shown = last ? ' This page shows its last answer.' : ''
  setText(byId('silence'), `✕ weftd has not answered since ${clockText(silentSince)} (${why}).${shown}`)
  byId('silence').hidden = false
  setAttribute(document.body, 'data-stale', 'true')
}

function found(): void {
  if (silentSince) announce(['weftd answers again'])
  silentSince = undefined
  byId('silence').hidden = true
  setAttribute(document.body, 'data-stale', 'false')
}

/** Fetches the status once and shows it. Does nothing while the browser's tab is hidden. */
async function update(): Promise<void> {
  if (document.hidden) return
  let status: Status
  try {
    status = await fetchStatus()
    await fetchHistory()
  } catch (error) {
    lost(error instanceof Error ? error.message : String(error))
    return
  }
  found()
  show(status)
}

async function round(): Promise<void> {
  const began = performance.now()
  try {
    await update()
  } finally {
    setTimeout(() => void round(), pauseAfter(performance.now() - began))
  }
}

void round()
