// history.ts - computes traffic and drop rates from the counters of consecutive statuses, for the charts of the page
// and for the traffic of each peer. Pure.

import type { HistoryReport } from '../hour.ts'
import type { Status } from '../status.ts'

/** The maximum number of samples that the page keeps: five minutes with one status per second. */
const KEPT = 300

interface Rates {
  /**
   * The traffic sent, in bytes per second; `rx` is the traffic received. Undefined if the data path does not count
   * bytes.
   */
  readonly tx: number | undefined
  readonly rx: number | undefined
}

export interface Sample extends Rates {
  /** The wall-clock time of the sample, in seconds since 1970. */
  readonly at: number
  readonly drops: number | undefined
}

/** The sample of one time step in the history of the last hour, which the daemon records. */
interface HourStep extends Sample {
  readonly roundTripMs: number | undefined
  readonly lossPercent: number | undefined
}

export interface History {
  /** Adds the newest status as a sample. Ignores a status with the same time as the previous status. */
  add(status: Status): void
  /**
   * Sets the history of the last hour that weftd recorded. `samples` then returns this history, followed by the samples
   * that the page took itself.
   */
  setHour(report: HistoryReport): void
  samples(): readonly Sample[]
  hour(): readonly HourStep[]
  /** Returns the traffic rates of the peer with this lease key, between the last two statuses. */
  ratesOf(lease: string): Rates
}

interface Totals {
  readonly tx: number | undefined
  readonly rx: number | undefined
  readonly drops: number | undefined
}

/**
 * Sums up the bytes sent, the bytes received and the packets dropped. If the counters of the data path have no bytes,
 * adds up the byte counters of the peers.
 */
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

/**
 * Returns the increase of a counter per second. Returns undefined if the counter decreased, which means that it was
 * reset between the two statuses.
 */
const rate = (now: number | null | undefined, then: number | null | undefined, seconds: number): number | undefined =>
  typeof now === 'number' && typeof then === 'number' && now >= then ? (now - then) / seconds : undefined

export function createHistory(kept = KEPT): History {
  const samples: Sample[] = []
  let last: { readonly at: number; readonly totals: Totals; readonly peers: Map<string, Rates> } | undefined
  let peerRates = new Map<string, Rates>()
  let hourSteps: readonly HourStep[] = []
  return {
    setHour(report) {
      hourSteps = stepsOf(report)
    },
    hour: () => hourSteps,
    add(status) {
      const at = Date.parse(status.at) / 1000
      const totals = totalsOf(status)
      const peers = new Map(
        (status.peers?.list ?? []).map(({ lease, txBytes, rxBytes }) => [
          lease,
          { tx: txBytes ?? undefined, rx: rxBytes ?? undefined },
        ]),
      )
      // If the clock was set back, drop the samples with later times, because a chart needs ascending times.
      const later = last && at < last.at ? samples.findIndex((sample) => sample.at >= at) : -1
      if (later >= 0) samples.splice(later)
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
      return [...hourSteps.filter(({ at }) => !first || at < first.at), ...samples]
    },
    ratesOf: (lease) => peerRates.get(lease) ?? NONE,
  }
}

/** Returns the samples of the last hour, one per time step, beginning with the first step that has a known value. */
function stepsOf({ at, stepSeconds, node }: HistoryReport): readonly HourStep[] {
  const all = node.roundTripMs.length
  const value = (list: readonly (number | null)[], step: number): number | undefined => list[step] ?? undefined
  const steps = Array.from({ length: all }, (_, step): HourStep => ({
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
