// data-path.ts - repairs the device of the data path, and opens missing families. Opens the whole data path again if it
// died or if the node got another lease.

import { describeError, messageOf } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { leasesEqual, type OwnLease } from '../../control/lease/lease.ts'
import { pause, withLatePromise } from '../../host/bell.ts'
import { watchHost } from '../../host/events.ts'
import { renamed } from '../../host/links.ts'
import { FAMILIES, familiesOf, FAMILY_NAMES, type ByFamily } from '../../net/address.ts'
import { openDataPaths, type DataPaths } from '../data-paths.ts'
import { LATE_MS, RESYNC_MS, type Node } from '../node.ts'
import { untilOurs } from '../ownership.ts'
import { createRepairLog, type RepairLog } from '../repairs.ts'
import { clearLeftovers } from './leftovers.ts'
import { applyPeers } from './peers.ts'
import { publish } from './subnet-env.ts'

const REOPEN_RETRY_MS = 1_000
/** The pause in ms after a check. The kernel's reports come in bursts, and one check handles a whole burst. */
const SETTLE_MS = 200
/**
 * The interval, in ms, of checks if the last check found nothing to repair and the kernel has reported no change since.
 * The checks are needed because reports can be lost.
 */
const CALM_MS = 30_000
/**
 * The maximum number of repairs per minute. With more repairs another program probably undoes them, and the device is
 * checked only once per RESYNC_MS.
 */
const REPAIRS_A_MINUTE = 60

/**
 * The part of a node that its data path needs. If the process forwards with the last known state, this part exists
 * before the node.
 */
export type ForwardingNode = Pick<
  Node,
  'ownership' | 'backend' | 'next' | 'log' | 'signal' | 'lease' | 'attrs' | 'view'
> &
  Pick<Node, 'unapplied' | 'ownApplied' | 'repaired' | 'leaseDoubt' | 'learnt' | 'unprobed' | 'unsearched'>

export const keepDataPath = (node: Node): Promise<never> =>
  keepForwarding(node, () => publish(node), { beside: () => clearLeftovers(node) })

/**
 * Keeps the data path open and repaired. Calls `moved` after the data path was opened for another lease or MTU, and
 * `beside` after each check. Stops when `until` aborts, but leaves the data path open, because a node may continue with
 * it.
 */
export async function keepForwarding(
  node: ForwardingNode,
  moved: () => Promise<void>,
  { beside = async () => {}, until = node.signal }: { beside?: () => Promise<unknown>; until?: AbortSignal } = {},
): Promise<never> {
  const { ownership, backend, log } = node
  let { lease } = node
  const openMtu = (): number | undefined => ownership.dataPath?.mtu
  let mtu = openMtu()
  let diedYoung = 0
  const repairs = createRepairLog(node, node.log)
  const logGone = createGoneLog(node.log)
  for (;;) {
    const openedAt = performance.now()
    await keepRight(node, lease, repairs, logGone, { beside, until })
    // Count the data paths that died soon after they were opened, and pause longer after each. Otherwise they would be
    // opened again in a busy loop.
    diedYoung = performance.now() - openedAt < REOPEN_RETRY_MS ? diedYoung + 1 : 0
    const before = { lease, mtu }
    const calm = seldom(log)
    await untilOurs(ownership, until)
    // Only log a failure to close the data path, because the code that opens the next data path deals with the objects
    // that are left.
    await ownership.close().catch((error: unknown) => calm.error(`Cannot close the data path: ${describeError(error)}`))
    if (diedYoung > 1) await pause(until, REOPEN_RETRY_MS)
    while (openMtu() === undefined) {
      await untilOurs(ownership, until)
      try {
        await prepareAgain(node)
        await ownership.open(() => {
          lease = node.lease
          return openDataPaths({
            backend,
            lease: { ...lease, attrs: node.attrs },
            leases: node.view,
            signal: node.signal,
            log,
          })
        })
        mtu = openMtu()
      } catch (error) {
        until.throwIfAborted()
        calm.error(`Cannot open the data path: ${describeError(error)}`)
        await pause(until, REOPEN_RETRY_MS)
      }
    }
    await applyPeers(node)
    node.learnt.ring()
    if (lease.key !== before.lease.key || mtu !== before.mtu) await moved()
  }
}

async function prepareAgain(node: ForwardingNode): Promise<void> {
  const before = node.backend.external?.name
  node.attrs = await node.backend.prepare(node.signal)
  const now = node.backend.external?.name
  if (before !== undefined && now !== undefined && before !== now) {
    node.log.info(renamed(before, now))
    node.learnt.ring() // the file for the next process has the name too
  }
  if (!leasesEqual(node.lease, { ...node.lease, attrs: node.attrs })) node.leaseDoubt.ring() // to publish the new attributes
}

