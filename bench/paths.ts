// paths.ts - the ways between two hosts that are measured beside each other; all stay up, one works at a time.
//
// The link below them is a veth, in one of two states. `plain`: as it is made. It hands whole superpackets over, also
// those inside a vxlan, so that nothing is ever cut: no wire does that. `wire`: only frames of at most the MTU cross
// it, as with a network card without segmentation of its own. The kernel cuts in software on the way out, for TCP, for
// vxlan and for UDP_SEGMENT alike, and GRO joins what comes in, as in a card's driver. Checksums stay offloaded, as
// every card can do it and UDP_SEGMENT demands it.
// What `--peer` must do stands in README.md.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { createLab, type Host, type Lab } from '../lab/lab.ts'
import { iperfServer, reach } from '../lab/measure.ts'
import { addon } from '../src/host/addon.ts'
import { WeftError } from '../src/errors.ts'
import { nativeProgram } from './native.ts'

export interface Path {
  readonly name: string
  readonly from: Host
  readonly to: Host
  /** Of `to`, reached from `from` by this path. */
  readonly address: string
  /** Runs bench/native/traffic.cc in `from`, against its server in `to`; its numbers by name. */
  traffic(...args: readonly (string | number)[]): Promise<Readonly<Record<string, number>>>
  close(): Promise<void>
}

/** Brings the path up between two hosts and returns the second one's address on it. */
type Setup = (from: Host, to: Host, lab: Lab) => Promise<string>

const without = (features: readonly string[]): string[] => features.flatMap((feature) => ['--without', feature])

function weft(engine: string, ...flags: string[]): Setup {
  return async (from, to, lab) => {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
    const daemons = [from, to].map((host) =>
      host.startDaemon({ args: ['--lease-dir', leases, '--engine', engine, ...flags] }),
    )
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    // flannel0 has the subnet's own first address.
    return (to.subnetEnv()['FLANNEL_SUBNET'] ?? '').replace(/\.1\/\d+$/, '.0')
  }
}

/** As flannel's vxlan backend sets it up: no learning, static neighbours and forwarding entries. */
const vxlan: Setup = async (from, to) => {
  const ends = [
    { host: from, peer: to, number: 1, other: 2 },
    { host: to, peer: from, number: 2, other: 1 },
  ]
  for (const { host, peer, number, other } of ends) {
    const mac = (of: number): string => `02:00:00:00:00:0${of}`
    const link = ['id', '1', 'dstport', '8472', 'local', host.address, 'dev', 'eth0', 'nolearning']
    await host.output(['ip', 'link', 'add', 'flannel.1', 'address', mac(number), 'type', 'vxlan', ...link])
    await host.output(['ip', 'address', 'add', `10.6.0.${number}/24`, 'dev', 'flannel.1'])
    await host.output(['ip', 'link', 'set', 'flannel.1', 'up'])
    await host.output([
      'ip',
      'neighbour',
      'add',
      `10.6.0.${other}`,
      'lladdr',
      mac(other),
      'dev',
      'flannel.1',
      'nud',
      'permanent',
    ])
    await host.output(['bridge', 'fdb', 'add', mac(other), 'dev', 'flannel.1', 'dst', peer.address])
  }
  return '10.6.0.2'
}

function peerProgram(command: string): Setup {
  return async (from, to) => {
    const ends = [
      { host: from, peer: to, number: 1 },
      { host: to, peer: from, number: 2 },
    ]
    await Promise.all(
      ends.map(({ host, peer, number }) => {
        const env = [`WEFT_HOST=${number}`, `WEFT_LOCAL=${host.address}`, `WEFT_REMOTE=${peer.address}`]
        return ready(host, ['env', ...env, 'sh', '-c', `exec ${command}`], '--peer')
      }),
    )
    return '10.99.0.2'
  }
}

/** Starts a program and waits until it prints `ready`. */
function ready(host: Host, command: readonly string[], what: string): Promise<void> {
  const child = host.spawn(command)
  const said: string[] = []
  child.stderr?.on('data', (data: Buffer) => said.push(String(data)))
  return new Promise((resolve, reject) => {
    if (child.stdout) createInterface({ input: child.stdout }).on('line', (line) => line === 'ready' && resolve())
    child.once('exit', (code) => {
      const message = `${what} ended with ${code} before it printed ready: ${said.join('').trim()}`
      reject(new WeftError('COMMAND', message))
    })
  })
}

const SETUPS: Readonly<Record<string, Setup>> = {
  native: weft('native'),
  'native-bare': weft('native', ...without(addon.featureNames)),
  dgram: weft('dgram'),
  naive: weft('naive'),
  vxlan,
  veth: (_from, to) => Promise.resolve(to.address),
}

export const PATH_NAMES: readonly string[] = Object.keys(SETUPS)
/** The native engine without one feature each. */
export const FEATURE_PATH_NAMES: readonly string[] = addon.featureNames.map((feature) => `native-${feature}`)

function setupFor(name: string, peer: string | undefined): Setup {
  const setup = SETUPS[name]
  if (setup) return setup
  if (name === 'peer' && peer !== undefined) return peerProgram(peer)
  if (FEATURE_PATH_NAMES.includes(name)) return weft('native', ...without([name.slice('native-'.length)]))
  throw new WeftError('USAGE', `no such path: ${name}`, {
    remedy: `there are ${[...PATH_NAMES, ...FEATURE_PATH_NAMES].join(', ')}`,
  })
}

export const LINKS = ['plain', 'wire'] as const
export type Link = (typeof LINKS)[number]

/** Features of ethtool(8) by which a device takes what is larger than a frame, as far as they are on. */
async function superpacketFeatures(host: Host): Promise<string[]> {
  const features = await host.output(['ethtool', '-k', 'eth0'])
  return [...features.matchAll(/^\s*(\S*segmentation\S*|tx-gso\S*): on/gm)].map((match) => match[1] ?? '')
}

async function makeWire(host: Host): Promise<void> {
  const off = (await superpacketFeatures(host)).flatMap((feature) => [feature, 'off'])
  await host.output(['ethtool', '-K', 'eth0', ...off, 'gro', 'on'])
  const left = await superpacketFeatures(host)
  if (left.length > 0)
    throw new WeftError('DEVICE', `--link wire: this kernel's veth cannot do without ${left.join(', ')}`)
}

/** Makes two hosts, the path and the listening programs on the far one, and waits until the far one answers. */
export async function openPath(name: string, link: Link, peer?: string): Promise<Path> {
  const setup = setupFor(name, peer)
  const lab = await createLab({ hosts: 2, underlay: 'veth' })
  try {
    const [from, to] = lab.hosts as [Host, Host]
    if (link === 'wire') for (const host of lab.hosts) await makeWire(host)
    const address = await setup(from, to, lab)
    await reach(from.namespace, address)
    await iperfServer((command) => to.spawn(command))
    const program = await nativeProgram('traffic')
    await ready(to, [program, 'serve'], 'traffic serve')
    return {
      name,
      from,
      to,
      address,
      traffic: async (...args) =>
        JSON.parse(await from.output([program, ...args.map(String)])) as Record<string, number>,
      close: () => lab.close(),
    }
  } catch (error) {
    await lab.close()
    throw error
  }
}
