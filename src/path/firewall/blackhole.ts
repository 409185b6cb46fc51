// blackhole.ts - the blackhole route for this node's own subnet (--ip-blackhole-route). With this route the kernel
// drops packets for containers that do not exist. Without it these packets would leave by the tunnel or the default
// route.

import { applyChanges } from '../../host/kernel-errors.ts'
import type { Change, HostKernel, Route } from '../../host/kernel.ts'
import { deletionOf, USUAL_METRIC } from '../../host/links.ts'
import { familyOf, formatNet, isPartOf, netKey, parseNet, type Net } from '../../net/address.ts'

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
   * Sets the blackhole route for `subnet` unless `subnet` is undefined, and removes the blackhole routes for all other
   * subnets of the network. The first call also removes the route for `earlier`. It also removes flanneld's blackhole
   * route for `subnet`, and the one for `earlier` unless `earlier` is `own`, this node's present subnet. Returns a
   * description of each repair.
   */
  ensure(subnet: Net | undefined, own: Net | undefined): Promise<readonly string[]>
}

/** `earlier` is the subnet of an earlier run, which may be outside the network. */
export function createBlackhole(kernel: HostKernel, network: Net, earlier?: Net): Blackhole {
  const family = familyOf(network)
  let outside = earlier && !isPartOf(earlier, network) ? [earlier] : []
  let made = ''
  let isFirst = true
  return {
    async ensure(subnet, own) {
      const wanted = subnet ? formatNet(subnet) : ''
      const former = earlier && (!own || netKey(earlier) !== netKey(own)) ? [formatNet(earlier)] : []
      // flanneld's route has the default metric. The route would cut off a bridge that is created later, and the node
      // that has the earlier subnet now.
      const isOfFlanneld = ({ type, metric, protocol, destination }: Route): boolean =>
        isFirst &&
        type === 'blackhole' &&
        metric === USUAL_METRIC[family] &&
        protocol === 'boot' &&
        [wanted, ...former].includes(destination)
      const routes = [...(await kernel.routes({ family, within: network }))]
      if (outside.length > 0) routes.push(...(await kernel.routes({ family, exactly: outside })))
      const ours = routes.filter(({ type, metric }) => type === 'blackhole' && metric === METRIC)
      const changeOf = (kind: 'add route' | 'delete route', destination: Net): Change => ({
        kind,
        destination,
        type: 'blackhole',
        metric: METRIC,
      })
      // weftd gives its routes no other protocol than `boot`, so a route with a different protocol is another program's.
      const old = ours.flatMap(({ destination, protocol }) =>
        destination === wanted || protocol !== 'boot' ? [] : (parseNet(destination) ?? []),
      )
      const isMissing = subnet !== undefined && !ours.some(({ destination }) => destination === wanted)
      await applyChanges(kernel, [
        ...routes.filter(isOfFlanneld).map((route) => deletionOf(route, family)),
        ...old.map((destination) => changeOf('delete route', destination)),
        ...(isMissing ? [changeOf('add route', subnet)] : []),
      ])
      outside = []
      isFirst = false
      const repaired = isMissing && made === wanted ? [`the blackhole route of ${wanted} was gone`] : []
      made = wanted
      return repaired
    },
  }
}
