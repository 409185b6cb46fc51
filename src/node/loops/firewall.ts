// firewall.ts - the loop that maintains the firewall's rules. It sets them at the start, restores them if other
// programs remove or reorder them, and changes them when the node gets another subnet. Packets to peers do not need the
// rules, so the start waits for the rules only briefly.

import { describeError, isWeftError, WeftError } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import { printable } from '../../base/text.ts'
import type { NetworkConfig } from '../../control/config/network-config.ts'
import { limited, pause, withLatePromise } from '../../host/bell.ts'
import { run, type Run } from '../../host/command.ts'
import { xtablesLockHolder } from '../../host/xtables-lock.ts'
import { createFirewall } from '../../path/firewall/firewall.ts'
import { exitOrWait } from '../exit-or-wait.ts'
import { LATE_MS, RESYNC_MS, type Node } from '../node.ts'
import { createRepairLog } from '../repairs.ts'
import type { PreviousNets } from './subnet-env-file.ts'

/** How long, in ms, this process does not change the firewall rules while a starting successor may be setting them. */
const STAND_BY_MS = 60_000
/** The time in ms after which weftd logs that the firewall rules are not set yet, and why. */
const RULES_LATE_MS = 3_000
/**
 * How long, in ms, a weftd that does not forward yet waits until the firewall rules are set. Because of this wait the
 * log lines have the same order as flanneld's, even on slow hosts.
 */
const RULES_WAIT_MS = 10_000
/**
 * How long, in ms, one command waits for the lock of iptables. After that weftd ends the command and tries again later.
 */
const LOCK_MS = 60_000

/** Returns the firewall object with the rules that the network configuration and the flags request. */
export function firewallFor(
  { enableNftables, ipv4, ipv6 }: NetworkConfig,
  { options, kernel, log, signal }: Pick<Node, 'options' | 'kernel' | 'log' | 'signal'>,
  previous: PreviousNets,
  free?: Promise<void>,
): NonNullable<Node['firewall']> {
  // Pass the stop signal to `run`, so that a stop ends a command that waits for the lock of iptables.
  const runTillStop: Run = (file, args, more) =>
    more?.patient ? runForLock(file, args, more, signal) : run(file, args, more)
  const rules = createFirewall(enableNftables ? 'nftables' : 'iptables', {
    network: { ipv4: ipv4?.network, ipv6: ipv6?.network },
    masq: options['ip-masq'],
    forward: options['iptables-forward-rules'],
    plainPorts: options['ip-masq-fully-random-disable'],
    blackhole: options['ip-blackhole-route'],
    previous,
    run: runTillStop,
    kernel,
    log,
  })
  return { rules, resyncMs: Math.max(1, options['iptables-resync']) * 1000, ...(free ? { free } : {}) }
}

/** Runs a command that waits for the lock of iptables. Ends the command after LOCK_MS. */
async function runForLock(
  file: string,
  args: readonly string[],
  more: Parameters<Run>[2],
  stopping: AbortSignal,
): Promise<string> {
  const late = (): Error => new WeftError('COMMAND', `\`${file}\` had no end within ${LOCK_MS / 1000} s`)
  try {
    return await limited(stopping, LOCK_MS, late, (signal) => run(file, args, { ...more, signal }))
  } catch (error) {
    stopping.throwIfAborted()
    const holder = isWeftError(error) && error.cause === undefined ? await holderText() : undefined
    if (holder === undefined) throw error
    throw new WeftError(
      'COMMAND',
      `${(error as WeftError).message}: it waits for the xtables lock, which ${holder} has`,
      {
        remedy: 'end the process that has the lock if it hangs',
      },
    )
  }
}

const holderText = async (): Promise<string | undefined> => {
  const holder = await xtablesLockHolder()
  return holder === undefined ? undefined : printable(holder)
}

/**
 * Sets the firewall rules for the first time. If that takes long, reports in the log and in the status which process
 * holds the lock of iptables.
 */
export async function raiseFirewall(
  node: Pick<Node, 'firewall' | 'lease' | 'log' | 'signal' | 'rulesTrouble'>,
): Promise<void> {
  const { firewall, lease } = node
  if (!firewall) return
  const ended = new AbortController()
  void reportLate(node, ended.signal) // it never rejects, and logs nothing after `ended`
  try {
    await firewall.rules.raise(lease.subnet)
  } finally {
    ended.abort()
    node.rulesTrouble = undefined
  }
}

async function reportLate(node: Pick<Node, 'log' | 'signal' | 'rulesTrouble'>, ended: AbortSignal): Promise<void> {
  const calm = seldom(node.log)
  const until = AbortSignal.any([node.signal, ended])
  try {
    for (let waitMs = RULES_LATE_MS; ; waitMs = LOCK_MS) {
      await pause(until, waitMs)
      const holder = await holderText()
      if (until.aborted) return
      const why = holder === undefined ? '' : `: they wait for the xtables lock, which ${holder} has`
      node.rulesTrouble = `the firewall's rules are not set yet${why}`
      calm.warn(`The firewall's rules are not set yet${why}; everything else goes on without them`)
    }
  } catch {
    // Ignore the rejection of `pause`: either the firewall rules are set, or the daemon stops. Neither needs a log
    // line.
  }
}

/**
 * Begins to set the firewall rules for the first time. Like flanneld, a node that does not forward yet waits for the
 * rules, and this function rejects if they cannot be set. After RULES_WAIT_MS the node continues without the rules. A
 * node that already forwards waits only for LATE_MS; if the rules cannot be set, it logs the reason and tries again.
 */
export async function raiseOrLate(node: Node, forwardsAlready: boolean): Promise<void> {
  let isPatient = forwardsAlready
  node.raising = raiseFirewall(node).catch((error: unknown) => {
    if (exitOrWait(error, isPatient, []) === 'exit') throw error
    node.log.error(describeError(error))
    node.rulesTrouble = describeError(error)
  })
  await withLatePromise(forwardsAlready ? LATE_MS : RULES_WAIT_MS, (late) => Promise.race([node.raising, late]))
  isPatient = true
}

export async function keepFirewall(node: Node): Promise<never> {
  const { firewall, log, signal } = node
  const calm = seldom(log)
  const repairs = createRepairLog(node, node.log)
  void firewall?.free?.then(() => firewall.rules.lookAgain?.())
  const rests = restsFor(node)
  await node.raising
  for (;;) {
    await pause(signal, firewall?.resyncMs ?? RESYNC_MS)
    if (rests()) continue
    const done = await firewall?.rules.ensure(node.lease.subnet)
    signal.throwIfAborted()
    for (const repaired of done?.repaired ?? []) repairs.add(repaired)
    const failures = (done?.failures ?? []).map(describeError)
    for (const failure of failures) calm.error(failure)
    node.rulesTrouble = failures[0]
  }
}

/**
 * Returns a function that returns true while a successor may own the firewall rules. While it returns true, this daemon
 * must not restore its own rules.
 */
function restsFor({ ownership }: Node): () => boolean {
  let since: number | undefined
  return () => {
    if (!ownership.isOurs) return true
    since = ownership.hasSuccessor ? (since ?? performance.now()) : undefined
    // `since` is the time when this function first saw the successor. A successor sets the firewall rules within
    // STAND_BY_MS. If it has not taken over by then, it waits for something else, such as an answer of its store, and
    // has not changed the firewall rules. Then return false, so that this daemon restores its own rules again.
    return since !== undefined && performance.now() - since < STAND_BY_MS
  }
}
