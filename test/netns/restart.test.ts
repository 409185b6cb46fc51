// restart.test.ts - a hand-over between running daemons loses no packet, and a kill loses only those until the next daemon forwards.
// Further tests cover what remains of a node that leaves.

import { spawn } from 'node:child_process'
import { mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import {
  createLab,
  EVENT_MS,
  packageRoot,
  WIREGUARD_APART,
  type Daemon,
  type DaemonArgs,
  type Host,
  type Lab,
  type Pod,
} from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { closeAll, connect } from '../../src/host/unix-socket.ts'
import type { Family } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { subnetOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'
import { meet } from '../support/successor.ts'

needs(HOSTS, 'ping', 'iperf3', 'wireguard-go', 'wg')

const UPGRADES = process.env['WEFT_LONG'] ? 20 : 2
const CONNECTIONS = 100
const FORWARDING_AS_KNOWN = /Forwarding to 1 peers as last known/

let lab: Lab
let a: Host
let b: Host
let pods: [Pod, Pod]
let daemons: [Daemon, Daemon]
const leases = (): string => join(lab.folder, 'leases')

async function start(host: Host, ...more: string[]): Promise<Daemon> {
  const env = { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) }
  const daemon = host.startDaemon({ args: ['--lease-dir', leases(), ...more], env, before: WIREGUARD_APART })
  await daemon.line(/flannel is ready/)
  return daemon
}

const V4 = ['ipv4'] as const
const BOTH = ['ipv4', 'ipv6'] as const
/** Starts two hosts that know each other, with a container on each. */
const open = (backend: object, ...more: string[]): Promise<void> => openWith(V4, backend, ...more)
function configure(families: readonly Family[], backend: object): void {
  const ipv6 = families.includes('ipv6') ? { EnableIPv6: true, IPv6Network: 'fd00:5::/48' } : {}
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', ...ipv6, Backend: backend }))
}
async function openWith(families: readonly Family[], backend: object, ...more: string[]): Promise<void> {
  lab = await createLab({ hosts: 2, families })
  ;[a, b] = lab.hosts as [Host, Host]
  mkdirSync(leases())
  configure(families, backend)
  daemons = [await start(a, ...more), await start(b, ...more)]
  pods = [await a.startPod(), await b.startPod()]
  for (const address of addressesOf(pods[1])) await reach(pods[0].namespace, address)
  // A data path of the kernel needs no state of the last run, so weftd saves none.
  const isKept = !/host-gw|kernel/.test(JSON.stringify(backend))
  for (const host of isKept ? [a, b] : []) await eventually(() => expect(lastKnown(host).leases).toHaveLength(2))
}
const addressesOf = ({ address, ipv6 }: Pod): string[] => (ipv6 === undefined ? [address] : [address, ipv6])
const lastKnown = (host: Host) =>
  JSON.parse(readFileSync(`${host.subnetFile}.last-known`, 'utf8')) as { readonly leases: readonly unknown[] }
afterEach(() => lab?.close())

const device = async (host: Host, name = 'flannel0'): Promise<boolean> =>
  (await host.run(['ip', 'link', 'show', 'dev', name])).code === 0

const LENT = [
  { backend: { Type: 'udp' }, families: V4, tuns: ['flannel0'] },
  { backend: { Type: 'vxlan', DataPath: 'userspace' }, families: V4, tuns: ['flannel.1'] },
  { backend: { Type: 'vxlan', DataPath: 'userspace' }, families: BOTH, tuns: ['flannel.1', 'flannel-v6.1'] },
]
describe.each(LENT)('$backend.Type, $families', ({ backend, families, tuns }) => {
  it(`loses nothing over ${UPGRADES} upgrades`, async () => {
    await openWith(families, backend)
    const number = (): Promise<string[]> =>
      Promise.all(tuns.map((name) => a.output(['cat', `/sys/class/net/${name}/ifindex`])))
    const devices = await number()
    const program = join(packageRoot, 'dist/test/support/conversations.js')
    const listener = pods[1].spawn([process.execPath, program, 'answer', pods[1].address, '7000'])
    await new Promise((resolve) => listener.stdout!.once('data', resolve))
    const talker = pods[0].spawn([process.execPath, program, 'talk', pods[1].address, '7000', String(CONNECTIONS)])
    let rounds = 0
    let complaint = ''
    talker.stdout!.on('data', (text: Buffer) => (rounds = Number(text.toString().trim().split('\n').at(-1))))
    talker.stderr!.on('data', (text: Buffer) => (complaint += text.toString()))
    await eventually(() => expect(rounds).toBeGreaterThan(0))

    const server = await iperfServer((command) => pods[1].spawn(command))
    const load = pods[0].spawn(['iperf3', '--client', pods[1].address, '--time', '3600', '--bitrate', '200M'])
    load.stdout!.resume()

    const pings = addressesOf(pods[1]).map((address) => pinging(...pods, { address }))
    for (let upgrade = 0; upgrade < UPGRADES; upgrade++) {
      const before = daemons[0]
      daemons[0] = await start(a)
      await before.line(/Ending: another weftd has taken over/)
      await ended(before.process) // without a signal
      expect(before.process.exitCode).toBe(0)
      expect(daemons[0].lines.some((line) => /Another weftd forwards/.test(line))).toBe(true)
      const said = rounds
      await eventually(() => expect(rounds).toBeGreaterThan(said))
    }
    const pinged = await Promise.all(pings.map((each) => each.stop()))
    expect(load.exitCode).toBe(null)
    load.kill('SIGINT')
    await ended(load)
    await server.stop()
    expect([pinged.map(({ lost }) => lost), complaint]).toEqual([pinged.map(() => 0), ''])
    for (const { sent } of pinged) expect(sent).toBeGreaterThan(100)
    expect(await number()).toEqual(devices)
  })
})

describe('a path for each family', () => {
  const backend = { Type: 'vxlan', DataPath: 'userspace' }

  it('is lent and returned together with the path of the other family', async () => {
    await openWith(BOTH, backend)
    const { connection, ask } = await meet(a)
    const parcel = await ask('path')
    // The lock, and for each of eight lanes per family a queue, a socket, and a socket for sending.
    expect(parcel.fds).toHaveLength(1 + 2 * 24)
    const { paths } = JSON.parse(parcel.text) as { paths: { tunName: string; bindAddresses: string[] }[] }
    expect(paths.map(({ tunName, bindAddresses }) => [tunName, ...bindAddresses])).toEqual([
      ['flannel.1', a.address],
      ['flannel-v6.1', a.ipv6],
    ])
    closeAll(parcel.fds)
    for (const address of addressesOf(pods[1]))
      expect((await pods[0].run(['ping', '-c', '1', '-W', '1', address])).code).toBe(1)
    connection.close()
    await daemons[0].line(/went away; forwarding again/)
    for (const address of addressesOf(pods[1])) await reach(pods[0].namespace, address)
    expect(daemons[0].lines.filter((line) => /is not carried|The data path stopped/.test(line))).toEqual([])
  })

  it('starts from the last known state after a kill, with or without the store', async () => {
    await openWith(BOTH, backend)
    const pings = addressesOf(pods[1]).map((address) => pinging(...pods, { address }))
    await daemons[0].stop('SIGKILL')
    const bringBack = hideStore()
    const next = a.startDaemon({ args: ['--lease-dir', leases()] })
    await next.line(FORWARDING_AS_KNOWN)
    for (const address of addressesOf(pods[1])) await reach(pods[0].namespace, address)
    for (const each of pings) expect((await each.stop()).errors).toBe(0)
    bringBack()
    await next.line(/flannel is ready/)
    expect(next.lines.filter((line) => line.includes('Forwarding between'))).toHaveLength(2)
  })

  it('loses no IPv4 packet if IPv6 has another address, or is disabled', async () => {
    await openWith(BOTH, backend)
    const pings = pinging(...pods)
    const pass = async (next: Daemon): Promise<void> => {
      await daemons[0].line(/Ending: another weftd has taken over/)
      await ended(daemons[0].process)
      daemons[0] = next
    }
    await a.output(['ip', 'address', 'add', 'fd77::a1/64', 'dev', 'eth0', 'nodad'])
    await a.output(['ip', 'address', 'del', `${a.ipv6}/64`, 'dev', 'eth0'])
    await pass(await start(a))
    await reach(pods[0].namespace, pods[1].ipv6 ?? '')
    writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
    await pass(await start(a))
    expect(await device(a, 'flannel-v6.1')).toBe(false)
    await reach(pods[0].namespace, pods[1].address)
    expect(await pings.stop()).toMatchObject({ lost: 0, errors: 0 })
  })
})

/** Hides the configuration in the store until the returned function is called. */
function hideStore(): () => void {
  const config = join(leases(), 'config')
  renameSync(config, `${config}-away`)
  return () => renameSync(`${config}-away`, config)
}

describe('a daemon that was killed', () => {
  it.each(['native', 'dgram'])(
    'causes only lost packets until the next one forwards, with or without the store: %s',
    async (engine) => {
      await open({ Type: 'udp' }, '--engine', engine)
      const route = await a.output(['ip', 'route', 'show', '10.5.0.0/16'])
      const pings = pinging(...pods)
      await daemons[0].stop('SIGKILL')
      expect(await a.output(['ip', 'route', 'show', '10.5.0.0/16'])).toContain(route.trim())
      const bringBack = hideStore()
      const next = a.startDaemon({ args: ['--lease-dir', leases(), '--engine', engine] })
      await next.line(FORWARDING_AS_KNOWN)
      await reach(pods[0].namespace, pods[1].address)
      expect(next.lines.some((line) => line.includes('flannel is ready'))).toBe(false)
      expect((await pings.stop()).errors).toBe(0)
      bringBack()
      await next.line(/flannel is ready/)
      expect(next.lines.filter((line) => line.includes('Forwarding between'))).toHaveLength(1)
      await reach(pods[1].namespace, pods[0].address)
    },
  )
})

describe('a daemon that was stopped', () => {
  it('leaves the device, its route and the saved state for the next daemon', async () => {
    await open({ Type: 'udp' })
    expect(await daemons[0].stop()).toBe(0)
    expect(await device(a)).toBe(true)
    const next = await start(a)
    expect(next.lines.some((line) => FORWARDING_AS_KNOWN.test(line))).toBe(true)
    await reach(pods[0].namespace, pods[1].address)
  })

  it.each([
    ['features left out', ['--without', 'tun-header']],
    ['another engine', ['--engine', 'dgram']],
  ] as const)('leaves the device for one with %s, which carries TCP', async (_what, more) => {
    // The dgram engine takes a device only if the device has a single queue, like the device of a single lane.
    await open({ Type: 'udp' }, '--workers', '1')
    expect(await daemons[0].stop()).toBe(0)
    const before = await a.output(['cat', '/sys/class/net/flannel0/ifindex'])
    await start(a, '--workers', '1', ...more)
    expect(await a.output(['cat', '/sys/class/net/flannel0/ifindex'])).toBe(before)
    await iperfServer((command) => pods[1].spawn(command))
    await pods[0].output(['iperf3', '--client', pods[1].address, '--bytes', '1M'], { timeoutMs: EVENT_MS })
  })

  it.each([
    { backend: { Type: 'udp' }, families: V4, tuns: ['flannel0'] },
    { backend: { Type: 'vxlan', DataPath: 'userspace' }, families: BOTH, tuns: ['flannel.1', 'flannel-v6.1'] },
  ])(
    'with --persist=false leaves nothing, not even of an earlier run: $backend.Type',
    async ({ backend, families, tuns }) => {
      await openWith(families, backend)
      await daemons[0].stop('SIGKILL')
      const next = await start(a, '--persist=false')
      for (const address of addressesOf(pods[1])) await reach(pods[0].namespace, address)
      expect(await next.stop()).toBe(0)
      expect(await Promise.all(tuns.map((name) => device(a, name)))).toEqual(tuns.map(() => false))
      expect(readdirSync(dirname(a.subnetFile)).filter((file) => file.includes('last-known'))).toEqual([])
    },
  )

  const OTHERWISE: readonly (readonly [what: string, more: readonly string[]])[] = [
    ['another number of lanes', ['--workers', '1']],
    ['features left out', ['--without', 'udp-gso']],
    ['another engine', ['--engine', 'dgram']],
    ['another port', []],
  ]
  it.each(OTHERWISE)('hands over to one with %s', async (_what, more) => {
    await open({ Type: 'udp' })
    if (more.length === 0) configure(V4, { Type: 'udp', Port: 9000 })
    const [before] = daemons
    const next = await start(a, ...more)
    await before.line(/Ending: another weftd has taken over/)
    if (more.length === 0) await start(b)
    await reach(pods[0].namespace, pods[1].address)
    await reach(pods[1].namespace, pods[0].address)
    expect(next.lines.filter((line) => / [EF]\d{4} /.test(` ${line}`))).toEqual([])
  })
})

const OTHER_BACKENDS: readonly (readonly [what: string, backend: object, other: object])[] = [
  ['vxlan by weftd', { Type: 'udp' }, { Type: 'vxlan', DataPath: 'userspace' }],
  ['udp', { Type: 'vxlan', DataPath: 'userspace' }, { Type: 'udp' }],
  ['wireguard by weftd', { Type: 'udp' }, { Type: 'wireguard', DataPath: 'userspace' }],
  ['host-gw', { Type: 'udp' }, { Type: 'host-gw' }],
  ['udp after host-gw', { Type: 'host-gw' }, { Type: 'udp' }],
  ['udp after wireguard by the kernel', { Type: 'wireguard', DataPath: 'kernel' }, { Type: 'udp' }],
]
it.each(OTHER_BACKENDS)('hands over to one with another backend: %s', async (_what, backend, other) => {
  await open(backend)
  configure(V4, other)
  for (const [at, host] of [a, b].entries()) {
    await start(host)
    await daemons[at]!.line(/Ending: another weftd has taken over/)
  }
  for (const [from, to] of [pods, pods.toReversed()]) await reach(from!.namespace, to!.address)
})

it("forwards again if a successor with another backend dies before it is ready, and removes the successor's device", async () => {
  await open({ Type: 'udp' })
  configure(V4, { Type: 'vxlan', DataPath: 'userspace' })
  // The successor has opened its data path by then, and waits for the rules because iptables hangs.
  const folder = join(lab.folder, 'no-iptables')
  mkdirSync(folder)
  for (const name of ['iptables', 'iptables-save', 'iptables-restore', 'nft'])
    writeFileSync(join(folder, name), '#!/bin/sh\nexec sleep 600\n', { mode: 0o755 })
  const env = { PATH: `${folder}:${process.env['PATH']}` }
  const next = a.startDaemon({ args: ['--lease-dir', leases()], env })
  await eventually(async () => expect(await a.output(['ip', 'route', 'show', '10.5.0.0/16'])).toContain('flannel.1'))
  await next.stop('SIGKILL')
  expect(next.lines.join('\n')).not.toContain('flannel is ready')
  await daemons[0].line(/went away; forwarding again/)
  await reach(pods[0].namespace, pods[1].address)
  expect([await device(a), await device(a, 'flannel.1')]).toEqual([true, false])
})

it("removes the firewall rules of a successor that died before it was ready, and keeps the predecessor's rules", async () => {
  await open({ Type: 'udp' }, '--iptables-resync', '1')
  const rules = (): Promise<string> => a.output(['iptables-save'])
  // Only the successor masquerades. It hangs after it has set its masquerading rules.
  const folder = join(lab.folder, 'slow-iptables')
  mkdirSync(folder)
  const restore = (await a.output(['which', 'iptables-restore'])).trim()
  writeFileSync(join(folder, 'iptables-restore'), `#!/bin/sh\n${restore} "$@" && exec sleep 600\n`, { mode: 0o755 })
  const env = { PATH: `${folder}:${process.env['PATH']}` }
  const next = a.startDaemon({ args: ['--lease-dir', leases(), '--ip-masq'], env })
  await eventually(async () => expect(await rules()).toMatch(/-A FLANNEL-POSTRTG .* MASQUERADE/))
  await next.stop('SIGKILL')
  expect(next.lines.join('\n')).not.toContain('flannel is ready')
  await daemons[0].line(/went away; forwarding again/)
  await eventually(async () => expect(await rules()).not.toContain('FLANNEL-POSTRTG'))
  expect(await rules()).toContain('-A FLANNEL-FWD')
})

it('forwards again if the successor goes away', async () => {
  await open({ Type: 'udp' })
  const { connection, ask, about } = await meet(a)
  expect(about).toMatchObject({ store: `directory ${leases()}`, lease: { key: subnetOf(a).replace('/', '-') } })
  const parcel = await ask('path')
  // The lock, and for each of eight lanes a queue, a socket, and a socket for sending.
  expect(parcel.fds).toHaveLength(1 + 24)
  closeAll(parcel.fds)
  expect((await pods[0].run(['ping', '-c', '1', '-W', '1', pods[1].address])).code).toBe(1)
  connection.close()
  await daemons[0].line(/went away; forwarding again/)
  await reach(pods[0].namespace, pods[1].address)
  // The daemon then hands over to the next one.
  await start(a)
  await daemons[0].line(/Ending: another weftd has taken over/)
})

it('ends a successor that was lent the path and hangs, and forwards again', async () => {
  await open({ Type: 'udp' })
  // This program requests the path, reports once that it is alive, and then hangs for ever.
  const program = `
    const { connect } = await import(${JSON.stringify(join(packageRoot, 'dist/src/host/unix-socket.js'))})
    const connection = connect(process.argv[1])
    for (const want of ['meet', 'path']) {
      connection.send(JSON.stringify({ weft: 2, want }))
      await connection.receive(new AbortController().signal)
    }
    connection.send(JSON.stringify({ weft: 2, want: 'still' }))
    process.kill(process.pid, 'SIGSTOP')`
  const hanging = spawn(process.execPath, ['--input-type=module', '-e', program, `${a.subnetFile}.handover`])
  await daemons[0].line(new RegExp(`hung, and was killed \\(pid ${hanging.pid}\\); forwarding again`))
  await reach(pods[0].namespace, pods[1].address)
  await ended(hanging)
  expect(hanging.signalCode).toBe('SIGKILL')
})

it('lends the path to one successor, refuses other processes, and after a signal leaves the path with the successor', async () => {
  await open({ Type: 'udp' })
  const { connection, ask } = await meet(a)
  closeAll((await ask('path')).fds)
  connection.send(JSON.stringify({ weft: 2, want: 'still' }))
  const other = connect(`${a.subnetFile}.handover`)!
  for (const want of ['meet', 'path', 'release', 'end', 'leave', 'nonsense']) {
    other.send(JSON.stringify({ weft: 2, want }))
    expect((await other.receive(AbortSignal.timeout(EVENT_MS)))!.text).toMatch(/is taking over already/)
  }
  other.close()
  expect(await daemons[0].stop()).toBe(0)
  expect(daemons[0].lines.some((line) => line.includes('forwarding again'))).toBe(false)
  connection.close()
})

describe('a daemon with a mistake takes nothing over from the running one', () => {
  it.each<[string, RegExp, () => DaemonArgs]>([
    [
      'another store',
      /another weftd runs on this host for the store directory/,
      () => ({ args: ['--lease-dir', join(lab.folder, 'other')] }),
    ],
    ['no flags at all', /another weftd runs on this host for the store directory/, () => ({ args: [] })],
    [
      'a port that another program has',
      /Start healthz server error/,
      () => ({ args: ['--lease-dir', leases(), '--healthz-port', '7001', '--healthz-ip', '127.0.0.1'] }),
    ],
    [
      'another public IP, and so another subnet',
      /the weftd that runs on this host has the public IP 192\.\S+, and this one has 192\.0\.2\.77/,
      () => ({ args: ['--lease-dir', leases(), '--public-ip', '192.0.2.77'] }),
    ],
    [
      'an interface that is not there',
      /error looking up interface nothing0: route ip\+net: no such network interface/,
      () => ({ args: ['--lease-dir', leases(), '--iface-wait', '0'], iface: ['--iface', 'nothing0'] }),
    ],
  ])('%s', async (_what, complaint, options) => {
    await open({ Type: 'udp' })
    mkdirSync(join(lab.folder, 'other'))
    writeFileSync(join(lab.folder, 'other', 'config'), JSON.stringify({ Network: '10.5.0.0/16' }))
    const taken = a.spawn([
      process.execPath,
      '-e',
      'net.createServer().listen(7001, "127.0.0.1", () => console.log(1))',
    ])
    await new Promise((resolve) => taken.stdout!.once('data', resolve))
    const pings = pinging(...pods)
    const wrong = a.startDaemon(options())
    await wrong.line(complaint)
    await ended(wrong.process)
    expect(wrong.process.exitCode).toBe(1)
    expect((await pings.stop()).lost).toBe(0)
    expect(daemons[0].lines.some((line) => /Ending|forwarding again/.test(line))).toBe(false)
  })
})

it('waits while its store is away, continues when the earlier daemon ends, and becomes a node when the store is back', async () => {
  await open({ Type: 'udp' })
  const bringBack = hideStore()
  const next = a.startDaemon({ args: ['--lease-dir', leases()] })
  await next.line(/Another weftd forwards \(pid \d+\); it forwards until this weftd is ready/)
  await reach(pods[0].namespace, pods[1].address)
  // A third daemon is refused because the second one exists.
  const third = a.startDaemon({ args: ['--lease-dir', leases()] })
  await third.line(/is taking over already/)
  await ended(third.process)
  expect(third.process.exitCode).toBe(1)

  await daemons[0].stop('SIGKILL')
  await next.line(FORWARDING_AS_KNOWN)
  await reach(pods[0].namespace, pods[1].address)
  bringBack()
  await next.line(/flannel is ready/)
  expect(next.lines.filter((line) => line.includes('Forwarding between'))).toHaveLength(1)
  await reach(pods[1].namespace, pods[0].address)
})

it('a daemon that starts from the last known state repairs its data path although the store is away', async () => {
  await open({ Type: 'udp' })
  await daemons[0].stop('SIGKILL')
  hideStore()
  const next = a.startDaemon({ args: ['--lease-dir', leases()] })
  await next.line(FORWARDING_AS_KNOWN)
  // The status is available soon afterwards.
  await eventually(async () =>
    expect((await a.run([join(packageRoot, 'bin/weft'), 'status', '--status-socket', a.statusSocket])).stdout).toMatch(
      /, forwarding as last known .*\n {2}waiting for the network configuration .*\n {2}effect: .*\n {2}data path {2}as last known by flannel0/,
    ),
  )
  await a.output(['ip', 'link', 'set', 'dev', 'flannel0', 'down'])
  await next.line(/Repaired: flannel0 was down/)
  await reach(pods[0].namespace, pods[1].address)
  await a.output(['ip', 'link', 'del', 'dev', 'flannel0'])
  await next.line(/The data path stopped/)
  await eventually(async () => expect(await device(a)).toBe(true))
  await reach(pods[0].namespace, pods[1].address)
})

it.each([
  { backend: { Type: 'udp' }, families: V4, tuns: ['flannel0'] },
  { backend: { Type: 'vxlan', DataPath: 'userspace' }, families: BOTH, tuns: ['flannel.1', 'flannel-v6.1'] },
])('another backend removes what $backend.Type left', async ({ backend, families, tuns }) => {
  await openWith(families, backend)
  await daemons[0].stop('SIGKILL')
  writeFileSync(`${a.subnetFile}.last-known`, JSON.stringify({ ...lastKnown(a), expiresAt: 1 }))
  const config = JSON.parse(readFileSync(join(leases(), 'config'), 'utf8')) as object
  writeFileSync(join(leases(), 'config'), JSON.stringify({ ...config, Backend: { Type: 'host-gw' } }))
  await start(a)
  expect(await Promise.all(tuns.map((name) => device(a, name)))).toEqual(tuns.map(() => false))
})

it('invalid content of the saved state is a warning', async () => {
  await open({ Type: 'udp' })
  await daemons[0].stop()
  const known = lastKnown(a)
  for (const odd of [
    '{',
    '[]',
    JSON.stringify({ ...known, paths: [{ loops: [null] }] }),
    JSON.stringify({ ...known, leases: 7 }),
  ]) {
    writeFileSync(`${a.subnetFile}.last-known`, odd)
    const daemon = await start(a)
    await reach(pods[0].namespace, pods[1].address)
    expect(await daemon.stop()).toBe(0)
  }
})

it('ignores the last known state after flanneld has run with another backend', async () => {
  await open({ Type: 'udp' })
  await daemons[0].stop()
  const ownEnv = readFileSync(a.subnetFile, 'utf8')
  expect(lastKnown(a)).toMatchObject({ subnetEnv: ownEnv })
  writeFileSync(a.subnetFile, ownEnv.replace(/FLANNEL_MTU=\d+/, 'FLANNEL_MTU=1450'))
  const daemon = await start(a)
  expect(daemon.lines.filter((line) => FORWARDING_AS_KNOWN.test(line))).toEqual([])
  await daemon.line(/Another program has changed .*subnet\.env since weftd ran/)
  await reach(pods[0].namespace, pods[1].address)
  // The state that this weftd saved has the content of its own subnet.env.
  await eventually(() => expect(lastKnown(a)).toMatchObject({ subnetEnv: ownEnv }))
  await daemon.stop('SIGKILL')
  await a.startDaemon({ args: ['--lease-dir', leases()] }).line(FORWARDING_AS_KNOWN)
})

it('ignores the last known state in another network, or after its lease has expired', async () => {
  await open({ Type: 'udp' })
  await daemons[0].stop()
  const file = `${a.subnetFile}.last-known`
  const known = lastKnown(a)
  for (const wrong of [{ expiresAt: 1 }, { store: 'directory /elsewhere' }, { version: 99 }]) {
    writeFileSync(file, JSON.stringify({ ...known, ...wrong }))
    const daemon = await start(a)
    expect(daemon.lines.filter((line) => FORWARDING_AS_KNOWN.test(line))).toEqual([])
    await reach(pods[0].namespace, pods[1].address)
    await daemon.stop()
  }
})

it('weftd --leave fails if something of the node remains', async () => {
  await open({ Type: 'udp' })
  const leaving = a.startDaemon({
    args: ['--lease-dir', leases(), '--leave'],
    // A file with another one mounted on it cannot be removed.
    before: ['unshare', '--mount', 'sh', '-c', `mount --bind ${a.subnetFile} ${a.subnetFile} && exec "$@"`, 'sh'],
  })
  await ended(leaving.process)
  expect(leaving.lines.join('\n')).toMatch(/cannot remove file .*subnet\.env: .*EBUSY/)
  expect(leaving.process.exitCode).toBe(1)
})

it('weftd --leave gives the lease back and removes everything', async () => {
  await open({ Type: 'udp' })
  const subnet = subnetOf(a).replace('/', '-')
  expect(readdirSync(join(leases(), 'subnets'))).toContain(subnet)
  // Besides its lease a node has a claim of its public IP, and a key if it generated one for WireGuard.
  const claims = (): string[] => readdirSync(join(leases(), 'weft'))
  await eventually(() => expect(claims()).toEqual(expect.arrayContaining([a.address, b.address])))
  writeFileSync(join(dirname(a.subnetFile), 'wgkey'), 'a key')
  const leaving = a.startDaemon({ args: ['--lease-dir', leases(), '--leave'] })
  await daemons[0].line(/This node has left the network/)
  await ended(leaving.process)
  expect(leaving.process.exitCode).toBe(0)
  expect(leaving.lines.join('\n')).toContain(`removed file ${a.subnetFile}`)
  expect(leaving.lines.join('\n')).toMatch(
    /The weftd that ran here \(pid \d+\) has left the network, and has given its lease back/,
  )
  expect(await device(a)).toBe(false)
  expect(readdirSync(join(leases(), 'subnets'))).not.toContain(subnet)
  expect(readdirSync(dirname(a.subnetFile)).filter((file) => /^subnet\.env|wgkey/.test(file))).toEqual([])
  expect(claims()).toEqual([b.address])
  await daemons[1].line(/Subnet removed/)
})

// A weftd with the backend udp knows its lease from the last known state; one with host-gw does not know its lease.
it.each([
  ['answers', 'udp'],
  ['answers', 'host-gw'],
  ['does not answer', 'udp'],
])(
  'weftd --leave ends a weftd that still waits for its store, and gives the lease back if the store %s: %s',
  async (how, type) => {
    await open({ Type: type })
    const subnet = subnetOf(a).replace('/', '-')
    const subnets = join(leases(), 'subnets')
    await daemons[0].stop()
    hideStore()
    if (how === 'does not answer') {
      renameSync(subnets, `${subnets}-away`)
      writeFileSync(subnets, 'no folder')
    }
    const waiting = a.startDaemon({ args: ['--lease-dir', leases()] })
    await waiting.line(/Couldn't fetch network config|tries again/)
    const leaving = a.startDaemon({ args: ['--lease-dir', leases(), '--leave'] })
    await ended(leaving.process)
    const isBack = how === 'answers'
    expect(leaving.lines.join('\n')).toMatch(
      isBack
        ? type === 'udp'
          ? /has left the network, and has given its lease back/
          : /The lease of \S+ is given back/
        : /could not give its lease back/,
    )
    expect(leaving.process.exitCode).toBe(isBack ? 0 : 1)
    expect(readdirSync(isBack ? subnets : `${subnets}-away`).includes(subnet)).toBe(!isBack)
    expect(await device(a)).toBe(false)
  },
)

it('a start that fails leaves no device, rule or file', async () => {
  lab = await createLab({ hosts: 1 })
  ;[a] = lab.hosts as [Host]
  mkdirSync(leases())
  writeFileSync(join(leases(), 'config'), '{"Network":"10.5.0.0/16"}')
  const wrong = a.startDaemon({ args: ['--lease-dir', leases(), '--iface-wait', '0'], iface: ['--iface', 'nothing0'] })
  await ended(wrong.process)
  expect(wrong.process.exitCode).toBe(1)
  expect(readdirSync(dirname(a.subnetFile)).filter((file) => file.startsWith('subnet.env'))).toEqual([])
})
