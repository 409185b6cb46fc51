// health.ts - what weftd tells a prober: flanneld's /healthz and /readyz, and /livez, which looks deeper.

import { createServer } from 'node:http'
import { messageOf, WeftError } from '../errors.ts'
import type { Log } from '../log.ts'
import { detailsOf, troubleOf, type Snapshot } from './snapshot.ts'

export interface Health {
  /** How the node is; undefined while there is none. */
  snapshot(): Snapshot | undefined
}

/** The health of a daemon that has only just started. */
export function createHealth(): Health {
  return { snapshot: () => undefined }
}

export interface Answer {
  readonly status: number
  readonly body: string
}

/** What is answered for a path; the first two word for word as flanneld's main.go. Any method will do, as there. */
export function answerProbe(path: string, health: Health): Answer {
  const node = health.snapshot()
  switch (path) {
    case '/healthz':
      return { status: 200, body: 'flanneld is running' }
    case '/readyz':
      return node?.isReady
        ? { status: 200, body: 'flanneld is ready' }
        : { status: 503, body: 'flanneld is not ready yet' }
    case '/livez': {
      const trouble = node ? troubleOf(node) : 'starting'
      const details = node ? detailsOf(node) : 'no lease yet'
      return { status: trouble === undefined ? 200 : 503, body: `${trouble ?? 'weftd is alive'}\n${details}\n` }
    }
    default:
      return { status: 404, body: '404 page not found\n' }
  }
}

export interface HealthServer {
  /** The port bound to, which the kernel chose when 0 was asked for. */
  readonly port: number
  /** Ends open connections too: a prober that keeps its own must not hold up the stop. */
  close(): Promise<void>
}

/** Answers probes at this address, which it says to `log`. Throws WeftError PORT_IN_USE, or ADDRESS for whatever else is in the way. */
export async function serveHealth(
  ip: string,
  port: number,
  health: Health,
  log: Pick<Log, 'info'>,
): Promise<HealthServer> {
  log.info(`Start healthz server on ${ip.includes(':') ? `[${ip}]` : ip}:${port}`)
  const server = createServer((request, response) => {
    const { status, body } = answerProbe((request.url ?? '').replace(/\?.*/s, ''), health)
    response.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8' }).end(body)
    request.resume()
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, ip === '' ? undefined : ip, () => {
      server.off('error', reject)
      resolve()
    })
  }).catch((error: unknown) => {
    const taken = (error as NodeJS.ErrnoException).code === 'EADDRINUSE'
    throw new WeftError(taken ? 'PORT_IN_USE' : 'ADDRESS', `Start healthz server error. ${messageOf(error)}`, {
      remedy: 'give a free address and port with --healthz-ip and --healthz-port',
      cause: error,
    })
  })
  const address = server.address()
  return {
    port: typeof address === 'object' && address ? address.port : port,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
