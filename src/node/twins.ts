// twins.ts - keeps a claim on the node's public IP, so that another host that uses it is noticed.
//
// Every Vagrant machine has 10.0.2.15: two hosts with one public IP hold one lease, and flanneld says nothing. Each weftd
// writes its name beside the leases; whoever finds it overwritten is not alone. A host that comes back overwrites what it
// left itself, and nobody answers.

import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { isWeftError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import { formatIpv4 } from '../net/ipv4.ts'
import type { Node } from './node.ts'

const CLAIM_MS = 60_000

export async function watchForTwins(node: Node): Promise<never> {
  const { manager, log, signal } = node
  let address = ''
  const mine = JSON.stringify({ Hostname: hostname(), ID: randomUUID() })
  let claimed = false
  for (;;) {
    const current = formatIpv4(node.attrs.publicIp)
    if (current !== address) claimed = false
    address = current
    try {
      const found = await manager.claim?.(address, mine, signal)
      if (claimed && found !== undefined && found !== mine) {
        log.error(
          `Another host uses this node's public IP ${address} too: ${hostnameIn(found)}. ` +
            'Both hold one subnet, and packets reach only one of them; give each its own address with --public-ip or --iface',
        )
      }
      claimed = true
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error // what the store is like is said by whoever follows it
    }
    await pause(signal, CLAIM_MS)
  }
}

/** The name in another host's claim, or the whole claim when it has none. */
function hostnameIn(claim: string): string {
  try {
    const { Hostname: name } = JSON.parse(claim) as { Hostname?: unknown }
    return typeof name === 'string' ? name : claim
  } catch {
    return claim
  }
}
