// ask-nodes.test.ts - queries all nodes, whatever they answer. Each node has its own loopback address, and one program
// answers at all of these addresses.

import { once, setMaxListeners } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Secret } from '../../../src/base/secret.ts'
import { parseNetworkConfig } from '../../../src/control/config/network-config.ts'
import type { Lease } from '../../../src/control/lease/lease.ts'
import { ipv4Net, parseIpv4 } from '../../../src/net/ipv4.ts'
import { askNetwork, networkAsking, readToken, showsToken } from '../../../src/node/ask-nodes.ts'
import type { Node } from '../../../src/node/node.ts'
import type { NetworkReport } from '../../../src/report/network-view.ts'
import type { NodeView } from '../../../src/report/view.ts'
import { soundStatus } from '../../support/facts.ts'

let folder: string
let server: ReturnType<typeof createServer>
let port: number
let sockets: Set<Socket>
/** Answers a request to the node with this number. */
let answer: (number: number, request: IncomingMessage, response: ServerResponse) => void
let asked: number[]
let stopping: AbortController
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-network-'))
  asked = []
  sockets = new Set()
  stopping = new AbortController()
  setMaxListeners(0, stopping.signal) // runDaemon does the same
  server = createServer((request, response) => {
    const number = Number(request.socket.localAddress!.split('.')[3])
    asked.push(number)
    answer(number, request, response)
  })
  server.on('connection', (socket) => sockets.add(socket.on('error', () => {})))
  server.listen(0, '0.0.0.0')
  await once(server, 'listening')
  ;({ port } = server.address() as AddressInfo)
})
afterEach(async () => {
  for (const socket of sockets) socket.destroy()
  server.close()
  rmSync(folder, { recursive: true })
})

const ipv4 = (text: string): number => parseIpv4(text)!
const key = (number: number): string => `10.5.${number}.0-24`
const addressOf = (number: number): number => ipv4(`127.7.0.${number}`)
const viewOf = (number: number): NodeView => ({
  schema: 1,
  at: new Date().toISOString(),
  version: '1',
  hostname: `host${number}`,
  lease: key(number),
  state: 'working',
  trouble: null,
  mtu: 1472,
  config: {},
  peers: 0,
  seen: [],
})
const tell = (number: number, response: ServerResponse): void => void response.end(JSON.stringify(viewOf(number)))

/** Returns this node, which is number 1, with peers of the numbers after it. */
function nodeWith(peers: readonly number[], tokenFile = '', at = port): Node {
  const leaseOf = (number: number) => ({
    key: key(number),
    subnet: { ipv4: ipv4Net(ipv4(`10.5.${number}.0`), 24) },
    attrs: { publicIp: { ipv4: addressOf(number) }, backendType: '' },
  })
  return {
    options: { 'status-network': at, 'status-token-file': tokenFile },
    config: parseNetworkConfig('{"Network":"10.5.0.0/16"}'),
    lease: leaseOf(1),
    attrs: leaseOf(1).attrs,
    view: new Map([1, ...peers].map((number) => [key(number), leaseOf(number)])),
    names: new Map(peers.map((number) => [`127.7.0.${number}`, `host${number}`])),
    ownership: {
      dataPath: {
        probeSource: { ipv4: addressOf(1) },
        peers: () =>
          peers.map((number) => ({
            key: key(number),
            ipv4: { endpoint: '', way: 'tunnel', probe: addressOf(number) },
          })),
      },
    },
    signal: stopping.signal,
  } as unknown as Node
}
const ask = (node: Node): Promise<NetworkReport> => askNetwork(node, async () => soundStatus)
const answersOf = ({ nodes }: NetworkReport): Record<string, readonly [string, string | null]> =>
  Object.fromEntries(nodes.slice(1).map(({ name, answer: kind, why }) => [name, [kind, why]]))

it('queries each node at its own address, from the address of this node', async () => {
  const from = new Set<string>()
  answer = (number, { socket, url, headers }, response) => {
    from.add(`${socket.remoteAddress} ${url} ${headers.host} ${headers.authorization}`)
    tell(number, response)
  }
  const report = await ask(nodeWith([2, 3]))
  expect(answersOf(report)).toEqual({ host2: ['told', null], host3: ['told', null] })
  expect(from).toEqual(new Set([2, 3].map((number) => `127.7.0.1 /view.json 127.7.0.${number}:${port} undefined`)))
})

