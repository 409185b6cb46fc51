// underlays.ts - the loop that chooses the underlay family (IPv4 or IPv6) of each dual-stack peer. It probes these
// peers over both families. If a peer does not answer over one family, the loop moves the peer to the second family
// (underlay-choice.ts).

import { pause } from '../../host/bell.ts'
import type { Echo } from '../../host/echo.ts'
import { FAMILIES, FAMILY_NAMES, familyOf, formatAddress, formatNet, type Address } from '../../net/address.ts'
import type { PathPeer, Underlays } from '../../path/contract.ts'
import type { DataPaths } from '../data-paths.ts'
import { takeUnseen, touch, type Node } from '../node.ts'
import type { ProbeSchedule } from './probe-schedule.ts'
import { forGood } from './probes.ts'
import {
  createUnderlayChoices,
  createUnderlayProbes,
  otherThan,
  wakeByOther,
  type Underlay,
} from './underlay-choice.ts'

/** The interval in ms at which weftd sends the probes that are due. */
const TICK_MS = 1_000
/** The interval in ms at which weftd reads all peers of the data path; in between it reads only the changed peers. */
const KEEP_MS = 10_000
const BOTH = ['first', 'other'] as const

interface Probing {
  readonly dataPath: DataPaths
  readonly underlays: Underlays
  /**
   * The inner source address of the probes. One inner family is enough, because both inner families use the same
   * underlay.
   */
  readonly source: Address
  readonly echoes: Readonly<Record<Underlay, Echo>>
  readonly probes: Readonly<Record<Underlay, ProbeSchedule>>
  /** The inner address of each peer that this host reaches over both families, by lease key. */
  readonly targets: Map<string, Address>
  /** The time when weftd last read all peers of the data path, in ms of performance.now(). */
  keptAt: number
}

export async function chooseUnderlays(node: Node): Promise<never> {
  const { signal, openEcho, options } = node
  const everyMs = options['probe-interval'] * 1000
  if (!openEcho || everyMs === 0) {
    // If weftd sends no probes, undo the choices of the previous process. Otherwise these choices would stay even if a
    // chosen family stopped working.
    const { underlays } = node.ownership.dataPath ?? {}
    for (const key of underlays?.others() ?? []) underlays?.choose(key, underlays.first)
    return forGood(signal)
  }
  let probing: Probing | undefined
  const choices = createUnderlayChoices(() => probing?.probes.first.intervalMs() ?? everyMs)
  const close = (): void => {
    for (const which of BOTH) probing?.echoes[which].close()
    probing = undefined
  }
  try {
    for (;;) {
      await pause(signal, TICK_MS)
      const { dataPath } = node.ownership
      const source = sourceOf(dataPath)
      if (probing && (probing.dataPath !== dataPath || probing.source !== source)) close()
      if (!probing && dataPath && source !== undefined) {
        probing = openFor(dataPath, source, everyMs, node)
        // If the data path was opened again, continue with the present choices. For the first data path, continue with
        // the choices of the previous process.
        choices.assume(probing?.underlays.others() ?? [])
        for (const key of probing ? choices.others() : []) dataPath.underlays?.choose(key, dataPath.underlays.other)
      }
      if (!probing) continue
      const { underlays, probes, echoes, targets } = probing
      const now = performance.now()
      const changed = lookAtPeers(probing, takeUnseen(node.unchosen), now)
      if (changed) choices.keep((key) => targets.has(key))
      // The peers that use the family `other` now. Compare with these peers, not with the last choices. A peer that was
      // removed and added again uses the preferred family. A peer that weftd could not probe for a while may still use
      // the family `other`.
      const before = new Set(underlays.others())
      choices.assume([...before].filter((key) => targets.has(key)))
      for (const which of BOTH)
        for (const { key, address, sequence } of probes[which].due(now))
          underlays.send(key, underlays[which], echoes[which].packet(address, sequence, underlays[which]))
      wakeByOther(probes, now)
      // weftd probes silent peers less often. If such a peer answers a probe through the tunnel, its host runs, so
      // probe it over both underlay families at the usual interval again.
      for (const key of probes.first.resting())
        if (FAMILIES.some((family) => node.probes?.[family]?.result(key)?.isAnswering))
          for (const which of BOTH) probes[which].wake(key, now)
      // After a lost probe over one family, also probe over the second family, which shows whether the peer is down.
      for (const which of BOTH) for (const key of probes[which].takeDoubted()) probes[otherThan(which)].soon(key, now)
      // Look only at the peers with a new result, at those whose results were forgotten, and at those that use the family
      // `other` or should use it. All other peers keep the family `first`.
      const news = BOTH.flatMap((which) => [...probes[which].takeNews()])
      for (const key of new Set([...(changed ?? []), ...news, ...before, ...choices.others()])) {
        if (!targets.has(key)) continue
        const answers = { first: probes.first.result(key), other: probes.other.result(key) }
        const by = choices.choose(key, answers, now)
        if (before.has(key) === (by === 'other')) continue
        underlays.choose(key, underlays[by])
        node.learnt.ring()
        // Search for the longest packet again, because the path over the new family may have another MTU.
        touch(node.unsearched, new Set([key]))
        logChoice(key, underlays, by, node)
      }
    }
  } finally {
    close()
  }
}

