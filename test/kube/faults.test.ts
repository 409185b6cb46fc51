// faults.test.ts - faults of the API server or of the connection to it; each test counts its faults, which must have occurred.

import { setMaxListeners } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { isWeftError } from '../../src/base/errors.ts'
import { Secret, secretUrls } from '../../src/base/secret.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { KubeApiClient, type KubeClient } from '../../src/control/kube/api-client.ts'
import { createKubeManager } from '../../src/control/kube/kube-manager.ts'
import { annotationNames } from '../../src/control/kube/node-lease.ts'
import { NodeSource } from '../../src/control/kube/node-source.ts'
import { OwnNode } from '../../src/control/kube/own-node.ts'
import { followLeases, type FollowState } from '../../src/control/lease/follow.ts'
import type { Lease } from '../../src/control/lease/lease.ts'
import type { SubnetManager } from '../../src/control/lease/subnet-manager.ts'
import { addressText } from '../../src/net/address.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { PeerFilter } from '../../src/path/tunnel/peer-filter.ts'
import { eventually } from '../support/event.ts'
import { WEFT_TOKEN } from '../support/kube-admin.ts'
import { startKubeServer, type Fault, type SmallKubeApi } from '../support/kube-server.ts'
import { needs } from '../support/needs.ts'

/** The pause in ms between two pieces of a stream, so that the pieces arrive separately. */
const PIECES_MS = 10
/** The long run cuts at every byte, the short one at every seventh. */
const STEP = process.env['WEFT_LONG'] === '1' ? 1 : 7
const P = 'flannel.alpha.coreos.com'
const flannels = (publicIp: string): Record<string, string> => ({
  [`${P}/backend-data`]: 'null',
  [`${P}/backend-type`]: '',
  [`${P}/kube-subnet-manager`]: 'true',
  [`${P}/public-ip`]: publicIp,
})

