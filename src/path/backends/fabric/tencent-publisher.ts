// tencent-publisher.ts - publishes the route in route tables of Tencent Cloud's VPC, with this instance's address as
// the route's gateway.
//
// The model is flannel v0.28.9 (pkg/backend/tencentvpc): the gateway type is NORMAL_CVM, the route type is USER, and a
// disabled route to this node is made again. flannel uses the first table of the VPC. This publisher uses the table of
// the instance's subnet, or else the main table.

import { WeftError } from '../../../base/errors.ts'
import { formatAddress, formatNet } from '../../../net/address.ts'
import { actionRefusal, jsonOf, refusalOf } from './api-client.ts'
import { cloudKeys, type CloudKeyPlaces, type ExpiringCloudKeys, type GivenKeys } from './cloud-keys.ts'
import { readMetadata } from './metadata.ts'
import type { FabricRoute, Place, Publisher, RouteTable } from './publisher.ts'
import { signTc3 } from './tc3.ts'

const API_VERSION = '2017-03-12'
const SERVICE = 'vpc'
/** The quota of routes per route table, according to Tencent Cloud's documentation. */
const ROUTE_LIMIT = 50
/** The number of tables on one page of an answer. weftd reads at most MOST_PAGES pages. */
const PAGE = 100
const MOST_PAGES = 100

/**
 * The remedies for the API's error codes whose cause an operator can correct. The remedy of `AuthFailure` also applies
 * to codes such as `AuthFailure.SecretIdNotFound`.
 */
const REMEDIES: Readonly<Record<string, string>> = {
  UnauthorizedOperation: 'give the keys the permissions in docs/cloud.md',
  AuthFailure: 'check the keys of Tencent Cloud and the clock of this host',
  LimitExceeded: 'request a higher quota of routes for each route table, or take a backend that has a tunnel',
  UnsupportedRegion: 'the region of the metadata server has no such API',
}

/** The URLs of Tencent Cloud's servers. */
interface TencentEndpoints {
  readonly api: string
  readonly metadata: string
}
const ENDPOINTS: TencentEndpoints = {
  api: 'https://vpc.tencentcloudapi.com',
  metadata: 'http://metadata.tencentyun.com',
}

interface JsonTable {
  readonly RouteTableId?: string
  readonly Main?: boolean
  readonly AssociationSet?: readonly { readonly SubnetId?: string }[]
  readonly RouteSet?: readonly JsonRoute[]
}
interface JsonRoute {
  readonly RouteId?: number
  readonly DestinationCidrBlock?: string
  readonly GatewayType?: string
  readonly GatewayId?: string
  readonly RouteType?: string
  readonly Enabled?: boolean
}

export class TencentPublisher implements Publisher {
  #keys: ExpiringCloudKeys | undefined
  #region = ''
  readonly #given: GivenKeys
  readonly #wanted: readonly string[]
  readonly #place: Place
  readonly #gateway: string
  readonly #endpoints: TencentEndpoints

  /**
   * `wanted` lists the ids of the route tables to use. If the list is empty, the publisher uses the route table of the
   * instance's subnet.
   */
  constructor(given: GivenKeys, wanted: readonly string[], place: Place, endpoints = ENDPOINTS) {
    this.#given = given
    this.#wanted = wanted
    this.#place = place
    this.#gateway = formatAddress(place.address)
    this.#endpoints = endpoints
  }

