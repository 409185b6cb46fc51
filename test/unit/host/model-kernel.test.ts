// model-kernel.test.ts - the model kernel refuses and removes what the kernel refuses and removes.

import { describe, expect, it } from 'vitest'
import { Secret } from '../../../src/base/secret.ts'
import { errnoOf } from '../../../src/host/kernel-errors.ts'
import type { Change, KernelEvent, NewDevice } from '../../../src/host/kernel.ts'
import { parseAddress, parseNet, type Address, type Net } from '../../../src/net/address.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

const address = (text: string): Address => parseAddress(text)!
const net = (text: string): Net => parseNet(text)!
const eth0 = { name: 'eth0' }
const flannel1 = { name: 'flannel.1' }

/** A host with eth0, which has the addresses 192.0.2.1/24 and 2001:db8::1/64. */
function host(): ModelKernel {
  const kernel = new ModelKernel()
  kernel.addLink(eth0, [
    { address: address('192.0.2.1'), prefixLength: 24 },
    { address: address('2001:db8::1'), prefixLength: 64 },
  ])
  return kernel
}

function vxlan(name: string, part: Partial<NonNullable<NewDevice['vxlan']>> = {}): Change {
  const settings = { vni: 1, local: address('192.0.2.1'), underlay: eth0, port: 8472, ...part }
  return { kind: 'add link', link: { name, type: 'vxlan', vxlan: settings } }
}
const up = (device: { name: string }): Change => ({ kind: 'set link', device, up: true })

/** Makes the changes and returns the error number of each refused change. */
async function errnos(kernel: ModelKernel, ...changes: Change[]): Promise<(string | undefined)[]> {
  return (await kernel.change(changes)).map((error) => error && errnoOf(error))
}

