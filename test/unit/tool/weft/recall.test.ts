// recall.test.ts - reconstructs the status of a dead weftd from the store, the last-known file, subnet.env, and devices.

import { expect, it } from 'vitest'
import { decodeLease } from '../../../../src/control/lease/decode.ts'
import type { Link } from '../../../../src/host/kernel.ts'
import { parseAddress } from '../../../../src/net/address.ts'
import { recall, storedConfig, type Remains } from '../../../../src/tool/weft/recall.ts'
import { link, linkAddress } from '../../../support/facts.ts'

const lease = (key: string, publicIp: string, more: object = {}) =>
  decodeLease(key, JSON.stringify({ PublicIP: publicIp, PublicIPv6: null, ...more }))
const vxlan = { BackendType: 'vxlan', BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:01' } }
const own = lease('10.5.1.0-24', '192.0.2.1')
const udp = '{"Network":"10.5.0.0/16"}'
const env = { FLANNEL_NETWORK: '10.5.0.0/16', FLANNEL_SUBNET: '10.5.1.1/24', FLANNEL_MTU: '1450' }
const nothing: Remains = {
  subnetFile: '/run/x',
  subnetEnv: undefined,
  known: undefined,
  stored: undefined,
  netConf: undefined,
  links: [link('eth0', 1500, '192.0.2.1')],
  place: { store: 'etcd', leases: 'http://e /n' },
  at: new Date(0),
}
const known = {
  store: 'etcd /n',
  config: udp,
  lease: { ...own, attrs: own.attrs },
  leases: [own],
  expiresAt: 1,
  tunNames: ['flannel7'],
}

it('the reconstructed status is undefined if no file or device is left', () => {
  expect(recall(nothing)).toBeUndefined()
  expect(recall({ ...nothing, subnetEnv: {} })).toBeUndefined()
  expect(recall({ ...nothing, subnetEnv: env })).toBeUndefined() // no device tells the backend
  expect(recall({ ...nothing, stored: { config: udp, leases: [] } })).toBeUndefined() // whose node it was is not known
  expect(recall({ ...nothing, subnetEnv: env, netConf: 'x' })).toBeUndefined()
})

it('the reconstructed status uses the store if the kernel carries the packets', () => {
  const config = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","Port":4789}}'
  const leases = [
    lease('10.5.1.0-24', '192.0.2.1', vxlan),
    lease('10.5.2.0-24', '192.0.2.2', vxlan),
    lease('10.5.3.0-24', '192.0.2.3'),
  ]
  const links = [...nothing.links, link('flannel.1', 1450, '10.5.1.0')]
  const status = recall({ ...nothing, subnetEnv: env, stored: { config, leases }, links })!
  expect(status.node).toMatchObject({ subnet: '10.5.1.0/24', publicIp: '192.0.2.1', externalInterface: 'eth0' })
  expect(status.dataPath).toMatchObject({
    open: true,
    engine: 'kernel',
    device: 'flannel.1',
    mtu: 1450,
    families: ['ipv4'],
  })
  expect(status.config).toMatchObject({ network: '10.5.0.0/16', backendType: 'vxlan' })
  expect(status.peers!.list.map(({ subnet, state, endpoint }) => [subnet, state, endpoint])).toEqual([
    ['10.5.2.0/24', 'programmed', '192.0.2.2:4789'],
    ['10.5.3.0/24', 'stored', null],
  ])
  expect(status.store.reachable).toBe(true)
  // Without its device the kernel carries no packets.
  expect(recall({ ...nothing, subnetEnv: env, stored: { config, leases } })!.dataPath!.open).toBe(false)
})

it('the reconstructed status shows that the kernel carried the packets if the last-known file only has the routes', () => {
  const config = '{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}'
  const pathWith = (isForCleanup: object) =>
    recall({ ...nothing, known: { ...known, config, tunNames: [], ...isForCleanup } })!.dataPath
  expect(pathWith({ isForCleanup: true })).toMatchObject({ engine: 'kernel', device: null })
  expect(pathWith({})).toMatchObject({ engine: 'native' })
})

it('the reconstructed status uses the last-known file of a weftd that carried the packets itself', () => {
  const status = recall({ ...nothing, known: { ...known, leases: [own, lease('10.5.2.0-24', '192.0.2.2')] } })!
  expect(status.dataPath).toMatchObject({ open: false, engine: 'native', device: 'flannel7', mtu: null })
  expect(status.peers!.list.map(({ subnet, state }) => [subnet, state])).toEqual([['10.5.2.0/24', 'programmed']])
  expect([status.store.reachable, status.lease]).toEqual([false, null])
  // subnet.env wins, because containers use it.
  expect(recall({ ...nothing, known, subnetEnv: { ...env, FLANNEL_SUBNET: '10.5.9.1/24' } })!.node!.subnet).toBe(
    '10.5.9.0/24',
  )
})

it('the reconstructed status uses subnet.env and the device, without peers', () => {
  const links = [...nothing.links, link('flannel-wg', 1420, '10.5.1.0')]
  const guessed = recall({ ...nothing, subnetEnv: env, links })!
  expect(guessed.config!.backendType).toBe('wireguard')
  expect([guessed.peers, guessed.dataPath!.open]).toEqual([null, true])
  const dual = { ...env, FLANNEL_IPV6_NETWORK: 'fd00:5::/48', FLANNEL_IPV6_SUBNET: 'fd00:5:0:1::1/64' }
  expect(recall({ ...nothing, subnetEnv: dual, links })).toMatchObject({
    node: { subnet: '10.5.1.0/24', ipv6Subnet: 'fd00:5:0:1::/64' },
    config: { ipv6Network: 'fd00:5::/48' },
  })
  const six = { FLANNEL_IPV6_NETWORK: 'fd00:5::/48', FLANNEL_IPV6_SUBNET: 'fd00:5:0:1::1/64' }
  expect(recall({ ...nothing, subnetEnv: six, links })).toMatchObject({
    node: { subnet: 'fd00:5:0:1::/64', publicIp: '' },
  })
  const pod = recall({ ...nothing, subnetEnv: env, netConf: '{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}' })!
  expect(pod).toMatchObject({
    config: { backendType: 'host-gw' },
    dataPath: { open: true, engine: 'kernel', device: null },
  })
})

it('the reconstructed status has the port of the IPv6 device of wireguard', () => {
  const config =
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"wireguard"}}'
  const more = { BackendType: 'wireguard', PublicIPv6: 'fd77::2' }
  const stored = { config, leases: [lease('10.5.2.0-24&fd00:5:0:2::-64', '192.0.2.2', more)] }
  const links = [...nothing.links, device('flannel-wg', '10.5.1.0')]
  const { families } = recall({ ...nothing, subnetEnv: env, stored, links })!.peers!.list[0]!
  expect([families.ipv4?.endpoint, families.ipv6?.endpoint]).toEqual(['192.0.2.2:51820', '[fd77::2]:51821'])
})

