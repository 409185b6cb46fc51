// external-interface.ts - reads the state of the external interface, which it finds by index even after a rename, and
// ranks its addresses. choose-interface.ts chooses this interface.
//
// weftd does not use a tentative IPv6 address, because no socket can be bound to it. An address that another program
// adds later, such as a virtual IP, must not become the node's address.

import { messageOf, WeftError } from '../base/errors.ts'
import {
  ADDRESS_BITS,
  FAMILIES,
  FAMILY_NAMES,
  addressKey,
  byFamily,
  familiesOf,
  familyOf,
  formatAddress,
  isLinkLocal,
  isOneHost,
  listed,
  parseAddress,
  type Address,
  type AddressKey,
  type Addresses,
  type ByFamily,
  type Family,
} from '../net/address.ts'
import type { HostKernel, Link, LinkAddress } from './kernel.ts'
import { linkAgain } from './links.ts'

/**
 * How long, in ms, the node's address must be missing from the interface before the node uses another address. A DHCP
 * client that restarts removes the address for a moment.
 */
const HOLD_MS = 5_000

export interface ExternalInterface {
  readonly name: string
  /**
   * The kernel's index of the interface, which stays the same if the interface is renamed; left out if the index is not
   * known.
   */
  readonly index?: number | undefined
  readonly mtu: number
  /** The interface's addresses, to which weftd binds its sockets: one address for each family of the network. */
  readonly address: Addresses
  /**
   * The addresses to which peers send packets: the addresses of the interface, unless --public-ip or --public-ipv6 is
   * given.
   */
  readonly publicIp: Addresses
  /**
   * True for each address that the operator gave by a flag. Such an address stays the same even if the interface's
   * address changes.
   */
  readonly named: { readonly address: ByFamily<boolean>; readonly publicIp: ByFamily<boolean> }
  /**
   * The regular expression of --iface-regex that chose the addresses. A new address of the interface must match the
   * expression too.
   */
  readonly pattern?: string
  /**
   * The families of the network; if left out, the families of `address`. weftd waits until the interface has an address
   * of each family.
   */
  readonly families?: readonly Family[]
  /**
   * Decides how long the node keeps an address that is missing from the interface. If `hold` is left out, the node uses
   * another address immediately.
   */
  readonly hold?: AddressHold
}

/**
 * Stores for each family the address with which the node started, and the time since which the node's current address
 * has been missing.
 */
export class AddressHold {
  #home: { ipv4?: Address; ipv6?: Address } = {}
  #goneSince = new Map<AddressKey, number>()

  constructor(home: Addresses) {
    for (const address of listed(home)) this.#home[familyOf(address)] = address
  }

  /**
   * Returns the address to which the node must return as soon as the interface has it again; undefined if there is
   * none.
   */
  home(family: Family): Address | undefined {
    return this.#home[family]
  }

  /**
   * Makes `address` the address to which the node returns after it had to use another address. The caller does this for
   * an address that is better than the address with which the node started.
   */
  settle(address: Address): void {
    this.#home[familyOf(address)] = address
  }

  isThere(address: Address): void {
    this.#goneSince.delete(addressKey(address))
  }

  /**
   * Records that the interface lacks an address of the node. Returns true if the address has been missing for HOLD_MS,
   * so that the node must use another address.
   */
  isGoneForGood(address: Address): boolean {
    const now = performance.now()
    const since = this.#goneSince.get(addressKey(address)) ?? now
    this.#goneSince.set(addressKey(address), since)
    return now - since >= HOLD_MS
  }
}

export const addressesOf = (link: Link, family: Family): readonly LinkAddress[] => link.addresses[family]

/** Returns `address` if the interface has it and a socket can be bound to it; otherwise undefined. */
export const heldBy = (link: Link, address: Address | undefined): Address | undefined =>
  address !== undefined &&
  addressesOf(link, familyOf(address)).some((each) => each.address === address && !each.tentative)
    ? address
    : undefined

/**
 * Returns the public IP that the operator gave, if the interface has it; otherwise undefined. `fits` is the regular
 * expression that chose the node's addresses. With such an expression the result is undefined, because the node keeps
 * the addresses that the expression chose.
 */
const askedOn = (
  { named, publicIp }: ExternalInterface,
  link: Link,
  family: Family,
  fits: ((text: string) => boolean) | undefined,
): Address | undefined => (named.publicIp[family] && !fits ? heldBy(link, publicIp[family]) : undefined)

/**
 * Returns true if the address can be a node's address on the external interface, and false for an unspecified,
 * loopback, multicast or IPv4-mapped IPv6 address.
 */
