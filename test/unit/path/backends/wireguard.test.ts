// wireguard.test.ts - the families that the devices carry, the choice of the carrier, and the faults of the data path.

import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { Secret } from '../../../../src/base/secret.ts'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import {
  familiesOf,
  formatAddress,
  formatEndpoint,
  formatNet,
  parseAddress,
  type Addresses,
  type Nets,
} from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { endpointText } from '../../../../src/path/backends/wireguard-device.ts'
import { createWireguardBackend } from '../../../../src/path/backends/wireguard.ts'
import { chooseCarrier } from '../../../../src/path/backends/wireguard/carrier.ts'
import { endOf } from '../../../../src/path/backends/wireguard/endpoint.ts'
import { publicKeyTo } from '../../../../src/path/backends/wireguard/key-file.ts'
import type { Engine, EngineConfig } from '../../../../src/path/engine/engine.ts'
import { decodePeers } from '../../../../src/path/engine/peers.ts'
import { openPaths } from '../../../support/data-paths.ts'
import { host, installHost, log } from '../../../support/fake-host.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const KEY = 'MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='
const OTHER_KEY = 'XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os='
const BOTH = { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: parseIpv6Net('fd00:5:0:1::/64')! }
const PORTS = { ipv4: 51_820, ipv6: 51_821 }
const publicIp = { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('2001:db8::1')! }

installHost()
let folder: string
let publicKey: string
let kernel: ModelKernel
beforeEach(() => {
  kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0' }, [
    { address: publicIp.ipv4, prefixLength: 24 },
    { address: publicIp.ipv6, prefixLength: 64 },
  ])
  folder = mkdtempSync(join(tmpdir(), 'weft-wg-'))
  writeFileSync(join(folder, 'wgkey'), KEY)
  vi.stubEnv('WIREGUARD_KEY_FILE', join(folder, 'wgkey'))
  publicKey = publicKeyTo(new Secret(KEY))
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(folder, { recursive: true })
})

/** Replaces the IPv6 address of eth0. */
function setIpv6(address: string): void {
  const device = { name: 'eth0' }
  for (const each of kernel.peek('eth0')!.addresses.ipv6) kernel.act({ kind: 'delete address', device, ...each })
  kernel.addAddress('eth0', { address: parseIpv6(address)!, prefixLength: 64 })
}
const setMtu = (mtu: number): void => kernel.alter('eth0', { mtu })
const run = (): Promise<never> => Promise.reject(new Error('no program may be started'))

/** The options of a test in which the kernel is the carrier. */
const NO_ENGINE = {
  startEngine: () => Promise.reject(new Error('no engine')),
  persistence: { persist: false, tunNames: [], isMultiQueue: false, inherit: () => Promise.resolve(undefined) },
}

const mtuOf = (): number => kernel.peek('eth0')!.mtu
const externalOf = () => ({
  name: 'eth0',
  mtu: mtuOf(),
  address: publicIp,
  publicIp,
  named: { address: {}, publicIp: {} },
})

async function open(mode: string, subnet: Nets, network = '10.5.0.0/16') {
  const config = parseNetworkConfig(
    `{"Network":"${network}","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"wireguard","Mode":"${mode}"}}`,
  )
  const backend = createWireguardBackend({
    config,
    settings: readSettings('wireguard', config.backend),
    external: externalOf(),
    run,
    kernel,
    log,
    ...NO_ENGINE,
  })
  const { signal } = new AbortController()
  const attrs = await backend.prepare(signal)
  const lease: OwnLease = { key: 'own', subnet, attrs, expiresAt: undefined, revision: 0n }
  return { path: await openPaths(backend, lease, kernel, { signal, log }), prepare: () => backend.prepare(signal) }
}

const routes = (): string[] => (['ipv4', 'ipv6'] as const).flatMap((family) => kernel.routesAsText(family))

it.each<[mode: string, subnet: Nets, expected: readonly string[]]>([
  ['separate', BOTH, ['10.5.0.0/16 dev flannel-wg', 'fd00:5::/48 dev flannel-wg-v6']],
  ['separate', { ipv4: BOTH.ipv4 }, ['10.5.0.0/16 dev flannel-wg']],
  ['separate', { ipv6: BOTH.ipv6 }, ['fd00:5::/48 dev flannel-wg-v6']],
  ['auto', BOTH, ['10.5.0.0/16 dev flannel-wg', 'fd00:5::/48 dev flannel-wg']],
  ['auto', { ipv4: BOTH.ipv4 }, ['10.5.0.0/16 dev flannel-wg']],
  ['ipv4', { ipv6: BOTH.ipv6 }, ['fd00:5::/48 dev flannel-wg']],
  ['ipv6', { ipv4: BOTH.ipv4 }, ['10.5.0.0/16 dev flannel-wg']],
])('in mode %s it carries the families of which the node has a subnet: case %#', async (mode, subnet, expected) => {
  const { path } = await open(mode, subnet)
  expect(routes().toSorted()).toEqual(expected)
  expect(path.lacking ?? {}).toEqual({})
  const devices = expected.map((route) => [route.includes(':') ? 'ipv6' : 'ipv4', route.split(' ').at(-1)])
  expect(path.carrier().devices).toEqual(Object.fromEntries(devices))
  const source = path.probeSource
  expect([source?.ipv4, source?.ipv6]).toEqual([subnet.ipv4?.address, subnet.ipv6?.address])
  await path.close()
})

