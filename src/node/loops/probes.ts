// probes.ts - the loop that probes the peers with echo requests through the data path, as `ping` does, over each inner
// family. Hosts with flanneld answer too, because their kernels answer.

import { messageOf } from '../../base/errors.ts'
import { createBell, pause } from '../../host/bell.ts'
import type { Echo } from '../../host/echo.ts'
import { FAMILIES, listed, type Address, type Family } from '../../net/address.ts'
import type { PathPeer } from '../../path/contract.ts'
import type { DataPaths } from '../data-paths.ts'
import { takeUnseen, type Node } from '../node.ts'
import { ProbeSchedule, MOST_SILENT_MS } from './probe-schedule.ts'

/** The interval in ms at which weftd sends the probes that are due. */
const TICK_MS = 1_000
/** The interval in ms at which weftd reads all peers of the data path; in between it reads only the changed peers. */
const KEEP_MS = 10_000
/** The interval in ms at which weftd reads the traffic counters, to find silent peers that send packets. */
const HEARD_MS = 3_000
/**
 * The longest interval in ms between probes of a silent peer if the kernel carries the packets. weftd then sees no
 * packets from the peer, so only a probe can show that the peer answers again.
 */
const MOST_UNHEARD_MS = 60_000
/** The error codes of the kernel for echo requests from a process that lacks the permission. */
export const FORBIDDEN: ReadonlySet<string | undefined> = new Set(['EPERM', 'EACCES'])

/** The probes over one inner family. */
interface Probing {
  readonly family: Family
  readonly probes: ProbeSchedule
  socket: { readonly echo: Echo; readonly source: Address } | undefined
  isForbidden: boolean
}

export async function probePeers(node: Node): Promise<never> {
  const { signal, options } = node
  const everyMs = options['probe-interval'] * 1000
  if (!node.openEcho || everyMs === 0) return forGood(signal)
  const probings = FAMILIES.map((family): Probing => {
    const probes = new ProbeSchedule(everyMs, Math.random, () => (isHearing(node) ? MOST_SILENT_MS : MOST_UNHEARD_MS))
    return { family, probes, socket: undefined, isForbidden: false }
  })
  const lively = createLively(node)
  /**
   * The data path whose peers the loop read last. `at` is the time when the loop last read all peers of this data path,
   * in ms of performance.now().
   */
  let given: { readonly dataPath?: DataPaths | undefined; readonly at: number } = { at: 0 }
  try {
    for (;;) {
      await pause(signal, TICK_MS)
      const { dataPath } = node.ownership
      for (const probing of probings) openFor(probing, dataPath?.probeSource[probing.family], node)
      const open = probings.filter(({ socket }) => socket)
      const now = performance.now()
      if (open.length === 0) {
        // Forget the results, because they describe the time before the sockets were closed.
        for (const { probes } of probings) probes.keep([], now)
        node.probes = undefined
        given = { at: 0 }
        continue
      }
      // Usually read only the changed peers, because reading thousands of peers each second costs too much. Read all
      // peers every KEEP_MS, because the kernel may now accept a route to a peer for which it returned an error before.
      const isOther = dataPath !== given.dataPath
      const unseen = takeUnseen(node.unprobed)
      if (!isOther && unseen && dataPath?.peer) {
        for (const key of unseen) {
          const peer = dataPath.peer(key)
          for (const { family, probes } of probings) probes.look(key, peer?.[family]?.probe, now)
        }
      } else if (isOther || !unseen || unseen.size > 0 || now - given.at > KEEP_MS) {
        given = { dataPath, at: now }
        const peers = dataPath?.peers() ?? []
        for (const { family, probes } of probings) probes.keep(targetsOf(peers, family), now)
      }
      await lively(open)
      for (const { probes, socket } of open)
        for (const { address, sequence } of probes.due(now)) if (socket) send(socket.echo, address, sequence)
      // If a peer loses probes over one family, also probe the peer over its second family. If the peer's host is down,
      // the report must not show a fault of one family only.
      for (const { family, probes } of open)
        for (const key of probes.takeDoubted())
          for (const other of open) if (other.family !== family) other.probes.soon(key, now)
      node.probes = Object.fromEntries(open.map(({ family, probes }) => [family, probes]))
    }
  } finally {
    for (const { socket } of probings) socket?.echo.close()
  }
}

/**
 * Returns true if weftd itself, and not the kernel, carries the packets, so that weftd knows when each peer last sent a
 * packet.
 */
const isHearing = ({ ownership: { dataPath } }: Node): boolean => {
  const engine = dataPath?.carrier().engine
  return engine !== undefined && engine !== 'kernel' && engine !== 'none'
}

/**
 * Returns a function that probes silent peers at the usual interval again when their hosts seem to be up. The signs
 * are: packets arrive from the peer, its lease was written again, or this host has its own address again.
 */
function createLively(node: Node): (probings: readonly Probing[]) => Promise<void> {
  let lookedAt = -Infinity
  let wasGone = false
  return async (probings) => {
    const now = performance.now()
    const { dataPath } = node.ownership
    const wake = (key: string, heardAt?: number): void => {
      for (const { probes } of probings) probes.wake(key, now, heardAt)
    }
    for (const key of node.written) wake(key)
    node.written.clear()
    const isGone = listed(dataPath?.gone() ?? {}).length > 0
    const resting = new Set(probings.flatMap(({ probes }) => probes.resting()))
    if (wasGone && !isGone) for (const key of resting) wake(key)
    wasGone = isGone
    if (resting.size === 0 || now - lookedAt < HEARD_MS || !isHearing(node)) return
    lookedAt = now
    // If the device is gone, its counters cannot be read, so they show nothing about peers.
    const traffic = await dataPath?.traffic(resting).catch(() => undefined)
    for (const key of resting) {
      const { lastReceivedAt } = traffic?.get(key) ?? {}
      if (lastReceivedAt !== undefined) wake(key, lastReceivedAt)
    }
  }
}

const targetsOf = (peers: readonly PathPeer[], family: Family) =>
  peers.flatMap(({ key, [family]: side }) => (side?.probe === undefined ? [] : [{ key, address: side.probe }]))

/**
 * Opens a socket with the source address `source` if the present socket has another source address. If `source` is
 * undefined, closes the socket.
 */
function openFor(probing: Probing, source: Address | undefined, { openEcho, log }: Node): void {
  const { probes, socket, isForbidden } = probing
  if (socket && socket.source === source) return
  socket?.echo.close()
  probing.socket = undefined
  if (source === undefined || !openEcho || isForbidden) return
  try {
    const echo = openEcho(source, (from, sequence, roundTripMs) =>
      probes.answered(sequence, from, roundTripMs, performance.now()),
    )
    probing.socket = { echo, source }
  } catch (error) {
    if (!FORBIDDEN.has((error as NodeJS.ErrnoException).code)) return // the address may not exist yet
    probing.isForbidden = true
    log.info(
      `Peers are not probed (${messageOf(error)}): probes need a net.ipv4.ping_group_range that includes ` +
        'the group of weftd, or CAP_NET_RAW',
    )
  }
}

/** Sends an echo request. A request for which the kernel returns an error counts as a lost probe. */
export function send(echo: Echo, to: Address, sequence: number, bytes = 0): void {
  try {
    echo.send(to, sequence, bytes)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === undefined) throw error
  }
}

/** Waits until the process stops, and rejects with the reason of `signal`. */
export async function forGood(signal: AbortSignal): Promise<never> {
  await createBell().wait(signal)
  throw signal.reason
}
