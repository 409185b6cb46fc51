// backends.test.ts - backends whose packets the kernel carries: what real daemons set up, repair and leave on the host.

import { chmodSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { createLab, networkOf, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import type { Family } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { subnetOf, tunAddress } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping')

let lab: Lab
afterEach(() => lab?.close())

/** No node draws a subnet above SubnetMax, so the tests' own peers use those. */
const NETWORK = { Network: '10.5.0.0/16', SubnetMax: '10.5.239.0' }
const NETWORKS = {
  ipv4: NETWORK,
  both: { ...NETWORK, EnableIPv6: true, IPv6Network: 'fd00:5::/48', IPv6SubnetMax: 'fd00:5:0:efff::' },
  ipv6: { EnableIPv4: false, EnableIPv6: true, IPv6Network: 'fd00:5::/48', IPv6SubnetMax: 'fd00:5:0:efff::' },
} as const
const FAMILIES_OF = { ipv4: ['ipv4'], both: ['ipv4', 'ipv6'], ipv6: ['ipv6'] } as const
/** Per family: the words for a test, the network, a subnet that is never leased, and the router of the lab. */
const OF = {
  ipv4: { network: '10.5.0.0/16', strange: '10.5.250.0/24', router: '192.168.77.254', bits: 32 },
  ipv6: { network: 'fd00:5::/48', strange: 'fd00:5:0:fa00::/64', router: 'fd77::fe', bits: 128 },
} as const
const subnetIn = (host: Host, family: Family): string =>
  networkOf(host.subnetEnv()[family === 'ipv4' ? 'FLANNEL_SUBNET' : 'FLANNEL_IPV6_SUBNET'] ?? '')
const addressOf = (host: Host, family: Family): string => (family === 'ipv4' ? host.address : host.ipv6)
const baseOf = (host: Host, family: Family): string => subnetIn(host, family).split('/')[0]!
async function reachBy(families: readonly Family[], from: Pod, to: Pod): Promise<void> {
  for (const family of families) await reach(from.namespace, (family === 'ipv4' ? to.address : to.ipv6) ?? '')
}

/** Creates the lab's lease directory with this configuration. */
function leases(config: object, network: object = NETWORK): string {
  const folder = join(lab.folder, 'leases')
  mkdirSync(folder)
  writeFileSync(join(folder, 'config'), JSON.stringify({ ...network, ...config }))
  return folder
}

async function startAll(folder: string, hosts: readonly Host[] = lab.hosts): Promise<Daemon[]> {
  const daemons = hosts.map((host) => host.startDaemon({ args: ['--lease-dir', folder] }))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  return daemons
}

const file = (folder: string, subnet: string): string => join(folder, 'subnets', subnet.replace('/', '-'))
/** Writes the lease atomically, as a node does; a daemon that reads a half-written lease logs it. */
function putLease(folder: string, subnet: string, lease: object): void {
  const whole = join(lab.folder, 'lease')
  writeFileSync(whole, JSON.stringify(lease))
  renameSync(whole, file(folder, subnet))
}
/** Returns the path of a host's lease file, whatever subnets its name has. */
const leaseOf = (folder: string, host: Host, family: Family): string => {
  const names = readdirSync(join(folder, 'subnets'))
  const part = subnetIn(host, family).replace('/', '-')
  return join(folder, 'subnets', names.find((name) => name.split('&').includes(part)) ?? part)
}
const routes = async (host: Host, family: Family = 'ipv4'): Promise<string[]> =>
  (await host.output(['ip', family === 'ipv4' ? '-4' : '-6', 'route', 'show', 'root', OF[family].network]))
    .split('\n')
    .map((line) =>
      line
        .replace(/ metric 1024/, '')
        .replace(/ pref medium/, '')
        .trim(),
    )
    .filter((line) => line.includes(' via '))
const via = (host: Host, family: Family = 'ipv4'): string =>
  `${subnetIn(host, family)} via ${addressOf(host, family)} dev eth0`

describe('host-gw', () => {
  it.each<keyof typeof NETWORKS>(['ipv4', 'both'])(
    'routes to each peer through its host, restores routes that others remove, and removes those of deleted leases: %s',
    async (which) => {
      const families = FAMILIES_OF[which]
      const [first] = families
      lab = await createLab({ hosts: 3, families })
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      const folder = leases({ Backend: { Type: 'host-gw' } }, NETWORKS[which])
      const daemons = await startAll(folder)
      const areThere = (of: (family: Family) => readonly string[]): Promise<void> =>
        eventually(async () => {
          for (const family of families)
            expect((await routes(a, family)).toSorted()).toEqual([...of(family)].toSorted())
        })
      await areThere((family) => [via(b, family), via(c, family)])
      expect(readFileSync(a.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1500\n')
      expect(JSON.parse(readFileSync(leaseOf(folder, a, first), 'utf8'))).toMatchObject({
        PublicIP: which === 'ipv6' ? '0.0.0.0' : a.address,
        PublicIPv6: which === 'ipv4' ? null : a.ipv6,
        BackendType: 'host-gw',
      })
      const pods = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod, Pod]
      for (const to of pods.slice(1)) await reachBy(families, pods[0], to)
      await daemons[0]!.line(new RegExp(`Subnet added: ${subnetIn(b, first)} via ${addressOf(b, first)}$`))

      for (const family of families) {
        const route = `${subnetIn(b, family)} via ${addressOf(b, family)}`
        await a.output(['ip', 'route', 'del', subnetIn(b, family)])
        await daemons[0]!.line(new RegExp(`Repaired: the route to ${route} was gone`))
        // A route of another program, which weftd neither repairs nor removes.
        await a.output(['ip', 'route', 'add', OF[family].strange, 'via', OF[family].router])
      }
      await reachBy(families, pods[0], pods[1])

      const strange = (family: Family): string => `${OF[family].strange} via ${OF[family].router}`
      const gone = subnetIn(c, first)
      await daemons[2]!.stop()
      rmSync(leaseOf(folder, c, first))
      await daemons[0]!.line(new RegExp(`Subnet removed: ${gone}`))
      await areThere((family) => [via(b, family), `${strange(family)} dev eth0`])

      // The routes stay when a daemon ends, and the next one accepts them.
      expect(await daemons[0]!.stop()).toBe(0)
      await reachBy(families, pods[0], pods[1])
      const [again] = await startAll(folder, [a])
      for (const family of families) {
        await again!.line(new RegExp(`Routes into the network that belong to no node: ${strange(family)};`))
        await eventually(async () => expect(await routes(a, family)).toContain(via(b, family)))
      }
      expect(again!.lines.filter((line) => line.startsWith('E'))).toEqual([])
    },
  )

  it('logs once which peers it cannot route to, and routes to the others', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const folder = leases({ Backend: { Type: 'host-gw' } })
    const [daemon] = await startAll(folder)
    const put = (subnet: string, lease: object): void => putLease(folder, subnet, lease)
    put('10.5.242.0/24', { PublicIP: '192.168.77.42', BackendType: 'host-gw' })
    await eventually(async () => expect(await routes(a)).toContain('10.5.242.0/24 via 192.168.77.42 dev eth0'))
    await a.output(['ip', 'route', 'del', '10.5.242.0/24'])
    await daemon!.line(/Repaired: the route to 10\.5\.242\.0\/24/)
    put('10.5.240.0/24', { PublicIP: '192.0.2.40', BackendType: 'host-gw' })
    put('10.5.241.0/24', { PublicIP: '192.168.77.41', BackendType: 'vxlan' })
    await daemon!.line(
      /Error adding route to 10\.5\.240\.0\/24 via 192\.0\.2\.40 dev eth0: .*(unreachable|invalid gateway)/i,
    )
    await daemon!.line(/Ignoring non-host-gw subnet: 10\.5\.241\.0\/24, type=vxlan/)
    await eventually(async () =>
      expect((await routes(a)).toSorted()).toEqual([via(b), '10.5.242.0/24 via 192.168.77.42 dev eth0'].toSorted()),
    )
    for (const once of [/Error adding route to 10\.5\.240/, /Ignoring non-host-gw/])
      expect(daemon!.lines.filter((line) => once.test(line))).toHaveLength(1)
  })

  it("refuses a public address that is not on the interface, with flanneld's line", async () => {
    lab = await createLab({ hosts: 1 })
    const args = ['--lease-dir', leases({ Backend: { Type: 'host-gw' } }), '--public-ip', '203.0.113.7']
    const daemon = lab.hosts[0]!.startDaemon({ args })
    await daemon.line(
      /your PublicIP differs from interface IP, meaning that probably you're on a NAT, which is not supported by host-gw backend/,
    )
    await ended(daemon.process)
    expect(daemon.process.exitCode).toBe(1)
  })
})

it('alloc takes a lease and changes nothing on the host', async () => {
  lab = await createLab({ hosts: 2 })
  const folder = leases({ Backend: { Type: 'alloc' } })
  const before = await lab.hosts[0]!.output(['ip', '-br', 'link'])
  const daemons = await startAll(folder)
  await daemons[0]!.line(/Subnet added/)
  expect(await lab.hosts[0]!.output(['ip', '-br', 'link'])).toBe(before)
  expect(await lab.hosts[0]!.output(['ip', 'route', 'show', 'root', '10.5.0.0/16'])).toBe('')
  expect(readFileSync(lab.hosts[0]!.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1500\n')
  const lease = readFileSync(file(folder, subnetOf(lab.hosts[0]!)), 'utf8')
  expect(lease).not.toContain('BackendType')
  for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
})

describe('vxlan of the kernel', () => {
  beforeEach(async ({ skip }) => {
    const { code, stderr } = await execute('unshare --net ip link add probe type vxlan id 1 dstport 8472'.split(' '))
    skip(code !== 0, `no vxlan: ${stderr.trim()}`)
  })
  const type = (options: object = {}): object => ({ Backend: { Type: 'vxlan', ...options } })
  interface JsonDevice {
    readonly address: string
    readonly mtu: number
    readonly linkinfo: { readonly info_kind: string; readonly info_data: Record<string, unknown> }
  }
  const deviceOf = async (host: Host, name = 'flannel.1'): Promise<JsonDevice> =>
    (JSON.parse(await host.output(['ip', '-j', '-d', 'link', 'show', 'dev', name])) as [JsonDevice])[0]
  const sorted = (text: string): string[] =>
    text
      .split('\n')
      .map((line) => line.trim())
      .filter((line) => line !== '')
      .toSorted()
  const DEVICE = { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' } as const
  /** Lists the peers that a host's kernel knows: neighbours, forwarding entries, routes. */
  const known = async (host: Host, family: Family = 'ipv4'): Promise<string[][]> => [
    sorted(
      await host.output(
        `ip ${family === 'ipv4' ? '-4' : '-6'} neigh show dev ${DEVICE[family]} nud permanent`.split(' '),
      ),
    ),
    sorted(await host.output(`bridge fdb show dev ${DEVICE[family]}`.split(' '))),
    (await routes(host, family)).toSorted(),
  ]
  /** The entries that flanneld v0.28.9 adds for these peers. */
  const flannels = async (peers: readonly Host[], family: Family = 'ipv4'): Promise<string[][]> => {
    const each = await Promise.all(
      peers.map(async (peer) => ({
        at: baseOf(peer, family),
        net: subnetIn(peer, family),
        host: addressOf(peer, family),
        mac: (await deviceOf(peer, DEVICE[family])).address,
      })),
    )
    return [
      each.map(({ at, mac }) => `${at} lladdr ${mac} PERMANENT`).toSorted(),
      each.map(({ mac, host }) => `${mac} dst ${host} self permanent`).toSorted(),
      each.map(({ at, net }) => `${net} via ${at} dev ${DEVICE[family]} onlink`).toSorted(),
    ]
  }
  const isWhole = (host: Host, peers: readonly Host[], family: Family = 'ipv4'): Promise<void> =>
    eventually(async () => expect(await known(host, family)).toEqual(await flannels(peers, family)))

  it.each<keyof typeof NETWORKS>(['ipv4', 'both'])(
    "has flanneld's entries, restores those that others remove, and has them after a restart: %s",
    async (which) => {
      const families = FAMILIES_OF[which]
      // The test removes entries of this family; those of the other family stay.
      const family = families.at(-1) as Family
      const [device, mtu] = [DEVICE[family], family === 'ipv4' ? 1450 : 1430]
      lab = await createLab({ hosts: 3, families })
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      const folder = leases(type(), NETWORKS[which])
      const daemons = await startAll(folder)
      const areWhole = async (host: Host, peers: readonly Host[]): Promise<void> => {
        for (const each of families) await isWhole(host, peers, each)
      }
      await areWhole(a, [b, c])
      await areWhole(b, [a, c])
      const { mtu: ofDevice, address: mac, linkinfo } = await deviceOf(a, device)
      expect(ofDevice).toBe(mtu)
      expect(linkinfo).toMatchObject({
        info_kind: 'vxlan',
        info_data: {
          id: 1,
          [family === 'ipv4' ? 'local' : 'local6']: addressOf(a, family),
          link: 'eth0',
          port: 8472,
          learning: false,
        },
      })
      const ownAddress = `${baseOf(a, family)}/${OF[family].bits}`
      const shownOn = (words = ''): Promise<string> =>
        a.output(`ip -br ${family === 'ipv4' ? '-4' : '-6'} address show dev ${device}${words}`.split(' '))
      expect(await shownOn()).toContain(ownAddress)
      expect(await a.output(['cat', `/proc/sys/net/ipv6/conf/${device}/accept_ra`])).toBe('0\n')
      expect(readFileSync(a.subnetFile, 'utf8')).toContain(`FLANNEL_MTU=${mtu}\n`)
      const macOf = async (each: Family): Promise<object | null> =>
        (families as readonly Family[]).includes(each)
          ? { VNI: 1, VtepMAC: (await deviceOf(a, DEVICE[each])).address }
          : null
      const [data, v6Data] = [await macOf('ipv4'), await macOf('ipv6')]
      expect(readFileSync(leaseOf(folder, a, family), 'utf8')).toBe(
        JSON.stringify({
          PublicIP: which === 'ipv6' ? '0.0.0.0' : a.address,
          PublicIPv6: which === 'ipv4' ? null : a.ipv6,
          BackendType: 'vxlan',
          BackendData: data,
          ...(v6Data ? { BackendV6Data: v6Data } : {}),
        }),
      )
      const pods = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod, Pod]
      const talk = async (): Promise<void> => {
        for (const to of pods.slice(1)) await reachBy(families, pods[0], to)
      }
      await talk()

      for (const what of [
        `ip link del ${device}`,
        `ip link set ${device} down`,
        `ip link set ${device} mtu 1400`,
        `ip link set ${device} address 02:00:00:00:00:99`,
        `ip address flush dev ${device}`,
        `ip ${family === 'ipv4' ? '-4' : '-6'} neigh flush dev ${device} nud permanent`,
        `bridge fdb del ${(await deviceOf(b, device)).address} dev ${device} dst ${addressOf(b, family)} self`,
        `ip route del ${subnetIn(b, family)}`,
      ]) {
        await a.output(what.split(' '))
        await areWhole(a, [b, c])
        await eventually(async () => {
          const shown = await shownOn(' up')
          expect([shown.includes(ownAddress), (await deviceOf(a, device)).mtu]).toEqual([true, mtu])
        })
      }
      await daemons[0]!.line(new RegExp(`Repaired: ${device.replace('.', String.raw`\.`)} was gone`))
      const dataOf = async (each: Family): Promise<string> =>
        (families as readonly Family[]).includes(each)
          ? `{"VNI":1,"VtepMAC":"${(await deviceOf(b, DEVICE[each])).address}"}`
          : each === 'ipv4'
            ? 'null'
            : '(nil)'
      const peer = `PublicIP: ${which === 'ipv6' ? '0.0.0.0' : b.address}, PublicIPv6: ${which === 'ipv4' ? '(nil)' : b.ipv6}, BackendData: ${await dataOf('ipv4')}`
      const received = `] Received Subnet Event with VxLan: BackendType: vxlan, ${peer}, BackendV6Data: ${await dataOf('ipv6')}`
      expect(daemons[0]!.lines.filter((each) => each.endsWith(received))).toHaveLength(1)
      expect((await deviceOf(a, device)).address).toBe(mac)
      await talk()

      // The device keeps working without a daemon, and the next daemon applies the changes it missed.
      expect(await daemons[0]!.stop()).toBe(0)
      await talk()
      await daemons[2]!.stop()
      rmSync(leaseOf(folder, c, family))
      const [again] = await startAll(folder, [a])
      await areWhole(a, [b])
      expect((await deviceOf(a, device)).address).toBe(mac)
      expect(again!.lines.filter((line) => /^[WE].*(recreating|Error|belong)/.test(line))).toEqual([])
    },
  )

  it('takes its options, and recreates a device that has other options', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const folder = leases(type())
    for (const daemon of await startAll(folder)) await daemon.stop()
    const mac = (await deviceOf(a)).address
    const options = { VNI: 1, port: 4789, MTU: 1400, GBP: true, learning: true }
    writeFileSync(join(folder, 'config'), JSON.stringify({ ...NETWORK, ...type(options) }))
    const daemons = await startAll(folder)
    await daemons[0]!.line(/VXLAN config: VNI=1 Port=4789 GBP=true Learning=true DirectRouting=false$/)
    await daemons[0]!.line(
      /"flannel\.1" already exists with incompatible configuration: port: 8472 vs 4789; recreating device/,
    )
    await isWhole(a, [b])
    const { mtu, address, linkinfo } = await deviceOf(a)
    expect({ mtu, address }).toEqual({ mtu: 1350, address: mac })
    expect(linkinfo.info_data).toMatchObject({ port: 4789, learning: true, gbp: true })
    await reach(a.namespace, tunAddress(b))
  })

  it('with DirectRouting routes without a tunnel to hosts on the same link, and through the tunnel to the others', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const folder = leases(type({ DirectRouting: true }))
    const [daemon] = await startAll(folder)
    // One peer is behind the router, one is unreachable.
    await a.output(['ip', 'route', 'add', 'unreachable', '198.51.100.0/24'])
    const far = {
      PublicIP: '203.0.113.40',
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:40' },
    }
    const nowhere = { ...far, PublicIP: '198.51.100.41', BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:41' } }
    putLease(folder, '10.5.240.0/24', far)
    putLease(folder, '10.5.241.0/24', nowhere)
    await eventually(async () =>
      expect(await known(a)).toEqual([
        ['10.5.240.0 lladdr 02:00:00:00:00:40 PERMANENT', '10.5.241.0 lladdr 02:00:00:00:00:41 PERMANENT'],
        ['02:00:00:00:00:40 dst 203.0.113.40 self permanent', '02:00:00:00:00:41 dst 198.51.100.41 self permanent'],
        [
          '10.5.240.0/24 via 10.5.240.0 dev flannel.1 onlink',
          '10.5.241.0/24 via 10.5.241.0 dev flannel.1 onlink',
          via(b),
        ].toSorted(),
      ]),
    )
    expect(daemon!.lines.filter((line) => line.startsWith('E'))).toEqual([])
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    await reach(pods[0]!.namespace, pods[1]!.address)
  })

  it('ignores leases that cannot be vxlan peers, and logs each once', async () => {
    lab = await createLab({ hosts: 1 })
    const folder = leases(type())
    const [daemon] = await startAll(folder)
    const put = (subnet: string, lease: object): void => putLease(folder, subnet, lease)
    put('10.5.240.0/24', {
      PublicIP: '192.168.77.40',
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: '01:00:5e:00:00:01' },
    })
    put('10.5.241.0/24', { PublicIP: '192.168.77.41', BackendType: 'vxlan', BackendData: '; reboot' })
    put('10.5.242.0/24', { PublicIP: '192.168.77.42' })
    await daemon!.line(/Lease 10\.5\.240\.0-24 is not used: it publishes no MAC of a vxlan device/)
    await daemon!.line(/Lease 10\.5\.241\.0-24 is not used: it publishes no MAC of a vxlan device/)
    await daemon!.line(/Ignoring non-vxlan subnet: 10\.5\.242\.0\/24, type=$/)
    put('10.6.0.0/24', {
      PublicIP: '192.168.77.46',
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:46' },
    })
    await daemon!.line(/Lease 10\.6\.0\.0-24 is not used: its subnet is not within the network 10\.5\.0\.0\/16/)
    // A cloned host, whose device has this host's MAC.
    const { address: own } = await deviceOf(lab.hosts[0]!)
    put('10.5.244.0/24', {
      PublicIP: '192.168.77.44',
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: own },
    })
    await daemon!.line(
      /Lease 10\.5\.244\.0-24 is not used: its MAC .* is that of this node; if both hosts exist, delete flannel\.1/,
    )
    put('10.5.243.0/24', {
      PublicIP: '192.168.77.43',
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:43' },
    })
    await eventually(async () =>
      expect((await known(lab.hosts[0]!))[2]).toEqual(['10.5.243.0/24 via 10.5.243.0 dev flannel.1 onlink']),
    )
    // A host has two leases, the second with another address. The newest lease counts.
    const mac = '02:00:00:00:00:47'
    const at = (publicIp: string) => ({
      PublicIP: publicIp,
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: mac },
    })
    put('10.5.247.0/24', at('192.168.77.47'))
    put('10.5.248.0/24', at('192.168.77.47'))
    const both = ['10.5.247.0/24', '10.5.248.0/24'].map((net) => `${net} via ${net.slice(0, -3)} dev flannel.1 onlink`)
    await eventually(async () => expect(await routes(lab.hosts[0]!)).toEqual(expect.arrayContaining(both)))
    put('10.5.246.0/24', at('192.168.77.48'))
    await daemon!.line(
      /Lease 10\.5\.247\.0-24 is not used: its MAC .* is that of 192\.168\.77\.48 too, whose lease is newer/,
    )
    await eventually(async () => {
      expect(await routes(lab.hosts[0]!)).toEqual(expect.not.arrayContaining(both))
      expect((await known(lab.hosts[0]!))[1]).toContain(`${mac} dst 192.168.77.48 self permanent`)
    })
    expect(daemon!.lines.filter((line) => /is not used|Ignoring/.test(line))).toHaveLength(7)
  })
})