  async find(signal: AbortSignal): Promise<readonly RouteTable[]> {
    const read = (path: string): Promise<string> =>
      readMetadata(this.#place.client, `${this.#endpoints.metadata}/latest/meta-data/${path}`, {}, signal)
    this.#region = await read('placement/region')
    const mac = await read('mac')
    const folder = `network/interfaces/macs/${mac}`
    const vpcId = await read(`${folder}/vpc-id`)
    const subnetId = await read(`${folder}/subnet-id`)
    if (this.#wanted.length > 0) return this.#wanted.map((id) => this.#table(id))
    const tables = await this.#tables({ Filters: [{ Name: 'vpc-id', Values: [vpcId] }] }, signal)
    const ofSubnet = ({ AssociationSet }: JsonTable): boolean =>
      (AssociationSet ?? []).some(({ SubnetId }) => SubnetId === subnetId)
    const table = tables.find(ofSubnet) ?? tables.find(({ Main }) => Main) ?? tables[0]
    if (table?.RouteTableId === undefined)
      throw new WeftError('CONFIG', 'no suitable routing table found', { remedy: 'set RouteTableID in Backend' })
    return [this.#table(table.RouteTableId)]
  }

  #table(id: string): RouteTable {
    const { subnet, log } = this.#place
    const destination = formatNet(subnet)
    return {
      name: id,
      limit: ROUTE_LIMIT,
      list: async (signal) => {
        const [table] = await this.#tables({ RouteTableIds: [id] }, signal)
        if (!table)
          throw new WeftError('CONFIG', `there is no route table ${id}`, { remedy: 'correct RouteTableID in Backend' })
        return (table.RouteSet ?? []).flatMap((route) => this.#routeOf(route))
      },
      put: async (signal) => {
        const Routes = [
          { DestinationCidrBlock: destination, GatewayType: 'NORMAL_CVM', GatewayId: this.#gateway, Enabled: true },
        ]
        const expected = /^InvalidParameterValue\.Duplicate|^UnsupportedOperation\.Ecmp/
        const answer = await this.#call('CreateRoutes', { RouteTableId: id, Routes }, signal, expected)
        if (answer === undefined) return 'exists'
        log.info(`Route added to table ${id}: ${destination} - ${this.#gateway}.`)
        return 'made'
      },
      remove: async (route, signal) => {
        const Routes = [{ RouteId: Number(route.id) }]
        await this.#call('DeleteRoutes', { RouteTableId: id, Routes }, signal, /^ResourceNotFound/)
      },
    }
  }

  #routeOf({ RouteId, DestinationCidrBlock, GatewayType, GatewayId, RouteType, Enabled }: JsonRoute): FabricRoute[] {
    if (DestinationCidrBlock === undefined || RouteType !== 'USER') return []
    const isOwn = GatewayType === 'NORMAL_CVM' && GatewayId === this.#gateway
    // If a route to another node is disabled, an operator has disabled it. Such a route counts as active, so that weftd
    // leaves it in the table.
    const state = isOwn && Enabled === false ? 'dead' : 'active'
    const target = `${GatewayType ?? 'unknown'} ${GatewayId ?? ''}`.trim()
    return [{ destination: DestinationCidrBlock, target, isOwn, state, id: String(RouteId) }]
  }

  async #tables(query: object, signal: AbortSignal): Promise<readonly JsonTable[]> {
    const all: JsonTable[] = []
    for (let page = 0; page < MOST_PAGES; page++) {
      const more = { Offset: String(page * PAGE), Limit: String(PAGE) }
      const answer = await this.#call('DescribeRouteTables', { ...query, ...more }, signal)
      const { RouteTableSet, TotalCount = 0 } = answer as { RouteTableSet?: JsonTable[] | null; TotalCount?: number }
      const tables = RouteTableSet ?? []
      all.push(...tables)
      if (tables.length === 0 || all.length >= TotalCount) return all
    }
    throw new WeftError('FABRIC', 'DescribeRouteTables has no last page')
  }

  /**
   * Calls an action of the API. Returns undefined for an error whose code matches `expected`. Throws WeftError FABRIC
   * for every other error.
   */
  async #call(action: string, parameters: object, signal: AbortSignal, expected?: RegExp): Promise<object | undefined> {
    const { client } = this.#place
    if (!this.#keys || Date.now() >= this.#keys.until) this.#keys = await cloudKeys(this.#given, this.#places(), signal)
    const { keys } = this.#keys
    const url = new URL(this.#endpoints.api).href
    const body = JSON.stringify(parameters)
    const contentType = 'application/json; charset=utf-8'
    const at = Math.floor(Date.now() / 1000)
    const { host } = new URL(url)
    const signed = { 'x-tc-action': action.toLowerCase() }
    const headers = {
      authorization: signTc3({ host, contentType, body, signed }, keys, SERVICE, at),
      'content-type': contentType,
      'x-tc-action': action,
      'x-tc-version': API_VERSION,
      'x-tc-region': this.#region,
      'x-tc-timestamp': String(at),
      ...(keys.token === undefined ? {} : { 'x-tc-token': keys.token }),
    }
    const request = { method: 'POST', url, headers, body }
    const answer = await client.send(request, signal)
    if (answer.status !== 200) throw refusalOf(request, answer, action)
    // The API answers with HTTP status 200 even if it reports an error.
    const { Response: value } = jsonOf(request, answer) as {
      Response?: { Error?: { Code?: string; Message?: string } }
    }
    if (value && !value.Error) return value
    const { Code: code = '', Message: message } = value?.Error ?? {}
    if (expected?.test(code)) return undefined
    throw actionRefusal(request, answer, action, { code, message }, REMEDIES)
  }

  #places(): CloudKeyPlaces {
    const { client, environment } = this.#place
    return {
      cloud: 'Tencent Cloud',
      environment,
      variables: [
        ['ACCESS_KEY_ID', 'ACCESS_KEY_SECRET'],
        ['TENCENTCLOUD_SECRET_ID', 'TENCENTCLOUD_SECRET_KEY', 'TENCENTCLOUD_TOKEN'],
      ],
      client,
      roleUrl: `${this.#endpoints.metadata}/latest/meta-data/cam/security-credentials/`,
      members: ['TmpSecretId', 'TmpSecretKey', 'Token'],
      expires: ({ ExpiredTime }) => Number(ExpiredTime) * 1000,
    }
  }
}
