// links.ts - network interfaces, their addresses and routes, by iproute2's JSON.

import { readFile } from 'node:fs/promises'
import { isWeftError, WeftError } from '../errors.ts'
import { formatIpv4, formatIpv4Net, parseIpv4, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import { isRefusal, type Run } from './command.ts'

export interface Address {
  readonly address: Ipv4
  readonly prefixLength: number
  readonly dynamic: boolean
  readonly deprecated: boolean
  readonly secondary: boolean
}

export interface Link {
  readonly index: number
  readonly name: string
  readonly mtu: number
  readonly up: boolean
  readonly loopback: boolean
  readonly queueLength: number
  /** IPv4 addresses in the kernel's order. */
  readonly addresses: readonly Address[]
}

export interface Route {
  /** Of several next hops the first's; empty for a route to nowhere, such as a blackhole. */
  readonly device: string
  /** `10.5.0.0/16`, `default`. */
  readonly destination: string
  /** `unicast`, `blackhole`, `unreachable`, ... */
  readonly type: string
  readonly gateway: string | undefined
  readonly metric: number
  readonly source: Ipv4 | undefined
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
  }[]
}

interface JsonRoute {
  dev?: string
  dst?: string
  type?: string
  nexthops?: { dev?: string }[]
  gateway?: string
  metric?: number
  prefsrc?: string
}

/**
 * Whether a process has a TUN open, by its flags as `ip` tells them and, since NO-CARRIER may come a second late
 * (net/core/link_watch.c), by sysfs where that shows the same network namespace.
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

/** Whether a name is one that the kernel makes of a pattern such as `flannel%d`. */
export const isNamedBy = (pattern: string, name: string): boolean => {
  const [before = '', after] = pattern.split('%d')
  return after === undefined ? name === pattern : name.startsWith(before) && /^\d+$/.test(name.slice(before.length))
}

/** What `ip -j` prints. */
export async function ipJson<T>(run: Run, args: readonly string[]): Promise<T[]> {
  const text = await run('ip', ['-j', ...args])
  return text.trim() === '' ? [] : (JSON.parse(text) as T[])
}

function toLink(json: JsonLink): Link {
  const addresses: Address[] = []
  for (const info of json.addr_info ?? []) {
    const address = info.family === 'inet' ? parseIpv4(info.local ?? '') : undefined
    if (address === undefined) continue
    addresses.push({
      address,
      prefixLength: info.prefixlen ?? 32,
      dynamic: info.dynamic ?? false,
      deprecated: info.deprecated ?? false,
      secondary: info.secondary ?? false,
    })
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

/** All interfaces, in the kernel's order. */
export async function listLinks(run: Run): Promise<Link[]> {
  return (await ipJson<JsonLink>(run, ['address', 'show'])).filter((json) => json.ifname).map(toLink)
}

/** One interface, or undefined when there is none of this name. */
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
 * Makes a device of this type, such as `vxlan`, with words for any device and words for its type. Rejects with WeftError
 * NO_DEVICE_TYPE where the kernel has none, COMMAND for any other refusal.
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
    // The second is what kernels say without extended answers (before Linux 4.20, or iproute2 without libmnl).
    if (!isWeftError(error, 'COMMAND') || !/unknown device type|operation not supported/i.test(error.message))
      throw error
    throw new WeftError('NO_DEVICE_TYPE', `this kernel has no device of type ${type} (${error.message})`, {
      remedy: `load its module (\`modprobe ${type}\`), or take a backend that needs none, such as udp`,
      cause: error,
    })
  }
}

const toRoute = (json: JsonRoute): Route => ({
  device: json.dev ?? json.nexthops?.[0]?.dev ?? '',
  destination: /^[\d.]+$/.test(json.dst ?? '') ? `${json.dst}/32` : (json.dst ?? ''),
  type: json.type ?? 'unicast',
  gateway: json.gateway,
  metric: json.metric ?? 0,
  source: json.prefsrc === undefined ? undefined : parseIpv4(json.prefsrc),
})

/** The IPv4 routes to exactly `destination` in the main table; `default` for the default route. */
export async function routesTo(run: Run, destination: Ipv4Net | 'default'): Promise<Route[]> {
  const exact = destination === 'default' ? 'default' : formatIpv4Net(destination)
  return (await ipJson<JsonRoute>(run, ['-4', 'route', 'show', 'exact', exact])).map(toRoute)
}

/** The IPv4 routes of the main table to `network` and to parts of it. */
export async function routesWithin(run: Run, network: Ipv4Net): Promise<Route[]> {
  return (await ipJson<JsonRoute>(run, ['-4', 'route', 'show', 'root', formatIpv4Net(network)])).map(toRoute)
}

/** The route that the kernel would use to each of these dotted addresses; without those there is none to. */
export async function routesFor(run: Run, addresses: readonly string[]): Promise<Map<string, Route>> {
  if (addresses.length === 0) return new Map()
  const input = `${addresses.map((address) => `route get ${address}`).join('\n')}\n`
  const text = await run('ip', ['-j', '-4', '-force', '-batch', '-'], { input }).catch((error: unknown) => {
    if (!isWeftError(error, 'COMMAND') || !isRefusal(error)) throw error
    return (error.cause as { readonly stdout?: string }).stdout ?? '' // there is no way to one of them
  })
  // One array for each line of the input.
  const routes = text
    .split('\n')
    .filter((line) => line.trim() !== '')
    .flatMap((line) => JSON.parse(line) as JsonRoute[])
  return new Map(routes.map((json) => [json.dst ?? '', toRoute(json)]))
}

/** The interface and source address that the kernel would use to reach `address`; undefined when there is no route. */
export async function routeFor(run: Run, address: Ipv4): Promise<Route | undefined> {
  try {
    const [json] = await ipJson<JsonRoute>(run, ['-4', 'route', 'get', formatIpv4(address)])
    return json && toRoute(json)
  } catch (error) {
    if (isWeftError(error, 'COMMAND') && error.message.includes('unreachable')) return undefined
    throw error
  }
}
