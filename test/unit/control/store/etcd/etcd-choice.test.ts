// etcd-choice.test.ts - which endpoint of an etcd cluster weftd uses, with mock endpoints.

import { status } from '@grpc/grpc-js'
import { afterEach, expect, it, vi } from 'vitest'
import { EndpointChoice } from '../../../../../src/control/store/etcd/etcd-choice.ts'
import type { Endpoint } from '../../../../../src/control/store/etcd/etcd-endpoint.ts'

const endpoints = vi.hoisted(() => [] as Endpoint[])
vi.mock('../../../../../src/control/store/etcd/etcd-endpoint.ts', () => ({
  openEndpoints: () => endpoints,
  certificateTimes: () => '',
}))
afterEach(() => void endpoints.splice(0))

const { signal } = new AbortController()
/** Endpoints are tried in random order. In 20 tries both orders of two endpoints occur, except with a chance of one in a million. */
const TIMES = 20

const refusal = (code: status, text: string): Error => Object.assign(new Error(text), { code })

/** Adds an endpoint; `signOfLife` answers or refuses its health check. */
function add(address: string, signOfLife: () => Promise<unknown>): void {
  const client = (): never => {
    throw new Error('nobody streams here')
  }
  endpoints.push({ address, call: signOfLife, client, isPingedSeldom: false, pingLess: () => {}, close: () => {} })
}

/** Returns the endpoints that `ask` was called with, over `TIMES` new choices. */
async function asked(ask: (endpoint: Endpoint) => Promise<string>): Promise<Set<string>> {
  const all = new Set<string>()
  for (let times = 0; times < TIMES; times++) {
    const options = { endpoints: [], certFile: '', keyFile: '', caFile: '' }
    const choice = new EndpointChoice(new Map(), options, () => {})
    all.add(await choice.at(signal, ask))
    choice.close()
  }
  return all
}

it('skips a member that has lost its leader, although it answers', async () => {
  add('without-leader', () => Promise.reject(refusal(status.UNAVAILABLE, '14 UNAVAILABLE: etcdserver: no leader')))
  add('well', () => Promise.resolve({}))
  expect(await asked(async ({ address }) => address)).toEqual(new Set(['well']))
})

it('uses a member that refuses the health check because this user lacks the permission', async () => {
  add('strict', () => Promise.reject(refusal(status.PERMISSION_DENIED, '7: etcdserver: permission denied')))
  add('gone', () => Promise.reject(refusal(status.UNAVAILABLE, '14 UNAVAILABLE: connection refused')))
  expect(await asked(async ({ address }) => address)).toEqual(new Set(['strict']))
})

it.each([
  ['is out of time', status.DEADLINE_EXCEEDED],
  ['was ended by the other end', status.CANCELLED],
  ['is unavailable', status.UNAVAILABLE],
  ['broke inside', status.INTERNAL],
])('repeats a call that %s at the other member', async (_what, code) => {
  for (const address of ['bad', 'well']) add(address, () => Promise.resolve({}))
  const ask = async ({ address }: Endpoint): Promise<string> => {
    if (address === 'bad') throw refusal(code, 'it cannot')
    return address
  }
  expect(await asked(ask)).toEqual(new Set(['well']))
})

it('does not repeat a call that etcd itself refused', async () => {
  for (const address of ['first', 'second']) add(address, () => Promise.resolve({}))
  let calls = 0
  const choice = new EndpointChoice(new Map(), { endpoints: [], certFile: '', keyFile: '', caFile: '' }, () => {})
  const refused = choice.at(signal, () => {
    calls++
    return Promise.reject(refusal(status.INVALID_ARGUMENT, 'etcdserver: key is not provided'))
  })
  await expect(refused).rejects.toThrow('key is not provided')
  expect(calls).toBe(1)
})
