// external-interface.ts - which interface carries the datagrams, and by which address other nodes reach this one.
//
// Rules and texts of flanneld (main.go, pkg/ipmatch/match.go, pkg/ip/iface.go), but for one thing: of several default
// routes the one of the lowest metric counts, as for every other packet of the host.

import { isWeftError, messageOf, WeftError } from '../errors.ts'
import { formatIpv4, parseIpv4, type Ipv4 } from '../net/ipv4.ts'
import type { Log } from '../log.ts'
import type { Run } from './command.ts'
import { findLink, listLinks, routeFor, routesTo, type Address, type Link } from './links.ts'

export interface ExternalInterface {
  readonly name: string
  readonly mtu: number
  /** What the socket is bound to. */
  readonly address: Ipv4
  /** What other nodes send to; the interface's address unless --public-ip says otherwise. */
  readonly publicIp: Ipv4
  /** Which of the two the operator named: such an address does not follow the interface's. */
  readonly named: { readonly address: boolean; readonly publicIp: boolean }
  /** The expression that the address was chosen by: another address must match it too. */
  readonly pattern?: string
}

export interface InterfaceWishes {
  /** Names or addresses, in order of preference. An empty one stands for the default route's, here and below. */
  readonly ifaces: readonly string[]
  /** Regular expressions of RE2's syntax for addresses and names, tried when none of `ifaces` fits. */
  readonly patterns: readonly string[]
  /** An address whose route names the interface, tried last; or empty. */
  readonly canReach: string
  /** What other nodes send to; or empty. */
  readonly publicIp: string
}

/** What one wish leads to. */
interface Found {
  readonly link: Link
  readonly address: Ipv4
  readonly addressNamed?: boolean
  readonly pattern?: string
}

function isUsable({ address, deprecated }: Address): boolean {
  const top = address >>> 24
  return !deprecated && top !== 0 && top !== 127 && top < 224
}

/** An interface's addresses that can be used, the best first: link-local last, permanent before dynamic, kernel order. */
function usableAddresses({ addresses }: Link): Ipv4[] {
  const isLinkLocal = (address: Ipv4): boolean => address >>> 16 === 0xa9fe // RFC 3927, 169.254.0.0/16
  const rank = ({ address, dynamic }: Address): number => (isLinkLocal(address) ? 2 : 0) + (dynamic ? 1 : 0)
  return addresses
    .filter(isUsable)
    .toSorted((a, b) => rank(a) - rank(b))
    .map(({ address }) => address)
}

/** Which of an interface's addresses to use. */
export function preferredAddress(link: Link): Ipv4 | undefined {
  return usableAddresses(link)[0]
}

/** All interfaces, each with its addresses and why it is not the one. `otherwise` is said of one that could be. */
function describeCandidates(links: readonly Link[], otherwise: string): string {
  const reason = (link: Link): string => {
    if (link.loopback) return 'loopback'
    const faults = [
      ...(link.up ? [] : ['down']),
      ...(link.addresses.length === 0 ? ['no IPv4 address'] : []),
      ...(link.addresses.length > 0 && preferredAddress(link) === undefined ? ['no address of a host'] : []),
      ...(link.mtu === 0 ? ['MTU 0'] : []),
    ]
    return faults.length === 0 || (faults.length === 1 && !link.up)
      ? [...faults, otherwise].join(', ')
      : faults.join(', ')
  }
  return links
    .map((link) => {
      const addresses = link.addresses.map(({ address }) => formatIpv4(address)).join(' ')
      return `${link.name}:[${addresses}] (${reason(link)})`
    })
    .join(', ')
}

/**
 * Finds the interface. Throws WeftError: INTERFACE, with every candidate and why it was refused, when none fits, which may
 * change with the host's links, addresses and routes; USAGE when what was asked for can never fit.
 */
