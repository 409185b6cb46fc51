// probe-schedule.test.ts - when each peer is probed, and the results of answers and losses.

import { describe, expect, it } from 'vitest'
import type { Address } from '../../../../src/net/address.ts'
import { ASKED_A_SECOND, ProbeSchedule } from '../../../../src/node/loops/probe-schedule.ts'

const target = (number: number) => ({ key: `peer ${number}`, address: number })
const targets = (count: number) => Array.from({ length: count }, (_, number) => target(number + 1))

/**
 * Runs the seconds between two times. `answers` says which addresses answer. Returns the probed addresses for each
 * second.
 */
function pass(probes: ProbeSchedule, fromS: number, toS: number, answers: (address: Address) => boolean): Address[][] {
  const asked: Address[][] = []
  for (let second = fromS; second < toS; second++) {
    const due = probes.due(second * 1000)
    asked.push(due.map(({ address }) => address))
    for (const { address, sequence } of due)
      if (answers(address)) probes.answered(sequence, address, 1.5, second * 1000 + 10)
  }
  return asked
}
const all = (): boolean => true

it('probes each new peer soon, and then once per interval, at different times', () => {
  let seed = 1
  const probes = new ProbeSchedule(10_000, () => (seed = (seed * 16807) % 2147483647) / 2147483647)
  probes.keep(targets(100), 0)
  const asked = pass(probes, 1, 101, all)
  expect(asked.slice(0, 2).flat()).toHaveLength(100)
  const counts = new Map<Address, number>()
  for (const address of asked.slice(20).flat()) counts.set(address, (counts.get(address) ?? 0) + 1)
  expect([...counts.values()].every((count) => count === 8)).toBe(true)
  expect(Math.max(...asked.slice(20).map((each) => each.length))).toBeLessThan(30)
  expect(probes.results().get('peer 7')).toEqual({
    isAnswering: true,
    roundTripMs: 1.5,
    lossPercent: 0,
    at: expect.any(Number),
    unansweredSince: undefined,
  })
})

it('limits the number of probes a second by probing each peer less often', () => {
  const probes = new ProbeSchedule(10_000, Math.random)
  probes.keep(targets(10_000), 0)
  const asked = pass(probes, 1, 401, all)
  expect(asked.every((each) => each.length <= ASKED_A_SECOND)).toBe(true)
  expect(probes.intervalMs()).toBe(200_000)
  expect(new Set(asked.slice(0, 201).flat()).size).toBe(10_000)
  expect(probes.results().size).toBe(10_000)
})

it('limits the number of probes a second even if 200,000 peers are due in the same second', () => {
  const probes = new ProbeSchedule(10_000, () => 0.5)
  probes.keep(targets(200_000), 0)
  expect(pass(probes, 1, 3, all).map((each) => each.length)).toEqual([ASKED_A_SECOND, ASKED_A_SECOND])
})

it('finds a peer that is gone within 15 s, and one that is back at its next turn', () => {
  const probes = new ProbeSchedule(10_000, () => 0.5)
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

it('counts a lost packet once, probes again immediately, and accepts a late answer', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep([target(1)], 0)
  const [first] = probes.due(0)
  probes.answered(first!.sequence, 1, 1, 5)
  const [second] = probes.due(10_000)
  const [third] = probes.due(11_000)
  expect(probes.results().get('peer 1')).toMatchObject({ isAnswering: true, lossPercent: 10 })
  probes.answered(second!.sequence, 1, 1_200, 11_200)
  probes.answered(third!.sequence, 1, 2, 11_300)
  expect(probes.results().get('peer 1')).toMatchObject({ isAnswering: true, lossPercent: 0, roundTripMs: 2 })
})

it('accepts an answer only from the peer that was probed', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep([target(1), target(2)], 0)
  const [first] = probes.due(0)
  probes.answered(first!.sequence, 2, 1, 5)
  probes.answered(first!.sequence + 7, 1, 1, 5)
  expect(probes.results().size).toBe(0)
})

it('forgets removed peers, and starts again with a peer that has another address', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep(targets(2), 0)
  pass(probes, 0, 1, all)
  const [old] = probes.due(10_000)
  probes.keep([{ key: 'peer 1', address: 77 }], 10_000)
  probes.answered(old!.sequence, old!.address, 1, 10_001)
  probes.due(20_000)
  expect(probes.results().size).toBe(0)
})

