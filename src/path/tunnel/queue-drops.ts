// queue-drops.ts - counts the packets that the kernel drops at the TUN device, before the engine reads them.
//
// The kernel's counter tx_dropped of a TUN mostly counts packets for which a queue had no room (drivers/net/tun.c,
// tun_net_xmit). It also counts packets that a lack of memory or a loop of devices made the kernel drop (net/core/dev.c,
// __dev_queue_xmit).

import type { HostKernel } from '../../host/kernel.ts'

export class QueueDrops {
  readonly #kernel: Pick<HostKernel, 'sendDrops'>
  /** The kernel's counter when this object read it last; undefined before the first successful read. */
  #known: number | undefined
  #counted = 0
  /** True while a read runs. The kernel may answer it only after seconds. */
  #isReading = false
  /** True while another process has the device. */
  #isLent = false

  /**
   * `known` is the kernel's counter up to which the previous process counted. If it is undefined, packets that were
   * dropped before the first call of `read` do not count.
   */
  constructor(kernel: Pick<HostKernel, 'sendDrops'>, known?: number) {
    this.#kernel = kernel
    this.#known = known
  }

  /** The number of packets that the kernel dropped until the last read. */
  get counted(): number {
    return this.#counted
  }

  /** Reads the kernel's counter of the device. If the read fails, the next call reads it. */
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

  /** Stops counting, and returns the kernel's counter up to which the packets are counted. */
  lend(): number | undefined {
    this.#isLent = true
    return this.#known
  }

  takeBack(): void {
    this.#isLent = false
  }
}
