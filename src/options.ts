// options.ts - weftd's flags with their defaults and checks: first flanneld's (flannel main.go), then weft's own.

import { WeftError } from './base/errors.ts'
import type { Options } from './base/go-flags.ts'
import { Secret, secretUrls } from './base/secret.ts'
import { parseIpv4 } from './net/ipv4.ts'
import { parseIpv6 } from './net/ipv6.ts'

/** flanneld's flags, with flanneld's names and defaults. */
export const FLANNEL_FLAGS = {
  'etcd-endpoints': {
    default: secretUrls('http://127.0.0.1:4001,http://127.0.0.1:2379'),
    help: 'etcd endpoints, separated by commas',
  },
  'etcd-prefix': { default: '/coreos.com/network', help: 'prefix of the keys in etcd' },
  'etcd-keyfile': { default: '', help: 'private key of the client certificate for etcd' },
  'etcd-certfile': { default: '', help: 'client certificate for etcd' },
  'etcd-cafile': { default: '', help: "certificate authority of etcd's certificate" },
  'etcd-username': { default: '', help: 'user name for etcd' },
  'etcd-password': { default: new Secret(''), help: 'password for etcd' },
  iface: {
    default: [] as readonly string[],
    help: 'external interface, by name or address; may be given several times, the first that fits is taken',
  },
  'iface-regex': {
    default: [] as readonly string[],
    help: 'external interface, by a regular expression over addresses, then names; tried when no --iface fits',
  },
  'iface-can-reach': { default: '', help: 'take the interface and address that the kernel uses to reach this IP' },
  'subnet-file': { default: '/run/flannel/subnet.env', help: 'file that the subnet and the MTU are written to' },
  'public-ip': { default: '', help: 'IP that other nodes reach this one by, when it is not the interface address' },
  'public-ipv6': {
    default: '',
    help: 'IPv6 address that other nodes reach this one by, when it is not the interface address',
  },
  'subnet-lease-renew-margin': { default: 60, help: 'minutes before a lease ends that it is renewed, 1 to 1439' },
  'ip-masq': { default: false, help: 'masquerade traffic that leaves the network' },
  'ip-masq-fully-random-disable': { default: false, help: 'masquerade without fully random source ports' },
  'kube-subnet-mgr': { default: false, help: 'take subnets from the Kubernetes API instead of etcd' },
  'kube-api-url': { default: secretUrls(''), help: 'URL of the Kubernetes API; empty in a pod' },
  'kube-annotation-prefix': { default: 'flannel.alpha.coreos.com', help: "prefix of the node's annotations" },
  'kubeconfig-file': { default: '', help: 'kubeconfig file; empty in a pod' },
  version: { default: false, help: 'print the version and exit' },
  'healthz-ip': { default: '0.0.0.0', help: 'address of the health server' },
  'healthz-port': { default: 0, help: 'port of the health server; 0 for none' },
  'iptables-resync': { default: 5, help: 'seconds between two checks of the firewall rules' },
  'iptables-forward-rules': { default: true, help: "accept the network's traffic in the FORWARD chain" },
  'ip-blackhole-route': { default: false, help: "add a blackhole route for the node's own subnet" },
  'net-config-path': {
    default: '/etc/kube-flannel/net-conf.json',
    help: 'file of the network configuration, with --kube-subnet-mgr',
  },
  'set-node-network-unavailable': { default: true, help: "clear the node's NetworkUnavailable condition" },
  v: { default: 0, help: 'verbosity of the log', placeholder: 'value' },
  vmodule: { default: '', help: 'accepted for compatibility; it changes nothing', placeholder: 'value' },
  log_backtrace_at: { default: '', help: 'accepted for compatibility; it changes nothing', placeholder: 'value' },
} as const

const ENGINES = ['native', 'dgram'] as const

export const WEFT_FLAGS = {
  'lease-dir': {
    default: '',
    help: 'store the leases in this directory instead of etcd; the hosts may share it over a network file system',
  },
  'iface-wait': {
    default: 120,
    help: 'seconds to wait at the start for a suitable external interface, because a device, address or route may appear late',
  },
  'fail-static-hold': {
    default: 30,
    help: 'seconds to keep the peers if more than half of them disappear from the store at the same time',
  },
  engine: {
    default: 'native',
    help: 'the engine that forwards packets in user space: native; or, for comparison, dgram (TypeScript, no threads)',
  },
  workers: {
    default: 8,
    help: 'number of lanes of the native engine, 1 to 16; each lane has its own TUN queue, socket and thread',
  },
  nice: {
    default: -5,
    help: "priority of the native engine's threads, from -20 (highest) to 19 (lowest); 0 means the priority of weftd",
  },
  'poll-us': {
    default: 50,
    help: 'microseconds that an idle thread of the native engine polls for packets before it sleeps, 0 to 1000; it yields to other threads meanwhile',
  },
  persist: {
    default: true,
    help: 'keep the TUN device, its address and its route when weftd ends, so that a restart loses no packet',
  },
  leave: {
    default: false,
    help: 'end the weftd that runs for this subnet file, release its lease, remove its traces from the host, and exit',
  },
  'probe-interval': {
    default: 10,
    help: 'seconds between the echo requests that check whether a peer answers; 0 sends none',
  },
  'status-socket': {
    default: '/run/weft/weftd.sock',
    help: 'Unix socket at which the command weft reads the status of weftd; empty for none',
  },
  'status-ip': {
    default: '127.0.0.1',
    help: 'address at which the health port serves the full status, besides the loopback address; elsewhere it answers only health checks; 0.0.0.0 for every address, empty to serve no status',
  },
  'status-page': {
    default: true,
    help: 'serve a status page for browsers, at / of the health port',
  },
  'status-network': {
    default: 0,
    help: 'TCP port at which only the other nodes can query the status of this node, at its address in the network; must be the same on all nodes; 0 for none',
  },
  'status-token-file': {
    default: '',
    help: 'file with the token that nodes send when they query each other; must be the same on all nodes; empty for none',
  },
  without: {
    default: [] as readonly string[],
    help: 'kernel feature that weftd must not use, such as udp-gso; may be given several times',
  },
} as const

