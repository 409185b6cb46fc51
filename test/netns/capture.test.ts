// capture.test.ts - weft capture on a real host: dropped packets as lines, as JSON, and as a file that tcpdump reads.
// test/native/engines.test.ts checks that all engines keep the same packets.

import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { createLab, packageRoot, type Host, type Lab } from '../../lab/lab.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import type { DropsReport } from '../../src/report/drops.ts'
import { eventually } from '../support/event.ts'
import { added, tunAddress } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { ipv4Packet, udpDatagram } from '../support/packets.ts'

needs(HOSTS, 'curl', 'ping', 'tcpdump')

const NEW = '10.5.0.0/24' // which no node draws
const NOBODYS = '10.5.0.5'

let lab: Lab
let host: Host
let other: Host
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  ;[host, other] = lab.hosts as [Host, Host]
})
afterEach(() => lab.close())

const leases = (): string => join(lab.folder, 'leases')
async function start(backend: object, ...more: string[]) {
  // Otherwise the kernel's own IPv6 solicitations would be dropped packets too.
  await host.output(['sh', '-c', 'echo 1 | tee /proc/sys/net/ipv6/conf/*/disable_ipv6'])
  await host.output(['mkdir', '-p', join(leases(), 'subnets')])
  writeFileSync(
    join(leases(), 'config'),
    JSON.stringify({ Network: '10.5.0.0/16', SubnetMin: '10.5.16.0', Backend: backend }),
  )
  const daemon = host.startDaemon({ args: ['--lease-dir', leases(), ...more] })
  await daemon.line(/flannel is ready/)
  return daemon
}
const weft = (...words: string[]): string[] => [
  process.execPath,
  join(packageRoot, 'bin/weft'),
  'capture',
  ...words,
  '--status-socket',
  host.statusSocket,
]
const report = async (...words: string[]): Promise<DropsReport> =>
  JSON.parse(await host.output(weft('--json', ...words))) as DropsReport
/** Sends datagrams from the other host, one after the other. */
async function send(port: number, ...datagrams: readonly Buffer[]): Promise<void> {
  const script = `
    const socket = require('node:dgram').createSocket('udp4')
    const all = ${JSON.stringify(datagrams.map((datagram) => datagram.toString('hex')))}
    const next = () => all.length > 0 ? socket.send(Buffer.from(all.shift(), 'hex'), ${port}, '${host.address}', next) : socket.close()
    next()`
  await other.output([process.execPath, '-e', script])
}
const ping = (to: string, ...more: string[]) => host.run(['ping', '-n', '-c', '1', '-W', '1', ...more, to])

it('shows the dropped packets and the reasons', async () => {
  const daemon = await start({ Type: 'udp' }, '--workers', '1', '--healthz-port', '8080')
  const own = tunAddress(host)
  expect(await report()).toMatchObject({ schema: 1, device: 'flannel0', engine: 'native', packets: [] })
  await ping(NOBODYS)
  writeFileSync(join(leases(), 'subnets', NEW.replace('/', '-')), JSON.stringify({ PublicIP: other.address }))
  await daemon.line(added(NEW))
  await ping(NOBODYS, '-t', '1')
  const [source, destination] = [parseIpv4('10.5.1.254')!, parseIpv4(own)!]
  const payload = udpDatagram(source, destination, 1234, 80, Buffer.alloc(200, 1))
  const forged = ipv4Packet({ source, destination, payload })
  await send(8285, forged, Buffer.from('hello'))

  const all = await eventually(async () => {
    const reported = await report()
    expect(reported.packets).toHaveLength(4)
    return reported
  })
  const about = (reason: string, direction: string, peer: string | null, length: number) => ({
    reason,
    direction,
    peer,
    length,
    packets: 1,
    encap: '',
  })
  expect(all.packets).toEqual([
    expect.objectContaining(about('tx_drop_no_route', 'out', null, 84)),
    expect.objectContaining(about('tx_drop_ttl', 'out', other.address, 84)),
    expect.objectContaining(about('rx_drop_unknown_sender', 'in', other.address, 228)),
    expect.objectContaining(about('rx_drop_malformed', 'in', other.address, 5)),
  ])
  expect(all.packets[2]!.headers).toBe(forged.subarray(0, 128).toString('hex'))
  expect(Math.abs(all.packets[0]!.atUs / 1000 - Date.now())).toBeLessThan(60_000)
  expect(all.reasons['tx_drop_ttl']).toEqual({ packets: 1, means: 'the TTL or hop limit expired here' })
  // The health port must not serve the content of packets.
  expect(await host.output(['curl', '-sS', 'http://127.0.0.1:8080/drops.json'])).toBe('404 page not found\n')

  expect((await report('--reason', 'ttl')).packets).toHaveLength(1)
  const lines = (await host.output(weft())).split('\n')
  const when = String.raw`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`
  expect(lines).toEqual([
    expect.stringMatching(
      new RegExp(`${when} out ${own} > ${NOBODYS} icmp echo request, 84 bytes: no peer has the destination`),
    ),
    expect.stringContaining(
      `> ${NOBODYS} icmp echo request, 84 bytes, to ${other.address}: the TTL or hop limit expired here`,
    ),
    expect.stringMatching(
      new RegExp(
        `${when} in {2}10.5.1.254:1234 > ${own}:80 udp, 228 bytes, from ${other.address}: .*unknown_sender\\)$`,
      ),
    ),
    expect.stringMatching(/ not an IP packet: 68656c6c6f, 5 bytes, .*\(rx_drop_malformed\)$/),
    'shown: 4 of the 4 packets dropped since the data path was opened',
    '',
  ])

  const file = join(lab.folder, 'drops.pcapng')
  const { code, stdout, stderr } = await host.run(weft('--write', file))
  expect([code, stdout, stderr]).toEqual([
    0,
    '',
    'written: 4 of the 4 packets dropped since the data path was opened\n',
  ])
  expect(statSync(file).mode & 0o777).toBe(0o600)
  const shown = (await host.output(['tcpdump', '-nttr', file])).split('\n')
  expect(shown[0]).toMatch(new RegExp(`^\\d+\\.\\d{6} IP ${own} > ${NOBODYS}: ICMP echo request`))
  expect(shown[2]).toMatch(/ IP 10\.5\.1\.254\.1234 > .*\.80: UDP, length 200/)
  expect(shown).toHaveLength(5)

  // The command ends successfully if its reader closes the pipe.
  const unread = await host.run(['sh', '-c', '{ "$@"; echo $? >&2; } | true', 'sh', ...weft()])
  expect(unread).toMatchObject({ stderr: '0\n' })

  // --follow prints later drops, and none twice.
  const following = host.spawn(weft('--follow'))
  let received = ''
  following.stdout!.on('data', (text: Buffer) => (received += text.toString()))
  await eventually(() => expect(received.match(/\n/g)).toHaveLength(4))
  await send(8285, Buffer.from('again'))
  await eventually(() => expect(received).toContain('616761696e'))
  expect(received.match(/\n/g)).toHaveLength(5)
  // `weft capture --follow` must also print the drops of the next daemon.
  await daemon.stop('SIGKILL')
  await start({ Type: 'udp' }, '--workers', '1', '--healthz-port', '8080')
  await send(8285, Buffer.from('later'))
  await eventually(() => expect(received).toContain('6c61746572'))
  const ended = new Promise((resolve) => following.once('exit', resolve))
  following.kill('SIGINT')
  expect(await ended).toBe(0)
})

