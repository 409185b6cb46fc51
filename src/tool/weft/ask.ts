// ask.ts - asks the daemon of this host: how it is, whether it is ready, what befell its peers, and which packets it dropped.

import { request } from 'node:http'
import { messageOf, WeftError } from '../../base/errors.ts'
import { parseToShow } from '../../base/text.ts'
import { DROPS_SCHEMA, type DropsReport } from '../../report/drops.ts'
import type { EventsReport } from '../../report/peer-events.ts'
import { STATUS_SCHEMA, type Status } from '../../report/status.ts'

const PATIENCE_MS = 5_000
const OTHER_VERSION = { remedy: 'restart weftd, or use the weft of the same package' }

/** Throws WeftError: PERMISSION, or COMMAND when nobody answers, or speaks another version. */
export const askStatus = (socket: string, signal: AbortSignal): Promise<Status> =>
  ask<Status>(socket, '/status.json', STATUS_SCHEMA, signal)

/** Asks for the packets that are later than what was told with this `next`. Rejects as askStatus does. */
export const askDrops = (socket: string, after: DropsReport['next'], signal: AbortSignal): Promise<DropsReport> =>
  ask<DropsReport>(socket, `/drops.json?after=${after.join(',')}`, DROPS_SCHEMA, signal)

/** Asks what befell the peers. Rejects as askStatus does. */
export const askEvents = (socket: string, signal: AbortSignal): Promise<EventsReport> =>
  ask<EventsReport>(socket, '/events.json', 1 satisfies EventsReport['schema'], signal)

/** True once containers can be started here, as `/readyz` tells it. Rejects as askStatus does. */
export async function askReady(socket: string, signal: AbortSignal): Promise<boolean> {
  return (await answerAt(socket, '/readyz', signal, PATIENCE_MS)).code === 200
}

/** Asks for what is told at a path under this version. Rejects as askStatus does, and with CONFIG for what is switched off. */
export async function ask<Answer extends { readonly schema: number }>(
  socket: string,
  path: string,
  schema: number,
  signal: AbortSignal,
  patienceMs = PATIENCE_MS,
): Promise<Answer> {
  const { code, text } = await answerAt(socket, path, signal, patienceMs)
  if (code === 409)
    throw new WeftError('CONFIG', 'the nodes of this network do not tell one another how they are', {
      remedy: 'give weftd --status-network 8287 on each node, and let that TCP port through between them',
    })
  if (code === 404) throw new WeftError('COMMAND', `the weftd at ${socket} is older than this weft`, OTHER_VERSION)
  if (code !== 200) throw noAnswer(socket, text.trim())
  const answer = parseToShow(text) as Answer
  if (answer.schema === schema) return answer
  throw new WeftError(
    'COMMAND',
    `weftd speaks version ${answer.schema} of the status, and this weft version ${schema}`,
    OTHER_VERSION,
  )
}

const noAnswer = (socket: string, why: string, cause?: unknown): WeftError =>
  new WeftError('COMMAND', `no weftd answers at ${socket}: ${why}`, {
    remedy: 'check that weftd runs (`systemctl status weftd`), or name its socket with --status-socket',
    cause,
  })

function answerAt(socket: string, path: string, signal: AbortSignal, patienceMs: number): Promise<Answered> {
  return get(socket, path, signal, patienceMs).catch((error: unknown) => {
    signal.throwIfAborted()
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EACCES' || code === 'EPERM') {
      throw new WeftError('PERMISSION', `${socket} may not be opened`, { remedy: 'run as root', cause: error })
    }
    const why =
      code === 'ENOENT' ? 'there is no such socket' : code === 'ECONNREFUSED' ? 'it was killed' : messageOf(error)
    throw noAnswer(socket, why, error)
  })
}

interface Answered {
  readonly code: number | undefined
  readonly text: string
}

function get(socketPath: string, path: string, signal: AbortSignal, patienceMs: number): Promise<Answered> {
  return new Promise((resolve, reject) => {
    // AbortSignal.timeout within AbortSignal.any is not used: Node.js 20 forgets it once it collects garbage.
    const asking = request({ socketPath, path, signal, timeout: patienceMs }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.once('error', reject)
      response.once('end', () => resolve({ code: response.statusCode, text: Buffer.concat(parts).toString() }))
    })
    asking.once('timeout', () => asking.destroy(new Error(`it says nothing for ${patienceMs / 1000} s`)))
    asking.once('error', reject).end()
  })
}
