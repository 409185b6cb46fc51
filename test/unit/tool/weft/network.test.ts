// network.test.ts - the output of weft network for few nodes and for many, and its exit codes.

import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createHealth, serveHealth, serveSocket, type NetworkQuery } from '../../../../src/report/health.ts'
import type { NetworkFindingName, QueriedNode } from '../../../../src/report/network-findings.ts'
import { networkReport, type NetworkReport } from '../../../../src/report/network-view.ts'
import { networkText } from '../../../../src/tool/weft/network.ts'
import { expectHarmless, HOSTILE } from '../../../support/hostile.ts'
import { weft } from '../../../support/screen.ts'

const AT = '2026-11-22T10:00:00.000Z'
const lease = (number: number): string => `10.5.${number}.0-24`

/** Makes a number of nodes. The node with the number `dead` answers no other node. */
function reportOf(count: number, dead?: number, name = 'host'): NetworkReport {
  const nodes = Array.from({ length: count }, (_, at): QueriedNode => {
    const number = at + 1
    const seen = Array.from({ length: count }, (_each, other) => other + 1)
      .filter((to) => to !== number)
      .map((to) => ({
        lease: lease(to),
        reach: to === dead ? ('silent' as const) : ('reached' as const),
        roundTripMs: to === dead ? null : number + to / 1000,
        lossPercent: 0,
        passesBytes: 1472,
      }))
    const view = {
      schema: 1 as const,
      at: AT,
      version: '1.0',
      hostname: null,
      lease: lease(number),
      state: 'working',
      trouble: null,
      mtu: 1472,
      config: {},
      peers: seen.length,
      seen,
    }
    const isDead = number === dead
    return {
      lease: lease(number),
      name: `${name}${number}`,
      subnet: `10.5.${number}.0/24`,
      publicIp: `192.0.2.${number}`,
      kind: isDead ? 'silent' : 'told',
      why: isDead ? 'it says nothing' : null,
      view: isDead ? undefined : view,
      clock: isDead ? undefined : { aheadMs: 0, uncertainMs: 1 },
    }
  })
  return networkReport(nodes, AT, 31)
}
const plain = (_tone: unknown, text: string): string => text

it('shows a matrix of few nodes', () => {
  expect(networkText(reportOf(3, 2), false, plain)).toBe(
    [
      '3 nodes, 2 reported their state within 31 ms: 50% of the pairs whose state is known reach each other',
      '',
      'failure: a node answers neither status queries nor the probes of any other node',
      '    host2 (10.5.2.0/24 at 192.0.2.2): 0 of 2 nodes reach it',
      '  to do: check that the host runs and is connected; then run `systemctl status weftd` and `weft doctor` on the host, because its firewall may drop only the queries and the probes',
      '',
      '   NAME   SUBNET       AT         STATE    REACHED BY  REACHES  VERSION  MTU   CLOCK',
      '1  host1  10.5.1.0/24  192.0.2.1  working  1/1         1/2      1.0      1472  right',
      '2  host2  10.5.2.0/24  192.0.2.2  silent   0/2         -        -        -     -',
      '3  host3  10.5.3.0/24  192.0.2.3  working  1/1         1/2      1.0      1472  right',
      '',
      String.raw`FROM \ TO  1       2       3`,
      '1 host1    .       silent  1.0 ms',
      '2 host2    ?       .       ?',
      '3 host3    3.0 ms  silent  .',
      '',
    ].join('\n'),
  )
})

it('shows the faults and the slowest pairs of many nodes', () => {
  const text = networkText(reportOf(200, 7), false, plain)
  expect(text.split('\n').length).toBeLessThan(60)
  expect(text).toContain('host7 (10.5.7.0/24 at 192.0.2.7): 0 of 199 nodes reach it')
  expect(text).toContain('slowest host200 to host199 200 ms')
  expect(networkText(reportOf(200, 7), true, plain).split('\n').length).toBeGreaterThan(200)
  expect(networkText(reportOf(200), false, plain).split('\n').length).toBeLessThan(6)
})

describe('weft network', () => {
  let folder: string
  let server: Server | undefined
  const closing: { close(): Promise<void> }[] = []
  beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'weft-network-'))))
  afterEach(async () => {
    server?.close()
    server = undefined
    for (const each of closing.splice(0)) await each.close()
    rmSync(folder, { recursive: true })
  })
  const log = { info: () => {}, warn: () => {}, error: () => {} }
  const network = (...words: readonly string[]) =>
    weft(['network', '--status-socket', join(folder, 'socket'), ...words])

  async function serve(asking: NetworkQuery | undefined): Promise<(more?: RequestInit) => Promise<Response>> {
    const health = createHealth()
    health.network = asking
    closing.push((await serveSocket(join(folder, 'socket'), health, log))!)
    const atPort = await serveHealth({ ip: '127.0.0.1', port: 0, statusIp: '127.0.0.1' }, health, log)
    closing.push(atPort)
    return (more) => fetch(`http://127.0.0.1:${atPort.port}/network.json`, more)
  }

  it('exits with 3 if there is a failure, and prints JSON', async () => {
    let report = reportOf(3)
    await serve({ isGuarded: false, report: async () => report })
    expect((await network()).code).toBe(0)
    report = reportOf(3, 2)
    const { code, out } = await network('--json')
    expect([code, JSON.parse(out)]).toEqual([3, report])
  })

  it('shows how to enable the reports if they are disabled', async () => {
    const get = await serve(undefined)
    expect(await network()).toMatchObject({
      code: 1,
      err: expect.stringContaining('--status-network 8287 on each node'),
    })
    expect((await get()).status).toBe(409)
  })

  it('is served on the port too, unless a token guards it', async () => {
    let isGuarded = false
    const report = async () => reportOf(2)
    const get = await serve({
      get isGuarded() {
        return isGuarded
      },
      report,
    })
    expect([(await get()).status, (await get({ method: 'POST' })).status]).toEqual([200, 405])
    expect((await get({ headers: { Origin: 'http://evil.example' } })).status).toBe(403)
    isGuarded = true
    const refused = await get()
    expect([refused.status, await refused.text()]).toEqual([403, expect.stringContaining('weft network')])
    expect((await network()).code).toBe(0)
  })

  it('shows a finding of a newer weftd by its name, and does not count the network as well', async () => {
    const finding = { name: 'new-fault' as NetworkFindingName, detail: 'host1 has it' }
    await serve({ isGuarded: false, report: async () => ({ ...reportOf(3), findings: [finding] }) })
    const { code, out, err } = await network()
    expect({ code, err }).toEqual({ code: 3, err: '' })
    expect(out).toContain('new-fault: this version of weft does not know this finding\n    host1 has it\n')
  })

  it('escapes the names of nodes', async () => {
    const report = reportOf(3, 2, HOSTILE)
    server = createServer((_request, response) => void response.end(JSON.stringify(report)))
    await new Promise<void>((resolve) => server!.listen(join(folder, 'socket'), resolve))
    for (const words of [[], ['--json']]) {
      const { out } = await network(...words)
      expect(out).toContain('PWNED')
      expectHarmless(words.join(' '), out)
    }
  })
})
