// peer-words.ts - flanneld's log lines for the leases of peers, in backends that log one line for each family. Pure.

import { hasFamily, type Lease } from '../../control/lease/lease.ts'
import { addressText, netText, onlyOf, type Family } from '../../net/address.ts'
import type { PeerWords } from '../contract.ts'

/**
 * Returns the parts of a lease, one for each family of `families` that the lease has. If the lease has none of these
 * families, returns the whole lease.
 */
function partsOf(lease: Lease, families: readonly Family[]): readonly Lease[] {
  const { subnet, attrs } = lease
  const parts = families
    .filter((family) => hasFamily(lease, family))
    .map((family) => ({
      ...lease,
      subnet: onlyOf([family], subnet),
      attrs: { ...attrs, publicIp: onlyOf([family], attrs.publicIp) },
    }))
  return parts.length > 0 ? parts : [lease]
}

/** Returns the lines with which flanneld's backends host-gw and wireguard log that a peer's lease was removed. */
export const removedLines = (lease: Lease, families: readonly Family[]): readonly string[] =>
  partsOf(lease, families).map(({ subnet }) => `Subnet removed: ${netText(subnet)}`)

/** Returns the lines for a peer's lease that was added. `endOf` returns the text of the peer's end of the tunnel. */
export const addedLines = (
  lease: Lease,
  families: readonly Family[],
  endOf: (part: Lease) => string | undefined,
): readonly string[] =>
  partsOf(lease, families).map((part) => {
    const end = endOf(part)
    return `Subnet added: ${netText(part.subnet)}${end === undefined ? '' : ` via ${end}`}`
  })

/**
 * Returns the lines of backends that route to the peer's host (flannel: pkg/backend/route_network.go,
 * extension_network.go). `families` has the families that flanneld logs.
 */
export const hostWords = (families: readonly Family[]): Pick<PeerWords, 'added' | 'removed'> => ({
  added: (lease) => addedLines(lease, families, ({ attrs }) => addressText(attrs.publicIp)),
  removed: (lease) => removedLines(lease, families),
})
