// data-path.ts - keeps the data path: the device is mended, and all opened again when it died or the node moved.

import { describeError, messageOf } from '../errors.ts'
import type { DataPath } from '../backend/backend.ts'
import { pause } from '../host/bell.ts'
import { watchHost } from '../host/events.ts'
import { leasesEqual, type OwnLease } from '../lease/lease.ts'
import { seldom } from '../log.ts'
import { RESYNC_MS, type Node } from './node.ts'
import { applyPeers } from './peers.ts'
import { untilOurs } from './possession.ts'
import { createRepairLog, type RepairLog } from './repairs.ts'
import { publish } from './subnet-env.ts'

const REOPEN_RETRY_MS = 1_000
/** What the kernel reports comes in bursts: looked at once in so long, which leaves room within a second. */
const SETTLE_MS = 200
/** Looks when all was right at the last one, and nothing was reported since: in case a report was lost. */
const CALM_MS = 30_000
/** With more repairs a minute somebody undoes them: then the device is looked at every RESYNC_MS only. */
const REPAIRS_A_MINUTE = 60

/** What forwards, and what it is opened with: a node, or what goes on as last known before there is one. */
export type Forwarding = Pick<Node, 'possession' | 'backend' | 'next' | 'log' | 'signal' | 'lease' | 'attrs' | 'view'> &
  Pick<Node, 'isUnapplied' | 'repaired' | 'leaseDoubt' | 'learnt' | 'unprobed' | 'unsearched'>

export const keepDataPath = (node: Node): Promise<never> => keepForwarding(node, () => publish(node))

/** Calls `moved` when the data path was opened for another lease or MTU. */
export async function keepForwarding(node: Forwarding, moved: () => Promise<void>): Promise<never> {
  const { possession, backend, log, signal } = node
  let { lease } = node
  const openMtu = (): number | undefined => possession.dataPath?.mtu
  let mtu = openMtu()
  let diedYoung = 0
  const repairs = createRepairLog(node, node.log)
  for (;;) {
    const openedAt = performance.now()
    await keepRight(node, lease, repairs)
    // A data path that dies as soon as it is opened, and again, must not be opened in a tight loop.
    diedYoung = performance.now() - openedAt < REOPEN_RETRY_MS ? diedYoung + 1 : 0
    const before = { lease, mtu }
    const calm = seldom(log)
    await untilOurs(possession, signal)
    // What it cannot close is for whoever opens the next to deal with.
    await possession
      .close()
      .catch((error: unknown) => calm.error(`Cannot close the data path: ${describeError(error)}`))
    if (diedYoung > 1) await pause(signal, REOPEN_RETRY_MS)
    while (openMtu() === undefined) {
      await untilOurs(possession, signal)
      try {
        node.attrs = await backend.prepare(signal)
        if (!leasesEqual(node.lease, { ...node.lease, attrs: node.attrs })) node.leaseDoubt.ring() // peers have to know
        await possession.open(() => {
          lease = node.lease
          return backend.open({ ...lease, attrs: node.attrs }, signal, node.view)
        })
        mtu = openMtu()
      } catch (error) {
        signal.throwIfAborted()
        calm.error(`Cannot open the data path: ${describeError(error)}`)
        await pause(signal, REOPEN_RETRY_MS)
      }
    }
    await applyPeers(node)
    node.learnt.ring()
    if (lease.key !== before.lease.key || mtu !== before.mtu) await moved()
  }
}

/** Mends what others changed of the device, until the data path must be opened again: it died, or the node moved. */
async function keepRight(node: Forwarding, lease: OwnLease, repairs: RepairLog): Promise<void> {
  const { log, signal, possession } = node
  const { dataPath } = possession
  if (!dataPath) return
  const ended = new AbortController()
  const until = AbortSignal.any([signal, ended.signal])
  const ring = (): void => possession.doubt.ring()
  const watching = dataPath.watched && watchHost(ring, log, until, dataPath.watched)
  try {
    return await lookAfter(node, dataPath, lease, repairs)
  } finally {
    ended.abort()
    await watching
  }
}

async function lookAfter(node: Forwarding, dataPath: DataPath, lease: OwnLease, repairs: RepairLog): Promise<void> {
  const { log, signal, possession } = node
  let fault: Error | undefined
  const onFault = (error: Error): void => {
    fault = error
    possession.doubt.ring()
  }
  void dataPath.fault.then(onFault, onFault)
  const calm = seldom(log)
  let isCalm = false
  for (;;) {
    const rang = await possession.doubt.wait(signal, isCalm ? CALM_MS : RESYNC_MS)
    if (possession.dataPath !== dataPath) return // it was closed for another process
    if (possession.state.is === 'lent') continue // it is that one's to mend
    if (fault) return log.error(`The data path stopped: ${messageOf(fault)}. Opening it again.`)
    if (node.lease.key !== lease.key) return
    isCalm = false
    try {
      const mended = await dataPath.resync()
      for (const each of mended) repairs.add(each)
      if (node.isUnapplied) await applyPeers(node)
      // After a report another may have been missed, such as while `ip monitor` was started again.
      isCalm = !rang && mended.length === 0 && !node.isUnapplied && !dataPath.unreported
    } catch (error) {
      signal.throwIfAborted()
      calm.error(`Cannot check the device: ${describeError(error)}`)
    }
    await pause(signal, repairs.lastMinute() < REPAIRS_A_MINUTE ? SETTLE_MS : RESYNC_MS)
  }
}
