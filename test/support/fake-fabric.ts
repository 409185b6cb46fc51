// fake-fabric.ts - what the fake servers of clouds and switches share: a table of routes, the faults of an API, and an HTTP server.
//
// Each fake answers as the documents of its API say. It checks the key, the token, the region, the time and the signature of a request. It
// computes a signature with weft's own functions. unit/path/backends/fabric/signatures.test.ts compares these functions with published
// signatures, and unit/path/backends/fabric/clients.test.ts has the clouds' own clients send requests to the fakes.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { parseIpv4, parseIpv4Net } from '../../src/net/ipv4.ts'
import { ApiClient } from '../../src/path/backends/fabric/api-client.ts'
import type { Place, Publisher } from '../../src/path/backends/fabric/publisher.ts'

/** A route of the fake; `node` is the number of the node that it leads to. */
export interface FakeRoute {
  readonly id: string
  readonly destination: string
  readonly node: number
  state: 'active' | 'pending' | 'dead'
}

export interface FakeRequest {
  readonly method: string
  readonly url: URL
  readonly headers: IncomingMessage['headers']
  readonly body: string
}

export interface FakeAnswer {
  readonly status: number
  readonly headers?: Readonly<Record<string, string>>
  readonly body: string
}

/** The lines that a node logged. */
export interface Logged {
  readonly lines: string[]
  readonly log: Place['log']
}

export function createLogged(): Logged {
  const lines: string[] = []
  const at =
    (level: string) =>
    (message: string): void =>
      void lines.push(`${level} ${message}`)
  return { lines, log: { info: at('info'), warn: at('warn'), error: at('error'), v: () => false } }
}

/** The time in ms by which the clock of a client may differ from the clock of the API. */
const APART_MS = 300_000

export abstract class FakeFabric {
  /** The routes as the API has them. */
  routes: FakeRoute[] = []
  /** The answers that are refused for too many requests, and those with an error of the server, from now on. */
  throttled = 0
  broken = 0
  /** The number of lists that still show the earlier routes after each change. */
  lag = 0
  /** The routes on a page of a list. */
  pageSize = 1000
  limit = 1000
  /** The key that the API accepts; the metadata server gives it out. */
  generation = 1
  /** The time in ms by which the clock of the API is ahead of this process's clock. */
  aheadMs = 0
  /** The number of requests after which the keys expire. */
  expiresAfter = Infinity
  /** True if the API refuses every change for lack of a permission. */
  isReadOnly = false
  /** The changes that were made, such as `put 10.5.1.0/24`. */
  readonly changes: string[] = []
  readonly requests: FakeRequest[] = []
  #stale: { readonly routes: readonly FakeRoute[]; lists: number } | undefined
  #server: Server | undefined
  #nextId = 1
  protected address = ''

  /** The backend type that the publisher serves, such as `aws-vpc`. */
  abstract readonly type: string
  /** The longest secret in the requests, which no log line may have. */
  abstract readonly secrets: readonly string[]
  /** True if the metadata server gives out keys that expire. */
  readonly hasKeys: boolean = true
  /** True if the API refuses requests with a wrong time. */
  readonly hasClock: boolean = true
  /** True if a request names a region. */
  readonly hasRegion: boolean = true
  /** True if the API lists routes that no packet follows. */
  readonly hasDead: boolean = true
  /** The node to which a dead route may lead that node 1 replaces. */
  readonly deadNode: number = 2
  /** Makes the publisher of a node. */
  abstract publisher(place: Place): Publisher
  protected abstract answer(request: FakeRequest): FakeAnswer
  /** Returns the answer to a request that the API refuses, in the form of the API. */
  protected abstract throttle(): FakeAnswer
  /** The region of the metadata server's answers. */
  region = 'region-1'

