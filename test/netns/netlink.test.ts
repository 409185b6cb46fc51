// netlink.test.ts - what NetlinkKernel reads from a real kernel, changes in it and hears from it, against the programs of iproute2.

import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import { errnoOf } from '../../src/host/kernel-errors.ts'
import type { Change, KernelEvent, Link, NewDevice } from '../../src/host/kernel.ts'
import { formatAddress, formatNet, parseAddress, parseNet } from '../../src/net/address.ts'
import { ipv4Net, parseIpv4 } from '../../src/net/ipv4.ts'
import { parseIpv6 } from '../../src/net/ipv6.ts'
import { eventually } from '../support/event.ts'
import { blockPolicy } from '../support/ipsec-policy.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { RemoteKernel } from '../support/remote-kernel.ts'

needs(HOSTS, 'nft')

let lab: Lab
let host: Host
let kernel: RemoteKernel
beforeEach(async () => {
  lab = await createLab({ hosts: 1 })
  host = lab.hosts[0]!
  kernel = new RemoteKernel(host)
})
afterEach(() => lab.close())

const ip = (words: string): Promise<string> => host.output(['ip', ...words.split(' ')])
/** Returns the names of interfaces, without `tunl0`, which the kernel adds to each namespace if its module ipip is loaded. */
const namesOf = (links: Iterable<Link>): string[] =>
  [...links]
    .map(({ name }) => name)
    .filter((name) => name !== 'tunl0')
    .toSorted()
const ipv4 = (text: string): number => parseIpv4(text)!
const ipv6 = (text: string): bigint => parseIpv6(text)!

interface JsonInfo {
  info_kind?: string
  info_data?: Readonly<Record<string, unknown>>
}
interface JsonLink {
  ifindex: number
  ifname: string
  mtu: number
  flags: string[]
  qdisc: string
  txqlen?: number
  link_type: string
  address?: string
  master?: string
  linkinfo?: JsonInfo
  addr_info: { family: string; local: string; prefixlen: number; [flag: string]: unknown }[]
}

/** Returns an interface as `ip -j -d address` describes it. `indexes` maps the names of interfaces to their indexes. */
function linkOfJson(json: JsonLink, indexes: ReadonlyMap<string, number>): Link {
  const data = json.linkinfo?.info_data ?? {}
  const type = json.linkinfo?.info_kind ?? ''
  const is = (name: string): boolean => data[name] === true
  const addresses = json.addr_info.map((info) => ({
    address: parseAddress(info.local)!,
    prefixLength: info.prefixlen,
    dynamic: info['dynamic'] === true,
    deprecated: info['deprecated'] === true,
    secondary: info['secondary'] === true,
    temporary: info['temporary'] === true,
    tentative: info['tentative'] === true || info['dadfailed'] === true,
    ...(info['dadfailed'] ? { duplicate: true } : {}),
  }))
  return {
    index: json.ifindex,
    name: json.ifname,
    mtu: json.mtu,
    up: json.flags.includes('UP'),
    hasCarrier: json.flags.includes('LOWER_UP'),
    loopback: json.flags.includes('LOOPBACK'),
    queueLength: json.txqlen ?? 0,
    queueDiscipline: json.qdisc,
    isEthernet: json.link_type === 'ether',
    mac: ['ether', 'loopback'].includes(json.link_type) ? (json.address ?? '') : '',
    type,
    master: indexes.get(json.master ?? '') ?? 0,
    ...(type === 'vxlan' && {
      vxlan: {
        vni: data['id'] as number,
        local: parseAddress((data['local'] ?? data['local6'] ?? '') as string),
        underlay: indexes.get(data['link'] as string) ?? 0,
        port: data['port'] as number,
        learning: is('learning'),
        gbp: is('gbp'),
        external: is('external'),
        zeroChecksumIpv6Rx: is('udp_zero_csum6_rx'),
      },
    }),
    ...(type === 'ipip' && {
      ipip: {
        local: data['local'] === 'any' ? undefined : parseIpv4(data['local'] as string),
        remote: data['remote'] === 'any' ? undefined : parseIpv4(data['remote'] as string),
        underlay: indexes.get(data['link'] as string) ?? 0,
        external: is('external'),
        alwaysDf: is('pmtudisc'),
      },
    }),
    ...(type === 'tun' && {
      tun: {
        mode: data['type'] as 'tun' | 'tap',
        persist: is('persist'),
        isMultiQueue: is('multi_queue'),
        openQueues: data['numqueues'] as number | undefined,
      },
    }),
    addresses: {
      ipv4: addresses.filter(({ address }) => typeof address === 'number') as Link['addresses']['ipv4'][number][],
      ipv6: addresses.filter(({ address }) => typeof address === 'bigint') as Link['addresses']['ipv6'][number][],
    },
  }
}

