// aws-publisher.ts - publishes the route in route tables of Amazon VPC, with this instance's network interface as the
// route's target.
//
// Like flannel v0.13 (backend/awsvpc), the publisher uses the interface that has the node's address, and switches off
// the interface's source/destination check. It uses the route table of the interface's subnet, or else the main table
// of the VPC. Its log lines are flannel's.

import { messageOf, WeftError } from '../../../base/errors.ts'
import { formatAddress, formatNet } from '../../../net/address.ts'
import { AwsApi } from './aws-api.ts'
import { imdsHeaders } from './aws-credentials.ts'
import { readMetadata, requireHostName } from './metadata.ts'
import type { FabricRoute, Place, Publisher, RouteTable } from './publisher.ts'
import { textAt, elementsAt, type XmlElement } from './xml.ts'

/** The default quota of routes per route table (Amazon VPC quotas, "Non-propagated routes per route table"). */
const ROUTE_LIMIT = 50
const METADATA = 'http://169.254.169.254'
/** The domains of AWS's partitions (AWS SDK for JavaScript, dnsSuffix of each partition). */
const DOMAINS = new Set([
  'amazonaws.com',
  'amazonaws.com.cn',
  'amazonaws.eu',
  'c2s.ic.gov',
  'sc2s.sgov.gov',
  'cloud.adc-e.uk',
  'csp.hci.ic.gov',
])

/** A network interface of this instance. */
interface Interface {
  readonly id: string
  readonly subnetId: string
  readonly vpcId: string
}

export class AwsPublisher implements Publisher {
  readonly #tables: readonly string[]
  readonly #place: Place
  readonly #destination: string
  readonly #metadata: string

  /**
   * `tables` lists the ids of the route tables to use. If the list is empty, the publisher uses the route table of the
   * instance's subnet.
   */
  constructor(tables: readonly string[], place: Place) {
    this.#tables = tables
    this.#place = place
    this.#destination = formatNet(place.subnet)
    // AWS's own tools read the metadata server's URL from this environment variable too.
    this.#metadata = place.environment['AWS_EC2_METADATA_SERVICE_ENDPOINT']?.replace(/\/$/, '') ?? METADATA
  }