  async start(host = '127.0.0.1', port = 0): Promise<this> {
    this.#server = createServer((request, response) => void this.#serve(request, response))
    await new Promise<void>((resolve) => this.#server?.listen(port, host, resolve))
    this.address = `http://${host}:${(this.#server.address() as AddressInfo).port}`
    this.started()
    return this
  }

  /** The URL of the API. */
  get url(): string {
    return this.address
  }

  /** Gives the next route the first id again. */
  restartIds(): void {
    this.#nextId = 1
  }

  /** Called when the server has its address. */
  protected started(): void {}

  async close(): Promise<void> {
    this.#server?.closeAllConnections()
    await new Promise((resolve) => this.#server?.close(resolve))
  }

  /** The place of node 1 or 2. */
  place(node: number, subnet: string, log: Place['log'], more: Partial<Place> = {}): Place {
    const address = parseIpv4(this.addressOf(node)) ?? 0
    const net = parseIpv4Net(subnet)
    if (!net) throw new Error(`${subnet} is no subnet`)
    return {
      subnet: net,
      address,
      publicIp: address,
      nodeName: `node-${node}`,
      environment: { HOME: '/nonexistent', AWS_SHARED_CREDENTIALS_FILE: '/nonexistent', ...this.environment() },
      client: new ApiClient({ answerMs: 2_000 }),
      log,
      ...more,
    }
  }

  addressOf(node: number): string {
    return `192.0.2.${node}`
  }

  environment(): Readonly<Record<string, string>> {
    return {}
  }

  /** The number of the node that a request of the metadata server came from. Fakes that need it get it by a prefix of the path. */
  protected metadataOf(node: number): string {
    return `${this.address}/node-${node}`
  }

  /** The routes as a listing shows them: for a while after a change, the old ones. */
  protected listed(): readonly FakeRoute[] {
    if (this.#stale && this.#stale.lists-- > 0) return this.#stale.routes
    this.#stale = undefined
    for (const route of this.routes) if (route.state === 'pending') route.state = 'active'
    return this.routes
  }

  /** True if a request's time, in ms since 1970, differs too much from the time of the API. */
  protected isApart(at: number): boolean {
    return !(Math.abs(at - Date.now() - this.aheadMs) <= APART_MS)
  }

  protected find(destination: string): FakeRoute | undefined {
    return this.routes.find((route) => route.destination === destination)
  }

  add(destination: string, node: number, state: FakeRoute['state'] = 'active'): FakeRoute {
    this.#age()
    const route = { id: String(this.#nextId++), destination, node, state }
    this.routes = [...this.routes, route]
    return route
  }

  protected put(destination: string, node: number, state: FakeRoute['state'] = 'active'): void {
    this.add(destination, node, state)
    this.changes.push(`put ${destination}`)
  }

  protected drop(which: (route: FakeRoute) => boolean): boolean {
    const gone = this.routes.filter(which)
    this.#age()
    this.routes = this.routes.filter((route) => !which(route))
    for (const { destination } of gone) this.changes.push(`remove ${destination}`)
    return gone.length > 0
  }

  #age(): void {
    if (this.lag > 0) this.#stale = { routes: this.routes.map((route) => ({ ...route })), lists: this.lag }
  }

  async #serve(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    let body = ''
    for await (const piece of incoming as AsyncIterable<Buffer>) body += piece.toString()
    const url = new URL(incoming.url ?? '/', this.address)
    const request = { method: incoming.method ?? 'GET', url, headers: incoming.headers, body }
    this.requests.push(request)
    if (!url.pathname.startsWith('/node-') && --this.expiresAfter === 0) this.generation++
    const { status, headers, body: text } = this.#faultFor(request) ?? this.answer(request)
    const date = new Date(Date.now() + this.aheadMs).toUTCString()
    response.writeHead(status, { ...headers, date }).end(text)
  }

  /** Metadata servers have no faults here. */
  #faultFor({ url }: FakeRequest): FakeAnswer | undefined {
    if (url.pathname.startsWith('/node-')) return undefined
    if (this.broken > 0) {
      this.broken--
      return { status: 500, body: '<html>oops</html>' }
    }
    if (this.throttled > 0) {
      this.throttled--
      return this.throttle()
    }
    return undefined
  }
}

export const json = (value: unknown, status = 200): FakeAnswer => ({
  status,
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify(value),
})
export const text = (body: string, status = 200): FakeAnswer => ({ status, body })
