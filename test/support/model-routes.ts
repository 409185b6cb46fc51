// model-routes.ts - the routing tables and policy rules of one family in the model kernel (model-kernel.ts).

import type {
  Change,
  PolicyRule,
  Route,
  RouteAnswer,
  RouteChange,
  RouteFilter,
  RouteQuery,
} from '../../src/host/kernel.ts'
import { formatAddress, formatNet, hostNet, netAround, netContains, parseNet } from '../../src/net/address.ts'
import { ADDRESS_BITS, type Address, type Family, type Net } from '../../src/net/address.ts'
import { Refused } from './model-refusal.ts'

export const MAIN = 254
export const LOCAL = 255
const DEFAULT = 253

type RuleChange = Extract<Change, { readonly kind: 'add rule' | 'delete rule' }>

/** The part of an interface that decides about routes. */
export interface RouteDevice {
  readonly index: number
  readonly name: string
  readonly up: boolean
  /** The addresses of the family of the routes. */
  readonly addresses: readonly Address[]
}

const ruleFor = (priority: number, table: number | undefined, part: Partial<PolicyRule> = {}): PolicyRule => ({
  priority,
  table,
  action: table === undefined ? '' : 'lookup',
  iif: undefined,
  oif: undefined,
  from: undefined,
  to: undefined,
  mark: undefined,
  mask: 0xffff_ffff,
  isInverted: false,
  ...part,
})

/** The metric that the kernel gives a route without a metric. */
const USUAL_METRIC: Readonly<Record<Family, number>> = { ipv4: 0, ipv6: 1024 }
const textOf = (net: Net): string => (net.prefixLength === 0 ? 'default' : formatNet(net))
const REFUSED_BY: Readonly<Record<string, string>> = {
  blackhole: 'EINVAL',
  prohibit: 'EACCES',
  unreachable: 'EHOSTUNREACH',
}

export class ModelRoutes {
  readonly #family: Family
  /** Finds an interface by its index, or by its name if the index is undefined. */
  readonly #device: (which: { name: string; index?: number | undefined }) => RouteDevice | undefined
  /** Reports a change of a route to the watchers. */
  readonly #report: (route: Route, gone: boolean) => void
  /** The routes by table and destination; the routes to one destination are in the order of their metrics. */
  readonly #tables = new Map<number, Map<string, Route[]>>()
  rules: PolicyRule[]

  constructor(
    family: Family,
    device: (which: { name: string; index?: number | undefined }) => RouteDevice | undefined,
    report: (route: Route, gone: boolean) => void,
  ) {
    this.#family = family
    this.#device = device
    this.#report = report
    this.rules = [ruleFor(0, LOCAL), ruleFor(32_766, MAIN)]
    if (family === 'ipv4') this.rules.push(ruleFor(32_767, DEFAULT))
  }

