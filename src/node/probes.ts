// probes.ts - asks the peers whether they answer: an ICMP echo request to each by way of the data path, as `ping` would. Stock
// flannel's hosts answer too, since their kernels do.

import type { DataPath } from '../backend/backend.ts'
import { messageOf } from '../errors.ts'
import { createBell, pause } from '../host/bell.ts'
import type { Echo } from '../host/echo.ts'
import type { Ipv4 } from '../net/ipv4.ts'
import { createProbes } from '../status/probes.ts'
import { takeUnseen, type Node } from './node.ts'

/** Between two looks at who is due. */
const TICK_MS = 1_000
/** How often it is looked whether the data path has other peers, though nobody gave it any, where it may. */
const KEEP_MS = 10_000
/** What the kernel says to those who may not. */
export const FORBIDDEN: ReadonlySet<string | undefined> = new Set(['EPERM', 'EACCES'])

export async function probePeers(node: Node): Promise<never> {
  const { log, signal, openEcho, options } = node
  const everyMs = options['probe-interval'] * 1000
  if (!openEcho || everyMs === 0) return forGood(signal)
  const probes = createProbes(everyMs, Math.random)
  let echo: Echo | undefined
  let source: Ipv4 | undefined
  /** Whose peers are asked. */
  let given: { readonly dataPath?: DataPath | undefined; readonly at: number } = { at: 0 }
  try {
    for (;;) {
      await pause(signal, TICK_MS)
      const { dataPath } = node.possession
      if (dataPath?.probeSource !== source || !echo) {
        echo?.close()
        echo = undefined
        source = dataPath?.probeSource
        if (source === undefined) continue
        try {
          echo = openEcho(source, (from, sequence, roundTripMs) =>
            probes.answered(sequence, from, roundTripMs, performance.now()),
          )
        } catch (error) {
          if (!FORBIDDEN.has((error as NodeJS.ErrnoException).code)) continue // the address may not be there yet
          log.info(
            `Peers are not asked whether they answer (${messageOf(error)}): it takes net.ipv4.ping_group_range to include ` +
              'the group of weftd, or CAP_NET_RAW',
          )
          return await forGood(signal)
        }
      }
      const now = performance.now()
      // Of thousands of peers nothing is to be done each second. A route that was refused may be taken later.
      const isOther = dataPath !== given.dataPath
      const unseen = takeUnseen(node.unprobed)
      if (!isOther && unseen && dataPath?.peer) {
        for (const key of unseen) probes.look(key, dataPath.peer(key)?.probe, now)
      } else if (isOther || !unseen || unseen.size > 0 || now - given.at > KEEP_MS) {
        given = { dataPath, at: now }
        const peers = dataPath?.peers() ?? []
        probes.keep(
          peers.flatMap(({ key, probe }) => (probe === undefined ? [] : [{ key, address: probe }])),
          now,
        )
      }
      for (const { address, sequence } of probes.due(now)) send(echo, address, sequence)
      node.probes = probes
    }
  } finally {
    echo?.close()
  }
}

/** What the kernel does not send is not answered, which is what is told of it. */
export function send(echo: Echo, to: Ipv4, sequence: number, bytes = 0): void {
  try {
    echo.send(to, sequence, bytes)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === undefined) throw error
  }
}

/** Until the stop. */
export async function forGood(signal: AbortSignal): Promise<never> {
  await createBell().wait(signal)
  throw signal.reason
}
