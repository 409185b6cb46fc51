// bench.test.ts - one short run of the whole benchmark: every kind of traffic, over a wire, with a peer program.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import type { Result } from '../../bench/result.ts'
import { output } from '../../lab/command.ts'
import { packageRoot, whyNoVxlan } from '../../lab/lab.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'g++', 'iperf3', 'ping', 'ethtool')

/** The time limit in ms for a whole run, which is long enough for slow machines. */
const RUN_MS = 240_000

it('measures all kinds of traffic with native, vxlan and a peer program', async ({ skip }) => {
  const why = await whyNoVxlan()
  skip(why !== undefined, why)
  const folder = mkdtempSync(join(tmpdir(), 'bench-'))
  const file = join(folder, 'result.json')
  const program = [process.execPath, join(packageRoot, 'dist/bench/main.js')]
  try {
    const cases = ['tcp-cubic', 'udp64-flood', 'rr', 'crr']
    const where = ['--link', 'wire', '--paths', 'native,vxlan', '--peer', join(packageRoot, 'bench/peers/vxlan.sh')]
    const text = await output([...program, ...cases, ...where, '--rounds', '1', '--json', file], { timeoutMs: RUN_MS })
    expect(text).toMatch(/wire link: 1 rounds/)
    const { parts } = JSON.parse(readFileSync(file, 'utf8')) as Result
    expect(parts.map(({ link }) => link)).toEqual(['wire'])
    const samples = parts[0]!.series.map(({ case: name, values }) => [name, Object.keys(values), Object.values(values)])
    expect(samples.length).toBeGreaterThan(cases.length)
    for (const [, paths, values] of samples) {
      expect(paths).toEqual(['native', 'vxlan', 'peer'])
      expect((values as number[][]).flat().filter((value) => value > 0)).toHaveLength(3)
    }
    expect(await output([...program, 'compare', file, file])).toMatch(/native .*1\.00 x .*unresolved/)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
