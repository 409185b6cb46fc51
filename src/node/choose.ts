// choose.ts - subnet manager, backend and engine by name: all the variants there are. What is not chosen is not loaded.

import { WeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { readSettings } from '../control/config/backend-options.ts'
import { carryIpv4Alone, type NetworkConfig } from '../control/config/network-config.ts'
import type { SubnetManager } from '../control/lease/subnet-manager.ts'
import type { Store } from '../control/store/store.ts'
import { run as runCommand } from '../host/command.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import { raiseSession } from '../host/session-priority.ts'
import { storeKindOf, type DaemonOptions, type StoreOptions } from '../options.ts'
import type { VxlanBackendOptions } from '../path/backends/vxlan.ts'
import { isBackendType, isIpv4Alone, kindOf, remedyFor, type BackendType } from '../path/catalog.ts'
import type { Backend, BackendParts } from '../path/contract.ts'
import type { Engine, EngineConfig } from '../path/engine/engine.ts'
import type { Persistence, TunnelOptions } from '../path/tunnel/tunnel.ts'
import type { Inheritance } from './restart/succession.ts'

/** The subnet manager that the flags name. Does not contact its store, but to find out in a pod which node this is. */
export async function createSubnetManager(
  options: DaemonOptions,
  log: Log,
  signal: AbortSignal,
): Promise<SubnetManager> {
  if (options['kube-subnet-mgr']) {
    const { createKubeManager } = await import('../control/kube/kube-manager.ts')
    return createKubeManager({
      log,
      signal,
      environment: process.env,
      apiUrl: options['kube-api-url'],
      kubeconfig: options['kubeconfig-file'],
      annotationPrefix: options['kube-annotation-prefix'],
      netConfigPath: options['net-config-path'],
      setCondition: options['set-node-network-unavailable'],
    })
  }
  const store = await createStore(options, log)
  const { managerOf } = await import('../control/lease/store-manager.ts')
  return storeKindOf(options) === 'etcd' ? managerOf(store, log) : managerOf(store)
}

/** The store that they name. Does not contact it. */
export async function createStore(options: StoreOptions, log: Log): Promise<Store> {
  switch (storeKindOf(options)) {
    case 'directory': {
      const { createDirectoryStore } = await import('../control/store/directory/directory.ts')
      return createDirectoryStore({ directory: options['lease-dir'] })
    }
    case 'etcd':
      return createEtcd(options, log)
  }
}

async function createEtcd(options: StoreOptions, log: Log): Promise<Store> {
  const { createEtcdStore } = await import('../control/store/etcd/etcd.ts')
  // A user in the URL is left out, as flanneld's client leaves it out.
  const endpoints = String(options['etcd-endpoints']).split(',')
  const [certFile, keyFile, caFile] = [options['etcd-certfile'], options['etcd-keyfile'], options['etcd-cafile']]
  const isPlain = (endpoint: string): boolean =>
    caFile === '' ? !/^\s*https:/.test(endpoint) : /^\s*http:/.test(endpoint)
  // flanneld's words and condition (registry.go, newTlsConfig), but where TLS is spoken all the same: they would not be true.
  if ((certFile === '' || keyFile === '') && endpoints.some(isPlain))
    log.warn('no certificate provided: connecting to etcd with http. This is insecure')
  return createEtcdStore({
    endpoints,
    certFile,
    keyFile,
    caFile,
    log,
    prefix: options['etcd-prefix'],
    username: options['etcd-username'],
    password: options['etcd-password'],
  })
}

/** The parts that any backend may be made of. */
interface AllParts<T extends BackendType> extends BackendParts<T>, Pick<TunnelOptions, 'startEngine' | 'persistence'> {
  readonly publishedBefore: VxlanBackendOptions['publishedBefore']
}

/** The module of each backend's code. */
const BACKENDS: { readonly [T in BackendType]: () => Promise<(parts: AllParts<T>) => Backend> } = {
  udp: async () => (await import('../path/backends/udp.ts')).createUdpBackend,
  vxlan: async () => (await import('../path/backends/vxlan.ts')).createVxlanBackend,
  'host-gw': async () => (await import('../path/backends/host-gw.ts')).createHostGwBackend,
  ipip: async () => (await import('../path/backends/ipip.ts')).createIpipBackend,
  wireguard: async () => (await import('../path/backends/wireguard.ts')).createWireguardBackend,
  alloc: async () => (await import('../path/backends/alloc.ts')).createAllocBackend,
  extension: async () => (await import('../path/backends/extension.ts')).createExtensionBackend,
  'aws-vpc': async () => (await import('../path/backends/aws-vpc.ts')).createAwsVpcBackend,
  gce: async () => (await import('../path/backends/gce.ts')).createGceBackend,
  'ali-vpc': async () => (await import('../path/backends/ali-vpc.ts')).createAliVpcBackend,
  'tencent-vpc': async () => (await import('../path/backends/tencent-vpc.ts')).createTencentVpcBackend,
  http: async () => (await import('../path/backends/http.ts')).createHttpBackend,
}

/**
 * Checks the type and the options of the `Backend` object, and that it carries a family of the network, for whoever is about to put a
 * configuration; warns of a family that it does not carry. Throws WeftError CONFIG.
 */
export function checkBackend(config: NetworkConfig, log: Pick<Log, 'warn'>): void {
  const type = knownType(config.backendType)
  readSettings(type, config.backend)
  if (isIpv4Alone(type)) carryIpv4Alone(`the ${type} backend`, config, log)
}

/** The backend that the network configuration names. Throws WeftError CONFIG for one that there is not. */
export async function createBackend(
  config: NetworkConfig,
  external: ExternalInterface,
  options: DaemonOptions,
  log: Log,
  publishedBefore: VxlanBackendOptions['publishedBefore'],
  inheritance: Pick<Inheritance, 'take' | 'tunNames'>,
  run = runCommand,
): Promise<Backend> {
  const persistence = persistenceOf(options, inheritance)
  const startEngine = (engineConfig: EngineConfig) => startEngineOf(options, engineConfig)
  const parts = { config, external, startEngine, persistence, publishedBefore, run, log }
  return makeBackend(knownType(config.backendType), parts)
}

/** The backend of a configuration if it publishes a route outside of the host; else undefined. It can only withdraw that route. */
export async function createWithdrawing(
  config: NetworkConfig,
  external: ExternalInterface,
  log: Log,
): Promise<Backend | undefined> {
  const type = knownType(config.backendType)
  if (!kindOf(type)?.publishesRoute) return undefined
  const none = (): never => {
    throw new Error(`${type} has no engine`)
  }
  const persistence: Persistence = { persist: false, isMultiQueue: false, tunNames: [], inherit: none }
  const publishedBefore = async () => undefined
  return makeBackend(type, { config, external, startEngine: none, persistence, publishedBefore, run: runCommand, log })
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
  inheritance: Pick<Inheritance, 'take' | 'tunNames'>,
): Persistence {
  const isNative = engine === 'native'
  return {
    persist,
    tunNames: inheritance.tunNames,
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
    const { startDgramEngine } = await import('../path/engine/reference/dgram-engine.ts')
    return startDgramEngine(config)
  }
  const { startNativeEngine } = await import('../path/engine/native-engine.ts')
  if (engine === 'native' && nice !== 0) raiseSession(nice)
  return startNativeEngine(config, { workers, nice, pollUs, without })
}
