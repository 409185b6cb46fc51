// ask.ts - asks the daemon of this host: how it is, and which packets it dropped.

import { request } from 'node:http'
import { isWeftError, messageOf, WeftError } from '../errors.ts'
import { DROPS_SCHEMA, type DropsReport } from '../status/drops.ts'
import { parseToShow } from '../text.ts'
import { STATUS_SCHEMA, type Status } from '../status/status.ts'

const PATIENCE_MS = 5_000
const OTHER_VERSION = { remedy: 'restart weftd, or use the weft of its package' }

/** Throws WeftError: PERMISSION, or COMMAND when nobody answers, or speaks another version. */
export const askStatus = (socket: string, signal: AbortSignal): Promise<Status> =>
  ask<Status>(socket, '/status.json', STATUS_SCHEMA, signal)

/** Only packets that are later than what was told with this `next`. As askStatus. */
export const askDrops = (socket: string, after: DropsReport['next'], signal: AbortSignal): Promise<DropsReport> =>
  ask<DropsReport>(socket, `/drops.json?after=${after.join(',')}`, DROPS_SCHEMA, signal)

async function ask<Answer extends { readonly schema: number }>(
  socket: string,
  path: string,
  schema: number,
  signal: AbortSignal,
): Promise<Answer> {
  const text = await get(socket, path, signal).catch((error: unknown) => {
    signal.throwIfAborted()
    if (isWeftError(error)) throw error
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EACCES' || code === 'EPERM') {
      throw new WeftError('PERMISSION', `${socket} may not be opened`, { remedy: 'run as root', cause: error })
    }
    const why =
      code === 'ENOENT' ? 'there is no such socket' : code === 'ECONNREFUSED' ? 'it was killed' : messageOf(error)
    throw new WeftError('COMMAND', `no weftd answers at ${socket}: ${why}`, {
      remedy: 'see whether weftd runs (`systemctl status weftd`), or name its socket with --status-socket',
      cause: error,
    })
  })
  const answer = parseToShow(text) as Answer
  if (answer.schema === schema) return answer
  throw new WeftError(
    'COMMAND',
    `weftd speaks version ${answer.schema} of its answers, and this weft ${schema}`,
    OTHER_VERSION,
  )
}

function get(socketPath: string, path: string, signal: AbortSignal): Promise<string> {
  return new Promise((resolve, reject) => {
    // Not by AbortSignal.timeout in AbortSignal.any, which Node.js 20 forgets once it collects garbage.
    const asking = request({ socketPath, path, signal, timeout: PATIENCE_MS }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.once('error', reject)
      response.once('end', () => {
        const text = Buffer.concat(parts).toString()
        if (response.statusCode === 200) resolve(text)
        else if (response.statusCode === 404)
          reject(new WeftError('COMMAND', `the weftd at ${socketPath} is older than this weft`, OTHER_VERSION))
        else reject(new Error(text.trim()))
      })
    })
    asking.once('timeout', () => asking.destroy(new Error(`it says nothing for ${PATIENCE_MS / 1000} s`)))
    asking.once('error', reject).end()
  })
}
