// threads.ts - the loop that checks the threads of the data path, and logs a thread that hangs.

import { pause } from '../../host/bell.ts'
import { hungThread, lookAtThreads } from '../../report/threads.ts'
import type { Node } from '../node.ts'

export const LOOK_MS = 2_000

export async function watchThreads(node: Node): Promise<never> {
  const { log, signal } = node
  for (;;) {
    const before = hungThread(node.threads)
    node.threads = lookAtThreads(node.threads, node.ownership.dataPath?.threads() ?? {}, performance.now())
    const hung = hungThread(node.threads)
    if (hung && hung.name !== before?.name)
      log.error(`The thread ${hung.name} hangs: packets are not forwarded. Only a restart of weftd can help`)
    if (before && !hung) log.warn(`The thread ${before.name} is alive again`)
    node.ownership.dataPath?.look()
    await pause(signal, LOOK_MS)
  }
}
