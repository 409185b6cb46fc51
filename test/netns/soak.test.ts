// soak.test.ts - four hosts and an etcd of three members, with random faults one after another in the store, on a host or between hosts. No
// packet between hosts without a fault may be lost, and after each fault every node's table must equal the store. Four
// networks get a quarter of the time each: IPv4 in IPv4 datagrams, both families in IPv4 datagrams, both in IPv6 datagrams, and both in IPv4
// datagrams with FastPath.
//
// `npm run test:soak` runs these networks for 80 minutes in total; WEFT_SOAK_MINUTES sets the time of each network. WEFT_SEED=n repeats
// the faults of an earlier run in their order.

import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, expect, it } from 'vitest'
import { ended, output } from '../../lab/command.ts'
import { startEtcdCluster, type EtcdCluster, type EtcdMember } from '../../lab/etcd.ts'
import { createLab, EVENT_MS, networkOf, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import type { Family } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { subnetOf } from '../support/hosts.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'
import { randomFrom } from '../support/packet-model.ts'

needs(HOSTS, ...ETCD, 'clang++', 'ethtool', 'nft', 'ping')

const LONG_MINUTES = process.env['WEFT_LONG'] === '1' ? 20 : 1 / 6
/** The duration in ms of the test of each network. */
const SOAK_MS = Number(process.env['WEFT_SOAK_MINUTES'] ?? LONG_MINUTES) * 60_000
const SEED = Number(process.env['WEFT_SEED'] ?? Date.now() % 1_000_000)
const PREFIX = '/coreos.com/network'
/** Peers without a host are below the range from which hosts draw. */
const IPV4 = { Network: '10.5.0.0/16', SubnetMin: '10.5.16.0' }
const BOTH = { ...IPV4, EnableIPv6: true, IPv6Network: 'fd00:5::/48', IPv6SubnetMin: 'fd00:5:0:10::' }
interface Network {
  readonly inside: string
  readonly underlay: Family
  readonly families: readonly Family[]
  readonly hasFastPath: boolean
  readonly config: object
}
const network = (families: readonly Family[], underlay: Family, options: object = {}): Network => ({
  inside: families.length > 1 ? 'both families' : 'IPv4',
  underlay,
  families,
  hasFastPath: 'FastPath' in options,
  config: { ...(families.length > 1 ? BOTH : IPV4), Backend: { Type: 'udp', Underlay: underlay, ...options } },
})
const NETWORKS: readonly Network[] = [
  network(['ipv4'], 'ipv4'),
  network(['ipv4', 'ipv6'], 'ipv4'),
  network(['ipv4', 'ipv6'], 'ipv6'),
  network(['ipv4', 'ipv6'], 'ipv4', { FastPath: 'auto' }),
]

let lab: Lab
let etcd: EtcdCluster | undefined
let families: readonly Family[]
const daemons = new Map<Host, Daemon>()
/** All daemons of a test, including those that have ended. */
const started: Daemon[] = []
const random = randomFrom(SEED)
afterEach(async () => {
  daemons.clear()
  started.length = 0
  await lab.close()
  await etcd?.close()
  etcd = undefined
})

const startDaemon = (host: Host): void => {
  const endpoints = etcd!.members.map(({ endpoint }) => endpoint).join()
  // With both families weftd probes peers to choose the family of their datagrams.
  const asking = families.length > 1 ? ['--probe-interval', '1'] : []
  const daemon = host.startDaemon({ args: ['--etcd-endpoints', endpoints, ...asking] })
  daemons.set(host, daemon)
  started.push(daemon)
}

/** Returns the addresses of a host's device, one per carried family. */
const addressesOf = (host: Host): string[] =>
  families.map((family) => {
    const { FLANNEL_SUBNET: ipv4, FLANNEL_IPV6_SUBNET: ipv6 } = host.subnetEnv()
    return networkOf((family === 'ipv4' ? ipv4 : ipv6) ?? '').split('/')[0]!
  })

/** A put or delete may take a minute, because the cluster may be electing its leader. */
const ctl = (...args: string[]): Promise<string> => eventually(() => etcd!.ctl(args), { everyMs: 500 })

async function keysInStore(): Promise<string[]> {
  const keys = await ctl('get', '--prefix', `${PREFIX}/subnets/`, '--keys-only')
  return keys
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => line.slice(`${PREFIX}/subnets/`.length))
}
/** Returns the IPv4 subnet of a key, which the log uses to name the lease. */
const namedBy = (key: string): string => key.split('&')[0]!.replace('-', '/')

