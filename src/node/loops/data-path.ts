// data-path.ts - the loop that repairs the device of the data path, and opens the data paths of families that have
// none. It opens the whole data path again if the data path died or if the node got another lease.

import { describeError, messageOf } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { leasesEqual } from '../../control/lease/lease.ts'
import { createBell, pause, withLatePromise } from '../../host/bell.ts'
import { watchHost } from '../../host/events.ts'
import { renamed } from '../../host/links.ts'
import { FAMILIES, familiesOf, FAMILY_NAMES, type ByFamily } from '../../net/address.ts'
import type { DataPaths } from '../data-paths.ts'
import { LATE_MS, RESYNC_MS, type ForwardingNode, type Node } from '../node.ts'
import { openPath } from '../open.ts'
import { createRepairLog, type RepairLog } from '../repairs.ts'
import { seal } from '../seal.ts'
import { clearLeftovers } from './leftovers.ts'
import { applyPeers } from './peers.ts'
import { publish } from './subnet-env.ts'

const REOPEN_RETRY_MS = 1_000
/**
 * The shortest pause in ms after a check of the data path. The kernel's reports come in bursts, and one check handles a
 * whole burst.
 */
const SETTLE_MS = 200
/**
 * The ratio of the pause after a check to the CPU time of the check. The pause has at least SETTLE_MS and at most
 * RESYNC_MS. The pause limits the CPU time of weftd if another program changes the host all the time. For example, a
 * check of 5,000 peers uses a third of a second of CPU time.
 */
const PAUSE_PER_CHECK = 10
/**
 * The interval, in ms, of checks if the last check found nothing to repair and the kernel has reported no change since.
 * weftd checks even then, because reports can be lost.
 */
const CALM_MS = 30_000
/**
 * The maximum number of repairs per minute. If weftd makes more repairs, another program probably undoes them. In that
 * case weftd checks the data path's device only once per RESYNC_MS.
 */
const REPAIRS_A_MINUTE = 60

/**
 * Keeps the data path open and repaired. A node runs this loop only once. The loop starts as soon as the node forwards
 * with the last known state; without such a state it starts together with the node's other loops. The loop stops when
 * the node stops, and leaves the data path open.
 */
export const keepDataPath = (node: ForwardingNode): Promise<never> => (node.keepingPath ??= keep(node))

/**
 * Repairs the data path, or opens a new data path if that is necessary. If all loops run, also publishes a changed
 * lease or MTU.
 */
async function keep(node: ForwardingNode): Promise<never> {
  const { ownership, log, signal } = node
  let diedYoung = 0
  const repairs = createRepairLog(node, log)
  const logGone = createGoneLog(log)
  for (;;) {
    const openedAt = performance.now()
    const { dataPath } = ownership
    const before = { key: node.pathLease?.key, mtu: dataPath?.mtu }
    await keepRight(node, repairs, logGone)
    // Count the data paths that died soon after they were opened, and pause longer after each of them. Otherwise weftd
    // would open data paths in a busy loop.
    diedYoung = performance.now() - openedAt < REOPEN_RETRY_MS ? diedYoung + 1 : 0
    const calm = seldom(log)
    await ownership.untilOurs(signal)
    if (ownership.dataPath && ownership.dataPath !== dataPath) continue // the start has opened another data path
    // Only log a failure to close the data path, because the code that opens the next data path removes the objects
    // that are left.
    const notClosed = (error: unknown): void => calm.error(`Cannot close the data path: ${describeError(error)}`)
    if (dataPath) await ownership.close(dataPath).catch(notClosed)
    if (diedYoung > 1) await pause(signal, REOPEN_RETRY_MS)
    while (ownership.dataPath === undefined) {
      await ownership.untilOurs(signal)
      try {
        await prepareAgain(node)
        await ownership.open(() => {
          node.pathLease = node.lease
          return openPath(node, node)
        })
      } catch (error) {
        signal.throwIfAborted()
        calm.error(`Cannot open the data path: ${describeError(error)}`)
        await pause(signal, REOPEN_RETRY_MS)
      }
    }
    await applyKnownPeers(node)
    node.learnt.ring()
    const isMoved = node.pathLease?.key !== before.key || ownership.dataPath?.mtu !== before.mtu
    if (isMoved && isRunning(node)) await publish(node)
  }
}

