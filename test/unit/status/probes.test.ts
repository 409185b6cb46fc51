// probes.test.ts - who is asked when, and what answers and losses make of a peer.

import { expect, it } from 'vitest'
import { ASKED_A_SECOND, createProbes, type Probes } from '../../../src/status/probes.ts'

const target = (number: number) => ({ key: `peer ${number}`, address: number })
const targets = (count: number) => Array.from({ length: count }, (_, number) => target(number + 1))

/** Lets the seconds pass; `answers` says whom it is answered by. Returns whom it asked, second by second. */
function pass(probes: Probes, fromS: number, toS: number, answers: (address: number) => boolean): number[][] {
  const asked: number[][] = []
  for (let second = fromS; second < toS; second++) {
    const due = probes.due(second * 1000)
    asked.push(due.map(({ address }) => address))
    for (const { address, sequence } of due)
      if (answers(address)) probes.answered(sequence, address, 1.5, second * 1000 + 10)
  }
  return asked
}
const all = (): boolean => true

it('asks each peer soon, and then once in the interval, not all at once', () => {
  let seed = 1
  const probes = createProbes(10_000, () => (seed = (seed * 16807) % 2147483647) / 2147483647)
  probes.keep(targets(100), 0)
  const asked = pass(probes, 1, 101, all)
  expect(asked.slice(0, 2).flat()).toHaveLength(100)
  const counts = new Map<number, number>()
  for (const address of asked.slice(20).flat()) counts.set(address, (counts.get(address) ?? 0) + 1)
  expect([...counts.values()].every((count) => count === 8)).toBe(true)
  expect(Math.max(...asked.slice(20).map((each) => each.length))).toBeLessThan(30)
  expect(probes.results().get('peer 7')).toEqual({
    ...{ isAnswering: true, roundTripMs: 1.5, lossPercent: 0, at: expect.any(Number) },
  })
})

it('asks so many a second and no more, each less often then', () => {
  const probes = createProbes(10_000, Math.random)
  probes.keep(targets(10_000), 0)
  const asked = pass(probes, 1, 401, all)
  expect(asked.every((each) => each.length <= ASKED_A_SECOND)).toBe(true)
  expect(probes.intervalMs()).toBe(200_000)
  expect(new Set(asked.slice(0, 201).flat()).size).toBe(10_000)
  expect(probes.results().size).toBe(10_000)
})

it('finds a peer that is gone within 15 s, and one that is back at its next turn', () => {
  const probes = createProbes(10_000, () => 0.5)
  probes.keep([target(1)], 0)
  pass(probes, 1, 40, all)
  expect(probes.results().get('peer 1')!.isAnswering).toBe(true)
  let second = 40
  for (; probes.results().get('peer 1')!.isAnswering; second++) pass(probes, second, second + 1, () => false)
  expect(second - 40).toBeLessThanOrEqual(14)
  const asked = pass(probes, second, second + 60, () => false)
  expect(asked.flat().length).toBeLessThanOrEqual(7) // and bothers it no more than before
  expect(probes.results().get('peer 1')).toMatchObject({ isAnswering: false, lossPercent: 80 })
  pass(probes, second + 60, second + 71, all)
  expect(probes.results().get('peer 1')!.isAnswering).toBe(true)
})

it('takes one lost packet for one, asks again at once, and takes an answer that is late', () => {
  const probes = createProbes(10_000, () => 0)
  probes.keep([target(1)], 0)
  const [first] = probes.due(0)
  probes.answered(first!.sequence, 1, 1, 5)
  const [second] = probes.due(10_000)
  const [third] = probes.due(11_000)
  expect(probes.results().get('peer 1')).toMatchObject({ isAnswering: true, lossPercent: 50 })
  probes.answered(second!.sequence, 1, 1_200, 11_200)
  probes.answered(third!.sequence, 1, 2, 11_300)
  expect(probes.results().get('peer 1')).toMatchObject({ isAnswering: true, lossPercent: 0, roundTripMs: 2 })
})

it('believes the peer that was asked and nobody else', () => {
  const probes = createProbes(10_000, () => 0)
  probes.keep([target(1), target(2)], 0)
  const [first] = probes.due(0)
  probes.answered(first!.sequence, 2, 1, 5)
  probes.answered(first!.sequence + 7, 1, 1, 5)
  expect(probes.results().size).toBe(0)
})

it('forgets who is a peer no more, and begins again with one that has another address', () => {
  const probes = createProbes(10_000, () => 0)
  probes.keep(targets(2), 0)
  pass(probes, 0, 1, all)
  const [old] = probes.due(10_000)
  probes.keep([{ key: 'peer 1', address: 77 }], 10_000)
  probes.answered(old!.sequence, old!.address, 1, 10_001)
  probes.due(20_000)
  expect(probes.results().size).toBe(0)
})
