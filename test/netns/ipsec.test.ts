// ipsec.test.ts - Type `ipsec` with real daemons, strongSwan's charon and packets. charon carries the ESP packets, because the kernel of a
// test machine may lack ESP.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { run as runCommand } from '../../src/host/command.ts'
import { findCharon } from '../../src/path/backends/ipsec/charon.ts'
import { canKernelCarryEsp } from '../../src/path/backends/ipsec/kernel-esp.ts'
import { apart, shared } from '../support/charon.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, subnetOf } from '../support/hosts.ts'
import { CHARON, GCM, HOSTS, LIBIPSEC, needs, VICI } from '../support/needs.ts'

needs(HOSTS, 'ping', 'tcpdump', CHARON, VICI, LIBIPSEC, GCM)

const PSK = 'only for tests. '.repeat(6)

let lab: Lab
let hosts: readonly [Host, Host]
let folder: string

function configure(backend: object, Network = '10.5.0.0/16'): void {
  const Backend = { Type: 'ipsec', PSK, ...backend }
  writeFileSync(join(folder, 'config'), JSON.stringify({ Network, Backend }))
}
const env = { FLANNELD_ETCD_PASSWORD: 'of-the-store' }
const start = (host: Host, before = apart(lab)): Daemon =>
  host.startDaemon({ before, args: ['--lease-dir', folder], env })
async function ready(host: Host, before = apart(lab)): Promise<Daemon> {
  const daemon = start(host, before)
  await daemon.line(/flannel is ready/)
  return daemon
}

beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  hosts = lab.hosts as unknown as [Host, Host]
  folder = join(lab.folder, 'leases')
  mkdirSync(folder)
})
afterEach(() => lab?.close())

/** The text in the pings of a test, and its form as an option of ping. */
const TEXT = 'nobody reads it.'
const PATTERN = Buffer.from(TEXT).toString('hex')

/** Captures the packets on a host's link to the underlay while `act` runs. Returns the captured bytes. */
async function captured(host: Host, act: () => Promise<unknown>): Promise<Buffer> {
  const tap = host.spawn(['tcpdump', '-i', 'eth0', '-U', '--immediate-mode', '-s', '0', '-w', '-', 'ip'])
  const pieces: Buffer[] = []
  let said = ''
  tap.stdout?.on('data', (piece: Buffer) => pieces.push(piece))
  tap.stderr?.on('data', (piece: Buffer) => (said += piece.toString()))
  await eventually(() => expect(said).toContain('listening on'))
  await act()
  tap.kill('SIGTERM')
  await ended(tap)
  return Buffer.concat(pieces)
}
const pingText = (from: Pod, to: string): Promise<unknown> =>
  execute(['ip', 'netns', 'exec', from.namespace, 'ping', '-c', '5', '-i', '0.2', '-W', '1', '-p', PATTERN, to])
/** Sends packets to a container of another host from a container and from the host, whole and as fragments. */
async function everyWay(host: Host, from: Pod, to: string): Promise<void> {
  const words = ['-c', '2', '-i', '0.2', '-W', '1', '-p', PATTERN]
  for (const namespace of [from.namespace, host.namespace])
    for (const size of ['56', '4000'])
      await execute(['ip', 'netns', 'exec', namespace, 'ping', ...words, '-s', size, to]).catch(() => {})
}

/**
 * Starts a charon before weftd, with the plugin kernel-libipsec or without it. weftd uses that charon even if the kernel has no ESP.
 * Returns the command prefix for programs that reach the charon.
 */
async function startCharon(host: Host, libipsec: 'yes' | 'no'): Promise<readonly string[]> {
  const run = await shared(lab, host)
  const file = join(lab.folder, `strongswan-${libipsec}.conf`)
  const plugins = `kernel-libipsec { load = ${libipsec} }\nbypass-lan { load = no }`
  writeFileSync(file, `include /etc/strongswan.conf\ncharon {\nplugins {\n${plugins}\n}\n}\n`)
  host.spawn([...run, 'env', `STRONGSWAN_CONF=${file}`, findCharon()])
  await eventually(async () => expect(await host.output([...run, 'swanctl', '--stats'])).toContain('uptime'))
  return run
}