function device(name: string, ...texts: string[]): Link {
  const all = texts.map((text) => parseAddress(text)!)
  const ipv4 = all.flatMap((each) => (typeof each === 'number' ? [linkAddress(each, 32)] : []))
  const ipv6 = all.flatMap((each) => (typeof each === 'bigint' ? [linkAddress(each, 128)] : []))
  return { ...link(name, 1430, '0.0.0.0'), addresses: { ipv4, ipv6 } }
}
const [SIX, FOUR] = ['fd00:5:0:1::', '10.5.1.0'] as const
it.each([
  ['vxlan', [device('flannel-v6.1', SIX), device('flannel.1', FOUR)], 'flannel.1', 'flannel-v6.1'],
  ['vxlan', [device('flannel-v6.1', SIX), device('flannel.1')], 'flannel.1', 'flannel-v6.1'],
  ['vxlan', [device('flannel.1', FOUR)], 'flannel.1', null],
  ['udp', [device('flannel0', FOUR, SIX)], 'flannel0', 'flannel0'],
  ['wireguard', [device('flannel-wg', FOUR), device('flannel-wg-v6', SIX)], 'flannel-wg', 'flannel-wg-v6'],
  ['wireguard', [device('flannel-wg', FOUR, SIX)], 'flannel-wg', 'flannel-wg'],
])('the reconstructed status of %s names the device of each family: case %#', (type, links, ipv4, ipv6) => {
  const config = `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"${type}"}}`
  const dual = { ...env, FLANNEL_IPV6_NETWORK: 'fd00:5::/48', FLANNEL_IPV6_SUBNET: 'fd00:5:0:1::1/64' }
  const stored = { config, leases: [] }
  const status = recall({ ...nothing, subnetEnv: dual, stored, links: [...nothing.links, ...links] })!
  expect(status.dataPath).toMatchObject({ device: ipv4, devices: { ipv4, ipv6 } })
})

it('the reconstructed status contains no secret of a configuration', () => {
  const key = `${'A'.repeat(42)}A=`
  const text = JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: 'wireguard', PSK: key } })
  expect(JSON.stringify(storedConfig(text))).not.toContain('AAAA')
  expect(storedConfig(text)).toMatchObject({ config: { backend: { psk: '<hidden>' } } })
})

it.each([
  ['{"Network":"10.5.0.0/24",}', 'the network configuration is not valid JSON: '],
  ['{"EnableIPv4":false}', 'none defined stack'],
  ['{"Network":"10.5.0.0/24","SubnetLen":20}', 'network must be able to accommodate at least four subnets'],
  ['{"Network":"10.5.0.0/24","Backend":{}}', 'Backend has no Type'],
  ['{"Network":"10.5.0.0/24","Backend":{"Type":"vxlna"}}', 'Error fetching backend: unknown backend type: vxlna'],
])('the configuration %s in the store is reported as invalid, with the reason', (text, invalid) => {
  expect(storedConfig(text)).toEqual({ invalid: expect.stringContaining(invalid) })
})
