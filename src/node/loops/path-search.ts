// path-search.ts - the loop that finds the longest packet that reaches each peer, over each inner family, with echo
// requests of different lengths. Some routers drop long packets without an ICMP error. If the network configuration
// requests it, the data path then sends no packet that is longer than the longest packet that reaches the peer.

import { messageOf } from '../../base/errors.ts'
import { pause } from '../../host/bell.ts'
import type { Echo } from '../../host/echo.ts'
import { FAMILIES, type Address, type Family } from '../../net/address.ts'
import { isBackendType, overheadBy } from '../../path/catalog.ts'
import type { PathPeer } from '../../path/contract.ts'
import type { DataPaths } from '../data-paths.ts'
import { takeUnseen, type Node } from '../node.ts'
import { PathSearch, type SearchedPeer } from './path-lengths.ts'
import { FORBIDDEN, forGood, send } from './probes.ts'

/** The interval in ms at which weftd sends the requests that are due. */
const TICK_MS = 1_000
/**
 * The interval in ms at which weftd reads all peers of a data path that cannot return single peers. After each change
 * of a peer weftd reads all peers of such a data path too.
 */
const KEEP_MS = 10_000

/** Returns a peer's addresses for the search over a family; undefined if the peer has no address to probe. */
function searchedOf(peer: PathPeer | undefined, family: Family): Omit<SearchedPeer, 'key'> | undefined {
  const { endpoint = '', probe } = peer?.[family] ?? {}
  return probe === undefined ? undefined : { endpoint, address: probe }
}

interface Searching {
  readonly family: Family
  isForbidden: boolean
  /** The running search, with the data path, the source address and the MTU for which it was started. */
  running:
    | {
        readonly dataPath: DataPaths
        readonly source: Address
        readonly mtu: number
        readonly echo: Echo
        readonly search: PathSearch
      }
    | undefined
  /** The time when all peers were last passed to the search, in ms of performance.now(). */
  keptAt: number
  /** The maximum packet lengths, by lease key, that the data path uses now. */
  limits: ReadonlyMap<string, number>
  /** The result of the search from which `limits` was made; undefined if there is none. */
  found: ReadonlyMap<string, number> | undefined
  /** The time when `limits` was made, in ms of performance.now(). */
  limitedAt: number
}

export async function searchPaths(node: Node): Promise<never> {
  const { signal, openEcho, options } = node
  if (!openEcho) return forGood(signal)
  const fresh = { keptAt: -Infinity, limits: new Map(), found: undefined, limitedAt: -Infinity }
  const nothing = { isForbidden: false, running: undefined, ...fresh }
  const searchings = FAMILIES.map((family): Searching => ({ family, ...nothing }))
  try {
    for (;;) {
      await pause(signal, TICK_MS)
      const { dataPath } = node.ownership
      // With `--probe-interval 0` weftd searches for the longest packet only if the data path needs the results.
      const isWanted = options['probe-interval'] > 0 || dataPath?.pathSearch?.limit !== undefined
      for (const searching of searchings) openFor(searching, isWanted ? dataPath : undefined, node)
      const open = searchings.flatMap((searching) => (searching.running ? [{ ...searching.running, searching }] : []))
      node.lengths = Object.fromEntries(open.map(({ search, searching }) => [searching.family, search]))
      if (open.length === 0) continue
      const now = performance.now()
      const unseen = takeUnseen(node.unsearched)
      for (const { search, echo, searching } of open) {
        look(searching, search, unseen, now)
        for (const { address, sequence, bytes } of search.due(now)) send(echo, address, sequence, bytes)
        limit(searching, search, node)
      }
    }
  } finally {
    for (const { running } of searchings) running?.echo.close()
  }
}

/**
 * Starts a new search if the data path, its address or its MTU has changed. Ends the search if there is no data path or
 * no address.
 */
