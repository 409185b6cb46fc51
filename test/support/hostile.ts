// hostile.ts - a text that controls a terminal, misleads a reader, and breaks out of a line, a label and an argument; and the check that an
// output has made it harmless.

import { expect } from 'vitest'

export const HOSTILE =
  '-x"\'<img src=x>\\ \u001B[2J\u001B[31m\u001B]0;PWNED\u0007\u009B31m\u007F\u202E\u2067\u200F\u061C\u2028\u0000\uD800' +
  '\r\nE1122 00:00:00.000000       1 forged.ts:1] PWNED\r\n# TYPE forged counter\nforged 1\tx'

/** Characters that no output may have. A tab is harmless, and a line break is detected by the text that follows it. */
const STEERING = new RegExp(
  String.raw`[\u0000-\u0008\u000B-\u001F\u007F-\u009F\u061C\u200E\u200F\u2028\u2029\u202A-\u202E\u2066-\u2069]|\p{Surrogate}`,
  'u',
)

/** Fails if `text` has a harmful character or line. */
export function expectHarmless(where: string, text: string): void {
  expect([where, STEERING.exec(text)?.[0]], text.slice(0, 2000)).toEqual([where, undefined])
  expect([where, text.split('\n').filter((line) => /^(E1122 00:00:00|# TYPE forged|forged)/.test(line))]).toEqual([
    where,
    [],
  ])
}
