// both-families.ts - joins the data paths of IPv4 and IPv6 into one. A failure of one family does not stop the other family.
//
// If a family cannot be opened, or its data path fails, the failure is logged and the family is opened again later, while the other family
// continues. The joint data path reports a fault only if all carried families have failed.

import { setImmediate } from 'node:timers/promises'
import { describeError, messageOf, prefixed, WeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import type { Lease, OwnLease } from '../../control/lease/lease.ts'
import type { Run } from '../../host/command.ts'
import type { Watched } from '../../host/events.ts'
import {
  addressChange,
  changeOf,
  mtuChange,
  seeExternal,
  type ExternalInterface,
} from '../../host/external-interface.ts'
import { createTurn } from '../../host/turn.ts'
import { FAMILIES, familiesOf, FAMILY_NAMES, listed, onlyOf, type ByFamily, type Family } from '../../net/address.ts'
import type { DataPath, PathPeer, PathSearching, PathTraffic } from '../contract.ts'
import { checkMtu } from '../device/tun-device.ts'
import type { Engine, OpenPath } from '../engine/engine.ts'

interface FamilyPaths {
  /** The network's configuration by family. A family is carried if the node also has a subnet in it. */
  readonly of: ByFamily<unknown>
  readonly lease: OwnLease
  /** The leases, by key, of the peers that are known before the first `apply`; if it is left out, there are none. */
  readonly leases?: ReadonlyMap<string, Lease>
  /** The longest packet in bytes that containers may send, for both families. */
  readonly mtu: number
  /** Returns the external interface as the backend's last `prepare` found it. */
  readonly external: () => ExternalInterface
  /**
   * Opens the data path of a family on that interface. It starts with the peers of `leases`, if it can set peers before the first packet.
   * When the node publishes other attributes, the member `attrs` of `own` is replaced. The data paths of both families have the same
   * optional members.
   */
  readonly open: (family: Family, own: OwnLease, leases: ReadonlyMap<string, Lease>) => Promise<DataPath>
  /**
   * True if no data path is bound to an address of this host. A changed address is then only published to the peers; otherwise the data
   * path is opened again.
   */
  readonly isUnbound?: boolean
  readonly watched?: Watched
  /** Aborts when the daemon stops. After that, failures of a family are not logged. */
  readonly signal?: AbortSignal
  readonly run: Run
  readonly log: Log
}

type Drops = ReturnType<Engine['drops']>

interface Side {
  readonly path: DataPath
  readonly external: ExternalInterface
  /** The running check of this family's data path, or a completed check whose result `resync` has not yet returned. */
  check?: Work<readonly string[]> | undefined
  transfer?: Promise<void> | undefined
  pending?: Pending | undefined
}

/** The lease keys of the peers that may have changed since the last transfer; if `touched` is left out, all may have. */
interface Pending {
  readonly touched?: ReadonlySet<string> | undefined
}

/** A started piece of work; `result` is set when the promise `done` resolves. */
interface Work<T> {
  readonly done: Promise<void>
  result?: PromiseSettledResult<T>
}

/** Opens the data paths of all families of the network. If no family can be opened, rejects with the first family's reason. */
export async function openFamilies(parts: FamilyPaths): Promise<DataPath> {
  const {
    mtu,
    lease,
    leases: initial = new Map(),
    external,
    open,
    isUnbound = false,
    watched,
    signal,
    run,
    log,
  } = parts
  const families = familiesOf(parts.of).filter((family) => lease.subnet[family])
  const calm = seldom(log)
  const own: { -readonly [Fact in keyof OwnLease]: OwnLease[Fact] } = { ...lease }
  const openedFor = external()
  /** The external interface as this node last published it to the peers. */
  let published = openedFor
  /** Describes how the external interface has changed since its addresses were published; undefined if the interface is unchanged. */
  let move: string | undefined
  /** The data paths by family, including failed ones that are not closed yet. */
  const sides: { [K in Family]?: Side } = {}
  const lacking: { [K in Family]?: string } = {}
  let applied: readonly [leases: Parameters<DataPath['apply']>[0], ownKey: string] | undefined
  /**
   * True if the last check of a family failed or has not returned. The daemon then checks more often, because changes of the family's
   * device may be unnoticed.
   */
  let isUnseen = false
  /** True if the external interface has another name than at the backend's last `prepare`. */
  let isRenamed = false
  let gone: ByFamily<string> = {}
  let isClosed = false
  /** True after `leave` passed the descriptors on, until `takeBack`: another process may forward with them. */
  let isAway = false
  /** The number of entries that each family has in the list `next` of `drops`. */
  const places: { [K in Family]?: number } = {}
  let reportFault!: (reason: Error) => void
  const fault = new Promise<Error>((resolve) => (reportFault = resolve))

  const carried = (): (readonly [Family, Side])[] =>
    FAMILIES.flatMap((family) => {
      const side = lacking[family] === undefined ? sides[family] : undefined
      return side ? [[family, side] as const] : []
    })

  function lack(family: Family, reason: unknown, text: string): void {
    lacking[family] = messageOf(reason)
    if (!signal?.aborted) calm.error(`Cannot carry ${FAMILY_NAMES[family]}, trying again: ${text}`)
  }

  /** Marks these families as failed. If no other family is carried, reports a fault of the joint data path instead. */
  function lose(lost: readonly (readonly [Family, Error])[]): void {
    const [first] = lost
    if (first && carried().length === lost.length) return reportFault(first[1])
    for (const [family, reason] of lost) lack(family, reason, messageOf(reason))
  }

  /** Returns the carried families whose address on the external interface has changed, each with an Error that describes the change. */
  const moved = (now: ExternalInterface): (readonly [Family, Error])[] =>
    carried().flatMap(([family, side]) => {
      const change = addressChange(side.external, now, family)
      return change === undefined ? [] : [[family, new Error(change)] as const]
    })

  /**
   * Gives the applied peers to the data path of one family. If `apply` is called again while a transfer runs, another transfer follows it.
   */
  function transferTo(side: Side, { touched }: Pending): Promise<void> {
    const known = side.pending === undefined ? new Set<string>() : side.pending.touched
    side.pending = { touched: touched && known && new Set([...known, ...touched]) }
    return (side.transfer ??= transferAll(side))
  }
  async function transferAll(side: Side): Promise<void> {
    try {
      for (let { pending } = side; pending; { pending } = side) {
        side.pending = undefined
        if (applied) await side.path.apply(...applied, pending.touched)
      }
    } catch (error) {
      side.pending = {} // it is not known which peers the path has
      throw error
    } finally {
      side.transfer = undefined
    }
  }

  async function openSide(family: Family): Promise<void> {
    if (!isUnbound && external().address[family] === undefined)
      throw new WeftError('ADDRESS', `${external().name} has no ${FAMILY_NAMES[family]} address`, {
        remedy: 'give the interface such an address',
      })
    checkMtu(family, mtu, external().name)
    const side: Side = { external: external(), path: await open(family, own, applied?.[0] ?? initial) }
    try {
      let given: typeof applied
      while (given !== applied) {
        given = applied
        if (given) await side.path.apply(...given) // further peers may be applied in the meantime
      }
    } catch (error) {
      await side.path.close()
      throw error
    }
    sides[family] = side
    delete lacking[family]
    const onFault = (reason: Error): void => {
      if (!isClosed && sides[family] === side && lacking[family] === undefined) lose([[family, reason]])
    }
    void side.path.fault.then(onFault, onFault)
  }

  /** Opens the families that are not carried. If no family is carried afterwards, rejects with the first failure. */
  async function openRest(): Promise<void> {
    const rest = families.filter((family) => !carried().some(([each]) => each === family))
    const done = await Promise.allSettled(rest.map(openSide))
    const failures = done.flatMap((result, at) => {
      const family = rest[at]
      return result.status === 'rejected' && family ? [[family, result.reason as unknown] as const] : []
    })
    const [first] = failures
    if (first && carried().length === 0) throw first[1]
    for (const [family, reason] of failures) lack(family, reason, describeError(reason))
  }

  /**
   * Closes the failed data paths and returns their families. If closing fails, that is only logged, because the data path that is opened
   * next replaces the old one's objects.
   */
  async function closeEnded(): Promise<readonly Family[]> {
    const ended = families.filter((family) => lacking[family] !== undefined)
    for (const family of ended) {
      await sides[family]?.path
        .close()
        .catch((error: unknown) => calm.error(`Cannot close the data path: ${describeError(error)}`))
      delete sides[family]
    }
    return ended
  }

  const nameOf = (family: Family): string => (families.length > 1 ? `${FAMILY_NAMES[family]}: ` : '')

  /** Runs `act` for the data path of each carried family. In a dual-stack network each error message begins with the family's name. */
  async function tryEach<T>(act: (path: DataPath) => Promise<T>): Promise<Tried<T>> {
    const now = carried()
    return triedOf(await Promise.allSettled(now.map(([family, { path }]) => prefixed(nameOf(family), act(path)))))
  }

  /**
   * Checks the data paths of all carried families. If `late` resolves, it returns as soon as one check is complete; the other checks
   * continue, and the next call returns their results.
   */
  async function checkEach(late: Promise<unknown> | undefined): Promise<Tried<readonly string[]>> {
    const now = carried()
    const checks = now.map(([family, side]) => (side.check ??= begin(prefixed(nameOf(family), side.path.resync(late)))))
    await untilLate(checks, late)
    const results = now.flatMap(([, side]) => {
      const result = side.check?.result
      if (result) side.check = undefined
      return result ? [result] : []
    })
    isUnseen = results.length < now.length || results.some(({ status }) => status === 'rejected')
    return triedOf(results)
  }

  await openRest()
  // `next` runs one operation at a time, so that no data path is opened while the data paths are being closed or passed on.
  const next = createTurn()
  const paths = (): readonly DataPath[] => carried().map(([, { path }]) => path)
  const can = (what: keyof DataPath): boolean => paths().every((path) => path[what] !== undefined)
  /** Waits until no check and no transfer of peers is running, because neither may change a data path after it was passed on. */
  async function untilIdle(): Promise<void> {
    for (;;) {
      const works = carried().flatMap(([, { check, transfer }]) => [
        ...(check && !check.result ? [check.done] : []),
        ...(transfer ? [transfer] : []),
      ])
      if (works.length === 0) return
      await Promise.allSettled(works)
    }
  }
  const leave = (): Promise<readonly OpenPath[]> =>
    next(async () => {
      // Setting `isAway` prevents new checks, which would repair objects that another process now owns. A check that has only read the
      // addresses so far stops too.
      isAway = true
      let left: readonly OpenPath[] = []
      try {
        await untilIdle()
        await closeEnded()
        left = (await Promise.all(paths().map(async (path) => (await path.leave?.()) ?? []))).flat()
        return left
      } finally {
        isAway = left.length > 0
      }
    })
  const takeBack = (): Promise<void> =>
    next(async () => {
      isAway = false
      await Promise.all(paths().map(async (path) => path.takeBack?.()))
    })
  /**
   * Returns the dropped packets of all families. The list `next` has the entries of one family after those of the other, and a family that
   * is not open keeps its entries.
   */
  function drops(after: readonly number[] = []): Drops {
    const [then, packets]: [number[], Drops['packets'][number][]] = [[], []]
    for (const family of families) {
      const its = after.slice(then.length)
      const dropped = sides[family]?.path.drops?.(its) ?? { next: its.slice(0, places[family] ?? 0), packets: [] }
      places[family] = dropped.next.length
      then.push(...dropped.next)
      packets.push(...dropped.packets)
    }
    return { next: then, packets }
  }
  const pathSearch: PathSearching = {
    knownMtu(key, family) {
      const bytes = sides[family]?.path.pathSearch?.knownMtu(key, family)
      return bytes && Math.min(bytes, mtu)
    },
    ...(paths().every((path) => path.pathSearch && 'limit' in path.pathSearch)
      ? { limit: (bytes, family) => sides[family]?.path.pathSearch?.limit?.(bytes, family) }
      : {}),
  }
  return {
    mtu,
    get tunNames() {
      const names = paths().flatMap((path) => path.tunNames ?? [])
      return names.length > 0 ? names : undefined
    },
    fault,
    ...(watched ? { watched } : {}),
    get unreported() {
      return isUnseen || carried().length < families.length || carried().some(([, { path }]) => path.unreported)
    },
    get lacking() {
      // The data path of one family may itself carry both families, and then reports a missing family in its own `lacking`.
      return { ...Object.assign({}, ...carried().map(([, { path }]) => path.lacking)), ...lacking }
    },
    gone: () => gone,
    get isOutdated() {
      return isRenamed || move !== undefined || familiesOf(lacking).length > 0
    },
    get isBehind() {
      return carried().some(([, { transfer, pending }]) => transfer !== undefined || pending !== undefined)
    },
    async apply(leases, ownKey, touched, late) {
      applied = [leases, ownKey]
      const each = carried().map(([family, side]) => begin(prefixed(nameOf(family), transferTo(side, { touched }))))
      await untilLate(each, late)
      const { failures } = triedOf(each.flatMap(({ result }) => result ?? []))
      if (failures.length > 0 && failures.length === each.length) throw failures[0]
      for (const one of each)
        void one.done.then(() => {
          if (one.result?.status === 'rejected')
            calm.error(`Cannot set the peers of the data path: ${describeError(one.result.reason)}; trying again`)
        })
    },
    async resync(late) {
      const { now, gone: missing } = await seeExternal(run, external())
      gone = onlyOf(familiesOf(parts.of), missing)
      // If the data path is closed or passed on, the successor may already have devices with these names, which a check would change.
      if (isClosed || isAway) return []
      // The data path must be opened again after a change of the MTU, or after the external interface's first address in a family that the
      // node lacked.
      const came = familiesOf(parts.of).find(
        (family) => !families.includes(family) && openedFor.address[family] === undefined,
      )
      const isOther = mtuChange(openedFor, now) ?? (came && addressChange(openedFor, now, came)) // the node may get a subnet of this family now
      if (isOther !== undefined) {
        reportFault(new Error(isOther))
        return []
      }
      isRenamed = now.name !== external().name
      if (isUnbound) move = changeOf(published, now)
      else lose(moved(now))
      const { values, failures } = await checkEach(late)
      if (values.length === 0 && failures.length > 0) throw failures[0]
      for (const failure of failures) calm.error(`Cannot check the device: ${describeError(failure)}`)
      await setImmediate() // lets a fault that the checks found be reported first
      return values.flat()
    },
    renew: (attrs) =>
      next(async () => {
        if (isClosed || isAway) return
        own.attrs = attrs
        if (move !== undefined) log.info(`Publishing a change to the peers: ${move}`)
        ;[published, move, isRenamed] = [external(), undefined, false]
        const ended = await closeEnded()
        if (isClosed) return
        await openRest()
        for (const family of ended)
          if (lacking[family] === undefined) log.info(`${FAMILY_NAMES[family]} is carried again`)
      }),
    carrier() {
      const all = FAMILIES.flatMap((family) => {
        const carrier = sides[family]?.path.carrier()
        return carrier ? [{ carrier, devices: carrier.devices ?? { [family]: carrier.device } }] : []
      })
      const [first] = all
      if (!first) return { engine: 'kernel', features: [] }
      return { ...first.carrier, devices: Object.assign({}, ...all.map(({ devices }) => devices)) as ByFamily<string> }
    },
    get probeSource() {
      const sources = carried().map(([, { path }]) => path.probeSource)
      return {
        ipv4: sources.find((source) => source?.ipv4 !== undefined)?.ipv4,
        ipv6: sources.find((source) => source?.ipv6 !== undefined)?.ipv6,
      }
    },
    peers: () => mergePeers(carried().flatMap(([, { path }]) => path.peers())),
    ...(can('peer') ? { peer: (key: string) => mergePeers(paths().flatMap((path) => path.peer?.(key) ?? []))[0] } : {}),
    async traffic() {
      const { values, failures } = await tryEach(async (path) => [...((await path.traffic?.()) ?? [])])
      if (values.length === 0 && failures.length > 0) throw failures[0]
      return sumTraffic(values.flat())
    },
    ...(can('unknownKeys') ? { unknownKeys: () => paths().flatMap((path) => path.unknownKeys?.() ?? []) } : {}),
    counters: () => sumCounters(carried().flatMap(([, { path }]) => Object.entries(path.counters()))),
    ...(can('pathMtu')
      ? { pathMtu: (peer: Lease, family: Family) => sides[family]?.path.pathMtu?.(peer, family) }
      : {}),
    ...(can('pathSearch') ? { pathSearch } : {}),
    ...(can('drops') ? { drops } : {}),
    threads: () =>
      Object.fromEntries(
        carried().flatMap(([family, { path }]) =>
          Object.entries(path.threads()).map(([name, rounds]) => [nameOf(family) + name, rounds] as const),
        ),
      ),
    look: () => paths().forEach((path) => path.look?.()),
    ...(can('leave') ? { leave } : {}),
    ...(can('takeBack') ? { takeBack } : {}),
    close() {
      isClosed = true
      return next(async () => {
        const done = await Promise.allSettled(listed(sides).map(({ path }) => path.close()))
        for (const result of done) if (result.status === 'rejected') throw result.reason
      })
    },
  }
}

interface Tried<T> {
  readonly values: readonly T[]
  readonly failures: readonly unknown[]
}

const triedOf = <T>(done: readonly PromiseSettledResult<T>[]): Tried<T> => ({
  values: done.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : [])),
  failures: done.flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : [])),
})

