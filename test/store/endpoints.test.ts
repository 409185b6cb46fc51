// endpoints.test.ts - several etcd endpoints of which some are dead in different ways, and tokens that expire.

import { spawn } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, expect, it, vi } from 'vitest'
import { ended } from '../../lab/command.ts'
import { ownPlace, startEtcd, startEtcdCluster, type Etcd } from '../../lab/etcd.ts'
import { Secret } from '../../src/base/secret.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { sourceOf } from '../../src/control/lease/decode.ts'
import { followLeases } from '../../src/control/lease/follow.ts'
import { acquireLease, renewLease } from '../../src/control/lease/own-lease.ts'
import { EtcdStore } from '../../src/control/store/etcd/etcd.ts'
import type { Store } from '../../src/control/store/store.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { startCuttingProxy } from '../support/cutting-proxy.ts'
import { eventually } from '../support/event.ts'
import { ETCD, needs } from '../support/needs.ts'
import { startTroubledEtcd } from '../support/troubled-etcd.ts'

const lacks = needs(...ETCD)

/**
 * STARTS: the starts that are timed with each set of endpoints. The next figure: the changes in a row. `npm run test:soak` runs both for
 * two minutes.
 */
const STARTS = 5
const CHANGES_MS = process.env['WEFT_LONG'] === '1' ? 120_000 : 0
const CHANGES = 10
/** The delay in ms that waiting for a single deadline would cause. */
const DEADLINE_MS = 6_000

const PREFIX = '/x'
const network = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
const quiet = { info() {}, warn() {}, error() {}, v: () => false }
const value = (ip: string): string => `{"PublicIP":"${ip}","PublicIPv6":null}`