function openFor(searching: Searching, dataPath: DataPaths | undefined, node: Node): void {
  const { family, running: before } = searching
  const { config, openEcho, log } = node
  const source = dataPath?.probeSource[family]
  if (before && before.dataPath === dataPath && before.source === source && before.mtu === dataPath.mtu) return
  before?.echo.close()
  // If the search ends but the data path stays open, remove the limits of packet lengths that the search set.
  if (before?.dataPath === dataPath && searching.limits.size > 0) dataPath?.pathSearch?.limit?.(new Map(), family)
  searching.running = undefined
  if (!dataPath || source === undefined || !openEcho || searching.isForbidden) return
  const { mtu } = dataPath
  const isSilent = (key: string): boolean => node.probes?.[family]?.result(key)?.isAnswering === false
  const search = new PathSearch(
    dataPath.pathSearch?.overhead ?? overheadOf(config.backendType, family),
    mtu,
    // Do not search the path of a peer that does not answer.
    (key) => (isSilent(key) ? undefined : (dataPath.pathSearch?.knownMtu(key, family) ?? mtu)),
    Math.random,
  )
  try {
    const echo = openEcho(source, (from, sequence) => search.answered(sequence, from, performance.now()))
    const running = { dataPath, source, mtu, echo, search }
    Object.assign(searching, { running, keptAt: -Infinity, limits: new Map(), found: undefined })
  } catch (error) {
    if (!FORBIDDEN.has((error as NodeJS.ErrnoException).code)) return // the address may not exist yet
    searching.isForbidden = true
    if (!dataPath.pathSearch?.limit) return // probes.ts logs this error
    log.warn(
      `"ProbePathMTU" is ignored (${messageOf(error)}): it needs a net.ipv4.ping_group_range that includes the group of ` +
        'weftd, or CAP_NET_RAW',
    )
  }
}

/** Passes the changed peers to the search, and all peers every KEEP_MS. */
function look(searching: Searching, search: PathSearch, unseen: ReadonlySet<string> | undefined, now: number): void {
  const { family, keptAt, running } = searching
  const dataPath = running?.dataPath
  if (unseen && dataPath?.peer && keptAt !== -Infinity) {
    for (const key of unseen) search.look(key, searchedOf(dataPath.peer(key), family), now)
  } else if (!unseen || unseen.size > 0 || now - keptAt > KEEP_MS) {
    searching.keptAt = now
    search.keep(
      (dataPath?.peers() ?? []).flatMap((peer) => {
        const searched = searchedOf(peer, family)
        return searched ? [{ key: peer.key, ...searched }] : []
      }),
      now,
    )
  }
}

/**
 * Passes the maximum packet lengths that the search found to the data path, if the data path uses them. A peer with a
 * direct route has no limit.
 */
function limit(searching: Searching, search: PathSearch, { log }: Node): void {
  const { pathSearch } = searching.running?.dataPath ?? {}
  if (!pathSearch?.limit) return
  const { limits, family } = searching
  const all = search.limits()
  // If the whole underlay is narrow, every peer has a limit. `knownMtu` makes several system calls for each peer. So
  // weftd checks only every KEEP_MS which peers now have a direct route.
  if (all === searching.found && performance.now() - searching.limitedAt < KEEP_MS) return
  searching.found = all
  searching.limitedAt = performance.now()
  const found = new Map([...all].filter(([key]) => pathSearch.knownMtu(key, family) !== undefined))
  const changed = [...new Set([...limits.keys(), ...found.keys()])].filter((key) => limits.get(key) !== found.get(key))
  searching.limits = found
  if (changed.length === 0) return
  pathSearch.limit(found, family)
  for (const key of changed) {
    const bytes = found.get(key)
    if (bytes === undefined) log.info(`No packet is too long for the path to ${key} any more`)
    else
      log.warn(
        `Packets of more than ${bytes} bytes do not reach ${key}, and no router on the path reports it: weftd sends shorter ones`,
      )
  }
}

const overheadOf = (type: string, family: Family): number => (isBackendType(type) ? overheadBy(type, family) : 0)
