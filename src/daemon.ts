// daemon.ts - the page to read first: what weftd does from start to stop, and the loops in between.
//
//   start   who forwards: nobody, then this process by what was last known, or another weftd, which goes on until this one is ready
//           (begin.ts, which then loads this file) -> subnet manager -> network configuration -> external interface -> lease ->
//           data path -> firewall -> subnet.env -> ready: the other weftd ends
//   loops   the table LOOPS: each keeps one thing right, in a file of src/node/ that has its name
//   stop    one AbortController: a signal, a successor, a loop that cannot go on, or what nobody caught, aborts it; all loops end on
//           it, then the data path is left to the next process, or closed, and the store is closed
//
// The loops are the daemon's and nobody else's; stores and backends are told what to do and start no timer.

import { version } from './assets.ts'
import { createBackend, createSubnetManager } from './choose.ts'
import { prefixed } from './errors.ts'
import { createBell } from './host/bell.ts'
import { openEcho } from './host/echo.ts'
import { watchHost } from './host/events.ts'
import type { Log, MovableLog } from './log.ts'
import { createWinstonWriter } from './log-winston.ts'
import { netText, type Nets } from './net/address.ts'
import { watchConfig } from './node/config.ts'
import { keepDataPath, type Forwarding } from './node/data-path.ts'
import { dropsReportOf } from './node/drops.ts'
import { endNode } from './node/end.ts'
import { firewallFor, keepFirewall, raiseFirewall } from './node/firewall.ts'
import { amendedOnce, attrsBefore, keepLease, obtainLease } from './node/lease.ts'
import { keepLastKnown, nextFor } from './node/last-known.ts'
import { snapshotOf, type Node, type NodeParts } from './node/node.ts'
import { fitsTo, openNode, type Before, type Resumed } from './node/open.ts'
import { searchPaths } from './node/path-search.ts'
import { keepPeers } from './node/peers.ts'
import type { Possession } from './node/possession.ts'
import { probePeers } from './node/probes.ts'
import { keepReady } from './node/ready.ts'
import { daemonStatusOf, reportOf, startingReportOf } from './node/report.ts'
import { serveWatchdog, tellManager } from './node/service-manager.ts'
import { keepSubnetEnv, publish } from './node/subnet-env.ts'
import { watchThreads } from './node/threads.ts'
import { watchForTwins } from './node/twins.ts'
import type { DaemonOptions } from './options.ts'
import { lastKnownFile, removeLastKnown } from './restart/last-known.ts'
import type { Succession } from './restart/succession.ts'
import { refuseToMove, waitForNetwork } from './start.ts'
import type { Events } from './status/events.ts'
import { createHealth, type Health } from './status/health.ts'
import type { Notifier } from './status/notify.ts'
import { readPage } from './status/page.ts'
import { serveStatus } from './status/serve.ts'
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
]

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
  readonly possession: Possession
  /** The node, or what forwards as last known until there is one. */
  forwarding: Forwarding | undefined
}

/** The start from where the store is asked on, and all that follows. Always rejects, as `runDaemon` does. */
export async function startManager(start: Start, succession: Succession<Resumed>): Promise<never> {
  const { options, log, stopping, events } = start
  ;(log as Partial<MovableLog>).writeBy?.(createWinstonWriter())
  const previous = await readPreviousNets(options['subnet-file'], log)
  const manager = await prefixed('Failed to create SubnetManager: ', createSubnetManager(options, log, stopping.signal))
  try {
    const subnet = previous.subnet.ipv4 ? netText(previous.subnet) : 'None'
    const reused = manager.givesSubnets ? '' : ` with Previous Subnet: ${subnet}`
    log.info(`Created subnet manager: ${manager.title}${reused}`)
    const page = options['status-page'] ? { page: () => readPage() } : {}
    const daemon = daemonStatusOf(options, version())
    const health = createHealth({ daemon, events: () => events.last(), ...page })
    const served = await serveStatus(options, health, succession, log, stopping)
    try {
      return await startNode(start, succession, manager, previous, health)
    } finally {
      await served.close()
    }
  } finally {
    await manager.close()
  }
}

