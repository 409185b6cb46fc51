// data-path.ts - keeps the data path: the device is mended, a family that it lacks is opened again beside the other, and all of it when it
// died or the node moved.

import { describeError, messageOf } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { leasesEqual, type OwnLease } from '../../control/lease/lease.ts'
import { pause, withLatePromise } from '../../host/bell.ts'
import { watchHost } from '../../host/events.ts'
import { FAMILIES, familiesOf, FAMILY_NAMES, type ByFamily } from '../../net/address.ts'
import type { DataPath } from '../../path/contract.ts'
import { LATE_MS, RESYNC_MS, type Node } from '../node.ts'
import { untilOurs } from '../possession.ts'
import { createRepairLog, type RepairLog } from '../repairs.ts'
import { clearLeftovers } from './leftovers.ts'
import { applyPeers } from './peers.ts'
import { publish } from './subnet-env.ts'

const REOPEN_RETRY_MS = 1_000
/** The kernel's reports come in bursts: the device is looked at once in so long, which leaves room within a second. */
const SETTLE_MS = 200
/** Looks when all was right at the last one, and nothing was reported since: in case a report was lost. */
const CALM_MS = 30_000
/** With more repairs a minute somebody undoes them: then the device is looked at every RESYNC_MS only. */
const REPAIRS_A_MINUTE = 60

/** The owner of a data path, and what it is opened with: a node, or what goes on as last known before there is one. */
export type Forwarding = Pick<Node, 'possession' | 'backend' | 'next' | 'log' | 'signal' | 'lease' | 'attrs' | 'view'> &
  Pick<Node, 'unapplied' | 'ownApplied' | 'repaired' | 'leaseDoubt' | 'learnt' | 'unprobed' | 'unsearched'>

export const keepDataPath = (node: Node): Promise<never> =>
  keepForwarding(node, () => publish(node), { beside: () => clearLeftovers(node) })

/**
 * Keeps the data path right. Calls `moved` after the data path was opened for another lease or MTU, and `beside` after each check. Stops
 * when `until` aborts, but leaves the data path open, because a node may continue with it.
 */
