// ipv6-contract.test.ts - what a dual-stack daemon sets up on its host and publishes, per backend, with peers that the test writes. The
// difference from flanneld is that a fault of one family must not affect the other.

import { chmodSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { createLab, networkOf, whyNoVxlan, WIREGUARD_APART, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'wg', 'wireguard-go')

let lab: Lab
let host: Host
let daemon: Daemon
afterEach(() => lab?.close())

/** No node draws a subnet above these, so the test's peers are there. */
const NETWORK = {
  Network: '10.5.0.0/16',
  SubnetMax: '10.5.239.0',
  EnableIPv6: true,
  IPv6Network: 'fd00:5::/48',
  IPv6SubnetMax: 'fd00:5:0:ef00::',
}
const subnets = (): string => join(lab.folder, 'leases/subnets')

/** Starts a daemon on a host of a network with this backend; a function gets the lab's folder. */
async function running(backendIn: object | ((folder: string) => object), network: object = NETWORK): Promise<void> {
  lab = await createLab({ hosts: 1, families: ['ipv4', 'ipv6'] })
  ;[host] = lab.hosts as [Host]
  const backend = typeof backendIn === 'function' ? backendIn(lab.folder) : backendIn
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), JSON.stringify({ ...network, Backend: backend }))
  const env = { WIREGUARD_KEY_FILE: join(lab.folder, 'wgkey') }
  daemon = host.startDaemon({ args: ['--lease-dir', leases], env, before: WIREGUARD_APART })
  await daemon.line(/flannel is ready/)
}

interface Peer {
  readonly key: string
  readonly ipv4: string
  readonly ipv6: string
  readonly publicIp: string
  readonly publicIpv6: string
}
const peerOf = (number: number, publicIpv6 = `fd77::${number}`): Peer => {
  const [ipv4, ipv6] = [`10.5.${number}.0`, `fd00:5:0:f${number}::`]
  return { key: `${ipv4}-24&${ipv6}-64`, ipv4, ipv6, publicIp: `192.168.77.${number}`, publicIpv6 }
}
const put = ({ key, publicIp, publicIpv6 }: Peer, type: string, data: object): void =>
  writeFileSync(
    join(subnets(), key),
    JSON.stringify({ PublicIP: publicIp, PublicIPv6: publicIpv6, BackendType: type, ...data }),
  )
const gone = ({ key }: Peer): void => rmSync(join(subnets(), key))

/** Runs a command on the host and returns its lines without surrounding white space. */
const linesOf = async (...command: string[]): Promise<string[]> =>
  (await host.output(command))
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')
const routesTo = (network: string): Promise<string[]> =>
  linesOf('ip', network.includes(':') ? '-6' : '-4', 'route', 'show', 'root', network)
const published = (): unknown => {
  const own = networkOf(host.subnetEnv()['FLANNEL_IPV6_SUBNET'] ?? '').replace('/', '-')
  return JSON.parse(
    readFileSync(
      join(
        subnets(),
        readdirSync(subnets()).find((key) => key.endsWith(`&${own}`))!,
      ),
      'utf8',
    ),
  )
}

