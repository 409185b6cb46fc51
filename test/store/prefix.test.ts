// prefix.test.ts - spellings of the prefix of the etcd keys: repeated slashes count as one, as in Go's path.Join.

import { afterAll, beforeAll, expect, it } from 'vitest'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { Secret } from '../../src/base/secret.ts'
import { EtcdStore } from '../../src/control/store/etcd/etcd.ts'
import { ETCD, needs } from '../support/needs.ts'

let etcd: Etcd
const lacks = needs(...ETCD)

beforeAll(async () => {
  if (lacks) return
  etcd = await startEtcd()
})
afterAll(() => etcd?.close())

it.each(['/a/b', '/a/b/', '//a//b//'])('reads and writes the keys below /a/b with the prefix %j', async (prefix) => {
  const config = '{"Network":"10.5.0.0/16"}'
  await etcd.ctl('put', '/a/b/config', config)
  await etcd.ctl('put', '/a/b/subnets/10.5.1.0-24', '{"PublicIP":"192.0.2.1","PublicIPv6":null}')
  const store = new EtcdStore({
    endpoints: [etcd.endpoint],
    prefix,
    certFile: '',
    keyFile: '',
    caFile: '',
    username: '',
    password: new Secret(''),
  })
  try {
    const signal = AbortSignal.timeout(60_000)
    expect(await store.config(signal)).toBe(config)
    expect((await store.list(signal)).entries.map(({ key }) => key)).toEqual(['10.5.1.0-24'])
  } finally {
    await store.close()
  }
})
