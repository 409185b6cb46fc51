// daemon.ts - the page to read first: what weftd does from start to stop, and the loops in between.
//
//   start   previous subnet -> store -> network configuration -> external interface -> lease -> data path
//           -> firewall -> subnet.env -> ready
//   loops   follow:   what the store reports becomes the data path's peer table
//           hold:     the own lease is renewed before it ends, and taken again when it was lost
//           claim:    another host that uses our public IP is noticed
//           compare:  a network configuration that is no longer the one in use is named
//           forward:  the device is kept right, and the data path opened again when it died or the node moved
//           guard:    the firewall's rules are kept right
//           inform:   subnet.env is kept right
//           attend:   a hung thread is noticed; the service manager hears how the node is, and that it lives
//   stop    one AbortController: a signal, or a loop that cannot go on, aborts it; all loops end on it, then the data
//           path and the store are closed
//
// The loops live here and nowhere else; stores and backends are told what to do and start no timer.

import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { isDeepStrictEqual } from 'node:util'
import type { Backend, Network } from './backend/backend.ts'
import { createBackend, createFirewall, createStore } from './choose.ts'
import type { DaemonOptions } from './cli/options.ts'
import { parseNetworkConfig, type NetworkConfig } from './config/network-config.ts'
import { describeError, isWeftError, messageOf, prefixed, WeftError } from './errors.ts'
import type { Firewall } from './firewall/firewall.ts'
import { createBell, pause, type Bell } from './host/bell.ts'
import { watchHost } from './host/events.ts'
import { getSysctl } from './host/sysctl.ts'
import { leasesEqual, type Lease, type LeaseAttrs, type OwnLease } from './lease/lease.ts'
import { acquireLease, followLeases, LEASE_TTL_MS, renewLease, type FollowState } from './lease/leases.ts'
import { applyUpdate, type PeerView } from './lease/peer-view.ts'
import type { Store } from './lease/store.ts'
import { formatGoDuration, formatGoTime, seldom, type Log } from './log.ts'
import { formatIpv4, formatIpv4Net, type Ipv4Net } from './net/ipv4.ts'
import { waitForConfig, waitForInterface } from './start.ts'
import { createHealth, serveHealth, type Health } from './status/health.ts'
import { detailsOf, summaryOf, troubleOf, type NodeState } from './status/node-state.ts'
import type { Notifier } from './status/notify.ts'
import { createRepairLog, type RepairLog } from './status/repairs.ts'
import { holdsSubnetEnv, readPreviousNet, writeSubnetEnv, type SubnetEnv } from './status/subnet-env.ts'
import { hungThread, lookAtThreads, type Threads } from './status/threads.ts'

const ACQUIRE_RETRY_MS = 1_000
/** Renewing is tried again after the first, doubling to the last: one missed try must not cost an hour's margin. */
const RENEW_RETRY_MIN_MS = 1_000
const RENEW_RETRY_MAX_MS = 60_000
/** Of the margin, or of what it leaves, at random: nodes that started together must not renew together for ever. */
const RENEW_JITTER = 0.1
/** How often the clocks are looked at while a renewal is waited for. */
const CLOCKS_MS = 60_000
const REOPEN_RETRY_MS = 1_000
const CLAIM_MS = 60_000
const COMPARE_MS = 60_000
const RESYNC_MS = 5_000
/** flanneld does not set it either. */
const NOT_FORWARDING =
  'net.ipv4.ip_forward is 0: no packet of a container leaves this host until it is 1; Docker and the bridge plugin of CNI set it'
/** Between two looks at the threads of the data path. */
const LOOK_MS = 2_000
/** What the kernel reports comes in bursts: looked at once in so long, which leaves room within a second. */
const SETTLE_MS = 200
/** With more repairs a minute somebody undoes them: then the device is looked at every RESYNC_MS only. */
const REPAIRS_A_MINUTE = 60

