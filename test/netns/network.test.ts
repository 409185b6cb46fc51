// network.test.ts - real daemons on three hosts: commands with names, and the network-wide status.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createLab, named, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import type { NetworkReport } from '../../src/report/network-view.ts'
import { eventually } from '../support/event.ts'
import { statusOf, subnetOf, tunAddress, weft } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'curl')

const PORT = 8287
let lab: Lab
let leases: string
beforeEach(async () => {
  lab = await createLab({ hosts: 3 })
  leases = join(lab.folder, 'leases')
  mkdirSync(leases)
})
afterEach(() => lab.close())

function configure(backend: object): void {
  writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
}

const start = (host: Host, more: readonly string[] = ['--status-network', String(PORT)]): Daemon =>
  host.startDaemon({ before: named(host.name), args: ['--lease-dir', leases, '--probe-interval', '1', ...more] })

async function startAll(more?: readonly string[]): Promise<readonly Daemon[]> {
  const daemons = lab.hosts.map((host) => start(host, more))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  return daemons
}

async function networkOf(host: Host): Promise<{ readonly code: number | null; readonly report: NetworkReport }> {
  const { code, stdout } = await weft(host, ['network', '--json'])
  return { code, report: JSON.parse(stdout) as NetworkReport }
}
const foundIn = ({ findings }: NetworkReport): readonly string[] => [...new Set(findings.map(({ name }) => name))]
/** Waits until each node has published its view, every peer has a name, and all nodes reach each other. */
const isWhole = (host: Host): Promise<void> =>
  eventually(async () => {
    const { code, report } = await networkOf(host)
    expect([code, report.whole, report.findings]).toEqual([0, 1, []])
    expect(new Set(report.nodes.map(({ name, seenBy, reachedBy }) => `${name} ${seenBy} ${reachedBy}`))).toEqual(
      new Set(lab.hosts.map(({ name }) => `${name} 2 2`)),
    )
  })

describe.each([{ Type: 'udp' }, { Type: 'host-gw' }])('with %j', (backend) => {
  it('all nodes publish the peers that they reach, and a dead node is one finding', async () => {
    configure(backend)
    const [, , third] = await startAll()
    const [first, , dead] = lab.hosts as [Host, Host, Host]
    await isWhole(first)
    const { stdout } = await weft(first, ['network'])
    for (const { name } of lab.hosts) expect(stdout).toContain(name)
    expect(stdout).toMatch(/^3 nodes, 3 reported their state within .*: 100% of the pairs/)
    expect(stdout).toMatch(/FROM \\ TO +1 +2 +3/)

    await third!.stop('SIGKILL')
    await dead.output(['ip', 'link', 'set', 'eth0', 'down'])
    await eventually(async () => {
      const { code, report } = await networkOf(first)
      expect([code, foundIn(report), report.findings.length]).toEqual([3, ['node-dead'], 1])
      expect(report.findings[0]!.detail).toBe(
        `${dead.name} (${subnetOf(dead)} at ${dead.address}): 0 of 2 nodes reach it`,
      )
    })
  })
})

it.each([
  ['IPv6 alone', { EnableIPv4: false }],
  ['both families', { Network: '10.5.0.0/16' }],
])('nodes publish their views in a network with %s', async (_what, network) => {
  await lab.close()
  lab = await createLab({ hosts: 3, families: ['ipv4', 'ipv6'] })
  leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  const config = { ...network, EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: { Type: 'host-gw' } }
  writeFileSync(join(leases, 'config'), JSON.stringify(config))
  await startAll()
  await isWhole(lab.hosts[0]!)
})

it('weft network names the configurations that differ', async () => {
  configure({ Type: 'udp' })
  const daemons = await startAll()
  const [first, , third] = lab.hosts as [Host, Host, Host]
  await isWhole(first)
  configure({ Type: 'udp', ClampMSS: true })
  await daemons[2]!.stop()
  await start(third).line(/flannel is ready/)
  await eventually(async () => {
    const { code, report } = await networkOf(first)
    expect([code, report.findings]).toEqual([
      3,
      [
        {
          name: 'config-differs',
          detail: expect.stringMatching(new RegExp(`^backend\\.clampmss: none on .*; true on ${third.name}$`)),
        },
      ],
    ])
  })
})