async function startNode(
  start: Start,
  succession: Succession<Resumed>,
  manager: NodeParts['manager'],
  previous: PreviousNets,
  health: Health,
): Promise<never> {
  const { options, log, stopping, notifier, possession } = start
  const { signal } = stopping
  const pid = (await succession.predecessor())?.pid
  let standing = pid === undefined ? '' : `another weftd${pid ? ` (pid ${pid})` : ''} forwards; `
  void succession.free.then(() => (standing = ''))
  const tell = (waitsFor: string): void => {
    const report = () => startingReportOf(manager.name, (possession.dataPath ? '' : standing) + waitsFor, possession)
    health.report = async () => report()
    notifier?.tell({ ready: false, status: report().summary })
  }
  const hostChanged = createBell()
  const ended = new AbortController()
  const changed = (): void => {
    hostChanged.ring()
    possession.doubt.ring()
  }
  const watching = watchHost(changed, log, AbortSignal.any([signal, ended.signal]))
  try {
    const leaseNow = async () => (await succession.predecessor())?.lease
    const waiting = { options, manager, leaseNow, hostChanged, tell, log, signal }
    const { config, configText, external } = await waitForNetwork(waiting)
    const fits = fitsTo(configText, external, manager)
    const { resumed } = succession
    const made = fits(resumed)
      ? resumed.backend
      : await createBackend(config, external, options, log, attrsBefore(manager, log), succession)
    const amend = amendedOnce(manager, log)
    tell('waiting for a lease')
    const parts: NodeParts = {
      ...{ options, manager, config, backend: amend(made), externalName: external.name, openEcho },
      next: nextFor(options, configText),
      firewall: firewallFor(config, options, previous, log, signal),
      ...{ log, signal, health, notifier },
    }
    const onNode = (node: Node): void => void (start.forwarding = node)
    return await runNode(parts, previous.subnet, stopping, { possession, succession, fits, amend, onNode })
  } finally {
    ended.abort()
    await watching
  }
}

/** The node's life once it is known what it is made of: lease, data path, loops. As `runDaemon` for its end. */
export async function runNode(
  parts: NodeParts,
  previous: Nets,
  stopping: AbortController,
  before: Before,
): Promise<never> {
  const { backend, health, log, signal } = parts
  const { possession, succession } = before
  const attrs = await backend.prepare(signal)
  if (!parts.manager.givesSubnets) refuseToMove(attrs, (await succession.predecessor())?.lease)
  const lease = await prefixed(`${REGISTERING}failed to acquire lease: `, obtainLease(parts, attrs, previous))
  const resumed = await succession.opening()
  if (backend.tunName === undefined) await succession.release()
  const node = await prefixed(REGISTERING, openNode(parts, lease, attrs, resumed, before))
  before.onNode(node)
  if (health) {
    health.snapshot = () => snapshotOf(node)
    health.report = () => reportOf(node)
    health.drops = (after) => dropsReportOf(node, after)
  }
  try {
    await raiseFirewall(node)
    await publish(node)
    succession.settle()
    if (!parts.next && succession.tunName !== undefined) await removeLastKnown(lastKnownFile(parts.options))
    log.info('Running backend.')
    return await runLoops(node, stopping)
  } catch (error) {
    stopping.abort(error) // nobody is lent what is about to end
    throw error
  } finally {
    if (succession.isOnLoan) await possession.release() // the predecessor forwards again
    else await endNode(node, signal.reason)
  }
}

/** Waits for all loops to end. The first that fails stops the others. */
async function runLoops(node: Node, stopping: AbortController): Promise<never> {
  await Promise.allSettled(LOOPS.map((loop) => loop(node).catch((error: unknown) => stopping.abort(error))))
  throw stopping.signal.reason
}
