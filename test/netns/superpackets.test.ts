// superpackets.test.ts - each rule, counter and limit of the host's packet filter applies to the UDP and ICMP packets
// that were sent, even if weftd receives many together, unless the device's offload for joined UDP is on.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, expect, it } from 'vitest'
import { createLab, networkOf, WIREGUARD_APART, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import type { Family } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { statusOf, tunAddress } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'nft', 'ethtool', 'python3', 'ping')

let lab: Lab
afterEach(() => lab?.close())

const BURST = 100
const BYTES = 600
/** The port of each kind of rule. */
const PORT = { counted: 7001, length: 7002, payload: 7003, limit: 7004, local: 7005 } as const
/** The datagrams of each burst that must arrive: the payload rule drops every second one, and the limit accepts 20. */
const MUST_ARRIVE = { counted: BURST, length: BURST, payload: BURST / 2, limit: 20, local: BURST }
const TABLES = { ipv4: ['ip', 'judge'], ipv6: ['ip6', 'judge'] } as const
const rulesOf = (family: Family): string => `table ${TABLES[family].join(' ')} {
  counter counted { }
  counter long { }
  counter local { }
  counter echoes { }
  chain forward { type filter hook forward priority 0;
    ${family === 'ipv4' ? 'icmp' : 'icmpv6'} type echo-request counter name echoes
    udp dport ${PORT.counted} counter name counted
    udp dport ${PORT.length} meta length > 1000 counter name long drop
    udp dport ${PORT.payload} @th,64,32 0x62616421 drop
    udp dport ${PORT.limit} limit rate 1/day burst 20 packets accept
    udp dport ${PORT.limit} drop
  }
  chain input { type filter hook input priority 0;
    udp dport ${PORT.local} counter name local
  }
}`
/** Sends a burst of datagrams to each port, of which every second one starts with `bad!`. */
const SEND = `
import socket, sys
for port, to in ((int(word.split('@')[0]), word.split('@')[1]) for word in sys.argv[1:]):
    s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(${BURST}):
        s.sendto((b'bad!' if number % 2 else b'good').ljust(${BYTES}, b'.'), (to, port))
`
/** Prints the number of datagrams that have arrived at each port. */
const RECEIVE = `
import json, select, socket, sys
ports = [int(word) for word in sys.argv[1:]]
sockets = {}
for port in ports:
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    s.bind(('', port))
    sockets[s] = port
counts = {port: 0 for port in ports}
print(json.dumps(counts), flush=True)
while True:
    for s in select.select(list(sockets), [], [])[0]:
        counts[sockets[s]] += len(s.recv(65536)) == ${BYTES}
    print(json.dumps(counts), flush=True)
`

