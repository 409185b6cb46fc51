// begin.test.ts - counts what Node.js loads before a daemon forwards, and before `weft status` sends its query, because
// packets are lost while it loads.

import { readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { expect, it } from 'vitest'

const source = join(import.meta.dirname, '../../src')

/** Returns all that importing these files loads immediately: weft's own files, and other modules. */
function loaded(...entries: readonly string[]) {
  const own = new Set<string>()
  const others = new Set<string>()
  const visit = (file: string): void => {
    if (own.has(file)) return
    own.add(file)
    const text = readFileSync(join(source, file), 'utf8')
    for (const [, target = ''] of text.matchAll(/^(?:import|export) (?!type )(?:[^'=;]*? from )?'([^']+)'/gm)) {
      if (target.startsWith('.')) visit(relative(source, join(source, dirname(file), target)))
      else others.add(target)
    }
  }
  for (const entry of entries) visit(entry)
  return { own: [...own], others: [...others].toSorted() }
}

it('weftd loads 56 files, no package and no HTTP module before it forwards with the last known state', () => {
  const first = ['weftd.ts', 'base/log.ts', 'report/events.ts', 'report/notify.ts', 'begin.ts']
  const { own, others } = loaded(...first, 'path/backends/udp.ts', 'path/engine/native-engine.ts')
  expect(own).toContain('host/external-interface.ts') // that it finds what is loaded
  expect(own.length, own.join(' ')).toBeLessThanOrEqual(56)
  expect(others).toEqual([
    'node:crypto',
    'node:events',
    'node:fs',
    'node:fs/promises',
    'node:module',
    'node:os',
    'node:path',
    'node:timers/promises',
    'node:url',
  ])
})

it('weft status loads 21 files and no package', () => {
  const { own, others } = loaded('tool/weft/weft.ts', 'tool/weft/status.ts')
  expect(own).toContain('tool/weft/daemon-client.ts')
  expect(own.length, own.join(' ')).toBeLessThanOrEqual(21)
  expect(others.filter((name) => !name.startsWith('node:'))).toEqual([])
})
