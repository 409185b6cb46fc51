// underlay-choice.test.ts - the choice of the family over which a peer is reached, from the answers to probes. In a
// simulation two hosts choose independently, over a network whose families fail at random.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Probed } from '../../../../src/node/loops/probe-schedule.ts'
import {
  createUnderlayChoices,
  createUnderlayProbes,
  otherThan,
  wakeByOther,
  type Underlay,
} from '../../../../src/node/loops/underlay-choice.ts'

const EVERY_MS = 10_000
const answering = (at: number): Probed => ({
  isAnswering: true,
  roundTripMs: 1,
  lossPercent: 0,
  at,
  unansweredSince: undefined,
})
const losing = (at: number, since: number): Probed => ({ ...answering(at), unansweredSince: since })
const silent = (at: number, since: number): Probed => ({ ...losing(at, since), isAnswering: false })
const begin = () => createUnderlayChoices(() => EVERY_MS)

describe('a peer', () => {
  it('is reached over the first family until it is silent there and has answered over the other family before and after the last probe', () => {
    const choices = begin()
    const by = (first?: Probed, other?: Probed, now = 100_000): Underlay => choices.choose('a', { first, other }, now)
    expect(by(undefined, undefined, 50_000)).toBe('first')
    expect(by(undefined, answering(90_000), 90_000)).toBe('first')
    expect(by(losing(99_000, 98_000), answering(99_500))).toBe('first')
    expect(by(silent(99_000, 98_000), answering(98_000))).toBe('first')
    expect(choices.others()).toEqual([])
    expect(by(silent(99_000, 98_000), answering(98_001))).toBe('other')
    expect(choices.others()).toEqual(['a'])
    choices.keep((key) => key === 'a')
    expect(choices.others()).toEqual(['a'])
    choices.keep((key) => key !== 'a')
    expect(choices.others()).toEqual([])
    expect(by()).toBe('first')
  })

  it('that another process reached over the other family keeps that family until the first one is steady', () => {
    const choices = begin()
    choices.assume(['a', 'b'])
    choices.assume([])
    expect(choices.others()).toEqual(['a', 'b'])
    const by = (first: Probed | undefined, now: number): Underlay =>
      choices.choose('a', { first, other: answering(now) }, now)
    expect([by(undefined, 1_000), by(answering(2_000), 2_000), by(answering(31_999), 31_999)]).toEqual(
      Array<Underlay>(3).fill('other'),
    )
    expect(by(answering(32_000), 32_000)).toBe('first')
    // The host's own results count more.
    choices.assume(['a'])
    expect(choices.others()).toEqual(['b'])
  })

  it('that is silent is reached over the other family even if a late answer hides when the silence began', () => {
    const choices = begin()
    expect(choices.choose('a', { first: undefined, other: answering(50_000) }, 50_000)).toBe('first')
    const first: Probed = { ...silent(99_000, 98_000), unansweredSince: undefined }
    expect(choices.choose('a', { first, other: answering(98_001) }, 100_000)).toBe('other')
  })

  it.each([
    ['is not known', undefined],
    ['has lost one since', losing(99_500, 99_400)],
    ['is silent too', silent(99_500, 98_000)],
  ])('is reached by the first that is silent while the other %s', (_what, other) => {
    const choices = begin()
    expect(choices.choose('a', { first: undefined, other: answering(50_000) }, 50_000)).toBe('first')
    expect(choices.choose('a', { first: silent(99_000, 98_000), other }, 100_000)).toBe('first')
  })

  it('that is back keeps its family until a probe is lost that was sent after an answer over the other family', () => {
    const choices = begin()
    const by = (at: number, now: number): Underlay =>
      choices.choose('a', { first: silent(at, 10_000), other: answering(now) }, now)
    expect([by(99_000, 100_000), by(102_999, 103_000), by(103_000, 103_001)]).toEqual(['first', 'first', 'first'])
    expect(by(103_001, 103_002)).toBe('other')
  })

  it('that answers over neither family keeps its family, and returns immediately if the other family fails and the first answers', () => {
    const choices = begin()
    const by = (first: Probed, other: Probed, now: number): Underlay => choices.choose('a', { first, other }, now)
    expect(by(answering(9_000), answering(9_000), 9_000)).toBe('first')
    expect(by(silent(20_000, 18_000), answering(20_000), 20_000)).toBe('other')
    expect(by(silent(30_000, 18_000), silent(30_000, 28_000), 30_000)).toBe('other')
    expect(by(answering(40_000), silent(40_000, 28_000), 40_000)).toBe('other')
    expect(by(answering(40_000), silent(43_001, 28_000), 44_000)).toBe('first')
  })

  it('returns to the first family after three intervals without a loss', () => {
    const choices = begin()
    const at = (now: number, first: Probed): Underlay => choices.choose('a', { first, other: answering(now) }, now)
    expect(at(1_000, answering(1_000))).toBe('first')
    expect(at(10_000, silent(10_000, 8_000))).toBe('other')
    expect(at(20_000, answering(20_000))).toBe('other')
    expect(at(40_000, losing(40_000, 39_000))).toBe('other')
    expect(at(41_000, answering(41_000))).toBe('other')
    expect(at(70_999, answering(70_000))).toBe('other')
    expect(at(71_000, answering(70_000))).toBe('first')
  })

  it('returns twice as late each time that the family fails again soon, at most after an hour, and after three intervals if it fails late', () => {
    const choices = begin()
    let now = 0
    const at = (first: Probed): Underlay => choices.choose('a', { first, other: answering(now) }, now)
    expect(at(answering(now))).toBe('first')
    /** The time for which the first has to answer. */
    function backAfter(): number {
      expect(at(silent(now, now - 2_000))).toBe('other')
      const began = now
      do now += 10_000
      while (at(answering(now)) === 'other')
      return now - began - 10_000
    }
    const waits = Array.from({ length: 9 }, () => {
      now += 5_000
      return backAfter() / 1000
    })
    expect(waits).toEqual([30, 60, 120, 240, 480, 960, 1920, 3600, 3600])
    now += 600_000
    expect(backAfter() / 1000).toBe(30)
    now += 599_999
    expect(backAfter() / 1000).toBe(60)
  })
})

