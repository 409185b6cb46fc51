// own-addresses.test.ts - the addresses, devices and leases that a node that starts knows as its own.

import { expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import { parseLeaseKey, type Lease } from '../../../src/control/lease/lease.ts'
import type { SubnetManager } from '../../../src/control/lease/subnet-manager.ts'
import type { Link } from '../../../src/host/kernel.ts'
import { byFamily, formatAddress, parseAddress, type Address } from '../../../src/net/address.ts'
import { parseIpv4Net } from '../../../src/net/ipv4.ts'
import { ownAddresses, type OwnAddressesParts } from '../../../src/node/own-addresses.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

const kernel = new ModelKernel()
kernel.addLink({ name: 'eth0' }, [{ address: parseAddress('10.0.0.7')!, prefixLength: 24 }])
kernel.addLink({ name: 'flannel.1', mtu: 1450 }, [{ address: parseAddress('10.5.1.0')!, prefixLength: 32 }])

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const leaseOf = (key: string, ...texts: string[]): Lease => ({
  key,
  subnet: parseLeaseKey(key)!,
  attrs: { publicIp: byFamily(texts.map((each) => parseAddress(each)!)), backendType: '' },
})
const claim = (name: string): string => JSON.stringify({ Hostname: name, ID: 'x' })

function life(
  leases: readonly Lease[],
  claims: Readonly<Record<string, string>>,
  more: Partial<OwnAddressesParts> = {},
  answering: readonly string[] = [],
) {
  const manager = {
    source: { list: async () => ({ cursor: 0, entries: leases.map((lease) => ({ key: lease.key, lease })) }) },
    claims: async () => ({ revision: 0n, isWhole: true, values: new Map(Object.entries(claims)) }),
  } as unknown as SubnetManager
  const answers = async (address: Address): Promise<boolean> => answering.includes(formatAddress(address))
  const subnet = { ipv4: parseIpv4Net('10.5.1.0/24')! }
  const { signal } = new AbortController()
  return ownAddresses({ manager, subnet, known: undefined, kernel, log, signal, answers, name: 'node-a', ...more })
}
const texts = (addresses: readonly Address[]): string[] => addresses.map(formatAddress)
const lasts = (key: string, address: string): Partial<OwnAddressesParts> => ({
  known: { lease: leaseOf(key, address) },
})

it('lists the earlier addresses of a node: the last known ones, then those of its subnet, then those of its name entry', async () => {
  const leases = [
    leaseOf('10.5.9.0-24', '10.0.0.9'),
    leaseOf('10.5.2.0-24', '10.0.0.2'),
    leaseOf('10.5.1.0-24&fd00:5:0:1::-64', '10.0.0.1', 'fd00::1'),
  ]
  const claims = { '10.0.0.2': claim('node-a'), '10.0.0.9': claim('node-b'), x: 'junk' }
  const { earlier } = life(leases, claims, lasts('10.5.1.0-24', '10.0.0.8'))
  expect(texts(await earlier.addresses())).toEqual(['10.0.0.8', '10.0.0.1', 'fd00::1', '10.0.0.2'])
})

it('a dual-stack node, whose name is only under its IPv4 address, also knows its earlier IPv6 address', async () => {
  const leases = [
    leaseOf('10.5.2.0-24&fd00:5:0:2::-64', '10.0.0.2', 'fd00::2'),
    leaseOf('10.5.9.0-24&fd00:5:0:9::-64', '10.0.0.9', 'fd00::9'),
  ]
  const claims = { '10.0.0.2': claim('node-a'), '10.0.0.9': claim('node-b') }
  const { earlier, isMine } = life(leases, claims)
  expect(texts(await earlier.addresses())).toEqual(['10.0.0.2', 'fd00::2'])
  const own = ['10.0.0.2', 'fd00::2', 'fd00::9', 'fd00::3'].map((each) => isMine(parseAddress(each)!))
  expect(await Promise.all(own)).toEqual([true, true, false, false])
  // Another host answers at the address now.
  expect(await life(leases, claims, {}, ['fd00::2']).isMine(parseAddress('fd00::2')!)).toBe(false)
})

it('a name that many hosts have proves nothing', async () => {
  const { earlier } = life(
    [leaseOf('10.5.2.0-24', '10.0.0.2')],
    { '10.0.0.2': claim('localhost') },
    { name: 'localhost' },
  )
  expect(await earlier.addresses()).toEqual([])
})

it('a store that refuses to list the names of hosts does not end the start', async () => {
  const lines: string[] = []
  const told = { ...log, warn: (line: string) => void lines.push(line) }
  const leases = [leaseOf('10.5.1.0-24', '10.0.0.1'), leaseOf('10.5.2.0-24', '10.0.0.2')]
  const manager = {
    source: { list: async () => ({ cursor: 0, entries: leases.map((lease) => ({ key: lease.key, lease })) }) },
    claims: async () => {
      throw new WeftError('STORE', 'etcd denied access: permission denied')
    },
  } as unknown as SubnetManager
  const { earlier, isMine } = life([], {}, { manager, log: told, ...lasts('10.5.1.0-24', '10.0.0.1') })
  expect(texts(await earlier.addresses())).toEqual(['10.0.0.1', '10.0.0.1'])
  expect(await isMine(parseAddress('10.0.0.1')!)).toBe(true)
  expect(await isMine(parseAddress('10.0.0.2')!)).toBe(false)
  expect(lines).toEqual([expect.stringContaining('permission denied')])
})

it.each<
  [
    what: string,
    address: string,
    is: boolean,
    claims: object,
    more: Partial<OwnAddressesParts>,
    answering: readonly string[],
  ]
>([
  ['that an interface has now', '10.0.0.7', true, {}, {}, []],
  ['of a device of weft', '10.5.1.0', false, {}, {}, []],
  ['that nothing tells of', '10.0.0.1', false, {}, {}, []],
  ["beside this host's name", '10.0.0.1', true, { '10.0.0.1': claim('node-a') }, {}, []],
  [
    "beside this host's name, which another host has by now",
    '10.0.0.1',
    false,
    { '10.0.0.1': claim('node-a') },
    {},
    ['10.0.0.1'],
  ],
  ["beside another host's name", '10.0.0.1', false, { '10.0.0.1': claim('node-b') }, {}, []],
  ['that was last known', '10.0.0.1', true, {}, lasts('10.5.1.0-24', '10.0.0.1'), []],
  [
    ...(['that was last known, beside another name', '10.0.0.1', false, { '10.0.0.1': claim('node-b') }] as const),
    ...([lasts('10.5.1.0-24', '10.0.0.1'), []] as const),
  ],
  [
    'in files that were copied from a host that runs',
    '10.0.0.1',
    false,
    {},
    lasts('10.5.1.0-24', '10.0.0.1'),
    ['10.0.0.1'],
  ],
])('an address %s: %s is its own: %s', async (_what, address, is, claims, more, answering) => {
  const { isMine } = life([], claims as Record<string, string>, more, answering)
  expect(await isMine(parseAddress(address)!)).toBe(is)
})

it('devices of weft and flannel and the bridge of the containers belong to the node', () => {
  const { earlier } = life([], {})
  const link = (name: string, address: string): Link =>
    ({
      name,
      addresses: { ipv4: [{ address: parseAddress(address)!, prefixLength: 24 }], ipv6: [] },
    }) as unknown as Link
  const names = ['flannel0', 'flannel.1', 'flannel-v6.7', 'flannel.ipip', 'flannel-wg', 'eth0', 'flannel', 'tailscale0']
  expect(names.filter((name) => earlier.isOwn(link(name, '10.0.0.7')))).toEqual(names.slice(0, 5))
  const bridges = [link('br0', '10.5.1.1'), link('br0', '10.5.1.2'), link('br0', '10.5.2.1')]
  expect(bridges.map((bridge) => earlier.isOwn(bridge))).toEqual([true, false, false])
})
