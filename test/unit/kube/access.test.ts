// access.test.ts - where the API server is, and what lets weftd in: from a pod's files, a kubeconfig, a URL.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { readAccess, type AccessOptions } from '../../../src/kube/access.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-access-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

const read = (options: Partial<AccessOptions>) =>
  readAccess({ apiUrl: '', kubeconfig: '', environment: {}, serviceAccount: folder, ...options })
const refused = (message: RegExp | string) =>
  expect.objectContaining({ code: 'STORE', message: expect.stringMatching(message) })

describe('in a pod', () => {
  const environment = { KUBERNETES_SERVICE_HOST: '10.96.0.1', KUBERNETES_SERVICE_PORT: '443' }
  it('takes what kubelet put there, as it is at the moment', async () => {
    writeFileSync(join(folder, 'token'), 'first\n')
    writeFileSync(join(folder, 'ca.crt'), 'PEM')
    const access = { server: 'https://10.96.0.1:443', token: 'first', ca: 'PEM' }
    expect(await read({ environment })).toEqual(access)
    writeFileSync(join(folder, 'token'), 'second')
    expect(await read({ environment })).toEqual({ ...access, token: 'second' })
    const ipv6 = { ...environment, KUBERNETES_SERVICE_HOST: 'fd00::1' }
    expect(await read({ environment: ipv6 })).toMatchObject({ server: 'https://[fd00::1]:443' })
  })
  it('says what is missing', async () => {
    await expect(read({ environment })).rejects.toEqual(refused(/fail to create kubernetes config: ENOENT.*token/))
    await expect(read({})).rejects.toEqual(refused(/KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set/))
  })
})

describe('a URL', () => {
  it.each([
    ['http://10.0.0.1:8080/', 'http://10.0.0.1:8080'],
    ['10.0.0.1:8080', 'http://10.0.0.1:8080'],
    ['https://kube.example/path', 'https://kube.example/path'],
  ])('%s is %s', async (apiUrl, server) => {
    expect(await read({ apiUrl })).toEqual({ server })
  })
  it('that is none is refused', async () => {
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

  it('gives a token or a certificate, in its lines or in files beside it', async () => {
    mkdirSync(join(folder, 'pki'))
    for (const name of ['ca', 'cert', 'key', 'token']) writeFileSync(join(folder, 'pki', name), `the ${name}\n`)
    const inFiles = kubeconfig({
      cluster: `${CLUSTER}, certificate-authority: pki/ca, tls-server-name: kubernetes`,
      user: 'client-certificate: pki/cert, client-key: pki/key, tokenFile: pki/token, token: an older one',
    })
    expect(await read({ kubeconfig: inFiles })).toEqual({
      ...{ server: 'https://10.0.0.1:6443', serverName: 'kubernetes', token: 'the token' },
      ...{ ca: 'the ca\n', cert: 'the cert\n', key: 'the key\n' },
    })
    const base64 = (text: string): string => Buffer.from(text).toString('base64')
    const inLines = kubeconfig({
      cluster: `${CLUSTER}, certificate-authority-data: ${base64('CA')}`,
      user: `client-certificate-data: ${base64('CERT')}, client-key-data: ${base64('KEY')}, token: abc`,
    })
    expect(await read({ kubeconfig: inLines })).toEqual({
      ...{ server: 'https://10.0.0.1:6443', token: 'abc', ca: 'CA', cert: 'CERT', key: 'KEY' },
    })
    expect(await read({ kubeconfig: inLines, apiUrl: 'https://elsewhere:6443' })).toMatchObject({
      server: 'https://elsewhere:6443',
    })
    const insecure = kubeconfig({ cluster: `${CLUSTER}, insecure-skip-tls-verify: true` })
    expect(await read({ kubeconfig: insecure })).toEqual({ server: 'https://10.0.0.1:6443', isInsecure: true })
  })

  it.each([
    [{ user: 'exec: {command: aws}' }, /kubeconfig has "exec"/],
    [{ user: 'auth-provider: {name: gcp}' }, /kubeconfig has "auth-provider"/],
    [{ cluster: `${CLUSTER}, proxy-url: "http://proxy"` }, /kubeconfig has "proxy-url"/],
    [{ current: 'nowhere' }, /there is no context "nowhere"/],
    [{ current: 'other' }, /there is no context "other"/],
    [{ cluster: '' }, /the cluster of the context has no server/],
    [{ cluster: 'server: ":"' }, /the server in .*kubeconfig is ":"/],
    [{ user: 'tokenFile: absent' }, /ENOENT.*absent/],
    [{ current: '"' }, /kubeconfig: Missing closing/],
  ])('%j is refused: %s', async (parts, why) => {
    await expect(read({ kubeconfig: kubeconfig(parts) })).rejects.toEqual(refused(why))
  })
  it('that is not there, or is empty, is refused', async () => {
    await expect(read({ kubeconfig: join(folder, 'absent') })).rejects.toEqual(refused(/ENOENT/))
    writeFileSync(join(folder, 'empty'), '')
    await expect(read({ kubeconfig: join(folder, 'empty') })).rejects.toEqual(refused(/there is no context ""/))
  })
})
