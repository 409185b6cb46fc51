// daemon-client.ts - fetches reports from this host's weftd over its status socket: status, readiness, events of peers,
// dropped packets.

import { request } from 'node:http'
import { messageOf, WeftError } from '../../base/errors.ts'
import { parseToShow } from '../../base/text.ts'
import { DROPS_SCHEMA, type DropsReport } from '../../report/drops.ts'
import type { EventsReport } from '../../report/peer-events.ts'
import { STATUS_SCHEMA, type Status } from '../../report/status.ts'

const TIMEOUT_MS = 5_000
const OTHER_VERSION = { remedy: 'restart weftd, or use the weft of the same package' }

/**
 * Fetches weftd's status. Throws WeftError PERMISSION if this user may not open the socket, and COMMAND if no weftd
 * answers or its report has another schema version.
 */
export const fetchStatus = (socket: string, signal: AbortSignal): Promise<Status> =>
  fetchReport<Status>(socket, '/status.json', STATUS_SCHEMA, signal)

/**
 * Fetches the packets that were dropped after the report whose member `next` equals `after`. Rejects with WeftError
 * PERMISSION or COMMAND, like fetchStatus.
 */
export const fetchDrops = (socket: string, after: DropsReport['next'], signal: AbortSignal): Promise<DropsReport> =>
  fetchReport<DropsReport>(socket, `/drops.json?after=${after.join(',')}`, DROPS_SCHEMA, signal)

/** Fetches the recorded events of peers. Rejects with WeftError PERMISSION or COMMAND, like fetchStatus. */
export const fetchEvents = (socket: string, signal: AbortSignal): Promise<EventsReport> =>
  fetchReport<EventsReport>(socket, '/events.json', 1 satisfies EventsReport['schema'], signal)

/**
 * Returns true if `/readyz` of weftd answers that containers can be started on this node. Rejects with WeftError
 * PERMISSION or COMMAND, like fetchStatus.
 */
export async function fetchReady(socket: string, signal: AbortSignal): Promise<boolean> {
  return (await answerAt(socket, '/readyz', signal, TIMEOUT_MS)).code === 200
}

/**
 * Fetches the report at the URL path `path`. Rejects with WeftError PERMISSION or COMMAND, like fetchStatus, or CONFIG
 * if weftd does not offer the report.
 */
export async function fetchReport<Answer extends { readonly schema: number }>(
  socket: string,
  path: string,
  schema: number,
  signal: AbortSignal,
  timeoutMs = TIMEOUT_MS,
): Promise<Answer> {
  const { code, text } = await answerAt(socket, path, signal, timeoutMs)
  if (code === 409)
    throw new WeftError('CONFIG', 'the nodes of this network do not report their state to each other', {
      remedy:
        'start weftd with --status-network 8287 on each node, and accept that TCP port from the network on each host',
    })
  if (code === 404) throw new WeftError('COMMAND', `the weftd at ${socket} is older than this weft`, OTHER_VERSION)
  if (code !== 200) throw noAnswer(socket, text.trim())
  const answer = parseToShow(text) as Answer
  if (answer.schema === schema) return answer
  throw new WeftError(
    'COMMAND',
    `the report of weftd has version ${answer.schema}, but this weft reads version ${schema}`,
    OTHER_VERSION,
  )
}

const noAnswer = (socket: string, why: string, cause?: unknown): WeftError =>
  new WeftError('COMMAND', `no weftd answers at ${socket}: ${why}`, {
    remedy: 'check that weftd runs (`systemctl status weftd`), or name its socket with --status-socket',
    cause,
  })

async function answerAt(socket: string, path: string, signal: AbortSignal, timeoutMs: number): Promise<Answered> {
  // With an empty path Node.js would send the request to TCP port 80 of this host, where another program may answer.
  if (socket === '') throw noAnswer("''", 'the path of the socket is empty')
  return get(socket, path, signal, timeoutMs).catch((error: unknown) => {
    signal.throwIfAborted()
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EACCES' || code === 'EPERM') {
      throw new WeftError('PERMISSION', `this user may not open ${socket}`, {
        remedy: 'run weft as root',
        cause: error,
      })
    }
    const why =
      code === 'ENOENT' ? 'the socket does not exist' : code === 'ECONNREFUSED' ? 'weftd was killed' : messageOf(error)
    throw noAnswer(socket, why, error)
  })
}

interface Answered {
  readonly code: number | undefined
  readonly text: string
}

function get(socketPath: string, path: string, signal: AbortSignal, timeoutMs: number): Promise<Answered> {
  return new Promise((resolve, reject) => {
    // Set the timeout on the request itself. Node.js 20 may collect an AbortSignal.timeout inside AbortSignal.any as
    // garbage, and then the timeout never fires.
    const sent = request({ socketPath, path, signal, timeout: timeoutMs }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.once('error', reject)
      response.once('end', () => resolve({ code: response.statusCode, text: Buffer.concat(parts).toString() }))
    })
    sent.once('timeout', () => sent.destroy(new Error(`it sent no answer for ${timeoutMs / 1000} s`)))
    sent.once('error', reject).end()
  })
}
