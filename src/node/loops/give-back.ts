// give-back.ts - gives back the memory that the start alone needed, once the node has settled.

import { createBell, pause } from '../../host/bell.ts'
import type { Node } from '../node.ts'

/** Peers were asked by then, and what is done again and again was done for the first time. */
export const SETTLED_MS = 20_000

export async function giveBack({ giveBackMemory, signal }: Node): Promise<never> {
  await pause(signal, SETTLED_MS)
  giveBackMemory?.()
  for (;;) await createBell().wait(signal)
}
