// kernel-way-programs.ts - loads the eBPF programs that carry the packets to some peers in place of the engine, fills
// their maps, and attaches them to the TUN device and to the external interface. kernel-way-peers.ts chooses the peers.

import { closeSync, readFileSync } from 'node:fs'
import type { addon } from '../../host/addon.ts'
import { FAMILIES, type Family } from '../../net/address.ts'
import { isOwn, NAME } from '../device/kernel-way-remains.ts'
import { addTraffic, SLOT_NUMBERS } from '../engine/traffic.ts'
import {
  COUNTERS,
  encodeConfig,
  IS_LITTLE,
  MAPS,
  sumOfCpus,
  TRAFFIC_BYTES,
  trafficKey,
  type CounterName,
  type MapName,
  type ProgramConfig,
} from './kernel-way-maps.ts'
import { instructionsOf, programsIn } from './kernel-way-object.ts'

/** The functions of the native addon that load and attach eBPF programs. */
export type Bpf = Pick<
  typeof addon,
  | 'kernelWayObject'
  | 'createMap'
  | 'updateMap'
  | 'deleteFromMap'
  | 'lookUpInMap'
  | 'loadProgram'
  | 'attachProgram'
  | 'detachProgram'
  | 'listFilters'
  | 'tcxPrograms'
  | 'activeFeatures'
  | 'setOffload'
>

type Hook = Parameters<Bpf['listFilters']>[0]

type ProgramName = 'egress' | 'ingress' | 'joined'
const PROGRAMS: readonly ProgramName[] = ['egress', 'ingress', 'joined']

/**
 * Returns the number of CPUs that the kernel supports, including CPUs that are not online, because a map with a value
 * for each CPU has values for all of them.
 */
function possibleCpus(): number {
  const last = /(\d+)\s*$/.exec(readFileSync('/sys/devices/system/cpu/possible', 'latin1'))
  return Number(last?.[1] ?? 0) + 1
}

const keyOf = (number: number): Uint8Array => {
  const key = new Uint8Array(4)
  new DataView(key.buffer).setUint32(0, number, IS_LITTLE)
  return key
}

export class KernelPrograms {
  readonly #bpf: Bpf
  readonly #maps: Readonly<Record<MapName, number>>
  readonly #programs: Readonly<Record<ProgramName, number>>
  readonly #cpus: number

