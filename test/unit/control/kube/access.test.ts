// access.test.ts - the address and the credentials of the API server: from a pod's files, a kubeconfig or a URL.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { inspect } from 'node:util'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Secret, secretUrls } from '../../../../src/base/secret.ts'
import { readAccess, type AccessOptions } from '../../../../src/control/kube/access.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-access-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

const read = ({ apiUrl = '', ...options }: Partial<Omit<AccessOptions, 'apiUrl'>> & { readonly apiUrl?: string }) =>
  readAccess({ apiUrl: secretUrls(apiUrl), kubeconfig: '', environment: {}, serviceAccount: folder, ...options })
const bearer = (token: string) => ({ authorization: new Secret(`Bearer ${token}`) })
const refused = (message: RegExp | string) =>
  expect.objectContaining({ code: 'STORE', message: expect.stringMatching(message) })

describe('in a pod', () => {
  const environment = { KUBERNETES_SERVICE_HOST: '10.96.0.1', KUBERNETES_SERVICE_PORT: '443' }
  it('reads the files that kubelet mounts, again at each call', async () => {
    writeFileSync(join(folder, 'token'), 'first\n')
    writeFileSync(join(folder, 'ca.crt'), 'PEM')
    const access = { server: 'https://10.96.0.1:443', ...bearer('first'), ca: 'PEM' }
    expect(await read({ environment })).toEqual(access)
    writeFileSync(join(folder, 'token'), 'second')
    expect(await read({ environment })).toEqual({ ...access, ...bearer('second') })
    const ipv6 = { ...environment, KUBERNETES_SERVICE_HOST: 'fd00::1' }
    expect(await read({ environment: ipv6 })).toMatchObject({ server: 'https://[fd00::1]:443' })
  })
  it('reports the missing file or variable', async () => {
    await expect(read({ environment })).rejects.toEqual(refused(/fail to create kubernetes config: ENOENT.*token/))
    await expect(read({})).rejects.toEqual(refused(/KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set/))
  })
})

describe('a URL', () => {
  it.each([
    ['http://10.0.0.1:8080/', 'http://10.0.0.1:8080'],
    ['10.0.0.1:8080', 'http://10.0.0.1:8080'],
    ['https://kube.example/path', 'https://kube.example/path'],
  ])('%s becomes %s', async (apiUrl, server) => {
    expect(await read({ apiUrl })).toEqual({ server })
  })
  it.each([
    ['http://jo:se%2Fsame@10.0.0.1:8080/', 'jo:se/same'],
    ['jo:100%@10.0.0.1:8080', 'jo:100%'],
    ['http://jo@10.0.0.1:8080', 'jo:'],
  ])('with a user sends the credentials that Go would send', async (apiUrl, user) => {
    const authorization = new Secret(`Basic ${Buffer.from(user).toString('base64')}`)
    expect(await read({ apiUrl })).toEqual({ server: 'http://10.0.0.1:8080', authorization })
  })
  it('that is not valid is refused without its password', async () => {
    await expect(read({ apiUrl: 'ftp://jo:sesame@x' })).rejects.toEqual(refused(/--kube-api-url is "ftp:\/\/x"$/))
  })
  it('that is not valid is refused', async () => {
    await expect(read({ apiUrl: 'ftp://x' })).rejects.toEqual(refused('--kube-api-url is "ftp://x"'))
  })
})