/** flanneld's words for a failure of the lease and of the device at the start. */
const REGISTERING = 'Error registering network: '

/** What a node is made of. */
export interface NodeParts {
  readonly options: Pick<DaemonOptions, 'subnet-file' | 'subnet-lease-renew-margin' | 'fail-static-hold' | 'ip-masq'>
  readonly store: Store
  readonly config: NetworkConfig
  readonly backend: Backend
  /** The rules, and how often they are looked at. */
  readonly firewall?: { readonly rules: Firewall; readonly resyncMs: number } | undefined
  readonly log: Log
  readonly signal: AbortSignal
  /** Where the node says how it is; nobody asks when it is left out. */
  readonly health?: Health
  /** The service manager, if there is one that wants to know. */
  readonly notifier?: Notifier | undefined
}

/** A node in the network: what the loops share. */
interface Node extends NodeParts {
  lease: OwnLease
  /** What the lease is to say; the next renewal writes it. */
  attrs: LeaseAttrs
  /** Undefined while it is being opened again. */
  network: Network | undefined
  /** All leases in the store, our own among them. */
  view: PeerView
  /** How well the store is followed. */
  readonly following: FollowState
  /** When the node came to be, by performance.now(). */
  readonly since: number
  /** Rung when the store says that our own lease is not what we wrote. */
  readonly leaseDoubt: Bell
  /** Rung when the data path died, or the node has another lease. */
  readonly networkDoubt: Bell
  /** How many repairs there were since the start. */
  repaired: number
  /** Whether subnet.env could be written. */
  published: boolean
  threads: Threads
}

/**
 * Runs until `stopping` is aborted, which it does itself when a loop cannot go on. Always rejects: with the reason of
 * the abort, or with what was in the way of starting (a WeftError when an operator can mend it).
 */
export async function runDaemon(
  options: DaemonOptions,
  log: Log,
  stopping: AbortController,
  notifier?: Notifier,
): Promise<never> {
  stopping.signal.addEventListener('abort', () => notifier?.stopping())
  const previous = await readPreviousNet(options['subnet-file'], 'FLANNEL_SUBNET', log)
  const health = createHealth()
  const port = options['healthz-port']
  const server = port > 0 ? await serveHealth(options['healthz-ip'], port, health) : undefined
  try {
    return await runWithStore(options, log, stopping, health, notifier, previous)
  } finally {
    await server?.close()
  }
}

async function runWithStore(
  options: DaemonOptions,
  log: Log,
  stopping: AbortController,
  health: Health,
  notifier: Notifier | undefined,
  previous: Ipv4Net | undefined,
): Promise<never> {
  const { signal } = stopping
  const store = await prefixed('Failed to create SubnetManager: ', createStore(options))
  const manager = store.name === 'etcd' ? 'Etcd Local Manager' : 'Lease Directory'
  log.info(`Created subnet manager: ${manager} with Previous Subnet: ${previous ? formatIpv4Net(previous) : 'None'}`)
  const tell = (status: string): void => notifier?.tell({ ready: false, status })
  try {
    tell(`waiting for the network configuration in the ${store.name} store`)
    const config = await waitForConfig(store, options, log, signal)
    if (!config.enableIpv4 && !config.ipv6)
      throw new WeftError('CONFIG', 'none defined stack', { remedy: 'set "EnableIPv4": true in the configuration' })
    if (config.enableIpv4 && config.ipv6)
      log.warn('weft has no IPv6 yet: "EnableIPv6" of the network configuration is passed over')
    tell('waiting for the external interface')
    const networkDoubt = createBell()
    const ended = new AbortController()
    const watching = watchHost(() => networkDoubt.ring(), log, AbortSignal.any([signal, ended.signal]))
    try {
      const external = await waitForInterface(options, networkDoubt, log, signal)
      const backend = await createBackend(config, external, options, log)
      const rules = await createFirewall(config, options, log)
      const firewall = { rules, resyncMs: Math.max(1, options['iptables-resync']) * 1000 }
      if ((await getSysctl('net/ipv4/ip_forward')) === '0') log.warn(NOT_FORWARDING)
      tell('waiting for a lease')
      return await runNode(
        { options, store, config, backend, firewall, log, signal, health, notifier },
        previous,
        stopping,
        networkDoubt,
      )
    } finally {
      ended.abort()
      await watching
    }
  } finally {
    await store.close()
  }
}

