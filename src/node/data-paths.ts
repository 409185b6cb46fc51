// data-paths.ts - the data paths of a node as a list. A fault of one data path does not stop the other data paths.
//
// Most backends have one data path for both families; all other backends have one data path for each family. If a data
// path cannot be opened, or fails, weftd logs the failure and opens the path again later. The list as a whole fails
// only if all open paths fail.

import { setImmediate } from 'node:timers/promises'
import { describeError, messageOf, prefixed } from '../base/errors.ts'
import { seldom, type Log } from '../base/log.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../control/lease/lease.ts'
import { createTurn } from '../host/bell.ts'
import type { Watched } from '../host/events.ts'
import {
  addressChange,
  mtuChange,
  publicIpCame,
  seeExternal,
  sendingFromPublicIp,
  type ExternalInterface,
} from '../host/external-interface.ts'
import type { HostKernel } from '../host/kernel.ts'
import { FAMILIES, FAMILY_NAMES, onlyOf, type Addresses, type ByFamily, type Family } from '../net/address.ts'
import type {
  Backend,
  DataPath,
  FastPath,
  HandoverSide,
  Observing,
  PathPeer,
  PathSearching,
  PathTraffic,
  PlannedPath,
  Underlays,
  UnknownKey,
} from '../path/contract.ts'
import type { Engine, OpenPath } from '../path/engine/engine.ts'
import { mergePeers, SteadyTraffic, sumCounters, sumTraffic } from '../path/sums.ts'

interface DataPathsParts {
  readonly backend: Pick<Backend, 'plan' | 'external' | 'sending'>
  readonly lease: OwnLease
  readonly leases: ReadonlyMap<string, Lease>
  /**
   * The lease keys of the peers to which weftd sends over the second underlay family, because the preferred family
   * failed.
   */
  readonly others?: readonly string[] | undefined
  /** Aborts when the daemon stops. After that, failures of a data path are not logged. */
  readonly signal: AbortSignal
  readonly kernel: HostKernel
  readonly log: Log
}

/**
 * Opens the data paths that the backend plans. If none of them can be opened, rejects with the reason of the first
 * failure.
 */
export async function openDataPaths(parts: DataPathsParts): Promise<DataPaths> {
  const paths = new DataPaths(parts)
  await paths.open()
  return paths
}

interface Applied {
  readonly leases: ReadonlyMap<string, Lease>
  readonly ownKey: string
}

/** An operation that was started; `result` is set before the promise `done` resolves. */
interface Work<T> {
  readonly done: Promise<void>
  result?: PromiseSettledResult<T>
}

/**
 * One planned data path: the open path if there is one, the peers that the open path lacks, and the running check of
 * the path.
 */
class PathPart {
  readonly plan: PlannedPath
  /** The families of this planned data path in which the node has a subnet. */
  readonly families: readonly Family[]
  /**
   * The text that names the data path at the beginning of its error messages and thread names; empty if the node has
   * only one data path.
   */
  readonly prefix: string
  /**
   * The open data path; undefined if there is none. A data path that has failed stays in this member until it is
   * closed.
   */
  path: DataPath | undefined
  /** The external interface for which `path` was opened. */
  external: ExternalInterface | undefined
  /** `Backend.sending` when `path` was opened. */
  sending: ExternalInterface | undefined
  /** Why this data path does not carry its families; undefined if it carries them. */
  lacking: string | undefined
  /** The traffic counts of each peer, which do not decrease if this data path is opened again. */
  readonly traffic = new SteadyTraffic()
  /** The sums of the final counters of the earlier data paths of this part, which were closed. */
  #counted: Readonly<Record<string, bigint>> = {}
  /** The length of this data path's part of the list `next` that `drops` returned last. */
  places = 0
  /** Why the last check of the data path failed; undefined if the check succeeded. */
  failure: string | undefined
  /** The running check of the data path, or a completed check whose result `takeCheck` has not returned yet. */
  #check: Work<readonly string[]> | undefined
  /** The running task that sets the peers in the data path; undefined if none runs. */
  #transfer: Promise<void> | undefined
  /**
   * The lease keys of the peers that may have changed since the data path last got its peers. `all` means that every
   * key may differ; undefined means that the data path has all peers.
   */
  #pending: ReadonlySet<string> | 'all' | undefined

