// kube-server.ts - the tests' own small Kubernetes API server: nodes, pods and events, as weftd requests them, and faults.
//
// The suite in test/kube runs on it and on a real kube-apiserver, so that a difference between the two fails there.

import { randomUUID } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createServer, type Server } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { ADMIN_TOKEN, kubeAdmin, makePki, WEFT_TOKEN, type KubeApi, type Pki } from './kube-admin.ts'

type Json = Record<string, unknown>

interface Stored extends Json {
  readonly metadata: { name: string; uid: string; resourceVersion: string; annotations?: Record<string, string> }
  readonly spec: { podCIDR?: string }
}

/** The fault of a request, in place of an answer. */
export type Fault =
  | { readonly status: number; readonly headers?: Readonly<Record<string, string>> }
  /** The request gets no answer at all. */
  | 'silence'
  /** The connection is cut after this number of bytes of the body, within a piece. */
  | { readonly cutAfter: number }
  /** The delay of the answer, in ms. */
  | { readonly delayMs: number }

export interface SmallKubeApi extends KubeApi {
  /** Called for each request of weftd, `GET /api/v1/nodes?...`; returns its fault. */
  fault: ((request: string) => Fault | undefined) | undefined
  /** The number of faults that were made. */
  readonly struck: number
  /** Each request of weftd so far, with its body. */
  readonly requests: readonly string[]
  /** The bytes that were sent to watches of weftd. */
  readonly watchedBytes: number
  /** Forgets all history: watches end, and watches from earlier versions get 410. */
  compact(): void
  /** Continues with another version counter, like an etcd that was restored. */
  rewind(versions: number): void
  /** Serves with another authority and certificate from now on. */
  rotate(): Promise<void>
  /** Makes this token weftd's from now on. */
  setToken(token: string): void
  /** Adds many nodes, as if they had existed for a long time. */
  fill(nodes: Iterable<Json>): void
  /** Writes a node unchanged with a new version, and notifies the watches. */
  touch(name: string): void
}

/** The rights of weftd in deploy/kubernetes/weft.yaml, as patterns of requests. */
const ALLOWED: readonly (readonly [what: string, request: RegExp])[] = [
  ['watch nodes', /^GET \/api\/v1\/nodes\?.*watch=true/],
  ['list nodes', /^GET \/api\/v1\/nodes(\?|$)/],
  ['get nodes', /^GET \/api\/v1\/nodes\/[^/]+$/],
  ['patch nodes/status', /^PATCH \/api\/v1\/nodes\/[^/]+\/status$/],
  ['get pods', /^GET \/api\/v1\/namespaces\/[^/]+\/pods\/[^/]+$/],
  ['create events', /^POST \/api\/v1\/namespaces\/default\/events$/],
]
export const RIGHTS: readonly string[] = ALLOWED.map(([what]) => what)
const rightFor = (request: string): string | undefined => ALLOWED.find(([, pattern]) => pattern.test(request))?.[0]

interface Watcher {
  readonly send: (type: string, object: Stored | Json) => void
  readonly only: string | undefined
  readonly end: () => void
}