/** The node's life once it is known what it is made of: lease, data path, loops. As `runDaemon` for its end. */
export async function runNode(
  parts: NodeParts,
  previous: Ipv4Net | undefined,
  stopping: AbortController,
  networkDoubt = createBell(),
): Promise<never> {
  const { backend, log, signal } = parts
  const attrs = await backend.prepare(signal)
  const acquiring = prefixed('failed to acquire lease: ', acquire(parts, attrs, previous))
  const lease = await prefixed(REGISTERING, acquiring)
  const network = await prefixed(REGISTERING, backend.open(lease, signal))
  const node: Node = {
    ...parts,
    ...{ lease, attrs, network, view: new Map(), repaired: 0, published: false, threads: new Map() },
    following: { listedAt: undefined, failing: false, held: 0 },
    since: performance.now(),
    leaseDoubt: createBell(),
    networkDoubt,
  }
  if (parts.health) {
    parts.health.trouble = () => troubleOf(stateOf(node), performance.now())
    parts.health.state = () => detailsOf(stateOf(node), performance.now())
  }
  try {
    await node.firewall?.rules.raise(node.lease.subnet)
    await publish(node)
    log.info('Running backend.')
    return await runLoops(stopping, [
      ...[follow(node), hold(node), claim(node), compare(node), forward(node), guard(node), inform(node)],
      ...[attend(node), keepAlive(node)],
    ])
  } finally {
    await node.network?.close()
  }
}

/** Waits for all loops to end. The first that fails stops the others. */
async function runLoops(stopping: AbortController, loops: readonly Promise<never>[]): Promise<never> {
  await Promise.allSettled(loops.map((loop) => loop.catch((error: unknown) => stopping.abort(error))))
  throw stopping.signal.reason
}

/**
 * A lease for this node. A store that cannot be reached is waited for; every other failure is the operator's, and a
 * node that is not in the network yet ends with it. One that is goes on forwarding and waits for the operator.
 */
async function acquire(
  { store, config, log, signal }: NodeParts,
  attrs: LeaseAttrs,
  previous: Ipv4Net | undefined,
  isRunning = false,
): Promise<OwnLease> {
  const calm = seldom(log)
  for (;;) {
    try {
      const wanted = previous ? { previous } : {}
      return await acquireLease(store, config, attrs, {
        ...wanted,
        ttlMs: LEASE_TTL_MS,
        random: Math.random,
        log: calm,
        signal,
      })
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error, 'STORE_UNAVAILABLE') && !(isRunning && isWeftError(error))) throw error
      calm.error(`failed to acquire lease: ${describeError(error)}`)
    }
    await pause(signal, ACQUIRE_RETRY_MS)
  }
}

/** What Docker, the CNI plugin and scripts are to know; undefined while the data path is down. */
function subnetEnvOf({ options, config, lease, network }: Node): SubnetEnv | undefined {
  return network && { network: config.network, subnet: lease.subnet, mtu: network.mtu, ipMasq: options['ip-masq'] }
}

async function publish(node: Node, log = node.log): Promise<void> {
  const env = subnetEnvOf(node)
  if (!env) return
  const path = node.options['subnet-file']
  node.published = false
  try {
    await writeSubnetEnv(path, env)
    node.published = true
    log.info(`Wrote subnet file to ${path}`)
    if (node.health) node.health.ready = true
    log.info('flannel is ready')
  } catch (error) {
    // The data path works without it, and containers that run already need the data path.
    log.error(`Failed to write subnet file: ${describeError(error)}`)
  }
}

