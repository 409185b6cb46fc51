// rename.test.ts - another program renames the external interface and weft's own devices while containers exchange packets: no packet is
// lost, the daemon keeps its data path, and later peers, reports and the next process use the new names.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, whyNoVxlan, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import type { Family } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, weftOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'

needs(HOSTS, 'curl', 'ping')

let lab: Lab
afterEach(() => lab?.close())

interface Kind {
  readonly backend: object
  readonly families?: readonly Family[]
  readonly args?: readonly string[]
  /** The devices of weft, each with its new name. */
  readonly devices: readonly (readonly [before: string, now: string])[]
}
const VXLAN_DEVICES = [
  ['flannel.1', 'other4'],
  ['flannel-v6.1', 'other6'],
] as const
const UDP: Kind = { backend: { Type: 'udp' }, devices: [['flannel0', 'other0']] }
const UDP_IN_JAVASCRIPT: Kind = { ...UDP, families: ['ipv4'], args: ['--engine', 'dgram'] }
const HOST_GW: Kind = { backend: { Type: 'host-gw' }, devices: [] }
const VXLAN: Kind = { backend: { Type: 'vxlan', DataPath: 'userspace' }, devices: VXLAN_DEVICES }
const DIRECT: Kind = { ...VXLAN, backend: { Type: 'vxlan', DataPath: 'userspace', DirectRouting: true } }
const WIREGUARD: Kind = {
  backend: { Type: 'wireguard', DataPath: 'userspace', Mode: 'auto' },
  devices: [['flannel-wg', 'other0']],
}

const start = (host: Host, args: readonly string[] = []): Daemon =>
  host.startDaemon({
    args: ['--lease-dir', join(lab.folder, 'leases'), '--probe-interval', '1', ...args],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
  })
const said = (before: string, now: string): RegExp =>
  new RegExp(`^I.*The interface ${before} is called ${now} now; weftd goes on with it under the new name$`)
const addressesOf = ({ address, ipv6 = '' }: Pod): readonly string[] => (ipv6 === '' ? [address] : [address, ipv6])
const reachAll = async (from: Pod, to: Pod): Promise<void> => {
  for (const address of addressesOf(to)) await reach(from.namespace, address)
}
/** The errors of a daemon, and its lines about a data path that it opens again. */
const troubles = ({ lines }: Daemon): readonly string[] => lines.filter((line) => /^[EF]|data path/.test(line))

/** Writes the network configuration with this backend. */
function configure(families: readonly Family[] = ['ipv4', 'ipv6'], backend: object): void {
  const ipv6 = families.includes('ipv6') ? { EnableIPv6: true, IPv6Network: 'fd00:5::/48' } : {}
  const config = { Network: '10.5.0.0/16', ...ipv6, Backend: backend }
  writeFileSync(join(lab.folder, 'leases', 'config'), JSON.stringify(config))
}

/** Makes a lab of three hosts, of which two run a daemon with this backend and have a container. */
async function running({ backend, families = ['ipv4', 'ipv6'], args }: Kind) {
  lab = await createLab({ hosts: 3, families })
  mkdirSync(join(lab.folder, 'leases'))
  configure(families, backend)
  const [here, there, late] = lab.hosts as [Host, Host, Host]
  const daemon = start(here, args)
  await Promise.all([daemon, start(there, args)].map((each) => each.line(/flannel is ready/)))
  const [from, to] = [await here.startPod(), await there.startPod()]
  await reachAll(from, to)
  return { here, there, late, daemon, from, to }
}

/** Renames an interface: while it is up, or else while it is down for a moment. */
async function rename(host: Host, before: string, now: string, isUp = true): Promise<void> {
  const name = `link set dev ${before} name ${now}`
  const input = isUp ? name : [`link set dev ${before} down`, name, `link set dev ${now} up`].join('\n')
  await host.output(['ip', '-batch', '-'], { input })
}

/** Renames the external interface and then weft's devices, and waits until the daemon has followed each rename. */
async function renameAll(host: Host, daemon: Daemon, { devices }: Kind): Promise<void> {
  await rename(host, 'eth0', 'uplink0')
  await daemon.line(said('eth0', 'uplink0'))
  for (const [before, now] of devices) {
    await rename(host, before, now)
    await daemon.line(said(before.replaceAll('.', String.raw`\.`), now))
  }
}

const linksOf = async (host: Host): Promise<readonly string[]> =>
  (JSON.parse(await host.output(['ip', '-j', 'link', 'show'])) as { ifname: string }[]).map(({ ifname }) => ifname)
const devicesIn = async (host: Host): Promise<readonly (string | null)[]> => [
  ...new Set(Object.values((await statusOf(host)).dataPath!.devices)),
]

