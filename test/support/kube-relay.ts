// kube-relay.ts - connects hosts of a lab to an API server that listens on this process's own loopback.
//
// A Unix socket crosses network namespaces. A small program in the switch's namespace listens for the hosts and forwards to the socket, and
// this process forwards from the socket to the server.

import { spawn } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { ended } from '../../lab/command.ts'
import type { Lab } from '../../lab/lab.ts'
import { kubeconfigText, WEFT_TOKEN, type KubeApi } from './kube-admin.ts'

const ADDRESS = '192.168.77.254'
const PORT = 6443

const OUTPOST = `
const { createServer, connect } = require('node:net')
const [, path] = process.argv
createServer((inner) => {
  const outer = connect(path)
  inner.on('error', () => outer.destroy()).on('close', () => outer.destroy()).pipe(outer)
  outer.on('error', () => inner.destroy()).on('close', () => inner.destroy()).pipe(inner)
}).listen(${PORT}, '${ADDRESS}', () => console.log('listens'))
`

export interface KubeRelay {
  /** A kubeconfig for hosts of the lab. */
  readonly kubeconfig: string
  /** Cuts every connection. While it refuses, new connections end immediately. */
  cut(): void
  refuse(refusing: boolean): void
  close(): Promise<void>
}

export async function openKubeRelay(lab: Lab, api: KubeApi): Promise<KubeRelay> {
  const path = join(lab.folder, 'kube.sock')
  const open = new Set<Socket>()
  let refusing = false
  const server = createServer((inner) => {
    if (refusing) return void inner.destroy()
    const { hostname, port } = new URL(api.url)
    const outer = connect(Number(port), hostname)
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
  await new Promise<void>((resolve) => server.listen(path, resolve))
  const enter = ['--pdeathsig', 'KILL', 'ip', 'netns', 'exec', `${lab.id}-switch`]
  const outpost = spawn('setpriv', [...enter, process.execPath, '-e', OUTPOST, path], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  await new Promise((resolve) => createInterface({ input: outpost.stdout }).once('line', resolve))
  const kubeconfig = join(lab.folder, 'kubeconfig')
  const place = `https://${ADDRESS}:${PORT}`
  writeFileSync(kubeconfig, kubeconfigText(place, api.caFile, WEFT_TOKEN, ', tls-server-name: kubernetes'))
  const relay: KubeRelay = {
    kubeconfig,
    cut() {
      for (const socket of open) socket.destroy()
    },
    refuse(value) {
      refusing = value
    },
    async close() {
      relay.cut()
      outpost.kill()
      await ended(outpost)
      await new Promise((resolve) => server.close(resolve))
    },
  }
  return relay
}
