// daemon.ts - the start, the loops and the stop of weftd. Read this file first.
//
//   start   begin.ts forwards packets with the last known state, if there is any, and then loads this file. If another weftd forwards
//           already, it continues to forward until this process is ready. The steps are: subnet manager -> network configuration ->
//           external interface -> lease -> data path -> firewall (later, if it takes long) -> subnet.env -> ready; the other weftd ends
//   loops   LOOPS lists them. Each loop maintains one thing, in the file of src/node/ that is named after it
//   stop    one AbortController is aborted by a signal, a successor, the error of a loop or an uncaught error. All loops end. Then the
//           data path is left to the next process or closed, and the store is closed
//
// Only the daemon runs loops. Stores and backends start no timers; the loops call them.

import { version } from './base/assets.ts'
import { describeError, isWeftError, messageOf, prefixed } from './base/errors.ts'
import { createWinstonWriter } from './base/log-winston.ts'
import { seldom, type Log, type MovableLog } from './base/log.ts'
import { addon } from './host/addon.ts'
import { createBell, pause } from './host/bell.ts'
import { run } from './host/command.ts'
import { openEcho } from './host/echo.ts'
import { createHostWatch } from './host/events.ts'
import { resumeExternal, type ExternalInterface } from './host/external-interface.ts'
import { getSysctl } from './host/sysctl.ts'
import { netText, type Nets } from './net/address.ts'
import { networkAsking } from './node/ask-nodes.ts'
import { createBackend, createSubnetManager } from './node/choose.ts'
import { dropsReportOf } from './node/drops.ts'
import { earlierLife } from './node/earlier.ts'
import { endNode, endUnusedNode, giveNewLeaseBack } from './node/end.ts'
import { watchConfig } from './node/loops/config.ts'
import { keepDataPath, type Forwarding } from './node/loops/data-path.ts'
import { watchForTwins } from './node/loops/duplicate-node.ts'
import { firewallFor, keepFirewall, raiseOrLate } from './node/loops/firewall.ts'
import { watchForwarding } from './node/loops/forwarding.ts'
import { giveBack } from './node/loops/give-back.ts'
import { keepLastKnown, nextFor, wishesText } from './node/loops/last-known.ts'
import { amendedOnce, attrsBefore, keepLease, obtainLease } from './node/loops/lease.ts'
import { clearEarlier, clearLeftovers, earlierType } from './node/loops/leftovers.ts'
import { keepMemory } from './node/loops/memory.ts'
import { keepNames } from './node/loops/names.ts'
import { searchPaths } from './node/loops/path-search.ts'
import { keepPeers } from './node/loops/peers.ts'
import { probePeers } from './node/loops/probes.ts'
import { keepReady } from './node/loops/ready.ts'
import { serveWatchdog, tellManager } from './node/loops/service-manager.ts'
import { tellNetwork } from './node/loops/status-network.ts'
import { readPreviousNets, type PreviousNets } from './node/loops/subnet-env-file.ts'
import { keepSubnetEnv, publish } from './node/loops/subnet-env.ts'
import { watchThreads } from './node/loops/threads.ts'
import { chooseUnderlays } from './node/loops/underlays.ts'
import type { Node, NodeParts } from './node/node.ts'
import { fitsTo, goesOnWith, openNode, type Before, type Resumed } from './node/open.ts'
import type { Possession } from './node/possession.ts'
import { beginningOf, daemonStatusOf, reportOf, snapshotOf, startingReportOf } from './node/report.ts'
import {
  lastKnownFile,
  readLastKnown,
  removeLastKnown,
  storeNameOf,
  type LastKnown,
} from './node/restart/last-known.ts'
import type { Succession } from './node/restart/succession.ts'
import { permit } from './node/rights.ts'
import { refuseToMove, waitForNetwork, warnOfRoutesLeft } from './node/start.ts'
import type { DaemonOptions } from './options.ts'
import type { Events } from './report/events.ts'
import { createHealth, type Health } from './report/health.ts'
import type { Notifier } from './report/notify.ts'
import { readPage } from './report/page.ts'
import { serveStatus } from './report/serve.ts'