describe('a rename of interfaces that are up', () => {
  it.each([
    ['udp', UDP],
    ['udp by the engine dgram', UDP_IN_JAVASCRIPT],
    ['host-gw', HOST_GW],
    ['vxlan by weftd', VXLAN],
    ['vxlan by weftd with direct routing', DIRECT],
    ['wireguard by weftd', WIREGUARD],
  ])('loses no packet with %s, and a later peer is reached', async (_name, kind) => {
    const { here, late, daemon, from, to } = await running(kind)
    const pings = addressesOf(to).map((address) => pinging(from, to, { address, everyS: 0.01 }))
    await renameAll(here, daemon, kind)
    await start(late, kind.args).line(/flannel is ready/)
    const other = await late.startPod()
    await reachAll(from, other)
    await reachAll(other, from)
    for (const each of pings) expect((await each.stop()).lost).toBe(0)
    expect(troubles(daemon)).toEqual([])
    expect((await statusOf(here)).node?.externalInterface).toBe('uplink0')
    if (kind.devices.length > 0)
      expect((await devicesIn(here)).filter((name) => name !== null)).toEqual(kind.devices.map(([, now]) => now))
    await eventually(async () => expect((await statusOf(here)).peers).toMatchObject({ answering: 2, whole: 1 }))
    expect(await doctor(here)).toMatchObject({ names: [] })
  })
})

describe('a rename of interfaces that are down for a moment', () => {
  it.each([
    ['udp', { ...UDP, families: ['ipv4'] }],
    ['host-gw', { ...HOST_GW, families: ['ipv4'] }],
  ] as const)('costs %s no data path, and packets pass again', async (_name, kind) => {
    const { here, daemon, from, to } = await running(kind)
    for (const [before, now] of [['eth0', 'uplink0'] as const, ...kind.devices]) {
      await rename(here, before, now, false)
      await daemon.line(said(before, now))
      await reachAll(from, to)
    }
    expect(daemon.lines.filter((line) => /data path/.test(line))).toEqual([])
  })
})

describe('the process that comes after a rename', () => {
  it.each([
    ['udp', UDP],
    ['vxlan by weftd', VXLAN],
    ['wireguard by weftd', WIREGUARD],
  ])('goes on with the renamed devices of %s', async (_name, kind) => {
    const { here, daemon, from, to } = await running(kind)
    await renameAll(here, daemon, kind)
    const names = kind.devices.map(([, now]) => now)
    const pings = addressesOf(to).map((address) => pinging(from, to, { address, everyS: 0.01 }))
    const successor = start(here)
    await successor.line(/flannel is ready/)
    await ended(daemon.process)
    for (const each of pings) expect((await each.stop()).lost).toBe(0)
    expect(troubles(successor)).toEqual([])
    expect(await devicesIn(here)).toEqual(names)

    successor.process.kill('SIGKILL')
    await ended(successor.process)
    const third = start(here)
    await third.line(/Forwarding to 1 peers as last known/)
    await reachAll(from, to)
    await third.line(/flannel is ready/)
    expect(await devicesIn(here)).toEqual(names)

    await third.stop()
    await rename(here, 'uplink0', 'uplink1')
    const later = names.map((name) => [name, `${name}a`] as const)
    for (const [before, now] of later) await rename(here, before, now)
    const last = start(here)
    await last.line(/flannel is ready/)
    await reachAll(from, to)
    expect(await devicesIn(here)).toEqual(later.map(([, now]) => now))
    expect((await linksOf(here)).filter((name) => name.startsWith('flannel'))).toEqual([])
    expect((await statusOf(here)).node?.externalInterface).toBe('uplink1')
    expect(await last.stop()).toBe(0)
  })

  it('removes the renamed devices of another backend, as weft cleanup does', async ({ skip }) => {
    const lack = await whyNoVxlan()
    if (lack !== undefined) return skip(lack)
    const kind: Kind = { backend: { Type: 'vxlan', DataPath: 'kernel' }, devices: VXLAN_DEVICES }
    const { here, there, daemon, from, to } = await running(kind)
    for (const [before, now] of kind.devices) await rename(here, before, now)
    await reachAll(from, to)
    configure(kind.families, WIREGUARD.backend)
    const successors = [start(here), start(there)]
    for (const each of successors) await each.line(/flannel is ready/)
    await ended(daemon.process)
    await reachAll(from, to)
    await reachAll(to, from)
    expect((await linksOf(here)).filter((name) => name.startsWith('other'))).toEqual([])

    await rename(here, 'flannel-wg', 'other0')
    await successors[0]!.line(said('flannel-wg', 'other0'))
    await successors[0]!.stop()
    await here.output([...weftOf(here, ['cleanup']).slice(0, -2), '--subnet-file', here.subnetFile])
    expect((await linksOf(here)).filter((name) => /^(flannel|other)/.test(name))).toEqual([])
  })

  it('fails as flanneld does, if --iface names nothing and no state is known', async () => {
    const { here, daemon } = await running({ ...HOST_GW, families: ['ipv4'] })
    await renameAll(here, daemon, HOST_GW)
    expect(await daemon.stop()).toBe(0)
    const next = start(here, ['--iface-wait', '1'])
    await next.line(/error looking up interface eth0: route ip\+net: no such network interface/)
    await ended(next.process)
    expect(next.process.exitCode).toBe(1)
  })
})
