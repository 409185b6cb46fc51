// daemon.ts - the page to read first: what weftd does from start to stop, and the loops in between.
//
//   start   previous subnet -> who forwards: nobody, then by what was last known, or another weftd, which goes on until this
//           one is ready (begin.ts, which then loads this file) -> subnet manager -> network configuration -> external interface ->
//           lease -> data path -> firewall -> subnet.env -> ready: the other weftd ends
//   loops   the table LOOPS: each keeps one thing right, in a file of src/node/ that has its name
//   stop    one AbortController: a signal, a successor, a loop that cannot go on, or what nobody caught, aborts it; all loops end on
//           it, then the data path is left to the next process, or closed, and the store is closed
//
// The loops are the daemon's and nobody else's; stores and backends are told what to do and start no timer.

import { isDeepStrictEqual } from 'node:util'
import { version } from './assets.ts'
import type { Backend } from './backend/backend.ts'
import { removeIdleTun } from './backend/tun-device.ts'
import { createBackend, createSubnetManager } from './choose.ts'
import { withoutSecrets } from './config/hidden.ts'
import { ipv4For, parseNetworkConfig, refuseIpv6, type NetworkConfig } from './config/network-config.ts'
import { describeError, isWeftError, prefixed, WeftError } from './errors.ts'
import { createFirewall, type Firewall } from './firewall/firewall.ts'
import { createBell, pause } from './host/bell.ts'
import { run, type Run } from './host/command.ts'
import { openEcho } from './host/echo.ts'
import { watchHost } from './host/events.ts'
import { isNamedBy } from './host/links.ts'
import { getSysctl } from './host/sysctl.ts'
import { leasesEqual, type Lease, type LeaseAttrs, type OwnLease } from './lease/lease.ts'
import type { Log, MovableLog } from './log.ts'
import { createWinstonWriter } from './log-winston.ts'
import { addressText, type Nets } from './net/address.ts'
import { formatIpv4, formatIpv4Net } from './net/ipv4.ts'
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
import { giveBack, untilOurs, type Possession } from './node/possession.ts'
import { serveWatchdog, tellManager } from './node/service-manager.ts'
import { endDataPath } from './node/end.ts'
import { keepSubnetEnv, publish } from './node/subnet-env.ts'
import { watchThreads } from './node/threads.ts'
import { watchForTwins } from './node/twins.ts'
import type { DaemonOptions } from './options.ts'
import type { About } from './restart/protocol.ts'
import { lastKnownFile, readLastKnown, removeLastKnown, storeNameOf, type LastKnown } from './restart/last-known.ts'
import type { Succession } from './restart/succession.ts'
import type { Resumed } from './resume.ts'
import { waitForConfig, waitForInterface, waitForSameNetwork } from './start.ts'
import type { Events } from './status/events.ts'
import { createHealth, serveHealth, serveSocket, type Health, type HealthServer } from './status/health.ts'
import type { Notifier } from './status/notify.ts'
import { readPage } from './status/page.ts'
import { startingReport, type DaemonStatus } from './status/status.ts'
import type { PreviousNets } from './status/subnet-env.ts'

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
]

/** flanneld does not set net.ipv4.ip_forward either. */
const NOT_FORWARDING =
  'net.ipv4.ip_forward is 0: no packet of a container leaves this host until it is 1; Docker and the bridge plugin of CNI set it'
/** Between two tries to have a port that the daemon before had. */
const HEALTH_RETRY_MS = 1_000
/** flanneld's words for a failure of the lease and of the device at the start. */
const REGISTERING = 'Error registering network: '

/** What the start has in hand. */
export interface Start {
  readonly options: DaemonOptions
  readonly log: Log
  readonly stopping: AbortController
  readonly notifier: Notifier | undefined
  /** The last lines of the log. */
  readonly events: Events
  readonly previous: PreviousNets
  /** The data path of this host, whoever has it: a node, or what goes on as last known until there is one. */
  held: Possession
  /** What the daemon before knew. */
  known: LastKnown | undefined
  resumed: Resumed | undefined
  node: Node | undefined
}