export async function keepForwarding(
  node: Forwarding,
  moved: () => Promise<void>,
  { beside = async () => {}, until = node.signal }: { beside?: () => Promise<unknown>; until?: AbortSignal } = {},
): Promise<never> {
  const { possession, backend, log } = node
  let { lease } = node
  const openMtu = (): number | undefined => possession.dataPath?.mtu
  let mtu = openMtu()
  let diedYoung = 0
  const repairs = createRepairLog(node, node.log)
  const tellGone = createGoneLog(node.log)
  for (;;) {
    const openedAt = performance.now()
    await keepRight(node, lease, repairs, tellGone, { beside, until })
    // A data path that dies as soon as it is opened, and again, must not be opened in a tight loop.
    diedYoung = performance.now() - openedAt < REOPEN_RETRY_MS ? diedYoung + 1 : 0
    const before = { lease, mtu }
    const calm = seldom(log)
    await untilOurs(possession, until)
    // A data path that cannot be closed is left to whoever opens the next one.
    await possession
      .close()
      .catch((error: unknown) => calm.error(`Cannot close the data path: ${describeError(error)}`))
    if (diedYoung > 1) await pause(until, REOPEN_RETRY_MS)
    while (openMtu() === undefined) {
      await untilOurs(possession, until)
      try {
        await prepareAgain(node)
        await possession.open(() => {
          lease = node.lease
          return backend.open({ ...lease, attrs: node.attrs }, node.signal, node.view)
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

async function prepareAgain(node: Forwarding): Promise<void> {
  node.attrs = await node.backend.prepare(node.signal)
  if (!leasesEqual(node.lease, { ...node.lease, attrs: node.attrs })) node.leaseDoubt.ring() // peers have to know
}

/** Mends what others changed of the device, until the data path must be opened again: it died, or the node moved. */
async function keepRight(
  node: Forwarding,
  lease: OwnLease,
  repairs: RepairLog,
  tellGone: GoneLog,
  { beside, until: stop }: { readonly beside: () => Promise<unknown>; readonly until: AbortSignal },
): Promise<void> {
  const { log, possession } = node
  const { dataPath } = possession
  if (!dataPath) return
  const ended = new AbortController()
  const until = AbortSignal.any([stop, ended.signal])
  const ring = (): void => possession.doubt.ring()
  const watching = dataPath.watched && watchHost(ring, log, until, dataPath.watched)
  try {
    return await lookAfter(node, dataPath, lease, repairs, tellGone, { beside, signal: stop })
  } finally {
    ended.abort()
    await watching
  }
}

async function lookAfter(
  node: Forwarding,
  dataPath: DataPath,
  lease: OwnLease,
  repairs: RepairLog,
  tellGone: GoneLog,
  { beside, signal }: { readonly beside: () => Promise<unknown>; readonly signal: AbortSignal },
): Promise<void> {
  const { log, possession } = node
  let fault: Error | undefined
  const onFault = (error: Error): void => {
    fault = error
    possession.doubt.ring()
  }
  void dataPath.fault.then(onFault, onFault)
  const calm = seldom(log)
  let isCalm = false
  let triedAt = -Infinity
  let besideAt = -Infinity
  let renewing: Promise<void> | undefined
  for (;;) {
    const rang = await possession.doubt.wait(signal, isCalm ? CALM_MS : RESYNC_MS)
    if (possession.dataPath !== dataPath) return // it was closed for another process
    if (possession.state.is === 'lent') continue // it is that one's to mend
    if (fault) {
      log.error(`The data path stopped: ${messageOf(fault)}. Opening it again.`)
      return await renewing // what prepares for it has done so
    }
    if (node.lease.key !== lease.key) return await renewing
    isCalm = false
    try {
      const mended = await withLatePromise(LATE_MS, (late) => dataPath.resync(late))
      const gone = dataPath.gone?.() ?? {}
      tellGone(gone)
      for (const each of mended) repairs.add(each)
      // After a report another may have been missed, such as while `ip monitor` was started again.
      // A missing address is given up only after it has been missing for a while.
      isCalm = !rang && mended.length === 0 && familiesOf(gone).length === 0
    } catch (error) {
      signal.throwIfAborted()
      calm.error(`Cannot check the device: ${describeError(error)}`)
    }
    // A node that moved, and came back before this loop looked, has the path that it had, and peers as of the other place.
    const isAsElsewhere = node.ownApplied !== undefined && node.ownApplied !== lease.key
    if (node.unapplied || isAsElsewhere) await applyPeers(node, new Set())
    // A family that cannot be opened, or dies again, changes the host each time, which is reported: it is not tried again for that.
    if (dataPath.isOutdated && !renewing && performance.now() - triedAt >= RESYNC_MS) {
      triedAt = performance.now()
      renewing = renew(node, dataPath, calm).finally(() => (renewing = undefined))
      renewing.catch(() => {}) // of a stop, which ends this too
    }
    // One family that takes its time to be opened does not keep the other from being looked after.
    await withLatePromise(LATE_MS, (late) => Promise.race([renewing, late]))
    isCalm &&= !node.unapplied && !dataPath.unreported && !dataPath.isOutdated
    // Starting and ending containers change the host all the time, so `beside` is called at most once per RESYNC_MS.
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

/** Says of an address of the external interface that it is gone, and that it is no longer so. */
function createGoneLog(log: Log): GoneLog {
  let before: ByFamily<string> = {}
  return (gone) => {
    for (const family of FAMILIES) {
      const [was, is] = [before[family], gone[family]]
      const name = FAMILY_NAMES[family]
      if (is !== undefined && is !== was)
        log.warn(`${is}: by ${name} nothing passes between this node and others until it is back, or there is another`)
      if (is === undefined && was !== undefined) log.info(`The external interface has an address of ${name} again`)
    }
    before = gone
  }
}

/** Has the data path go on as the host is now: families that it lacks are opened, the other one is left as it is. */
async function renew(node: Forwarding, dataPath: DataPath, log: Log): Promise<void> {
  try {
    await prepareAgain(node)
    await dataPath.renew?.(node.attrs)
  } catch (error) {
    node.signal.throwIfAborted()
    log.error(`Cannot open the data path: ${describeError(error)}`)
  }
  // By which way a peer is reached may be another matter now, and so whom to ask whether it answers.
  if (!dataPath.isOutdated) await applyPeers(node)
}
