// choose.ts - creates the subnet manager, the backend and the engine that the flags and the network configuration name.
// The code of all other subnet managers, backends and engines is not loaded.

import type { Log } from '../base/log.ts'
import { knownType, readSettings } from '../control/config/backend-options.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { SubnetManager } from '../control/lease/subnet-manager.ts'
import type { Store } from '../control/store/store.ts'
import type { Run } from '../host/command.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import type { HostKernel } from '../host/kernel.ts'
import { storeKindOf, type EngineOptions, type KeyStoreOptions, type StoreOptions } from '../options.ts'
import type { VxlanBackendOptions } from '../path/backends/vxlan.ts'
import { kindOf, type BackendType } from '../path/catalog.ts'
import type { Backend, BackendParts } from '../path/contract.ts'
import type { Engine, EngineConfig } from '../path/engine/engine.ts'
import type { Persistence, TunnelOptions } from '../path/tunnel/tunnel-options.ts'
import type { Inheritable } from './restart/handover.ts'

/**
 * Creates the subnet manager that the flags name. Sends a request to the Kubernetes API only in a pod, to find out
 * which node this is.
 */
export async function createSubnetManager(
  options: StoreOptions,
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

/** Creates the store that the flags name, without contacting it. */
export async function createStore(options: KeyStoreOptions, log: Log): Promise<Store> {
  switch (storeKindOf(options)) {
    case 'directory': {
      const { DirectoryStore } = await import('../control/store/directory/directory.ts')
      return new DirectoryStore({
        directory: options['lease-dir'],
        onMade: (path) =>
          log.warn(
            `Made the lease directory ${path}, which was missing; if it is shared, check that it is mounted, and that --lease-dir is right`,
          ),
        onUnreadable: (path, why) =>
          log.warn(`The lease file ${path} cannot be read: ${why}; make it readable for the user of weftd`),
        onLocked: (path) =>
          log.warn(
            `Waiting for the lock of ${path}, which another process has: no node can acquire or renew a lease; \`lslocks\` on its host names the process`,
          ),
      })
    }
    case 'etcd':
      return createEtcd(options, log)
  }
}

async function createEtcd(options: KeyStoreOptions, log: Log): Promise<Store> {
  const { EtcdStore } = await import('../control/store/etcd/etcd.ts')
  // Remove the user name from the URL of an endpoint, because weftd, like flanneld, does not use the user name.
  const endpoints = String(options['etcd-endpoints']).split(',')
  const [certFile, keyFile, caFile] = [options['etcd-certfile'], options['etcd-keyfile'], options['etcd-cafile']]
  const isPlain = (endpoint: string): boolean =>
    caFile === '' ? !/^\s*https:/.test(endpoint) : /^\s*http:/.test(endpoint)
  // The words and the condition of this warning are those of flanneld (registry.go, newTlsConfig). weftd omits the
  // warning if every endpoint uses TLS.
  if ((certFile === '' || keyFile === '') && endpoints.some(isPlain))
    log.warn('no certificate provided: connecting to etcd with http. This is insecure')
  return new EtcdStore({
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

interface AllParts<T extends BackendType> extends BackendParts<T>, Pick<TunnelOptions, 'startEngine' | 'persistence'> {
  readonly publishedBefore: VxlanBackendOptions['publishedBefore']
}

/** For each backend type, the function that loads the module with its code. */
const BACKENDS: { readonly [T in BackendType]: () => Promise<(parts: AllParts<T>) => Backend> } = {
  udp: async () => (await import('../path/backends/udp.ts')).createUdpBackend,
  vxlan: async () => (await import('../path/backends/vxlan.ts')).createVxlanBackend,
  'host-gw': async () => (await import('../path/backends/host-gw.ts')).createHostGwBackend,
  ipip: async () => (await import('../path/backends/ipip.ts')).createIpipBackend,
  wireguard: async () => (await import('../path/backends/wireguard.ts')).createWireguardBackend,
  ipsec: async () => (await import('../path/backends/ipsec.ts')).createIpsecBackend,
  alloc: async () => (await import('../path/backends/alloc.ts')).createAllocBackend,
  extension: async () => (await import('../path/backends/extension.ts')).createExtensionBackend,
  'aws-vpc': async () => (await import('../path/backends/aws-vpc.ts')).createAwsVpcBackend,
  gce: async () => (await import('../path/backends/gce.ts')).createGceBackend,
  'ali-vpc': async () => (await import('../path/backends/ali-vpc.ts')).createAliVpcBackend,
  'tencent-vpc': async () => (await import('../path/backends/tencent-vpc.ts')).createTencentVpcBackend,
  http: async () => (await import('../path/backends/http.ts')).createHttpBackend,
}

/**
 * Creates the backend that the network configuration names. Throws WeftError CONFIG if the backend's type or options
 * are wrong.
 */
export async function createBackend(
  config: NetworkConfig,
  external: ExternalInterface,
  options: EngineOptions,
  log: Log,
  publishedBefore: VxlanBackendOptions['publishedBefore'],
  inheritable: Inheritable,
  kernel: HostKernel,
): Promise<Backend> {
  const persistence = persistenceOf(options, inheritable)
  const startEngine = (engineConfig: EngineConfig) => startEngineOf(options, engineConfig)
  const parts = { config, external, startEngine, persistence, publishedBefore, run, kernel, log }
  return makeBackend(knownType(config.backendType), parts)
}

/**
 * Creates the backend of a configuration only to withdraw the route that this backend published. Returns undefined for
 * a backend that publishes no route outside of the host.
 */
export async function createWithdrawing(
  config: NetworkConfig,
  external: ExternalInterface,
  kernel: HostKernel,
  log: Log,
): Promise<Backend | undefined> {
  const type = knownType(config.backendType)
  if (!kindOf(type)?.publishesRoute) return undefined
  const none = (): never => {
    throw new Error(`${type} has no engine`)
  }
  const persistence: Persistence = { persist: false, isMultiQueue: false, tunNames: [], inherit: none }
  const publishedBefore = async () => undefined
  const parts = { config, external, startEngine: none, persistence, publishedBefore, run, kernel, log }
  return makeBackend(type, parts)
}

/**
 * Returns the functions that list and remove the connections of the backend ipsec in this host's running charon
 * (strongSwan's IKE daemon).
 */
export async function charonOfHost() {
  const { leaveCharon, listConnections } = await import('../path/backends/ipsec/leave-charon.ts')
  return { leaveCharon, listConnections }
}

/** Runs a command. Only few backends run commands, so the module command.ts is not loaded before the first command. */
const run: Run = async (file, args, options) => (await import('../host/command.ts')).run(file, args, options)

async function makeBackend<T extends BackendType>(type: T, parts: Omit<AllParts<T>, 'settings'>): Promise<Backend> {
  const settings = readSettings(type, parts.config.backend)
  const create: (all: AllParts<T>) => Backend = await BACKENDS[type]()
  return create({ ...parts, settings })
}

function persistenceOf({ engine, persist, workers, without }: EngineOptions, inheritable: Inheritable): Persistence {
  const isNative = engine === 'native'
  return {
    persist,
    tunNames: inheritable.tunNames,
    isMultiQueue: isNative && workers > 1,
    // Only the native engine can use inherited descriptors. For any other engine, request descriptors for 0 workers,
    // which no inherited descriptors match.
    inherit: (wanted) => inheritable.take({ ...wanted, without, workers: isNative ? workers : 0 }),
  }
}

async function startEngineOf(
  { engine, workers, nice, without, 'poll-us': pollUs }: EngineOptions,
  config: EngineConfig,
): Promise<Engine> {
  if (engine === 'dgram') {
    const { DgramEngine } = await import('../path/engine/reference/dgram-engine.ts')
    return DgramEngine.start(config)
  }
  const { NativeEngine } = await import('../path/engine/native-engine.ts')
  const started = new NativeEngine(config, { workers, nice, pollUs, without })
  // Raise the priority of this process's session, but do not await the import of the module, so that the import does
  // not delay the first packet.
  if (engine === 'native' && nice !== 0)
    void import('../host/session-priority.ts').then(({ raiseSession }) => raiseSession(nice))
  return started
}
