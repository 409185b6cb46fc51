// underlays.ts - the loop that chooses the underlay family (IPv4 or IPv6) of each dual-stack peer. It probes these
// peers over both families. If a peer does not answer over one family, the loop moves the peer to the second family
// (underlay-choice.ts).

import { pause } from '../../host/bell.ts'
import type { Echo } from '../../host/echo.ts'
import { FAMILIES, FAMILY_NAMES, familyOf, formatAddress, formatNet, type Address } from '../../net/address.ts'
import type { PathPeer, Underlays } from '../../path/contract.ts'
import type { DataPaths } from '../data-paths.ts'
import { touch, type Node } from '../node.ts'
import type { ProbeSchedule, Target } from './probe-schedule.ts'
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
      const { underlays, probes, echoes } = probing
      const now = performance.now()
      const targets = targetsOf(probing)
      const keys = new Set(targets.map(({ key }) => key))
      choices.keep((key) => keys.has(key))
      // The peers that use the family `other` now. Compare with these peers, not with the last choices. A peer that was
      // removed and added again uses the preferred family. A peer that weftd could not probe for a while may still use
      // the family `other`.
      const before = new Set(underlays.others())
      choices.assume([...before].filter((key) => keys.has(key)))
      for (const which of BOTH) {
        probes[which].keep(targets, now)
        for (const { key, address, sequence } of probes[which].due(now))
          underlays.send(key, underlays[which], echoes[which].packet(address, sequence, underlays[which]))
      }
      wakeByOther(probes, now)
      // weftd probes silent peers less often. If such a peer answers a probe through the tunnel, its host runs, so
      // probe it over both underlay families at the usual interval again.
      for (const key of probes.first.resting())
        if (FAMILIES.some((family) => node.probes?.[family]?.result(key)?.isAnswering))
          for (const which of BOTH) probes[which].wake(key, now)
      // After a lost probe over one family, also probe over the second family, which shows whether the peer is down.
      for (const which of BOTH) for (const key of probes[which].takeDoubted()) probes[otherThan(which)].soon(key, now)
      for (const { key } of targets) {
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

function sourceOf(dataPath: DataPaths | undefined): Address | undefined {
  const { ipv4, ipv6 } = (dataPath?.underlays && dataPath.probeSource) ?? {}
  return ipv4 ?? ipv6
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
    return { dataPath, underlays, source, echoes: { first, other: open('other') }, probes }
  } catch {
    first?.close()
    return undefined
  }
}

/** Returns the peers that can be reached over both families, each with its inner address. */
function targetsOf({ dataPath, underlays, source }: Probing): Target[] {
  const family = familyOf(source)
  const probeOf = (peer: PathPeer): Address | undefined => peer[family]?.probe
  return dataPath.peers().flatMap((peer) => {
    const address = probeOf(peer)
    return address !== undefined && underlays.has(peer.key) ? [{ key: peer.key, address }] : []
  })
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
