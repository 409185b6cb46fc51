// give-back.ts - some time after the start, returns to the kernel the memory that weftd needed only for its start.

import { createBell, pause } from '../../host/bell.ts'
import type { Node } from '../node.ts'

/**
 * The time in ms after the start at which weftd returns memory to the kernel. By then the node has sent its first
 * probes, and each loop has run once.
 */
export const SETTLED_MS = 20_000

export async function giveBack({ giveBackMemory, signal }: Node): Promise<never> {
  await pause(signal, SETTLED_MS)
  giveBackMemory?.()
  for (;;) await createBell().wait(signal)
}
