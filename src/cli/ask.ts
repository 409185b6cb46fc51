// ask.ts - asks the daemon of this host how it is.

import { request } from 'node:http'
import { messageOf, WeftError } from '../errors.ts'
import { STATUS_SCHEMA, type Status } from '../status/status.ts'

const PATIENCE_MS = 10_000

/** Throws WeftError: PERMISSION, or COMMAND when nobody answers, or speaks another version. */
export async function askStatus(socket: string, signal: AbortSignal): Promise<Status> {
  const text = await get(socket, signal).catch((error: unknown) => {
    signal.throwIfAborted()
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
  const status = JSON.parse(text) as Status
  if ((status.schema as number) === STATUS_SCHEMA) return status
  throw new WeftError(
    'COMMAND',
    `weftd speaks version ${status.schema} of the status, and this weft ${STATUS_SCHEMA}`,
    {
      remedy: 'restart weftd, or use the weft of its package',
    },
  )
}

function get(socketPath: string, signal: AbortSignal): Promise<string> {
  return new Promise((resolve, reject) => {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)])
    request({ socketPath, path: '/status.json', signal: limit }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.once('error', reject)
      response.once('end', () => {
        const text = Buffer.concat(parts).toString()
        if (response.statusCode === 200) resolve(text)
        else reject(new Error(text.trim()))
      })
    })
      .once('error', reject)
      .end()
  })
}