/** Makes the data path's peers equal the view, less our own lease. */
async function applyPeers({ network, view, lease }: Node): Promise<void> {
  await network?.apply(view, lease.key)
}

async function follow(node: Node): Promise<never> {
  const { options, store, log, signal } = node
  const isOwn = ({ key }: Lease): boolean => key === node.lease.key
  const following = followLeases(store, {
    log,
    signal,
    ownKey: () => node.lease.key,
    holdMs: options['fail-static-hold'] * 1000,
    state: node.following,
  })
  for await (const update of following) {
    const { view, added, changed, removed } = applyUpdate(node.view, update)
    node.view = view
    for (const lease of [...added, ...changed])
      if (!isOwn(lease)) log.info(`Subnet added: ${formatIpv4Net(lease.subnet)}`)
    for (const lease of removed) if (!isOwn(lease)) log.info(`Subnet removed: ${formatIpv4Net(lease.subnet)}`)
    if (added.length + changed.length + removed.length > 0) await applyPeers(node)
    // A deletion that came between acquiring and the first listing was never in the view.
    const own = view.get(node.lease.key)
    if (!own || !leasesEqual(own, node.lease)) node.leaseDoubt.ring()
  }
  throw signal.reason
}

async function hold(node: Node): Promise<never> {
  const { options, log } = node
  const marginMs = options['subnet-lease-renew-margin'] * 60_000
  for (;;) {
    const { expiresAt } = node.lease
    const earlyMs = marginMs + RENEW_JITTER * Math.random() * Math.min(marginMs, LEASE_TTL_MS - marginMs)
    const waitMs = expiresAt === undefined ? undefined : Math.max(0, expiresAt - earlyMs - Date.now())
    if (waitMs !== undefined) log.info(`Waiting for ${formatGoDuration(waitMs)} to renew lease`)
    await untilDue(node, waitMs)
    await renewOrReplace(node)
  }
}

/**
 * Waits until the lease is in doubt or, by either clock, `waitMs` are over: the monotonic clock, and timers with it, stand still
 * while the host is suspended, and the clock of the day can be set back.
 */
async function untilDue({ leaseDoubt, signal }: Node, waitMs: number | undefined): Promise<void> {
  if (waitMs === undefined) return void (await leaseDoubt.wait(signal))
  const due = performance.now() + waitMs
  const dueByDay = Date.now() + waitMs
  let leftMs = waitMs
  while (leftMs > 0 && !(await leaseDoubt.wait(signal, Math.min(leftMs, CLOCKS_MS)))) {
    leftMs = Math.min(due - performance.now(), dueByDay - Date.now())
  }
}

async function renewOrReplace(node: Node): Promise<void> {
  const { store, log, signal } = node
  let retryMs = RENEW_RETRY_MIN_MS
  for (;;) {
    try {
      node.lease = await renewLease(store, node.lease, { attrs: node.attrs, ttlMs: LEASE_TTL_MS, log, signal })
      return log.info(`Lease renewed, new expiration: ${formatGoTime(node.lease.expiresAt)}`)
    } catch (error) {
      signal.throwIfAborted()
      if (isWeftError(error, 'LEASE_LOST')) {
        log.error(
          `Lease has been revoked: ${describeError(error)}. Acquiring a lease again; forwarding goes on meanwhile.`,
        )
        return replaceLease(node)
      }
      if (!isWeftError(error)) throw error
      const again = retryMs < RENEW_RETRY_MAX_MS ? `${retryMs / 1000} s` : '1 min'
      log.error(`Error renewing lease (trying again in ${again}): ${describeError(error)}`)
    }
    // What is heard of our lease meanwhile shows that the store is back.
    const heard = await node.leaseDoubt.wait(signal, retryMs)
    retryMs = heard ? RENEW_RETRY_MIN_MS : Math.min(2 * retryMs, RENEW_RETRY_MAX_MS)
  }
}