/** Reads from its log which peers a daemon forwards to. */
function tableOf(daemon: Daemon): Set<string> {
  const table = new Set<string>()
  for (const line of daemon.lines) {
    const [, what, subnet = ''] = /Subnet (added|removed): (\S+)$/.exec(line) ?? []
    if (what === 'added') table.add(subnet)
    if (what === 'removed') table.delete(subnet)
  }
  return table
}

/** Waits until every host has its lease, every table equals the store, and every host reaches all others. */
async function allIsWell(): Promise<void> {
  await eventually(
    async () => {
      const keys = await keysInStore()
      for (const [host, daemon] of daemons) {
        expect(daemon.process.exitCode).toBe(null)
        const own = ownKey(host).slice(`${PREFIX}/subnets/`.length)
        expect(keys).toContain(own)
        const others = keys.filter((key) => key !== own)
        expect([...tableOf(daemon)].toSorted(), host.name).toEqual(others.map(namedBy).toSorted())
      }
    },
    { everyMs: 500 },
  )
  await reachAll(pairs(lab.hosts))
}

const reachAll = (some: readonly (readonly [Host, Host])[]): Promise<unknown> =>
  Promise.all(some.flatMap(([from, to]) => addressesOf(to).map((address) => reach(from.namespace, address))))

const pairs = (hosts: readonly Host[]): [Host, Host][] =>
  hosts.flatMap((from) => hosts.filter((to) => to !== from).map((to): [Host, Host] => [from, to]))

/** Pings without a pause; the answers must have no gap. */
function keepPinging(from: Host, address: string): { lost(): Promise<number[]> } {
  const child = from.spawn(['ping', '-n', '-i', '0.2', address])
  const answered = new Set<number>()
  createInterface({ input: child.stdout! }).on('line', (line) => {
    const [, number] = /icmp_seq=(\d+) ttl=/.exec(line) ?? []
    if (number !== undefined) answered.add(Number(number))
  })
  return {
    async lost() {
      // Earlier pings have been answered or are lost.
      const before = Math.max(0, ...answered)
      await eventually(() => expect(Math.max(...answered)).toBeGreaterThan(before + 1))
      child.kill('SIGINT')
      await ended(child)
      // The last ping may be under way.
      const last = Math.max(0, ...answered)
      expect(last).toBeGreaterThan(0)
      return Array.from({ length: last }, (_, index) => index + 1).filter((number) => !answered.has(number))
    },
  }
}

interface Fault {
  readonly name: string
  /** Starts the fault, and returns a function that ends it. */
  strike(host: Host, member: EtcdMember): Promise<() => Promise<unknown>>
  /** True if the fault affects packets of its host. */
  readonly isOfHost?: boolean
  /** True if the fault exists only with both families. */
  readonly isOfBoth?: boolean
  /** True if the fault exists only with FastPath. */
  readonly isOfFastPath?: boolean
}

const inside = (host: Host, ...command: string[]): Promise<string> => host.output(command)
const nothing = async (): Promise<void> => {}

/** Drops these packets from and to a host. */
async function drop(host: Host, ports: string): Promise<() => Promise<unknown>> {
  const rule = (hook: string, name: string, way: string): string =>
    `add rule inet fault ${hook} ${name} "eth0" ${ports.replaceAll('WAY', way)} drop\n`
  const chain = (hook: string): string => `add chain inet fault ${hook} { type filter hook ${hook} priority 0 ; }\n`
  const rules = `add table inet fault
${chain('input')}${chain('output')}${rule('input', 'iifname', 'dport')}${rule('input', 'iifname', 'sport')}${rule('output', 'oifname', 'dport')}${rule('output', 'oifname', 'sport')}`
  await output(['ip', 'netns', 'exec', host.namespace, 'nft', '-f', '-'], { input: rules })
  return () => inside(host, 'nft', 'delete', 'table', 'inet', 'fault')
}

async function restart(host: Host, signal: NodeJS.Signals): Promise<() => Promise<unknown>> {
  const daemon = daemons.get(host)!
  daemon.process.kill(signal)
  await ended(daemon.process)
  return async () => {
    startDaemon(host)
    await daemons.get(host)!.line(/flannel is ready/)
  }
}

/** Drops the packets of a host in one underlay family until all hosts reach each other over the other family. */
async function cut(host: Host, family: Family): Promise<() => Promise<unknown>> {
  const repair = await drop(host, `meta nfproto ${family} udp WAY 8285`)
  await reachAll(pairs(lab.hosts).filter((pair) => pair.includes(host)))
  return repair
}