export async function startKubeServer(): Promise<SmallKubeApi> {
  const folder = mkdtempSync(join(tmpdir(), 'weft-kube-'))
  let pki: Pki = await makePki(join(folder, 'pki0'))
  let rotations = 0
  let server: Server
  let port = 0
  let token = WEFT_TOKEN
  let version = 100
  let oldest = 100
  let struck = 0
  let watchedBytes = 0
  const nodes = new Map<string, Stored>()
  const pods = new Map<string, Json>()
  const events: Json[] = []
  const history: { readonly version: number; readonly type: string; readonly object: Stored }[] = []
  const watchers = new Set<Watcher>()
  const requests: string[] = []

  function record(type: string, object: Stored): void {
    history.push({ version, type, object })
    for (const { send, only } of watchers) if (only === undefined || only === object.metadata.name) send(type, object)
  }
  function put(name: string, next: Json, type: string): Stored {
    const metadata = { ...(next['metadata'] as Stored['metadata']), resourceVersion: String(++version) }
    const stored: Stored = { ...next, metadata, spec: next['spec'] ?? {} }
    nodes.set(name, stored)
    record(type, stored)
    return stored
  }

  const refuse = (code: number, message: string): Json => ({
    kind: 'Status',
    apiVersion: 'v1',
    status: 'Failure',
    code,
    message,
  })

  function serveNodes(method: string, path: string, query: URLSearchParams, body: Json, type: string): [number, Json] {
    const [, name, part] = /^\/api\/v1\/nodes(?:\/([^/]+))?(?:\/(\w+))?$/.exec(path) ?? []
    if (name === undefined) {
      if (method === 'GET') return listed(query)
      const { metadata } = body as Partial<Stored>
      if (nodes.has(metadata?.name ?? '')) return [409, refuse(409, 'it exists')]
      return [201, put(metadata?.name ?? '', { ...body, metadata: { ...metadata, uid: randomUUID() } }, 'ADDED')]
    }
    const node = nodes.get(name)
    if (!node) return [404, refuse(404, `nodes "${name}" not found`)]
    if (method === 'GET') return [200, node]
    if (method === 'DELETE') {
      nodes.delete(name)
      record('DELETED', { ...node, metadata: { ...node.metadata, resourceVersion: String(++version) } })
      return [200, { kind: 'Status', status: 'Success' }]
    }
    const patched = merged(
      node,
      part === 'status' ? { ...body, spec: undefined } : body,
      type.includes('strategic'),
    ) as Stored
    if (node.spec.podCIDR !== undefined && patched.spec.podCIDR !== node.spec.podCIDR)
      return [422, refuse(422, 'spec: Forbidden: node updates may not change podCIDR')]
    return [200, put(name, patched, 'MODIFIED')]
  }

  function listed(query: URLSearchParams): [number, Json] {
    const [from, at] = (query.get('continue') ?? `0,${version}`).split(',').map(Number) as [number, number]
    if (at < oldest) return [410, refuse(410, 'The provided continue parameter is too old')]
    const only = /^metadata\.name=(.*)$/.exec(query.get('fieldSelector') ?? '')?.[1]
    const all = [...nodes.values()].filter(({ metadata }) => only === undefined || metadata.name === only)
    const limit = Number(query.get('limit') ?? Infinity)
    const items = all.slice(from, from + limit)
    const next = from + limit < all.length ? { continue: `${from + limit},${at}` } : {}
    return [200, { kind: 'NodeList', apiVersion: 'v1', metadata: { resourceVersion: String(at), ...next }, items }]
  }

  function serveWatch(
    request: IncomingMessage,
    response: ServerResponse,
    query: URLSearchParams,
    cutAfter: number,
  ): void {
    const after = Number(query.get('resourceVersion'))
    response.writeHead(200, { 'content-type': 'application/json', 'transfer-encoding': 'chunked' })
    response.flushHeaders()
    const metadataOnly = (request.headers.accept ?? '').includes('as=PartialObjectMetadata')
    let sent = 0
    const write = (event: unknown): void => {
      const text = Buffer.from(`${JSON.stringify(event)}\n`)
      const part = text.subarray(0, Math.max(0, cutAfter - sent))
      sent += text.length
      watchedBytes += part.length
      response.write(part)
      if (sent >= cutAfter) response.destroy()
    }
    const watcher: Watcher = {
      only: /^metadata\.name=(.*)$/.exec(query.get('fieldSelector') ?? '')?.[1],
      send: (type, object) =>
        write({
          type,
          object:
            metadataOnly && type !== 'ERROR'
              ? { kind: 'PartialObjectMetadata', apiVersion: 'meta.k8s.io/v1', metadata: object['metadata'] }
              : object,
        }),
      end() {
        watchers.delete(watcher)
        response.end()
      },
    }
    if (after < oldest) {
      watcher.send('ERROR', refuse(410, `too old resource version: ${after} (${oldest})`))
      return watcher.end()
    }
    for (const entry of history)
      if (entry.version > after && (watcher.only ?? entry.object.metadata.name) === entry.object.metadata.name)
        watcher.send(entry.type, entry.object)
    watchers.add(watcher)
    let reported = after
    const bookmark = (): void => {
      // The real server sends bookmarks in the same way: only after a change, even if the change was not for this watch.
      if (query.get('allowWatchBookmarks') === 'true' && version > reported)
        watcher.send('BOOKMARK', { kind: 'Node', apiVersion: 'v1', metadata: { resourceVersion: String(version) } })
      reported = version
    }
    const beat = setInterval(bookmark, 1000)
    const time = setTimeout(
      () => {
        bookmark()
        watcher.end()
      },
      Number(query.get('timeoutSeconds') ?? 3600) * 1000,
    )
    response.on('close', () => {
      clearInterval(beat)
      clearTimeout(time)
      watchers.delete(watcher)
    })
  }

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let text = ''
    for await (const part of request.setEncoding('utf8')) text += part as string
    const { method = '', url = '', headers } = request
    const who = /^Bearer (.*)$/.exec(headers.authorization ?? '')?.[1]
    const answer = (
      status: number,
      body: Json,
      more: Readonly<Record<string, string>> = {},
      cutAfter = Infinity,
    ): void => {
      const packed = /gzip/.test(String(headers['accept-encoding'])) && JSON.stringify(body).length > 131_072
      const bytes = packed ? gzipSync(JSON.stringify(body)) : Buffer.from(JSON.stringify(body))
      const head = { 'content-type': 'application/json', ...(packed ? { 'content-encoding': 'gzip' } : {}), ...more }
      if (cutAfter >= bytes.length) return void response.writeHead(status, head).end(bytes)
      response.writeHead(status, { ...head, 'content-length': String(bytes.length) })
      response.write(bytes.subarray(0, cutAfter), () => response.destroy())
    }
    if (who !== ADMIN_TOKEN) {
      requests.push(`${method} ${url}${text === '' ? '' : ` ${text}`}`)
      const fault = api.fault?.(`${method} ${url}`)
      if (fault) struck++
      if (fault === 'silence') return
      if (fault && 'status' in fault)
        return answer(fault.status, refuse(fault.status, 'as the test wants it'), fault.headers)
      if (fault && 'delayMs' in fault) await new Promise((resolve) => setTimeout(resolve, fault.delayMs))
      if (who !== token) return answer(401, refuse(401, 'Unauthorized'))
      if (rightFor(`${method} ${url}`) === undefined)
        return answer(403, refuse(403, `${method} ${url} is forbidden to weftd`))
      return route(
        request,
        response,
        method,
        url,
        text,
        answer,
        fault && 'cutAfter' in fault ? fault.cutAfter : Infinity,
      )
    }
    return route(request, response, method, url, text, answer, Infinity)
  }

  function route(
    request: IncomingMessage,
    response: ServerResponse,
    method: string,
    url: string,
    text: string,
    answer: (status: number, body: Json, more?: Readonly<Record<string, string>>, cutAfter?: number) => void,
    cutAfter: number,
  ): void {
    const { pathname, searchParams } = new URL(url, 'https://kubernetes')
    const body = (text === '' ? {} : JSON.parse(text)) as Json
    if (searchParams.get('watch') === 'true') return serveWatch(request, response, searchParams, cutAfter)
    if (pathname.startsWith('/api/v1/nodes')) {
      const [status, found] = serveNodes(method, pathname, searchParams, body, request.headers['content-type'] ?? '')
      return answer(status, found, {}, cutAfter)
    }
    if (pathname.endsWith('/events')) {
      if (method === 'GET') return answer(200, { items: events })
      events.push(body)
      return answer(201, body)
    }
    const pod = /\/pods(?:\/([^/]+))?$/.exec(pathname)
    if (pod?.[1] !== undefined && pods.has(pod[1])) return answer(200, pods.get(pod[1])!)
    if (pod && method === 'POST') {
      pods.set((body['metadata'] as { name: string }).name, body)
      return answer(201, body)
    }
    return answer(404, refuse(404, 'not found'))
  }

  const api: SmallKubeApi = {
    fault: undefined,
    requests,
    get url() {
      return `https://127.0.0.1:${port}`
    },
    get caFile() {
      return pki.caFile
    },
    get struck() {
      return struck
    },
    get watchedBytes() {
      return watchedBytes
    },
    admin: kubeAdmin(() => api),
    asked: () =>
      requests.map((request) => {
        const [line = ''] = /^\S+ \S+/.exec(request) ?? []
        const right = rightFor(line)
        return { what: right ?? line, isAllowed: right !== undefined }
      }),
    compact() {
      oldest = ++version
      history.length = 0
      for (const { end } of watchers) end()
    },
    rewind(versions) {
      version -= versions
      oldest = 0
      history.length = 0
      for (const { end } of watchers) end()
    },
    async rotate() {
      pki = await makePki(join(folder, `pki${++rotations}`))
      server.setSecureContext({ cert: readFileSync(pki.certFile), key: readFileSync(pki.keyFile) })
      server.closeAllConnections()
    },
    setToken(next) {
      token = next
    },
    fill(many) {
      for (const node of many) put((node['metadata'] as { name: string }).name, node, 'ADDED')
      history.length = 0
      oldest = version
    },
    touch: (name) => void put(name, nodes.get(name)!, 'MODIFIED'),
    async start() {
      server = createServer(
        { cert: readFileSync(pki.certFile), key: readFileSync(pki.keyFile) },
        (request, response) => {
          handle(request, response).catch((error: unknown) => response.destroy(error as Error))
        },
      )
      await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
      ;({ port } = server.address() as { port: number })
    },
    async kill() {
      const closed = new Promise((resolve) => server.close(resolve))
      server.closeAllConnections()
      await closed
    },
    async close() {
      await api.kill()
      rmSync(folder, { recursive: true })
    },
  }
  await api.start()
  return api
}

/** Applies a merge patch (RFC 7386), or a strategic merge patch as far as it is needed here: conditions are identified by their type. */
function merged(before: unknown, patch: unknown, isStrategic: boolean): unknown {
  if (isStrategic && Array.isArray(patch) && patch.every((item) => (item as Json)['type'] !== undefined)) {
    const list = [...((before ?? []) as Json[])]
    for (const item of patch as Json[]) {
      const at = list.findIndex(({ type }) => type === item['type'])
      if (at < 0) list.push(item)
      else list[at] = { ...list[at], ...item }
    }
    return list
  }
  if (typeof patch !== 'object' || patch === null || Array.isArray(patch)) return patch
  const next: Json = typeof before === 'object' && before !== null ? { ...(before as Json) } : {}
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete next[key]
    else if (value !== undefined) next[key] = merged(next[key], value, isStrategic)
  }
  return next
}
