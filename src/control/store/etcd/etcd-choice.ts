// etcd-choice.ts - chooses the etcd endpoint for a call.
//
// weftd uses the endpoint that answered last until that endpoint fails. Then weftd checks all endpoints, starting a new
// check every quarter of a second (as RFC 8305 does with addresses), and uses the first endpoint that answers, so that
// a dead endpoint costs only a quarter of a second. While a call waits for its answer, weftd checks the call's endpoint
// too. It sends the call to another endpoint only if the first endpoint does not answer the check and the other
// endpoint does. So a slow call is not abandoned. But a call may reach etcd twice.

import type * as grpc from '@grpc/grpc-js'
import { loadGrpc } from '../../../base/assets.ts'
import { messageOf } from '../../../base/errors.ts'
import { pause } from '../../../host/bell.ts'
import { certificateTimes, openEndpoints, type Endpoint, type EndpointOptions, type Hosts } from './etcd-endpoint.ts'
import { codeOf, EndpointError, isDecision, isTooManyPings, isUnknownToken, plainly } from './etcd-errors.ts'

const { Metadata, status } = loadGrpc()

/**
 * How long a call to etcd may take by default, in ms. A busy etcd answers in less time, and keepalive pings detect a
 * dead connection earlier.
 */
export const CALL_TIMEOUT_MS = 6_000
/**
 * The pause in ms between the checks of two endpoints; weftd starts the next check only if no earlier check was
 * answered.
 */
const STAGGER_MS = 250
/**
 * After SILENT_MS milliseconds without an answer to a call, weftd checks the endpoint of the call. SILENT_MS is also
 * the time limit of this check.
 */
const SILENT_MS = 500

/**
 * The pauses in ms before weftd repeats a call that every endpoint refused, as a busy etcd may do. Each pause is
 * lengthened at random, at most to twice its length.
 */
const REFUSED_PAUSES_MS = [50, 100]
const BUSY: ReadonlySet<grpc.status | undefined> = new Set([status.UNAVAILABLE, status.RESOURCE_EXHAUSTED])

export async function within<T>(signal: AbortSignal, run: (scope: AbortSignal) => Promise<T>): Promise<T> {
  signal.throwIfAborted()
  const scope = new AbortController()
  const onAbort = (): void => scope.abort(signal.reason)
  signal.addEventListener('abort', onAbort, { once: true })
  try {
    return await run(scope.signal)
  } finally {
    signal.removeEventListener('abort', onAbort)
    scope.abort(new Error('over'))
  }
}

/** Returns the items in random order, so that the nodes of a network spread over the endpoints of etcd. */
function shuffled<T>(all: readonly T[]): T[] {
  return all
    .map((each) => ({ each, at: Math.random() }))
    .toSorted((a, b) => a.at - b.at)
    .map(({ each }) => each)
}

/**
 * Returns the gRPC metadata of a call: the user's token, and the field that makes etcd end the call if its member has
 * no leader (clientv3 WithRequireLeader).
 */
export function metadataWith(token?: string): grpc.Metadata {
  const metadata = new Metadata()
  metadata.set('hasleader', 'true')
  if (token !== undefined) metadata.set('token', token)
  return metadata
}

/**
 * Resolves if the endpoint's etcd member has a leader and serves clients. Rejects otherwise; a member that is a learner
 * does not serve clients.
 */
async function checkAlive(endpoint: Endpoint, signal: AbortSignal): Promise<Endpoint> {
  let answer
  try {
    answer = await endpoint.call(
      'Maintenance',
      'status',
      {},
      { metadata: metadataWith(), deadline: Date.now() + CALL_TIMEOUT_MS, signal },
    )
  } catch (error) {
    // An etcd member that refuses the check because the user is not authenticated also counts as alive.
    if (!isDecision(error) && !isUnknownToken(error)) throw error
  }
  if ((answer as { isLearner?: boolean } | undefined)?.isLearner)
    throw new EndpointError(`${endpoint.address} is a learner`)
  return endpoint
}

async function firstAlive(endpoints: readonly Endpoint[], signal: AbortSignal): Promise<Endpoint> {
  const from = async ([endpoint, ...rest]: readonly Endpoint[], scope: AbortSignal): Promise<Endpoint> => {
    if (!endpoint) throw new EndpointError('no endpoint is left')
    const answer = checkAlive(endpoint, scope)
    if (rest.length === 0) return answer
    const first = await Promise.race([
      answer.catch(() => undefined),
      pause(scope, STAGGER_MS).catch(() => undefined), // aborted if another endpoint has answered
    ])
    return first ?? Promise.any([answer, from(rest, scope)])
  }
  try {
    return await within(signal, (scope) => from(endpoints, scope))
  } catch (error) {
    signal.throwIfAborted()
    const all = (each: unknown): unknown[] => (each instanceof AggregateError ? each.errors.flatMap(all) : [each])
    const failures = all(error)
    const isSilent = failures.every((each) => codeOf(each) === status.DEADLINE_EXCEEDED)
    const code = isSilent ? status.DEADLINE_EXCEEDED : status.UNAVAILABLE
    throw Object.assign(new Error([...new Set(failures.map((each) => plainly(messageOf(each))))].join('; ')), { code })
  }
}