/** Adds a tc filter to the ingress of a host's external interface. weft's programs have the priority 4096. */
async function filter(host: Host, priority: string): Promise<() => Promise<unknown>> {
  const place = ['dev', 'eth0', 'ingress', 'prio', priority]
  await inside(host, 'tc', 'qdisc', 'replace', 'dev', 'eth0', 'clsact')
  await inside(
    host,
    'tc',
    'filter',
    'add',
    ...place,
    'protocol',
    'all',
    'u32',
    'match',
    'u8',
    '0',
    '0',
    'flowid',
    '1:1',
  )
  return () => inside(host, 'tc', 'filter', 'del', ...place)
}

function ownKey(host: Host): string {
  const ipv6 = host.subnetEnv()['FLANNEL_IPV6_SUBNET']?.replace('::1/', '::-')
  return `${PREFIX}/subnets/${[subnetOf(host).replace('/', '-'), ...(ipv6 === undefined ? [] : [ipv6])].join('&')}`
}

const FAULTS: readonly Fault[] = [
  {
    name: 'a member is killed',
    async strike(_host, member) {
      await member.kill()
      return () => member.start()
    },
  },
  {
    name: 'a member is frozen',
    async strike(_host, member) {
      await member.freeze()
      return async () => member.thaw()
    },
  },
  {
    name: 'all members are killed',
    async strike() {
      const { members } = etcd!
      await Promise.all(members.map((member) => member.kill()))
      return () => Promise.all(members.map((member) => member.start()))
    },
  },
  { name: 'a host is cut off from the store', strike: (host) => drop(host, 'tcp WAY { 2379, 2380 }') },
  {
    // The node counts as gone until its host has written the lease again.
    name: 'a lease is deleted',
    isOfHost: true,
    async strike(host) {
      await ctl('del', ownKey(host))
      return nothing
    },
  },
  {
    name: 'all leases are deleted',
    async strike() {
      await ctl('del', '--prefix', `${PREFIX}/subnets/`)
      return nothing
    },
  },
  {
    name: 'junk is put under a lease',
    async strike(host) {
      await ctl('put', ownKey(host), '{"PublicIP":')
      return nothing
    },
  },
  {
    name: 'a peer comes or goes',
    async strike() {
      const number = random.below(8)
      // Peers with even numbers have IPv4 only, like those of a flanneld.
      const hasIpv6 = families.length > 1 && number % 2 === 1
      const key = `${PREFIX}/subnets/10.5.${number}.0-24${hasIpv6 ? `&fd00:5:0:${number}::-64` : ''}`
      const at = random.below(250)
      const ipv6 = hasIpv6 ? `"2001:db8::${at.toString(16)}"` : 'null'
      if (random.chance(0.5)) await ctl('del', key)
      else await ctl('put', key, `{"PublicIP":"198.51.100.${at}","PublicIPv6":${ipv6}}`)
      return nothing
    },
  },
  {
    name: 'the history is compacted while a member is frozen',
    async strike(_host, member) {
      await member.freeze()
      const cluster = etcd!
      const others = cluster.members.filter((each) => each !== member)
      await eventually(() => cluster.ctl(['put', `${PREFIX}/other`, 'x'], others), { everyMs: 500 })
      const text = await eventually(() => cluster.ctl(['get', 'x', '-w', 'json'], others), { everyMs: 500 })
      const revision = /"revision":(\d+)/.exec(text)?.[1] ?? ''
      await cluster.ctl(['compact', revision], others).catch(() => {}) // compacted already, or by another leader
      return async () => member.thaw()
    },
  },
  { name: 'a daemon is killed', isOfHost: true, strike: (host) => restart(host, 'SIGKILL') },
  { name: 'a daemon is stopped', isOfHost: true, strike: (host) => restart(host, 'SIGTERM') },
  {
    name: 'a daemon is frozen',
    isOfHost: true,
    async strike(host) {
      const { process } = daemons.get(host)!
      process.kill('SIGSTOP')
      return async () => process.kill('SIGCONT')
    },
  },
  {
    name: 'a device is deleted',
    isOfHost: true,
    async strike(host) {
      await inside(host, 'ip', 'link', 'delete', 'flannel0')
      return nothing
    },
  },
  {
    name: 'a route is deleted',
    isOfHost: true,
    async strike(host) {
      const routes = families.map((family) => (family === 'ipv4' ? '10.5.0.0/16' : 'fd00:5::/48'))
      for (const route of routes) await inside(host, 'ip', 'route', 'delete', route, 'dev', 'flannel0')
      return nothing
    },
  },
  { name: 'packets are dropped', isOfHost: true, strike: (host) => drop(host, 'udp WAY 8285') },
  { name: 'the network carries no IPv4', isOfHost: true, isOfBoth: true, strike: (host) => cut(host, 'ipv4') },
  { name: 'the network carries no IPv6', isOfHost: true, isOfBoth: true, strike: (host) => cut(host, 'ipv6') },
  {
    name: 'a link is down',
    isOfHost: true,
    async strike(host) {
      // Linux removes the IPv6 addresses and the default routes of an interface that goes down. A host's network
      // manager restores them.
      await inside(host, 'sysctl', '-q', '-w', 'net.ipv6.conf.eth0.keep_addr_on_down=1')
      const flags = families.map((family) => (family === 'ipv4' ? '-4' : '-6'))
      const routes = await Promise.all(flags.map((flag) => inside(host, 'ip', flag, 'route', 'show', 'default')))
      await inside(host, 'ip', 'link', 'set', 'eth0', 'down')
      return async () => {
        await inside(host, 'ip', 'link', 'set', 'eth0', 'up')
        for (const [index, flag] of flags.entries())
          for (const route of routes[index]!.split('\n').filter((line) => line !== ''))
            await inside(host, 'ip', flag, 'route', 'replace', ...route.trim().split(/\s+/))
      }
    },
  },
  {
    name: 'an offload is off',
    isOfFastPath: true,
    async strike(host) {
      const offload = random.of(['tso', 'gso', 'gro', 'tx', 'sg'])
      await inside(host, 'ethtool', '-K', 'eth0', offload, 'off')
      return () => inside(host, 'ethtool', '-K', 'eth0', offload, 'on')
    },
  },
  { name: 'a tc filter runs before the programs', isOfFastPath: true, strike: (host) => filter(host, '10') },
  { name: 'a tc filter runs after the programs', isOfFastPath: true, strike: (host) => filter(host, '5000') },
]

