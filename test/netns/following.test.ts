// following.test.ts - weftd notices and repairs changes to the host's links, addresses and routes.
//
// The test only prints how fast that is. Other tests check the speed independently of the machine: host-events.test.ts that the kernel's
// report wakes the daemon, unit/daemon.test.ts that the daemon then checks within a quarter of a second.

import { existsSync, rmSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { createLab, EVENT_MS, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { tunAddress } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping')

const ALL = process.env['WEFT_LONG'] === '1'
const TRIES = ALL ? 20 : 5
const FLAPS = ALL ? 100 : 25

let lab: Lab
let daemon: Daemon
let a: Host
let b: Host
let leases: string
/** Waits for a round of the daemon of a: it restores subnet.env as often as it checks its device without a report. */
async function nextRound(): Promise<void> {
  rmSync(a.subnetFile, { force: true })
  await expect.poll(() => existsSync(a.subnetFile)).toBe(true)
}

beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
  const daemons = lab.hosts.map((host) => host.startDaemon({ args: ['--lease-dir', leases] }))
  await Promise.all(daemons.map((each) => each.line(/flannel is ready/)))
  daemon = daemons[0]!
  ;[a, b] = lab.hosts as [Host, Host]
  await reach(a.namespace, tunAddress(b))
})
afterEach(() => lab.close())

/** Resolves when a ping sent after the call is answered. Its source is a's overlay address, so only the tunnel can carry it. */
const traffic = (): Promise<string> =>
  eventually(() => a.output(['ping', '-n', '-c', '1', '-W', '1', '-I', tunAddress(a), tunAddress(b)]), { everyMs: 20 })

describe('each time traffic recovers after', () => {
  const FAULTS = [
    ['the device was deleted', 'ip link del flannel0'],
    ['the device was set down', 'ip link set flannel0 down'],
    ['its address was flushed', 'ip address flush dev flannel0'],
    ['its route was removed', 'ip route del 10.5.0.0/16'],
    ['its route was replaced', 'ip route replace blackhole 10.5.0.0/16'],
    [
      'all of it was flushed, as when a network manager starts again',
      'ip address flush dev flannel0; ip route flush dev flannel0; ip link set flannel0 down',
    ],
  ] as const
  it.each(FAULTS)('%s', async (title, commands) => {
    const took: number[] = []
    for (let number = 0; number < TRIES; number++) {
      const from = performance.now()
      await a.output(['sh', '-c', commands])
      await traffic()
      took.push(Math.round(performance.now() - from))
    }
    console.log(`${title}: traffic again after ${took.toSorted((x, y) => x - y).join(' ')} ms`)
  })
})

describe('a repair', () => {
  it('is logged once, and counted', async () => {
    const repairs = (): string[] => daemon.lines.flatMap((line) => line.split('Repaired: ')[1] ?? [])
    await a.output(['ip', 'route', 'del', '10.5.0.0/16'])
    await daemon.line(/Repaired: /)
    await a.output(['ip', 'link', 'set', 'flannel0', 'mtu', '1300'])
    await daemon.line(/\(repair 2 since the start\)/)
    // Something that needs two repairs would be found by the next two checks.
    for (let rounds = 0; rounds < 2; rounds++) await nextRound()
    await a.output(['ip', 'link', 'set', 'flannel0', 'down'])
    await daemon.line(/flannel0 was down/)
    expect(repairs().filter((line) => !line.startsWith('the route'))).toEqual([
      'flannel0 had MTU 1300 (repair 2 since the start)',
      expect.stringMatching(/subnet\.env was gone/),
      expect.stringMatching(/subnet\.env was gone/),
      expect.stringMatching(/^flannel0 was down \(repair 5 since the start\)$/),
    ])
    expect(repairs()[0]).toBe('the route to 10.5.0.0/16 was gone (repair 1 since the start)')
  })

  it('does not remove a route to a part of the network: it names the route, and traffic recovers when the route is gone', async () => {
    const part = tunAddress(b).replace(/\.0$/, '.0/24')
    await a.output(['ip', 'route', 'add', part, 'via', '192.168.77.254'])
    await daemon.line(/^W.*Packets bypass the tunnel by routes that others made: [\d./]+ to eth0; remove them/)
    expect(await a.output(['ip', 'route', 'show', part])).toContain('via 192.168.77.254')
    await a.output(['ip', 'route', 'del', part])
    await daemon.line(/^I.*Routes that bypassed the tunnel are gone: [\d./]+ to eth0/)
    await reach(a.namespace, tunAddress(b))
    expect(daemon.lines.filter((line) => line.includes('Repaired'))).toEqual([])
  })
})

