// route-keeper.ts - keeps the route to this node's subnet in the route tables of a cloud or a switch, and reports
// routes that conflict with it.
//
// The keeper changes only routes that lead to this node, and dead routes to this node's own subnet. If a live route to
// this node's subnet leads to another target, the keeper reports that route and leaves it in the table. After a failure
// the keeper tries again, with growing pauses. The caller calls `check` regularly.

import { describeError, isWeftError, messageOf, WeftError } from '../../../base/errors.ts'
import { seldom, type Log } from '../../../base/log.ts'
import { createTurn, limited, pause } from '../../../host/bell.ts'
import { familyOf, formatNet, netContains, parseNet, type Net } from '../../../net/address.ts'
import type { FabricRoute, Publisher, RouteTable } from './publisher.ts'

/** The time in ms from a check that found the route to the next check. */
const CHECK_MS = 60_000
/** The pause in ms after the first failure. Each further failure doubles the pause, up to LONGEST_RETRY_MS. */
const FIRST_RETRY_MS = 2_000
const LONGEST_RETRY_MS = 120_000
/** The time limit in ms for all requests of one check of the route. */
const WHOLE_MS = 90_000
/**
 * The time in ms within which the list of routes must show a change that weftd made. The pause between two queries of
 * the list grows from FIRST_LOOK_MS to LONGEST_LOOK_MS.
 */
const READ_BACK_MS = 30_000
const FIRST_LOOK_MS = 250
const LONGEST_LOOK_MS = 4_000
/** weftd warns that a route table is nearly full if the table has this fraction of its maximum number of routes. */
const NEARLY_FULL = 0.9

interface RouteKeeperOptions {
  readonly subnet: Net
  readonly network: Net
  /**
   * Makes a publisher, the client of the cloud's API. The keeper calls `make` again after each failure, so that it
   * keeps no outdated state.
   */
  readonly make: () => Publisher
  readonly log: Log
  /** Returns the time of a monotonic clock in ms. */
  readonly now?: () => number
  readonly wait?: (signal: AbortSignal, ms: number) => Promise<void>
}

export class RouteKeeper {
  /** The route tables that the publisher found; undefined before the first check and after a failure. */
  #tables: readonly RouteTable[] | undefined
  #nextAt = -Infinity
  #failuresInRow = 0
  #failures = 0
  /** True if all tables had the route when weftd last listed their routes. */
  #isThere = false
  /**
   * True once a check found the route in all tables. If the route is missing later, adding it again counts as a repair.
   */
  #wasThere = false
  /** The number of routes in the fullest table at the last check. */
  #routes = 0
  /** The maximum number of routes of a table that is nearly full; 0 if no table is nearly full. */
  #nearLimit = 0
  /** For each table, the number of its routes when weftd last warned that the table is nearly full. */
  readonly #warnedAt = new Map<string, number>()
  readonly #inTurn = createTurn()
  readonly #closing = new AbortController()
  readonly #destination: string
  readonly #calm: Log
  readonly #options: Required<RouteKeeperOptions>

  constructor(options: RouteKeeperOptions) {
    this.#options = { now: () => performance.now(), wait: pause, ...options }
    this.#destination = formatNet(options.subnet)
    this.#calm = seldom(options.log)
  }