function begin<T>(work: Promise<T>): Work<T> {
  const running: Work<T> = { done: Promise.allSettled([work]).then(([result]) => void (running.result = result)) }
  return running
}

/** Waits until all works are done. After `late` has resolved, it waits only until one work is done. */
async function untilLate(works: readonly Work<unknown>[], late: Promise<unknown> | undefined): Promise<void> {
  const [all, one] = [Promise.all(works.map(({ done }) => done)), Promise.race(works.map(({ done }) => done))]
  await (late ? Promise.race([all, Promise.all([one, late])]) : all)
}

function mergePeers(sides: readonly PathPeer[]): readonly PathPeer[] {
  const byKey = new Map<string, PathPeer>()
  for (const side of sides) byKey.set(side.key, { ...byKey.get(side.key), ...side })
  return [...byKey.values()]
}

const plus = (a: number | undefined, b: number | undefined): number | undefined =>
  a === undefined ? b : b === undefined ? a : a + b

/** Adds the traffic that several data paths counted for the same peer, by lease key. `lastReceivedAt` is the latest one. */
function sumTraffic(counted: readonly (readonly [string, PathTraffic])[]): ReadonlyMap<string, PathTraffic> {
  const sums = new Map<string, PathTraffic>()
  for (const [key, one] of counted) {
    const other = sums.get(key)
    sums.set(key, {
      txPackets: plus(one.txPackets, other?.txPackets),
      txBytes: plus(one.txBytes, other?.txBytes),
      rxPackets: plus(one.rxPackets, other?.rxPackets),
      rxBytes: plus(one.rxBytes, other?.rxBytes),
      lastReceivedAt: latest(one.lastReceivedAt, other?.lastReceivedAt),
      ...(one.sessions || other?.sessions ? { sessions: { ...one.sessions, ...other?.sessions } } : {}),
    })
  }
  return sums
}
const latest = (a: number | undefined, b: number | undefined): number | undefined =>
  a === undefined || b === undefined ? (a ?? b) : Math.max(a, b)

function sumCounters(entries: readonly (readonly [string, bigint])[]): Readonly<Record<string, bigint>> {
  const sums: Record<string, bigint> = {}
  for (const [name, count] of entries) sums[name] = (sums[name] ?? 0n) + count
  return sums
}