it('counts a request as lost after a second, not earlier', () => {
  let random = 0
  const probes = new ProbeSchedule(10_000, () => random)
  probes.keep([target(1)], 0)
  random = 1
  probes.due(0)
  expect(probes.due(999)).toEqual([])
  expect(probes.results().size).toBe(0)
  expect(probes.due(1_000).map(({ address }) => address)).toEqual([1])
  // A single lost probe of a peer that never answered proves nothing.
  expect(probes.results().size).toBe(0)
  // Two in a row are enough: from now on the peer is probed once per interval.
  expect(probes.due(2_000)).toEqual([])
  expect(probes.results().get('peer 1')).toEqual({
    isAnswering: false,
    roundTripMs: undefined,
    lossPercent: 100,
    at: 2_000,
    unansweredSince: 0,
  })
  expect(probes.due(10_999)).toEqual([])
  const [third] = probes.due(11_000)
  // Only the first of consecutive losses is reported, until an answer comes.
  probes.due(12_000)
  expect(probes.results().get('peer 1')).toMatchObject({ at: 12_000, unansweredSince: 0 })
  probes.answered(third!.sequence, third!.address, 1_500, 12_500)
  expect(probes.results().get('peer 1')!.unansweredSince).toBeUndefined()
  probes.due(22_000)
  probes.due(23_000)
  expect(probes.results().get('peer 1')!.unansweredSince).toBe(22_000)
})

it('reports the loss of the last ten probes, and forgets earlier ones', () => {
  const probes = new ProbeSchedule(1_000, () => 0)
  probes.keep([target(1)], 0)
  const losses = (from: number, count: number, isAnswered: boolean): number => {
    for (let second = from; second < from + count; second++)
      for (const { sequence } of probes.due(second * 1_000))
        if (isAnswered) probes.answered(sequence, 1, 3, second * 1_000)
    return probes.results().get('peer 1')!.lossPercent
  }
  expect(losses(0, 9, true)).toBe(0)
  expect(losses(9, 1, true)).toBe(0)
  losses(10, 3, false)
  expect(losses(13, 8, true)).toBe(20)
  expect(losses(21, 2, true)).toBe(0)
})

it('does not count an outage as loss, neither before the first answer of a peer nor while it is down', () => {
  const probes = new ProbeSchedule(1_000, () => 0)
  probes.keep([target(1)], 0)
  let second = 0
  const after = (answers: string): readonly [boolean, number] => {
    for (const answer of answers) {
      for (const { sequence } of probes.due(second * 1_000))
        if (answer === 'a') probes.answered(sequence, 1, 3, second * 1_000)
      second++
    }
    probes.due(second++ * 1_000 - 1)
    const { isAnswering, lossPercent } = probes.results().get('peer 1')!
    return [isAnswering, lossPercent]
  }
  expect(after('xxa')).toEqual([true, 0])
  // Three lost probes in a row may be random loss.
  expect(after('aaaxxxa')).toEqual([true, 30])
  expect(after('xxxx')[0]).toBe(false)
  expect(after('a')).toEqual([true, 0])
  expect(after('xa')).toEqual([true, 10])
})

it('uses the interval of the flag while fifty probes a second suffice', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  expect(probes.intervalMs()).toBe(10_000)
  probes.keep(targets(500), 0)
  expect(probes.intervalMs()).toBe(10_000)
  probes.keep(targets(501), 0)
  expect(probes.intervalMs()).toBe(10_020)
})

it('begins within the first second, or within a shorter interval, and spreads the later probes', () => {
  const first = (wantedMs: number): number => {
    const probes = new ProbeSchedule(wantedMs, () => 0.5)
    probes.keep([target(1)], 1_000)
    for (let now = 1_000; ; now += 10) if (probes.due(now).length > 0) return now
  }
  // A turn counts from the full second on.
  expect([first(10_000), first(100)]).toEqual([2_000, 2_000])
  const probes = new ProbeSchedule(10_000, () => 0.5)
  probes.keep([target(1)], 0)
  const asked = pass(probes, 0, 30, all).flatMap((each, second) => (each.length > 0 ? [second] : []))
  expect(asked).toEqual([1, 6, 16, 26])
})

it('uses 16-bit sequence numbers, and does not probe a removed peer', () => {
  const probes = new ProbeSchedule(10_000, () => 0.99999)
  probes.keep(targets(3), 0)
  probes.keep(targets(2), 500)
  expect(probes.due(2_000).map(({ sequence, address }) => [sequence, address])).toEqual([
    [65_535, 1],
    [0, 2],
  ])
})

