// fake-aws.ts - EC2's Query API and its metadata server (IMDSv2), as far as route tables need them.

import { AwsPublisher } from '../../src/path/backends/fabric/aws-publisher.ts'
import type { Place } from '../../src/path/backends/fabric/publisher.ts'
import { signV4 } from '../../src/path/backends/fabric/sigv4.ts'
import { FakeFabric, text, type FakeAnswer, type FakeRequest, type FakeRoute } from './fake-fabric.ts'

const error = (status: number, code: string, message = `The message of ${code} &amp; more.`): FakeAnswer =>
  text(
    `<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error><Code>${code}</Code><Message>${message}</Message></Error></Errors><RequestID>1</RequestID></Response>`,
    status,
  )

export class FakeAws extends FakeFabric {
  readonly type = 'aws-vpc'
  readonly secrets = ['secret-of-aws', 'token-of-aws']
  readonly tables: readonly string[]
  /** The interfaces whose source/destination check is off. */
  readonly unchecked = new Set<string>()
  domain = 'amazonaws.com'

  constructor(tables: readonly string[] = []) {
    super()
    this.tables = tables
    this.region = 'eu-west-1'
  }

  publisher(place: Place): AwsPublisher {
    return new AwsPublisher(this.tables, place)
  }

  override place(node: number, subnet: string, log: Place['log'], more: Partial<Place> = {}): Place {
    const place = super.place(node, subnet, log, more)
    const servers = {
      AWS_EC2_METADATA_SERVICE_ENDPOINT: this.metadataOf(node),
      AWS_ENDPOINT_URL_EC2: `${this.address}/`,
    }
    return { ...place, environment: { ...servers, ...place.environment } }
  }

  protected throttle(): FakeAnswer {
    return error(503, 'RequestLimitExceeded')
  }

  protected answer(request: FakeRequest): FakeAnswer {
    const [, node, path] = /^\/node-(\d+)\/latest\/(.*)$/.exec(request.url.pathname) ?? []
    return node === undefined ? this.#call(request) : this.#metadata(Number(node), path ?? '', request)
  }

  #metadata(node: number, path: string, { method, headers }: FakeRequest): FakeAnswer {
    if (path === 'api/token') {
      const seconds = Number(headers['x-aws-ec2-metadata-token-ttl-seconds'])
      return method === 'PUT' && seconds >= 1 ? text('imds-token') : text('', 400)
    }
    if (headers['x-aws-ec2-metadata-token'] !== 'imds-token') return text('', 401)
    const mac = `02:00:00:00:00:0${node}`
    const values: Readonly<Record<string, string>> = {
      'placement/region': this.region,
      'services/domain': this.domain,
      'network/interfaces/macs/': `02:ff:ff:ff:ff:ff/\n${mac}/`,
      'network/interfaces/macs/02:ff:ff:ff:ff:ff/local-ipv4s': '198.51.100.1',
      [`network/interfaces/macs/${mac}/local-ipv4s`]: `198.51.100.2\n${this.addressOf(node)}`,
      [`network/interfaces/macs/${mac}/interface-id`]: `eni-${node}`,
      [`network/interfaces/macs/${mac}/subnet-id`]: 'subnet-1',
      [`network/interfaces/macs/${mac}/vpc-id`]: 'vpc-1',
      'iam/security-credentials/': 'a-role',
      'iam/security-credentials/a-role': JSON.stringify({
        AccessKeyId: `AKID${this.generation}`,
        SecretAccessKey: 'secret-of-aws',
        Token: `token-of-aws-${this.generation}`,
        Expiration: new Date(Date.now() + 3_600_000).toISOString(),
      }),
    }
    const value = values[path.replace(/^meta-data\//, '')]
    return value === undefined ? text('', 404) : text(value)
  }

  #call({ method, url, headers, body }: FakeRequest): FakeAnswer {
    const form = new URLSearchParams(body)
    const refusal = this.#refusal({ method, url, headers, body })
    if (refusal) return refusal
    const action = form.get('Action') ?? ''
    if (this.isReadOnly && !action.startsWith('Describe')) return error(403, 'UnauthorizedOperation')
    switch (action) {
      case 'ModifyNetworkInterfaceAttribute':
        this.unchecked.add(form.get('NetworkInterfaceId') ?? '')
        return text(
          '<ModifyNetworkInterfaceAttributeResponse><return>true</return></ModifyNetworkInterfaceAttributeResponse>',
        )
      case 'DescribeRouteTables':
        return this.#describe(form)
      case 'CreateRoute': {
        const destination = form.get('DestinationCidrBlock') ?? ''
        if (this.find(destination)) return error(400, 'RouteAlreadyExists')
        if (this.routes.length >= this.limit) return error(400, 'RouteLimitExceeded')
        this.put(destination, Number(form.get('NetworkInterfaceId')?.slice(4)))
        return text('<CreateRouteResponse><return>true</return></CreateRouteResponse>')
      }
      case 'DeleteRoute': {
        const destination = form.get('DestinationCidrBlock')
        const isGone = this.drop((route) => route.destination === destination)
        return isGone
          ? text('<DeleteRouteResponse><return>true</return></DeleteRouteResponse>')
          : error(400, 'InvalidRoute.NotFound')
      }
      default:
        return error(400, 'InvalidAction')
    }
  }

