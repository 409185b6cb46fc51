// device-remains.test.ts - recognizes the devices of flannel, and removes them with their routes.

import { expect, it } from 'vitest'
import type { Link, TunSettings, VxlanSettings } from '../../../../src/host/kernel.ts'
import { familyOf, parseNet } from '../../../../src/net/address.ts'
import { findDevices } from '../../../../src/path/device/flannel-devices.ts'
import {
  findBlackholeRemains,
  findDeviceRemains,
  findHostRouteRemains,
  findIpsecRemains,
  findUnreachableRemains,
} from '../../../../src/tool/cleanup/device-remains.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const VXLAN: VxlanSettings = {
  vni: 1,
  local: undefined,
  underlay: 0,
  port: 8472,
  learning: false,
  gbp: false,
  external: false,
  zeroChecksumIpv6Rx: false,
}
const TUN: TunSettings = { mode: 'tun', persist: false, isMultiQueue: false, openQueues: undefined }

it("treats a device as flannel's if it has flannel's name, kind and VNI", async () => {
  const kernel = new ModelKernel()
  const add = (name: string, type: string, part: Partial<Pick<Link, 'vxlan' | 'tun'>> = {}): unknown =>
    kernel.addLink({ name, type, ...part })
  add('flannel.1', 'vxlan', { vxlan: VXLAN })
  add('flannel.2', 'vxlan', { vxlan: VXLAN })
  add('flannel.3', 'vxlan', { vxlan: { ...VXLAN, vni: 3, external: true } })
  add('flannel.4', 'dummy')
  add('vxlan.1', 'vxlan', { vxlan: VXLAN })
  add('flannel.ipip', 'ipip')
  add('flannel-wg', 'wireguard')
  add('flannel-v6.1', 'vxlan', { vxlan: VXLAN })
  add('flannel-v6.2', 'vxlan', { vxlan: VXLAN })
  add('flannel-v6.1', 'dummy')
  add('flannel-wg-v6', 'wireguard')
  add('flannel-wg-v6', 'tun', { tun: { ...TUN, mode: 'tap' } })
  add('flannel0', 'tun', { tun: TUN })
  add('flannel1', 'tun', { tun: { ...TUN, mode: 'tap' } })
  const found = await findDevices(kernel)
  expect(found.map(({ link }) => link.name)).toEqual([
    'flannel.1',
    'flannel.ipip',
    'flannel-wg',
    'flannel-v6.1',
    'flannel-wg-v6',
    'flannel0',
  ])
})

it('finds a device that another program renamed by its type and the first address of the own subnet', async () => {
  const kernel = new ModelKernel()
  const at = (text: string) => [{ address: parseNet(text)!.address, prefixLength: 32 }]
  kernel.addLink({ name: 'odd0', type: 'vxlan', vxlan: VXLAN }, at('10.5.1.0/32'))
  kernel.addLink({ name: 'odd1', type: 'tun', tun: { ...TUN, persist: true }, hasCarrier: false }, at('10.5.1.0/32'))
  kernel.addLink({ name: 'odd2', type: 'tun', tun: { ...TUN, persist: true }, hasCarrier: true }, at('10.5.1.0/32'))
  kernel.addLink({ name: 'odd3', type: 'vxlan', vxlan: VXLAN }, at('10.5.9.0/32'))
  kernel.addLink({ name: 'odd4', type: 'dummy' }, at('10.5.1.0/32'))
  const remains = await findDeviceRemains(kernel, new Set(['10.5.1.0/24']))
  expect(remains.flatMap(({ things }) => things)).toEqual(['device odd0 (vxlan)', 'device odd1 (tun)'])
})

it('removes a device with its routes, the routes to hosts, and the blackholes', async () => {
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0' }, [{ address: parseNet('192.0.2.1/24')!.address, prefixLength: 24 }])
  kernel.addLink({ name: 'flannel.1', type: 'vxlan', vxlan: VXLAN })
  kernel.addRoute('ipv4', { destination: '10.5.2.0/24', gateway: '10.5.2.0', device: 'flannel.1' })
  kernel.addRoute('ipv4', { destination: '10.5.3.0/24', gateway: '192.0.2.3', device: 'eth0' })
  kernel.addRoute('ipv4', { destination: '10.5.4.0/24', gateway: '192.0.2.4', device: 'eth0', protocol: 'static' })
  kernel.addRoute('ipv4', { destination: '10.5.1.0/24', type: 'blackhole', metric: 4294967295 })
  kernel.addRoute('ipv6', { destination: 'fd00:5:1::/64', type: 'blackhole', metric: 4294967295 })
  const [networks, subnets] = [new Set(['10.5.0.0/16']), new Set(['10.5.1.0/24', 'fd00:5:1::/64'])]
  const remains = [
    ...(await findDeviceRemains(kernel, subnets)),
    ...(await findHostRouteRemains(kernel, networks, subnets)),
    ...(await findBlackholeRemains(kernel, subnets)),
  ]
  expect(remains.flatMap(({ things }) => things)).toEqual([
    'route 10.5.2.0/24 via 10.5.2.0 dev flannel.1',
    'device flannel.1 (vxlan)',
    'route 10.5.3.0/24 via 192.0.2.3 dev eth0',
    'route blackhole 10.5.1.0/24',
    'route blackhole fd00:5:1::/64',
  ])
  for (const { remove } of remains) await remove()
  expect(kernel.peek('flannel.1')).toBeUndefined()
  expect([kernel.routesAsText('ipv4'), kernel.routesAsText('ipv6')]).toEqual([
    ['10.5.4.0/24 via 192.0.2.4 dev eth0'],
    [],
  ])
  // Another program may have removed an object since it was found.
  for (const { remove } of remains) await remove()
})

it('names each unreachable route and rule once: within the network, wider, and of another family', async () => {
  const kernel = new ModelKernel()
  const add = (destination: string): void =>
    kernel.addRoute(destination.includes(':') ? 'ipv6' : 'ipv4', {
      type: 'unreachable',
      destination,
      metric: 0xff_ff_ff_ff,
    })
  for (const destination of ['10.5.0.0/16', '10.5.0.0/17', '10.0.0.0/8', 'fd00:5::/48']) add(destination)
  for (const [text, iif] of [
    ['10.0.0.0/8', 'eth0'],
    ['fd00:5::/48', 'eth1'],
  ] as const) {
    const net = parseNet(text)!
    kernel.addRule(familyOf(net), { priority: 219, iif, from: net, to: net, action: 'blackhole' })
  }
  const networks = new Set(['10.5.0.0/16'])
  const run = (): Promise<never> => Promise.reject(new Error('no program is needed'))
  const found = [
    ...(await findUnreachableRemains(kernel, networks)),
    ...(await findIpsecRemains({ kernel, run }, networks)),
  ]
  expect(found.flatMap(({ things }) => things).toSorted()).toEqual([
    'the rule for unencrypted packets from eth0',
    'the rule for unencrypted packets from eth1',
    'the unreachable route to 10.0.0.0/8',
    'the unreachable route to 10.5.0.0/16',
    'the unreachable route to 10.5.0.0/17',
    'the unreachable route to fd00:5::/48',
  ])
})
