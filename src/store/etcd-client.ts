// etcd-client.ts - calls to etcd: endpoints, certificates and users, deadlines, and what a failure means to an operator.
//
// By etcd3, but for its Watcher: on connecting it moves its resume revision past events that it has not delivered yet, and
// it stays silent or dead after a compaction. `openWatch` gives the raw stream.

import { AsyncLocalStorage } from 'node:async_hooks'
import { readFileSync, statSync } from 'node:fs'
import { createRequire } from 'node:module'
import type * as grpc from '@grpc/grpc-js'
import type * as etcd3 from 'etcd3'
import { messageOf, WeftError } from '../errors.ts'

// Not imported: Node 20 reads all of a CommonJS package for the names of its exports then, a seventh of weftd's start.
const require = createRequire(import.meta.url)
const { Channel, credentials: channelCredentials, InterceptingCall } = require('@grpc/grpc-js') as typeof grpc
const { Etcd3, EtcdAuthenticationFailedError, EtcdPermissionDeniedError, GRPCUnauthenticatedError } =
  require('etcd3') as typeof etcd3

export interface EtcdOptions {
  readonly endpoints: readonly string[]
  readonly prefix: string
  /** File names; empty when not given. A CA alone is enough for TLS. */
  readonly certFile: string
  readonly keyFile: string
  readonly caFile: string
  readonly username: string
  readonly password: string
  /** How long a key lives that is not written again, in ms. */
  readonly ttlMs?: number
  /** Hears what is passed over, as flanneld's client passes over it. */
  readonly log?: { warn(message: string): void }
}

/** Longer than what a busy etcd may take; a dead connection is noticed by the keepalive. */
const CALL_TIMEOUT_MS = 6_000
/**
 * A connection whose other end is gone without a word is noticed after these two. etcd closes connections that ping
 * more often than every 5 s (--grpc-keepalive-min-time).
 */
const KEEPALIVE_MS = 6_000
const KEEPALIVE_TIMEOUT_MS = 2_000

/** Makes a member that lost its cluster end the call instead of going quiet (etcd clientv3 WithRequireLeader). */
const requireLeader: grpc.Interceptor = (options, nextCall) =>
  new InterceptingCall(nextCall(options), {
    start(metadata, listener, next) {
      metadata.set('hasleader', 'true')
      next(metadata, listener)
    },
  })

function readCredential(flag: string, path: string): Buffer {
  try {
    return readFileSync(path)
  } catch (error) {
    throw new WeftError('USAGE', `cannot read ${path}: ${messageOf(error)}`, {
      remedy: `give --${flag} a readable PEM file`,
      cause: error,
    })
  }
}

function credentials({ certFile, keyFile, caFile }: EtcdOptions): NonNullable<etcd3.IOptions['credentials']> {
  const root = caFile === '' ? undefined : readCredential('etcd-cafile', caFile)
  return {
    // Undefined means the system's roots to grpc; etcd3's type does not say so.
    rootCertificate: root as Buffer,
    ...(certFile === '' || keyFile === ''
      ? {}
      : { privateKey: readCredential('etcd-keyfile', keyFile), certChain: readCredential('etcd-certfile', certFile) }),
  }
}

/** Changes when a certificate file does. */
function certificateTimes({ certFile, keyFile, caFile }: EtcdOptions): string {
  return [certFile, keyFile, caFile]
    .map((path) => (path === '' ? undefined : statSync(path, { throwIfNoEntry: false })))
    .map((info) => `${info?.mtimeMs} ${info?.ino}`)
    .join()
}

/** Hosts and ports, and whether TLS is spoken with each. */
type Hosts = ReadonlyMap<string, boolean>

/**
 * The scheme of an endpoint says whether TLS is spoken with it; without one it is if there are certificates, as with etcd's client
 * (client/v3/internal/endpoint/endpoint.go). A URL may have a slash at its end.
 */
