// clients.test.ts - the clouds' own clients send the requests of weft's publishers to the fake servers. So the clients check the requests of
// weft, the answers of the fakes, and the signatures of both. Google's documents describe requests over HTTP and no client.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type Ali from '@alicloud/openapi-client'
import {
  CreateRouteCommand,
  DeleteRouteCommand,
  DescribeRouteTablesCommand,
  EC2Client,
  ModifyNetworkInterfaceAttributeCommand,
  paginateDescribeRouteTables,
} from '@aws-sdk/client-ec2'
import type * as Tencent from 'tencentcloud-sdk-nodejs-common'
import { afterEach, beforeAll, describe, expect, it, vi } from 'vitest'
import { ApiClient } from '../../../../../src/path/backends/fabric/api-client.ts'
import { awsKeys } from '../../../../../src/path/backends/fabric/aws-credentials.ts'
import { FakeAli } from '../../../../support/fake-ali.ts'
import { FakeAws } from '../../../../support/fake-aws.ts'
import { createLogged, type FakeFabric, type FakeRequest } from '../../../../support/fake-fabric.ts'
import { FakeTencent } from '../../../../support/fake-tencent.ts'

// Vitest and Node.js import packages of CommonJS in different forms.
const require = createRequire(import.meta.url)
const ali = require('@alicloud/openapi-client') as typeof Ali
const tencent = require('tencentcloud-sdk-nodejs-common') as typeof Tencent

const SUBNET = '10.5.1.0/24'
const never = new AbortController().signal

/** Keys of the fakes. `secret` replaces the secret key, and `generation` the generation of the token. */
interface Keys {
  readonly secret?: string
  readonly generation?: number
}

/** A cloud's own client, with the operations of a route table. Each operation rejects with the client's error. */
interface CloudClient {
  list(): Promise<readonly string[]>
  put(): Promise<unknown>
  remove(): Promise<unknown>
}

interface Cloud {
  readonly make: () => FakeFabric
  readonly client: (fabric: FakeFabric, keys?: Keys) => CloudClient
  /** The parts of a request that the API acts upon. */
  readonly partsOf: (request: FakeRequest) => unknown
  /** Returns the API's code in an error of the client. */
  readonly codeOf: (error: unknown) => string
  /** The API's codes for a route that exists, too many requests, an expired token and a wrong signature. */
  readonly codes: readonly [exists: string, throttled: string, expired: string, signature: string]
}

function ec2Of(
  fabric: FakeFabric,
  { secret = 'secret-of-aws', generation = 1 }: Keys = {},
  maxAttempts = 1,
): EC2Client {
  const keys = { accessKeyId: `AKID${generation}`, secretAccessKey: secret, sessionToken: `token-of-aws-${generation}` }
  return new EC2Client({ region: 'eu-west-1', endpoint: fabric.url, credentials: keys, maxAttempts })
}

const AWS: Cloud = {
  make: () => new FakeAws(['rtb-1a']),
  client: (fabric, keys) => {
    const client = ec2Of(fabric, keys)
    const route = { RouteTableId: 'rtb-1a', DestinationCidrBlock: SUBNET }
    return {
      async list() {
        const found: string[] = []
        for await (const { RouteTables = [] } of paginateDescribeRouteTables({ client }, { RouteTableIds: ['rtb-1a'] }))
          for (const { Routes = [] } of RouteTables)
            for (const { DestinationCidrBlock: to, NetworkInterfaceId: via, State } of Routes)
              if (to !== undefined) found.push(`${to} ${via} ${State === 'blackhole' ? 'dead' : State}`)
        return found
      },
      put: () => client.send(new CreateRouteCommand({ ...route, NetworkInterfaceId: 'eni-1' })),
      remove: () => client.send(new DeleteRouteCommand(route)),
    }
  },
  partsOf: ({ method, url, body }) => [method, url.pathname, Object.fromEntries(new URLSearchParams(body))],
  codeOf: (error) => (error as Error).name,
  codes: ['RouteAlreadyExists', 'RequestLimitExceeded', 'RequestExpired', 'SignatureDoesNotMatch'],
}

