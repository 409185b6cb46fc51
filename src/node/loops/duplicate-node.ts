// duplicate-node.ts - the loop that detects another host that uses this node's public IP.
//
// Two hosts with the same public IP, such as two Vagrant machines with 10.0.2.15, use the same lease, and flanneld does
// not notice that. Each weftd writes its host name into the store next to the leases (a claim). If a claim of another
// host replaces this host's claim twice, another host uses the address. One replacement proves nothing, because a
// restored store or an earlier run can leave an old claim. flanneld writes no claim, but a value of the lease that this
// weftd did not write is a sign of another host too. After the first sign of another host, weftd checks again after
// some seconds.

import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { claimText, hostNameIn, shortened } from '../../control/lease/host-name.ts'
import { pause } from '../../host/bell.ts'
import { addressText } from '../../net/address.ts'
import { throwUnlessWaiting } from '../exit-or-wait.ts'
import type { Node } from '../node.ts'

const CLAIM_MS = 60_000
/** The interval, in ms, of the additional checks after a first sign that another host has this node's public IP. */
const DOUBT_MS = 2_000
const DOUBT_LOOKS = 3
/**
 * If CALM_LOOKS checks in a row find no name (claim) of another host in the store, weftd assumes that no other host
 * uses this node's public IP. Another host would have written its name by then.
 */
const CALM_LOOKS = 2
/**
 * The number of checks that must find the same unknown value of this node's lease before weftd concludes that another
 * process wrote it. If this node renewed the lease and the answer was lost, the value is unknown too. But then fewer
 * checks find it, because this node repeats the renewal.
 */
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
  // Make the second check at a random time, so that nodes which started simultaneously do not query the store
  // simultaneously.
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
      // Check more often only until the other host is reported, because a report stays in the status for some minutes.
      const isOthers = found !== undefined && found !== mine
      if (isOthers) doubts = node.duplicate === undefined ? DOUBT_LOOKS : 0
      claimed = true
      node.claimed = { address, value: mine }
    } catch (error) {
      throwUnlessWaiting(error, signal) // the loop that follows the store reports its failures
    }
    const due = performance.now() + (doubts > 0 ? DOUBT_MS : waitMs)
    for (let leftMs = due - performance.now(); leftMs > 0; leftMs = due - performance.now()) {
      await pause(signal, Math.min(leftMs, DOUBT_MS))
      if (isWrittenAnew() && node.duplicate === undefined) {
        doubts = DOUBT_LOOKS
        break
      }
    }
    // A successor writes the lease and its own name into the store, so this process must not check until the successor
    // has gone.
    while (node.ownership.hasSuccessor) await pause(signal, DOUBT_MS)
    if (doubts === 0) waitMs = CLAIM_MS
  }
}

/**
 * Returns the revision of this node's lease if another process wrote the lease; else undefined. Returns undefined if a
 * controller assigns the subnets, because then the revision does not show which process wrote the lease.
 */
function foreignRevision({ lease: { key, revision: ours }, manager, view }: Node): bigint | undefined {
  const { revision } = manager.givesSubnets ? {} : (view.get(key) ?? {})
  return revision !== undefined && revision > ours ? revision : undefined
}

/** Returns a function that returns true once for each write of this node's lease by another process. */
function foreignWrite(node: Node): () => boolean {
  let reported: bigint | undefined
  return () => {
    const revision = foreignRevision(node)
    const isNew = revision !== undefined && revision !== reported
    reported = revision ?? reported
    return isNew
  }
}

/**
 * Returns a function that logs a write of this node's lease by another process, as soon as the written value has lasted
 * for FOREIGN_LOOKS checks.
 */
function foreignWrites(node: Node): () => void {
  let seen: bigint | undefined
  let looks = 0
  return () => {
    const revision = foreignRevision(node)
    looks = revision !== undefined && revision === seen ? looks + 1 : 1
    seen = revision
    if (revision === undefined || looks !== FOREIGN_LOOKS) return
    node.log.warn(
      `Another process wrote this node's lease ${node.lease.key}, with its public IP: a flanneld, on this host or on another that has ` +
        'the address too? Stop it, or give each host its own address with --public-ip or --iface',
    )
  }
}
