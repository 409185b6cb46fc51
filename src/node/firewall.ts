// firewall.ts - keeps the firewall's rules: what others removed or reordered is mended, and they follow the node to another subnet.

import { ipv4For } from '../config/network-config.ts'
import { describeError, isWeftError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import { seldom } from '../log.ts'
import { RESYNC_MS, type Node } from './node.ts'
import { createRepairLog } from './repairs.ts'

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
