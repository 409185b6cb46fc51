// lease-last.test.ts - a node that cannot forward ends with a clear error, and has written nothing to the store: other nodes send packets to
// every node with a lease. Each case puts one obstacle in the way of a fresh node.

import { chmodSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, whyNoVxlan, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import type { KubeApi } from '../support/kube-admin.ts'
import { openKubeRelay, type KubeRelay } from '../support/kube-relay.ts'
import { startKubeServer } from '../support/kube-server.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

const lack = needs(HOSTS, ...ETCD, 'openssl', 'nft')

let lab: Lab
let host: Host
let etcd: Etcd | undefined
let api: KubeApi | undefined
let relay: KubeRelay | undefined

beforeAll(async () => {
  if (lack !== undefined) return
  lab = await createLab({ hosts: 1, families: ['ipv4', 'ipv6'] })
  host = lab.hosts[0]!
})
afterAll(async () => {
  await lab?.close()
  await relay?.close()
  await api?.close()
  await etcd?.close()
})

type Families = 'IPv4' | 'IPv6' | 'both families'
const networkOf = (families: Families): object => ({
  ...(families === 'IPv6' ? { EnableIPv4: false } : { Network: '10.5.0.0/16' }),
  ...(families === 'IPv4' ? {} : { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }),
})

/** The flags for a store, and the keys that a node has written to it. */
interface Bed {
  readonly configure: (config: object) => Promise<unknown> | void
  readonly args: readonly string[]
  readonly written: () => Promise<unknown>
  readonly nothing: unknown
}

const BEDS: Readonly<Record<string, () => Promise<Bed>>> = {
  async 'a directory'() {
    const folder = join(lab.folder, 'leases')
    mkdirSync(folder, { recursive: true })
    return {
      configure: (config) => writeFileSync(join(folder, 'config'), JSON.stringify(config)),
      args: ['--lease-dir', folder],
      written: async () =>
        readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) => /\d-\d+/.test(name)),
      nothing: [],
    }
  },
  async etcd() {
    const server = (etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' }))
    return {
      configure: (config) => server.ctl('put', '/coreos.com/network/config', JSON.stringify(config)),
      args: ['--etcd-endpoints', server.endpoint],
      written: async () => (await server.ctl('get', '--prefix', '--keys-only', '/')).trim(),
      nothing: '/coreos.com/network/config',
    }
  },
  async 'nodes of Kubernetes'() {
    const server = (api = await startKubeServer())
    relay = await openKubeRelay(lab, api)
    await server.admin.addNode(host.name, '10.5.7.0/24,fd00:5:0:7::/64')
    const file = join(lab.folder, 'net-conf.json')
    return {
      configure: (config) => writeFileSync(file, JSON.stringify(config)),
      args: ['--kube-subnet-mgr', '--kubeconfig-file', relay.kubeconfig, '--net-config-path', file],
      written: async () => {
        const { metadata } = await server.admin.node(host.name)
        return Object.keys(metadata?.annotations ?? {}).filter((name) => name.startsWith('flannel.'))
      },
      nothing: [],
    }
  },
}

/** Creates an obstacle; resolves with a function that removes it. */
type Obstacle = () => Promise<() => Promise<unknown>>

/** A program uses a UDP port on all addresses of both families, or on one address. */
const program =
  (port: number, address?: string): Obstacle =>
  async () => {
    const isIpv6 = address === undefined || address.includes(':')
    const where = address === undefined ? '' : `, address: '${address}'`
    const script = `require('dgram').createSocket('${isIpv6 ? 'udp6' : 'udp4'}').bind({ port: ${port}${where} }, () => console.log('bound'))`
    const child = host.spawn([process.execPath, '-e', script])
    await new Promise((resolve) => child.stdout!.once('data', resolve))
    return async () => {
      child.kill('SIGKILL')
      await ended(child)
    }
  }
/** One command creates the obstacle, another one removes it. */
const made =
  (add: string, remove: string): Obstacle =>
  async () => {
    await host.output(['sh', '-c', add])
    return () => host.output(['sh', '-c', remove])
  }