it.each(['separate', 'auto', 'ipv4'])(
  'in mode %s carries IPv4 if the MTU is too small for IPv6, and logs that',
  async (mode) => {
    setMtu(1340)
    const { path, prepare } = await open(mode, BOTH)
    expect(routes()).toEqual(['10.5.0.0/16 dev flannel-wg'])
    expect([path.mtu, path.lacking]).toEqual([
      1260,
      { ipv6: expect.stringContaining('IPv6 needs an MTU of 1280, and containers would have 1260 here') as string },
    ])
    expect(path.probeSource).toEqual({ ipv4: BOTH.ipv4.address, ipv6: undefined })
    // After a larger MTU the device is opened again.
    setMtu(1500)
    await path.resync()
    expect((await path.fault).message).toBe('the MTU of eth0 changed from 1340 to 1500')
    await path.close()
    await prepare()
  },
)

it.each(['separate', 'auto', 'ipv4', 'ipv6'])(
  'in mode %s carries IPv4 while the host has IPv6 disabled, and IPv6 as soon as it is enabled',
  async (mode) => {
    // The kernel refuses IPv6 addresses with EACCES on a device with disable_ipv6.
    const refuse = (words: string): string | undefined =>
      words.startsWith('ip address replace fd00:') ? 'EACCES' : undefined
    kernel.refuses = refuse
    const { path, prepare } = await open(mode, BOTH)
    const attrs = {
      publicIp: { ipv4: parseIpv4('192.0.2.2')!, ipv6: parseIpv6('2001:db8::2')! },
      backendType: 'wireguard',
      backendData: { PublicKey: OTHER_KEY },
      backendV6Data: { PublicKey: OTHER_KEY },
    }
    const subnet = { ipv4: parseIpv4Net('10.5.2.0/24')!, ipv6: parseIpv6Net('fd00:5:0:2::/64')! }
    const leases = new Map([['k', { key: 'k', subnet, attrs }]])
    const sides = () => path.peers().map((peer) => [peer.ipv4 !== undefined, peer.ipv6 !== undefined])
    const lacking = (): void => {
      expect(path.lacking).toEqual({ ipv6: expect.stringContaining('EACCES') as string })
      expect(path.isOutdated).toBe(true)
      expect(sides()).toEqual([[true, false]])
    }
    const carried = async (): Promise<void> => {
      kernel.refuses = () => undefined
      await path.renew(await prepare())
      await path.apply(leases, 'own')
      expect([path.lacking, path.isOutdated, sides()]).toEqual([{}, false, [[true, true]]])
      expect(host.lines.filter((line) => line.includes('IPv6 is carried again')).splice(0)).toHaveLength(1)
      host.lines.length = 0
    }
    const allowed = () =>
      [...kernel.wireguardDevice('flannel-wg').peers.values()].map(({ allowedIps }) =>
        allowedIps.map(formatNet).toSorted(),
      )
    await path.apply(leases, 'own')
    lacking()
    expect(allowed()).toEqual([['10.5.2.0/24']])
    expect(host.lines.filter((line) => line.includes('Cannot carry IPv6, trying again: '))).toHaveLength(1)
    await path.renew(await prepare())
    lacking()
    await carried()
    if (mode === 'separate') return path.close()
    // disable_ipv6 removes the address of the device. IPv4 does not need the address.
    kernel.refuses = refuse
    const device = { name: 'flannel-wg' }
    for (const each of kernel.peek(device.name)!.addresses.ipv6) kernel.act({ kind: 'delete address', device, ...each })
    expect(await path.resync()).toEqual([])
    await path.apply(leases, 'own')
    lacking()
    // The reason may be temporary, so the peer keeps its IPv6 subnet.
    expect(allowed()).toEqual([['10.5.2.0/24', 'fd00:5:0:2::/64']])
    await carried()
    await path.close()
  },
)

it.each(['separate', 'auto'])('in mode %s is refused if there is only IPv6 and the MTU is too small', async (mode) => {
  setMtu(1340)
  await expect(open(mode, { ipv6: BOTH.ipv6 })).rejects.toMatchObject({ code: 'CONFIG' })
})

