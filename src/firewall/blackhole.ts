// blackhole.ts - a route to nowhere for this node's own subnet (--ip-blackhole-route): what is for a container that is not
// there ends here, instead of going into the tunnel or out by the default route.

import type { Run } from '../host/command.ts'
import { routesWithin } from '../host/links.ts'
import { formatIpv4Net, type Ipv4Net } from '../net/ipv4.ts'

/**
 * The last of all routes to the subnet. flanneld adds its own with metric 0: the kernel appends a bridge's route of that
 * metric to it (Linux 6.18, net/ipv4/fib_trie.c, fib_table_insert), so a bridge that comes later is cut off.
 */
const METRIC = 0xffffffff

export interface Blackhole {
  /** Makes the route right for a node with this subnet, and removes an earlier subnet's. What was mended, in words. */
  ensure(subnet: Ipv4Net): Promise<readonly string[]>
}

export function createBlackhole(run: Run, network: Ipv4Net): Blackhole {
  let made = ''
  return {
    async ensure(subnet) {
      const wanted = formatIpv4Net(subnet)
      const ours = (await routesWithin(run, network)).filter(
        ({ type, metric }) => type === 'blackhole' && metric === METRIC,
      )
      const change = (verb: string, destination: string): Promise<string> =>
        run('ip', ['route', verb, 'blackhole', destination, 'metric', String(METRIC)])
      for (const { destination } of ours) if (destination !== wanted) await change('del', destination)
      const isThere = ours.some(({ destination }) => destination === wanted)
      if (!isThere) await change('add', wanted)
      const mended = !isThere && made === wanted ? [`the blackhole route of ${wanted} was gone`] : []
      made = wanted
      return mended
    },
  }
}