/** The loops, in the order of their start. Each one runs until the signal to stop, and ends by throwing. */
const LOOPS: readonly ((node: Node) => Promise<never>)[] = [
  keepPeers, // applies the subnet manager's reports to the data path's peer table
  keepLease, // renews the node's own lease, and acquires it again if it was lost
  watchForTwins, // reports another host that uses the same public IP
  keepNames, // reads the names of other hosts, which they store next to their leases
  watchConfig, // reports that the network configuration differs from the one in use
  keepDataPath, // repairs the device, and reopens the data path if it failed or the node's address changed
  keepFirewall, // sets the firewall rules and repairs them
  keepSubnetEnv, // writes and repairs subnet.env
  watchForwarding, // reports a kernel that does not forward packets
  keepReady, // informs the subnet manager when the node is in the network
  watchThreads, // reports a thread that hangs
  probePeers, // probes the peers
  chooseUnderlays, // chooses IPv4 or IPv6 for each dual-stack peer, by the probes' results
  searchPaths, // finds the longest packet that reaches each peer
  keepMemory, // records the events of the peers and the last hour
  tellManager, // reports the node's status to the service manager
  serveWatchdog, // sends the service manager's keep-alive messages
  tellNetwork, // answers the status queries of other nodes
  keepLastKnown, // writes the state that the next process starts with
  giveBack, // returns memory to the kernel that only the start needed
]

/** flanneld's prefix for errors of the lease and of the device at the start. */
const REGISTERING = 'Error registering network: '

/**
 * The first and the longest pause before weftd tries a part of the start again. weftd tries again only if it forwards with the last known
 * state and an operator or the host can repair the cause.
 */
const RETRY_MIN_MS = 1_000
const RETRY_MAX_MS = 30_000

/** The resources that the steps of the start share. */
export interface Start {
  readonly options: DaemonOptions
  readonly log: Log
  readonly stopping: AbortController
  readonly notifier: Notifier | undefined
  /** The most recent lines of the log. */
  readonly events: Events
  readonly possession: Possession
  /** The node. Until it exists, the part that forwards with the last known state. */
  forwarding: Forwarding | undefined
}

/** Runs the rest of the start, from the first query of the store, and then the node. Always rejects, as `runDaemon` does. */
export async function startManager(start: Start, succession: Succession<Resumed>): Promise<never> {
  const { options, log, stopping, events } = start
  ;(log as Partial<MovableLog>).writeBy?.(createWinstonWriter())
  const previous = await readPreviousNets(options['subnet-file'], log)
  const manager = await whileForwarding(start, () =>
    prefixed('Failed to create SubnetManager: ', createSubnetManager(options, log, stopping.signal)),
  )
  try {
    const subnet = previous.subnet.ipv4 ? netText(previous.subnet) : 'None'
    const reused = manager.givesSubnets ? '' : ` with Previous Subnet: ${subnet}`
    log.info(`Created subnet manager: ${manager.title}${reused}`)
    const page = options['status-page'] ? { page: () => readPage() } : {}
    const daemon = daemonStatusOf(options, version())
    const health = createHealth({ daemon, events: () => events.last(), ...page })
    const served = await whileForwarding(start, () => serveStatus(options, health, succession, log, stopping))
    // A repeated error is logged rarely.
    const calm = seldom(log)
    try {
      return await whileForwarding(
        start,
        () => startNode(start, succession, manager, previous, health, calm),
        (why) => tellOf(start, manager, health)(`cannot be a node: ${why}`),
      )
    } finally {
      await served.close()
    }
  } finally {
    await manager.close()
  }
}

