// service-manager.ts - the loop that reports the node's state to the service manager, and sends the keep-alive messages
// that the service manager's watchdog expects.

import { pause } from '../../host/bell.ts'
import { summaryOf } from '../../report/snapshot.ts'
import { hungThread } from '../../report/threads.ts'
import { RESYNC_MS, type Node } from '../node.ts'
import { snapshotOf } from '../report.ts'
import { LOOK_MS } from './threads.ts'

export async function reportToManager(node: Node): Promise<never> {
  const { notifier, signal } = node
  for (;;) {
    const ready = node.isReady || node.pastPath.length === 0
    notifier?.report({ ready, status: summaryOf(snapshotOf(node)) })
    await pause(signal, LOOK_MS)
  }
}

/**
 * Sends keep-alive messages while this event loop runs and no forwarding thread hangs. Other faults, such as an
 * unreachable store or a device that cannot be opened, do not stop the messages, because a restart would not help.
 */
export async function serveWatchdog(node: Node): Promise<never> {
  const { notifier, signal } = node
  // This message also ends those of `aliveMeanwhile`, which would continue while a thread hangs.
  if (notifier?.aliveMs !== undefined) notifier.alive()
  for (;;) {
    await pause(signal, notifier?.aliveMs ?? RESYNC_MS)
    if (notifier?.aliveMs !== undefined && !hungThread(node.threads)) notifier.alive()
  }
}