  constructor(plan: PlannedPath, families: readonly Family[], isOnly: boolean) {
    this.plan = plan
    this.families = families
    this.prefix = isOnly ? '' : `${this.name}: `
  }

  get name(): string {
    return this.families.map((family) => FAMILY_NAMES[family]).join(' and ')
  }

  /** The open data path; undefined if there is none or if it has failed. */
  get carried(): DataPath | undefined {
    return this.lacking === undefined ? this.path : undefined
  }

  /**
   * True while the data path lacks some of the peers that the last call of `apply` wanted, because the data path is
   * slow or has failed.
   */
  get isBehind(): boolean {
    return this.#transfer !== undefined || this.#pending !== undefined
  }

  /**
   * Returns the counters of this data path and of the earlier data paths of this part. So the sums over all data paths
   * do not decrease if one of several data paths is opened again.
   */
  counters(): Readonly<Record<string, bigint>> {
    return sumCounters([this.#counted, this.path?.counters() ?? {}])
  }

  /** Forgets the data path, which has been closed, but keeps its counters. */
  clear(): void {
    this.#counted = this.counters()
    this.path = undefined
    this.failure = undefined
    this.#check = undefined
    this.#transfer = undefined
    this.#pending = undefined
  }

  /**
   * Passes to the data path the peers that the last call of `apply` wanted. `wanted` returns these peers, or undefined
   * after `close`. If this task is running already, a second one follows it.
   */
  transfer(wanted: () => Applied | undefined, touched: ReadonlySet<string> | undefined): Work<void> {
    const pending = this.#pending ?? new Set<string>()
    this.#pending = touched && pending !== 'all' ? new Set([...pending, ...touched]) : 'all'
    return begin(prefixed(this.prefix, (this.#transfer ??= this.#transferAll(wanted))))
  }

  async #transferAll(wanted: () => Applied | undefined): Promise<void> {
    const { path } = this
    try {
      // A data path that has failed may complete a transfer after weftd has opened a new one in its place. In that case
      // stop, because the new data path has its own transfers.
      while (this.path === path && this.#pending !== undefined) {
        const touched = this.#pending === 'all' ? undefined : this.#pending
        this.#pending = undefined
        const applied = wanted()
        if (applied) await path?.apply(applied.leases, applied.ownKey, touched)
      }
    } catch (error) {
      if (this.path === path) this.#pending = 'all' // weftd does not know which peers the path has
      throw error
    } finally {
      if (this.path === path) this.#transfer = undefined
    }
  }

  /**
   * Starts a check of the data path. If an earlier check has a result that `takeCheck` has not returned yet, returns
   * that check instead.
   */
  check(path: DataPath, late: Promise<unknown> | undefined): Work<readonly string[]> {
    return (this.#check ??= begin(prefixed(this.prefix, path.resync(late))))
  }

  /** Returns the result of the check of the data path, only once; undefined while the check runs. */
  takeCheck(): PromiseSettledResult<readonly string[]> | undefined {
    const result = this.#check?.result
    if (!result) return undefined
    this.#check = undefined
    this.failure = result.status === 'rejected' ? messageOf(result.reason) : undefined
    return result
  }

  /** Returns the check and the transfer of peers that are running. */
  running(): readonly Promise<unknown>[] {
    const check = this.#check && !this.#check.result ? [this.#check.done] : []
    return this.#transfer ? [...check, this.#transfer] : check
  }
}

type Drops = ReturnType<Engine['drops']>

const trafficOf = async (path: DataPath, keys?: ReadonlySet<string>): Promise<ReadonlyMap<string, PathTraffic>> =>
  (await path.counting?.traffic(keys)) ?? new Map()

/** Returns the families in which the planned data path is bound to an address of the external interface. */
const boundTo = ({ external }: PlannedPath): readonly Family[] => (external?.isBound ? external.families : [])

export class DataPaths {
  /**
   * The length in bytes of the longest packet that containers may send; weftd writes it to subnet.env as FLANNEL_MTU.
   */
  readonly mtu: number
  /** The kernel objects, other than links, addresses and routes, whose changes can affect the data paths. */
  readonly watched: readonly Watched[]
  /**
   * Resolves with the reason if all data paths stop working, or if all must be opened again. Otherwise it stays
   * pending.
   */
  readonly fault: Promise<Error>
  readonly #backend: DataPathsParts['backend']
  /** The data paths that the backend planned, including data paths of families in which the node has no subnet. */
  readonly #plan: readonly PlannedPath[]
  /** The planned data paths of families in which the node has a subnet. */
  readonly #parts: readonly PathPart[]
  /** This node's lease. The open data paths refer to this object; `renew` replaces its attributes. */
  readonly #own: { -readonly [Fact in keyof OwnLease]: OwnLease[Fact] }
  /** The peers that are known before the first call of `apply`. */
  readonly #initial: ReadonlyMap<string, Lease>
  readonly #others: readonly string[] | undefined
  readonly #signal: AbortSignal
  readonly #kernel: HostKernel
  readonly #log: Log
  /** A log that drops repeated lines. */
  readonly #calm: Log
  /**
   * Runs one operation at a time, so that no data path is opened while data paths are being closed or passed to the
   * next process.
   */
  readonly #next = createTurn()
  /** Resolves the promise `fault` with the reason. */
  #reportFault!: (reason: Error) => void
  readonly #plannedFor: ExternalInterface
  /** The external interface as this node last published it to the peers. */
  #published: ExternalInterface
  /** Describes a changed address that must be published to the peers; undefined if no address has changed. */
  #move: string | undefined
  /** True if the external interface has another name than at the backend's last `prepare`. */
  #isRenamed = false
  /** The families whose address was missing from the external interface at the last check, each with the reason. */
  #gone: ByFamily<string> = {}
  /**
   * The path MTUs that the search for the longest packet (loops/path-search.ts) set last, by family. weftd sets them
   * again in a data path that it opens again.
   */
  readonly #limits: { [F in Family]?: ReadonlyMap<string, number> } = {}
  #applied: Applied | undefined
  /** The number of calls of `traffic` so far. */
  #trafficCalls = 0
  /**
   * True if the last check of a data path failed or has not ended. The daemon then checks more often, because changes
   * of the data path's device may have gone unnoticed.
   */
  #isUnseen = false
  /**
   * True after `fault` has resolved. After that the data paths are not checked any more, because the caller opens all
   * of them again.
   */
  #hasFailed = false
  /** True after `close` was called. After that no data path is opened or repaired any more. */
  #isClosed = false
  /**
   * True between `leave`, which passed the descriptors to the next process, and `takeBack`. Meanwhile the next process
   * may forward with these descriptors.
   */
  #isAway = false

  constructor({ backend, lease, leases, others, signal, kernel, log }: DataPathsParts) {
    this.#backend = backend
    this.#plan = backend.plan(lease)
    const planned = this.#plan.map((plan) => [plan, plan.families.filter((family) => lease.subnet[family])] as const)
    const leased = planned.filter(([, families]) => families.length > 0)
    this.#parts = leased.map(([plan, families]) => new PathPart(plan, families, leased.length === 1))
    this.mtu = Math.min(...this.#plan.map(({ mtu }) => mtu))
    this.watched = [...new Set(this.#plan.flatMap(({ watched }) => watched ?? []))]
    this.fault = new Promise((resolve) => (this.#reportFault = resolve))
    this.#own = { ...lease }
    this.#initial = leases
    this.#others = others
    this.#signal = signal
    this.#kernel = kernel
    this.#log = log
    this.#calm = seldom(log)
    this.#plannedFor = backend.external
    this.#published = this.#plannedFor
  }

  /** Opens the data paths that are not open. If no data path is open afterwards, rejects with the first failure. */
  async open(): Promise<void> {
    const rest = this.#parts.filter(({ carried }) => !carried)
    const done = await Promise.allSettled(rest.map((part) => this.#openPart(part)))
    const failures = done.flatMap((result, at) => {
      const part = rest[at]
      return result.status === 'rejected' && part ? [[part, result.reason as unknown] as const] : []
    })
    const [first] = failures
    if (first && this.#carried().length === 0) throw first[1]
    for (const [part, reason] of failures) this.#lack(part, reason, describeError(reason))
  }

  async #openPart(part: PathPart): Promise<void> {
    const { external, sending } = this.#backend
    const known = this.#applied?.leases ?? this.#initial
    const path = await part.plan.open(this.#own, known, this.#signal, this.#others)
    try {
      let given: Applied | undefined
      while (given !== this.#applied) {
        given = this.#applied
        if (given) await path.apply(given.leases, given.ownKey) // further peers may be applied in the meantime
      }
      for (const family of part.families) {
        const limits = this.#limits[family]
        if (limits) path.observing?.pathSearch.limit?.(limits, family)
      }
    } catch (error) {
      await path.close()
      throw error
    }
    Object.assign(part, { path, external, sending, lacking: undefined })
    const onFault = (reason: Error): void => {
      if (!this.#isClosed && part.carried === path) this.#lose([[part, reason]])
    }
    void path.fault.then(onFault, onFault)
  }

  /** Returns the open data paths that have not failed, each with the PathPart to which it belongs. */
  #carried(): readonly (readonly [PathPart, DataPath])[] {
    return this.#parts.flatMap((part) => (part.carried ? [[part, part.carried] as const] : []))
  }

  #paths(): readonly DataPath[] {
    return this.#carried().map(([, path]) => path)
  }

  /**
   * Returns the open data paths whose packets an engine of weft carries, each with the PathPart to which it belongs.
   */
  #observed(): readonly (readonly [PathPart, Observing])[] {
    return this.#carried().flatMap(([part, { observing }]) => (observing ? [[part, observing] as const] : []))
  }

  #pathOf(family: Family): DataPath | undefined {
    return this.#parts.find(({ families }) => families.includes(family))?.carried
  }

  #lack(part: PathPart, reason: unknown, text: string): void {
    part.lacking = messageOf(reason)
    if (!this.#signal.aborted) this.#calm.error(`Cannot carry ${part.name}, trying again: ${text}`)
  }

  /**
   * Marks each data path of `lost` as failed, for the reason in `lost`. If `lost` has all open data paths, the whole
   * list fails instead.
   */
  #lose(lost: readonly (readonly [PathPart, Error])[]): void {
    const [first] = lost
    if (first && this.#carried().length === lost.length) return this.#fail(first[1])
    for (const [part, reason] of lost) this.#lack(part, reason, messageOf(reason))
  }

  #fail(reason: Error): void {
    this.#hasFailed = true
    this.#reportFault(reason)
  }

  /** The families that the data paths carry, or could carry after a repair. */
  get families(): readonly Family[] {
    const all = new Set(
      this.#plan.flatMap((plan) => this.#parts.find((part) => part.plan === plan)?.path?.families ?? plan.families),
    )
    return FAMILIES.filter((family) => all.has(family))
  }

  /**
   * The families that the network has but no data path carries, each with the reason. At least one family is carried.
   */
  get lacking(): ByFamily<string> {
    const ours = this.#parts.flatMap(({ families, lacking }) =>
      lacking === undefined ? [] : families.map((family) => [family, lacking] as const),
    )
    // If one data path carries both families, its own `lacking` has the family that it cannot carry now.
    return { ...Object.assign({}, ...this.#paths().map((path) => path.adapting?.lacking)), ...Object.fromEntries(ours) }
  }

  /**
   * Returns the families whose address was missing from the external interface at the last `resync`, each with the
   * reason. The sockets of these families stay open, because a family works again as soon as the interface has its
   * address again.
   */
  gone(): ByFamily<string> {
    return this.#gone
  }

  /**
   * True if the daemon must call `renew`, because a family has no data path, or because the node's address or the
   * interface's name has changed.
   */
  get isOutdated(): boolean {
    return (
      this.#isRenamed ||
      this.#move !== undefined ||
      this.#parts.some(({ lacking }) => lacking !== undefined) ||
      this.#paths().some((path) => path.adapting?.isOutdated)
    )
  }

  /**
   * True while a data path lacks some of the peers that the last call of `apply` wanted, because the data path is slow
   * or has failed. The next `apply` also gives the missing peers to this data path.
   */
  get isBehind(): boolean {
    return this.#carried().some(([part]) => part.isBehind)
  }

  /** The reason of each data path whose last check failed; empty if all last checks succeeded. */
  get failures(): readonly string[] {
    return this.#parts.flatMap(({ failure }) => failure ?? [])
  }

  /** True if changes of the data paths can go unnoticed. The daemon then calls `resync` more often. */
  get unreported(): boolean {
    const isUnreported = this.#parts.some(({ plan }) => plan.isUnreported)
    return this.#isUnseen || isUnreported || this.#carried().length < this.#parts.length
  }

  /**
   * Makes the peers of the data paths equal to `leases` (by lease key), except this node's own lease. Skips and counts
   * unusable leases. `touched` lists the keys that may differ from the last call; if it is left out, all keys may
   * differ. After `late` resolves, the call no longer waits for a slow data path, which completes later; `isBehind` is
   * true until then.
   */
  async apply(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: ReadonlySet<string>,
    late?: Promise<unknown>,
  ): Promise<void> {
    if (this.#isClosed) return
    this.#applied = { leases, ownKey }
    // A queued update of the peers must not begin after `close`, because a successor may have set its own peers.
    const wanted = (): Applied | undefined => (this.#isClosed ? undefined : this.#applied)
    const each = this.#carried().map(([part]) => part.transfer(wanted, touched))
    await untilLate(each, late)
    const { failures } = triedOf(each.flatMap(({ result }) => result ?? []))
    if (failures.length > 0 && failures.length === each.length) throw failures[0]
    for (const one of each)
      void one.done.then(() => {
        if (one.result?.status === 'rejected')
          this.#calm.error(`Cannot set the peers of the data path: ${describeError(one.result.reason)}; trying again`)
      })
  }

  /**
   * Repairs the devices, addresses and routes of the data paths, and returns a description of each repair. After `late`
   * resolves, the call no longer waits for a slow data path; the next call returns that data path's repairs.
   */
  async resync(late?: Promise<unknown>): Promise<readonly string[]> {
    if (this.#plan.some(({ external }) => external)) await this.#checkExternal()
    // Do not check data paths that are closed or passed to the next process. That process may already have devices with
    // the same names, which a check would change.
    if (this.#isClosed || this.#isAway || this.#hasFailed) return []
    const { values, failures } = await this.#checkEach(late)
    if (values.length === 0 && failures.length > 0) throw failures[0]
    for (const failure of failures) this.#calm.error(`Cannot check the device: ${describeError(failure)}`)
    if (this.#parts.length > 1) await setImmediate() // `lacking` then has the paths that the checks found to have failed
    return values.flat()
  }

  /**
   * Compares the external interface with its state when the data paths were opened and when this node's addresses were
   * published.
   */
  async #checkExternal(): Promise<void> {
    const { now, gone } = await seeExternal(this.#kernel, this.#backend.external)
    const sending = this.#backend.sending && (await sendingFromPublicIp(this.#kernel, now))
    this.#gone = onlyOf(
      this.#plan.flatMap(({ external }) => external?.families ?? []),
      gone,
    )
    if (this.#isClosed || this.#isAway) return
    const change = this.#changeForAll(now)
    if (change !== undefined) return this.#fail(new Error(change))
    this.#isRenamed = now.name !== this.#backend.external.name
    this.#lose(
      this.#carried().flatMap(([part]) => {
        const [moved] = boundTo(part.plan).flatMap(
          (family) =>
            addressChange(part.external ?? this.#plannedFor, now, family) ??
            publicIpCame(part.sending, sending, family) ??
            [],
        )
        return moved === undefined ? [] : [[part, new Error(moved)] as const]
      }),
    )
    const bound = new Set(this.#plan.flatMap(boundTo))
    const unbound = FAMILIES.filter((family) => !bound.has(family))
    this.#move = unbound.flatMap((family) => addressChange(this.#published, now, family) ?? [])[0]
  }

  /**
   * Describes a change after which all data paths must be opened again: another MTU of the external interface, or the
   * interface's first address in a family in which the node has no subnet yet.
   */
  #changeForAll(now: ExternalInterface): string | undefined {
    const before = this.#plannedFor
    const leased = new Set(this.#parts.map(({ plan }) => plan))
    const idle = this.#plan.filter((plan) => !leased.has(plan)).flatMap(({ families }) => families)
    const came = idle.find((family) => before.address[family] === undefined)
    return (
      mtuChange(before, now) ?? (came && addressChange(before, now, came)) // the node may get a subnet of this family now
    )
  }

  /**
   * Checks all open data paths. After `late` resolves, returns as soon as one check is complete; the remaining checks
   * continue, and the next call returns their results.
   */
  async #checkEach(late: Promise<unknown> | undefined): Promise<Tried<readonly string[]>> {
    const now = this.#carried()
    await untilLate(
      now.map(([part, path]) => part.check(path, late)),
      late,
    )
    const results = now.flatMap(([part]) => part.takeCheck() ?? [])
    this.#isUnseen = results.length < now.length || results.some(({ status }) => status === 'rejected')
    return triedOf(results)
  }

  /**
   * Adapts the open data paths to the result of the backend's last `prepare`; `attrs` are the attributes that the lease
   * now publishes. Opens missing data paths and leaves open data paths unchanged. If a data path cannot be opened, logs
   * the reason; it stays missing.
   */
  renew(attrs: LeaseAttrs): Promise<void> {
    return this.#next(async () => {
      if (this.#isClosed || this.#isAway) return
      this.#own.attrs = attrs
      if (this.#move !== undefined) this.#log.info(`Publishing a change to the peers: ${this.#move}`)
      this.#move = undefined
      this.#isRenamed = false
      this.#published = this.#backend.external
      for (const path of this.#paths()) await path.adapting?.renew(this.#published)
      const ended = await this.#closeEnded()
      if (this.#isClosed) return
      await this.open()
      for (const part of ended) if (part.lacking === undefined) this.#log.info(`${part.name} is carried again`)
    })
  }

  /**
   * Closes the failed data paths and returns their PathParts. Only logs a failure to close, because the data path that
   * is opened next replaces the objects of the failed data path.
   */
  async #closeEnded(): Promise<readonly PathPart[]> {
    const ended = this.#parts.filter(({ lacking }) => lacking !== undefined)
    for (const part of ended) {
      await part.path
        ?.close()
        .catch((error: unknown) => this.#calm.error(`Cannot close the data path: ${describeError(error)}`))
      part.clear()
    }
    return ended
  }

  carrier(): ReturnType<DataPath['carrier']> {
    const open = this.#parts.flatMap(({ path, plan }) =>
      path ? [{ carrier: path.carrier(), families: plan.families }] : [],
    )
    const [first] = open
    if (!first) return { engine: 'kernel', features: [] }
    if (this.#plan.length === 1) return first.carrier
    const devices = open.map(
      ({ carrier, families }) =>
        carrier.devices ?? Object.fromEntries(families.map((family) => [family, carrier.device])),
    )
    return { ...first.carrier, devices: Object.assign({}, ...devices) as ByFamily<string> }
  }

  /** The names of the engines' TUN devices; undefined if the kernel carries the packets. */
  get tunNames(): readonly string[] | undefined {
    const names = this.#observed().flatMap(([, { tunNames }]) => tunNames)
    return names.length > 0 ? names : undefined
  }

  /**
   * This host's address in each family, from which the daemon sends probes to peers; empty if the daemon cannot probe
   * peers.
   */
  get probeSource(): Addresses {
    const sources = this.#paths().map(({ probing }) => probing?.source)
    return {
      ipv4: sources.find((source) => source?.ipv4 !== undefined)?.ipv4,
      ipv6: sources.find((source) => source?.ipv6 !== undefined)?.ipv6,
    }
  }

  /** Lists the peers that the data paths have. Leaves out leases that are unusable, and peers that could not be set. */
  peers(): readonly PathPeer[] {
    return mergePeers(this.#paths().map((path) => path.peers()))
  }

  /**
   * Returns the peer with this lease key. The getter is undefined if looking up one peer would cost as much as listing
   * all peers.
   */
  get peer(): ((key: string) => PathPeer | undefined) | undefined {
    if (!this.#can('observing')) return undefined
    return (key) => mergePeers(this.#observed().map(([, observing]) => asList(observing.peer(key))))[0]
  }

  /**
   * Returns the traffic with each peer, by lease key, counted since the peer was added. If `keys` is given, the result
   * may lack all peers except those with these lease keys.
   */
  async traffic(keys?: ReadonlySet<string>): Promise<ReadonlyMap<string, PathTraffic>> {
    const at = ++this.#trafficCalls
    const works = new Map(
      this.#carried().map(([part, path]) => [part, begin(prefixed(part.prefix, trafficOf(path, keys)))] as const),
    )
    await untilLate([...works.values()], undefined)
    const { values, failures } = triedOf([...works.values()].flatMap(({ result }) => result ?? []))
    if (values.length === 0 && failures.length > 0) throw failures[0]
    const [only, ...others] = this.#parts
    if (only && others.length === 0) return values[0] ?? new Map()
    const listed = this.#parts.flatMap((part) => {
      const result = works.get(part)?.result
      const isReported = result?.status === 'fulfilled'
      if (isReported) part.traffic.take(result.value, keys === undefined, at)
      return part.traffic.list(keys, isReported)
    })
    return sumTraffic(listed)
  }

  /**
   * Returns a sample of the public keys that other hosts used in handshakes, but that belong to no peer; undefined if
   * the data paths do not see handshakes.
   */
  get unknownKeys(): (() => readonly UnknownKey[]) | undefined {
    if (!this.#can('handshakes')) return undefined
    return () => this.#paths().flatMap(({ handshakes }) => handshakes?.unknownKeys() ?? [])
  }

  /**
   * Returns the length in bytes of the longest packet of a family that reaches this peer's host without fragmentation.
   * Returns undefined if the path MTU is not known, or if this length is not less than `mtu`.
   */
  pathMtu(peer: Lease, family: Family): number | undefined {
    return this.#pathOf(family)?.observing?.pathMtu(peer, family)
  }

  get pathSearch(): PathSearching | undefined {
    const searches = this.#observed().map(([, { pathSearch }]) => pathSearch)
    const [first] = searches
    if (!first || !this.#can('observing')) return undefined
    const searchOf = (family: Family): PathSearching | undefined => this.#pathOf(family)?.observing?.pathSearch
    return {
      // If each family has its own data path, each data path has its own overhead. In that case the caller takes the
      // overhead from the table of backends.
      ...(this.#parts.length === 1 && first.overhead !== undefined ? { overhead: first.overhead } : {}),
      knownMtu: (key, family) => {
        const bytes = searchOf(family)?.knownMtu(key, family)
        return bytes && Math.min(bytes, this.mtu)
      },
      ...(searches.every((search) => search.limit !== undefined)
        ? {
            limit: (bytes, family) => {
              this.#limits[family] = bytes
              searchOf(family)?.limit?.(bytes, family)
            },
          }
        : {}),
    }
  }

  /**
   * Chooses the underlay's address family for each peer; undefined unless one data path has both families of the
   * underlay.
   */
  get underlays(): Underlays | undefined {
    const [only, ...others] = this.#paths()
    return others.length === 0 ? only?.underlays : undefined
  }

  /** Returns the keys of the leases that are unusable in at least one family. */
  unusable(): ReadonlySet<string> {
    return new Set(this.#paths().flatMap((path) => [...path.unusable()]))
  }

  counters(): Readonly<Record<string, bigint>> {
    const counters = sumCounters(this.#parts.map((part) => part.counters()))
    return { ...counters, peers_unusable: BigInt(this.unusable().size) }
  }

  /**
   * Returns the packets that were dropped last, with their headers (see Engine.drops). The list `next`, which the
   * caller passes as `after` to the next call, has the entries of the first data path, then those of the second, and so
   * on. The entries of a data path that is not open stay the same.
   */
  drops(after: readonly number[] = []): Drops {
    const next: number[] = []
    const packets: Drops['packets'][number][] = []
    for (const part of this.#parts) {
      const its = after.slice(next.length)
      const dropped = part.path?.observing?.drops(its) ?? { next: its.slice(0, part.places), packets: [] }
      part.places = dropped.next.length
      next.push(...dropped.next)
      packets.push(...dropped.packets)
    }
    return { next, packets }
  }

  /**
   * Returns how many loop iterations each forwarding thread has completed, by thread name, and wakes each thread. A
   * thread that does not hang then soon completes another iteration.
   */
  threads(): Readonly<Record<string, number>> {
    const all = this.#observed().map(([part, observing]) =>
      Object.entries(observing.threads()).map(([name, rounds]) => [part.prefix + name, rounds] as const),
    )
    return Object.fromEntries(all.flat())
  }

  /**
   * Logs problems that are new since the last call, such as unknown senders. The daemon calls `look` every few seconds.
   */
  look(): void {
    for (const [, observing] of this.#observed()) observing.look()
  }

  /** The state of the FastPath; undefined if the network configuration does not allow it. */
  get fastPath(): FastPath | undefined {
    return this.#observed().flatMap(([, { fastPath }]) => fastPath ?? [])[0]
  }

  /**
   * Passes the open data paths on to the next process; undefined if that is not necessary, because `close` leaves the
   * devices in place.
   */
  get handover(): HandoverSide | undefined {
    if (!this.#can('handover')) return undefined
    return {
      isLendable: this.#paths().every(({ handover }) => handover?.isLendable),
      leave: () => this.#next(() => this.#leave()),
      takeBack: () => this.#next(() => this.#takeBack()),
    }
  }

  async #leave(): Promise<readonly OpenPath[]> {
    // Set `#isAway` first. It prevents new checks, and stops a running check that has only read addresses so far. A
    // check would repair objects that the next process now owns.
    this.#isAway = true
    let left: readonly OpenPath[] = []
    try {
      await this.#untilIdle()
      await this.#closeEnded()
      left = (await Promise.all(this.#paths().map(async (path) => (await path.handover?.leave()) ?? []))).flat()
      return left
    } finally {
      this.#isAway = left.length > 0
    }
  }

  async #takeBack(): Promise<void> {
    this.#isAway = false
    await Promise.all(this.#paths().map(async (path) => path.handover?.takeBack()))
  }

  close(): Promise<void> {
    this.#isClosed = true
    return this.#next(async () => {
      const done = await Promise.allSettled(this.#parts.map(async ({ path }) => path?.close()))
      for (const result of done) if (result.status === 'rejected') throw result.reason
    })
  }

  /**
   * Waits until no check and no transfer of peers is running, because neither may change a data path after the data
   * path was passed to the next process.
   */
  async #untilIdle(): Promise<void> {
    for (;;) {
      const running = this.#carried().flatMap(([part]) => part.running())
      if (running.length === 0) return
      await Promise.allSettled(running)
    }
  }

  /** Returns true if all open data paths have the optional member `what`. */
  #can(what: keyof DataPath): boolean {
    return this.#paths().every((path) => path[what] !== undefined)
  }
}

const asList = <T>(value: T | undefined): readonly T[] => (value === undefined ? [] : [value])

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

/** Waits until all operations `works` are done. After `late` has resolved, waits only until one of them is done. */
async function untilLate(works: readonly Work<unknown>[], late: Promise<unknown> | undefined): Promise<void> {
  const all = Promise.all(works.map(({ done }) => done))
  const one = Promise.race(works.map(({ done }) => done))
  await (late ? Promise.race([all, Promise.all([one, late])]) : all)
}
