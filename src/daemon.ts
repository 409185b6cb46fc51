// daemon.ts - the start, the loops and the stop of weftd. Read this file first.
// - Start: begin.ts forwards packets with the last known state, if there is any, and then loads this file. If another
//   weftd forwards already, it continues to forward until this process is ready. The steps are: subnet manager ->
//   network configuration -> external interface -> lease -> data path -> firewall (later, if it takes long) ->
//   subnet.env -> ready. Then the other weftd ends.
// - Loops: ESSENTIAL and OBSERVING list them. Each loop maintains one thing, in the file of src/node/loops/ that is
//   named after it.
// - Stop: a signal, a successor, the error of an essential loop or an uncaught error aborts the one AbortController.
//   All loops end. Then weftd leaves the data path to the next process or closes it, and closes the store.
//
// Only the daemon runs loops. Stores and backends start no timers; the loops call them.

import { version } from './base/assets.ts'
import { prefixed } from './base/errors.ts'
import { createWinstonWriter } from './base/log-winston.ts'
import { seldom, type MovableLog } from './base/log.ts'
import { addon } from './host/addon.ts'
import { createBell } from './host/bell.ts'
import { hasTimedOut, run } from './host/command.ts'
import { openEcho } from './host/echo.ts'
import { HostWatch } from './host/events.ts'
import { getSysctl } from './host/sysctl.ts'
import { familiesOf, netText, type Nets } from './net/address.ts'
import { networkAsking } from './node/ask-nodes.ts'
import { charonOfHost, createBackend, createSubnetManager } from './node/choose.ts'
import { dropsReportOf } from './node/drops.ts'
import { endNode, endUnusedNode, giveNewLeaseBack, leaveNetwork } from './node/end.ts'
import { retry, whileForwarding } from './node/exit-or-wait.ts'
import { externalBefore, findExternal } from './node/external.ts'
import { findConfig, watchConfig } from './node/loops/config.ts'
import { keepDataPath } from './node/loops/data-path.ts'
import { watchForDuplicateNode } from './node/loops/duplicate-node.ts'
import { firewallFor, keepFirewall, raiseOrLate } from './node/loops/firewall.ts'
import { warnOfForwarding, watchForwarding } from './node/loops/forwarding.ts'
import { giveBack } from './node/loops/give-back.ts'
import { keepLastKnown } from './node/loops/last-known.ts'
import { amended, attrsBefore, keepLease, obtainLease } from './node/loops/lease.ts'
import { clearCharon, clearEarlier, clearLeftovers, clearPast, earlierAttrs } from './node/loops/leftovers.ts'
import { keepMemory } from './node/loops/memory.ts'
import { keepNames } from './node/loops/names.ts'
import { searchPaths } from './node/loops/path-search.ts'
import { keepPeers } from './node/loops/peers.ts'
import { probePeers } from './node/loops/probes.ts'
import { keepReady } from './node/loops/ready.ts'
import { serveWatchdog, reportToManager } from './node/loops/service-manager.ts'
import { serveNetworkStatus } from './node/loops/status-network.ts'
import { readPreviousNets, type PreviousNets } from './node/loops/subnet-env-file.ts'
import { keepSubnetEnv, publish as publishSubnet } from './node/loops/subnet-env.ts'
import { watchThreads } from './node/loops/threads.ts'
import { chooseUnderlays } from './node/loops/underlays.ts'
import { canForward, joinNetwork, type NewNode, type NodeParts } from './node/node.ts'
import { formerRoutes, pastNetworks, warnOfRoutesLeft, withOmitted } from './node/old-routes.ts'
import { goesOnWith, isFor, openNode } from './node/open.ts'
import { ownAddresses } from './node/own-addresses.ts'
import { daemonStatusOf, reportOf, reportWaiting, snapshotOf } from './node/report.ts'
import type { Handover } from './node/restart/handover.ts'
import { lastKnownFile, nextFor, removeLastKnown } from './node/restart/last-known.ts'
import { permit } from './node/rights.ts'
import { observed, runLoops, type Loop } from './node/run-loops.ts'
import { refuseToMove, waitForSameNetwork } from './node/same-network.ts'
import type { CutOptions } from './options.ts'
import type { Events } from './report/events.ts'
import { createHealth, type Health } from './report/health.ts'
import { readPage } from './report/page.ts'
import { serveStatus } from './report/serve.ts'

/** The loops without which no packets pass. If one of these loops ends with an unexpected error, the daemon ends. */
const ESSENTIAL: readonly Loop[] = [
  keepPeers, // applies the subnet manager's reports to the data path's peer table
  keepLease, // renews the node's own lease, and acquires it again if it was lost
  keepDataPath, // repairs the device, and reopens the data path if it failed or the node's address changed
  keepFirewall, // sets the firewall rules and repairs them
]

