// sample.ts - what `npm test` leaves out, so that it takes minutes. Of a table whose rows differ in little it tries some, and it leaves
// out tests that mostly wait, or whose subject others see as well. `npm run test:whole` tries all, as does vitest by itself.

import { it } from 'vitest'

const IS_SAMPLE = process.env['WEFT_SAMPLE'] === '1'

const none = Object.assign(() => {}, { each: () => none, for: () => none }) as unknown as typeof it

/** A test, or a table of them, that is not in the sample. The suite around it has others. */
export const itWhole = IS_SAMPLE ? none : it

/** The rows of a table: in the sample those at these indices. */
export const sample = <T>(rows: readonly T[], ...indices: readonly [number, ...number[]]): readonly T[] =>
  IS_SAMPLE ? indices.map((index) => rows[index]!) : rows
