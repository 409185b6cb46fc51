// choose.ts - subnet manager, backend and engine by name: all the variants there are. What is not chosen is not loaded.

import type { Backend, BackendParts } from './backend/backend.ts'
import type { Persistence, TunnelOptions } from './backend/tunnel.ts'
import type { VxlanBackendOptions } from './backend/vxlan.ts'
import { readSettings } from './config/backend-options.ts'
import type { NetworkConfig } from './config/network-config.ts'
import type { Engine, EngineConfig } from './dataplane/engine.ts'
import { WeftError } from './errors.ts'
import { run as runCommand } from './host/command.ts'
import { raiseSession } from './host/session-priority.ts'
import type { ExternalInterface } from './host/external-interface.ts'
import { isBackendType, remedyFor, type BackendType } from './kinds.ts'
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

/** What any backend is made of. */
interface AllParts<T extends BackendType> extends BackendParts<T>, Pick<TunnelOptions, 'startEngine' | 'persistence'> {
  readonly publishedBefore: VxlanBackendOptions['publishedBefore']
}

/** Where each backend's code is. */
const BACKENDS: { readonly [T in BackendType]: () => Promise<(parts: AllParts<T>) => Backend> } = {
  udp: async () => (await import('./backend/udp.ts')).createUdpBackend,
  vxlan: async () => (await import('./backend/vxlan.ts')).createVxlanBackend,
  'host-gw': async () => (await import('./backend/host-gw.ts')).createHostGwBackend,
  ipip: async () => (await import('./backend/ipip.ts')).createIpipBackend,
  wireguard: async () => (await import('./backend/wireguard.ts')).createWireguardBackend,
  alloc: async () => (await import('./backend/alloc.ts')).createAllocBackend,
  extension: async () => (await import('./backend/extension.ts')).createExtensionBackend,
}

/** Checks the type and the options of the `Backend` object, for whoever is about to put a configuration. Throws WeftError CONFIG. */
export function checkBackend({ backendType, backend }: NetworkConfig): void {
  readSettings(knownType(backendType), backend)
}

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
  const parts = { config, external, startEngine, persistence, publishedBefore, run, log }
  return makeBackend(knownType(config.backendType), parts)
}

async function makeBackend<T extends BackendType>(type: T, parts: Omit<AllParts<T>, 'settings'>): Promise<Backend> {
  const settings = readSettings(type, parts.config.backend)
  const create: (all: AllParts<T>) => Backend = await BACKENDS[type]()
  return create({ ...parts, settings })
}

function knownType(type: string): BackendType {
  if (isBackendType(type)) return type
  throw new WeftError('CONFIG', `Error fetching backend: unknown backend type: ${type}`, { remedy: remedyFor(type) })
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
