// wireguard.test.ts - which families its devices carry, and what ends them.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { OwnLease } from '../../../../src/control/lease/lease.ts'
import type { Run } from '../../../../src/host/command.ts'
import { parseAddress, type Addresses, type Nets } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { publicKeyTo } from '../../../../src/path/kinds/wireguard/key-file.ts'
import { Secret } from '../../../../src/base/secret.ts'
import { createWireguardBackend, endOf } from '../../../../src/path/kinds/wireguard.ts'
import { host, installHost, log } from '../../../support/fake-host.ts'

const KEY = 'MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='
const OTHER_KEY = 'XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os='
const BOTH = { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: parseIpv6Net('fd00:5:0:1::/64')! }
const PORTS = { ipv4: 51_820, ipv6: 51_821 }
const publicIp = { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('2001:db8::1')! }

installHost()
let folder: string
let commands: string[]
let publicKey: string
/** The address of eth0. */
let ipv6: string
/** That of eth0, in bytes. */
let mtu: number
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-wg-'))
  writeFileSync(join(folder, 'wgkey'), KEY)
  vi.stubEnv('WIREGUARD_KEY_FILE', join(folder, 'wgkey'))
  ;[commands, publicKey, ipv6, mtu] = [[], publicKeyTo(new Secret(KEY)), '2001:db8::1', 1500]
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(folder, { recursive: true })
})

/** A host whose devices, and eth0, are all there; what is asked of it is noted. */
const run: Run = async (file, args) => {
  const command = [file, ...args].join(' ')
  if (file === 'wg' && args[0] === 'show') return `priv\t${publicKey}\t51820\toff\n`
  const [, device] = / show dev (\S+)$/.exec(command) ?? []
  if (device === 'eth0' || commands.some((each) => each.startsWith(`ip link add ${device} `))) {
    const info = device === 'eth0' ? [{ local: '192.0.2.1' }, { local: ipv6 }] : []
    return JSON.stringify([
      { ifindex: 1, ifname: device, mtu: device === 'eth0' ? mtu : 1420, flags: ['UP'], addr_info: info },
    ])
  }
  if (args.includes('show')) return '[]'
  commands.push(command)
  return ''
}

/** The kernel carries it here. */
const NO_ENGINE = {
  startEngine: () => Promise.reject(new Error('no engine')),
  persistence: { persist: false, tunNames: [], isMultiQueue: false, inherit: () => Promise.resolve(undefined) },
}

async function open(mode: string, subnet: Nets, network = '10.5.0.0/16') {
  const config = parseNetworkConfig(
    `{"Network":"${network}","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"wireguard","Mode":"${mode}"}}`,
  )
  const external = { name: 'eth0', mtu, address: publicIp, publicIp, named: { address: {}, publicIp: {} } }
  const backend = createWireguardBackend({
    ...{ config, settings: readSettings('wireguard', config.backend), external, run, log },
    ...NO_ENGINE,
  })
  const { signal } = new AbortController()
  const attrs = await backend.prepare(signal)
  const lease: OwnLease = { key: 'own', subnet, attrs, expiresAt: undefined, revision: 0n }
  return { path: await backend.open(lease, signal, new Map()), prepare: () => backend.prepare(signal) }
}

const routes = (): string[] => commands.flatMap((command) => /^ip route replace (\S+ dev \S+)/.exec(command)?.[1] ?? [])