it.each(['separate', 'auto'])(
  'in mode %s keeps the key of its start if the file changes, and logs that once',
  async (mode) => {
    const { path, prepare } = await open(mode, BOTH)
    const file = join(folder, 'wgkey')
    const said = (): string[] => host.lines.filter((line) => line.includes('key'))
    const keyOf = async () => (await prepare()).backendData
    const published = await keyOf()
    expect(published).toEqual({ PublicKey: publicKey, Port: 51_820 })
    await path.resync()
    expect(said()).toEqual([])
    for (const [put, change] of [
      [() => writeFileSync(file, OTHER_KEY), 'holds another key'],
      [() => writeFileSync(file, 'no key'), 'holds no WireGuard key'],
      [() => rmSync(file), 'is gone'],
    ] as const) {
      put()
      for (let looks = 0; looks < 3; looks++) await path.resync()
      expect(said().splice(0)).toEqual([
        `This node continues with the key that it read at its start, although the key file ${file} ${change}: restart weftd to use the file`,
      ])
      host.lines.length = 0
      expect(await keyOf()).toEqual(published)
    }
    expect(existsSync(file)).toBe(false)
    writeFileSync(file, KEY)
    await path.resync()
    expect(said()).toEqual([`The key file ${file} holds the key of this node again`])
    await expect(Promise.race([path.fault, Promise.resolve('pending')])).resolves.toBe('pending')
    await path.close()
  },
)

it.each(['separate', 'auto'])('in mode %s keeps its devices after a change of the host address', async (mode) => {
  const { path, prepare } = await open(mode, BOTH)
  await path.resync()
  expect(path.isOutdated).toBe(false)
  setIpv6('2001:db8::2')
  const made = (): number => kernel.changes.filter((words) => /^ip link (add|del) /.test(words)).length
  const before = made()
  await path.resync()
  expect([path.isOutdated, path.lacking]).toEqual([true, {}])
  await path.renew(await prepare())
  expect(path.isOutdated).toBe(false)
  expect(made()).toBe(before)
  await path.close()
})

it.each([
  ['ipv4', 'ipv4'],
  ['ipv6', 'ipv6'],
  ['auto', 'ipv4'],
] as const)('in mode %s reports a missing address only of the family of its datagrams', async (mode, family) => {
  const { path } = await open(mode, BOTH)
  const device = { name: 'eth0' }
  for (const each of ['ipv4', 'ipv6'] as const) {
    const [entry] = kernel.peek('eth0')!.addresses[each]
    kernel.act({ kind: 'delete address', device, ...entry! })
    await path.resync()
    expect(familiesOf(path.gone())).toEqual(each === family ? [family] : [])
    kernel.addAddress('eth0', entry!)
  }
})

it.each([
  ['auto', '127.0.0.1', '2001:db8::2', ['IPv4', 'IPv6'], '127.0.0.1 is not the address of a host'],
  ['ipv6', '192.0.2.2', '::1', ['IPv4', 'IPv6'], '::1 is not the address of a host'],
  ['ipv6', '192.0.2.2', '2001:db8::1', ['IPv4', 'IPv6'], "2001:db8::1 is this node's own address"],
  ['ipv4', '192.0.2.2', '::1', ['IPv6'], '::1 is not the address of a host'],
])('in mode %s skips a peer whose datagrams would reach no host: %s, %s', async (mode, ipv4, other, families, why) => {
  const { path } = await open(mode, BOTH)
  const attrs = {
    publicIp: { ipv4: parseIpv4(ipv4)!, ipv6: parseIpv6(other)! },
    backendType: 'wireguard',
    backendData: { PublicKey: KEY },
    backendV6Data: { PublicKey: KEY },
  }
  const subnet = { ipv4: parseIpv4Net('10.5.2.0/24')!, ipv6: parseIpv6Net('fd00:5:0:2::/64')! }
  await path.apply(new Map([['k', { key: 'k', subnet, attrs }]]), 'own')
  expect(host.lines.filter((line) => line.includes('Lease k'))).toEqual(
    families.map((family) => expect.stringContaining(`Lease k is not used for ${family}: ${why}`) as string),
  )
  expect(path.peers().map((peer) => [peer.ipv4 !== undefined, peer.ipv6 !== undefined])).toEqual(
    families.length === 2 ? [] : [[true, false]],
  )
  await path.close()
})

it('reports the current endpoint of a peer after reading it from the device', async () => {
  const { path } = await open('separate', { ipv4: BOTH.ipv4 })
  const attrs = { publicIp: { ipv4: parseIpv4('172.16.0.3')! }, backendType: 'wireguard' }
  const leases = (port: number) =>
    new Map([
      [
        'k',
        {
          key: 'k',
          subnet: { ipv4: parseIpv4Net('10.5.2.0/24')! },
          attrs: { ...attrs, backendData: { PublicKey: OTHER_KEY, Port: port } },
        },
      ],
    ])
  const endpoint = (): string | undefined => path.peers()[0]?.ipv4?.endpoint
  await path.apply(leases(51_820), 'own')
  expect(endpoint()).toBe('172.16.0.3:51820')
  const { peers } = kernel.wireguardDevice('flannel-wg')
  for (const at of [{ address: parseIpv4('192.0.2.9')!, port: 22_235 }, undefined]) {
    peers.set(OTHER_KEY, { ...peers.get(OTHER_KEY)!, endpoint: at })
    await path.traffic()
    expect(endpoint()).toBe('192.0.2.9:22235')
  }
  await path.apply(leases(51_830), 'own')
  expect(endpoint()).toBe('172.16.0.3:51830')
  await path.close()
})

