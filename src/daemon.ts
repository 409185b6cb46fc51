// daemon.ts - the page to read first: what weftd does from start to stop, and the loops in between.
//
//   start   previous subnet -> store -> network configuration -> external interface -> lease -> data path
//           -> subnet.env -> ready
//   run     follow:  what the store reports becomes the data path's peer table
//           renew:   the own lease before it ends; taken again when it was lost
//           resync:  the device, its address and its route, as the kernel holds them
//           guard:   a data path that died is opened again
//   stop    one AbortController: a signal or a fatal error aborts it, every loop ends on it, then all is closed
//
// The loops live here and nowhere else; stores and backends are told what to do and start no timer.

import { setTimeout as delay } from 'node:timers/promises'
import type { Backend, Network } from './backend/backend.ts'
import type { DaemonOptions } from './cli/options.ts'
import { createBackend, createStore } from './choose.ts'
import { parseNetworkConfig, type NetworkConfig } from './config/network-config.ts'
import { describeError, isWeftError, messageOf, WeftError } from './errors.ts'
import { run } from './host/command.ts'
import { chooseExternalInterface } from './host/external-interface.ts'
import { acquireLease, followLeases, LEASE_TTL_MS, renewLease } from './lease/leases.ts'
import type { Lease, OwnLease } from './lease/lease.ts'
import { applyUpdate, type PeerView } from './lease/peer-view.ts'
import type { Store } from './lease/store.ts'
import type { Log } from './log.ts'
import { formatIpv4Net, type Ipv4Net } from './net/ipv4.ts'
import { readPreviousSubnet, writeSubnetEnv } from './status/subnet-env.ts'

const CONFIG_RETRY_MS = 1_000
const RENEW_RETRY_MS = 60_000
const ACQUIRE_RETRY_MS = 1_000
const REOPEN_RETRY_MS = 1_000
const RESYNC_MS = 5_000
/** After the first ones, a message that repeats is logged once in this many tries. */
const REPEATS_LOGGED = 3
const REPEAT_EVERY = 10

/** Runs until `signal` aborts. Rejects with WeftError when it cannot start, or when an operator must act. */
export async function runDaemon(options: DaemonOptions, log: Log, signal: AbortSignal): Promise<void> {
  const previous = await readPreviousSubnet(options['subnet-file'], (message) => log.warn(message))
  const store = await createStore(options)
  log.info(
    `Created subnet manager: ${store.name === 'etcd' ? 'Etcd Local Manager' : 'Lease Directory'} with Previous Subnet: ` +
      (previous ? formatIpv4Net(previous) : 'None'),
  )
  try {
    const config = await waitForConfig(store, log, signal)
    const external = await chooseExternalInterface(
      run,
      { ifaces: options.iface, canReach: options['iface-can-reach'], publicIp: options['public-ip'] },
      log,
    )
    const backend = await createBackend(config, external, options, log)
    await new Node({ options, store, config, backend, log, signal }).run(previous)
  } finally {
    await store.close()
  }
}

/** Asks every second until there is a configuration, as flanneld does; a wrong one is logged and asked for again. */
async function waitForConfig(store: Store, log: Log, signal: AbortSignal): Promise<NetworkConfig> {
  const couldNot = repeating(log, "Couldn't fetch network config: ")
  for (;;) {
    try {
      const text = await store.config(signal)
      if (text === undefined) {
        throw new WeftError('CONFIG_MISSING', 'flannel config not found in etcd store. Did you create your config using etcdv3 API?', {
          remedy: configRemedy(store),
        })
      }
      const config = parseNetworkConfig(text)
      log.info(`Found network config - Backend type: ${config.backendType}`)
      return config
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error) || error.code === 'STORE') throw error
      couldNot(error)
    }
    await delay(CONFIG_RETRY_MS, undefined, { signal })
  }
}

function configRemedy(store: Store): string {
  return store.name === 'etcd'
    ? 'put it with `etcdctl put <etcd-prefix>/config \'{"Network":"10.5.0.0/16"}\'`, or see whether --etcd-prefix is right'
    : 'write it to the file `config` in the lease directory: {"Network":"10.5.0.0/16"}'
}

/** Logs an error the first times it comes, then every tenth time, and at once when it is another. */
function repeating(log: Log, prefix: string): (error: unknown) => void {
  let last = ''
  let times = 0
  return (error) => {
    const text = describeError(error)
    times = text === last ? times + 1 : 1
    last = text
    if (times <= REPEATS_LOGGED || times % REPEAT_EVERY === 0) log.error(prefix + text)
  }
}

