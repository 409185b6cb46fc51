// backends.test.ts - the backends whose packets the kernel carries: what they set up, mend and leave, with real daemons.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { subnetOf } from '../support/hosts.ts'
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
    put('10.5.240.0/24', { PublicIP: '192.0.2.40', BackendType: 'host-gw' })
    put('10.5.241.0/24', { PublicIP: '192.168.77.41', BackendType: 'vxlan' })
    put('10.5.242.0/24', { PublicIP: '192.168.77.42', BackendType: 'host-gw' })
    await daemon!.line(
      /Error adding route to 10\.5\.240\.0\/24 via 192\.0\.2\.40 dev eth0: .*(unreachable|invalid gateway)/i,
    )
    await daemon!.line(/Ignoring non-host-gw subnet: 10\.5\.241\.0\/24, type=vxlan/)
    await eventually(async () =>
      expect((await routes(a)).toSorted()).toEqual([via(b), '10.5.242.0/24 via 192.168.77.42 dev eth0'].toSorted()),
    )
    await a.output(['ip', 'route', 'del', '10.5.242.0/24'])
    await daemon!.line(/Repaired: the route to 10\.5\.242\.0\/24/)
    for (const once of [/10\.5\.240\.0\/24 via 192/, /Ignoring non-host-gw/])
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

it.each([
  ['aws-vpc', /unknown backend type: aws-vpc; .*host-gw.*alloc/],
  ['ipsec', /unknown backend type: ipsec; .*IPsec between the hosts/],
  ['nonsense', /unknown backend type: nonsense; set .* to udp, host-gw or alloc$/],
])('the backend type %s is refused with what to take', async (type, line) => {
  lab = await createLab({ hosts: 1 })
  const daemon = lab.hosts[0]!.startDaemon({ args: ['--lease-dir', leases({ Backend: { Type: type } })] })
  await daemon.line(line)
  await ended(daemon.process)
  expect(daemon.process.exitCode).toBe(1)
})