it('shows the unchanged datagram if VXLAN drops it because it has no frame for this host', async () => {
  await start({ Type: 'vxlan', DataPath: 'userspace' })
  const frame = Buffer.concat([Buffer.from('0800000000000700', 'hex'), Buffer.alloc(14, 2), Buffer.alloc(40, 3)])
  await send(8472, frame)
  const reported = await eventually(async () => {
    const drops = await report()
    expect(drops.packets).toHaveLength(1)
    return drops
  })
  expect(reported.packets[0]).toMatchObject({
    reason: 'rx_drop_not_ours',
    encap: '0800000000000700' + '02'.repeat(14),
    headers: Buffer.alloc(40, 3).toString('hex'),
  })
  expect(await host.output(weft())).toContain(`from ${other.address}, behind 0800000000000700`)
})

it("counts each packet that the kernel drops because the TUN's queue is full once, also if a new weftd takes over", async () => {
  const QUEUE = 4_000 // QUEUE_LENGTH in tun-device.ts
  const MORE = 50
  const args = ['--workers', '1', '--probe-interval', '0']
  const droppedByDevice = async (): Promise<number> =>
    Number(await host.output(['cat', '/sys/class/net/flannel0/statistics/tx_dropped']))
  const droppedByStatus = async (): Promise<number | undefined> =>
    (await report()).reasons['tx_drop_queue_full']?.packets
  /** Stops weftd, sends more packets than the queue of the TUN holds, and lets weftd continue. */
  async function overflow({ process: { pid } }: Awaited<ReturnType<typeof start>>): Promise<void> {
    process.kill(pid!, 'SIGSTOP')
    await eventually(() => expect(readFileSync(`/proc/${pid}/stat`, 'utf8')).toMatch(/\) T /))
    const script = `
      const socket = require('node:dgram').createSocket('udp4')
      let left = ${QUEUE + MORE}
      const next = () => left-- > 0 ? socket.send('x', 9, '${NOBODYS}', next) : socket.close()
      next()`
    await host.output([process.execPath, '-e', script])
    process.kill(pid!, 'SIGCONT')
  }

  const first = await start({ Type: 'udp' }, ...args)
  expect(await droppedByStatus()).toBe(0)
  await overflow(first)
  const lost = await droppedByDevice()
  expect(lost).toBeGreaterThanOrEqual(MORE)
  await eventually(async () => expect(await droppedByStatus()).toBe(lost))
  expect(await host.output(weft())).toContain(`of ${lost} more the kernel reports only the number: tx_drop_queue_full`)

  const second = await start({ Type: 'udp' }, ...args)
  expect(second.lines.some((line) => line.includes('Forwarding between'))).toBe(true)
  expect(await droppedByStatus()).toBe(0)
  await overflow(second)
  const more = (await droppedByDevice()) - lost
  expect(more).toBeGreaterThanOrEqual(MORE)
  await eventually(async () => expect(await droppedByStatus()).toBe(more))
})
