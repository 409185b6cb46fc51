// history.ts - rates from counts: what passed between one status and the next, for the charts and for each peer. Pure.

import type { Status } from '../status/status.ts'

/** Five minutes at a status a second. */
const KEPT = 300

export interface Rates {
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

export interface History {
  /** The next status; of the same moment as the last it says nothing. */
  add(status: Status): void
  /** The oldest first. */
  samples(): readonly Sample[]
  /** Of a peer by its lease, between the last two. */
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
  return {
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
    samples: () => samples,
    ratesOf: (lease) => peerRates.get(lease) ?? NONE,
  }
}

const NONE: Rates = { tx: undefined, rx: undefined }
