// firewall.ts - keeps the firewall's rules: what others removed or reordered is mended, and they follow the node to another subnet.

import type { NetworkConfig } from '../../control/config/network-config.ts'
import { describeError } from '../../base/errors.ts'
import { createFirewall } from '../../path/firewall/firewall.ts'
import { pause } from '../../host/bell.ts'
import { run, type Run } from '../../host/command.ts'
import { seldom, type Log } from '../../base/log.ts'
import type { DaemonOptions } from '../../options.ts'
import type { PreviousNets } from './subnet-env-file.ts'
import { RESYNC_MS, type Node, type NodeParts } from '../node.ts'
import { createRepairLog } from '../repairs.ts'

/** For this long the rules are left to a successor that prepares. */
const STAND_BY_MS = 60_000

/** The rules that the network configuration and the flags ask for. */
export function firewallFor(
  { enableNftables, ipv4, ipv6 }: NetworkConfig,
  options: DaemonOptions,
  previous: PreviousNets,
  log: Log,
  signal: AbortSignal,
  free?: Promise<void>,
): NonNullable<NodeParts['firewall']> {
  // Told when to stop: iptables waits for its lock as long as another program has it.
  const runTillStop: Run = (file, args, more) => run(file, args, more?.patient ? { signal, ...more } : more)
  const rules = createFirewall(enableNftables ? 'nftables' : 'iptables', {
    network: { ipv4: ipv4?.network, ipv6: ipv6?.network },
    masq: options['ip-masq'],
    forward: options['iptables-forward-rules'],
    plainPorts: options['ip-masq-fully-random-disable'],
    blackhole: options['ip-blackhole-route'],
    previous,
    run: runTillStop,
    log,
  })
  return { rules, resyncMs: Math.max(1, options['iptables-resync']) * 1000, ...(free ? { free } : {}) }
}

export async function raiseFirewall({ firewall, lease }: Node): Promise<void> {
  await firewall?.rules.raise(lease.subnet)
}

export async function keepFirewall(node: Node): Promise<never> {
  const { firewall, log, signal } = node
  const calm = seldom(log)
  const repairs = createRepairLog(node, node.log)
  void firewall?.free?.then(() => firewall.rules.lookAgain?.())
  const rests = restsFor(node)
  for (;;) {
    await pause(signal, firewall?.resyncMs ?? RESYNC_MS)
    if (rests()) continue
    const done = await firewall?.rules.ensure(node.lease.subnet)
    signal.throwIfAborted()
    for (const mended of done?.mended ?? []) repairs.add(mended)
    const failures = (done?.failures ?? []).map(describeError)
    for (const failure of failures) calm.error(failure)
    node.rulesTrouble = failures[0]
  }
}

/** Tells whether a successor has the rules by now: they are as it wants them, and this daemon would put its own back. */
function restsFor({ possession }: Node): () => boolean {
  let since: number | undefined
  return () => {
    const { is } = possession.state
    if (is === 'lent' || is === 'released' || is === 'ended') return true
    since = possession.hasSuccessor ? (since ?? performance.now()) : undefined
    // One that takes longer waits for something, such as its store, before it touches the rules.
    return since !== undefined && performance.now() - since < STAND_BY_MS
  }
}
