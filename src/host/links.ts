// links.ts - reads network interfaces, their addresses, and routes from iproute2's JSON.

import { readFile } from 'node:fs/promises'
import { isWeftError, WeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import {
  ADDRESS_BITS,
  familyOf,
  formatAddress,
  formatNet,
  parseAddress,
  parseNet,
  type Address,
  type Family,
  type Net,
} from '../net/address.ts'
import type { Ipv4 } from '../net/ipv4.ts'
import type { Ipv6 } from '../net/ipv6.ts'
import { isRefusal, type Run } from './command.ts'
import type { Change, HostKernel, Link as KernelLink, Route as KernelRoute } from './kernel.ts'

/** An address of an interface, with the flags that `ip address` prints (ip-address(8)). */
export interface LinkAddress<A extends Address = Address> {
  readonly address: A
  readonly prefixLength: number
  readonly dynamic: boolean
  readonly deprecated: boolean
  readonly secondary: boolean
  /** True for a temporary IPv6 address, which the kernel replaces from time to time for privacy (RFC 8981). */
  readonly temporary: boolean
  /**
   * True for an IPv6 address whose duplicate address detection is still running or has failed (RFC 4862 section 5.4).
   * Sockets cannot use a tentative address.
   */
  readonly tentative: boolean
  /** True for an IPv6 address that another host on the link uses too. */
  readonly duplicate?: boolean
}

export interface Link {
  readonly index: number
  readonly name: string
  readonly mtu: number
  readonly up: boolean
  readonly loopback: boolean
  readonly queueLength: number
  readonly addresses: { readonly ipv4: readonly LinkAddress<Ipv4>[]; readonly ipv6: readonly LinkAddress<Ipv6>[] }
}

export interface Route {
  /** The device of the route's first next hop; empty for a route without a device, such as a blackhole. */
  readonly device: string
  readonly destination: string
  readonly type: string
  /** The origin of the route, such as `kernel`, `static`, or `ra` for a router advertisement. */
  readonly protocol?: string | undefined
  /** The gateway, an IPv4 or IPv6 address; undefined if the route has no gateway, or has several next hops. */
  readonly gateway: string | undefined
  readonly isMultipath?: boolean
  readonly metric: number
  readonly source: Address | undefined
}

interface JsonLink {
  ifindex?: number
  ifname?: string
  mtu?: number
  flags?: string[]
  txqlen?: number
  addr_info?: {
    family?: string
    local?: string
    prefixlen?: number
    dynamic?: boolean
    deprecated?: boolean
    secondary?: boolean
    temporary?: boolean
    tentative?: boolean
    dadfailed?: boolean
  }[]
}

interface JsonRoute {
  dev?: string
  dst?: string
  type?: string
  protocol?: string
  nexthops?: { dev?: string }[]
  gateway?: string
  via?: { host?: string }
  metric?: number
  prefsrc?: string
}

/**
 * Returns true if a process has the TUN device open. `flags` are the device's flags from `ip link`. The kernel may set
 * the flag NO-CARRIER a second late (net/core/link_watch.c), so weftd also reads the carrier from sysfs, if sysfs
 * belongs to this network namespace.
 */
export async function isTunOpen(name: string, index: number, flags: readonly string[]): Promise<boolean> {
  if (!flags.includes('UP') || flags.includes('NO-CARRIER')) return false
  const read = (file: string): Promise<string> =>
    readFile(`/sys/class/net/${name}/${file}`, 'utf8').then(
      (text) => text.trim(),
      () => '',
    )
  return (await read('ifindex')) !== String(index) || (await read('carrier')) !== '0'
}

/**
 * Runs `ip -j` with the arguments `args` and parses its output. Rejects with WeftError COMMAND if the output is not a
 * JSON list.
 */
export async function ipJson<T>(run: Run, args: readonly string[]): Promise<T[]> {
  return parseList(await run('ip', ['-j', ...args]), `ip -j ${args.join(' ')}`)
}

/**
 * Parses a JSON list that a command of iproute2 printed; empty output counts as an empty list. For other output throws
 * WeftError COMMAND, which names `command`.
 */
export function parseList<T>(text: string, command: string): T[] {
  if (text.trim() === '') return []
  try {
    const value: unknown = JSON.parse(text)
    if (Array.isArray(value) && value.every((each) => typeof each === 'object' && each !== null)) return value as T[]
  } catch {
    // Ignore the syntax error: the WeftError below reports a text that is not JSON.
  }
  throw new WeftError('COMMAND', `\`${command}\` did not print a JSON list, but: ${excerpt(text)}`, {
    remedy: 'run the command by hand, and check that `ip` is the program of iproute2',
  })
}

const excerpt = (text: string): string => JSON.stringify(text.slice(0, 60))

function toLink(json: JsonLink): Link {
  const addresses = { ipv4: [] as LinkAddress<Ipv4>[], ipv6: [] as LinkAddress<Ipv6>[] }
  for (const info of json.addr_info ?? []) {
    const address = parseAddress(info.local ?? '')
    if (address === undefined) continue
    const about = {
      prefixLength: info.prefixlen ?? ADDRESS_BITS[familyOf(address)],
      dynamic: info.dynamic ?? false,
      deprecated: info.deprecated ?? false,
      secondary: info.secondary ?? false,
      temporary: info.temporary ?? false,
      tentative: (info.tentative ?? false) || (info.dadfailed ?? false),
      ...(info.dadfailed ? { duplicate: true } : {}),
    }
    if (typeof address === 'number') addresses.ipv4.push({ address, ...about })
    else addresses.ipv6.push({ address, ...about })
  }
  return {
    index: json.ifindex ?? 0,
    name: json.ifname ?? '',
    mtu: json.mtu ?? 0,
    up: json.flags?.includes('UP') ?? false,
    loopback: json.flags?.includes('LOOPBACK') ?? false,
    queueLength: json.txqlen ?? 0,
    addresses,
  }
}

export async function listLinks(run: Run): Promise<Link[]> {
  return (await ipJson<JsonLink>(run, ['address', 'show'])).filter((json) => json.ifname).map(toLink)
}

export async function findLink(run: Run, name: string): Promise<Link | undefined> {
  try {
    const [json] = await ipJson<JsonLink>(run, ['address', 'show', 'dev', name])
    return json ? toLink(json) : undefined
  } catch (error) {
    if (isWeftError(error, 'COMMAND') && error.message.includes('does not exist')) return undefined
    throw error
  }
}

/**
 * Finds an interface again: by its index, because it may have been renamed, or else by its name. Returns undefined if
 * the interface is gone.
 */
export async function findLinkAgain(run: Run, name: string, index: number | undefined): Promise<Link | undefined> {
  const named = await findLink(run, name)
  if (!index || named?.index === index) return named
  return (await listLinks(run)).find((link) => link.index === index) ?? named
}

/** As `findLinkAgain`, from the kernel itself. */
export async function linkAgain(
  kernel: HostKernel,
  name: string,
  index: number | undefined,
): Promise<KernelLink | undefined> {
  return (index ? await kernel.link(index) : undefined) ?? kernel.link(name)
}

/**
 * Returns true if a process has the TUN device open. An interface that is not up counts as not open, because no packets
 * pass through it.
 */
export const isTunInUse = ({ up, hasCarrier }: KernelLink): boolean => up && hasCarrier

/** The number of the main routing table (RT_TABLE_MAIN in linux/rtnetlink.h). */
const MAIN_TABLE = 254
const DEFAULT_ROUTES: Readonly<Record<Family, Net>> = {
  ipv4: { address: 0, prefixLength: 0 },
  ipv6: { address: 0n, prefixLength: 0 },
}

/** Returns the change that deletes exactly this route. */
export function deletionOf(route: KernelRoute, family: Family): Change {
  const { destination, type, device, deviceIndex, metric, table } = route
  const gateway = route.gateway === undefined ? undefined : parseAddress(route.gateway)
  return {
    kind: 'delete route',
    destination: parseNet(destination) ?? DEFAULT_ROUTES[family],
    ...(type === 'unicast' ? {} : { type }),
    ...(table === MAIN_TABLE ? {} : { table }),
    ...(gateway === undefined ? {} : { gateway }),
    ...(deviceIndex === 0 ? {} : { device: { name: device, index: deviceIndex } }),
    ...(metric === USUAL_METRIC[family] ? {} : { metric }),
  }
}

/** A name that another program may change at any time. */
export interface Named {
  readonly name: string
}

/**
 * An interface that weftd follows by the kernel's index, because another program may rename the interface. If the
 * interface was deleted, an interface with the same name and another index takes its place.
 */
export class FollowedLink implements Named {
  /** The name of the interface when `find` found it last. */
  name: string
  /** The kernel's index of the interface; undefined until `find` has found the interface. */
  index: number | undefined
  /** The name under which the caller creates the interface again after it was deleted. */
  readonly #firstName: string

  constructor(name: string, index?: number) {
    this.name = name
    this.index = index
    this.#firstName = name
  }

  /** Looks up the interface and remembers its present name and index. Returns undefined if the interface is gone. */
  find(from: HostKernel): Promise<KernelLink | undefined>
  find(from: Run | HostKernel): Promise<Link | undefined>
  async find(from: Run | HostKernel): Promise<Link | undefined> {
    const link = await (typeof from === 'function'
      ? findLinkAgain(from, this.name, this.index)
      : linkAgain(from, this.name, this.index))
    if (!link || link.index === 0) return undefined
    this.name = link.name
    this.index = link.index
    return link
  }

  /** Records that the interface is gone, and that the caller will create the interface again under its first name. */
  forget(): void {
    this.name = this.#firstName
    this.index = undefined
  }

  /** Finds the interface as `find` does, and logs its name if the name has changed. */
  follow(from: HostKernel, log: Pick<Log, 'info'>): Promise<KernelLink | undefined>
  follow(from: Run | HostKernel, log: Pick<Log, 'info'>): Promise<Link | undefined>
  async follow(from: Run | HostKernel, log: Pick<Log, 'info'>): Promise<Link | undefined> {
    const before = this.name
    const link = await this.find(from)
    if (this.name !== before) log.info(renamed(before, this.name))
    return link
  }
}

export const renamed = (before: string, now: string): string =>
  `The interface ${before} is called ${now} now; weftd goes on with it under the new name`

/**
 * Creates a device of a type such as `vxlan`. `common` are options that every type has, `own` are options of the type.
 * Rejects with WeftError NO_DEVICE_TYPE if the kernel does not support the type, and COMMAND for any other error.
 */
export async function addDevice(
  run: Run,
  name: string,
  type: string,
  common: readonly string[],
  own: readonly string[] = [],
): Promise<void> {
  try {
    await run('ip', ['link', 'add', name, ...common, 'type', type, ...own])
  } catch (error) {
    // Linux before 4.20, and iproute2 without libmnl, report an unknown device type with the words "operation not
    // supported".
    if (!isWeftError(error, 'COMMAND') || !/unknown device type|operation not supported/i.test(error.message))
      throw error
    throw new WeftError('NO_DEVICE_TYPE', `this kernel has no device of type ${type} (${error.message})`, {
      remedy:
        `load its module (\`modprobe ${type}\`), remove "DataPath" from Backend if it is there (weftd then carries the packets itself), ` +
        'or use another backend',
      cause: error,
    })
  }
}

/** The metric that the kernel gives a route which was created without a metric (net/ipv6/route.c, IP6_RT_PRIO_USER). */
export const USUAL_METRIC: Readonly<Record<Family, number>> = { ipv4: 0, ipv6: 1024 }

export const ipFlag = (of: Address | Net | Family): '-4' | '-6' =>
  (of === 'ipv4' || of === 'ipv6' ? of : familyOf(of)) === 'ipv4' ? '-4' : '-6'

function toRoute(json: JsonRoute): Route {
  const host = parseAddress(json.dst ?? '')
  return {
    device: json.dev ?? json.nexthops?.[0]?.dev ?? '',
    destination: host === undefined ? (json.dst ?? '') : `${json.dst}/${ADDRESS_BITS[familyOf(host)]}`,
    type: json.type ?? 'unicast',
    protocol: json.protocol,
    gateway: json.gateway ?? json.via?.host,
    ...(json.nexthops ? { isMultipath: true } : {}),
    metric: json.metric ?? 0,
    source: json.prefsrc === undefined ? undefined : parseAddress(json.prefsrc),
  }
}

/**
 * Lists the routes of the main table whose destination is exactly `destination`. If `destination` is a family, lists
 * the family's default routes.
 */
export async function routesTo(run: Run, destination: Net | Family): Promise<Route[]> {
  const exact = typeof destination === 'string' ? 'default' : formatNet(destination)
  return (await ipJson<JsonRoute>(run, [ipFlag(destination), 'route', 'show', 'exact', exact])).map(toRoute)
}

/** Lists the routes of the main table whose destination is `network` or a part of it. */
export async function routesWithin(run: Run, network: Net): Promise<Route[]> {
  return (await ipJson<JsonRoute>(run, [ipFlag(network), 'route', 'show', 'root', formatNet(network)])).map(toRoute)
}

/**
 * Returns true if the kernel has policy rules in addition to the three rules that every host has, so that the main
 * table alone does not determine the route of a packet. Returns false if the kernel is built without policy routing or
 * without the family.
 */
export async function hasPolicyRules(kernel: HostKernel, family: Family): Promise<boolean> {
  const rules = (await kernel.rules(family)) ?? []
  return rules.some(({ priority }) => !USUAL_RULES.has(priority))
}
/**
 * The priorities of the rules that every host has, for the tables local, main and default (net/ipv4/fib_rules.c,
 * net/ipv6/fib6_rules.c).
 */
const USUAL_RULES: ReadonlySet<number> = new Set([0, 32_766, 32_767])

/**
 * Lists the routes of the main table to exactly the given destinations, such as `10.5.2.0/24`, which all have the same
 * family.
 */
export async function routesExactly(run: Run, family: Family, destinations: readonly string[]): Promise<Route[]> {
  const input = `${destinations.map((destination) => `route show exact ${destination}`).join('\n')}\n`
  const command = `ip -j ${ipFlag(family)} -batch -`
  return parseLines<JsonRoute>(await run('ip', ['-j', ipFlag(family), '-batch', '-'], { input }), command).map(toRoute)
}

/** Parses the output of `ip -j -batch`, which has one JSON list for each command of the batch. */
const parseLines = <T>(text: string, command: string): T[] =>
  text.split('\n').flatMap((line) => parseList<T>(line, command))

/**
 * Looks up the kernel's route to each given address; all addresses must have the same family. The result lacks
 * addresses without a route.
 */
export async function routesFor(run: Run, family: Family, addresses: readonly string[]): Promise<Map<string, Route>> {
  if (addresses.length === 0) return new Map()
  const input = `${addresses.map((address) => `route get ${address}`).join('\n')}\n`
  const text = await run('ip', ['-j', ipFlag(family), '-force', '-batch', '-'], { input }).catch((error: unknown) => {
    // If an address has no route, or a policy rule prohibits the route ("permission denied"), `ip` fails after the
    // batch. Use its output, which still has the routes of all other addresses.
    if (!isWeftError(error) || !isRefusal(error)) throw error
    return (error.cause as { readonly stdout?: string }).stdout ?? ''
  })
  const command = `ip -j ${ipFlag(family)} -force -batch -`
  return new Map(parseLines<JsonRoute>(text, command).map((json) => [json.dst ?? '', toRoute(json)]))
}

/**
 * Looks up the interface and the source address by which the kernel reaches `address`; undefined if there is no route.
 */
export async function routeFor(run: Run, address: Address): Promise<Route | undefined> {
  try {
    const [json] = await ipJson<JsonRoute>(run, [ipFlag(address), 'route', 'get', formatAddress(address)])
    return json && toRoute(json)
  } catch (error) {
    // `ip` prints "no route to host" for a route of type unreachable, such as the kernel's IPv6 default route on a host
    // without any other default route.
    if (isWeftError(error, 'COMMAND') && /unreachable|no route to host/i.test(error.message)) return undefined
    throw error
  }
}