it('sets only the changed peers, and does not read all peers from the device for that', async () => {
  const { path } = await open('auto', BOTH)
  const keyOf = (number: number): string => Buffer.alloc(32, number).toString('base64')
  const leases = new Map<string, Lease>()
  /** Sets the lease of subnet `number`. `at` is the number of the host, which determines its address and its key. */
  const set = (number: number, at: number, port = 51_820): void => {
    const data = { PublicKey: keyOf(at), Port: port }
    const subnet = { ipv4: parseIpv4Net(`10.5.${number}.0/24`)!, ipv6: parseIpv6Net(`fd00:5:0:${number}::/64`)! }
    const address = { ipv4: parseIpv4(`192.0.2.${at}`)!, ipv6: parseIpv6(`2001:db8::${at}`)! }
    const attrs = { publicIp: address, backendType: 'wireguard', backendData: data, backendV6Data: data }
    leases.set(`k${number}`, { key: `k${number}`, subnet, attrs })
  }
  const read = vi.spyOn(kernel, 'wireguard')
  const peers = (): Record<string, string> =>
    Object.fromEntries(
      [...kernel.wireguardDevice('flannel-wg').peers.values()].map(({ publicKey: of64, endpoint, allowedIps }) => [
        String(Buffer.from(of64, 'base64')[0]),
        `${endpoint?.port} ${allowedIps.map(formatNet).toSorted().join(' ')}`,
      ]),
    )
  const of = (...numbers: number[]): string =>
    [...numbers.map((number) => `10.5.${number}.0/24`), ...numbers.map((number) => `fd00:5:0:${number}::/64`)].join(' ')
  const change = async (...keys: string[]): Promise<void> => {
    read.mockClear()
    await path.apply(leases, 'own', new Set(keys))
    expect(read).not.toHaveBeenCalled()
    expect(await path.resync()).toEqual([])
  }
  set(2, 2)
  set(3, 3)
  await path.apply(leases, 'own')
  expect(peers()).toEqual({ 2: `51820 ${of(2)}`, 3: `51820 ${of(3)}` })
  set(4, 2)
  set(3, 3, 51_830)
  await change('k3', 'k4')
  expect(peers()).toEqual({ 2: `51820 ${of(2, 4)}`, 3: `51830 ${of(3)}` })
  leases.delete('k2')
  set(3, 5)
  await change('k2', 'k3')
  expect(peers()).toEqual({ 2: `51820 ${of(4)}`, 5: `51820 ${of(3)}` })
  leases.delete('k4')
  await change('k4')
  expect(peers()).toEqual({ 5: `51820 ${of(3)}` })
  expect(path.peers().map(({ key }) => key)).toEqual(['k3'])
  await path.close()
})

it('does not set the endpoint of a moved peer again if only the lease of another host changes', async () => {
  const { path } = await open('separate', { ipv4: BOTH.ipv4 })
  const lease = (number: number, key: string): [string, Lease] => [
    `k${number}`,
    {
      key: `k${number}`,
      subnet: { ipv4: parseIpv4Net(`10.5.${number}.0/24`)! },
      attrs: {
        publicIp: { ipv4: parseIpv4(`172.16.0.${number}`)! },
        backendType: 'wireguard',
        backendData: { PublicKey: key },
      },
    },
  ]
  const leases = new Map([lease(2, OTHER_KEY)])
  await path.apply(leases, 'own')
  const { peers } = kernel.wireguardDevice('flannel-wg')
  peers.set(OTHER_KEY, { ...peers.get(OTHER_KEY)!, endpoint: { address: parseIpv4('192.0.2.9')!, port: 22_235 } })
  await path.traffic()
  leases.set(...lease(3, Buffer.alloc(32, 3).toString('base64')))
  await path.apply(leases, 'own', new Set(['k3']))
  expect(path.peers().map(({ ipv4 }) => ipv4?.endpoint)).toEqual(['192.0.2.9:22235', '172.16.0.3:51820'])
  await path.close()
})

it('warns once about a network that contains its own address, also after repeated `prepare`', async () => {
  const { path, prepare } = await open('separate', BOTH, '192.0.0.0/16')
  await prepare()
  expect(host.lines.filter((line) => line.includes("contains this node's own address"))).toHaveLength(1)
  await path.close()
})

