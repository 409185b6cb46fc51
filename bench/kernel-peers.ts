// kernel-peers.ts - measures the CPU time that a data path in the kernel needs to set up PEERS dual-stack peers, to
// change one of the peers, and to remove or add one peer. The figure for removing or adding includes the check of all
// peers, which the kernel's netlink reports of the change may trigger. Run the program in an empty network namespace,
// because it adds all peers to the kernel's tables: `unshare --net node dist/bench/kernel-peers.js vxlan|host-gw PEERS`
// prints one line of JSON.
//
// The CPU time includes the kernel's work and the commands that weftd runs; `systemS` is the CPU time of this process
// in the kernel, without the commands. Other programs that share the caches of the CPU raise both figures.

import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { readSettings } from '../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../src/control/config/network-config.ts'
import type { Lease, OwnLease } from '../src/control/lease/lease.ts'
import { run } from '../src/host/command.ts'
import { changesOf, watchHost } from '../src/host/events.ts'
import { hostKernel } from '../src/host/netlink/host-kernel.ts'
import { FAMILIES } from '../src/net/address.ts'
import { openDataPaths } from '../src/node/data-paths.ts'
import { createHostGwBackend } from '../src/path/backends/host-gw.ts'
import { createVxlanBackend } from '../src/path/backends/vxlan.ts'

const CHANGES = 200
/** How long, in ms, the benchmark waits for the kernel's netlink reports of a change. */
const SETTLE_MS = 200
const [, , type = '', count = ''] = process.argv
const peers = Number(count)
if ((type !== 'vxlan' && type !== 'host-gw') || !Number.isInteger(peers)) throw new Error('vxlan or host-gw, and PEERS')

const log = {
  info: () => {},
  warn: (line: string) => void process.stderr.write(`${line}\n`),
  error: (line: string) => void process.stderr.write(`${line}\n`),
  v: () => false,
}

/** Returns the CPU time in ms of this process and of its ended child processes (proc_pid_stat(5)). */
function cpuMs(): number {
  const stat = readFileSync('/proc/self/stat', 'utf8')
  const [, , , , , , , , , , , , , , cutime = '0', cstime = '0'] = stat.slice(stat.lastIndexOf(')') - 1).split(' ')
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000 + (Number(cutime) + Number(cstime)) * 10
}

const HOST = { ipv4: 0xac10_0001, ipv6: (0xfd88n << 112n) + 1n }
for (const words of [
  'link add eth0 type veth peer name eth1',
  'link set eth1 up',
  'link set eth0 up',
  'address add 172.16.0.1/12 dev eth0',
  'address add fd88::1/64 dev eth0 nodad',
])
  await run('ip', words.split(' '))

/**
 * Returns the lease of a peer. `changed` is the number of changes so far. With the backend vxlan each change gives the
 * lease another MAC address (VtepMAC). With host-gw, whose leases contain no MAC address, each change gives the lease
 * other public IP addresses.
 */
function lease(number: number, changed = 0): Lease {
  const mac = (first: number): string =>
    [first, changed & 255, 0, (number >> 16) & 255, (number >> 8) & 255, number & 255]
      .map((byte) => byte.toString(16).padStart(2, '0'))
      .join(':')
  const moved = type === 'vxlan' ? 0 : changed
  return {
    key: `10.${1 + (number >> 8)}.${number & 255}.0-24`,
    subnet: {
      ipv4: { address: 0x0a01_0000 + number * 256, prefixLength: 24 },
      ipv6: { address: (0xfd00_0005_0000_1000n + BigInt(number)) << 64n, prefixLength: 64 },
    },
    attrs: {
      publicIp: {
        ipv4: 0xac11_0000 + moved * 65_536 + number,
        ipv6: (0xfd88n << 112n) + BigInt(0x1_0000 + moved * 65_536 + number),
      },
      backendType: type,
      ...(type === 'vxlan'
        ? { backendData: { VNI: 1, VtepMAC: mac(2) }, backendV6Data: { VNI: 1, VtepMAC: mac(6) } }
        : {}),
    },
  }
}