/**
 * The loops that packets do not depend on. If such a loop ends with an unexpected error, the daemon starts the loop
 * again and continues to forward packets.
 */
const OBSERVING: readonly Loop[] = [
  watchForDuplicateNode, // reports another host that uses the same public IP
  keepNames, // reads the names of other hosts, which they store next to their leases
  watchConfig, // reports a network configuration in the store that differs from the one in use
  keepSubnetEnv, // writes and repairs subnet.env
  watchForwarding, // reports a kernel that does not forward packets
  keepReady, // informs the subnet manager when the node is in the network
  watchThreads, // reports a thread that hangs
  probePeers, // probes the peers
  chooseUnderlays, // chooses IPv4 or IPv6 for each dual-stack peer, by the probes' results
  searchPaths, // finds the longest packet that reaches each peer
  keepMemory, // records the events of the peers and the last hour
  reportToManager, // reports the node's status to the service manager
  serveWatchdog, // sends the service manager's keep-alive messages
  serveNetworkStatus, // answers the status queries of other nodes
  keepLastKnown, // writes the state that the next process starts with
  giveBack, // returns to the kernel the memory that only the start needed
]

/** The beginning of flanneld's log lines about a failure to get the lease or to set up the device at the start. */
const REGISTERING = 'Error registering network: '

/**
 * Runs the steps of the start from the first query of the store on, and then runs the node. Always rejects: with the
 * reason for the stop, or with the error that prevented the start.
 */
export async function startManager(
  node: NewNode,
  handover: Handover,
  options: CutOptions,
  events: Events,
): Promise<never> {
  const { log, signal, stopping } = node
  ;(log as Partial<MovableLog>).writeBy?.(createWinstonWriter())
  const previous = await withOmitted(await readPreviousNets(node.options['subnet-file'], log), node)
  const manager = await whileForwarding(node, () =>
    prefixed('Failed to create SubnetManager: ', createSubnetManager(options.store, log, signal)),
  )
  try {
    const subnet = previous.subnet.ipv4 ? netText(previous.subnet) : 'None'
    const reused = manager.givesSubnets ? '' : ` with Previous Subnet: ${subnet}`
    log.info(`Created subnet manager: ${manager.title}${reused}`)
    const page = options.report['status-page'] ? { page: () => readPage() } : {}
    const daemon = daemonStatusOf(options, version())
    const health = createHealth({ daemon, events: () => events.last(), ...page })
    const served = await serveStatus(options.report, health, handover, log, stopping, canForward(node))
    const publish = (waitsFor: string): void => reportWaiting(node, health, manager.name, waitsFor, handover)
    try {
      const work = () => startNode(node, handover, options, manager, previous, health, publish)
      return await whileForwarding(node, work, (why) => publish(`cannot be a node: ${why}`))
    } finally {
      await served.close()
    }
  } finally {
    await leaveNetwork(node, { ...node, manager }, signal.reason) // in case weftd stops before the node has a lease
    await manager.close()
  }
}

/**
 * Finds the network configuration and the external interface in the same order as flanneld, creates the backend, and
 * then runs the node. Always rejects: with the reason for the stop, or with the error that prevented the start.
 */
async function startNode(
  node: NewNode,
  handover: Handover,
  options: CutOptions,
  manager: NodeParts['manager'],
  previous: PreviousNets,
  health: Health,
  publish: (waitsFor: string) => void,
): Promise<never> {
  const { log, signal, ownership, known, kernel } = node
  const hostChanged = createBell()
  const changed = (): void => [hostChanged, ownership.recheck].forEach((bell) => bell.ring())
  const watch = new HostWatch(node.kernel, changed, log, signal)
  const waiter = { log: seldom(log), signal, publish }
  try {
    const { earlier, isMine } = ownAddresses({ manager, known, kernel, log, signal, subnet: previous.subnet })
    const { config, configText } = await findConfig(manager, waiter)
    const families = familiesOf(config)
    watch.follow(families)
    await waitForSameNetwork(manager, async () => (await handover.predecessor())?.lease, waiter)
    const before = { earlier, known: () => externalBefore(node) }
    const external = await findExternal(
      { kernel, options: node.options, manager, families, hostChanged, before },
      waiter,
    )
    await observed(warnOfForwarding(families, kernel, waiter.log), node)
    const made = isFor(node, { config, external })
      ? node.backend
      : await createBackend(config, external, options.engine, log, attrsBefore(manager, log), handover, kernel)
    const parts: NodeParts = {
      manager,
      config,
      backend: amended(made, manager, log),
      external,
      isMine,
      openEcho,
      readSysctl: getSysctl,
      giveBackMemory: addon.giveBackMemory,
      next: nextFor(node, configText, handover.free),
      leftovers: {
        earlier: previous.subnet,
        past: pastNetworks(previous.network, config),
        formerRoutes: await formerRoutes(node),
        run,
        charon: charonOfHost,
      },
      firewall: firewallFor(config, node, previous, handover.free),
      health,
    }
    return await runNode(node, parts, previous.subnet, handover, publish)
  } finally {
    await watch.end()
  }
}

