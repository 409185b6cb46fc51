// unknowns.ts - explains why a check was not possible. Pure.

import type { Facts } from './facts.ts'
import { ownSides } from './sides.ts'

type Reason = (facts: Facts) => string | undefined

/** The reason if the daemon reports no status, or has no node yet. */
const withoutNode: Reason = ({ status, silence, isForbidden }) => {
  if (isForbidden) return 'this user may not ask weftd: run weft doctor as root'
  if (!status) return `weftd does not answer${silence ? ` (${silence})` : ''}, and nothing is left of an earlier one`
  if (!status.config) return 'weftd has no network configuration yet'
  if (!status.node) return 'weftd has no lease yet'
  return ownSides(status).length === 0 ? 'the network of this node cannot be read' : undefined
}
const withoutDaemon: Reason = ({ silence }) =>
  silence === undefined ? undefined : 'only a running weftd knows this, and it does not answer'
const withoutPeers: Reason = ({ status }) => (status?.peers ? undefined : 'weftd does not know its peers yet')
const withoutPath: Reason = ({ status }) => (status?.dataPath?.open === true ? undefined : 'the data path is not open')

/** The possible reasons for each check; the first that applies is used. A check that is not listed needs only weftd's node. */
const REASONS: Readonly<Record<string, readonly Reason[]>> = {
  firewall: [
    withoutNode,
    () => 'neither iptables nor nft can be read: run weft doctor as root, with one of them installed',
  ],
  routes: [
    withoutNode,
    ({ status }) =>
      status?.dataPath?.engine === 'none' ? 'something other than weft carries the packets of this backend' : undefined,
    withoutPath,
  ],
  neighbours: [
    ({ neighbours }) => (neighbours ? undefined : 'the kernel was not asked (`ip neighbour`)'),
    () =>
      'net.ipv4.neigh.default.gc_thresh3 cannot be seen in this network namespace: run weft doctor on the host itself',
  ],
  store: [withoutNode, ({ storeUnasked }) => storeUnasked, withoutDaemon],
  clock: [
    () =>
      'the store tells no time, and there is no lease whose end could be compared: see `timedatectl` for whether NTP keeps the clock',
  ],
  config: [
    ({ storeUnasked }) => storeUnasked,
    ({ store }) => store?.problem,
    () =>
      'the configuration of the store is not asked for: weft doctor needs the flags or variables of weftd for the store',
  ],
  leases: [withoutNode, withoutPeers],
  peers: [withoutNode, withoutPeers, () => 'weftd does not carry packets, so peers cannot be asked'],
  handshakes: [withoutDaemon, withoutNode, withoutPeers],
  mtu: [withoutNode, () => 'the data path has no MTU yet'],
  containers: [withoutNode, withoutPath],
  drops: [withoutDaemon, withoutNode, () => 'weftd has counted for too short a time'],
}

/** Returns the reason why a check was not possible. */
export function whyUnknown(check: string, facts: Facts): string {
  for (const reason of REASONS[check] ?? [withoutNode]) {
    const why = reason(facts)
    if (why !== undefined) return why
  }
  return 'weftd does not tell what it takes'
}