export function isOfHost(address: Address): boolean {
  if (typeof address === 'bigint') return isOneHost(address)
  const top = address >>> 24
  return top !== 0 && top !== 127 && top < 224
}

/**
 * Returns 0 for a permanent address, and a higher number for a makeshift (temporary or link-local) address. The node
 * uses a makeshift address only if the interface has no permanent address.
 */
export const makeshiftOf = ({ address, temporary }: LinkAddress): number =>
  (isLinkLocal(address) ? 2 : 0) + (temporary ? 1 : 0)

/** Returns true if the prefix length of the address covers a single host (/32 or /128), as for virtual IPs. */
const isBare = ({ address, prefixLength }: LinkAddress): boolean => prefixLength >= ADDRESS_BITS[familyOf(address)]

/**
 * Ranks an address of an interface: a lower number is better. An address with a limited lifetime, such as an address
 * from DHCP, has the same rank as a permanent address.
 */
const rankOf = (entry: LinkAddress): number => 2 * makeshiftOf(entry) + (isBare(entry) ? 1 : 0)

/**
 * Lists the usable addresses of an interface, the best first, including tentative ones. Addresses of equal rank stay in
 * the kernel's order.
 */
export function candidatesOf(link: Link, family: Family, fits: (text: string) => boolean): LinkAddress[] {
  return addressesOf(link, family)
    .filter(({ address, deprecated }) => !deprecated && isOfHost(address) && fits(formatAddress(address)))
    .toSorted((a, b) => rankOf(a) - rankOf(b))
}

/**
 * Returns the interface's address that the node must use. Returns undefined while a better address is still tentative:
 * on a booting host the link-local address is ready earlier than the addresses that peers can reach.
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

/**
 * Returns the current state of the external interface: its name, its MTU and its addresses. Keeps a property that is
 * missing only for a moment, for example while DHCP renews a lease or a cable is unplugged.
 */
export const currentExternal = async (kernel: HostKernel, before: ExternalInterface): Promise<ExternalInterface> =>
  (await seeExternal(kernel, before)).now

export const fitsOf = async ({ pattern }: ExternalInterface): Promise<((text: string) => boolean) | undefined> =>
  pattern === undefined ? undefined : compile(pattern)

/**
 * Returns the external interface for a backend that sends datagrams from the public IP, as the kernel does for flanneld
 * with vxlan (pkg/backend/vxlan). If another interface of the host has the public IP of a family, such as the loopback
 * device, the result has the public IP in place of the interface's address. Behind NAT no interface has the public IP,
 * and the node sends from the interface's address.
 */
export async function sendingFromPublicIp(kernel: HostKernel, external: ExternalInterface): Promise<ExternalInterface> {
  const { address, publicIp } = external
  if (familiesOf(address).every((family) => (publicIp[family] ?? address[family]) === address[family])) return external
  const links = await kernel.links()
  const held = listed(publicIp).filter(
    (each) => address[familyOf(each)] !== undefined && links.some((link) => heldBy(link, each) !== undefined),
  )
  return { ...external, address: byFamily([...held, ...listed(address)]) }
}

/** Returns the families of the network, including families of which the interface has no address now. */
const familiesFor = ({ families, address }: ExternalInterface): readonly Family[] => families ?? familiesOf(address)

/**
 * Returns the current state of the external interface as `currentExternal` does, and the reason for each family whose
 * address is missing now.
 */
export async function seeExternal(
  kernel: HostKernel,
  before: ExternalInterface,
): Promise<{ readonly now: ExternalInterface; readonly gone: ByFamily<string> }> {
  const link = await linkAgain(kernel, before.name, before.index)
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
  const now = { ...before, name: link.name, index: link.index, mtu: link.mtu, address: byFamily(own), publicIp }
  return { now, gone: goneOf(now, link) }
}

/** Returns, for each family that the interface cannot serve now, the reason why, such as a removed address. */
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

/**
 * Returns the new address of a family for which the interface had no address before; undefined if there is none. A
 * link-local address does not count, because peers cannot send to it.
 */
function addressThatCame(
  external: ExternalInterface,
  link: Link,
  family: Family,
  fits: ((text: string) => boolean) | undefined,
): Address | undefined {
  const { hold } = external
  const asked = askedOn(external, link, family, fits)
  if (asked !== undefined) return asked
  const address = preferredAddress(link, family, fits)
  const home = hold?.home(family)
  if (home !== undefined && addressesOf(link, family).some((each) => each.address === home && !each.duplicate))
    return home
  // The node does not use the new address while its earlier address may still return to the interface.
  if (address === undefined || isLinkLocal(address) || (home !== undefined && !hold?.isGoneForGood(home)))
    return undefined
  return address
}

