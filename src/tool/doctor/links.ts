// links.ts - checks the MTU of this host's interfaces and of the paths to peers, the bridges of containers, and the
// file subnet.env. Pure.

import type { Link, Route } from '../../host/kernel.ts'
import { givenTo } from '../../host/links.ts'
import { disablingIpv6, dotted } from '../../host/sysctl-names.ts'
import {
  ADDRESS_BITS,
  familyOf,
  formatAddress,
  formatNet,
  netAround,
  netContains,
  parseNet,
  type Address,
  type Family,
  type Net,
} from '../../net/address.ts'
import { isBackendType, KINDS, overheadBy } from '../../path/catalog.ts'
import { conditionOf, type Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import { each, type Finding } from './findings.ts'
import { isOwnDevice, outerIn, ownSides, seenSides, sideText, type OwnSide, type SeenSide } from './sides.ts'

export function checkMtu({ status, links, answers }: Facts): Finding[] | undefined {
  const { config, dataPath, node, peers } = status ?? {}
  const mtu = dataPath?.mtu
  if (!status || !mtu || !config) return undefined
  const sides = ownSides(status)
  if (sides.length === 0) return undefined
  const seen = (peers?.list ?? []).flatMap((peer) => seenSides(peer, answers))
  // Returns true if only short packets reach the peer. The answers to weft doctor's own probes have priority, because
  // they are newer than weftd's probes.
  const isCut = (side: SeenSide): boolean =>
    side.answers ? side.answers.small && !side.answers.large : conditionOf(side) === 'narrow'
  const isWhole = (side: SeenSide): boolean => side.answers?.large ?? side.path === 'whole'
  const cut = seen.filter(isCut)
  const external = links.find(({ name }) => name === node?.externalInterface)
  const whole = mtu + overheadOf(status, dataPath.families)
  const bridges = links.filter(
    (link) =>
      link.mtu > mtu &&
      isContainers(link.name) &&
      addressesOf(link).some((address) => sides.some(({ subnet }) => netContains(subnet, address))),
  )
  const whose =
    external && whole > external.mtu
      ? `the cause is ${external.name} of this host, whose MTU is ${external.mtu} bytes`
      : seen.some((side) => isWhole(side) && side.state !== 'stored')
        ? 'other peers answer such packets: check the external interface of that host first, then the links between'
        : cut.length > 1
          ? 'no peer answers such packets: check this host first, and the network that it is in'
          : 'check the external interfaces of both hosts, then the links between; weft doctor on that host checks its interface'
  const cutText = (side: SeenSide): string => {
    const longest = side.answers ? side.answers.longest : (side.passesBytes ?? undefined)
    const since = side.pathSince !== null && conditionOf(side) === 'narrow' ? ` since ${side.pathSince}` : ''
    const found = longest === undefined ? '' : `, packets of up to ${longest} do`
    return `${sideText(side)}: packets of ${mtu} bytes get no answer${since}${found}; ${whose}`
  }
  return [
    ...each('path-mtu', cut, cutText),
    ...(external && whole > external.mtu
      ? [
          {
            name: 'mtu-too-large',
            detail: `${mtu} bytes plus the tunnel's headers are ${whole}, but the MTU of ${external.name} is ${external.mtu}`,
          } as const,
        ]
      : []),
    ...(mtu < (dataPath.mtuAtStart ?? mtu)
      ? [
          {
            name: 'mtu-shrunk',
            detail: `${mtu} bytes${external ? ` because the MTU of ${external.name} is ${external.mtu}` : ''}; it was ${dataPath.mtuAtStart} when weftd started`,
          } as const,
        ]
      : []),
    ...each('bridge-mtu', bridges, (link) => `${link.name} has MTU ${link.mtu}, the data path ${mtu}`),
  ]
}

/**
 * Returns how many bytes the tunnel adds to a packet over the underlay family that weftd tries first. If the backend
 * carries both IPv4 and IPv6 packets, returns the number for IPv6 packets.
 */
function overheadOf(status: Status, families: readonly Family[]): number {
  const type = status.config?.backendType ?? ''
  if (!isBackendType(type) || KINDS[type].overhead === 0) return 0
  return overheadBy(type, outerIn(status, families.includes('ipv6') ? 'ipv6' : 'ipv4'))
}

const addressesOf = ({ addresses }: Link): readonly Address[] =>
  [...addresses.ipv4, ...addresses.ipv6].map(({ address }) => address)

const isContainers = (name: string): boolean => /^(docker|cni|br-|cbr|bridge|podman|nerdctl)/.test(name)

/**
 * Returns the route of the main table that the kernel uses for a network; undefined if `routes`, which holds only
 * routes to the overlay network or to parts of it, has no route for the network.
 */
function routeFor(net: Net, routes: readonly Route[]): Route | undefined {
  const covering = routes.flatMap((route) => {
    const to = parseNet(route.destination)
    return to && to.prefixLength <= net.prefixLength && netContains(to, net.address) ? [{ route, to }] : []
  })
  const [first] = covering.toSorted((a, b) => b.to.prefixLength - a.to.prefixLength || a.route.metric - b.route.metric)
  return first?.route
}

/**
 * Finds the bridges with containers in this node's subnet to which the kernel does not send packets, because another
 * bridge has the same network, or because the bridge is down. Leaves out a bridge in a VRF, because its routes are not
 * in the main table.
 */
function unroutedBridges({ family, subnet }: OwnSide, { links, routes }: Facts): string[] {
  const bridges = links.filter(
    ({ type, master, index }) => type === 'bridge' && master === 0 && links.some((port) => port.master === index),
  )
  return bridges.flatMap(({ name, up, addresses }) =>
    addresses[family].flatMap(({ address, prefixLength }) => {
      if (prefixLength === ADDRESS_BITS[family] || !netContains(subnet, address)) return []
      const net = netAround(address, prefixLength)
      const route = routeFor(net, routes)
      if (route?.device === name) return []
      const where = route ? `go to ${route.device === '' ? 'nowhere' : route.device}` : 'leave by the default route'
      return [`packets for ${formatNet(net)} ${where} instead of to ${name}${up ? '' : ', which is down'}`]
    }),
  )
}

/**
 * Finds the bridges that lack the address of the containers' gateway, so that the containers reach no other host. If
 * weft doctor sees no container with a gateway in the subnet, finds only bridges of containers without any address.
 */
export function unaddressedBridges({ family, subnet }: OwnSide, facts: Facts): readonly Finding[] {
  const { status, links, routes, gateways = [], withoutIpv6 = [] } = facts
  const others = links.filter(({ name }) => !(status && isOwnDevice(status, family, name)))
  const addressesIn = (link: Link): readonly Address[] =>
    givenTo(link).filter((address) => familyOf(address) === family)
  const all = others.flatMap(addressesIn)
  const first = firstOf(subnet)
  const missing = gateways.filter((address) => netContains(subnet, address) && !all.includes(address))
  const bridges = others.filter(
    ({ type, master, index }) =>
      type === 'bridge' && master === 0 && links.some((port) => port.master === index && port.type === 'veth'),
  )
  const found = (wrong: readonly Link[], gateway: Address, isUsed: boolean): readonly Finding[] =>
    wrong.map(({ name }) => {
      const detail = `${name} does not have the address ${formatAddress(gateway)}${isUsed ? ', which its containers use as gateway' : ', and has no other address'}`
      const fix = `give the bridge its address again: \`ip address add ${formatAddress(gateway)}/${subnet.prefixLength} dev ${name}\`, or delete the bridge and restart its containers`
      if (family === 'ipv4' || !withoutIpv6.includes(name)) return { name: 'bridge-unaddressed', detail, fix }
      // The kernel gives the interface no address until the setting is 0.
      const setting = dotted(disablingIpv6(name))
      const before = `run \`sysctl -w ${setting}=0\`, and find the program or file of /etc/sysctl.d that sets it to 1; then`
      return { name: 'ipv6-disabled', detail: `${setting} is 1: ${detail}`, fix: `${before} ${fix}` }
    })
  if (all.some((address) => netContains(subnet, address))) {
    // A gateway other than the first address of the subnet may be a container.
    const wrong = bridges.filter((link) => addressesIn(link).some((address) => netContains(subnet, address)))
    return missing.includes(first) ? found(wrong, first, true) : []
  }
  // An operator who routes parts of the subnet to a bridge without an address may use proxy ARP on purpose.
  const isRouted = routes.some(({ destination, device }) => {
    const net = parseNet(destination)
    const isInside = net !== undefined && net.prefixLength >= subnet.prefixLength && netContains(subnet, net.address)
    return isInside && others.some(({ name }) => name === device)
  })
  if (isRouted) return []
  const [gateway] = missing
  if (gateway !== undefined)
    return found(
      bridges.filter((link) => addressesIn(link).length === 0),
      gateway,
      true,
    )
  // Docker makes bridges whose names begin with `br-` without an address if the operator wants that.
  const isOfContainers = ({ name }: Link): boolean => isContainers(name) && !name.startsWith('br-')
  return found(
    bridges.filter((link) => isOfContainers(link) && givenTo(link).length === 0),
    first,
    false,
  )
}

export function checkContainers(facts: Facts): Finding[] | undefined {
  const { status, links, subnetEnv, silence } = facts
  const { node, dataPath, daemon } = status ?? {}
  const sides = status ? ownSides(status) : []
  if (sides.length === 0 || !node || !daemon || !dataPath || (!dataPath.open && silence === undefined)) return undefined
  // With Kubernetes cni0 is the bridge of flannel's CNI plugin. CNI starts no pod while cni0 has only other addresses.
  const isStale = ({ name, addresses }: Link, { family, subnet }: OwnSide): boolean =>
    status?.store.name === 'kubernetes' &&
    name === 'cni0' &&
    !addresses[family].some(({ address }) => netContains(subnet, address))
  const elsewhere = links
    .filter(({ name }) => isContainers(name))
    .flatMap((link) =>
      givenTo(link).flatMap((address) => {
        const side = sides.find(({ family, network, subnet }) => {
          if (family !== familyOf(address) || netContains(subnet, address)) return false
          return netContains(network, address) || isStale(link, { family, network, subnet })
        })
        return side ? [{ name: link.name, address, side }] : []
      }),
    )
  const unlike = sides.flatMap(({ family, subnet }) => {
    const says = subnetEnv?.[family === 'ipv4' ? 'FLANNEL_SUBNET' : 'FLANNEL_IPV6_SUBNET'] ?? ''
    // weftd omits a family that the data path cannot carry now. Another check reports that family.
    const isOmitted = says === '' && dataPath.lacking[family] !== null
    return says === firstAddressOf(subnet) || isOmitted ? [] : [{ family, subnet, says }]
  })
  const [first] = unlike
  const fileMtu = subnetEnv?.['FLANNEL_MTU'] ?? ''
  const wrong =
    subnetEnv === undefined
      ? `${daemon.subnetFile} does not exist`
      : first
        ? `${daemon.subnetFile} says ${first.says === '' ? (first.family === 'ipv4' ? 'no subnet' : 'no IPv6 subnet') : first.says}, but this node has ${formatNet(first.subnet)}`
        : fileMtu === String(dataPath.mtu)
          ? undefined
          : `${daemon.subnetFile} says ${fileMtu === '' ? 'no MTU' : `MTU ${fileMtu}`}${dataPath.mtu === null ? '' : `, but the data path has ${dataPath.mtu}`}`
  return [
    ...(wrong === undefined ? [] : [{ name: 'subnet-env-wrong', detail: wrong } as const]),
    ...each(
      'bridge-elsewhere',
      elsewhere,
      ({ name, address, side }) => `${name} has ${formatAddress(address)}, but this node has ${formatNet(side.subnet)}`,
    ),
    ...each(
      'bridge-unrouted',
      sides.flatMap((side) => unroutedBridges(side, facts)),
      (detail) => detail,
    ),
    // The check `families` reports bridges on which IPv6 is disabled.
    ...sides.flatMap((side) => unaddressedBridges(side, facts)).filter(({ name }) => name === 'bridge-unaddressed'),
  ]
}

/** Formats a subnet as subnet.env does, as its first address with the prefix length: `10.5.1.1/24`. */
const firstAddressOf = (subnet: Net): string => `${formatAddress(firstOf(subnet))}/${subnet.prefixLength}`

const firstOf = ({ address }: Net): Address => (typeof address === 'number' ? address + 1 : address + 1n)
