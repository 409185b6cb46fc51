// wireguard.test.ts - the wireguard backend with the kernel's device.

import { mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, WIREGUARD_APART, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { subnetOf, tunAddress } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { kernelHasWireguard, noWireguardDevice } from '../support/wireguard.ts'

needs(HOSTS, 'ping', 'wg')

const PSK = 'MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='
/** The key of a peer that does not exist. */
const SOME_KEY = 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg='

let lab: Lab
afterEach(() => lab?.close())

const leases = (): string => join(lab.folder, 'leases')
const file = (subnet: string): string => join(leases(), 'subnets', subnet.replace('/', '-'))
const keyFile = (host: Host): string => join(lab.folder, `${host.name}-wgkey`)
async function start(host: Host, options: object = {}): Promise<Daemon> {
  mkdirSync(leases(), { recursive: true })
  // The tests' own peers are above the range from which nodes draw.
  const Backend = { Type: 'wireguard', DataPath: 'kernel', ...options }
  const config = { Network: '10.5.0.0/16', SubnetMax: '10.5.239.0', Backend }
  writeFileSync(join(leases(), 'config'), JSON.stringify(config))
  const daemon = host.startDaemon({
    args: ['--lease-dir', leases()],
    env: { WIREGUARD_KEY_FILE: keyFile(host) },
    before: WIREGUARD_APART,
  })
  await daemon.line(/flannel is ready/)
  return daemon
}
/** Returns the output of `wg` in the daemon's namespace: lines of fields, the device first. */
async function dump(host: Host, daemon: Daemon): Promise<string[][]> {
  const pid = String(daemon.process.pid)
  const text = await host.output(['nsenter', '--target', pid, '--mount', 'wg', 'show', 'flannel-wg', 'dump'])
  return text
    .trim()
    .split('\n')
    .map((line) => line.split('\t'))
}
const publicKey = (host: Host): string => /"PublicKey":"([^"]+)"/.exec(readFileSync(file(subnetOf(host)), 'utf8'))![1]!

