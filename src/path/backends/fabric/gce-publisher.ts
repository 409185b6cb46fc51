// gce-publisher.ts - publishes the route in the network of a Google Compute Engine instance, with the instance as the
// route's next hop.
//
// The model is flannel v0.13 (backend/gce): the route has a name such as `flannel-10-5-1-0-24` and flannel's priority,
// and the publisher polls an operation until the operation is done.

import { WeftError } from '../../../base/errors.ts'
import { printable } from '../../../base/text.ts'
import { pause } from '../../../host/bell.ts'
import { formatAddress, formatNet } from '../../../net/address.ts'
import { jsonOf, refusalOf, SHOWN, type ApiRequest } from './api-client.ts'
import { googleToken, type GoogleToken } from './google-token.ts'
import { readMetadata } from './metadata.ts'
import type { FabricRoute, Place, Publisher, RouteTable } from './publisher.ts'

const PRIORITY = 1000
/** The pause in ms between two queries of the state of an operation. */
const POLL_MS = 1_000
const MOST_PAGES = 100

/** The remedies for HTTP statuses whose cause an operator can correct. */
const REMEDIES: Readonly<Record<number, string>> = {
  401: "check the instance's service account, and the clock of this host",
  403: "give the instance's service account the permissions in docs/cloud.md, and the instance the scope compute-rw",
}

/** The URLs of Google's servers. */
interface GceEndpoints {
  readonly api: string
  readonly metadata: string
}

interface JsonRoute {
  readonly name?: string
  readonly destRange?: string
  readonly network?: string
  readonly nextHopInstance?: string
  readonly nextHopGateway?: string
  readonly nextHopIp?: string
  readonly warnings?: readonly { readonly code?: string }[]
}
interface JsonInstance {
  readonly selfLink?: string
  readonly canIpForward?: boolean
  readonly networkInterfaces?: readonly { readonly network?: string; readonly networkIP?: string }[]
}

/** The URLs by which Google's API names this instance and its network. */
interface Instance {
  readonly link: string
  readonly network: string
}

export class GcePublisher implements Publisher {
  #token: GoogleToken | undefined
  /**
   * The number of routes in the project that do not belong to this instance's network. These routes count against the
   * project's quota too.
   */
  #others = 0
  readonly #place: Place
  readonly #endpoints: GceEndpoints
  readonly #pollMs: number

  constructor(place: Place, endpoints: Partial<GceEndpoints> = {}, pollMs = POLL_MS) {
    const { GCE_METADATA_HOST: host = 'metadata.google.internal' } = place.environment
    this.#place = place
    this.#endpoints = { api: 'https://compute.googleapis.com', metadata: `http://${host}`, ...endpoints }
    this.#pollMs = pollMs
  }

  async find(signal: AbortSignal): Promise<readonly RouteTable[]> {
    const { client, address, log } = this.#place
    const headers = { 'metadata-flavor': 'Google' }
    const read = (path: string): Promise<string> =>
      readMetadata(client, `${this.#endpoints.metadata}/computeMetadata/v1/${path}`, headers, signal)
    const project = await read('project/project-id')
    const zone = (await read('instance/zone')).split('/').at(-1) ?? ''
    const name = await read('instance/name')
    const base = `${this.#endpoints.api}/compute/v1/projects/${encodeURIComponent(project)}`
    const url = `${base}/zones/${encodeURIComponent(zone)}/instances/${encodeURIComponent(name)}`
    const found = (await this.#call('GET', url, signal)) as JsonInstance
    const wanted = formatAddress(address)
    const own = found.networkInterfaces?.find(({ networkIP }) => networkIP === wanted)
    if (found.selfLink === undefined || own?.network === undefined)
      throw new WeftError('CONFIG', `the instance ${name} has no interface with the address ${wanted}`, {
        remedy: 'choose the external interface by --iface; its address must be one of the instance',
      })
    if (found.canIpForward !== true)
      log.warn(
        `The instance ${name} may not forward packets: create it with --can-ip-forward, or its route carries none`,
      )
    const limit = await this.#limit(base, signal)
    return [this.#table(base, { link: found.selfLink, network: own.network }, limit)]
  }

  /** Returns the project's quota of routes; undefined if the API does not report it. */
  async #limit(base: string, signal: AbortSignal): Promise<number | undefined> {
    const project = await this.#call('GET', base, signal, [403, 404])
    const { quotas = [] } = (project ?? {}) as { quotas?: readonly { metric?: string; limit?: number }[] }
    return quotas.find(({ metric }) => metric === 'ROUTES')?.limit
  }

  #table(base: string, { link, network }: Instance, limit: number | undefined): RouteTable {
    const { subnet, log } = this.#place
    const destination = formatNet(subnet)
    const left = (): number | undefined => limit && Math.max(limit - this.#others, 0)
    return {
      name: `the network ${network.split('/').at(-1)}`,
      get limit() {
        return left()
      },
      list: (signal) => this.#list(base, { link, network }, signal),
      put: async (signal) => {
        log.info(`Inserting route for subnet: ${destination}`)
        const route = { name: nameOf(destination), destRange: destination, network, nextHopInstance: link }
        const body = { ...route, priority: PRIORITY, tags: [] }
        const operation = await this.#call('POST', `${base}/global/routes`, signal, [409], body)
        const result = operation === undefined ? 'exists' : await this.#done(base, operation, signal)
        if (result === 'exists') await this.#requireName(base, network, nameOf(destination), signal)
        return result
      },
      remove: async ({ id = '' }, signal) => {
        const operation = await this.#call('DELETE', `${base}/global/routes/${encodeURIComponent(id)}`, signal, [404])
        if (operation !== undefined) await this.#done(base, operation, signal)
      },
    }
  }

  /** Throws WeftError CONFIG if a route of another network in the project has the name of this node's route. */
  async #requireName(base: string, network: string, name: string, signal: AbortSignal): Promise<void> {
    const url = `${base}/global/routes/${encodeURIComponent(name)}`
    const found: JsonRoute | undefined = await this.#call('GET', url, signal, [403, 404])
    if (found?.network === undefined || isSame(found.network, network)) return
    throw new WeftError('CONFIG', `a route of the network ${pathOf(found.network)} has the name ${name}`, {
      remedy: 'choose a Network that no other network of the project uses, because a project can use a name only once',
    })
  }