describe('the probes of a peer that is silent over one family', () => {
  type Probes = ReturnType<typeof createUnderlayProbes>
  const newProbes = (): Probes => createUnderlayProbes(EVERY_MS, () => 0)
  /** Runs the seconds between two times. Returns the seconds in which the peer is probed over each family. */
  function pass(probes: Probes, fromS: number, toS: number, answers: readonly Underlay[]) {
    const askedAt: Record<Underlay, number[]> = { first: [], other: [] }
    for (let second = fromS; second < toS; second++)
      for (const which of ['first', 'other'] as const)
        for (const { sequence, address } of probes[which].due(second * 1000)) {
          askedAt[which].push(second)
          if (answers.includes(which)) probes[which].answered(sequence, address, 1, second * 1000 + 1)
        }
    return askedAt
  }
  const longestGap = (seconds: readonly number[]): number =>
    Math.max(...seconds.slice(1).map((second, at) => second - seconds[at]!))

  it.each<[silent: Underlay]>([['first'], ['other']])(
    'come every ten seconds while it answers over the second family (silent: %s)',
    (which) => {
      const probes = newProbes()
      for (const each of ['first', 'other'] as const) probes[each].look('a', 1, 0)
      expect(longestGap(pass(probes, 0, 1_000, [otherThan(which)])[which])).toBe(10)
    },
  )

  it.each<[silent: Underlay]>([['first'], ['other']])(
    'come every minute if it has no address of the second family (silent: %s)',
    (which) => {
      const probes = newProbes()
      probes[which].look('a', 1, 0)
      expect(longestGap(pass(probes, 0, 1_000, [])[which])).toBe(60)
    },
  )

  it('come every minute if it is silent over the second family too', () => {
    const probes = newProbes()
    for (const which of ['first', 'other'] as const) probes[which].look('a', 1, 0)
    const { first, other } = pass(probes, 0, 1_000, [])
    expect([longestGap(first), longestGap(other)]).toEqual([60, 60])
  })

  it('are due immediately as soon as it answers over the second family, and not before', () => {
    const probes = newProbes()
    for (const which of ['first', 'other'] as const) probes[which].look('a', 1, 0)
    probes.first.look('only first', 2, 0)
    pass(probes, 0, 1_000, [])
    const resting = () => [probes.first.resting(), probes.other.resting()]
    wakeByOther(probes, 1_000_000)
    expect(resting()).toEqual([['a', 'only first'], ['a']])
    let second = 1_000
    while (pass(probes, second, second + 1, ['other']).other.length === 0) second++
    wakeByOther(probes, second * 1000 + 500)
    expect(resting()).toEqual([['only first'], []])
    expect(pass(probes, second + 1, second + 2, ['other']).first).toContain(second + 1)
  })
})

// The following tests simulate two hosts.

type Way = `${'a' | 'b'} ${Underlay}`
const WAYS: readonly Way[] = ['a first', 'a other', 'b first', 'b other']