/** The start from where the store is asked on, and all that follows. Always rejects, as `runDaemon` does. */
export async function startManager(start: Start, succession: Succession<Resumed>): Promise<never> {
  const { options, log, stopping, previous } = start
  ;(log as Partial<MovableLog>).writeBy?.(createWinstonWriter())
  const making = createSubnetManager(options, log, stopping.signal)
  const manager = await prefixed('Failed to create SubnetManager: ', making)
  try {
    const subnet = previous.subnet.ipv4 ? formatIpv4Net(previous.subnet.ipv4) : 'None'
    const reused = manager.givesSubnets ? '' : ` with Previous Subnet: ${subnet}`
    log.info(`Created subnet manager: ${manager.title}${reused}`)
    const page = options['status-page'] ? { page: () => readPage() } : {}
    const health = createHealth({ daemon: daemonStatus(options), events: () => start.events.last(), ...page })
    const server = await serveHealthOf(start, succession, health)
    try {
      return await startNode(start, succession, manager, health)
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
  return options['lease-dir'] || `${String(options['etcd-endpoints'])} ${options['etcd-prefix']}`
}

/**
 * Answers whoever asks. What a daemon that is to be succeeded has, this one answers at when that one has let go of it; a port that
 * somebody else has ends this one before it takes anything.
 */
export async function serveHealthOf(
  { options, log, stopping }: Pick<Start, 'options' | 'log' | 'stopping'>,
  succession: Pick<Succession<Resumed>, 'isSuccessor' | 'predecessor' | 'free'>,
  health: Health,
): Promise<Pick<HealthServer, 'close'>> {
  const { signal } = stopping
  const port = options['healthz-port']
  const open: Pick<HealthServer, 'close'>[] = []
  const servePort = async (): Promise<void> =>
    void open.push(await serveHealth({ ip: options['healthz-ip'], port, statusIp: options['status-ip'] }, health, log))
  const serveStatus = async (): Promise<void> => {
    const socket = await serveSocket(options['status-socket'], health, log)
    if (socket) open.push(socket)
  }
  const later: (() => Promise<void>)[] = []
  if (port > 0) {
    try {
      await servePort()
    } catch (error) {
      if (!isWeftError(error, 'PORT_IN_USE') || !succession.isSuccessor) throw error
      // One that is gone by now had perhaps not closed it yet, and this one forwards in its place.
      const before = await succession.predecessor()
      if (before && before.healthPort !== port) throw error
      later.push(servePort)
    }
  }
  if (succession.isSuccessor) later.push(serveStatus)
  else await serveStatus()
  const closing = new AbortController()
  const closed = new Promise<void>((resolve) =>
    closing.signal.addEventListener('abort', () => resolve(), { once: true }),
  )
  const catchUp = async (): Promise<void> => {
    await Promise.race([succession.free, closed])
    for (const serve of later) {
      while (!closing.signal.aborted) {
        try {
          await serve()
          break
        } catch (error) {
          // A node that forwards does not end for its health port.
          if (!isWeftError(error)) throw error
          log.error(describeError(error))
          await Promise.race([pause(signal, HEALTH_RETRY_MS).catch(() => {}), closed])
        }
      }
    }
  }
  const caughtUp = catchUp().catch((error: unknown) => stopping.abort(error))
  return {
    async close() {
      closing.abort()
      await caughtUp
      await Promise.all(open.map((each) => each.close()))
    },
  }
}

async function startNode(
  start: Start,
  succession: Succession<Resumed>,
  manager: NodeParts['manager'],
  health: Health,
): Promise<never> {
  const { options, log, stopping, notifier, previous } = start
  const { signal } = stopping
  const before = (await succession.predecessor())?.pid
  const standing = before === undefined ? '' : `another weftd${before ? ` (pid ${before})` : ''} forwards; `
  const tell = (status: string): void => {
    health.report = async () => startingReport(manager.name, standing + status)
    notifier?.tell({ ready: false, status: standing + status })
  }
  const hostChanged = createBell()
  const ended = new AbortController()
  const changed = (): void => {
    hostChanged.ring()
    start.held.dataPathDoubt.ring()
  }
  const watching = watchHost(changed, log, AbortSignal.any([signal, ended.signal]))
  try {
    tell(`waiting for the network configuration in the ${manager.name} store`)
    const { config, configText } = await waitForConfig(manager, log, signal)
    if (!config.ipv4) refuseIpv6(config)
    if (config.ipv6) log.warn('weft has no IPv6 yet: "EnableIPv6" of the network configuration is passed over')
    await waitForSameNetwork(manager, async () => (await succession.predecessor())?.lease, log, signal)
    tell('waiting for the external interface')
    const external = await waitForInterface(await withGivenIp(options, manager, log, signal), hostChanged, log, signal)
    // As it is last known: without its secrets, which no backend has whose data path outlives a daemon.
    const known = parseNetworkConfig(withoutSecrets(configText), { areGiven: manager.givesSubnets })
    const fits = (resumed: Resumed | undefined): boolean =>
      isDeepStrictEqual(resumed?.config, known) && isDeepStrictEqual(resumed?.external, external)
    const made =
      start.resumed && fits(start.resumed)
        ? start.resumed.backend
        : await createBackend(config, external, options, log, attrsBefore(manager, log), succession)
    const amendments = new Map<Backend, Backend>()
    const amend = (own: Backend): Backend => {
      const again = amendments.get(own) ?? amended(own, manager, log)
      amendments.set(own, again)
      return again
    }
    const backend = amend(made)
    // Told when to stop: iptables waits for its lock as long as another program has it.
    const runTillStop: Run = (file, args, more) => run(file, args, more?.patient ? { signal, ...more } : more)
    const rules = firewallFor(config, options, previous, runTillStop, log)
    const firewall = { rules, resyncMs: Math.max(1, options['iptables-resync']) * 1000 }
    if ((await getSysctl('net/ipv4/ip_forward')) === '0') log.warn(NOT_FORWARDING)
    tell('waiting for a lease')
    const next = options.persist ? nextFor(options, configText) : undefined
    const node = { options, manager, config, backend, externalName: external.name, openEcho, next }
    const parts = { ...node, firewall, log, signal, health, notifier }
    return await runNode(parts, previous.subnet, stopping, { start, succession, fits, amend })
  } finally {
    ended.abort()
    await watching
  }
}

function nextFor(options: DaemonOptions, config: string): Next {
  return { config: withoutSecrets(config), store: storeNameOf(options), lastKnown: lastKnownFile(options) }
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
    network: ipv4For('weftd', config).network,
    masq: options['ip-masq'],
    forward: options['iptables-forward-rules'],
    plainPorts: options['ip-masq-fully-random-disable'],
    blackhole: options['ip-blackhole-route'],
    previous: { network: previous.network.ipv4, subnet: previous.subnet.ipv4 },
    ...{ run: runTillStop, log },
  })
}