export async function chooseExternalInterface(run: Run, wishes: InterfaceWishes, log: Log): Promise<ExternalInterface> {
  const publicIp = wishes.publicIp === '' ? undefined : parseIpv4(wishes.publicIp)
  if (wishes.publicIp !== '' && publicIp === undefined) {
    throw new WeftError('USAGE', `invalid public IP address: ${wishes.publicIp}`, {
      remedy: 'give --public-ip an IPv4 address',
    })
  }
  const links = await listLinks(run)
  const { link, address, addressNamed, pattern } = await firstThatFits(run, links, wishes, log)
  log.info(`Using interface with name ${link.name} and address ${formatIpv4(address)}`)
  if (publicIp === undefined) log.info(`Defaulting external address to interface address (${formatIpv4(address)})`)
  else log.info(`Using ${formatIpv4(publicIp)} as external address`)
  const named = { address: addressNamed ?? false, publicIp: publicIp !== undefined }
  const found = { name: link.name, mtu: link.mtu, address, publicIp: publicIp ?? address, named }
  return pattern === undefined ? found : { ...found, pattern }
}

async function firstThatFits(run: Run, links: readonly Link[], wishes: InterfaceWishes, log: Log): Promise<Found> {
  const { ifaces, patterns, canReach, publicIp } = wishes
  const byDefault = (): Promise<Found> => byDefaultRoute(run, links, log)
  const byName = async (wish: string): Promise<Found> => byNameOrAddress(links, wish, log)

  if (ifaces.length === 0 && patterns.length === 0 && canReach === '') {
    try {
      // With nothing but --public-ip, that address must be on an interface; behind NAT, --iface is needed too.
      return withMtu(await (publicIp === '' ? byDefault() : byName(publicIp)))
    } catch (error) {
      if (!isWeftError(error, 'INTERFACE')) throw error
      const otherwise = publicIp === '' ? 'no default route' : `without ${publicIp}`
      throw new WeftError('INTERFACE', `Failed to find any valid interface to use: ${error.message}`, {
        remedy: `name one with --iface: ${describeCandidates(links, otherwise)}`,
      })
    }
  }

  const tries: (readonly [wish: string, find: () => Promise<Found>])[] = [
    ...ifaces.map((wish) => [wish, () => (wish === '' ? byDefault() : byName(wish))] as const),
    ...patterns.map((wish) => [wish, () => (wish === '' ? byDefault() : byPattern(links, wish))] as const),
    ...(canReach === '' ? [] : [[`ifaceCanReach: ${canReach}`, () => byReach(run, links, canReach, log)] as const]),
  ]
  let mayFit = false
  const mistakes: string[] = []
  for (const [wish, find] of tries) {
    try {
      return withMtu(await find())
    } catch (error) {
      if (!isWeftError(error, 'INTERFACE') && !isWeftError(error, 'USAGE')) throw error
      log.info(`Could not find valid interface matching ${wish}: ${error.message}`)
      if (error.code === 'USAGE') mistakes.push(error.message)
      else mayFit = true
    }
  }
  const message = 'Failed to find interface to use that matches the interfaces and/or regexes provided'
  if (!mayFit) {
    throw new WeftError('USAGE', `${message}: ${mistakes.join(', ')}`, {
      remedy: 'give --iface-regex an expression of RE2, --iface-can-reach an IPv4 address',
    })
  }
  throw new WeftError('INTERFACE', message, {
    remedy: `name one with --iface: ${describeCandidates(links, 'not asked for')}`,
  })
}

function withMtu(found: Found): Found {
  if (found.link.mtu > 0) return found
  throw new WeftError('INTERFACE', `failed to determine MTU for ${formatIpv4(found.address)} interface`)
}

/**
 * The same interface as it is now: its MTU, and its address when the old one is gone and another is there. What is
 * missing for the moment, as while DHCP renews or a cable is out, stays as it was.
 */
export async function currentExternal(run: Run, before: ExternalInterface): Promise<ExternalInterface> {
  const link = await findLink(run, before.name)
  if (!link || link.mtu === 0) return before
  const stays = before.named.address || link.addresses.some(({ address }) => address === before.address)
  const fits = before.pattern === undefined ? () => true : await compile(before.pattern)
  const other = usableAddresses(link).find((address) => fits(formatIpv4(address)))
  const address = stays ? before.address : (other ?? before.address)
  return { ...before, mtu: link.mtu, address, publicIp: before.named.publicIp ? before.publicIp : address }
}

