// http-publisher.ts - publishes the route by HTTP requests that the operator describes, to a switch or to any API that
// has no publisher of its own.

import { readFile, stat } from 'node:fs/promises'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { Secret } from '../../../base/secret.ts'
import { formatAddress, formatNet, parseAddress, parseNet } from '../../../net/address.ts'
import type { Settings } from '../../catalog.ts'
import { hideIn, jsonOf, refusalOf, SHOWN, type ApiAnswer, type ApiRequest } from './api-client.ts'
import type { FabricRoute, Place, Publisher, RouteTable } from './publisher.ts'
import { signV4 } from './sigv4.ts'
import { fillBody, fillHeaders, fillUrl, variablesOf, type Variables } from './template.ts'

type HttpSettings = Settings<'http'>
type Action = 'put' | 'remove' | 'list'
const NAMES = { put: 'Put', remove: 'Remove', list: 'List' } as const

/** The maximum size in bytes of a file with credentials or certificates. */
const FILE_BYTES = 1024 * 1024

export class HttpPublisher implements Publisher {
  readonly #settings: HttpSettings
  readonly #place: Place
  readonly #variables: Variables
  readonly #canList: boolean
  /**
   * The secrets of CredentialFile, by the origin (such as `https://example.com`) to which weftd sends them. `#ca` is
   * the text of CAFile. `find` reads both files. weftd calls `find` again after a failure, so it notices changed files.
   */
  #credentials: ReadonlyMap<string, Secret> = new Map()
  #ca: string | undefined

  constructor(settings: HttpSettings, place: Place) {
    this.#settings = settings
    this.#place = place
    this.#variables = variablesOf(place.subnet, place)
    this.#canList = settings.listUrl !== ''
  }

  async find(): Promise<readonly RouteTable[]> {
    const { credentialFile, caFile, putUrl, limit } = this.#settings
    if (credentialFile !== '') this.#credentials = credentialsOf(await read('CredentialFile', credentialFile))
    this.#ca = caFile === '' ? undefined : await read('CAFile', caFile)
    const table: RouteTable = {
      name: new URL(putUrl).host,
      limit: limit === 0 ? undefined : limit,
      isBlind: !this.#canList,
      list: (signal) => this.#list(signal),
      put: (signal) => this.#put(signal),
      remove: (route, signal) => this.#remove(route, signal),
    }
    return [table]
  }

