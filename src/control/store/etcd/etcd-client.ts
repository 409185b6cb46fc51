// etcd-client.ts - calls to etcd: users and their tokens, watches, and what a failure means to an operator.
//
// A call may reach etcd twice (etcd-choice.ts). Whoever writes makes the write conditional, and tells its own.

import type { Duplex } from 'node:stream'
import type * as grpc from '@grpc/grpc-js'
import type * as etcd3 from 'etcd3'
import { loadEtcdRpc } from '../../../base/assets.ts'
import { messageOf, type WeftError } from '../../../base/errors.ts'
import type { Secret } from '../../../base/secret.ts'
import { CALL_TIMEOUT_MS, createEndpointChoice, metadataWith, within } from './etcd-choice.ts'
import { hostsOf, type Endpoint, type EndpointOptions, type Hosts, type Service } from './etcd-endpoint.ts'
import { codeOf, EndpointError, isTooManyPings, storeError } from './etcd-errors.ts'

const { KVClient, LeaseClient } = loadEtcdRpc()

export interface EtcdOptions extends EndpointOptions {
  readonly prefix: string
  readonly username: string
  readonly password: Secret
  /** A key that is not written again lives this long, in ms. */
  readonly ttlMs?: number
  /** Hears what is passed over, as flanneld's client passes over it. */
  readonly log?: { warn(message: string): void }
}

/** The generated clients of etcd3. */
export interface EtcdCalls {
  readonly kv: etcd3.KVClient
  readonly leaseClient: etcd3.LeaseClient
}

export interface OpenWatch {
  readonly responses: AsyncIterator<etcd3.IWatchResponse>
  readonly created: etcd3.IWatchResponse
  /** Called also when it has ended by itself. */
  readonly end: () => void
  /** True if the server ended the watch because of our pings. The endpoint gets fewer pings from then on, so the watch can be reopened. */
  readonly pingsLess: (error: unknown) => boolean
}

export interface EtcdClient {
  /**
   * Runs calls; each has `timeoutMs` at each endpoint that is tried. Their failure becomes a WeftError that names the endpoints
   * and never the password. Rejects at once when `signal` aborts.
   */
  call<T>(signal: AbortSignal, what: (etcd: EtcdCalls) => Promise<T>, timeoutMs?: number): Promise<T>
  /** A watch that etcd has answered. Rejects when none of the endpoints takes it. */
  openWatch(request: etcd3.IWatchCreateRequest, signal: AbortSignal): Promise<OpenWatch>
  /** The failure of a call, or of a stream, as a WeftError. */
  errorOf(error: unknown): WeftError
  close(): void
}

interface WatchMethod {
  watch(metadata: grpc.Metadata): Duplex & { cancel(): void }
}

/** Options that are given and not used are logged, and nothing more: flanneld's client goes on as well. */
function sayPassedOver(hosts: Hosts, { certFile, keyFile, caFile, log }: EtcdOptions): void {
  if ((certFile === '') !== (keyFile === ''))
    log?.warn('a client certificate needs its key: --etcd-certfile and --etcd-keyfile are used together only')
  const plain = [...hosts].flatMap(([host, isTls]) => (isTls ? [] : [host]))
  if (plain.length > 0 && (caFile !== '' || certFile !== '' || keyFile !== ''))
    log?.warn(
      `etcd at ${plain.join(', ')} is asked without TLS, whatever certificates are given: say https to change that`,
    )
}

/** A token that has run out, or was given before users or roles were changed (etcd api/v3rpc/rpctypes/error.go). */
const TOKEN_ENDED = /invalid auth token|revision of auth store is old/
/** Some versions of etcd refuse a watch in these words for an ended token too (server/etcdserver/api/v3rpc/watch.go). */
class WatchDenied extends EndpointError {}

/** Rejects when the signal aborts. */
const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_resolve, reject) =>
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true }),
  )

