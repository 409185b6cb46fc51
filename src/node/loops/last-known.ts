// last-known.ts - keeps the file of what this node knows, for the process after it.

import { messageOf } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import { withoutSecrets } from '../../control/config/hidden.ts'
import { pause } from '../../host/bell.ts'
import { eventsFile, interfaceWishes, type DaemonOptions } from '../../options.ts'
import type { Next, Node } from '../node.ts'
import { lastKnownFile, removeLastKnown, storeNameOf, writeLastKnown } from '../restart/last-known.ts'

/** Between two writes, and for each lease besides: with 10,000 peers the file has a megabyte, and some of them always change. */
const REST_MS = 200
const REST_MS_A_LEASE = 1

/** The facts that the next process is told. */
export type Knowing = Pick<Node, 'next' | 'lease' | 'attrs' | 'view' | 'possession'> & {
  readonly backend?: Pick<Node['backend'], 'external' | 'withdraw'>
}

/** Undefined where nothing is to outlive this process. */
export function nextFor(options: DaemonOptions, config: string, free = Promise.resolve()): Next | undefined {
  if (!options.persist) return undefined
  const files = { lastKnown: lastKnownFile(options), events: eventsFile(options) }
  const wishes = wishesText(options)
  return { config: withoutSecrets(config), store: storeNameOf(options), wishes, ...files, free }
}

/** Returns the flags about the external interface as text, for comparison with those of another process. */
export const wishesText = (options: DaemonOptions): string => JSON.stringify(interfaceWishes(options))

const turns = new WeakMap<Knowing, Promise<void>>()

/**
 * Writes what is known, and with it the descriptions of paths that stay open elsewhere. Writes come one after another:
 * the last one is to stand in the file. Rejects with the file system's error.
 */
export function writeKnown(node: Knowing, paths?: unknown): Promise<void> {
  const turn = (turns.get(node) ?? Promise.resolve()).then(() => write(node, paths))
  turns.set(
    node,
    turn.catch(() => {}),
  )
  return turn
}

async function write(
  { next, lease, attrs, view, backend, possession: { dataPath } }: Knowing,
  paths: unknown,
): Promise<void> {
  // While a data path that died is opened again, what was known of it stays for a process that starts then.
  if (!next || !dataPath) return
  const { tunNames } = dataPath
  // A data path that the kernel carries goes on by itself.
  const isForCleanup = tunNames === undefined && backend?.withdraw !== undefined
  if (tunNames === undefined && !isForCleanup) return removeLastKnown(next.lastKnown)
  const { store, config, wishes } = next
  await writeLastKnown(next.lastKnown, {
    store,
    config,
    wishes,
    tunNames: tunNames ?? [],
    ...(isForCleanup ? { isForCleanup } : {}),
    paths,
    others: dataPath.underlays?.others(),
    external: backend?.external,
    lease: { ...lease, attrs },
    expiresAt: lease.expiresAt,
    leases: view.values(),
  })
}

export async function keepLastKnown(node: Node): Promise<never> {
  const calm = seldom(node.log)
  for (;;) {
    await node.learnt.wait(node.signal)
    await writeKnown(node).catch((error: unknown) =>
      calm.warn(`Cannot write what is known for the next start: ${messageOf(error)}`),
    )
    await pause(node.signal, REST_MS + REST_MS_A_LEASE * node.view.size)
  }
}