  /**
   * Loads the eBPF programs of the object file `object`. Throws the addon's Error if the kernel refuses a program or a
   * map.
   */
  constructor(bpf: Bpf, object: Buffer, cpus: number = possibleCpus()) {
    this.#bpf = bpf
    this.#cpus = cpus
    const open: number[] = []
    const keep = (fd: number): number => {
      open.push(fd)
      return fd
    }
    try {
      const maps = Object.entries(MAPS).map(([name, map]) => [name, keep(bpf.createMap({ ...map, name }))] as const)
      this.#maps = Object.fromEntries(maps) as Record<MapName, number>
      const found = programsIn(object, IS_LITTLE)
      const programs = PROGRAMS.map((name) => {
        const program = found.get(`tc/${name}`)
        if (!program) throw new Error(`the object file of the eBPF programs lacks ${name}`)
        return [name, keep(bpf.loadProgram(instructionsOf(program, this.#maps, IS_LITTLE), `weft_${name}`))] as const
      })
      this.#programs = Object.fromEntries(programs) as Record<ProgramName, number>
    } catch (error) {
      for (const fd of open) closeSync(fd)
      throw error
    }
  }

  setConfig(config: ProgramConfig): void {
    this.#bpf.updateMap(this.#maps.config, keyOf(0), encodeConfig(config))
  }

  setPeer(map: 'peers4' | 'peers6', key: Uint8Array, value: Uint8Array): void {
    this.#bpf.updateMap(this.#maps[map], key, value)
  }

  removePeer(map: 'peers4' | 'peers6', key: Uint8Array): void {
    this.#bpf.deleteFromMap(this.#maps[map], key)
  }

  /**
   * Attaches the eBPF programs in place of those of an earlier process. Each packet passes through exactly one program:
   * the earlier one or the new one.
   */
  async attach({ uplink, tunnel }: Pick<ProgramConfig, 'uplink' | 'tunnel'>): Promise<void> {
    // Attach the receiving program first, because a peer's replies may arrive as soon as this host sends packets.
    await this.#bpf.attachProgram({ index: uplink, isEgress: false }, this.#programs.ingress, `${NAME}ingress`)
    await this.#bpf.attachProgram({ index: tunnel, isEgress: true }, this.#programs.egress, `${NAME}egress`)
  }

  /** Attaches the eBPF program that receives the merged packets at the interface with this index. */
  attachJoined(index: number): Promise<void> {
    return this.#bpf.attachProgram({ index, isEgress: false }, this.#programs.joined, `${NAME}joined`)
  }

  async detach({ uplink, tunnel }: Pick<ProgramConfig, 'uplink' | 'tunnel'>): Promise<void> {
    await this.#bpf.detachProgram({ index: tunnel, isEgress: true })
    await this.#bpf.detachProgram({ index: uplink, isEgress: false })
  }

  /** Returns the counters of the eBPF programs, summed over all CPUs. */
  counters(): Readonly<Record<CounterName, bigint>> {
    const values = new Uint8Array(8 * this.#cpus)
    return Object.fromEntries(
      COUNTERS.map((name, index) => {
        const isRead = this.#bpf.lookUpInMap(this.#maps.counters, keyOf(index), values)
        return [name, isRead ? (sumOfCpus(values, 8)[0] ?? 0n) : 0n]
      }),
    ) as Record<CounterName, bigint>
  }

  /**
   * Returns the traffic that the eBPF programs counted in one slot, as the five numbers of `Engine.traffic`. `nowNs` is
   * the time of CLOCK_MONOTONIC in ns. `family` is the family of the inner packets; if left out, both families count.
   */
  traffic(slot: number, nowNs: bigint, family?: Family): Float64Array {
    if (family) return this.#trafficAt(trafficKey(slot, family), nowNs)
    const [ipv4, ipv6] = FAMILIES.map((each) => this.#trafficAt(trafficKey(slot, each), nowNs))
    return addTraffic(ipv4 as Float64Array, ipv6 as Float64Array)
  }

  #trafficAt(key: number, nowNs: bigint): Float64Array {
    const values = new Uint8Array(TRAFFIC_BYTES * this.#cpus)
    const numbers = new Float64Array(SLOT_NUMBERS)
    numbers[SLOT_NUMBERS - 1] = -1
    if (!this.#bpf.lookUpInMap(this.#maps.traffic, keyOf(key), values)) return numbers
    const sums = sumOfCpus(values, TRAFFIC_BYTES)
    for (let at = 0; at < SLOT_NUMBERS - 1; at++) numbers[at] = Number(sums[at] ?? 0n)
    const view = new DataView(values.buffer)
    for (let at = TRAFFIC_BYTES - 8; at < values.byteLength; at += TRAFFIC_BYTES) {
      const ns = view.getBigUint64(at, IS_LITTLE)
      const ago = Math.max(Number(nowNs - ns) / 1e6, 0)
      const last = numbers[SLOT_NUMBERS - 1] ?? -1
      if (ns > 0n && (last < 0 || ago < last)) numbers[SLOT_NUMBERS - 1] = ago
    }
    return numbers
  }

  /**
   * Closes the descriptors. Attached eBPF programs stay attached, with their maps, until they are detached or replaced.
   */
  close(): void {
    for (const fd of [...Object.values(this.#programs), ...Object.values(this.#maps)]) closeSync(fd)
  }
}

/**
 * Returns a description of a program that runs before weft's eBPF programs and could hide packets from them; undefined
 * if there is none.
 */
export async function programInFront(bpf: Bpf, hooks: readonly Hook[]): Promise<string | undefined> {
  for (const hook of hooks) {
    if ((await bpf.tcxPrograms(hook)) > 0) return 'a tcx program'
    const filters = await bpf.listFilters(hook)
    const own = filters.findIndex(isOwn)
    const before = filters.slice(0, own === -1 ? filters.length : own)
    // `filters` is in the order in which the kernel runs the filters. A foreign filter with the priority of weft's
    // filters counts too, because weft's filter would replace it.
    const [first] = own === -1 ? before.filter(({ priority }) => priority <= OWN_PRIORITY) : before
    if (first) return `the tc filter ${first.name || first.kind} with priority ${first.priority}`
  }
  return undefined
}
/** The priority of weft's tc filters, as in native/io/traffic_control.cc. */
const OWN_PRIORITY = 4096

/** Returns true if weft's eBPF programs are attached to all of these hooks. */
export async function areAttached(bpf: Bpf, hooks: readonly Hook[]): Promise<boolean> {
  for (const hook of hooks) if (!(await bpf.listFilters(hook)).some(isOwn)) return false
  return true
}
