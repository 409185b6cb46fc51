// lengths.test.ts - the packet lengths that weft probes, and the search for the longest packet that a path carries.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { lengthsUpTo, longestOf } from '../../../src/net/lengths.ts'

describe('the lengths that weft probes', () => {
  it.each([
    [1450, 50, [526, 974, 1150, 1230, 1350, 1370, 1400, 1442, 1450]],
    [1472, 28, [548, 996, 1172, 1252, 1372, 1392, 1422, 1464, 1472]],
    [8951, 50, [526, 974, 1150, 1230, 1350, 1370, 1400, 1442, 1450, 4302, 8846, 8950, 8951]],
    [1280, 0, [576, 1024, 1200, 1280]],
    [1281, 0, [576, 1024, 1200, 1280, 1281]],
    [500, 50, [500]],
  ])(
    'up to %i bytes, with outer headers of %i bytes, are those that common path MTUs carry',
    (longest, overhead, all) => {
      expect(lengthsUpTo(longest, overhead)).toEqual(all)
    },
  )

  it('ascend without a repetition to the longest length', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 65_535 }), fc.integer({ min: 0, max: 100 }), (longest, overhead) => {
        const lengths = lengthsUpTo(longest, overhead)
        expect(lengths.at(-1)).toBe(longest)
        expect(lengths).toEqual([...new Set(lengths)].toSorted((a, b) => a - b))
      }),
    )
  })
})

/**
 * Searches in `lengths` on a path that carries packets of at most `most` bytes. Returns the longest length found, and
 * the lengths that the search probed.
 */
async function search(lengths: readonly number[], most: number) {
  const probed: number[] = []
  const longest = await longestOf(lengths, async (bytes) => {
    if (probed.includes(bytes)) throw new Error(`the search probes ${bytes} bytes again`)
    probed.push(bytes)
    return bytes <= most
  })
  return { longest, probed }
}

describe('the search for the longest length', () => {
  it.each([
    [99, undefined],
    [100, 100],
    [199, 100],
    [200, 200],
    [399, 300],
    [400, 400],
    [499, 400],
  ])('on a path that carries %i bytes finds %s', async (most, longest) => {
    expect(await search([100, 200, 300, 400, 500], most)).toMatchObject({ longest })
  })

  it('finds nothing if the only length is known not to pass, and sends no probe', async () => {
    expect(await search([100], 100)).toEqual({ longest: undefined, probed: [] })
    expect(await search([], 100)).toEqual({ longest: undefined, probed: [] })
  })

  it('probes each length at most once, no more lengths than a binary search, and never the last', async () => {
    const ascending = fc
      .uniqueArray(fc.integer({ min: 1, max: 9000 }), { minLength: 1, maxLength: 40 })
      .map((lengths) => lengths.toSorted((a, b) => a - b))
    await fc.assert(
      fc.asyncProperty(ascending, fc.nat({ max: 9000 }), async (lengths, carried) => {
        const most = Math.min(carried, lengths.at(-1)! - 1)
        const { longest, probed } = await search(lengths, most)
        expect(longest).toBe(lengths.findLast((bytes) => bytes <= most))
        expect(lengths.slice(0, -1)).toEqual(expect.arrayContaining(probed))
        expect(probed.length).toBeLessThanOrEqual(Math.ceil(Math.log2(lengths.length)))
      }),
    )
  })
})
