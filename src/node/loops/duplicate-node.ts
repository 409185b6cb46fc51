// duplicate-node.ts - keeps a claim on the node's public IP, so that another host that uses it is noticed.
//
// Every Vagrant machine has 10.0.2.15: two hosts with one public IP hold one lease, and flanneld says nothing. Each weftd
// writes its name beside the leases; whoever finds it overwritten, and again after having written it anew, is not alone. A
// host that comes back, or a store that was restored, has what was left there before, and nobody answers. A flanneld has
// no name there, but it writes the lease itself. Where another name, or another's write, was seen once, both look again after seconds.

import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { isWeftError } from '../../base/errors.ts'
import { claimText, hostNameIn, shortened } from '../../control/lease/host-name.ts'
import { pause } from '../../host/bell.ts'
import { addressText } from '../../net/address.ts'
import type { Node } from '../node.ts'

const CLAIM_MS = 60_000
/** In doubt it looks again so soon, so many times. */
const DOUBT_MS = 2_000
const DOUBT_LOOKS = 3
/** After so many looks without another's claim there is no twin: it would have written one, since it looks as often. */
const CALM_LOOKS = 2
/** Within so many looks a renewal of our own whose answer was lost was tried again. */
const FOREIGN_LOOKS = 3

export async function watchForDuplicateNode(node: Node): Promise<never> {
  const { manager, log, signal } = node
  let address = ''
  const mine = claimText(hostname(), randomUUID())
  let claimed = false
  let answer: string | undefined
  let calm = 0
  const lookAtWrites = foreignWrites(node)
  const isWrittenAnew = foreignWrite(node)
  let doubts = 0
  // The second look somewhere in a minute: nodes that started together are not to look together for ever.
  let waitMs = (0.5 + Math.random()) * CLAIM_MS
  for (;;) {
    const current = addressText(node.attrs.publicIp)
    if (current !== address) {
      claimed = false
      node.duplicate = undefined
    }
    address = current
    if (doubts === 0) lookAtWrites()
    doubts = Math.max(0, doubts - 1)
    try {
      const found = await manager.claim?.(address, mine, signal)
      if (!claimed || found === undefined || found === mine) {
        calm++
        if (calm >= CALM_LOOKS) node.duplicate = undefined
      } else {
        calm = 0
        if (found === answer) {
          node.duplicate = hostNameIn(found) ?? shortened(found)
          log.error(
            `Another host uses this node's public IP ${address} too: ${node.duplicate}. ` +
              'Both hold one subnet, and packets reach only one of them; give each its own address with --public-ip or --iface',
          )
        }
        answer = found
      }
      // What was named stays so for minutes.
      const isOthers = found !== undefined && found !== mine
      if (isOthers) doubts = node.duplicate === undefined ? DOUBT_LOOKS : 0
      claimed = true
      node.claimed = { address, value: mine }
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error // the loop that follows the store reports its failures
    }
    const due = performance.now() + (doubts > 0 ? DOUBT_MS : waitMs)
    for (let leftMs = due - performance.now(); leftMs > 0; leftMs = due - performance.now()) {
      await pause(signal, Math.min(leftMs, DOUBT_MS))
      if (isWrittenAnew() && node.duplicate === undefined) {
        doubts = DOUBT_LOOKS
        break
      }
    }
    // A successor writes the lease and its own name: this process ends soon, or goes on when that one has gone.
    while (node.ownership.hasSuccessor) await pause(signal, DOUBT_MS)
    if (doubts === 0) waitMs = CLAIM_MS
  }
}

/** The revision of our lease where others wrote it; when others give the subnets, a revision does not tell who did. */
function foreignRevision({ lease: { key, revision: ours }, manager, view }: Node): bigint | undefined {
  const { revision } = manager.givesSubnets ? {} : (view.get(key) ?? {})
  return revision !== undefined && revision > ours ? revision : undefined
}

/** Returns what says, once, that others wrote our lease. */
function foreignWrite(node: Node): () => boolean {
  let told: bigint | undefined
  return () => {
    const revision = foreignRevision(node)
    const isNew = revision !== undefined && revision !== told
    told = revision ?? told
    return isNew
  }
}

/** To be called once in a while: reports each write of our lease, as it is, that was not ours. */
function foreignWrites(node: Node): () => void {
  let seen: bigint | undefined
  let looks = 0
  return () => {
    const revision = foreignRevision(node)
    looks = revision !== undefined && revision === seen ? looks + 1 : 1
    seen = revision
    if (revision === undefined || looks !== FOREIGN_LOOKS) return
    node.log.warn(
      `Somebody else wrote this node's lease ${node.lease.key}, with its public IP: a flanneld, on this host or on another that has ` +
        'the address too? Stop it, or give each host its own address with --public-ip or --iface',
    )
  }
}