/** Takes the same subnet again if it is free, and moves the node to another one if it is not. */
async function replaceLease(node: Node): Promise<void> {
  const { log } = node
  const before = node.lease
  node.lease = await acquire(node, node.attrs, before.subnet, true)
  if (node.lease.key === before.key) return log.info(`Lease of ${formatIpv4Net(before.subnet)} acquired again`)
  log.warn(
    `This node moves from ${formatIpv4Net(before.subnet)} to ${formatIpv4Net(node.lease.subnet)}: ` +
      'containers on the old subnet must be started again',
  )
  node.networkDoubt.ring()
}

/**
 * Notices a second live host with our public IP, as every Vagrant machine has 10.0.2.15: both hold one lease then, and
 * flanneld says nothing. Each weftd writes its name beside the leases; whoever finds it overwritten is not alone.
 * A host that comes back overwrites what it left itself, and nobody answers.
 */
async function claim(node: Node): Promise<never> {
  const { store, log, signal } = node
  let address = ''
  const mine = JSON.stringify({ Hostname: hostname(), ID: randomUUID() })
  let claimed = false
  for (;;) {
    const current = formatIpv4(node.attrs.publicIp)
    if (current !== address) claimed = false
    address = current
    try {
      const found = await store.claim(address, mine, LEASE_TTL_MS, signal)
      if (claimed && found !== undefined && found !== mine) {
        log.error(
          `Another host uses this node's public IP ${address} too: ${/"Hostname":"([^"]*)"/.exec(found)?.[1] ?? found}. ` +
            'Both hold one subnet, and packets reach only one of them; give each its own address with --public-ip or --iface',
        )
      }
      claimed = true
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error // what the store is like is said by whoever follows it
    }
    await pause(signal, CLAIM_MS)
  }
}

/** A node works by the configuration that it started with, as flanneld does; here the log says so when another one is put. */
async function compare({ store, config, log, signal }: Node): Promise<never> {
  let named: string | undefined
  for (;;) {
    await pause(signal, COMPARE_MS)
    try {
      const text = await store.config(signal)
      if (text === undefined || text === named) continue
      const isOurs = isDeepStrictEqual(parseNetworkConfig(text), config)
      if (!isOurs) log.warn(`The network configuration changed, and counts when this node is started again: ${text}`)
      named = isOurs ? undefined : text
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error // a store that is away comes back, and a broken text is named by whoever starts
    }
  }
}

async function forward(node: Node): Promise<never> {
  const { backend, log, signal } = node
  let { lease } = node
  let mtu = node.network?.mtu
  let diedYoung = 0
  const repairs = createRepairLog(node, node.log)
  for (;;) {
    const openedAt = performance.now()
    await keepRight(node, lease, repairs)
    await node.network?.close()
    node.network = undefined
    // A data path that dies as soon as it is opened, and again, must not be opened in a tight loop.
    diedYoung = performance.now() - openedAt < REOPEN_RETRY_MS ? diedYoung + 1 : 0
    if (diedYoung > 1) await pause(signal, REOPEN_RETRY_MS)
    const before = { lease, mtu }
    const calm = seldom(log)
    while (!node.network) {
      try {
        node.attrs = await backend.prepare(signal)
        if (node.attrs.publicIp !== node.lease.attrs.publicIp) node.leaseDoubt.ring()
        lease = node.lease
        node.network = await backend.open({ ...lease, attrs: node.attrs }, signal)
        mtu = node.network.mtu
      } catch (error) {
        signal.throwIfAborted()
        calm.error(`Cannot open the data path: ${describeError(error)}`)
        await pause(signal, REOPEN_RETRY_MS)
      }
    }
    await applyPeers(node)
    if (lease.key !== before.lease.key || mtu !== before.mtu) await publish(node)
  }
}

