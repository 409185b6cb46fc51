// credentials.test.ts - the sources of a cloud's access keys, and their order.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import { parseIpv4Net } from '../../../../../src/net/ipv4.ts'
import { ApiClient } from '../../../../../src/path/backends/fabric/api-client.ts'
import { awsKeys } from '../../../../../src/path/backends/fabric/aws-credentials.ts'
import { cloudKeys, type CloudKeyPlaces } from '../../../../../src/path/backends/fabric/cloud-keys.ts'
import { RouteKeeper } from '../../../../../src/path/backends/fabric/route-keeper.ts'
import { FakeAws } from '../../../../support/fake-aws.ts'
import { createLogged } from '../../../../support/fake-fabric.ts'

const never = new AbortController().signal
const client = new ApiClient({ answerMs: 2_000 })
const NOWHERE = 'http://127.0.0.1:1'

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
  const { keys } = await awsKeys(environment(), client, NOWHERE, never)
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
    const { keys, until } = await awsKeys({ AWS_SHARED_CREDENTIALS_FILE: '/nonexistent' }, client, base, never)
    expect(keys).toMatchObject({ accessKeyId: 'AKID1', sessionToken: 'token-of-aws-1' })
    expect(until).toBeGreaterThan(Date.now() + 3_000_000)
    const role = { AWS_PROFILE: 'none', ...file() }
    expect((await awsKeys(role, client, base, never)).keys.accessKeyId).toBe('AKID1')
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
    // Half a pair of keys is none.
    const half = { accessKeyId: new Secret('ID'), accessKeySecret: new Secret('') }
    await expect(cloudKeys(half, places({ NEW_ID: 'new' }), never)).rejects.toMatchObject({
      code: 'CONFIG',
      message: 'there are no keys of A Cloud: ACCESS_KEY_ID and ACCESS_KEY_SECRET must be provided',
    })
  },
)

it('a node of AWS puts its route into each table that is named, and switches the source/destination check off', async () => {
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