const KINDS = [
  { backend: { Type: 'udp' }, devices: { ipv4: 'flannel0', ipv6: 'flannel0' } },
  { backend: { Type: 'vxlan', DataPath: 'userspace' }, devices: { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' } },
  { backend: { Type: 'wireguard', DataPath: 'userspace' }, devices: { ipv4: 'flannel-wg', ipv6: 'flannel-wg-v6' } },
] as const
const FAMILIES = ['ipv4', 'ipv6'] as const
const ROWS = KINDS.flatMap((kind) => FAMILIES.map((family) => ({ ...kind, family })))

function start(host: Host, backend: object): Daemon {
  mkdirSync(join(lab.folder, 'leases'), { recursive: true })
  const config = { Network: '10.5.0.0/16', EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: backend }
  writeFileSync(join(lab.folder, 'leases', 'config'), JSON.stringify(config))
  return host.startDaemon({
    args: ['--lease-dir', join(lab.folder, 'leases'), '--workers', '1', '--probe-interval', '0'],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
    before: WIREGUARD_APART,
  })
}

/** Counts the datagrams that arrive at each port from the moment when this resolves. */
async function receiver(at: Pick<Pod, 'spawn'>, ports: readonly number[]) {
  let counts: Readonly<Record<string, number>> | undefined
  const child = at.spawn(['python3', '-c', RECEIVE, ...ports.map(String)])
  createInterface({ input: child.stdout! }).on('line', (line) => (counts = JSON.parse(line) as typeof counts))
  await eventually(() => expect(counts).toBeDefined())
  return (port: number): number => counts?.[port] ?? -1
}

interface NamedCounter {
  readonly counter?: { readonly name: string; readonly packets: number }
}
async function counted(host: Host): Promise<Readonly<Record<string, number>>> {
  const { nftables } = JSON.parse(await host.output(['nft', '-j', 'list', 'counters'])) as { nftables: NamedCounter[] }
  return Object.fromEntries(nftables.flatMap(({ counter }) => (counter ? [[counter.name, counter.packets]] : [])))
}

const transmitted = async (host: Host): Promise<number> => (await statusOf(host)).dataPath!.counters['tx_packets'] ?? 0

/** Returns the host's own address in its subnet. */
const ownAddress = (host: Host, family: Family): string =>
  family === 'ipv4' ? tunAddress(host) : networkOf(host.subnetEnv()['FLANNEL_IPV6_SUBNET']!).split('/')[0]!

it.each(ROWS)('rules apply to the $family packets that were sent, with $backend.Type', async (row) => {
  const { backend, family } = row
  const device = row.devices[family]
  lab = await createLab({ hosts: 2, families: FAMILIES })
  const [a, b] = lab.hosts as [Host, Host]
  await start(a, backend).line(/flannel is ready/)
  const daemon = start(b, backend)
  await daemon.line(/flannel is ready/)
  const [from, to] = [await a.startPod(), await b.startPod()]
  const podAddress = family === 'ipv4' ? to.address : to.ipv6!
  const hostAddress = ownAddress(b, family)
  await reach(from.namespace, podAddress)
  await reach(from.namespace, hostAddress)
  const inPod = await receiver(to, [PORT.counted, PORT.length, PORT.payload, PORT.limit])
  const onHost = await receiver(b, [PORT.local])

  /** Makes weftd find five bursts in its socket, and returns the counts of the rules and of the receiver. */
  const burst = async (): Promise<{ seen: Readonly<Record<string, number>>; arrived: typeof MUST_ARRIVE }> => {
    await b.run(['nft', 'delete', 'table', ...TABLES[family]])
    await b.output(['nft', '-f', '-'], { input: rulesOf(family) })
    const names = Object.keys(PORT) as (keyof typeof PORT)[]
    const count = (name: keyof typeof PORT): number => (name === 'local' ? onHost : inPod)(PORT[name])
    const before = Object.fromEntries(names.map((name) => [name, count(name)]))
    const sent = await transmitted(a)
    daemon.process.kill('SIGSTOP')
    const targets = names.map((name) => `${PORT[name]}@${name === 'local' ? hostAddress : podAddress}`)
    await from.output(['python3', '-c', SEND, ...targets])
    await eventually(async () => expect(await transmitted(a)).toBeGreaterThanOrEqual(sent + names.length * BURST))
    daemon.process.kill('SIGCONT')
    await from.output(['ping', '-n', '-c', '5', '-i', '0.01', podAddress]) // they follow all other packets, in one lane
    const arrived = () => Object.fromEntries(names.map((name) => [name, count(name) - (before[name] ?? 0)]))
    await eventually(() => expect(arrived()['counted']).toBe(BURST))
    await eventually(() => expect(arrived()['local']).toBe(BURST))
    // ping ends two round trips after the last request, which a busy host may not have forwarded by then.
    await eventually(async () => expect((await counted(b))['echoes']).toBe(5))
    return { seen: await counted(b), arrived: arrived() as typeof MUST_ARRIVE }
  }

  const judged = { counted: BURST, local: BURST, long: 0, echoes: 5 }
  expect(await burst()).toEqual({ seen: judged, arrived: MUST_ARRIVE })
  expect((await statusOf(b)).dataPath!.features).not.toContain('coalesce-udp')

  // The offload works like the kernel's own GRO: it joins forwarded datagrams, but not those to local sockets.
  await b.output(['ethtool', '-K', device, 'rx-udp-gro-forwarding', 'on'])
  await daemon.line(new RegExp(`Received UDP packets are joined for ${device}:`))
  const joined = await burst()
  expect(joined.seen['counted']).toBeLessThan(BURST / 2)
  expect(joined.seen['long']).toBeGreaterThan(0)
  expect(joined.seen['local']).toBe(BURST)
  expect(joined.arrived.limit).toBeGreaterThan(MUST_ARRIVE.limit)

  await b.output(['ethtool', '-K', device, 'rx-udp-gro-forwarding', 'off'])
  await daemon.line(new RegExp(`Received UDP packets are no longer joined for ${device}:`))
  expect(await burst()).toEqual({ seen: judged, arrived: MUST_ARRIVE })
  await b.output(['ethtool', '-K', device, 'gro', 'off'])
  await daemon.line(new RegExp(`Received TCP packets are no longer joined for ${device}:`))
})