interface NodeParts {
  readonly options: DaemonOptions
  readonly store: Store
  readonly config: NetworkConfig
  readonly backend: Backend
  readonly log: Log
  readonly signal: AbortSignal
}

/** This node in the network: its lease, its data path, and what it knows of its peers. */
class Node {
  readonly #parts: NodeParts
  /** Ends the loops: the caller's signal, or a loop that failed. */
  readonly #stopping = new AbortController()
  readonly #signal: AbortSignal
  #lease!: OwnLease
  #network!: Network
  /** All leases in the store, our own among them. */
  #view: PeerView = new Map()
  /** Wakes the renewal loop when the store says that our lease changed. */
  #leaseChanged = withResolvers<void>()

  constructor(parts: NodeParts) {
    this.#parts = parts
    this.#signal = AbortSignal.any([parts.signal, this.#stopping.signal])
  }

  async run(previous: Ipv4Net | undefined): Promise<void> {
    const { log } = this.#parts
    this.#lease = await this.#acquire(previous)
    this.#network = await this.#parts.backend.open(this.#lease, this.#signal)
    try {
      await this.#publish()
      log.info('flannel is ready')
      log.info('Running backend.')
      await this.#untilStopped([this.#follow(), this.#renew(), this.#resync(), this.#guard()])
    } finally {
      this.#stopping.abort()
      await this.#network.close()
      log.info('Exiting cleanly...')
    }
  }

