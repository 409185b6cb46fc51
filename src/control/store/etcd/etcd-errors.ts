// etcd-errors.ts - handles failures of calls to etcd: decides whether weftd tries another endpoint, and explains the
// failure to an operator.

import type * as grpc from '@grpc/grpc-js'
import { loadGrpc } from '../../../base/assets.ts'
import { messageOf, WeftError } from '../../../base/errors.ts'

const { status } = loadGrpc()

/** A failure without a gRPC status, such as a watch that an endpoint did not confirm in time. */
export class EndpointError extends Error {}

/** Returns the gRPC status of a failed call; undefined if the error is not from gRPC. */
export const codeOf = (error: unknown): grpc.status | undefined => (error as Partial<grpc.ServiceError>).code

/**
 * The gRPC statuses with which etcd rejects the request itself (api/v3rpc/rpctypes/error.go). All members would reject
 * such a request, so weftd tries no other endpoint.
 */
const DECISIONS: ReadonlySet<grpc.status | undefined> = new Set([
  status.INVALID_ARGUMENT,
  status.NOT_FOUND,
  status.ALREADY_EXISTS,
  status.PERMISSION_DENIED,
  status.OUT_OF_RANGE,
])
/**
 * Matches the messages of rejections that every etcd member would give. Their gRPC statuses alone do not show this,
 * because a member uses the same statuses for its own faults, for example if it lags behind.
 */
const DECIDED = /authentication is not enabled|lease already exists|database space exceeded/

/**
 * Returns true if etcd rejected the request, or if the error is not from a call; in these cases weftd tries no other
 * endpoint. Returns false for a failure that another endpoint may not have. Only messages of etcd itself count as
 * rejections, because a proxy uses the same statuses for its own failures.
 */
export function isDecision(error: unknown): boolean {
  if (error instanceof EndpointError) return false
  const code = codeOf(error)
  if (typeof code !== 'number') return true
  const message = messageOf(error)
  return /etcdserver: /.test(message) && (DECISIONS.has(code) || DECIDED.test(message))
}

/** Returns true if an etcd member refused a call because of a missing or unknown token. So this member is alive. */
export const isUnknownToken = (error: unknown): boolean =>
  codeOf(error) === status.UNAUTHENTICATED && /etcdserver: /.test(messageOf(error))

/**
 * gRPC's message for a connection that the server closed with the HTTP/2 error ENHANCE_YOUR_CALM, as servers do after
 * too many pings.
 */
const TOO_MANY_PINGS = /Bandwidth exhausted or memory limit exceeded/
export const isTooManyPings = (error: unknown): boolean => TOO_MANY_PINGS.test(messageOf(error))

/**
 * Replacements for messages of @grpc/grpc-js (subchannel-call, resolving-call, resolver-dns). The first pattern that
 * matches is used.
 */
const PLAIN: readonly (readonly [RegExp, string])[] = [
  [/^Deadline exceeded.*/s, 'no answer in time'],
  [/^Connection dropped$/, 'the connection broke'],
  [/^Call cancelled$/, 'the other end cancelled the call'],
  [/^Failed to connect$/, 'the connection was closed before it could be used'],
  [TOO_MANY_PINGS, 'the server or a proxy closed the connection because of too many pings or requests'],
  [/^Protocol not secure enough$/, 'the server requires a more secure connection'],
  [/^No status information received$/, 'the answer was incomplete'],
  [/^(?:No connection established|null)$/, 'there is no connection'],
  [/^No addresses resolved$/, 'the name has no address'],
  [/^Received HTTP status code (\d+)$/, 'an HTTP server that is not etcd answered with status $1'],
  [/^Received RST_STREAM with code \d+.*internal client error: (.*)$/s, '$1'],
  [/^Received RST_STREAM with code (\d+).*/s, 'the other end aborted the call (HTTP/2 error $1)'],
  [/^Response message parsing error: .*/s, 'the answer does not come from etcd'],
  [/^(?:Write error:|Write failed with error|Failed to start HTTP\/2 stream with error) /, ''],
  [/^(?:Name resolution failed for target|Failed to parse DNS address) (?:dns:)?/, 'no address is known for '],
]

/**
 * Rewrites an error message of @grpc/grpc-js for an operator: removes the leading status, the words before a quoted
 * error, and a time in parentheses at the end. Keeps only the reason of a message about name resolution.
 */