describe('ModelKernel: devices', () => {
  it('makes devices that are down, with the MTU that the kernel derives', async () => {
    const kernel = host()
    expect(await errnos(kernel, vxlan('flannel.1'))).toEqual([undefined])
    const link = await kernel.link('flannel.1')
    expect(link).toMatchObject({ index: 2, up: false, mtu: 1450, type: 'vxlan' })
    expect(link?.vxlan).toMatchObject({ vni: 1, underlay: 1, port: 8472, learning: true, gbp: false })
    expect(await kernel.link(2)).toEqual(link)
    expect(await kernel.link(3)).toBeUndefined()
  })

  it('refuses a name that is taken, an unknown type and an unknown interface', async () => {
    const kernel = host()
    kernel.unknownTypes.add('ipip')
    const ipip: Change = { kind: 'add link', link: { name: 'flannel.ipip', type: 'ipip' } }
    const nowhere = vxlan('flannel.3', { vni: 3, underlay: { name: 'eth9' } })
    const found = await kernel.change([vxlan('flannel.1'), vxlan('flannel.1', { vni: 2 }), ipip, nowhere])
    expect(found.map((error) => error?.code)).toEqual([undefined, 'KERNEL', 'NO_DEVICE_TYPE', 'KERNEL'])
    expect(found.map(errnoOf)).toEqual([undefined, 'EEXIST', 'EOPNOTSUPP', 'ENODEV'])
    expect(await errnos(kernel, up({ name: 'no' }), { kind: 'delete link', device: { name: 'no' } })).toEqual([
      'ENODEV',
      'ENODEV',
    ])
  })

  it('refuses two vxlan devices with one VNI at once, and with unlike flags at one port when they are set up', async () => {
    const kernel = host()
    const other = { name: 'other' }
    expect(
      await errnos(kernel, vxlan('flannel.1'), vxlan('same'), vxlan('other', { gbp: true }), up(flannel1), up(other)),
    ).toEqual([undefined, 'EEXIST', undefined, undefined, 'EADDRINUSE'])
    kernel.act({ kind: 'set link', device: flannel1, up: false })
    expect(await errnos(kernel, up(other))).toEqual([undefined])
  })

  it('refuses every change without the capability', async () => {
    const kernel = host()
    kernel.isPermitted = false
    const [error] = await kernel.change([vxlan('flannel.1')])
    expect(error?.code).toBe('PERMISSION')
    expect(kernel.changes).toHaveLength(1)
    expect(await kernel.link('flannel.1')).toBeUndefined()
  })

  it('deletes all objects of a device with the device', async () => {
    const kernel = host()
    await kernel.change([
      vxlan('flannel.1'),
      up(flannel1),
      { kind: 'replace address', device: flannel1, address: address('10.5.1.0'), prefixLength: 32 },
      {
        kind: 'add route',
        destination: net('10.5.2.0/24'),
        gateway: address('10.5.2.0'),
        device: flannel1,
        onlink: true,
      },
      { kind: 'replace neighbour', device: flannel1, address: address('10.5.2.0'), mac: '02:00:00:00:00:09' },
      { kind: 'replace forwarding', device: flannel1, mac: '02:00:00:00:00:09', host: address('192.0.2.2') },
    ])
    expect(kernel.routesAsText()).toEqual(['10.5.2.0/24 via 10.5.2.0 dev flannel.1'])
    expect(await kernel.neighbours('ipv4', flannel1)).toHaveLength(1)
    expect(await kernel.forwarding(flannel1)).toHaveLength(1)
    kernel.rename('flannel.1', 'renamed')
    expect(kernel.routesAsText()).toEqual(['10.5.2.0/24 via 10.5.2.0 dev renamed'])
    kernel.act({ kind: 'delete link', device: { name: 'old name', index: 2 } })
    expect(kernel.routesAsText()).toEqual([])
    expect([await kernel.forwarding(flannel1), await kernel.neighbours('ipv4', flannel1)]).toEqual([[], []])
    expect(await kernel.neighbours('ipv4')).toEqual([])
  })

  it('refuses names that the kernel refuses', async () => {
    const names = ['a name', 'a/b', 'a:b', '..', '0123456789abcdef', '0123456789abcde']
    const changes = names.map((name): Change => ({ kind: 'add link', link: { name, type: 'bridge' } }))
    expect(await errnos(host(), ...changes)).toEqual(['EINVAL', 'EINVAL', 'EINVAL', 'EINVAL', 'ERANGE', undefined])
  })

  it('reports no IPv4 route of an interface that is set down or loses its last address', async () => {
    const kernel = host()
    const route = (): void =>
      kernel.act({ kind: 'add route', destination: net('10.5.2.0/24'), gateway: address('192.0.2.2'), onlink: false })
    const events: KernelEvent[] = []
    await kernel.watch(['routes'], (event) => events.push(event), new AbortController().signal)
    const seen = async (change: Change): Promise<string[]> => {
      route()
      await Promise.resolve()
      events.length = 0
      kernel.act(change)
      await Promise.resolve()
      expect(kernel.routesAsText()).toEqual([])
      return events.flatMap((event) => (event.of === 'route' ? [`${event.family} ${event.route.destination}`] : []))
    }
    expect(await seen({ kind: 'set link', device: eth0, up: false })).toEqual([
      'ipv6 2001:db8::1/128',
      'ipv6 2001:db8::/64',
    ])
    kernel.act(up(eth0))
    const last: Change = { kind: 'delete address', device: eth0, address: address('192.0.2.1'), prefixLength: 24 }
    expect(await seen(last)).toEqual(['ipv4 192.0.2.1/32', 'ipv4 192.0.2.0/24'])
  })

  it('removes routes, neighbours and IPv6 addresses from a device that is set down', async () => {
    const kernel = host()
    await kernel.change([
      { kind: 'add route', destination: net('10.5.2.0/24'), gateway: address('192.0.2.2') },
      { kind: 'add route', destination: net('fd00:5:2::/64'), gateway: address('2001:db8::2') },
      { kind: 'set link', device: eth0, up: false },
      up(eth0),
    ])
    expect([...kernel.routesAsText('ipv4'), ...kernel.routesAsText('ipv6')]).toEqual([])
    const link = await kernel.link('eth0')
    expect(link?.addresses.ipv4).toHaveLength(1)
    expect(link?.addresses.ipv6).toHaveLength(0)
    const [connected] = await kernel.routes({ family: 'ipv4' })
    expect(connected).toMatchObject({ destination: '192.0.2.0/24', protocol: 'kernel', device: 'eth0' })
  })
})