/** Does not contact etcd. Throws WeftError USAGE for files that cannot be read. */
export function createEtcdClient(options: EtcdOptions): EtcdClient {
  const hosts = hostsOf(options)
  sayPassedOver(hosts, options)
  const closing = new AbortController()
  /** True while etcd is given the user; false while etcd has no users. */
  let asUser = options.username !== ''
  let token: Promise<string> | undefined
  /** The watches that are open, to be ended before their connections: they would keep the process up. */
  const streams = new Set<{ cancel(): void }>()
  const choice = createEndpointChoice(hosts, options, () => {
    for (const stream of streams) stream.cancel()
  })

  const failure = (error: unknown): WeftError => storeError(error, { ...options, hasAnswered: choice.hasAnswered })

  function userToken(): Promise<string> {
    if (token) return token
    const credentials = { name: options.username, password: options.password.reveal() }
    const asking = choice.at(closing.signal, async (endpoint, signal) => {
      const how = { metadata: metadataWith(), deadline: Date.now() + CALL_TIMEOUT_MS, signal }
      const answer = await endpoint.call('Auth', 'authenticate', credentials, how)
      return (answer as etcd3.IAuthenticateResponse).token
    })
    asking.catch(() => {
      if (token === asking) token = undefined
    })
    return (token = asking)
  }

  /** True when a failed call is to be sent again, as this user, by this token, or as none: etcd's users have changed. */
  function followUsers(error: unknown, wasUser: boolean, used: Promise<string> | undefined): boolean {
    const message = messageOf(error)
    if (wasUser && used && (TOKEN_ENDED.test(message) || error instanceof WatchDenied)) {
      if (token === used) token = undefined
      return true
    }
    const hasNone = wasUser && /authentication is not enabled/.test(message)
    const hasSome = !wasUser && options.username !== '' && /user name is empty/.test(message)
    if (!hasNone && !hasSome) return false
    if (asUser !== wasUser) return true // another call has found it out
    if (hasNone) options.log?.warn('etcd has no users: --etcd-username and --etcd-password are not used until it has')
    asUser = hasSome
    return true
  }

  /** Asks with the user's token, which is asked for when it has ended. */
  async function asked<T>(
    signal: AbortSignal,
    ask: (endpoint: Endpoint, metadata: grpc.Metadata, scope: AbortSignal) => Promise<T>,
  ): Promise<T> {
    for (let isAgain = false; ; isAgain = true) {
      const wasUser = asUser
      let used: Promise<string> | undefined
      try {
        used = wasUser ? userToken() : undefined
        const metadata = metadataWith(await within(signal, (scope) => Promise.race([used, aborted(scope)])))
        return await choice.at(signal, (endpoint, scope) => ask(endpoint, metadata, scope))
      } catch (error) {
        signal.throwIfAborted()
        if (isAgain || !followUsers(error, wasUser, used)) throw error
      }
    }
  }

  const callsOf = (signal: AbortSignal, timeoutMs: number): EtcdCalls => {
    const exec = (service: Service, method: string, payload: unknown): Promise<unknown> =>
      asked(signal, (endpoint, metadata, scope) =>
        endpoint.call(service, method, payload, { metadata, deadline: Date.now() + timeoutMs, signal: scope }),
      )
    const callable = {
      exec,
      withConnection: (service, open) =>
        asked(signal, async (endpoint, metadata) =>
          open({ resource: endpoint, client: endpoint.client(service), metadata }),
        ),
      markFailed() {},
      callOptionsFactory: undefined,
    } as etcd3.ICallable<Endpoint>
    return { kv: new KVClient(callable), leaseClient: new LeaseClient(callable) }
  }

  /** A watch at one endpoint, once it has answered. */
  async function watchAt(
    endpoint: Endpoint,
    metadata: grpc.Metadata,
    request: etcd3.IWatchCreateRequest,
    signals: { readonly whole: AbortSignal; readonly opening: AbortSignal },
  ): Promise<OpenWatch> {
    const stream = (endpoint.client('Watch') as unknown as WatchMethod).watch(metadata)
    const cancel = (): void => stream.cancel()
    streams.add(stream)
    signals.whole.addEventListener('abort', cancel, { once: true })
    signals.opening.addEventListener('abort', cancel, { once: true })
    const end = (): void => {
      signals.whole.removeEventListener('abort', cancel)
      stream.on('error', () => {}) // the cancellation itself
      stream.cancel()
      streams.delete(stream)
    }
    // A member that is frozen or unreachable may take the connection and say nothing.
    let isSilent = false
    const answering = setTimeout(() => {
      isSilent = true
      cancel()
    }, CALL_TIMEOUT_MS)
    try {
      stream.write({ create_request: request })
      const responses = (stream as AsyncIterable<etcd3.IWatchResponse>)[Symbol.asyncIterator]()
      const created = await nextOf(responses)
      const { cancel_reason: reason = '' } = created as { cancel_reason?: string }
      if (created.canceled && /permission denied/.test(reason)) throw new WatchDenied(reason)
      if (created.canceled && TOKEN_ENDED.test(reason)) throw new EndpointError(reason)
      const wasPingedSeldom = endpoint.isPingedSeldom
      const pingsLess = (error: unknown): boolean => {
        if (isTooManyPings(error)) endpoint.pingLess()
        return !wasPingedSeldom && endpoint.isPingedSeldom && typeof codeOf(error) === 'number'
      }
      return { responses, created, end, pingsLess }
    } catch (error) {
      end()
      throw isSilent ? new EndpointError(`no answer to a watch within ${CALL_TIMEOUT_MS / 1000} s`) : error
    } finally {
      clearTimeout(answering)
      signals.opening.removeEventListener('abort', cancel)
    }
  }

  return {
    async call(signal, what, timeoutMs = CALL_TIMEOUT_MS) {
      try {
        return await what(callsOf(signal, timeoutMs))
      } catch (error) {
        signal.throwIfAborted()
        throw failure(error)
      }
    },
    async openWatch(request, signal) {
      // A watch whose endpoint was left in the very moment in which it answered is nobody's.
      const opened: OpenWatch[] = []
      let watch: OpenWatch | undefined
      try {
        watch = await asked(signal, async (endpoint, metadata, scope) => {
          const one = await watchAt(endpoint, metadata, request, { whole: signal, opening: scope })
          opened.push(one)
          return one
        })
        return watch
      } catch (error) {
        signal.throwIfAborted()
        throw failure(error)
      } finally {
        for (const one of opened) if (one !== watch) one.end()
      }
    },
    errorOf: failure,
    close() {
      closing.abort(new Error('the client is closed'))
      choice.close()
    },
  }
}

export async function nextOf(responses: AsyncIterator<etcd3.IWatchResponse>): Promise<etcd3.IWatchResponse> {
  const { done, value } = await responses.next()
  if (done) throw new EndpointError('the watch stream ended')
  return value
}
