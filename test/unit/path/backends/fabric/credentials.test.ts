// credentials.test.ts - the sources of a cloud's access keys, and their order.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import { parseIpv4Net } from '../../../../../src/net/ipv4.ts'
import { actionRefusal, ApiClient, hideIn } from '../../../../../src/path/backends/fabric/api-client.ts'
import { awsKeys } from '../../../../../src/path/backends/fabric/aws-credentials.ts'
import { cloudKeys, type CloudKeyPlaces } from '../../../../../src/path/backends/fabric/cloud-keys.ts'
import { RouteKeeper } from '../../../../../src/path/backends/fabric/route-keeper.ts'
import { readXml } from '../../../../../src/path/backends/fabric/xml.ts'
import { FakeAli } from '../../../../support/fake-ali.ts'
import { FakeAws } from '../../../../support/fake-aws.ts'
import { createLogged } from '../../../../support/fake-fabric.ts'
import { FakeGce } from '../../../../support/fake-gce.ts'

const never = new AbortController().signal
const client = new ApiClient()
const hasty = new ApiClient({ answerMs: 300 })
const noKeys = { accessKeyId: new Secret(''), accessKeySecret: new Secret('') }
const placesAt = (base: string, by: ApiClient): CloudKeyPlaces => ({
  cloud: 'A Cloud',
  environment: {},
  variables: [['ACCESS_KEY_ID', 'ACCESS_KEY_SECRET']],
  client: by,
  roleUrl: `${base}/role/`,
  members: ['Id', 'Key', 'Token'],
  expires: () => Number.NaN,
})
const NOWHERE = 'http://127.0.0.1:1'
const NO_FILE = { AWS_SHARED_CREDENTIALS_FILE: '/nonexistent' }
const awsPlaces = (environment: Readonly<Record<string, string>>, metadata: string, by = client) => ({
  environment,
  client: by,
  stsUrl: () => NOWHERE,
  metadata,
})

let folder: string
let shared: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-keys-'))
  shared = join(folder, 'credentials')
  const members = (name: string) =>
    `aws_access_key_id = ID-${name}\naws_secret_access_key=KEY-${name}\naws_session_token = TOKEN-${name}\n`
  writeFileSync(shared, `# a comment\n[default]\n${members('default')}\n[ other ]\n${members('other')}`)
})
afterEach(() => rmSync(folder, { recursive: true }))

const file = () => ({ AWS_SHARED_CREDENTIALS_FILE: shared })
const given = { AWS_ACCESS_KEY_ID: 'ID-env', AWS_SECRET_ACCESS_KEY: 'KEY-env' }

it.each([
  ['the environment', () => ({ ...given, AWS_SESSION_TOKEN: 'TOKEN-env', ...file() }), 'env', 'TOKEN-env'],
  ["flannel's name of the token", () => ({ ...given, AWS_SECURITY_TOKEN: 'TOKEN-old' }), 'env', 'TOKEN-old'],
  ['the shared file', () => file(), 'default', 'TOKEN-default'],
  ['another profile of the shared file', () => ({ AWS_PROFILE: 'other', ...file() }), 'other', 'TOKEN-other'],
])('keys of AWS come from %s', async (_where, environment, name, token) => {
  const { keys } = await awsKeys(awsPlaces(environment(), NOWHERE), never)
  expect(keys).toEqual({ accessKeyId: `ID-${name}`, secretAccessKey: `KEY-${name}`, sessionToken: token })
})

it('keys of AWS come from the role of the instance if there are no others', async () => {
  const fabric = await new FakeAws().start()
  try {
    const { AWS_EC2_METADATA_SERVICE_ENDPOINT: base = '' } = fabric.place(
      1,
      '10.5.1.0/24',
      createLogged().log,
    ).environment
    const { keys, until } = await awsKeys(awsPlaces(NO_FILE, base), never)
    expect(keys).toMatchObject({ accessKeyId: 'AKID1', sessionToken: 'token-of-aws-1' })
    expect(until).toBeGreaterThan(Date.now() + 3_000_000)
    const role = { AWS_PROFILE: 'none', ...file() }
    expect((await awsKeys(awsPlaces(role, base), never)).keys.accessKeyId).toBe('AKID1')
  } finally {
    await fabric.close()
  }
})

