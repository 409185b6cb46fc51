// twins.ts - keeps a claim on the node's public IP, so that another host that uses it is noticed.
//
// Every Vagrant machine has 10.0.2.15: two hosts with one public IP hold one lease, and flanneld says nothing. Each weftd
// writes its name beside the leases; whoever finds it overwritten, and again after having written it anew, is not alone. A
// host that comes back, or a store that was restored, has what was left there before, and nobody answers. A flanneld has
// no name there, but it writes the lease itself.

import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { isWeftError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import { addressText } from '../net/address.ts'
import type { Node } from './node.ts'

const CLAIM_MS = 60_000
/** In so many looks without another's claim it would have written one: it looks as often. */
const CALM_LOOKS = 2
/** By so many looks a renewal of our own whose answer was lost was tried again. */
const FOREIGN_LOOKS = 3

export async function watchForTwins(node: Node): Promise<never> {
  const { manager, log, signal } = node
  let address = ''
  const mine = JSON.stringify({ Hostname: hostname(), ID: randomUUID() })
  let claimed = false
  let answer: string | undefined
  let calm = 0
  const lookAtWrites = foreignWrites(node)
  // The second look somewhere in a minute: nodes that started together are not to look together for ever.
  let waitMs = (0.5 + Math.random()) * CLAIM_MS
  for (;;) {
    const current = addressText(node.attrs.publicIp)
    if (current !== address) {
      claimed = false
      node.twin = undefined
    }
    address = current
    lookAtWrites()
    try {
      const found = await manager.claim?.(address, mine, signal)
      if (!claimed || found === undefined || found === mine) {
        calm++
        if (calm >= CALM_LOOKS) node.twin = undefined
      } else {
        calm = 0
        if (found === answer) {
          node.twin = hostnameIn(found)
          log.error(
            `Another host uses this node's public IP ${address} too: ${node.twin}. ` +
              'Both hold one subnet, and packets reach only one of them; give each its own address with --public-ip or --iface',
          )
        }
        answer = found
      }
      claimed = true
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error // what the store is like is said by whoever follows it
    }
    await pause(signal, waitMs)
    waitMs = CLAIM_MS
  }
}

/** To be called once in a while: says it once of each write of our lease, as it is, that was not ours. */
function foreignWrites(node: Node): () => void {
  let seen: bigint | undefined
  let looks = 0
  return () => {
    const { key, revision: ours } = node.lease
    // Where others give the subnets, a revision says nothing of who wrote.
    const { revision } = node.manager.givesSubnets ? {} : (node.view.get(key) ?? {})
    const isForeign = revision !== undefined && revision > ours
    looks = isForeign && revision === seen ? looks + 1 : 1
    seen = isForeign ? revision : undefined
    if (!isForeign || looks !== FOREIGN_LOOKS) return
    node.log.warn(
      `Somebody else wrote this node's lease ${key}, with its public IP: a flanneld, on this host or on another that has ` +
        'the address too? Stop it, or give each host its own address with --public-ip or --iface',
    )
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
