// etcd-client.ts - calls to etcd: authentication, watches, and errors for the operator.
//
// A call may reach etcd twice, because weftd sends it to a second endpoint if the first one falls silent
// (etcd-choice.ts). So callers must make writes conditional, and recognise their own earlier write.

import type { Duplex } from 'node:stream'
import type * as grpc from '@grpc/grpc-js'
import type * as etcd3 from 'etcd3'
import { loadEtcdRpc } from '../../../base/assets.ts'
import { messageOf, type WeftError } from '../../../base/errors.ts'
import type { Secret } from '../../../base/secret.ts'
import { CALL_TIMEOUT_MS, EndpointChoice, metadataWith, within } from './etcd-choice.ts'
import { hostsOf, type Endpoint, type EndpointOptions, type Hosts, type Service } from './etcd-endpoint.ts'
import { codeOf, EndpointError, isTooManyPings, storeError } from './etcd-errors.ts'

const { KVClient, LeaseClient } = loadEtcdRpc()

export interface EtcdOptions extends EndpointOptions {
  readonly prefix: string
  readonly username: string
  readonly password: Secret
  /** The lifetime of a key in ms, counted from the key's last write. */
  readonly ttlMs?: number
  /** The log for warnings about options that have no effect. */
  readonly log?: { warn(message: string): void }
}

export interface EtcdCalls {
  readonly kv: etcd3.KVClient
  readonly leaseClient: etcd3.LeaseClient
}

interface OpenWatch {
  readonly responses: AsyncIterator<etcd3.IWatchResponse>
  readonly created: etcd3.IWatchResponse
  /** Ends the watch. The caller must also call `end` after the watch ended by itself. */
  readonly end: () => void
  /**
   * Returns true if the error shows that the server closed the watch's connection because of too many keepalive pings.
   * weftd then pings that endpoint less often, so the caller can open the watch again.
   */
  readonly pingsLess: (error: unknown) => boolean
}

interface WatchMethod {
  watch(metadata: grpc.Metadata): Duplex & { cancel(): void }
}

/**
 * Warns about given options that have no effect, such as certificates for endpoints without TLS. flanneld's client
 * ignores these options silently.
 */
function warnOfUnused(hosts: Hosts, { certFile, keyFile, caFile, username, password, log }: EtcdOptions): void {
  if ((username === '') !== password.isEmpty)
    log?.warn('weftd ignores --etcd-username and --etcd-password, because only one of the two is given')
  if ((certFile === '') !== (keyFile === ''))
    log?.warn('a client certificate needs its key: --etcd-certfile and --etcd-keyfile are used together only')
  const plain = [...hosts].flatMap(([host, isTls]) => (isTls ? [] : [host]))
  if (plain.length > 0 && (caFile !== '' || certFile !== '' || keyFile !== ''))
    log?.warn(
      `etcd at ${plain.join(', ')} is contacted without TLS although certificates are given: write https to use TLS`,
    )
}

/**
 * Matches etcd's errors for a token that has expired, or that was issued before users or roles changed
 * (api/v3rpc/rpctypes/error.go).
 */
const TOKEN_ENDED = /invalid auth token|revision of auth store is old/
/**
 * The error for a watch that etcd denied. Some versions of etcd also deny a watch if the token has expired
 * (server/etcdserver/api/v3rpc/watch.go).
 */
class WatchDenied extends EndpointError {}

/** Returns a promise that never resolves, and that rejects with the signal's reason when the signal aborts. */
const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_resolve, reject) =>
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true }),
  )

export class EtcdClient {
  readonly #options: EtcdOptions
  /**
   * True if weftd has a user's name and password. Like etcd's client in Go (client/v3/client.go), weftd ignores a name
   * without a password, and a password without a name. etcd may then take the user from the client certificate.
   */
  readonly #hasUser: boolean

  /** Aborts when the client is closed; this ends a pending request for a token. */
  readonly #closing = new AbortController()
  /**
   * True while calls send the user's token to etcd. Becomes false if etcd reports that authentication is not enabled.
   */
  #asUser: boolean
  /** The user's token, or the pending request for it; undefined if the next call must request a token. */
  #token: Promise<string> | undefined
  /**
   * The streams of open watches. They must end before their connections are closed, because an open stream keeps the
   * process alive.
   */
  readonly #streams = new Set<{ cancel(): void }>()
  readonly #choice: EndpointChoice