const ALI: Cloud = {
  make: () => new FakeAli(),
  client: (fabric, { secret = 'secret-of-ali', generation = 1 } = {}) => {
    const client = new ali.default(
      new ali.Config({
        accessKeyId: `AKID${generation}`,
        accessKeySecret: secret,
        securityToken: `token-of-ali-${generation}`,
        endpoint: new URL(fabric.url).host,
        regionId: 'cn-hangzhou',
      }),
    )
    const common = { version: '2016-04-28', protocol: 'HTTP', method: 'POST', pathname: '/' }
    const style = { authType: 'AK', style: 'RPC', reqBodyType: 'formData', bodyType: 'json' }
    const call = async (action: string, query: Record<string, string>): Promise<object> => {
      const request = new ali.OpenApiRequest({ query: { RegionId: 'cn-hangzhou', ...query } })
      const runtime = { autoretry: false } as Parameters<typeof client.callApi>[2]
      const answer = (await client.callApi(
        new ali.Params({ action, ...common, ...style }),
        request,
        runtime,
      )) as unknown
      return (answer as { body: object }).body
    }
    interface Entry {
      readonly RouteEntryId: string
      readonly DestinationCidrBlock: string
      readonly NextHops: { readonly NextHop: readonly { readonly NextHopId: string }[] }
    }
    const entries = async (): Promise<readonly Entry[]> => {
      const found: Entry[] = []
      for (let token = ''; ;) {
        const query = { RouteTableId: 'vtb-1', RouteEntryType: 'Custom', MaxResult: '100' }
        const more = token === '' ? {} : { NextToken: token }
        const answer = (await call('DescribeRouteEntryList', { ...query, ...more })) as {
          RouteEntrys: { RouteEntry: Entry[] }
          NextToken: string
        }
        found.push(...answer.RouteEntrys.RouteEntry)
        token = answer.NextToken
        if (token === '') return found
      }
    }
    const where = { RouteTableId: 'vtb-1', DestinationCidrBlock: SUBNET }
    return {
      list: async () =>
        (await entries()).map((each) => `${each.DestinationCidrBlock} ${each.NextHops.NextHop[0]?.NextHopId} active`),
      put: () => call('CreateRouteEntry', { ...where, NextHopType: 'Instance', NextHopId: 'i-1' }),
      remove: () => call('DeleteRouteEntry', { RouteEntryId: `rte-${fabric.routes[0]?.id}` }),
    }
  },
  partsOf: ({ method, url, headers, body }) => [
    method,
    url.pathname,
    headers['x-acs-action'],
    headers['x-acs-version'],
    Object.fromEntries(url.searchParams),
    body,
  ],
  codeOf: (error) => (error as { code: string }).code,
  codes: ['RouterEntryConflict.Duplicated', 'Throttling.User', 'InvalidSecurityToken.Expired', 'SignatureDoesNotMatch'],
}

