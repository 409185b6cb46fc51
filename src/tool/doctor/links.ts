// links.ts - how the doctor judges the lengths that this host's interfaces take, the paths behind them, and the bridges of containers. Pure.

import type { Link } from '../../host/links.ts'
import { formatAddress, formatNet, netContains, type Address, type Family, type Net } from '../../net/address.ts'
import { isBackendType, KINDS, overheadBy } from '../../path/catalog.ts'
import { conditionOf, type Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import { each, type Finding } from './findings.ts'
import { outerIn, ownSides, seenSides, sideText, type SeenSide } from './sides.ts'

export function checkMtu({ status, links, answers }: Facts): Finding[] | undefined {
  const { config, dataPath, node, peers } = status ?? {}
  const mtu = dataPath?.mtu
  if (!status || !mtu || !config) return undefined
  const sides = ownSides(status)
  if (sides.length === 0) return undefined
  const seen = (peers?.list ?? []).flatMap((peer) => seenSides(peer, answers))
  // Whoever answers now is believed before what the daemon last saw.
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
      ? `it is this host's ${external.name}, which takes ${external.mtu} bytes`
      : seen.some((side) => isWhole(side) && side.state !== 'stored')
        ? 'others take them: look at the external interface of that host first, then at what is between'
        : cut.length > 1
          ? 'no peer takes them: look at this host first, and at the network that it is in'
          : "look at both hosts' external interfaces, then at what is between: weft doctor there knows its own"
  const cutText = (side: SeenSide): string => {
    const longest = side.answers ? side.answers.longest : (side.passesBytes ?? undefined)
    const since = side.pathSince !== null && conditionOf(side) === 'narrow' ? ` since ${side.pathSince}` : ''
    const found = longest === undefined ? '' : `, of up to ${longest} they do`
    return `${sideText(side)}: packets of ${mtu} bytes do not come back${since}${found}; ${whose}`
  }
  return [
    ...each('path-mtu', cut, cutText),
    ...(external && whole > external.mtu
      ? [
          {
            name: 'mtu-too-large',
            detail: `${mtu} bytes plus the tunnel's headers are ${whole}, but ${external.name} takes ${external.mtu}`,
          } as const,
        ]
      : []),
    ...(mtu < (dataPath.mtuAtStart ?? mtu)
      ? [
          {
            name: 'mtu-shrunk',
            detail: `${mtu} bytes${external ? ` since ${external.name} takes ${external.mtu}` : ''}, and ${dataPath.mtuAtStart} when weftd started`,
          } as const,
        ]
      : []),
    ...each('bridge-mtu', bridges, (link) => `${link.name} has ${link.mtu}, the data path ${mtu}`),
  ]
}

/** The bytes around a packet, by the longer of the outer headers where there are any, of the family that is tried first. */
function overheadOf(status: Status, families: readonly Family[]): number {
  const type = status.config?.backendType ?? ''
  if (!isBackendType(type) || KINDS[type].overhead === 0) return 0
  return overheadBy(type, outerIn(status, families.includes('ipv6') ? 'ipv6' : 'ipv4'))
}

const addressesOf = ({ addresses }: Link): readonly Address[] =>
  [...addresses.ipv4, ...addresses.ipv6].map(({ address }) => address)

const isContainers = (name: string): boolean => /^(docker|cni|br-|cbr|bridge|podman|nerdctl)/.test(name)

export function checkContainers({ status, links, subnetEnv, silence }: Facts): Finding[] | undefined {
  const { node, dataPath, daemon } = status ?? {}
  const sides = status ? ownSides(status) : []
  if (sides.length === 0 || !node || !daemon || !dataPath || (!dataPath.open && silence === undefined)) return undefined
  const elsewhere = links
    .filter(({ name }) => isContainers(name))
    .flatMap((link) => addressesOf(link).map((address) => ({ name: link.name, address })))
    .flatMap(({ name, address }) => {
      const side = sides.find(({ network, subnet }) => netContains(network, address) && !netContains(subnet, address))
      return side ? [{ name, address, side }] : []
    })
  const unlike = sides.flatMap(({ family, subnet }) => {
    const says = subnetEnv?.[family === 'ipv4' ? 'FLANNEL_SUBNET' : 'FLANNEL_IPV6_SUBNET'] ?? ''
    return says === firstAddressOf(subnet) ? [] : [{ family, subnet, says }]
  })
  const [first] = unlike
  const wrong =
    subnetEnv === undefined
      ? `${daemon.subnetFile} is not there`
      : first
        ? `${daemon.subnetFile} says ${first.says === '' ? (first.family === 'ipv4' ? 'no subnet' : 'no IPv6 subnet') : first.says}, and this node has ${formatNet(first.subnet)}`
        : subnetEnv['FLANNEL_MTU'] === String(dataPath.mtu)
          ? undefined
          : `${daemon.subnetFile} says MTU ${subnetEnv['FLANNEL_MTU']}, and the data path has ${dataPath.mtu}`
  return [
    ...(wrong === undefined ? [] : [{ name: 'subnet-env-wrong', detail: wrong } as const]),
    ...each(
      'bridge-elsewhere',
      elsewhere,
      ({ name, address, side }) => `${name} has ${formatAddress(address)}, and this node ${formatNet(side.subnet)}`,
    ),
  ]
}

/** As subnet.env has a subnet: `10.5.1.1/24`. */
const firstAddressOf = ({ address, prefixLength }: Net): string =>
  `${formatAddress(typeof address === 'number' ? address + 1 : address + 1n)}/${prefixLength}`
