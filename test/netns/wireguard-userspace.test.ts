// wireguard-userspace.test.ts - WireGuard carried by weftd: between weftds, with the kernel's device, over restarts, and as a third party
// on the underlay sees it.

import { spawn } from 'node:child_process'
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { createLab, WIREGUARD_APART, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { closeAll } from '../../src/host/unix-socket.ts'
import { eventually } from '../support/event.ts'
import { watchHandshakes } from '../support/handshakes.ts'
import { statusOf, withoutDeviceType } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'
import { meet } from '../support/successor.ts'

needs(HOSTS, 'ping', 'nstat', 'tcpdump', 'wg', 'wireguard-go', 'iperf3', 'python3')

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
/** Returns the peers of a host for which another program encrypts, as `wg` lists them: their fields, the public key first. */
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

it('carries packets whole, and hides their content', async () => {
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
  // From the ports of the lanes to the public port. Handshakes come from there too, and the keepalive after ten seconds without a packet
  // back, whose lengths differ from any packet's.
  await eventually(() => expect(dump.match(/\.520[67]\d > [0-9.]+\.51820: /g)?.length ?? 0).toBeGreaterThan(12))
  seen.kill('SIGINT')
  await ended(seen)
  const fromKnown = [...dump.matchAll(/\.51820 > [0-9.]+\.51820: UDP, length (\d+)/g)].map(([, bytes]) => Number(bytes))
  expect(fromKnown.filter((bytes) => ![148, 92, 64, 32].includes(bytes))).toEqual([])
  expect(dump).not.toContain('what nobody')
  expect(dump).not.toMatch(/10\.5\.\d+\.\d+ > /)
  for (const daemon of daemons) expect(errors(daemon)).toEqual([])
})

describe('unencrypted packets of the network that the underlay delivers', () => {
  const rulesOf = async (host: Host): Promise<string> =>
    (await host.output(['ip', 'rule'])) + (await host.output(['ip', '-6', 'rule']))
  /** Sends packets to a container from a host outside of the network. Returns how many of them arrive. */
  async function forged(host: Host, pod: Pod, source: string, to: string): Promise<number> {
    const isV6 = to.includes(':')
    const [ip, name] = isV6 ? [['ip', '-6'], 'Icmp6InEchos'] : [['ip'], 'IcmpInEchos']
    const echoes = async (): Promise<number> => {
      const { stdout } = await execute(['ip', 'netns', 'exec', pod.namespace, 'nstat', '-asz', name])
      return Number(new RegExp(`${name} +(\\d+)`).exec(stdout)?.[1])
    }
    const before = await echoes()
    const noDad = isV6 ? ['nodad'] : []
    await lab.switch.output([...ip, 'address', 'replace', `${source}/${isV6 ? 128 : 32}`, 'dev', 'lo', ...noDad])
    await lab.switch.output([...ip, 'route', 'replace', to, 'via', isV6 ? host.ipv6 : host.address])
    const ping = ['ping', '-n', '-c', '3', '-i', '0.2', '-W', '1', '-I', source, to]
    await lab.switch.output(ping).catch(() => {})
    return (await echoes()) - before
  }

  it('do not reach containers over IPv4 or IPv6, but packets from other addresses do', async () => {
    lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
    const [a, b] = lab.hosts as [Host, Host]
    await startIn(BOTH, a)
    await startIn(BOTH, b)
    const [podA, podB] = [await a.startPod(), await b.startPod()]
    await reach(podA.namespace, podB.address)
    expect(await forged(a, podA, '203.0.113.7', podA.address)).toBe(3)
    expect(await forged(a, podA, podB.address, podA.address)).toBe(0)
    expect(await forged(a, podA, '2001:db8:7::1', podA.ipv6!)).toBe(3)
    expect(await forged(a, podA, podB.ipv6!, podA.ipv6!)).toBe(0)
    await reach(podB.namespace, podA.address)
  })

  it('are dropped by a rule that weftd restores, that stays while weftd is stopped, and that AllowBypass removes', async () => {
    lab = await createLab({ hosts: 1, families: ['ipv4', 'ipv6'] })
    const [a] = lab.hosts as [Host]
    const rules = (network: string): RegExp =>
      new RegExp(`^219:\\tfrom ${network} to ${network} iif eth0 blackhole$`, 'm')
    const both = [rules('10\\.5\\.0\\.0/16'), rules('fd00:5::/48')] as const
    const daemon = await startIn(BOTH, a)
    for (const rule of both) expect(await rulesOf(a)).toMatch(rule)
    await a.output(['ip', 'rule', 'del', 'priority', '219'])
    await eventually(async () => expect(await rulesOf(a)).toMatch(both[0]))
    await daemon.stop()
    for (const rule of both) expect(await rulesOf(a)).toMatch(rule)
    const open = await startIn(BOTH, a, { AllowBypass: true })
    await open.line(/Removed the rule for unencrypted packets from eth0, which another backend left/)
    expect(await rulesOf(a)).not.toContain('219:')
    await open.stop()
    // With this address, weftd makes no rule for IPv4, because hosts on this link may have addresses of the network.
    await a.output(['ip', 'address', 'add', '10.5.250.1/24', 'dev', 'eth0'])
    await startIn(BOTH, a)
    expect(await rulesOf(a)).not.toMatch(both[0])
    expect(await rulesOf(a)).toMatch(both[1])
  })
})

describe("beside the kernel's device", () => {
  it.each([{}, { PSK, PersistentKeepaliveInterval: 1 }])(
    'is understood, whichever side starts: %j',
    async (options) => {
      lab = await createLab({ hosts: 3 })
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      await start(a, options)
      const its = await start(b, { ...options, DataPath: 'kernel' })
      await start(c, options)
      const pods: Pod[] = []
      for (const host of [a, b, c]) pods.push(await host.startPod())
      const [podA, podB, podC] = pods as [Pod, Pod, Pod]
      await reach(podA.namespace, podB.address) // ours starts
      await reach(podB.namespace, podC.address) // the other side starts
      await reach(podC.namespace, podA.address)
      const handshakes = (await peersOf(b, its)).map((fields) => Number(fields[4]))
      expect(handshakes).toHaveLength(2)
      for (const at of handshakes) expect(at).toBeGreaterThan(0)
      const endpoints = async () => (await peersOf(b, its)).map((fields) => fields[2]!).toSorted()
      expect(await endpoints()).toEqual([`${a.address}:51820`, `${c.address}:51820`])
      for (const [from, to] of [
        [podA, podB],
        [podB, podA],
      ] as const) {
        const server = await iperfServer((command) => to.spawn(command))
        const { bitsPerSecond } = await server.run(from.namespace, to.address, 1)
        expect(bitsPerSecond).toBeGreaterThan(0)
        await server.stop()
        // The peer must send its answers to the address from which it receives.
        expect(await endpoints()).toEqual([`${a.address}:51820`, `${c.address}:51820`])
      }
    },
  )

  it.each([{}, { PSK, PersistentKeepaliveInterval: 1 }])(
    'in the mode auto uses the family that both sides choose, and with others another family: %j',
    async (options) => {
      lab = await createLab({ hosts: 3, families: ['ipv4', 'ipv6'] })
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      // The IPv4 addresses of all hosts are private, so the two hosts with a global IPv6 address use IPv6.
      for (const [host, ipv6] of [
        [a, '2001:db8::1'],
        [b, '2001:db8::2'],
      ] as const) {
        await host.output(['ip', 'address', 'add', `${ipv6}/64`, 'dev', 'eth0', 'nodad'])
        await host.output(['ip', 'address', 'del', `${host.ipv6}/64`, 'dev', 'eth0'])
      }
      const mode = { ...options, Mode: 'auto' }
      const ours = await startIn(BOTH, a, mode)
      const its = await startIn(BOTH, b, { ...mode, DataPath: 'kernel' })
      await startIn(BOTH, c, mode)
      await ours.line(/Forwarding between flannel-wg and UDP 192\.168\.77\.1:51820 and \[2001:db8::1\]:51820/)
      const [podA, podB, podC] = [await a.startPod(), await b.startPod(), await c.startPod()]
      await eventually(async () => expect((await statusOf(a)).peers?.list).toHaveLength(2))
      // The first packet waits for the handshake and then uses the same family: none is lost.
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
      const listed = list.map(
        ({ publicIp, families }) => `${publicIp} ${families.ipv4!.endpoint} ${families.ipv6!.endpoint}`,
      )
      expect(listed.toSorted()).toEqual([
        `${b.address} [2001:db8::2]:51820 [2001:db8::2]:51820`,
        `${c.address} 192.168.77.3:51820 192.168.77.3:51820`,
      ])
      const server = await iperfServer((command) => podB.spawn(command))
      for (const more of [[], ['-R']]) {
        const { bitsPerSecond } = await server.run(podA.namespace, podB.address, 1, more)
        expect(bitsPerSecond).toBeGreaterThan(0)
      }
      await server.stop()
      expect(errors(ours)).toEqual([])
    },
  )
})

it('keeps the key that peers know if its file changes, logs that, and uses the new key after a restart', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const [first, other] = [await start(a, { PSK }), await start(b, { PSK })]
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  const file = join(lab.folder, `${a.name}-wgkey`)
  rmSync(file)
  writeFileSync(file, 'dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=', { mode: 0o400 })
  await a.output(['ip', 'link', 'set', 'flannel-wg', 'down']) // which makes weftd check immediately
  await first.line(/Repaired: flannel-wg was down/)
  await first.line(
    /This node continues with the key that it read at its start, although the key file .*wgkey holds another key: restart/,
  )
  await reach(podB.namespace, podA.address)
  const again = await start(a, { PSK })
  await ended(first.process)
  await reach(podA.namespace, podB.address)
  const published = readdirSync(join(leases(), 'subnets')).map((name) =>
    readFileSync(join(leases(), 'subnets', name), 'utf8'),
  )
  // RFC 7748 section 6.1 has this public key.
  expect(published.join()).toContain('hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=')
  expect([...errors(first), ...errors(again), ...errors(other)]).toEqual([])
})

