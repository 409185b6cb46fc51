// blackhole.ts - the blackhole route for this node's own subnet (--ip-blackhole-route). With this route the kernel
// drops packets for containers that do not exist. Without it these packets would leave by the tunnel or the default
// route.

import type { Run } from '../../host/command.ts'
import { ipFlag, routesWithin } from '../../host/links.ts'
import { formatNet, type Net } from '../../net/address.ts'

/**
 * The highest metric, so that the kernel prefers every other route to the subnet. flanneld sets no metric, which has
 * two disadvantages. In IPv4 flanneld's route has the metric 0, and if a bridge is created later, the kernel puts the
 * bridge's route behind the blackhole route (Linux 6.18, net/ipv4/fib_trie.c, fib_table_insert). Then the bridge gets
 * no packets. In IPv6 flanneld's route has the metric 1024 (net/ipv6/route.c, IP6_RT_PRIO_USER), and the kernel refuses
 * an operator's route to the same subnet.
 */
const METRIC = 0xffffffff

interface Blackhole {
  /**
   * Sets the blackhole route for `subnet` unless `subnet` is undefined, and removes the route for an earlier subnet.
   * Returns a description of each repair.
   */
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
      const repaired = isMissing && made === wanted ? [`the blackhole route of ${wanted} was gone`] : []
      made = wanted
      return repaired
    },
  }
}