function hostsOf({ endpoints, certFile, keyFile, caFile }: EtcdOptions): Hosts {
  const hasTls = caFile !== '' || (certFile !== '' && keyFile !== '')
  const hosts = new Map<string, boolean>()
  for (const endpoint of endpoints) {
    const [, scheme, host = ''] = /^(?:(https?):\/\/)?(.*?)\/*$/.exec(endpoint.trim()) ?? []
    if (host !== '') hosts.set(host, scheme === undefined ? hasTls : scheme === 'https')
  }
  if (hosts.size === 0) {
    throw new WeftError('USAGE', 'no etcd endpoint is given', {
      remedy: 'name one, such as --etcd-endpoints=http://127.0.0.1:2379',
    })
  }
  return hosts
}

/** What is given and not used is said, and no more: flanneld's client goes on as well. */
function sayPassedOver(hosts: Hosts, { certFile, keyFile, caFile, log }: EtcdOptions): void {
  if ((certFile === '') !== (keyFile === ''))
    log?.warn('a client certificate needs its key: --etcd-certfile and --etcd-keyfile are used together only')
  const plain = [...hosts].flatMap(([host, isTls]) => (isTls ? [] : [host]))
  if (plain.length > 0 && (caFile !== '' || certFile !== '' || keyFile !== ''))
    log?.warn(
      `etcd at ${plain.join(', ')} is asked without TLS, whatever certificates are given: say https to change that`,
    )
}

type HostPolicy = ReturnType<NonNullable<NonNullable<etcd3.IOptions['faultHandling']>['host']>>

/** The endpoints that have been tried for the watch that is being opened. */
const triedForWatch = new AsyncLocalStorage<Set<string>>()

/**
 * Instead of etcd3's circuit breaker, which answers for a dead host by itself for 5 s: its message hides the cause, and
 * whoever calls makes pauses already. etcd3 takes any host for a call, and another one when the host's policy refuses.
 */
function policyOf(host: string): HostPolicy {
  const execute = async (run: () => unknown): Promise<unknown> => {
    const tried = triedForWatch.getStore()
    if (tried?.has(host)) throw new Error(`${host} was tried before`)
    tried?.add(host)
    return run()
  }
  return { execute } as unknown as HostPolicy
}

export interface OpenWatch {
  readonly responses: AsyncIterator<etcd3.IWatchResponse>
  readonly created: etcd3.IWatchResponse
  /** Also when it has ended by itself. */
  readonly end: () => void
}

export interface EtcdClient {
  /**
   * Runs a call; its failure becomes a WeftError that names the endpoints and never the password. Rejects at once
   * when `signal` aborts: the tries that etcd3 makes by itself can take many seconds.
   */
  call<T>(signal: AbortSignal, what: (etcd: etcd3.Etcd3) => Promise<T>): Promise<T>
  /** A watch that etcd has answered. Rejects when none of the endpoints takes it. */
  openWatch(request: etcd3.IWatchCreateRequest, signal: AbortSignal): Promise<OpenWatch>
  /** The failure of a call, or of a stream, as a WeftError. */
  errorOf(error: unknown): WeftError
  close(): void
}

/**
 * What grpc-js takes for the proxy to etcd; for http too, and for loopback (its http_proxy.js), where Go's client goes straight.
 * Forgotten rather than switched off by grpc.enable_http_proxy: etcd3 asks for a user's token over a connection that no
 * option reaches, and nothing else in this process looks at them.
 */
const PROXY_VARIABLES = ['grpc_proxy', 'https_proxy', 'http_proxy']

/** Does not contact etcd. Throws WeftError USAGE for files that cannot be read. */
export function createEtcdClient(options: EtcdOptions): EtcdClient {
  for (const name of PROXY_VARIABLES) delete process.env[name]
  const hosts = hostsOf(options)
  sayPassedOver(hosts, options)
  /** Whether etcd is given the user: not while it has none. */
  let asUser = options.username !== ''
  /** The watches that are open, to be ended before their client: it would keep the process up for them. */
  const streams = new Set<{ cancel(): void }>()
  let client = connect(hosts, options, asUser)
  let certificates = certificateTimes(options)

  function close(): void {
    for (const stream of streams) stream.cancel()
    client.close()
  }

  /** The connection to use. Renewed certificates need a new one; files that do not fit each other are still being written. */
  function current(): etcd3.Etcd3 {
    const times = certificateTimes(options)
    if (times === certificates) return client
    try {
      const next = connect(hosts, options, asUser)
      close()
      client = next
      certificates = times
    } catch {
      // Tried again with the next call; until then the old ones may do.
    }
    return client
  }

  /** Whether to ask again, after a call as this user or as none, since etcd has begun or ceased to have users. */
  function followUsers(error: unknown, wasUser: boolean): boolean {
    const message = messageOf(error)
    const hasNone = wasUser && /authentication is not enabled/.test(message)
    const hasSome = !wasUser && options.username !== '' && /user name is empty/.test(message)
    if (!hasNone && !hasSome) return false
    if (asUser !== wasUser) return true // another call has found it out
    if (hasNone) options.log?.warn('etcd has no users: --etcd-username and --etcd-password are not used until it has')
    asUser = hasSome
    close()
    client = connect(hosts, options, asUser)
    return true
  }

  async function call<T>(signal: AbortSignal, what: (etcd: etcd3.Etcd3) => Promise<T>): Promise<T> {
    signal.throwIfAborted()
    let onAbort!: () => void
    const aborted = new Promise<never>((_resolve, reject) => {
      onAbort = () => reject(signal.reason as Error)
    })
    signal.addEventListener('abort', onAbort, { once: true })
    const ask = () => Promise.race([what(current()), aborted])
    const wasUser = asUser
    try {
      return await ask().catch((error: unknown) => {
        if (!followUsers(error, wasUser)) throw error
        return ask()
      })
    } catch (error) {
      signal.throwIfAborted()
      throw storeError(error, options)
    } finally {
      signal.removeEventListener('abort', onAbort)
    }
  }

  /** A watch by one endpoint that was not tried for it yet. */
  async function tryWatch(request: etcd3.IWatchCreateRequest, signal: AbortSignal): Promise<OpenWatch> {
    const stream = await call(signal, async (etcd) => {
      const opened = await etcd.watchClient.watch()
      if (signal.aborted) opened.cancel() // nobody waits for it any more
      return opened
    })
    streams.add(stream)
    const cancel = (): void => stream.cancel()
    signal.addEventListener('abort', cancel, { once: true })
    const end = (): void => {
      signal.removeEventListener('abort', cancel)
      stream.on('error', () => {}) // the cancellation itself
      stream.cancel()
      streams.delete(stream)
    }
    // A member that is frozen or unreachable may take the connection and say nothing.
    let silent = false
    const answering = setTimeout(() => {
      silent = true
      cancel()
    }, CALL_TIMEOUT_MS)
    try {
      stream.write({ create_request: request })
      const responses = (stream as unknown as AsyncIterable<etcd3.IWatchResponse>)[Symbol.asyncIterator]()
      return { responses, created: await nextOf(responses), end }
    } catch (error) {
      end()
      throw storeError(silent ? new Error(`no answer to a watch within ${CALL_TIMEOUT_MS / 1000} s`) : error, options)
    } finally {
      clearTimeout(answering)
    }
  }

  return {
    call,
    async openWatch(request, signal) {
      const tried = new Set<string>()
      for (;;) {
        const before = tried.size
        try {
          return await triedForWatch.run(tried, () => tryWatch(request, signal))
        } catch (error) {
          signal.throwIfAborted()
          // The second: it did not come to an endpoint, as when a user is refused.
          if (tried.size === hosts.size || tried.size === before) throw error
        }
      }
    },
    errorOf: (error) => storeError(error, options),
    close,
  }
}

function connect(hosts: Hosts, options: EtcdOptions, asUser: boolean): etcd3.Etcd3 {
  const tls = credentials(options) // also read where they are not used: a name that is mistyped is said
  const hasTls = [...hosts.values()].includes(true)
  return new Etcd3({
    hosts: [...hosts.keys()],
    ...(hasTls ? { credentials: tls } : {}),
    ...(asUser ? { auth: { username: options.username, password: options.password } } : {}),
    faultHandling: { host: policyOf },
    // A function, so that each try has a deadline of its own.
    defaultCallOptions: ({ isStream }) => (isStream ? {} : { deadline: Date.now() + CALL_TIMEOUT_MS }),
    grpcOptions: {
      'grpc.keepalive_time_ms': KEEPALIVE_MS,
      'grpc.keepalive_timeout_ms': KEEPALIVE_TIMEOUT_MS,
      'grpc.max_reconnect_backoff_ms': 2_000,
      'grpc.max_receive_message_length': -1, // a listing of 60,000 leases is larger than the default 4 MiB
      interceptors: [requireLeader],
      ...(hasTls ? { channelFactoryOverride: channelTo(hosts) } : {}),
    },
  })
}

/** etcd3 has one kind of credentials for all hosts. */
const channelTo =
  (hosts: Hosts): NonNullable<grpc.ClientOptions['channelFactoryOverride']> =>
  (host, tls, options) =>
    new Channel(host, hosts.get(host) === true ? tls : channelCredentials.createInsecure(), options)

export async function nextOf(responses: AsyncIterator<etcd3.IWatchResponse>): Promise<etcd3.IWatchResponse> {
  const { done, value } = await responses.next()
  if (done) throw new Error('the watch stream ended')
  return value
}

function storeError(error: unknown, options: EtcdOptions): WeftError {
  const where = options.endpoints.join(', ')
  if (error instanceof EtcdAuthenticationFailedError) {
    return new WeftError('STORE', `etcd at ${where} refused the user ${options.username}: ${messageOf(error)}`, {
      remedy: 'check --etcd-username and --etcd-password',
      cause: error,
    })
  }
  const message = messageOf(error)
  // The last is etcd's answer to a call without a user.
  if (
    error instanceof EtcdPermissionDeniedError ||
    error instanceof GRPCUnauthenticatedError ||
    /user name is empty/.test(message)
  ) {
    return new WeftError('STORE', `etcd at ${where} denied access: ${message}`, {
      remedy: `give --etcd-username and --etcd-password of a user that may read and write below ${options.prefix}`,
      cause: error,
    })
  }
  // Tried again like any failure: certificates are renewed, and one member of several may have a wrong one.
  if (/certificate|SSL|TLS/i.test(message)) {
    return new WeftError('STORE_UNAVAILABLE', `no TLS connection to etcd at ${where}: ${message}`, {
      remedy:
        'check --etcd-cafile, and that the endpoint is named in its certificate; --etcd-certfile and --etcd-keyfile if it asks for them',
      cause: error,
    })
  }
  return new WeftError('STORE_UNAVAILABLE', `etcd at ${where} cannot be reached: ${message}`, {
    remedy: 'check --etcd-endpoints, and that etcd runs',
    cause: error,
  })
}
