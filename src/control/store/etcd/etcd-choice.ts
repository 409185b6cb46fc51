// etcd-choice.ts - chooses the etcd endpoint for a call.
//
// The endpoint that answered last is used until it fails. Then the endpoints are checked a quarter of a second apart (as RFC 8305 does with
// addresses), and the first one that answers is used, so a dead endpoint costs only that pause. While a call waits for its answer, its
// endpoint is checked too, and abandoned only if it does not answer the check and another endpoint does. So a slow call is not abandoned,
// and a call may reach etcd twice.

import type * as grpc from '@grpc/grpc-js'
import { loadGrpc } from '../../../base/assets.ts'
import { messageOf } from '../../../base/errors.ts'
import { pause } from '../../../host/bell.ts'
import { certificateTimes, openEndpoints, type Endpoint, type EndpointOptions, type Hosts } from './etcd-endpoint.ts'
import { codeOf, EndpointError, isDecision, isTooManyPings, isUnknownToken, plainly } from './etcd-errors.ts'

const { Metadata, status } = loadGrpc()

/** The default timeout of a call. It is longer than a busy etcd takes; the keepalive notices a dead connection earlier. */
export const CALL_TIMEOUT_MS = 6_000
/** The pause between the checks of two endpoints. */
const STAGGER_MS = 250
/** How long a call waits for its answer before its endpoint is checked, and the timeout of that check. */
const SILENT_MS = 500

/**
 * The pauses after which a call is repeated that every endpoint refused, because a busy etcd refuses some calls. Each pause is lengthened
 * at random, at most to twice its length.
 */
const REFUSED_PAUSES_MS = [50, 100]
const BUSY: ReadonlySet<grpc.status | undefined> = new Set([status.UNAVAILABLE, status.RESOURCE_EXHAUSTED])

/** Runs a function with a signal that aborts if `signal` aborts or the function has ended. */
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

/** Returns a random order, so that the nodes of a network spread over the endpoints. */
function shuffled<T>(all: readonly T[]): T[] {
  return all
    .map((each) => ({ each, at: Math.random() }))
    .toSorted((a, b) => a.at - b.at)
    .map(({ each }) => each)
}

/** Returns the metadata of a call. etcd must end the call if its member has lost the cluster (etcd clientv3 WithRequireLeader). */
export function metadataWith(token?: string): grpc.Metadata {
  const metadata = new Metadata()
  metadata.set('hasleader', 'true')
  if (token !== undefined) metadata.set('token', token)
  return metadata
}

/** Resolves if the endpoint is a member of etcd that has a leader and serves clients. A learner does not serve clients. */
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
    // A member that refuses this request because it does not know the user is alive.
    if (!isDecision(error) && !isUnknownToken(error)) throw error
  }
  if ((answer as { isLearner?: boolean } | undefined)?.isLearner)
    throw new EndpointError(`${endpoint.address} is a learner`)
  return endpoint
}

/** Returns the first endpoint that passes the check. Rejects with the failures of all endpoints. */
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

/** Rejects if `endpoint` does not answer a check and one of `others` does. Never resolves. */
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

interface EndpointChoice {
  /** Runs `ask` at the endpoint that answered last, then at the others while it fails. Reconnects if certificate files have changed. */
  at<T>(signal: AbortSignal, ask: (endpoint: Endpoint, scope: AbortSignal) => Promise<T>): Promise<T>
  /** True if etcd has answered a call. */
  readonly hasAnswered: boolean
  close(): void
}

/** Creates the choice without connecting. `onClose` is called before connections are closed, to end the streams on them. */
export function createEndpointChoice(hosts: Hosts, options: EndpointOptions, onClose: () => void): EndpointChoice {
  let endpoints = openEndpoints(hosts, options)
  let certificates = certificateTimes(options)
  /** The endpoint that answered last. */
  let chosen: Endpoint | undefined
  let hasAnswered = false

  function closeConnections(): void {
    onClose()
    for (const endpoint of endpoints) endpoint.close()
  }

  /** Makes new connections if the certificate files have changed. Files that do not match each other are still being written. */
  function followCertificates(): void {
    const times = certificateTimes(options)
    if (times === certificates) return
    try {
      const next = openEndpoints(hosts, options)
      closeConnections()
      endpoints = next
      chosen = undefined
      certificates = times
    } catch {
      // The next call tries again. Until then the old connections are used.
    }
  }

  async function choose(tried: ReadonlySet<Endpoint>, signal: AbortSignal): Promise<Endpoint> {
    const [only, ...more] = endpoints
    if (only && more.length === 0) return only
    if (!chosen || tried.has(chosen))
      chosen = await firstAlive(shuffled(endpoints.filter((each) => !tried.has(each))), signal)
    return chosen
  }

  /** Runs `ask` at the endpoint that answered last, then at each other live endpoint while it fails. */
  async function once<T>(signal: AbortSignal, ask: (endpoint: Endpoint, scope: AbortSignal) => Promise<T>): Promise<T> {
    const tried = new Set<Endpoint>()
    let failure: unknown
    for (;;) {
      let endpoint
      try {
        endpoint = await choose(tried, signal)
      } catch (error) {
        signal.throwIfAborted()
        throw failure ?? error
      }
      const others = endpoints.filter((each) => each !== endpoint)
      try {
        const answer = await within(signal, (scope) =>
          Promise.race([ask(endpoint, scope), silence(endpoint, others, scope)]),
        )
        hasAnswered = true
        return answer
      } catch (error) {
        signal.throwIfAborted()
        if (isTooManyPings(error)) endpoint.pingLess()
        if (isDecision(error)) throw error
        if (chosen === endpoint) chosen = undefined
        tried.add(endpoint)
        failure = error
        if (endpoints.every((each) => tried.has(each))) throw error
      }
    }
  }

  async function at<T>(signal: AbortSignal, ask: (endpoint: Endpoint, scope: AbortSignal) => Promise<T>): Promise<T> {
    followCertificates()
    for (const pauseMs of REFUSED_PAUSES_MS) {
      try {
        return await once(signal, ask)
      } catch (error) {
        signal.throwIfAborted()
        if (isDecision(error) || !BUSY.has(codeOf(error))) throw error
      }
      await pause(signal, pauseMs * (1 + Math.random()))
    }
    return once(signal, ask)
  }

  return {
    at,
    get hasAnswered() {
      return hasAnswered
    },
    close: closeConnections,
  }
}
