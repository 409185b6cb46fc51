// ipsec.test.ts - Type `ipsec` with real daemons, strongSwan's charon and packets. charon carries the ESP packets, because the kernel of a
// test machine may lack ESP.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { apart } from '../support/charon.ts'
import { eventually } from '../support/event.ts'
import { statusOf, subnetOf } from '../support/hosts.ts'
import { CHARON, GCM, HOSTS, LIBIPSEC, needs, VICI } from '../support/needs.ts'

needs(HOSTS, 'ping', 'tcpdump', CHARON, VICI, LIBIPSEC, GCM)

const PSK = 'only for tests. '.repeat(6)

let lab: Lab
let hosts: readonly [Host, Host]
let folder: string

function configure(backend: object): void {
  const Backend = { Type: 'ipsec', PSK, ...backend }
  writeFileSync(join(folder, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
}
const start = (host: Host): Daemon => host.startDaemon({ before: apart(lab), args: ['--lease-dir', folder] })
async function ready(host: Host): Promise<Daemon> {
  const daemon = start(host)
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
    expect(readFileSync(one.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1423\n')
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    await reach(podTwo.namespace, podOne.address)
    await eventually(async () => {
      const { dataPath } = await statusOf(one)
      expect(dataPath?.counters).toMatchObject({ peers_without_keys: 0 })
    })
    const name = `${one.address}-${subnetOf(one)}-${subnetOf(two)}-${two.address}`
    expect(daemons[0]!.lines.join('\n')).toContain(`Loaded connection: ${name}`)

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

  it('sends nothing unencrypted without keys, and another backend removes its policies', async () => {
    configure({ DataPath: 'kernel' })
    const [one, two] = hosts
    const daemons = [await ready(one), await ready(two)]
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    const policies = await one.output(['ip', 'xfrm', 'policy'])
    expect(policies).toContain(`src ${subnetOf(one)} dst ${subnetOf(two)}`)
    expect(policies).toContain('proto esp reqid 11 mode tunnel')
    await one.output(['ip', 'xfrm', 'policy', 'deleteall'])
    await daemons[0]!.line(/the IPsec policy src \S+ dst \S+ dir out was gone/)
    const bytes = await captured(one, () => pingText(podOne, podTwo.address))
    expect(bytes.includes(TEXT)).toBe(false)
    // Packets between containers of one host, and between them and the host, pass the policies.
    const other = await one.startPod()
    await reach(podOne.namespace, other.address)

    for (const daemon of daemons) await daemon.stop()
    const cleaned = await two.run([process.execPath, join(packageRoot, 'bin/weft'), 'cleanup', '-f', two.subnetFile])
    expect(cleaned.stdout).toMatch(/^removed the IPsec policy src \S+ dst \S+ dir out$/m)
    expect((await two.output(['ip', 'xfrm', 'policy'])).trim()).toBe('')
    configure({ Type: 'udp' })
    const [again] = [await ready(one), await ready(two)]
    await again.line(/Removed the IPsec policy src /)
    await reach(podOne.namespace, podTwo.address)
    expect((await one.output(['ip', 'xfrm', 'policy'])).trim()).toBe('')
  })

  it('refuses a short PSK with the words of flanneld', async () => {
    configure({ PSK: 'short' })
    const daemon = start(hosts[0])
    await daemon.line(/^E.*config error, password is too short/)
    await ended(daemon.process)
    expect(daemon.process.exitCode).toBe(1)
  })
})