/** Two hosts that probe each other over IPv4 and IPv6 and choose. `passes` says which packets of a host pass over a family. */
function twoHosts(passes: (way: Way) => boolean, seed: number) {
  let state = seed
  const random = (): number => (state = (state * 48_271) % 0x7fffffff) / 0x7fffffff
  const hosts = (['a', 'b'] as const).map((name) => ({
    name,
    probes: createUnderlayProbes(EVERY_MS, random),
    choices: begin(),
    by: 'first' as Underlay,
    changes: [] as number[],
  }))
  const BOTH = ['first', 'other'] as const
  for (const { probes } of hosts) for (const which of BOTH) probes[which].keep([{ key: 'peer', address: 1 }], 0)
  return {
    hosts,
    second(now: number): void {
      for (const host of hosts) {
        const there = host.name === 'a' ? 'b' : 'a'
        for (const which of BOTH)
          for (const { sequence, address } of host.probes[which].due(now))
            if (passes(`${host.name} ${which}`) && passes(`${there} ${which}`))
              host.probes[which].answered(sequence, address, 1, now + 1)
        wakeByOther(host.probes, now)
        for (const which of BOTH)
          for (const key of host.probes[which].takeDoubted()) host.probes[otherThan(which)].soon(key, now)
        const answers = { first: host.probes.first.result('peer'), other: host.probes.other.result('peer') }
        const by = host.choices.choose('peer', answers, now)
        if (by !== host.by) host.changes.push(now)
        host.by = by
      }
    },
  }
}

describe('two hosts', () => {
  /**
   * The time in ms for two lost requests and the next check: an interval until the first request is sent, and two
   * seconds until each counts as lost.
   */
  const WITHIN_MS = EVERY_MS + 5_000

  it.each<[name: string, broken: readonly Way[]]>([
    ['both ways', ['a first', 'b first']],
    ['one way', ['a first']],
    ['the other way', ['b first']],
  ])('go on by the other within two intervals when the first fails %s, and back, once', (_name, broken) => {
    for (let seed = 1; seed <= 100; seed++) {
      let down: readonly Way[] = []
      const network = twoHosts((way) => !down.includes(way), seed)
      let now = 0
      const pass = (ms: number): void => {
        for (const end = now + ms; now < end; now += 1000) network.second(now)
      }
      pass(60_000 + seed * 100)
      expect(network.hosts.map(({ by, changes }) => [by, changes.length])).toEqual(['a', 'b'].map(() => ['first', 0]))
      down = broken
      pass(WITHIN_MS)
      expect(WITHIN_MS).toBeLessThan(2 * EVERY_MS)
      expect(network.hosts.map(({ by }) => by)).toEqual(['other', 'other'])
      pass(600_000)
      down = []
      pass(10 * EVERY_MS)
      expect(network.hosts.map(({ by, changes }) => [by, changes.length])).toEqual(['a', 'b'].map(() => ['first', 2]))
      pass(600_000)
      expect(network.hosts.map(({ changes }) => changes.length)).toEqual([2, 2])
    }
  })

  it('keep their choice while the other host is down, and when it is back', () => {
    for (let seed = 1; seed <= 100; seed++) {
      let isDown = false
      const network = twoHosts(() => !isDown, seed)
      for (let now = 0; now < 3_000_000; now += 1000) {
        isDown = now > 60_000 + seed * 137 && now < 1_500_000 + seed * 91
        network.second(now)
      }
      expect(network.hosts.flatMap(({ changes }) => changes)).toEqual([])
    }
  })

  it('change rarely if a family fails repeatedly, and use a working family whenever one has worked for three intervals', () => {
    const faults = fc.array(
      fc.record({
        way: fc.constantFrom(...WAYS),
        at: fc.integer({ min: 0, max: 3_000 }),
        for: fc.integer({ min: 1, max: 900 }),
      }),
      { maxLength: 12 },
    )
    fc.assert(
      fc.property(faults, fc.integer({ min: 1, max: 1_000_000 }), (all, seed) => {
        let now = 0
        const passes = (way: Way): boolean =>
          !all.some((fault) => fault.way === way && now >= fault.at * 1000 && now < (fault.at + fault.for) * 1000)
        const works = (which: Underlay): boolean => passes(`a ${which}`) && passes(`b ${which}`)
        const network = twoHosts(passes, seed)
        /** The time in ms since which each family has worked, or has failed, without interruption. */
        const since = { first: { works: true, at: 0 }, other: { works: true, at: 0 } }
        /** The last time in ms at which neither family worked. */
        let neitherAt = -Infinity
        for (; now < 4_200_000; now += 1000) {
          for (const which of ['first', 'other'] as const)
            if (works(which) !== since[which].works) since[which] = { works: works(which), at: now }
          network.second(now)
          if (!since.first.works && !since.other.works) neitherAt = now
          // A peer that was silent over IPv4 and IPv6 is probed over each once a minute.
          const steadyMs = now - neitherAt < 12 * EVERY_MS ? 9 * EVERY_MS : 3 * EVERY_MS
          const isSteady = now - Math.max(since.first.at, since.other.at) > steadyMs
          if (isSteady && (since.first.works || since.other.works))
            for (const { by } of network.hosts) expect(since[by].works).toBe(true)
        }
        // Each change of a host's choice follows a change of the network, or returns to the earlier family.
        for (const { changes } of network.hosts) expect(changes.length).toBeLessThanOrEqual(4 * all.length)
      }),
      { numRuns: 40 },
    )
  })
})
