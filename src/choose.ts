// choose.ts - store, engine and backend by name: all the variants there are. What is not chosen is not loaded.

import type { Backend } from './backend/backend.ts'
import type { DaemonOptions } from './cli/options.ts'
import type { NetworkConfig } from './config/network-config.ts'
import type { Engine, EngineConfig } from './dataplane/engine.ts'
import { describeError, prefixed, WeftError } from './errors.ts'
import type { Firewall } from './firewall/firewall.ts'
import { run } from './host/command.ts'
import type { ExternalInterface } from './host/external-interface.ts'
import type { Store } from './lease/store.ts'
import type { Log } from './log.ts'
import type { Ipv4Net } from './net/ipv4.ts'
import { readPreviousNet } from './status/subnet-env.ts'

/** The store that the flags name. Does not contact it. */
export async function createStore(options: DaemonOptions): Promise<Store> {
  if (options['lease-dir'] !== '') {
    const { createDirectoryStore } = await import('./lease/directory-store.ts')
    return createDirectoryStore({ directory: options['lease-dir'] })
  }
  const { createEtcdStore } = await import('./lease/etcd-store.ts')
  return createEtcdStore({
    endpoints: options['etcd-endpoints'].split(','),
    prefix: options['etcd-prefix'],
    certFile: options['etcd-certfile'],
    keyFile: options['etcd-keyfile'],
    caFile: options['etcd-cafile'],
    username: options['etcd-username'],
    password: options['etcd-password'],
  })
}

async function startEngine(name: string, config: EngineConfig): Promise<Engine> {
  if (name === 'dgram') {
    const { startDgramEngine } = await import('./dataplane/dgram-engine.ts')
    return startDgramEngine(config)
  }
  const { startNativeEngine } = await import('./dataplane/native-engine.ts')
  return startNativeEngine(config, { naive: name === 'naive' })
}

/** The backend that the network configuration names. Throws WeftError CONFIG for one that there is not. */
export async function createBackend(
  config: NetworkConfig,
  external: ExternalInterface,
  options: DaemonOptions,
  log: Log,
): Promise<Backend> {
  if (config.backendType !== 'udp') {
    throw new WeftError('CONFIG', `Error fetching backend: unknown backend type: ${config.backendType}`, {
      remedy: 'set "Backend": {"Type": "udp"} in the network configuration',
    })
  }
  const { createUdpBackend } = await import('./backend/udp.ts')
  return createUdpBackend({
    config,
    external,
    startEngine: (engineConfig) => startEngine(options.engine, engineConfig),
    workers: options.workers,
    without: options.without,
    run,
    log,
  })
}

/**
 * The rules, and the blackhole route, that the network configuration and the flags ask for. There is work for it also when
 * they ask for none: an earlier run may have left some.
 */
export async function createFirewall(
  config: NetworkConfig,
  options: Pick<
    DaemonOptions,
    'subnet-file' | 'ip-masq' | 'iptables-forward-rules' | 'ip-masq-fully-random-disable' | 'ip-blackhole-route'
  >,
  log: Log,
): Promise<Firewall> {
  const { network } = config
  const wish = { network, masq: options['ip-masq'], forward: options['iptables-forward-rules'] }
  const silent = { warn: () => {}, error: () => {} } // the daemon has said what is odd
  const earlier = (key: 'FLANNEL_NETWORK' | 'FLANNEL_SUBNET') => readPreviousNet(options['subnet-file'], key, silent)
  const previous = { network: await earlier('FLANNEL_NETWORK'), subnet: await earlier('FLANNEL_SUBNET') }
  const { createIptables, createNftables } = await import('./firewall/firewall.ts')
  const create = config.enableNftables ? createNftables : createIptables
  const rules = create({ ...wish, previous, plainPorts: options['ip-masq-fully-random-disable'], run, log })
  if (!options['ip-blackhole-route']) return rules
  const { createBlackhole } = await import('./host/blackhole.ts')
  const blackhole = createBlackhole(run, network)
  const ensureRoute = (subnet: Ipv4Net) => prefixed('Failed to setup blackhole route, ', blackhole.ensure(subnet))
  return {
    async raise(subnet) {
      await rules.raise(subnet)
      await ensureRoute(subnet).catch((error: unknown) => log.error(describeError(error)))
    },
    ensure: async (subnet) => (await Promise.all([rules.ensure(subnet), ensureRoute(subnet)])).flat(),
  }
}
