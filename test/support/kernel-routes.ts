// kernel-routes.ts - the routes over which the kernel of a healthy host sends packets to its peer and receives them, with the changes of a
// test.

import type { PolicyRule, Route } from '../../src/host/kernel.ts'
import { errnoText } from '../../src/host/netlink/errno.ts'
import { parseNet } from '../../src/net/address.ts'
import {
  routeQueries,
  underlayQueries,
  type KernelRoutes,
  type PeerQuery,
} from '../../src/tool/doctor/route-queries.ts'
import { sound } from './facts.ts'

export const policyRule = (priority: number, part: Partial<PolicyRule> = {}): PolicyRule => ({
  priority,
  table: undefined,
  action: 'lookup',
  iif: undefined,
  oif: undefined,
  from: undefined,
  to: undefined,
  mark: undefined,
  mask: 0xff_ff_ff_ff,
  isInverted: false,
  ...part,
})
const RULES = [
  policyRule(0, { table: 255 }),
  policyRule(100, { action: 'prohibit', to: parseNet('10.5.2.0/24') }),
  policyRule(5270, { table: 52 }),
  policyRule(30_000, { table: 100, mark: 1, mask: 1 }),
  policyRule(30_400, { table: 30_400, iif: 'cni0' }),
  policyRule(32_766, { table: 254 }),
]
/** A changed route, or the name of the error with which the kernel refuses the packet. */
type Answer = Partial<Route> | string

/** Returns the routes of the healthy host of facts.ts, with `changed` in place of the right ones. A string is the name of an error. */
export function routesBy(changed: Partial<Readonly<Record<PeerQuery['direction'] | 'marked', Answer>>>): KernelRoutes {
  const queries = [...routeQueries(sound.status!, sound.links, [1]), ...underlayQueries(sound.status!, sound.links)]
  const devices: Partial<Record<PeerQuery['direction'], Partial<Route>>> = {
    in: { device: 'cni0' },
    underlay: { device: 'eth0' },
    'from underlay': { device: 'lo', type: 'local', table: 255 },
  }
  const answers = queries.map((each) => {
    const name = each.query.mark === undefined ? each.direction : 'marked'
    const right: Route = {
      destination: '',
      protocol: 'boot',
      gateway: undefined,
      type: 'unicast',
      table: 254,
      metric: 0,
      source: undefined,
      isOnlink: false,
      deviceIndex: 1,
      device: 'flannel0',
      ...devices[each.direction],
    }
    const answer = changed[name]
    return {
      ...each,
      answer:
        typeof answer === 'string' ? { refused: errnoText(answer), errno: answer } : { route: { ...right, ...answer } },
    }
  })
  return { answers, rules: { ipv4: RULES } }
}
