// etcd.ts - a scratch etcd for tests and benchmarks: in a folder of its own, on loopback or inside a namespace.

import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { ended, output } from './command.ts'

export interface Etcd {
  readonly endpoint: string
  readonly process: ChildProcess
  /** With `tls`: the PEM file of its own certificate, which serves as the authority too. */
  readonly certificate: string
  /** Runs etcdctl against it and returns its stdout. */
  ctl(...args: string[]): Promise<string>
  /** Ends the server, by SIGKILL unless told otherwise; its data stay for `start`. */
  kill(signal?: NodeJS.Signals): Promise<void>
  /** Starts it again on the same data and ports. */
  start(): Promise<void>
  /** Ends it and removes its data. */
  close(): Promise<void>
}

/** A port that was free a moment ago. */
async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return port
}

export interface EtcdPlace {
  readonly namespace?: string
  readonly address?: string
  /** Clients must use TLS; etcd makes a certificate for itself. */
  readonly tls?: boolean
}

/** Starts an etcd; `namespace` and `address` put it there instead of on loopback. */
export async function startEtcd({ namespace, address = '127.0.0.1', tls = false }: EtcdPlace = {}): Promise<Etcd> {
  const data = mkdtempSync(join(tmpdir(), 'weft-etcd-'))
  const [client, peer] = namespace === undefined ? [await freePort(), await freePort()] : [2379, 2380]
  const endpoint = `http${tls ? 's' : ''}://${address}:${client}`
  const enter = namespace === undefined ? [] : ['ip', 'netns', 'exec', namespace]
  let child!: ChildProcess

  async function start(): Promise<void> {
    const command = [
      ...['--pdeathsig', 'KILL', ...enter, 'etcd', '--name', 'test', '--data-dir', data, '--unsafe-no-fsync'],
      ...['--listen-client-urls', endpoint, '--advertise-client-urls', endpoint],
      ...[
        '--listen-peer-urls',
        `http://${address}:${peer}`,
        '--initial-advertise-peer-urls',
        `http://${address}:${peer}`,
      ],
      ...['--initial-cluster', `test=http://${address}:${peer}`, '--logger', 'zap', '--log-outputs', 'stderr'],
      ...(tls ? ['--auto-tls'] : []),
    ]
    child = spawn('setpriv', command, {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { ...process.env, ETCD_UNSUPPORTED_ARCH: process.arch },
    })
    const lines: string[] = []
    await new Promise<void>((resolve, reject) => {
      createInterface({ input: child.stderr as Readable }).on('line', (line) => {
        lines.push(line)
        if (/serving (insecure )?client|serving client/.test(line)) resolve()
      })
      child.once('exit', () => reject(new Error(`etcd ended:\n${lines.slice(-5).join('\n')}`)))
    })
  }
  const etcd: Etcd = {
    endpoint,
    get process() {
      return child
    },
    ctl: (...args) =>
      output([
        ...enter,
        'env',
        'ETCDCTL_API=3',
        'etcdctl',
        '--endpoints',
        endpoint,
        ...(tls ? ['--insecure-transport=false', '--insecure-skip-tls-verify'] : []),
        ...args,
      ]),
    certificate: join(data, 'fixtures', 'client', 'cert.pem'),
    async kill(signal = 'SIGKILL') {
      child.kill(signal)
      await ended(child)
    },
    start,
    async close() {
      await etcd.kill()
      rmSync(data, { recursive: true, force: true })
    },
  }
  await start()
  return etcd
}
