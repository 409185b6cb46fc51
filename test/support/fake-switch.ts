// fake-switch.ts - a switch with an HTTP API for static routes, as Type `http` describes one.

import { writeFileSync } from 'node:fs'
import { HttpPublisher } from '../../src/path/backends/fabric/http-publisher.ts'
import type { Place } from '../../src/path/backends/fabric/publisher.ts'
import { FakeFabric, json, text, type FakeAnswer, type FakeRequest } from './fake-fabric.ts'
import { httpSettings } from './http-settings.ts'

export class FakeSwitch extends FakeFabric {
  readonly type = 'http'
  override readonly hasDead = false
  readonly secrets = ['secret-of-switch']
  override readonly hasKeys = false
  override readonly hasRegion = false
  override readonly hasClock = false
  readonly credentialFile: string
  /** True if the switch replaces a route to the same destination instead of refusing the second one. */
  replaces = false
  /** Called after each change of the routes. */
  readonly onChange: (routes: FakeSwitch['routes']) => void

  constructor(credentialFile: string, onChange: FakeSwitch['onChange'] = () => {}) {
    super()
    this.credentialFile = credentialFile
    this.onChange = onChange
  }

  /** The `Backend` object that leads to this switch. */
  backend(): Readonly<Record<string, unknown>> {
    return switchBackend(this.address, this.credentialFile)
  }
  protected override started(): void {
    writeFileSync(this.credentialFile, `# a comment\n${this.address}/ignored secret-of-switch\n`)
  }

  publisher(place: Place): HttpPublisher {
    return new HttpPublisher(httpSettings(this.backend()), place)
  }

  protected throttle(): FakeAnswer {
    return json({ error: 'slow down' }, 429)
  }

  protected answer({ method, url, headers, body }: FakeRequest): FakeAnswer {
    // A careless server repeats the secret in its answer.
    if (headers.authorization !== 'Bearer secret-of-switch')
      return json({ error: `${headers.authorization} is wrong` }, 401)
    if (url.pathname === '/api/routes')
      return json({
        data: {
          routes: this.listed()
            .filter(({ state }) => state !== 'dead')
            .map(({ destination, node }) => ({ prefix: destination, nextHop: this.addressOf(node) })),
        },
      })
    const [, address, length] = /^\/api\/routes\/([\d.]+)\/(\d+)$/.exec(url.pathname) ?? []
    if (address === undefined) return text('', 404)
    if (this.isReadOnly) return json({ error: 'read-only key' }, 403)
    const destination = `${address}/${length}`
    try {
      if (method === 'DELETE') {
        const node = Number(url.searchParams.get('nextHop')?.split('.').at(-1))
        return text('', this.drop((route) => route.destination === destination && route.node === node) ? 204 : 404)
      }
      const { nextHop } = JSON.parse(body) as { nextHop: string }
      if (headers['content-type'] !== 'application/json') return text('', 415)
      if (this.replaces) this.drop((route) => route.destination === destination)
      if (this.find(destination)) return json({ error: 'there is such a route' }, 409)
      if (this.routes.length >= this.limit) return json({ error: 'the table is full' }, 507)
      this.put(destination, Number(nextHop.split('.').at(-1)))
      return text('', 201)
    } finally {
      this.onChange(this.routes)
    }
  }
}

/** The `Backend` object that leads to the switch at an address. */
export function switchBackend(address: string, credentialFile: string): Readonly<Record<string, unknown>> {
  const url = `${address}/api/routes`
  return {
    Type: 'http',
    PutURL: `${url}/{subnetAddress}/{prefixLength}`,
    PutBody: { nextHop: '{publicIp}', comment: '{node}' },
    RemoveURL: `${url}/{subnetAddress}/{prefixLength}?nextHop={publicIp}`,
    ListURL: url,
    ListRoutes: 'data.routes',
    ListDestination: 'prefix',
    ListGateway: 'nextHop',
    Limit: 250,
    Headers: { Authorization: 'Bearer {credential}' },
    CredentialFile: credentialFile,
  }
}