/**
 * Runs a part of the start. While this process forwards with the last known configuration, it logs a WeftError and tries again, because
 * packets would stop if it ended. A running node survives such errors too.
 */
export async function whileForwarding<T>(
  { possession, log, stopping: { signal } }: Pick<Start, 'possession' | 'log' | 'stopping'>,
  work: () => Promise<T>,
  onFailure: (why: string) => void = () => {},
): Promise<T> {
  const calm = seldom(log)
  for (let pauseMs = RETRY_MIN_MS; ; pauseMs = Math.min(2 * pauseMs, RETRY_MAX_MS)) {
    try {
      return await work()
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error) || !possession.dataPath) throw error
      calm.error(`This weftd goes on as last known, and tries again: ${describeError(error)}`)
      onFailure(messageOf(error))
    }
    await pause(signal, pauseMs * (0.5 + Math.random() / 2))
  }
}

/** Returns a function that reports the reason why this process waits; it is used until the node exists. */
function tellOf(
  { stopping, notifier, possession }: Start,
  manager: NodeParts['manager'],
  health: Health,
  standing: () => string = () => '',
): (waitsFor: string) => void {
  return (waitsFor) => {
    const beginning = () => beginningOf((possession.dataPath ? '' : standing()) + waitsFor, possession, stopping.signal)
    const report = () => startingReportOf(manager.name, beginning(), possession)
    Object.assign(health, { beginning, report: async () => report() })
    notifier?.report({ ready: false, status: report().summary })
  }
}

async function startNode(
  start: Start,
  succession: Succession<Resumed>,
  manager: NodeParts['manager'],
  previous: PreviousNets,
  health: Health,
  calm: Log,
): Promise<never> {
  const { options, log, stopping, notifier, possession } = start
  const { signal } = stopping
  const pid = (await succession.predecessor())?.pid
  let standing = pid === undefined ? '' : `another weftd${pid ? ` (pid ${pid})` : ''} forwards; `
  void succession.free.then(() => (standing = ''))
  const tell = tellOf(start, manager, health, () => standing)
  const hostChanged = createBell()
  const changed = (): void => {
    hostChanged.ring()
    possession.doubt.ring()
  }
  const watch = createHostWatch(changed, log, signal)
  try {
    const leaseNow = async () => (await succession.predecessor())?.lease
    const known = await knownOf(options)
    const { earlier, isMine } = earlierLife({ manager, known, log, signal, subnet: previous.subnet })
    const before = { earlier, known: () => externalBefore(succession.resumed, known, options) }
    const waiting = { options, manager, leaseNow, follow: watch.follow, hostChanged, before, tell, log: calm, signal }
    const { config, configText, external } = await waitForNetwork(waiting)
    await warnOfRoutesLeft(previous.network, config, external, log)
    const fits = fitsTo(configText, external, manager)
    const { resumed } = succession
    const made = fits(resumed)
      ? resumed.backend
      : await createBackend(config, external, options, log, attrsBefore(manager, log), succession)
    const amend = amendedOnce(manager, log)
    tell('waiting for a lease')
    const parts: NodeParts = {
      options,
      manager,
      config,
      backend: amend(made),
      externalName: external.name,
      isMine,
      openEcho,
      readSysctl: getSysctl,
      giveBackMemory: addon.giveBackMemory,
      next: nextFor(options, configText, succession.free),
      leftovers: { earlier: previous.subnet, run },
      firewall: firewallFor(config, options, previous, log, signal, succession.free),
      log,
      signal,
      health,
      notifier,
    }
    const onNode = (node: Node): void => void (start.forwarding = node)
    return await runNode(parts, previous.subnet, stopping, {
      possession,
      succession,
      store: storeNameOf(options),
      fits,
      amend,
      onNode,
      permit: (prepared, host) => permit(prepared, { ...host, run }),
    })
  } finally {
    await watch.end()
  }
}