it('refuses to start if neither its Node.js has the ciphers, as in FIPS mode, nor the kernel WireGuard', async () => {
  lab = await createLab({ hosts: 1 })
  const [a] = lab.hosts as [Host]
  mkdirSync(leases())
  const startIt = (options: object): Daemon => {
    writeFileSync(
      join(leases(), 'config'),
      JSON.stringify({ ...IPV4, Backend: { Type: 'wireguard', PSK, ...options } }),
    )
    return a.startDaemon({
      args: ['--lease-dir', leases()],
      env: {
        WIREGUARD_KEY_FILE: join(lab.folder, `${a.name}-wgkey`),
        ...withoutDeviceType('wireguard', 'fips'),
      },
    })
  }
  const lacks = 'this Node.js has no X25519, no BLAKE2s, no ChaCha20-Poly1305'
  const refused = startIt({ DataPath: 'userspace' })
  await refused.line(new RegExp(`${lacks}: weftd cannot carry WireGuard itself; run weftd with .*not in FIPS mode`))
  await ended(refused.process)
  expect(refused.process.exitCode).toBe(1)
  const daemon = startIt({})
  await daemon.line(
    new RegExp(`WireGuard cannot be carried: this kernel has no device .*, and ${lacks}; run weftd with`),
  )
  await ended(daemon.process)
  expect(daemon.process.exitCode).toBe(1)
})