  /** Waits until the daemon is told to stop, or a loop fails; then for all loops to end. */
  async #untilStopped(loops: readonly Promise<void>[]): Promise<void> {
    const outcome = loops.map((loop) =>
      loop.catch((error: unknown) => {
        const byRequest = this.#signal.aborted
        this.#stopping.abort(error)
        if (!byRequest) throw error
      }),
    )
    const results = await Promise.allSettled(outcome)
    const failed = results.find((result) => result.status === 'rejected')
    if (failed) throw failed.reason
  }

  /** A store that cannot be reached is waited for; every other failure is the operator's. */
  async #acquire(previous: Ipv4Net | undefined): Promise<OwnLease> {
    const { store, config, backend, log } = this.#parts
    const attrs = await backend.prepare(this.#signal)
    const failed = repeating(log, 'failed to acquire lease: ')
    for (;;) {
      try {
        return await acquireLease(store, config, attrs, {
          ...(previous ? { previous } : {}),
          ttlMs: LEASE_TTL_MS,
          random: Math.random,
          log,
          signal: this.#signal,
        })
      } catch (error) {
        this.#signal.throwIfAborted()
        if (!isWeftError(error, 'STORE_UNAVAILABLE')) throw error
        failed(error)
      }
      await delay(ACQUIRE_RETRY_MS, undefined, { signal: this.#signal })
    }
  }

  async #publish(): Promise<void> {
    const { options, config, log } = this.#parts
    const path = options['subnet-file']
    try {
      await writeSubnetEnv(path, { network: config.network, subnet: this.#lease.subnet, mtu: this.#network.mtu, ipMasq: false })
      log.info(`Wrote subnet file to ${path}`)
    } catch (error) {
      // The data path works without it, and containers that run already need the data path.
      log.error(`Failed to write subnet file: ${describeError(error)}`)
    }
  }

  /** The data path equals the view, less our own lease. */
  async #apply(): Promise<void> {
    const peers = new Map(this.#view)
    peers.delete(this.#lease.key)
    await this.#network.apply(peers)
  }

  async #follow(): Promise<void> {
    const { store, log } = this.#parts
    for await (const update of followLeases(store, { log, signal: this.#signal })) {
      const { view, added, removed, changed } = applyUpdate(this.#view, update)
      this.#view = view
      const isPeer = ({ key }: Lease): boolean => key !== this.#lease.key
      for (const lease of added) if (isPeer(lease)) log.info(`Subnet added: ${formatIpv4Net(lease.subnet)}`)
      for (const lease of changed) if (isPeer(lease)) log.info(`Subnet added: ${formatIpv4Net(lease.subnet)}`)
      for (const lease of removed) if (isPeer(lease)) log.info(`Subnet removed: ${formatIpv4Net(lease.subnet)}`)
      if (added.length + changed.length + removed.length > 0) await this.#apply()
      if ([...removed, ...changed].some((lease) => !isPeer(lease))) this.#leaseChanged.resolve()
    }
  }

  async #renew(): Promise<void> {
    const { store, options, log } = this.#parts
    const marginMs = options['subnet-lease-renew-margin'] * 60_000
    for (;;) {
      const waitMs = this.#lease.expiresAt === undefined ? undefined : Math.max(0, this.#lease.expiresAt - marginMs - Date.now())
      if (waitMs !== undefined) log.info(`Waiting for ${formatGoDuration(waitMs)} to renew lease`)
      this.#leaseChanged = withResolvers<void>()
      await waitFor(waitMs, this.#leaseChanged.promise, this.#signal)
      try {
        this.#lease = await renewLease(store, this.#lease, { ttlMs: LEASE_TTL_MS, log, signal: this.#signal })
        log.info(`Lease renewed, new expiration: ${this.#lease.expiresAt === undefined ? 'never' : new Date(this.#lease.expiresAt).toISOString()}`)
      } catch (error) {
        this.#signal.throwIfAborted()
        if (isWeftError(error, 'LEASE_LOST')) {
          log.error(`Lease has been revoked: ${describeError(error)}. Forwarding goes on; acquiring a lease again.`)
          await this.#replaceLease()
        } else {
          log.error(`Error renewing lease (trying again in 1 min): ${describeError(error)}`)
          await delay(RENEW_RETRY_MS, undefined, { signal: this.#signal })
        }
      }
    }
  }

  /** Takes the same subnet again if it is free, and moves the node to another one if it is not. */
  async #replaceLease(): Promise<void> {
    const { backend, log } = this.#parts
    const before = this.#lease
    const lease = await this.#acquire(before.subnet)
    this.#lease = lease
    if (lease.key === before.key) return log.info(`Lease of ${formatIpv4Net(lease.subnet)} acquired again`)
    log.warn(`This node moves from ${formatIpv4Net(before.subnet)} to ${formatIpv4Net(lease.subnet)}: containers on the old subnet must be started again`)
    await this.#network.close()
    this.#network = await backend.open(lease, this.#signal)
    await this.#apply()
    await this.#publish()
  }

  async #resync(): Promise<void> {
    const { log } = this.#parts
    const failed = repeating(log, 'Cannot check the device: ')
    for (;;) {
      await delay(RESYNC_MS, undefined, { signal: this.#signal })
      try {
        for (const mended of await this.#network.resync()) log.warn(`Repaired: ${mended}`)
      } catch (error) {
        this.#signal.throwIfAborted()
        failed(error)
      }
    }
  }

  /** Opens the data path again when it died: its device was deleted, say. */
  async #guard(): Promise<void> {
    const { backend, log } = this.#parts
    for (;;) {
      const watched = this.#network
      const fault = await untilAborted(watched.fault, this.#signal)
      if (this.#network !== watched) continue // the node moved meanwhile
      log.error(`The data path stopped: ${messageOf(fault)}. Opening it again.`)
      await watched.close()
      const failed = repeating(log, 'Cannot open the data path: ')
      for (;;) {
        try {
          this.#network = await backend.open(this.#lease, this.#signal)
          break
        } catch (error) {
          this.#signal.throwIfAborted()
          failed(error)
        }
        await delay(REOPEN_RETRY_MS, undefined, { signal: this.#signal })
      }
      await this.#apply()
    }
  }
}

function withResolvers<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void
  const promise = new Promise<T>((settle) => {
    resolve = settle
  })
  return { promise, resolve }
}

/** Settles as `promise`, or rejects with the signal's reason. */
async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted()
  const aborted = withResolvers<void>()
  const onAbort = (): void => aborted.resolve()
  signal.addEventListener('abort', onAbort, { once: true })
  try {
    return await Promise.race([promise, aborted.promise.then(() => Promise.reject(signal.reason))])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}

/** Waits for `ms` (for ever when undefined), or until `event` comes. */
async function waitFor(ms: number | undefined, event: Promise<void>, signal: AbortSignal): Promise<void> {
  if (ms === undefined) return untilAborted(event, signal)
  const timer = new AbortController()
  try {
    await untilAborted(Promise.race([delay(ms, undefined, { signal: timer.signal }), event]), signal)
  } finally {
    timer.abort()
  }
}

/** Milliseconds as Go prints a Duration to the second: 82800000 to `23h0m0s`. */
export function formatGoDuration(ms: number): string {
  const seconds = Math.floor(ms / 1000)
  const hours = Math.floor(seconds / 3600)
  const minutes = Math.floor(seconds / 60) % 60
  const parts = hours > 0 ? `${hours}h${minutes}m` : minutes > 0 ? `${minutes}m` : ''
  return `${parts}${seconds % 60}s`
}