const backendConfig = type === 'vxlan' ? { Type: type, DataPath: 'kernel' } : { Type: type }
const config = parseNetworkConfig(
  JSON.stringify({ Network: '10.0.0.0/8', EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: backendConfig }),
)
const external = {
  name: 'eth0',
  mtu: 1500,
  address: HOST,
  publicIp: HOST,
  named: { address: { ipv4: true, ipv6: true }, publicIp: { ipv4: true, ipv6: true } },
}
const common = { config, external, run, kernel: hostKernel, log }
const backend =
  type === 'vxlan'
    ? createVxlanBackend({
        ...common,
        settings: readSettings('vxlan', config.backend),
        startEngine: () => Promise.reject(new Error('the kernel carries the packets')),
        persistence: { persist: true, tunNames: [], isMultiQueue: false, inherit: async () => undefined },
        publishedBefore: async () => undefined,
      })
    : createHostGwBackend({ ...common, settings: readSettings('host-gw', config.backend) })
const { signal } = new AbortController()
const attrs = await backend.prepare(signal)
const own: OwnLease = {
  key: '10.200.0.0-24',
  subnet: {
    ipv4: { address: 0x0ac8_0000, prefixLength: 24 },
    ipv6: { address: 0xfd00_0005_0000_0001n << 64n, prefixLength: 64 },
  },
  attrs,
  expiresAt: 0,
  revision: 1n,
}
const leases = new Map(Array.from({ length: peers }, (_, at) => lease(at + 1)).map((each) => [each.key, each]))
const dataPath = await openDataPaths({ backend, lease: own, leases: new Map(), signal, kernel: hostKernel, log })

const [cpu, system, began] = [cpuMs(), process.cpuUsage().system, performance.now()]
await dataPath.apply(leases, own.key)
const all = {
  cpuS: (cpuMs() - cpu) / 1000,
  systemS: (process.cpuUsage().system - system) / 1e6,
  seconds: (performance.now() - began) / 1000,
}

const [changeCpu, changesBegan] = [cpuMs(), performance.now()]
for (let change = 1; change <= CHANGES; change++) {
  const each = lease(change, 1)
  leases.set(each.key, each)
  await dataPath.apply(leases, own.key, new Set([each.key]))
}
const one = { cpuMs: (cpuMs() - changeCpu) / CHANGES, ms: (performance.now() - changesBegan) / CHANGES }

const checkCpu = cpuMs()
const repaired = await dataPath.resync()
const check = { cpuMs: cpuMs() - checkCpu, repaired: repaired.length }
// The number of times that a peer leaves or joins. After each change the data path checks all peers, if the kernel's
// reports of the change require it.
const FOLLOWED = 10
let rang = false
for (const watched of [changesOf(() => FAMILIES), ...dataPath.watched])
  void watchHost(hostKernel, () => (rang = true), log, signal, watched)
await delay(SETTLE_MS)
let checks = 0
const followedCpu = cpuMs()
for (let change = 1; change <= FOLLOWED; change++) {
  rang = false
  const each = lease(Math.ceil(change / 2), 1)
  if (change % 2 === 1) leases.delete(each.key)
  else leases.set(each.key, each)
  await dataPath.apply(leases, own.key, new Set([each.key]))
  await delay(SETTLE_MS)
  if (!rang) continue
  checks++
  await dataPath.resync()
}
const followed = { cpuMs: (cpuMs() - followedCpu) / FOLLOWED, checks: checks / FOLLOWED }
const round = (value: number): number => Number(value.toPrecision(3))
const rounded = (values: Readonly<Record<string, number>>): object =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [name, round(value)]))
process.stdout.write(
  `${JSON.stringify({ type, peers, all: rounded(all), one: rounded(one), check: rounded(check), followed: rounded(followed), set: dataPath.peers().length })}\n`,
)
process.exit(0)