/** Each fault of an answer, with the text and the reason that the report must have. */
const TROUBLES: readonly [string, (response: ServerResponse, socket: Socket) => void, string, RegExp][] = [
  ['says nothing', () => {}, 'silent', /^no answer within 1.5 s$/],
  ['hangs behind the head', (response) => response.writeHead(200).flushHeaders(), 'silent', /no answer within/],
  [
    'sends a byte now and then',
    (response) => {
      const timer = setInterval(() => response.write(' '), 50)
      response.once('close', () => clearInterval(timer))
    },
    'silent',
    /no answer within/,
  ],
  ['sends without end', (response) => void pour(response), 'junk', /^its answer has more than 1024 KiB$/],
  ['resets', (_response, socket) => void socket.resetAndDestroy(), 'silent', /ECONNRESET|hang up/],
  [
    'ends in the middle',
    (response, socket) => (
      response.writeHead(200, { 'content-length': 99 }),
      void response.write('{', () => socket.destroy())
    ),
    'silent',
    /aborted/,
  ],
  [
    'speaks no HTTP',
    (_response, socket) => void socket.end('SSH-2.0-OpenSSH_9.2\r\n'),
    'junk',
    /^it does not speak HTTP$/,
  ],
  [
    'has a head without end',
    (_response, socket) => void socket.write(`HTTP/1.1 200 OK\r\n${'a: b\r\n'.repeat(9_000)}`),
    'junk',
    /HTTP/,
  ],
  ['tells junk', (response) => void response.end('junk'), 'junk', /^its view is not JSON$/],
  ['tells too little', (response) => void response.end('{}'), 'junk', /does not have version/],
  ['fails', (response) => void response.writeHead(500).end(), 'junk', /^it answers 500$/],
  [
    'sends elsewhere',
    (response) => void response.writeHead(302, { location: 'http://127.0.0.1:1/' }).end(),
    'junk',
    /^it answers 302$/,
  ],
  ['knows no such path', (response) => void response.writeHead(404).end(), 'closed', /another program/],
  [
    'refuses',
    (response) => void response.writeHead(401).end(`no\u001B[2J\n${'x'.repeat(9_000)}`),
    'refused',
    /^no\\u001b\[2J\\nx{190,200}$/,
  ],
  [
    'switches protocols',
    (response) => void response.writeHead(101, { upgrade: 'x', connection: 'upgrade' }).end(),
    'silent',
    /./,
  ],
]
function pour(response: ServerResponse): void {
  while (response.write('x'.repeat(65_536)) && !response.destroyed);
  response.once('drain', () => pour(response))
}

describe('a node that', () => {
  it.each(TROUBLES)('%s affects the result of no other node', async (_what, act, kind, why) => {
    answer = (number, { socket }, response) => (number === 2 ? act(response, socket) : tell(number, response))
    const report = await ask(nodeWith([2, 3]))
    expect(answersOf(report)).toEqual({ host2: [kind, expect.stringMatching(why)], host3: ['told', null] })
  })

  it('does not listen is reported as `closed`', async () => {
    server.close()
    expect(answersOf(await ask(nodeWith([2])))).toEqual({ host2: ['closed', 'no weftd serves a status there'] })
  })
})

it('queries some of very many nodes, and forgets what they report about the others', async () => {
  const view = { ...viewOf(2), seen: [2, 999].map((number) => ({ lease: key(number), reach: 'silent' })) }
  answer = (_number, _request, response) => void response.end(JSON.stringify(view))
  const node = nodeWith([2])
  const many = Array.from({ length: 30 }, (_, at): [string, Lease] => [
    `k${at}`,
    { ...node.view.get(key(2))!, key: `k${at}` },
  ])
  const peer = { key: '', ipv4: { endpoint: '', way: 'tunnel', probe: addressOf(2) } }
  Object.assign(node, { view: new Map<string, Lease>([[node.lease.key, node.lease], ...many]) })
  // This object has no `results`, because reading the results of all peers for each peer took minutes with 10,000 peers.
  const silent = { result: (of: string) => (of === 'k29' ? { isAnswering: false } : undefined) }
  Object.assign(node, { probes: { ipv4: silent } })
  Object.assign(node.ownership.dataPath!, { peers: () => many.map(([each]) => ({ ...peer, key: each })) })
  const report = await askNetwork(node, async () => soundStatus, 10)
  expect([report.size, report.nodes.length, asked.length]).toEqual([31, 11, 10])
  expect(report.nodes.map(({ lease }) => lease)).toContain('k29')
  expect(report.findings).toEqual([])
})

it('waits for 250 nodes that hang only as long as for one, and ends with the daemon', async () => {
  answer = () => {}
  const peers = Array.from({ length: 250 }, (_, at) => at + 2)
  const asking = ask(nodeWith(peers))
  await expect.poll(() => asked.length, { timeout: 60_000 }).toBe(250)
  stopping.abort(new Error('stop'))
  const report = await asking
  expect(new Set(report.nodes.slice(1).map(({ answer: kind }) => kind))).toEqual(new Set(['silent']))
})

it("reports how far a node's clock is ahead", async () => {
  answer = (number, _request, response) =>
    void response.end(
      JSON.stringify({ ...viewOf(number), at: new Date(Date.now() + (number === 3 ? 60_000 : 0)).toISOString() }),
    )
  const { nodes, findings } = await ask(nodeWith([2, 3]))
  expect(nodes[2]!.clockAheadMs).toBeGreaterThan(59_000)
  expect(findings.map(({ name }) => name)).toEqual(['clock-off'])
})

it('does not query a peer that the data path lacks', async () => {
  answer = (number, _request, response) => tell(number, response)
  const node = nodeWith([2])
  Object.assign(node.ownership.dataPath!, { peers: () => [] })
  expect(answersOf(await ask(node))).toEqual({ host2: ['silent', 'the data path of this node has no path to it'] })
  expect(asked).toEqual([])
})

describe('the token', () => {
  it('is sent, and its file is read again for each query', async () => {
    const file = join(folder, 'token')
    const shown: (string | undefined)[] = []
    answer = (number, { headers }, response) => {
      shown.push(headers.authorization)
      tell(number, response)
    }
    for (const token of ['one', 'two']) {
      writeFileSync(file, `${token}\n`)
      await ask(nodeWith([2], file))
    }
    expect(shown).toEqual(['Bearer one', 'Bearer two'])
  })

  it('that cannot be read stops all queries, because none may be sent without it', async () => {
    writeFileSync(join(folder, 'empty'), ' \n')
    for (const [name, why] of [
      ['nothing', 'ENOENT'],
      ['empty', 'is empty'],
    ] as const) {
      const report = await ask(nodeWith([2], join(folder, name)))
      expect(answersOf(report)).toEqual({ host2: ['refused', expect.stringContaining(why)] })
    }
    expect(asked).toEqual([])
  })

  it('is accepted only if it is identical, and is printed as <hidden>', async () => {
    writeFileSync(join(folder, 'token'), 'sesame\n')
    const token = (await readToken({ 'status-network': 1, 'status-token-file': join(folder, 'token') }))!
    expect(String(token)).toBe('<hidden>')
    expect(showsToken('Bearer sesame', token)).toBe(true)
    for (const other of [undefined, '', 'Bearer ', 'sesame', 'bearer sesame', 'Bearer sesame ', 'Bearer sesam'])
      expect(showsToken(other, token)).toBe(false)
    expect(showsToken('Bearer ', new Secret('x'))).toBe(false)
    expect(await readToken({ 'status-network': 1, 'status-token-file': '' })).toBeUndefined()
  })
})

it('queries once for simultaneous requests, and never if the network view is disabled', async () => {
  answer = (number, _request, response) => tell(number, response)
  const asking = networkAsking(nodeWith([2]), async () => soundStatus)!
  const [one, other] = await Promise.all([asking.report(), asking.report()])
  expect([one === other, asked]).toEqual([true, [2]])
  expect(await asking.report()).toBe(one)
  expect(asking.isGuarded).toBe(false)
  expect(networkAsking(nodeWith([2], '/token'), async () => soundStatus)!.isGuarded).toBe(true)
  expect(networkAsking(nodeWith([2], '', 0), async () => soundStatus)).toBeUndefined()
})