/** Reads the last known state of the store that the flags name. */
async function knownOf(options: DaemonOptions): Promise<LastKnown | undefined> {
  const silent: Log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false } // begin.ts has logged its problems
  const known = await readLastKnown(lastKnownFile(options), silent)
  return known?.store === storeNameOf(options) ? known : undefined
}

/** Returns the external interface of the resumed data path. Without one, returns the last known interface, if the flags are the same. */
async function externalBefore(
  resumed: Resumed | undefined,
  known: LastKnown | undefined,
  options: DaemonOptions,
): Promise<ExternalInterface | undefined> {
  if (resumed) return resumed.backend.external ?? resumed.external
  const { external, wishes } = known ?? {}
  if (!external || wishes !== wishesText(options)) return undefined
  const { index: _index, ...unnumbered } = external // the kernel's index is valid for one boot
  return (await resumeExternal(run, external)) ?? unnumbered
}

/** Acquires the lease, opens the data path and runs the loops. Always rejects, as `runDaemon` does. */
export async function runNode(
  parts: NodeParts,
  previous: Nets,
  stopping: AbortController,
  before: Before,
): Promise<never> {
  const { backend, health, log, signal } = parts
  const { possession, succession } = before
  const attrs = await backend.prepare(signal)
  const predecessor = await succession.predecessor()
  if (!parts.manager.givesSubnets) refuseToMove(attrs, predecessor?.lease)
  // Other nodes send packets to every node with a lease. So the lease is written last, when this node is likely to forward.
  const isForwarding = predecessor !== undefined || possession.dataPath !== undefined
  const { tunNames } = succession
  await prefixed(REGISTERING, before.permit(backend, { predecessor: predecessor?.pid, isForwarding, tunNames }))
  if (!possession.dataPath) await parts.firewall?.rules.check?.()
  const typeBefore = await earlierType(parts, attrs)
  const lease = await prefixed(`${REGISTERING}failed to acquire lease: `, obtainLease(parts, attrs, previous))
  const resumed = await succession.opening()
  // Release an inherited device that this backend cannot use, because it would conflict with the backend's own device.
  if (!succession.tunNames.some((left) => goesOnWith(backend, left))) await succession.release()
  const clear = () => clearEarlier(parts, lease, typeBefore)
  const node = await prefixed(REGISTERING, openNode(parts, lease, attrs, resumed, before, clear)).catch(
    async (error: unknown) => {
      // Another program may have taken a port since the check.
      const isUseless = lease.isNew === true && !possession.dataPath && !succession.isOnLoan && !signal.aborted
      if (isUseless) await giveNewLeaseBack(parts, lease)
      throw error
    },
  )
  before.onNode(node)
  if (health) {
    health.snapshot = () => snapshotOf(node)
    health.report = () => reportOf(node)
    health.network = networkAsking(node, () => health.status())
    health.drops = (after) => dropsReportOf(node, after)
    health.memory = () => node.memory
  }
  let isUseless = false
  try {
    await clearLeftovers(node)
    await raiseOrLate(node, resumed !== undefined)
    await publish(node)
    succession.settle()
    if (!parts.next && succession.tunNames.length > 0) await removeLastKnown(lastKnownFile(parts.options))
    log.info('Running backend.')
    return await runLoops(node, stopping)
  } catch (error) {
    isUseless = lease.isNew === true && !node.isPublished && !signal.aborted
    stopping.abort(error) // so that no successor borrows a data path that is about to end
    throw error
  } finally {
    if (succession.isOnLoan) await possession.release() // the predecessor forwards again
    else if (isUseless) await endUnusedNode(node)
    else await endNode(node, signal.reason)
  }
}

/** Waits for all loops to end. The first that fails stops the others. */
async function runLoops(node: Node, stopping: AbortController): Promise<never> {
  await Promise.allSettled(LOOPS.map((loop) => loop(node).catch((error: unknown) => stopping.abort(error))))
  throw stopping.signal.reason
}
