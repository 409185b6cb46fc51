// ipv6-off.ts - checks that the kernel has IPv6 on the interfaces that carry the IPv6 packets of the network. Pure.

import { disablingIpv6, dotted } from '../../host/sysctl-names.ts'
import { placeIn, type Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'
import { unaddressedBridges } from './links.ts'
import { bridgeOf, outerIn, outersIn, ownSides, type SeenSide } from './sides.ts'

/** Returns the interface that carries IPv6 packets to the hosts of peers; undefined if none carries them. */
function outerIpv6(status: Status): string | undefined {
  const isUsed = ownSides(status).some(({ family }) => outersIn(status, family).includes('ipv6'))
  const hasAddress = status.node !== null && placeIn(status.node, 'ipv6').publicIp !== undefined
  return isUsed && hasAddress ? (status.node?.externalInterface ?? undefined) : undefined
}

/** Lists the interfaces of the network on which a setting of the kernel disables IPv6 (net.ipv6.conf.*.disable_ipv6). */
export function checkIpv6Off(facts: Facts): Finding[] {
  const { status, withoutIpv6 = [] } = facts
  if (!status) return []
  const side = ownSides(status).find(({ family }) => family === 'ipv6')
  const off = (name: string | null | undefined, then: string): Finding[] => {
    if (!name || !withoutIpv6.includes(name)) return []
    const setting = dotted(disablingIpv6(name))
    const fix = `run \`sysctl -w ${setting}=0\`, and find the program or file of /etc/sysctl.d that sets it to 1; ${then}`
    return [{ name: 'ipv6-disabled', detail: `${setting} is 1`, fix }]
  }
  const bridges = side ? unaddressedBridges(side, facts).filter(({ name }) => name === 'ipv6-disabled') : []
  const usual = side && status.store.name === 'kubernetes' ? ipv4BridgeOf(facts) : undefined
  return [
    ...bridges,
    // flannel's CNI plugin always gives this bridge an IPv6 address if the network has IPv6.
    ...(bridges.length === 0 && usual === 'cni0'
      ? off(usual, 'then delete the bridge (`ip link del cni0`) and restart its pods')
      : []),
    ...off(outerIpv6(status), 'then give the interface its IPv6 address again, unless DHCP or a router gives it'),
    ...(side ? off(status.dataPath?.devices.ipv6, 'weftd then restores the address and the routes of the device') : []),
  ]
}

/** Names the settings that disable IPv6 on the interfaces between this host and the host of a peer. */
export function ipv6OffBetween({ status, withoutIpv6 = [] }: Facts, peer: SeenSide): readonly string[] {
  if (!status) return []
  const outer = outerIn(status, peer.family, peer.endpoint) === 'ipv6' ? outerIpv6(status) : undefined
  const own = peer.family === 'ipv6' ? status.dataPath?.devices.ipv6 : undefined
  return withoutIpv6
    .filter((name) => name === outer || name === own)
    .map((name) => `${dotted(disablingIpv6(name))} is 1`)
}

/** Returns the bridge of this node's containers that has an IPv4 address; the kernel removed its IPv6 addresses. */
function ipv4BridgeOf({ status, links }: Facts): string | undefined {
  const side = status && ownSides(status).find(({ family }) => family === 'ipv4')
  return side && bridgeOf(links, side.subnet, status)
}
