// probes.ts - asks the peers whether they answer, by each family that there is a way for: an echo request to each by way of the data
// path, as `ping` would. Stock flannel's hosts answer too, since their kernels do.

import { messageOf } from '../../base/errors.ts'
import { createBell, pause } from '../../host/bell.ts'
import type { Echo } from '../../host/echo.ts'
import { FAMILIES, listed, type Address, type Family } from '../../net/address.ts'
import type { DataPath, PathPeer } from '../../path/contract.ts'
import { takeUnseen, type Node } from '../node.ts'
import { createProbes, MOST_SILENT_MS, type Probes } from './probe-schedule.ts'

/** Between two looks at who is due. */
const TICK_MS = 1_000
/** The peers of the data path are looked at this often, though nobody changed them, where it allows that. */
const KEEP_MS = 10_000
/** How often the traffic counters are checked for signs of life from silent peers that are probed less often. */
const HEARD_MS = 3_000
/** The longest interval between probes of a silent peer whose packets the kernel carries, so that weftd does not notice them. */
const MOST_UNHEARD_MS = 60_000
/** The kernel's refusals when a process may not send echo requests. */
export const FORBIDDEN: ReadonlySet<string | undefined> = new Set(['EPERM', 'EACCES'])

/** The asking by one family. */
interface Asking {
  readonly family: Family
  readonly probes: Probes
  /** The open socket, and this host's address that it asks from. */
  socket: { readonly echo: Echo; readonly source: Address } | undefined
  isForbidden: boolean
}

export async function probePeers(node: Node): Promise<never> {
  const { signal, options } = node
  const everyMs = options['probe-interval'] * 1000
  if (!node.openEcho || everyMs === 0) return forGood(signal)
  const askings = FAMILIES.map((family): Asking => {
    const probes = createProbes(everyMs, Math.random, () => (isHearing(node) ? MOST_SILENT_MS : MOST_UNHEARD_MS))
    return { family, probes, socket: undefined, isForbidden: false }
  })
  /** The data path whose peers are asked. */
  const lively = createLively(node)
  let given: { readonly dataPath?: DataPath | undefined; readonly at: number } = { at: 0 }
  try {
    for (;;) {
      await pause(signal, TICK_MS)
      const { dataPath } = node.possession
      for (const asking of askings) openFor(asking, dataPath?.probeSource?.[asking.family], node)
      const open = askings.filter(({ socket }) => socket)
      if (open.length === 0) continue
      const now = performance.now()
      // Thousands of peers are not walked each second. A route that was refused may be taken later.
      const isOther = dataPath !== given.dataPath
      const unseen = takeUnseen(node.unprobed)
      if (!isOther && unseen && dataPath?.peer) {
        for (const key of unseen) {
          const peer = dataPath.peer(key)
          for (const { family, probes } of askings) probes.look(key, peer?.[family]?.probe, now)
        }
      } else if (isOther || !unseen || unseen.size > 0 || now - given.at > KEEP_MS) {
        given = { dataPath, at: now }
        const peers = dataPath?.peers() ?? []
        for (const { family, probes } of askings) probes.keep(targetsOf(peers, family), now)
      }
      await lively(open)
      for (const { probes, socket } of open)
        for (const { address, sequence } of probes.due(now)) if (socket) send(socket.echo, address, sequence)
      // Whoever loses packets of one family is asked by the other too: a host that is off is not to look like half a fault.
      for (const { family, probes } of open)
        for (const key of probes.takeDoubted())
          for (const other of open) if (other.family !== family) other.probes.soon(key, now)
      node.probes = Object.fromEntries(open.map(({ family, probes }) => [family, probes]))
    }
  } finally {
    for (const { socket } of askings) socket?.echo.close()
  }
}

/** True if weftd itself carries the packets of peers, so that it knows when each peer last sent one. */
const isHearing = ({ possession: { dataPath } }: Node): boolean => {
  const engine = dataPath?.carrier().engine
  return engine !== undefined && engine !== 'kernel' && engine !== 'none'
}

/** Wakes silent peers after a sign of life: packets of theirs arrived, their lease was written, or this host's own address is back. */
function createLively(node: Node): (askings: readonly Asking[]) => Promise<void> {
  let lookedAt = -Infinity
  let wasGone = false
  return async (askings) => {
    const now = performance.now()
    const { dataPath } = node.possession
    const wake = (key: string, heardAt?: number): void => {
      for (const { probes } of askings) probes.wake(key, now, heardAt)
    }
    for (const key of node.written) wake(key)
    node.written.clear()
    const isGone = listed(dataPath?.gone?.() ?? {}).length > 0
    const resting = new Set(askings.flatMap(({ probes }) => probes.resting()))
    if (wasGone && !isGone) for (const key of resting) wake(key)
    wasGone = isGone
    if (resting.size === 0 || now - lookedAt < HEARD_MS || !isHearing(node)) return
    lookedAt = now
    // The counters of a device that is gone cannot be read; they show no sign of life.
    const traffic = await dataPath?.traffic?.().catch(() => undefined)
    for (const key of resting) {
      const { lastReceivedAt } = traffic?.get(key) ?? {}
      if (lastReceivedAt !== undefined) wake(key, lastReceivedAt)
    }
  }
}

const targetsOf = (peers: readonly PathPeer[], family: Family) =>
  peers.flatMap(({ key, [family]: side }) => (side?.probe === undefined ? [] : [{ key, address: side.probe }]))

/** Makes the socket one that asks from this address; none where there is no address, or none may be opened. */
function openFor(asking: Asking, source: Address | undefined, { openEcho, log }: Node): void {
  const { probes, socket, isForbidden } = asking
  if (socket && socket.source === source) return
  socket?.echo.close()
  asking.socket = undefined
  if (source === undefined || !openEcho || isForbidden) return
  try {
    const echo = openEcho(source, (from, sequence, roundTripMs) =>
      probes.answered(sequence, from, roundTripMs, performance.now()),
    )
    asking.socket = { echo, source }
  } catch (error) {
    if (!FORBIDDEN.has((error as NodeJS.ErrnoException).code)) return // the address may not be there yet
    asking.isForbidden = true
    log.info(
      `Peers are not asked whether they answer (${messageOf(error)}): it needs a net.ipv4.ping_group_range that includes ` +
        'the group of weftd, or CAP_NET_RAW',
    )
  }
}

/** A request that the kernel does not send counts as not answered. */
export function send(echo: Echo, to: Address, sequence: number, bytes = 0): void {
  try {
    echo.send(to, sequence, bytes)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === undefined) throw error
  }
}

/** Waits until the stop. */
export async function forGood(signal: AbortSignal): Promise<never> {
  await createBell().wait(signal)
  throw signal.reason
}
