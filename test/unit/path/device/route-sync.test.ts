// route-sync.test.ts - which routes belong to a peer and are set or removed, and which do not.

import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Ipv4Lease } from '../../../../src/control/lease/lease.ts'
import { FollowedLink } from '../../../../src/host/links.ts'
import { parseAddress, parseNet, type Address, type Net } from '../../../../src/net/address.ts'
import { parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { RouteSync } from '../../../../src/path/device/route-sync.ts'
import { DirectHops } from '../../../../src/path/tunnel/direct-routing.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const net = (text: string): Net => parseNet(text)!
const address = (text: string): Address => parseAddress(text)!

/** A host with eth0 on the link 192.0.2.0/24, and its routes to peers through eth0. */
function open({ ownDevice }: { ownDevice?: FollowedLink } = {}) {
  const kernel = new ModelKernel()
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  const log = { info: say, warn: say, error: say, v: () => false }
  kernel.addLink({ name: 'eth0' }, [{ address: address('192.0.2.1'), prefixLength: 24 }])
  const device = new FollowedLink('eth0')
  const sync = new RouteSync({ network: net('10.5.0.0/16'), ...(ownDevice ? { ownDevice } : {}), kernel, log })
  const hop = (last: number) => ({ gateway: `192.0.2.${last}`, device })
  const hops = (...thirds: readonly number[]) =>
    new Map(thirds.map((third) => [`10.5.${third}.0/24`, hop(third)] as const))
  const changed = (): string[] => kernel.changes.splice(0)
  return { kernel, lines, device, sync, hop, hops, changed }
}

/** A new next hop of the peer with the subnet 10.5.2.0/24. */
const MOVED = new Map([['10.5.2.0/24', { gateway: '192.0.2.7', device: new FollowedLink('eth0') }]])

describe('RouteSync', () => {
  it("removes an earlier process's routes to peers through its own device, and keeps the device's own routes", async () => {
    const own = new FollowedLink('flannel.1')
    const { kernel, sync, changed } = open({ ownDevice: own })
    kernel.addLink({ name: 'flannel.1', type: 'vxlan' })
    await own.find(kernel)
    kernel.addRoute('ipv4', { destination: '10.5.2.0/24', gateway: '10.5.2.0', device: 'flannel.1' })
    kernel.addRoute('ipv4', { destination: '10.5.7.0/24', device: 'flannel.1' })
    kernel.addRoute('ipv4', { destination: '10.5.8.0/24', gateway: '192.0.2.8', device: 'eth0' })
    await sync.apply(new Map())
    expect(changed()).toEqual(['ip route del 10.5.2.0/24 via 10.5.2.0 dev flannel.1'])
    expect(kernel.routesAsText()).toHaveLength(2)
  })

  it('sets thousands of routes by one call of the kernel, and a changed route without reading the others', async () => {
    const { kernel, sync, hop } = open()
    const hops = new Map(Array.from({ length: 5000 }, (_, at) => [`10.5.${at >> 6}.${(at & 63) << 2}/30`, hop(2)]))
    await sync.apply(hops)
    expect([kernel.changeCalls, kernel.routesAsText().length]).toEqual([1, 5000])
    kernel.reads.length = 0
    const others = [...hops].filter(([destination]) => destination !== '10.5.0.0/30')
    const changed = new Map([...others, ['10.5.255.0/30', hop(3)] as const])
    await sync.apply(changed, new Set(['10.5.0.0/30', '10.5.255.0/30', '10.5.7.0/30']))
    expect([kernel.reads, kernel.changeCalls, kernel.routesAsText().length]).toEqual([[], 2, 5000])
    expect(sync.isSet('10.5.255.0/30')).toBe(true)
  })

  it('replaces a route with several gateways to a peer, which is not the route of a link', async () => {
    const { kernel, sync, hops, changed } = open()
    kernel.addRoute('ipv4', { destination: '10.5.2.0/24', device: 'eth0', isMultipath: true })
    await sync.apply(hops(2))
    expect(changed()).toEqual(['ip route replace 10.5.2.0/24 via 192.0.2.2 dev eth0'])
  })

  it('neither replaces nor counts as its own a route for some packets only', async () => {
    const { kernel, sync, hops, changed } = open()
    const partial = { destination: '10.5.2.0/24', device: 'eth0', isPartial: true }
    kernel.addRoute('ipv4', { ...partial, gateway: '192.0.2.2' })
    await sync.apply(hops(2))
    expect(changed()).toEqual(['ip route replace 10.5.2.0/24 via 192.0.2.2 dev eth0'])
    kernel.addRoute('ipv4', { ...partial, gateway: '192.0.2.9' })
    expect(await sync.resync()).toEqual([])
    expect(changed()).toEqual([])
  })

  it("removes its own IPv6 route, and not another program's with a lower metric", async () => {
    const { kernel, device, changed } = open()
    kernel.addAddress('eth0', { address: address('fd77::1'), prefixLength: 64 })
    const sync = new RouteSync({
      network: net('fd00:5::/48'),
      kernel,
      log: { info: () => {}, warn: () => {}, error: () => {}, v: () => false },
    })
    const destination = 'fd00:5:0:2::/64'
    await sync.apply(new Map([[destination, { gateway: 'fd77::2', device }]]))
    kernel.addRoute('ipv6', { destination, gateway: 'fd77::2', device: 'eth0', metric: 100 })
    changed()
    await sync.apply(new Map(), new Set([destination]))
    expect(changed()).toEqual([`ip -6 route del ${destination} via fd77::2 dev eth0 metric 1024`])
    expect(kernel.routesAsText('ipv6')).toEqual([`${destination} via fd77::2 dev eth0 metric 100`])
  })

  it.each(['of the first call', 'of a later call'])(
    'does not replace the route of a bridge with a route %s: it logs the route once, and sets its own when the bridge is gone',
    async (when) => {
      const { kernel, lines, sync, hops, changed } = open()
      kernel.addLink({ name: 'cni0', type: 'bridge' }, [{ address: address('10.5.2.1'), prefixLength: 24 }])
      kernel.addRoute('ipv4', { destination: '10.5.3.0/24', gateway: '192.0.2.9', device: 'eth0' })
      if (when === 'of a later call') await sync.apply(new Map())
      await sync.apply(hops(2, 3), new Set(['10.5.2.0/24', '10.5.3.0/24']))
      await sync.resync()
      expect(changed().filter((each) => each.includes('replace'))).toEqual([
        'ip route replace 10.5.3.0/24 via 192.0.2.3 dev eth0',
      ])
      expect(lines).toEqual([
        expect.stringContaining("10.5.2.0/24, a peer's subnet, leads to cni0"),
        'Replacing existing route to 10.5.3.0/24 via 192.0.2.9',
      ])
      expect(['10.5.2.0/24', '10.5.3.0/24'].map((to) => sync.isSet(to))).toEqual([false, true])
      kernel.act({ kind: 'delete link', device: { name: 'cni0' } })
      expect(await sync.resync()).toEqual(['the route to 10.5.2.0/24 via 192.0.2.2 was gone'])
      expect(changed()).toEqual(['ip route replace 10.5.2.0/24 via 192.0.2.2 dev eth0'])
      expect(sync.isSet('10.5.2.0/24')).toBe(true)
    },
  )

  it('moves a route to another gateway, unless another program has changed it to a link', async () => {
    const { kernel, sync, hop, hops } = open()
    await sync.apply(hops(2))
    kernel.reads.length = 0
    await sync.apply(new Map([['10.5.2.0/24', hop(9)]]), new Set(['10.5.2.0/24']))
    expect(kernel.routesAsText()).toEqual(['10.5.2.0/24 via 192.0.2.9 dev eth0'])
    // The kernel looks up one route, and does not list all routes.
    expect(kernel.reads).toEqual(['lookUp'])
    kernel.act({ kind: 'replace route', destination: net('10.5.2.0/24'), device: { name: 'eth0' } })
    await sync.apply(hops(2), new Set(['10.5.2.0/24']))
    expect([kernel.routesAsText(), sync.isSet('10.5.2.0/24')]).toEqual([['10.5.2.0/24 dev eth0'], false])
  })

  it.each([['only the changed routes', new Set(['10.5.2.0/24'])] as const, ['all routes', undefined] as const])(
    'removes its former route to a peer if the kernel refuses the new route: %s',
    async (_which, touched) => {
      const { kernel, sync, hop, hops } = open()
      await sync.apply(hops(2, 3))
      const others = { destination: '10.5.4.0/24', gateway: '192.0.2.9', device: 'eth0' }
      kernel.addRoute('ipv4', others)
      kernel.refuses = (words) => (words.includes(' replace ') ? 'ENETUNREACH' : undefined)
      const next = new Map([...hops(3), ['10.5.2.0/24', hop(7)] as const, ['10.5.4.0/24', hop(7)] as const])
      await sync.apply(next, touched && new Set([...touched, '10.5.4.0/24']))
      expect(kernel.routesAsText()).toEqual([
        '10.5.3.0/24 via 192.0.2.3 dev eth0',
        '10.5.4.0/24 via 192.0.2.9 dev eth0',
      ])
      expect(sync.isSet('10.5.2.0/24')).toBe(false)
      kernel.refuses = () => undefined
      await sync.resync()
      expect(kernel.routesAsText()).toContain('10.5.2.0/24 via 192.0.2.7 dev eth0')
    },
  )

  it.each([
    ['leaves', 'only the changed route', new Map(), new Set(['10.5.2.0/24'])] as const,
    ['leaves', 'all routes', new Map(), undefined] as const,
    ['moves', 'only the changed route', MOVED, new Set(['10.5.2.0/24'])] as const,
    ['moves', 'all routes', MOVED, undefined] as const,
  ])(
    'keeps the route through the tunnel if the kernel refuses the direct route to the same host, until the peer %s: %s',
    async (_until, _which, after, touched) => {
      const own = new FollowedLink('flannel.ipip')
      const { kernel, sync, hops } = open({ ownDevice: own })
      kernel.addLink({ name: 'flannel.ipip', type: 'ipip' })
      await own.find(kernel)
      const tunnelled = new Map([['10.5.2.0/24', { gateway: '192.0.2.2', device: own, onlink: true }]])
      await sync.apply(tunnelled)
      const before = kernel.routesAsText()
      kernel.refuses = (words) => (words.includes(' replace ') ? 'ENOBUFS' : undefined)
      await sync.apply(hops(2), touched)
      expect([kernel.routesAsText(), sync.isSet('10.5.2.0/24')]).toEqual([before, false])
      await sync.apply(after, touched)
      expect(kernel.routesAsText()).toEqual([])
    },
  )

  it('deletes a route later if the kernel does not answer, unless the peer has come back', async () => {
    const { kernel, sync, hops, changed } = open()
    await sync.apply(hops(2, 3, 4))
    kernel.refuses = (words) => (words.includes(' del ') ? 'ETIMEDOUT' : undefined)
    await sync.apply(hops(4), new Set(['10.5.2.0/24', '10.5.3.0/24']))
    kernel.refuses = () => undefined
    await sync.apply(hops(3, 4), new Set(['10.5.3.0/24']))
    expect(await sync.resync()).toEqual([])
    expect(kernel.routesAsText()).toEqual(['10.5.3.0/24 via 192.0.2.3 dev eth0', '10.5.4.0/24 via 192.0.2.4 dev eth0'])
    changed()
    await sync.resync()
    expect(changed()).toEqual([])
  })

  it.each(['all routes', 'the routes to some peers'])(
    'removes the routes of former peers after a call for %s that rejected',
    async (which) => {
      const { kernel, sync, hop, hops, changed } = open()
      await sync.apply(hops(2, 3, 4))
      changed()
      kernel.readError = new WeftError('KERNEL', 'the kernel did not answer in time')
      const elsewhere = new Map([...hops(4), ['10.5.5.0/24', { ...hop(5), device: new FollowedLink('eth0') }] as const])
      const touched = new Set(['10.5.2.0/24', '10.5.3.0/24', '10.5.5.0/24'])
      await expect(sync.apply(elsewhere, which === 'all routes' ? undefined : touched)).rejects.toThrow('in time')
      await expect(sync.apply(hops(4))).rejects.toThrow('in time')
      kernel.readError = undefined
      await sync.apply(hops(4))
      expect(changed()).toEqual([
        'ip route del 10.5.2.0/24 via 192.0.2.2 dev eth0',
        'ip route del 10.5.3.0/24 via 192.0.2.3 dev eth0',
      ])
      await sync.apply(hops(4))
      expect(changed()).toEqual([])
    },
  )

  it.each(['all routes', 'the routes to some peers'])(
    'removes the former route of a peer that moved and left after a call for %s that rejected',
    async (which) => {
      const { kernel, sync, hops, changed } = open()
      const touched = which === 'all routes' ? undefined : new Set(['10.5.2.0/24'])
      await sync.apply(hops(2, 4))
      changed()
      kernel.readError = new WeftError('KERNEL', 'the kernel did not answer in time')
      const elsewhere = new Map([...hops(4), ...MOVED])
      await expect(sync.apply(elsewhere, touched)).rejects.toThrow('in time')
      await expect(sync.apply(elsewhere)).rejects.toThrow('in time')
      kernel.readError = undefined
      await sync.apply(hops(4))
      expect(changed()).toEqual(['ip route del 10.5.2.0/24 via 192.0.2.2 dev eth0'])
    },
  )

  it('logs refused routes once, names five of them, and sets them later', async () => {
    const { kernel, lines, sync, hops, changed } = open()
    const thirds = [2, 3, 4, 5, 6, 7, 8]
    kernel.refuses = (words) => (words.includes('10.5.2.0/24') ? undefined : 'ENOMEM')
    await sync.apply(hops(...thirds))
    expect(lines).toHaveLength(6)
    expect(lines[0]).toMatch(/^Error adding route to 10\.5\.3\.0\/24 via 192\.0\.2\.3 dev eth0: .*ENOMEM/)
    expect(lines.at(-1)).toBe('Error adding routes to 1 more subnets')
    expect(changed()).toHaveLength(7)
    expect(thirds.map((third) => sync.isSet(`10.5.${third}.0/24`))).toEqual([true, ...Array(6).fill(false)])
    expect(await sync.resync()).toEqual([])
    expect(lines).toHaveLength(6)
    kernel.refuses = () => undefined
    expect(await sync.resync()).toHaveLength(6)
    expect(thirds.every((third) => sync.isSet(`10.5.${third}.0/24`))).toBe(true)
  })

  it('does not count a lost route as repaired that the kernel refuses', async () => {
    const { kernel, sync, hops } = open()
    await sync.apply(hops(2))
    kernel.act({ kind: 'delete route', destination: net('10.5.2.0/24'), device: { name: 'eth0' } })
    kernel.refuses = () => 'EINVAL'
    expect([await sync.resync(), sync.isSet('10.5.2.0/24')]).toEqual([[], false])
    kernel.refuses = () => undefined
    expect(await sync.resync()).toEqual(['the route to 10.5.2.0/24 via 192.0.2.2 was gone'])
  })

  it('rejects if weftd may not change routes', async () => {
    const { kernel, sync, hops } = open()
    kernel.isPermitted = false
    await expect(sync.apply(hops(2))).rejects.toMatchObject({ code: 'PERMISSION' })
  })
})

describe('RouteSync and a renamed interface', () => {
  it('keeps the routes, and adds and removes routes under the new name', async () => {
    const { kernel, lines, sync, hops, changed } = open()
    await sync.apply(hops(2, 3))
    kernel.rename('eth0', 'uplink0')
    changed()
    expect(await sync.resync()).toEqual([])
    expect(changed()).toEqual([])
    await sync.apply(hops(3, 4), new Set(['10.5.2.0/24', '10.5.4.0/24']))
    expect(kernel.routesAsText()).toEqual([
      '10.5.3.0/24 via 192.0.2.3 dev uplink0',
      '10.5.4.0/24 via 192.0.2.4 dev uplink0',
    ])
    expect(lines).toEqual([])
  })

  it('sets the routes again through an interface that was deleted and made again', async () => {
    const { kernel, lines, sync, hops } = open()
    const again = (name: string): void => {
      kernel.act({ kind: 'delete link', device: { name } })
      kernel.addLink({ name }, [{ address: address('192.0.2.1'), prefixLength: 24 }])
    }
    await sync.apply(hops(2, 3))
    again('eth0')
    expect(await sync.resync()).toHaveLength(2)
    again('eth0')
    // The kernel's refusal shows that the index is old.
    await sync.apply(hops(2, 3, 4), new Set(['10.5.4.0/24']))
    expect(kernel.routesAsText()).toEqual(['10.5.4.0/24 via 192.0.2.4 dev eth0'])
    expect([lines, sync.isSet('10.5.4.0/24')]).toEqual([[], true])
  })
})

it('has a direct route only to peers on the same link', async () => {
  const { kernel } = open()
  const [near, far] = ['10.5.2.0/24', '10.5.3.0/24'].map((subnet, at): Ipv4Lease => {
    const attrs = { publicIp: { ipv4: 0xc0000202 + 256 * at }, backendType: '' }
    return { key: subnet, subnet: { ipv4: parseIpv4Net(subnet)! }, attrs }
  })
  const direct = new DirectHops(kernel, 'ipv4')
  await direct.lookUp(new Map([near!, far!].map((peer) => [peer.key, peer])))
  const device = expect.objectContaining({ name: 'eth0', index: 1 }) as object
  expect(direct.hops()).toEqual(new Map([['10.5.2.0/24', { gateway: '192.0.2.2', device }]]))
})
