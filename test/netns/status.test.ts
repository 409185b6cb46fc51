// status.test.ts - the status of real daemons, at their sockets and ports.

import { writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { execute } from '../../lab/command.ts'
import { createLab, packageRoot, WIREGUARD_APART, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import type { Status } from '../../src/report/status.ts'
import { eventually } from '../support/event.ts'
import { answers, subnetOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { noWireguardDevice } from '../support/wireguard.ts'

needs(HOSTS, 'curl')

let lab: Lab
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
})
afterEach(() => lab.close())

/** Requests the status from a daemon's socket. */
const ask = ({ statusSocket }: Host, method = 'GET'): Promise<{ code: number | undefined; text: string }> =>
  new Promise((resolve, reject) => {
    request({ socketPath: statusSocket, path: '/status.json', method }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.on('end', () => resolve({ code: response.statusCode, text: Buffer.concat(parts).toString() }))
    })
      .once('error', reject)
      .end()
  })
/** Resolves when packets can be sent to the host's one peer, and are accepted from it. */
const knowsItsPeer = (host: Host): Promise<void> =>
  eventually(async () => expect((await statusOf(host)).peers?.programmed).toBe(1))
const statusOf = async (host: Host): Promise<Status> => JSON.parse((await ask(host)).text) as Status

const PATHS = [
  ['native', { Type: 'udp' }, 'flannel0', 8285, 1472],
  ['dgram', { Type: 'udp' }, 'flannel0', 8285, 1472],
  ['native', { Type: 'vxlan', DataPath: 'userspace' }, 'flannel.1', 8472, 1450],
] as const
it.each(PATHS)(
  'counts the packets to and from each peer: %s engine, %j',
  async (engine, backend, device, port, mtu) => {
    const more = ['--engine', engine, '--healthz-port', '8080']
    const daemons = await startAll(backend, more)
    const [first, second] = lab.hosts as [Host, Host]
    for (const host of lab.hosts) await knowsItsPeer(host)
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    await answers(pods[0]!.namespace, pods[1]!.address, 5)

    const status = await eventually(async () => {
      const node = await statusOf(first)
      expect(node.dataPath!.threads).toHaveLength(engine === 'native' ? 8 : 0)
      return node
    })
    expect(status).toMatchObject({
      schema: 1,
      state: 'working',
      subnetFileWritten: true,
      node: { subnet: subnetOf(first), publicIp: first.address, externalInterface: 'eth0' },
      dataPath: { open: true, device, engine, mtu },
      peers: { stored: 1, programmed: 1 },
    })
    const [peer] = status.peers!.list
    expect(peer).toMatchObject({
      subnet: subnetOf(second),
      endpoint: `${second.address}:${port}`,
      way: 'tunnel',
      state: 'programmed',
      txPackets: status.dataPath!.counters['tx_packets'],
      rxPackets: status.dataPath!.counters['rx_packets'],
      txBytes: status.dataPath!.counters['tx_bytes'],
      rxBytes: status.dataPath!.counters['rx_bytes'],
    })
    expect(peer!.rxPackets).toBeGreaterThanOrEqual(5)
    // Link-local packets that the kernel and mDNS send into each device are not losses.
    await first.run(['ping', '-c', '1', '-W', '1', '-I', device, '224.0.0.251'])
    const { counters, drops } = (await statusOf(first)).dataPath!
    expect(counters['tx_for_link']).toBeGreaterThanOrEqual(1)
    expect(drops).not.toHaveProperty('tx_drop_no_route')
    expect(peer!.heardSecondsAgo).toBeLessThan(60)
    expect((await ask(first, 'POST')).code).toBe(405)
    expect(JSON.parse(await first.output(['curl', '-sS', `http://127.0.0.1:8080/status.json`]))).toMatchObject({
      schema: 1,
    })
    expect(await first.output(['curl', '-sS', 'http://127.0.0.1:8080/'])).toMatch(/^<!doctype html>[^]*<\/html>\n$/)
    // A container, another host, and this host at its overlay address get only the probes.
    const said = await Promise.all(
      [pods[0]!.namespace, pods[1]!.namespace, second.namespace, first.namespace].map(async (namespace) => {
        const from = ['ip', 'netns', 'exec', namespace, 'curl', '-sS', '--max-time', '20']
        const paths = ['healthz', 'livez', 'status.json', 'metrics', ''].map(
          (path) => `http://${first.address}:8080/${path}`,
        )
        return (await execute([...from, ...paths])).stdout
      }),
    )
    const refused =
      '403 this address serves only the health checks; the page and the status are served at 127.0.0.1 on the host itself, and at the address of --status-ip\n'
    expect(said).toEqual(Array(4).fill(`flanneld is runningweftd is alive\n${refused.repeat(3)}`))

    expect(
      (
        await first.run([
          process.execPath,
          join(packageRoot, 'bin/weft'),
          'ping',
          subnetOf(second),
          '--count',
          '1',
          '--size',
          String(mtu),
          '--status-socket',
          first.statusSocket,
        ])
      ).code,
    ).toBe(0)

    const toSecond = ['ip', 'route', 'replace', `${second.address}/32`, 'dev', 'eth0']
    await first.output([...toSecond, 'mtu', '1400'])
    const pathMtuIs = (pathMtu: number | null) =>
      eventually(async () => expect((await statusOf(first)).peers!.list[0]).toMatchObject({ pathMtu }))
    await pathMtuIs(mtu - 100)
    await first.output([...toSecond, 'mtu', '1500'])
    await pathMtuIs(null)

    // The peer stops and restarts, and its counts continue.
    await daemons[1]!.stop()
    const restarted = second.startDaemon({
      args: ['--lease-dir', join(lab.folder, 'leases'), ...more, '--status-page=false'],
    })
    await restarted.line(/Running backend/)
    expect(await second.output(['curl', '-sS', 'http://127.0.0.1:8080/'])).toBe('404 page not found\n')
    await knowsItsPeer(second)
    await answers(pods[0]!.namespace, pods[1]!.address, 2)
    await eventually(async () =>
      expect((await statusOf(first)).peers!.list[0]!.rxPackets).toBeGreaterThanOrEqual(peer!.rxPackets! + 2),
    )
  },
)