/** The pid of the charon that a daemon started. */
async function charonOf(daemon: Daemon): Promise<number> {
  const children = readFileSync(`/proc/${daemon.process.pid}/task/${daemon.process.pid}/children`, 'utf8')
  const found = children
    .trim()
    .split(' ')
    .find((pid) => readFileSync(`/proc/${pid}/comm`, 'utf8').trim() === 'charon')
  expect(found).toBeDefined()
  return Number(found)
}

describe('ipsec', () => {
  it('encrypts the packets between containers, and does so again after charon was killed', async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const daemons = [await ready(one), await ready(two)]
    // The MTU is that of charon's device, so that containers send no packets that are too long for it.
    expect(readFileSync(one.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1400\n')
    expect(await one.output(['ip', 'link', 'show', 'ipsec0'])).toContain('mtu 1400 ')
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    const whole = ['ping', '-c', '1', '-W', '5', '-M', 'do', '-s', String(1400 - 28), podTwo.address]
    await execute(['ip', 'netns', 'exec', podOne.namespace, ...whole])
    await reach(podTwo.namespace, podOne.address)
    await eventually(async () => {
      const { dataPath } = await statusOf(one)
      expect(dataPath?.counters).toMatchObject({ peers_without_keys: 0 })
    })
    const name = `${one.address}-${subnetOf(one)}-${subnetOf(two)}-${two.address}`
    expect(daemons[0]!.lines.join('\n')).toContain(`Loaded connection: ${name}`)

    const environment = readFileSync(`/proc/${await charonOf(daemons[0]!)}/environ`, 'utf8')
    expect(environment).toContain('STRONGSWAN_CONF=')
    expect(environment).not.toContain('of-the-store')
    const bytes = await captured(one, async () => {
      await pingText(podOne, podTwo.address)
      process.kill(await charonOf(daemons[0]!), 'SIGKILL')
      await pingText(podOne, podTwo.address)
    })
    expect(bytes.length).toBeGreaterThan(1000)
    expect(bytes.includes(TEXT)).toBe(false)
    await daemons[0]!.line(/strongSwan's charon does not answer: .*; starting it again$/)
    await reach(podOne.namespace, podTwo.address)
    for (const { lines } of daemons) expect(lines.join('\n')).not.toContain(PSK.trim())
  })

  it('negotiates keys again after the bridge of the containers appeared', async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const daemons = [await ready(one), await ready(two)]
    // charon can install no keys while the host has no address in its subnet. Each charon gives up after its own attempt.
    for (const daemon of daemons) {
      await daemon.line(/received TS_UNACCEPTABLE notify/)
      expect(daemon.lines.filter((line) => line.includes('received TS_UNACCEPTABLE notify'))).toHaveLength(1)
    }
    const environment = readFileSync(`/proc/${await charonOf(daemons[0]!)}/environ`, 'utf8')
    const [, file = ''] = /STRONGSWAN_CONF=([^\0]+)/.exec(environment)!
    expect([file, existsSync(dirname(file))]).toEqual([expect.stringMatching(/strongswan\.conf$/), false])
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await eventually(async () => expect((await statusOf(one)).peers).toMatchObject({ programmed: 1 }))
    await reach(podOne.namespace, podTwo.address)
  })

  it('sends nothing unencrypted without keys, and another backend removes its policies', async () => {
    configure({ DataPath: 'kernel' })
    const [one, two] = hosts
    const runs = [await startCharon(one, 'no'), await startCharon(two, 'no')] as const
    const daemons = [await ready(one, runs[0]), await ready(two, runs[1])]
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    const policies = await one.output(['ip', 'xfrm', 'policy'])
    expect(policies).toContain(`src ${subnetOf(one)} dst ${subnetOf(two)}`)
    expect(policies).toContain('proto esp reqid 11 mode tunnel')
    await one.output(['ip', 'xfrm', 'policy', 'deleteall'])
    await daemons[0]!.line(/the IPsec policy src \S+ dst \S+ dir out was gone/)
    const bytes = await captured(one, () => everyWay(one, podOne, podTwo.address))
    expect(bytes.includes(TEXT)).toBe(false)
    // Packets between containers of one host, and between them and the host, pass the policies.
    const other = await one.startPod()
    await reach(podOne.namespace, other.address)

    for (const daemon of daemons) await daemon.stop()
    const cleaned = await two.run([process.execPath, join(packageRoot, 'bin/weft'), 'cleanup', '-f', two.subnetFile])
    expect(cleaned.stdout).toMatch(/^removed the IPsec policy src \S+ dst \S+ dir out$/m)
    expect(await two.output(['ip', 'xfrm', 'policy'])).not.toContain('10.5.')
    configure({ Type: 'udp' })
    const [again] = [await ready(one, runs[0]), await ready(two, runs[1])]
    await again.line(/Removed the IPsec policy src /)
    await reach(podOne.namespace, podTwo.address)
    expect(await one.output(['ip', 'xfrm', 'policy'])).not.toContain('10.5.')
  })

  it('sends nothing unencrypted to a peer without keys while charon carries the packets or is gone', async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const [daemon, other] = [await ready(one), await ready(two)]
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    const encrypted = await captured(one, () => everyWay(one, podOne, podTwo.address))
    expect(encrypted.length).toBeGreaterThan(4_000)
    expect(encrypted.includes(TEXT)).toBe(false)
    await other.stop('SIGKILL')
    expect((await captured(one, () => everyWay(one, podOne, podTwo.address))).includes(TEXT)).toBe(false)
    await daemon.stop()
    expect((await captured(one, () => everyWay(one, podOne, podTwo.address))).includes(TEXT)).toBe(false)
  })

  it('forwards no forged unencrypted packets to containers while charon carries the packets', async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const [daemon] = [await ready(one), await ready(two)]
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    const echoes = async (): Promise<number> => {
      const { stdout } = await execute(['ip', 'netns', 'exec', podOne.namespace, 'nstat', '-asz', 'IcmpInEchos'])
      return Number(/IcmpInEchos +(\d+)/.exec(stdout)?.[1])
    }
    /** Sends packets to a container from a host outside of the network, with the source of a container. Returns how many arrive. */
    const forge = async (source: string, to = podOne.address): Promise<number> => {
      const before = await echoes()
      await lab.switch.output(['ip', 'address', 'replace', `${source}/32`, 'dev', 'lo'])
      for (const target of [subnetOf(one), '203.0.113.9'])
        await lab.switch.output(['ip', 'route', 'replace', target, 'via', one.address])
      const ping = ['ping', '-c', '3', '-i', '0.2', '-W', '1', '-I', source, to]
      await lab.switch.output(ping).catch(() => {})
      return (await echoes()) - before
    }
    const words = ['priority', '219', 'iif', 'eth0', 'from', '10.5.0.0/16', 'to', '10.5.0.0/16', 'blackhole']
    expect(await forge('192.0.2.77')).toBe(3)
    expect(await forge(podTwo.address)).toBe(0)
    // The host may be the router of other nodes, so it forwards packets to destinations outside of the network.
    await execute(['ip', '-n', podOne.namespace, 'address', 'add', '203.0.113.9/32', 'dev', 'lo'])
    await one.output(['ip', 'route', 'add', '203.0.113.9', 'via', podOne.address])
    expect(await forge(podTwo.address, '203.0.113.9')).toBe(3)
    await one.output(['ip', 'rule', 'del', ...words])
    await daemon.line(/the rule for unencrypted packets from eth0 was gone/, 90_000)
    expect(await forge(podTwo.address)).toBe(0)
    await reach(podTwo.namespace, podOne.address)
    const { names } = await doctor(one)
    expect(names.filter((name) => /route|rule|polic|filter/.test(name))).toEqual([])
    await daemon.stop()
    expect(await forge(podTwo.address)).toBe(0)
    const cleaned = await one.run([process.execPath, join(packageRoot, 'bin/weft'), 'cleanup', '-f', one.subnetFile])
    expect(cleaned.stdout).toMatch(/^removed the rule for unencrypted packets from eth0$/m)
    expect(await one.output(['ip', 'rule', 'show', 'priority', '219'])).toBe('')
  })

  it('goes on after a hand-over and after a kill, although the charon of the earlier weftd ends', async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const run = await shared(lab, one)
    const [before] = [await ready(one, run), await ready(two)]
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    let next: Daemon | undefined
    const bytes = await captured(one, async () => {
      next = await ready(one, run)
      await before.line(/Ending: another weftd has taken over/)
      await ended(before.process)
      await pingText(podOne, podTwo.address)
    })
    expect(bytes.includes(TEXT)).toBe(false)
    await reach(podOne.namespace, podTwo.address)
    await reach(podTwo.namespace, podOne.address)
    await charonOf(next!)
    await next!.stop('SIGKILL')
    const last = await ready(one, run)
    await reach(podTwo.namespace, podOne.address)
    await charonOf(last)
  })

  it('starts charon again if charon hangs, and reports its own status meanwhile', { timeout: 60_000 }, async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const [daemon] = [await ready(one), await ready(two)]
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    const pid = await charonOf(daemon)
    await eventually(async () => expect((await statusOf(one)).state).toBe('working'))
    process.kill(pid, 'SIGSTOP')
    const began = performance.now()
    expect((await statusOf(one)).state).toBe('working')
    expect(performance.now() - began).toBeLessThan(5_000)
    await daemon.line(
      /^E.*\] strongSwan's charon does not answer: no answer to \S+ within 10 s; starting it again/,
      20_000,
    )
    await daemon.line(/Charon daemon started/)
    await reach(podOne.namespace, podTwo.address)
    expect(await charonOf(daemon)).not.toBe(pid)
  })

  it('uses the charon of the host, and keeps its keys over a restart', async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const runs = [await startCharon(one, 'yes'), await startCharon(two, 'yes')] as const
    const swanctl = (...words: string[]): Promise<string> => one.output([...runs[0], 'swanctl', ...words])
    const daemons = [await ready(one, runs[0]), await ready(two, runs[1])]
    await daemons[0]!.line(/Using the charon daemon that runs on this host/)
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    const keys = async (): Promise<string> =>
      [...(await swanctl('--list-sas', '--raw')).matchAll(/spi-(?:in|out)=\w+/g)].join(' ')
    await eventually(async () => expect((await statusOf(one)).peers).toMatchObject({ programmed: 1 }))
    const known = await keys()
    expect(known).toContain('spi-in')
    expect(await daemons[0]!.stop()).toBe(0)
    await reach(podOne.namespace, podTwo.address)
    const again = await ready(one, runs[0])
    await again.line(/Loaded connection: /)
    await reach(podOne.namespace, podTwo.address)
    expect(await keys()).toBe(known)
    expect(await again.stop()).toBe(0)

    const weft = [...runs[0], process.execPath, join(packageRoot, 'bin/weft'), 'cleanup', '-f', one.subnetFile]
    const cleaned = await one.run(weft)
    expect([cleaned.stderr, cleaned.code]).toEqual(['', 0])
    expect(cleaned.stdout).toMatch(/^removed the connection \S+ of charon$/m)
    expect(await swanctl('--list-conns')).toBe('')
    expect(await keys()).toBe('')
  })

  it('takes a new PSK node by node without losing packets, if charon is a service', async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const runs = [await startCharon(one, 'yes'), await startCharon(two, 'yes')] as const
    const swanctl = (...words: string[]): Promise<string> => one.output([...runs[0], 'swanctl', ...words])
    const keys = async (): Promise<string> =>
      [...(await swanctl('--list-sas', '--raw')).matchAll(/spi-(?:in|out)=\w+/g)].join(' ')
    const daemons = [await ready(one, runs[0]), await ready(two, runs[1])]
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    await eventually(async () => expect((await statusOf(one)).peers).toMatchObject({ programmed: 1 }))
    const known = await keys()

    configure({ DataPath: 'userspace', PSK: 'another of tests'.repeat(6) })
    for (const [at, host] of hosts.entries()) {
      await daemons[at]!.stop()
      const again = await ready(host, runs[at])
      await again.line(/Loaded shared key for: /)
      await reach(podOne.namespace, podTwo.address)
      expect(await keys()).toBe(known)
    }
    // Both hosts have the new PSK, so they can negotiate new keys.
    await swanctl('--terminate', '--ike', `${one.address}-${subnetOf(one)}-${subnetOf(two)}-${two.address}`)
    await reach(podOne.namespace, podTwo.address)
    await eventually(async () => expect(await keys()).toContain('spi-in'))
    expect(await keys()).not.toContain(known)
  })

  it('does not count a peer with another PSK as reached, and weft doctor finds it', async () => {
    configure({ DataPath: 'userspace' })
    const [one, two] = hosts
    const daemon = await ready(one)
    configure({ DataPath: 'userspace', PSK: 'another of tests'.repeat(6) })
    await ready(two)
    await eventually(async () => expect((await statusOf(one)).peers).toMatchObject({ stored: 1, programmed: 0 }))
    const status = await statusOf(one)
    expect(status.dataPath).toMatchObject({ counters: { peers_without_keys: 1 } })
    expect([status.state, status.trouble]).toEqual(['impaired', 'charon has no keys for the only peer'])
    await daemon.line(/^W.*charon has no keys for \S+ at \S+: packets to and from this peer are dropped/)
    const { names } = await doctor(one)
    expect(names).toContain('peers-without-keys')
    expect(names).not.toContain('peer-unusable')
  })

  it('names the program that uses the port of charon', async () => {
    configure({ DataPath: 'userspace' })
    const [one] = hosts
    const program = 'import socket, signal; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); '
    const other = one.spawn([
      'python3',
      '-c',
      `${program} s.bind(("0.0.0.0", 4500)); print("ready", flush=True); signal.pause()`,
    ])
    await new Promise((resolve) => other.stdout?.once('data', resolve))
    const daemon = start(one)
    await daemon.line(/UDP port 0\.0\.0\.0:4500 is taken by python3 \(pid \d+\)/)
  })

  it('refuses a network with the addresses of hosts if charon carries the packets', async () => {
    configure({ DataPath: 'userspace' }, '192.168.0.0/16')
    await start(hosts[0]).line(
      /192\.168\.77\.1 of this host is within the network, and "DataPath": "userspace" would cut off the host/,
    )
    configure({ DataPath: 'kernel' }, '192.168.0.0/16')
    await ready(hosts[1], await startCharon(hosts[1], 'no'))
    await hosts[1].output(['ping', '-c', '1', '-W', '2', hosts[0].address])
  })

  it('refuses to start if the kernel must carry the packets and has no ESP', async () => {
    configure({ DataPath: 'kernel' })
    const daemon = start(hosts[0])
    if (await canKernelCarryEsp(runCommand)) await daemon.line(/ESP packets are carried by the kernel/)
    else await daemon.line(/the kernel has no ESP \(CONFIG_INET_ESP\), and "DataPath" is "kernel"/)
  })

  it('refuses a short PSK with the words of flanneld', async () => {
    configure({ PSK: 'short' })
    const daemon = start(hosts[0])
    await daemon.line(/^E.*config error, password is too short/)
    await ended(daemon.process)
    expect(daemon.process.exitCode).toBe(1)
  })
})