export const FLAGS = { ...FLANNEL_FLAGS, ...WEFT_FLAGS }

export type DaemonOptions = Options<typeof FLAGS>

const STORE = [
  'lease-dir',
  'etcd-endpoints',
  'etcd-prefix',
  'etcd-keyfile',
  'etcd-certfile',
  'etcd-cafile',
  'etcd-username',
  'etcd-password',
  'kube-subnet-mgr',
  'kube-api-url',
  'kube-annotation-prefix',
  'kubeconfig-file',
  'net-config-path',
  'set-node-network-unavailable',
] as const satisfies readonly (keyof DaemonOptions)[]

const ENGINE = [
  'engine',
  'workers',
  'nice',
  'poll-us',
  'without',
  'persist',
] as const satisfies readonly (keyof DaemonOptions)[]

const REPORT = [
  'healthz-ip',
  'healthz-port',
  'status-socket',
  'status-ip',
  'status-page',
] as const satisfies readonly (keyof DaemonOptions)[]

const NODE = [
  'subnet-file',
  'persist',
  'iface',
  'iface-regex',
  'iface-can-reach',
  'iface-wait',
  'public-ip',
  'public-ipv6',
  'subnet-lease-renew-margin',
  'fail-static-hold',
  'ip-masq',
  'ip-masq-fully-random-disable',
  'iptables-resync',
  'iptables-forward-rules',
  'ip-blackhole-route',
  'probe-interval',
  'status-network',
  'status-token-file',
] as const satisfies readonly (keyof DaemonOptions)[]

/**
 * The options that select the source of leases and the access to it: etcd, the lease directory or the Kubernetes API.
 */
export type StoreOptions = Pick<DaemonOptions, (typeof STORE)[number]>
/** The options about the engine, which forwards packets in user space. */
export type EngineOptions = Pick<DaemonOptions, (typeof ENGINE)[number]>
/** The options of the health server and of the status socket. */
type ReportOptions = Pick<DaemonOptions, (typeof REPORT)[number]>
/** The options about the node and its loops. */
export type NodeOptions = Pick<DaemonOptions, (typeof NODE)[number]>

/** The options in groups, one for each part of the program that uses them. */
export interface CutOptions {
  readonly store: StoreOptions
  readonly engine: EngineOptions
  readonly report: ReportOptions
  readonly node: NodeOptions
}

/** Splits the options into groups, so that each part of the program gets only the options that it uses. */
export const cutOptions = (all: DaemonOptions): CutOptions => ({
  store: only(all, STORE),
  engine: only(all, ENGINE),
  report: only(all, REPORT),
  node: only(all, NODE),
})

const only = <Name extends keyof DaemonOptions>(all: DaemonOptions, names: readonly Name[]) =>
  Object.fromEntries(names.map((name) => [name, all[name]])) as Pick<DaemonOptions, Name>

/** The flags that name the store of the leases. The `weft` commands that open the store accept these flags too. */
export const STORE_FLAGS = {
  'lease-dir': WEFT_FLAGS['lease-dir'],
  'etcd-endpoints': FLANNEL_FLAGS['etcd-endpoints'],
  'etcd-prefix': FLANNEL_FLAGS['etcd-prefix'],
  'etcd-keyfile': FLANNEL_FLAGS['etcd-keyfile'],
  'etcd-certfile': FLANNEL_FLAGS['etcd-certfile'],
  'etcd-cafile': FLANNEL_FLAGS['etcd-cafile'],
  'etcd-username': FLANNEL_FLAGS['etcd-username'],
  'etcd-password': FLANNEL_FLAGS['etcd-password'],
} as const

export type KeyStoreOptions = Options<typeof STORE_FLAGS>

