// record-cost.ts - with WEFT_COSTS=FILE, appends one line of JSON per test file: its duration, and the CPU seconds that its
// process had used when the file ended.
//
// scripts/test-costs.mjs turns these lines into the table of test/selection.json.

import { appendFileSync, readFileSync } from 'node:fs'
import { relative } from 'node:path'
import { takeCoverage } from 'node:v8'
import { afterAll, expect } from 'vitest'

const file = process.env['WEFT_COSTS']

/** Clock ticks per second of /proc/PID/stat: sysconf(_SC_CLK_TCK), which is 100 on every architecture of Linux that Node.js runs on. */
const TICKS = 100

/** The CPU seconds of this process and of the children that it has waited for (proc(5), fields 14 to 17 of /proc/PID/stat). */
function cpuSeconds(): number {
  const text = readFileSync('/proc/self/stat', 'utf8')
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / TICKS
}

if (file !== undefined) {
  const begun = performance.now()
  afterAll(() => {
    const test = relative(process.cwd(), expect.getState().testPath ?? '')
    const seconds = (performance.now() - begun) / 1000
    takeCoverage() // vitest kills this process, so that Node.js would not write the calls at its end
    appendFileSync(file, `${JSON.stringify({ test, pid: process.pid, cpu: cpuSeconds(), seconds })}\n`)
  })
}