/** Returns true if all loops of the node run, so that this loop may change the host beyond its data path. */
const isRunning = (node: ForwardingNode): node is Node => node.isRunning

async function prepareAgain(node: ForwardingNode): Promise<void> {
  const { backend } = node
  const before = backend.external.name
  const attrs = await backend.prepare(node.signal)
  if (node.backend !== backend) return // the node got another backend meanwhile
  node.attrs = attrs
  const now = backend.external.name
  if (before !== now) {
    node.log.info(renamed(before, now))
    node.learnt.ring() // the last known state has this name
  }
  if (!leasesEqual(node.lease, { ...node.lease, attrs })) node.leaseDoubt.ring() // to publish the new attributes
}

/** Repairs the data path until it must be opened again, because it died or because the node got another lease. */
async function keepRight(node: ForwardingNode, repairs: RepairLog, logGone: GoneLog): Promise<void> {
  const { kernel, log, ownership, signal } = node
  const { dataPath } = ownership
  node.unchecked = undefined
  if (!dataPath) return
  const ended = new AbortController()
  const until = AbortSignal.any([signal, ended.signal])
  const ring = (): void => ownership.recheck.ring()
  const watching = Promise.all(dataPath.watched.map((watched) => watchHost(kernel, ring, log, until, watched)))
  try {
    return await lookAfter(node, dataPath, repairs, logGone)
  } finally {
    ended.abort()
    await watching
  }
}

async function lookAfter(
  node: ForwardingNode,
  dataPath: DataPaths,
  repairs: RepairLog,
  logGone: GoneLog,
): Promise<void> {
  const { log, ownership, signal } = node
  let fault: Error | undefined
  const faulted = createBell()
  const onFault = (error: Error): void => {
    fault = error
    for (const bell of [ownership.recheck, faulted]) bell.ring()
  }
  void dataPath.fault.then(onFault, onFault)
  const calm = seldom(log)
  let isCalm = false
  let tunNames = dataPath.tunNames?.join()
  let triedAt = -Infinity
  let searchedAt = -Infinity
  let renewing: Promise<void> | undefined
  for (;;) {
    const rang = await ownership.recheck.wait(signal, isCalm ? CALM_MS : RESYNC_MS)
    if (ownership.dataPath !== dataPath) return // another process made this process close the data path
    if (ownership.state.is === 'lent') continue // the successor owns the device
    if (fault) {
      log.error(`The data path stopped: ${messageOf(fault)}. Opening it again.`)
      return await renewing // wait for a `renew` that still runs
    }
    const { pathLease } = node
    if (node.lease.key !== pathLease?.key) return await renewing
    isCalm = false
    const spentMs = startClock()
    let pauseMs = SETTLE_MS
    try {
      const repaired = await withLatePromise(LATE_MS, (late) => dataPath.resync(late))
      pauseMs = Math.min(Math.max(SETTLE_MS, PAUSE_PER_CHECK * spentMs()), RESYNC_MS)
      if (tunNames !== dataPath.tunNames?.join()) node.learnt.ring() // the last known state names the TUN devices
      tunNames = dataPath.tunNames?.join()
      const gone = dataPath.gone()
      logGone(gone)
      for (const each of repaired) repairs.add(each)
      noteFailures(node, dataPath.failures)
      // Check soon whether the repair is complete, because the kernel's reports of weftd's own changes start no check.
      if (repaired.length > 0) ownership.recheck.ring()
      // Check again soon if the kernel reported a change, because another report may have been lost. Also check again
      // soon while an address is missing, because the node gives up the address only after some time, and after a failed
      // check, because the node counts as impaired if the next checks fail too.
      isCalm = !rang && repaired.length === 0 && familiesOf(gone).length === 0 && dataPath.failures.length === 0
    } catch (error) {
      signal.throwIfAborted()
      calm.error(`Cannot check the device: ${describeError(error)}`)
      noteFailures(node, [messageOf(error)])
    }
    // Before this check the node may have got a new lease and then its former lease again. In that case the data path
    // still has the peers that were set for the new lease.
    const isAsElsewhere = node.ownApplied !== undefined && node.ownApplied !== pathLease.key
    if (node.unapplied || isAsElsewhere) await applyPeers(node, new Set())
    // Each try to open a missing family may change the host, and the kernel reports that change. The report must not
    // cause the next try, so tries have a minimum interval.
    if (dataPath.isOutdated && !renewing && performance.now() - triedAt >= RESYNC_MS) {
      triedAt = performance.now()
      renewing = renew(node, dataPath, calm).finally(() => (renewing = undefined))
      renewing.catch(() => {}) // it rejects only if the process stops, and then this function ends too
    }
    // Wait only a limited time: while the data path of one family is slow to open, weftd must still check the data path
    // of the other family, which is open.
    await withLatePromise(LATE_MS, (late) => Promise.race([renewing, late]))
    // Until all loops run, changes of the host may go unnoticed, because weftd does not watch the host before its first
    // query of the store.
    isCalm &&= isRunning(node) && !node.unapplied && !dataPath.unreported && !dataPath.isOutdated
    // Search for leftovers at most once per RESYNC_MS, because starting and ending containers change the host all the
    // time.
    const isDue = performance.now() - searchedAt >= RESYNC_MS
    if (isDue) {
      searchedAt = performance.now()
      if (isRunning(node)) await clearLeftovers(node)
      else if (ownership.state.is === 'forwarding' && ownership.dataPath === dataPath)
        await seal({ kernel: node.kernel, log: calm }, node)
    }
    isCalm &&= isDue
    await faulted.wait(signal, repairs.lastMinute() < REPAIRS_A_MINUTE ? pauseMs : RESYNC_MS)
  }
}

