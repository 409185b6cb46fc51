// leftovers.ts - removes devices and routes of other backends that conflict with this node's data path. Reports all
// other routes that bypass the data path.

import { describeError, isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../../control/lease/lease.ts'
import { limited, withLatePromise } from '../../host/bell.ts'
import { familiesOf, listed, netsOf, netsOverlap } from '../../net/address.ts'
import { publishersOf } from '../../path/catalog.ts'
import { closeJoin, findPrograms, INGRESS_STAYS_MS } from '../../path/device/kernel-way-remains.ts'
import {
  findDiverted,
  findDivertedByRules,
  findLeftovers,
  findPast,
  otherDaemons,
  removeLeftovers,
  type Bypass,
  type Found,
  type Surroundings,
} from '../../path/device/leftovers.ts'
import type { DataPaths } from '../data-paths.ts'
import { LATE_MS, type Node } from '../node.ts'
import { handoverLock } from '../restart/rendezvous.ts'
import { seal } from '../seal.ts'
import { attrsBefore } from './lease.ts'

/** The time limit in ms for the store to list the leases, which a node does not know yet at its start. */
const LIST_MS = 5_000
/** The time limit in ms for charon to list its connections, and to remove weftd's connections. */
const CHARON_MS = 5_000
/** The maximum number of routes that one log line names. */
const NAMED = 5

type Leftovers = NonNullable<Node['leftovers']>

/**
 * Removes leftovers of other backends. Records in `node.pastPath` the routes that still make packets bypass the data
 * path. Returns true if there are no such routes. Only a node that forwards may call this function: on any other node
 * the devices that look like leftovers may belong to a successor.
 */
export async function clearLeftovers(node: Node): Promise<boolean> {
  const { backend, leftovers, ownership } = node
  if (!leftovers || !backend.devices) return true
  const host = { kernel: node.kernel, run: leftovers.run }
  const { dataPath } = ownership
  // A ready node has removed the routes of the earlier run. An operator may make such a route again on purpose.
  if (node.isReady) leftovers.formerRoutes = undefined
  const isOurs = (): boolean => ownership.state.is === 'forwarding' && ownership.dataPath === dataPath
  if (!isOurs()) return node.pastPath.length === 0
  try {
    await seal({ kernel: node.kernel, log: calmOf(node) }, node)
    if (!dataPath?.fastPath) await removePrograms(node, isOurs)
    let found = await find(node, leftovers)
    // If another process owns the data path now, stop, because the devices and routes that were found may belong to
    // that process.
    if (!isOurs()) return node.pastPath.length === 0
    const first = found.leftovers
    // Use the log that drops repeated lines, because another program may restore a leftover again and again.
    const calm = calmOf(node)
    const removed = (what: string): void => calm.info(`Removed ${what}, which another backend left`)
    const tried = await removeLeftovers(host, first, removed, isOurs)
    if (first.length > 0) found = await find(node, leftovers)
    if (!isOurs()) return node.pastPath.length === 0
    const left = new Set(found.leftovers.map(({ what }) => what))
    const failures = tried.filter(([what]) => left.has(what))
    const known = new Set(failures.map(([what]) => what))
    const back = found.leftovers
      .filter(({ what }) => !known.has(what))
      .map(({ what }) => [what, 'it is there again'] as const)
    note(node, found, [...failures, ...back])
  } catch (error) {
    node.signal.throwIfAborted()
    const why = isWeftError(error) ? describeError(error) : messageOf(error)
    const line = `Cannot check for leftovers of another backend: ${why}`
    // If this search for leftovers failed, a node that is ready keeps the findings of its last successful search, so
    // only log the failure.
    if (node.isReady) calmOf(node).warn(line)
    else setPastPath(node, [line])
  }
  return node.pastPath.length === 0
}

/** The nodes that will remove the program `ingress` of an earlier run later. */
const removesLater = new WeakSet<Node>()

/**
 * Detaches the eBPF programs of an earlier run, because the configuration does not allow a FastPath any longer. If this
 * node has the TUN of the earlier run, the program `ingress`, which receives packets, stays for INGRESS_STAYS_MS.
 * Detaches nothing once `isOurs` returns false, because the programs may then be those of a successor.
 */
async function removePrograms(node: Node, isOurs: () => boolean): Promise<void> {
  const { backend, ownership, leftovers } = node
  const { name, index } = backend.external
  if (!index || !leftovers) return
  const calm = calmOf(node)
  const { kernel } = node
  const [external] = await findPrograms([{ name, index }])
  if (!external) return
  const names = ownership.dataPath?.tunNames ?? []
  const links = await Promise.all(names.map((each) => kernel.link(each)))
  const remove = async (remains: Awaited<ReturnType<typeof findPrograms>>): Promise<void> => {
    for (const each of remains) {
      if (!isOurs()) return
      const what = each.things.join(', ')
      // If the kernel does not detach an eBPF program, the program carries no packets after a minute. So this failure
      // must not keep the node from being ready.
      try {
        await each.remove()
        calm.info(`Removed ${what}, which an earlier run left`)
      } catch (error) {
        calm.warn(`A leftover of another backend cannot be removed: ${what}: ${messageOf(error)}`)
      }
    }
  }
  const onTun = await findPrograms(links.flatMap((link) => link ?? []))
  await remove(onTun)
  const removeLast = async (): Promise<void> => {
    // The program `ingress` may be that of a weftd of another network, which shares the external interface.
    const running = await (leftovers.others ?? othersOf(node.options))()
    if (running.some((daemon) => daemon.name.startsWith('weftd'))) return
    await remove([external])
    if (isOurs()) await closeJoin(kernel)
  }
  if (removesLater.has(node)) return
  // Without `egress` on the TUN of this node, `ingress` sends packets to a TUN that is gone, or the node has another
  // backend, such as `wireguard`, which must not accept datagrams of `udp`.
  const mayStay = onTun.length > 0 && !(await kernel.hasIpsecPolicies().catch(() => true))
  if (!mayStay) return removeLast()
  removesLater.add(node)
  const later = (): void => {
    removesLater.delete(node)
    if (node.signal.aborted) return
    removeLast().catch((error: unknown) =>
      calm.warn(`Cannot check for leftovers of another backend: ${messageOf(error)}`),
    )
  }
  setTimeout(later, INGRESS_STAYS_MS).unref()
}

/**
 * Returns the attributes of this node's present lease if the lease has a different backend type than the new backend.
 * The lease may have another public IP, because this host's address may have changed too; the result has the present
 * public IP. Returns undefined if the node has no lease, or if the new backend makes its own routes. Must be called
 * before the lease is written.
 */
export async function earlierAttrs(
  { backend, leftovers, manager, log, signal }: Pick<Node, 'backend' | 'leftovers' | 'manager' | 'log' | 'signal'>,
  { publicIp, backendType }: LeaseAttrs,
): Promise<LeaseAttrs | undefined> {
  if (!backend.routesByOthers) return undefined
  const before = await attrsBefore(manager, log, leftovers?.earlier)(publicIp, signal)
  return before === undefined || before.backendType === backendType ? undefined : { ...before, publicIp }
}

/**
 * Removes the devices and routes that the backend of an earlier run left. weftd calls `clearEarlier` only for a backend
 * whose routes are made by other programs, because later weftd cannot tell these routes and devices from leftovers.
 * Must be called while no process forwards on this host. Throws WeftError DEVICE if a leftover cannot be removed.
 */
export async function clearEarlier(
  parts: Pick<Node, 'backend' | 'config' | 'leftovers' | 'options' | 'manager' | 'kernel' | 'log' | 'signal'>,
  lease: OwnLease,
  before: LeaseAttrs | undefined,
): Promise<void> {
  if (before === undefined || !parts.leftovers) return
  try {
    await clear(parts, parts.leftovers, lease, before.backendType)
  } catch (error) {
    // Write the earlier backend type into the lease again, because the next start searches for leftovers only if the
    // lease has that type.
    const { manager, config, log, signal } = parts
    await manager
      .holder(config)
      .renew(lease, before, log, signal)
      .catch((failure: unknown) =>
        log.error(
          `Cannot write the earlier backend type into the lease again: ${messageOf(failure)}; run \`weft cleanup\` before the next start`,
        ),
      )
    throw error
  }
}

async function clear(
  parts: Pick<Node, 'backend' | 'config' | 'options' | 'manager' | 'kernel' | 'log' | 'signal'>,
  { run, earlier, formerRoutes, others = othersOf(parts.options) }: Leftovers,
  lease: OwnLease,
  type: string,
): Promise<void> {
  const { backend, config, kernel, log } = parts
  const host = { kernel, run }
  const kinds = publishersOf(type)
  const { leftovers: found, held } = await findLeftovers(
    host,
    {
      networks: { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network },
      subnets: lease.subnet,
      earlier,
      ...(formerRoutes ? { formerRoutes } : {}),
      ownDevices: [],
      routesToHosts: false,
      // If no backend that publishes the earlier type makes a route for each peer, other programs made the routes to
      // the peers' hosts. So these routes are not leftovers.
      routesByOthers: !kinds.some(({ routes }) => routes === 'peers'),
      external: backend.external?.name,
      ranges: { ipv4: config.ipv4, ipv6: config.ipv6 },
      leases: (await listLeases(parts)) ?? [],
    },
    others,
  )
  const failures = await removeLeftovers(host, found, (what) => log.info(`Removed ${what}, which another backend left`))
  const left = [
    ...held.map(({ device, by }) => `${device}: ${by}`),
    ...failures.map(([what, why]) => `${what}: ${why}`),
  ]
  if (left.length > 0)
    throw new WeftError(
      'DEVICE',
      `A leftover of another backend cannot be removed: ${left.slice(0, NAMED).join(', ')}`,
      {
        remedy: 'stop the process that uses the leftover, or run `weft cleanup`',
      },
    )
}

const othersOf = (options: Node['options']) => () =>
  otherDaemons(handoverLock({ 'subnet-file': options['subnet-file'] }))

const calmLogs = new WeakMap<Node, Log>()
/** Returns the node's log that drops repeated lines. */
function calmOf(node: Node): Log {
  const calm = calmLogs.get(node) ?? seldom(node.log)
  calmLogs.set(node, calm)
  return calm
}

/**
 * Finds leftovers, and routes of the main table that bypass the data path. If there are none, also asks the kernel for
 * the route of each peer, because policy rules may change it. If the data path encrypts, such a route keeps the node from
 * being ready; else an operator may want the route, and weftd only logs it.
 */
async function find(node: Node, leftovers: Leftovers): Promise<Found> {
  const { backend, kernel } = node
  const { found, surroundings } = await findInTable(node, leftovers)
  if (found.bypasses.length > 0 || found.leftovers.length > 0) return found
  if (backend.isSealed) return { ...found, bypasses: await findDiverted(kernel, surroundings) }
  // IPsec policies take the packets of the backend ipsec whatever their route is.
  if (!backend.routesByOthers && !backend.usesIpsec) noteDiverted(node, await findDivertedByRules(kernel, surroundings))
  return found
}

/** Logs when policy routing rules begin or cease to divert packets from the data path. */
function noteDiverted(node: Node, diverted: ReadonlyMap<string, string>): void {
  const before = node.diverted
  const came = [...diverted].flatMap(([name, text]) => (before.has(name) ? [] : [text]))
  const went = [...before].flatMap(([name, text]) => (diverted.has(name) ? [] : [text]))
  if (came.length > 0)
    node.log.warn(
      `Packets to other nodes bypass the data path by policy routing rules that others made: ${came.join(', ')}; ` +
        'leave the network out of these rules (`ip rule`) unless that is wanted',
    )
  if (went.length > 0) node.log.info(`Policy routing rules no longer divert packets to other nodes: ${went.join(', ')}`)
  node.diverted = diverted
}

const surroundingsOf = (
  { backend, config, lease, ownership, view }: Node,
  { earlier, formerRoutes }: Leftovers,
): Surroundings => ({
  networks: { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network },
  subnets: lease.subnet,
  earlier,
  ...(formerRoutes ? { formerRoutes } : {}),
  ownDevices: [...(backend.devices ?? []), ...presentDevices(ownership.dataPath)],
  routesToHosts: backend.routesToHosts === true,
  routesByOthers: backend.routesByOthers === true,
  ownPolicies: backend.usesIpsec === true,
  isSealed: backend.isSealed === true,
  external: backend.external?.name,
  ranges: { ipv4: config.ipv4, ipv6: config.ipv6 },
  leases: [...view.values()], // an array, because an iterator would be exhausted after the first family
})

async function findInTable(
  node: Node,
  leftovers: Leftovers,
): Promise<{ readonly found: Found; readonly surroundings: Surroundings }> {
  const { run, others = othersOf(node.options) } = leftovers
  const host = { kernel: node.kernel, run }
  const surroundings = surroundingsOf(node, leftovers)
  const found = await findLeftovers(host, surroundings, others)
  if (!found.needsLeases || node.following.listedAt !== undefined) return { found, surroundings }
  const leases = await listLeases(node)
  if (!leases) return { found, surroundings }
  const all = { ...surroundings, leases }
  return { found: { ...(await findLeftovers(host, all, others)), needsLeases: false }, surroundings: all }
}

/**
 * Removes what an earlier run left in networks that this node no longer has. weftd calls `clearPast` once, before the
 * node is ready, because later another weftd may own these networks. The leftovers take no packets of this node's
 * network, so a failure is only logged.
 */
export async function clearPast(node: Node): Promise<void> {
  const { kernel, leftovers, log, ownership } = node
  if (!leftovers || familiesOf(leftovers.past).length === 0 || ownership.state.is !== 'forwarding') return
  const { past, run, others = othersOf(node.options) } = leftovers
  const host = { kernel, run }
  const leases = (node.following.listedAt === undefined ? await listLeases(node) : undefined) ?? [...node.view.values()]
  const found = await findPast(host, past, { ...surroundingsOf(node, leftovers), leases }, others)
  const removed = (what: string): void => log.info(`Removed ${what}, which an earlier run left`)
  const failures = await removeLeftovers(host, found, removed, () => ownership.state.is === 'forwarding')
  for (const [what, why] of failures) log.warn(`A leftover of an earlier run cannot be removed: ${what}: ${why}`)
}

/**
 * Removes the connections that the backend ipsec of an earlier run left in a charon that runs as a service. With its
 * plugin kernel-libipsec charon would still take packets to peers, because its routing table precedes the main table.
 * weftd calls this function once, before the node is ready. A failure is only logged. If charon does not answer within
 * LATE_MS, the removal continues in the background, because it must not keep the node from being ready.
 */
export async function clearCharon(node: Node): Promise<void> {
  const clearing = removeConnections(node)
  await withLatePromise(LATE_MS, (late) => Promise.race([clearing, late]))
  clearing.catch((error: unknown) => {
    if (!node.signal.aborted)
      node.log.error(`A check of this host failed, and the start goes on: ${describeError(error)}`)
  })
}

async function removeConnections(node: Node): Promise<void> {
  const { backend, config, leftovers, log, ownership, signal } = node
  if (!leftovers?.charon || backend.usesIpsec || ownership.state.is !== 'forwarding') return
  const { ipv4 } = config // the backend ipsec carries only IPv4
  const nets = [...(ipv4 ? [ipv4.network] : []), ...listed(leftovers.past)]
  const late = () => new WeftError('COMMAND', `no answer within ${CHARON_MS / 1000} s`)
  try {
    const { leaveCharon, listConnections } = await leftovers.charon()
    const names = await limited(signal, CHARON_MS, late, (till) => listConnections(nets, till))
    if (names.length === 0) return
    const running = await (leftovers.others ?? othersOf(node.options))()
    if (
      running.some((other) =>
        nets.some((net) => other.networks === undefined || netsOverlap(other.networks, netsOf([net]))),
      )
    )
      return
    // A successor may have the backend ipsec, and may have loaded these connections.
    if (ownership.state.is !== 'forwarding') return
    await limited(signal, CHARON_MS, late, (till) => leaveCharon(nets, till))
    log.info(`Removed ${names.length} connections of charon, such as ${names[0]}, which another backend left`)
  } catch (error) {
    signal.throwIfAborted()
    if (!isWeftError(error)) throw error
    log.warn(`A leftover of another backend cannot be removed: the connections of charon: ${describeError(error)}`)
  }
}

/** Returns the present names of the data path's devices, which another program may have renamed. */
function presentDevices(dataPath: DataPaths | undefined): readonly string[] {
  const { device, devices = {} } = dataPath?.carrier() ?? {}
  return [...(dataPath?.tunNames ?? []), device, devices.ipv4, devices.ipv6].filter((name) => name !== undefined)
}

/**
 * Lists the leases in the store, for a node that does not follow the leases yet. Returns undefined if the store does
 * not answer.
 */
async function listLeases({
  manager,
  signal,
  log,
}: Pick<Node, 'manager' | 'signal' | 'log'>): Promise<readonly Lease[] | undefined> {
  const late = () => new WeftError('STORE_UNAVAILABLE', `no answer within ${LIST_MS / 1000} s`)
  try {
    const { entries } = await limited(signal, LIST_MS, late, (till) => manager.source.list(till))
    return entries.flatMap(({ lease }) => lease ?? [])
  } catch (error) {
    signal.throwIfAborted()
    if (log.v(1)) log.info(`The leases are not known yet: ${messageOf(error)}`)
    return undefined
  }
}

/** Records the leftovers and routes that remain, and logs each of them once. */
function note(
  node: Node,
  { held, bypasses, needsLeases }: Found,
  failures: Awaited<ReturnType<typeof removeLeftovers>>,
): void {
  const { backend, following } = node
  const own = bypasses.filter(({ isOfOwn }) => isOfOwn)
  const past = backend.isSealed ? bypasses.filter(({ isOfOwn }) => !isOfOwn) : []
  // The leases of the last known state are enough to decide whether a route is a leftover. A running node whose store
  // does not answer has no newer leases either.
  const isKnown = following.listedAt !== undefined || [...node.view.keys()].some((key) => key !== node.lease.key)
  const isUnjudged = backend.isSealed === true && needsLeases && !isKnown && past.length === 0
  const lines = [
    ...held
      .slice(0, NAMED)
      .map(({ device, by, command }) =>
        command !== undefined
          ? `A route of another backend is in the way: ${device} stays, since ${by}; stop that process, or remove the route with \`${command}\``
          : `A device of another backend is in the way: ${device}, which was made for this network, stays, since ${by}; ` +
            `stop that process, or remove the device with \`ip link del ${device}\``,
      ),
    ...failures
      .slice(0, NAMED)
      .map(([what, why]) => `A leftover of another backend cannot be removed: ${what}: ${why}`),
    failures.length > NAMED && `A leftover of another backend cannot be removed: ${failures.length - NAMED} more`,
    own.length > 0 &&
      `Packets to this node's own containers leave this host: by routes that weft did not make: ${routesText(own)}; ` +
        'remove them with `ip route del`',
    past.length > 0 &&
      `Packets to other nodes leave this host unencrypted: by routes that weft did not make: ${routesText(past)}; ` +
        'remove them with `ip route del`, or set "AllowBypass": true in Backend if they are wanted',
    isUnjudged && 'Routes into the network cannot be judged yet: the leases are not known; see that the store answers',
  ]
  setPastPath(
    node,
    lines.filter((line) => line !== false),
  )
}

const routesText = (bypasses: readonly Bypass[]): string => {
  const names = bypasses.slice(0, NAMED).map(({ route }) => route)
  return `${names.join(', ')}${bypasses.length > NAMED ? `, ... (${bypasses.length})` : ''}`
}

/**
 * Sets `node.pastPath` (the routes that bypass the data path), and logs the lines that are new. Clients that may not
 * read the full status see only the part of a line before its first colon.
 */
function setPastPath(node: Node, lines: readonly string[]): void {
  const before = node.pastPath.map(({ line }) => line)
  node.pastPath = lines.map((line) => {
    const at = line.indexOf(': ')
    return { line, what: line.charAt(0).toLowerCase() + line.slice(1, at), why: line.slice(at + 2) }
  })
  for (const line of lines) if (!before.includes(line)) node.log.error(line)
  if (before.length > 0 && lines.length === 0) node.log.info('Nothing leads packets past the data path any more')
}
