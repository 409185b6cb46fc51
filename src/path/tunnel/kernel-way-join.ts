// kernel-way-join.ts - a pair of veth devices at which the kernel joins received TCP segments (GRO). A program that takes a packet out of a
// datagram cannot join it with the next packet, and without joining TCP costs several times as much.
//
// The pair is used only on links that deliver no superpackets. A link inside one machine (veth, virtio) delivers superpackets, which
// the sender's kernel did not split, and these need no joining.

import { applyChange, applyChanges } from '../../host/kernel-errors.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { JOIN_DEVICES } from '../device/kernel-way-remains.ts'
import type { Bpf } from './kernel-way-programs.ts'

/** The MTU of the devices in bytes. */
const JOIN_MTU = 9_000
/** The number of long TCP packets between two checks from which joining is worth while. */
const MANY = 1_000
/** The number of checks without superpackets after which segments may be joined again. */
const QUIET_CHECKS = 5

/** Creates the pair of devices, or continues with that of an earlier process. Returns the indices of both. */
export async function openJoin(kernel: HostKernel, bpf: Bpf): Promise<readonly [number, number]> {
  const [into, from] = JOIN_DEVICES
  if (!(await kernel.link(from)))
    await applyChange(kernel, {
      kind: 'add link',
      link: { name: into, type: 'veth', mtu: JOIN_MTU, peer: { name: from, mtu: JOIN_MTU } },
    })
  // A veth joins packets only if its sender makes no superpackets itself (drivers/net/veth.c, veth_skb_is_eligible_for_gro).
  bpf.setOffload(into, 'tso', false)
  bpf.setOffload(from, 'gro', true)
  await applyChanges(
    kernel,
    JOIN_DEVICES.map((name) => ({ kind: 'set link', device: { name }, up: true })),
  )
  const [first, second] = await Promise.all(JOIN_DEVICES.map((name) => kernel.link(name)))
  if (!first || !second) throw new Error(`the devices ${into} and ${from} are gone`)
  return [first.index, second.index]
}

/** Decides whether received TCP segments must be joined. Pure. */
export class JoinChoice {
  isOn = false
  #long = 0n
  #lone = 0n
  #quiet = QUIET_CHECKS

  /** Takes the numbers of superpackets and of long lone packets that the programs have counted. Returns true if the choice has changed. */
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
