// ali-publisher.ts - publishes the route in route tables of Alibaba Cloud's VPC, with this ECS instance as the route's
// next hop.
//
// Like flannel v0.13 (backend/alivpc), the publisher uses the system route table of the VPC and the next hop type
// Instance, and logs a removed route with flannel's line. flannel called an API that no longer exists; this publisher
// calls the version 2016-04-28 of the product VPC.

import { randomUUID } from 'node:crypto'
import { WeftError } from '../../../base/errors.ts'
import { formatNet } from '../../../net/address.ts'
import { acs3Query, signAcs3 } from './acs3.ts'
import { actionRefusal, jsonOf } from './api-client.ts'
import { cloudKeys, type CloudKeyPlaces, type ExpiringCloudKeys, type GivenKeys } from './cloud-keys.ts'
import { readMetadata, requireHostName, tokenHeaders } from './metadata.ts'
import type { FabricRoute, Place, Publisher, RouteTable } from './publisher.ts'

const API_VERSION = '2016-04-28'
/**
 * The maximum number of custom entries of a route table, according to Alibaba Cloud's documentation of
 * CreateRouteEntry.
 */
const ROUTE_LIMIT = 200
/** The number of entries on one page of an answer. weftd reads at most MOST_PAGES pages. */
const PAGE = 100
const MOST_PAGES = 100

/**
 * The remedies for the API's error codes whose cause an operator can correct. The remedy of `Forbidden` also applies to
 * codes such as `Forbidden.RAM`.
 */
const REMEDIES: Readonly<Record<string, string>> = {
  NoPermission: 'give the keys the permissions in docs/cloud.md',
  Forbidden: 'give the keys the permissions in docs/cloud.md',
  InvalidAccessKeyId: 'check the keys of Alibaba Cloud',
  SignatureDoesNotMatch: 'check the secret key of Alibaba Cloud',
  InvalidTimeStamp: 'set the clock of this host',
  QuotaExceeded: 'request a higher quota of custom route entries, or take a backend that has a tunnel',
}

/** The URLs of the cloud's servers. If `api` is left out, the publisher derives the API's URL from the region. */
interface AliEndpoints {
  readonly api?: string
  readonly metadata: string
}
const ENDPOINTS: AliEndpoints = { metadata: 'http://100.100.100.200' }

interface JsonEntry {
  readonly RouteEntryId?: string
  readonly DestinationCidrBlock?: string
  readonly Status?: string
  readonly NextHops?: { readonly NextHop?: readonly { readonly NextHopId?: string; readonly NextHopType?: string }[] }
}

export class AliPublisher implements Publisher {
  #keys: ExpiringCloudKeys | undefined
  #region = ''
  #instance = ''
  readonly #given: GivenKeys
  readonly #wanted: readonly string[]
  readonly #place: Place
  readonly #endpoints: AliEndpoints

  /**
   * `wanted` lists the ids of the route tables to use. If the list is empty, the publisher uses the system route table
   * of the VPC.
   */
  constructor(given: GivenKeys, wanted: readonly string[], place: Place, endpoints = ENDPOINTS) {
    this.#given = given
    this.#wanted = wanted
    this.#place = place
    this.#endpoints = endpoints
  }

