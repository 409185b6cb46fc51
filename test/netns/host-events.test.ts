// host-events.test.ts - what happens to a host around the daemon: a boot that is not done, a full disk, a killed child.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { ping } from '../../lab/measure.ts'

/** From what the host lacked to what the daemon makes of it. */
const NOTICED_MS = 1_000

let lab: Lab
let host: Host
let leases: string
beforeEach(async () => {
  lab = await createLab({ hosts: 1 })
  host = lab.hosts[0]!
  leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
})
afterEach(() => lab.close())

const ip = (...args: string[]): Promise<string> => host.output(['ip', ...args])
const start = (iface?: readonly string[], args: readonly string[] = []): Daemon =>
  host.startDaemon({ args: ['--lease-dir', leases, ...args], ...(iface ? { iface } : {}) })
const count = ({ lines }: Daemon, pattern: RegExp): number => lines.filter((line) => pattern.test(line)).length

describe('H5: a boot that is not done when the daemon starts', () => {
  const WAITING = /^W.*; waiting up to 120 s for one$/

  it.each([
    [
      'no default route',
      ['route', 'del', 'default'],
      [],
      /Failed to find any valid interface to use: failed to get default interface: unable to find default route/,
      [['route', 'add', 'default', 'via', '192.168.77.254']],
    ],
    [
      'no address',
      ['address', 'flush', 'dev', 'eth0'],
      ['--iface', 'eth0'],
      /matching eth0: failed to find IPv4 address for interface eth0/,
      [['address', 'add', '192.168.77.1/24', 'dev', 'eth0']],
    ],
    [
      'the address that is asked for on none',
      ['address', 'flush', 'dev', 'eth0'],
      ['--public-ip', '192.168.77.1'],
      /error looking up interface 192\.168\.77\.1: no interface with given IP found/,
      [['address', 'add', '192.168.77.1/24', 'dev', 'eth0']],
    ],
    [
      'no such interface',
      ['link', 'set', 'eth0', 'up'],
      ['--iface-regex', '^bond[0-9]'],
      /could not match pattern \^bond\[0-9\] to any of the available network interfaces \(lo:\[\], eth0:\[192/,
      [
        ['link', 'add', 'bond7', 'type', 'bridge'],
        ['address', 'add', '192.0.2.9/24', 'dev', 'bond7'],
        ['link', 'set', 'bond7', 'up'],
      ],
    ],
    [
      'no route to what is to be reached',
      ['route', 'del', 'default'],
      ['--iface-can-reach', '203.0.113.7'],
      /couldn't lookup route to 203\.0\.113\.7: network is unreachable/,
      [['route', 'add', 'default', 'via', '192.168.77.254']],
    ],
  ])('%s: it says so once, and goes on within a second of its coming', async (_title, spoil, iface, why, mend) => {
    await ip(...spoil)
    const daemon = start(iface)
    await daemon.line(WAITING)
    await daemon.line(why)
    // Changes that do not help are looked at and not spoken of.
    for (const state of ['down', 'up', 'down']) await ip('link', 'set', 'lo', state)
    await delay(NOTICED_MS)
    expect(count(daemon, WAITING)).toBe(1)
    expect(count(daemon, why)).toBeLessThanOrEqual(2) // its own line, and as the reason of the wait
    const lines = daemon.lines.length
    const from = performance.now()
    for (const args of mend) await ip(...args)
    await daemon.line(/Using interface with name/)
    expect(performance.now() - from).toBeLessThan(NOTICED_MS)
    await daemon.line(/flannel is ready/)
    expect(daemon.lines.slice(lines).filter((line) => /^[WE]/.test(line))).toEqual([])
    expect(await daemon.stop()).toBe(0)
  })

  it('nothing that comes: SIGTERM ends the wait with 0', async () => {
    const daemon = start(['--iface', 'eth7'])
    await daemon.line(WAITING)
    expect(await daemon.stop()).toBe(0)
  })
})

describe('--ip-blackhole-route', () => {
  it('ends what is for no container, not what is for one, comes back, and follows the subnet', async () => {
    await ip('route', 'add', 'blackhole', '10.5.255.0/24', 'metric', '4294967295') // an earlier run's
    const args = ['--ip-blackhole-route', '--iptables-resync', '1']
    const daemon = start(undefined, args)
    await daemon.line(/flannel is ready/)
    const subnet = (host.subnetEnv()['FLANNEL_SUBNET'] ?? '').replace('.1/', '.0/')
    const blackholes = async (): Promise<string[]> =>
      (await ip('route', 'show', 'type', 'blackhole')).split('\n').flatMap((line) => line.trim() || [])
    const ours = `blackhole ${subnet} metric 4294967295`
    expect(await blackholes()).toEqual([ours])
    const nobody = subnet.replace('.0/24', '.99')
    expect((await host.run(['ip', 'route', 'get', nobody])).code).not.toBe(0)

    const pod = await host.startPod() // brings the bridge and its route
    expect(await ping(host.namespace, pod.address, { count: 1 })).toHaveLength(1)

    await ip('route', 'del', 'blackhole', subnet, 'metric', '4294967295')
    await daemon.line(/^W.*Repaired: the blackhole route of .* was gone/)
    expect(await blackholes()).toEqual([ours])
    expect(await daemon.stop()).toBe(0)
    expect(await blackholes()).toEqual([ours]) // as flanneld leaves it
  })
})
