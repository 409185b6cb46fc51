// kernel-way-join.ts - a pair of veth devices at which the kernel merges received TCP segments (GRO). An eBPF program
// that decapsulates a packet cannot merge it with the next packet, and without merging, TCP costs several times as much
// CPU time.
//
// weftd uses the pair only on links that deliver no superpackets. A link inside one machine (veth, virtio) delivers
// superpackets, which the sender's kernel did not split, so they need no merging.

import { applyChange, applyChanges } from '../../host/kernel-errors.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { JOIN_DEVICES } from '../device/kernel-way-remains.ts'
import type { Bpf } from './kernel-way-programs.ts'

/**
 * The MTU of both veth devices in bytes, which is the largest MTU of a veth device (drivers/net/veth.c, ETH_MAX_MTU).
 * The kernel drops longer packets (net/core/dev.c, is_skb_forwardable), and the peers' external interfaces may have a
 * larger MTU than this host's external interface.
 */
const JOIN_MTU = 65_535
/**
 * If at least this number of TCP packets of more than 1,000 bytes, and no superpacket, arrives between two checks,
 * weftd switches merging on.
 */
const MANY = 1_000
/** After a check found superpackets, this number of checks must find none before weftd switches merging on again. */
const QUIET_CHECKS = 5

/** Creates the pair of veth devices, or uses the pair of an earlier process. Returns the indices of both devices. */
export async function openJoin(kernel: HostKernel, bpf: Bpf): Promise<readonly [number, number]> {
  const [into, from] = JOIN_DEVICES
  if (!(await kernel.link(from)))
    await applyChange(kernel, {
      kind: 'add link',
      link: { name: into, type: 'veth', mtu: JOIN_MTU, peer: { name: from, mtu: JOIN_MTU } },
    })
  // A veth device merges packets only if the other device of the pair, which sends them, has TSO switched off
  // (drivers/net/veth.c, veth_skb_is_eligible_for_gro).
  await bpf.setOffload(into, 'tso', false)
  await bpf.setOffload(from, 'gro', true)
  await applyChanges(
    kernel,
    // Set the MTU here too, because earlier versions of weftd gave the pair a smaller MTU.
    JOIN_DEVICES.map((name) => ({ kind: 'set link', device: { name }, mtu: JOIN_MTU, up: true })),
  )
  const [first, second] = await Promise.all(JOIN_DEVICES.map((name) => kernel.link(name)))
  if (!first || !second) throw new Error(`the devices ${into} and ${from} are gone`)
  return [first.index, second.index]
}

/** Decides whether the kernel must merge received TCP segments. Pure. */
export class JoinChoice {
  isOn = false
  #long = 0n
  #lone = 0n
  #quiet = QUIET_CHECKS

  /**
   * Compares the eBPF programs' counters with those of the last call. `long` counts TCP superpackets; `lone` counts all
   * other TCP packets of more than 1,000 bytes. Returns true if `isOn` has changed.
   */
  take({ long, lone }: { readonly long: bigint; readonly lone: bigint }): boolean {
    const [newLong, newLone] = [long - this.#long, lone - this.#lone]
    this.#long = long
    this.#lone = lone
    this.#quiet = newLong > 0n ? 0 : Math.min(this.#quiet + 1, QUIET_CHECKS)
    const before = this.isOn
    if (newLong > 0n) this.isOn = false
    else if (newLone >= MANY && this.#quiet === QUIET_CHECKS) this.isOn = true
    return this.isOn !== before
  }
}
