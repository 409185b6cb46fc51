// daemon.ts - the page to read first: what weftd does from start to stop, and the loops in between.
//
//   start   previous subnet -> what was last known: forward by it -> subnet manager -> network configuration -> external
//           interface -> lease -> data path -> firewall -> subnet.env -> ready
//   loops   the table LOOPS: each keeps one thing right, in a file of src/node/ that has its name
//   stop    one AbortController: a signal, a successor, or a loop that cannot go on, aborts it; all loops end on it, then
//           the data path is left to the next process, or closed, and the store is closed
//
// The loops are the daemon's and nobody else's; stores and backends are told what to do and start no timer.

import { setMaxListeners } from 'node:events'
import { isDeepStrictEqual } from 'node:util'
import type { DataPath } from './backend/backend.ts'
import { removeIdleTun } from './backend/tun-device.ts'
import { createBackend, createSubnetManager } from './choose.ts'
import type { NetworkConfig } from './config/network-config.ts'
import { prefixed, WeftError } from './errors.ts'
import { createFirewall, type Firewall } from './firewall/firewall.ts'
import { createBell } from './host/bell.ts'
import { run, type Run } from './host/command.ts'
import { openEcho } from './host/echo.ts'
import { watchHost } from './host/events.ts'
import type { ExternalInterface } from './host/external-interface.ts'
import { getSysctl } from './host/sysctl.ts'
import type { PeerView } from './lease/fail-static.ts'
import { leasesEqual, type OwnLease } from './lease/lease.ts'
import type { Log } from './log.ts'
import { formatIpv4, formatIpv4Net, type Ipv4Net } from './net/ipv4.ts'
import { watchConfig } from './node/config.ts'
import { keepDataPath } from './node/data-path.ts'
import { dropsReportOf } from './node/drops.ts'
import { keepFirewall } from './node/firewall.ts'
import { amended, askPatiently, attrsBefore, keepLease, obtainLease } from './node/lease.ts'
import { createNode, snapshotOf, type Next, type Node, type NodeParts } from './node/node.ts'
import { keepLastKnown } from './node/last-known.ts'
import { searchPaths } from './node/path-search.ts'
import { keepPeers } from './node/peers.ts'
import { probePeers } from './node/probes.ts'
import { keepReady } from './node/ready.ts'
import { reportOf } from './node/report.ts'
import { serveWatchdog, tellManager } from './node/service-manager.ts'
import { endDataPath, leaveDataPath, serveEarly, serveSuccessor } from './node/successor.ts'
import { keepSubnetEnv, publish } from './node/subnet-env.ts'
import { watchThreads } from './node/threads.ts'
import { watchForTwins } from './node/twins.ts'
import type { DaemonOptions } from './options.ts'
import { findHolder, handoverSocket, Superseded } from './restart/handover.ts'
import { createInheritance, keptName, type Inheritance } from './restart/inheritance.ts'
import {
  lastKnownFile,
  readLastKnown,
  removeLastKnown,
  storeNameOf,
  writeLastKnown,
  type LastKnown,
} from './restart/last-known.ts'
import { resume, type Resumed } from './resume.ts'
import { waitForConfig, waitForInterface } from './start.ts'
import { version } from './version.ts'
import { createEvents, type Events } from './status/events.ts'
import { createHealth, serveHealth, serveSocket, type Health, type HealthServer } from './status/health.ts'
import type { Notifier } from './status/notify.ts'
import { readPage } from './status/page.ts'
import { startingReport, type DaemonStatus } from './status/status.ts'
import { readPreviousNets, type PreviousNets } from './status/subnet-env.ts'

/** Started in this order; each goes on until the signal to stop, and ends by throwing. */
const LOOPS: readonly ((node: Node) => Promise<never>)[] = [
  keepPeers, // what the subnet manager reports becomes the data path's peer table
  keepLease, // the own lease is renewed before it ends, and taken again when it was lost
  watchForTwins, // another host that uses our public IP is noticed
  watchConfig, // a network configuration that is no longer the one in use is named
  keepDataPath, // the device is kept right, and the data path opened again when it died or the node moved
  keepFirewall, // the firewall's rules are kept right
  keepSubnetEnv, // subnet.env is kept right
  keepReady, // the subnet manager hears that the node is in the network
  watchThreads, // a hung thread is noticed
  probePeers, // peers are asked whether they answer
  searchPaths, // the longest packet that reaches each peer is found
  tellManager, // the service manager hears how the node is
  serveWatchdog, // and that it lives
  keepLastKnown, // the next process finds what this one knew
  serveSuccessor, // and takes over from it while it runs
]

