// reports.ts - the reports that the kernel sends to rtnetlink's multicast groups when an object changes. All functions
// are pure.

import type { KernelEvent, Topic } from '../kernel.ts'
import type { NameOf } from './interfaces.ts'
import { addressEventOf, linkEventOf, RTM_ADDRESS, RTM_LINK } from './links.ts'
import { familyIn, type ReceivedMessage } from './message.ts'
import { forwardingIn, neighbourIn, RTM_DELNEIGH, RTM_NEWNEIGH } from './neighbours.ts'
import { isCached, routeIn, RTM_DELROUTE, RTM_NEWROUTE, textWithoutLifetime } from './routes.ts'
import { RTM_DELRULE, RTM_NEWRULE } from './rules.ts'

/**
 * The numbers of rtnetlink's groups, for IPv4 and for IPv6 (RTNLGRP_* in linux/rtnetlink.h). A kernel without IPv6 has
 * the groups, too.
 */
const GROUPS: Readonly<Record<Exclude<Topic, 'ipsec policies'>, readonly number[]>> = {
  links: [1],
  addresses: [5, 9],
  routes: [7, 11],
  rules: [8, 19],
  neighbours: [3],
}

/** The group of the subsystem NETLINK_XFRM for changes of IPsec policies (XFRMNLGRP_POLICY in linux/xfrm.h). */
const POLICY_GROUPS: readonly number[] = [4]

/** Returns the groups of NETLINK_ROUTE, and those of NETLINK_XFRM, that report changes of these topics. */
export function groupsOf(topics: readonly Topic[]): {
  readonly route: readonly number[]
  readonly xfrm: readonly number[]
} {
  return {
    route: topics.flatMap((topic) => (topic === 'ipsec policies' ? [] : GROUPS[topic])),
    xfrm: topics.includes('ipsec policies') ? POLICY_GROUPS : [],
  }
}

/** Returns the event that a report describes; undefined for a report of an object that weft does not use. */
export function eventOf(message: ReceivedMessage, nameOf: NameOf): KernelEvent | undefined {
  switch (message.type) {
    case RTM_LINK.NEW:
    case RTM_LINK.DELETE:
      return linkEventOf(message)
    case RTM_ADDRESS.NEW:
    case RTM_ADDRESS.DELETE:
      return addressEventOf(message)
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
      return routeEventOf(message, nameOf)
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
      return neighbourEventOf(message)
    case RTM_NEWRULE:
    case RTM_DELRULE: {
      const family = familyIn(message)
      return family && { of: 'rule', family, gone: message.type === RTM_DELRULE }
    }
    default:
      return undefined
  }
}

function routeEventOf(message: ReceivedMessage, nameOf: NameOf): KernelEvent | undefined {
  const family = familyIn(message)
  const route = family && !isCached(message) ? routeIn(message, nameOf) : undefined
  if (!family || !route) return undefined
  return { of: 'route', route, family, text: textWithoutLifetime(message), gone: message.type === RTM_DELROUTE }
}

function neighbourEventOf(message: ReceivedMessage): KernelEvent | undefined {
  const gone = message.type === RTM_DELNEIGH
  const neighbour = neighbourIn(message)
  if (neighbour) return { of: 'neighbour', neighbour, gone }
  const forwarding = forwardingIn(message)
  return forwarding && { of: 'forwarding', forwarding, gone }
}