/** Mends what others changed of the device, until the data path must be opened again: it died, or the node moved. */
async function keepRight(node: Node, lease: OwnLease, repairs: RepairLog): Promise<void> {
  const { log, signal, network } = node
  if (!network) return
  let fault: Error | undefined
  void network.fault.then((error) => {
    fault = error
    node.networkDoubt.ring()
  })
  const calm = seldom(log)
  for (;;) {
    await node.networkDoubt.wait(signal, RESYNC_MS)
    if (fault) return log.error(`The data path stopped: ${messageOf(fault)}. Opening it again.`)
    if (node.lease.key !== lease.key) return
    try {
      for (const mended of await network.resync()) repairs.add(mended)
    } catch (error) {
      signal.throwIfAborted()
      calm.error(`Cannot check the device: ${describeError(error)}`)
    }
    await pause(signal, repairs.lastMinute() < REPAIRS_A_MINUTE ? SETTLE_MS : RESYNC_MS)
  }
}

/** Mends the rules that others removed or reordered, and makes them follow the node to another subnet. */
async function guard(node: Node): Promise<never> {
  const { firewall, log, signal } = node
  const calm = seldom(log)
  const repairs = createRepairLog(node, node.log)
  for (;;) {
    await pause(signal, firewall?.resyncMs ?? RESYNC_MS)
    try {
      for (const mended of (await firewall?.rules.ensure(node.lease.subnet)) ?? []) repairs.add(mended)
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error
      calm.error(describeError(error))
    }
  }
}

/** Writes subnet.env again when somebody removed or changed it, or it could not be written: containers need it to start. */
async function inform(node: Node): Promise<never> {
  const { options, log, signal } = node
  const path = options['subnet-file']
  const calm = seldom(log)
  const quiet = { ...log, error: (message: string) => calm.error(message) }
  const repairs = createRepairLog(node, node.log)
  for (;;) {
    await pause(signal, RESYNC_MS)
    const env = subnetEnvOf(node)
    if (!env || (await holdsSubnetEnv(path, env))) continue
    if (node.published) repairs.add(`${path} was gone or changed`)
    await publish(node, quiet)
  }
}

/** Notices a thread of the data path that hangs, and tells the service manager how the node is. */
async function attend(node: Node): Promise<never> {
  const { log, notifier, signal } = node
  for (;;) {
    const before = hungThread(node.threads)
    node.threads = lookAtThreads(node.threads, node.network?.threads() ?? {}, performance.now())
    const hung = hungThread(node.threads)
    if (hung && hung.name !== before?.name)
      log.error(`The thread ${hung.name} hangs: packets are not forwarded. Only a restart of weftd can mend that`)
    if (before && !hung) log.warn(`The thread ${before.name} goes on`)
    notifier?.tell({ ready: true, status: summaryOf(stateOf(node)) })
    await pause(signal, LOOK_MS)
  }
}

/** What is told of the node as it is now. */
function stateOf({
  lease,
  view,
  network,
  threads,
  following,
  since,
  store,
  repaired,
  health,
  options,
}: Node): NodeState {
  return {
    subnet: lease.subnet,
    isOpen: network !== undefined,
    threads,
    peers: view.size - (view.has(lease.key) ? 1 : 0),
    held: following.held,
    store: store.name,
    isFailing: following.failing,
    comparedAt: following.listedAt,
    followedSince: since,
    repaired,
    unwritten: health?.ready === false ? options['subnet-file'] : undefined,
  }
}

/**
 * What keeps the service manager's watchdog from restarting us. It speaks for this event loop and the threads that
 * forward, and for nothing that a restart cannot mend: not the store, not a device that cannot be opened.
 */
async function keepAlive(node: Node): Promise<never> {
  const { notifier, signal } = node
  for (;;) {
    await pause(signal, notifier?.aliveMs ?? RESYNC_MS)
    if (notifier?.aliveMs !== undefined && !hungThread(node.threads)) notifier.alive()
  }
}