export function plainly(message: string): string {
  const [, what = '', note = ''] = /^(.*?)\.? Resolution note: ?(.*)$/s.exec(message) ?? [undefined, message]
  let text = what
  for (let before = ''; before !== text;) {
    before = text
    text = text.replace(/^(?:\d+ [A-Z_]+: |No connection established\. Last error: |Error: )/, '')
  }
  text = text.replace(/ \(\d{4}-\d\d-\d\dT[\d:.]+Z\)$/, '')
  const plain = PLAIN.find(([pattern]) => pattern.test(text))
  if (plain) text = text.replace(plain[0], plain[1])
  const reason = note.replace(/^(?:Name resolution failed with error|Error:) /, '').replace(/\.$/, '')
  return reason === '' || text.includes(reason) ? text : `${text}: ${reason}`
}

/** Matches etcd's error for a wrong user or password (api/v3rpc/rpctypes/error.go). */
const REFUSED = /authentication failed/
const DENIED = /permission denied|user name is empty/
const LEARNER = /learner/

/**
 * Matches the errors of a TLS connection to a server without TLS, and of a connection without TLS to a server that
 * requires it.
 */
const NO_TLS_THERE =
  /before secure TLS connection|ECONNRESET|socket hang up|wrong version number|packet length too long/
const TLS_THERE = /closed before it could be used|connection broke|ECONNRESET|socket hang up/
/** Matches errors that a wrong TLS setting cannot cause: the server refused the connection, or could not be reached. */
const NOBODY_THERE = /ECONNREFUSED|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|EAI_AGAIN/

interface Asked {
  readonly endpoints: readonly string[]
  readonly prefix: string
  readonly username: string
  /**
   * True if etcd has answered a call of this client before, which proves that the scheme of the endpoints, http or
   * https, is right.
   */
  readonly hasAnswered: boolean
}

/**
 * Converts the failure of a call to etcd to a WeftError, whose message names the endpoints and never contains the
 * password.
 */
export function storeError(error: unknown, { endpoints, prefix, username, hasAnswered }: Asked): WeftError {
  const where = endpoints.join(', ')
  const message = plainly(messageOf(error))
  const isTls = endpoints.some((endpoint) => endpoint.trim().startsWith('https:'))
  const unavailable = (what: string, remedy: string): WeftError =>
    new WeftError('STORE_UNAVAILABLE', what, { remedy, cause: error })

  if (REFUSED.test(message)) {
    return new WeftError('STORE', `etcd at ${where} refused the user ${username}: ${message}`, {
      remedy: 'check --etcd-username and --etcd-password',
      cause: error,
    })
  }
  if (DENIED.test(message) || codeOf(error) === status.UNAUTHENTICATED) {
    return new WeftError('STORE', `etcd at ${where} denied access: ${message}`, {
      remedy: `give --etcd-username and --etcd-password of a user that may read and write below ${prefix}`,
      cause: error,
    })
  }
  if (LEARNER.test(message))
    return unavailable(
      `etcd at ${where} cannot be used: ${message}`,
      'a learner serves no clients: promote it (`etcdctl member promote`), or name a voting member in --etcd-endpoints',
    )
  const isNobody = NOBODY_THERE.test(message)
  if (isTls && !hasAnswered && !isNobody && NO_TLS_THERE.test(message))
    return unavailable(
      `no TLS connection to etcd at ${where}: ${message}`,
      'what answers there does not speak TLS, or ended the connection: if etcd is plain, say http in --etcd-endpoints',
    )
  // weftd repeats a call that failed with a certificate error, because certificates are renewed, and perhaps only one
  // etcd member has a wrong certificate.
  if (/certificate|SSL|TLS/i.test(message) && !NO_TLS_THERE.test(message))
    return unavailable(
      `no TLS connection to etcd at ${where}: ${message}`,
      'check --etcd-cafile, and that the endpoint is named in its certificate; --etcd-certfile and --etcd-keyfile if it asks for them',
    )
  if (!isTls && !hasAnswered && !isNobody && TLS_THERE.test(message))
    return unavailable(
      `etcd at ${where} cannot be reached: ${message}`,
      'what answers there ends plain connections: check that etcd runs; if it speaks TLS, say https in --etcd-endpoints, with --etcd-cafile',
    )
  return unavailable(`etcd at ${where} cannot be reached: ${message}`, 'check --etcd-endpoints, and that etcd runs')
}
