// chart-test.test.ts - the program of `helm test`, with replaced programs in its PATH.

import { spawnSync } from 'node:child_process'
import { chmodSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { execute } from '../../../lab/command.ts'
import { packageRoot } from '../../../lab/lab.ts'

let folder: string
let server: Server
let answer: { status: number; body: string }
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-chart-test-'))
  for (const name of ['grep', 'head', 'sleep'])
    symlinkSync(spawnSync('which', [name], { encoding: 'utf8' }).stdout.trim(), join(folder, name))
  server = createServer((request, response) => {
    response.statusCode = request.url === '/status.json' || request.url === '/readyz' ? answer.status : 404
    response.end(answer.body)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
})
afterEach(() => {
  server.close()
  rmSync(folder, { recursive: true })
})

function program(name: string, text: string): void {
  writeFileSync(join(folder, name), `#!/bin/sh\n${text}\n`)
  chmodSync(join(folder, name), 0o755)
}

async function run(place: 'node' | 'pod') {
  const port = `HEALTH_PORT=${(server.address() as AddressInfo).port}`
  const words = ['/bin/sh', join(packageRoot, 'deploy/charts/weft/files/test.sh'), place]
  const { code, stdout, stderr } = await execute(['env', '-i', `PATH=${folder}`, port, 'WAIT_S=0', ...words])
  expect(stderr).toBe('')
  return [code, stdout.trim()]
}
const status = (state: string, summary: string): string =>
  JSON.stringify({ schema: 1, daemon: {}, state, summary, peers: { list: [{ state: 'working', summary: 'a peer' }] } })

it.each(['busybox', 'node'])('reports by %s whether weftd of the node works', async (client) => {
  if (client === 'node') symlinkSync(process.execPath, join(folder, 'node'))
  // Like busybox: the body on success, one line on a failure.
  else program('busybox', `exec ${process.execPath} ${JSON.stringify(join(folder, 'client.mjs'))} "$7"`)
  writeFileSync(
    join(folder, 'client.mjs'),
    `const answer = await fetch(process.argv[2])
    console.log(answer.ok ? await answer.text() : 'wget: server returned error: HTTP/1.1 ' + answer.status)
    process.exitCode = answer.ok ? 0 : 1`,
  )
  answer = { status: 200, body: status('working', 'working: 2 of 2 peers reached') }
  expect(await run('node')).toEqual([0, 'ok: "summary":"working: 2 of 2 peers reached"'])
  answer = { status: 200, body: status('impaired', 'impaired by its peers: 1 of 2 reached') }
  expect(await run('node')).toEqual([1, 'failed: "summary":"impaired by its peers: 1 of 2 reached"'])
  answer = { status: 500, body: '' }
  expect(await run('node')).toEqual([1, expect.stringMatching(/^failed: weftd does not answer: .*500$/)])
})

it.each([
  ['an IPv4 gateway', `[ "$1" = route ] && echo 'default via 127.0.0.1 dev eth0'`, '127.0.0.1'],
  [
    'only an IPv6 gateway',
    `[ "$1" = -6 ] && echo 'default via ::ffff:127.0.0.1 dev eth0 metric 1024'`,
    '::ffff:127.0.0.1',
  ],
])('queries weftd at the gateway of a pod with %s', async (_which, ip, gateway) => {
  symlinkSync(process.execPath, join(folder, 'node'))
  program('ip', ip)
  answer = { status: 200, body: 'ready' }
  expect(await run('pod')).toEqual([0, `ok: weftd is ready at the gateway ${gateway}`])
  answer = { status: 503, body: 'waiting' }
  expect(await run('pod')).toEqual([1, `failed: weftd is not ready at the gateway ${gateway}: it answers 503`])
})

it('fails in a pod without a route', async () => {
  program('ip', 'true')
  expect(await run('pod')).toEqual([1, 'failed: the pod has no default route'])
})