it.each<[mode: string, subnet: Nets, expected: readonly string[]]>([
  ['separate', BOTH, ['10.5.0.0/16 dev flannel-wg', 'fd00:5::/48 dev flannel-wg-v6']],
  ['separate', { ipv4: BOTH.ipv4 }, ['10.5.0.0/16 dev flannel-wg']],
  ['separate', { ipv6: BOTH.ipv6 }, ['fd00:5::/48 dev flannel-wg-v6']],
  ['auto', BOTH, ['10.5.0.0/16 dev flannel-wg', 'fd00:5::/48 dev flannel-wg']],
  ['auto', { ipv4: BOTH.ipv4 }, ['10.5.0.0/16 dev flannel-wg']],
  ['ipv4', { ipv6: BOTH.ipv6 }, ['fd00:5::/48 dev flannel-wg']],
  ['ipv6', { ipv4: BOTH.ipv4 }, ['10.5.0.0/16 dev flannel-wg']],
])('in the mode %s it carries what the node has subnets of: case %#', async (mode, subnet, expected) => {
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
  'in the mode %s carries IPv4 where IPv6 does not fit, and says so',
  async (mode) => {
    mtu = 1340
    const { path, prepare } = await open(mode, BOTH)
    expect(routes()).toEqual(['10.5.0.0/16 dev flannel-wg'])
    expect([path.mtu, path.lacking]).toEqual([
      1260,
      { ipv6: expect.stringContaining('IPv6 needs an MTU of 1280, and containers would have 1260 here') as string },
    ])
    expect(path.probeSource).toEqual({ ipv4: BOTH.ipv4.address, ipv6: undefined })
    // A larger one has it opened anew.
    mtu = 1500
    await path.resync()
    expect((await path.fault).message).toBe('the MTU of eth0 changed from 1340 to 1500')
    await path.close()
    await prepare()
  },
)

it.each(['separate', 'auto'])('in the mode %s is refused where IPv6 is alone and does not fit', async (mode) => {
  mtu = 1340
  await expect(open(mode, { ipv6: BOTH.ipv6 })).rejects.toMatchObject({ code: 'CONFIG' })
})

it.each(['separate', 'auto'])(
  'in the mode %s ends when the key that the node publishes is another than its device has',
  async (mode) => {
    const { path, prepare } = await open(mode, BOTH)
    await path.resync()
    await expect(Promise.race([path.fault, Promise.resolve('pending')])).resolves.toBe('pending')
    writeFileSync(join(folder, 'wgkey'), OTHER_KEY)
    await prepare()
    await path.resync()
    expect((await path.fault).message).toMatch(/^flannel-wg(-v6)? has another key than /)
    await path.close()
  },
)

it.each(['separate', 'auto'])(
  'in the mode %s keeps its devices when the address of the host is another',
  async (mode) => {
    const { path, prepare } = await open(mode, BOTH)
    await path.resync()
    expect(path.isOutdated).toBe(false)
    ipv6 = '2001:db8::2'
    const made = (): number => commands.filter((command) => /^ip link (add|del) /.test(command)).length
    const before = made()
    await path.resync()
    expect([path.isOutdated, path.lacking]).toEqual([true, {}])
    await path.renew!(await prepare())
    expect(path.isOutdated).toBe(false)
    expect(made()).toBe(before)
    await path.close()
  },
)

it.each([
  ['auto', '127.0.0.1', '2001:db8::2', ['IPv4', 'IPv6'], '127.0.0.1 is no address of a host'],
  ['ipv6', '192.0.2.2', '::1', ['IPv4', 'IPv6'], '::1 is no address of a host'],
  ['ipv6', '192.0.2.2', '2001:db8::1', ['IPv4', 'IPv6'], "2001:db8::1 is this node's own address"],
  ['ipv4', '192.0.2.2', '::1', ['IPv6'], '::1 is no address of a host'],
])('in the mode %s has no peer whose datagrams go to nobody: %s, %s', async (mode, ipv4, other, families, why) => {
  const { path } = await open(mode, BOTH)
  const attrs = {
    ...{ publicIp: { ipv4: parseIpv4(ipv4)!, ipv6: parseIpv6(other)! }, backendType: 'wireguard' },
    ...{ backendData: { PublicKey: KEY }, backendV6Data: { PublicKey: KEY } },
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

it('warns once of a network that holds its own address, however often it is prepared', async () => {
  const { path, prepare } = await open('separate', BOTH, '192.0.0.0/16')
  await prepare()
  expect(host.lines.filter((line) => line.includes("contains this node's own address"))).toHaveLength(1)
  await path.close()
})

/** The endpoint of a peer, as the log has it. */
function endpointOf(backend: object, own: Addresses, peer: Addresses, port?: number): string {
  const config = parseNetworkConfig(
    JSON.stringify({
      ...{ Network: '10.5.0.0/16', EnableIPv6: true, IPv6Network: 'fd00:5::/48' },
      Backend: { Type: 'wireguard', ...backend },
    }),
  )
  const external = { name: 'eth0', mtu, address: own, publicIp: own, named: { address: {}, publicIp: {} } }
  const { words } = createWireguardBackend({
    ...{ config, settings: readSettings('wireguard', config.backend), external, run, log },
    ...NO_ENGINE,
  })
  const data = { PublicKey: KEY, ...(port === undefined ? {} : { Port: port }) }
  const attrs = { publicIp: peer, backendType: 'wireguard', backendData: data, backendV6Data: data }
  return words!.added({ key: 'k', subnet: BOTH, attrs }).replace(/^Subnet added: \S+ via /, '')
}

it.each([
  [{}, undefined, '192.0.2.2:51820'],
  [{ ListenPort: 1234 }, undefined, '192.0.2.2:1234'],
  [{ ListenPort: 1234 }, 0, '192.0.2.2:1234'],
  [{ ListenPort: 1234 }, 4321, '192.0.2.2:4321'],
  [{ ListenPort: 1234, ListenPortV6: 5678, Mode: 'ipv6' }, 0, '[2001:db8::2]:1234'],
])(
  'with %j takes a peer that publishes the port %s for one that listens where it does itself',
  (backend, port, end) => {
    expect(
      endpointOf(backend, publicIp, { ipv4: parseIpv4('192.0.2.2')!, ipv6: parseIpv6('2001:db8::2')! }, port),
    ).toBe(end)
  },
)

it.each([
  ['192.0.2.1 2001:db8::1', '192.0.2.2 2001:db8::2', '192.0.2.2'],
  ['192.0.2.1 2001:db8::1', '10.0.0.2 2001:db8::2', '[2001:db8::2]'],
  ['192.0.2.1 2001:db8::1', '172.31.0.2 2001:db8::2', '[2001:db8::2]'],
  ['192.0.2.1 2001:db8::1', '192.168.0.2 fd00::2', '192.168.0.2'],
  ['192.0.2.1 fd00::1', '10.0.0.2 2001:db8::2', '10.0.0.2'],
  ['192.0.2.1 2001:db8::1', '10.0.0.2', '10.0.0.2'],
  ['192.0.2.1 2001:db8::1', '2001:db8::2', '[2001:db8::2]'],
  ['2001:db8::1', '192.0.2.2 2001:db8::2', '[2001:db8::2]'],
])('in the mode auto a node at %s sends to one at %s by %s', (own, peer, at) => {
  const addresses = (text: string): Addresses =>
    Object.fromEntries(text.split(' ').map((each) => [each.includes(':') ? 'ipv6' : 'ipv4', parseAddress(each)]))
  expect(endpointOf({ Mode: 'auto' }, addresses(own), addresses(peer))).toBe(`${at}:51820`)
})

describe('the end of a peer that flanneld runs', () => {
  // It publishes another port with IPv6, and listens there with a device for each family alone (pkg/backend/wireguard).
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
    'by %s, with one device: %s, is the port that it listens on: case %#',
    (outer, isOneDevice, attrs, endpoint, allowedIps) => {
      const end = endOf({ key: 'k', subnet: BOTH, attrs }, outer, isOneDevice, PORTS)
      expect([end?.endpoint, end?.allowedIps]).toEqual([endpoint, allowedIps])
    },
  )
})
