// external-interface.ts - which interface carries the datagrams, and by which address other nodes reach this one.
//
// Rules and texts of flanneld (pkg/ipmatch/match.go, pkg/ip/iface.go), but for one thing: of several default routes
// the one of the lowest metric counts, as for every other packet of the host.

import { messageOf, WeftError } from '../errors.ts'
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
}

export interface InterfaceWishes {
  /** Names or addresses, in order of preference. */
  readonly ifaces: readonly string[]
  readonly canReach: string
  readonly publicIp: string
}

function isUsable({ address, deprecated }: Address): boolean {
  const top = address >>> 24
  return !deprecated && top !== 0 && top !== 127 && top < 224
}

/** Which of an interface's addresses to use: global before link scope, permanent before dynamic, then kernel order. */
export function preferredAddress(link: Link): Ipv4 | undefined {
  const rank = (address: Address): number => (address.scope === 'global' ? 0 : 2) + (address.dynamic ? 1 : 0)
  return link.addresses.filter(isUsable).toSorted((a, b) => rank(a) - rank(b))[0]?.address
}

function describeCandidates(links: readonly Link[]): string {
  return links
    .map((link) => `${link.name}:[${link.addresses.map(({ address }) => formatIpv4(address)).join(' ')}]`)
    .join(', ')
}

/** Finds the interface. Throws WeftError INTERFACE, with every candidate named, when none fits. */
export async function chooseExternalInterface(run: Run, wishes: InterfaceWishes, log: Log): Promise<ExternalInterface> {
  const publicIp = wishes.publicIp === '' ? undefined : parseIpv4(wishes.publicIp)
  if (wishes.publicIp !== '' && publicIp === undefined) {
    throw new WeftError('USAGE', `invalid public IP address: ${wishes.publicIp}`, {
      remedy: 'give --public-ip an IPv4 address',
    })
  }
  const links = await listLinks(run)
  // With nothing but --public-ip, that address must be on an interface; behind NAT, --iface is needed too.
  const ifaces =
    wishes.ifaces.length === 0 && wishes.canReach === '' && publicIp !== undefined ? [wishes.publicIp] : wishes.ifaces

  let found: { link: Link; address: Ipv4 } | undefined
  let addressNamed = false
  if (ifaces.length === 0 && wishes.canReach === '') {
    found = await byDefaultRoute(run, links, log)
  } else {
    for (const wish of ifaces) {
      try {
        found = byNameOrAddress(links, wish, log)
        addressNamed = parseIpv4(wish) !== undefined
        break
      } catch (error) {
        log.info(`Could not find valid interface matching ${wish}: ${messageOf(error)}`)
      }
    }
    if (!found && wishes.canReach !== '') found = await byReach(run, links, wishes.canReach)
  }
  if (!found) {
    const nat = ifaces === wishes.ifaces ? '' : '; --public-ip alone must be an address of this host'
    throw new WeftError(
      'INTERFACE',
      'Failed to find interface to use that matches the interfaces and/or regexes provided',
      {
        remedy: `choose one of ${describeCandidates(links)} with --iface${nat}`,
      },
    )
  }
  const { link, address } = found
  if (link.mtu === 0) {
    throw new WeftError('INTERFACE', `failed to determine MTU for ${formatIpv4(address)} interface`, {
      remedy: `give ${link.name} an MTU, or choose another with --iface`,
    })
  }
  log.info(`Using interface with name ${link.name} and address ${formatIpv4(address)}`)
  if (publicIp === undefined) log.info(`Defaulting external address to interface address (${formatIpv4(address)})`)
  else log.info(`Using ${formatIpv4(publicIp)} as external address`)
  const named = { address: addressNamed, publicIp: publicIp !== undefined }
  return { name: link.name, mtu: link.mtu, address, publicIp: publicIp ?? address, named }
}

/**
 * The same interface as it is now: its MTU, and its address when the old one is gone and another is there. What is
 * missing for the moment, as while DHCP renews or a cable is out, stays as it was.
 */
export async function currentExternal(run: Run, before: ExternalInterface): Promise<ExternalInterface> {
  const link = await findLink(run, before.name)
  if (!link || link.mtu === 0) return before
  const stays = before.named.address || link.addresses.some(({ address }) => address === before.address)
  const address = stays ? before.address : (preferredAddress(link) ?? before.address)
  return { ...before, mtu: link.mtu, address, publicIp: before.named.publicIp ? before.publicIp : address }
}

async function byDefaultRoute(run: Run, links: readonly Link[], log: Log): Promise<{ link: Link; address: Ipv4 }> {
  log.info('Determining IP address of default interface')
  const [route] = (await routesTo(run, 'default')).toSorted((a, b) => a.metric - b.metric)
  if (!route) {
    throw new WeftError('INTERFACE', 'failed to get default interface: unable to find default route', {
      remedy: `choose one of ${describeCandidates(links)} with --iface`,
    })
  }
  return withPreferredAddress(links, route.device)
}

function byNameOrAddress(links: readonly Link[], wish: string, log: Log): { link: Link; address: Ipv4 } {
  const address = parseIpv4(wish)
  if (address === undefined) return withPreferredAddress(links, wish)
  log.info(`Searching for interface using ${wish}`)
  const link = links.find((candidate) => candidate.addresses.some((entry) => entry.address === address))
  if (link) return { link, address }
  throw new WeftError('INTERFACE', `error looking up interface ${wish}: no interface with given IP found`)
}

async function byReach(run: Run, links: readonly Link[], target: string): Promise<{ link: Link; address: Ipv4 }> {
  const address = parseIpv4(target)
  if (address === undefined) {
    throw new WeftError('USAGE', `invalid IP address for --iface-can-reach: ${target}`, {
      remedy: 'give it an IPv4 address',
    })
  }
  const route = await routeFor(run, address)
  const link = links.find(({ name }) => name === route?.device)
  if (!link || route?.source === undefined) {
    throw new WeftError('INTERFACE', `there is no route to ${target}`, {
      remedy: `choose one of ${describeCandidates(links)} with --iface`,
    })
  }
  return { link, address: route.source }
}

function withPreferredAddress(links: readonly Link[], name: string): { link: Link; address: Ipv4 } {
  const link = links.find((candidate) => candidate.name === name)
  if (!link) throw new WeftError('INTERFACE', `error looking up interface ${name}: no such network interface`)
  const address = preferredAddress(link)
  if (address === undefined) {
    throw new WeftError('INTERFACE', `failed to find IPv4 address for interface ${name}`, {
      remedy: 'give it one, or choose another with --iface',
    })
  }
  return { link, address }
}
