// endpoint.ts - reads a peer's key and endpoint from the peer's lease, and chooses the outer family of datagrams to the
// peer. Pure.

import { sideOf, type Lease } from '../../../control/lease/lease.ts'
import { FAMILIES, isLinkLocal, type Addresses, type Family } from '../../../net/address.ts'
import { ipv4NetContains, parseIpv4Net } from '../../../net/ipv4.ts'
import type { Ipv6 } from '../../../net/ipv6.ts'
import type { Settings } from '../../catalog.ts'
import { isKey, type WireguardPeer } from '../wireguard-device.ts'
import type { PublishedPeer } from './session-manager.ts'

type Mode = Settings<'wireguard'>['mode']

/**
 * The port on which this node listens, for each family. If one device carries both families, the two ports are equal.
 */
export type Ports = Readonly<Record<Family, number>>

/**
 * Returns the public key and the port that a lease publishes for a family; undefined if the lease has no valid key or
 * port. A lease of flanneld has no port; in that case the result has this node's own port.
 */
function keyAndPort(
  lease: Lease,
  family: Family,
  { [family]: usual }: Ports,
): { readonly publicKey: string; readonly port: number; readonly anyPort: boolean } | undefined {
  const { data } = sideOf(lease, family)
  const members = (typeof data === 'object' && data !== null ? data : {}) as Readonly<Record<string, unknown>>
  const { PublicKey: publicKey, Port: given = usual, AnyPort: anyPort } = members
  const port = given === 0 ? usual : given
  if (typeof publicKey !== 'string' || !isKey(publicKey)) return undefined
  if (typeof port !== 'number' || !Number.isInteger(port) || port < 1 || port > 65_535) return undefined
  return { publicKey, port, anyPort: anyPort === true }
}

/**
 * Returns true unless the address is link-local or unique local (RFC 4193). flanneld checks only for unique local
 * addresses.
 */
const isGlobal = (address: Ipv6): boolean => address >> 121n !== 0xfcn >> 1n && !isLinkLocal(address)
/**
 * The private IPv4 networks of RFC 1918. For its mode `auto` flanneld considers only these networks private (Go's
 * net.IP.IsPrivate).
 */
const PRIVATE = ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16'].flatMap((text) => parseIpv4Net(text) ?? [])

/**
 * Returns the outer family of datagrams to a peer if one device carries both families. The rules are those of flanneld
 * (pkg/backend/wireguard, selectMode).
 */
export function outerFamily(mode: Mode, own: Addresses, peer: Addresses): Family {
  if (mode === 'ipv4' || mode === 'ipv6') return mode
  const { ipv4, ipv6 } = peer
  if (ipv6 === undefined) return 'ipv4'
  if (ipv4 === undefined) return 'ipv6'
  if (own.ipv4 !== undefined && !PRIVATE.some((net) => ipv4NetContains(net, ipv4))) return 'ipv4'
  return own.ipv6 !== undefined && isGlobal(own.ipv6) && isGlobal(ipv6) ? 'ipv6' : 'ipv4'
}

/**
 * Returns a peer's key and its endpoint in the outer family; undefined if the peer's lease lacks either. A node with
 * one device for both families listens on the port that it publishes for IPv4, or for IPv6 if it publishes no IPv4. So
 * if a lease of flanneld has both ports, its IPv6 port is not used.
 */
export function endpointIn(lease: Lease, outer: Family, isOneDevice: boolean, ports: Ports): PublishedPeer | undefined {
  const address = lease.attrs.publicIp[outer]
  const published = isOneDevice
    ? (keyAndPort(lease, 'ipv4', ports) ?? keyAndPort(lease, 'ipv6', ports))
    : keyAndPort(lease, outer, ports)
  return address === undefined || !published ? undefined : { ...published, address }
}

export function endOf(lease: Lease, outer: Family, isOneDevice: boolean, ports: Ports): WireguardPeer | undefined {
  const found = endpointIn(lease, outer, isOneDevice, ports)
  if (!found) return undefined
  const nets = isOneDevice ? FAMILIES : [outer]
  return {
    publicKey: found.publicKey,
    endpoint: { address: found.address, port: found.port },
    allowedIps: nets.flatMap((family) => lease.subnet[family] ?? []),
  }
}