  async find(signal: AbortSignal): Promise<readonly RouteTable[]> {
    const { client, environment, log, address } = this.#place
    const headers = await imdsHeaders(client, this.#metadata, signal)
    const read = (path: string): Promise<string> =>
      readMetadata(client, `${this.#metadata}/latest/meta-data/${path}`, headers, signal)
    const region = requireHostName('the region', await read('placement/region'))
    const own = await this.#findInterface(read)
    log.info(`Found ${own.id} that has ${formatAddress(address)} IP address.`)
    const domain = await read('services/domain')
    /**
     * Returns the URL of an AWS service. AWS_ENDPOINT_URL_<SERVICE> or AWS_ENDPOINT_URL overrides the default URL, as
     * in AWS's own tools.
     */
    const urlOf = (service: string): string => {
      const given = environment[`AWS_ENDPOINT_URL_${service.toUpperCase()}`] ?? environment['AWS_ENDPOINT_URL']
      if (given === undefined) requireDomain(domain)
      return new URL(given ?? `https://${service}.${region}.${domain}`).href
    }
    const [endpoint, stsUrl] = [urlOf('ec2'), () => urlOf('sts')]
    const api = new AwsApi({ client, environment, region, endpoint, stsUrl, metadata: this.#metadata })
    await this.#disableCheck(api, own, signal)
    log.info(`Route table configured: ${this.#tables.length > 0}`)
    const tables = this.#tables.length > 0 ? this.#tables : [await this.#findTable(api, own, signal)]
    return tables.map((id) => this.#table(api, own, id))
  }

  /** Finds the network interface that has this node's address. */
  async #findInterface(read: (path: string) => Promise<string>): Promise<Interface> {
    const wanted = formatAddress(this.#place.address)
    for (const line of (await read('network/interfaces/macs/')).split('\n')) {
      const folder = `network/interfaces/macs/${line.trim().replace(/\/$/, '')}`
      if (!(await read(`${folder}/local-ipv4s`)).split('\n').includes(wanted)) continue
      return {
        id: await read(`${folder}/interface-id`),
        subnetId: await read(`${folder}/subnet-id`),
        vpcId: await read(`${folder}/vpc-id`),
      }
    }
    throw new WeftError('CONFIG', `unable to find ENI that matches the ${wanted} IP address`, {
      remedy: 'choose the external interface by --iface; its address must be one of the instance',
    })
  }

  /**
   * Switches off the interface's check that drops packets whose source or destination is not an address of the
   * interface.
   */
  async #disableCheck(api: AwsApi, { id }: Interface, signal: AbortSignal): Promise<void> {
    try {
      const parameters = { NetworkInterfaceId: id, 'SourceDestCheck.Value': 'false' }
      await api.call('ModifyNetworkInterfaceAttribute', parameters, signal)
    } catch (error) {
      signal.throwIfAborted()
      this.#place.log.warn(`failed to disable SourceDestCheck on ${id}: ${messageOf(error)}`)
    }
  }

  async #findTable(api: AwsApi, { subnetId, vpcId }: Interface, signal: AbortSignal): Promise<string> {
    const filters = [
      filterOf([['association.subnet-id', subnetId]]),
      // If no route table is associated with the subnet, read the main route table of the VPC, which AWS then uses for
      // the subnet.
      filterOf([
        ['association.main', 'true'],
        ['vpc-id', vpcId],
      ]),
    ]
    for (const filter of filters) {
      const [table] = await api.pages('DescribeRouteTables', filter, 'routeTableSet/item', signal)
      if (!table) continue
      const id = textAt(table, 'routeTableId')
      this.#place.log.info(`Found route table ${id}.`)
      return id
    }
    throw new WeftError('CONFIG', 'main route table not found', { remedy: 'set RouteTableID in Backend' })
  }

  #table(api: AwsApi, { id: interfaceId }: Interface, table: string): RouteTable {
    const { log } = this.#place
    const parameters = { RouteTableId: table, DestinationCidrBlock: this.#destination }
    return {
      name: table,
      limit: ROUTE_LIMIT,
      async list(signal) {
        const found = await api.pages('DescribeRouteTables', { 'RouteTableId.1': table }, 'routeTableSet/item', signal)
        return found
          .flatMap((each) => elementsAt(each, 'routeSet/item'))
          .flatMap((route) => routeOf(route, interfaceId))
      },
      put: async (signal) => {
        const more = { ...parameters, NetworkInterfaceId: interfaceId }
        const answer = await api.call('CreateRoute', more, signal, ['RouteAlreadyExists'])
        if (typeof answer === 'string') return 'exists'
        log.info(`Route added to table ${table}: ${this.#destination} - ${interfaceId}.`)
        return 'made'
      },
      async remove({ destination }, signal) {
        const which = { RouteTableId: table, DestinationCidrBlock: destination }
        await api.call('DeleteRoute', which, signal, ['InvalidRoute.NotFound'])
      },
    }
  }
}

/**
 * Throws WeftError FABRIC if the domain is not one of AWS's. An unknown domain means that the answer came from a server
 * other than AWS's metadata server.
 */
function requireDomain(domain: string): void {
  if (DOMAINS.has(domain)) return
  throw new WeftError('FABRIC', `the metadata server names the domain ${JSON.stringify(domain.slice(0, 100))}`, {
    remedy: 'run weftd on an instance of AWS, or set AWS_ENDPOINT_URL_EC2 and AWS_ENDPOINT_URL_STS',
  })
}

function filterOf(filters: readonly (readonly [name: string, value: string])[]): Record<string, string> {
  return Object.fromEntries(
    filters.flatMap(([name, value], at) => [
      [`Filter.${at + 1}.Name`, name],
      [`Filter.${at + 1}.Value.1`, value],
    ]),
  )
}

function routeOf(route: XmlElement, interfaceId: string): FabricRoute[] {
  // Routes to prefix lists and to IPv6 networks lack destinationCidrBlock. Skip them, because they never belong to this
  // IPv4 network.
  const destination = textAt(route, 'destinationCidrBlock')
  if (destination === '') return []
  const names = [
    'networkInterfaceId',
    'instanceId',
    'gatewayId',
    'natGatewayId',
    'transitGatewayId',
    'vpcPeeringConnectionId',
  ]
  const target = names.map((name) => textAt(route, name)).find((text) => text !== '') ?? 'an unknown target'
  const state = textAt(route, 'state') === 'blackhole' ? 'dead' : 'active'
  return [{ destination, target, isOwn: textAt(route, 'networkInterfaceId') === interfaceId, state }]
}
