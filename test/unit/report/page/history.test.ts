// history.test.ts - rates from counters that grow, are reset or are missing.

import { expect, it } from 'vitest'
import type { HistoryReport } from '../../../../src/report/hour.ts'
import { createHistory, totalsOf } from '../../../../src/report/page/history.ts'
import type { Status } from '../../../../src/report/status.ts'
import { peerWith, statusWith } from '../../../support/page-status.ts'

const at = (second: number): string => new Date(Date.UTC(2026, 0, 1) + second * 1000).toISOString()
function statusAt(second: number, tx: number, rx: number, drops: number): Status {
  const status = statusWith([peerWith(1, { txBytes: tx / 2, rxBytes: null })], { at: at(second) })
  const counters = { tx_bytes: tx, rx_bytes: rx, rx_drop_ttl: drops }
  return { ...status, dataPath: { ...status.dataPath!, counters, drops: { rx_drop_ttl: drops } } }
}

it('computes rates per second, in total and for each peer', () => {
  const history = createHistory()
  history.add(statusAt(0, 1000, 0, 5))
  expect(history.samples()).toEqual([])
  history.add(statusAt(2, 5000, 200, 7))
  history.add(statusAt(2, 5000, 200, 7)) // the same status again
  expect(history.samples()).toEqual([{ at: Date.parse(at(2)) / 1000, tx: 2000, rx: 100, drops: 1 }])
  expect(history.ratesOf('10.5.1.0-24')).toEqual({ tx: 1000, rx: undefined })
  expect(history.ratesOf('10.5.9.0-24')).toEqual({ tx: undefined, rx: undefined })
})

it('leaves a gap if counters were reset', () => {
  const history = createHistory()
  for (const [second, tx] of [
    [0, 9000],
    [1, 0],
    [2, 300],
  ] as const)
    history.add(statusAt(second, tx, 0, 0))
  expect(history.samples().map(({ tx }) => tx)).toEqual([undefined, 300])
})

it('reports zero without traffic, and ignores a second status of the same time', () => {
  const history = createHistory()
  for (const status of [statusAt(0, 1000, 0, 0), statusAt(0, 9000, 0, 0), statusAt(1, 9000, 0, 0)]) history.add(status)
  history.add(statusAt(2, 9000, 0, 0))
  expect(history.samples().map(({ tx, rx, drops }) => [tx, rx, drops])).toEqual([
    [8000, 0, 0],
    [0, 0, 0],
  ])
})

it('continues after the clock was set back, and after a status without peers', () => {
  const history = createHistory()
  const away: Status = { ...statusAt(5, 0, 0, 0), peers: null }
  for (const status of [statusAt(9, 1000, 0, 0), statusAt(3, 1500, 0, 0), statusAt(4, 1600, 0, 0), away])
    history.add(status)
  expect(history.samples().map(({ tx }) => tx)).toEqual([100, undefined])
  expect(history.ratesOf('10.5.1.0-24')).toStrictEqual({ tx: undefined, rx: undefined })
})

it('keeps the times of the samples in ascending order after the clock was set back', () => {
  const history = createHistory()
  const times = (): number[] => history.samples().map(second)
  for (const each of [5, 6, 7, 3, 4]) history.add(statusAt(each, 0, 0, 0))
  expect(times()).toEqual([4])
  for (const each of [5, 6, 6, 5.5]) history.add(statusAt(each, 0, 0, 0))
  expect(times()).toEqual([4, 5])
  history.add(statusAt(6, 0, 0, 0))
  expect(times()).toEqual([4, 5, 6])
  // A sample of exactly the time to which the clock was set back is older than the clock's change, so it is dropped too.
  history.add(statusAt(5, 0, 0, 0))
  expect(times()).toEqual([4])
})

it('reports both directions of a peer', () => {
  const history = createHistory()
  const counted = (second: number, txBytes: number, rxBytes: number): Status => ({
    ...statusWith([peerWith(1, { txBytes, rxBytes })]),
    at: new Date(second * 1000).toISOString(),
  })
  history.add(counted(1, 0, 10))
  history.add(counted(3, 400, 30))
  expect(history.ratesOf('10.5.1.0-24')).toEqual({ tx: 200, rx: 10 })
})