describe('vxlan of the kernel', () => {
  const MACS = { ipv4: '02:00:00:00:04:04', ipv6: '02:00:00:00:06:06' }
  const macs = { BackendData: { VNI: 1, VtepMAC: MACS.ipv4 }, BackendV6Data: { VNI: 1, VtepMAC: MACS.ipv6 } }

  it('has an entry of each kind for a peer, removes them with the peer, and keeps one family if the other is unusable', async ({
    skip,
  }) => {
    const why = await whyNoVxlan()
    skip(why !== undefined, why)
    await running({ Type: 'vxlan', DataPath: 'kernel' })
    expect(await linesOf('cat', '/proc/sys/net/ipv6/conf/flannel-v6.1/accept_ra')).toEqual(['0'])
    const own = networkOf(host.subnetEnv()['FLANNEL_IPV6_SUBNET']!).replace('/64', '')
    expect(await linesOf('ip', '-6', '-br', 'address', 'show', 'dev', 'flannel-v6.1', 'scope', 'global')).toEqual([
      expect.stringContaining(`${own}/128`),
    ])
    const entries = async (): Promise<readonly string[]> => [
      ...(await routesTo('fd00:5::/48')).filter((line) => line.includes(' via ')),
      ...(await linesOf('ip', '-6', 'neigh', 'show', 'dev', 'flannel-v6.1', 'nud', 'permanent')),
      ...(await linesOf('bridge', 'fdb', 'show', 'dev', 'flannel-v6.1')),
    ]
    const peer = peerOf(240)
    put(peer, 'vxlan', macs)
    await daemon.line(
      /Received Subnet Event with VxLan: BackendType: vxlan, PublicIP: 192\.168\.77\.240, PublicIPv6: fd77::240, BackendData: \{"VNI":1,"VtepMAC":"02:00:00:00:04:04"\}, BackendV6Data: \{"VNI":1,"VtepMAC":"02:00:00:00:06:06"\}$/,
    )
    await eventually(async () =>
      expect(await entries()).toEqual([
        expect.stringMatching(/^fd00:5:0:f240::\/64 via fd00:5:0:f240:: dev flannel-v6\.1 .*onlink/),
        expect.stringMatching(/^fd00:5:0:f240:: lladdr 02:00:00:00:06:06 PERMANENT/),
        expect.stringMatching(/^02:00:00:00:06:06 dst fd77::240 self permanent/),
      ]),
    )
    expect((await routesTo('10.5.0.0/16')).join('\n')).toContain('10.5.240.0/24 via 10.5.240.0 dev flannel.1')
    gone(peer)
    await eventually(async () => expect(await entries()).toEqual([]))

    // A fault of the IPv4 data does not exclude IPv6, and the reverse.
    put(peerOf(241), 'vxlan', { BackendV6Data: macs.BackendV6Data })
    put(peerOf(242), 'vxlan', { BackendData: macs.BackendData, BackendV6Data: '; reboot' })
    await daemon.line(/Lease .*241.* is not used(?: for IPv4)?: it publishes no MAC of a vxlan device/)
    await daemon.line(/Lease .*242.* is not used(?: for IPv6)?: it publishes no MAC of a vxlan device/)
    await eventually(async () => {
      expect((await entries()).join('\n')).toContain('dst fd77::241')
      expect((await routesTo('10.5.0.0/16')).join('\n')).toContain('10.5.242.0/24 via')
    })
    expect((await entries()).join('\n')).not.toContain('fd77::242')
    expect((await routesTo('10.5.0.0/16')).join('\n')).not.toContain('10.5.241.0/24')
  })

  it('keeps its IPv6 MAC, and routes directly per family if the host is on the link in that family', async ({
    skip,
  }) => {
    const why = await whyNoVxlan()
    skip(why !== undefined, why)
    await running({ Type: 'vxlan', DataPath: 'kernel', DirectRouting: true })
    const [mac] = await linesOf('cat', '/sys/class/net/flannel-v6.1/address')
    expect(published()).toMatchObject({ PublicIPv6: 'fd77::1', BackendV6Data: { VNI: 1, VtepMAC: mac } })
    // One peer is on the link in both families, the other only in IPv4.
    put(peerOf(240), 'vxlan', macs)
    put(peerOf(241, 'fd88::241'), 'vxlan', { ...macs, BackendV6Data: { VNI: 1, VtepMAC: '02:00:00:00:06:07' } })
    await eventually(async () => {
      const by6 = (await routesTo('fd00:5::/48')).join('\n')
      expect(by6).toMatch(/^fd00:5:0:f240::\/64 via fd77::240 dev eth0/m)
      expect(by6).toMatch(/^fd00:5:0:f241::\/64 via fd00:5:0:f241:: dev flannel-v6\.1 .*onlink/m)
      const by4 = (await routesTo('10.5.0.0/16')).join('\n')
      expect(by4).toMatch(/^10\.5\.241\.0\/24 via 192\.168\.77\.241 dev eth0/m)
    })
    await host.output(['ip', 'link', 'del', 'flannel-v6.1'])
    await daemon.line(/Repaired: flannel-v6\.1 was gone/)
    expect(await linesOf('cat', '/sys/class/net/flannel-v6.1/address')).toEqual([mac])
    expect((await routesTo('fd00:5::/48')).join('\n')).toMatch(/dev flannel-v6\.1 .*onlink/)
  })
})

