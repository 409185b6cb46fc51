// backends.test.ts - the backends whose packets the kernel carries: what they set up, mend and leave, with real daemons.

import { chmodSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { subnetOf, tunAddress } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping')

let lab: Lab
afterEach(() => lab?.close())

/** The lab's directory of leases, with this configuration. */
function leases(config: object): string {
  const folder = join(lab.folder, 'leases')
  mkdirSync(folder)
  writeFileSync(join(folder, 'config'), JSON.stringify({ Network: '10.5.0.0/16', ...config }))
  return folder
}

async function startAll(folder: string, hosts: readonly Host[] = lab.hosts): Promise<Daemon[]> {
  const daemons = hosts.map((host) => host.startDaemon({ args: ['--lease-dir', folder] }))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  return daemons
}

const file = (folder: string, subnet: string): string => join(folder, 'subnets', subnet.replace('/', '-'))
const routes = async (host: Host): Promise<string[]> =>
  (await host.output(['ip', 'route', 'show', 'root', '10.5.0.0/16']))
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line.includes(' via '))
const via = (host: Host): string => `${subnetOf(host)} via ${host.address} dev eth0`

describe('host-gw', () => {
  it('routes to each peer by its host, puts back what others take, and takes away what ends', async () => {
    lab = await createLab({ hosts: 3 })
    const [a, b, c] = lab.hosts as [Host, Host, Host]
    const folder = leases({ Backend: { Type: 'host-gw' } })
    const daemons = await startAll(folder)
    await eventually(async () => expect((await routes(a)).toSorted()).toEqual([via(b), via(c)].toSorted()))
    expect(readFileSync(a.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1500\n')
    expect(JSON.parse(readFileSync(file(folder, subnetOf(a)), 'utf8'))).toMatchObject({
      PublicIP: a.address,
      PublicIPv6: null,
      BackendType: 'host-gw',
    })
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    for (const to of pods.slice(1)) await reach(pods[0]!.namespace, to.address)
    await daemons[0]!.line(new RegExp(`Subnet added: ${subnetOf(b)} via ${b.address}$`))

    await a.output(['ip', 'route', 'del', subnetOf(b)])
    await daemons[0]!.line(new RegExp(`Repaired: the route to ${subnetOf(b)} via ${b.address} was gone`))
    await reach(pods[0]!.namespace, pods[1]!.address)
    // Of another program: not ours to keep, nor to take.
    await a.output(['ip', 'route', 'add', '10.5.250.0/24', 'via', '192.168.77.254'])

    const gone = subnetOf(c)
    await daemons[2]!.stop()
    rmSync(file(folder, gone))
    await daemons[0]!.line(new RegExp(`Subnet removed: ${gone}`))
    await eventually(async () =>
      expect((await routes(a)).toSorted()).toEqual([via(b), '10.5.250.0/24 via 192.168.77.254 dev eth0'].toSorted()),
    )

    // What a daemon leaves carries on, and the next one finds it in order.
    expect(await daemons[0]!.stop()).toBe(0)
    await reach(pods[0]!.namespace, pods[1]!.address)
    const [again] = await startAll(folder, [a])
    await again!.line(/Routes into the network that belong to no node: 10\.5\.250\.0\/24 via 192\.168\.77\.254;/)
    await eventually(async () => expect(await routes(a)).toContain(via(b)))
    expect(again!.lines.filter((line) => line.startsWith('E'))).toEqual([])
  })

  it('names once what it cannot route to, and does the rest', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const folder = leases({ Backend: { Type: 'host-gw' } })
    const [daemon] = await startAll(folder)
    const put = (subnet: string, lease: object): void => writeFileSync(file(folder, subnet), JSON.stringify(lease))
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

  it("refuses a public address that is not the interface's, with flanneld's line", async () => {
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

it('alloc has a lease, and nothing on the host', async () => {
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
  /** What a host's kernel knows of its peers: neighbours, forwarding entries, routes. */
  const known = async (host: Host): Promise<string[][]> => [
    sorted(await host.output('ip neigh show dev flannel.1 nud permanent'.split(' '))),
    sorted(await host.output('bridge fdb show dev flannel.1'.split(' '))),
    (await routes(host)).toSorted(),
  ]
  /** What flanneld v0.28.9 puts there for these peers. */
  const flannels = async (peers: readonly Host[]): Promise<string[][]> => {
    const each = await Promise.all(
      peers.map(async (peer) => ({ at: tunAddress(peer), host: peer.address, mac: (await deviceOf(peer)).address })),
    )
    return [
      each.map(({ at, mac }) => `${at} lladdr ${mac} PERMANENT`).toSorted(),
      each.map(({ mac, host }) => `${mac} dst ${host} self permanent`).toSorted(),
      each.map(({ at }) => `${at}/24 via ${at} dev flannel.1 onlink`).toSorted(),
    ]
  }
  const isWhole = (host: Host, peers: readonly Host[]): Promise<void> =>
    eventually(async () => expect(await known(host)).toEqual(await flannels(peers)))

  it('sets up what flanneld does, puts back what others take, and is there again after a restart', async () => {
    lab = await createLab({ hosts: 3 })
    const [a, b, c] = lab.hosts as [Host, Host, Host]
    const folder = leases(type())
    const daemons = await startAll(folder)
    await isWhole(a, [b, c])
    await isWhole(b, [a, c])
    const { mtu, address: mac, linkinfo } = await deviceOf(a)
    expect(mtu).toBe(1450)
    expect(linkinfo).toMatchObject({
      info_kind: 'vxlan',
      info_data: { id: 1, local: a.address, link: 'eth0', port: 8472, learning: false },
    })
    expect(await a.output('ip -br -4 address show dev flannel.1'.split(' '))).toContain(`${tunAddress(a)}/32`)
    expect(await a.output(['cat', '/proc/sys/net/ipv6/conf/flannel.1/accept_ra'])).toBe('0\n')
    expect(readFileSync(a.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1450\n')
    expect(readFileSync(file(folder, subnetOf(a)), 'utf8')).toBe(
      `{"PublicIP":"${a.address}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"${mac}"}}`,
    )
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    const talk = async (): Promise<void> => {
      for (const to of pods.slice(1)) await reach(pods[0]!.namespace, to.address)
    }
    await talk()

    for (const what of [
      'ip link del flannel.1',
      'ip link set flannel.1 down',
      'ip link set flannel.1 mtu 1400',
      'ip link set flannel.1 address 02:00:00:00:00:99',
      'ip address flush dev flannel.1',
      'ip neigh flush dev flannel.1 nud permanent',
      `bridge fdb del ${(await deviceOf(b)).address} dev flannel.1 dst ${b.address} self`,
      `ip route del ${subnetOf(b)}`,
    ]) {
      await a.output(what.split(' '))
      await isWhole(a, [b, c])
      await eventually(async () => {
        const shown = await a.output('ip -br -4 address show dev flannel.1 up'.split(' '))
        expect([shown.includes(`${tunAddress(a)}/32`), (await deviceOf(a)).mtu]).toEqual([true, 1450])
      })
    }
    await daemons[0]!.line(/Repaired: flannel\.1 was gone/)
    const peer = `PublicIP: ${b.address}, PublicIPv6: (nil), BackendData: {"VNI":1,"VtepMAC":"${(await deviceOf(b)).address}"}`
    const received = `] Received Subnet Event with VxLan: BackendType: vxlan, ${peer}, BackendV6Data: (nil)`
    expect(daemons[0]!.lines.filter((each) => each.endsWith(received))).toHaveLength(1)
    expect((await deviceOf(a)).address).toBe(mac)
    await talk()

    // While the daemon is away the device carries on; of what changed meanwhile the next one finds all.
    expect(await daemons[0]!.stop()).toBe(0)
    await talk()
    await daemons[2]!.stop()
    rmSync(file(folder, subnetOf(c)))
    const [again] = await startAll(folder, [a])
    await isWhole(a, [b])
    expect((await deviceOf(a)).address).toBe(mac)
    expect(again!.lines.filter((line) => /^[WE].*(recreating|Error|belong)/.test(line))).toEqual([])
  })

  it('takes its options, and makes a device of other options again', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const folder = leases(type())
    for (const daemon of await startAll(folder)) await daemon.stop()
    const mac = (await deviceOf(a)).address
    const options = { VNI: 1, port: 4789, MTU: 1400, GBP: true, learning: true }
    writeFileSync(join(folder, 'config'), JSON.stringify({ Network: '10.5.0.0/16', ...type(options) }))
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

  it('routes without a tunnel to hosts on the same link, with DirectRouting, and by it to the rest', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const folder = leases(type({ DirectRouting: true }))
    const [daemon] = await startAll(folder)
    // Behind the router, and nowhere.
    await a.output(['ip', 'route', 'add', 'unreachable', '198.51.100.0/24'])
    const far = {
      PublicIP: '203.0.113.40',
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:40' },
    }
    const nowhere = { ...far, PublicIP: '198.51.100.41', BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:41' } }
    writeFileSync(file(folder, '10.5.240.0/24'), JSON.stringify(far))
    writeFileSync(file(folder, '10.5.241.0/24'), JSON.stringify(nowhere))
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

  it('passes over what is no peer of it, and says so once', async () => {
    lab = await createLab({ hosts: 1 })
    const folder = leases(type())
    const [daemon] = await startAll(folder)
    const put = (subnet: string, lease: object): void => writeFileSync(file(folder, subnet), JSON.stringify(lease))
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
    // One that was cloned with its device.
    const { address: own } = await deviceOf(lab.hosts[0]!)
    put('10.5.244.0/24', {
      PublicIP: '192.168.77.44',
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: own },
    })
    await daemon!.line(
      /Lease 10\.5\.244\.0-24 is not used: its MAC .* is that of this node; where both are there, delete flannel\.1/,
    )
    put('10.5.243.0/24', {
      PublicIP: '192.168.77.43',
      BackendType: 'vxlan',
      BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:43' },
    })
    await eventually(async () =>
      expect((await known(lab.hosts[0]!))[2]).toEqual(['10.5.243.0/24 via 10.5.243.0 dev flannel.1 onlink']),
    )
    // A host that has two leases, and then one with another address: the newest is where it is.
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
  /** A program that notes how it was called, and says `output`. */
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

  it('runs a command before the lease, one after it, and one for each peer that comes and goes', async () => {
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
    writeFileSync(file(folder, '10.5.240.0/24'), JSON.stringify(peer))
    await daemon!.line(/Ran command: .*add \$SUBNET/)
    const rest = 'SUBNET=10.5.240.0/24 PUBLIC_IP=192.168.77.40 NETWORK= IPV6SUBNET= PUBLIC_IPV6='
    expect(calls('add')).toEqual([`add [10.5.240.0/24] [${peer.BackendData}] ${rest}`])
    rmSync(file(folder, '10.5.240.0/24'))
    await daemon!.line(/Ran command: .*remove/)
    expect(calls('remove')).toEqual([`remove [] [${peer.BackendData}] ${rest}`])
    expect(await daemon!.stop()).toBe(0)
  })

  it('ends when the first commands fail, and goes on when one for a peer does', async () => {
    lab = await createLab({ hosts: 1 })
    const add = { Type: 'extension', SubnetAddCommand: '/nonexistent/add' }
    const folder = leases({ Backend: add })
    const [daemon] = await startAll(folder)
    writeFileSync(file(folder, '10.5.240.0/24'), '{"PublicIP":"192.168.77.40","BackendType":"extension"}')
    await daemon!.line(/^E.*failed to run command \/nonexistent\/add for 10\.5\.240\.0\/24: /)
    expect(await daemon!.stop()).toBe(0)
    for (const name of ['PreStartupCommand', 'PostStartupCommand']) {
      const config = { Network: '10.5.0.0/16', Backend: { Type: 'extension', [name]: 'false' } }
      writeFileSync(join(folder, 'config'), JSON.stringify(config))
      const failing = lab.hosts[0]!.startDaemon({ args: ['--lease-dir', folder] })
      await failing.line(
        new RegExp(`failed to run command false: .*; mend Backend\\.${name} of the network configuration`),
      )
      await ended(failing.process)
      expect(failing.process.exitCode).toBe(1)
    }
  })
})

it.each([
  ['aws-vpc', /unknown backend type: aws-vpc; .*host-gw.*alloc/],
  ['ipsec', /unknown backend type: ipsec; .*take wireguard/],
  ['nonsense', /unknown backend type: nonsense; set .* to udp, vxlan, host-gw, ipip, wireguard, alloc or extension$/],
])('the backend type %s is refused with what to take', async (type, line) => {
  lab = await createLab({ hosts: 1 })
  const daemon = lab.hosts[0]!.startDaemon({ args: ['--lease-dir', leases({ Backend: { Type: type } })] })
  await daemon.line(line)
  await ended(daemon.process)
  expect(daemon.process.exitCode).toBe(1)
})
