// orders.test.ts - pins memory orders that no other test can check. On processors such as x86, which keep stores in
// order, some wrong orders work, and ThreadSanitizer detects only data races. So the orders that must not be weakened
// are listed here.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../lab/lab.ts'

const core = (file: string): string => readFileSync(join(packageRoot, 'native/core', file), 'utf8')

/** The body of a function: from its beginning to the first line that is indented no more than that. */
function body(text: string, begins: string): string {
  const at = text.indexOf(begins)
  expect(at, begins).toBeGreaterThan(-1)
  const indent = /\n( *)[^\n]*$/.exec(text.slice(0, at))?.[1] ?? ''
  return text.slice(at, text.indexOf(`\n${indent}}`, at))
}

/** The memory orders of the atomic operations in a body, each with its object. */
const operations = (text: string): string[] =>
  [...text.matchAll(/(\w+)(?:->|\.)(load|store)\([^;]*?memory_order_(\w+)\)/g)].map(([, what, how, order]) =>
    [what, how, order].join(' '),
  )

it('the store and the checks of a hazard pointer are sequentially consistent with the peer table', () => {
  const claim = operations(body(core('peers.h'), 'const PeerTable& acquire() {'))
  // The first load is a guess, which the second load verifies.
  expect(claim).toEqual(['current_ load acquire', 'hazard_ store seq_cst', 'current_ load seq_cst'])
  // The new table is published before the claims are read.
  const publish = body(core('peers.cc'), 'void PeerTables::publish(')
  expect(operations(publish)).toEqual(['current_ store seq_cst'])
  expect(publish).toMatch(/current_\.store\([^;]*;\s*free_unheld\(\);\s*$/)
  expect(operations(body(core('peers.cc'), 'void PeerTables::free_unheld('))).toEqual(['hazard load seq_cst'])
  // Everything that was read from a table comes before the end of the claim.
  expect(core('peers.h')).toMatch(/void release\(\) \{ hazard_->store\(nullptr, std::memory_order_release\); \}/)
})

it('each word of a kept drop is stored with release and loaded with acquire order (sequence lock)', () => {
  const drops = core('drops.h')
  expect([...drops.matchAll(/__atomic_\w+\([^;]*?(__ATOMIC_\w+)/g)].map(([, order]) => order)).toEqual([
    '__ATOMIC_ACQUIRE',
    '__ATOMIC_RELEASE',
  ])
})