describe('ModelKernel: routes', () => {
  const route = (kind: 'add route' | 'replace route' | 'delete route', part: object): Change => ({
    kind,
    destination: net('10.5.2.0/24'),
    ...part,
  })

  it('adds, replaces and deletes routes by destination and metric', async () => {
    const kernel = host()
    const [first, second] = [address('192.0.2.2'), address('192.0.2.3')]
    expect(
      await errnos(
        kernel,
        route('add route', { gateway: first }),
        route('add route', { gateway: second }),
        route('replace route', { gateway: second }),
        route('add route', { type: 'blackhole', metric: 0xffff_ffff }),
      ),
    ).toEqual([undefined, 'EEXIST', undefined, undefined])
    const both = ['10.5.2.0/24 via 192.0.2.3 dev eth0', 'blackhole 10.5.2.0/24 metric 4294967295']
    expect(kernel.routesAsText()).toEqual(both)
    expect(await errnos(kernel, route('delete route', { gateway: first }))).toEqual(['ESRCH'])
    expect(await errnos(kernel, route('delete route', { gateway: second }))).toEqual([undefined])
    expect(kernel.routesAsText()).toEqual(both.slice(1))
  })

  it('refuses a gateway that is on no link, unless the route is onlink', async () => {
    const kernel = host()
    const far = { gateway: address('198.51.100.1') }
    const far6 = { destination: net('fd00:5:2::/64'), gateway: address('2001:db8:1::1'), device: eth0 }
    expect(
      await errnos(
        kernel,
        route('add route', far),
        route('add route', { ...far, device: eth0 }),
        { kind: 'add route', ...far6, gateway: address('2001:db8::1') },
        route('add route', { ...far, device: { name: 'eth9' }, onlink: true }),
        { kind: 'add route', ...far6 },
        { kind: 'add route', ...far6, onlink: true },
        route('add route', { ...far, device: eth0, onlink: true }),
      ),
    ).toEqual(['ENETUNREACH', 'ENETUNREACH', 'EINVAL', 'ENODEV', 'EHOSTUNREACH', undefined, undefined])
  })

  it('lists the routes that a filter selects', async () => {
    const kernel = host()
    kernel.addRoute('ipv4', { destination: 'default', gateway: '192.0.2.254', device: 'eth0' })
    kernel.addRoute('ipv4', { destination: '10.5.2.0/24', gateway: '192.0.2.2', device: 'eth0' })
    kernel.addRoute('ipv4', { destination: '10.6.2.0/24', gateway: '192.0.2.2', device: 'eth0', table: 100 })
    const found = async (filter: object): Promise<string[]> =>
      (await kernel.routes({ family: 'ipv4', ...filter })).map(({ destination }) => destination)
    expect(await found({ within: net('10.5.0.0/16') })).toEqual(['10.5.2.0/24'])
    expect(await found({ exactly: ['default', net('10.5.2.0/24'), net('10.5.3.0/24')] })).toEqual([
      'default',
      '10.5.2.0/24',
    ])
    expect(await found({ table: 100 })).toEqual(['10.6.2.0/24'])
    expect(await found({ device: { name: 'eth9' } })).toEqual([])
  })

  it('looks up the longest prefix by the policy rules', async () => {
    const kernel = host()
    kernel.addRoute('ipv4', { destination: 'default', gateway: '192.0.2.254', device: 'eth0' })
    kernel.addRoute('ipv4', { destination: '10.5.2.0/24', type: 'blackhole' })
    kernel.addRule('ipv4', { priority: 100, to: net('10.6.0.0/16'), action: 'prohibit' })
    const of = async (...to: string[]): Promise<unknown[]> =>
      (
        await kernel.lookUp(
          'ipv4',
          to.map((each) => ({ to: address(each) })),
        )
      ).map((answer) =>
        'route' in answer ? [answer.route.type, answer.route.gateway, answer.route.source] : answer.errno,
      )
    const source = address('192.0.2.1')
    expect(await of('192.0.2.9', '192.0.2.1', '198.51.100.1', '10.5.2.1', '10.6.1.1')).toEqual([
      ['unicast', undefined, source],
      ['local', undefined, source],
      ['unicast', '192.0.2.254', source],
      'EINVAL',
      'EACCES',
    ])
    expect(await kernel.lookUp('ipv6', [{ to: address('2001:db8:9::1') }])).toMatchObject([{ errno: 'ENETUNREACH' }])
  })

  it('adds and deletes policy rules, unless the kernel has no policy routing', async () => {
    const kernel = host()
    const rule = { family: 'ipv4', priority: 5, from: net('10.5.0.0/16'), action: { table: 9 } } as const
    const [add, remove] = [{ kind: 'add rule', ...rule } as const, { kind: 'delete rule', ...rule } as const]
    expect(await errnos(kernel, add, add)).toEqual([undefined, 'EEXIST'])
    expect((await kernel.rules('ipv4'))?.map(({ priority }) => priority)).toEqual([0, 5, 32_766, 32_767])
    expect(await errnos(kernel, remove, remove)).toEqual([undefined, 'ENOENT'])
    kernel.hasPolicyRouting = false
    expect(await errnos(kernel, add)).toEqual(['EOPNOTSUPP'])
    expect(await kernel.rules('ipv4')).toBeUndefined()
  })
})