  async #list(signal: AbortSignal): Promise<readonly FabricRoute[]> {
    if (!this.#canList) {
      const destination = formatNet(this.#place.subnet)
      return [{ destination, target: formatAddress(this.#place.publicIp), isOwn: true, state: 'active' }]
    }
    // Without the instance's name this node cannot recognise its route, and `weft cleanup` would leave the route. So
    // throw now if the request that adds the route needs the name.
    if (this.#variables['instance'] === undefined) this.#request('put', {})
    const { listRoutes, listDestination, listGateway, listId } = this.#settings
    const request = this.#request('list', {})
    const answer = await this.#place.client.send(request, signal)
    if (answer.status === 404) return []
    this.#check(request, answer)
    const found = memberOf(jsonOf(request, answer), listRoutes) ?? []
    const gateways = new Set(['publicIp', 'address', 'instance'].map((name) => this.#variables[name]))
    return (Array.isArray(found) ? found : [found]).flatMap((each: unknown): FabricRoute[] => {
      const [destination, gateway] = [memberOf(each, listDestination), memberOf(each, listGateway)]
      if (typeof destination !== 'string') return []
      const net = parseNet(destination)
      const target = typeof gateway === 'string' ? gateway.slice(0, SHOWN) : 'no gateway'
      const host = parseAddress(target)
      const id = listId === '' ? undefined : memberOf(each, listId)
      return [
        {
          destination: net ? formatNet(net) : destination,
          target,
          isOwn: gateways.has(host === undefined ? target : formatAddress(host)),
          state: 'active',
          ...(typeof id === 'string' || typeof id === 'number' ? { id: String(id) } : {}),
        },
      ]
    })
  }

  async #put(signal: AbortSignal): Promise<'made' | 'exists'> {
    const request = this.#request('put', {})
    const answer = await this.#place.client.send(request, signal)
    // Status 409 means that the API already has a route to the subnet and refuses a second one. The list of routes
    // shows the target of the existing route. If the API has no list, weftd treats the existing route as this node's.
    if (answer.status === 409) return 'exists'
    this.#check(request, answer)
    return 'made'
  }

  async #remove(route: FabricRoute, signal: AbortSignal): Promise<void> {
    if (this.#settings.removeUrl === '')
      throw new WeftError('CONFIG', `the route to ${route.destination} stays, because Backend has no RemoveURL`, {
        remedy: 'remove the route by hand, or set RemoveURL in Backend',
      })
    const net = parseNet(route.destination)
    const variables = net ? variablesOf(net, this.#place) : this.#variables
    const request = this.#request('remove', { ...variables, ...(route.id === undefined ? {} : { id: route.id }) })
    const answer = await this.#place.client.send(request, signal)
    if (answer.status !== 404 && answer.status !== 410) this.#check(request, answer)
  }

  #request(action: Action, more: Variables): ApiRequest {
    const settings = this.#settings
    const method = settings[`${action}Method` as const]
    const open = { ...this.#variables, ...more }
    const url = fillUrl(settings[`${action}Url` as const], open, `${NAMES[action]}URL`)
    const variables = { ...open, ...this.#credentialFor(url) }
    const filled = fillBody(settings[`${action}Body` as const], variables, `${NAMES[action]}Body`)
    const headers = { ...(filled && { 'content-type': filled.type }), ...fillHeaders(settings.headers, variables) }
    const request = { method, url, headers, body: filled?.body, ca: this.#ca }
    return settings.signAws4 === '' ? request : { ...request, headers: this.#signed(request, variables) }
  }

  /**
   * Returns the headers of a signed request. The credential consists of the access key's id and the access key, with a
   * space between them.
   */
  #signed({ method, url, headers = {}, body = '' }: ApiRequest, variables: Variables): Record<string, string> {
    const [region = '', service = ''] = this.#settings.signAws4.split('/')
    const [accessKeyId, secretAccessKey] = (variables['credential'] ?? '').split(/\s+/)
    if (!accessKeyId || !secretAccessKey)
      throw new WeftError('CONFIG', `Backend.SignAWS4 needs a line with two keys for ${new URL(url).origin}`, {
        remedy:
          'write into the file of CredentialFile a line with the URL of the server, the id of the key and the key',
      })
    return signV4({ method, url, headers, body }, { accessKeyId, secretAccessKey }, region, service, Date.now())
  }

  /**
   * Returns the value of {credential} for a URL. Each line of the credential file binds a credential to an origin. So a
   * user who can write the network configuration cannot make weftd send a credential to a server of the user's choice,
   * nor send the lines of some other file. Throws WeftError CONFIG if the credential file has no credential for this
   * origin.
   */
  #credentialFor(url: string): { readonly credential?: string } {
    if (this.#settings.credentialFile === '') return {}
    const { origin } = new URL(url)
    const credential = this.#credentials.get(origin)
    if (credential) return { credential: credential.reveal() }
    throw new WeftError('CONFIG', `the file of Backend.CredentialFile has no line for ${origin}`, {
      remedy: `write a line of ${origin}, a space and the credential`,
    })
  }

  /**
   * Throws WeftError FABRIC if the status of the answer is not 2xx. The message contains none of the request's secrets,
   * even if the answer repeats them.
   */
  #check(request: ApiRequest, answer: ApiAnswer): void {
    if (answer.status >= 200 && answer.status < 300) return
    const { 'content-type': _, ...headers } = request.headers ?? {}
    const credentials = [...this.#credentials.values()].map((each) => each.reveal())
    const { headers: inHeaders, putBody, removeBody, listBody } = this.#settings
    const given = [inHeaders, putBody, removeBody, listBody].flatMap(secretsIn)
    const secrets = [
      ...credentials,
      ...credentials.flatMap((each) => each.split(/\s+/)),
      ...Object.values(headers),
      ...given,
    ]
    const text = hideIn(answer.text, secrets)
    const isRedirect = answer.status >= 300 && answer.status < 400
    const remedy = isRedirect ? 'weft follows no redirects: name the address to which it leads' : undefined
    throw refusalOf(request, { ...answer, text }, '', text.trim(), remedy)
  }
}

/** Returns the member of a JSON value at a path such as `data.routes`. An empty path returns the value itself. */
function memberOf(value: unknown, path: string): unknown {
  if (path === '') return value
  let member = value
  for (const name of path.split('.')) {
    if (typeof member !== 'object' || member === null || !Object.hasOwn(member, name)) return undefined
    member = (member as Record<string, unknown>)[name]
  }
  return member
}

/** Returns the secrets in a template of headers or of a body. */
function secretsIn(template: unknown): readonly string[] {
  if (template instanceof Secret)
    return [template.reveal(), ...(template.isJson ? textsIn(JSON.parse(template.reveal())) : [])]
  return typeof template === 'object' && template !== null ? Object.values(template).flatMap(secretsIn) : []
}

/** Returns the texts and numbers in a JSON value, as texts. */
function textsIn(value: unknown): readonly string[] {
  if (typeof value === 'string' || typeof value === 'number') return [String(value)]
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(textsIn) : []
}

/** Parses the credential file. Each line has an origin, a space and a credential. */
function credentialsOf(text: string): ReadonlyMap<string, Secret> {
  const credentials = new Map<string, Secret>()
  for (const line of text.split('\n')) {
    const [, url = '', credential = ''] = /^\s*(https?:\/\/\S+)\s+(.*?)\s*$/.exec(line) ?? []
    if (URL.canParse(url) && credential !== '') credentials.set(new URL(url).origin, new Secret(credential))
  }
  return credentials
}

/**
 * Reads a file, at most FILE_BYTES bytes. The limit is needed because the network configuration names the file, which
 * may be an endless device such as /dev/zero.
 */
async function read(option: string, path: string): Promise<string> {
  try {
    const { size, isFile } = await stat(path).then((found) => ({ size: found.size, isFile: found.isFile() }))
    if (!isFile) throw new Error('it is no regular file')
    if (size > FILE_BYTES) throw new Error(`it is longer than ${FILE_BYTES} bytes`)
    return await readFile(path, 'utf8')
  } catch (error) {
    throw new WeftError('CONFIG', `cannot read Backend.${option}: ${messageOf(error)}`, {
      remedy: 'mount the file on each node, at the path that Backend names',
    })
  }
}