describe('wireguard', () => {
  beforeEach(async ({ skip }) => {
    const lack = await noWireguardDevice()
    skip(lack !== undefined, lack)
  })

  it('has a device, a route and peers like flanneld, and touches no session when peers appear or disappear', async () => {
    lab = await createLab({ hosts: 3 })
    const [a, b, c] = lab.hosts as [Host, Host, Host]
    const options = { PSK, ListenPort: 51_999, PersistentKeepaliveInterval: 25, Mode: 'separate' }
    const daemons = [await start(a, options), await start(b, options)]
    expect(readFileSync(a.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1420\n')
    expect(readFileSync(file(subnetOf(a)), 'utf8')).toBe(
      `{"PublicIP":"${a.address}","PublicIPv6":null,"BackendType":"wireguard","BackendData":{"PublicKey":"${publicKey(a)}","Port":51999}}`,
    )
    expect(statSync(keyFile(a)).mode & 0o777).toBe(0o400)
    expect(readFileSync(keyFile(a), 'utf8')).toHaveLength(44)
    expect(await a.output('ip route show root 10.5.0.0/16'.split(' '))).toContain(
      '10.5.0.0/16 dev flannel-wg scope link',
    )
    expect(await a.output('ip -4 -br address show dev flannel-wg'.split(' '))).toContain(`${tunAddress(a)}/32`)
    expect(await a.output('ip link show dev flannel-wg'.split(' '))).toContain('mtu 1420')
    await daemons[0]!.line(new RegExp(`Subnet added: ${subnetOf(b)} via ${b.address}:51999$`))
    const [podA, podB] = [await a.startPod(), await b.startPod()]
    await reach(podA.namespace, podB.address)
    const peerOf = (host: Host, fields: string[]): string[] => [
      publicKey(host),
      PSK,
      `${host.address}:51999`,
      subnetOf(host),
      ...fields.slice(4, 7),
      '25',
    ]
    const [device, known] = await dump(a, daemons[0]!)
    expect(device).toEqual([readFileSync(keyFile(a), 'utf8'), publicKey(a), '51999', 'off'])
    expect(known).toEqual(peerOf(b, known!))
    const handshake = known![4]!
    expect(Number(handshake)).toBeGreaterThan(0)

    daemons.push(await start(c, options))
    const podC = await c.startPod()
    await reach(podA.namespace, podC.address)
    await reach(podC.namespace, podB.address)
    const after = (await dump(a, daemons[0]!)).slice(1)
    expect(after.map(([key = '']) => key).toSorted()).toEqual([publicKey(b), publicKey(c)].toSorted())
    expect(after.find(([key]) => key === publicKey(b))![4]).toBe(handshake)

    const gone = subnetOf(c)
    expect(await daemons[2]!.stop()).toBe(0)
    expect((await c.run('ip link show flannel-wg'.split(' '))).code).not.toBe(0) // flanneld leaves none either
    rmSync(file(gone))
    await eventually(async () =>
      expect((await dump(a, daemons[0]!)).slice(1).map(([key]) => key)).toEqual([publicKey(b)]),
    )
    await reach(podA.namespace, podB.address)

    // The key remains for the next daemon.
    const key = publicKey(a)
    expect(await daemons[0]!.stop()).toBe(0)
    const again = await start(a, options)
    expect(publicKey(a)).toBe(key)
    await reach(podA.namespace, podB.address)
    expect(again.lines.filter((line) => line.startsWith('E'))).toEqual([])
  })

  it('restores its device, its address or its route after other programs removed them', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const [daemon] = [await start(a), await start(b)]
    await reach(a.namespace, tunAddress(b))
    const inside = ['nsenter', '--target', String(daemon.process.pid), '--mount']
    for (const [what, line] of [
      [['ip', 'route', 'del', '10.5.0.0/16'], /Repaired: the route to 10\.5\.0\.0\/16 was gone/],
      [['ip', 'link', 'set', 'flannel-wg', 'down'], /Repaired: flannel-wg was down/],
      [[...inside, 'wg', 'set', 'flannel-wg', 'peer', publicKey(b), 'remove'], /Repaired: 1 settings of flannel-wg/],
      [[...inside, 'wg', 'set', 'flannel-wg', 'listen-port', '4444'], /Repaired: 1 settings of flannel-wg/],
      [['ip', 'link', 'del', 'flannel-wg'], /The data path stopped: .*(gone|ended).*Opening it again/],
    ] as const) {
      await a.output(what)
      await daemon.line(line)
      await reach(a.namespace, tunAddress(b))
    }
  })

  it('ignores leases that cannot be its peers, and logs each once', async () => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts as [Host]
    const daemon = await start(host)
    const put = (subnet: string, data: unknown): void =>
      writeFileSync(
        file(subnet),
        JSON.stringify({ PublicIP: '192.168.77.40', BackendType: 'wireguard', BackendData: data }),
      )
    put('10.5.240.0/24', { PublicKey: 'x; reboot', Port: 51_820 })
    await daemon.line(/Lease 10\.5\.240\.0-24 is not used: it publishes no WireGuard key and port/)
    put('10.5.241.0/24', { PublicKey: publicKey(host), Port: 51_820 })
    await daemon.line(
      /Lease 10\.5\.241\.0-24 is not used: its key .* is that of this node; if both hosts exist, delete .*wgkey/,
    )
    put('10.5.242.0/24', { PublicKey: SOME_KEY, Port: 0 })
    await eventually(async () =>
      expect((await dump(host, daemon)).slice(1).map((fields) => fields.slice(0, 4))).toEqual([
        [SOME_KEY, '(none)', '192.168.77.40:51820', '10.5.242.0/24'],
      ]),
    )
    expect(daemon.lines.filter((line) => /is not used/.test(line))).toHaveLength(2)
  })

  it('refuses a key file without a key, and an unknown mode', async () => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts as [Host]
    writeFileSync(keyFile(host), 'no key\n')
    await expect(start(host)).rejects.toThrow(/holds no WireGuard key; delete the file, so that weftd creates a key/)
    await expect(start(host, { Mode: 'ipv6' })).rejects.toThrow(/Backend\.Mode is "ipv6", and the network has no IPv6/)
    await expect(start(host, { PSK: 'short' })).rejects.toThrow(
      /Backend\.PSK is "<hidden>"; give it a key as `wg genpsk`/,
    )
  })
})

it('reports what is missing if the kernel has no WireGuard, and "DataPath" is "kernel"', async ({ skip }) => {
  skip(await kernelHasWireguard(), 'this kernel has WireGuard')
  lab = await createLab({ hosts: 1 })
  const [host] = lab.hosts as [Host]
  mkdirSync(leases())
  const Backend = { Type: 'wireguard', DataPath: 'kernel' }
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
  const env = { WIREGUARD_KEY_FILE: keyFile(host) }
  const daemon = host.startDaemon({ args: ['--lease-dir', leases()], env })
  await daemon.line(/this kernel has no device of type wireguard \(.*\); .*modprobe wireguard/)
  await ended(daemon.process)
  expect(daemon.process.exitCode).toBe(1)
})