it('carries packets in both directions over several lanes, which encrypt with the same keys', async () => {
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
      expect(bitsPerSecond).toBeGreaterThan(0)
    }
    await server.stop()
  }
  for (const daemon of daemons) expect(errors(daemon)).toEqual([])
})

const addressesOf = ({ address, ipv6 }: Pod): string[] => (ipv6 === undefined ? [address] : [address, ipv6])
const pingingBothWays = (one: Pod, two: Pod) =>
  [
    [one, two],
    [two, one],
  ].flatMap(([from, to]) => addressesOf(to!).map((address) => pinging(from!, to!, { address, everyS: 0.01 })))

describe('a planned restart', () => {
  const OTHERS = [
    { with: 'its own kind, with a psk', network: IPV4, other: {}, more: [] },
    {
      with: "the kernel's device, by one lane",
      network: IPV4,
      other: { DataPath: 'kernel' },
      more: ['--workers', '1'],
    },
    { with: 'its own kind, both families', network: BOTH, other: {}, more: ['--workers', '2'] },
  ]
  it.each(OTHERS)('loses no packet, and needs no handshake: $with', async ({ network, other, more }) => {
    lab = await createLab({ hosts: 2, families: network === BOTH ? ['ipv4', 'ipv6'] : ['ipv4'] })
    const [a, b] = lab.hosts as [Host, Host]
    const all: Daemon[] = []
    const begin = async (host: Host, options: object): Promise<Daemon> => {
      const daemon = await startIn(network, host, { PSK, ...options }, ...more)
      all.push(daemon)
      return daemon
    }
    let first = await begin(a, {})
    let second = await begin(b, other)
    const isAmongItself = Object.keys(other).length === 0
    const [podA, podB] = [await a.startPod(), await b.startPod()]
    for (const address of addressesOf(podB)) await reach(podA.namespace, address)
    for (const address of addressesOf(podA)) await reach(podB.namespace, address)
    const server = await iperfServer((command) => podB.spawn(command))
    const load = podA.spawn(['iperf3', '--client', podB.address, '--time', '3600', '--bitrate', '20M', '--forceflush'])
    let lines = 0
    load.stdout!.on('data', (text: Buffer) => (lines += text.toString().match(/Mbits/g)?.length ?? 0))
    await eventually(() => expect(lines).toBeGreaterThan(0))

    const handshakes = await watchHandshakes(b)
    const pings = pingingBothWays(podA, podB)
    for (let round = 0; round < 3; round++) {
      const before = [first, second]
      first = await begin(a, {})
      if (isAmongItself) second = await begin(b, {})
      for (const each of before) if (each !== first && each !== second) await ended(each.process)
      const so = lines
      await eventually(() => expect(lines).toBeGreaterThan(so))
      for (const host of isAmongItself ? [a, b] : [a])
        // The new daemon has the socket once the old one has closed it.
        await eventually(async () =>
          expect((await statusOf(host)).dataPath!.counters).toMatchObject({
            tx_drop_no_session: 0,
            rx_drop_no_session: 0,
            rx_drop_not_authentic: 0,
            rx_drop_replay: 0,
          }),
        )
    }
    const pinged = await Promise.all(pings.map((each) => each.stop()))
    // An overloaded wireguard-go loses packets even without a restart.
    if (isAmongItself) expect(pinged.map(({ lost }) => lost)).toEqual(pinged.map(() => 0))
    for (const { sent } of pinged) expect(sent).toBeGreaterThan(100)
    expect(await handshakes()).toBe(0)
    expect(load.exitCode).toBe(null)
    load.kill('SIGINT')
    await ended(load)
    await server.stop()
    for (const daemon of all) expect(errors(daemon)).toEqual([])
  })

  it('that fails leaves the keys with their owner or destroys them: the daemon continues, with new keys in the second case', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const daemon = await start(a, { PSK })
    const other = await start(b, { PSK })
    const [podA, podB] = [await a.startPod(), await b.startPod()]
    await reach(podA.namespace, podB.address)
    await reach(podB.namespace, podA.address)
    for (const hasTaken of [false, true]) {
      const handshakes = await watchHandshakes(b)
      const pings = pingingBothWays(podA, podB)
      const { connection, ask } = await meet(a)
      const { fds } = await ask('path')
      // The lock; for each of eight lanes a queue, a socket and a socket for sending; the sessions.
      expect(fds).toHaveLength(1 + 24 + 1)
      if (hasTaken) {
        // The first process that seals the memory owns the keys, and this one dies with them.
        const claim = ['-c', `import fcntl; fcntl.fcntl(3, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)`]
        const claimer = spawn('python3', claim, { stdio: ['ignore', 'ignore', 'inherit', fds.at(-1)!] })
        await ended(claimer)
        expect(claimer.exitCode).toBe(0)
      }
      closeAll(fds)
      connection.close()
      const isBack = (): number => daemon.lines.filter((line) => /went away; forwarding again/.test(line)).length
      await eventually(() => expect(isBack()).toBe(hasTaken ? 2 : 1))
      await reach(podA.namespace, podB.address)
      await reach(podB.namespace, podA.address)
      const pinged = await Promise.all(pings.map((each) => each.stop()))
      if (!hasTaken) expect(pinged.map(({ lost }) => lost)).toEqual([0, 0])
      const begun = await handshakes()
      if (hasTaken) expect(begun).toBeGreaterThan(0)
      else expect(begun).toBe(0)
    }
    // The daemon then hands over to the next one with its keys.
    const handshakes = await watchHandshakes(b)
    const next = await start(a, { PSK })
    await ended(daemon.process)
    await reach(podA.namespace, podB.address)
    expect(await handshakes()).toBe(0)
    expect([...errors(next), ...errors(other)]).toEqual([])
  })

  it('to another psk does not reuse the keys', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    await start(a, {})
    await start(b, {})
    const [podA, podB] = [await a.startPod(), await b.startPod()]
    await reach(podA.namespace, podB.address)
    await start(a, { PSK })
    expect((await podB.run(['ping', '-c', '2', '-W', '1', podA.address])).code).toBe(1)
    await start(b, { PSK })
    await reach(podB.namespace, podA.address)
  })
})

