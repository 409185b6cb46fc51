// peer-hosts.ts - the addresses of a peer's host, as the peer table has them.

import { familyOf, type Address, type Addresses } from '../../src/net/address.ts'
import type { Peer } from '../../src/path/engine/peers.ts'

/** Returns the members of a peer whose host has these addresses. Datagrams to the peer are sent to the first one. */
export function hostsAt(first: Address, second?: Address): Pick<Peer, 'hosts' | 'outer'> {
  const hosts: Addresses = { [familyOf(first)]: first, ...(second === undefined ? {} : { [familyOf(second)]: second }) }
  return { hosts, outer: familyOf(first) }
}
