// peer-at-host.ts - the status entry of a peer, for backends that send the packets to the peer's host without a tunnel
// of weftd.

import { hasFamily, sideOf, type Lease } from '../../control/lease/lease.ts'
import { formatAddress, type Family } from '../../net/address.ts'
import type { PathPeer } from '../contract.ts'

/** Returns the peer's status entry, with the address of the peer's host in each family that the lease has. */
export const peerAtHost = (peer: Lease, families: readonly Family[]): PathPeer => ({
  key: peer.key,
  ...Object.fromEntries(
    families
      .filter((family) => hasFamily(peer, family))
      .map((family) => [family, { endpoint: formatAddress(sideOf(peer, family).host) }]),
  ),
})