async function linksOfIp(): Promise<Link[]> {
  const all = JSON.parse(await ip('-j -d address show')) as JsonLink[]
  const indexes = new Map(all.map(({ ifname, ifindex }) => [ifname, ifindex]))
  return all.map((json) => linkOfJson(json, indexes))
}

const expectSameLinks = (): Promise<void> =>
  eventually(async () => expect(await kernel.links()).toEqual(await linksOfIp()))

/** Adds a device, unless this kernel does not have its type. */
const addIfKnown = async (words: string): Promise<void> => {
  const { code, stderr } = await host.run(['ip', 'link', 'add', ...words.split(' ')])
  if (code !== 0) expect(stderr).toContain('Unknown device type')
}

describe('interfaces', () => {
  it('are read as `ip` prints them', async () => {
    for (const device of [
      'b0 type bridge',
      'v0 type veth peer name v1',
      'vx4 type vxlan id 7 local 192.168.77.1 dev eth0 dstport 8472 nolearning gbp',
      'vx6 address 02:11:22:33:44:55 type vxlan id 8 local fd00::1 dstport 8473 udp6zerocsumrx',
      'vxe type vxlan dstport 99 external',
    ])
      await ip(`link add ${device}`)
    for (const device of [
      'i0 type ipip local 192.168.77.1',
      'i1 type ipip external',
      'i2 type ipip local 192.168.77.2 nopmtudisc',
      'w0 type wireguard',
      'd0 type dummy',
    ])
      await addIfKnown(device)
    await ip('tuntap add t0 mode tun multi_queue')
    await ip('tuntap add t1 mode tap')
    await ip('link set v0 master b0 up mtu 1400 txqueuelen 77')
    await ip('link set t0 up')
    await ip('link property add dev v0 altname an-alternative-name-of-v0')
    for (const address of [
      '10.1.0.1/24 dev v0',
      '10.1.0.2/24 dev v0',
      '10.1.0.3 peer 10.1.9.3/32 dev v0',
      '10.1.0.4/32 dev v0 valid_lft 3600 preferred_lft 0',
      'fd00:1::1/64 dev v0 nodad',
      'fd00:1::2/64 dev v0 valid_lft 3600 preferred_lft 3600',
    ])
      await ip(`address add ${address}`)
    await expectSameLinks()
    const v0 = (await kernel.links()).find(({ name }) => name === 'v0')
    expect(v0?.addresses.ipv4).toHaveLength(4)
    for (const which of ['v0', v0!.index, 'an-alternative-name-of-v0']) expect(await kernel.link(which)).toEqual(v0)
    for (const which of ['v9', 99_999, 'an-alternative-name-of-nothing'])
      expect(await kernel.link(which)).toBeUndefined()
  })

  it('are read completely, even hundreds of them', async () => {
    const lines = Array.from({ length: 400 }, (_, at) => `link add dev v${at} type bridge\n`).join('')
    await host.output(['ip', '-batch', '-'], { input: lines })
    await expectSameLinks()
  })

  it('have the settings with which they are made and changed', async () => {
    const add = (link: NewDevice): Change => ({ kind: 'add link', link })
    const [v0, vx4, b0] = ['v0', 'vx4', 'b0'].map((name) => ({ name })) as [
      { name: string },
      { name: string },
      { name: string },
    ]
    const errors = await kernel.change([
      add({ name: 'v0', type: 'veth', mtu: 1400, mac: '02:00:00:00:00:01', peer: { name: 'v1', mtu: 1300 } }),
      { kind: 'set link', device: v0, up: true, queueLength: 55, mac: '02:00:00:00:00:02', mtu: 1380 },
      { kind: 'replace address', device: v0, address: ipv4('10.1.0.1'), prefixLength: 24 },
      { kind: 'replace address', device: v0, address: ipv4('10.1.0.1'), prefixLength: 24 },
      { kind: 'replace address', device: v0, address: ipv4('10.1.0.2'), prefixLength: 32 },
      { kind: 'replace address', device: v0, address: ipv6('fd00:1::1'), prefixLength: 128, noDad: true },
      { kind: 'delete address', device: v0, address: ipv4('10.1.0.2'), prefixLength: 32 },
      add({
        name: 'vx4',
        type: 'vxlan',
        mac: '02:00:00:00:00:03',
        mtu: 1330,
        vxlan: { vni: 9, local: ipv4('10.1.0.1'), underlay: v0, port: 8472, learning: false, gbp: true },
      }),
      add({ name: 'vx6', type: 'vxlan', vxlan: { vni: 10, local: ipv6('fd00:1::1'), port: 8473 } }),
      { kind: 'set link', device: vx4, up: true },
      add({ name: 'b0', type: 'bridge' }),
      { kind: 'delete link', device: b0 },
      { kind: 'set link', device: b0, up: true },
    ])
    expect(errors.map((error) => error?.cause)).toEqual([
      ...Array.from({ length: 12 }, () => undefined),
      { errno: 'ENODEV', explanation: undefined },
    ])
    await expectSameLinks()
    const links = new Map((await kernel.links()).map((link) => [link.name, link]))
    expect(namesOf(links.values())).toEqual(['eth0', 'lo', 'v0', 'v1', 'vx4', 'vx6'])
    expect(links.get('v0')).toMatchObject({ mtu: 1380, up: true, queueLength: 55, mac: '02:00:00:00:00:02' })
    expect(links.get('v1')).toMatchObject({ mtu: 1300, type: 'veth' })
    expect(links.get('vx4')).toMatchObject({
      mtu: 1330,
      up: true,
      mac: '02:00:00:00:00:03',
      vxlan: { vni: 9, local: ipv4('10.1.0.1'), underlay: links.get('v0')!.index, learning: false, gbp: true },
    })
    expect(links.get('vx6')).toMatchObject({ vxlan: { vni: 10, local: ipv6('fd00:1::1'), port: 8473, learning: true } })
    const given = links.get('v0')!.addresses
    expect(given.ipv4.map(({ address }) => formatAddress(address))).toEqual(['10.1.0.1'])
    expect(given.ipv6.map(({ address }) => formatAddress(address))).toContain('fd00:1::1')
  })
})

