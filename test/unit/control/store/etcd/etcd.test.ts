// etcd.test.ts - the etcd store with members that refuse calls, omit fields or end connections, and its error messages.

import { setMaxListeners } from 'node:events'
import { status } from '@grpc/grpc-js'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import { hostsOf } from '../../../../../src/control/store/etcd/etcd-endpoint.ts'
import { plainly, storeError } from '../../../../../src/control/store/etcd/etcd-errors.ts'
import { EtcdStore } from '../../../../../src/control/store/etcd/etcd.ts'
import type { Store, StoreBatch } from '../../../../../src/control/store/store.ts'
import { eventually } from '../../../../support/event.ts'
import {
  endForPings,
  field,
  header,
  startMockEtcd,
  type Answer,
  type Call,
  type MockEtcd,
} from '../../../../support/mock-etcd.ts'

/** Endpoints are tried in random order. In 20 stores both orders of two endpoints occur, except with a chance of one in a million. */
const STORES = 20

let over: AbortController
const cleanups: (() => unknown)[] = []
beforeEach(() => {
  over = new AbortController()
  setMaxListeners(0, over.signal)
})
afterEach(async () => {
  over.abort(new Error('the test is over'))
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

async function member(answer: (call: Call) => Answer | undefined): Promise<MockEtcd> {
  const started = await startMockEtcd(answer)
  cleanups.push(() => started.close())
  return started
}

function open(members: readonly MockEtcd[], more: Partial<ConstructorParameters<typeof EtcdStore>[0]> = {}): Store {
  const store = new EtcdStore({
    endpoints: members.map(({ endpoint }) => endpoint),
    prefix: '/x',
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

const WELL = header({ cluster: 1, revision: 5, term: 2 })
const NOTHING = Buffer.alloc(0)

/** A member that serves all calls. */
const well = ({ method }: Call): Answer => (method === 'KV/Range' ? WELL : NOTHING)

describe('a user', () => {
  it.each([
    ['root', '', []],
    ['', 'sesame', []],
    ['root', 'sesame', ['Auth/Authenticate']],
  ])('with the name %j and the password %j authenticates only if both are given', async (username, password, asked) => {
    const refusing = await member((call) =>
      call.method.startsWith('Auth/')
        ? { status: status.INVALID_ARGUMENT, message: 'authentication failed' }
        : well(call),
    )
    const warnings: string[] = []
    const log = { warn: (message: string) => void warnings.push(message) }
    const store = open([refusing], { username, password: new Secret(password), log })
    const outcome = await store.list(over.signal).then(
      () => 'listed',
      () => 'refused',
    )
    expect(outcome).toBe(asked.length > 0 ? 'refused' : 'listed')
    expect(refusing.calls.filter((method) => method.startsWith('Auth/'))).toEqual(asked)
    expect(warnings).toHaveLength(asked.length > 0 ? 0 : 1)
  })
})

describe('an endpoint that refuses calls', () => {
  it.each([
    ['a learner of etcd 3.6', status.FAILED_PRECONDITION, 'etcdserver: rpc not supported for learner'],
    ['a learner of etcd 3.5', status.UNAVAILABLE, 'etcdserver: rpc not supported for learner'],
    ['a member that lags behind', status.RESOURCE_EXHAUSTED, 'etcdserver: too many requests'],
    ['a member whose data is damaged', status.DATA_LOSS, 'etcdserver: corrupt cluster'],
    ['a member that does not take the token', status.UNAUTHENTICATED, 'etcdserver: invalid auth token'],
    ['a member with an error of its own', status.UNKNOWN, 'etcdserver: applied index is ahead'],
    ['a proxy that lets nobody in', status.PERMISSION_DENIED, 'RBAC: access denied'],
    ['a proxy that asks for a token', status.UNAUTHENTICATED, 'Jwt is missing'],
    ['a proxy that does not know the service', status.UNIMPLEMENTED, 'unknown service etcdserverpb.KV'],
    ['a proxy that takes no such request', status.INVALID_ARGUMENT, 'bad request'],
    ['a proxy that has no backend', status.NOT_FOUND, 'no healthy upstream'],
    ['a member that ends calls', status.ABORTED, 'aborted'],
  ])('is replaced by another endpoint: %s', async (_what, code, message) => {
    const other = await member(well)
    const refusing = await member(({ method }) => (method === 'KV/Range' ? { status: code, message } : NOTHING))
    for (let times = 0; times < STORES; times++) {
      const store = open([refusing, other], { username: 'node', password: new Secret('open') })
      for (let call = 0; call < 2; call++) expect(await store.list(over.signal)).toMatchObject({ revision: 5n })
    }
    // Each store calls it once at most, and then stays with the other endpoint.
    expect(refusing.calls.filter((each) => each === 'KV/Range').length).toBeLessThanOrEqual(STORES)
    expect(refusing.calls).toContain('KV/Range')
  })

  it('is left by a watch too', async () => {
    const other = await member((call) => {
      if (call.method === 'Watch/Watch') call.send(Buffer.concat([WELL, field(3, 1)]))
      return call.method === 'Watch/Watch' ? undefined : well(call)
    })
    const refusal = { status: status.FAILED_PRECONDITION, message: 'etcdserver: rpc not supported for learner' }
    const refusing = await member(({ method }) => (method === 'Watch/Watch' ? refusal : NOTHING))
    for (let times = 0; times < STORES; times++) {
      const watch = open([refusing, other]).watch(5n, over.signal)[Symbol.asyncIterator]()
      expect((await watch.next()).value).toEqual({ revision: 5n, changes: [] })
    }
    expect(refusing.calls).toContain('Watch/Watch')
  })

  it('is not used if its status says that it is a learner', async () => {
    const [voter, learner] = [await member(well), await member(() => field(10, 1))]
    for (let times = 0; times < STORES; times++) await open([learner, voter]).list(over.signal)
    expect(new Set(learner.calls)).toEqual(new Set(['Maintenance/Status']))
  })

  it('is named as a learner if there is no other endpoint', async () => {
    const refusal = { status: status.FAILED_PRECONDITION, message: 'etcdserver: rpc not supported for learner' }
    const learner = await member(({ method }) => (method === 'KV/Range' ? refusal : field(10, 1)))
    const dead = { ...(await member(well)), endpoint: 'http://127.0.0.1:1' } as MockEtcd
    for (const members of [[learner], [learner, dead]])
      await expect(open(members).list(over.signal)).rejects.toMatchObject({
        code: 'STORE_UNAVAILABLE',
        remedy: expect.stringContaining('etcdctl member promote'),
      })
  })
})

describe('a field that the server omits', () => {
  /** Returns the batches of a watch until its revision is `until`; rejects with the error that ends the watch. */
  async function watched(store: Store, until: bigint): Promise<StoreBatch[]> {
    const { revision } = await store.list(over.signal)
    const batches: StoreBatch[] = []
    for await (const batch of store.watch(revision, over.signal)) {
      batches.push(batch)
      if (batch.revision >= until) break
    }
    return batches
  }
  /** A WatchResponse with an event that puts a key. */
  const put = (head: Buffer, revision: number): Buffer => {
    const pair = [
      field(1, Buffer.from('/x/subnets/10.5.1.0-24')),
      field(2, 1),
      field(3, revision),
      field(4, 1),
      field(5, Buffer.from('{}')),
    ]
    return Buffer.concat([head, field(11, field(2, Buffer.concat(pair)))])
  }

  it('does not look like another cluster, so the watch continues', async () => {
    const proxy = await member((call) => {
      if (call.method !== 'Watch/Watch') return well(call)
      // `etcd grpc-proxy` answers a watch that joins another one like this (watch_broadcast.go). Other headers follow.
      call.send(Buffer.concat([header({ revision: 6 }), field(3, 1)]))
      call.send(put(WELL, 7))
      call.send(header({})) // a progress notification without any value
      call.send(NOTHING) // a progress notification without a header
      call.send(put(header({ cluster: 1, revision: 8 }), 8))
      call.send(put(header({ revision: 9, term: 2 }), 9))
      return undefined
    })
    const revisions = (await watched(open([proxy]), 9n)).map(({ revision }) => revision)
    expect(revisions).toEqual([5n, 7n, 7n, 7n, 8n, 9n])
  })

  it.each([
    ['cluster', { cluster: 9, revision: 9, term: 2 }],
    ['term', { cluster: 1, revision: 9, term: 1 }],
  ])('does not hide that the %s is another one', async (_what, other) => {
    const proxy = await member((call) => {
      if (call.method !== 'Watch/Watch') return well(call)
      call.send(Buffer.concat([header({ revision: 6 }), field(3, 1)]))
      call.send(put(header(other), 9))
      return undefined
    })
    await expect(watched(open([proxy]), 9n)).rejects.toMatchObject({ code: 'GAP' })
  })

  it('does not make an answer without content an empty listing', async () => {
    const junk = await member(() => NOTHING)
    await expect(open([junk]).list(over.signal)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: expect.stringContaining('an answer had no revision'),
    })
  })
})

describe('a server that limits pings', () => {
  it('can end a connection without a failure of the watch or a call', async () => {
    let ended = 0
    const proxy = await member((call) => {
      // True for the first call and the first watch.
      const isFirst = proxy.calls.filter((each) => each === call.method).length === 1
      if (isFirst && ended < 2) {
        ended++
        endForPings(call.session)
        return undefined
      }
      if (call.method !== 'Watch/Watch') return well(call)
      call.send(Buffer.concat([WELL, field(3, 1)]))
      return undefined
    })
    const store = open([proxy])
    expect(await store.list(over.signal)).toMatchObject({ revision: 5n })
    for await (const batch of store.watch(5n, over.signal)) {
      expect(batch).toEqual({ revision: 5n, changes: [] })
      break
    }
    expect(ended).toBe(2)
  })

  it('can end a running watch, which weftd reopens at the same revision and pings less often', async () => {
    const errors = vi.spyOn(console, 'error').mockReturnValue()
    cleanups.push(() => errors.mockRestore())
    const proxy = await member((call) => {
      if (call.method !== 'Watch/Watch') return well(call)
      call.send(Buffer.concat([WELL, field(3, 1)]))
      return undefined
    })
    // The timers of gRPC are fake from here; sockets are real.
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
    cleanups.push(() => vi.useRealTimers())
    const store = open([proxy])
    const batches: StoreBatch[] = []
    const watching = (async () => {
      for await (const batch of store.watch(5n, over.signal)) batches.push(batch)
    })().catch((error: unknown) => {
      if (!over.signal.aborted) throw error
    })
    const until = async (check: () => boolean): Promise<void> => {
      while (!check()) await new Promise((resolve) => setImmediate(resolve))
    }
    await until(() => batches.length === 1)
    await vi.advanceTimersByTimeAsync(7_000)
    await until(() => proxy.pings === 1)
    for (const session of proxy.sessions) endForPings(session)
    await until(() => batches.length === 2)
    await vi.advanceTimersByTimeAsync(290_000)
    await store.list(over.signal) // an earlier ping would have arrived before this answer
    expect(proxy.pings).toBe(1)
    await vi.advanceTimersByTimeAsync(20_500) // less than the 2 s after which a ping without an answer ends the connection
    await until(() => proxy.pings === 2)
    expect(proxy.calls.filter((each) => each === 'Watch/Watch').length).toBe(2)
    expect(errors).not.toHaveBeenCalled()
    over.abort(new Error('seen'))
    vi.useRealTimers()
    await eventually(() => watching)
  })
})

describe('a message about etcd', () => {
  it.each([
    [
      '14 UNAVAILABLE: No connection established. Last error: Error: connect ECONNREFUSED 127.0.0.1:4001. Resolution note: ',
      'connect ECONNREFUSED 127.0.0.1:4001',
    ],
    ['14 UNAVAILABLE: No connection established. Last error: null. Resolution note: ', 'there is no connection'],
    [
      '14 UNAVAILABLE: Name resolution failed for target dns:nowhere.example:2379. Resolution note: Name resolution failed with error getaddrinfo ENOTFOUND nowhere.example',
      'no address is known for nowhere.example:2379: getaddrinfo ENOTFOUND nowhere.example',
    ],
    ['14 UNAVAILABLE: Connection dropped', 'the connection broke'],
    [
      '4 DEADLINE_EXCEEDED: Deadline exceeded after 6.001s,LB pick: 0.001s,remote_addr=127.0.0.1:2379',
      'no answer in time',
    ],
    [
      '8 RESOURCE_EXHAUSTED: Bandwidth exhausted or memory limit exceeded',
      'the server or a proxy closed the connection because of too many pings or requests',
    ],
    [
      '13 INTERNAL: Received RST_STREAM with code 2 (Internal server error)',
      'the other end aborted the call (HTTP/2 error 2)',
    ],
    [
      '13 INTERNAL: Received RST_STREAM with code 2 triggered by internal client error: read ECONNRESET',
      'read ECONNRESET',
    ],
    ['12 UNIMPLEMENTED: Received HTTP status code 404', 'an HTTP server that is not etcd answered with status 404'],
    ['2 UNKNOWN: etcdserver: mvcc: database closed', 'etcdserver: mvcc: database closed'],
    ['Error: read ECONNRESET (2026-11-26T10:00:00.000Z)', 'read ECONNRESET'],
  ])('does not use the words of gRPC: %s', (raw, plain) => {
    expect(plainly(raw)).toBe(plain)
  })

  it('reports the problem of each of several endpoints in plain words', async () => {
    const endpoints = ['http://127.0.0.1:1', 'http://127.0.0.1:2']
    const { message } = (await open([], { endpoints })
      .list(over.signal)
      .catch((error: Error) => error)) as Error
    expect(message).toMatch(
      /^etcd at http:\/\/127\.0\.0\.1:1, http:\/\/127\.0\.0\.1:2 cannot be reached: (connect ECONNREFUSED 127\.0\.0\.1:[12](; |$)){2}/,
    )
  })

  it('does not blame TLS if an etcd that has answered dies', async () => {
    const dying = await member((call) => {
      if (call.method !== 'Watch/Watch') return well(call)
      call.send(Buffer.concat([WELL, field(3, 1)]))
      return undefined
    })
    const store = open([dying])
    await store.list(over.signal)
    const asked = { endpoints: ['http://192.0.2.1:2379'], prefix: '/x', username: '' }
    for (const message of [
      '14 UNAVAILABLE: Connection dropped',
      'read ECONNRESET',
      '14 UNAVAILABLE: Failed to connect',
    ]) {
      expect(storeError(new Error(message), { ...asked, hasAnswered: true }).remedy).toBe(
        'check --etcd-endpoints, and that etcd runs',
      )
      expect(storeError(new Error(message), { ...asked, hasAnswered: false }).remedy).toMatch(/that etcd runs.*https/)
      const tls = { ...asked, endpoints: ['https://192.0.2.1:2379'], hasAnswered: true }
      expect(storeError(new Error(message), tls).remedy).toBe('check --etcd-endpoints, and that etcd runs')
    }
    const watch = store.watch(5n, over.signal)[Symbol.asyncIterator]()
    await watch.next()
    await dying.close()
    await expect(watch.next()).rejects.toMatchObject({ remedy: 'check --etcd-endpoints, and that etcd runs' })
  })

  it.each([
    ['http://192.0.2.1', '--etcd-endpoints has http://192.0.2.1, which has no port', 'say http://192.0.2.1:2379'],
    ['http://[fd00::1]/', '--etcd-endpoints has http://[fd00::1], which has no port', 'say http://[fd00::1]:2379'],
    ['192.0.2.1', '--etcd-endpoints has 192.0.2.1, which has no port', 'say 192.0.2.1:2379'],
    [
      '"http://192.0.2.1:2379"',
      '--etcd-endpoints has "http://192.0.2.1:2379", which is not a host and a port',
      'without quotes',
    ],
    ["'192.0.2.1:2379", "--etcd-endpoints has '192.0.2.1:2379, which is not a host and a port", 'without quotes'],
    ['http://fd00::1:2379', '--etcd-endpoints has http://fd00::1:2379, which is not a host and a port', 'in brackets'],
    [
      'http://192.0.2.1:2379/v2',
      '--etcd-endpoints has http://192.0.2.1:2379/v2, which is not a host and a port',
      'http://HOST:2379',
    ],
    ['http://192.0.2.1:', '--etcd-endpoints has http://192.0.2.1:, which is not a host and a port', 'http://HOST:2379'],
    ['http://192.0.2.1:0', '--etcd-endpoints has http://192.0.2.1:0, whose port does not exist', '1 to 65535'],
    ['http://192.0.2.1:65536', '--etcd-endpoints has http://192.0.2.1:65536, whose port does not exist', '1 to 65535'],
    [
      'http://me:sesame@192.0.2.1',
      '--etcd-endpoints has http://192.0.2.1, which is not a host and a port',
      'http://HOST:2379',
    ],
  ])('refuses an endpoint that can never be reached, %s', (endpoint, message, remedy) => {
    const files = { certFile: '', keyFile: '', caFile: '' }
    expect(() => hostsOf({ endpoints: [endpoint], ...files })).toThrow(
      expect.objectContaining({ code: 'USAGE', message, remedy: expect.stringContaining(remedy) }),
    )
  })

  it.each([
    ['https://etcd.example.com', 'etcd.example.com', true],
    ['http://etcd_1.local:2379/', 'etcd_1.local:2379', false],
    [' [fe80::1%eth0]:2379', '[fe80::1%eth0]:2379', false],
    ['unix:///run/etcd.sock', 'unix:///run/etcd.sock', false],
    ['HOST:65535', 'HOST:65535', false],
  ])('takes %s', (endpoint, host, isTls) => {
    const files = { certFile: '', keyFile: '', caFile: '' }
    expect(hostsOf({ endpoints: [endpoint], ...files })).toEqual(new Map([[host, isTls]]))
  })
})
