// kube-gate.ts - lets hosts of a lab reach an API server that serves this process's own loopback.
//
// A Unix socket joins network namespaces: a small program in the switch's listens where hosts reach it and hands on to the
// socket, and this process hands on to the server.

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

export interface KubeGate {
  /** A kubeconfig for hosts of the lab. */
  readonly kubeconfig: string
  /** Cuts every connection; while refusing, new ones end at once. */
  cut(): void
  refuse(refusing: boolean): void
  close(): Promise<void>
}

export async function openKubeGate(lab: Lab, api: KubeApi): Promise<KubeGate> {
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
  const gate: KubeGate = {
    kubeconfig,
    cut() {
      for (const socket of open) socket.destroy()
    },
    refuse(value) {
      refusing = value
    },
    async close() {
      gate.cut()
      outpost.kill()
      await ended(outpost)
      await new Promise((resolve) => server.close(resolve))
    },
  }
  return gate
}
