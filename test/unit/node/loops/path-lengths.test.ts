// path-lengths.test.ts - when the search for the longest packet sends requests, to which peer, and of what size.
// node/loops/path-search.test.ts tests how a node uses the results.

import { describe, expect, it } from 'vitest'
import { PathSearch, type Question } from '../../../../src/node/loops/path-lengths.ts'

const OVERHEAD = 28
const peer = (key: string, address = 1, endpoint = 'e') => ({ key, address, endpoint })

/** A search, and a network that carries packets of a maximum length to the peers that answer. */
function newSearch({ passes = 9_000, mtu = 1_472, random = 0 } = {}) {
  const net: { passes: number; mtu: number | undefined; answers: boolean } = { passes, mtu, answers: true }
  const search = new PathSearch(
    OVERHEAD,
    1_472,
    () => net.mtu,
    () => random,
  )
  const asked: (readonly [number, number])[] = []
  return {
    net,
    search,
    asked,
    sizes: () => asked.map(([, bytes]) => bytes).filter((bytes) => bytes > 0),
    /** Sends the requests that are due in each second between two times in ms. */
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
  it('that carries the longest packet is probed with it once, and again after ten seconds, not earlier', () => {
    const { search, asked, run } = newSearch()
    search.keep([peer('a')], 0)
    run(0, 9_000)
    expect(asked).toEqual([[0, 1_472]])
    run(10_000, 19_000)
    expect(asked.slice(1)).toEqual([[10_000, 1_472]])
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

  it('has its limit in the same map as before if no limit has changed', () => {
    const { search, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a'), peer('b', 2)], 0)
    run(0, 40_000)
    const limits = search.limits()
    expect([...limits]).toEqual([
      ['a', 1_252],
      ['b', 1_252],
    ])
    search.keep([peer('a'), peer('b', 2), peer('c', 3)], 40_000)
    search.keep([peer('a'), peer('b', 2)], 40_000)
    run(41_000, 60_000)
    expect(search.limits()).toBe(limits)
    net.passes = 1_172
    run(61_000, 120_000)
    expect(search.limits()).not.toBe(limits)
    expect(search.limits().get('a')).toBe(1_172)
    expect(limits.get('a')).toBe(1_252)
  })

  it('gets no limit if only packets below the lowest length limit are answered', () => {
    const { search, run } = newSearch({ passes: 547 })
    search.keep([peer('a')], 0)
    run(0, 200_000)
    expect(search.limits().size).toBe(0)
  })

  it('is searched by halving: five requests of the greatest length, three of a length that fails, one of a length that passes', () => {
    const { search, asked, run } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 15_000)
    const times = (number: number, at: number, size: number) =>
      Array.from({ length: number }, (_, more) => [
        [at + more * 1_000, size],
        ...(more === 0 ? [] : [[at + more * 1_000, 0]]),
      ]).flat()
    expect(asked).toEqual([...times(5, 0, 1_472), [5_000, 1_252], ...times(3, 6_000, 1_392), ...times(3, 9_000, 1_372)])
  })

  it('is probed with its limit every ten seconds, and with more half a minute after the limit was found', () => {
    const { search, asked, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 15_000)
    const found = 12_000
    net.passes = 9_000
    asked.length = 0
    run(16_000, found + 29_000)
    expect(asked).toEqual([
      [found + 10_000, 1_252],
      [found + 20_000, 1_252],
    ])
    run(found + 30_000, found + 31_000)
    expect([asked.at(-1), search.limits().size]).toEqual([[found + 30_000, 1_472], 0])
  })

  it('whose limit no longer passes gets a lower one, which is raised after half a minute at the earliest', () => {
    const { search, asked, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 15_000)
    net.passes = 1_172
    run(16_000, 30_000)
    expect(search.limits().get('a')).toBe(1_172)
    const lowered = asked.at(-1)![0]
    net.passes = 9_000
    run(31_000, lowered + 29_000)
    expect(search.limits().get('a')).toBe(1_172)
    run(lowered + 30_000, lowered + 60_000)
    expect(search.limits().size).toBe(0)
  })

  it('to a silent peer keeps its limit, and is probed again ten seconds later', () => {
    const { search, asked, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 15_000)
    net.answers = false
    asked.length = 0
    run(16_000, 60_000)
    expect(asked.filter(([, bytes]) => bytes > 0).map(([at]) => at)).toEqual([
      22_000,
      23_000,
      24_000,
      35_000,
      36_000,
      37_000,
      48_000,
      49_000,
      50_000,
      51_000,
      52_000, // of the longest, by then
    ])
    expect(search.limits().get('a')).toBe(1_252)
  })

  it('is searched from the start if the kernel reports another length meanwhile, and not at all if it reports none', () => {
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

describe('the length that reaches a peer', () => {
  const lengthAt = (rig: ReturnType<typeof newSearch>) => rig.search.lengths().get('a')

  it('is `whole` after the first answer, and unknown before it', () => {
    const rig = newSearch()
    rig.search.keep([peer('a')], 0)
    expect(lengthAt(rig)).toBeUndefined()
    rig.run(0, 40_000)
    expect(lengthAt(rig)).toEqual({ isWhole: true, bytes: 1_472, since: 0 })
    expect(rig.search.length('a')).toEqual({ isWhole: true, bytes: 1_472, since: 0 })
    expect(rig.search.length('b')).toBeUndefined()
  })

  it('becomes `narrow` when a shorter packet passes, then has a length, then is `whole` again, each with its time', () => {
    const rig = newSearch({ passes: 1_252 })
    rig.search.keep([peer('a')], 0)
    rig.run(0, 4_000)
    expect(lengthAt(rig)).toBeUndefined()
    rig.run(5_000, 6_000)
    expect(lengthAt(rig)).toEqual({ isWhole: false, bytes: undefined, since: 5_000 })
    rig.run(7_000, 100_000)
    expect(lengthAt(rig)).toEqual({ isWhole: false, bytes: 1_252, since: 5_000 })
    rig.net.passes = 1_472
    rig.run(101_000, 140_000)
    expect(lengthAt(rig)).toMatchObject({ isWhole: true, bytes: 1_472 })
    expect(lengthAt(rig)!.since).toBeGreaterThan(101_000)
  })

  it('that was `whole` becomes `narrow` when a shorter packet passes, not only when the search ends', () => {
    const rig = newSearch()
    rig.search.keep([peer('a')], 0)
    rig.run(0, 9_000)
    rig.net.passes = 1_252
    rig.run(10_000, 14_000)
    expect(lengthAt(rig)).toEqual({ isWhole: true, bytes: 1_472, since: 0 })
    rig.run(15_000, 15_000)
    expect(lengthAt(rig)).toEqual({ isWhole: false, bytes: undefined, since: 15_000 })
  })

  it('stays known while weftd tries longer packets in vain, and while it searches for a lower length', () => {
    const rig = newSearch({ passes: 1_252 })
    rig.search.keep([peer('a')], 0)
    rig.run(0, 15_000)
    const lengthsOver = (from: number, to: number) => {
      const lengths = new Set<number | undefined>()
      for (let now = from; now <= to; now += 1_000) {
        rig.run(now, now)
        lengths.add(lengthAt(rig)?.bytes)
      }
      return [...lengths]
    }
    expect(lengthsOver(16_000, 100_000)).toEqual([1_252])
    rig.net.passes = 1_172
    expect(lengthsOver(101_000, 160_000)).toEqual([1_252, 1_172])
  })

  it('is news once for each change, and no news when a check confirms it', () => {
    const rig = newSearch({ passes: 1_252 })
    rig.search.keep([peer('a')], 0)
    const newsOver = (from: number, to: number): readonly string[] => {
      rig.run(from, to)
      return [...rig.search.takeNews()]
    }
    expect(newsOver(0, 4_000)).toEqual([])
    expect(newsOver(5_000, 5_000)).toEqual(['a']) // the path is narrow
    expect([...rig.search.takeNews()]).toEqual([])
    expect(newsOver(6_000, 15_000)).toEqual(['a']) // the length is known
    expect(newsOver(16_000, 100_000)).toEqual([])
    rig.net.passes = 1_172
    expect(newsOver(101_000, 160_000)).toEqual(['a']) // a lower length
    rig.net.passes = 1_472
    expect(newsOver(161_000, 220_000)).toEqual(['a']) // the path is whole
    expect(newsOver(221_000, 300_000)).toEqual([])
  })

  it('is the path MTU of the kernel if that length passes and is less than containers may send', () => {
    const rig = newSearch()
    rig.net.mtu = 1_372
    rig.search.keep([peer('a')], 0)
    rig.run(0, 40_000)
    expect(lengthAt(rig)).toEqual({ isWhole: false, bytes: 1_372, since: 0 })
    expect(rig.search.limits().size).toBe(0)
  })

  it('is unknown if only small requests are answered, because long ones may be dropped on purpose', () => {
    const rig = newSearch({ passes: 500 })
    rig.search.keep([peer('a')], 0)
    rig.run(0, 200_000)
    expect(lengthAt(rig)).toBeUndefined()
  })

  it('belongs to one endpoint, so it is unknown for another endpoint and for a removed peer', () => {
    const rig = newSearch()
    rig.search.keep([peer('a')], 0)
    rig.run(0, 2_000)
    rig.search.keep([peer('a', 1, 'another')], 2_500)
    expect(lengthAt(rig)).toBeUndefined()
  })

  it('stays `whole` if one packet in five is lost, whatever its length', () => {
    let seed = 7
    const random = (): number => (seed = (seed * 48_271) % 2_147_483_647) / 2_147_483_647
    const search = new PathSearch(OVERHEAD, 1_472, () => 1_472, random)
    search.keep(
      ['a', 'b', 'c', 'd', 'e'].map((key) => peer(key)),
      0,
    )
    const narrow = new Set<number>()
    for (let now = 0; now < 3_600_000; now += 1_000) {
      for (const { sequence, address } of search.due(now)) if (random() > 0.2) search.answered(sequence, address, now)
      for (const { isWhole } of search.lengths().values()) if (!isWhole) narrow.add(now)
    }
    expect(narrow.size).toBeLessThan(60) // of 3,600 s, by five peers
  })
})

describe('an answer', () => {
  /** Returns the requests about peer a up to the point at which five of them have no answer. */
  function inDoubt() {
    const rig = newSearch()
    rig.search.keep([peer('a', 7)], 0)
    const questions: Question[] = []
    for (const now of [0, 1_000, 2_000, 3_000, 4_000]) questions.push(...rig.search.due(now))
    return { ...rig, questions }
  }

  it('counts only from the address that got the request, once, and by its number', () => {
    const { search, questions } = inDoubt()
    const small = questions.find(({ bytes }) => bytes === 0)!
    search.answered(small.sequence, 8, 4_100)
    search.answered(small.sequence + 1_000, 7, 4_100)
    // The peer did not answer, so no request is sent to it for ten seconds.
    expect(search.due(5_000)).toEqual([])
    expect(search.due(14_999)).toEqual([])
    expect(search.due(15_000)).toHaveLength(1)
  })

  it('to each small request shows that the peer is up and that longer packets do not pass', () => {
    const { search, questions } = inDoubt()
    for (const { bytes, sequence } of questions) if (bytes === 0) search.answered(sequence, 7, 4_100)
    expect(search.due(5_000).map(({ bytes }) => bytes)).toEqual([1_252])
  })

  it('that is missing for a small request too leads to two more probes of the greatest length, because the path loses packets of any length', () => {
    const { search, questions } = inDoubt()
    const [, ...small] = questions.filter(({ bytes }) => bytes === 0)
    for (const { sequence } of small) search.answered(sequence, 7, 4_100)
    for (const now of [5_000, 6_000])
      for (const { sequence, bytes } of search.due(now)) {
        expect([0, 1_472]).toContain(bytes)
        if (bytes === 0) search.answered(sequence, 7, now)
      }
    expect(search.due(7_000).map(({ bytes }) => bytes)).toEqual([1_252])
  })

  it('that arrives for only every second small request proves nothing about the length, however often weftd tries', () => {
    const { search } = newSearch()
    search.keep([peer('a')], 0)
    let small = 0
    let asked = 0
    for (let now = 0; now < 20_000; now += 1_000)
      for (const { sequence, bytes, address } of search.due(now)) {
        expect([0, 1_472]).toContain(bytes)
        asked++
        if (bytes === 0 && small++ % 2 === 1) search.answered(sequence, address, now)
      }
    expect(asked).toBe(15 + 14)
    expect([search.limits().size, search.lengths().size]).toEqual([0, 0])
  })

  it('that comes late, after two more requests, counts too', () => {
    const { search, questions } = inDoubt()
    search.answered(questions[0]!.sequence, 7, 4_900)
    expect(search.due(5_000)).toEqual([])
    // The next request is due ten seconds after the answer, rounded up to a full second.
    expect(search.due(14_999)).toEqual([])
    expect(search.due(15_000).map(({ bytes }) => bytes)).toEqual([1_472])
  })

  it('from a peer that is gone or has another address is ignored', () => {
    for (const after of [[], [peer('a', 7, 'another')], [peer('a', 8)]]) {
      const { search, questions } = inDoubt()
      search.keep(after, 4_500)
      search.answered(questions[0]!.sequence, 7, 4_600)
      // The peer must be searched like a new peer.
      expect(search.due(5_000).map(({ bytes }) => bytes)).toEqual(after.map(() => 1_472))
    }
  })
})

describe('many peers', () => {
  it('are probed less often each: every 30 s with a hundred peers', () => {
    const { search, asked, run } = newSearch()
    search.keep(
      Array.from({ length: 100 }, (_, at) => peer(String(at))),
      0,
    )
    run(0, 600_000)
    expect(asked.length).toBeGreaterThan(1_700)
    expect(asked.length).toBeLessThan(2_100)
  })

  it('get five requests a second in total: first those with a running search, then those that have waited longest', () => {
    const { search } = newSearch()
    search.keep(
      ['a', 'b', 'c', 'd', 'e', 'f', 'g'].map((key) => peer(key)),
      0,
    )
    expect(search.due(0).map(({ key }) => key)).toEqual(['a', 'b', 'c', 'd', 'e'])
    // No peer answered, so the search for the first five peers is not finished.
    expect(search.due(1_000).map(({ key }) => key)).toEqual(['a', 'a', 'b', 'b', 'c', 'c', 'd', 'd', 'e', 'e'])
    search.keep(
      ['f', 'g'].map((key) => peer(key)),
      1_500,
    )
    expect(search.due(2_000).map(({ key }) => key)).toEqual(['f', 'g'])
  })

  it('are first probed within a second of each other, and remaining peers are not started again', () => {
    const { search } = newSearch({ random: 0.5 })
    search.keep([peer('a')], 1_000)
    // A search starts at the next full second.
    expect(search.due(1_999)).toEqual([])
    expect(search.due(2_000)).toHaveLength(1)
    search.keep([peer('a'), peer('b', 2)], 2_100)
    expect(search.due(2_999)).toEqual([])
    // The second request to peer a has a small request beside it; the first request has none.
    expect(search.due(3_000).map(({ key, bytes }) => [key, bytes])).toEqual([
      ['a', 1_472],
      ['a', 0],
      ['b', 1_472],
    ])
  })

  it('have 16-bit sequence numbers, which differ for all waiting requests', () => {
    const { search } = newSearch({ random: 0.99999 })
    search.keep(
      ['a', 'b', 'c', 'd', 'e'].map((key) => peer(key)),
      0,
    )
    expect(search.due(1_000).map(({ sequence }) => sequence)).toEqual([65_535, 0, 1, 2, 3])
  })
})

describe('a search', () => {
  it('that finds no greater length probes a greater one half a minute later, and only confirms its result meanwhile', () => {
    const { search, asked, run } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 55_000)
    asked.length = 0
    run(56_000, 83_000)
    expect(asked.map(([, bytes]) => bytes)).toEqual([1_252, 1_252])
  })

  it('keeps a limit while only packets below the lowest length limit are answered', () => {
    const { search, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 30_000)
    net.passes = 100
    run(31_000, 200_000)
    expect(search.limits().get('a')).toBe(1_252)
  })

  it('during which the peer falls silent has no result', () => {
    const { search, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 3_000)
    net.answers = false
    run(4_000, 40_000)
    expect(search.limits().size).toBe(0)
  })

  it('for a length that the kernel knows to be too long meanwhile is started again, not ended', () => {
    const { search, asked, run, net } = newSearch({ passes: 1_252 })
    search.keep([peer('a')], 0)
    run(0, 11_000)
    expect(asked.at(-1)).toEqual([11_000, 0]) // beside the last of 1372
    net.mtu = 1_300
    net.passes = 1_300
    run(12_000, 30_000)
    expect(search.limits().size).toBe(0)
  })

  it('ignores an answer to a request on the previous path', () => {
    const rig = newSearch({ passes: 1_372 })
    rig.search.keep([peer('a', 7)], 0)
    let last: Question | undefined
    for (let now = 0; !last; now += 1_000)
      for (const question of rig.search.due(now)) {
        if (question.bytes === 1_372) last = question
        else if (question.bytes <= 1_372) rig.search.answered(question.sequence, 7, now)
      }
    rig.search.keep([peer('a', 7, 'another')], 20_000)
    rig.search.answered(last.sequence, 7, 20_100)
    expect(rig.search.limits().size).toBe(0)
  })

  it('sends nothing to a peer that was removed before its turn, and nothing twice to a peer that moved', () => {
    const { search } = newSearch({ random: 0.5 })
    search.keep([peer('a'), peer('b')], 0)
    search.look('a', undefined, 100)
    search.look('b', peer('b', 2), 200)
    expect([0, 1_000, 2_000].map((now) => search.due(now).map(({ key, bytes }) => [key, bytes]))).toEqual([
      [],
      [['b', 1_472]],
      [
        ['b', 1_472],
        ['b', 0],
      ],
    ])
  })

  it('checks every ten seconds the peers whose length the kernel does not report, and probes five others meanwhile', () => {
    const looked: string[] = []
    const search = new PathSearch(
      OVERHEAD,
      1_472,
      (key) => {
        looked.push(key)
        return key.startsWith('x') ? undefined : 1_472
      },
      () => 0,
    )
    search.keep(
      ['x1', 'x2', 'x3', 'a', 'b', 'c', 'd', 'e', 'f'].map((key) => peer(key)),
      0,
    )
    expect(search.due(0).map(({ key }) => key)).toEqual(['a', 'b', 'c', 'd', 'e'])
    looked.length = 0
    for (let now = 1_000; now < 10_000; now += 1_000) search.due(now)
    expect(looked.filter((key) => key.startsWith('x'))).toEqual([])
    search.keep(
      ['x1', 'x2', 'x3'].map((key) => peer(key)),
      9_500,
    )
    search.due(10_000)
    expect(looked.filter((key) => key.startsWith('x'))).toEqual(['x1', 'x2', 'x3'])
  })

  it('prefers the peers that have waited longest, within a second and over several', () => {
    const randoms = [0, 0.9, 0.1, 0.5]
    const search = new PathSearch(
      OVERHEAD,
      1_472,
      () => 1_472,
      () => randoms.shift()!,
    )
    search.keep(
      ['a', 'b', 'c'].map((key) => peer(key)),
      1_000,
    )
    randoms.push(0.9, 0)
    search.keep(
      ['a', 'b', 'c', 'd', 'e'].map((key) => peer(key)),
      1_500,
    )
    // The times in ms at which the peers are due: a at 1900, b at 1100, c at 1500, d at 2400, e at 1500.
    expect(search.due(3_000).map(({ key }) => key)).toEqual(['b', 'c', 'e', 'a', 'd'])
  })

  it('prefers the peer with the earlier time, even if that time was set later', () => {
    const randoms = [0, 0.9, 0]
    const search = new PathSearch(
      OVERHEAD,
      1_472,
      () => 1_472,
      () => randoms.shift()!,
    )
    search.keep([peer('a'), peer('b')], 1_500)
    // The times in ms at which the peers are due: a at 2400, b at 1500.
    expect(search.due(3_000).map(({ key }) => key)).toEqual(['b', 'a'])
  })

  it('accepts the answer of a peer while another one moves', () => {
    const { search } = newSearch()
    search.keep([peer('a', 1), peer('b', 2)], 0)
    const [, b] = search.due(0)
    search.look('a', peer('a', 1, 'another'), 100)
    search.answered(b!.sequence, 2, 200)
    expect(search.due(1_000).map(({ key }) => key)).toEqual(['a'])
  })
})