describe('an API server', () => {
  needs('openssl')
  let api: SmallKubeApi
  let folder: string
  let stopping: AbortController
  let lines: string[]
  let manager: SubnetManager
  let leases: ReadonlyMap<string, Lease>
  let state: FollowState
  let over: Promise<unknown>
  const log = {
    info: () => {},
    warn: (line: string) => void lines.push(line),
    error: (line: string) => void lines.push(line),
    v: () => false,
  }

  beforeEach(async () => {
    api = await startKubeServer()
    folder = mkdtempSync(join(tmpdir(), 'weft-kube-'))
    stopping = new AbortController()
    lines = []
    leases = new Map()
    state = { listedAt: undefined, failing: false, held: 0, holds: 0 }
    writeFileSync(join(folder, 'token'), WEFT_TOKEN)
    writeFileSync(join(folder, 'ca.crt'), readFileSync(api.caFile))
    const { hostname, port } = new URL(api.url)
    writeFileSync(
      join(folder, 'kubeconfig'),
      `current-context: test
clusters: [{name: test, cluster: {server: "https://${hostname}:${port}", certificate-authority: ca.crt}}]
users: [{name: weft, user: {tokenFile: token}}]
contexts: [{name: test, context: {cluster: test, user: weft}}]
`,
    )
    manager = await createKubeManager({
      apiUrl: secretUrls(''),
      kubeconfig: join(folder, 'kubeconfig'),
      environment: { NODE_NAME: 'node1' },
      annotationPrefix: P,
      netConfigPath: '',
      setCondition: true,
      log,
      signal: stopping.signal,
    })
    await api.admin.addNode('node1', '10.5.1.0/24', flannels('192.168.77.1'))
    await api.admin.addNode('node2', '10.5.2.0/24', flannels('192.168.77.2'))
  })
  afterEach(async () => {
    stopping.abort(new Error('the test is over'))
    await over
    await manager.close()
    await api.close()
    rmSync(folder, { recursive: true })
  })

  async function follow(relistMs = 1000): Promise<void> {
    const run = async (): Promise<void> => {
      const times = { relistMs, holdMs: 1000, random: () => 1 }
      const options = { log, signal: stopping.signal, state, ownKey: () => '10.5.1.0-24', ...times }
      for await (const followed of followLeases(manager.source, options)) ({ leases } = followed)
    }
    over = run().catch((error: unknown) => error)
    await eventually(() => expect(view()).toEqual(['10.5.1.0-24 192.168.77.1', '10.5.2.0-24 192.168.77.2']))
  }
  const view = (): string[] =>
    [...leases]
      .map(([key, { attrs }]) => `${key} ${addressText(attrs.publicIp)}`)
      .toSorted((a, b) => a.localeCompare(b))
  /** Checks that no peer is lost during the fault, and that weftd learns afterwards what changed meanwhile. */
  async function survive(during: () => Promise<void>): Promise<void> {
    let lost = 0
    const looking = setInterval(() => void (leases.has('10.5.2.0-24') || lost++), 1)
    await during()
    clearInterval(looking)
    api.fault = undefined
    await api.admin.addNode('node3', '10.5.3.0/24', flannels('192.168.77.3'))
    await eventually(() => expect(view()).toContain('10.5.3.0-24 192.168.77.3'))
    expect(lost).toBe(0)
  }

  it.each<[string, (request: string) => Fault | undefined, strikes?: number]>([
    ['is busy, 429', () => ({ status: 429, headers: { 'retry-after': '1' } })],
    ['fails, 500', () => ({ status: 500 })],
    ['is not there behind its balancer, 503', () => ({ status: 503, headers: { 'retry-after': '1' } })],
    ['has forgotten, 410', () => ({ status: 410 })],
    ['denies access, 403', () => ({ status: 403 })],
    ['breaks off in the middle of an answer', () => ({ cutAfter: 700 })],
    ['breaks off in the middle of a watch', (request) => (request.includes('watch=') ? { cutAfter: 300 } : undefined)],
    ['is slow', () => ({ delayMs: 100 }), 1],
  ])('that %s does not make weftd lose a peer', async (_what, fault, strikes = 2) => {
    await follow()
    await survive(async () => {
      api.fault = fault
      await api.kill()
      await api.start()
      // The watch is reopened, and there is always a change to report.
      await eventually(async () => {
        await api.admin.annotate('node2', { time: String(performance.now()) })
        expect(api.struck).toBeGreaterThanOrEqual(strikes)
      })
    })
  })

  it('that requests a pause receives no request during the pause', async () => {
    const asked: number[] = []
    api.fault = () => {
      asked.push(performance.now())
      return asked.length === 1 ? { status: 429, headers: { 'retry-after': '1' } } : undefined
    }
    await expect(manager.source.list(stopping.signal)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    await manager.source.list(stopping.signal)
    expect(asked[1]! - asked[0]!).toBeGreaterThanOrEqual(990)
  })

  it('that has forgotten the history, and reports 410 as an event, does not lose changes', async () => {
    await follow(600_000) // without regular listings the watch must notice the fault
    await survive(async () => {
      await api.admin.addNode('node4', '10.5.4.0/24', flannels('192.168.77.4'))
      api.compact()
      await eventually(() => expect(lines.join('\n')).toMatch(/fell behind \(.*too old resource version/))
      await eventually(() => expect(view()).toContain('10.5.4.0-24 192.168.77.4'))
    })
  })

  it('that was restored from a backup does not lose changes', async () => {
    await follow()
    for (let time = 0; time < 20; time++) api.touch('node2')
    await eventually(() => expect(state.failing).toBe(false))
    await survive(async () => api.rewind(15))
  })

  it('whose token expires is called with the new token', async () => {
    await follow()
    await survive(async () => {
      api.setToken('the next one')
      await api.kill()
      await api.start()
      await eventually(() => expect(lines.join('\n')).toContain('401 Unauthorized'))
      writeFileSync(join(folder, 'token'), 'the next one')
    })
  })

  it('whose certificate authority is replaced is called with the new authority', async () => {
    await follow()
    await survive(async () => {
      await api.rotate()
      await eventually(() =>
        expect(lines.join('\n')).toMatch(/does not answer: .*(self-signed|unable to verify|signature)/),
      )
      writeFileSync(join(folder, 'ca.crt'), readFileSync(api.caFile))
    })
  })

  it('that has lost most nodes does not make weftd drop them immediately', async () => {
    for (const at of [3, 4, 5])
      await api.admin.addNode(`node${at + 10}`, `10.5.1${at}.0/24`, flannels(`192.168.77.1${at}`))
    const run = async (): Promise<void> => {
      const options = { log, signal: stopping.signal, state, holdMs: 1500, ownKey: () => '10.5.1.0-24' }
      for await (const followed of followLeases(manager.source, options)) ({ leases } = followed)
    }
    over = run().catch((error: unknown) => error)
    await eventually(() => expect(leases.size).toBe(5))
    for (const name of ['node2', 'node13', 'node14', 'node15']) await api.admin.removeNode(name)
    await eventually(() => expect(state.held).toBeGreaterThan(0))
    expect(leases.size).toBeGreaterThan(2)
    await eventually(() => expect(view()).toEqual(['10.5.1.0-24 192.168.77.1']))
  })

  it('that does not answer while a node obtains its lease neither ends the wait nor causes a burst of requests', async () => {
    const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}', { areGiven: true })
    const attrs = { publicIp: { ipv4: parseIpv4('192.168.77.1')! }, backendType: '' }
    api.fault = () => 'silence'
    const obtaining = manager.holder(config).obtain(attrs, {}, log, stopping.signal)
    await eventually(() => expect(api.struck).toBe(1))
    stopping.abort(new Error('the test is over'))
    await expect(obtaining).rejects.toThrow('the test is over')
  })

  it('sends only the metadata of a node for each heartbeat', async () => {
    await follow()
    // Make a node as large as kubelet does with its images and other status.
    const images = Array.from({ length: 50 }, (_, at) => ({
      names: [`registry.example/image-${at}@sha256:${'0'.repeat(64)}`],
    }))
    await api.admin.call(
      'PATCH',
      '/api/v1/nodes/node2/status',
      { status: { images } },
      'application/strategic-merge-patch+json',
    )
    const before = api.watchedBytes
    for (let beat = 0; beat < 20; beat++) api.touch('node2')
    await api.admin.annotate('node2', { [`${P}/public-ip`]: '192.168.77.9' })
    await eventually(() => expect(view()).toContain('10.5.2.0-24 192.168.77.9'))
    expect((api.watchedBytes - before) / 21).toBeLessThan(700)
  })
})

describe('a watch', () => {
  interface Recorded {
    readonly list: unknown
    readonly node3: unknown
    readonly watch: readonly string[]
  }
  /** The recorded answer of a kube-apiserver 1.20.2, byte for byte except for the white space of this file. */
  const recorded = JSON.parse(readFileSync(join(import.meta.dirname, 'recorded.json'), 'utf8')) as Recorded
  const versionIn = (line: string): number => Number(/"resourceVersion":"(\d+)"/.exec(line)![1])
  let server: Server
  /** The offsets at which watches were cut. */
  let cuts: Set<number>
  beforeEach(async () => {
    cuts = new Set()
    server = createServer((request, response): unknown => {
      const url = new URL(request.url!, 'http://kubernetes')
      if (url.pathname !== '/api/v1/nodes') return response.end(JSON.stringify(recorded.node3))
      if (url.searchParams.get('watch') !== 'true') return response.end(JSON.stringify(recorded.list))
      const after = Number(url.searchParams.get('resourceVersion'))
      const rest = recorded.watch.filter((line) => versionIn(line) > after || line.includes('BOOKMARK'))
      // The chunks in which the server's HTTP library sends the events: one event each.
      const bytes = Buffer.concat([
        Buffer.from('HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n'),
        ...rest.map((line) => Buffer.from(`${(line.length + 1).toString(16)}\r\n${line}\n\r\n`)),
      ])
      const cutAt = Number(request.headers.authorization!.replace('Bearer ', ''))
      if (cuts.has(cutAt)) {
        // The whole stream, in two pieces that are divided at this offset.
        request.socket.setNoDelay().write(bytes.subarray(0, cutAt))
        return setTimeout(() => request.socket.write(bytes.subarray(cutAt)), PIECES_MS)
      }
      cuts.add(cutAt)
      return request.socket.end(bytes.subarray(0, cutAt))
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  })
  afterEach(async () => {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })

  it('continues after a cut at every byte of a recorded stream', async () => {
    const { port } = server.address() as { port: number }
    const length = recorded.watch.reduce((sum, line) => sum + line.length + 10, 120)
    const places = Array.from({ length }, (_, at) => at).filter((at) => at % STEP === 0)
    const { signal } = new AbortController()
    setMaxListeners(0, signal)
    async function cut(at: number): Promise<void> {
      const client = new KubeApiClient(async () => ({
        server: `http://127.0.0.1:${port}`,
        authorization: new Secret(String(at)),
      }))
      const source = new NodeSource(client, annotationNames(P))
      const listing = await source.list(signal)
      const seen = new Map(listing.entries.map((entry) => [entry.key, entry]))
      let { cursor } = listing
      const wanted = BigInt(versionIn(recorded.watch.at(-1)!))
      while (cursor < wanted)
        try {
          for await (const batch of source.watch(cursor, signal)) {
            ;({ cursor } = batch)
            for (const change of batch.changes)
              if (change.kind === 'put') seen.set(change.entry.key, change.entry)
              else seen.delete(change.key)
            if (cursor >= wanted) break
          }
        } catch (error) {
          // The stream was cut before or within the answer. A watch that ends between two events is reopened without an error.
          expect(isWeftError(error, 'STORE_UNAVAILABLE'), String(error)).toBe(true)
        }
      client.close()
      const ips = [...seen].map(([key, { lease }]) => `${key} ${lease && addressText(lease.attrs.publicIp)}`)
      expect([at, ...ips]).toEqual([at, '10.5.2.0-24 192.168.77.22', '10.5.3.0-24 192.168.77.3'])
    }
    for (let at = 0; at < places.length; at += 50) await Promise.all(places.slice(at, at + 50).map(cut))
    expect(cuts.size).toBe(places.length)
  })
})

it('a request on an idle connection that the server has closed is repeated on another connection', async () => {
  const seen: (readonly [port: number | undefined, method: string | undefined])[] = []
  const answered = new Set<unknown>()
  const server = createServer((request, response) => {
    seen.push([request.socket.remotePort, request.method])
    if (answered.has(request.socket)) return void request.socket.resetAndDestroy()
    answered.add(request.socket)
    response.end('{}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  const client = new KubeApiClient(async () => ({ server: `http://127.0.0.1:${port}` }))
  const { signal } = new AbortController()
  await client.ask({ method: 'GET', path: '/' }, signal)
  await client.ask({ method: 'PATCH', path: '/', body: {} }, signal)
  expect(seen.map(([, method]) => method)).toEqual(['GET', 'PATCH', 'PATCH'])
  expect(seen[1]![0]).toBe(seen[0]![0])
  expect(seen[2]![0]).not.toBe(seen[0]![0])
  client.close()
  await new Promise((resolve) => server.close(resolve))
})

it('a watch ends if its connection, which an earlier request used, is reset, and no request is repeated', async () => {
  const unhandled: unknown[] = []
  const record = (error: unknown): void => void unhandled.push(error)
  process.on('unhandledRejection', record)
  const seen: (number | undefined)[] = []
  let reset: () => void = () => {}
  const server = createServer((request, response) => {
    seen.push(request.socket.remotePort)
    if (!request.url!.includes('watch=')) return void response.end('{}')
    reset = () => request.socket.resetAndDestroy()
    response.write('{"type":"BOOKMARK","object":{}}\n')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  const client = new KubeApiClient(async () => ({ server: `http://127.0.0.1:${port}` }))
  const { signal } = new AbortController()
  await client.ask({ method: 'GET', path: '/' }, signal)
  const reading = async (): Promise<void> => {
    for await (const events of client.watch('/', {}, 300, signal)) if (events.length > 0) reset()
  }
  await expect(reading()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  // A repeated request would have arrived before this one is answered.
  await client.ask({ method: 'GET', path: '/' }, signal)
  process.off('unhandledRejection', record)
  expect(unhandled).toEqual([])
  expect([seen.length, seen[1]]).toEqual([3, seen[0]])
  client.close()
  server.closeAllConnections()
  await new Promise((resolve) => server.close(resolve))
})

describe('junk in each field', () => {
  type Json = { [name: string]: unknown } | unknown[]
  const JUNK = [undefined, null, true, 0, -1.5, '', 'junk', '9'.repeat(400), [], [null], {}, { a: null }]
  const NODE = {
    metadata: {
      name: 'node2',
      uid: 'u2',
      resourceVersion: '101',
      creationTimestamp: '2026-01-02T03:04:05Z',
      annotations: { ...flannels('192.168.77.2'), [`${P}/public-ip-overwrite`]: '192.0.2.7' },
    },
    spec: { podCIDR: '10.5.2.0/24', podCIDRs: ['10.5.2.0/24'] },
  }
  /** Yields the value itself, and copies with each kind of junk in each place. */
  function* spoilt(value: unknown): Generator {
    yield* JUNK
    if (typeof value !== 'object' || value === null) return
    for (const [name, member] of Object.entries(value))
      for (const junk of spoilt(member)) {
        const copy = structuredClone(value) as Json
        Object.assign(copy, { [name]: junk })
        yield copy
      }
  }
  const hasFailed = (error: unknown): void => expect(isWeftError(error), String(error)).toBe(true)
  const names = annotationNames(P)
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const clientOf = (answer: unknown): KubeClient => ({
    ask: async <T>() => structuredClone(answer) as T,
    watch: async function* () {},
    close() {},
  })

  it('in a listing or in this node is an error of the store, or means a node without a lease', async () => {
    const { signal } = new AbortController()
    const attrs = { publicIp: { ipv4: parseIpv4('192.168.77.2')! }, backendType: '' }
    let lists = 0
    for (const listing of spoilt({ metadata: { resourceVersion: '100' }, items: [NODE] })) {
      const client = clientOf(listing)
      const source = new NodeSource(client, names)
      await source.list(signal).then(({ entries }) => void (lists += entries.length), hasFailed)
      const own = new OwnNode({ client, names, name: 'node2', log })
      const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}', { areGiven: true })
      const renewing = own.holder(config).renew(
        {
          key: '10.5.2.0-24',
          subnet: { ipv4: { address: 0, prefixLength: 24 } },
          attrs,
          expiresAt: undefined,
          revision: 0n,
        },
        attrs,
        log,
        signal,
      )
      await renewing.catch(hasFailed)
      await own.published(signal).catch(hasFailed)
      await own.amend(attrs.publicIp, signal).catch(hasFailed)
      await own.ready(signal).catch(hasFailed)
    }
    expect(lists).toBeGreaterThan(50)
  })

  it('in an event, or in place of an event, ends the watch with an error of the store, or means a node without a lease', async () => {
    let line: string | undefined
    const server = createServer((request, response) => {
      const url = new URL(request.url!, 'http://kubernetes')
      if (url.searchParams.get('watch') !== 'true') return void response.end(JSON.stringify(NODE))
      response.end(line)
      line = undefined
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as { port: number }
    const { signal } = new AbortController()
    setMaxListeners(0, signal)
    const status = { kind: 'Status', code: 410, message: 'too old' }
    const { spec: _spec, ...withoutSpec } = NODE
    const events = [
      ...['ADDED', 'MODIFIED', 'DELETED', 'BOOKMARK'].map((type) => ({ type, object: NODE })),
      { type: 'MODIFIED', object: withoutSpec },
      { type: 'ERROR', object: status },
    ]
    let changes = 0
    for (const event of events)
      for (const junk of spoilt(event)) {
        line = `${JSON.stringify(junk ?? null)}\n`
        const client = new KubeApiClient(async () => ({ server: `http://127.0.0.1:${port}` }))
        const source = new NodeSource(client, names)
        const watching = async (): Promise<void> => {
          for await (const batch of source.watch(100n, signal)) changes += batch.changes.length
        }
        await watching().catch(hasFailed)
        client.close()
      }
    expect(changes).toBeGreaterThan(100)
    await new Promise((resolve) => server.close(resolve))
  })
})

it('if two nodes claim to be one host, the node that was created last counts, whichever changed last', async () => {
  const node = (name: string, at: string, version: string) => ({
    metadata: { name, uid: name, resourceVersion: version, creationTimestamp: at, annotations: flannels('192.0.2.1') },
    spec: { podCIDR: `10.5.${name}.0/24` },
  })
  const items = [node('1', '2026-01-02T03:04:06Z', '7'), node('2', '2026-01-02T03:04:05Z', '900')]
  const client: KubeClient = {
    ask: async <T>() => ({ metadata: { resourceVersion: '1000' }, items }) as T,
    watch: async function* () {},
    close() {},
  }
  const { entries } = await new NodeSource(client, annotationNames(P)).list(new AbortController().signal)
  const leases = new Map(entries.map(({ key, lease }) => [key, lease!]))
  const own = { ...leases.get('10.5.1.0-24')!, key: '', expiresAt: undefined, revision: 0n }
  const subnet = { ipv4: { address: parseIpv4('10.5.9.0')!, prefixLength: 24 } }
  const lease = { ...own, subnet, attrs: { ...own.attrs, publicIp: { ipv4: parseIpv4('192.0.2.9')! } } }
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const identity = { name: 'MAC', own: '', of: () => 'one', remedy: '' }
  const network = { address: parseIpv4('10.5.0.0')!, prefixLength: 16 }
  // The addresses differ, because one host may have two leases.
  const [first, second] = [...leases.values()].map((each, at) => ({
    ...each,
    attrs: { ...each.attrs, publicIp: { ipv4: each.attrs.publicIp.ipv4! + at } },
  }))
  for (const order of [
    [first!, second!],
    [second!, first!],
  ]) {
    const filter = new PeerFilter({ lease, network, log, identity })
    const peers = filter.usable(new Map(order.map((each) => [each.key, each])), '')
    expect(peers.map(({ key }) => key)).toEqual(['10.5.1.0-24'])
  }
})