it('host-gw has a route of each family with a gateway of that family, restores it, and removes it', async () => {
  await running({ Type: 'host-gw' })
  expect(published()).toEqual({ PublicIP: host.address, PublicIPv6: 'fd77::1', BackendType: 'host-gw' })
  const peer = peerOf(240)
  put(peer, 'host-gw', {})
  const routes = async (): Promise<string[]> => [...(await routesTo('10.5.0.0/16')), ...(await routesTo('fd00:5::/48'))]
  const wanted = [
    expect.stringMatching(/^10\.5\.240\.0\/24 via 192\.168\.77\.240 dev eth0/),
    expect.stringMatching(/^fd00:5:0:f240::\/64 via fd77::240 dev eth0/),
  ]
  await eventually(async () => expect(await routes()).toEqual(wanted))
  await host.output(['ip', '-6', 'route', 'del', `${peer.ipv6}/64`])
  await eventually(async () => expect(await routes()).toEqual(wanted))
  gone(peer)
  await eventually(async () => expect(await routes()).toEqual([]))
})

describe('wireguard', () => {
  const KEY = 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg='
  const ends = { BackendData: { PublicKey: KEY, Port: 51820 }, BackendV6Data: { PublicKey: KEY, Port: 51821 } }
  /** Returns what `wg` prints of a device in the daemon's namespace: the port, and the endpoint and networks of each peer. */
  async function shown(device: string): Promise<{ readonly port: string; readonly peers: readonly string[] }> {
    const enter = ['nsenter', '--target', String(daemon.process.pid), '--mount', 'wg', 'show', device, 'dump']
    const [[, , port = ''] = [], ...peers] = (await linesOf(...enter)).map((line) => line.split('\t'))
    return { port, peers: peers.map(([, , endpoint, nets]) => `${endpoint} ${nets}`) }
  }
  const peer = peerOf(240)

  it('has a device for each family, each with its own port, and one key', async () => {
    await running({ Type: 'wireguard', DataPath: 'kernel' })
    const { BackendData: by4, BackendV6Data: by6 } = published() as typeof ends
    expect([by4.Port, by6.Port]).toEqual([51820, 51821])
    expect(by6.PublicKey).toBe(by4.PublicKey)
    put(peer, 'wireguard', ends)
    await eventually(async () =>
      expect([await shown('flannel-wg'), await shown('flannel-wg-v6')]).toEqual([
        { port: '51820', peers: ['192.168.77.240:51820 10.5.240.0/24'] },
        { port: '51821', peers: [`[fd77::240]:51821 ${peer.ipv6}/64`] },
      ]),
    )
    expect((await routesTo('fd00:5::/48')).join('\n')).toMatch(/^fd00:5::\/48 dev flannel-wg-v6/m)
  })

  it.each([
    ['auto', '192.168.77.240:51820'],
    ['ipv4', '192.168.77.240:51820'],
    // The port that the peer listens on. flanneld uses the port of a device that does not exist.
    ['ipv6', '[fd77::240]:51820'],
  ])('has one device for both families with Mode %s, and sends its datagrams to %s', async (mode, endpoint) => {
    await running({ Type: 'wireguard', DataPath: 'kernel', Mode: mode })
    put(peer, 'wireguard', ends)
    await eventually(async () => {
      const { port, peers } = await shown('flannel-wg')
      const [end, nets = ''] = peers[0]?.split(' ') ?? []
      expect([port, end, ...nets.split(',').toSorted()]).toEqual([
        '51820',
        endpoint,
        '10.5.240.0/24',
        `${peer.ipv6}/64`,
      ])
    })
    for (const network of ['10.5.0.0/16', 'fd00:5::/48'])
      expect((await routesTo(network)).join('\n')).toMatch(/dev flannel-wg\b(?!-)/)
    // The host's default route is unchanged.
    expect(await linesOf('ip', 'route', 'show', 'default')).toEqual([expect.stringContaining('via 192.168.77.254')])
  })
})