/**
 * Acquires the lease, opens the data path and runs the loops. Always rejects: with the reason for the stop, or with the
 * error that prevented the start.
 */
export async function runNode(
  starting: NewNode,
  parts: NodeParts,
  previous: Nets,
  handover: Pick<Handover, 'tunNames' | 'isOnLoan' | 'predecessor' | 'opening' | 'release' | 'settle'>,
  publish?: (waitsFor: string) => void,
  permitted: typeof permit = permit,
): Promise<never> {
  const { backend, config, external, next, ...membership } = parts
  const { options, log, signal, stopping, ownership } = starting
  const means = { ...parts, options, kernel: starting.kernel, log, signal }
  // If a program such as `iptables` does not answer in time, run it again. Probably the host is overloaded, which is
  // not a mistake of an operator.
  const answered = <T>(find: () => Promise<T>): Promise<T> => retry({ failure: REGISTERING, find }, { log, signal })
  const registered = <T>(work: Promise<T>): Promise<T> => prefixed(REGISTERING, work)
  const attrs = await answered(() => backend.prepare(signal))
  const predecessor = await handover.predecessor()
  if (!parts.manager.givesSubnets) refuseToMove(attrs, predecessor?.lease)
  // A node that has a lease gets packets from all nodes. So weftd writes the lease to the store only when this node is
  // likely to be able to forward them.
  const isForwarding = predecessor !== undefined || canForward(starting)
  const host = {
    predecessor: predecessor?.pid,
    isForwarding,
    tunNames: handover.tunNames,
    kernel: starting.kernel,
  }
  await registered(answered(() => permitted(backend, host)))
  if (!canForward(starting)) await answered(async () => parts.firewall?.rules.check?.())
  const attrsEarlier = await earlierAttrs(means, attrs)
  const obtaining = obtainLease(means, attrs, previous, false, publish)
  const lease = await prefixed(`${REGISTERING}failed to acquire lease: `, obtaining)
  await handover.opening()
  // Release a device that was inherited from the previous process if this backend cannot use it. The device would
  // conflict with the backend's own device.
  if (!handover.tunNames.some((left) => goesOnWith(backend, left))) await handover.release()
  const forwardsAlready = canForward(starting)
  const facts = { config, backend, external, lease, attrs, next }
  const clear = () => clearEarlier(means, lease, attrsEarlier)
  const opening = registered(openNode(starting, parts, facts, handover, clear))
  const forwarding = await opening.catch(async (error: unknown) => {
    // Another program may have taken a UDP port since weftd checked it. In that case delete the new lease from the
    // store if no other process uses the lease.
    const isUnused = !canForward(starting) && !handover.isOnLoan && !ownership.hasSuccessor
    const isUseless = lease.isNew === true && isUnused && !signal.aborted && !hasTimedOut(error)
    if (isUseless) await giveNewLeaseBack(means, lease)
    await leaveNetwork(starting, { ...parts, lease }, signal.reason)
    throw error
  })
  const node = joinNetwork(forwarding, membership)
  const { health } = node
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
    await observed(clearPast(node), node)
    await observed(clearCharon(node), node)
    if (node.leftovers && node.external)
      await observed(warnOfRoutesLeft(node.leftovers.past, node.external, node), node)
    await raiseOrLate(node, forwardsAlready)
    await publishSubnet(node)
    handover.settle()
    if (!next && handover.tunNames.length > 0) await removeLastKnown(lastKnownFile(options))
    log.info('Running backend.')
    return await runLoops(node, ESSENTIAL, OBSERVING)
  } catch (error) {
    // Do not delete the new lease from the store if a successor has connected to this process, because the successor
    // may already use the lease.
    const isUnused = !node.isPublished && ownership.isOurs && !ownership.hasSuccessor
    isUseless = lease.isNew === true && isUnused && !signal.aborted && !hasTimedOut(error)
    stopping.abort(error) // so that no successor borrows a data path that is about to end
    throw error
  } finally {
    if (handover.isOnLoan) await ownership.release() // the predecessor forwards again
    else if (isUseless) await endUnusedNode(node)
    else await endNode(node, signal.reason)
  }
}