describe('ModelKernel: entries, WireGuard, events', () => {
  it('replaces entries, and refuses to delete missing ones', async () => {
    const kernel = host()
    const entry = { device: flannel1, mac: '02:00:00:00:00:09', host: address('192.0.2.2') }
    const neighbour = { device: flannel1, address: address('10.5.2.0') }
    await kernel.change([
      vxlan('flannel.1'),
      { kind: 'replace forwarding', ...entry },
      { kind: 'replace forwarding', ...entry, host: address('192.0.2.3') },
    ])
    expect(await kernel.forwarding(flannel1)).toMatchObject([{ host: address('192.0.2.3'), isPermanent: true }])
    expect(
      await errnos(
        kernel,
        { kind: 'delete forwarding', ...entry },
        { kind: 'delete forwarding', ...entry, host: address('192.0.2.3') },
        { kind: 'delete neighbour', ...neighbour },
        { kind: 'replace forwarding', ...entry, device: eth0 },
        { kind: 'delete address', device: eth0, address: address('10.5.1.0'), prefixLength: 32 },
      ),
    ).toEqual(['ENOENT', undefined, 'ENOENT', 'EOPNOTSUPP', 'EADDRNOTAVAIL'])
  })

  it('moves the networks of a WireGuard peer to the peer that is given them last', async () => {
    const kernel = host()
    const device = { name: 'flannel-wg' }
    const [a, b] = [Buffer.alloc(32, 1).toString('base64'), Buffer.alloc(32, 2).toString('base64')]
    await kernel.change([
      { kind: 'add link', link: { name: 'flannel-wg', type: 'wireguard' } },
      {
        kind: 'set wireguard',
        device,
        privateKey: new Secret(Buffer.alloc(32, 3).toString('base64')),
        port: 51_820,
        peers: [{ publicKey: a, allowedIps: [net('10.5.2.0/24')] }],
      },
      { kind: 'set wireguard', device, peers: [{ publicKey: b, allowedIps: [net('10.5.2.0/24')] }] },
    ])
    const { peers, publicKey, port } = await kernel.wireguard(device)
    expect([publicKey.length, port]).toEqual([44, 51_820])
    expect(peers.map(({ allowedIps }) => allowedIps.length)).toEqual([0, 1])
    expect(kernel.changes.join()).not.toContain(Buffer.alloc(32, 3).toString('base64'))
    const refusal = async (name: string) => errnoOf(await kernel.wireguard({ name }).catch((error: unknown) => error))
    expect([await refusal('eth0'), await refusal('gone')]).toEqual(['EOPNOTSUPP', 'ENODEV'])
    kernel.isPermitted = false
    expect(await refusal('flannel-wg')).toBe('EPERM')
  })

  it('reports changes on the topics of a watcher until its signal aborts', async () => {
    const kernel = host()
    const events: KernelEvent[] = []
    const stop = new AbortController()
    await kernel.watch(['routes', 'links'], (event) => events.push(event), stop.signal)
    kernel.addRoute('ipv4', { destination: '10.5.2.0/24', gateway: '192.0.2.2', device: 'eth0' })
    kernel.addAddress('eth0', { address: address('192.0.2.7'), prefixLength: 32 })
    kernel.act({ kind: 'delete link', device: eth0 })
    await Promise.resolve()
    const seen = events.map((event) => `${event.of}${'gone' in event && event.gone ? ' gone' : ''}`)
    expect(seen).toContain('route')
    expect(seen).toContain('route gone')
    expect(seen.at(-1)).toBe('link gone')
    expect(seen).not.toContain('address')
    kernel.loseReports()
    await Promise.resolve()
    expect(events.at(-1)).toEqual({ of: 'anything' })
    stop.abort()
    kernel.loseReports()
    await Promise.resolve()
    expect(events.filter(({ of }) => of === 'anything')).toHaveLength(1)
  })
})