describe('a kubeconfig', () => {
  const CLUSTER = 'server: https://10.0.0.1:6443'
  function kubeconfig({ cluster = CLUSTER, user = '', current = 'here' } = {}): string {
    const path = join(folder, 'kubeconfig')
    writeFileSync(
      path,
      `current-context: ${current}
contexts:
- name: other
- {name: here, context: {cluster: c, user: u}}
clusters:
- name: c
  cluster: {${cluster}}
users:
- name: u
  user: {${user}}
`,
    )
    return path
  }

  it('gives a token or a certificate, inline or in separate files', async () => {
    mkdirSync(join(folder, 'pki'))
    for (const name of ['ca', 'cert', 'key', 'token']) writeFileSync(join(folder, 'pki', name), `the ${name}\n`)
    const inFiles = kubeconfig({
      cluster: `${CLUSTER}, certificate-authority: pki/ca, tls-server-name: kubernetes`,
      user: 'client-certificate: pki/cert, client-key: pki/key, tokenFile: pki/token, token: an older one',
    })
    expect(await read({ kubeconfig: inFiles })).toEqual({
      server: 'https://10.0.0.1:6443',
      serverName: 'kubernetes',
      ...bearer('the token'),
      ca: 'the ca\n',
      cert: 'the cert\n',
      key: new Secret('the key\n'),
    })
    const base64 = (text: string): string => Buffer.from(text).toString('base64')
    const inLines = kubeconfig({
      cluster: `${CLUSTER}, certificate-authority-data: ${base64('CA')}`,
      user: `client-certificate-data: ${base64('CERT')}, client-key-data: ${base64('KEY')}, token: abc`,
    })
    expect(await read({ kubeconfig: inLines })).toEqual({
      server: 'https://10.0.0.1:6443',
      ...bearer('abc'),
      ca: 'CA',
      cert: 'CERT',
      key: new Secret('KEY'),
    })
    expect(await read({ kubeconfig: inLines, apiUrl: 'https://elsewhere:6443' })).toMatchObject({
      server: 'https://elsewhere:6443',
    })
    const insecure = kubeconfig({ cluster: `${CLUSTER}, insecure-skip-tls-verify: true` })
    expect(await read({ kubeconfig: insecure })).toEqual({ server: 'https://10.0.0.1:6443', isInsecure: true })
  })

  it('provides a user and a password, unless it also has a token', async () => {
    const basic = { authorization: new Secret(`Basic ${Buffer.from('jo:sesame').toString('base64')}`) }
    const user = 'username: jo, password: sesame'
    expect(await read({ kubeconfig: kubeconfig({ user }) })).toEqual({ server: 'https://10.0.0.1:6443', ...basic })
    const both = await read({ kubeconfig: kubeconfig({ user: `${user}, token: abc` }) })
    expect(both).toEqual({ server: 'https://10.0.0.1:6443', ...bearer('abc') })
  })

  it.each([
    ['certificate-authority-data: Q0E=', '', 'https'],
    ['insecure-skip-tls-verify: true', '', 'https'],
    ['', 'client-certificate-data: QQ==, client-key-data: QQ==', 'https'],
    ['', 'token: abc', 'http'],
  ])(
    'with the cluster {%s} and the user {%s} uses %s for a server without a scheme, as client-go does',
    async (cluster, user, scheme) => {
      const path = kubeconfig({ cluster: `${cluster === '' ? '' : `${cluster}, `}server: "10.0.0.1:6443"`, user })
      expect(await read({ kubeconfig: path })).toMatchObject({ server: `${scheme}://10.0.0.1:6443` })
      const elsewhere = await read({ kubeconfig: path, apiUrl: 'elsewhere:6443' })
      expect(elsewhere).toMatchObject({ server: `${scheme}://elsewhere:6443` })
    },
  )

  it.each([
    [{ user: 'exec: {command: aws}' }, /kubeconfig has "exec"/],
    [{ user: 'auth-provider: {name: gcp}' }, /kubeconfig has "auth-provider"/],
    [{ cluster: `${CLUSTER}, proxy-url: "http://proxy"` }, /kubeconfig has "proxy-url"/],
    [{ current: 'nowhere' }, /there is no context "nowhere"/],
    [{ current: 'other' }, /there is no context "other"/],
    [{ cluster: '' }, /the cluster of the context has no server/],
    [{ cluster: 'server: ":"' }, /the server in .*kubeconfig is ":"/],
    [{ user: 'tokenFile: absent' }, /ENOENT.*absent/],
    [{ current: '"' }, /kubeconfig: it is not valid YAML at line \d+, column \d+/],
  ])('%j is refused: %s', async (parts, why) => {
    await expect(read({ kubeconfig: kubeconfig(parts) })).rejects.toEqual(refused(why))
  })
  it.each([
    'token: *sesame',
    'token: "sesame',
    'token: [sesame\nx: y: z',
    '%YAML sesame\n---\na: 1',
    'a: b\n  c: sesame\n d: 1',
  ])('that is not YAML is refused without quoting it: %j', async (text) => {
    const path = join(folder, 'kubeconfig')
    writeFileSync(path, text)
    const error = await read({ kubeconfig: path }).catch((why: unknown) => why)
    expect(error).toEqual(refused(/kubeconfig: it is not valid YAML/))
    expect(inspect(error, { depth: null })).not.toContain('sesame')
  })
  it('that is missing, is empty or has empty entries is refused', async () => {
    await expect(read({ kubeconfig: join(folder, 'absent') })).rejects.toEqual(refused(/ENOENT/))
    writeFileSync(join(folder, 'empty'), '')
    await expect(read({ kubeconfig: join(folder, 'empty') })).rejects.toEqual(refused(/there is no context ""/))
    writeFileSync(join(folder, 'holes'), 'contexts: [null, {name: a, context: {}}]\ncurrent-context: b')
    await expect(read({ kubeconfig: join(folder, 'holes') })).rejects.toEqual(refused(/there is no context "b"/))
  })
})