it('counts an answer once, however often it arrives, with the time of its first arrival', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep([target(1)], 0)
  const [first] = probes.due(0)
  probes.answered(first!.sequence, 1, 4, 50)
  probes.answered(first!.sequence, 1, 9, 60)
  expect(probes.results().get('peer 1')).toMatchObject({ roundTripMs: 4, at: 50, lossPercent: 0 })
})

it('keeps the results of the remaining peers, and does not probe them earlier', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep([target(1)], 0)
  pass(probes, 0, 1, all)
  pass(probes, 1, 2, all) // its place in the interval
  const before = probes.results().get('peer 1')
  expect(before).toBeDefined()
  for (let second = 2; second < 9; second++) {
    probes.keep([target(1), target(second)], second * 1_000)
    expect(probes.results().get('peer 1')).toEqual(before)
    expect(probes.due(second * 1_000).map(({ address }) => address)).not.toContain(1)
  }
})

it('neither probes nor counts a peer that was removed by a single change', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  for (const { key, address } of targets(501)) probes.look(key, address, 0)
  expect(probes.intervalMs()).toBe(10_020)
  probes.look('peer 1', undefined, 0)
  expect(probes.intervalMs()).toBe(10_000)
  expect(probes.due(0).map(({ key }) => key)).not.toContain('peer 1')
})

it('probes first the peers that were due first, also after a pause', () => {
  const randoms = [0, 0.9, 0]
  const probes = new ProbeSchedule(10_000, () => randoms.shift() ?? 0.5)
  probes.keep(targets(2), 1_500)
  // The first peer is due at 2400 ms, the second at 1500 ms.
  expect(probes.due(3_000).map(({ address }) => address)).toEqual([2, 1])
})

it('waits a second for an answer at any time of the day', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep([target(1)], 90_000)
  expect(probes.due(90_000)).toHaveLength(1)
  probes.due(90_999)
  expect(probes.takeNews().size).toBe(0)
  probes.due(91_000)
  expect(probes.takeNews().size).toBe(1)
  probes.due(92_000)
  expect(probes.results().get('peer 1')).toMatchObject({ isAnswering: false, unansweredSince: 90_000 })
})

it('probes a peer immediately if its second family is in doubt, except a silent peer', () => {
  const probes = new ProbeSchedule(10_000, () => 0.5)
  probes.keep([target(1), target(2)], 0)
  pass(probes, 1, 40, all)
  expect(probes.takeDoubted()).toEqual(new Set())
  expect(pass(probes, 40, 60, (address) => address !== 2).flat()).toContain(2)
  expect(probes.takeDoubted()).toEqual(new Set(['peer 2']))
  expect(probes.takeDoubted()).toEqual(new Set())
  // A probe may be requested at any time in the interval. A silent peer is still probed at its own rate.
  pass(probes, 60, 61, () => false)
  for (let second = 61; second < 64; second++) {
    for (const number of [1, 2, 3]) probes.soon(`peer ${number}`, second * 1000)
    const asked = pass(probes, second, second + 1, (address) => address !== 2).flat()
    expect(asked.filter((address) => address === 1)).toEqual([1])
  }
  expect(pass(probes, 64, 66, () => false).flat()).not.toContain(2)
})

it('does not probe an answering peer earlier when a packet of it arrives', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep([target(1)], 0)
  expect(pass(probes, 0, 12, all)[11]).toEqual([1])
  probes.wake('peer 1', 12_000)
  expect(pass(probes, 12, 21, all).flat()).toEqual([])
  expect(pass(probes, 21, 22, all).flat()).toEqual([1])
})

it('does not probe a peer again if two probes were lost, although its second family is in doubt', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep([target(1)], 0)
  pass(probes, 0, 20, all)
  expect(pass(probes, 20, 24, () => false)).toEqual([[], [1], [1], []])
  expect(probes.result('peer 1')!.isAnswering).toBe(false)
  probes.soon('peer 1', 23_500)
  expect(pass(probes, 24, 32, all).flat()).toEqual([])
})

it('does not put off an overdue probe of a peer whose second family is in doubt', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep(targets(101), 0)
  expect(probes.due(1_000)).toHaveLength(ASKED_A_SECOND)
  probes.soon('peer 51', 1_500)
  expect(probes.due(2_000).map(({ key }) => key)).toContain('peer 51')
})