/** Returns this node's inner address of the first family that the data path carries now. */
function sourceOf(dataPath: DataPaths | undefined): Address | undefined {
  if (!dataPath?.underlays) return undefined
  const { lacking, probeSource } = dataPath
  return FAMILIES.flatMap((family) => (lacking[family] === undefined ? (probeSource[family] ?? []) : []))[0]
}

/**
 * Opens the sockets for probes over both families. Returns undefined if the source address does not exist yet, or if
 * this process may not send echo requests; probes.ts logs these failures.
 */
function openFor(dataPath: DataPaths, source: Address, everyMs: number, { openEcho }: Node): Probing | undefined {
  const { underlays } = dataPath
  if (!underlays || !openEcho) return undefined
  const probes = createUnderlayProbes(everyMs, Math.random)
  const open = (which: Underlay): Echo =>
    openEcho(source, (from, sequence, ms) => probes[which].answered(sequence, from, ms, performance.now()))
  let first: Echo | undefined
  try {
    first = open('first')
    return {
      dataPath,
      underlays,
      source,
      echoes: { first, other: open('other') },
      probes,
      targets: new Map(),
      keptAt: -Infinity,
    }
  } catch {
    first?.close()
    return undefined
  }
}

/**
 * Updates the peers to probe, which are those that this host reaches over both families. Usually reads only the changed
 * peers, `unseen`, because reading thousands of peers each second costs too much. Reads all peers every KEEP_MS,
 * because a new address of this host also changes which peers it reaches. Returns the keys of the peers whose inner
 * address has changed, because their results are forgotten; undefined if weftd read no peer.
 */
function lookAtPeers(
  probing: Probing,
  unseen: ReadonlySet<string> | undefined,
  now: number,
): ReadonlySet<string> | undefined {
  const { dataPath, underlays, source, probes, targets } = probing
  const family = familyOf(source)
  const addressOf = (peer: PathPeer | undefined): Address | undefined =>
    peer && underlays.has(peer.key) ? peer[family]?.probe : undefined
  const changed = new Set<string>()
  const look = (key: string, address: Address | undefined): void => {
    if (targets.get(key) !== address) changed.add(key)
    if (address === undefined) targets.delete(key)
    else targets.set(key, address)
    for (const which of BOTH) probes[which].look(key, address, now)
  }
  const isDue = now - probing.keptAt >= KEEP_MS
  if (unseen && dataPath.peer && !isDue) {
    for (const key of unseen) look(key, addressOf(dataPath.peer(key)))
    return unseen.size > 0 ? changed : undefined
  }
  if (unseen?.size === 0 && !isDue) return undefined
  probing.keptAt = now
  const peers = new Map(dataPath.peers().map((peer) => [peer.key, peer]))
  for (const key of targets.keys()) if (!peers.has(key)) look(key, undefined)
  for (const [key, peer] of peers) look(key, addressOf(peer))
  return changed
}

function logChoice(key: string, underlays: Underlays, by: Underlay, { log, view, memory }: Node): void {
  const [now, before] = [underlays[by], underlays[otherThan(by)]]
  const { subnet, attrs } = view.get(key) ?? {}
  const family = FAMILIES.find((each) => subnet?.[each])
  const [net, to, from] = [family && subnet?.[family], attrs?.publicIp[now], attrs?.publicIp[before]]
  if (!family || !net || to === undefined || from === undefined) return
  const peer = formatNet(net)
  const [publicIp, movedFrom] = [formatAddress(to), formatAddress(from)]
  if (by === 'first') log.info(`${peer} answers over ${FAMILY_NAMES[now]} again, and is reached at ${publicIp}`)
  else
    log.warn(
      `${peer} does not answer at ${movedFrom}, and is reached at ${publicIp}: look at the routes and firewalls for ${FAMILY_NAMES[before]} between ` +
        'the hosts',
    )
  memory?.events.add({
    at: new Date().toISOString(),
    what: 'rerouted',
    peer,
    publicIp,
    family,
    movedFrom,
    afterSeconds: null,
    bytes: null,
    roundTripMs: null,
    usualMs: null,
  })
}
