// demo.test.ts - `npm run demo` shows for each host what it has of either family, and who reaches whom; and what is broken, when it was
// asked to break something.

import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { FAULT_NAMES } from '../../lab/broken.ts'
import { ended, execute } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping', 'iperf3', 'unshare')

it('has a line of each network for each host, with the times by each family, and ends by itself', async () => {
  const { code, stdout } = await execute([
    ...[process.execPath, join(packageRoot, 'dist/lab/demo.js'), '--once', '--hosts', '2'],
  ])
  expect({ code, stdout }).toMatchObject({ code: 0 })
  const ms = String.raw`\d+\.\d\d`
  const lines = [
    String.raw`host1   192\.168\.77\.1   10\.5\.\d+\.0/24 +10\.5\.\d+\.2 +- +${ms} ms`,
    String.raw`host2   192\.168\.77\.2   10\.5\.\d+\.0/24 +10\.5\.\d+\.2 +${ms} ms +-`,
    String.raw`host1   10\.6\.\d+\.0/24 +fd00:6:0:[\da-f]+::/64 +- +${ms}, ${ms} ms`,
    String.raw`host2   10\.6\.\d+\.0/24 +fd00:6:0:[\da-f]+::/64 +${ms}, ${ms} ms +-`,
  ]
  for (const line of lines) expect(stdout).toMatch(new RegExp(`^  ${line}$`, 'm'))
  expect(stdout).toMatch(/Everything is taken down/)
})

it('breaks a network, tells what it was, and makes it green again', async () => {
  const demo = spawn(process.execPath, [join(packageRoot, 'dist/lab/demo.js'), '--broken', 'route', '--hosts', '2'])
  let said = ''
  demo.stdout.setEncoding('utf8').on('data', (text: string) => (said += text))
  await eventually(() => expect(said).toMatch(/Enter tells what it is/))
  const tool = /^ +(\S+host2\/weft) doctor$/m.exec(said)?.[1] ?? ''
  const { code, stdout } = await execute([tool, 'doctor'])
  expect({ code, stdout }).toEqual({ code: 3, stdout: expect.stringContaining('foreign-route') })
  demo.stdin.write('\n')
  await eventually(() => expect(said).toMatch(/It was: wrong route\..*\n +To make it green: .*\n\n.*made green again/))
  demo.kill('SIGINT')
  await ended(demo)
  expect([demo.exitCode, said]).toEqual([0, expect.stringMatching(/Everything is taken down/)])
  const wrong = await execute([process.execPath, join(packageRoot, 'dist/lab/demo.js'), '--broken', 'nothing'])
  expect(wrong).toMatchObject({ code: 2, stderr: `--broken is nothing; give it ${FAULT_NAMES.join(', ')}\n` })
})
