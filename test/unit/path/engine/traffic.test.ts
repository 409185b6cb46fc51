// traffic.test.ts - a peer keeps its slot and its counts; one that takes a slot over begins at nothing.

import { beforeEach, describe, expect, it } from 'vitest'
import { createTrafficSlots, SLOT_NUMBERS, sumTraffic, type TrafficSlots } from '../../../../src/path/engine/traffic.ts'

let counted: number[][]
/** Of which slot, of all where it is undefined. */
let asked: (number | undefined)[]
let clockMs: number
let slots: TrafficSlots
beforeEach(() => {
  counted = [[0, 0, 0, 0, -1]]
  asked = []
  clockMs = 1_000
  slots = createTrafficSlots(
    (slot) => {
      asked.push(slot)
      return Float64Array.from(slot === undefined ? counted.flatMap((row) => row) : (counted[slot] ?? []))
    },
    () => clockMs,
  )
})
const NOTHING = { txPackets: 0, txBytes: 0, rxPackets: 0, rxBytes: 0, heardAt: undefined }

it('goes on where the engine before ended', () => {
  const before = Float64Array.from([0, 0, 0, 0, -1, 1, 10, 2, 20, 500, 3, 30, 4, 40, 600])
  const after = Float64Array.from([0, 0, 0, 0, -1, 1, 10, 0, 0, -1])
  expect([...sumTraffic(after, before, 0)]).toEqual([0, 0, 0, 0, -1, 2, 20, 2, 20, 500, 3, 30, 4, 40, 600])
  expect(sumTraffic(after, new Float64Array(), 0)).toBe(after)
})

it('knows how long a peer is silent that the engine before heard last', () => {
  const before = Float64Array.from([1, 10, 2, 20, 500, 1, 10, 0, 0, -1, 1, 10, 2, 20, 500])
  const after = Float64Array.from([0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 1, 10, 70])
  const ages = [...sumTraffic(after, before, 2_000)].filter((_, at) => at % SLOT_NUMBERS === SLOT_NUMBERS - 1)
  expect(ages).toEqual([2_500, -1, 70])
})

describe('slots of traffic', () => {
  it('are kept as long as the peer is one, whoever comes and goes', () => {
    slots.keep(['a', 'b', 'c'])
    expect(['a', 'b', 'c', 'd'].map((key) => slots.slotOf(key))).toEqual([1, 2, 3, 0])
    slots.keep(['c', 'a'])
    slots.keep(['d', 'a', 'c', 'e'])
    expect(['a', 'b', 'c', 'd', 'e'].map((key) => slots.slotOf(key))).toEqual([1, 0, 3, 2, 4])
  })

  it('say what passed, and when the peer was last heard', () => {
    slots.keep(['a', 'b'])
    counted = [
      [9, 9, 9, 9, 0],
      [1, 100, 2, 200, 250],
      [0, 0, 0, 0, -1],
    ]
    clockMs = 2_000
    expect([...slots.read()]).toEqual([
      ['a', { txPackets: 1, txBytes: 100, rxPackets: 2, rxBytes: 200, heardAt: 1_750 }],
      ['b', NOTHING],
    ])
    expect(counted[0]).toHaveLength(SLOT_NUMBERS)
  })

  it('begin at nothing with a new peer, whatever the one before it left', () => {
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
    expect(slots.read().get('b')).toEqual({ txPackets: 1, txBytes: 100, rxPackets: 1, rxBytes: 100, heardAt: 5_000 })
  })

  it('are there for every peer, and read as nothing where the engine has not got so far yet', () => {
    slots.keep(Array.from({ length: 70_000 }, (_, at) => `peer ${at}`))
    expect(slots.slotOf('peer 69999')).toBe(70_000)
    expect(slots.read().size).toBe(70_000)
    expect(slots.read().get('peer 1000')).toEqual(NOTHING)
  })

  it('are given and taken one by one, for which no other is asked about', () => {
    slots.keep(['a', 'b', 'c'])
    slots.remove('b')
    slots.remove('nobody')
    slots.add('a')
    expect(asked).toEqual([])
    counted = [
      [0, 0, 0, 0, -1],
      [0, 0, 0, 0, -1],
      [5, 500, 6, 600, 10],
      [0, 0, 0, 0, -1],
    ]
    slots.add('d')
    expect(asked).toEqual([2])
    expect(['a', 'b', 'c', 'd'].map((key) => slots.slotOf(key))).toEqual([1, 0, 3, 2])
    expect(slots.read().get('d')).toEqual(NOTHING)
    slots.add('e')
    expect([slots.slotOf('e'), asked]).toEqual([4, [2, undefined]])
  })
})