it.each(['ID', ''])(
  'keys of a cloud come from the configuration, the environment or the metadata server: %s',
  async (id) => {
    const places = (environment: Readonly<Record<string, string>>): CloudKeyPlaces => ({
      cloud: 'A Cloud',
      environment,
      variables: [
        ['ACCESS_KEY_ID', 'ACCESS_KEY_SECRET'],
        ['NEW_ID', 'NEW_SECRET', 'NEW_TOKEN'],
      ],
      client,
      roleUrl: `${NOWHERE}/role/`,
      members: ['Id', 'Key', 'Token'],
      expires: () => Number.NaN,
    })
    const configured = { accessKeyId: new Secret(id), accessKeySecret: new Secret('KEY') }
    const old = { ACCESS_KEY_ID: 'old', ACCESS_KEY_SECRET: 'old-key' }
    const newer = { NEW_ID: 'new', NEW_SECRET: 'new-key', NEW_TOKEN: 'token' }
    const idOf = async (environment: Readonly<Record<string, string>>) =>
      (await cloudKeys(configured, places(environment), never)).keys.id
    expect(await idOf({ ...newer, ...old })).toBe(id || 'old')
    expect(await idOf(newer)).toBe(id || 'new')
    // weftd does not use half a pair of keys, and requests a role from the metadata server.
    const half = { accessKeyId: new Secret('ID'), accessKeySecret: new Secret('') }
    await expect(cloudKeys(half, places({ NEW_ID: 'new' }), never)).rejects.toThrow(
      /^GET 127\.0\.0\.1:1\/role\/: no answer: /,
    )
  },
)