  counters(): Readonly<Record<string, bigint>> {
    return {
      route_missing: this.#isThere ? 0n : 1n,
      route_failures: BigInt(this.#failures),
      table_routes: BigInt(this.#routes),
      table_limit: BigInt(this.#nearLimit),
    }
  }

  /** Checks the route if a check is due. Returns the repairs. Logs a failure instead of throwing it. */
  check(): Promise<readonly string[]> {
    return this.#inTurn(async () => {
      if (this.#closing.signal.aborted || this.#options.now() < this.#nextAt) return []
      try {
        const repairs = await this.#within(this.#closing.signal, (signal) => this.#ensureAll(signal))
        this.#failuresInRow = 0
        this.#isThere = true
        this.#wasThere = true
        this.#nextAt = this.#options.now() + CHECK_MS * (0.8 + Math.random() * 0.4)
        return repairs
      } catch (error) {
        if (!this.#closing.signal.aborted) this.#fail(error)
        return []
      }
    })
  }

  /** Stops the checks, and leaves the route in the tables. */
  async close(): Promise<void> {
    this.#closing.abort(new Error('the data path is closed'))
    await this.#inTurn(async () => {})
  }

  /**
   * Removes the route from all tables, even if one table fails. Returns a description of each removed route. After it
   * has tried all tables, throws the first error.
   */
  withdraw(signal: AbortSignal): Promise<readonly string[]> {
    return this.#inTurn(() =>
      this.#within(signal, async (limit) => {
        const removed: string[] = []
        await this.#forEach(await this.#options.make().find(limit), limit, async (table) => {
          const own = (await table.list(limit)).filter((route) => route.isOwn && this.#isToSubnet(route))
          for (const route of own) {
            await table.remove(route, limit)
            removed.push(`route ${route.destination} to ${route.target} in ${table.name}`)
          }
          if (own.length > 0 && !table.isBlind)
            await this.#lookUntil(
              table,
              limit,
              (routes) => !routes.some((each) => each.isOwn && this.#isToSubnet(each)),
            )
        })
        this.#isThere = false
        return removed
      }),
    )
  }

  /** Calls `act` for each table, even if a call fails. Throws the first error after all calls. */
  async #forEach(tables: readonly RouteTable[], signal: AbortSignal, act: (table: RouteTable) => Promise<void>) {
    const errors: unknown[] = []
    for (const table of tables) {
      try {
        await act(table)
      } catch (error) {
        signal.throwIfAborted()
        errors.push(error)
      }
    }
    if (errors.length > 0) throw errors[0]
  }

  #within<T>(signal: AbortSignal, work: (limit: AbortSignal) => Promise<T>): Promise<T> {
    const late = () => new WeftError('FABRIC', `the requests took longer than ${WHOLE_MS / 1000} s`)
    return limited(signal, WHOLE_MS, late, work)
  }

  #fail(error: unknown): void {
    this.#tables = undefined
    this.#failures++
    const ms = Math.min(FIRST_RETRY_MS * 2 ** this.#failuresInRow++, LONGEST_RETRY_MS)
    this.#nextAt = this.#options.now() + ms * (0.5 + Math.random() / 2)
    const why = isWeftError(error) ? describeError(error) : messageOf(error)
    this.#calm.error(`The route to ${this.#destination} cannot be published: ${why}; it is tried again`)
  }

  /**
   * Checks the route in all tables, even if the check of one table fails. Returns the repairs. Throws the first error
   * after it has checked all tables.
   */
  async #ensureAll(signal: AbortSignal): Promise<readonly string[]> {
    this.#tables ??= await this.#options.make().find(signal)
    const repairs: string[] = []
    this.#routes = 0
    this.#nearLimit = 0
    await this.#forEach(this.#tables, signal, async (table) => {
      const made = await this.#ensure(table, signal)
      if (made && this.#wasThere) repairs.push(`the route to ${this.#destination} was missing in ${table.name}`)
    })
    return repairs
  }

  /**
   * Adds the route to one table if the table lacks it. Returns true if the route was added. Throws WeftError FABRIC if
   * a live route to this node's subnet leads to another target.
   */
  async #ensure(table: RouteTable, signal: AbortSignal): Promise<boolean> {
    if (table.isBlind) return this.#putBlindly(table, signal)
    const routes = await table.list(signal)
    this.#routes = Math.max(this.#routes, routes.length)
    this.#warnIfNearlyFull(table, routes.length)
    if (!routes.some((route) => this.#isToSubnet(route) && route.isOwn && route.state === 'active'))
      this.#isThere = false
    await this.#removeEarlier(table, routes, signal)
    if (this.#judge(table, routes)) return false
    for (const dead of routes.filter((route) => this.#isToSubnet(route) && route.state === 'dead')) {
      await table.remove(dead, signal)
      this.#options.log.info(`Removed the dead route to ${dead.destination} (${dead.target}) from ${table.name}`)
    }
    const isPending = routes.some((route) => route.isOwn && this.#isToSubnet(route) && route.state === 'pending')
    if (!isPending) await table.put(signal)
    await this.#lookUntil(table, signal, (now) => this.#judge(table, now))
    this.#options.log.info(`The route to ${this.#destination} is in ${table.name}`)
    return !isPending
  }

  async #putBlindly(table: RouteTable, signal: AbortSignal): Promise<false> {
    await table.put(signal)
    if (!this.#isThere) this.#options.log.info(`The route to ${this.#destination} was sent to ${table.name}`)
    return false
  }

  /**
   * Returns true if the table has a route to this node's subnet that leads to this node. Throws WeftError FABRIC if a
   * live route to the subnet leads to another target.
   */
  #judge(table: RouteTable, routes: readonly FabricRoute[]): boolean {
    const here = routes.filter((route) => this.#isToSubnet(route))
    const foreign = here.find(({ isOwn, state }) => !isOwn && state !== 'dead')
    if (foreign)
      throw new WeftError(
        'FABRIC',
        `${table.name} has a route to ${this.#destination} that leads to ${foreign.target}, not to this node; it stays`,
        { remedy: 'remove that route if no other node needs it' },
      )
    return here.some(({ isOwn, state }) => isOwn && state === 'active')
  }

  /**
   * Removes the routes to this node for subnets that this node had earlier. Such a route would divert packets from the
   * node that has the subnet now.
   */
  async #removeEarlier(table: RouteTable, routes: readonly FabricRoute[], signal: AbortSignal): Promise<void> {
    const { subnet, network, log } = this.#options
    for (const route of routes) {
      const net = parseNet(route.destination)
      const isSubnet =
        net !== undefined &&
        familyOf(net) === familyOf(network) &&
        net.prefixLength === subnet.prefixLength &&
        netContains(network, net.address)
      if (!route.isOwn || !isSubnet || this.#isToSubnet(route)) continue
      await table.remove(route, signal)
      log.info(`Removed the route to ${route.destination} from ${table.name}, which an earlier lease of this node left`)
    }
  }

  /**
   * Lists the routes repeatedly until `isSeen` returns true, because a change may take a while to appear. Throws
   * WeftError FABRIC after READ_BACK_MS.
   */
  async #lookUntil(table: RouteTable, signal: AbortSignal, isSeen: (routes: readonly FabricRoute[]) => boolean) {
    const { now, wait } = this.#options
    const until = now() + READ_BACK_MS
    for (let ms = FIRST_LOOK_MS; ; ms = Math.min(2 * ms, LONGEST_LOOK_MS)) {
      if (isSeen(await table.list(signal))) return
      if (now() >= until)
        throw new WeftError(
          'FABRIC',
          `${table.name} accepted a change and does not show it after ${READ_BACK_MS / 1000} s`,
        )
      await wait(signal, ms)
    }
  }

  #warnIfNearlyFull({ name, limit }: RouteTable, count: number): void {
    // If a table has more routes than the documentation allows, its real limit is higher and not known. So do not warn.
    if (limit === undefined || count > limit || count < NEARLY_FULL * limit) return
    this.#nearLimit = limit
    if (count <= (this.#warnedAt.get(name) ?? 0)) return
    this.#warnedAt.set(name, count)
    this.#options.log.warn(
      `${name} has ${count} routes, and its limit is ${limit}: nodes beyond the limit get no route; raise the limit, or take a backend that has a tunnel`,
    )
  }

  #isToSubnet({ destination }: FabricRoute): boolean {
    const net = parseNet(destination)
    return net !== undefined && formatNet(net) === this.#destination
  }
}