/** What comes before a node: whoever forwards until then. */
interface Before {
  readonly start: Pick<Start, 'held' | 'known' | 'options' | 'log' | 'node'>
  readonly succession: Omit<Succession<Resumed>, 'free' | 'close'>
  /** A backend of this node, always the same one for the same. */
  readonly amend: (backend: Backend) => Backend
  /** Whether what was resumed is for the network configuration and the external interface that there are. */
  readonly fits: (resumed: Resumed | undefined) => boolean
}

/** The node's life once it is known what it is made of: lease, data path, loops. As `runDaemon` for its end. */
export async function runNode(
  parts: NodeParts,
  previous: Nets,
  stopping: AbortController,
  before: Before,
): Promise<never> {
  const { backend, firewall, health, log, signal } = parts
  const { start, succession } = before
  const attrs = await backend.prepare(signal)
  if (!parts.manager.givesSubnets) refuseToMove(attrs, (await succession.predecessor())?.lease)
  const obtaining = prefixed('failed to acquire lease: ', obtainLease(parts, attrs, previous))
  const lease = await prefixed(REGISTERING, obtaining)
  const resumed = await succession.opening()
  if (backend.tunName === undefined) await succession.release()
  const node = await prefixed(REGISTERING, openNode(parts, lease, attrs, resumed, before))
  if (health) {
    health.snapshot = () => snapshotOf(node)
    health.report = () => reportOf(node)
    health.drops = (after) => dropsReportOf(node, after)
  }
  try {
    await firewall?.rules.raise(ipv4For('weftd', node.lease.subnet))
    await publish(node)
    succession.settle()
    if (!parts.next && start.known) await removeLastKnown(lastKnownFile(start.options))
    log.info('Running backend.')
    return await runLoops(node, stopping)
  } catch (error) {
    stopping.abort(error) // nobody is lent what is about to be left
    throw error
  } finally {
    if (succession.isOnLoan) await giveBack(node, log)
    else await endDataPath(node, signal.reason)
  }
}