it.each([
  ['aws', (base: string, by: ApiClient) => awsKeys(awsPlaces(NO_FILE, base, by), never)],
  ['another cloud', (base: string, by: ApiClient) => cloudKeys(noKeys, placesAt(base, by), never)],
])('a metadata server that hangs or fails is not taken for a missing role: %s', async (_cloud, keys) => {
  let status: number | undefined
  const server = createServer((request, response) => {
    if (request.method === 'PUT') response.end('a-token')
    else if (status !== undefined) response.writeHead(status).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const remedy = 'run weftd on an instance of that cloud, with access to its metadata server'
  try {
    const hung = expect.stringMatching(/no complete answer within 0\.3 s$/) as string
    await expect(keys(base, hasty)).rejects.toMatchObject({ code: 'FABRIC', message: hung, remedy })
    status = 500
    const failed = expect.stringMatching(/500 the metadata server refused$/) as string
    await expect(keys(base, client)).rejects.toMatchObject({ code: 'FABRIC', message: failed, remedy })
    status = 404
    const none = expect.stringMatching(
      /^there are no keys of (?:AWS|A Cloud: ACCESS_KEY_ID and ACCESS_KEY_SECRET must be provided)$/,
    ) as string
    await expect(keys(base, client)).rejects.toMatchObject({ code: 'CONFIG', message: none })
  } finally {
    server.closeAllConnections()
    server.close()
  }
})

it.each([
  ['aws', () => new FakeAws(), '127.0.0.1:1/x'],
  ['ali', () => new FakeAli(), '127.0.0.1:1/x'],
  // The servers below such names can belong to a customer of the cloud.
  ['aws', () => new FakeAws(), 'a-bucket.s3'],
  ['ali', () => new FakeAli(), 'a-bucket.oss-cn-hangzhou'],
])('a region that would make another host of the URL is refused: %s', async (_cloud, make, region) => {
  const fabric = await make().start()
  fabric.region = region
  try {
    const place = fabric.place(1, '10.5.1.0/24', createLogged().log)
    await expect(fabric.publisher(place).find(never)).rejects.toThrow(
      `the metadata server names the region "${region}"`,
    )
  } finally {
    await fabric.close()
  }
})

it('a domain that is not of AWS gets no request with keys or tokens', async () => {
  const fabric = await new FakeAws().start()
  fabric.domain = 'amazonaws.com.evil.example'
  try {
    const environment = { ...NO_FILE, AWS_ENDPOINT_URL_EC2: undefined }
    const place = fabric.place(1, '10.5.1.0/24', createLogged().log, { environment })
    await expect(fabric.publisher(place).find(never)).rejects.toThrow(
      'the metadata server names the domain "amazonaws.com.evil.example"',
    )
  } finally {
    await fabric.close()
  }
})

it('a metadata server of Alibaba Cloud that gives no tokens is used without a token', async () => {
  const fabric = await new FakeAli().start()
  fabric.isHardened = false
  try {
    const place = fabric.place(1, '10.5.1.0/24', createLogged().log)
    expect(await fabric.publisher(place).find(never)).toMatchObject([{ name: 'vtb-1' }])
  } finally {
    await fabric.close()
  }
})

it.each([
  [
    'ali',
    () => new FakeAli(),
    {
      ALIBABA_CLOUD_ACCESS_KEY_ID: 'AKID1',
      ALIBABA_CLOUD_ACCESS_KEY_SECRET: 'another',
      ALIBABA_CLOUD_SECURITY_TOKEN: 'token-of-ali-1',
    },
    /SignatureDoesNotMatch not signed: x-acs-security-token:<hidden>$/,
  ],
  [
    'aws',
    () => new FakeAws(),
    { AWS_ACCESS_KEY_ID: 'AKID1', AWS_SECRET_ACCESS_KEY: 'another', AWS_SESSION_TOKEN: 'token-of-aws-1' },
    /SignatureDoesNotMatch not signed: x-amz-security-token:<hidden> <hidden>$/,
  ],
])('an error shows no token that the API repeats: %s', async (_cloud, make, environment, message) => {
  const fabric = await make().start()
  const { log, lines } = createLogged()
  try {
    const place = fabric.place(1, '10.5.1.0/24', log, { environment })
    await expect(fabric.publisher(place).find(never)).rejects.toThrow(message)
    expect(lines.join('\n')).not.toMatch(/token-of/)
  } finally {
    await fabric.close()
  }
})

it.each([
  ['in JSON', 'ab/cd"ef', String.raw`token ab\/cd\"ef and ab/cd\"ef`, 'token <hidden> and <hidden>'],
  ['that contains another secret', 'abcd efgh-long', 'token abcd efgh-long', 'token <hidden>'],
])('a secret is hidden %s', (_how, secret, text, shown) => {
  expect(hideIn(text, ['efgh', secret])).toBe(shown)
})

it('a code of the API that is a name of JavaScript has no remedy', () => {
  const answer = { status: 400, headers: {}, text: '' }
  const request = { method: 'GET', url: NOWHERE }
  for (const code of ['constructor', '__proto__', 'toString.NotFound'])
    expect(actionRefusal(request, answer, 'List', { code }, { Other: 'a remedy' }).remedy).toBeUndefined()
  expect(actionRefusal(request, answer, 'List', { code: 'Other.More' }, { Other: 'a remedy' }).remedy).toBe('a remedy')
  expect(readXml('<a>&lt;&constructor;&toString;</a>').text).toBe('<&constructor;&toString;')
})

it('an error of the credentials server of a container shows neither its path nor its token', async () => {
  const find = (path: string) =>
    awsKeys(
      awsPlaces(
        {
          ...NO_FILE,
          AWS_CONTAINER_CREDENTIALS_FULL_URI: NOWHERE + path,
          AWS_CONTAINER_AUTHORIZATION_TOKEN: 'a-token',
        },
        NOWHERE,
      ),
      never,
    )
  // On ECS the path is a secret: any process that knows the path gets the keys.
  await expect(find('/v2/credentials/a%2Dsecret?a=b')).rejects.toMatchObject({
    code: 'FABRIC',
    message: expect.stringMatching(/^GET 127\.0\.0\.1:1<hidden>: no answer: /) as string,
    remedy: 'check the variables AWS_CONTAINER_CREDENTIALS_... and AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE',
  })
  await expect(find('/')).rejects.toThrow(/^GET 127\.0\.0\.1:1\/: no answer: /)
})

it('keys without a valid time of expiry are read again soon', async () => {
  const server = createServer((_request, response) =>
    response.end(JSON.stringify({ AccessKeyId: 'ID', SecretAccessKey: 'KEY', Expiration: 'never' })),
  )
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
  try {
    const { until } = await awsKeys(awsPlaces({ ...NO_FILE, AWS_CONTAINER_CREDENTIALS_FULL_URI: url }, NOWHERE), never)
    expect(until).toBeLessThan(Date.now() + 600_000)
  } finally {
    server.close()
  }
})

it('a route of Google whose name another network of the project uses is reported', async () => {
  const fabric = await new FakeGce().start()
  fabric.areNamesTaken = true
  const { log, lines } = createLogged()
  const place = fabric.place(1, '10.5.1.0/24', log)
  try {
    const network = parseIpv4Net('10.5.0.0/16')!
    await new RouteKeeper({ subnet: place.subnet, network, make: () => fabric.publisher(place), log }).check()
    expect(lines.at(-1)).toMatch(
      /a route of the network projects\/a-project\/global\/networks\/a-network-2 has the name flannel-10-5-1-0-24; choose a Network/,
    )
  } finally {
    await fabric.close()
  }
})

it('a route leaves each table that exists, although another table does not exist', async () => {
  const fabric = await new FakeAws(['rtb-2b', 'rtb-1a']).start()
  fabric.add('10.5.1.0/24', 1)
  const { log } = createLogged()
  const place = fabric.place(1, '10.5.1.0/24', log)
  try {
    const network = parseIpv4Net('10.5.0.0/16')!
    const keeper = new RouteKeeper({ subnet: place.subnet, network, make: () => fabric.publisher(place), log })
    await expect(keeper.withdraw(never)).rejects.toThrow('InvalidRouteTableID.NotFound')
    expect(fabric.changes).toEqual(['remove 10.5.1.0/24'])
  } finally {
    await fabric.close()
  }
})

it('a node of AWS adds its route to each configured table, and switches the source/destination check off', async () => {
  const fabric = await new FakeAws(['rtb-2b', 'rtb-1a']).start()
  const { log, lines } = createLogged()
  const place = fabric.place(1, '10.5.1.0/24', log)
  try {
    const network = parseIpv4Net('10.5.0.0/16')!
    await new RouteKeeper({ subnet: place.subnet, network, make: () => fabric.publisher(place), log }).check()
    expect([...fabric.unchecked]).toEqual(['eni-1'])
    expect(fabric.changes).toEqual(['put 10.5.1.0/24'])
    // The fake has one table. The other one does not exist, and stops nothing.
    expect(lines).toEqual([
      'info Found eni-1 that has 192.0.2.1 IP address.',
      'info Route table configured: true',
      'info Route added to table rtb-1a: 10.5.1.0/24 - eni-1.',
      'info The route to 10.5.1.0/24 is in rtb-1a',
      expect.stringMatching(
        /^error .*InvalidRouteTableID\.NotFound The message of .*; correct RouteTableID in Backend/,
      ),
    ])
    fabric.isReadOnly = true
    const again = createLogged()
    const other = fabric.place(1, '10.5.1.0/24', again.log)
    await new RouteKeeper({
      subnet: other.subnet,
      network,
      make: () => fabric.publisher(other),
      log: again.log,
    }).check()
    expect(again.lines).toContainEqual(expect.stringMatching(/^warn failed to disable SourceDestCheck on eni-1: /))
  } finally {
    await fabric.close()
  }
})