const TENCENT: Cloud = {
  make: () => new FakeTencent(),
  client: (fabric, { secret = 'secret-of-tencent', generation = 1 } = {}) => {
    const client = new tencent.CommonClient(new URL(fabric.url).host, '2017-03-12', {
      credential: { secretId: `AKID${generation}`, secretKey: secret, token: `token-of-tencent-${generation}` },
      region: 'ap-guangzhou',
      profile: { httpProfile: { protocol: 'http://' } },
    })
    interface Table {
      readonly RouteSet: readonly { DestinationCidrBlock: string; GatewayId: string; Enabled: boolean }[]
    }
    const route = { DestinationCidrBlock: SUBNET, GatewayType: 'NORMAL_CVM', GatewayId: '192.0.2.1', Enabled: true }
    return {
      async list() {
        const query = { RouteTableIds: ['rtb-1'], Offset: '0', Limit: '100' }
        const { RouteTableSet } = (await client.request('DescribeRouteTables', query)) as { RouteTableSet: Table[] }
        return RouteTableSet.flatMap(({ RouteSet }) =>
          RouteSet.map(
            ({ DestinationCidrBlock: to, GatewayId, Enabled }) =>
              `${to} NORMAL_CVM ${GatewayId} ${Enabled ? 'active' : 'dead'}`,
          ),
        )
      },
      put: () => client.request('CreateRoutes', { RouteTableId: 'rtb-1', Routes: [route] }),
      remove: () =>
        client.request('DeleteRoutes', { RouteTableId: 'rtb-1', Routes: [{ RouteId: Number(fabric.routes[0]?.id) }] }),
    }
  },
  partsOf: ({ method, url, headers, body }) => [
    method,
    url.pathname,
    headers['x-tc-action'],
    headers['x-tc-version'],
    headers['x-tc-region'],
    JSON.parse(body) as unknown,
  ],
  codeOf: (error) => (error as { code: string }).code,
  codes: [
    'InvalidParameterValue.Duplicate',
    'RequestLimitExceeded',
    'AuthFailure.TokenFailure',
    'AuthFailure.SignatureFailure',
  ],
}

// The client warns of Node.js 20.
vi.stubEnv('AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED', 'true')

/** Servers that a test started. */
const running: { close(): unknown }[] = []
afterEach(async () => {
  for (const server of running.splice(0)) await server.close()
  vi.unstubAllEnvs()
})

describe.each([
  ['aws-vpc', AWS],
  ['ali-vpc', ALI],
  ['tencent-vpc', TENCENT],
])("the cloud's own client for %s", (_type, { make, client, partsOf, codeOf, codes }) => {
  async function start(): Promise<FakeFabric> {
    const fabric = await make().start()
    running.push(fabric)
    return fabric
  }
  const failure = (promise: Promise<unknown>): Promise<string> =>
    promise.then(
      () => 'no error',
      (error: unknown) => codeOf(error),
    )

  it('sends the same requests as weft, and reads the same routes', async () => {
    const fabric = await start()
    const publisher = fabric.publisher(fabric.place(1, SUBNET, createLogged().log))
    const [table] = await publisher.find(never)
    /** Runs the operations on the same routes. Returns the requests and the routes that were read. */
    const runWith = async (
      put: () => Promise<unknown>,
      list: () => Promise<readonly string[]>,
      remove: () => Promise<unknown>,
    ) => {
      fabric.requests.length = 0
      await put()
      fabric.add('10.5.2.0/24', 2)
      await list() // a route of Alibaba Cloud is pending in the first list
      const routes = await list()
      await remove()
      expect(fabric.routes.map(({ destination }) => destination)).toEqual(['10.5.2.0/24'])
      fabric.routes = []
      return { requests: fabric.requests.map(partsOf), routes }
    }
    // The ids of routes are numbers that grow, so both runs begin with the same number.
    const own = await runWith(
      () => table!.put(never),
      async () =>
        (await table!.list(never)).map(({ destination, target, state }) => `${destination} ${target} ${state}`),
      async () => {
        const [route] = await table!.list(never)
        await table!.remove(route!, never)
      },
    )
    fabric.restartIds()
    const cloud = client(fabric)
    const theirs = await runWith(
      () => cloud.put(),
      () => cloud.list(),
      async () => {
        await cloud.list()
        return cloud.remove()
      },
    )
    expect(theirs.requests).toHaveLength(5)
    expect(own.requests).toEqual(theirs.requests)
    expect(theirs.routes).toHaveLength(2)
    expect(own.routes).toEqual(theirs.routes)
  })

  it('reads all pages, and the codes of errors', async () => {
    const fabric = await start()
    fabric.pageSize = 7
    for (let third = 0; third < 20; third++) fabric.add(`10.5.${100 + third}.0/24`, 2)
    const cloud = client(fabric)
    expect(await cloud.list()).toHaveLength(20)
    await cloud.put()
    expect(await failure(cloud.put())).toBe(codes[0])
    fabric.throttled = 1
    expect(await failure(cloud.list())).toBe(codes[1])
    expect(await failure(client(fabric, { secret: 'another' }).list())).toBe(codes[3])
    fabric.generation = 2
    expect(await failure(cloud.list())).toBe(codes[2])
    expect(await client(fabric, { generation: 2 }).list()).toHaveLength(21)
  })
})