/** flanneld does not set net.ipv4.ip_forward either. */
const NOT_FORWARDING =
  'net.ipv4.ip_forward is 0: no packet of a container leaves this host until it is 1; Docker and the bridge plugin of CNI set it'
/** flanneld's words for a failure of the lease and of the device at the start. */
const REGISTERING = 'Error registering network: '

/**
 * Runs until `stopping` is aborted, which it does itself when a loop cannot go on. Always rejects: with the reason of
 * the abort, or with what was in the way of starting (a WeftError when an operator can mend it).
 */
export async function runDaemon(
  options: DaemonOptions,
  log: Log,
  stopping: AbortController,
  notifier?: Notifier,
  kept: readonly number[] = [],
  events: Events = createEvents(),
): Promise<never> {
  setMaxListeners(0, stopping.signal) // each loop listens, and each command that it waits for
  // A unit whose weftd was taken over goes on, with nothing to do: to stop is its manager's to say.
  stopping.signal.addEventListener('abort', () => {
    if (!(stopping.signal.reason instanceof Superseded)) notifier?.stopping()
  })
  const previous = await readPreviousNets(options['subnet-file'], log)
  const holder = findHolder(handoverSocket(options))
  await holder?.write()
  const known = await readLastKnown(lastKnownFile(options), log)
  if (!options.persist) await removeLastKnown(lastKnownFile(options))
  notifier?.forget(kept.map((_, place) => keptName(place)))
  const inheritance = createInheritance(holder, kept, known)
  const start: Start = { options, log, stopping, notifier, events, previous, known, inheritance, resumed: undefined }
  try {
    start.resumed = await resume(known, options, inheritance, log, stopping.signal)
    if (start.resumed && options.persist) serveUntilNode(start.resumed, handoverSocket(options), log, stopping)
    return await startManager(start)
  } finally {
    // It is no node's yet.
    const { resumed } = start
    if (resumed && known) {
      const write = (path: unknown) => writeLastKnown(lastKnownFile(options), { ...known, path })
      await leaveDataPath(resumed, write, notifier, log)
    }
    inheritance.close()
  }
}

/** A store may be away for long: what forwards meanwhile can be taken over too. */
function serveUntilNode(resumed: Resumed, handover: string, log: Log, stopping: AbortController): void {
  const until = AbortSignal.any([stopping.signal, resumed.isNodes.signal])
  serveEarly(resumed, handover, log, until).catch((error: unknown) => {
    if (!until.aborted) stopping.abort(error)
  })
}

/** What the start has in hand. */
interface Start {
  readonly options: DaemonOptions
  readonly log: Log
  readonly stopping: AbortController
  readonly notifier: Notifier | undefined
  /** The last lines of the log. */
  readonly events: Events
  readonly previous: PreviousNets
  /** What the daemon before knew, and what it left. */
  readonly known: LastKnown | undefined
  readonly inheritance: Inheritance
  /** Until a node has it. */
  resumed: Resumed | undefined
}

async function startManager(start: Start): Promise<never> {
  const { options, log, stopping, previous } = start
  const making = createSubnetManager(options, log, stopping.signal)
  const manager = await prefixed('Failed to create SubnetManager: ', making)
  try {
    const subnet = previous.subnet ? formatIpv4Net(previous.subnet) : 'None'
    const reused = manager.givesSubnets ? '' : ` with Previous Subnet: ${subnet}`
    log.info(`Created subnet manager: ${manager.title}${reused}`)
    const page = options['status-page'] ? { page: () => readPage() } : {}
    const health = createHealth({ daemon: daemonStatus(options), events: () => start.events.last(), ...page })
    const server = await serveHealthOf(start, health)
    try {
      return await startNode(start, manager, health)
    } finally {
      await server.close()
    }
  } finally {
    await manager.close()
  }
}