  /** Creates the client without contacting etcd. Throws WeftError USAGE if a certificate file cannot be read. */
  constructor(options: EtcdOptions) {
    this.#options = options
    const hosts = hostsOf(options)
    warnOfUnused(hosts, options)
    this.#hasUser = options.username !== '' && !options.password.isEmpty
    this.#asUser = this.#hasUser
    this.#choice = new EndpointChoice(hosts, options, () => {
      for (const stream of this.#streams) stream.cancel()
    })
  }

  /**
   * Runs a call to etcd at one endpoint after another until an endpoint answers. `timeoutMs` limits the call at each
   * endpoint. A failure becomes a WeftError that names the endpoints and never contains the password. Rejects
   * immediately if `signal` aborts.
   */
  async call<T>(signal: AbortSignal, what: (etcd: EtcdCalls) => Promise<T>, timeoutMs = CALL_TIMEOUT_MS): Promise<T> {
    try {
      return await what(this.#callsOf(signal, timeoutMs))
    } catch (error) {
      signal.throwIfAborted()
      throw this.errorOf(error)
    }
  }

  /** Opens a watch and waits until etcd has confirmed it. Rejects if all endpoints fail. */
  async openWatch(request: etcd3.IWatchCreateRequest, signal: AbortSignal): Promise<OpenWatch> {
    // The watches that etcd has confirmed. etcd may confirm a watch just after weftd gave up the endpoint and tried
    // another one. The caller does not get such a watch, so `openWatch` must end it.
    const opened: OpenWatch[] = []
    let watch: OpenWatch | undefined
    try {
      watch = await this.#authenticated(signal, async (endpoint, metadata, scope) => {
        const one = await this.#watchAt(endpoint, metadata, request, { whole: signal, opening: scope })
        opened.push(one)
        return one
      })
      return watch
    } catch (error) {
      signal.throwIfAborted()
      throw this.errorOf(error)
    } finally {
      for (const one of opened) if (one !== watch) one.end()
    }
  }

  /** Converts the failure of a call or of a stream to a WeftError. */
  errorOf(error: unknown): WeftError {
    return storeError(error, { ...this.#options, hasAnswered: this.#choice.hasAnswered })
  }

  close(): void {
    this.#closing.abort(new Error('the client is closed'))
    this.#choice.close()
  }

  #userToken(): Promise<string> {
    if (this.#token) return this.#token
    const credentials = { name: this.#options.username, password: this.#options.password.reveal() }
    const asking = this.#choice.at(this.#closing.signal, async (endpoint, signal) => {
      const how = { metadata: metadataWith(), deadline: Date.now() + CALL_TIMEOUT_MS, signal }
      const answer = await endpoint.call('Auth', 'authenticate', credentials, how)
      return (answer as etcd3.IAuthenticateResponse).token
    })
    asking.catch(() => {
      if (this.#token === asking) this.#token = undefined
    })
    return (this.#token = asking)
  }

  /**
   * Handles a failure that may come from an expired token or from a change of etcd's users. Returns true if the caller
   * must send the failed call again.
   */
  #followUsers(error: unknown, wasUser: boolean, used: Promise<string> | undefined): boolean {
    const message = messageOf(error)
    if (wasUser && used && (TOKEN_ENDED.test(message) || error instanceof WatchDenied)) {
      if (this.#token === used) this.#token = undefined
      return true
    }
    const hasNone = wasUser && /authentication is not enabled/.test(message)
    const hasSome = !wasUser && this.#hasUser && /user name is empty/.test(message)
    if (!hasNone && !hasSome) return false
    if (this.#asUser !== wasUser) return true // another call has already noticed the change
    if (hasNone)
      this.#options.log?.warn('etcd has no users: --etcd-username and --etcd-password are not used until it has')
    this.#asUser = hasSome
    return true
  }

  /** Runs a call with the user's token. If the token has expired, requests a new token and runs the call again. */
  async #authenticated<T>(
    signal: AbortSignal,
    ask: (endpoint: Endpoint, metadata: grpc.Metadata, scope: AbortSignal) => Promise<T>,
  ): Promise<T> {
    for (let isAgain = false; ; isAgain = true) {
      const wasUser = this.#asUser
      let used: Promise<string> | undefined
      try {
        used = wasUser ? this.#userToken() : undefined
        const metadata = metadataWith(await within(signal, (scope) => Promise.race([used, aborted(scope)])))
        return await this.#choice.at(signal, (endpoint, scope) => ask(endpoint, metadata, scope))
      } catch (error) {
        signal.throwIfAborted()
        if (isAgain || !this.#followUsers(error, wasUser, used)) throw error
      }
    }
  }

  /** Returns clients of etcd's gRPC services whose calls try one endpoint after another until an endpoint answers. */
  #callsOf(signal: AbortSignal, timeoutMs: number): EtcdCalls {
    const exec = (service: Service, method: string, payload: unknown): Promise<unknown> =>
      this.#authenticated(signal, (endpoint, metadata, scope) =>
        endpoint.call(service, method, payload, { metadata, deadline: Date.now() + timeoutMs, signal: scope }),
      )
    const callable = {
      exec,
      withConnection: (service, open) =>
        this.#authenticated(signal, async (endpoint, metadata) =>
          open({ resource: endpoint, client: endpoint.client(service), metadata }),
        ),
      markFailed() {},
      callOptionsFactory: undefined,
    } as etcd3.ICallable<Endpoint>
    return { kv: new KVClient(callable), leaseClient: new LeaseClient(callable) }
  }

  /** Opens a watch at one endpoint and waits until etcd has confirmed it. */
  async #watchAt(
    endpoint: Endpoint,
    metadata: grpc.Metadata,
    request: etcd3.IWatchCreateRequest,
    signals: { readonly whole: AbortSignal; readonly opening: AbortSignal },
  ): Promise<OpenWatch> {
    const stream = (endpoint.client('Watch') as unknown as WatchMethod).watch(metadata)
    const cancel = (): void => stream.cancel()
    this.#streams.add(stream)
    signals.whole.addEventListener('abort', cancel, { once: true })
    signals.opening.addEventListener('abort', cancel, { once: true })
    const end = (): void => {
      signals.whole.removeEventListener('abort', cancel)
      stream.on('error', () => {}) // the cancellation is reported as an error
      stream.cancel()
      this.#streams.delete(stream)
    }
    // A frozen or unreachable etcd member may accept the connection and then send nothing, so waiting for the
    // confirmation has a time limit.
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
}

export async function nextOf(responses: AsyncIterator<etcd3.IWatchResponse>): Promise<etcd3.IWatchResponse> {
  const { done, value } = await responses.next()
  if (done) throw new EndpointError('the watch stream ended')
  return value
}
