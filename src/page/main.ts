// main.ts - the page that weftd serves: asks /status.json of its own origin and shows what it says. It changes nothing.

import { STATUS_SCHEMA, type Status } from '../status/status.ts'
import { parseToShow } from '../text.ts'
import { createCharts } from './charts.ts'
import { createDetails } from './details.ts'
import { byId, setAttribute, setText } from './dom.ts'
import { createEventList } from './events.ts'
import { createFindings } from './findings.ts'
import { createHistory } from './history.ts'
import { createMap } from './map.ts'
import { changesOf, pauseAfter, peersOf, type Peer } from './model.ts'
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
  events.show(status.events)
  const now = [status, peers] as const
  if (last) tell(changesOf(last, now))
  last = now
}

/** To whoever listens to the page. */
function tell(sentences: readonly string[]): void {
  if (sentences.length > 0) setText(byId('said'), `${sentences.join('. ')}.`)
}

async function ask(): Promise<Status> {
  // Relative, so that it works behind a proxy that adds a path too.
  const answer = await fetch('status.json', { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MS) })
  if (!answer.ok) throw new Error(`it answers ${answer.status}`)
  const status = parseToShow(await answer.text()) as Status
  if (status.schema !== STATUS_SCHEMA) throw new Error('it speaks another version; load this page again')
  return status
}

function lost(why: string): void {
  if (!silentSince) {
    silentSince = new Date()
    tell(['weftd does not answer'])
  }
  const shown = last ? ' What is shown is of then.' : ''
  setText(byId('silence'), `✕ weftd does not answer since ${silentSince.toLocaleTimeString()} (${why}).${shown}`)
  byId('silence').hidden = false
  setAttribute(document.body, 'data-stale', 'true')
}

function found(): void {
  if (silentSince) tell(['weftd answers again'])
  silentSince = undefined
  byId('silence').hidden = true
  setAttribute(document.body, 'data-stale', 'false')
}

/** What was found out, in this round; nothing is asked while nobody looks. */
async function look(): Promise<void> {
  if (document.hidden) return
  let status: Status
  try {
    status = await ask()
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