describe('the external interface', () => {
  it('goes down and up again and again: traffic recovers each time without a repair', async () => {
    const descriptors = (): number => readdirSync(`/proc/${daemon.process.pid}/fd`).length
    const before = descriptors()
    const took: number[] = []
    for (let number = 0; number < FLAPS; number++) {
      await a.output(['ip', 'link', 'set', 'eth0', 'down'])
      const from = performance.now()
      await a.output(['ip', 'link', 'set', 'eth0', 'up'])
      await traffic()
      took.push(Math.round(performance.now() - from))
    }
    const sorted = took.toSorted((x, y) => x - y)
    console.log(`eth0 down and up: traffic again after ${sorted[FLAPS >> 1]} ms, at most ${sorted.at(-1)} ms`)
    await expect.poll(descriptors).toBeLessThanOrEqual(before + 2) // a command may be running
    // the first warning, about the missing earlier subnet, is expected
    expect(daemon.lines.filter((line) => /^[WE]/.test(line)).slice(1)).toEqual([])
    expect(daemon.lines.filter((line) => line.includes('Forwarding between'))).toHaveLength(1)
  })

  it('loses its address and gets it back: traffic recovers, and the lease is the same', async () => {
    const subnet = tunAddress(a)
    for (const seen of [false, true]) {
      await a.output(['ip', 'address', 'flush', 'dev', 'eth0'])
      if (seen) await nextRound()
      await a.output(['ip', 'address', 'add', '192.168.77.1/24', 'dev', 'eth0'])
      await reach(a.namespace, tunAddress(b))
    }
    expect(tunAddress(a)).toBe(subnet)
    expect(readdirSync(join(leases, 'subnets'))).toHaveLength(2)
  })

  it('gets another address from DHCP: the lease has it, and traffic recovers', async () => {
    const subnets = join(leases, 'subnets')
    const before = readdirSync(subnets).toSorted()
    const own = before.find((key) => key.startsWith(tunAddress(a)))!
    const dhcp = ['dev', 'eth0', 'valid_lft', '3600', 'preferred_lft', '3600']
    await a.output(['ip', 'address', 'add', '192.168.77.50/24', ...dhcp])
    await a.output(['ip', 'address', 'del', '192.168.77.1/24', 'dev', 'eth0']) // this deletes the secondary address too
    await a.output(['ip', 'address', 'replace', '192.168.77.50/24', ...dhcp])
    const from = performance.now()
    await expect
      .poll(() => readFileSync(join(subnets, own), 'utf8'))
      .toBe('{"PublicIP":"192.168.77.50","PublicIPv6":null}')
    await reach(a.namespace, tunAddress(b))
    console.log(`another address: lease and traffic after ${Math.round(performance.now() - from)} ms`)
    expect(readdirSync(subnets).toSorted()).toEqual(before)
    await daemon.line(/the address of eth0 changed from 192\.168\.77\.1 to 192\.168\.77\.50/)
  })

  it('changes its MTU from 1500 to 9000 and back: the overlay and subnet.env follow, and large packets pass', async () => {
    const largest = (mtu: number): Promise<unknown> =>
      a.output(['ping', '-c', '1', '-W', String(EVENT_MS / 1000), '-M', 'do', '-s', String(mtu - 56), tunAddress(b)])
    for (const mtu of [9000, 1500]) {
      for (const port of ['h1', 'h2'])
        await output(['ip', '-n', `${lab.id}-switch`, 'link', 'set', port, 'mtu', String(mtu)])
      for (const host of [a, b]) await host.output(['ip', 'link', 'set', 'eth0', 'mtu', String(mtu)])
      for (const host of [a, b]) await expect.poll(() => host.subnetEnv()['FLANNEL_MTU']).toBe(String(mtu - 28))
      await reach(a.namespace, tunAddress(b))
      await largest(mtu)
      await expect(largest(mtu + 1)).rejects.toThrow(/ended with/)
    }
  })
})
