// run-loops.ts - runs the loops of a node until it stops.

import { describeError } from '../base/errors.ts'
import { pause } from '../host/bell.ts'
import type { Node } from './node.ts'

/** A loop of a node. It runs until the stop signal, and ends by throwing. */
export type Loop = (node: Node) => Promise<never>

/** The first pause in ms before weftd starts a failed loop that only observes; RESTART_MAX_MS is the longest pause. */
const RESTART_MS = 1_000
const RESTART_MAX_MS = 60_000

/**
 * Runs the loops. Never resolves; rejects with the reason of the stop when all loops have ended. If an essential loop
 * fails, the node stops. If a loop of `observing` fails, weftd starts the loop again.
 */
export async function runLoops(node: Node, essential: readonly Loop[], observing: readonly Loop[]): Promise<never> {
  const { stopping } = node
  node.isRunning = true
  const all = [...essential, ...observing.map((loop) => restarted(loop))]
  await Promise.allSettled(all.map((loop) => loop(node).catch((error: unknown) => stopping.abort(error))))
  throw stopping.signal.reason
}

/**
 * Waits for a step of the start that only observes and warns. If the step fails, logs the failure and continues, as
 * after a failure of an observing loop.
 */
export const observed = (step: Promise<void>, { log, signal }: Pick<Node, 'log' | 'signal'>): Promise<void> =>
  step.catch((error: unknown) => {
    signal.throwIfAborted()
    log.error(`A check of this host failed, and the start goes on: ${describeError(error)}`)
  })

/**
 * Returns a loop that starts `loop` again after a failure, each time after a longer pause. If `loop` ran for a long
 * time before it failed, the pause is the shortest one again.
 */
const restarted =
  (loop: Loop): Loop =>
  async (node) => {
    const { log, signal } = node
    for (let pauseMs = RESTART_MS; ; pauseMs = Math.min(2 * pauseMs, RESTART_MAX_MS)) {
      const began = performance.now()
      try {
        return await loop(node)
      } catch (error) {
        signal.throwIfAborted()
        if (performance.now() - began > RESTART_MAX_MS) pauseMs = RESTART_MS
        log.error(
          `The loop ${loop.name} failed; packets still pass, and it starts again in ${pauseMs / 1000} s: ${describeError(error)}`,
        )
      }
      await pause(signal, pauseMs)
    }
  }
