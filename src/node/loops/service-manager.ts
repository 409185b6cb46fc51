// service-manager.ts - keeps the service manager told how the node is, and its watchdog from restarting us.

import { pause } from '../../host/bell.ts'
import { summaryOf } from '../../report/snapshot.ts'
import { hungThread } from '../../report/threads.ts'
import { RESYNC_MS, type Node } from '../node.ts'
import { snapshotOf } from '../report.ts'
import { LOOK_MS } from './threads.ts'

export async function tellManager(node: Node): Promise<never> {
  const { notifier, signal } = node
  for (;;) {
    const ready = node.isReady || node.pastPath.length === 0
    notifier?.report({ ready, status: summaryOf(snapshotOf(node)) })
    await pause(signal, LOOK_MS)
  }
}

/**
 * The watchdog is served for this event loop and the threads that forward, and for nothing that a restart cannot mend:
 * not the store, not a device that cannot be opened.
 */
export async function serveWatchdog(node: Node): Promise<never> {
  const { notifier, signal } = node
  for (;;) {
    await pause(signal, notifier?.aliveMs ?? RESYNC_MS)
    if (notifier?.aliveMs !== undefined && !hungThread(node.threads)) notifier.alive()
  }
}