function daemonStatus(options: DaemonOptions): DaemonStatus {
  return {
    ...{ version: version(), pid: process.pid },
    startedAt: new Date(performance.timeOrigin).toISOString(),
    subnetFile: options['subnet-file'],
    leases: leasesOf(options),
  }
}

function leasesOf(options: DaemonOptions): string {
  if (options['kube-subnet-mgr']) return `nodes, annotations ${options['kube-annotation-prefix']}`
  return options['lease-dir'] || `${withoutUser(options['etcd-endpoints'])} ${options['etcd-prefix']}`
}

/** Endpoints may name a user with its password. */
const withoutUser = (endpoints: string): string => endpoints.replaceAll(/\/\/[^/@,]*@/g, '//')

/** Answers whoever asks, as soon as the daemon before has let go of the port and the socket. */
async function serveHealthOf(
  { options, log, stopping, inheritance }: Start,
  health: Health,
): Promise<Pick<HealthServer, 'close'>> {
  const port = options['healthz-port']
  const open: Pick<HealthServer, 'close'>[] = []
  const serve = async (): Promise<void> => {
    if (port > 0) open.push(await serveHealth(options['healthz-ip'], port, health, log))
    const socket = await serveSocket(options['status-socket'], health, log)
    if (socket) open.push(socket)
  }
  if (inheritance.isHeir) inheritance.settled.then(serve).catch((error: unknown) => stopping.abort(error))
  else await serve()
  return { close: async () => void (await Promise.all(open.map((each) => each.close()))) }
}

async function startNode(start: Start, manager: NodeParts['manager'], health: Health): Promise<never> {
  const { options, log, stopping, notifier, previous } = start
  const { signal } = stopping
  const tell = (status: string): void => {
    health.report = async () => startingReport(manager.name, status)
    notifier?.tell({ ready: false, status })
  }
  tell(`waiting for the network configuration in the ${manager.name} store`)
  const { config, configText } = await waitForConfig(manager, log, signal)
  if (!config.enableIpv4 && !config.ipv6)
    throw new WeftError('CONFIG', 'none defined stack', { remedy: 'set "EnableIPv4": true in the configuration' })
  if (config.enableIpv4 && config.ipv6)
    log.warn('weft has no IPv6 yet: "EnableIPv6" of the network configuration is passed over')
  tell('waiting for the external interface')
  const hostChanged = createBell()
  const ended = new AbortController()
  const watching = watchHost(() => hostChanged.ring(), log, AbortSignal.any([signal, ended.signal]))
  try {
    const external = await waitForInterface(await withGivenIp(options, manager, log, signal), hostChanged, log, signal)
    const resumed = await resumedFor(start, config, external)
    const made =
      resumed?.backend ??
      (await createBackend(config, external, options, log, attrsBefore(manager, log), start.inheritance))
    const backend = amended(made, manager, log)
    // Told when to stop: iptables waits for its lock as long as another program has it.
    const runTillStop: Run = (file, args, more) => run(file, args, more?.patient ? { signal, ...more } : more)
    const rules = firewallFor(config, options, previous, runTillStop, log)
    const firewall = { rules, resyncMs: Math.max(1, options['iptables-resync']) * 1000 }
    if ((await getSysctl('net/ipv4/ip_forward')) === '0') log.warn(NOT_FORWARDING)
    tell('waiting for a lease')
    const next = options.persist ? nextFor(options, configText) : undefined
    const node = { options, manager, config, backend, externalName: external.name, openEcho, next }
    const parts = { ...node, firewall, log, signal, health, notifier }
    return await runNode(parts, previous.subnet, stopping, hostChanged, start)
  } finally {
    ended.abort()
    await watching
  }
}

function nextFor(options: DaemonOptions, config: string): Next {
  const [lastKnown, handover] = [lastKnownFile(options), handoverSocket(options)]
  return { config, store: storeNameOf(options), lastKnown, handover }
}