/** Repairs the data path until it must be opened again, because it died or because the node got another lease. */
async function keepRight(
  node: ForwardingNode,
  lease: OwnLease,
  repairs: RepairLog,
  logGone: GoneLog,
  { beside, until: stop }: { readonly beside: () => Promise<unknown>; readonly until: AbortSignal },
): Promise<void> {
  const { log, ownership } = node
  const { dataPath } = ownership
  if (!dataPath) return
  const ended = new AbortController()
  const until = AbortSignal.any([stop, ended.signal])
  const ring = (): void => ownership.recheck.ring()
  const watching = Promise.all(dataPath.watched.map((watched) => watchHost(ring, log, until, watched)))
  try {
    return await lookAfter(node, dataPath, lease, repairs, logGone, { beside, signal: stop })
  } finally {
    ended.abort()
    await watching
  }
}

async function lookAfter(
  node: ForwardingNode,
  dataPath: DataPaths,
  lease: OwnLease,
  repairs: RepairLog,
  logGone: GoneLog,
  { beside, signal }: { readonly beside: () => Promise<unknown>; readonly signal: AbortSignal },
): Promise<void> {
  const { log, ownership } = node
  let fault: Error | undefined
  const onFault = (error: Error): void => {
    fault = error
    ownership.recheck.ring()
  }
  void dataPath.fault.then(onFault, onFault)
  const calm = seldom(log)
  let isCalm = false
  let tunNames = dataPath.tunNames?.join()
  let triedAt = -Infinity
  let besideAt = -Infinity
  let renewing: Promise<void> | undefined
  for (;;) {
    const rang = await ownership.recheck.wait(signal, isCalm ? CALM_MS : RESYNC_MS)
    if (ownership.dataPath !== dataPath) return // another process made this one close it
    if (ownership.state.is === 'lent') continue // the successor owns the device
    if (fault) {
      log.error(`The data path stopped: ${messageOf(fault)}. Opening it again.`)
      return await renewing // wait for a `renew` that still runs
    }
    if (node.lease.key !== lease.key) return await renewing
    isCalm = false
    try {
      const repaired = await withLatePromise(LATE_MS, (late) => dataPath.resync(late))
      if (tunNames !== dataPath.tunNames?.join()) node.learnt.ring() // the file for the next process names the TUN
      tunNames = dataPath.tunNames?.join()
      const gone = dataPath.gone()
      logGone(gone)
      for (const each of repaired) repairs.add(each)
      // Check again soon if the kernel reported a change, because another report may have been lost, for example while
      // `ip monitor` was restarted. Also check again soon while an address is missing, because the node gives up the
      // address only after some time.
      isCalm = !rang && repaired.length === 0 && familiesOf(gone).length === 0
    } catch (error) {
      signal.throwIfAborted()
      calm.error(`Cannot check the device: ${describeError(error)}`)
    }
    // If the node got another lease and then its old lease again before this check, the data path has the peers for the
    // other lease.
    const isAsElsewhere = node.ownApplied !== undefined && node.ownApplied !== lease.key
    if (node.unapplied || isAsElsewhere) await applyPeers(node, new Set())
    // Each try to open a missing family may change the host, and the kernel reports that change. Such a report must not
    // cause the next try, so tries have a minimum interval.
    if (dataPath.isOutdated && !renewing && performance.now() - triedAt >= RESYNC_MS) {
      triedAt = performance.now()
      renewing = renew(node, dataPath, calm).finally(() => (renewing = undefined))
      renewing.catch(() => {}) // it rejects only if the process stops, and then this function ends too
    }
    // Wait only a limited time, so that a family that opens slowly does not delay the checks of the other family.
    await withLatePromise(LATE_MS, (late) => Promise.race([renewing, late]))
    isCalm &&= !node.unapplied && !dataPath.unreported && !dataPath.isOutdated
    // Call `beside` at most once per RESYNC_MS, because starting and ending containers change the host all the time.
    const isDue = performance.now() - besideAt >= RESYNC_MS
    if (isDue) {
      besideAt = performance.now()
      await beside()
    }
    isCalm &&= isDue
    await pause(signal, repairs.lastMinute() < REPAIRS_A_MINUTE ? SETTLE_MS : RESYNC_MS)
  }
}

type GoneLog = (gone: ByFamily<string>) => void

/** Returns a function that logs when the external interface loses an address, and when it has an address again. */
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
 * Adapts the data path to the host's present addresses: opens missing families, and does not change the families that
 * are open.
 */
async function renew(node: ForwardingNode, dataPath: DataPaths, log: Log): Promise<void> {
  try {
    await prepareAgain(node)
    await dataPath.renew(node.attrs)
  } catch (error) {
    node.signal.throwIfAborted()
    log.error(`Cannot open the data path: ${describeError(error)}`)
  }
  // Apply the peers again, because the path to a peer, and with it the address that is probed, may have changed.
  if (!dataPath.isOutdated) await applyPeers(node)
}
