// admin.ts - acts as the administrator and the kubelets of a simulated cluster, for the benchmark `kube`. The API server
// can be reached only from the network namespace in which this program runs.
//
// `admin.js URL FOLDER` reads commands from stdin, one per line, and answers each command with one line:
// - `fill N` creates N nodes, and answers with the size in bytes of the JSON of one node as the API server sends it.
// - `metrics` answers with the ServerState of the API server as JSON.
// - `heartbeats N SECONDS` writes the conditions of N nodes again, evenly in this time, and answers with the seconds
//   that this took.

import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:https'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { nodeName, nodeObject, readServerState } from './cluster-model.ts'

const [, , server = '', folder = ''] = process.argv
const CONNECTIONS = 16
const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS })
const ca = readFileSync(join(folder, 'ca.crt'))
const authorization = `Bearer ${readFileSync(join(folder, 'admin-token'), 'utf8')}`

function call(method: string, path: string, body?: object, type = 'application/json'): Promise<string> {
  return new Promise((resolve, reject) => {
    request(`${server}${path}`, { method, ca, agent, headers: { authorization, 'content-type': type } })
      .on('response', (response) => {
        const parts: string[] = []
        response
          .setEncoding('utf8')
          .on('data', (part: string) => void parts.push(part))
          .on('end', () => {
            const [text, { statusCode = 0 }] = [parts.join(''), response]
            if (statusCode < 300) resolve(text)
            else reject(new Error(`${method} ${path}: ${statusCode} ${text}`))
          })
          .on('error', reject)
      })
      .on('error', reject)
      .end(body === undefined ? undefined : JSON.stringify(body))
  })
}

async function fill(count: number): Promise<number> {
  let next = 0
  const create = async (): Promise<void> => {
    while (next < count) await call('POST', '/api/v1/nodes', nodeObject(next++))
  }
  await Promise.all(Array.from({ length: CONNECTIONS }, create))
  return Buffer.byteLength(await call('GET', `/api/v1/nodes/${nodeName(0)}`))
}

async function heartbeats(count: number, seconds: number): Promise<number> {
  const began = performance.now()
  for (let index = 0; index < count; index++) {
    await delay(began + (index * seconds * 1000) / count - performance.now())
    const lastHeartbeatTime = new Date().toISOString().replace(/\.\d+Z$/, 'Z')
    const conditions = [{ type: 'Ready', status: 'True', reason: 'KubeletReady', lastHeartbeatTime }]
    const path = `/api/v1/nodes/${nodeName(index)}/status`
    await call('PATCH', path, { status: { conditions } }, 'application/strategic-merge-patch+json')
  }
  await delay(began + seconds * 1000 - performance.now())
  return (performance.now() - began) / 1000
}

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(' ')
  const [count = 0, seconds = 0] = words.map(Number)
  const answer =
    command === 'fill'
      ? await fill(count)
      : command === 'metrics'
        ? readServerState(await call('GET', '/metrics'))
        : await heartbeats(count, seconds)
  process.stdout.write(`${JSON.stringify(answer)}\n`)
}
