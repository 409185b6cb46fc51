// path-search.test.ts - whom the search for the longest packet asks, when and with what size, by the question; node/path-search.test.ts
// has what a node makes of it.

import { describe, expect, it } from 'vitest'
import { createPathSearch, type Question } from '../../../src/dataplane/path-search.ts'

const OVERHEAD = 28
const peer = (key: string, address = 1, endpoint = 'e') => ({ key, address, endpoint })

/** A search, and a network that lets packets of so many bytes through to those that answer. */
function newSearch({ passes = 9_000, mtu = 1_472, random = 0 } = {}) {
  const net: { passes: number; mtu: number | undefined; answers: boolean } = { passes, mtu, answers: true }
  const search = createPathSearch(
    OVERHEAD,
    () => net.mtu,
    () => random,
  )
  const asked: (readonly [number, number])[] = []
  return {
    ...{ net, search, asked },
    sizes: () => asked.map(([, bytes]) => bytes).filter((bytes) => bytes > 0),
    /** Asks once a second from one time to another. */
    run: (from: number, to: number): void => {
      for (let now = from; now <= to; now += 1_000)
        for (const { sequence, bytes, address } of search.due(now)) {
          asked.push([now, bytes])
          if (net.answers && bytes <= net.passes) search.answered(sequence, address, now)
        }
    },
  }
}

describe('a path', () => {
  it('that is whole is asked once by the longest packet, and again after a minute, not before', () => {
    const { search, asked, run } = newSearch()
    search.keep([peer('a')], 0)
    run(0, 59_000)
    expect(asked).toEqual([[0, 1_472]])
    run(60_000, 119_000)
    expect(asked.slice(1)).toEqual([[60_000, 1_472]])
    expect(search.limits().size).toBe(0)
  })

  it.each([
    [1_472, undefined],
    [1_471, 1_464],
    [1_464, 1_464],
    [1_463, 1_422],
    [1_300, 1_252],
    [1_172, 1_172],
    [548, 548],
  ])('that takes %i bytes is limited to %s', (passes, limit) => {
    const { search, run } = newSearch({ passes })
    search.keep([peer('a')], 0)
    run(0, 40_000)
    expect(search.limits().get('a')).toBe(limit)
  })

  it('is not limited where only what is smaller than any path is answered', () => {
    const { search, run } = newSearch({ passes: 547 })
    search.keep([peer('a')], 0)
    run(0, 200_000)
    expect(search.limits().size).toBe(0)
  })

  it('is halved: three questions for what does not pass, one for what does, a small one beside each but the first', () => {
    const { search, asked, run } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 30_000)
    const three = (at: number, size: number) => [
      [at, size],
      ...[1, 2].flatMap((more) => [
        [at + more * 1_000, size],
        [at + more * 1_000, 0],
      ]),
    ]
    expect(asked).toEqual([...three(0, 1_472), [3_000, 1_252], ...three(4_000, 1_392), ...three(7_000, 1_372)])
  })

  it('is asked for its limit each minute, and for more ten minutes after it was found', () => {
    const { search, asked, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 30_000)
    const found = 10_000
    net.passes = 9_000
    asked.length = 0
    run(31_000, found + 599_000)
    expect(new Set(asked.map(([, bytes]) => bytes))).toEqual(new Set([1_252]))
    expect(asked.map(([at]) => at)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9].map((minute) => found + minute * 60_000))
    run(found + 600_000, found + 601_000)
    expect([asked.at(-1), search.limits().size]).toEqual([[found + 600_000, 1_472], 0])
  })

  it('whose limit holds no more is lowered, and raised no sooner than ten minutes after that', () => {
    const { search, asked, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 60_000)
    net.passes = 1_172
    run(61_000, 100_000)
    expect(search.limits().get('a')).toBe(1_172)
    const lowered = asked.at(-1)![0] + 1_000
    net.passes = 9_000
    run(101_000, lowered + 590_000)
    expect(search.limits().get('a')).toBe(1_172)
    run(lowered + 591_000, lowered + 660_000)
    expect(search.limits().size).toBe(0)
  })

  it('of a peer that is silent altogether says nothing: it keeps its limit, and is asked again ten seconds later', () => {
    const { search, asked, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 30_000)
    net.answers = false
    asked.length = 0
    run(31_000, 100_000)
    expect(asked.filter(([, bytes]) => bytes > 0).map(([at]) => at)).toEqual([
      ...[70_000, 71_000, 72_000],
      ...[83_000, 84_000, 85_000],
      ...[96_000, 97_000, 98_000],
    ])
    expect(search.limits().get('a')).toBe(1_252)
  })

  it('is begun anew when the kernel says another length while it is searched, and left out where it says none', () => {
    const { search, asked, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 1_000)
    net.mtu = 1_300
    run(2_000, 2_000)
    expect(asked.at(-1)).toEqual([2_000, 1_300])
    net.mtu = undefined
    const before = asked.length
    run(3_000, 30_000)
    expect(asked).toHaveLength(before)
    net.mtu = 1_200
    run(31_000, 40_000)
    expect(asked.slice(before).map(([, bytes]) => bytes)).toEqual([1_200])
    expect(search.limits().size).toBe(0)
  })
})