const OVER_KERNEL = [
  ['host-gw', null, (host: Host) => host.address],
  ['vxlan', 'flannel.1', (host: Host) => `${host.address}:8472`],
  ['wireguard', 'flannel-wg', (host: Host) => `${host.address}:51820`],
] as const

async function startAll(
  backend: object,
  more: readonly string[] = [],
  before: readonly string[] = [],
): Promise<Daemon[]> {
  const leases = join(lab.folder, 'leases')
  await lab.hosts[0]!.output(['mkdir', '-p', leases])
  writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
  const daemons = lab.hosts.map((host) =>
    host.startDaemon({
      args: ['--lease-dir', leases, ...more],
      env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
      before,
    }),
  )
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  return daemons
}

describe.each(OVER_KERNEL)('%s, which the kernel carries', (Type, device, endpointOf) => {
  it('reports what the kernel knows, and which peers answer, over a socket without privilege', async ({ skip }) => {
    if (device !== null) {
      const add = ['unshare', '--net', 'ip', 'link', 'add', 'x', 'type', Type, 'id', '1', 'dstport', '8472']
      const isMissing =
        Type === 'wireguard' ? (await noWireguardDevice()) !== undefined : (await execute(add)).code !== 0
      skip(isMissing, `no ${Type} here`)
    }
    for (const host of lab.hosts)
      await host.output(['sh', '-c', 'echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range'])
    const [backend, before] = Type === 'wireguard' ? [{ Type, DataPath: 'kernel' }, WIREGUARD_APART] : [{ Type }, []]
    const [, other] = await startAll(backend, ['--probe-interval', '1'], before)
    const [first, second] = lab.hosts as [Host, Host]
    const status = await eventually(async () => {
      const node = await statusOf(first)
      expect(node.peers).toMatchObject({ stored: 1, programmed: 1, answering: 1, whole: 1 })
      return node
    })
    expect(status.dataPath).toMatchObject({ engine: 'kernel', device })
    const [peer] = status.peers!.list
    const way = device === null ? 'direct' : 'kernel' // host-gw has no device
    expect(peer).toMatchObject({ endpoint: endpointOf(second), way, txPackets: null, lossPercent: expect.any(Number) })
    expect(peer!.roundTripMs).toBeGreaterThan(0)
    if (Type === 'wireguard') {
      expect(peer!.rxBytes).toBeGreaterThan(0)
      expect(peer!.heardSecondsAgo).toBeLessThan(120)
    } else expect([peer!.rxBytes, peer!.heardSecondsAgo]).toEqual([null, null])
    const weft = [
      process.execPath,
      join(packageRoot, 'bin/weft'),
      'doctor',
      '--json',
      '--status-socket',
      first.statusSocket,
    ]
    const { code, stdout } = await first.run(weft)
    expect([code, (JSON.parse(stdout) as { findings: unknown[] }[]).flatMap(({ findings }) => findings)]).toEqual([
      0,
      [],
    ])
    expect(other!.lines.filter((line) => /are not asked/.test(line))).toEqual([])
  })
})

it('detects a peer that stopped, and continues if it may not send probes', async () => {
  const [, killed] = await startAll({ Type: 'udp' }, ['--probe-interval', '1'])
  const [first] = lab.hosts as [Host]
  await eventually(async () => expect((await statusOf(first)).peers).toMatchObject({ answering: 1 }))
  await killed!.stop('SIGKILL')
  await eventually(async () =>
    expect((await statusOf(first)).peers).toMatchObject({ programmed: 1, answering: 0, whole: 0 }),
  )
  // Without the capability, and in a namespace whose kernel allows no unprivileged ICMP sockets.
  const args = ['--lease-dir', join(lab.folder, 'leases'), '--probe-interval', '1']
  const unable = lab.hosts[1]!.startDaemon({
    args,
    before: ['setpriv', '--bounding-set', '-net_raw', '--inh-caps', '-net_raw'],
  })
  await unable.line(/I.* Peers are not probed/)
  await eventually(async () => expect((await statusOf(first)).peers).toMatchObject({ answering: 1 }))
  expect((await statusOf(lab.hosts[1]!)).peers).toMatchObject({ programmed: 1, answering: null })
})

it('continues after another weftd has taken over, which then has the socket', async () => {
  const [before] = await startAll({ Type: 'udp' }, ['--probe-interval', '1'])
  const [first] = lab.hosts as [Host]
  const old = (await statusOf(first)).daemon.pid
  const after = first.startDaemon({ args: ['--lease-dir', join(lab.folder, 'leases'), '--probe-interval', '1'] })
  await before!.line(/Ending: another weftd has taken over/)
  await before!.stop()
  await eventually(async () => {
    const { daemon, peers } = await statusOf(first)
    expect([daemon.pid === old, peers]).toEqual([false, expect.objectContaining({ programmed: 1, answering: 1 })])
  })
  expect(after.lines.filter((line) => /cannot be served/.test(line))).toEqual([])
})