it('extension passes both families to its commands, also those of a peer', async () => {
  const script = '#!/bin/sh\necho "$1 $NETWORK $SUBNET $IPV6SUBNET $PUBLIC_IP $PUBLIC_IPV6" >> "$0.calls"\n'
  let program = ''
  await running((folder) => {
    program = join(folder, 'told')
    writeFileSync(program, script)
    chmodSync(program, 0o755)
    return {
      Type: 'extension',
      PostStartupCommand: `${program} post`,
      SubnetAddCommand: `${program} add`,
      SubnetRemoveCommand: `${program} remove`,
    }
  })
  const calls = (): string[] => readFileSync(`${program}.calls`, 'utf8').trim().split('\n')
  const own = ['FLANNEL_SUBNET', 'FLANNEL_IPV6_SUBNET'].map((name) => networkOf(host.subnetEnv()[name]!))
  expect(calls()).toEqual([`post 10.5.0.0/16 ${own.join(' ')} ${host.address} fd77::1`])
  const peer = peerOf(240)
  // flanneld passes only the IPv4 data of a peer.
  const rest = ` ${peer.ipv4}/24 ${peer.ipv6}/64 ${peer.publicIp} ${peer.publicIpv6}`
  put(peer, 'extension', {})
  await eventually(() => expect(calls().slice(1)).toEqual([`add ${rest}`]))
  gone(peer)
  await eventually(() => expect(calls().slice(2)).toEqual([`remove ${rest}`]))
})

it('ipip carries IPv4 only, with a lease of both families, and logs that', async ({ skip }) => {
  const { code, stderr } = await execute('unshare --net ip link add probe type ipip local 127.0.0.1'.split(' '))
  skip(code !== 0, `no ipip in the kernel: ${stderr.trim()}; npm run test:vm has one`)
  await running({ Type: 'ipip' })
  await daemon.line(/^W.*carries IPv4 alone/)
  const env = host.subnetEnv()
  expect([env['FLANNEL_SUBNET'], env['FLANNEL_IPV6_SUBNET']]).toEqual([
    expect.stringMatching(/^10\.5\./),
    expect.stringMatching(/^fd00:5:/),
  ])
  expect(await routesTo('fd00:5::/48')).toEqual([])
  expect(daemon.lines.filter((line) => line.startsWith('E'))).toEqual([])
})

const { Network: _, SubnetMax: _max, ...IPV6_ALONE } = { ...NETWORK, EnableIPv4: false }
it.each([
  [
    'ipip',
    IPV6_ALONE,
    { Type: 'ipip' },
    [],
    /the ipip backend needs IPv4, and EnableIPv4 is false; set "EnableIPv4": true, or take udp, vxlan, host-gw or wireguard/,
  ],
  ...([NETWORK, IPV6_ALONE] as const).flatMap((network) =>
    ['ipv4', 'ipv6'].flatMap((underlay) =>
      underlay === 'ipv4' && network === IPV6_ALONE
        ? []
        : [
            [
              `the dgram engine over ${underlay}`,
              network,
              { Type: 'udp', Underlay: underlay },
              ['--engine', 'dgram'],
              /the dgram engine carries IPv4 alone; run weftd with --engine native$/,
            ] as const,
          ],
    ),
  ),
] as const)('IPv6 alone is refused, or IPv6 at all: %s', async (_what, network, backend, args, why) => {
  lab = await createLab({ hosts: 1, families: ['ipv4', 'ipv6'] })
  ;[host] = lab.hosts as [Host]
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), JSON.stringify({ ...network, Backend: backend }))
  const refused = host.startDaemon({ args: ['--lease-dir', leases, ...args] })
  await refused.line(why)
  await ended(refused.process)
  expect(refused.process.exitCode).toBe(1)
  // weftd must log the refusal once, and leave nothing on the host.
  expect(refused.lines.filter((line) => line.startsWith('E'))).toHaveLength(1)
  expect((await linesOf('ip', '-br', 'link')).filter((line) => line.startsWith('flannel'))).toEqual([])
  for (const each of ['10.5.0.0/16', 'fd00:5::/48']) expect(await routesTo(each)).toEqual([])
})

it.each([
  ['both families', {}, ['FLANNEL_SUBNET', 'FLANNEL_IPV6_SUBNET']],
  ['IPv6 alone', { EnableIPv4: false, Network: undefined, SubnetMax: undefined }, ['FLANNEL_IPV6_SUBNET']],
])('alloc takes subnets of %s, and changes nothing on the host', async (_what, families, names) => {
  await running({ Type: 'alloc' }, { ...NETWORK, ...families })
  expect(Object.keys(host.subnetEnv()).filter((name) => name.endsWith('SUBNET'))).toEqual(names)
  expect(await routesTo('fd00:5::/48')).toEqual([])
  expect(readdirSync(subnets())).toEqual([expect.stringMatching(/fd00:5:0:[\da-f]+::-64$/)])
})