describe('extension', () => {
  /** Writes a program that records its calls and prints `output`. */
  function noting(name: string, output: string): string {
    const program = join(lab.folder, name)
    const said = 'SUBNET=$SUBNET PUBLIC_IP=$PUBLIC_IP NETWORK=$NETWORK IPV6SUBNET=$IPV6SUBNET PUBLIC_IPV6=$PUBLIC_IPV6'
    writeFileSync(program, `#!/bin/sh\necho "${name} [$*] [$(cat)] ${said}" >> ${program}.calls\necho '${output}'\n`)
    chmodSync(program, 0o755)
    return program
  }
  const calls = (name: string): string[] =>
    readFileSync(join(lab.folder, `${name}.calls`), 'utf8')
      .trim()
      .split('\n')

  it('runs one command before the lease, one after it, and one per peer that appears or disappears', async () => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts as [Host]
    const folder = leases({
      Backend: {
        Type: 'extension',
        PreStartupCommand: `${noting('pre', '{"from":"pre"}')} one two`,
        PostStartupCommand: `${noting('post', 'x')} one 'two three'`,
        SubnetAddCommand: `${noting('add', 'x')} $SUBNET`,
        SubnetRemoveCommand: noting('remove', 'x'),
      },
    })
    const [daemon] = await startAll(folder)
    const own = subnetOf(host)
    expect(calls('pre')).toEqual(['pre [one two] [] SUBNET= PUBLIC_IP= NETWORK= IPV6SUBNET= PUBLIC_IPV6='])
    expect(calls('post')).toEqual([
      `post [one 'two three'] [] SUBNET=${own} PUBLIC_IP=192.168.77.1 NETWORK=10.5.0.0/16 IPV6SUBNET=::/0 PUBLIC_IPV6=<nil>`,
    ])
    expect(JSON.parse(readFileSync(file(folder, own), 'utf8'))).toEqual({
      PublicIP: '192.168.77.1',
      PublicIPv6: null,
      BackendType: 'extension',
      BackendData: '{"from":"pre"}',
    })

    const peer = { PublicIP: '192.168.77.40', BackendType: 'extension', BackendData: '$(touch /x); `a` "b" & c' }
    putLease(folder, '10.5.240.0/24', peer)
    await daemon!.line(/Ran command: .*add \$SUBNET/)
    const rest = 'SUBNET=10.5.240.0/24 PUBLIC_IP=192.168.77.40 NETWORK= IPV6SUBNET= PUBLIC_IPV6='
    expect(calls('add')).toEqual([`add [10.5.240.0/24] [${peer.BackendData}] ${rest}`])
    rmSync(file(folder, '10.5.240.0/24'))
    await daemon!.line(/Ran command: .*remove/)
    expect(calls('remove')).toEqual([`remove [] [${peer.BackendData}] ${rest}`])
    expect(await daemon!.stop()).toBe(0)
  })

  it('ends if one of the first commands fails, and continues if a command for a peer fails', async () => {
    lab = await createLab({ hosts: 1 })
    const add = { Type: 'extension', SubnetAddCommand: '/nonexistent/add' }
    const folder = leases({ Backend: add })
    const [daemon] = await startAll(folder)
    putLease(folder, '10.5.240.0/24', { PublicIP: '192.168.77.40', BackendType: 'extension' })
    await daemon!.line(/^E.*failed to run command \/nonexistent\/add for 10\.5\.240\.0\/24: /)
    expect(await daemon!.stop()).toBe(0)
    for (const name of ['PreStartupCommand', 'PostStartupCommand']) {
      const config = { Network: '10.5.0.0/16', Backend: { Type: 'extension', [name]: 'false' } }
      writeFileSync(join(folder, 'config'), JSON.stringify(config))
      const failing = lab.hosts[0]!.startDaemon({ args: ['--lease-dir', folder] })
      await failing.line(
        new RegExp(`failed to run command false: .*; correct Backend\\.${name} of the network configuration`),
      )
      await ended(failing.process)
      expect(failing.process.exitCode).toBe(1)
    }
  })
})

it.each([
  [
    'nonsense',
    /unknown backend type: nonsense; set .* to udp, vxlan, host-gw, ipip, wireguard, ipsec, alloc, extension, .* or http$/,
  ],
])('the backend type %s is refused with a suggestion', async (type, line) => {
  lab = await createLab({ hosts: 1 })
  const daemon = lab.hosts[0]!.startDaemon({ args: ['--lease-dir', leases({ Backend: { Type: type } })] })
  await daemon.line(line)
  await ended(daemon.process)
  expect(daemon.process.exitCode).toBe(1)
})
