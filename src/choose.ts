// choose.ts - subnet manager, backend and engine by name: all the variants there are. What is not chosen is not loaded.

import type { Backend } from './backend/backend.ts'
import type { Persistence } from './backend/tunnel.ts'
import type { VxlanBackendOptions } from './backend/vxlan.ts'
import type { NetworkConfig } from './config/network-config.ts'
import type { Engine, EngineConfig } from './dataplane/engine.ts'
import { WeftError } from './errors.ts'
import { run as runCommand } from './host/command.ts'
import { raiseSession } from './host/session-priority.ts'
import type { ExternalInterface } from './host/external-interface.ts'
import type { SubnetManager } from './lease/subnet-manager.ts'
import type { Log } from './log.ts'
import type { DaemonOptions } from './options.ts'
import type { Inheritance } from './restart/succession.ts'
import type { Store } from './store/store.ts'

/** The subnet manager that the flags name. Does not contact its store, but to find out in a pod which node this is. */
export async function createSubnetManager(
  options: DaemonOptions,
  log: Log,
  signal: AbortSignal,
): Promise<SubnetManager> {
  if (options['kube-subnet-mgr']) {
    const { createKubeManager } = await import('./kube/kube-manager.ts')
    return createKubeManager({
      ...{ log, signal, environment: process.env },
      apiUrl: options['kube-api-url'],
      kubeconfig: options['kubeconfig-file'],
      annotationPrefix: options['kube-annotation-prefix'],
      netConfigPath: options['net-config-path'],
      setCondition: options['set-node-network-unavailable'],
    })
  }
  const store = await createStore(options, log)
  const { managerOf } = await import('./lease/store-manager.ts')
  return options['lease-dir'] === '' ? managerOf(store, log) : managerOf(store)
}

export type StoreOptions = Pick<
  DaemonOptions,
  | 'lease-dir'
  | 'etcd-endpoints'
  | 'etcd-prefix'
  | 'etcd-keyfile'
  | 'etcd-certfile'
  | 'etcd-cafile'
  | 'etcd-username'
  | 'etcd-password'
>

/** The store that they name. Does not contact it. */
export async function createStore(options: StoreOptions, log: Log): Promise<Store> {
  if (options['lease-dir'] !== '') {
    const { createDirectoryStore } = await import('./store/directory.ts')
    return createDirectoryStore({ directory: options['lease-dir'] })
  }
  const { createEtcdStore } = await import('./store/etcd.ts')
  // Without a user, whom flanneld's client passes over too.
  const endpoints = String(options['etcd-endpoints']).split(',')
  const [certFile, keyFile, caFile] = [options['etcd-certfile'], options['etcd-keyfile'], options['etcd-cafile']]
  const isPlain = (endpoint: string): boolean =>
    caFile === '' ? !/^\s*https:/.test(endpoint) : /^\s*http:/.test(endpoint)
  // flanneld's words and condition (registry.go, newTlsConfig), but where TLS is spoken all the same: they would not be true.
  if ((certFile === '' || keyFile === '') && endpoints.some(isPlain))
    log.warn('no certificate provided: connecting to etcd with http. This is insecure')
  return createEtcdStore({
    ...{ endpoints, certFile, keyFile, caFile, log },
    prefix: options['etcd-prefix'],
    username: options['etcd-username'],
    password: options['etcd-password'],
  })
}

/** Checks the options of the `Backend` object, for whoever is about to put a configuration. Throws WeftError CONFIG. */
export async function checkBackend({ backendType, backend }: NetworkConfig): Promise<void> {
  switch (backendType) {
    case 'udp': {
      const [{ udpPort }, { verifySource }] = await Promise.all([
        import('./backend/udp.ts'),
        import('./backend/strangers.ts'),
      ])
      udpPort(backend)
      verifySource(backend)
      return
    }
    case 'vxlan':
      return void (await import('./backend/vxlan-config.ts')).vxlanConfig(backend)
    case 'ipip':
      return void (await import('./config/backend-options.ts')).backendOptions(backend).flag('DirectRouting')
    case 'wireguard':
      return void (await import('./backend/wireguard.ts')).wireguardConfig(backend)
    case 'extension':
      return void (await import('./backend/extension.ts')).extensionCommands(backend)
    case 'host-gw':
    case 'alloc':
      return
    default:
      throw unknownBackend(backendType)
  }
}

