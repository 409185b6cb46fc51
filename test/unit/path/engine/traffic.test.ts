// traffic.test.ts - a peer keeps its slot and its counts, and a peer with a reused slot starts at zero.

import { beforeEach, describe, expect, it } from 'vitest'
import { SLOT_NUMBERS, sumTraffic, TrafficSlots } from '../../../../src/path/engine/traffic.ts'

let counted: number[][]
/** Returns the counts of one slot, or of all slots if it is undefined. */
let reads: (number | undefined)[]
let clockMs: number
let slots: TrafficSlots
beforeEach(() => {
  counted = [[0, 0, 0, 0, -1]]
  reads = []
  clockMs = 1_000
  slots = new TrafficSlots(
    (slot) => {
      reads.push(slot)
      return Float64Array.from(slot === undefined ? counted.flatMap((row) => row) : (counted[slot] ?? []))
    },
    () => clockMs,
  )
})
const NOTHING = { txPackets: 0, txBytes: 0, rxPackets: 0, rxBytes: 0, lastReceivedAt: undefined }

it('continues the counts of the previous engine', () => {
  const before = Float64Array.from([0, 0, 0, 0, -1, 1, 10, 2, 20, 500, 3, 30, 4, 40, 600])
  const after = Float64Array.from([0, 0, 0, 0, -1, 1, 10, 0, 0, -1])
  expect([...sumTraffic(after, before, 0)]).toEqual([0, 0, 0, 0, -1, 2, 20, 2, 20, 500, 3, 30, 4, 40, 600])
  expect(sumTraffic(after, new Float64Array(), 0)).toBe(after)
})

it('knows the age of the last packet that the previous engine received', () => {
  const before = Float64Array.from([1, 10, 2, 20, 500, 1, 10, 0, 0, -1, 1, 10, 2, 20, 500])
  const after = Float64Array.from([0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 1, 10, 70])
  const ages = [...sumTraffic(after, before, 2_000)].filter((_, at) => at % SLOT_NUMBERS === SLOT_NUMBERS - 1)
  expect(ages).toEqual([2_500, -1, 70])
})

describe('slots of traffic', () => {
  it('stay with their peer while other peers come and go', () => {
    slots.keep(['a', 'b', 'c'])
    expect(['a', 'b', 'c', 'd'].map((key) => slots.slotOf(key))).toEqual([1, 2, 3, 0])
    slots.keep(['c', 'a'])
    slots.keep(['d', 'a', 'c', 'e'])
    expect(['a', 'b', 'c', 'd', 'e'].map((key) => slots.slotOf(key))).toEqual([1, 0, 3, 2, 4])
  })

  it('give the traffic and the time of the last received packet', () => {
    slots.keep(['a', 'b'])
    counted = [
      [9, 9, 9, 9, 0],
      [1, 100, 2, 200, 250],
      [0, 0, 0, 0, -1],
    ]
    clockMs = 2_000
    expect([...slots.read()]).toEqual([
      ['a', { txPackets: 1, txBytes: 100, rxPackets: 2, rxBytes: 200, lastReceivedAt: 1_750 }],
      ['b', NOTHING],
    ])
    expect(counted[0]).toHaveLength(SLOT_NUMBERS)
  })

  it('are read one by one if only some peers are needed', () => {
    slots.keep(['a', 'b', 'c'])
    counted = [
      [9, 9, 9, 9, 0],
      [1, 100, 2, 200, 250],
      [0, 0, 0, 0, -1],
      [3, 300, 4, 400, 500],
    ]
    clockMs = 2_000
    expect([...slots.read(new Set(['c', 'nobody', 'b']))]).toEqual([
      ['c', { txPackets: 3, txBytes: 300, rxPackets: 4, rxBytes: 400, lastReceivedAt: 1_500 }],
      ['b', NOTHING],
    ])
    expect(reads).toEqual([3, 2])
  })

  it('start at zero for a new peer, regardless of earlier counts', () => {
    slots.keep(['a'])
    counted = [
      [0, 0, 0, 0, -1],
      [5, 500, 6, 600, 10],
    ]
    slots.keep(['b'])
    expect(slots.slotOf('b')).toBe(1)
    expect(slots.read().get('b')).toEqual(NOTHING)
    counted = [
      [0, 0, 0, 0, -1],
      [6, 600, 7, 700, 0],
    ]
    clockMs = 5_000
    expect(slots.read().get('b')).toEqual({
      txPackets: 1,
      txBytes: 100,
      rxPackets: 1,
      rxBytes: 100,
      lastReceivedAt: 5_000,
    })
  })

  it('exist for every peer, and read as zero before the engine has counted', () => {
    slots.keep(Array.from({ length: 70_000 }, (_, at) => `peer ${at}`))
    expect(slots.slotOf('peer 69999')).toBe(70_000)
    expect(slots.read().size).toBe(70_000)
    expect(slots.read().get('peer 1000')).toEqual(NOTHING)
  })

  it('are added and removed one by one without reading other slots', () => {
    slots.keep(['a', 'b', 'c'])
    slots.remove('b')
    slots.remove('nobody')
    slots.add('a')
    expect(reads).toEqual([])
    counted = [
      [0, 0, 0, 0, -1],
      [0, 0, 0, 0, -1],
      [5, 500, 6, 600, 10],
      [0, 0, 0, 0, -1],
    ]
    slots.add('d')
    expect(reads).toEqual([2])
    expect(['a', 'b', 'c', 'd'].map((key) => slots.slotOf(key))).toEqual([1, 0, 3, 2])
    expect(slots.read().get('d')).toEqual(NOTHING)
    slots.add('e')
    expect([slots.slotOf('e'), reads]).toEqual([4, [2, undefined]])
  })
})