/**
 * Returns the address that the node must use from now on; `known` is its present address. The node uses the public IP
 * that the operator gave as soon as the interface has it, even if this address is deprecated. Otherwise the node returns
 * to the address with which it started, and leaves a makeshift or deprecated address for a better address. If the
 * interface lacks `known`, the node keeps `known` for HOLD_MS before it uses another address.
 */
function follow(
  external: ExternalInterface,
  known: Address,
  link: Link,
  fits: ((text: string) => boolean) | undefined,
): Address {
  const { named, hold } = external
  const family = familyOf(known)
  if (named.address[family]) return known
  const asked = askedOn(external, link, family, fits)
  if (asked !== undefined) {
    hold?.isThere(asked)
    return asked
  }
  const all = addressesOf(link, family)
  // A tentative address may be the node's known address: unplugging the cable makes an interface's addresses tentative.
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
  // When the link comes up again, the interface first has only its link-local address, until a router or a DHCP server
  // answers. So the node does not change to the link-local address.
  const isForNow = other !== undefined && isLinkLocal(other.address) && !isLinkLocal(known)
  const isLeft = hold?.isGoneForGood(known) ?? true
  return other === undefined || isForNow || !isLeft ? known : other.address
}

export function addressChange(before: ExternalInterface, now: ExternalInterface, family: Family): string | undefined {
  const [was, is] = [before.address[family], now.address[family]]
  if (is === undefined || is === was) return undefined
  if (was === undefined) return `${now.name} has the ${FAMILY_NAMES[family]} address ${formatAddress(is)} now`
  return `the address of ${now.name} changed from ${formatAddress(was)} to ${formatAddress(is)}`
}

/**
 * Describes that the host now has the public IP of a family, if a data path sends from another address. `sending` is the
 * external interface with the address from which the data path sends, and `now` the same as `sendingFromPublicIp` now
 * returns it.
 */
export function publicIpCame(
  sending: ExternalInterface | undefined,
  now: ExternalInterface | undefined,
  family: Family,
): string | undefined {
  const [was, is] = [sending?.address[family], now?.address[family]]
  if (was === undefined || is === undefined || is === was || is !== now?.publicIp[family]) return undefined
  return `this host has the public IP ${formatAddress(is)} now`
}

export const mtuChange = (before: ExternalInterface, now: ExternalInterface): string | undefined =>
  now.mtu === before.mtu ? undefined : `the MTU of ${now.name} changed from ${before.mtu} to ${now.mtu}`

/**
 * Compiles a regular expression to a function that searches a text for a match. The syntax is that of Go (RE2), and a
 * search takes linear time.
 */
export async function compile(pattern: string): Promise<(text: string) => boolean> {
  const { RE2JS } = await import('re2js') // few hosts need this package
  try {
    const expression = RE2JS.compile(pattern)
    return (text) => expression.matcher(text).find()
  } catch (error) {
    throw new WeftError('USAGE', `could not compile the IP address regex '${pattern}': ${messageOf(error)}`)
  }
}

export function externalText({ hold, ...external }: ExternalInterface): object {
  const text = (addresses: Addresses): object =>
    Object.fromEntries(listed(addresses).map((address) => [familyOf(address), formatAddress(address)]))
  const home = byFamily(FAMILIES.flatMap((family) => hold?.home(family) ?? []))
  return { ...external, address: text(external.address), publicIp: text(external.publicIp), home: text(home) }
}

/**
 * The names that the kernel accepts for an interface (net/core/dev.c, dev_valid_name); `ip` returns an error for any
 * other name.
 */
const LINK_NAME = /^(?!\.{1,2}$)[^\s/:]{1,15}$/

/**
 * Parses an external interface from JSON that `externalText` made and an earlier run stored. Returns undefined if the
 * value is not such JSON.
 */
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
  if (typeof name !== 'string' || !LINK_NAME.test(name)) return undefined
  if (typeof mtu !== 'number' || listed(address).length === 0) return undefined
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
 * Finds the external interface that an earlier run used, and returns its current state. Finds the interface by its
 * name, or by its index if it was renamed, and requires that it has one of the addresses of the earlier run. Returns
 * undefined if no interface fits. If the interface lacks the address of a family, the result has no address for this
 * family.
 */
export async function resumeExternal(
  kernel: HostKernel,
  known: ExternalInterface,
): Promise<ExternalInterface | undefined> {
  const links = await kernel.links()
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
