// health.test.ts - flanneld's two probes word for word, /livez, and a port that is taken.

import { afterEach, describe, expect, it } from 'vitest'
import { isWeftError } from '../../../src/errors.ts'
import { parseIpv4Net } from '../../../src/net/ipv4.ts'
import { createHealth, serveHealth, type HealthServer } from '../../../src/status/health.ts'
import { detailsOf, type Snapshot } from '../../../src/status/snapshot.ts'

const node: Snapshot = {
  ...{ at: 5_000, subnet: parseIpv4Net('10.5.1.0/24')!, isOpen: true, threads: new Map(), peers: 2, held: 0, holds: 0 },
  ...{ store: 'etcd', isFailing: false, comparedAt: 1_000, followedSince: 0, repaired: 0 },
  ...{ isReady: false, subnetFile: '/run/flannel/subnet.env' },
}

const silent = { info: () => {} }
let servers: HealthServer[] = []
afterEach(async () => {
  for (const server of servers) await server.close()
  servers = []
})

async function serve(health = createHealth()) {
  const server = await serveHealth('127.0.0.1', 0, health, silent)
  servers.push(server)
  const get = async (path: string, method = 'GET'): Promise<[number, string]> => {
    const response = await fetch(`http://127.0.0.1:${server.port}${path}`, { method })
    return [response.status, await response.text()]
  }
  return { server, health, get }
}

describe('health server', () => {
  it("answers /healthz and /readyz in flanneld's words, whatever the method and the query", async () => {
    const { health, get } = await serve()
    for (const method of ['GET', 'POST', 'PUT', 'DELETE'])
      expect(await get('/healthz?x=1', method)).toEqual([200, 'flanneld is running'])
    expect((await get('/healthz', 'HEAD'))[0]).toBe(200)
    expect(await get('/readyz')).toEqual([503, 'flanneld is not ready yet'])
    health.snapshot = () => node
    expect(await get('/readyz')).toEqual([503, 'flanneld is not ready yet'])
    health.snapshot = () => ({ ...node, isReady: true })
    expect(await get('/readyz')).toEqual([200, 'flanneld is ready'])
    expect((await get('/'))[0]).toBe(404)
  })

  it('answers /livez with what is wrong, and how the node is', async () => {
    const { health, get } = await serve()
    expect(await get('/livez')).toEqual([503, 'starting\nno lease yet\n'])
    health.snapshot = () => node
    expect(await get('/livez')).toEqual([200, `weftd is alive\n${detailsOf(node)}\n`])
    const down = { ...node, isOpen: false }
    health.snapshot = () => down
    expect(await get('/livez')).toEqual([503, `the data path is down\n${detailsOf(down)}\n`])
  })

  it.each([
    ['127.0.0.1', '127.0.0.1:'],
    ['::1', '[::1]:'],
    ['', ':'],
  ])("says in flanneld's words that it listens on %j", async (ip, shown) => {
    const lines: string[] = []
    servers.push(await serveHealth(ip, 0, createHealth(), { info: (line) => lines.push(line) }))
    expect(lines).toEqual([`Start healthz server on ${shown}0`])
  })

  it('says what is in the way of listening, and what to do', async () => {
    const { server } = await serve()
    const refused = async (ip: string, port: number): Promise<unknown> =>
      serveHealth(ip, port, createHealth(), silent).catch((error: unknown) => error)
    const taken = await refused('127.0.0.1', server.port)
    expect(isWeftError(taken, 'PORT_IN_USE') && taken.remedy).toContain('--healthz-port')
    expect(String(taken)).toContain('Start healthz server error.')
    for (const [ip, port] of [
      ['192.0.2.77', 8080],
      ['127.0.0.1', 70_000],
    ] as const)
      expect(isWeftError(await refused(ip, port), 'ADDRESS')).toBe(true)
  })
})
