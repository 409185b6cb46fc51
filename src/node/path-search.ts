// path-search.ts - finds the longest packet that reaches each peer where routers drop longer ones and say nothing, and has the
// data path go by it. Only where the data path asks for that.

import type { DataPath, PathPeer } from '../backend/backend.ts'
import { createPathSearch, type PathSearch, type SearchedPeer } from '../dataplane/path-search.ts'
import { messageOf } from '../errors.ts'
import { pause } from '../host/bell.ts'
import type { Echo } from '../host/echo.ts'
import type { Probed } from '../status/probes.ts'
import { takeUnseen, type Node } from './node.ts'
import { FORBIDDEN, forGood, send } from './probes.ts'

/** Between two looks at who is due. */
const TICK_MS = 1_000
/** How often it is looked whether the data path has other peers, though nobody gave it any, where it may. */
const KEEP_MS = 10_000

/** What is asked of a peer's path; nothing where nobody answers. */
function searchedOf(peer: PathPeer | undefined): Omit<SearchedPeer, 'key'> | undefined {
  return peer?.probe === undefined ? undefined : { endpoint: peer.endpoint, address: peer.probe }
}

export async function searchPaths(node: Node): Promise<never> {
  const { log, signal, openEcho } = node
  if (!openEcho) return forGood(signal)
  /** Of the data path that it began with. */
  let running: { readonly dataPath: DataPath; readonly echo: Echo; readonly search: PathSearch } | undefined
  let limits: ReadonlyMap<string, number> = new Map()
  /** What the peers answered to small requests, as it was when it was first asked for in this tick. */
  let probed: ReadonlyMap<string, Probed> | undefined
  let keptAt = -Infinity
  try {
    for (;;) {
      await pause(signal, TICK_MS)
      probed = undefined
      const { dataPath } = node.possession
      if (!running || running.dataPath !== dataPath) {
        running?.echo.close()
        running = undefined
        if (!dataPath?.pathSearch || dataPath.probeSource === undefined) continue
        const { pathSearch } = dataPath
        // One that does not answer has no path that could be looked at.
        const isSilent = (key: string): boolean => (probed ??= node.probes?.results())?.get(key)?.isAnswering === false
        const search = createPathSearch(
          pathSearch.overhead,
          (key) => (isSilent(key) ? undefined : pathSearch.knownMtu(key)),
          Math.random,
        )
        try {
          const echo = openEcho(dataPath.probeSource, (from, sequence) =>
            search.answered(sequence, from, performance.now()),
          )
          running = { dataPath, echo, search }
        } catch (error) {
          if (!FORBIDDEN.has((error as NodeJS.ErrnoException).code)) continue // the address may not be there yet
          log.warn(
            `"ProbePathMTU" is passed over (${messageOf(error)}): it takes net.ipv4.ping_group_range to include the group of ` +
              'weftd, or CAP_NET_RAW',
          )
          return await forGood(signal)
        }
        limits = new Map()
        keptAt = -Infinity
      }
      const { echo, search } = running
      const now = performance.now()
      const unseen = takeUnseen(node.unsearched)
      if (unseen && dataPath?.peer && keptAt !== -Infinity) {
        for (const key of unseen) search.look(key, searchedOf(dataPath.peer(key)), now)
      } else if (!unseen || unseen.size > 0 || now - keptAt > KEEP_MS) {
        keptAt = now
        const peers = dataPath?.peers() ?? []
        search.keep(
          peers.flatMap((peer) => {
            const searched = searchedOf(peer)
            return searched ? [{ key: peer.key, ...searched }] : []
          }),
          now,
        )
      }
      for (const { address, sequence, bytes } of search.due(now)) send(echo, address, sequence, bytes)
      const found = search.limits()
      const changed = [...new Set([...limits.keys(), ...found.keys()])].filter(
        (key) => limits.get(key) !== found.get(key),
      )
      limits = found
      if (changed.length === 0) continue
      dataPath?.pathSearch?.limit(found)
      for (const key of changed) {
        const bytes = found.get(key)
        if (bytes === undefined) log.info(`No packet is too long for the path to ${key} any more`)
        else
          log.warn(
            `Packets of more than ${bytes} bytes do not reach ${key}, and nobody on the way says so: shorter ones are sent`,
          )
      }
    }
  } finally {
    running?.echo.close()
  }
}