let etcd: Etcd
let over: AbortController
const cleanups: (() => unknown)[] = []
beforeAll(async () => {
  if (lacks) return
  etcd = await startEtcd()
  await etcd.ctl('put', `${PREFIX}/config`, '{"Network":"10.5.0.0/16"}')
})
afterAll(async () => {
  await etcd?.close()
})
beforeEach(() => {
  over = new AbortController()
  setMaxListeners(0, over.signal)
})
afterEach(async () => {
  over.abort(new Error('the test is over'))
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

function open(endpoints: readonly string[], more: Partial<ConstructorParameters<typeof EtcdStore>[0]> = {}): Store {
  const store = new EtcdStore({
    endpoints,
    prefix: PREFIX,
    certFile: '',
    keyFile: '',
    caFile: '',
    username: '',
    password: new Secret(''),
    ...more,
  })
  cleanups.push(() => store.close())
  return store
}

/** Follows the leases like the daemon; `has` resolves when a key has this address. */
function follow(store: Store, relistMs?: number) {
  const found = new Map<string, number>()
  const { signal } = over
  const done = (async () => {
    const options = { log: quiet, signal, ...(relistMs === undefined ? {} : { relistMs }) }
    for await (const { leases } of followLeases(sourceOf(store), options)) {
      found.clear()
      for (const [key, { attrs }] of leases) found.set(key, attrs.publicIp.ipv4!)
    }
  })().catch((error: unknown) => {
    if (!signal.aborted) throw error
  })
  return { done, has: (key: string, ip: string) => eventually(() => expect(found.get(key)).toBe(parseIpv4(ip))) }
}

/** Calls `onConnection` for each connection; returns the URL of the listener. */
async function listen(onConnection: (socket: Socket) => void): Promise<string> {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    onConnection(socket)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** Returns an address whose listener never accepts. Its queue is full, so the kernel drops each SYN. */
async function dropsSyn(): Promise<string> {
  const place = await ownPlace()
  const [host = '', port = ''] = place.split(':')
  const script = `require('node:net').createServer().listen({host:'${host}',port:${port},backlog:1},()=>console.log())`
  const child = spawn('setpriv', ['--pdeathsig', 'KILL', process.execPath, '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  cleanups.push(async () => {
    child.kill('SIGKILL')
    await ended(child)
  })
  await new Promise((resolve) => child.stdout.once('data', resolve))
  child.kill('SIGSTOP')
  await eventually(() => expect(readFileSync(`/proc/${child.pid}/stat`, 'utf8')).toMatch(/\) T /))
  // The queue holds one connection more than the backlog (sk_acceptq_is_full in the kernel).
  for (const _ of [1, 2]) {
    const socket = connect(Number(port), host)
    cleanups.push(() => socket.destroy())
    await new Promise((resolve) => socket.once('connect', resolve))
  }
  return `http://${place}`
}

/** Returns a member that works but whose cluster is gone. */
async function withoutLeader(): Promise<string> {
  const cluster = await startEtcdCluster()
  cleanups.push(() => cluster.close())
  const [alone, ...others] = cluster.members
  for (const other of others) await other.kill()
  const left = alone!
  // The member notices this only after a failed election.
  await eventually(async () =>
    expect(await cluster.ctl(['endpoint', 'status', '-w', 'json'], [left])).not.toMatch(/"leader":[1-9]/),
  )
  return left.endpoint
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!

const DEAD: readonly (readonly [string, () => Promise<string>])[] = [
  ['refuses', async () => `http://${await ownPlace()}`],
  ['drops SYN', dropsSyn],
  ['resets', () => listen((socket) => socket.resetAndDestroy())],
  ['accepts and stays silent', () => listen(() => {})],
  ['answers without a leader', withoutLeader],
]

it.each(DEAD)(
  'delays neither a start nor a change until a deadline if one of two endpoints %s, or two of three',
  async (_name, make) => {
    const [one, two] = [await make(), await make()]
    let starts = 0
    /** Starts up to the first complete table, like the daemon. */
    async function start(endpoints: readonly string[]): Promise<number> {
      const began = performance.now()
      const store = open(endpoints)
      const { signal } = over
      expect(await store.config(signal)).toMatch(/Network/)
      const ip = `192.0.2.${++starts}`
      const attrs = { publicIp: { ipv4: parseIpv4(ip)! }, backendType: '' }
      const lease = await acquireLease(store, network, attrs, { random: Math.random, log: quiet, signal })
      await follow(store).has(lease.key, ip)
      return performance.now() - began
    }
    const sets = { alone: [etcd.endpoint], two: [one, etcd.endpoint], three: [one, etcd.endpoint, two] }
    const times = { alone: [] as number[], two: [] as number[], three: [] as number[] }
    for (let round = 0; round < STARTS; round++)
      for (const name of ['alone', 'two', 'three'] as const) times[name].push(await start(sets[name]))
    const took = { alone: median(times.alone), two: median(times.two), three: median(times.three) }
    console.log(`start: ${JSON.stringify(took)} ms`)
    for (const name of ['two', 'three'] as const) expect(took[name]).toBeLessThan(DEADLINE_MS / 2 + 10 * took.alone)

    // Meanwhile listings repeat, each through an endpoint that may be dead.
    const followers = { alone: follow(open(sets.alone), 500), three: follow(open(sets.three), 500) }
    const late = { alone: [] as number[], three: [] as number[] }
    const until = performance.now() + CHANGES_MS
    for (let change = 0; change < CHANGES || performance.now() < until; change++) {
      const ip = `198.51.100.${change % 250}`
      await etcd.ctl('put', `${PREFIX}/subnets/10.6.0.0-24`, value(ip))
      const began = performance.now()
      await Promise.all(
        (['alone', 'three'] as const).map(async (name) => {
          await followers[name].has('10.6.0.0-24', ip)
          late[name].push(performance.now() - began)
        }),
      )
    }
    const worst = { alone: Math.max(...late.alone), three: Math.max(...late.three) }
    console.log(`${late.alone.length} changes, at most ${JSON.stringify(worst)} ms late`)
    expect(worst.three).toBeLessThan(DEADLINE_MS / 3 + 10 * worst.alone)
  },
  CHANGES_MS + 600_000,
)

it('returns to an endpoint that is back when the other one goes away', async () => {
  const [first, second] = [await startCuttingProxy(etcd.endpoint), await startCuttingProxy(etcd.endpoint)]
  cleanups.push(
    () => first.close(),
    () => second.close(),
  )
  first.refuse(true)
  const store = open([first, second].map(({ port }) => `http://127.0.0.1:${port}`))
  const follower = follow(store)
  const put = (ip: string) => etcd.ctl('put', `${PREFIX}/subnets/10.6.0.0-24`, value(ip))
  for (let times = 0; times < 4; times++) {
    await put(`198.51.100.${times}`)
    await follower.has('10.6.0.0-24', `198.51.100.${times}`)
    const [back, gone] = times % 2 === 0 ? [first, second] : [second, first]
    back.refuse(false)
    gone.refuse(true)
    gone.cut()
  }
  expect(Math.min(first.cuts, second.cuts)).toBeGreaterThan(0)
})

it('uses another endpoint if an endpoint does not answer and fails its health check', async () => {
  const [first, second] = [await startTroubledEtcd(etcd.endpoint), await startTroubledEtcd(etcd.endpoint)]
  cleanups.push(
    () => first.close(),
    () => second.close(),
  )
  const store = open([first.endpoint, second.endpoint])
  await store.list(over.signal)
  for (const [silent, other] of [
    [first, second],
    [second, first],
    [first, second],
  ] as const) {
    silent.set({ hold: true })
    other.set({})
    expect((await store.list(over.signal)).revision).toBeGreaterThan(0n)
  }
  // The first endpoint may not have been the one in use.
  expect(Math.min(first.strikes.held, second.strikes.held)).toBeGreaterThan(0)
})

it('waits for endpoints that take seconds for each call', async () => {
  const slow = [await startTroubledEtcd(etcd.endpoint), await startTroubledEtcd(etcd.endpoint)]
  for (const each of slow) {
    cleanups.push(() => each.close())
    each.set({ delayMs: 2_000 })
  }
  const store = open(slow.map(({ endpoint }) => endpoint))
  const attrs = { publicIp: { ipv4: parseIpv4('192.0.2.99')! }, backendType: '' }
  const lease = await acquireLease(store, network, attrs, { random: Math.random, log: quiet, signal: over.signal })
  await renewLease(store, lease, { signal: over.signal })
})

it.each(['simple', 'jwt'])('continues with %s tokens when users and roles change', async (kind) => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-jwt-'))
  cleanups.push(() => rmSync(folder, { recursive: true }))
  const { publicKey, privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  const [pub, priv] = [join(folder, 'public.pem'), join(folder, 'private.pem')]
  writeFileSync(pub, publicKey.export({ type: 'spki', format: 'pem' }))
  writeFileSync(priv, privateKey.export({ type: 'pkcs1', format: 'pem' }))
  const jwt = ['--auth-token', `jwt,pub-key=${pub},priv-key=${priv},sign-method=RS256,ttl=10m`]
  const server = await startEtcd({ flags: kind === 'jwt' ? jwt : [] })
  cleanups.push(() => server.close())
  await server.ctl('user', 'add', 'root:sesame')
  await server.ctl('user', 'grant-role', 'root', 'root')
  await server.ctl('role', 'add', 'nodes')
  await server.ctl('role', 'grant-permission', 'nodes', '--prefix=true', 'readwrite', `${PREFIX}/`)
  await server.ctl('user', 'add', 'node:open')
  await server.ctl('user', 'grant-role', 'node', 'nodes')
  await server.ctl('auth', 'enable')
  const asRoot = (...args: string[]) => server.ctl('--user', 'root:sesame', ...args)
  const store = open([server.endpoint], { username: 'node', password: new Secret('open') })
  const attrs = { publicIp: { ipv4: parseIpv4('192.0.2.1')! }, backendType: '' }
  let lease = await acquireLease(store, network, attrs, { random: Math.random, log: quiet, signal: over.signal })
  const follower = follow(store, 200)
  for (let times = 0; times < 3; times++) {
    await asRoot('role', 'add', `another-${times}`)
    await asRoot('user', 'add', `somebody-${times}:x`)
    const key = `10.6.${times}.0-24`
    await asRoot('put', `${PREFIX}/subnets/${key}`, value('198.51.100.1'))
    const before = lease.revision
    lease = await renewLease(store, lease, { signal: over.signal })
    expect(lease.revision).toBeGreaterThan(before)
    await follower.has(key, '198.51.100.1')
  }
})

it("trusts the host's authorities if no authority is given", async () => {
  const server = await startEtcd({ tls: true })
  cleanups.push(() => server.close())
  await server.ctl('put', `${PREFIX}/config`, '{}')
  vi.stubEnv('SSL_CERT_FILE', server.certificate)
  cleanups.push(() => vi.unstubAllEnvs())
  expect(await open([server.endpoint]).config(over.signal)).toBe('{}')
  vi.stubEnv('SSL_CERT_FILE', '/nowhere')
  await expect(open([server.endpoint]).config(over.signal)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
})

it('sends no address as the server name to a TLS server, about which Node.js would warn', async () => {
  const server = await startEtcd({ tls: true })
  cleanups.push(() => server.close())
  await server.ctl('put', `${PREFIX}/config`, '{}')
  const warnings: string[] = []
  const onWarning = ({ message }: Error): void => void warnings.push(message)
  process.on('warning', onWarning)
  cleanups.push(() => process.off('warning', onWarning))
  expect(await open([server.endpoint], { caFile: server.certificate }).config(over.signal)).toBe('{}')
  expect(warnings).toEqual([])
  // The address in the certificate is checked nevertheless: another address is refused.
  const { port } = new URL(server.endpoint)
  const way = await listen((socket) => {
    const on = connect(Number(port), new URL(server.endpoint).hostname)
    on.on('error', () => socket.destroy())
    socket.pipe(on).pipe(socket)
  })
  const other = way.replace('http:', 'https:')
  await expect(open([other], { caFile: server.certificate }).config(over.signal)).rejects.toThrow(
    /no TLS connection.*altnames/,
  )
})

it('does not mistake a watch that `etcd grpc-proxy` joins to another for another cluster', async () => {
  const place = await ownPlace()
  const proxy = spawn(
    'setpriv',
    ['--pdeathsig', 'KILL', 'etcd', 'grpc-proxy', 'start', '--endpoints', etcd.endpoint, '--listen-addr', place],
    { stdio: 'ignore' },
  )
  cleanups.push(async () => {
    proxy.kill('SIGKILL')
    await ended(proxy)
  })
  const lines: string[] = []
  const log = { ...quiet, warn: (line: string) => void lines.push(line) }
  const views = [0, 1, 2].map(() => {
    const found = { ip: 0 }
    void (async () => {
      const store = open([`http://${place}`])
      for await (const { leases } of followLeases(sourceOf(store), { log, signal: over.signal }))
        found.ip = leases.get('10.7.0.0-24')?.attrs.publicIp.ipv4 ?? 0
    })().catch(() => {})
    return found
  })
  for (let change = 1; change <= 5; change++) {
    await etcd.ctl('put', `${PREFIX}/subnets/10.7.0.0-24`, value(`198.51.100.${change}`))
    await eventually(() => {
      for (const { ip } of views) expect(ip).toBe(parseIpv4(`198.51.100.${change}`))
    })
  }
  expect(lines).toEqual([])
})
