// fabric.test.ts - the backend of routes that others keep: its lease, its data path, and what an outage of the API means for both.

import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { createAwsVpcBackend } from '../../../../src/path/backends/aws-vpc.ts'
import { createHttpBackend } from '../../../../src/path/backends/http.ts'
import type { BackendType } from '../../../../src/path/catalog.ts'
import { openPaths } from '../../../support/data-paths.ts'
import { createLogged } from '../../../support/fake-fabric.ts'
import { FakeSwitch } from '../../../support/fake-switch.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const folder = mkdtempSync(join(tmpdir(), 'weft-fabric-'))
afterAll(() => rmSync(folder, { recursive: true }))

const signal = new AbortController().signal
const BOTH = { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
const address = { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('fd77::1')! }
const attrs = { publicIp: address, backendType: 'http' }
const own: OwnLease = {
  key: '10.5.1.0-24',
  subnet: { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: parseIpv6Net('fd00:5:0:1::/64')! },
  attrs,
  expiresAt: undefined,
  revision: 1n,
}

function partsOf<T extends BackendType>(type: T, backend: object, network: object = {}) {
  const text = JSON.stringify({ Network: '10.5.0.0/16', ...network, Backend: { Type: type, ...backend } })
  const config = parseNetworkConfig(text)
  const logged = createLogged()
  const links = [
    { ifindex: 2, ifname: 'eth0', mtu: 1500, flags: ['UP'], addr_info: [{ local: '192.0.2.1' }, { local: 'fd77::1' }] },
  ]
  return {
    lines: logged.lines,
    parts: {
      config,
      settings: readSettings(type, config.backend),
      log: logged.log,
      external: { name: 'eth0', mtu: 1500, address, publicIp: address, named: { address: {}, publicIp: {} } },
      run: async () => JSON.stringify(links),
      kernel: new ModelKernel(),
    },
  }
}

it('publishes no type for a cloud, like flannel, and carries only IPv4', async () => {
  const { parts, lines } = partsOf('aws-vpc', {}, BOTH)
  const backend = createAwsVpcBackend(parts)
  expect(await backend.prepare(signal)).toEqual({ publicIp: address, backendType: '' })
  expect(backend.devices).toEqual([])
  expect(lines).toEqual([expect.stringMatching(/^warn the aws-vpc backend carries IPv4 alone: /)])
})

it('has the MTU of the interface, peers, and a route of each family', async () => {
  const fabric = await new FakeSwitch(join(folder, 'credential')).start()
  try {
    const { parts, lines } = partsOf('http', fabric.backend(), BOTH)
    const backend = createHttpBackend(parts)
    expect(await backend.prepare(signal)).toEqual(attrs)
    const path = await openPaths(backend, own, parts.kernel, { signal, log: parts.log })
    expect([path.mtu, path.carrier().engine]).toEqual([1500, 'none'])
    expect(fabric.changes).toContain('put 10.5.1.0/24')
    // This switch has no IPv6. It refuses the IPv6 route, and the IPv4 route must stay.
    expect(path.counters()).toMatchObject({ route_missing: 1n, route_failures: 1n })
    expect(lines).toContainEqual(expect.stringMatching(/^error The route to fd00:5:0:1::\/64 cannot be published: /))
    const peer: Lease = {
      key: '10.5.2.0-24',
      subnet: { ipv4: parseIpv4Net('10.5.2.0/24')! },
      attrs: { publicIp: { ipv4: parseIpv4('192.0.2.2')! }, backendType: 'http' },
    }
    const other: Lease = { ...peer, key: '10.5.3.0-24', subnet: { ipv4: parseIpv4Net('10.5.3.0/24')! } }
    const foreign: Lease = { ...other, attrs: { publicIp: { ipv4: parseIpv4('192.0.2.3')! }, backendType: 'vxlan' } }
    await path.apply(
      new Map([
        [own.key, own],
        [peer.key, peer],
        [foreign.key, foreign],
      ]),
      own.key,
    )
    expect(path.peers()).toEqual([{ key: peer.key, ipv4: { endpoint: '192.0.2.2' } }])
    await path.close()
    expect(await path.resync()).toEqual([])
    expect(fabric.routes).toHaveLength(1)
  } finally {
    await fabric.close()
  }
})

it('opens while the API accepts connections and does not answer', async () => {
  const server = createServer(() => {})
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  try {
    const { parts } = partsOf('http', { PutURL: `http://127.0.0.1:${port}/r` })
    const backend = createHttpBackend(parts)
    await backend.prepare(signal)
    const path = await openPaths(backend, own, parts.kernel, { signal, log: parts.log })
    expect(path.counters()).toMatchObject({ route_missing: 1n, route_failures: 0n })
    await path.close()
  } finally {
    server.closeAllConnections()
    server.close()
  }
})

it('removes the IPv4 route, although the removal of the IPv6 route fails first', async () => {
  const removed: string[] = []
  let tellRefused!: () => void
  const refused = new Promise<void>((resolve) => (tellRefused = resolve))
  const server = createServer((request, response) => {
    if (request.url?.includes('fd00')) return void response.writeHead(500).end(() => tellRefused())
    void refused.then(() => {
      removed.push(String(request.url))
      response.end()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/{subnetAddress}`
  try {
    const { parts } = partsOf('http', { PutURL: url, RemoveURL: url }, BOTH)
    const backend = createHttpBackend(parts)
    await backend.prepare(signal)
    await expect(backend.withdraw?.(own, signal)).rejects.toThrow(/^DELETE .*fd00.*: 500$/)
    expect(removed).toEqual(['/10.5.1.0'])
  } finally {
    server.closeAllConnections()
    server.close()
  }
})

it('opens while the API refuses connections, and a slow check delays no other operation', async () => {
  const fabric = await new FakeSwitch(join(folder, 'credential')).start()
  const { parts } = partsOf('http', fabric.backend())
  await fabric.close()
  const backend = createHttpBackend(parts)
  await backend.prepare(signal)
  const path = await openPaths(backend, own, parts.kernel, { signal, log: parts.log })
  expect(path.counters()).toMatchObject({ route_missing: 1n })
  expect(await path.resync(Promise.resolve())).toEqual([])
  await path.close()
  await expect(backend.withdraw?.(own, signal)).rejects.toThrow(/no answer/)
})
