// unreachable-network.ts - the route that makes the kernel refuse packets to peers without keys, if charon carries the
// ESP packets.
//
// charon routes each peer's subnet to its own device in table 220, which the kernel looks up before the main table
// (strongSwan: charon.routing_table). Without the route of this file, packets to a peer without keys would leave
// unencrypted by the default route.

import type { Run } from '../../host/command.ts'
import { ipFlag, routesWithin, type Route } from '../../host/links.ts'
import { formatNet, type Net } from '../../net/address.ts'

/** The highest metric, so that every other route is preferred, such as that of a bridge with this node's own subnet. */
const METRIC = 0xff_ff_ff_ff

/** True if the route is the unreachable route that this file makes to the network. */
export const isUnreachableNetwork = ({ type, destination, metric }: Route, network: Net): boolean =>
  type === 'unreachable' && destination === formatNet(network) && metric === METRIC

/** Returns the arguments with which `ip` adds or deletes the unreachable route. */
export const wordsFor = (verb: 'add' | 'del', network: Net): readonly string[] => [
  ipFlag(network),
  'route',
  verb,
  'unreachable',
  formatNet(network),
  'metric',
  String(METRIC),
]

export class UnreachableNetwork {
  readonly #network: Net
  readonly #run: Run

  constructor(network: Net, run: Run) {
    this.#network = network
    this.#run = run
  }

  /** Makes the unreachable route. */
  async block(): Promise<void> {
    await this.resync()
  }

  /** Makes the unreachable route. The peers are ignored, because charon has their policies. */
  async apply(_peers: readonly unknown[]): Promise<void> {
    await this.resync()
  }

  /** Makes the unreachable route if it is missing. Returns a description of the repair. */
  async resync(): Promise<readonly string[]> {
    if ((await routesWithin(this.#run, this.#network)).some((route) => isUnreachableNetwork(route, this.#network)))
      return []
    await this.#run('ip', [...wordsFor('add', this.#network)])
    return [`the unreachable route to ${formatNet(this.#network)} was gone`]
  }

  /** Always true, because charon has the policies of the peers. */
  isSet(): boolean {
    return true
  }
}

/** Removes the unreachable route to this network if the host has it. */
export async function removeUnreachable(run: Run, network: Net): Promise<void> {
  const isThere = (await routesWithin(run, network)).some((route) => isUnreachableNetwork(route, network))
  if (isThere) await run('ip', [...wordsFor('del', network)])
}