/** Records why the data path could not be checked or repaired, and since when. */
function noteFailures(node: ForwardingNode, failures: readonly string[]): void {
  const since = node.unchecked?.since ?? performance.now()
  node.unchecked = failures.length === 0 ? undefined : { why: failures.join('; '), since }
}

/**
 * Starts to measure the CPU time of this process, and returns a function that returns the CPU time in ms used since
 * then. Threads that forward packets use CPU time too, so the result is limited to the elapsed time.
 */
function startClock(): () => number {
  const [began, before] = [performance.now(), process.cpuUsage()]
  return () => {
    const { user, system } = process.cpuUsage(before)
    return Math.min(performance.now() - began, (user + system) / 1000)
  }
}

type GoneLog = (gone: ByFamily<string>) => void

/**
 * Returns a function that logs when the external interface loses an address, and when the interface has an address
 * again.
 */
function createGoneLog(log: Log): GoneLog {
  let before: ByFamily<string> = {}
  return (gone) => {
    for (const family of FAMILIES) {
      const [was, is] = [before[family], gone[family]]
      const name = FAMILY_NAMES[family]
      if (is !== undefined && is !== was)
        log.warn(
          `${is}: no ${name} packets pass between this node and others until the address is back or another is found`,
        )
      if (is === undefined && was !== undefined) log.info(`The external interface has an ${name} address again`)
    }
    before = gone
  }
}

/**
 * Adapts the data path to the host's present addresses: opens the data paths of missing families, and does not change
 * the open data paths.
 */
async function renew(node: ForwardingNode, dataPath: DataPaths, log: Log): Promise<void> {
  const lackedBefore = familiesOf(dataPath.lacking).join()
  const attrsBefore = node.attrs
  try {
    await prepareAgain(node)
    await dataPath.renew(node.attrs)
  } catch (error) {
    node.signal.throwIfAborted()
    log.error(`Cannot open the data path: ${describeError(error)}`)
  }
  // Set the data path's peers again, because the path to a peer may have changed, and with it the address that weftd
  // probes. If a family is still missing, weftd tries again every few seconds. In that case set the peers only after a
  // change, because there may be thousands.
  const isSame =
    familiesOf(dataPath.lacking).join() === lackedBefore &&
    leasesEqual({ ...node.lease, attrs: attrsBefore }, { ...node.lease, attrs: node.attrs })
  if (!dataPath.isOutdated || !isSame) await applyKnownPeers(node)
}

/**
 * Sets the data path's peers again. Does nothing if weftd has not read the leases from the store yet and knows none
 * from an earlier run, because the kernel must keep its routes to the peers of the earlier run until the store answers.
 */
async function applyKnownPeers(node: ForwardingNode): Promise<void> {
  if (node.view.size > 0 || node.following.listedAt !== undefined) await applyPeers(node)
}
