// limits.test.ts - compares the limits in docs/design/wireguard-sessions.md with those of the code, and the limits that JavaScript and C++
// share.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../../../../lab/lab.ts'
import * as limits from '../../../../../src/path/backends/wireguard/limits.ts'
import { REJECT_AFTER_MS } from '../../../../../src/path/catalog.ts'

const read = (path: string): string => readFileSync(join(packageRoot, path), 'utf8')

/** The limits in SessionLimits of session.h, as the text of the C++ expression without digit separators. */
const native = new Map(
  [...read('native/core/session.h').matchAll(/static constexpr \w+ (k\w+) = ([^;]+);/g)].map(([, name, value]) => [
    name!,
    value!.replaceAll("'", ''),
  ]),
)

/** The rows of the table as name and value. */
const rows = [...read('docs/design/wireguard-sessions.md').matchAll(/^\| `(\w+)` \| (\d[^|]*) \|/gm)].map(
  ([, name, value]) => [name!, value!.trim()] as const,
)

/** The values as the code writes them, by their text in the table. Times are in ms. */
function valueOf(text: string): string {
  if (text === '2^64 - 2^13 - 1') return 'UINT64_MAX - 8192'
  if (text === '2^60') return 'uint64_t{1} << 60'
  const [, number, unit] = /^(\d+)(?: (s|ms))?$/.exec(text) ?? []
  return String(Number(number) * (unit === 's' ? 1_000 : 1))
}

it.each(rows)('%s is %s', (name, value) => {
  const ours: Readonly<Record<string, unknown>> = limits
  expect(native.get(name) ?? String(ours[name])).toBe(valueOf(value))
})

it('the table has each limit of sessions, and each time limit of handshakes', () => {
  const times = Object.keys(limits).filter((name) => name.endsWith('_MS'))
  const pauses = new Set(['TURN_MS', 'MAX_PAUSE_MS']) // they limit the work of this process, not a session
  const wanted = [...native.keys()].filter((name) => name !== 'kAroundBytes')
  expect(rows.map(([name]) => name).toSorted()).toEqual(
    [...wanted, ...times.filter((name) => !pauses.has(name))].toSorted(),
  )
})

it('the age of keys that the status reports ends with the keys', () => {
  expect(String(REJECT_AFTER_MS)).toBe(native.get('kRejectAfterMs'))
})