/** Backends that flannel removed, and what takes their place. */
const CLOUD =
  "take host-gw where the hosts are on one link, else udp; or alloc, and the routes by the cloud's own controller"
const REMOVED: Readonly<Record<string, string>> = {
  'ali-vpc': CLOUD,
  'aws-vpc': CLOUD,
  gce: CLOUD,
  'tencent-vpc': CLOUD,
  ipsec: 'take wireguard',
}
const KNOWN = 'udp, vxlan, host-gw, ipip, wireguard, alloc or extension'

/** The backend that the network configuration names. Throws WeftError CONFIG for one that there is not. */
export async function createBackend(
  config: NetworkConfig,
  external: ExternalInterface,
  options: DaemonOptions,
  log: Log,
  publishedBefore: VxlanBackendOptions['publishedBefore'],
  inheritance: Pick<Inheritance, 'take' | 'tunName'>,
  run = runCommand,
): Promise<Backend> {
  const persistence = persistenceOf(options, inheritance)
  const startEngine = (engineConfig: EngineConfig) => startEngineOf(options, engineConfig)
  switch (config.backendType) {
    case 'udp': {
      const { createUdpBackend } = await import('./backend/udp.ts')
      return createUdpBackend({ config, external, startEngine, persistence, run, log })
    }
    case 'vxlan': {
      const { createVxlanBackend } = await import('./backend/vxlan.ts')
      return createVxlanBackend({ config, external, startEngine, persistence, publishedBefore, run, log })
    }
    case 'host-gw': {
      const { createHostGwBackend } = await import('./backend/host-gw.ts')
      return createHostGwBackend({ config, external, run, log })
    }
    case 'ipip': {
      const { createIpipBackend } = await import('./backend/ipip.ts')
      return createIpipBackend({ config, external, run, log })
    }
    case 'wireguard': {
      const { createWireguardBackend } = await import('./backend/wireguard.ts')
      return createWireguardBackend({ config, external, run, log })
    }
    case 'alloc': {
      const { createAllocBackend } = await import('./backend/alloc.ts')
      return createAllocBackend({ external, run })
    }
    case 'extension': {
      const { createExtensionBackend } = await import('./backend/extension.ts')
      return createExtensionBackend({ config, external, run, log })
    }
    default:
      throw unknownBackend(config.backendType)
  }
}

function unknownBackend(type: string): WeftError {
  const instead = REMOVED[type]
  return new WeftError('CONFIG', `Error fetching backend: unknown backend type: ${type}`, {
    remedy: `set "Backend": {"Type": ...} in the network configuration to ${KNOWN}${instead === undefined ? '' : `: ${instead}`}`,
  })
}

function persistenceOf(
  { engine, persist, workers, without }: DaemonOptions,
  inheritance: Pick<Inheritance, 'take' | 'tunName'>,
): Persistence {
  const isNative = engine === 'native'
  return {
    persist,
    tunName: inheritance.tunName,
    isMultiQueue: isNative && workers > 1,
    // The other engines go on with nobody's descriptors.
    inherit: (wanted) => inheritance.take({ ...wanted, without, workers: isNative ? workers : 0 }),
  }
}

async function startEngineOf(
  { engine, workers, nice, without, 'poll-us': pollUs }: DaemonOptions,
  config: EngineConfig,
): Promise<Engine> {
  if (engine === 'dgram') {
    const { startDgramEngine } = await import('./dataplane/dgram-engine.ts')
    return startDgramEngine(config)
  }
  const { startNativeEngine } = await import('./dataplane/native-engine.ts')
  if (engine === 'native' && nice !== 0) raiseSession(nice)
  return startNativeEngine(config, { naive: engine === 'naive', workers, nice, pollUs, without })
}
