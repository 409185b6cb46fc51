// userspace-guard.ts - makes the kernel drop unencrypted packets of the network, if charon carries the ESP packets.
//
// An unreachable route drops outgoing packets. charon routes each peer's subnet to its own device in table 220, which
// the kernel looks up before the main table (strongSwan: charon.routing_table). Without the unreachable route packets
// to a peer without keys would leave unencrypted by the default route.
//
// A routing rule drops incoming packets that the kernel would forward to containers. Packets that charon decrypted come
// from charon's own device. So a packet from the external interface whose source and destination are in the network was
// not encrypted. Packets to other destinations must pass, because this host may be the router of another node.

import { isWeftError } from '../../base/errors.ts'
import { isRefusal, type Run } from '../../host/command.ts'
import { ipFlag, ipJson, routesWithin, type Route } from '../../host/links.ts'
import { formatNet, isIpv4Net, type Net } from '../../net/address.ts'

/**
 * The highest metric, so that the kernel prefers every other route, such as that of a bridge with this node's own
 * subnet.
 */
const METRIC = 0xff_ff_ff_ff
/** The priority of the rule. The kernel applies the rule before charon's rule, which has the priority 220. */
const PRIORITY = 219

/** Returns true if the route is the unreachable route to the network, as `apply` makes it. */
const isUnreachableNetwork = ({ type, destination, metric }: Route, network: Net): boolean =>
  type === 'unreachable' && destination === formatNet(network) && metric === METRIC

/** Returns the arguments with which `ip` adds or deletes the unreachable route. */
const routeWordsFor = (verb: 'add' | 'del', network: Net): readonly string[] => [
  ipFlag(network),
  'route',
  verb,
  'unreachable',
  formatNet(network),
  'metric',
  String(METRIC),
]

/** Returns the arguments with which `ip` adds or deletes the rule for packets from a device. */
const ruleWordsFor = (verb: 'add' | 'del', network: Net, device: string): readonly string[] => [
  ipFlag(network),
  'rule',
  verb,
  'priority',
  String(PRIORITY),
  'iif',
  device,
  'from',
  formatNet(network),
  'to',
  formatNet(network),
  'blackhole',
]

interface JsonRule {
  readonly priority?: number
  readonly src?: string
  readonly srclen?: number
  readonly dst?: string
  readonly dstlen?: number
  readonly iif?: string
  readonly action?: string
}

/** Lists the devices for which a rule that this file made drops packets within the network. */
async function ruleDevices(run: Run, network: Net): Promise<readonly string[]> {
  const rules = await ipJson<JsonRule>(run, [ipFlag(network), 'rule', 'show', 'priority', String(PRIORITY)])
  const whole = formatNet(network)
  return rules.flatMap(({ src = '', srclen = 32, dst = '', dstlen = 32, iif, action }) => {
    const isOurs = action === 'blackhole' && `${src}/${srclen}` === whole && `${dst}/${dstlen}` === whole
    return isOurs && iif !== undefined ? [iif] : []
  })
}

export class UserspaceGuard {
  readonly #network: Net
  /** Returns the name of the external interface. */
  readonly #device: () => string
  readonly #run: Run

  constructor(network: Net, device: () => string, run: Run) {
    this.#network = network
    this.#device = device
    this.#run = run
  }

  /** Makes the unreachable route and the rule. */
  async block(): Promise<void> {
    await this.resync()
  }

  /** Makes the unreachable route and the rule. The peers are ignored, because charon has their policies. */
  async apply(_peers: readonly unknown[]): Promise<void> {
    await this.resync()
  }

  /** Makes the unreachable route and the rule if they are missing. Returns a description of each repair. */
  async resync(): Promise<readonly string[]> {
    const repaired: string[] = []
    const routes = await routesWithin(this.#run, this.#network)
    if (!routes.some((route) => isUnreachableNetwork(route, this.#network))) {
      await this.#run('ip', [...routeWordsFor('add', this.#network)])
      repaired.push(`the unreachable route to ${formatNet(this.#network)} was gone`)
    }
    const wanted = this.#device()
    const there = await ruleDevices(this.#run, this.#network)
    if (!there.includes(wanted)) {
      await this.#run('ip', [...ruleWordsFor('add', this.#network, wanted)])
      repaired.push(`the rule for unencrypted packets from ${wanted} was gone`)
    }
    // Delete the rule for an earlier name of the external interface, and any duplicate that another program added.
    for (const device of there.filter((name, at) => name !== wanted || there.indexOf(name) !== at))
      await this.#run('ip', [...ruleWordsFor('del', this.#network, device)])
    return repaired
  }

  /** Always true, because charon has the policies of the peers. */
  isSet(): boolean {
    return true
  }
}

/**
 * Returns the steps that remove the rules and the unreachable route to the given network, each as a description and as
 * arguments of `ip`. `routes` has the host's routes. An operator may have removed only the unreachable route, so the
 * rules do not depend on the route.
 */
export async function guardRemovals(
  run: Run,
  network: Net,
  routes: readonly Route[],
): Promise<readonly { readonly what: string; readonly command: readonly string[] }[]> {
  if (!isIpv4Net(network)) return [] // the backend ipsec carries only IPv4
  const devices = await ruleDevices(run, network).catch((error: unknown) => {
    if (isWeftError(error, 'COMMAND') && isRefusal(error)) return [] // a kernel without policy routing
    throw error
  })
  const rules = devices.map((device) => ({
    what: `the rule for unencrypted packets from ${device}`,
    command: ruleWordsFor('del', network, device),
  }))
  if (!routes.some((route) => isUnreachableNetwork(route, network))) return rules
  return [...rules, { what: `the unreachable route to ${formatNet(network)}`, command: routeWordsFor('del', network) }]
}

/** Removes the rules and the unreachable route to the given network, if the host has them. */
export async function removeUserspaceGuard(run: Run, network: Net): Promise<void> {
  for (const { command } of await guardRemovals(run, network, await routesWithin(run, network)))
    await run('ip', [...command])
}