interface Case {
  readonly families: Families
  readonly backend: object
  readonly obstacle: Obstacle
  readonly says: RegExp
}
const taken = (port: number): RegExp => new RegExp(`UDP port \\S+:${port} is taken by node \\(pid \\d+\\)`)
const noPorts: readonly Case[] = [
  { type: 'udp', port: 8285 },
  { type: 'udp', option: { Port: 7000 }, port: 7000 },
  { type: 'vxlan', option: { DataPath: 'kernel' }, port: 8472 },
  { type: 'vxlan', option: { DataPath: 'userspace', Port: 4789 }, port: 4789 },
  { type: 'wireguard', option: { DataPath: 'userspace' }, port: 51_820 },
  { type: 'wireguard', option: { DataPath: 'userspace', Mode: 'auto', ListenPort: 5000 }, port: 5000 },
].flatMap(({ type, option = {}, port }) =>
  (['IPv4', 'IPv6', 'both families'] as const).map((families) => {
    // WireGuard has a port of its own for IPv6, unless one device carries both families.
    const isApart = type === 'wireguard' && !('Mode' in option)
    const at = isApart && families === 'IPv6' ? port + 1 : port
    const both = isApart && families === 'both families'
    const obstacle: Obstacle = both
      ? async () => {
          const ends = [await program(port)(), await program(port + 1)()]
          return async () => Promise.all(ends.map((end) => end()))
        }
      : program(at)
    return { families, backend: { Type: type, ...option }, obstacle, says: taken(at) }
  }),
)
const bridge = (name: string): Obstacle => made(`ip link add ${name} type bridge`, `ip link del ${name}`)
const noDevices: readonly Case[] = [
  {
    families: 'IPv4',
    backend: { Type: 'vxlan', DataPath: 'userspace' },
    obstacle: bridge('flannel.1'),
    says: /flannel\.1 is a device of another program, of the type bridge/,
  },
  {
    families: 'IPv6',
    backend: { Type: 'vxlan', DataPath: 'userspace' },
    obstacle: made('ip tuntap add flannel-v6.1 mode tap', 'ip link del flannel-v6.1'),
    says: /flannel-v6\.1 is a device of another program, of the type tun/,
  },
  {
    families: 'IPv4',
    backend: { Type: 'wireguard', DataPath: 'userspace' },
    obstacle: bridge('flannel-wg'),
    says: /flannel-wg is a device of another program, of the type bridge/,
  },
  {
    families: 'IPv6',
    backend: { Type: 'wireguard', DataPath: 'userspace' },
    obstacle: bridge('flannel-wg-v6'),
    says: /flannel-wg-v6 is a device of another program/,
  },
  ...(['', ' dstport 8472'] as const).map((port): Case => ({
    families: 'IPv4',
    backend: { Type: 'vxlan', DataPath: 'kernel', ...(port === '' ? { Port: 4789 } : {}) },
    obstacle: made(
      `ip link add other type vxlan id 1 dev eth0${port === '' ? ' dstport 4789' : port}; ip link set other up`,
      'ip link del other',
    ),
    says: /flannel\.1 cannot be made, since the device other has its VNI 1 and its UDP port/,
  })),
  {
    families: 'IPv4',
    backend: { Type: 'vxlan', DataPath: 'userspace' },
    obstacle: made(
      'ip link add other type vxlan id 9 dev eth0 dstport 8472; ip link set other up',
      'ip link del other',
    ),
    says: /UDP port \S+ is taken by the device other \(vxlan\)/,
  },
  {
    families: 'IPv4',
    backend: { Type: 'vxlan', DataPath: 'kernel', GBP: true },
    obstacle: made(
      'ip link add other type vxlan id 9 dev eth0 dstport 8472; ip link set other up',
      'ip link del other',
    ),
    says: /UDP port \S+ is taken by the device other \(vxlan\)/,
  },
  ...(['udp', 'wireguard'] as const).map((type): Case => ({
    families: 'IPv4',
    backend: { Type: type },
    obstacle: made(
      'ip link add flannel7 type bridge; ip link set flannel7 up; ip route add 10.5.0.0/16 dev flannel7',
      'ip link del flannel7',
    ),
    says: /10\.5\.0\.0\/16 is already routed to flannel7/,
  })),
  {
    families: 'IPv6',
    backend: { Type: 'udp' },
    obstacle: made('ip link set eth0 mtu 1300', 'ip link set eth0 mtu 1500'),
    says: /IPv6 needs an MTU of 1280/,
  },
]
/** A program `nft` that succeeds at one task and fails at all others. */
const noFirewall: readonly (readonly [what: string, script: string, says: RegExp])[] = [
  ['cannot be run', 'exit 1', /no nftables support: `nft --version` failed/],
  ['cannot read', '[ "$1" = --version ]', /couldn't setup masq rules: `nft/],
  [
    'refuses the rules',
    'case "$1" in --version|-s) exit 0;; esac; echo "Error: no hook" >&2; exit 1',
    /setup masq rules/,
  ],
]

async function refused(bed: Bed, config: object, says: RegExp, more: Partial<Parameters<Host['startDaemon']>[0]> = {}) {
  await bed.configure(config)
  expect(await bed.written()).toEqual(bed.nothing)
  const daemon: Daemon = host.startDaemon({
    ...more,
    args: [...bed.args, ...(more.args ?? [])],
    env: { NODE_NAME: host.name, WIREGUARD_KEY_FILE: join(lab.folder, 'wgkey'), ...more.env },
  })
  const code = await ended(daemon.process)
  expect(daemon.lines.filter((line) => line.startsWith('E')).join('\n')).toMatch(says)
  expect(code).not.toBe(0)
  expect(await bed.written()).toEqual(bed.nothing)
}

describe.each(Object.keys(BEDS))('with leases in %s, a node writes nothing if', (keeper) => {
  let bed: Bed
  beforeAll(async () => {
    if (lack === undefined) bed = await BEDS[keeper]!()
  })
  const titled = (cases: readonly Case[]) =>
    cases.map((each) => [`${JSON.stringify(each.backend)} with ${each.families}`, each] as const)

  it.each(titled(noPorts))(
    'another program uses the port: %s',
    async (_title, { families, backend, obstacle, says }) => {
      const remove = await obstacle()
      await refused(bed, { ...networkOf(families), Backend: backend }, says).finally(remove)
    },
  )
  it.for(titled(noDevices))('another object blocks the device: %s', async ([, each], { skip }) => {
    const why = await whyNoVxlan()
    skip(why !== undefined, why)
    const remove = await each.obstacle()
    await refused(bed, { ...networkOf(each.families), Backend: each.backend }, each.says).finally(remove)
  })
  it.each(noFirewall)('nft %s', async (what, script, says) => {
    const folder = join(lab.folder, `nft-${what.replaceAll(' ', '-')}`)
    mkdirSync(folder, { recursive: true })
    writeFileSync(join(folder, 'nft'), `#!/bin/sh\n${script}\n`)
    chmodSync(join(folder, 'nft'), 0o755)
    const config = { ...networkOf('IPv4'), EnableNFTables: true, Backend: { Type: 'udp' } }
    await refused(bed, config, says, { args: ['--ip-masq'], env: { PATH: `${folder}:${process.env['PATH']}` } })
  })
})
