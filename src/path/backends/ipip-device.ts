// ipip-device.ts - the kernel's ipip device, configured as by flanneld (pkg/backend/ipip).

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { applyChange } from '../../host/kernel-errors.ts'
import type { HostKernel } from '../../host/kernel.ts'
import type { FollowedLink } from '../../host/links.ts'
import { formatIpv4, type Ipv4 } from '../../net/ipv4.ts'
import { KINDS } from '../catalog.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import type { DeviceState } from '../device/device-state.ts'

const TYPE = 'ipip'
const [[, NAME]] = KINDS.ipip.devices

/** flanneld's error message if a device of another type has the name of the ipip device. */
export const OTHER_TYPE = `${NAME} isn't an ipip mode device, please remove device and try again`

/** The result after weftd found, repaired or created the device. */
interface Ensured {
  /** True if weftd created the device. */
  readonly isNew: boolean
  /** A description of each repair. */
  readonly repaired: readonly string[]
}

const addressOrAny = (address: Ipv4 | undefined): string => (address === undefined ? 'any' : formatIpv4(address))

export class IpipDevice {
  readonly #link: FollowedLink
  /** The outer source address of the device. */
  readonly #local: Ipv4
  /** The device's MTU, address and link state. */
  readonly #state: DeviceState
  readonly #kernel: HostKernel
  readonly #log: Log

  constructor(link: FollowedLink, local: Ipv4, state: DeviceState, kernel: HostKernel, log: Log) {
    this.#link = link
    this.#local = local
    this.#state = state
    this.#kernel = kernel
    this.#log = log
  }

  /** Finds or creates the device and configures it. Deletes a new device that cannot be configured. */
  async open(): Promise<void> {
    const { isNew } = await this.#ensure()
    try {
      await this.#state.configure()
    } catch (error) {
      if (isNew) await this.#kernel.change([{ kind: 'delete link', device: this.#link }])
      throw error
    }
  }

  /** Repairs the device, and returns a description of each repair. */
  async repair(): Promise<readonly string[]> {
    const { repaired } = await this.#ensure()
    const wrong = repaired.length > 0 ? repaired : await this.#state.wrong()
    if (wrong.length > 0) await this.#state.configure()
    return wrong
  }

  /**
   * Finds, repairs or creates the device. Throws WeftError NO_DEVICE_TYPE if the kernel lacks ipip, and DEVICE for any
   * other failure.
   */
  async #ensure(): Promise<Ensured> {
    const link = this.#link
    const found = await link.follow(this.#kernel, this.#log)
    if (!found) {
      const wrong = `${link.name} was gone`
      link.forget()
      await this.#make()
      return { isNew: true, repaired: [wrong] }
    }
    const { type, ipip } = found
    if (type !== TYPE || !ipip)
      throw new WeftError('DEVICE', OTHER_TYPE, {
        remedy: `it is of type ${type || 'none'}: remove it with \`ip link del ${link.name}\``,
      })
    if (ipip.local === this.#local && ipip.remote === undefined) {
      if (!ipip.alwaysDf) return { isNew: false, repaired: [] }
      // Earlier versions of weftd made such devices. Change the device instead of replacing it, so that weftd loses no
      // packets.
      await applyChange(this.#kernel, { kind: 'set link', device: link, ipip: { local: this.#local } })
      return { isNew: false, repaired: [`${link.name} set DF on every packet`] }
    }
    const wrong = `${link.name} went from ${addressOrAny(ipip.local)} to ${addressOrAny(ipip.remote)}`
    await applyChange(this.#kernel, { kind: 'delete link', device: link })
    link.forget()
    await this.#make()
    return { isNew: true, repaired: [wrong] }
  }

  async #make(): Promise<void> {
    const { name } = this.#link
    await sayingWhoHasIt(this.#kernel, { name }, () =>
      applyChange(this.#kernel, { kind: 'add link', link: { name, type: TYPE, ipip: { local: this.#local } } }),
    )
    await this.#link.find(this.#kernel)
  }
}
