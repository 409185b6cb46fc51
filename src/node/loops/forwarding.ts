// forwarding.ts - checks that the kernel forwards packets, because otherwise no container reaches another node.

import { pause } from '../../host/bell.ts'
import { FORWARDING } from '../../host/sysctl.ts'
import { familiesOf, type Family } from '../../net/address.ts'
import { RESYNC_MS, type Node } from '../node.ts'

/** Records the families that the kernel does not forward. The log has warned of them at the start. */
export async function watchForwarding(node: Node): Promise<never> {
  const { config, readSysctl, signal } = node
  for (;;) {
    const families = node.ownership.dataPath?.families ?? familiesOf(config)
    const unforwarded: Family[] = []
    for (const family of families) if ((await readSysctl?.(FORWARDING[family])) === '0') unforwarded.push(family)
    node.unforwarded = unforwarded
    await pause(signal, RESYNC_MS)
  }
}