/** The data path that forwards by what was last known, if the store and the host say the same; closed if not. */
async function resumedFor(
  start: Start,
  config: NetworkConfig,
  external: ExternalInterface,
): Promise<Resumed | undefined> {
  const { resumed, log } = start
  if (!resumed) return undefined
  if (isDeepStrictEqual(resumed.config, config) && isDeepStrictEqual(resumed.external, external)) return resumed
  log.warn(
    'The network configuration or the external interface is not what was last known; the data path is opened again',
  )
  start.resumed = undefined
  await resumed.dataPath.close()
  return undefined
}

/** The flags, with the public IP that an operator gave this node where its lease is kept. */
async function withGivenIp(
  options: DaemonOptions,
  manager: NodeParts['manager'],
  log: Log,
  signal: AbortSignal,
): Promise<DaemonOptions> {
  const publicIp = await askPatiently("this node's public IP", async (till) => manager.publicIp?.(till), log, signal)
  return publicIp === undefined ? options : { ...options, 'public-ip': formatIpv4(publicIp) }
}

/** The firewall that the network configuration and the flags ask for. */
function firewallFor(
  config: NetworkConfig,
  options: DaemonOptions,
  previous: PreviousNets,
  runTillStop: Run,
  log: Log,
): Firewall {
  return createFirewall(config.enableNftables ? 'nftables' : 'iptables', {
    network: config.network,
    masq: options['ip-masq'],
    forward: options['iptables-forward-rules'],
    plainPorts: options['ip-masq-fully-random-disable'],
    blackhole: options['ip-blackhole-route'],
    ...{ previous, run: runTillStop, log },
  })
}

/** What a node begins with that the daemon before left. */
interface Left {
  readonly known?: LastKnown | undefined
  readonly inheritance?: Pick<Inheritance, 'settle'>
  resumed?: Resumed | undefined
}

/** The node's life once it is known what it is made of: lease, data path, loops. As `runDaemon` for its end. */
export async function runNode(
  parts: NodeParts,
  previous: Ipv4Net | undefined,
  stopping: AbortController,
  hostChanged = createBell(),
  left: Left = {},
): Promise<never> {
  const { backend, firewall, health, log, signal } = parts
  const attrs = await backend.prepare(signal)
  const obtaining = prefixed('failed to acquire lease: ', obtainLease(parts, attrs, previous))
  const lease = await prefixed(REGISTERING, obtaining)
  const leases = left.resumed?.leases ?? new Map()
  const dataPath = await prefixed(REGISTERING, openDataPath(parts, { ...lease, attrs }, leases, left))
  const node = createNode(parts, lease, attrs, dataPath, hostChanged, leases)
  if (health) {
    health.snapshot = () => snapshotOf(node)
    health.report = () => reportOf(node)
    health.drops = (after) => dropsReportOf(node, after)
  }
  try {
    await firewall?.rules.raise(node.lease.subnet)
    await publish(node)
    log.info('Running backend.')
    return await runLoops(node, stopping)
  } finally {
    await endDataPath(node, signal.reason)
  }
}

/** That which forwards already, if it is for this lease. */
async function openDataPath(
  { backend, config: { network }, signal }: NodeParts,
  lease: OwnLease,
  leases: PeerView,
  left: Left,
): Promise<DataPath> {
  const { resumed, inheritance } = left
  left.resumed = undefined
  resumed?.isNodes.abort()
  if (resumed && leasesEqual(resumed.lease, lease)) return resumed.dataPath
  await resumed?.dataPath.close()
  if (!backend.inherits) await inheritance?.settle()
  // One that the backend goes on with it has a name for; any other would be in its way, and keep the route.
  if (backend.name !== 'udp' && left.known) await removeIdleTun(run, left.known.tunName, network)
  const dataPath = await backend.open(lease, signal, leases)
  await inheritance?.settle()
  return dataPath
}

/** Waits for all loops to end. The first that fails stops the others. */
async function runLoops(node: Node, stopping: AbortController): Promise<never> {
  await Promise.allSettled(LOOPS.map((loop) => loop(node).catch((error: unknown) => stopping.abort(error))))
  throw stopping.signal.reason
}