describe('the firewall', () => {
  it('has the tables that `nft` prints, with the number of their objects', async () => {
    const nft = (words: string): Promise<string> => host.output(['nft', ...words.split(' ')])
    expect(await kernel.nftTables()).toEqual([])
    for (const words of [
      'add table ip flannel-ipv4',
      'add chain ip flannel-ipv4 postrtg',
      'add chain ip flannel-ipv4 forward',
      'add rule ip flannel-ipv4 postrtg ip saddr 10.5.0.0/16 accept',
      'add table ip6 flannel-ipv6',
      'add table inet other',
      'add set inet other addresses { type ipv4_addr; }',
      'add table bridge empty',
    ])
      await nft(words)
    const tables = (await kernel.nftTables())!
    expect(tables.map(({ family, name }) => `table ${family} ${name}`).toSorted()).toEqual(
      (await nft('list tables')).trim().split('\n').toSorted(),
    )
    const objects = Object.fromEntries(tables.map((table) => [table.name, table.objects]))
    expect(objects).toEqual({ 'flannel-ipv4': 2, 'flannel-ipv6': 0, other: 1, empty: 0 })
  })

  it('has IPsec policies if `ip xfrm` added one, and reports their changes', async ({ skip }) => {
    expect(await kernel.hasIpsecPolicies()).toBe(false)
    const policy = 'src 10.5.1.0/24 dst 10.5.2.0/24 dir out'
    const events: KernelEvent[] = []
    const over = new AbortController()
    await kernel.watch(['ipsec policies'], (event) => void events.push(event), over.signal)
    const { code, stderr } = await host.run(`ip xfrm policy add ${policy} action block`.split(' '))
    skip(code !== 0, `no IPsec in the kernel: ${stderr.trim()}; npm run test:vm has one`)
    expect(await kernel.hasIpsecPolicies()).toBe(true)
    await eventually(() => expect(events).toEqual([{ of: 'ipsec policies' }]))
    const { policies, states } = await kernel.ipsec()
    expect([policies, states]).toEqual([[blockPolicy('out', '10.5.1.0/24', '10.5.2.0/24')], []])
    await ip(`xfrm policy delete ${policy}`)
    expect(await kernel.hasIpsecPolicies()).toBe(false)
    await eventually(() => expect(events).toHaveLength(2))
    over.abort()
  })
})