describe("AWS's own client", () => {
  it("sends the same requests as weft to find the interface's route table", async () => {
    const fabric = await new FakeAws().start()
    running.push(fabric)
    await fabric.publisher(fabric.place(1, SUBNET, createLogged().log)).find(never)
    const own = fabric.requests.filter(({ url }) => url.pathname === '/').map(AWS.partsOf)
    fabric.requests.length = 0
    const client = ec2Of(fabric)
    const check = { NetworkInterfaceId: 'eni-1', SourceDestCheck: { Value: false } }
    await client.send(new ModifyNetworkInterfaceAttributeCommand(check))
    const [bySubnet, byMain] = [
      [{ Name: 'association.subnet-id', Values: ['subnet-1'] }],
      [
        { Name: 'association.main', Values: ['true'] },
        { Name: 'vpc-id', Values: ['vpc-1'] },
      ],
    ]
    for (const Filters of [bySubnet, byMain]) await client.send(new DescribeRouteTablesCommand({ Filters }))
    expect(own).toEqual(fabric.requests.map(AWS.partsOf))
  })

  it('tries again after too many requests, and with the time of the API', async () => {
    const fabric = await new FakeAws().start()
    running.push(fabric)
    const command = new DescribeRouteTablesCommand({ RouteTableIds: ['rtb-1a'] })
    fabric.throttled = 1
    await ec2Of(fabric, {}, 3).send(command)
    fabric.aheadMs = 400_000
    await ec2Of(fabric, {}, 3).send(command)
    expect(fabric.requests).toHaveLength(4)
  })
})