it('keeps a maximum number of samples', () => {
  const history = createHistory(3)
  for (let second = 0; second < 9; second++) history.add(statusAt(second, second, 0, 0))
  expect(history.samples().map((sample) => sample.at - Date.parse(at(0)) / 1000)).toEqual([6, 7, 8])
})

it("uses the peers' bytes if the engine counts none, and is undefined without any counter", () => {
  const status = statusWith([peerWith(1), peerWith(2, { txBytes: null, rxBytes: null }), peerWith(3)])
  const kernel: Status = { ...status, dataPath: { ...status.dataPath!, counters: { peers_unusable: 0 }, drops: {} } }
  expect(totalsOf(kernel)).toEqual({ tx: 2000, rx: 4000, drops: undefined })
  const nobody = statusWith([peerWith(1, { txBytes: null, rxBytes: null })], { dataPath: kernel.dataPath })
  expect(totalsOf(nobody)).toEqual({ tx: undefined, rx: undefined, drops: undefined })
  expect(totalsOf({ ...nobody, dataPath: null, peers: null })).toEqual({
    tx: undefined,
    rx: undefined,
    drops: undefined,
  })
})

/** Returns a report of the last hour with one step per given number of sent bytes, the last of them at `end`. */
const hourOf = (end: number, sent: readonly (number | null)[]): HistoryReport => {
  const unknown = sent.map(() => null)
  return {
    schema: 1,
    at: at(end),
    stepSeconds: 10,
    peerStepSeconds: 120,
    peer: null,
    node: {
      txBytesPerSecond: sent,
      rxBytesPerSecond: unknown,
      dropsPerSecond: unknown,
      roundTripMs: unknown,
      lossPercent: unknown,
    },
  }
}
const second = (sample: { readonly at: number }): number => sample.at - Date.parse(at(0)) / 1000

it("shows the daemon's samples, from the first known value on, before the page's own samples", () => {
  const history = createHistory()
  const known = (...values: (number | null)[]): (number | null)[] => [null, null, ...values]
  const report = hourOf(100, known(1, 2, 3))
  history.setHour({
    ...report,
    node: {
      ...report.node,
      rxBytesPerSecond: known(4, 5, 6),
      dropsPerSecond: known(0, 0, 0),
      roundTripMs: known(null, 7, 8),
      lossPercent: known(0, 10, 20),
    },
  })
  expect(history.hour().map((step) => [second(step), step.tx, step.roundTripMs])).toEqual([
    [80, 1, undefined],
    [90, 2, 7],
    [100, 3, 8],
  ])
  expect(history.samples()).toHaveLength(3)
  history.add(statusAt(94, 0, 0, 0))
  history.add(statusAt(95, 500, 0, 0))
  expect(history.samples().map((sample) => [second(sample), sample.tx])).toEqual([
    [80, 1],
    [90, 2],
    [95, 500],
  ])
})

it.each([
  ['no steps', [], []],
  ['no known value', [null, null, null], []],
  ['a known value in its first step', [1, null, null], [80, 90, 100]],
  ['a known value in its second step', [null, 1, null], [90, 100]],
  ['a known value in its last step', [null, null, 0], [100]],
])('shows the steps of a history with %s', (_name, sent, shown) => {
  const history = createHistory()
  history.setHour(hourOf(100, sent))
  expect(history.hour().map(second)).toEqual(shown)
})

it('shows only one sample for a time for which both the daemon and the page have a sample', () => {
  const history = createHistory()
  history.setHour(hourOf(100, [1, 2, 3]))
  history.add(statusAt(89, 0, 0, 0))
  history.add(statusAt(90, 500, 0, 0))
  expect(history.samples().map((sample) => [second(sample), sample.tx])).toEqual([
    [80, 1],
    [90, 500],
  ])
})