  async find(signal: AbortSignal): Promise<readonly RouteTable[]> {
    const { client } = this.#place
    const { metadata } = this.#endpoints
    const headers = await this.#metadataHeaders(signal)
    const read = (path: string): Promise<string> =>
      readMetadata(client, `${metadata}/latest/meta-data/${path}`, headers, signal)
    this.#region = requireHostName('the region', await read('region-id'))
    this.#instance = await read('instance-id')
    const vpcId = await read('vpc-id')
    if (this.#wanted.length > 0) return this.#wanted.map((id) => this.#table(id))
    const query = { VpcId: vpcId, RouterType: 'VRouter', RouteTableType: 'System' }
    const answer = await this.#call('DescribeRouteTableList', query, signal)
    interface JsonTables {
      readonly RouterTableList?: {
        readonly RouterTableListType?: readonly { readonly RouteTableId?: string; readonly RouteTableType?: string }[]
      }
    }
    const tables = (answer as JsonTables).RouterTableList?.RouterTableListType ?? []
    const table = tables.find(({ RouteTableType }) => RouteTableType === 'System') ?? tables[0]
    if (table?.RouteTableId === undefined)
      throw new WeftError('CONFIG', `the VPC ${vpcId} has no route table`, { remedy: 'set RouteTableID in Backend' })
    return [this.#table(table.RouteTableId)]
  }

  /**
   * Returns the headers of requests to the metadata server. If the instance is in Alibaba Cloud's security hardening
   * mode, the server answers only requests with a token.
   */
  async #metadataHeaders(signal: AbortSignal): Promise<Readonly<Record<string, string>>> {
    const { metadata } = this.#endpoints
    return (await tokenHeaders(this.#place.client, metadata, 'x-aliyun-ecs-metadata-token', signal)) ?? {}
  }

  #table(id: string): RouteTable {
    const { subnet, log } = this.#place
    const destination = formatNet(subnet)
    return {
      name: id,
      limit: ROUTE_LIMIT,
      list: (signal) => this.#list(id, signal),
      put: async (signal) => {
        const route = { DestinationCidrBlock: destination, NextHopType: 'Instance', NextHopId: this.#instance }
        const expected = /Duplicate|EntryAlreadyExist/
        const answer = await this.#call('CreateRouteEntry', { RouteTableId: id, ...route }, signal, expected)
        if (answer === undefined) return 'exists'
        log.info(`Route added to table ${id}: ${destination} - ${this.#instance}.`)
        return 'made'
      },
      remove: async ({ destination: to, target, id: entry }, signal) => {
        const which =
          entry === undefined
            ? { RouteTableId: id, DestinationCidrBlock: to, NextHopId: target }
            : { RouteEntryId: entry }
        await this.#call('DeleteRouteEntry', which, signal, /^(?:InvalidRouteEntry|RouterEntry).*NotFound/)
        log.info(`Remove old route entry: rtableid=${id}, CIDR=${to}, NextHop=${target}`)
      },
    }
  }

  async #list(table: string, signal: AbortSignal): Promise<readonly FabricRoute[]> {
    const routes: FabricRoute[] = []
    let token = ''
    for (let page = 0; page < MOST_PAGES; page++) {
      const query = { RouteTableId: table, RouteEntryType: 'Custom', MaxResult: String(PAGE) }
      const more: Record<string, string> = token === '' ? {} : { NextToken: token }
      const answer = await this.#call('DescribeRouteEntryList', { ...query, ...more }, signal)
      const value = answer as { RouteEntrys?: { RouteEntry?: readonly JsonEntry[] }; NextToken?: string }
      routes.push(...(value.RouteEntrys?.RouteEntry ?? []).flatMap((entry) => this.#routeOf(entry)))
      token = value.NextToken ?? ''
      if (token === '') return routes
    }
    throw new WeftError('FABRIC', 'DescribeRouteEntryList has no last page')
  }

  #routeOf({ RouteEntryId: id, DestinationCidrBlock: destination, Status, NextHops }: JsonEntry): FabricRoute[] {
    const hops = NextHops?.NextHop ?? []
    if (destination === undefined) return []
    const target = hops.map(({ NextHopId }) => NextHopId ?? '').join(',') || 'an unknown target'
    const state = Status === 'Available' ? 'active' : 'pending'
    return [{ destination, target, isOwn: target === this.#instance, state, ...(id === undefined ? {} : { id }) }]
  }

  /**
   * Calls an action of the API. Returns undefined for an error whose code matches `expected`. Throws WeftError FABRIC
   * for every other error.
   */
  async #call(
    action: string,
    parameters: Readonly<Record<string, string>>,
    signal: AbortSignal,
    expected?: RegExp,
  ): Promise<object | undefined> {
    if (!this.#keys || Date.now() >= this.#keys.until) this.#keys = await cloudKeys(this.#given, this.#places(), signal)
    const base = new URL(this.#endpoints.api ?? `https://vpc.${this.#region}.aliyuncs.com`)
    const query = { RegionId: this.#region, ...parameters }
    const signing = { host: base.host, action, version: API_VERSION, query }
    const headers = { ...signAcs3(signing, this.#keys.keys, Date.now(), randomUUID()), accept: 'application/json' }
    const request = { method: 'POST', url: `${base.origin}/?${acs3Query(query)}`, headers }
    const answer = await this.#place.client.send(request, signal)
    const value = jsonOf(request, answer) as { Code?: string; Message?: string }
    if (answer.status === 200) return value
    const { Code: code = '', Message: message } = value
    if (expected?.test(code)) return undefined
    throw actionRefusal(request, answer, action, { code, message }, REMEDIES)
  }

  #places(): CloudKeyPlaces {
    const { client, environment } = this.#place
    return {
      cloud: 'Alibaba Cloud',
      environment,
      variables: [
        ['ACCESS_KEY_ID', 'ACCESS_KEY_SECRET'],
        ['ALIBABA_CLOUD_ACCESS_KEY_ID', 'ALIBABA_CLOUD_ACCESS_KEY_SECRET', 'ALIBABA_CLOUD_SECURITY_TOKEN'],
      ],
      client,
      roleUrl: `${this.#endpoints.metadata}/latest/meta-data/ram/security-credentials/`,
      roleHeaders: (signal) => this.#metadataHeaders(signal),
      members: ['AccessKeyId', 'AccessKeySecret', 'SecurityToken'],
      expires: ({ Expiration }) => Date.parse(String(Expiration)),
    }
  }
}