  list({ exactly, within, device, table = MAIN }: RouteFilter): readonly Route[] {
    const tables =
      table === 'all' ? [...this.#tables.values()] : [this.#tables.get(table) ?? new Map<string, Route[]>()]
    const wanted = exactly?.map((each) => (each === 'default' ? each : textOf(each)))
    const all = tables.flatMap((each) =>
      wanted ? wanted.flatMap((text) => each.get(text) ?? []) : [...each.values()].flat(),
    )
    const index = device && this.#device(device)?.index
    return all
      .filter((route) => (!device || route.deviceIndex === index) && (!within || this.#isWithin(route, within)))
      .map((route) => this.#named(route))
  }

  add(change: RouteChange): void {
    const route = this.#checked(change)
    if (this.#at(route).some(({ metric }) => metric === route.metric)) throw new Refused('EEXIST')
    this.put(route)
  }

  replace(change: RouteChange): void {
    const route = this.#checked(change)
    const at = this.#at(route)
    const old = at.findIndex(({ metric }) => metric === route.metric)
    if (old === -1) return this.put(route)
    at[old] = route
    this.#report(this.#named(route), false)
  }

  /** Adds a route without checking it, as the kernel adds the routes of an address. */
  put(route: Route): void {
    const at = this.#at(route)
    const after = at.findIndex(({ metric }) => metric > route.metric)
    at.splice(after === -1 ? at.length : after, 0, route)
    this.#report(this.#named(route), false)
  }

  delete({ destination, type, gateway, device, metric, table = MAIN, protocol }: RouteChange): void {
    const index = device && this.#device(device)?.index
    if (device && index === undefined) throw new Refused('ENODEV')
    const at = this.#tables.get(table)?.get(textOf(destination)) ?? []
    const found = at.find(
      (route) =>
        (type === undefined || route.type === type) &&
        (gateway === undefined || route.gateway === formatAddress(gateway)) &&
        (index === undefined || route.deviceIndex === index) &&
        (!metric || route.metric === metric) &&
        (protocol === undefined || route.protocol === protocol),
    )
    if (!found) throw new Refused('ESRCH')
    this.#drop(found)
  }

  /** Deletes the routes that `isGone` selects, as the kernel does if an interface or an address is gone. */
  deleteAll(isGone: (route: Route) => boolean): void {
    for (const route of this.#all()) if (isGone(route)) this.#drop(route)
  }

  /**
   * Deletes all routes through an interface. The kernel does not report IPv4 routes that it deletes because the
   * interface is down or has no address (net/ipv4/fib_frontend.c, fib_disable_ip).
   */
  deleteThrough(deviceIndex: number): void {
    for (const route of this.#all()) if (route.deviceIndex === deviceIndex) this.#drop(route, this.#family === 'ipv6')
  }

  changeRule({ kind, priority, iif, from, to, action }: RuleChange): void {
    const part = typeof action === 'string' ? { action, iif, from, to } : { iif, from, to }
    const rule = ruleFor(priority, typeof action === 'string' ? undefined : action.table, part)
    const textOfRule = (each: PolicyRule): string =>
      [
        each.priority,
        each.table,
        each.action,
        each.iif,
        each.from && formatNet(each.from),
        each.to && formatNet(each.to),
      ].join()
    const found = this.rules.findIndex((each) => textOfRule(each) === textOfRule(rule))
    if (kind === 'delete rule') {
      if (found === -1) throw new Refused('ENOENT')
      this.rules.splice(found, 1)
      return
    }
    if (found !== -1) throw new Refused('EEXIST')
    const after = this.rules.findIndex((each) => each.priority > priority)
    this.rules.splice(after === -1 ? this.rules.length : after, 0, rule)
  }

  lookUp(query: RouteQuery): RouteAnswer {
    for (const rule of this.rules) {
      if (!matches(rule, query)) continue
      if (rule.table === undefined) return { refused: rule.action, errno: REFUSED_BY[rule.action] ?? 'EINVAL' }
      const route = this.#longest(rule.table, query.to)
      if (!route || route.type === 'throw') continue
      const errno = REFUSED_BY[route.type]
      if (errno !== undefined) return { refused: route.type, errno }
      const source = route.source ?? this.#device({ name: '', index: route.deviceIndex })?.addresses[0]
      return { route: { ...this.#named(route), destination: formatNet(hostNet(query.to)), source } }
    }
    return { refused: 'Network is unreachable', errno: 'ENETUNREACH' }
  }

  /** Returns the route that a change describes, or refuses it as the kernel does. */
  #checked(change: RouteChange): Route {
    const { destination, type = 'unicast', gateway, device, source, onlink, table = MAIN, protocol = 'boot' } = change
    const usual = USUAL_METRIC[this.#family]
    const found = device && this.#device(device)
    if (device && !found) throw new Refused('ENODEV')
    if (found && !found.up) throw new Refused('ENETDOWN', 'Device for nexthop is not up')
    if (onlink && !found) throw new Refused('ENODEV')
    if (type === 'unicast' && !found && gateway === undefined) throw new Refused('ENODEV')
    const through = gateway === undefined || onlink ? found : this.#towards(gateway, found)
    return {
      device: '',
      deviceIndex: through?.index ?? 0,
      destination: textOf(destination),
      type,
      protocol,
      gateway: gateway === undefined ? undefined : formatAddress(gateway),
      // The kernel replaces the metric 0 of an IPv6 route by the usual metric.
      metric: change.metric === undefined || change.metric === 0 ? usual : change.metric,
      source,
      table,
      isOnlink: onlink ?? false,
    }
  }

  /** Returns the interface on whose link the gateway is. */
  #towards(gateway: Address, device: RouteDevice | undefined): RouteDevice {
    const local = this.#longest(LOCAL, gateway)
    if (local && this.#family === 'ipv6') throw new Refused('EINVAL', 'Gateway can not be a local address')
    const route = local ?? this.#longest(MAIN, gateway, device?.index)
    const through = route && route.gateway === undefined && this.#device({ name: '', index: route.deviceIndex })
    if (!through)
      throw this.#family === 'ipv4'
        ? new Refused('ENETUNREACH', 'Nexthop has invalid gateway')
        : new Refused('EHOSTUNREACH')
    return through
  }

  #longest(table: number, to: Address, device?: number): Route | undefined {
    const routes = this.#tables.get(table)
    if (!routes) return undefined
    for (let length = ADDRESS_BITS[this.#family]; length >= 0; length -= 1) {
      const found = routes
        .get(textOf(netAround(to, length)))
        ?.find(({ deviceIndex }) => device === undefined || deviceIndex === device)
      if (found) return found
    }
    return undefined
  }

  #isWithin({ destination }: Route, within: Net): boolean {
    const net = destination === 'default' ? undefined : parseNet(destination)
    return net === undefined
      ? within.prefixLength === 0
      : net.prefixLength >= within.prefixLength && netContains(within, net.address)
  }

  /** Returns the list of the routes to the same destination in the same table. */
  #at({ table, destination }: Route): Route[] {
    const routes = this.#tables.get(table) ?? new Map<string, Route[]>()
    this.#tables.set(table, routes)
    const at = routes.get(destination) ?? []
    routes.set(destination, at)
    return at
  }

  #all(): readonly Route[] {
    return [...this.#tables.values()].flatMap((table) => [...table.values()].flat())
  }

  #drop(route: Route, isReported = true): void {
    const at = this.#at(route)
    at.splice(at.indexOf(route), 1)
    if (isReported) this.#report(this.#named(route), true)
  }

  #named(route: Route): Route {
    return { ...route, device: this.#device({ name: '', index: route.deviceIndex })?.name ?? '' }
  }
}

function matches({ from, to, iif, mark, mask, isInverted }: PolicyRule, query: RouteQuery): boolean {
  const isMatch =
    (from === undefined || (query.from !== undefined && netContains(from, query.from))) &&
    (to === undefined || netContains(to, query.to)) &&
    (iif === undefined || iif === query.iif?.name) &&
    (mark === undefined || ((query.mark ?? 0) & mask) === (mark & mask))
  return isMatch !== isInverted
}