const PROMOTED = /FastPath: the kernel carries the packets to/

it.for(NETWORKS)(
  'loses no packet of $inside over $underlay (FastPath: $hasFastPath) while its path has no fault, and every table equals the store after each fault',
  { timeout: SOAK_MS + 20 * EVENT_MS },
  async ({ inside: inner, underlay, hasFastPath, config, ...carried }, { annotate }) => {
    families = carried.families
    lab = await createLab({ hosts: 4, families })
    etcd = await startEtcdCluster(lab.hosts)
    await ctl('put', `${PREFIX}/config`, JSON.stringify(config))
    for (const host of lab.hosts) startDaemon(host)
    for (const daemon of daemons.values()) await daemon.line(/flannel is ready/)
    await allIsWell()
    const subnets = lab.hosts.map(ownKey)
    const faults = FAULTS.filter(
      ({ isOfBoth, isOfFastPath }) => (!isOfBoth || families.length > 1) && (!isOfFastPath || hasFastPath),
    )
    const struck = new Map<string, number>()
    let pings = 0
    const end = performance.now() + SOAK_MS
    while (performance.now() < end) {
      const fault = random.of(faults)
      const host = random.of(lab.hosts)
      const title = `${fault.name} (${host.name}, seed ${SEED}, round ${[...struck.values()].reduce((a, b) => a + b, 0)})`
      const left = end - performance.now()
      const far = `${Math.floor(100 * (1 - left / SOAK_MS))}%, about ${Math.ceil(left / 60_000)} min left`
      await annotate(`${far}: ${title}`, 'step')
      struck.set(fault.name, (struck.get(fault.name) ?? 0) + 1)
      const apart = pairs(lab.hosts).filter((pair) => !(fault.isOfHost && pair.includes(host)))
      const flows = apart.flatMap(([from, to]) =>
        addressesOf(to).map(
          (address) => [`${from.name} to ${to.name}, ${address}`, keepPinging(from, address)] as const,
        ),
      )
      const heal = await fault.strike(host, random.of(etcd.members))
      // During this time nothing else must happen.
      await delay(random.of([0, 500, 5_000, 20_000].slice(0, SOAK_MS > 60_000 ? 4 : 2)))
      await heal()
      await allIsWell().catch((error: unknown) => {
        throw new Error(`not well after: ${title}`, { cause: error })
      })
      for (const [way, flow] of flows) {
        expect(await flow.lost(), `${way}: ${title}`).toEqual([])
        pings++
      }
    }
    expect(lab.hosts.map(ownKey)).toEqual(subnets)
    const promotions = started.flatMap(({ lines }) => lines).filter((line) => PROMOTED.test(line)).length
    if (hasFastPath) expect(promotions).toBeGreaterThan(0)
    const counts = JSON.stringify({ ...Object.fromEntries(struck), promotions })
    console.log(`${inner} over ${underlay}, seed ${SEED}: ${pings} flows without a loss; ${counts}`)
  },
)
