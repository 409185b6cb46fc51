// orders.test.ts - checks in the source text the memory orders that no running test can check. On processors that keep
// stores in order, such as x86, some wrong orders work, and ThreadSanitizer detects only data races.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../lab/lab.ts'

const core = (file: string): string => readFileSync(join(packageRoot, 'native/core', file), 'utf8')

/**
 * Returns the text of a function: from the line that begins with `begins` to its closing line of the same indentation.
 */
function body(text: string, begins: string): string {
  const at = text.indexOf(begins)
  expect(at, begins).toBeGreaterThan(-1)
  const indent = /\n( *)[^\n]*$/.exec(text.slice(0, at))?.[1] ?? ''
  return text.slice(at, text.indexOf(`\n${indent}}`, at))
}

/** Returns each atomic operation in the text with its object and its memory order. */
const operations = (text: string): string[] =>
  [...text.matchAll(/(\w+)(?:->|\.)(load|store)\([^;]*?memory_order_(\w+)\)/g)].map(([, what, how, order]) =>
    [what, how, order].join(' '),
  )

it('the store and the checks of a hazard pointer are sequentially consistent with the peer table', () => {
  const claim = operations(body(core('peers.h'), 'const PeerTable& acquire() {'))
  // The first load may be outdated. The second load, after the store to the hazard pointer, confirms it.
  expect(claim).toEqual(['current_ load acquire', 'hazard_ store seq_cst', 'current_ load seq_cst'])
  // publish() must store the new table before it loads the readers' hazard pointers.
  const publish = body(core('peers.cc'), 'void PeerTables::publish(')
  expect(operations(publish)).toEqual(['current_ store seq_cst'])
  expect(publish).toMatch(/current_\.store\([^;]*;\s*free_unheld\(\);\s*$/)
  expect(operations(body(core('peers.cc'), 'void PeerTables::free_unheld('))).toEqual(['hazard load seq_cst'])
  // With release order, all reads of a table are complete before the reader gives up its hazard pointer.
  expect(core('peers.h')).toMatch(/void release\(\) \{ hazard_->store\(nullptr, std::memory_order_release\); \}/)
})

it('each word of a kept drop is stored with release and loaded with acquire order (sequence lock)', () => {
  const drops = core('drops.h')
  expect([...drops.matchAll(/__atomic_\w+\([^;]*?(__ATOMIC_\w+)/g)].map(([, order]) => order)).toEqual([
    '__ATOMIC_ACQUIRE',
    '__ATOMIC_RELEASE',
  ])
})
