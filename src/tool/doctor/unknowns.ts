// unknowns.ts - explains why weft doctor could not run a check. Pure.

import { kindOf } from '../../path/catalog.ts'
import type { Facts } from './facts.ts'
import { ownSides } from './sides.ts'

type Reason = (facts: Facts) => string | undefined

const withoutNode: Reason = ({ status, silence, isForbidden }) => {
  if (isForbidden) return 'this user may not query weftd: run weft doctor as root'
  if (!status) return `weftd does not answer${silence ? ` (${silence})` : ''}, and no earlier weftd left a status`
  if (!status.config) return 'weftd has no network configuration yet'
  if (!status.node) return 'weftd has no lease yet'
  return ownSides(status).length === 0 ? 'the network of this node cannot be read' : undefined
}
const withoutDaemon: Reason = ({ silence }) =>
  silence === undefined ? undefined : 'only a running weftd knows this, and it does not answer'
const withoutPeers: Reason = ({ status }) => (status?.peers ? undefined : 'weftd does not know its peers yet')
const withoutRoutes: Reason = ({ status }) => {
  const type = status?.config?.backendType ?? ''
  return kindOf(type)?.routes === 'none' ? `the backend ${type} makes no routes to other nodes` : undefined
}
const withoutPath: Reason = ({ status }) => (status?.dataPath?.open === true ? undefined : 'the data path is not open')

/**
 * For each check, the possible reasons why the check cannot run; the doctor reports the first reason that applies. A
 * check that this table does not list needs only a weftd that has a configuration and a lease.
 */
const REASONS: Readonly<Record<string, readonly Reason[]>> = {
  tun: [() => 'this user may not open /dev/net/tun: run weft doctor as root'],
  firewall: [
    withoutNode,
    () => 'neither iptables nor nft can be read: run weft doctor as root, with one of them installed',
  ],
  routes: [
    withoutNode,
    ({ status }) =>
      status?.dataPath?.engine === 'none' ? 'something other than weft carries the packets of this backend' : undefined,
    withoutRoutes,
    withoutPath,
  ],
  neighbours: [
    ({ neighbours }) => (neighbours ? undefined : "the kernel's neighbour table was not read (`ip neighbour`)"),
    () =>
      'net.ipv4.neigh.default.gc_thresh3 cannot be seen in this network namespace: run weft doctor on the host itself',
  ],
  store: [withoutNode, ({ whyStoreUnknown }) => whyStoreUnknown, withoutDaemon],
  clock: [
    () =>
      'the store does not report its time, and there is no lease whose end could be compared: check with `timedatectl` whether NTP keeps the clock',
  ],
  config: [
    ({ whyStoreUnknown }) => whyStoreUnknown,
    ({ store }) => store?.problem,
    () => 'the configuration in the store was not read: weft doctor needs the store flags or variables of weftd',
  ],
  leases: [withoutNode, withoutPeers],
  peers: [withoutNode, withoutPeers, () => 'weftd does not carry packets, so peers cannot be probed'],
  handshakes: [withoutDaemon, withoutNode, withoutPeers],
  mtu: [withoutNode, () => 'the data path has no MTU yet'],
  containers: [withoutNode, withoutPath],
  crossing: [
    withoutNode,
    withoutPeers,
    ({ bridgeAnswers = [] }) =>
      bridgeAnswers.length === 0
        ? 'the bridges of peers were not probed: this node has no bridge of containers, this host does not have its public address (NAT), or this user may not send pings'
        : undefined,
    () =>
      'no bridge of a peer answers the bridge of this node or this host, so weft does not know whether packets of containers cross the underlay; perhaps no peer has containers, a firewall drops the echo requests, or the cloud or switch drops packets with addresses of containers (source/destination check, port security): ping a container of a peer from a container of this node',
  ],
  drops: [withoutDaemon, withoutNode, () => 'weftd has counted for too short a time'],
}

export function whyUnknown(check: string, facts: Facts): string {
  for (const reason of REASONS[check] ?? [withoutNode]) {
    const why = reason(facts)
    if (why !== undefined) return why
  }
  return 'weftd does not report the facts that this check needs'
}
