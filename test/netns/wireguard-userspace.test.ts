// wireguard-userspace.test.ts - WireGuard by weftd itself: among its own kind, beside wireguard-go and the kernel's device, over restarts, and to whoever listens.

import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, packageRoot, WIREGUARD_APART, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { statusOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'
import { deviceDataPath } from '../support/wireguard.ts'

needs(HOSTS, 'ping', 'tcpdump', 'wg', 'wireguard-go', 'iperf3')

const PSK = 'MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='

let lab: Lab
afterEach(() => lab?.close())

const leases = (): string => join(lab.folder, 'leases')
const IPV4 = { Network: '10.5.0.0/16' }
const BOTH = { ...IPV4, EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
async function start(host: Host, options: object = {}, ...more: string[]): Promise<Daemon> {
  return startIn(IPV4, host, options, ...more)
}
async function startIn(network: object, host: Host, options: object = {}, ...more: string[]): Promise<Daemon> {
  mkdirSync(leases(), { recursive: true })
  const Backend = { Type: 'wireguard', DataPath: 'userspace', ...options }
  writeFileSync(join(leases(), 'config'), JSON.stringify({ ...network, Backend }))
  const daemon = host.startDaemon({
    args: ['--lease-dir', leases(), ...more],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
    before: WIREGUARD_APART,
  })
  await daemon.line(/flannel is ready/)
  return daemon
}
/** The peers of a host that another carries them for, as `wg` lists them: their fields, the public key first. */
async function peersOf(host: Host, { process: { pid } }: Daemon): Promise<string[][]> {
  const inside = ['nsenter', '--target', String(pid), '--mount']
  const shown = await host.output([...inside, 'wg', 'show', 'flannel-wg', 'dump'])
  return shown
    .trim()
    .split('\n')
    .slice(1)
    .map((line) => line.split('\t'))
}
const errors = ({ lines }: Daemon): string[] => lines.filter((line) => line.startsWith('E'))

it('carries packets whole, and shows nobody what is in them', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const daemons = [await start(a, { PSK }), await start(b, { PSK })]
  expect(readFileSync(a.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1420\n')
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  const words = 'what nobody else may read'
  const pattern = Buffer.from(words).toString('hex').slice(0, 32)
  const seen = b.spawn(['tcpdump', '-i', 'eth0', '-nXU', '-s0', 'udp port 51820'])
  let dump = ''
  seen.stdout!.on('data', (text: Buffer) => (dump += text.toString()))
  let said = ''
  seen.stderr!.on('data', (text: Buffer) => (said += text.toString()))
  await eventually(() => expect(said).toContain('listening on'))
  for (const size of [56, 1_392, 8_000])
    await podA.output(['ping', '-n', '-c', '3', '-i', '0.05', '-s', String(size), '-p', pattern, podB.address])
  await eventually(() => expect(dump.match(/51820 > /g)?.length ?? 0).toBeGreaterThan(12))
  seen.kill('SIGINT')
  await ended(seen)
  expect(dump).not.toContain('what nobody')
  expect(dump).not.toMatch(/10\.5\.\d+\.\d+ > /)
  for (const daemon of daemons) expect(errors(daemon)).toEqual([])
})

describe.each(['wireguard-go', 'kernel'])('beside %s', (other) => {
  beforeEach(async ({ skip }) => {
    skip(other === 'kernel' && (await deviceDataPath()) !== 'kernel', 'no WireGuard in this kernel')
  })

  it.each([{}, { PSK, PersistentKeepaliveInterval: 1 }])(
    'is understood, whoever of the two begins: %j',
    async (options) => {
      lab = await createLab({ hosts: 3 })
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      await start(a, options)
      const its = await start(b, { ...options, DataPath: other })
      await start(c, options)
      const pods: Pod[] = []
      for (const host of [a, b, c]) pods.push(await host.startPod())
      const [podA, podB, podC] = pods as [Pod, Pod, Pod]
      await reach(podA.namespace, podB.address) // ours begins
      await reach(podB.namespace, podC.address) // the other does
      await reach(podC.namespace, podA.address)
      const handshakes = (await peersOf(b, its)).map((fields) => Number(fields[4]))
      expect(handshakes).toHaveLength(2)
      for (const at of handshakes) expect(at).toBeGreaterThan(0)
      for (const [from, to] of [
        [podA, podB],
        [podB, podA],
      ] as const) {
        const server = await iperfServer((command) => to.spawn(command))
        const { bitsPerSecond } = await server.run(from.namespace, to.address, 1)
        expect(bitsPerSecond).toBeGreaterThan(20e6)
        await server.stop()
      }
    },
  )

  it.each([{}, { PSK, PersistentKeepaliveInterval: 1 }])(
    'in the mode auto speaks by the family that both choose, and with others by another: %j',
    async (options) => {
      lab = await createLab({ hosts: 3, families: ['ipv4', 'ipv6'] })
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      // Their IPv4 addresses are private: by IPv6 go the two that have global ones.
      for (const [host, ipv6] of [
        [a, '2001:db8::1'],
        [b, '2001:db8::2'],
      ] as const) {
        await host.output(['ip', 'address', 'add', `${ipv6}/64`, 'dev', 'eth0', 'nodad'])
        await host.output(['ip', 'address', 'del', `${host.ipv6}/64`, 'dev', 'eth0'])
      }
      const mode = { ...options, Mode: 'auto' }
      const ours = await startIn(BOTH, a, mode)
      const its = await startIn(BOTH, b, { ...mode, DataPath: other })
      await startIn(BOTH, c, mode)
      await ours.line(/Forwarding between flannel-wg and UDP 192\.168\.77\.1:51820 and \[2001:db8::1\]:51820/)
      const [podA, podB, podC] = [await a.startPod(), await b.startPod(), await c.startPod()]
      await eventually(async () => expect((await statusOf(a)).peers?.list).toHaveLength(2))
      // The first packet waits for the handshake, and goes by the family that the handshake went by: none is lost.
      for (const to of [podB.address, podC.ipv6!, podC.address, podB.ipv6!])
        await podA.output(['ping', '-n', '-c', '1', '-W', '20', to])
      for (const [from, to] of [
        [podB, podA],
        [podB, podC],
        [podC, podB],
      ] as const)
        for (const address of [to.address, to.ipv6!]) await reach(from.namespace, address)
      const endpoints = (await peersOf(b, its)).map(([, , endpoint = '']) => endpoint)
      expect(endpoints.toSorted()).toEqual(['192.168.77.3:51820', '[2001:db8::1]:51820'])
      const { list } = (await statusOf(a)).peers!
      const told = list.map(
        ({ publicIp, families }) => `${publicIp} ${families!.ipv4!.endpoint} ${families!.ipv6!.endpoint}`,
      )
      expect(told.toSorted()).toEqual([
        `${b.address} [2001:db8::2]:51820 [2001:db8::2]:51820`,
        `${c.address} 192.168.77.3:51820 192.168.77.3:51820`,
      ])
      const server = await iperfServer((command) => podB.spawn(command))
      for (const more of [[], ['-R']]) {
        const { bitsPerSecond } = await server.run(podA.namespace, podB.address, 1, more)
        expect(bitsPerSecond).toBeGreaterThan(20e6)
      }
      await server.stop()
      expect(errors(ours)).toEqual([])
    },
  )
})

it('keeps the key that peers know when its file is another, says so, and has the new one after a restart', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const [first, other] = [await start(a, { PSK }), await start(b, { PSK })]
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  const file = join(lab.folder, `${a.name}-wgkey`)
  rmSync(file)
  writeFileSync(file, 'dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=', { mode: 0o400 })
  await a.output(['ip', 'link', 'set', 'flannel-wg', 'down']) // which has it look at once
  await first.line(/Repaired: flannel-wg was down/)
  await first.line(/This node goes on with the key of its start, and the key file .*wgkey holds another key: restart/)
  await reach(podB.namespace, podA.address)
  const again = await start(a, { PSK })
  await ended(first.process)
  await reach(podA.namespace, podB.address)
  const published = readdirSync(join(leases(), 'subnets')).map((name) =>
    readFileSync(join(leases(), 'subnets', name), 'utf8'),
  )
  // RFC 7748 section 6.1 has its public key.
  expect(published.join()).toContain('hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=')
  expect([...errors(first), ...errors(again), ...errors(other)]).toEqual([])
})

it('leaves it to wireguard-go where its Node.js has no ciphers, as in FIPS mode, and says so', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  await start(b, { PSK })
  mkdirSync(join(lab.folder, 'bin'))
  const ip = (await a.output(['sh', '-c', 'command -v ip'])).trim()
  const refuse = 'case "$*" in *"type wireguard"*) echo "Error: Unknown device type." >&2; exit 2;; esac'
  writeFileSync(join(lab.folder, 'bin/ip'), `#!/bin/sh\n${refuse}\nexec ${ip} "$@"\n`, { mode: 0o755 })
  const startIt = (options: object): Daemon => {
    writeFileSync(
      join(leases(), 'config'),
      JSON.stringify({ ...IPV4, Backend: { Type: 'wireguard', PSK, ...options } }),
    )
    return a.startDaemon({
      args: ['--lease-dir', leases()],
      env: {
        WIREGUARD_KEY_FILE: join(lab.folder, `${a.name}-wgkey`),
        PATH: `${join(lab.folder, 'bin')}:${process.env['PATH']}`,
        NODE_OPTIONS: `--import ${join(packageRoot, 'dist/test/support/fips.js')}`,
      },
      before: WIREGUARD_APART,
    })
  }
  const lacks = 'this Node.js has no X25519, no BLAKE2s, no ChaCha20-Poly1305'
  const refused = startIt({ DataPath: 'userspace' })
  await refused.line(new RegExp(`${lacks}: weftd cannot carry WireGuard itself; run weftd with .*not in FIPS mode`))
  await ended(refused.process)
  expect(refused.process.exitCode).toBe(1)
  const daemon = startIt({})
  await daemon.line(new RegExp(`WireGuard is carried by wireguard-go: this kernel has no device .*, and ${lacks}`))
  await daemon.line(/flannel is ready/)
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  await reach(podB.namespace, podA.address)
  expect(errors(daemon)).toEqual([])
})

it('carries packets both ways by several lanes, of which each may seal by the same keys', async () => {
  lab = await createLab({ hosts: 3 })
  const daemons: Daemon[] = []
  for (const host of lab.hosts) daemons.push(await start(host, {}, '--workers', '2'))
  const pods: Pod[] = []
  for (const host of lab.hosts) pods.push(await host.startPod())
  const [podA, podB, podC] = pods as [Pod, Pod, Pod]
  for (const [from, to] of [
    [podA, podB],
    [podB, podC],
    [podC, podA],
  ] as const) {
    await reach(from.namespace, to.address)
    const server = await iperfServer((command) => to.spawn(command))
    for (const more of [
      ['-P', '4'],
      ['-P', '4', '-R'],
    ]) {
      const { bitsPerSecond } = await server.run(from.namespace, to.address, 1, more)
      expect(bitsPerSecond).toBeGreaterThan(20e6)
    }
    await server.stop()
  }
  for (const daemon of daemons) expect(errors(daemon)).toEqual([])
})

it('goes on after a restart, planned or not, although the other side has keys of before', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  let first = await start(a, { PSK })
  const other = await start(b, { PSK })
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  for (const way of ['overlapping', 'killed'] as const) {
    const [out, back] = [pinging(podA, podB, { everyS: 0.01 }), pinging(podB, podA, { everyS: 0.01 })]
    const before = first
    if (way === 'killed') {
      before.process.kill('SIGKILL')
      await ended(before.process)
    }
    first = await start(a, { PSK })
    if (way === 'overlapping') await ended(before.process)
    await reach(podB.namespace, podA.address)
    for (const { sent, lost } of [await out.stop(), await back.stop()]) {
      expect(sent).toBeGreaterThan(10)
      // What comes sealed by keys of before is lost until the next handshake: a round trip. Who was killed has to start first.
      if (way === 'overlapping') expect(lost).toBeLessThanOrEqual(5)
    }
  }
  expect([...errors(first), ...errors(other)]).toEqual([])
})
