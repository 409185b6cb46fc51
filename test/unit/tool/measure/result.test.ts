// result.test.ts - what samples come to: medians, the pairs' ratios, losses, and what must be known to believe them.

import { describe, expect, it } from 'vitest'
import { increase, median, resultOf, type Samples } from '../../../../src/tool/measure/result.ts'

const tcp = (bitsPerSecond: number, here = 0.3, there = 0.4) => ({ bitsPerSecond, busy: { here, there } })
const udp = (datagrams: number, { sent = 1000, reordered = 0, overflowed = 0 } = {}) => ({
  datagrams,
  sent,
  reordered,
  overflowed,
  seconds: 1,
})
const WELL: Samples = {
  roundTripsMs: { outside: [0.1, 0.2, 9], inside: [0.3, 0.4, 0.5] },
  tcp: { outside: [tcp(10e9), tcp(4e9), tcp(8e9)], inside: [tcp(5e9), tcp(3e9), tcp(6e9)] },
  udp: { outside: [udp(1000), udp(1000)], inside: [udp(990), udp(1000)] },
  datagramBytes: 1000,
}

describe('the median', () => {
  it.each([
    [[], undefined],
    [[3], 3],
    [[3, 1], 2],
    [[9, 1, 2], 2],
  ])('of %j is %j', (values, middle) => expect(median(values)).toBe(middle))
})

describe('a result', () => {
  it('has medians, and the median of the ratios of the pairs', () => {
    const { tcp: rates, udp: loss, roundTripMs, isBroken, notes } = resultOf(WELL)
    expect(rates).toEqual({ outside: 8e9, inside: 5e9, ratio: 0.75, leastRatio: 0.5, mostRatio: 0.75 })
    expect(roundTripMs).toEqual({ outside: 0.2, inside: 0.4, ratio: 2 })
    expect(loss.outside).toMatchObject({ sent: 2000, lost: 0, lossPercent: 0, sentBitsPerSecond: 8e6 })
    expect(loss.inside).toMatchObject({ sent: 2000, lost: 10, lossPercent: 0.5 })
    expect([isBroken, notes]).toEqual([false, []])
  })

  it('does not count as lost what the other end was too slow to take, and says so', () => {
    const { udp: loss, notes } = resultOf({
      ...WELL,
      udp: { outside: [udp(900, { overflowed: 60 })], inside: [udp(900, { overflowed: 500, reordered: 7 })] },
    })
    expect([loss.outside.lost, loss.inside.lost, loss.inside.overflowed]).toEqual([40, 0, 100])
    expect(notes).toEqual([
      expect.stringMatching(/^outside 60 datagrams arrived but the other end was too slow/),
      expect.stringMatching(/^inside 100 datagrams arrived/),
      'inside 7 datagrams came after a later one',
    ])
  })

  it('says whose packets do not pass, and blames no firewall for their length', () => {
    const length = { asked: 1472, longest: 1372 }
    const notesOf = (there: number | null, longest: number | null = 1372) => {
      const { isBroken, notes } = resultOf(WELL, { length: { ...length, longest }, mtu: { here: 1472, there } })
      expect(isBroken).toBe(true)
      return notes
    }
    expect(notesOf(1372)).toEqual([
      "inside packets of 1472 bytes do not come back, of up to 1372 they do: it is the other end's interface that takes less",
      'the MTU of the data path is 1472 here and 1372 there: give the external interfaces of all nodes one MTU',
    ])
    const between = ', of up to 1372 they do: something between the hosts takes less'
    for (const there of [1472, null])
      expect(notesOf(there)).toEqual([`inside packets of 1472 bytes do not come back${between}`])
    expect(notesOf(1472, null)).toEqual([
      'inside packets of 1472 bytes do not come back: something between the hosts takes less',
    ])
    // As long as both send they pass; what comes from there does not.
    const other = resultOf(WELL, { length: { asked: 1372, longest: 1372 }, mtu: { here: 1372, there: 1472 } })
    expect([other.isBroken, other.notes.length]).toEqual([false, 1])
    const deaf = { ...WELL, udp: { outside: [udp(0)], inside: [udp(1000)] } }
    const notes = (beside?: Parameters<typeof resultOf>[1]): readonly string[] => resultOf(deaf, beside).notes
    expect(notes({ length: { asked: 1472, longest: 1472 } })).toEqual([
      'outside TCP arrives and UDP does not: a firewall lets TCP through and not UDP',
    ])
    for (const beside of [undefined, { length }])
      expect(notes(beside).at(-1)).toMatch(/not UDP, or datagrams of 1000 bytes are too long for that path$/)
  })

  it('says where the bench itself was the limit', () => {
    const { notes } = resultOf({
      ...WELL,
      tcp: { outside: [tcp(9e9, 0.95, 1.1)], inside: [tcp(9e9, 0.5, 0.9)] },
    })
    expect(notes).toEqual([
      expect.stringMatching(/^outside weft bench itself took a whole core here and there/),
      expect.stringMatching(/^inside weft bench itself took a whole core there:/),
    ])
  })

  it.each([
    ['long packets', { tcp: { ...WELL.tcp, inside: [tcp(0), tcp(0), tcp(0)] } }, [/^inside connections open.*doctor/]],
    [
      'all',
      { tcp: { ...WELL.tcp, inside: [tcp(0)] }, udp: { ...WELL.udp, inside: [udp(0)] } },
      [/^inside connections/, /^inside no datagram/],
    ],
    ['UDP outside', { udp: { ...WELL.udp, outside: [udp(0)] } }, [/^outside TCP arrives and UDP does not/]],
  ] as const)('is broken where %s does not arrive, and says what that means', (_what, some, expected) => {
    const { isBroken, notes } = resultOf({ ...WELL, ...some })
    expect(isBroken).toBe(true)
    expect(notes).toEqual(expected.map((pattern) => expect.stringMatching(pattern) as string))
  })

  it('has no ratio of nothing', () => {
    const none = { outside: [tcp(0)], inside: [tcp(0)] }
    const { tcp: rates, roundTripMs } = resultOf({ ...WELL, tcp: none, roundTripsMs: { outside: [1], inside: [] } })
    expect(rates).toEqual({ outside: 0, inside: 0, ratio: null, leastRatio: null, mostRatio: null })
    expect(roundTripMs).toEqual({ outside: 1, inside: null, ratio: null })
    const some = resultOf({
      ...WELL,
      roundTripsMs: { outside: [], inside: [1] },
      udp: { outside: [], inside: [{ ...udp(0, { sent: 0 }), seconds: 0 }] },
    })
    expect(some.roundTripMs).toEqual({ outside: null, inside: 1, ratio: null })
    // Nothing was sent: nothing of it was lost, and that is no sign of a firewall.
    for (const path of ['outside', 'inside'] as const)
      expect(some.udp[path]).toMatchObject({ sent: 0, lost: 0, lossPercent: 0, sentBitsPerSecond: 0 })
    expect([some.isBroken, some.notes]).toEqual([false, []])
  })
})

it('tells what was counted in between, also after a counter began anew', () => {
  expect(increase({ a: 5, b: 2, c: 9 }, { a: 5, b: 3, c: 4, d: 1 })).toEqual({ b: 1, c: 4, d: 1 })
})
