// main.ts - the page that weftd serves: asks /status.json of its own origin, and now and then what it remembers, and shows what it says. It changes nothing.

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
import { createMap } from './map.ts'
import { changesOf, linesOf, pauseAfter, peersOf, type Peer } from './model.ts'
import { createNetworkView } from './network.ts'
import { createNodeView } from './node.ts'
import { createTable } from './table.ts'

const PATIENCE_MS = 10_000

const history = createHistory()
const details = createDetails(history)
const table = createTable(history, (lease) => details.open(lease))
const map = createMap(history, { open: (lease) => details.open(lease), list: (subnet) => table.list(subnet) })
const charts = createCharts(history)
const events = createEventList()
const findings = createFindings()
const node = createNodeView()
const network = createNetworkView()

/** What the daemon remembers is asked for this often. */
const REMEMBERED_MS = 10_000
let rememberedAt = -Infinity
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
  if (last) tell(changesOf(last, now))
  last = now
}

/** Tells sentences to whoever listens to the page. */
function tell(sentences: readonly string[]): void {
  if (sentences.length > 0) setText(byId('said'), `${sentences.join('. ')}.`)
}

async function get(path: string): Promise<unknown> {
  // Relative, so that it works behind a proxy that adds a path too.
  const answer = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MS) })
  if (!answer.ok) throw new Error(`it answers ${answer.status}`)
  return parseToShow(await answer.text())
}

/** Asks now and then for what the daemon remembers; one that cannot say is shown without it. */
async function remember(): Promise<void> {
  if (performance.now() - rememberedAt < REMEMBERED_MS) return
  rememberedAt = performance.now()
  try {
    const [past, told] = (await Promise.all([get('history.json'), get('events.json')])) as [HistoryReport, EventsReport]
    if (past.schema === HISTORY_SCHEMA) history.remember(past)
    if (told.schema === EVENTS_SCHEMA) peerEvents = told.events
  } catch {
    // The status says what there is to say of a daemon that does not answer.
  }
}

async function ask(): Promise<Status> {
  const status = (await get('status.json')) as Status
  if (status.schema !== STATUS_SCHEMA) throw new Error('weftd has another version now: load this page again')
  return status
}

function lost(why: string): void {
  if (!silentSince) {
    silentSince = new Date()
    tell(['weftd does not answer'])
  }
  const shown = last ? ' This page shows what it said last.' : ''
  setText(byId('silence'), `✕ weftd has not answered since ${clockText(silentSince)} (${why}).${shown}`)
  byId('silence').hidden = false
  setAttribute(document.body, 'data-stale', 'true')
}

function found(): void {
  if (silentSince) tell(['weftd answers again'])
  silentSince = undefined
  byId('silence').hidden = true
  setAttribute(document.body, 'data-stale', 'false')
}

/** Asks once and shows the answer; nothing is asked while nobody looks. */
async function look(): Promise<void> {
  if (document.hidden) return
  let status: Status
  try {
    status = await ask()
    await remember()
  } catch (error) {
    lost(error instanceof Error ? error.message : String(error))
    return
  }
  found()
  show(status)
}

/** Goes on for ever. */
async function round(): Promise<void> {
  const began = performance.now()
  try {
    await look()
  } finally {
    setTimeout(() => void round(), pauseAfter(performance.now() - began))
  }
}

void round()