describe("AWS's own client finds the keys that weft finds", () => {
  let folder: string
  let base: string
  let sts: URLSearchParams | undefined
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'weft-clients-'))
    writeFileSync(join(folder, 'token'), 'token-of-a-pod')
    writeFileSync(
      join(folder, 'shared'),
      '[default]\naws_access_key_id = ID-shared\naws_secret_access_key = KEY-shared\naws_session_token = TOKEN-shared\n',
    )
    return () => rmSync(folder, { recursive: true })
  })

  const EXPIRES = new Date(Date.now() + 3_600_000).toISOString()
  /** A server of STS, of a container and of an instance. */
  async function serve(): Promise<void> {
    const server = createServer((request, response) => {
      let body = ''
      request.on('data', (piece: Buffer) => (body += piece.toString()))
      request.on('end', () => {
        const keys = (name: string): string =>
          JSON.stringify({
            Code: 'Success',
            AccessKeyId: `ID-${name}`,
            SecretAccessKey: `KEY-${name}`,
            Token: `TOKEN-${name}`,
            Expiration: EXPIRES,
          })
        const { url = '', method, headers } = request
        if (url === '/container') {
          const isKnown = headers.authorization === 'token-of-a-pod'
          return void response.writeHead(isKnown ? 200 : 403).end(isKnown ? keys('container') : '{}')
        }
        if (url === '/latest/api/token') return void response.end(method === 'PUT' ? 'imds-token' : '')
        if (url.endsWith('/iam/security-credentials/')) return void response.end('a-role')
        if (url.endsWith('/iam/security-credentials/a-role')) return void response.end(keys('instance'))
        sts = new URLSearchParams(body)
        if (sts.get('WebIdentityToken') !== 'token-of-a-pod')
          return void response
            .writeHead(403)
            .end(
              `<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied.${sts.get('WebIdentityToken')}</Code><Message>not ${sts.get('WebIdentityToken')}</Message></Error></ErrorResponse>`,
            )
        response.end(
          '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>' +
            '<Credentials><AccessKeyId>ID-identity</AccessKeyId><SecretAccessKey>KEY-identity</SecretAccessKey>' +
            `<SessionToken>TOKEN-identity</SessionToken><Expiration>${EXPIRES}</Expiration></Credentials>` +
            '</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>',
        )
      })
    })
    running.push({ close: () => (server.closeAllConnections(), server.close()) })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }

  const PLACES: readonly (readonly [name: string, environment: () => Record<string, string>])[] = [
    ['env', () => ({ AWS_ACCESS_KEY_ID: 'ID-env', AWS_SECRET_ACCESS_KEY: 'KEY-env', AWS_SESSION_TOKEN: 'TOKEN-env' })],
    ['shared', () => ({ AWS_SHARED_CREDENTIALS_FILE: join(folder, 'shared') })],
    ['identity', () => ({ AWS_WEB_IDENTITY_TOKEN_FILE: join(folder, 'token'), AWS_ROLE_ARN: 'arn:aws:iam::1:role/a' })],
    [
      'container',
      () => ({
        AWS_CONTAINER_CREDENTIALS_FULL_URI: `${base}/container`,
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: join(folder, 'token'),
      }),
    ],
    ['instance', () => ({})],
  ]

  it.each(PLACES.map(([name], at) => [name, at] as const))('in %s, before the later places', async (name, at) => {
    await serve()
    const given = Object.assign({}, ...PLACES.slice(at).map(([, make]) => make())) as Record<string, string>
    const environment: Record<string, string> = {
      AWS_SHARED_CREDENTIALS_FILE: '/nonexistent',
      AWS_CONFIG_FILE: '/nonexistent',
      AWS_EC2_METADATA_SERVICE_ENDPOINT: base,
      AWS_ENDPOINT_URL_STS: base,
      AWS_ROLE_SESSION_NAME: 'a-session',
      AWS_REGION: 'eu-west-1',
      ...given,
    }
    for (const [variable, value] of Object.entries(environment)) vi.stubEnv(variable, value)
    const theirs = await new EC2Client({ region: 'eu-west-1' }).config.credentials()
    const theirForm = sts && Object.fromEntries(sts)
    sts = undefined
    const { keys } = await awsKeys({ environment, client: new ApiClient(), stsUrl: () => base, metadata: base }, never)
    const { accessKeyId, secretAccessKey, sessionToken } = theirs
    expect(keys).toEqual({ accessKeyId, secretAccessKey, sessionToken })
    expect(accessKeyId).toBe(`ID-${name}`)
    expect(sts && Object.fromEntries(sts)).toEqual(theirForm)
    sts = undefined
  })

  it('and weft shows no token that STS repeats, and sends no token to another host', async () => {
    await serve()
    writeFileSync(join(folder, 'other'), 'a-token-that-is-wrong')
    const environment = { AWS_SHARED_CREDENTIALS_FILE: '/nonexistent' }
    const find = (more: Record<string, string>) =>
      awsKeys(
        { environment: { ...environment, ...more }, client: new ApiClient(), stsUrl: () => base, metadata: base },
        never,
      )
    const identity = { AWS_WEB_IDENTITY_TOKEN_FILE: join(folder, 'other'), AWS_ROLE_ARN: 'arn:aws:iam::1:role/a' }
    await expect(find(identity)).rejects.toThrow(/403 AssumeRoleWithWebIdentity: AccessDenied\.<hidden> not <hidden>$/)
    await expect(find({ ...identity, AWS_WEB_IDENTITY_TOKEN_FILE: join(folder, 'none') })).rejects.toThrow(
      /^cannot read the file of AWS_WEB_IDENTITY_TOKEN_FILE: ENOENT/,
    )
    for (const url of ['http://192.0.2.1/', 'http://169.254.170.2.evil.example/', 'file:///etc/shadow', 'x'])
      await expect(find({ AWS_CONTAINER_CREDENTIALS_FULL_URI: url })).rejects.toMatchObject({ code: 'CONFIG' })
  })
})
