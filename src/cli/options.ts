// options.ts - weftd's flags: flanneld's with their defaults (flannel main.go), then weft's own.

import type { Options } from './go-flags.ts'

/** flanneld's, by its names and with its defaults. Those that weft does not have yet are refused, never ignored. */
export const FLANNEL_FLAGS = {
  'etcd-endpoints': {
    default: 'http://127.0.0.1:4001,http://127.0.0.1:2379',
    help: 'etcd endpoints, separated by commas',
  },
  'etcd-prefix': { default: '/coreos.com/network', help: 'prefix of the keys in etcd' },
  'etcd-keyfile': { default: '', help: 'private key of the client certificate for etcd' },
  'etcd-certfile': { default: '', help: 'client certificate for etcd' },
  'etcd-cafile': { default: '', help: "certificate authority of etcd's certificate" },
  'etcd-username': { default: '', help: 'user name for etcd' },
  'etcd-password': { default: '', help: 'password for etcd' },
  iface: {
    default: [] as readonly string[],
    help: 'external interface, by name or address; may be given several times, the first that fits is taken',
  },
  'iface-can-reach': { default: '', help: 'take the interface and address that the kernel uses to reach this IP' },
  'subnet-file': { default: '/run/flannel/subnet.env', help: 'file that the subnet and the MTU are written to' },
  'public-ip': { default: '', help: 'IP that other nodes reach this one by, when it is not the interface address' },
  'subnet-lease-renew-margin': { default: 60, help: 'minutes before a lease ends that it is renewed, 1 to 1439' },
  version: { default: false, help: 'print the version and exit' },
  v: { default: 0, help: 'verbosity of the log', placeholder: 'value' },
} as const

export const WEFT_FLAGS = {
  'lease-dir': {
    default: '',
    help: 'keep leases in this directory instead of etcd; several daemons may share it, also over a shared file system',
  },
  engine: { default: 'native', help: 'data path: native, dgram (TypeScript, no threads) or naive (to compare with)' },
  workers: { default: 1, help: 'loops of the native engine, each with a TUN queue, a socket and a thread, 1 to 16' },
  without: {
    default: [] as readonly string[],
    help: 'do not use this kernel feature, such as udp-gso; may be given several times',
  },
} as const

export const FLAGS = { ...FLANNEL_FLAGS, ...WEFT_FLAGS }

export type DaemonOptions = Options<typeof FLAGS>

/** Flags of flanneld that weft does not have yet, so that the error can say so. */
export const FLAGS_TO_COME: ReadonlySet<string> = new Set([
  'iface-regex',
  'public-ipv6',
  'ip-masq',
  'ip-masq-fully-random-disable',
  'kube-subnet-mgr',
  'kube-api-url',
  'kube-annotation-prefix',
  'kubeconfig-file',
  'healthz-ip',
  'healthz-port',
  'iptables-resync',
  'iptables-forward-rules',
  'ip-blackhole-route',
  'net-config-path',
  'set-node-network-unavailable',
  'vmodule',
  'log_backtrace_at',
])