/** Returns the kind of store that the flags name: a lease directory if --lease-dir is given, else etcd. */
export function storeKindOf(options: Pick<KeyStoreOptions, 'lease-dir'>): 'directory' | 'etcd' {
  return options['lease-dir'] === '' ? 'etcd' : 'directory'
}

/** Returns the flags that select the external interface, for host/choose-interface.ts. */
export const interfaceWishes = (options: NodeOptions) => ({
  ifaces: options.iface,
  patterns: options['iface-regex'],
  canReach: options['iface-can-reach'],
  publicIp: { ipv4: options['public-ip'], ipv6: options['public-ipv6'] },
})

/** klog's flags that weftd accepts and ignores, because units and manifests may contain them. */
export const WITHOUT_EFFECT = ['vmodule', 'log_backtrace_at'] as const

/**
 * Checks that `--without` names only features that the native engine supports. Throws WeftError USAGE for any other
 * name.
 */
export function checkFeatures({ without, engine }: EngineOptions, features: readonly string[]): void {
  const unknown = without.find((name) => !features.includes(name))
  if (unknown !== undefined) {
    throw new WeftError('USAGE', `--without ${unknown}: unknown feature`, {
      remedy: `choose from ${features.join(', ')}`,
    })
  }
  if (without.length > 0 && engine === 'dgram') {
    throw new WeftError('USAGE', `--without ${without[0]}: the engine ${engine} does not use kernel features`, {
      remedy: 'leave --without out, or use the native engine',
    })
  }
}

/**
 * Checks that the lease renewal margin, a flag of flanneld, is in its allowed range. Throws WeftError USAGE if the
 * margin is out of range; flanneld exits with code 1 in this case.
 */
export function checkMargin(options: NodeOptions): void {
  const margin = options['subnet-lease-renew-margin']
  if (margin < 1 || margin > 1439) {
    throw new WeftError('USAGE', 'Invalid subnet-lease-renew-margin option, out of acceptable range', {
      remedy: 'give a number of minutes from 1 to 1439',
    })
  }
}

const isAddress = (text: string): boolean => parseIpv4(text) !== undefined || parseIpv6(text) !== undefined

/** Checks the ranges and formats of weft's own flags; the parser checked only their types. Throws WeftError USAGE. */
export function checkOptions(options: DaemonOptions): void {
  if (options['kube-subnet-mgr'] && options['lease-dir'] !== '') {
    throw new WeftError('USAGE', '--lease-dir and --kube-subnet-mgr exclude each other', {
      remedy: 'leave one of the two flags out',
    })
  }
  if (options['iface-wait'] < 0) {
    throw new WeftError('USAGE', `--iface-wait is ${options['iface-wait']}`, {
      remedy: 'give a number of seconds, or 0 for no wait',
    })
  }
  if (!(ENGINES as readonly string[]).includes(options.engine)) {
    throw new WeftError('USAGE', `unknown engine: ${options.engine}`, { remedy: `choose one of ${ENGINES.join(', ')}` })
  }
  if (options.workers < 1 || options.workers > 16) {
    throw new WeftError('USAGE', `--workers is ${options.workers}`, { remedy: 'give a number from 1 to 16' })
  }
  if (options['probe-interval'] < 0 || options['probe-interval'] > 3600) {
    throw new WeftError('USAGE', `--probe-interval is ${options['probe-interval']}`, {
      remedy: 'give 1 to 3600 seconds, or 0 to send no probes',
    })
  }
  const healthPort = options['healthz-port']
  if (healthPort > 65_535) {
    throw new WeftError('USAGE', `--healthz-port is ${healthPort}`, {
      remedy: 'give a TCP port, such as 8081, or 0 for no port',
    })
  }
  const statusIp = options['status-ip']
  if (statusIp !== '' && !isAddress(statusIp)) {
    throw new WeftError('USAGE', `--status-ip is ${JSON.stringify(statusIp)}`, {
      remedy: "give an address of this host, 0.0.0.0 for all addresses, or '' to serve no status",
    })
  }
  const port = options['status-network']
  if (port < 0 || port > 65_535) {
    throw new WeftError('USAGE', `--status-network is ${port}`, {
      remedy: 'give a TCP port, such as 8287, or 0 for no port',
    })
  }
  if (options['status-token-file'] !== '' && port === 0) {
    throw new WeftError('USAGE', '--status-token-file is given without --status-network', {
      remedy: 'add --status-network 8287, or leave --status-token-file out',
    })
  }
  if (options.nice < -20 || options.nice > 19) {
    throw new WeftError('USAGE', `--nice is ${options.nice}`, { remedy: 'give a number from -20 to 19' })
  }
  if (options['poll-us'] < 0 || options['poll-us'] > 1000) {
    throw new WeftError('USAGE', `--poll-us is ${options['poll-us']}`, { remedy: 'give 0 to 1000 microseconds' })
  }
}

/** Returns the path of the file, next to subnet.env, that stores the peers' events across restarts. */
export const eventsFile = (options: Pick<NodeOptions, 'subnet-file'>): string => `${options['subnet-file']}.events`
