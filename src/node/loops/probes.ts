// probes.ts - probes the peers with echo requests through the data path, as `ping` does, over each inner family. Hosts with flanneld answer
// too, because their kernels do.

import { messageOf } from '../../base/errors.ts'
import { createBell, pause } from '../../host/bell.ts'
import type { Echo } from '../../host/echo.ts'
import { FAMILIES, listed, type Address, type Family } from '../../net/address.ts'
import type { PathPeer } from '../../path/contract.ts'
import type { DataPaths } from '../data-paths.ts'
import { takeUnseen, type Node } from '../node.ts'
import { ProbeSchedule, MOST_SILENT_MS } from './probe-schedule.ts'

/** The interval at which due probes are sent. */
const TICK_MS = 1_000
/** How often all peers of the data path are read again, in addition to the changed ones. */
const KEEP_MS = 10_000
/** How often the traffic counters are checked for signs of life from silent peers that are probed less often. */
const HEARD_MS = 3_000
/** The longest interval between probes of a silent peer whose packets the kernel carries, so that weftd does not notice them. */
const MOST_UNHEARD_MS = 60_000
/** The kernel's refusals when a process may not send echo requests. */
export const FORBIDDEN: ReadonlySet<string | undefined> = new Set(['EPERM', 'EACCES'])

/** The probes over one inner family. */
interface Probing {
  readonly family: Family
  readonly probes: ProbeSchedule
  /** The open socket, and its source address. */
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
  /** The data path whose peers are probed, and the time when all its peers were read. */
  const lively = createLively(node)
  let given: { readonly dataPath?: DataPaths | undefined; readonly at: number } = { at: 0 }
  try {
    for (;;) {
      await pause(signal, TICK_MS)
      const { dataPath } = node.ownership
      for (const probing of probings) openFor(probing, dataPath?.probeSource[probing.family], node)
      const open = probings.filter(({ socket }) => socket)
      if (open.length === 0) continue
      const now = performance.now()
      // Reading thousands of peers each second costs too much, so usually only changed peers are read. A refused route may be accepted later.
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
      // A peer that loses probes of one family is probed over the other too, so that a host that is off is not reported as half a fault.
      for (const { family, probes } of open)
        for (const key of probes.takeDoubted())
          for (const other of open) if (other.family !== family) other.probes.soon(key, now)
      node.probes = Object.fromEntries(open.map(({ family, probes }) => [family, probes]))
    }
  } finally {
    for (const { socket } of probings) socket?.echo.close()
  }
}

/** True if weftd itself carries the packets of peers, so that it knows when each peer last sent one. */
const isHearing = ({ ownership: { dataPath } }: Node): boolean => {
  const engine = dataPath?.carrier().engine
  return engine !== undefined && engine !== 'kernel' && engine !== 'none'
}

/** Wakes silent peers after a sign of life: packets of theirs arrived, their lease was written, or this host's own address is back. */
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
    // The counters of a device that is gone cannot be read; they show no sign of life.
    const traffic = await dataPath?.traffic().catch(() => undefined)
    for (const key of resting) {
      const { lastReceivedAt } = traffic?.get(key) ?? {}
      if (lastReceivedAt !== undefined) wake(key, lastReceivedAt)
    }
  }
}

const targetsOf = (peers: readonly PathPeer[], family: Family) =>
  peers.flatMap(({ key, [family]: side }) => (side?.probe === undefined ? [] : [{ key, address: side.probe }]))

/** Opens a socket with this source address if the present socket has another one. Without an address, closes the socket. */
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

/** Sends an echo request. A request that the kernel refuses to send counts as lost. */
export function send(echo: Echo, to: Address, sequence: number, bytes = 0): void {
  try {
    echo.send(to, sequence, bytes)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === undefined) throw error
  }
}

/** Waits until the process stops. */
export async function forGood(signal: AbortSignal): Promise<never> {
  await createBell().wait(signal)
  throw signal.reason
}
