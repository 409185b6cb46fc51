// orders.test.ts - memory orders that no other test sees: a processor whose stores are seen in order, as x86's are, does
// right by some that are wrong, and ThreadSanitizer knows of data races alone. What must not be weakened stands here.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../lab/lab.ts'

const core = (file: string): string => readFileSync(join(packageRoot, 'native/core', file), 'utf8')

/** The body of a function: from what begins it to the first line that is indented no more than that. */
function body(text: string, begins: string): string {
  const at = text.indexOf(begins)
  expect(at, begins).toBeGreaterThan(-1)
  const indent = /\n( *)[^\n]*$/.exec(text.slice(0, at))?.[1] ?? ''
  return text.slice(at, text.indexOf(`\n${indent}}`, at))
}

/** The orders of the atomic operations in it, each with what it is done to. */
const operations = (text: string): string[] =>
  [...text.matchAll(/(\w+)(?:->|\.)(load|store)\([^;]*?memory_order_(\w+)\)/g)].map(([, what, how, order]) =>
    [what, how, order].join(' '),
  )

it('a claim on the peer table, and the look at claims, are in one order with the table (hazard pointers)', () => {
  const claim = operations(body(core('peers.h'), 'const PeerTable& acquire() {'))
  // The first load is a guess, which the second one proves.
  expect(claim).toEqual(['current_ load acquire', 'hazard_ store seq_cst', 'current_ load seq_cst'])
  // The new table is there before the claims are looked at.
  const publish = body(core('peers.cc'), 'void PeerTables::publish(')
  expect(operations(publish)).toEqual(['current_ store seq_cst'])
  expect(publish).toMatch(/current_\.store\([^;]*;\s*free_unheld\(\);\s*$/)
  expect(operations(body(core('peers.cc'), 'void PeerTables::free_unheld('))).toEqual(['hazard load seq_cst'])
  // What was read of a table comes before the end of the claim.
  expect(core('peers.h')).toMatch(/void release\(\) \{ hazard_->store\(nullptr, std::memory_order_release\); \}/)
})

it('each word of a kept drop is stored with release and loaded with acquire order (sequence locks)', () => {
  const drops = core('drops.h')
  expect([...drops.matchAll(/__atomic_\w+\([^;]*?(__ATOMIC_\w+)/g)].map(([, order]) => order)).toEqual([
    '__ATOMIC_ACQUIRE',
    '__ATOMIC_RELEASE',
  ])
})