  async #list(base: string, { link, network }: Instance, signal: AbortSignal): Promise<readonly FabricRoute[]> {
    const routes: FabricRoute[] = []
    let token = ''
    let others = 0
    for (let page = 0; page < MOST_PAGES; page++) {
      const query = new URLSearchParams({ maxResults: '500', ...(token === '' ? {} : { pageToken: token }) })
      const answer = await this.#call('GET', `${base}/global/routes?${String(query)}`, signal)
      const { items = [], nextPageToken = '' } = answer as { items?: readonly JsonRoute[]; nextPageToken?: string }
      for (const each of items)
        if (isSame(each.network, network)) routes.push(...routeOf(each, link))
        else others++
      this.#others = others
      token = nextPageToken
      if (token === '') return routes
    }
    throw new WeftError('FABRIC', 'the list of routes has no last page')
  }

  /**
   * Waits until an operation of the API is done. Returns `exists` if another operation made the route first. Throws
   * WeftError FABRIC if the operation failed.
   */
  async #done(base: string, operation: object, signal: AbortSignal): Promise<'made' | 'exists'> {
    interface JsonOperation {
      readonly name?: string
      readonly status?: string
      readonly error?: { readonly errors?: readonly { readonly code?: string; readonly message?: string }[] }
    }
    let { name = '', status, error } = operation as JsonOperation
    while (status !== 'DONE') {
      await pause(signal, this.#pollMs)
      const url = `${base}/global/operations/${encodeURIComponent(name)}`
      ;({ name = name, status, error } = (await this.#call('GET', url, signal)) as JsonOperation)
    }
    const [first] = error?.errors ?? []
    if (!first) return 'made'
    if (first.code === 'RESOURCE_ALREADY_EXISTS') return 'exists'
    const isFull = first.code === 'QUOTA_EXCEEDED'
    const why = printable(`${first.code ?? ''} ${first.message ?? ''}`).slice(0, SHOWN)
    throw new WeftError('FABRIC', `error running operation: ${why}`, {
      remedy: isFull ? 'request a higher quota of routes, or take a backend that has a tunnel' : undefined,
    })
  }

  /**
   * Sends a request. Returns undefined if the answer has one of the expected statuses. Throws WeftError FABRIC for
   * every other error.
   */
  async #call(
    method: string,
    url: string,
    signal: AbortSignal,
    expected: readonly number[] = [],
    body?: object,
  ): Promise<object | undefined> {
    const { client, environment } = this.#place
    if (!this.#token || Date.now() >= this.#token.until)
      this.#token = await googleToken(environment, client, this.#endpoints.metadata, signal)
    const request: ApiRequest = {
      method,
      url,
      headers: {
        authorization: `Bearer ${this.#token.token}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    }
    const answer = await client.send(request, signal)
    if (answer.status === 200) return jsonOf(request, answer)
    if (expected.includes(answer.status)) return undefined
    let message: string | undefined
    try {
      message = (JSON.parse(answer.text) as { error?: { message?: string } }).error?.message
    } catch {
      // Ignore the syntax error: without a `message`, the WeftError quotes the text of the answer.
    }
    throw refusalOf(request, answer, '', message, REMEDIES[answer.status])
  }
}

/** Returns the name that flannel gives the route to a destination, such as `flannel-10-5-1-0-24`. */
const nameOf = (destination: string): string => `flannel-${destination.replaceAll(/[./]/g, '-')}`

/**
 * Returns the part of an API link that starts at `projects/`. The server and the version before that part differ
 * between answers.
 */
const pathOf = (link = ''): string => link.replace(/^.*\/(?=projects\/)/, '')
const isSame = (a: string | undefined, b: string): boolean => pathOf(a) === pathOf(b)

function routeOf(route: JsonRoute, link: string): FabricRoute[] {
  const { name, destRange: destination, nextHopInstance, nextHopGateway, nextHopIp, warnings = [] } = route
  if (destination === undefined || name === undefined) return []
  const target = nextHopInstance ?? nextHopGateway ?? nextHopIp ?? 'an unknown target'
  // If the next hop was deleted or stopped, the API adds this warning to the route.
  const isDead = warnings.some(({ code }) => code === 'NEXT_HOP_INSTANCE_NOT_FOUND')
  const isOwn = isSame(nextHopInstance, link)
  return [{ destination, target: pathOf(target), isOwn, state: isDead ? 'dead' : 'active', id: name }]
}
