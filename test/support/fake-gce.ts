// fake-gce.ts - Google Compute Engine's API and its metadata server, as far as routes need them.

import { GcePublisher } from '../../src/path/backends/fabric/gce-publisher.ts'
import type { Place } from '../../src/path/backends/fabric/publisher.ts'
import { FakeFabric, json, text, type FakeAnswer, type FakeRequest } from './fake-fabric.ts'

const error = (code: number, message: string): FakeAnswer =>
  json({ error: { code, message, errors: [{ message }] } }, code)
const SERVER = 'https://www.googleapis.com/compute/v1'
const NETWORK = `${SERVER}/projects/a-project/global/networks/a-network`
const instanceLink = (node: number): string => `${SERVER}/projects/a-project/zones/zone-1/instances/node-${node}`

export class FakeGce extends FakeFabric {
  readonly type = 'gce'
  readonly secrets = ['token-of-gce']
  override readonly hasRegion = false
  override readonly hasClock = false
  /** True if another network of the project has a route with the name of each new route. */
  areNamesTaken = false
  readonly #operations = new Map<string, { polls: number; error?: object }>()

  publisher(place: Place): GcePublisher {
    const node = Number(place.nodeName.slice(5))
    return new GcePublisher(place, { api: this.address, metadata: this.metadataOf(node) }, 1)
  }

  protected throttle(): FakeAnswer {
    return error(403, 'Rate Limit Exceeded')
  }

  protected answer(request: FakeRequest): FakeAnswer {
    const [, node, path] = /^\/node-(\d+)\/computeMetadata\/v1\/(.*)$/.exec(request.url.pathname) ?? []
    if (node !== undefined)
      return request.headers['metadata-flavor'] === 'Google' ? this.#metadata(Number(node), path ?? '') : text('', 403)
    if (request.headers.authorization !== `Bearer token-of-gce-${this.generation}`)
      return error(401, 'Request had invalid authentication credentials.')
    return this.#call(request)
  }

  #metadata(node: number, path: string): FakeAnswer {
    const values: Readonly<Record<string, string>> = {
      'project/project-id': 'a-project',
      'instance/zone': 'projects/123/zones/zone-1',
      'instance/name': `node-${node}`,
      'instance/service-accounts/default/token': JSON.stringify({
        access_token: `token-of-gce-${this.generation}`,
        expires_in: 3599,
        token_type: 'Bearer',
      }),
    }
    const value = values[path]
    return value === undefined ? text('', 404) : text(value)
  }

  #call({ method, url, body }: FakeRequest): FakeAnswer {
    const path = url.pathname.replace('/compute/v1/projects/a-project', '')
    const [, node] = /^\/zones\/zone-1\/instances\/node-(\d+)$/.exec(path) ?? []
    if (node !== undefined)
      return json({
        selfLink: instanceLink(Number(node)),
        canIpForward: true,
        networkInterfaces: [{ network: NETWORK, networkIP: this.addressOf(Number(node)) }],
      })
    if (path === '') return json({ quotas: [{ metric: 'ROUTES', limit: 250, usage: this.routes.length }] })
    const [, operation] = /^\/global\/operations\/(.+)$/.exec(path) ?? []
    if (operation !== undefined) return this.#poll(operation)
    if (this.isReadOnly && method !== 'GET') return error(403, "Required 'compute.routes.create' permission")
    if (path === '/global/routes' && method === 'GET') return this.#list(url.searchParams)
    if (this.areNamesTaken && path.startsWith('/global/routes/') && method === 'GET')
      return json({ name: path.split('/').at(-1), destRange: '10.5.1.0/24', network: `${NETWORK}-2` })
    if (this.areNamesTaken && method === 'POST') return error(409, 'The resource already exists')
    if (path === '/global/routes' && method === 'POST') return this.#insert(body)
    const [, name] = /^\/global\/routes\/(.+)$/.exec(path) ?? []
    if (name === undefined || method !== 'DELETE') return error(404, 'Not Found')
    if (!this.drop(({ destination }) => nameOf(destination) === name)) return error(404, 'The resource was not found')
    return this.#operation()
  }

  #insert(body: string): FakeAnswer {
    const { name, destRange = '', nextHopInstance = '', network } = JSON.parse(body) as Record<string, string>
    if (name !== nameOf(destRange) || network !== NETWORK) return error(400, 'Invalid value')
    if (this.find(destRange)) return error(409, 'The resource already exists')
    if (this.routes.length >= this.limit)
      return this.#operation({ errors: [{ code: 'QUOTA_EXCEEDED', message: "Quota 'ROUTES' exceeded." }] })
    this.put(destRange, Number(nextHopInstance.split('-').at(-1)))
    return this.#operation()
  }

  #operation(failure?: object): FakeAnswer {
    const name = `operation-${this.#operations.size + 1}`
    this.#operations.set(name, { polls: 2, ...(failure ? { error: failure } : {}) })
    return json({ name, status: 'PENDING', operationType: 'insert' })
  }

  #poll(name: string): FakeAnswer {
    const operation = this.#operations.get(name)
    if (!operation) return error(404, 'Not Found')
    const status = operation.polls-- > 0 ? 'RUNNING' : 'DONE'
    return json({ name, status, ...(status === 'DONE' && operation.error ? { error: operation.error } : {}) })
  }

  #list(query: URLSearchParams): FakeAnswer {
    const from = Number(query.get('pageToken') ?? '0')
    const all = this.listed()
    const own = all.slice(from, from + this.pageSize).map(({ destination, node, state }) => ({
      name: nameOf(destination),
      destRange: destination,
      network: NETWORK,
      nextHopInstance: instanceLink(node),
      ...(state === 'dead' ? { warnings: [{ code: 'NEXT_HOP_INSTANCE_NOT_FOUND' }] } : {}),
    }))
    const other = { name: 'other', destRange: '10.5.1.0/24', network: `${NETWORK}-2`, nextHopInstance: instanceLink(9) }
    const nextPageToken = from + this.pageSize < all.length ? String(from + this.pageSize) : undefined
    return json({ items: [other, ...own], nextPageToken })
  }
}

const nameOf = (destination: string): string => `flannel-${destination.replaceAll(/[./]/g, '-')}`
