// lease.ts - the loop that renews this node's own lease before it expires, and acquires the lease again after it was
// lost.

import { describeError, isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { formatGoDuration, formatGoTime, seldom, type Log } from '../../base/log.ts'
import { isOfOneNode, leasesEqual, type Lease, type LeaseAttrs, type OwnLease } from '../../control/lease/lease.ts'
import { limited } from '../../host/bell.ts'
import {
  FAMILIES,
  familiesOf,
  netsInclude,
  netsText,
  onlyOf,
  type Addresses,
  type Family,
  type Nets,
} from '../../net/address.ts'
import type { Backend } from '../../path/contract.ts'
import { throwUnlessWaiting, waitFor, type Waiter } from '../exit-or-wait.ts'
import type { Node } from '../node.ts'

/**
 * The time in ms for which weftd waits for the store's answer about a public IP that an operator set, if weftd can use
 * an earlier answer instead.
 */
const AMEND_MS = 1_000
/**
 * The shortest pause, in ms, before another try to renew the lease; RENEW_RETRY_MAX_MS is the longest. The pauses are
 * short compared with the hour that remains before the lease expires.
 */
const RENEW_RETRY_MIN_MS = 1_000
const RENEW_RETRY_MAX_MS = 60_000
/**
 * The fraction by which the time of a renewal varies at random, so that nodes which started simultaneously do not renew
 * their leases simultaneously.
 */
const RENEW_JITTER = 0.1
/**
 * An etcd whose storage quota is used up may extend a lease without writing its value. In that case weftd tries to
 * write the value again, and logs the problem again, within UNWRITTEN_MS milliseconds.
 */
const UNWRITTEN_MS = 3_600_000
/**
 * If another process changes or deletes this node's lease twice within DISPUTE_MS milliseconds, weftd pauses before it
 * writes the lease again. The pause doubles from DISPUTE_PAUSE_MIN_MS to DISPUTE_PAUSE_MAX_MS.
 */
const DISPUTE_MS = 600_000
const DISPUTE_PAUSE_MIN_MS = 100
const DISPUTE_PAUSE_MAX_MS = 60_000
/**
 * The longest pause, in ms, before weftd writes this node's lease again if the lease is missing from the store. If most
 * leases vanish from the store at the same time, the peers still use these leases for longer than this pause.
 */
const GONE_PAUSE_MAX_MS = 10_000
/**
 * The interval in ms at which weftd checks the wall clock and the monotonic clock while it waits for the next renewal.
 */
const CLOCKS_MS = 60_000

/**
 * Obtains a lease for this node. If `isForwarding` is true, waits after any failure until an operator has repaired the
 * cause. Otherwise waits only while the store is unreachable.
 */
export async function obtainLease(
  { manager, config, isMine, log, signal }: Pick<Node, 'manager' | 'config' | 'isMine' | 'log' | 'signal'>,
  attrs: LeaseAttrs,
  previous: Nets,
  isForwarding: boolean,
  publish?: Waiter['publish'],
): Promise<OwnLease> {
  const calm = seldom(log)
  const holder = manager.holder(config)
  const find = () => timed(() => holder.obtain(attrs, previous, calm, signal, isMine))
  const waiter = { log, signal, isForwarding: () => isForwarding, ...(publish ? { publish } : {}) }
  return waitFor('a lease', { failure: 'failed to acquire lease: ', find }, waiter)
}

/** Queries the store before this node has a lease. Waits while the store is unreachable. */
export const queryPatiently = <T>(
  what: string,
  query: (signal: AbortSignal) => Promise<T>,
  log: Log,
  signal: AbortSignal,
): Promise<T> => waitFor(what, { failure: `failed to look for ${what}: `, find: () => query(signal) }, { log, signal })

/**
 * Returns the attributes that a node with this public IP published earlier, if the store still has them. If no lease has
 * the public IP, looks for a lease with a subnet of `earlier`, the subnets that this host had in an earlier run.
 */
export function attrsBefore(manager: Node['manager'], log: Log, earlier: Nets = {}) {
  const find = async (publicIp: Addresses, signal: AbortSignal): Promise<LeaseAttrs | undefined> => {
    if (manager.published) return manager.published(signal)
    const { entries } = await manager.source.list(signal)
    const leases = entries.flatMap(({ lease }) => lease ?? [])
    const had = ({ subnet }: Lease): boolean =>
      FAMILIES.some((family) => earlier[family] !== undefined && netsInclude(subnet, onlyOf([family], earlier)))
    return (leases.find(({ attrs }) => isOfOneNode(attrs, { publicIp })) ?? leases.find(had))?.attrs
  }
  return (publicIp: Addresses, stopping: AbortSignal): Promise<LeaseAttrs | undefined> =>
    queryPatiently('an earlier lease', (signal) => find(publicIp, signal), log, stopping)
}

const amendments = new WeakMap<Backend, Backend>()

/**
 * Returns a copy of the backend whose `prepare` publishes the public IP that an operator set for this node. The first
 * call of `prepare` waits for the store. If the store does not answer a later call, that call uses the store's last
 * answer, so that weftd can open a data path again. Two calls of `amended` with the same backend return the same copy.
 */
export function amended(backend: Backend, manager: Node['manager'], log: Log): Backend {
  if (!manager.amend) return backend
  const made = amendments.get(backend) ?? amend(backend, manager, log)
  amendments.set(backend, made)
  amendments.set(made, made) // one query of the store is enough
  return made
}

function amend(backend: Backend, manager: Node['manager'], log: Log): Backend {
  let known: Addresses | undefined
  const calm = seldom(log)
  const late = () =>
    new WeftError('STORE_UNAVAILABLE', `the ${manager.name} store did not answer within ${AMEND_MS / 1000} s`)
  return {
    ...backend,
    get tunNames() {
      return backend.tunNames
    },
    get external() {
      return backend.external
    },
    get sending() {
      return backend.sending
    },
    async prepare(stopping) {
      const attrs = await backend.prepare(stopping)
      const { publicIp } = attrs
      const query = async (signal: AbortSignal): Promise<Addresses> => {
        const { ipv4, ipv6 } = (await manager.amend?.(publicIp, signal)) ?? publicIp
        return { ipv4: ipv4 === publicIp.ipv4 ? undefined : ipv4, ipv6: ipv6 === publicIp.ipv6 ? undefined : ipv6 }
      }
      if (known === undefined) known = await queryPatiently("an operator's public IP", query, log, stopping)
      else
        known = await limited(stopping, AMEND_MS, late, query).catch((error: unknown) => {
          throwUnlessWaiting(error, stopping)
          calm.warn(
            `The store does not say which public IP an annotation gives this node; the last known one is used: ${messageOf(error)}`,
          )
          return known
        })
      return { ...attrs, publicIp: { ipv4: known?.ipv4 ?? publicIp.ipv4, ipv6: known?.ipv6 ?? publicIp.ipv6 } }
    },
  }
}

export async function keepLease(node: Node): Promise<never> {
  let answeredAt = -Infinity
  let pauseMs = 0
  for (;;) {
    const { unwritten } = node.lease
    if (unwritten !== undefined) node.log.error(`The lease was extended, but its value cannot be written: ${unwritten}`)
    const waitMs = renewalWaitMs(node)
    if (waitMs !== undefined) node.log.info(`Waiting for ${formatGoDuration(waitMs)} to renew lease`)
    if (await untilDue(node, waitMs)) {
      // Another host with this node's public IP may overwrite the lease each time after this host has written it.
      // Pause, so that these writes do not overload the store or the log.
      const isAgain = performance.now() - answeredAt < DISPUTE_MS
      pauseMs = isAgain ? Math.min(Math.max(2 * pauseMs, DISPUTE_PAUSE_MIN_MS), DISPUTE_PAUSE_MAX_MS) : 0
      await pauseBefore(node, pauseMs)
      answeredAt = performance.now()
    }
    while (isSuccessors(node)) await node.leaseDoubt.wait(node.signal)
    await renewOrReplace(node)
  }
}

/**
 * Returns true if the successor has written its own lease: with different attributes, or with a different key because
 * the lease is for different families. If this process wrote its lease again, both processes would overwrite each
 * other's lease until the hand-over.
 */
function isSuccessors({ ownership, view, lease }: Node): boolean {
  if (!ownership.hasSuccessor) return false
  const now = view.get(lease.key)
  if (now) return isOfOneNode(now.attrs, lease.attrs) && !leasesEqual(now, lease)
  return [...view.values()].some(({ attrs }) => isOfOneNode(attrs, lease.attrs))
}

/**
 * Runs `write`, and adds to the written lease the time of its expiry by the monotonic clock. The wall clock is not
 * enough, because it may be set later, for example by NTP at boot. If the wall clock is set during the write, the
 * earlier of the two possible times counts.
 */
async function timed(write: () => Promise<OwnLease>): Promise<OwnLease> {
  const monotonicZero = (): number => Date.now() - performance.now()
  const before = monotonicZero()
  const lease = await write()
  const { expiresAt } = lease
  return { ...lease, endsAt: expiresAt === undefined ? undefined : expiresAt - Math.max(before, monotonicZero()) }
}

/** Pauses for `ms` milliseconds, or for at most GONE_PAUSE_MAX_MS if the store does not have this node's lease. */
async function pauseBefore(node: Node, ms: number): Promise<void> {
  const began = performance.now()
  for (;;) {
    const longestMs = node.view.has(node.lease.key) ? ms : Math.min(ms, GONE_PAUSE_MAX_MS)
    const leftMs = began + longestMs - performance.now()
    if (leftMs <= 0) return
    await node.leaseDoubt.wait(node.signal, leftMs)
  }
}

/** Returns the time in ms until the lease must be renewed; undefined if the lease does not expire. */
function renewalWaitMs({ options, lease }: Node): number | undefined {
  const { expiresAt, endsAt = Infinity, unwritten } = lease
  const soonMs = unwritten === undefined ? Infinity : UNWRITTEN_MS * (1 - RENEW_JITTER * Math.random())
  if (expiresAt === undefined) return unwritten === undefined ? undefined : soonMs
  const marginMs = options['subnet-lease-renew-margin'] * 60_000
  const leftMs = Math.max(0, Math.min(expiresAt - Date.now(), endsAt - performance.now()) - marginMs)
  return Math.min(soonMs, leftMs - RENEW_JITTER * Math.random() * Math.min(marginMs, leftMs))
}

/**
 * Waits until another process has changed or deleted this node's lease in the store, or until `waitMs` milliseconds
 * have passed by the wall clock or by the monotonic clock. Both clocks are needed: the monotonic clock and timers stop
 * while the host is suspended, and the wall clock can be set back. Returns true if the lease was changed or deleted.
 */
async function untilDue({ leaseDoubt, signal }: Node, waitMs: number | undefined): Promise<boolean> {
  if (waitMs === undefined) return leaseDoubt.wait(signal)
  const due = performance.now() + waitMs
  const dueByDay = Date.now() + waitMs
  let leftMs = waitMs
  while (leftMs > 0) {
    if (await leaseDoubt.wait(signal, Math.min(leftMs, CLOCKS_MS))) return true
    leftMs = Math.min(due - performance.now(), dueByDay - Date.now())
  }
  return false
}

/**
 * Lists the families in which the node got an address after it acquired its lease, so that it needs a subnet of these
 * families.
 */
const gainedFamilies = ({ config, lease, attrs, manager }: Node): readonly Family[] =>
  FAMILIES.filter(
    (family) =>
      !manager.givesSubnets &&
      config[family] !== undefined &&
      lease.subnet[family] === undefined &&
      lease.attrs.publicIp[family] === undefined &&
      attrs.publicIp[family] !== undefined,
  )

async function renewOrReplace(node: Node): Promise<void> {
  const { log, signal } = node
  if (gainedFamilies(node).length > 0 && (await isExtended(node))) return
  const holder = node.manager.holder(node.config)
  let retryMs = RENEW_RETRY_MIN_MS
  for (;;) {
    try {
      node.lease = await timed(() => holder.renew(node.lease, node.attrs, log, signal))
      node.unrenewed = undefined
      node.learnt.ring()
      return log.info(`Lease renewed, new expiration: ${formatGoTime(node.lease.expiresAt)}`)
    } catch (error) {
      signal.throwIfAborted()
      if (isWeftError(error, 'LEASE_LOST')) {
        log.error(
          `Lease has been revoked: ${describeError(error)}. Acquiring a lease again; forwarding goes on meanwhile.`,
        )
        node.configDoubt.ring()
        return replaceLease(node)
      }
      throwUnlessWaiting(error, signal)
      const again = retryMs < RENEW_RETRY_MAX_MS ? `${retryMs / 1000} s` : '1 min'
      log.error(`Error renewing lease (trying again in ${again}): ${describeError(error)}`)
      node.unrenewed = messageOf(error)
    }
    // If this node's lease has changed during the wait, the store is reachable again, so the pauses between attempts
    // become short again.
    const rang = await node.leaseDoubt.wait(signal, retryMs)
    retryMs = rang ? RENEW_RETRY_MIN_MS : Math.min(2 * retryMs, RENEW_RETRY_MAX_MS)
  }
}

/**
 * Acquires a subnet of a family in which the node has newly got an address. Returns false if that fails; the caller
 * must then renew the lease unchanged.
 */
async function isExtended(node: Node): Promise<boolean> {
  try {
    await replaceLease(node, false)
    return true
  } catch (error) {
    throwUnlessWaiting(error, node.signal)
    node.log.error(`This node keeps the subnets that it has: ${describeError(error)}`)
    return false
  }
}

/**
 * Acquires this node's lost lease again, with the same subnet if that subnet is free. If it is not free, moves the node
 * to another subnet. Waits as obtainLease does.
 */
async function replaceLease(node: Node, isForwarding = true): Promise<void> {
  const { log } = node
  const before = node.lease
  // Without `isForwarding` the store still has the present lease, which the caller keeps after a failure.
  const publish = isForwarding ? (why: string): void => void (node.unrenewed = why) : undefined
  node.lease = await obtainLease(node, node.attrs, before.subnet, isForwarding, publish)
  node.unrenewed = undefined
  node.learnt.ring()
  if (node.lease.key === before.key) return log.info(`Lease of ${netsText(before.subnet)} acquired again`)
  const used = familiesOf(node.config)
  if (netsInclude(onlyOf(used, node.lease.subnet), onlyOf(used, before.subnet)))
    log.info(`This node has ${netsText(node.lease.subnet)} now, for containers that are started from now on`)
  else
    log.warn(
      `This node moves from ${netsText(before.subnet)} to ${netsText(node.lease.subnet)}: ` +
        'containers on the old subnet must be started again',
    )
  node.ownership.recheck.ring()
}
