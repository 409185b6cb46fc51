// fake-tencent.ts - Tencent Cloud's VPC API and its metadata server, as far as route tables need them.

import { Secret } from '../../src/base/secret.ts'
import type { Place } from '../../src/path/backends/fabric/publisher.ts'
import { signTc3 } from '../../src/path/backends/fabric/tc3.ts'
import { TencentPublisher } from '../../src/path/backends/fabric/tencent-publisher.ts'
import { FakeFabric, json, text, type FakeAnswer, type FakeRequest } from './fake-fabric.ts'

/** The API answers with HTTP status 200 even if it reports an error. */
const error = (Code: string): FakeAnswer =>
  json({ Response: { Error: { Code, Message: `The message of ${Code}.` }, RequestId: '1' } })

export class FakeTencent extends FakeFabric {
  readonly type = 'tencent-vpc'
  // A disabled route to another node stays.
  override readonly deadNode = 1
  readonly secrets = ['secret-of-tencent', 'token-of-tencent']

  constructor() {
    super()
    this.region = 'ap-guangzhou'
  }

  publisher(place: Place): TencentPublisher {
    const keys = { accessKeyId: new Secret(''), accessKeySecret: new Secret('') }
    const node = Number(place.nodeName.slice(5))
    return new TencentPublisher(keys, [], place, { api: this.address, metadata: this.metadataOf(node) })
  }

  protected throttle(): FakeAnswer {
    return error('RequestLimitExceeded')
  }

  protected answer(request: FakeRequest): FakeAnswer {
    const [, node, path] = /^\/node-(\d+)\/latest\/meta-data\/(.*)$/.exec(request.url.pathname) ?? []
    return node === undefined ? this.#call(request) : this.#metadata(Number(node), path ?? '')
  }

  #metadata(node: number, path: string): FakeAnswer {
    const mac = `52:54:00:00:00:0${node}`
    const values: Readonly<Record<string, string>> = {
      'placement/region': this.region,
      mac,
      [`network/interfaces/macs/${mac}/vpc-id`]: 'vpc-1',
      [`network/interfaces/macs/${mac}/subnet-id`]: 'subnet-1',
      'cam/security-credentials/': 'a-role',
      'cam/security-credentials/a-role': JSON.stringify({
        TmpSecretId: `AKID${this.generation}`,
        TmpSecretKey: 'secret-of-tencent',
        Token: `token-of-tencent-${this.generation}`,
        ExpiredTime: Math.floor(Date.now() / 1000) + 3600,
        Code: 'Success',
      }),
    }
    const value = values[path]
    return value === undefined ? text('', 404) : text(value)
  }

  #call({ headers, body }: FakeRequest): FakeAnswer {
    const [, id, service = '', names = ''] =
      /^TC3-HMAC-SHA256 Credential=(\w+)\/[\d-]{10}\/(\w+)\/tc3_request, SignedHeaders=(content-type;host[a-z;-]*), Signature=[\da-f]{64}$/.exec(
        headers.authorization ?? '',
      ) ?? []
    const at = Number(headers['x-tc-timestamp'])
    if (this.isApart(at * 1000)) return error('AuthFailure.SignatureExpire')
    const [contentType, host] = [headers['content-type'] ?? '', headers.host ?? '']
    const more = names.split(';').slice(2)
    const signed = Object.fromEntries(more.map((name) => [name, String(headers[name]).toLowerCase()]))
    const keys = { id: `AKID${this.generation}`, secret: 'secret-of-tencent' }
    if (id !== undefined && id !== keys.id) return error('AuthFailure.TokenFailure')
    // The API has the usual port. For another port Tencent Cloud's own client signs the host without the port, and takes the first part of
    // the host as the name of the service.
    const places = [
      { host, service: 'vpc' },
      { host: host.replace(/:\d+$/, ''), service: host.split('.')[0] },
    ]
    const isSigned = places.some(
      (each) =>
        each.service === service &&
        signTc3({ host: each.host, contentType, body, signed }, keys, service, at) === headers.authorization,
    )
    if (!isSigned) return error('AuthFailure.SignatureFailure')
    if (headers['x-tc-region'] !== 'ap-guangzhou') return error('UnsupportedRegion')
    if (headers['x-tc-token'] !== `token-of-tencent-${this.generation}`) return error('AuthFailure.TokenFailure')
    const action = String(headers['x-tc-action'])
    if (this.isReadOnly && !action.startsWith('Describe')) return error('UnauthorizedOperation')
    const value = JSON.parse(body) as {
      Routes?: { DestinationCidrBlock?: string; GatewayId?: string; RouteId?: number }[]
    }
    const [route = {}] = value.Routes ?? []
    switch (action) {
      case 'DescribeRouteTables':
        return this.#list(body)
      case 'CreateRoutes': {
        const { DestinationCidrBlock: destination = '', GatewayId = '' } = route
        if (this.find(destination)) return error('InvalidParameterValue.Duplicate')
        if (this.routes.length >= this.limit) return error('LimitExceeded')
        this.put(destination, Number(GatewayId.split('.').at(-1)))
        return json({ Response: { RequestId: '1' } })
      }
      case 'DeleteRoutes': {
        const isGone = this.drop((each) => each.id === String(route.RouteId))
        return isGone ? json({ Response: { RequestId: '1' } }) : error('ResourceNotFound')
      }
      default:
        return error('InvalidAction')
    }
  }

  #list(body: string): FakeAnswer {
    const RouteTableSet = this.#tables(body)
    return json({ Response: { TotalCount: RouteTableSet.length, RouteTableSet, RequestId: '1' } })
  }

  #tables(body: string): object[] {
    const main = { RouteTableId: 'rtb-main', Main: true, AssociationSet: null, RouteSet: null }
    const RouteSet = this.listed().map(({ id, destination, node, state }) => ({
      RouteId: Number(id),
      DestinationCidrBlock: destination,
      GatewayType: 'NORMAL_CVM',
      GatewayId: this.addressOf(node),
      RouteType: 'USER',
      Enabled: state !== 'dead',
    }))
    const own = { RouteTableId: 'rtb-1', Main: false, AssociationSet: [{ SubnetId: 'subnet-1' }], RouteSet }
    return body.includes('rtb-1') ? [own] : [main, own]
  }
}
