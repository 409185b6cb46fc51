// wireguard-seen.test.ts - the reports on WireGuard sessions, whoever encrypts: `weft wg`, the peers, the status and the metrics; and the
// doctor's findings if handshakes fail.

import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { createLab, WIREGUARD_APART, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import type { FindingName } from '../../src/tool/doctor/findings.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, subnetOf, weft } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'curl', 'iptables', 'wg')

const [PSK, OTHER_PSK] = [1, 2].map((fill) => Buffer.alloc(32, fill).toString('base64'))

let lab: Lab
afterEach(() => lab?.close())

const leases = (of = 'leases'): string => join(lab.folder, of)
const keyFile = (host: Host): string => join(lab.folder, `${host.name}-wgkey`)
const inShell = (host: Host, script: string): Promise<string> => host.output(['sh', '-c', script])

async function start(host: Host, options: object = {}, folder = leases(), ...more: string[]): Promise<Daemon> {
  mkdirSync(folder, { recursive: true })
  const Backend = { Type: 'wireguard', DataPath: 'userspace', PSK, ...options }
  writeFileSync(join(folder, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
  const daemon = host.startDaemon({
    args: ['--lease-dir', folder, '--probe-interval', '1', '--healthz-port', '8080', ...more],
    env: { WIREGUARD_KEY_FILE: keyFile(host) },
    before: WIREGUARD_APART,
  })
  await daemon.line(/flannel is ready/)
  return daemon
}
async function areWell(...hosts: readonly Host[]): Promise<void> {
  for (const host of hosts)
    await eventually(async () =>
      expect((await statusOf(host)).peers).toMatchObject({ stored: hosts.length - 1, answering: hosts.length - 1 }),
    )
}
const sessionOf = async (host: Host) => (await statusOf(host)).peers!.list[0]!.session!
/** Resolves when the doctor has exactly these findings on the host, apart from those in `sooner or later`. */
async function finds(
  host: Host,
  names: readonly FindingName[],
  detail?: RegExp,
  soonerOrLater: readonly string[] = [],
): Promise<void> {
  await eventually(async () => {
    const found = await doctor(host)
    const others = found.names.filter((name) => !soonerOrLater.includes(name))
    expect(others.toSorted()).toEqual([...names].toSorted())
    if (detail) expect(found.details).toEqual(expect.arrayContaining([expect.stringMatching(detail)]))
  })
}
const two = async (): Promise<readonly [Host, Host]> => {
  lab = await createLab({ hosts: 2 })
  return lab.hosts as [Host, Host]
}

describe.each(['userspace', 'kernel'] as const)('by %s, the state of a session', (carrier) => {
  it('is the same in all reports, which contain no secret key', async () => {
    const [a, b] = await two()
    const options = { DataPath: carrier, PersistentKeepaliveInterval: 25 }
    const daemons = [await start(a, options), await start(b, options)]
    await areWell(a, b)

    const publicKey = (host: Host): string =>
      /"PublicKey":"([^"]+)"/.exec(
        readFileSync(join(leases(), 'subnets', subnetOf(host).replace('/', '-')), 'utf8'),
      )![1]!
    const [peer] = (await statusOf(a)).peers!.list
    const isOurs = carrier === 'userspace'
    expect(peer!.session).toEqual({
      publicKey: publicKey(b),
      handshakeSecondsAgo: expect.any(Number),
      ageSeconds: expect.any(Number),
      attempts: isOurs ? 0 : null,
      failure: null,
      stale: isOurs ? 0 : null,
      unconfirmed: isOurs ? 0 : null,
      txBytes: peer!.txBytes,
      rxBytes: peer!.rxBytes,
    })
    expect(Math.min(peer!.session!.txBytes!, peer!.session!.rxBytes!)).toBeGreaterThan(0)
    const { code, stdout } = await weft(a, ['wg'])
    expect(code).toBe(0)
    const lines = [
      'interface: flannel-wg',
      `  public key: ${publicKey(a)}`,
      '  private key: (hidden)',
      '  listening port: 51820',
      '',
      `peer: ${publicKey(b)}`,
      '  preshared key: (hidden)',
      `  endpoint: ${b.address}:51820`,
      `  allowed ips: ${subnetOf(b)}`,
      expect.stringMatching(/^ {2}latest handshake: (Now|(\d+ minutes?, )?\d+ seconds? ago)$/),
      expect.stringMatching(/^ {2}transfer: [\d.]+ \w+ received, [\d.]+ \w+ sent$/),
      '  persistent keepalive: every 25 seconds',
      '',
    ]
    expect(stdout.split('\n')).toEqual(lines)
    if (!isOurs) {
      // The output of `wg` itself, except for values that change meanwhile.
      const inside = ['nsenter', '--target', String(daemons[0]!.process.pid), '--mount', 'wg', 'show']
      expect((await a.output(inside)).split('\n').map((line) => line.replace(/transfer.*|latest.*/, ''))).toEqual(
        stdout.split('\n').map((line) => line.replace(/transfer.*|latest.*/, '')),
      )
    }
    expect((await weft(a, ['peers'])).stdout).toMatch(/ HANDSHAKE\n.* s ago\n$/)
    const metrics = await a.output(['curl', '-sS', 'http://127.0.0.1:8080/metrics'])
    expect(metrics).toMatch(/^weft_peer_last_handshake_timestamp_seconds\{peer="10\.5\..*\} \d{10}/m)
    expect(/^weft_peer_handshake_attempts\{.*\} 0$/m.test(metrics)).toBe(isOurs)
    for (const host of [a, b]) expect((await doctor(host)).names).toEqual([])

    const outputs = [stdout, metrics, JSON.stringify(await statusOf(a)), ...daemons.flatMap((daemon) => daemon.lines)]
    for (const words of [['wg', '--json'], ['peers'], ['status'], ['doctor'], ['explain', '10.5.1.2', '10.5.2.2']])
      outputs.push((await weft(a, words)).stdout)
    for (const path of ['', 'status.json', 'events.json', 'history.json'])
      outputs.push(await a.output(['curl', '-sS', `http://127.0.0.1:8080/${path}`]))
    const files = readdirSync(lab.folder, { recursive: true, withFileTypes: true }).filter((each) => each.isFile())
    const others = files.filter(({ name }) => !/wgkey$|^config/.test(name))
    outputs.push(...others.map((each) => readFileSync(join(each.parentPath, each.name), 'latin1')))
    for (const secret of [PSK!, ...[a, b].map((host) => readFileSync(keyFile(host), 'utf8').trim())])
      for (const form of ['base64', 'base64url', 'hex', 'latin1'] as const)
        expect(outputs.filter((text) => text.includes(Buffer.from(secret, 'base64').toString(form)))).toEqual([])
  })
})

describe('the doctor', () => {
  it('finds that the pre-shared keys differ, on the hosts that can detect it', async () => {
    const [a, b] = await two()
    await start(a)
    await start(b, { PSK: OTHER_PSK })
    // The first host started with another configuration than the store has now, which it notices within a minute.
    const late = [['config-differs'], []]
    for (const [at, host] of [a, b].entries())
      await finds(host, ['psk-differs', 'peer-silent'], /no handshake was ever completed, \d+ started here/, late[at])
  })

  it("finds with the kernel's device that handshakes arrive but never complete", async () => {
    const [a, b] = await two()
    await start(a)
    await start(b, { DataPath: 'kernel', PSK: OTHER_PSK })
    await finds(a, ['config-differs', 'psk-differs', 'peer-silent']) // the other host started with another configuration
    await finds(b, ['handshake-one-way', 'peer-silent'])
  })

  it('finds on the sender that its answers do not arrive, and on the receiver that none arrive', async () => {
    const [a, b] = await two()
    await start(a)
    await inShell(b, 'iptables -A INPUT -p udp --dport 51820 -j DROP')
    await start(b)
    await finds(a, ['handshake-one-way', 'peer-silent'], /started here, \d+ answered but not confirmed since$/)
    await finds(b, ['no-handshake', 'peer-silent', 'port-dropped'])
    await inShell(b, 'iptables -F INPUT')
    await areWell(a, b)
    for (const host of [a, b]) await finds(host, [])
  })

  it("finds that a peer never answers, and paths whose MTU is below the interface's", async () => {
    const [a, b] = await two()
    await start(a)
    const other = await start(b)
    await areWell(a, b)
    await inShell(b, 'ip link set eth0 mtu 1400')
    await finds(a, ['path-mtu'], /packets of 1420 bytes get no answer( since \S+)?, packets of up to 1340 do/)
    await inShell(b, 'ip link set eth0 mtu 1500')
    await finds(a, [])
    await other.stop('SIGKILL')
    await finds(a, ['no-handshake', 'peer-silent'], /the last handshake was \d+ s ago, \d+ started here since$/)
  })

  it('finds that the clock of a peer went back', async () => {
    const [a, b] = await two()
    const kept = `${keyFile(a)}-flannel-wg.time`
    const ahead = Math.floor(Date.now() / 1_000 + 86_400) * 60
    writeFileSync(kept, String(ahead))
    const first = await start(a)
    // Handshakes that it starts would be answered whatever its peer's clock shows. So it must not start any, and those that it starts must
    // be lost.
    await start(b, {}, leases(), '--probe-interval', '0')
    await eventually(async () => expect((await statusOf(a)).peers).toMatchObject({ answering: 1 }))
    expect(Number(readFileSync(kept, 'utf8'))).toBeGreaterThan(ahead)
    await inShell(a, 'iptables -A INPUT -p udp --dport 51820 -j DROP')
    expect(await first.stop()).toBe(0)
    rmSync(kept)
    await start(a)
    await eventually(async () => expect((await sessionOf(b)).stale).toBeGreaterThan(1))
    await finds(b, ['clock-behind', 'peer-silent'], /the last handshake was .*\d+ with an old timestamp since$/)
  })

  it('finds the host without a lease that starts handshakes, and the host whose lease has another key', async () => {
    lab = await createLab({ hosts: 3 })
    const [a, b, c] = lab.hosts as [Host, Host, Host]
    await start(a)
    await start(b)
    await areWell(a, b)
    // The host knows the lease of a node of another network.
    const [own, others] = [leases(), leases('other-leases')]
    const lease = join('subnets', subnetOf(a).replace('/', '-'))
    mkdirSync(join(others, 'subnets'), { recursive: true })
    copyFileSync(join(own, lease), join(others, lease))
    await start(c, {}, others)
    await finds(a, ['key-unknown'], new RegExp(`^[\\w+/]{43}= from ${c.address}:51820, \\d+ s ago$`))
    await finds(b, [])
    await finds(c, ['no-handshake', 'peer-silent'])
  })
})

it('weft wg explains what to do on a node without encryption', async () => {
  lab = await createLab({ hosts: 1 })
  const [host] = lab.hosts as [Host]
  mkdirSync(leases())
  writeFileSync(join(leases(), 'config'), '{"Network":"10.5.0.0/16"}')
  await host.startDaemon({ args: ['--lease-dir', leases()] }).line(/flannel is ready/)
  expect(await weft(host, ['wg'])).toMatchObject({
    code: 1,
    stdout: '',
    stderr: expect.stringMatching(
      /this node does not encrypt packets: its backend is udp; `weft peers` shows its peers/,
    ),
  })
})
