// cutting-proxy.ts - a TCP proxy whose connections a test can cut and refuse; it counts the cuts.

import { connect, createServer, type Socket } from 'node:net'

export interface CuttingProxy {
  readonly port: number
  /** The number of connections that were cut. */
  readonly cuts: number
  /** Cuts all connections through the proxy. */
  cut(): void
  /** Refuses new connections, or accepts them again. */
  refuse(refusing: boolean): void
  close(): Promise<void>
}

/** Starts a proxy in front of the host and port of this URL. */
export async function startCuttingProxy(target: string): Promise<CuttingProxy> {
  const { hostname, port: targetPort } = new URL(target)
  const open = new Set<Socket>()
  let refusing = false
  let cuts = 0
  const server = createServer((inner) => {
    if (refusing) return void inner.destroy()
    const outer = connect(Number(targetPort), hostname)
    for (const [a, b] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      open.add(a)
      a.on('error', () => {})
      a.on('close', () => {
        open.delete(a)
        b.destroy()
      })
      a.pipe(b)
    }
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const proxy = {
    port: (server.address() as { port: number }).port,
    get cuts() {
      return cuts
    },
    cut() {
      cuts += open.size / 2
      for (const socket of open) socket.destroy()
    },
    refuse(value: boolean) {
      refusing = value
    },
    async close() {
      proxy.cut()
      await new Promise((resolve) => server.close(resolve))
    },
  }
  return proxy
}
