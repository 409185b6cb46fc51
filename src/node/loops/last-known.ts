// last-known.ts - writes the last known state of this node to a file, so that the next process can forward before it
// queries the store.

import { messageOf } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { FAMILIES, type Family } from '../../net/address.ts'
import type { ForwardingNode, Node } from '../node.ts'
import { removeLastKnown, writeLastKnown } from '../restart/last-known.ts'

/**
 * The pause in ms after each write of the file; REST_MS_A_LEASE is added for each lease. In a network of 10,000 peers
 * some lease changes all the time, and each write of the file writes 1 MB.
 */
const REST_MS = 200
const REST_MS_A_LEASE = 1
/** The pause in ms before weftd tries again to write the file after a failure, such as a full disk. */
const RETRY_MS = 30_000

const turns = new WeakMap<ForwardingNode, Promise<void>>()

/**
 * Writes the last known state to its file. `paths` describes the data paths whose descriptors the service manager
 * keeps. Writes run one after another, so that the file has the newest state. Rejects with the file system's error.
 */
export function writeKnown(node: ForwardingNode, paths?: unknown): Promise<void> {
  const turn = (turns.get(node) ?? Promise.resolve()).then(() => write(node, paths))
  turns.set(
    node,
    turn.catch(() => {}),
  )
  return turn
}

async function write(
  { next, config: network, lease, attrs, view, backend, known, published, ownership: { dataPath } }: ForwardingNode,
  paths: unknown,
): Promise<void> {
  // While the data path is down, the file keeps the previous state, for a process that starts before the data path is
  // up again.
  if (!next || !dataPath) return
  const { tunNames } = dataPath
  // If the kernel carries the packets, it forwards without weftd, so the next process needs no last known state. But if
  // the backend published a route, `weft cleanup` needs the file of the last known state. If the backend made routes
  // through hosts, the file shows the next process which routes weftd made. If subnet.env omits a family, the file shows
  // the next process which network of this family the node had.
  const isPublishing = backend.withdraw !== undefined
  const isOmitted = FAMILIES.some((family) => network[family] && lease.subnet[family] && omits(published, family))
  const isNeeded = isPublishing || backend.routesToHosts === true || isOmitted
  const isForCleanup = tunNames === undefined && isNeeded
  if (tunNames === undefined && !isForCleanup) return removeLastKnown(next.lastKnown)
  const { store, config, wishes } = next
  await writeLastKnown(next.lastKnown, {
    store,
    config,
    wishes,
    tunNames: tunNames ?? [],
    ...(isForCleanup ? { isForCleanup } : {}),
    paths,
    subnetEnv: published ?? known?.subnetEnv,
    others: dataPath.underlays?.others(),
    external: isForCleanup && !isPublishing ? undefined : backend.external,
    lease: { ...lease, attrs },
    expiresAt: lease.expiresAt,
    leases: view.values(),
  })
}

/** Returns true if weftd has written subnet.env, and its text `subnetEnv` has no subnet of the family. */
const omits = (subnetEnv: string | undefined, family: Family): boolean =>
  subnetEnv?.includes(family === 'ipv4' ? 'FLANNEL_SUBNET=' : 'FLANNEL_IPV6_SUBNET=') === false

export async function keepLastKnown(node: Node): Promise<never> {
  const calm = seldom(node.log)
  let isWritten = true
  for (;;) {
    await node.learnt.wait(node.signal, isWritten ? undefined : RETRY_MS)
    if (!node.ownership.isOurs) continue // a successor writes its own state; this process writes again when it takes the path back
    isWritten = await writeKnown(node).then(
      () => true,
      (error: unknown) => {
        calm.warn(`Cannot write the last known state for the next start: ${messageOf(error)}`)
        return false
      },
    )
    await pause(node.signal, REST_MS + REST_MS_A_LEASE * node.view.size)
  }
}
