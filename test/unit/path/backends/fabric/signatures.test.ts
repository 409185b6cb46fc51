// signatures.test.ts - signatures of requests, compared with those that the clouds publish.

import { createVerify, generateKeyPairSync } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { acs3Query, signAcs3 } from '../../../../../src/path/backends/fabric/acs3.ts'
import { ApiClient } from '../../../../../src/path/backends/fabric/api-client.ts'
import { googleToken } from '../../../../../src/path/backends/fabric/google-token.ts'
import { signV4 } from '../../../../../src/path/backends/fabric/sigv4.ts'
import { signTc3 } from '../../../../../src/path/backends/fabric/tc3.ts'

/** The keys, the region, the service and the time of AWS's "Signature Version 4 test suite". */
const AWS_KEYS = { accessKeyId: 'AKIDEXAMPLE', secretAccessKey: 'wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY' }
const AWS_TIME = Date.parse('2015-08-30T12:36:00Z')
const FORM = 'application/x-www-form-urlencoded'

it.each([
  ['get-vanilla', 'GET', '/', {}, '', '5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31'],
  ['post-vanilla', 'POST', '/', {}, '', '5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b'],
  [
    'get-vanilla-query-order-key-case',
    'GET',
    '/?Param2=value2&Param1=value1',
    {},
    '',
    'b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500',
  ],
  [
    'get-header-key-duplicate',
    'GET',
    '/',
    { 'my-header1': 'value2,value2,value1' },
    '',
    'c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea',
  ],
  [
    'post-x-www-form-urlencoded',
    'POST',
    '/',
    { 'content-type': FORM },
    'Param1=value1',
    'ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a',
  ],
])("AWS's test suite: %s", (_name, method, path, headers, body, signature) => {
  const request = { method, url: `https://example.amazonaws.com${path}`, headers, body }
  const { authorization } = signV4(request, AWS_KEYS, 'us-east-1', 'service', AWS_TIME)
  expect(authorization).toContain('AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, ')
  expect(authorization).toContain(`Signature=${signature}`)
})

// The values are those of AWS's own signer, the package @smithy/signature-v4.
it.each([
  ['/routes/10.5.1.0%2F24', 'service', 'a221f43390ed9439083b68dc19b09effe49f849475c8683b1c30fb743724dd49'],
  ['/routes/10.5.1.0%2F24', 's3', 'dec9284a6558b6832955aa2656cc7c6031d2f3365a83c457c919d21857a7f013'],
  ['/?Id.1=a&Id.10=b', 'service', '471c41ac63f80e6940dcb289d72de039f118ab7e0b37c5c4f5cdc286d509ec2a'],
])("AWS's signer: %s of %s", (path, service, signature) => {
  const request = { method: 'GET', url: `https://example.amazonaws.com${path}`, headers: {}, body: '' }
  const { authorization } = signV4(request, AWS_KEYS, 'us-east-1', service, AWS_TIME)
  expect(authorization).toContain(`Signature=${signature}`)
})

it('AWS: signs the session token too', () => {
  const request = { method: 'POST', url: 'https://example.amazonaws.com/', headers: {}, body: '' }
  const signed = signV4(request, { ...AWS_KEYS, sessionToken: 'a token' }, 'us-east-1', 'service', AWS_TIME)
  expect(signed['x-amz-security-token']).toBe('a token')
  expect(signed['authorization']).toContain('SignedHeaders=host;x-amz-date;x-amz-security-token, ')
})

/** The body of the example in "Signature v3", in which the document writes the two Chinese characters as escapes. */
const TENCENT_BODY = String.raw`{"Limit": 1, "Filters": [{"Values": ["\u672a\u547d\u540d"], "Name": "instance-name"}]}`