/** Returns the endpoint of a peer in the log. */
function endpointOf(backend: object, own: Addresses, peer: Addresses, port?: number): string {
  return linesOf(backend, own, peer, port).added[0]!.replace(/^Subnet(\(s\))? added: .* via /, '')
}

/** Returns the log lines for a peer of both families. */
function linesOf(backend: object, own: Addresses, peer: Addresses, port?: number) {
  const config = parseNetworkConfig(
    JSON.stringify({
      Network: '10.5.0.0/16',
      EnableIPv6: true,
      IPv6Network: 'fd00:5::/48',
      Backend: { Type: 'wireguard', ...backend },
    }),
  )
  const external = { name: 'eth0', mtu: mtuOf(), address: own, publicIp: own, named: { address: {}, publicIp: {} } }
  const { words } = createWireguardBackend({
    config,
    settings: readSettings('wireguard', config.backend),
    external,
    run,
    kernel,
    log,
    ...NO_ENGINE,
  })
  const data = { PublicKey: KEY, ...(port === undefined ? {} : { Port: port }) }
  const attrs = { publicIp: peer, backendType: 'wireguard', backendData: data, backendV6Data: data }
  const lease = { key: 'k', subnet: BOTH, attrs }
  return { added: words!.added!(lease), removed: words!.removed!(lease) }
}

it.each([
  [{}, ['10.5.1.0/24 via 192.0.2.2:51820', 'fd00:5:0:1::/64 via [2001:db8::2]:51821']],
  [{ Mode: 'auto' }, ['[10.5.1.0/24 fd00:5:0:1::/64] via 192.0.2.2:51820']],
])('with %j logs a peer like flanneld', (backend, texts) => {
  const peer = { ipv4: parseIpv4('192.0.2.2')!, ipv6: parseIpv6('2001:db8::2')! }
  const verb = texts.length > 1 ? 'Subnet added' : 'Subnet(s) added'
  expect(linesOf(backend, publicIp, peer)).toEqual({
    added: texts.map((text) => `${verb}: ${text}`),
    removed: ['Subnet removed: 10.5.1.0/24', 'Subnet removed: fd00:5:0:1::/64'],
  })
})

it.each([
  [{}, undefined, '192.0.2.2:51820'],
  [{ ListenPort: 1234 }, undefined, '192.0.2.2:1234'],
  [{ ListenPort: 1234 }, 0, '192.0.2.2:1234'],
  [{ ListenPort: 1234 }, 4321, '192.0.2.2:4321'],
  [{ ListenPort: 1234, ListenPortV6: 5678, Mode: 'ipv6' }, 0, '[2001:db8::2]:1234'],
])('with %j assumes its own port for a peer that publishes the port %s', (backend, port, end) => {
  expect(endpointOf(backend, publicIp, { ipv4: parseIpv4('192.0.2.2')!, ipv6: parseIpv6('2001:db8::2')! }, port)).toBe(
    end,
  )
})

it.each([
  ['192.0.2.1 2001:db8::1', '192.0.2.2 2001:db8::2', '192.0.2.2'],
  ['192.0.2.1 2001:db8::1', '10.0.0.2 2001:db8::2', '[2001:db8::2]'],
  ['192.0.2.1 2001:db8::1', '172.31.0.2 2001:db8::2', '[2001:db8::2]'],
  ['192.0.2.1 2001:db8::1', '192.168.0.2 fd00::2', '192.168.0.2'],
  ['192.0.2.1 fd00::1', '10.0.0.2 2001:db8::2', '10.0.0.2'],
  ['192.0.2.1 2001:db8::1', '10.0.0.2', '10.0.0.2'],
  ['192.0.2.1 2001:db8::1', '2001:db8::2', '[2001:db8::2]'],
  ['2001:db8::1', '192.0.2.2 2001:db8::2', '[2001:db8::2]'],
  ['192.0.2.1 fe80::1', '10.0.0.2 2001:db8::2', '10.0.0.2'],
])('in mode auto a node at %s sends to a node at %s over %s', (own, peer, at) => {
  const addresses = (text: string): Addresses =>
    Object.fromEntries(text.split(' ').map((each) => [each.includes(':') ? 'ipv6' : 'ipv4', parseAddress(each)]))
  expect(endpointOf({ Mode: 'auto' }, addresses(own), addresses(peer))).toBe(`${at}:51820`)
})