describe('an answer', () => {
  /** The first question about a, after three of which no answer came. */
  function inDoubt() {
    const rig = newSearch()
    rig.search.keep([peer('a', 7)], 0)
    const questions: Question[] = []
    for (const now of [0, 1_000, 2_000]) questions.push(...rig.search.due(now))
    return { ...rig, questions }
  }

  it('counts from the address that was asked alone, once, and by its number', () => {
    const { search, questions } = inDoubt()
    const small = questions.find(({ bytes }) => bytes === 0)!
    search.answered(small.sequence, 8, 2_100)
    search.answered(small.sequence + 1_000, 7, 2_100)
    // Nobody answered: it is left alone for ten seconds.
    expect(search.due(3_000)).toEqual([])
    expect(search.due(12_999)).toEqual([])
    expect(search.due(13_000)).toHaveLength(1)
  })

  it('to a small question says that the peer is there, and that what is longer does not pass', () => {
    const { search, questions } = inDoubt()
    search.answered(questions.find(({ bytes }) => bytes === 0)!.sequence, 7, 2_100)
    expect(search.due(3_000).map(({ bytes }) => bytes)).toEqual([1_252])
  })

  it('that comes late, after two more questions, is as good', () => {
    const { search, questions } = inDoubt()
    search.answered(questions[0]!.sequence, 7, 2_900)
    expect(search.due(3_000)).toEqual([])
    // A minute after the answer, from the full second on.
    expect(search.due(62_999)).toEqual([])
    expect(search.due(63_000).map(({ bytes }) => bytes)).toEqual([1_472])
  })

  it('to a peer that is gone, or has another address, says nothing', () => {
    for (const after of [[], [peer('a', 7, 'another')], [peer('a', 8)]]) {
      const { search, questions } = inDoubt()
      search.keep(after, 2_500)
      search.answered(questions[0]!.sequence, 7, 2_600)
      // It is asked as one that is new.
      expect(search.due(3_000).map(({ bytes }) => bytes)).toEqual(after.map(() => 1_472))
    }
  })
})

describe('many peers', () => {
  it('are asked five a second, whose search has begun first, then who waits longest', () => {
    const { search } = newSearch()
    search.keep(
      ['a', 'b', 'c', 'd', 'e', 'f', 'g'].map((key) => peer(key)),
      0,
    )
    expect(search.due(0).map(({ key }) => key)).toEqual(['a', 'b', 'c', 'd', 'e'])
    // Nobody answered: those five are in the midst of it.
    expect(search.due(1_000).map(({ key }) => key)).toEqual(['a', 'a', 'b', 'b', 'c', 'c', 'd', 'd', 'e', 'e'])
    search.keep(
      ['f', 'g'].map((key) => peer(key)),
      1_500,
    )
    expect(search.due(2_000).map(({ key }) => key)).toEqual(['f', 'g'])
  })

  it('are begun within a second of each other, and those that stay are not begun anew', () => {
    const { search } = newSearch({ random: 0.5 })
    search.keep([peer('a')], 1_000)
    // A turn counts from the full second on.
    expect(search.due(1_999)).toEqual([])
    expect(search.due(2_000)).toHaveLength(1)
    search.keep([peer('a'), peer('b', 2)], 2_100)
    expect(search.due(2_999)).toEqual([])
    // The second question about a comes with a small one; the first has none.
    expect(search.due(3_000).map(({ key, bytes }) => [key, bytes])).toEqual([
      ...[
        ['a', 1_472],
        ['a', 0],
        ['b', 1_472],
      ],
    ])
  })

  it('have numbers of 16 bits, none of two questions at once', () => {
    const { search } = newSearch({ random: 0.99999 })
    search.keep(
      ['a', 'b', 'c', 'd', 'e'].map((key) => peer(key)),
      0,
    )
    expect(search.due(1_000).map(({ sequence }) => sequence)).toEqual([65_535, 0, 1, 2, 3])
  })
})
