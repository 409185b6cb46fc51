// vxlan-device.ts - the kernel's vxlan device, configured as by flannel (pkg/backend/vxlan/device.go).

import { isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { applyChange } from '../../host/kernel-errors.ts'
import type { HostKernel, Link } from '../../host/kernel.ts'
import { FollowedLink } from '../../host/links.ts'
import type { Address, Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import { deviceState, type DeviceState } from '../device/device-state.ts'
import { findEarlier } from '../device/flannel-devices.ts'
import { refuseRouterAdvertisements } from './router-advertisements.ts'
import { VxlanEntryTable, type VxlanPeer } from './vxlan-entries.ts'
import { differenceOf, type VxlanOptions } from './vxlan-link.ts'

/**
 * Finds or creates the device and sets its MAC. Throws WeftError NO_DEVICE_TYPE if the kernel does not support vxlan,
 * and DEVICE for any other failure.
 */
export async function openVxlanDevice(
  options: VxlanOptions,
  mac: string,
  kernel: HostKernel,
  log: Log,
): Promise<VxlanDevice> {
  const device = new VxlanDevice(options, mac, kernel, log)
  await device.open()
  return device
}

export class VxlanDevice {
  readonly link: FollowedLink
  readonly entries: VxlanEntryTable
  readonly #options: VxlanOptions
  readonly #mac: string
  readonly #kernel: HostKernel
  readonly #log: Log
  /** The external interface, to which the kernel binds the device. */
  readonly #underlay: FollowedLink
  /** The device's MTU, address and link state; undefined before `configure`. */
  #state: DeviceState | undefined
  /** True if `open` created the device. */
  #isMade = false

  constructor(options: VxlanOptions, mac: string, kernel: HostKernel, log: Log) {
    this.link = new FollowedLink(options.name)
    this.entries = new VxlanEntryTable(this.link, options.local, kernel)
    this.#options = options
    this.#mac = mac
    this.#kernel = kernel
    this.#log = log
    this.#underlay = new FollowedLink(options.underlay, options.underlayIndex)
  }

  async open(): Promise<void> {
    await findEarlier(this.link, this.#kernel, 'vxlan', [this.#options.own], this.#log)
    const { index, name } = this.link
    let found = index === undefined ? undefined : await this.#kernel.link(index)
    const other = found && (await this.#differenceNow(found))
    if (other !== undefined) {
      this.#log.warn(`"${name}" already exists with incompatible configuration: ${other}; recreating device`)
      await this.#removeForAnother()
      found = undefined
    }
    this.#isMade = !found
    if (!found) return this.#create()
    // A flanneld or weftd that made the device in a pod may have had no right to set accept_ra.
    await refuseRouterAdvertisements(this.link.name, this.#log)
    if (found.mac !== this.#mac) await this.#setMac()
  }

  /** Sets the device's address and MTU and brings the device up. A repeated call changes nothing. */
  async configure(own: Address, network: Net): Promise<void> {
    this.#state = this.#withReasons(deviceState(this.#kernel, this.link, this.#options.mtu, own, network))
    try {
      await this.#state.configure()
    } catch (error) {
      // Delete a new device that cannot be brought up, because the device would mislead an operator who searches for
      // the cause.
      if (this.#isMade) await this.#kernel.change([{ kind: 'delete link', device: this.link }])
      throw error
    }
  }

  /** Repairs the device, and the neighbour and forwarding entries for `peers`. Returns a description of each repair. */
  async resync(peers: readonly VxlanPeer[]): Promise<readonly string[]> {
    const wrong: string[] = []
    const now = await this.link.follow(this.#kernel, this.#log)
    const { name } = this.link
    if (!now) this.link.forget()
    const change = now && (await this.#differenceNow(now))
    if (!now || change !== undefined) {
      if (now) await this.#removeForAnother()
      else await this.#underlay.find(this.#kernel) // another interface may have taken its place since the last check
      await this.#create()
      wrong.push(now ? `${name} was another device (${change})` : `${name} was gone`)
    }
    if (wrong.length === 0 && now?.mac !== this.#mac) {
      await this.#setMac()
      wrong.push(`${name} had the MAC ${now?.mac}`)
    }
    if (wrong.length === 0 && this.#state) wrong.push(...(await this.#state.wrong()))
    if (wrong.length > 0) await this.#state?.configure()
    const missing = await this.entries.putMissing(peers, await this.entries.read())
    if (wrong.length === 0 && missing > 0)
      wrong.push(
        missing === 1 ? `an entry of ${name} for a peer was gone` : `${missing} entries of ${name} for peers were gone`,
      )
    return wrong
  }

  async #create(): Promise<void> {
    const { vni, port, learning, gbp, local } = this.#options
    const { name } = this.link
    const vxlan = { vni, local, underlay: this.#underlay, port, learning, gbp }
    try {
      await applyChange(this.#kernel, { kind: 'add link', link: { name, type: 'vxlan', mac: this.#mac, vxlan } })
    } catch (error) {
      if (!isWeftError(error, 'KERNEL')) throw error
      await this.#needUnderlay()
      throw new WeftError('DEVICE', `failed to create the vxlan device ${name}: ${messageOf(error)}`, {
        remedy:
          'check whether another device has the same VNI (`ip -d link show type vxlan`); or set "DataPath": "userspace"',
        cause: error,
      })
    }
    await this.link.find(this.#kernel)
    await refuseRouterAdvertisements(name, this.#log)
  }

  /** Describes how the device differs from the wanted options; undefined if it does not differ. */
  async #differenceNow(device: Link): Promise<string | undefined> {
    const other = differenceOf(device, this.#options)
    const underlay = device.vxlan?.underlay ?? 0
    if (other !== undefined || underlay === this.#underlay.index) return other
    await this.#underlay.find(this.#kernel)
    if (underlay === this.#underlay.index) return undefined
    const name = underlay === 0 ? 'none' : (await this.#kernel.link(underlay))?.name
    return `interface: ${name ?? `index ${underlay}`} vs ${this.#underlay.name}`
  }

  /**
   * Deletes the device, so that weftd can create it again. If the external interface is missing, throws and keeps the
   * device, because a new device could not be created.
   */
  async #removeForAnother(): Promise<void> {
    await this.#needUnderlay()
    await applyChange(this.#kernel, { kind: 'delete link', device: this.link })
    this.link.forget()
  }

  /** Throws if the external interface is missing. */
  async #needUnderlay(): Promise<void> {
    if (await this.#underlay.find(this.#kernel)) return
    const { name } = this.#underlay
    throw new WeftError('DEVICE', `cannot repair ${this.link.name}: the interface ${name} is gone`, {
      remedy: `restore ${name}, or restart weftd so that it chooses another interface`,
    })
  }

  async #setMac(): Promise<void> {
    await applyChange(this.#kernel, { kind: 'set link', device: this.link, mac: this.#mac })
  }

  /**
   * Wraps the device state `of`: if `configure` fails, the error names the program that uses the device's name or port.
   */
  #withReasons(of: DeviceState): DeviceState {
    const port = { number: this.#options.port, option: KINDS.vxlan.options.port.name }
    return {
      ...of,
      configure: () => sayingWhoHasIt(this.#kernel, { name: this.link.name, port }, () => of.configure()),
    }
  }
}
