// underlays.ts - has each peer reached by a family of the network between the hosts by which it answers: asks all that can be reached by
// both, by either, whichever packets go by, and changes the family of those that do not answer (underlay-choice.ts).

import { pause } from '../../host/bell.ts'
import type { Echo } from '../../host/echo.ts'
import { FAMILIES, FAMILY_NAMES, familyOf, formatAddress, formatNet, type Address } from '../../net/address.ts'
import type { DataPath, PathPeer, Underlays } from '../../path/contract.ts'
import { touch, type Node } from '../node.ts'
import type { Probes, Target } from './probe-schedule.ts'
import { forGood } from './probes.ts'
import {
  createUnderlayChoices,
  createUnderlayProbes,
  otherThan,
  wakeByOther,
  type Underlay,
} from './underlay-choice.ts'

/** Between two looks at who is due. */
const TICK_MS = 1_000
const BOTH = ['first', 'other'] as const

/** The asking of the peers of a data path. */
interface Asking {
  readonly dataPath: DataPath
  readonly underlays: Underlays
  /** This host's address inside that is asked from: one is enough, since both families inside go the same way. */
  readonly source: Address
  readonly echoes: Readonly<Record<Underlay, Echo>>
  readonly probes: Readonly<Record<Underlay, Probes>>
}

export async function chooseUnderlays(node: Node): Promise<never> {
  const { signal, openEcho, options } = node
  const everyMs = options['probe-interval'] * 1000
  if (!openEcho || everyMs === 0) {
    // What a process before this one chose nobody would take back, should it be of no use any more.
    const { underlays } = node.ownership.dataPath ?? {}
    for (const key of underlays?.others() ?? []) underlays?.choose(key, underlays.first)
    return forGood(signal)
  }
  let asking: Asking | undefined
  const choices = createUnderlayChoices(() => asking?.probes.first.intervalMs() ?? everyMs)
  const close = (): void => {
    for (const which of BOTH) asking?.echoes[which].close()
    asking = undefined
  }
  try {
    for (;;) {
      await pause(signal, TICK_MS)
      const { dataPath } = node.ownership
      const source = sourceOf(dataPath)
      if (asking && (asking.dataPath !== dataPath || asking.source !== source)) close()
      if (!asking && dataPath && source !== undefined) {
        asking = openFor(dataPath, source, everyMs, node)
        // What was chosen holds for a data path that was opened again, and what a process before this one chose for its first.
        choices.assume(asking?.underlays.others() ?? [])
        for (const key of asking ? choices.others() : []) dataPath.underlays?.choose(key, dataPath.underlays.other)
      }
      if (!asking) continue
      const { underlays, probes, echoes } = asking
      const now = performance.now()
      const targets = targetsOf(asking)
      const keys = new Set(targets.map(({ key }) => key))
      choices.keep((key) => keys.has(key))
      // By what packets go: to a peer that went and came back between two looks by the first again, to one that could not be asked for a
      // while still by the other.
      const before = new Set(underlays.others())
      choices.assume([...before].filter((key) => keys.has(key)))
      for (const which of BOTH) {
        probes[which].keep(targets, now)
        for (const { key, address, sequence } of probes[which].due(now))
          underlays.send(key, underlays[which], echoes[which].packet(address, sequence, underlays[which]))
      }
      wakeByOther(probes, now)
      // An answer through the tunnel shows that the peer's host lives, as a written lease does.
      for (const key of probes.first.resting())
        if (FAMILIES.some((family) => node.probes?.[family]?.result(key)?.isAnswering))
          for (const which of BOTH) probes[which].wake(key, now)
      // What one family has lost the other is to answer now, or the peer is down.
      for (const which of BOTH) for (const key of probes[which].takeDoubted()) probes[otherThan(which)].soon(key, now)
      for (const { key } of targets) {
        const answers = { first: probes.first.result(key), other: probes.other.result(key) }
        const by = choices.choose(key, answers, now)
        if (before.has(key) === (by === 'other')) continue
        underlays.choose(key, underlays[by])
        node.learnt.ring()
        // Another way, which may take packets of another length.
        touch(node.unsearched, new Set([key]))
        tell(key, underlays, by, node)
      }
    }
  } finally {
    close()
  }
}

function sourceOf(dataPath: DataPath | undefined): Address | undefined {
  const { ipv4, ipv6 } = (dataPath?.underlays && dataPath.probeSource) ?? {}
  return ipv4 ?? ipv6
}

/** Undefined where it cannot be had yet: the address may not be there; where requests are not allowed, probes.ts says so. */
function openFor(dataPath: DataPath, source: Address, everyMs: number, { openEcho }: Node): Asking | undefined {
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

/** The peers that can be reached by both, each by the address inside that answers. */
function targetsOf({ dataPath, underlays, source }: Asking): Target[] {
  const family = familyOf(source)
  const probeOf = (peer: PathPeer): Address | undefined => peer[family]?.probe
  return dataPath.peers().flatMap((peer) => {
    const address = probeOf(peer)
    return address !== undefined && underlays.has(peer.key) ? [{ key: peer.key, address }] : []
  })
}

function tell(key: string, underlays: Underlays, by: Underlay, { log, view, memory }: Node): void {
  const [now, before] = [underlays[by], underlays[otherThan(by)]]
  const { subnet, attrs } = view.get(key) ?? {}
  const family = FAMILIES.find((each) => subnet?.[each])
  const [net, to, from] = [family && subnet?.[family], attrs?.publicIp[now], attrs?.publicIp[before]]
  if (!family || !net || to === undefined || from === undefined) return
  const peer = formatNet(net)
  const [publicIp, movedFrom] = [formatAddress(to), formatAddress(from)]
  if (by === 'first') log.info(`${peer} answers by ${FAMILY_NAMES[now]} again, and is reached at ${publicIp}`)
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
