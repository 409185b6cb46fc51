// report-failure.ts - when a test fails, prints the state of its labs: daemons' logs, links, addresses, routes.

import { beforeEach } from 'vitest'
import { labs } from '../../lab/lab.ts'

/** The state of each closed lab, in the order of closing. */
const closed: string[] = []
labs.beforeClose = async (lab) => void closed.push(await lab.describe())

beforeEach(({ task, onTestFailed }) => {
  const before = closed.length
  onTestFailed(async () => {
    const open = await Promise.all([...labs.open].map((lab) => lab.describe()))
    const seen = [...closed.slice(before), ...open]
    if (seen.length > 0) process.stderr.write(`\nThe hosts as "${task.name}" failed:\n\n${seen.join('\n\n')}\n\n`)
  })
})
