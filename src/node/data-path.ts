// data-path.ts - keeps the data path: the device is mended, and all opened again when it died or the node moved.

import { describeError, messageOf } from '../errors.ts'
import type { DataPath } from '../backend/backend.ts'
import { pause } from '../host/bell.ts'
import { watchHost } from '../host/events.ts'
import type { OwnLease } from '../lease/lease.ts'
import { seldom } from '../log.ts'
import { RESYNC_MS, type Node } from './node.ts'
import { applyPeers } from './peers.ts'
import { createRepairLog, type RepairLog } from './repairs.ts'
import { publish } from './subnet-env.ts'

const REOPEN_RETRY_MS = 1_000
/** What the kernel reports comes in bursts: looked at once in so long, which leaves room within a second. */
const SETTLE_MS = 200
/** Looks when all was right at the last one, and nothing was reported since: in case a report was lost. */
const CALM_MS = 30_000
/** With more repairs a minute somebody undoes them: then the device is looked at every RESYNC_MS only. */
const REPAIRS_A_MINUTE = 60

export async function keepDataPath(node: Node): Promise<never> {
  const { backend, log, signal } = node
  let { lease } = node
  let mtu = node.dataPath?.mtu
  let diedYoung = 0
  const repairs = createRepairLog(node, node.log)
  for (;;) {
    const openedAt = performance.now()
    await keepRight(node, lease, repairs)
    const { dataPath } = node
    node.dataPath = undefined
    await dataPath?.close()
    // A data path that dies as soon as it is opened, and again, must not be opened in a tight loop.
    diedYoung = performance.now() - openedAt < REOPEN_RETRY_MS ? diedYoung + 1 : 0
    if (diedYoung > 1) await pause(signal, REOPEN_RETRY_MS)
    const before = { lease, mtu }
    const calm = seldom(log)
    while (!node.dataPath) {
      try {
        node.attrs = await backend.prepare(signal)
        if (node.attrs.publicIp !== node.lease.attrs.publicIp) node.leaseDoubt.ring()
        lease = node.lease
        node.dataPath = await backend.open({ ...lease, attrs: node.attrs }, signal, node.view)
        mtu = node.dataPath.mtu
      } catch (error) {
        signal.throwIfAborted()
        calm.error(`Cannot open the data path: ${describeError(error)}`)
        await pause(signal, REOPEN_RETRY_MS)
      }
    }
    await applyPeers(node)
    node.learnt.ring()
    if (lease.key !== before.lease.key || mtu !== before.mtu) await publish(node)
  }
}

/** Mends what others changed of the device, until the data path must be opened again: it died, or the node moved. */
async function keepRight(node: Node, lease: OwnLease, repairs: RepairLog): Promise<void> {
  const { log, signal, dataPath } = node
  if (!dataPath) return
  const ended = new AbortController()
  const until = AbortSignal.any([signal, ended.signal])
  const ring = (): void => node.dataPathDoubt.ring()
  const watching = dataPath.watched && watchHost(ring, log, until, dataPath.watched)
  try {
    return await lookAfter(node, dataPath, lease, repairs)
  } finally {
    ended.abort()
    await watching
  }
}

async function lookAfter(node: Node, dataPath: DataPath, lease: OwnLease, repairs: RepairLog): Promise<void> {
  const { log, signal } = node
  let fault: Error | undefined
  void dataPath.fault.then((error) => {
    fault = error
    node.dataPathDoubt.ring()
  })
  const calm = seldom(log)
  let isCalm = false
  for (;;) {
    const rang = await node.dataPathDoubt.wait(signal, isCalm ? CALM_MS : RESYNC_MS)
    if (node.lent) continue // it is another process's to mend
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
