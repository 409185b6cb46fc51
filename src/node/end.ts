// end.ts - what becomes of a node when its process ends: its data path stays for the next process, or nothing of it does.

import { messageOf } from '../errors.ts'
import { Superseded } from '../restart/predecessor.ts'
import { removeLastKnown } from '../restart/last-known.ts'
import { writeKnown } from './last-known.ts'
import type { Node } from './node.ts'
import { leaveDataPath } from './possession.ts'

/** For the store to take the lease back. */
const RELEASE_MS = 3_000

/** What becomes of the data path when the process ends for `reason`: it stays for the next process, or nothing does. */
export async function endDataPath(node: Node, reason: unknown): Promise<void> {
  const { next, notifier, log } = node
  if (reason instanceof Superseded && reason.how === 'leave') return leaveNetwork(node)
  if (!node.lent && !next) return node.inTurn(async () => node.dataPath?.close())
  await leaveDataPath(
    () => node,
    (path) => writeKnown(node, path),
    notifier,
    log,
  )
}

async function leaveNetwork(node: Node): Promise<void> {
  const { next, manager, config, lease, log } = node
  await node.inTurn(async () => node.dataPath?.close())
  if (next) await removeLastKnown(next.lastKnown)
  const holder = manager.holder(config)
  if (!holder.release) return log.info('This node has left; its lease ends with the node of the cluster')
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(new Error(`no answer within ${RELEASE_MS / 1000} s`)), RELEASE_MS)
  try {
    await holder.release(lease, late.signal)
    log.info('This node has left the network')
  } catch (error) {
    log.error(`The lease cannot be given back, and ends by itself: ${messageOf(error)}`)
  } finally {
    clearTimeout(timer)
  }
}