it.each([
  // Documents of 2019, whose example signs two headers, and of 2023, whose example signs three.
  ['3EXAMPLE', {}, '72e494ea809ad7a8c8f7a4507b9bddcbaa8e581f516e8da2f66e2c5a96525168'],
  [
    '3*******',
    { 'x-tc-action': 'DescribeInstances' },
    'be4f67d323c78ab9acb7395e43c0dbcf822a9cfac32fea2449a7bc7726b770a3',
  ],
])("Tencent Cloud's example with keys that end in %s", (end, signed, signature) => {
  const request = {
    host: 'cvm.tencentcloudapi.com',
    contentType: 'application/json; charset=utf-8',
    body: TENCENT_BODY,
    signed,
  }
  const keys = { id: `AKIDz8krbsJ5yKBZQpn74WFkmLPx${end}`, secret: `Gu5t9xGARNpq86cd98joQYCN${end}` }
  const authorization = signTc3(request, keys, 'cvm', 1_551_113_065)
  expect(authorization).toContain(`Credential=${keys.id}/2019-02-25/cvm/tc3_request, `)
  expect(authorization).toContain(`Signature=${signature}`)
})

it("Alibaba Cloud's example of signature V3", () => {
  const request = {
    host: 'ecs.cn-shanghai.aliyuncs.com',
    action: 'RunInstances',
    version: '2014-05-26',
    query: { RegionId: 'cn-shanghai', ImageId: 'win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd' },
  }
  const keys = { id: 'YourAccessKeyId', secret: 'YourAccessKeySecret' }
  const headers = signAcs3(request, keys, Date.parse('2023-10-26T10:22:32Z'), '3156853299f313e23d1673dc12e1703d')
  expect(acs3Query(request.query)).toBe(
    'ImageId=win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd&RegionId=cn-shanghai',
  )
  expect(headers['authorization']).toBe(
    'ACS3-HMAC-SHA256 Credential=YourAccessKeyId,' +
      'SignedHeaders=host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce;x-acs-version,' +
      'Signature=06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0',
  )
})

it('Google: exchanges an assertion that the key file signs for a token', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-google-'))
  const { privateKey, publicKey } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
    publicKeyEncoding: { type: 'spki', format: 'pem' },
  })
  let form = new URLSearchParams()
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', (piece: Buffer) => (body += piece.toString()))
    request.on('end', () => {
      form = new URLSearchParams(body)
      response.end(JSON.stringify({ access_token: 'a-token', expires_in: 3599 }))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const tokenUri = `http://127.0.0.1:${(server.address() as AddressInfo).port}/token`
  const path = join(folder, 'key.json')
  const client = new ApiClient()
  const environment = { GOOGLE_APPLICATION_CREDENTIALS: path }
  const { signal } = new AbortController()
  try {
    writeFileSync(
      path,
      JSON.stringify({ type: 'service_account', client_email: 'a@b', private_key: privateKey, token_uri: tokenUri }),
    )
    const { token, until } = await googleToken(environment, client, 'http://127.0.0.1:1', signal)
    expect(token).toBe('a-token')
    expect(until - Date.now()).toBeGreaterThan(3_000_000)
    expect(form.get('grant_type')).toBe('urn:ietf:params:oauth:grant-type:jwt-bearer')
    const [head = '', claims = '', signature = ''] = (form.get('assertion') ?? '').split('.')
    const isSigned = createVerify('RSA-SHA256')
      .update(`${head}.${claims}`)
      .verify(publicKey, Buffer.from(signature, 'base64url'))
    expect(isSigned).toBe(true)
    expect(JSON.parse(Buffer.from(claims, 'base64url').toString())).toMatchObject({ iss: 'a@b', aud: tokenUri })
    writeFileSync(path, 'PRIVATE KEY that is no JSON')
    await expect(googleToken(environment, client, 'http://127.0.0.1:1', signal)).rejects.toThrow(
      /^cannot use the file of GOOGLE_APPLICATION_CREDENTIALS: it is not JSON$/,
    )
  } finally {
    server.close()
    rmSync(folder, { recursive: true })
  }
})