it('refuses a second network on its host, which would receive a part of its packets', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const daemons = [await start(a), await start(b)]
  const other = join(lab.folder, 'other')
  mkdirSync(other)
  const Backend = { Type: 'wireguard', DataPath: 'userspace', ListenPort: 51_830 }
  writeFileSync(join(other, 'config'), JSON.stringify({ Network: '10.6.0.0/16', Backend }))
  const second = a.startDaemon({
    args: ['--lease-dir', other, '--subnet-file', join(other, 'subnet.env'), '--status-socket', join(other, 'socket')],
    env: { WIREGUARD_KEY_FILE: join(other, 'wgkey') },
    before: WIREGUARD_APART,
  })
  await second.line(
    /^E.*another process forwards through flannel-wg; stop that process; if it is the weftd of another network/,
  )
  await ended(second.process)
  expect(await a.output(['ip', 'route', 'show', 'exact', '10.6.0.0/16'])).toBe('')
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  expect(daemons.flatMap(errors)).toEqual([])
})

it('continues after a kill, although the other side has earlier keys', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const first = await start(a, { PSK })
  const other = await start(b, { PSK })
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  const pings = pingingBothWays(podA, podB)
  first.process.kill('SIGKILL')
  await ended(first.process)
  const next = await start(a, { PSK })
  await reach(podB.namespace, podA.address)
  for (const each of pings) expect((await each.stop()).sent).toBeGreaterThan(10)
  expect([...errors(next), ...errors(other)]).toEqual([])
})