describe('a refused change', () => {
  const refusal = async (change: Change): Promise<string> => {
    const [error] = await kernel.change([change])
    return `${error?.code} ${errnoOf(error)}: ${error?.message}`
  }

  it('has the error and the words of the kernel', async () => {
    const eth0 = { name: 'eth0' }
    expect(await refusal({ kind: 'add link', link: { name: 'eth0', type: 'bridge' } })).toBe(
      'KERNEL EEXIST: the kernel refused `ip link add eth0 type bridge`: File exists',
    )
    expect(await refusal({ kind: 'set link', device: { name: 'eth7' }, up: true })).toBe(
      'KERNEL ENODEV: the kernel refused `ip link set dev eth7 up`: No such device',
    )
    expect(await refusal({ kind: 'set link', device: eth0, mtu: 17 })).toBe(
      'KERNEL EINVAL: the kernel refused `ip link set dev eth0 mtu 17`: Invalid argument (mtu less than device minimum)',
    )
    const route = { kind: 'add route', destination: ipv4Net(ipv4('10.9.0.0'), 24), device: eth0 } as const
    expect(await refusal({ ...route, gateway: ipv4('10.8.0.1') })).toBe(
      'KERNEL ENETUNREACH: the kernel refused `ip route add 10.9.0.0/24 via 10.8.0.1 dev eth0`: Network is unreachable (Nexthop has invalid gateway)',
    )
    const type = 'nonsense' as NewDevice['type']
    expect(await refusal({ kind: 'add link', link: { name: 'x0', type } })).toMatch(
      /^NO_DEVICE_TYPE EOPNOTSUPP: this kernel has no device of type nonsense \(the kernel refused `.*`: Operation not supported/,
    )
  })

  it('needs CAP_NET_ADMIN', async () => {
    const words = ['setpriv', '--bounding-set=-net_admin', '--inh-caps=-net_admin']
    const unprivileged = new RemoteKernel({ spawn: (command, options) => host.spawn([...words, ...command], options) })
    const [error] = await unprivileged.change([{ kind: 'set link', device: { name: 'eth0' }, mtu: 1400 }])
    expect(error).toMatchObject({
      code: 'PERMISSION',
      message: 'the kernel refused `ip link set dev eth0 mtu 1400`: Operation not permitted',
      remedy: expect.stringMatching(/^run as root or with the capability CAP_NET_ADMIN/),
    })
    expect(namesOf(await unprivileged.links())).toEqual(['eth0', 'lo'])
  })
})

describe('the reports of the kernel', () => {
  let events: KernelEvent[]
  /** The events about changes that the process of `kernel` requested. */
  let own: Set<KernelEvent>
  let over: AbortController
  const watch = async (): Promise<void> => {
    events = []
    own = new Set()
    over = new AbortController()
    await kernel.watch(
      ['links', 'addresses', 'routes', 'rules', 'neighbours'],
      (event, isOwn) => {
        events.push(event)
        if (isOwn) own.add(event)
      },
      over.signal,
    )
  }
  const textOf = (event: KernelEvent): string => {
    const sign = 'gone' in event && event.gone ? '-' : '+'
    switch (event.of) {
      case 'link':
        return `${sign}link ${event.link.name}`
      case 'address':
        return `${sign}address ${formatAddress(event.address)}/${event.prefixLength}`
      case 'route':
        return `${sign}route ${event.route.destination} ${event.route.device}`
      case 'rule':
        return `${sign}rule ${event.family}`
      case 'neighbour':
        return `${sign}neighbour ${formatAddress(event.neighbour.address)} ${event.neighbour.mac}`
      case 'forwarding':
        return `${sign}forwarding ${event.forwarding.mac}`
      case 'ipsec policies':
      case 'anything':
        return event.of
    }
  }
  const expectEvents = (texts: readonly string[]): Promise<void> =>
    eventually(() => expect(events.map(textOf)).toEqual(expect.arrayContaining([...texts])))

  it('have an event for each change, until the signal aborts', async () => {
    await ip('link set lo up')
    await watch()
    for (const words of [
      'link add vx type vxlan id 1 local 192.168.77.1 dstport 8472 nolearning',
      'link set vx up',
      'address add 10.5.1.0/32 dev vx',
      'address add fd00:5::1/128 dev vx nodad',
      'route add 10.5.2.0/24 via 10.5.2.0 dev vx onlink',
      'route add fd00:6::/64 dev vx',
      'rule add priority 99 from 10.5.0.0/16 table 7',
      '-6 rule add priority 99 from fd00:5::/64 table 7',
      'neigh add 10.5.2.0 lladdr 02:00:00:00:00:02 dev vx nud permanent',
      'route del 10.5.2.0/24 dev vx',
      'rule del priority 99',
      'address del 10.5.1.0/32 dev vx',
    ])
      await ip(words)
    await host.output('bridge fdb append 02:00:00:00:00:02 dev vx dst 192.168.77.2 self permanent'.split(' '))
    await expectEvents([
      '+link vx',
      '+address 10.5.1.0/32',
      '+address fd00:5::1/128',
      '+route 10.5.2.0/24 vx',
      '+route fd00:6::/64 vx',
      '+rule ipv4',
      '+rule ipv6',
      '+neighbour 10.5.2.0 02:00:00:00:00:02',
      '-route 10.5.2.0/24 vx',
      '-rule ipv4',
      '-address 10.5.1.0/32',
      '+forwarding 02:00:00:00:00:02',
    ])
    await ip('link del vx')
    await expectEvents(['-link vx'])
    over.abort()
    await kernel.usage() // the server has read the end of the watch
    const before = events.length
    await ip('route add 10.5.3.0/24 dev eth0')
    await kernel.routes({ family: 'ipv4' })
    expect(events).toHaveLength(before)
  })

  it('name the process that requested a change of a route, a neighbour or an IPv4 address', async () => {
    await ip('link add vx type vxlan id 1 local 192.168.77.1 dstport 8472 nolearning')
    await ip('link set vx up')
    await watch()
    const device = { name: 'vx' }
    for (const [address, subnet] of [
      ['10.5.1.0', '10.5.2.0/24'],
      ['fd00:5::1', 'fd00:6::/64'],
    ] as const) {
      const parsed = parseAddress(address)!
      const prefixLength = address.includes(':') ? 128 : 32
      const route = { destination: parseNet(subnet)!, device }
      const [, ...errors] = await kernel.change([
        { kind: 'delete route', ...route },
        { kind: 'replace address', device, address: parsed, prefixLength, noDad: true },
        { kind: 'replace neighbour', device, address: parseNet(subnet)!.address, mac: '02:00:00:00:00:02' },
        { kind: 'add route', ...route },
        { kind: 'delete route', ...route },
        { kind: 'replace route', ...route },
      ])
      expect(errors).toEqual(Array(5).fill(undefined))
      await ip(`route del ${subnet} dev vx`)
      await ip(`neigh del ${subnet.split('/')[0]} dev vx`)
      await ip(`address del ${address}/${prefixLength} dev vx`)
      await expectEvents([`-address ${address}/${prefixLength}`])
      expect(events.filter((event) => own.has(event)).map(textOf)).toEqual([
        ...(prefixLength === 32 ? [`+address ${address}/${prefixLength}`] : []), // the kernel names no process for IPv6
        `+neighbour ${subnet.split('/')[0]} 02:00:00:00:00:02`,
        `+route ${subnet} vx`,
        `-route ${subnet} vx`,
        `+route ${subnet} vx`,
      ])
      const others = events.filter((event) => !own.has(event)).map(textOf)
      expect(others).toEqual(expect.arrayContaining([`-route ${subnet} vx`, `-address ${address}/${prefixLength}`]))
      expect(others).not.toContain(`+route ${subnet} vx`)
      events.length = 0
    }
    over.abort()
  })

  const COUNT = 10_000
  const net = (at: number): string => formatNet(ipv4Net(ipv4('10.0.0.0') + (at << 8), 24))
  const lines = (verb: string): string =>
    Array.from({ length: COUNT / 2 }, (_, at) => `route ${verb} ${net(at)} dev eth0\n`).join('')

  it('go on after the kernel dropped reports, whose loss is reported once', async () => {
    await watch()
    kernel.signal('SIGSTOP')
    for (const verb of ['add', 'del', 'add', 'del']) await host.output(['ip', '-batch', '-'], { input: lines(verb) })
    kernel.signal('SIGCONT')
    await eventually(() => expect(events.map(({ of }) => of)).toContain('anything'))
    for (const destination of ['172.16.0.0/16', '172.17.0.0/16']) {
      await ip(`route add ${destination} dev eth0`)
      await expectEvents([`+route ${destination} eth0`])
    }
    const ofRoutes = events.filter(({ of }) => of === 'route').length
    expect(ofRoutes).toBeLessThan(2 * COUNT)
    expect(events.filter(({ of }) => of === 'anything')).toHaveLength(1)
  })

  it('are not lost in a storm, or their loss is reported', async () => {
    await watch()
    const before = await kernel.usage()
    await host.output(['ip', '-batch', '-'], { input: lines('add') })
    expect(await kernel.routes({ family: 'ipv4', within: ipv4Net(ipv4('10.0.0.0'), 8) })).toHaveLength(COUNT / 2)
    await host.output(['ip', '-batch', '-'], { input: lines('del') })
    await ip('route add 172.16.0.0/16 dev eth0')
    await expectEvents(['+route 172.16.0.0/16 eth0'])
    const seen = events.filter(({ of }) => of === 'route').length
    if (seen < COUNT + 1) expect(events.map(({ of }) => of)).toContain('anything')
    const { cpuMs, bytes } = await kernel.usage()
    process.stdout.write(
      `netlink: a storm of ${COUNT} changes, ${seen} reports, ${Math.round(cpuMs - before.cpuMs)} ms of CPU\n`,
    )
    expect(bytes - before.bytes).toBeLessThan(100 << 20)
  })
})
