// history.test.ts - rates from counts that grow, begin anew, or are not there.

import { expect, it } from 'vitest'
import { createHistory, totalsOf } from '../../../src/page/history.ts'
import type { Status } from '../../../src/status/status.ts'
import { peerWith, statusWith } from '../../support/page-status.ts'

const at = (second: number): string => new Date(Date.UTC(2026, 0, 1) + second * 1000).toISOString()
function statusAt(second: number, tx: number, rx: number, drops: number): Status {
  const status = statusWith([peerWith(1, { txBytes: tx / 2, rxBytes: null })], { at: at(second) })
  const counters = { tx_bytes: tx, rx_bytes: rx, rx_drop_ttl: drops }
  return { ...status, dataPath: { ...status.dataPath!, counters, drops: { rx_drop_ttl: drops } } }
}

it('tells what passed in a second, in all and for each peer', () => {
  const history = createHistory()
  history.add(statusAt(0, 1000, 0, 5))
  expect(history.samples()).toEqual([])
  history.add(statusAt(2, 5000, 200, 7))
  history.add(statusAt(2, 5000, 200, 7)) // the same answer again
  expect(history.samples()).toEqual([{ at: Date.parse(at(2)) / 1000, tx: 2000, rx: 100, drops: 1 }])
  expect(history.ratesOf('10.5.1.0-24')).toEqual({ tx: 1000, rx: undefined })
  expect(history.ratesOf('10.5.9.0-24')).toEqual({ tx: undefined, rx: undefined })
})

it('leaves a gap where counts began anew', () => {
  const history = createHistory()
  for (const [second, tx] of [
    [0, 9000],
    [1, 0],
    [2, 300],
  ] as const)
    history.add(statusAt(second, tx, 0, 0))
  expect(history.samples().map(({ tx }) => tx)).toEqual([undefined, 300])
})

it('keeps so many and no more', () => {
  const history = createHistory(3)
  for (let second = 0; second < 9; second++) history.add(statusAt(second, second, 0, 0))
  expect(history.samples().map((sample) => sample.at - Date.parse(at(0)) / 1000)).toEqual([6, 7, 8])
})

it("takes the peers' bytes where the engine counts none, and knows nothing where nobody counts", () => {
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
