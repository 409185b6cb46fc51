// blackhole.ts - a route to nowhere for this node's own subnet (--ip-blackhole-route): what is for a container that is not
// there ends here, instead of going into the tunnel or out by the default route.

import type { Run } from '../../host/command.ts'
import { ipFlag, routesWithin } from '../../host/links.ts'
import { formatNet, type Net } from '../../net/address.ts'

/**
 * The last of all routes to the subnet. flanneld adds its own without one, which is 0 for IPv4: the kernel appends a bridge's route
 * of that metric to it (Linux 6.18, net/ipv4/fib_trie.c, fib_table_insert), so a bridge that comes later is cut off. For IPv6 that is
 * 1024 (net/ipv6/route.c, IP6_RT_PRIO_USER), as that of any route that an operator adds, which is then refused.
 */
const METRIC = 0xffffffff

interface Blackhole {
  /** Makes the route right for a node with this subnet, or with none, and removes an earlier subnet's. What was mended, in words. */
  ensure(subnet: Net | undefined): Promise<readonly string[]>
}

export function createBlackhole(run: Run, network: Net): Blackhole {
  let made = ''
  return {
    async ensure(subnet) {
      const wanted = subnet ? formatNet(subnet) : ''
      const ours = (await routesWithin(run, network)).filter(
        ({ type, metric }) => type === 'blackhole' && metric === METRIC,
      )
      const change = (verb: string, destination: string): Promise<string> =>
        run('ip', [ipFlag(network), 'route', verb, 'blackhole', destination, 'metric', String(METRIC)])
      for (const { destination } of ours) if (destination !== wanted) await change('del', destination)
      const isMissing = wanted !== '' && !ours.some(({ destination }) => destination === wanted)
      if (isMissing) await change('add', wanted)
      const mended = isMissing && made === wanted ? [`the blackhole route of ${wanted} was gone`] : []
      made = wanted
      return mended
    },
  }
}