  /** Returns the answer to a request whose signature, time, region or token is wrong. */
  #refusal({ method, url, headers, body }: FakeRequest): FakeAnswer | undefined {
    const [, id, region = '', names = ''] =
      /^AWS4-HMAC-SHA256 Credential=(\w+)\/\d{8}\/([\w-]+)\/ec2\/aws4_request, SignedHeaders=([a-z0-9;-]+), Signature=[\da-f]{64}$/.exec(
        headers.authorization ?? '',
      ) ?? []
    if (id === undefined) return error(400, 'MissingAuthenticationToken')
    if (region !== 'eu-west-1') return error(401, 'AuthFailure')
    const date = String(headers['x-amz-date'])
    const at = Date.parse(date.replace(/^(....)(..)(..)T(..)(..)(..)Z$/, '$1-$2-$3T$4:$5:$6Z'))
    const token = headers['x-amz-security-token']
    if (this.isApart(at) || id !== `AKID${this.generation}` || token !== `token-of-aws-${this.generation}`)
      return error(400, 'RequestExpired')
    const own = new Set(['host', 'x-amz-date', 'x-amz-security-token'])
    const others = names.split(';').filter((name) => !own.has(name))
    const signed = Object.fromEntries(others.map((name) => [name, String(headers[name])]))
    const request = { method, url: `http://${headers.host}${url.pathname}${url.search}`, headers: signed, body }
    const keys = { accessKeyId: id, secretAccessKey: 'secret-of-aws', sessionToken: token }
    const { authorization } = signV4(request, keys, region, 'ec2', at)
    // The API repeats the headers that it signed.
    const repeated = `not signed: x-amz-security-token:${token} ${headers.authorization}`
    return authorization === headers.authorization ? undefined : error(403, 'SignatureDoesNotMatch', repeated)
  }

  #describe(form: URLSearchParams): FakeAnswer {
    const filter = form.get('Filter.1.Name')
    const of = (items: string, next = ''): FakeAnswer =>
      text(`<DescribeRouteTablesResponse><routeTableSet>${items}</routeTableSet>${next}</DescribeRouteTablesResponse>`)
    // The subnet has no association, so that the main table counts.
    if (filter === 'association.subnet-id') return of('')
    if (filter === 'association.main') return of('<item><routeTableId>rtb-1a</routeTableId></item>')
    const id = form.get('RouteTableId.1') ?? ''
    if (id !== 'rtb-1a') return error(400, 'InvalidRouteTableID.NotFound')
    const from = Number(form.get('NextToken') ?? '0')
    const all = this.listed()
    const page = all.slice(from, from + this.pageSize)
    const next = from + this.pageSize < all.length ? `<nextToken>${from + this.pageSize}</nextToken>` : '<nextToken/>'
    const fixed =
      '<item><destinationIpv6CidrBlock>::/0</destinationIpv6CidrBlock><gatewayId>igw-1</gatewayId><state>active</state></item>'
    return of(
      `<item><routeTableId>${id}</routeTableId><routeSet>${fixed}${page.map(itemOf).join('')}</routeSet></item>`,
      next,
    )
  }
}

const itemOf = ({ destination, node, state }: FakeRoute): string =>
  `<item><destinationCidrBlock>${destination}</destinationCidrBlock><networkInterfaceId>eni-${node}</networkInterfaceId>` +
  `<state>${state === 'dead' ? 'blackhole' : 'active'}</state><origin>CreateRoute</origin></item>`
