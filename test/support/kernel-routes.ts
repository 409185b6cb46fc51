// kernel-routes.ts - the routes over which the kernel of a healthy host sends packets to its peer and receives them, with the changes of a
// test.

import type { PolicyRule, KernelRoute } from '../../src/host/route-lookup.ts'
import { routeQueries, type KernelRoutes } from '../../src/tool/doctor/route-queries.ts'
import { sound } from './facts.ts'

const rule = (priority: number, part: Partial<PolicyRule> = {}): PolicyRule => ({
  priority,
  table: undefined,
  action: undefined,
  iif: undefined,
  mark: undefined,
  mask: 0xff_ff_ff_ff,
  text: `${priority}: from all`,
  ...part,
})
const RULES = [
  rule(0, { table: 'local', text: '0: from all lookup local' }),
  rule(100, { action: 'prohibit', text: '100: from all to 10.5.2.0/24 prohibit' }),
  rule(5270, { table: '52', text: '5270: from all lookup 52' }),
  rule(30_000, { table: '100', mark: 1, mask: 1, text: '30000: from all fwmark 0x1/0x1 lookup 100' }),
  rule(30_400, { table: '30400', iif: 'cni0', text: '30400: from all iif cni0 lookup 30400' }),
  rule(32_766, { table: 'main', text: '32766: from all lookup main' }),
]
type Answer = Partial<KernelRoute> | string

/** Returns the routes of the healthy host of facts.ts, with `changed` in place of the right ones. A string is an error message. */
export function routesBy(changed: Partial<Readonly<Record<'host' | 'out' | 'in' | 'marked', Answer>>>): KernelRoutes {
  const answers = routeQueries(sound.status!, sound.links, ['0x1']).map((each) => {
    const name = each.query.mark === undefined ? each.direction : 'marked'
    const right: KernelRoute = {
      gateway: undefined,
      type: 'unicast',
      table: undefined,
      device: each.direction === 'in' ? 'cni0' : 'flannel0',
    }
    const answer = changed[name]
    return {
      ...each,
      answer: typeof answer === 'string' ? { refused: answer } : { route: { ...right, ...answer } },
    }
  })
  return { answers, rules: { ipv4: RULES } }
}