it('reports no doubt about a peer that was removed after its last probe was sent', () => {
  const probes = new ProbeSchedule(10_000, () => 0)
  probes.keep(targets(2), 0)
  pass(probes, 0, 10, all)
  expect(probes.due(11_000)).toHaveLength(2)
  probes.look('peer 1', undefined, 11_500)
  probes.due(12_000)
  expect(probes.takeDoubted()).toEqual(new Set(['peer 2']))
})

describe('a peer that stays silent', () => {
  const none = (): boolean => false
  /** The seconds at which it is probed. */
  const requestedAt = (probes: ProbeSchedule, fromS: number, toS: number, answers = none): number[] =>
    pass(probes, fromS, toS, answers).flatMap((each, at) => each.map(() => fromS + at))
  const gapsOf = (seconds: readonly number[]): number[] => seconds.slice(1).map((second, at) => second - seconds[at]!)
  const silent = (): { readonly probes: ProbeSchedule; readonly gaps: readonly number[] } => {
    const probes = new ProbeSchedule(10_000, () => 0)
    probes.keep([target(1)], 0)
    return { probes, gaps: gapsOf(requestedAt(probes, 0, 2_000)) }
  }

  it('is probed ten times at the usual interval, then after 20, 40, 80, 160 s, and every 300 s from there', () => {
    const { probes, gaps } = silent()
    // The second probe must follow immediately; the first probe determines the place in the interval.
    expect(gaps.slice(0, 9)).toEqual(
      [1, 10, 10, 10, 10, 10, 10, 10, 10].map((gap, at) => (at === 1 ? expect.any(Number) : gap)),
    )
    expect(gaps.slice(9)).toEqual([20, 40, 80, 160, 300, 300, 300, 300, 300])
    expect(probes.results().get('peer 1')).toMatchObject({ isAnswering: false, lossPercent: 100, unansweredSince: 0 })
    expect(probes.resting()).toEqual(['peer 1'])
  })

  it('is not probed more often if the interval is longer, and at the limited rate if there is a limit', () => {
    const rare = new ProbeSchedule(400_000, () => 0)
    rare.keep([target(1)], 0)
    expect(new Set(gapsOf(requestedAt(rare, 0, 8_000)).slice(2))).toEqual(new Set([400]))
    const limited = new ProbeSchedule(
      10_000,
      () => 0,
      () => 60_000,
    )
    limited.keep([target(1)], 0)
    expect(gapsOf(requestedAt(limited, 0, 600)).slice(9)).toEqual([20, 40, 60, 60, 60, 60, 60, 60, 60])
  })

  it('causes few broadcasts: fewer than 300 requests a day', () => {
    const probes = new ProbeSchedule(10_000, () => 0)
    probes.keep([target(1)], 0)
    expect(requestedAt(probes, 0, 86_400).length).toBeLessThan(310)
  })

  it('is probed immediately if a packet of it arrived after the last probe, but not if the packet is older', () => {
    const { probes } = silent()
    const before = requestedAt(probes, 2_000, 2_400).at(-1)!
    probes.wake('peer 1', 2_400_000, (before - 1) * 1000)
    expect(requestedAt(probes, 2_400, 2_405)).toEqual([])
    probes.wake('peer 1', 2_405_000, 2_404_000)
    expect(requestedAt(probes, 2_405, 2_406, all)).toEqual([2_405])
    expect(probes.results().get('peer 1')).toMatchObject({ isAnswering: true, lossPercent: 0 })
    // From this time on the peers must be probed at the usual interval.
    expect(gapsOf(requestedAt(probes, 2_406, 2_500, all)).every((gap) => gap === 10)).toBe(true)
    expect(probes.resting()).toEqual([])
  })

  it('is probed ten times as usual again when its lease is written, and rests again if it stays silent', () => {
    const { probes } = silent()
    probes.wake('peer 1', 2_000_000)
    expect(probes.results().get('peer 1')!.isAnswering).toBe(false)
    const gaps = gapsOf(requestedAt(probes, 2_000, 2_400))
    expect(gaps).toEqual([10, 10, 10, 10, 10, 10, 10, 10, 10, 20, 40, 80, 160])
  })

  it('with another address starts again, and one that is gone is forgotten', () => {
    const { probes } = silent()
    probes.look('peer 1', 77, 2_000_000)
    expect(probes.resting()).toEqual([])
    expect(requestedAt(probes, 2_000, 2_002)).toHaveLength(2)
    const { probes: other } = silent()
    other.keep([], 2_000_000)
    expect(other.resting()).toEqual([])
    expect(requestedAt(other, 2_000, 2_400)).toEqual([])
    other.wake('peer 1', 2_400_000)
    expect(requestedAt(other, 2_400, 2_402)).toEqual([])
  })

  it('is probed when a peer that fell silent at the same time answers again', () => {
    const probes = new ProbeSchedule(10_000, () => 0.5)
    probes.keep(targets(20), 0)
    pass(probes, 0, 40, all)
    pass(probes, 40, 1_000, none)
    expect(probes.resting()).toHaveLength(20)
    let second = 1_000
    // The first peer answers, and all others are probed with the next requests.
    while (pass(probes, second, second + 1, all).flat().length === 0) second++
    pass(probes, second + 1, second + 3, all)
    expect([...probes.results().values()].every(({ isAnswering }) => isAnswering)).toBe(true)
    // A peer that has been silent for much longer is not probed.
    const mixed = new ProbeSchedule(10_000, () => 0.5)
    mixed.keep(targets(2), 0)
    pass(mixed, 0, 40, (address) => address === 1)
    pass(mixed, 40, 400, (address) => address === 1)
    pass(mixed, 400, 800, none)
    pass(mixed, 800, 1_200, (address) => address === 1)
    expect(mixed.resting()).toEqual(['peer 2'])
  })

  it('is not probed because of a packet that arrived before or with its last probe', () => {
    const { probes } = silent()
    const lastAt = requestedAt(probes, 2_000, 2_400).at(-1)!
    const from = Math.max(2_400, lastAt + 2)
    for (const heardAt of [lastAt * 1_000 - 1, lastAt * 1_000]) {
      probes.wake('peer 1', from * 1_000, heardAt)
      expect(requestedAt(probes, from, from + 1)).toEqual([])
    }
    probes.wake('peer 1', from * 1_000, lastAt * 1_000 + 1)
    expect(requestedAt(probes, from, from + 1)).toEqual([from])
  })

  it.each([
    ['is', '59.999 s earlier', -59_999],
    ['is', 'at the same time', 0],
    ['is', '59.999 s later', 59_999],
    ['is not', '60 s earlier', -60_000],
    ['is not', '60 s later', 60_000],
  ])('%s probed immediately when a peer answers that fell silent %s', (is, _when, apart) => {
    const probes = new ProbeSchedule(10_000, () => 0)
    const begins = [
      { ...target(1), at: 100_000 + apart },
      { ...target(2), at: 100_000 },
    ].toSorted((a, b) => a.at - b.at)
    for (const { key, address, at } of begins) {
      probes.look(key, address, at - 999) // a probe is due from the next full second on
      expect(probes.due(at).map((request) => request.key)).toContain(key)
    }
    pass(probes, 161, 1_000, none)
    expect(probes.resting()).toHaveLength(2)
    let second = 1_000
    while (
      !pass(probes, second, second + 1, (address) => address === 1)
        .flat()
        .includes(1)
    )
      second++
    expect(
      pass(probes, second + 1, second + 2, none)
        .flat()
        .includes(2),
    ).toBe(is === 'is')
  })

  it('is probed at the usual interval from its first answer on, even if the interval was longer at its last probe', () => {
    let most = 0
    const probes = new ProbeSchedule(
      10_000,
      () => 0,
      () => most,
    )
    probes.keep([target(1)], 0)
    // Ten probes are lost while the peer answers over its second family.
    const before = requestedAt(probes, 0, 85)
    expect([before.length, before.at(-1), probes.resting()]).toEqual([10, 81, []])
    most = 300_000
    expect(requestedAt(probes, 85, 135, all)).toEqual([91, 102, 112, 122, 132])
  })

  it('is not listed as resting if it was removed while its last probe was in flight', () => {
    const probes = new ProbeSchedule(10_000, () => 0)
    probes.keep([target(1)], 0)
    const last = requestedAt(probes, 0, 82).at(-1)!
    expect([last, probes.resting()]).toEqual([81, []])
    probes.keep([], last * 1_000 + 500)
    expect(requestedAt(probes, 82, 400)).toEqual([])
    expect(probes.resting()).toEqual([])
  })

  it('is probed immediately for another family that is doubted', () => {
    const { probes } = silent()
    expect(requestedAt(probes, 2_000, 2_003)).toEqual([])
    probes.soon('peer 1', 2_003_000)
    expect(requestedAt(probes, 2_003, 2_005, all)).toEqual([2_003])
  })
})
