// firewall.ts - keeps the firewall's rules: what others removed or reordered is mended, and they follow the node to another subnet.

import { ipv4For, type NetworkConfig } from '../config/network-config.ts'
import { describeError, isWeftError } from '../errors.ts'
import { createFirewall } from '../firewall/firewall.ts'
import { pause } from '../host/bell.ts'
import { run, type Run } from '../host/command.ts'
import { seldom, type Log } from '../log.ts'
import type { DaemonOptions } from '../options.ts'
import type { PreviousNets } from '../status/subnet-env.ts'
import { RESYNC_MS, type Node, type NodeParts } from './node.ts'
import { createRepairLog } from './repairs.ts'

/** What the network configuration and the flags ask for. */
export function firewallFor(
  config: NetworkConfig,
  options: DaemonOptions,
  previous: PreviousNets,
  log: Log,
  signal: AbortSignal,
): NonNullable<NodeParts['firewall']> {
  // Told when to stop: iptables waits for its lock as long as another program has it.
  const runTillStop: Run = (file, args, more) => run(file, args, more?.patient ? { signal, ...more } : more)
  const rules = createFirewall(config.enableNftables ? 'nftables' : 'iptables', {
    network: ipv4For('weftd', config).network,
    masq: options['ip-masq'],
    forward: options['iptables-forward-rules'],
    plainPorts: options['ip-masq-fully-random-disable'],
    blackhole: options['ip-blackhole-route'],
    previous: { network: previous.network.ipv4, subnet: previous.subnet.ipv4 },
    ...{ run: runTillStop, log },
  })
  return { rules, resyncMs: Math.max(1, options['iptables-resync']) * 1000 }
}

export async function raiseFirewall({ firewall, lease }: Node): Promise<void> {
  await firewall?.rules.raise(ipv4For('weftd', lease.subnet))
}

export async function keepFirewall(node: Node): Promise<never> {
  const { firewall, log, signal } = node
  const calm = seldom(log)
  const repairs = createRepairLog(node, node.log)
  for (;;) {
    await pause(signal, firewall?.resyncMs ?? RESYNC_MS)
    try {
      for (const mended of (await firewall?.rules.ensure(ipv4For('weftd', node.lease.subnet))) ?? [])
        repairs.add(mended)
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error
      calm.error(describeError(error))
    }
  }
}
