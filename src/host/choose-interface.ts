// choose-interface.ts - chooses the interface that carries the datagrams, and the addresses to which peers send.
//
// The rules and texts are flanneld's (main.go, pkg/ipmatch/match.go, pkg/ip/iface.go), with three differences. Of
// several default routes, weft uses the route with the lowest metric, as the kernel does. weft does not use a tentative
// IPv6 address. If the interface has several addresses, the node uses the address of its earlier run, or else the
// source address that the kernel chooses.

import { isWeftError, WeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import {
  addressText,
  byFamily,
  familyOf,
  formatAddress,
  isLinkLocal,
  listed,
  netAround,
  netContains,
  parseAddress,
  type Address,
  type Addresses,
  type ByFamily,
  type Family,
} from '../net/address.ts'
import { parseIpv4 } from '../net/ipv4.ts'
import { parseIpv6 } from '../net/ipv6.ts'
import {
  AddressHold,
  addressesOf,
  candidatesOf,
  compile,
  fitsOf,
  heldBy,
  isOfHost,
  makeshiftOf,
  preferredAddress,
  type ExternalInterface,
} from './external-interface.ts'
import type { HostKernel, Link, LinkAddress, Route } from './kernel.ts'

export interface Earlier {
  /**
   * Returns the addresses that this node used or published in earlier runs, the most reliable address first. weftd
   * calls this function only if the interface has several addresses.
   */
  readonly addresses: () => Promise<readonly Address[]>
  /**
   * Returns true for a device that weft created, and for a device with an address of this node's own subnet. Neither
   * device can be the external interface.
   */
  readonly isOwn: (link: Link) => boolean
}

const FIRST_START: Earlier = { addresses: async () => [], isOwn: () => false }

export interface InterfaceWishes {
  /**
   * The values of --iface: names or addresses of interfaces, in order of preference. An empty text means the interface
   * of the default route; so does an empty text in `patterns`.
   */
  readonly ifaces: readonly string[]
  /**
   * The values of --iface-regex: regular expressions (RE2) for addresses and names of interfaces. weftd tries them if
   * no interface fits --iface.
   */
  readonly patterns: readonly string[]
  /**
   * The value of --iface-can-reach, empty if not given. If no interface fits --iface and --iface-regex, weftd uses the
   * interface of the route to this address.
   */
  readonly canReach: string
  /** The values of --public-ip and --public-ipv6, to which other nodes send packets; empty if not given. */
  readonly publicIp: Readonly<Record<Family, string>>
}

/** Reads a kernel setting, as `getSysctl` in sysctl.ts does. */
export type ReadSysctl = (name: string) => Promise<string | undefined>

interface Host {
  readonly kernel: HostKernel
  readonly links: readonly Link[]
  /** The families of the network. The external interface must have an address of each of these families. */
  readonly families: readonly Family[]
  /**
   * Returns the name of the kernel setting that disables IPv6 on an interface; undefined if IPv6 is enabled on this
   * interface.
   */
  readonly ipv6OffBy: (link: Link) => Promise<string | undefined>
  readonly earlier: Earlier
  readonly log: Log
}

/** An interface that fits one of the operator's flags, and the addresses that the flag determines. */
interface Found {
  readonly link: Link
  /**
   * The addresses that the operator's flag determines. For a family without such an address the node uses the
   * interface's preferred address.
   */
  readonly given?: Addresses
  readonly isNamed?: boolean
  readonly pattern?: string
}

interface Choice {
  readonly link: Link
  readonly address: Addresses
  readonly named: ByFamily<boolean>
  readonly pattern: string | undefined
}

/** For each family (IPv4, IPv6), the texts of log lines and errors. Most texts are flanneld's. */
const SAYS = {
  ipv4: {
    using: (name: string, address: string) => `Using interface with name ${name} and address ${address}`,
    defaulting: (address: string) => `Defaulting external address to interface address (${address})`,
    noRoute: 'failed to get default interface: unable to find default route',
    noOwner: (address: string) => `error looking up interface ${address}: no interface with given IP found`,
    noAddress: (name: string) => `failed to find IPv4 address for interface ${name}`,
    none: 'no IPv4 address',
    noneUsable: 'no address of a host',
  },
  ipv6: {
    using: (name: string, address: string) => `Using interface with name ${name} and v6 address ${address}`,
    defaulting: (address: string) => `Defaulting external v6 address to interface address (${address})`,
    noRoute: 'failed to get default v6 interface: unable to find default v6 route',
    noOwner: (address: string) => `error looking up v6 interface ${address}: no interface with given IPv6 found`,
    noAddress: (name: string) => `failed to find IPv6 address for interface ${name}`,
    none: 'no IPv6 address',
    noneUsable: 'no usable IPv6 address',
  },
} as const

/**
 * Returns the address that a starting node uses. If the interface has several addresses, returns the address of the
 * node's earlier run, or else the source address that the kernel chooses.
 */
async function addressToStartWith(
  { kernel, earlier }: Host,
  link: Link,
  family: Family,
  fits: (text: string) => boolean = () => true,
): Promise<Address | undefined> {
  const preferred = preferredAddress(link, family, fits)
  const ready = candidatesOf(link, family, fits).filter(({ tentative }) => !tentative)
  const [first] = ready
  if (preferred === undefined || !first || ready.length === 1) return preferred
  const alike = ready.filter((entry) => makeshiftOf(entry) === makeshiftOf(first))
  const before = (await earlier.addresses()).find((address) => alike.some((entry) => entry.address === address))
  if (before !== undefined || alike.length === 1) return before ?? preferred
  const routes = (await defaultRoutes(kernel, family)).filter(({ deviceIndex }) => deviceIndex === link.index)
  const route = routes.toSorted((a, b) => a.metric - b.metric)[0]
  const gateway = route?.gateway === undefined ? undefined : parseAddress(route.gateway)
  const isSource = ({ address, prefixLength }: LinkAddress): boolean =>
    route?.source === undefined
      ? gateway !== undefined && netContains(netAround(address, prefixLength), gateway)
      : address === route.source
  return alike.find(isSource)?.address ?? preferred
}

/**
 * Describes all interfaces except loopback for an error message: each with its addresses, and with the reason why it
 * was not chosen. `otherwise` is the reason that the message gives for an interface without a fault.
 */
async function describeCandidates({ links, families, ipv6OffBy }: Host, otherwise: string): Promise<string> {
  const faultOf = async (link: Link, family: Family): Promise<string[]> => {
    if (preferredAddress(link, family) !== undefined) return []
    if (addressesOf(link, family).length > 0) return [SAYS[family].noneUsable]
    const setting = family === 'ipv6' ? await ipv6OffBy(link) : undefined
    return [setting === undefined ? SAYS[family].none : `no IPv6 by ${setting}`]
  }
  const reasonOf = async (link: Link): Promise<string> => {
    const ofAddresses = await Promise.all(families.map((family) => faultOf(link, family)))
    const faults = [...(link.up ? [] : ['down']), ...ofAddresses.flat(), ...(link.mtu === 0 ? ['MTU 0'] : [])]
    return faults.length === 0 || (faults.length === 1 && !link.up)
      ? [...faults, otherwise].join(', ')
      : faults.join(', ')
  }
  const textOf = ({ address, deprecated, tentative }: LinkAddress): string => {
    const state = typeof address === 'number' ? '' : deprecated ? '(deprecated)' : tentative ? '(tentative)' : ''
    return formatAddress(address) + state
  }
  // Leave out the loopback device, whose addresses cannot be those of a node.
  const others = links.filter(({ loopback }) => !loopback)
  const descriptions = others.map(async (link) => {
    const addresses = families.flatMap((family) => addressesOf(link, family)).map(textOf)
    return `${link.name}:[${addresses.join(' ')}] (${await reasonOf(link)})`
  })
  return (await Promise.all(descriptions)).join(', ')
}

/**
 * Chooses the external interface, which must have an address of each family of the network. If no interface fits now,
 * throws WeftError INTERFACE, which lists all interfaces and why each was not chosen. Throws WeftError USAGE if the
 * flags can never be satisfied.
 */
export async function chooseExternalInterface(
  kernel: HostKernel,
  wishes: InterfaceWishes,
  families: readonly Family[],
  log: Log,
  readSysctl?: ReadSysctl,
  earlier: Earlier = FIRST_START,
): Promise<ExternalInterface> {
  const asked = byFamily(readPublicIp(wishes).filter((address) => families.includes(familyOf(address))))
  const ipv6OffBy = async ({ name }: Link): Promise<string | undefined> => {
    // Few hosts need these modules.
    const { disablingIpv6, dotted } = await import('./sysctl-names.ts')
    const { getSysctl } = await import('./sysctl.ts')
    const setting = disablingIpv6(name)
    return (await (readSysctl ?? getSysctl)(setting)) === '1' ? dotted(setting) : undefined
  }
  const host: Host = { kernel, links: await kernel.links(), families, ipv6OffBy, earlier, log }
  const { link, address, named, pattern } = await firstThatFits(host, wishes, asked)
  for (const own of listed(address)) log.info(SAYS[familyOf(own)].using(link.name, formatAddress(own)))
  const publicIp = byFamily(listed(address).map((own) => asked[familyOf(own)] ?? own))
  for (const own of listed(address)) {
    const other = asked[familyOf(own)]
    if (other === undefined) log.info(SAYS[familyOf(own)].defaulting(formatAddress(own)))
    else log.info(`Using ${formatAddress(other)} as external address`)
  }
  const found: ExternalInterface = {
    name: link.name,
    index: link.index,
    mtu: link.mtu,
    address,
    publicIp,
    named: { address: named, publicIp: { ipv4: asked.ipv4 !== undefined, ipv6: asked.ipv6 !== undefined } },
    families,
    hold: new AddressHold(address),
  }
  return pattern === undefined ? found : { ...found, pattern }
}

/**
 * Parses --public-ip and --public-ipv6, including the flag of a family that the network lacks. Throws WeftError USAGE
 * for an invalid address.
 */
function readPublicIp({ publicIp }: InterfaceWishes): readonly Address[] {
  const ipv4 = parseIpv4(publicIp.ipv4)
  if (publicIp.ipv4 !== '' && ipv4 === undefined) {
    throw new WeftError('USAGE', `invalid public IP address: ${publicIp.ipv4}`, {
      remedy: 'give --public-ip an IPv4 address',
    })
  }
  const ipv6 = parseIpv6(publicIp.ipv6)
  if (publicIp.ipv6 !== '' && (ipv6 === undefined || !isOfHost(ipv6))) {
    throw new WeftError('USAGE', `invalid public IPv6 address: ${publicIp.ipv6}`, {
      remedy: 'give --public-ipv6 an IPv6 address of one host, without a zone',
    })
  }
  if (ipv6 !== undefined && isLinkLocal(ipv6)) {
    throw new WeftError('USAGE', `invalid public IPv6 address: ${publicIp.ipv6}`, {
      remedy:
        'give --public-ipv6 an address that every node can reach; a link-local address is valid only on its own link',
    })
  }
  return listed({ ipv4, ipv6 })
}

async function firstThatFits(host: Host, wishes: InterfaceWishes, asked: Addresses): Promise<Choice> {
  const { families, log } = host
  const { ifaces, patterns, canReach } = wishes

  if (ifaces.length === 0 && patterns.length === 0 && canReach === '') {
    // If --public-ip is given without --iface, an interface must have the public address. A host behind NAT has no such
    // interface, so its operator must give --iface too.
    const own = listed(asked)
    try {
      return await complete(host, await (own.length === 0 ? byDefaultRoute(host) : byAddresses(host, own)), asked)
    } catch (error) {
      if (!isWeftError(error, 'INTERFACE')) throw error
      const withoutRoute = families.length > 1 ? 'not of both default routes' : 'no default route'
      const otherwise = own.length === 0 ? withoutRoute : `without ${own.map(formatAddress).join(' and ')}`
      throw new WeftError('INTERFACE', `Failed to find any valid interface to use: ${error.message}`, {
        remedy: await remedyFor(host, [error], otherwise),
      })
    }
  }

  const tries: (readonly [wish: string, find: () => Promise<Found>])[] = [
    ...ifaces.map((wish) => [wish, () => (wish === '' ? byDefaultRoute(host) : byNameOrAddress(host, wish))] as const),
    ...patterns.map((wish) => [wish, () => (wish === '' ? byDefaultRoute(host) : byPattern(host, wish))] as const),
    ...(canReach === '' ? [] : [[`ifaceCanReach: ${canReach}`, () => byReach(host, canReach)] as const]),
  ]
  const failures: WeftError[] = []
  for (const [wish, find] of tries) {
    try {
      return await complete(host, await find(), asked)
    } catch (error) {
      if (!isWeftError(error, 'INTERFACE') && !isWeftError(error, 'USAGE')) throw error
      log.info(`Could not find valid interface matching ${wish}: ${error.message}`)
      failures.push(error)
    }
  }
  const message = 'Failed to find interface to use that matches the interfaces and/or regexes provided'
  const why = failures.map((failure) => failure.message).join(', ')
  const hasIpv6 = families.includes('ipv6')
  if (failures.every(({ code }) => code === 'USAGE')) {
    throw new WeftError('USAGE', `${message}: ${why}`, {
      remedy: `give --iface-regex an expression of RE2, --iface-can-reach an ${hasIpv6 ? '' : 'IPv4 '}address`,
    })
  }
  // In an IPv4-only network the message must be exactly flanneld's. In other networks the message also says which
  // family each interface lacks.
  throw new WeftError('INTERFACE', hasIpv6 ? `${message}: ${why}` : message, {
    remedy: await remedyFor(host, failures, 'not asked for'),
  })
}

async function remedyFor(host: Host, failures: readonly WeftError[], otherwise: string): Promise<string> {
  const remedies = failures.flatMap(({ remedy }) => remedy ?? [])
  const candidates = await describeCandidates(host, otherwise)
  const naming = candidates === '' ? 'give the host an interface' : `name one with --iface: ${candidates}`
  return [...remedies, naming].join(', or ')
}

/**
 * Adds to a found interface the addresses that the operator's flag did not determine. If the interface has the public IP
 * `asked` of a family, the node uses this address, because peers send to it. Throws WeftError INTERFACE if the interface
 * lacks an address of a family of the network.
 */
async function complete(
  host: Host,
  { link, given = {}, isNamed = false, pattern }: Found,
  asked: Addresses,
): Promise<Choice> {
  const addresses: Address[] = []
  for (const family of host.families) {
    const chosen = isNamed || pattern !== undefined ? given[family] : undefined
    const address =
      chosen ?? heldBy(link, asked[family]) ?? given[family] ?? (await addressToStartWith(host, link, family))
    if (address === undefined) throw await lacking(host, link, family, SAYS[family].noAddress(link.name))
    addresses.push(address)
  }
  const address = byFamily(addresses)
  if (link.mtu === 0) throw new WeftError('INTERFACE', `failed to determine MTU for ${addressText(address)} interface`)
  const isNamedOf = (family: Family): boolean =>
    isNamed && host.families.includes(family) && given[family] !== undefined
  return { link, address, named: { ipv4: isNamedOf('ipv4'), ipv6: isNamedOf('ipv6') }, pattern }
}

async function lacking({ ipv6OffBy }: Host, link: Link, family: Family, message: string): Promise<WeftError> {
  const setting = family === 'ipv6' ? await ipv6OffBy(link) : undefined
  if (setting === undefined) return new WeftError('INTERFACE', message)
  return new WeftError('INTERFACE', `IPv6 is off on the interface ${link.name}: ${setting} is 1`, {
    remedy: 'set it to 0',
  })
}

/**
 * Chooses the external interface in a dual-stack network while the host lacks addresses of one family. Chooses an
 * interface that fits one family, and adds the interface's addresses of the second family except link-local ones.
 * Throws WeftError INTERFACE if no interface fits either family.
 */
export async function chooseForSome(
  kernel: HostKernel,
  wishes: InterfaceWishes,
  families: readonly Family[],
  log: Log,
  readSysctl?: ReadSysctl,
  earlier: Earlier = FIRST_START,
): Promise<ExternalInterface> {
  let failure: unknown
  for (const family of families) {
    try {
      const found = await chooseExternalInterface(kernel, wishes, [family], log, readSysctl, earlier)
      return withOthers(found, families, await kernel.link(found.name), await fitsOf(found), wishes)
    } catch (error) {
      if (!isWeftError(error, 'INTERFACE')) throw error
      failure ??= error
    }
  }
  throw failure
}

function withOthers(
  found: ExternalInterface,
  families: readonly Family[],
  link: Link | undefined,
  fits: ((text: string) => boolean) | undefined,
  wishes: InterfaceWishes,
): ExternalInterface {
  const asked = byFamily(readPublicIp(wishes).filter((address) => families.includes(familyOf(address))))
  const others = families.flatMap((family) => {
    const other =
      found.address[family] === undefined && link
        ? ((fits ? undefined : heldBy(link, asked[family])) ?? preferredAddress(link, family, fits))
        : undefined
    return other === undefined || isLinkLocal(other) ? [] : [other]
  })
  const address = byFamily([...listed(found.address), ...others])
  const publicIp = byFamily(listed(address).map((own) => asked[familyOf(own)] ?? own))
  const publicNamed = { ipv4: asked.ipv4 !== undefined, ipv6: asked.ipv6 !== undefined }
  const named = { address: found.named.address, publicIp: publicNamed }
  return { ...found, address, publicIp, named, families, hold: new AddressHold(address) }
}

/** Lists the default routes of the main table. */
const defaultRoutes = (kernel: HostKernel, family: Family): Promise<readonly Route[]> =>
  kernel.routes({ family, exactly: ['default'] })

/**
 * Returns the default route that the kernel uses, which is the route with the lowest metric. Skips routes that have no
 * device, such as blackhole and unreachable routes.
 */
export async function defaultRoute(
  kernel: HostKernel,
  family: Family,
  isPassedOver: (device: string) => boolean = () => false,
): Promise<Route | undefined> {
  const routes = (await defaultRoutes(kernel, family)).filter(
    ({ device, type }) => device !== '' && type === 'unicast' && !isPassedOver(device),
  )
  return routes.toSorted((a, b) => a.metric - b.metric)[0]
}

async function byDefaultRoute(host: Host): Promise<Found> {
  const { kernel, links, families, earlier, log } = host
  const isOwn = (device: string): boolean => links.some((link) => link.name === device && earlier.isOwn(link))
  log.info('Determining IP address of default interface')
  const found: Link[] = []
  for (const family of families) {
    const route = await defaultRoute(kernel, family, isOwn)
    const [other] = found
    if (!route) {
      const message = SAYS[family].noRoute
      throw other ? await lacking(host, other, family, message) : new WeftError('INTERFACE', message)
    }
    if (other && other.name !== route.device) {
      throw new WeftError(
        'INTERFACE',
        `v6 default route interface ${route.device} must be the same with v4 default route interface ${other.name}`,
        { remedy: 'let both default routes use one interface' },
      )
    }
    found.push(linkOf(links, route.device))
  }
  return { link: found[0] as Link }
}

/**
 * Parses a value of --iface as an address; undefined if it is the name of an interface. In a network without IPv6, an
 * IPv6 address counts as a name, as in flanneld.
 */
const readAddress = (text: string, families: readonly Family[]): Address | undefined =>
  parseIpv4(text) ?? (families.includes('ipv6') ? parseIpv6(text) : undefined)

async function byNameOrAddress(host: Host, wish: string): Promise<Found> {
  const address = readAddress(wish, host.families)
  return address === undefined ? { link: linkOf(host.links, wish) } : byAddress(host, address)
}

function byAddress({ links, log }: Host, address: Address): Found {
  const [family, text] = [familyOf(address), formatAddress(address)]
  log.info(`Searching for interface using ${text}`)
  const isIt = (entry: LinkAddress): boolean => entry.address === address && !entry.tentative
  const link = links.find((candidate) => addressesOf(candidate, family).some(isIt))
  if (link) return { link, given: byFamily([address]), isNamed: true }
  throw new WeftError('INTERFACE', SAYS[family].noOwner(text))
}

/** Finds the interface that has all given addresses, at most one of each family. */
async function byAddresses(host: Host, addresses: readonly Address[]): Promise<Found> {
  const [first, second = first] = addresses.map((address) => byAddress(host, address)) as [Found, Found?]
  if (second.link !== first.link) {
    throw new WeftError(
      'INTERFACE',
      `v6 interface ${second.link.name} must be the same with v4 interface ${first.link.name}`,
      { remedy: 'give --public-ip and --public-ipv6 addresses of one interface' },
    )
  }
  return { link: first.link, given: byFamily(addresses), isNamed: true }
}

/**
 * Finds an interface by a regular expression: the first interface with a matching address, or else the first with a
 * matching name.
 */
async function byPattern(host: Host, pattern: string): Promise<Found> {
  const { families, earlier } = host
  const links = host.links.filter((link) => !earlier.isOwn(link))
  const matches = await compile(pattern)
  for (const link of links) {
    const given = await Promise.all(families.map((family) => addressToStartWith(host, link, family, matches)))
    if (given.every((address) => address !== undefined)) return { link, given: byFamily(given), pattern }
  }
  const named = links.find(({ name }) => matches(name))
  if (named) return { link: named }
  const candidates = links.map((link) => {
    const usable = families.flatMap((family) => candidatesOf(link, family, () => true))
    return `${link.name}:[${usable.map(({ address }) => formatAddress(address)).join(' ')}]`
  })
  throw new WeftError(
    'INTERFACE',
    `could not match pattern ${pattern} to any of the available network interfaces (${candidates.join(', ')})`,
  )
}

async function byReach({ kernel, links, families, earlier, log }: Host, target: string): Promise<Found> {
  log.info(`Determining interface to use based on given ifcanreach: ${target}`)
  const address = readAddress(target, families)
  if (address === undefined) throw new WeftError('USAGE', `invalid IP address for --iface-can-reach: ${target}`)
  const [answer] = await kernel.lookUp(familyOf(address), [{ to: address }])
  if (!answer || 'refused' in answer) {
    const isUnreachable = !answer || ['ENETUNREACH', 'EHOSTUNREACH'].includes(answer.errno)
    const why = isUnreachable ? 'network is unreachable' : answer.refused // flanneld's text
    throw new WeftError(
      'INTERFACE',
      `failed to get ifcanreach based interface: couldn't lookup route to ${target}: ${why}`,
    )
  }
  const { route } = answer
  const link = linkOf(links, route.device)
  if (earlier.isOwn(link))
    throw new WeftError('INTERFACE', `the route to ${target} leads through ${link.name}, which is weft's own device`)
  // The kernel's IPv6 source address may be a temporary address, so weft, like flanneld, uses only the IPv4 source
  // address.
  return typeof route.source === 'number' ? { link, given: { ipv4: route.source } } : { link }
}

function linkOf(links: readonly Link[], name: string): Link {
  const link = links.find((candidate) => candidate.name === name)
  if (link) return link
  // The message repeats the error of Go's net.InterfaceByName, which flanneld logs.
  throw new WeftError('INTERFACE', `error looking up interface ${name}: route ip+net: no such network interface`)
}