/**
 * Rejects if `endpoint` does not answer a check and one of `others` does, so that the caller can repeat its call at
 * another endpoint. Otherwise never settles.
 */
async function silence(endpoint: Endpoint, others: readonly Endpoint[], scope: AbortSignal): Promise<never> {
  const forever = new Promise<never>(() => {})
  if (others.length === 0) return forever
  try {
    for (;;) {
      await pause(scope, SILENT_MS)
      const own = checkAlive(endpoint, scope)
      const other = firstAlive(shuffled(others), scope)
      other.catch(() => {})
      if (await Promise.race([own.catch(() => undefined), pause(scope, SILENT_MS)])) continue
      await other
      break
    }
  } catch {
    return forever // the call was answered, or no other endpoint is alive
  }
  throw new EndpointError(`no answer from ${endpoint.address}`)
}

/** Chooses the endpoint for each call, and holds the connections to the endpoints. */
export class EndpointChoice {
  readonly #hosts: Hosts
  readonly #options: EndpointOptions
  /** Called before this object closes connections, so that the caller can end its streams on these connections. */
  readonly #onClose: () => void
  /** One entry for each endpoint of `hosts`. */
  #endpoints: Endpoint[]
  /** The modification times that the certificate files had when the current connections were created. */
  #certificates: string
  /** The endpoint that answered last; undefined before the first answer. */
  #chosen: Endpoint | undefined
  /** True after an endpoint has answered a call. */
  #hasAnswered = false

  /**
   * Creates the object without connecting to an endpoint. `onClose` is called before connections are closed, so that
   * the caller can end the streams on these connections.
   */
  constructor(hosts: Hosts, options: EndpointOptions, onClose: () => void) {
    this.#hosts = hosts
    this.#options = options
    this.#onClose = onClose
    this.#endpoints = openEndpoints(hosts, options)
    this.#certificates = certificateTimes(options)
  }

  /**
   * Runs `ask` at the endpoint that answered last. If that endpoint fails, runs `ask` at the other endpoints in turn.
   * If the certificate files have changed, makes new connections first.
   */
  async at<T>(signal: AbortSignal, ask: (endpoint: Endpoint, scope: AbortSignal) => Promise<T>): Promise<T> {
    this.#followCertificates()
    for (const pauseMs of REFUSED_PAUSES_MS) {
      try {
        return await this.#once(signal, ask)
      } catch (error) {
        signal.throwIfAborted()
        if (isDecision(error) || !BUSY.has(codeOf(error))) throw error
      }
      await pause(signal, pauseMs * (1 + Math.random()))
    }
    return this.#once(signal, ask)
  }

  /** True if any endpoint has answered a call of this process. */
  get hasAnswered(): boolean {
    return this.#hasAnswered
  }

  close(): void {
    this.#onClose()
    for (const endpoint of this.#endpoints) endpoint.close()
  }

  /**
   * Makes new connections if the certificate files have changed. If certificate and key do not match, another program
   * is still writing the files, so weftd keeps the old connections for now.
   */
  #followCertificates(): void {
    const times = certificateTimes(this.#options)
    if (times === this.#certificates) return
    try {
      const next = openEndpoints(this.#hosts, this.#options)
      this.close()
      this.#endpoints = next
      this.#chosen = undefined
      this.#certificates = times
    } catch {
      // The certificates cannot be read now: the old connections stay in use. The next call reads the files again.
    }
  }

  /**
   * Returns the endpoint that answered last. If `tried` contains that endpoint, returns a live endpoint that is not in
   * `tried`.
   */
  async #choose(tried: ReadonlySet<Endpoint>, signal: AbortSignal): Promise<Endpoint> {
    const [only, ...more] = this.#endpoints
    if (only && more.length === 0) return only
    if (!this.#chosen || tried.has(this.#chosen))
      this.#chosen = await firstAlive(shuffled(this.#endpoints.filter((each) => !tried.has(each))), signal)
    return this.#chosen
  }

  /**
   * Runs `ask` at the endpoint that answered last. If that endpoint fails, runs `ask` once at each other live endpoint
   * until one answers.
   */
  async #once<T>(signal: AbortSignal, ask: (endpoint: Endpoint, scope: AbortSignal) => Promise<T>): Promise<T> {
    const tried = new Set<Endpoint>()
    let failure: unknown
    for (;;) {
      let endpoint
      try {
        endpoint = await this.#choose(tried, signal)
      } catch (error) {
        signal.throwIfAborted()
        throw failure ?? error
      }
      const others = this.#endpoints.filter((each) => each !== endpoint)
      try {
        const answer = await within(signal, (scope) =>
          Promise.race([ask(endpoint, scope), silence(endpoint, others, scope)]),
        )
        this.#hasAnswered = true
        return answer
      } catch (error) {
        signal.throwIfAborted()
        if (isTooManyPings(error)) endpoint.pingLess()
        if (isDecision(error)) throw error
        if (this.#chosen === endpoint) this.#chosen = undefined
        tried.add(endpoint)
        failure = error
        if (this.#endpoints.every((each) => tried.has(each))) throw error
      }
    }
  }
}