/** Throws WeftError DEVICE where the lease of the daemon that is to be succeeded, `before`, is not what this one would find for itself. */
function refuseToMove({ publicIp }: LeaseAttrs, before: About['lease']): void {
  const own = addressText(publicIp)
  if (!before || before.publicIp === own) return
  throw new WeftError(
    'DEVICE',
    `the weftd that runs on this host has the public IP ${before.publicIp}, and this one has ${own}: the node would move to ` +
      'another subnet, and its containers be cut off',
    { remedy: 'name the same one with --public-ip or --iface; or stop the other one first' },
  )
}

/** The node, in whose hands the data path is from then on: what forwards already, if it is for this lease, else one that is opened. */
async function openNode(
  parts: NodeParts,
  lease: OwnLease,
  attrs: LeaseAttrs,
  resumed: Resumed | undefined,
  before: Before,
): Promise<Node> {
  const { config, signal, log } = parts
  const { start, fits, amend } = before
  await resumed?.hand()
  for (;;) {
    await untilOurs(start.held, signal)
    const node = await start.held.inTurn(async () => {
      const { held } = start
      if (held.lent) return undefined
      const isSame = resumed && held.dataPath && fits(resumed) && leasesEqual(resumed.lease, { ...lease, attrs })
      const view = resumed?.view ?? (await knownToPredecessor(before)) ?? new Map()
      const backend = isSame ? amend(resumed.backend) : parts.backend
      if (!isSame) {
        if (resumed) log.warn(`What was last known is not so any more; the data path is opened again`)
        const { dataPath } = held
        held.dataPath = undefined
        await dataPath?.close()
        // One that the backend goes on with it has a name for; any other would be in its way, and keep the route.
        const left = start.known?.tunName
        if (left !== undefined && !(backend.tunName !== undefined && isNamedBy(backend.tunName, left)))
          await removeIdleTun(run, left, ipv4For('weftd', config).network)
        held.dataPath = await backend.open({ ...lease, attrs }, signal, view)
      }
      start.node = createNode({ ...parts, backend }, lease, attrs, held, view)
      start.held = start.node
      return start.node
    })
    if (node) return node
  }
}

/** The leases that a daemon which runs believes, as it writes them when it is asked. */
async function knownToPredecessor({ start, succession }: Before): Promise<ReadonlyMap<string, Lease> | undefined> {
  if (!succession.isOnLoan) return undefined
  const known = await readLastKnown(lastKnownFile(start.options), start.log)
  return known && new Map(known.leases.map((each) => [each.key, each]))
}

/** Waits for all loops to end. The first that fails stops the others. */
async function runLoops(node: Node, stopping: AbortController): Promise<never> {
  await Promise.allSettled(LOOPS.map((loop) => loop(node).catch((error: unknown) => stopping.abort(error))))
  throw stopping.signal.reason
}
