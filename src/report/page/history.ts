// history.ts - rates from counts: what passed between one status and the next, for the charts and for each peer. Pure.

import type { HistoryReport } from '../hour.ts'
import type { Status } from '../status.ts'

/** Five minutes at a status a second. */
const KEPT = 300

interface Rates {
  /** Bytes a second; undefined where nobody counts. */
  readonly tx: number | undefined
  readonly rx: number | undefined
}

export interface Sample extends Rates {
  /** Seconds of the day's clock. */
  readonly at: number
  /** Packets a second. */
  readonly drops: number | undefined
}

/** What the daemon remembers of a step of the last hour. */
interface Remembered extends Sample {
  readonly roundTripMs: number | undefined
  readonly lossPercent: number | undefined
}

export interface History {
  /** The next status; of the same moment as the last it says nothing. */
  add(status: Status): void
  /** What the daemon remembers: it stands before what was seen here. */
  remember(report: HistoryReport): void
  /** The oldest first. */
  samples(): readonly Sample[]
  /** The last hour as the daemon remembers it, the oldest first. */
  hour(): readonly Remembered[]
  /** The rates of a peer, by its lease, between the last two samples. */
  ratesOf(lease: string): Rates
}

interface Totals {
  readonly tx: number | undefined
  readonly rx: number | undefined
  readonly drops: number | undefined
}

/** Bytes by the engine; where the kernel carries them, of those peers that it counts for. */
export function totalsOf({ dataPath, peers }: Status): Totals {
  const counters = dataPath?.counters ?? {}
  const sum = (of: 'txBytes' | 'rxBytes'): number | undefined => {
    const known = (peers?.list ?? []).flatMap((peer) => peer[of] ?? [])
    return known.length === 0 ? undefined : known.reduce((all, each) => all + each, 0)
  }
  const drops = Object.values(dataPath?.drops ?? {}).reduce((all, each) => all + each, 0)
  return {
    tx: counters['tx_bytes'] ?? sum('txBytes'),
    rx: counters['rx_bytes'] ?? sum('rxBytes'),
    drops: Object.keys(counters).some((name) => name.includes('_drop_')) ? drops : undefined,
  }
}

/** A count that went back began anew: of that interval nothing is known. */
const rate = (now: number | null | undefined, then: number | null | undefined, seconds: number): number | undefined =>
  typeof now === 'number' && typeof then === 'number' && now >= then ? (now - then) / seconds : undefined

export function createHistory(kept = KEPT): History {
  const samples: Sample[] = []
  let last: { readonly at: number; readonly totals: Totals; readonly peers: Map<string, Rates> } | undefined
  let peerRates = new Map<string, Rates>()
  let remembered: readonly Remembered[] = []
  return {
    remember(report) {
      remembered = stepsOf(report)
    },
    hour: () => remembered,
    add(status) {
      const at = Date.parse(status.at) / 1000
      const totals = totalsOf(status)
      const peers = new Map(
        (status.peers?.list ?? []).map(({ lease, txBytes, rxBytes }) => [
          lease,
          { tx: txBytes ?? undefined, rx: rxBytes ?? undefined },
        ]),
      )
      if (last && at > last.at) {
        const seconds = at - last.at
        const between = (now: Rates, then: Rates): Rates => ({
          tx: rate(now.tx, then.tx, seconds),
          rx: rate(now.rx, then.rx, seconds),
        })
        samples.push({ at, ...between(totals, last.totals), drops: rate(totals.drops, last.totals.drops, seconds) })
        if (samples.length > kept) samples.shift()
        const { peers: before } = last
        peerRates = new Map([...peers].flatMap(([lease, now]) => [[lease, between(now, before.get(lease) ?? NONE)]]))
      }
      if (!last || at !== last.at) last = { at, totals, peers }
    },
    samples() {
      const [first] = samples
      return [...remembered.filter(({ at }) => !first || at < first.at), ...samples]
    },
    ratesOf: (lease) => peerRates.get(lease) ?? NONE,
  }
}

/** The steps of the last hour, from the first of which something is known. */
function stepsOf({ at, stepSeconds, node }: HistoryReport): readonly Remembered[] {
  const all = node.roundTripMs.length
  const value = (list: readonly (number | null)[], step: number): number | undefined => list[step] ?? undefined
  const steps = Array.from({ length: all }, (_, step): Remembered => ({
    at: Date.parse(at) / 1000 - (all - 1 - step) * stepSeconds,
    tx: value(node.txBytesPerSecond, step),
    rx: value(node.rxBytesPerSecond, step),
    drops: value(node.dropsPerSecond, step),
    roundTripMs: value(node.roundTripMs, step),
    lossPercent: value(node.lossPercent, step),
  }))
  const first = steps.findIndex(({ at: _at, ...values }) => Object.values(values).some((each) => each !== undefined))
  return first === -1 ? [] : steps.slice(first)
}

const NONE: Rates = { tx: undefined, rx: undefined }