describe('the endpoint of a flanneld peer', () => {
  // With IPv6 flanneld publishes another port, on which it listens only if each family has its own device
  // (pkg/backend/wireguard).
  const data = (port: number) => ({ PublicKey: KEY, Port: port })
  const both = { publicIp, backendType: 'wireguard', backendData: data(51_820), backendV6Data: data(51_821) }
  const ipv6Alone = { publicIp: { ipv6: publicIp.ipv6 }, backendType: 'wireguard', backendV6Data: data(51_821) }

  it.each([
    ['ipv4', false, both, '192.0.2.1:51820', ['10.5.1.0/24']],
    ['ipv6', false, both, '[2001:db8::1]:51821', ['fd00:5:0:1::/64']],
    ['ipv4', true, both, '192.0.2.1:51820', ['10.5.1.0/24', 'fd00:5:0:1::/64']],
    ['ipv6', true, both, '[2001:db8::1]:51820', ['10.5.1.0/24', 'fd00:5:0:1::/64']],
    ['ipv6', true, ipv6Alone, '[2001:db8::1]:51821', ['10.5.1.0/24', 'fd00:5:0:1::/64']],
    ['ipv4', true, ipv6Alone, undefined, undefined],
  ] as const)(
    'over %s, with one device: %s, has the port on which it listens: case %#',
    (outer, isOneDevice, attrs, endpoint, allowedIps) => {
      const end = endOf({ key: 'k', subnet: BOTH, attrs }, outer, isOneDevice, PORTS)
      expect([end && endpointText(end.endpoint), end?.allowedIps.map(formatNet)]).toEqual([endpoint, allowedIps])
    },
  )
})

it('chooses the kernel although a weftd was killed while it tested the kernel', async () => {
  kernel.addLink({ name: 'weft-wg-try', type: 'wireguard' })
  expect(await chooseCarrier(undefined, [], kernel, log)).toBe('kernel')
  expect(kernel.peek('weft-wg-try')).toBeUndefined()
})

describe('a Node.js without ciphers', () => {
  /** Returns the carrier on a host whose kernel lacks WireGuard, and the published lease. */
  async function chosen(backend: object, lacks: readonly string[]) {
    const config = parseNetworkConfig(
      JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: 'wireguard', ...backend } }),
    )
    const made = createWireguardBackend({
      config,
      settings: readSettings('wireguard', config.backend),
      external: externalOf(),
      run,
      kernel,
      log,
      lacks,
      ...NO_ENGINE,
    })
    const { backendData } = await made.prepare(new AbortController().signal)
    return { names: made.tunNames, backendData }
  }

  it('is refused if the kernel has no WireGuard either', async () => {
    kernel.unknownTypes.add('wireguard')
    expect(await chosen({}, [])).toEqual({
      names: ['flannel-wg'],
      backendData: { PublicKey: publicKey, Port: 51_820, AnyPort: true },
    })
    const [line = ''] = host.lines.splice(0)
    expect(line).toMatch(/^WireGuard is carried by weftd itself: .*wireguard/)
    const why = line.replace('WireGuard is carried by weftd itself: ', '')
    await expect(chosen({}, ['X25519', 'BLAKE2s'])).rejects.toMatchObject({
      code: 'DEVICE',
      message: `WireGuard cannot be carried: ${why}, and this Node.js has no X25519, no BLAKE2s`,
      remedy: expect.stringContaining('not in FIPS mode') as string,
    })
  })

  it.each([{ DataPath: 'kernel' }, {}])('is accepted if the kernel is the carrier (%j)', async (backend) => {
    const { backendData } = await chosen(backend, ['X25519'])
    expect(backendData).toEqual({ PublicKey: publicKey, Port: 51_820 })
    const onlyByKernel = kernel.changes.filter((words) => words === 'wg set weft-wg-try private-key (hidden)')
    expect([onlyByKernel.length, kernel.peek('weft-wg-try')]).toEqual([1, undefined])
  })

  it('is refused if weftd must be the carrier', async () => {
    await expect(chosen({ DataPath: 'userspace' }, ['X25519'])).rejects.toMatchObject({
      code: 'DEVICE',
      message: 'this Node.js has no X25519: weftd cannot carry WireGuard itself',
      remedy: expect.stringContaining('not in FIPS mode') as string,
    })
  })
})

