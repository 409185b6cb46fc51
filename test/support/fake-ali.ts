// fake-ali.ts - Alibaba Cloud's VPC API and its metadata server, as far as route tables need them.

import { Secret } from '../../src/base/secret.ts'
import { acs3Authorization } from '../../src/path/backends/fabric/acs3.ts'
import { AliPublisher } from '../../src/path/backends/fabric/ali-publisher.ts'
import type { Place } from '../../src/path/backends/fabric/publisher.ts'
import { FakeFabric, json, text, type FakeAnswer, type FakeRequest } from './fake-fabric.ts'

const error = (status: number, Code: string, Message = `The message of ${Code}.`): FakeAnswer =>
  json({ Code, Message, RequestId: '1', HostId: 'vpc' }, status)

/** The headers that a signature must contain ("Request syntax and signature method V3"). */
const REQUIRED = [
  'host',
  'x-acs-action',
  'x-acs-content-sha256',
  'x-acs-date',
  'x-acs-signature-nonce',
  'x-acs-version',
]

export class FakeAli extends FakeFabric {
  readonly type = 'ali-vpc'
  override readonly hasDead = false
  readonly secrets = ['secret-of-ali', 'token-of-ali']
  /** True if the metadata server answers only requests with a token, false if it gives no tokens. */
  isHardened = true

  constructor() {
    super()
    this.region = 'cn-hangzhou'
  }

  publisher(place: Place): AliPublisher {
    const keys = { accessKeyId: new Secret(''), accessKeySecret: new Secret('') }
    const node = Number(place.nodeName.slice(5))
    return new AliPublisher(keys, [], place, { api: this.address, metadata: this.metadataOf(node) })
  }

  protected throttle(): FakeAnswer {
    return error(400, 'Throttling.User')
  }

  protected answer(request: FakeRequest): FakeAnswer {
    const [, node, path] = /^\/node-(\d+)\/latest\/meta-data\/(.*)$/.exec(request.url.pathname) ?? []
    if (node !== undefined) return this.#metadata(Number(node), path ?? '', request)
    if (!request.url.pathname.endsWith('/latest/api/token')) return this.#call(request)
    const seconds = Number(request.headers['x-aliyun-ecs-metadata-token-ttl-seconds'])
    return this.isHardened && request.method === 'PUT' && seconds >= 1 ? text('a-token') : text('', 404)
  }

  #metadata(node: number, path: string, { headers }: FakeRequest): FakeAnswer {
    if (this.isHardened && headers['x-aliyun-ecs-metadata-token'] !== 'a-token') return text('', 403)
    const values: Readonly<Record<string, string>> = {
      'region-id': this.region,
      'instance-id': `i-${node}`,
      'vpc-id': 'vpc-1',
      'ram/security-credentials/': 'a-role',
      'ram/security-credentials/a-role': JSON.stringify({
        AccessKeyId: `AKID${this.generation}`,
        AccessKeySecret: 'secret-of-ali',
        SecurityToken: `token-of-ali-${this.generation}`,
        Expiration: new Date(Date.now() + 3_600_000).toISOString(),
        Code: 'Success',
      }),
    }
    const value = values[path]
    return value === undefined ? text('', 404) : text(value)
  }

  #call({ headers, body, url: { searchParams: query } }: FakeRequest): FakeAnswer {
    const [, id, names = ''] =
      /^ACS3-HMAC-SHA256 Credential=(\w+),SignedHeaders=([a-z0-9;-]+),Signature=[\da-f]{64}$/.exec(
        headers.authorization ?? '',
      ) ?? []
    if (id === undefined || REQUIRED.some((name) => !names.split(';').includes(name)))
      return error(400, 'IncompleteSignature')
    const signed = Object.fromEntries(names.split(';').map((name) => [name, String(headers[name])]))
    const keys = { id: `AKID${this.generation}`, secret: 'secret-of-ali' }
    if (this.isApart(Date.parse(String(headers['x-acs-date'])))) return error(400, 'InvalidTimeStamp.Expired')
    if (id !== keys.id) return error(403, 'InvalidSecurityToken.Expired')
    if (acs3Authorization({ query: Object.fromEntries(query), headers: signed, body }, keys) !== headers.authorization)
      // The API repeats the headers that it signed.
      return error(400, 'SignatureDoesNotMatch', `not signed: x-acs-security-token:${signed['x-acs-security-token']}`)
    if (query.get('RegionId') !== 'cn-hangzhou') return error(404, 'InvalidRegionId.NotFound')
    if (headers['x-acs-security-token'] !== `token-of-ali-${this.generation}`)
      return error(403, 'InvalidSecurityToken.Expired')
    const action = String(headers['x-acs-action'])
    if (this.isReadOnly && !action.startsWith('Describe')) return error(403, 'NoPermission')
    switch (action) {
      case 'DescribeRouteTableList':
        return json({
          RouterTableList: { RouterTableListType: [{ RouteTableId: 'vtb-1', RouteTableType: 'System' }] },
          RequestId: '1',
        })
      case 'DescribeRouteEntryList':
        return this.#list(query)
      case 'CreateRouteEntry': {
        const destination = query.get('DestinationCidrBlock') ?? ''
        if (this.find(destination)) return error(400, 'RouterEntryConflict.Duplicated')
        if (this.routes.length >= this.limit) return error(400, 'QuotaExceeded.RouteEntry')
        this.put(destination, Number(query.get('NextHopId')?.slice(2)), 'pending')
        return json({ RouteEntryId: 'rte-1', RequestId: '1' })
      }
      case 'DeleteRouteEntry': {
        const entry = query.get('RouteEntryId')?.slice(4)
        const isGone = this.drop((route) => route.id === entry)
        return isGone ? json({ RequestId: '1' }) : error(404, 'InvalidRouteEntry.NotFound')
      }
      default:
        return error(404, 'InvalidAction.NotFound')
    }
  }

  #list(query: URLSearchParams): FakeAnswer {
    const size = Math.min(this.pageSize, Number(query.get('MaxResult')))
    const from = Number(query.get('NextToken') ?? '0')
    const all = this.listed()
    const RouteEntry = all.slice(from, from + size).map(({ id, destination, node, state }) => ({
      RouteEntryId: `rte-${id}`,
      DestinationCidrBlock: destination,
      Type: 'Custom',
      Status: state === 'pending' ? 'Pending' : 'Available',
      NextHops: { NextHop: [{ NextHopId: `i-${node}`, NextHopType: 'Instance', Enabled: 1 }] },
    }))
    const NextToken = from + size < all.length ? String(from + size) : ''
    return json({ RouteEntrys: { RouteEntry }, NextToken, RequestId: '1' })
  }
}
