// queue-drops.ts - counts the packets that the kernel drops at the TUN device, before the engine reads them.
//
// The kernel's counter tx_dropped of a TUN mostly counts packets for which a queue had no room (drivers/net/tun.c,
// tun_net_xmit). It also counts packets that the kernel drops for lack of memory, or because a packet passes through
// too many devices (net/core/dev.c, __dev_queue_xmit).

import type { HostKernel } from '../../host/kernel.ts'

export class QueueDrops {
  readonly #kernel: Pick<HostKernel, 'sendDrops'>
  /** The value of the kernel's counter at the last read by this or the previous process; undefined before any read. */
  #known: number | undefined
  #counted = 0
  /** True while this object waits for the kernel's answer, which may take seconds. */
  #isReading = false
  /** True while another process has the device. */
  #isLent = false

  /**
   * `known` is the value of the kernel's counter that the previous process read last. If `known` is undefined, packets
   * that were dropped before the first successful read do not count.
   */
  constructor(kernel: Pick<HostKernel, 'sendDrops'>, known?: number) {
    this.#kernel = kernel
    this.#known = known
  }

  /** The number of dropped packets that this process has counted. */
  get counted(): number {
    return this.#counted
  }

  /** Reads the kernel's counter of the device. If the read fails, the next call of `read` counts these packets. */
  async read(device: string): Promise<void> {
    if (this.#isReading || this.#isLent) return
    this.#isReading = true
    const now = await this.#kernel.sendDrops(device).catch(() => undefined)
    this.#isReading = false
    // If the device was lent meanwhile, the next process counts these packets.
    if (now === undefined || this.#isLent) return
    this.#counted += Math.max(0, now - (this.#known ?? now))
    this.#known = now
  }

  /** Stops counting, and returns the value of the kernel's counter for the next process (OpenPath.queueDrops). */
  lend(): number | undefined {
    this.#isLent = true
    return this.#known
  }

  takeBack(): void {
    this.#isLent = false
  }
}