describe('weftd itself, in the mode auto', () => {
  const KEYS = ['ipv4', 'ipv6'] as const
  /** A data path on an engine that only records its calls. */
  async function opened(
    own: string,
    network: object,
    besides: Partial<Engine> = {},
    { publicAs = own, ...given }: { readonly publicAs?: string; readonly Mode?: string } = {},
  ) {
    const isNamed = publicAs !== own
    const external = {
      ...externalOf(),
      address: addressesOf(own),
      publicIp: addressesOf(publicAs),
      named: { address: { ipv4: false, ipv6: false }, publicIp: { ipv4: isNamed, ipv6: isNamed } },
    }
    const ipv6 = own.split(' ').find((each) => each.includes(':'))
    if (ipv6 !== undefined) setIpv6(ipv6)
    const config = parseNetworkConfig(
      JSON.stringify({ ...network, Backend: { Type: 'wireguard', DataPath: 'userspace', Mode: 'auto', ...given } }),
    )
    let startedWith: EngineConfig | undefined
    let records: Uint8Array = new Uint8Array()
    const backend = createWireguardBackend({
      config,
      settings: readSettings('wireguard', config.backend),
      external,
      run,
      kernel,
      log,
      ...NO_ENGINE,
      async startEngine(engineConfig) {
        startedWith = engineConfig
        kernel.addLink({ name: engineConfig.tunName, type: 'tun' })
        const stop = async (): Promise<void> =>
          kernel.act({ kind: 'delete link', device: { name: engineConfig.tunName } })
        return { ...quietEngine(engineConfig.tunName), stop, setPeers: (all) => void (records = all), ...besides }
      },
    })
    const { signal } = new AbortController()
    const attrs = await backend.prepare(signal)
    const subnet = Object.fromEntries(KEYS.filter((family) => config[family]).map((family) => [family, BOTH[family]]))
    const lease: OwnLease = { key: 'own', subnet, attrs, expiresAt: undefined, revision: 0n }
    const path = await openPaths(backend, lease, kernel, { signal, log })
    return {
      path,
      data: attrs.backendData,
      config: startedWith!,
      prepare: () => backend.prepare(signal),
      ends: async (peers: readonly string[], more: readonly object[] = []): Promise<string[]> => {
        const leases = peers.map((text, at): readonly [string, Lease] => {
          const data = {
            PublicKey: publicKeyTo(new Secret(Buffer.alloc(32, at + 1).toString('base64'))),
            Port: 1000 + at,
            ...more[at],
          }
          const net = { ipv4: parseIpv4Net(`10.5.${at + 2}.0/24`)!, ipv6: parseIpv6Net(`fd00:5:0:${at + 2}::/64`)! }
          const of = Object.fromEntries(KEYS.filter((family) => config[family]).map((family) => [family, net[family]]))
          const attrsOf = { publicIp: addressesOf(text), backendType: 'wireguard', backendData: data }
          return [`k${at}`, { key: `k${at}`, subnet: of, attrs: attrsOf }]
        })
        await path.apply(new Map(leases), 'own')
        return decodePeers(records).map(({ subnet: of, hosts, outer, port, isFromKnownPort }) => {
          const second = hosts[outer === 'ipv4' ? 'ipv6' : 'ipv4']
          return (
            `${formatNet(of)} ${formatEndpoint(hosts[outer]!, port)} ` +
            `${second === undefined ? '-' : formatAddress(second)}${isFromKnownPort ? '' : ', by lanes'}`
          )
        })
      },
    }
  }
  const addressesOf = (text: string): Addresses =>
    Object.fromEntries(text.split(' ').map((each) => [each.includes(':') ? 'ipv6' : 'ipv4', parseAddress(each)]))
  const quietEngine = (tunName: string): Engine => ({
    kind: 'native',
    tunName,
    offloads: [],
    notes: [],
    details: [],
    outers: ['ipv4', 'ipv6'],
    fault: new Promise(() => {}),
    setPeers: () => {},
    changePeers: () => {},
    counters: () => ({}),
    traffic: () => new Float64Array(),
    drops: (after = []) => ({ next: after, packets: [] }),
    threads: () => ({}),
    takeUnknownSenders: () => [],
    send: () => {},
    stop: async () => {},
  })
  const TWO = { Network: '10.5.0.0/16', EnableIPv6: true, IPv6Network: 'fd00:5::/48' }

  it('has sockets of both families, and sends to each peer over the family that flanneld chooses', async () => {
    const { path, config, ends } = await opened('192.0.2.1 2001:db8::1', TWO)
    expect(config).toMatchObject({ bindAddresses: ['192.0.2.1', '2001:db8::1'], port: 51_820, mtu: 1420 })
    const peers = ['192.0.2.2 2001:db8::2', '10.0.0.3 2001:db8::3', '192.168.0.4 fd77::4', '192.0.2.5', '2001:db8::6']
    expect(await ends(peers)).toEqual([
      '10.5.2.0/24 192.0.2.2:1000 2001:db8::2',
      '10.5.3.0/24 [2001:db8::3]:1001 10.0.0.3',
      '10.5.4.0/24 192.168.0.4:1002 fd77::4',
      '10.5.5.0/24 192.0.2.5:1003 -',
      '10.5.6.0/24 [2001:db8::6]:1004 -',
      'fd00:5:0:2::/64 192.0.2.2:1000 2001:db8::2',
      'fd00:5:0:3::/64 [2001:db8::3]:1001 10.0.0.3',
      'fd00:5:0:4::/64 192.168.0.4:1002 fd77::4',
      'fd00:5:0:5::/64 192.0.2.5:1003 -',
      'fd00:5:0:6::/64 [2001:db8::6]:1004 -',
    ])
    // Unencrypted datagrams, which a choice of the family would need, are never sent.
    expect([path.underlays, path.tunNames]).toEqual([undefined, ['flannel-wg']])
    await path.close()
  })

  it('with a device for each family, does not call a node without IPv6 unusable, nor its own IPv4 lease', async () => {
    const { path } = await opened('192.0.2.1 2001:db8::1', TWO, {}, { Mode: 'separate' })
    const attrsOf = (ip: string, end: number) => ({
      publicIp: addressesOf(ip),
      backendType: 'wireguard',
      backendData: { PublicKey: publicKeyTo(new Secret(Buffer.alloc(32, end).toString('base64'))) },
    })
    const leases: readonly Lease[] = [
      { key: '10.5.2.0-24', subnet: { ipv4: parseIpv4Net('10.5.2.0/24')! }, attrs: attrsOf('192.0.2.2', 2) },
      { key: '10.5.1.0-24', subnet: { ipv4: BOTH.ipv4 }, attrs: attrsOf('192.0.2.1', 1) },
    ]
    await path.apply(new Map(leases.map((lease) => [lease.key, lease])), 'own')
    expect(host.lines.filter((line) => line.includes('is not used'))).toEqual([])
    await path.close()
  })

  it('has sockets of one family if the host has no global address of the other', async () => {
    const { path, config, ends } = await opened('192.0.2.1 fe80::1', TWO)
    expect(config.bindAddresses).toEqual(['192.0.2.1'])
    expect(await ends(['10.0.0.2 2001:db8::2', '2001:db8::3'])).toEqual([
      '10.5.2.0/24 10.0.0.2:1000 -',
      'fd00:5:0:2::/64 10.0.0.2:1000 -',
    ])
    expect(host.lines.filter((line) => line.includes('Lease k1 is not used'))).toHaveLength(2)
    await path.close()
    const alone = await opened('192.0.2.1', { Network: '10.5.0.0/16' })
    expect(alone.config.bindAddresses).toEqual(['192.0.2.1'])
    expect(await alone.ends(['10.0.0.2 2001:db8::2'])).toEqual(['10.5.2.0/24 10.0.0.2:1000 -'])
    await alone.path.close()
  })

  it('sends from the ports of its lanes only to peers that publish the same', async () => {
    const { path, ends } = await opened('192.0.2.1', { Network: '10.5.0.0/16' })
    const said = [{ AnyPort: true }, { AnyPort: 'true' }, { AnyPort: false }, {}]
    expect(await ends(['10.0.0.2', '10.0.0.3', '10.0.0.4', '10.0.0.5'], said)).toEqual([
      '10.5.2.0/24 10.0.0.2:1000 -, by lanes',
      '10.5.3.0/24 10.0.0.3:1001 -',
      '10.5.4.0/24 10.0.0.4:1002 -',
      '10.5.5.0/24 10.0.0.5:1003 -',
    ])
    await path.close()
  })

  it.each([
    { of: 'that keeps a hole open', isBehind: { PersistentKeepaliveInterval: 25 } },
    { of: 'behind a translation of addresses', isBehind: { publicAs: '203.0.113.1' } },
  ])('sends everything from its listening port on a host $of, and publishes that', async ({ isBehind }) => {
    const { path, data, ends } = await opened('192.0.2.1', { Network: '10.5.0.0/16' }, {}, isBehind)
    expect(data).toEqual({ PublicKey: publicKey, Port: 51_820 })
    expect(await ends(['10.0.0.2'], [{ AnyPort: true }])).toEqual(['10.5.2.0/24 10.0.0.2:1000 -'])
    await path.close()
  })

  it('does not continue with one family if the sockets of the other fail', async () => {
    let stopped = 0
    const stop = async () => void stopped++
    const besides: Partial<Engine> = {
      outers: ['ipv4'],
      notes: ['cannot reach peers from 2001:db8::1: it is taken'],
      stop,
    }
    await expect(opened('192.0.2.1 2001:db8::1', TWO, besides)).rejects.toMatchObject({
      code: 'PORT_IN_USE',
      message: 'cannot reach peers from 2001:db8::1: it is taken',
    })
    expect(stopped).toBe(1)
  })

  it('fails if it cannot bind a new address of the other family, and requests new keys if it can', async () => {
    const bound: string[] = []
    const rebind = async (address: string): Promise<boolean> => {
      bound.push(address)
      if (bound.length > 1) throw new Error('it is taken')
      return true
    }
    const { path, prepare } = await opened('192.0.2.1 2001:db8::1', TWO, { rebind })
    await path.resync()
    setIpv6('2001:db8::2')
    await path.resync()
    expect(path.isOutdated).toBe(true)
    await path.renew(await prepare())
    await expect(Promise.race([path.fault, Promise.resolve('pending')])).resolves.toBe('pending')
    setIpv6('2001:db8::3')
    await path.resync()
    await path.renew(await prepare())
    expect([bound, (await path.fault).message]).toEqual([['2001:db8::2', '2001:db8::3'], 'it is taken'])
    await path.close()
  })
})
