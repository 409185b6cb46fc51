// external-interface.ts - chooses the interface that carries the datagrams, and the addresses to which other nodes send.
//
// The rules and texts are those of flanneld (main.go, pkg/ipmatch/match.go, pkg/ip/iface.go), with three differences. If there are several
// default routes, the one with the lowest metric counts, as for all packets of the host. A tentative IPv6 address is not used, because no
// socket can be bound to it. If there are several addresses, the node uses its earlier address, or else the kernel's source address,
// because an address that another program adds later, such as a virtual IP, must not become the node's.

import { isWeftError, messageOf, WeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import {
  ADDRESS_BITS,
  addressText,
  byFamily,
  FAMILIES,
  FAMILY_NAMES,
  familiesOf,
  familyOf,
  formatAddress,
  isLinkLocal,
  isOneHost,
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
import type { Run } from './command.ts'
import {
  findLink,
  findLinkAgain,
  listLinks,
  routeFor,
  routesTo,
  type Link,
  type LinkAddress,
  type Route,
} from './links.ts'

/** How long an address must be missing before the node gives it up. A DHCP client removes it for a moment when it restarts. */
const HOLD_MS = 5_000

export interface ExternalInterface {
  readonly name: string
  /** The kernel's number of the interface, which stays when the interface is renamed; left out if it is not known. */
  readonly index?: number
  readonly mtu: number
  /** The addresses that sockets are bound to, of the families that the network has. */
  readonly address: Addresses
  /** The addresses that other nodes send to; the interface's unless --public-ip or --public-ipv6 says otherwise. */
  readonly publicIp: Addresses
  /** The addresses that the operator named: such an address does not follow the interface's. */
  readonly named: { readonly address: ByFamily<boolean>; readonly publicIp: ByFamily<boolean> }
  /** The expression with which the addresses were chosen. Later addresses must match it too. */
  readonly pattern?: string
  /** The families of the network; those of `address` if it is left out. weftd waits for an address of each. */
  readonly families?: readonly Family[]
  /** The addresses that the node keeps while they are briefly missing; without it the node follows the interface immediately. */
  readonly hold?: AddressHold
}

/** The knowledge of a starting node about its earlier runs. */
export interface Earlier {
  /** Returns the addresses that this node used or published, the most certain first. Called only if an interface has several addresses. */
  readonly addresses: () => Promise<readonly Address[]>
  /** True for a device that weft makes, and for a device with an address of this node's own subnet. Neither is the external interface. */
  readonly isOwn: (link: Link) => boolean
}

const FIRST_START: Earlier = { addresses: async () => [], isOwn: () => false }

/** Remembers the addresses with which the node started, and since when an address in use has been missing. */
export class AddressHold {
  #home: { ipv4?: Address; ipv6?: Address } = {}
  #goneSince = new Map<Address, number>()

  constructor(home: Addresses) {
    for (const address of listed(home)) this.#home[familyOf(address)] = address
  }

  /** Returns the address to which the node returns as soon as the interface has it again. */
  home(family: Family): Address | undefined {
    return this.#home[family]
  }

  /** Makes this the address to which the node returns, because it is better than the previous one. */
  settle(address: Address): void {
    this.#home[familyOf(address)] = address
  }

  isThere(address: Address): void {
    this.#goneSince.delete(address)
  }

  /** Notes that an address is missing. Returns true if it has been missing for HOLD_MS, so that the node must give it up. */
  isGoneForGood(address: Address): boolean {
    const now = performance.now()
    const since = this.#goneSince.get(address) ?? now
    this.#goneSince.set(address, since)
    return now - since >= HOLD_MS
  }
}

export interface InterfaceWishes {
  /** Names or addresses, in order of preference. Here and in `patterns`, an empty text means the interface of the default route. */
  readonly ifaces: readonly string[]
  /** Regular expressions (RE2) for addresses and names, which are tried if none of `ifaces` fits. */
  readonly patterns: readonly string[]
  /** An address whose route determines the interface, which is tried last; or empty. */
  readonly canReach: string
  /** The addresses of --public-ip and --public-ipv6, to which other nodes send; or empty. */
  readonly publicIp: Readonly<Record<Family, string>>
}

/** Reads a setting of the kernel, as `getSysctl` of sysctl.ts does. */
export type ReadSysctl = (name: string) => Promise<string | undefined>

interface Host {
  readonly run: Run
  readonly links: readonly Link[]
  /** The families of the network. The interface must have an address of each. */
  readonly families: readonly Family[]
  /** Returns the kernel setting that disables IPv6 on an interface; undefined if it is not disabled. */
  readonly ipv6OffBy: (link: Link) => Promise<string | undefined>
  readonly earlier: Earlier
  readonly log: Log
}

/** The interface and the addresses that one wish selects. */
interface Found {
  readonly link: Link
  /** The addresses that the wish determines. For a family without one, the interface's preferred address is used. */
  readonly given?: Addresses
  /** True if the wish names these addresses. */
  readonly isNamed?: boolean
  readonly pattern?: string
}

interface Choice {
  readonly link: Link
  readonly address: Addresses
  readonly named: ByFamily<boolean>
  readonly pattern: string | undefined
}

/** The texts of log lines and errors for each family. Most are flanneld's. */
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

const addressesOf = (link: Link, family: Family): readonly LinkAddress[] => link.addresses[family]

/** True if a host can have the address: it is not unspecified, loopback, multicast or an IPv4-mapped IPv6 address. */
function isOfHost(address: Address): boolean {
  if (typeof address === 'bigint') return isOneHost(address)
  const top = address >>> 24
  return top !== 0 && top !== 127 && top < 224
}

/** Returns 0 for a permanent address; more for a makeshift one (temporary, link-local), which is used only if there is no better one. */
const makeshiftOf = ({ address, temporary }: LinkAddress): number =>
  (isLinkLocal(address) ? 2 : 0) + (temporary ? 1 : 0)

/** True for an address with the prefix length of a single host (/32 or /128), which virtual IPs have. */
const isBare = ({ address, prefixLength }: LinkAddress): boolean => prefixLength >= ADDRESS_BITS[familyOf(address)]

/** Ranks an address: a lower number is better. A limited lifetime, such as that of a DHCP address, does not count against it. */
const rankOf = (entry: LinkAddress): number => 2 * makeshiftOf(entry) + (isBare(entry) ? 1 : 0)

/** Lists the usable addresses, tentative ones included, the best first; equal ones are in the kernel's order. */
function candidatesOf(link: Link, family: Family, fits: (text: string) => boolean): LinkAddress[] {
  return addressesOf(link, family)
    .filter(({ address, deprecated }) => !deprecated && isOfHost(address) && fits(formatAddress(address)))
    .toSorted((a, b) => rankOf(a) - rankOf(b))
}

/**
 * Returns the address of an interface to use. Returns undefined while a better address is still tentative: on a booting host the
 * link-local address is ready before the addresses that other nodes can reach.
 */
export function preferredAddress(
  link: Link,
  family: Family,
  fits: (text: string) => boolean = () => true,
): Address | undefined {
  const candidates = candidatesOf(link, family, fits)
  const ready = candidates.find(({ tentative }) => !tentative)
  return ready && candidates.every((other) => makeshiftOf(other) >= makeshiftOf(ready)) ? ready.address : undefined
}

/** Returns the address for a node that starts. Of several it is the node's earlier address, else the kernel's source address. */
async function addressToStartWith(
  { run, earlier }: Host,
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
  const routes = (await routesTo(run, family)).filter(({ device }) => device === link.name)
  const route = routes.toSorted((a, b) => a.metric - b.metric)[0]
  const gateway = route?.gateway === undefined ? undefined : parseAddress(route.gateway)
  const isSource = ({ address, prefixLength }: LinkAddress): boolean =>
    route?.source === undefined
      ? gateway !== undefined && netContains(netAround(address, prefixLength), gateway)
      : address === route.source
  return alike.find(isSource)?.address ?? preferred
}

/** Describes all interfaces but the loopback device, each with its addresses and the reason why it was not chosen; `otherwise` is the reason of a suitable one. */
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
  // An address of the loopback device cannot be that of a node.
  const others = links.filter(({ loopback }) => !loopback)
  const descriptions = others.map(async (link) => {
    const addresses = families.flatMap((family) => addressesOf(link, family)).map(textOf)
    return `${link.name}:[${addresses.join(' ')}] (${await reasonOf(link)})`
  })
  return (await Promise.all(descriptions)).join(', ')
}

/**
 * Chooses the interface, which must have an address of each of the network's `families`. Throws WeftError INTERFACE if none fits now, with
 * all candidates and the reasons. Throws USAGE if the wishes can never be met.
 */
export async function chooseExternalInterface(
  run: Run,
  wishes: InterfaceWishes,
  families: readonly Family[],
  log: Log,
  readSysctl?: ReadSysctl,
  earlier: Earlier = FIRST_START,
): Promise<ExternalInterface> {
  const asked = byFamily(readPublicIp(wishes).filter((address) => families.includes(familyOf(address))))
  const ipv6OffBy = async ({ name }: Link): Promise<string | undefined> => {
    const { dotted, getSysctl } = await import('./sysctl.ts') // few hosts need it
    const setting = `net/ipv6/conf/${name}/disable_ipv6`
    return (await (readSysctl ?? getSysctl)(setting)) === '1' ? dotted(setting) : undefined
  }
  const host: Host = { run, links: await listLinks(run), families, ipv6OffBy, earlier, log }
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

/** Parses both public addresses, even if the network has only one family. Throws WeftError USAGE. */
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
    // If only --public-ip is given, an interface must have that address. Behind NAT, --iface is needed too.
    const own = listed(asked)
    try {
      return await complete(host, await (own.length === 0 ? byDefaultRoute(host) : byAddresses(host, own)))
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
      return await complete(host, await find())
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
  // For an IPv4 network the message is exactly flanneld's. Otherwise it adds which family an interface lacks.
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

/** Adds the addresses that the wish did not determine. Throws WeftError INTERFACE if the interface lacks a family. */
async function complete(host: Host, { link, given = {}, isNamed = false, pattern }: Found): Promise<Choice> {
  const addresses: Address[] = []
  for (const family of host.families) {
    const address = given[family] ?? (await addressToStartWith(host, link, family))
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
 * Like chooseExternalInterface, for a dual-stack network on a host that lacks a family now. Chooses an interface that fits one family, and
 * adds its addresses of the other family, except link-local ones. Throws WeftError INTERFACE if no family is available.
 */
export async function chooseForSome(
  run: Run,
  wishes: InterfaceWishes,
  families: readonly Family[],
  log: Log,
  readSysctl?: ReadSysctl,
  earlier: Earlier = FIRST_START,
): Promise<ExternalInterface> {
  let failure: unknown
  for (const family of families) {
    try {
      const found = await chooseExternalInterface(run, wishes, [family], log, readSysctl, earlier)
      return withOthers(found, families, await findLink(run, found.name), await fitsOf(found), wishes)
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
    const other = found.address[family] === undefined && link ? preferredAddress(link, family, fits) : undefined
    return other === undefined || isLinkLocal(other) ? [] : [other]
  })
  const address = byFamily([...listed(found.address), ...others])
  const publicIp = byFamily(listed(address).map((own) => asked[familyOf(own)] ?? own))
  const publicNamed = { ipv4: asked.ipv4 !== undefined, ipv6: asked.ipv6 !== undefined }
  const named = { address: found.named.address, publicIp: publicNamed }
  return { ...found, address, publicIp, named, families, hold: new AddressHold(address) }
}

/**
 * Returns the current state of the interface: its name, its MTU, and a new address of a family if the old one is gone. A property that is
 * missing for the moment, as while DHCP renews or a cable is out, stays as it was.
 */
export const currentExternal = async (run: Run, before: ExternalInterface): Promise<ExternalInterface> =>
  (await seeExternal(run, before)).now

const fitsOf = async ({ pattern }: ExternalInterface): Promise<((text: string) => boolean) | undefined> =>
  pattern === undefined ? undefined : compile(pattern)

/** The families of the network, whether or not the interface has an address of each. */
const familiesFor = ({ families, address }: ExternalInterface): readonly Family[] => families ?? familiesOf(address)

/** Like `currentExternal`, but also returns a reason for each family whose address is missing for the moment. */
export async function seeExternal(
  run: Run,
  before: ExternalInterface,
): Promise<{ readonly now: ExternalInterface; readonly gone: ByFamily<string> }> {
  const link = await findLinkAgain(run, before.name, before.index)
  if (!link || link.mtu === 0) return { now: before, gone: goneOf(before, link) }
  const fits = await fitsOf(before)
  const own = familiesFor(before).flatMap((family) => {
    const known = before.address[family]
    const address =
      known === undefined ? addressThatCame(before, link, family, fits) : follow(before, known, link, fits)
    return address === undefined ? [] : [address]
  })
  const publicOf = (family: Family): Address | undefined => {
    const address = own.find((each) => familyOf(each) === family)
    const isKept = before.named.publicIp[family] || address === undefined
    return isKept ? (before.publicIp[family] ?? address) : address
  }
  const publicIp = byFamily(FAMILIES.flatMap((family) => publicOf(family) ?? []))
  const place = { name: link.name, ...(before.index === undefined ? {} : { index: link.index }) }
  const now = { ...before, ...place, mtu: link.mtu, address: byFamily(own), publicIp }
  return { now, gone: goneOf(now, link) }
}

/** Returns, for each family that the interface cannot serve now, the reason, such as a lost address. */
function goneOf(external: ExternalInterface, link: Link | undefined): ByFamily<string> {
  const { name, address } = external
  const reasonFor = (family: Family): string | undefined => {
    const known = address[family]
    if (!link) return `the interface ${name} is gone`
    if (known === undefined) return `${link.name} has no ${FAMILY_NAMES[family]} address`
    const there = addressesOf(link, family).find((entry) => entry.address === known)
    if (there?.duplicate) return `another host has the address ${formatAddress(known)} of ${link.name} too`
    return there ? undefined : `${link.name} has lost its address ${formatAddress(known)}`
  }
  return Object.fromEntries(
    familiesFor(external).flatMap((family) => {
      const reason = reasonFor(family)
      return reason === undefined ? [] : [[family, reason]]
    }),
  )
}

/** Returns an address of a family of which the interface had none. Link-local addresses do not count, because other nodes cannot send to them. */
function addressThatCame(
  { hold }: ExternalInterface,
  link: Link,
  family: Family,
  fits: ((text: string) => boolean) | undefined,
): Address | undefined {
  const address = preferredAddress(link, family, fits)
  const home = hold?.home(family)
  if (home !== undefined && addressesOf(link, family).some((each) => each.address === home && !each.duplicate))
    return home
  // The node's earlier address may return shortly.
  if (address === undefined || isLinkLocal(address) || (home !== undefined && !hold?.isGoneForGood(home)))
    return undefined
  return address
}

/**
 * Returns the address that the node uses from now on; `known` is its address so far. The node returns to the address with which it
 * started, and leaves a makeshift or deprecated address for a better one. If `known` is gone, the node waits before it uses another.
 */
function follow(
  { named, hold }: ExternalInterface,
  known: Address,
  link: Link,
  fits: ((text: string) => boolean) | undefined,
): Address {
  const family = familyOf(known)
  if (named.address[family]) return known
  const all = addressesOf(link, family)
  // A tentative address still belongs to this host; addresses become tentative when a cable is unplugged.
  const there = all.find(({ address, duplicate }) => address === known && !duplicate)
  const isReady = ({ deprecated, tentative }: LinkAddress): boolean => !deprecated && !tentative
  const home = all.find((entry) => entry.address === hold?.home(family) && isReady(entry))
  if (home && home.address !== known && (!there || there.deprecated || rankOf(home) <= rankOf(there)))
    return home.address
  const other = all.find(({ address }) => address === preferredAddress(link, family, fits))
  if (there) {
    hold?.isThere(known)
    const isBetter =
      other !== undefined &&
      (makeshiftOf(other) < makeshiftOf(there) || (there.deprecated && makeshiftOf(other) === makeshiftOf(there)))
    if (!isBetter) return known
    if (makeshiftOf(other) < makeshiftOf(there)) hold?.settle(other.address)
    return other.address
  }
  // After a link was down, its link-local address returns immediately, but the others only when a router or a DHCP server answers.
  const isForNow = other !== undefined && isLinkLocal(other.address) && !isLinkLocal(known)
  const isLeft = hold?.isGoneForGood(known) ?? true
  return other === undefined || isForNow || !isLeft ? known : other.address
}

/**
 * Describes a change that a data path made for `before` cannot follow: of an address of these families, or else of the MTU. Returns
 * undefined if there is none.
 */
export const changeOf = (
  before: ExternalInterface,
  now: ExternalInterface,
  families: readonly Family[] = FAMILIES,
): string | undefined =>
  families.map((family) => addressChange(before, now, family)).find((change) => change !== undefined) ??
  mtuChange(before, now)

export function addressChange(before: ExternalInterface, now: ExternalInterface, family: Family): string | undefined {
  const [was, is] = [before.address[family], now.address[family]]
  if (is === undefined || is === was) return undefined
  if (was === undefined) return `${now.name} has the ${FAMILY_NAMES[family]} address ${formatAddress(is)} now`
  return `the address of ${now.name} changed from ${formatAddress(was)} to ${formatAddress(is)}`
}

export const mtuChange = (before: ExternalInterface, now: ExternalInterface): string | undefined =>
  now.mtu === before.mtu ? undefined : `the MTU of ${now.name} changed from ${before.mtu} to ${now.mtu}`

/** Describes the change if the interface was renamed, since the kernel refuses new routes and devices that use the old name. */
export const nameChange = (before: ExternalInterface, now: ExternalInterface): string | undefined =>
  now.name === before.name ? undefined : `the interface ${before.name} is called ${now.name} now`

/** Returns the default route that the kernel uses, that with the lowest metric. Blackhole and unreachable routes do not count. */
export async function defaultRoute(
  run: Run,
  family: Family,
  isPassedOver: (device: string) => boolean = () => false,
): Promise<Route | undefined> {
  const routes = (await routesTo(run, family)).filter(
    ({ device, type }) => device !== '' && type === 'unicast' && !isPassedOver(device),
  )
  return routes.toSorted((a, b) => a.metric - b.metric)[0]
}

async function byDefaultRoute(host: Host): Promise<Found> {
  const { run, links, families, earlier, log } = host
  const isOwn = (device: string): boolean => links.some((link) => link.name === device && earlier.isOwn(link))
  log.info('Determining IP address of default interface')
  const found: Link[] = []
  for (const family of families) {
    const route = await defaultRoute(run, family, isOwn)
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

/** Parses an address. In a network without IPv6, an IPv6 address counts as the name of an interface, as in flanneld. */
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

/** Finds the interface that has all of these addresses, which have different families. */
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

/** Finds an interface by a pattern. Matches the addresses of all interfaces first, and then their names. */
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

/** Compiles a pattern to a function that searches a text. Syntax and linear time are those of RE2, as in Go. */
async function compile(pattern: string): Promise<(text: string) => boolean> {
  const { RE2JS } = await import('re2js') // few hosts need it
  try {
    const expression = RE2JS.compile(pattern)
    return (text) => expression.matcher(text).find()
  } catch (error) {
    throw new WeftError('USAGE', `could not compile the IP address regex '${pattern}': ${messageOf(error)}`)
  }
}

async function byReach({ run, links, families, earlier, log }: Host, target: string): Promise<Found> {
  log.info(`Determining interface to use based on given ifcanreach: ${target}`)
  const address = readAddress(target, families)
  if (address === undefined) throw new WeftError('USAGE', `invalid IP address for --iface-can-reach: ${target}`)
  const route = await routeFor(run, address)
  if (!route) {
    throw new WeftError(
      'INTERFACE',
      `failed to get ifcanreach based interface: couldn't lookup route to ${target}: network is unreachable`,
    )
  }
  const link = linkOf(links, route.device)
  if (earlier.isOwn(link))
    throw new WeftError('INTERFACE', `the route to ${target} leads through ${link.name}, which is weft's own device`)
  // For IPv6 the kernel's source may be a temporary address, so it is not used. flanneld does not use it either.
  return typeof route.source === 'number' ? { link, given: { ipv4: route.source } } : { link }
}

function linkOf(links: readonly Link[], name: string): Link {
  const link = links.find((candidate) => candidate.name === name)
  if (link) return link
  // The message of Go's net.InterfaceByName.
  throw new WeftError('INTERFACE', `error looking up interface ${name}: route ip+net: no such network interface`)
}

export function externalText({ hold, ...external }: ExternalInterface): object {
  const text = (addresses: Addresses): object =>
    Object.fromEntries(listed(addresses).map((address) => [familyOf(address), formatAddress(address)]))
  const home = byFamily(FAMILIES.flatMap((family) => hold?.home(family) ?? []))
  return { ...external, address: text(external.address), publicIp: text(external.publicIp), home: text(home) }
}

/** Reads an interface from a value that `externalText` made; returns undefined for any other value. */
export function readExternalText(value: unknown): ExternalInterface | undefined {
  const isRecord = (of: unknown): of is Readonly<Record<string, unknown>> => typeof of === 'object' && of !== null
  if (!isRecord(value)) return undefined
  const { name, index, mtu, pattern, families, named } = value
  const read = (of: unknown): Addresses =>
    byFamily(Object.values(isRecord(of) ? of : {}).flatMap((each) => parseAddress(String(each)) ?? []))
  const [address, publicIp, home] = [read(value['address']), read(value['publicIp']), read(value['home'])]
  const flags = (of: unknown): ByFamily<boolean> => ({
    ipv4: isRecord(of) && of['ipv4'] === true,
    ipv6: isRecord(of) && of['ipv6'] === true,
  })
  if (typeof name !== 'string' || name === '' || typeof mtu !== 'number' || listed(address).length === 0)
    return undefined
  if (!Array.isArray(families) || !families.every((each): each is Family => FAMILIES.includes(each as Family)))
    return undefined
  const [ofAddress, ofPublicIp] = isRecord(named) ? [flags(named['address']), flags(named['publicIp'])] : [{}, {}]
  return {
    name,
    mtu,
    address,
    publicIp,
    named: { address: ofAddress, publicIp: ofPublicIp },
    families,
    ...(typeof index === 'number' ? { index } : {}),
    ...(typeof pattern === 'string' ? { pattern } : {}),
    hold: new AddressHold({ ...address, ...home }),
  }
}

/**
 * Returns the current state of the interface that an earlier process used. Finds it by its name, or by its index if it was renamed; it must
 * have a known address. Returns undefined if it is gone. A family whose address is missing has no address in the result.
 */
export async function resumeExternal(run: Run, known: ExternalInterface): Promise<ExternalInterface | undefined> {
  const links = await listLinks(run)
  const has = (link: Link, address: Address): boolean =>
    addressesOf(link, familyOf(address)).some((each) => each.address === address && !each.duplicate)
  const hasAny = (link: Link): boolean => listed(known.address).some((address) => has(link, address))
  const link =
    links.find((each) => each.name === known.name && hasAny(each)) ??
    links.find((each) => each.index === known.index && hasAny(each))
  if (!link) return undefined
  const address = byFamily(listed(known.address).filter((each) => has(link, each)))
  return { ...known, name: link.name, index: link.index, mtu: link.mtu || known.mtu, address }
}