it('a node serves its view only to nodes, and only to nodes with the token if one is set', async () => {
  configure({ Type: 'udp' })
  const token = join(lab.folder, 'token')
  writeFileSync(token, 'open sesame\n')
  const flags = ['--status-network', String(PORT), '--status-token-file', token]
  const daemons = await startAll(flags)
  const [first, second, third] = lab.hosts as [Host, Host, Host]
  await isWhole(first)
  const url = `http://${tunAddress(second)}:${PORT}/view.json`
  const get = async (place: Pick<Host, 'run'>, ...more: string[]): Promise<string> =>
    (await place.run(['curl', '-s', '-m', '5', '-w', ' %{http_code}', ...more, url])).stdout.trim()
  const shown = ['-H', 'Authorization: Bearer open sesame']
  // The host's own address is the one of its device; a container has another address.
  expect(await get(first, ...shown)).toMatch(/"schema":1.* 200$/s)
  expect(await get(first)).toMatch(/its token differs.* 401$/s)
  expect(await get(first, '-H', 'Authorization: Bearer open')).toMatch(/ 401$/)
  expect(await get(first, ...shown, '-H', 'Host: evil.example')).toMatch(/ 421$/)
  expect(await get(first, ...shown, '-H', 'Origin: http://evil.example')).toMatch(/ 403$/)
  const pod = await first.startPod()
  expect(await get(pod, ...shown)).toMatch(/this address is not a node of the network.* 403$/s)
  const outside = `http://${second.address}:${PORT}/view.json`
  expect((await first.run(['curl', '-s', '-m', '5', ...shown, outside])).code).not.toBe(0)

  await daemons[2]!.stop()
  const other = join(lab.folder, 'other')
  writeFileSync(other, 'another')
  await start(third, ['--status-network', String(PORT), '--status-token-file', other]).line(/flannel is ready/)
  await eventually(async () => {
    const { report } = await networkOf(first)
    expect(report.findings).toEqual([{ name: 'node-refuses', detail: expect.stringContaining('its token differs') }])
  })
  for (const { logFile } of daemons) expect(logFile).not.toContain('sesame')
  for (const daemon of daemons) expect(daemon.lines.join('\n')).not.toContain('sesame')
})

it('weft network reports a node without a view as the other nodes see it, and is off by default', async () => {
  configure({ Type: 'udp' })
  const [first, second, third] = lab.hosts as [Host, Host, Host]
  const daemons = [start(first), start(second), start(third, [])]
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  await eventually(async () => {
    const { code, report } = await networkOf(first)
    expect([code, report.findings]).toEqual([0, [{ name: 'not-told', detail: third.name }]])
    const silent = report.nodes.find(({ name }) => name === third.name)
    expect(silent).toMatchObject({ answer: 'closed', seenBy: 2, reachedBy: 2, sees: null, version: null })
  })
  expect(await weft(third, ['network'])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('do not report their state to each other; start weftd with --status-network'),
  })
})

it('commands accept names, and distinguish two hosts with the same name', async () => {
  configure({ Type: 'udp' })
  const [first, second, third] = lab.hosts as [Host, Host, Host]
  for (const [host, name] of [
    [first, 'alpha'],
    [second, 'beta'],
    [third, 'beta'],
  ] as const)
    await host
      .startDaemon({ before: named(name), args: ['--lease-dir', leases, '--probe-interval', '1'] })
      .line(/flannel is ready/)
  await eventually(async () => {
    const { peers } = await statusOf(first)
    expect(peers!.list.map(({ name }) => name)).toEqual(['beta', 'beta'])
    const seen = await statusOf(second)
    expect(new Set(seen.peers!.list.map(({ name }) => name))).toEqual(new Set(['alpha', 'beta']))
  })
  const ambiguous = await weft(first, ['ping', 'beta', '--count', '1'])
  expect(ambiguous).toMatchObject({ code: 2, stderr: expect.stringContaining('2 peers are called beta: ') })
  for (const host of [second, third]) expect(ambiguous.stderr).toContain(`${subnetOf(host)} at ${host.address}`)
  const ping = await weft(second, ['ping', 'alpha', '--count', '1'])
  expect([ping.code, ping.stdout]).toEqual([0, expect.stringContaining(`alpha (${subnetOf(first)}) at`)])
  const explained = await weft(second, ['explain', 'alpha'])
  expect([explained.code, explained.stdout]).toEqual([
    0,
    expect.stringContaining(`is in the subnet ${subnetOf(first)} of the node alpha (${first.address})`),
  ])
  const { stdout: listed } = await weft(first, ['lease', 'ls'])
  expect(listed.split('\n').filter((line) => line.startsWith('beta '))).toHaveLength(2)
  expect((await weft(second, ['peers', '--names'])).stdout.split('\n').toSorted()).toEqual(
    ['', 'alpha', 'beta', subnetOf(first), subnetOf(third)].toSorted(),
  )
})
