// result.test.ts - medians, ratios of pairs, losses, and notes on how far the figures can be trusted.

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

  it('does not count datagrams as lost that the other host was too slow to read, and reports that', () => {
    const { udp: loss, notes } = resultOf({
      ...WELL,
      udp: { outside: [udp(900, { overflowed: 60 })], inside: [udp(900, { overflowed: 500, reordered: 7 })] },
    })
    expect([loss.outside.lost, loss.inside.lost, loss.inside.overflowed]).toEqual([40, 0, 100])
    expect(notes).toEqual([
      expect.stringMatching(/^outside: 60 datagrams arrived, but the other host was too slow/),
      expect.stringMatching(/^inside: 100 datagrams arrived/),
      'inside: 7 datagrams arrived after a later one',
    ])
  })

  it('names the side that limits the length of packets, and does not blame a firewall for it', () => {
    const length = { asked: 1472, longest: 1372 }
    const notesOf = (there: number | null, longest: number | null = 1372) => {
      const { isBroken, notes } = resultOf(WELL, { length: { ...length, longest }, mtu: { here: 1472, there } })
      expect(isBroken).toBe(true)
      return notes
    }
    expect(notesOf(1372)).toEqual([
      'inside the tunnel packets of 1472 bytes get no answer, packets of up to 1372 do: the cause is the smaller MTU of the other host',
      'the MTU of the data path is 1472 here and 1372 there: give the external interfaces of all nodes one MTU',
    ])
    const between = ', packets of up to 1372 do: the cause is a smaller MTU between the hosts'
    for (const there of [1472, null])
      expect(notesOf(there)).toEqual([`inside the tunnel packets of 1472 bytes get no answer${between}`])
    expect(notesOf(1472, null)).toEqual([
      'inside the tunnel packets of 1472 bytes get no answer: the cause is a smaller MTU between the hosts',
    ])
    expect(notesOf(8_900)).toEqual([
      `inside the tunnel packets of 1472 bytes get no answer${between}`,
      'the MTU of the data path is 1472 here and 8900 there: give the external interfaces of all nodes one MTU',
    ])
    const unknownHere = resultOf(WELL, { length, mtu: { here: null, there: 1372 } }).notes
    expect(unknownHere).toEqual([`inside the tunnel packets of 1472 bytes get no answer${between}`])
    // If both hosts send such packets they pass in one direction only.
    const other = resultOf(WELL, { length: { asked: 1372, longest: 1372 }, mtu: { here: 1372, there: 1472 } })
    expect([other.isBroken, other.notes.length]).toEqual([false, 1])
    const deaf = { ...WELL, udp: { outside: [udp(0)], inside: [udp(1000)] } }
    const notes = (beside?: Parameters<typeof resultOf>[1]): readonly string[] => resultOf(deaf, beside).notes
    expect(notes({ length: { asked: 1472, longest: 1472 } })).toEqual([
      'outside: TCP arrives but UDP does not; a firewall drops UDP',
    ])
    for (const beside of [undefined, { length }])
      expect(notes(beside).at(-1)).toMatch(/drops UDP, or datagrams of 1000 bytes are too long for that path$/)
  })

  it('names the paths whose measured rate was limited by weft bench itself', () => {
    const { notes } = resultOf({
      ...WELL,
      tcp: { outside: [tcp(9e9, 0.95, 1.1)], inside: [tcp(9e9, 0.5, 0.9)] },
    })
    expect(notes).toEqual([
      expect.stringMatching(/^outside: weft bench itself used a whole core here and there/),
      expect.stringMatching(/^inside: weft bench itself used a whole core there,/),
    ])
  })

  it.each([
    ['long packets', { tcp: { ...WELL.tcp, inside: [tcp(0), tcp(0), tcp(0)] } }, [/^inside: connections open.*doctor/]],
    [
      'all',
      { tcp: { ...WELL.tcp, inside: [tcp(0)] }, udp: { ...WELL.udp, inside: [udp(0)] } },
      [/^inside: connections/, /^inside: no datagram/],
    ],
    ['UDP outside', { udp: { ...WELL.udp, outside: [udp(0)] } }, [/^outside: TCP arrives but UDP does not/]],
  ] as const)('is broken if %s does not arrive, and explains why', (_what, some, expected) => {
    const { isBroken, notes } = resultOf({ ...WELL, ...some })
    expect(isBroken).toBe(true)
    expect(notes).toEqual(expected.map((pattern) => expect.stringMatching(pattern) as string))
  })

  it('has no ratio without data', () => {
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
    // No datagram was sent, so none was lost, and no firewall is blamed.
    for (const path of ['outside', 'inside'] as const)
      expect(some.udp[path]).toMatchObject({ sent: 0, lost: 0, lossPercent: 0, sentBitsPerSecond: 0 })
    expect([some.isBroken, some.notes]).toEqual([false, []])
  })
})

it('computes increases of counters, also after a restart at zero', () => {
  expect(increase({ a: 5, b: 2, c: 9 }, { a: 5, b: 3, c: 4, d: 1 })).toEqual({ b: 1, c: 4, d: 1 })
})