/** What a data path that was made for `before` can no longer carry on with, or undefined. */
export function changeOf(before: ExternalInterface, now: ExternalInterface): string | undefined {
  if (now.address !== before.address)
    return `the address of ${now.name} changed from ${formatIpv4(before.address)} to ${formatIpv4(now.address)}`
  if (now.mtu !== before.mtu) return `the MTU of ${now.name} changed from ${before.mtu} to ${now.mtu}`
  return undefined
}

async function byDefaultRoute(run: Run, links: readonly Link[], log: Log): Promise<Found> {
  log.info('Determining IP address of default interface')
  const routes = (await routesTo(run, 'default')).filter(({ device }) => device !== '')
  const [route] = routes.toSorted((a, b) => a.metric - b.metric)
  if (!route) throw new WeftError('INTERFACE', 'failed to get default interface: unable to find default route')
  return byDevice(links, route.device)
}

function byNameOrAddress(links: readonly Link[], wish: string, log: Log): Found {
  const address = parseIpv4(wish)
  if (address === undefined) return byDevice(links, wish)
  log.info(`Searching for interface using ${wish}`)
  const link = links.find((candidate) => candidate.addresses.some((entry) => entry.address === address))
  if (link) return { link, address, addressNamed: true }
  throw new WeftError('INTERFACE', `error looking up interface ${wish}: no interface with given IP found`)
}

/** By the address of any interface first, then by the name; the first interface that has the name must have an address. */
async function byPattern(links: readonly Link[], pattern: string): Promise<Found> {
  const matches = await compile(pattern)
  for (const link of links) {
    const address = usableAddresses(link).find((candidate) => matches(formatIpv4(candidate)))
    if (address !== undefined) return { link, address, pattern }
  }
  const named = links.find(({ name }) => matches(name))
  if (named) return byDevice(links, named.name)
  const candidates = links.map((link) => `${link.name}:[${usableAddresses(link).map(formatIpv4).join(' ')}]`)
  throw new WeftError(
    'INTERFACE',
    `could not match pattern ${pattern} to any of the available network interfaces (${candidates.join(', ')})`,
  )
}

/** Whether a text has a part that matches. RE2's syntax and linear time, as Go's: no look-around, no back-references. */
async function compile(pattern: string): Promise<(text: string) => boolean> {
  const { RE2JS } = await import('re2js') // few hosts need it
  try {
    const expression = RE2JS.compile(pattern)
    return (text) => expression.matcher(text).find()
  } catch (error) {
    throw new WeftError('USAGE', `could not compile the IP address regex '${pattern}': ${messageOf(error)}`)
  }
}

async function byReach(run: Run, links: readonly Link[], target: string, log: Log): Promise<Found> {
  log.info(`Determining interface to use based on given ifcanreach: ${target}`)
  const address = parseIpv4(target)
  if (address === undefined) throw new WeftError('USAGE', `invalid IP address for --iface-can-reach: ${target}`)
  const route = await routeFor(run, address)
  if (!route) {
    throw new WeftError(
      'INTERFACE',
      `failed to get ifcanreach based interface: couldn't lookup route to ${target}: network is unreachable`,
    )
  }
  return byDevice(links, route.device, route.source)
}

/** The interface of a name, with its preferred address unless one is given. */
function byDevice(links: readonly Link[], name: string, given?: Ipv4): Found {
  const link = links.find((candidate) => candidate.name === name)
  // The words of Go's net.InterfaceByName.
  if (!link)
    throw new WeftError('INTERFACE', `error looking up interface ${name}: route ip+net: no such network interface`)
  const address = given ?? preferredAddress(link)
  if (address === undefined) throw new WeftError('INTERFACE', `failed to find IPv4 address for interface ${name}`)
  return { link, address }
}
