// ipip-device.ts - the kernel's ipip device, configured as by flanneld (pkg/backend/ipip).

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { addDevice, ipJson, type FollowedLink } from '../../host/links.ts'
import { KINDS } from '../catalog.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import type { DeviceState } from '../device/device-state.ts'

const TYPE = 'ipip'
const [[, NAME]] = KINDS.ipip.devices

/** flanneld's error message if a device of another type has the name of the ipip device. */
export const OTHER_TYPE = `${NAME} isn't an ipip mode device, please remove device and try again`

interface JsonIpip {
  readonly linkinfo?: {
    readonly info_kind?: string
    readonly info_data?: { readonly local?: string; readonly remote?: string }
  }
}

export class IpipDevice {
  readonly #link: FollowedLink
  /** The outer source address of the device, as text. */
  readonly #local: string
  /** The device's MTU, address and link state. */
  readonly #state: DeviceState
  readonly #run: Run
  readonly #kernel: HostKernel
  readonly #log: Log

  constructor(link: FollowedLink, local: string, state: DeviceState, run: Run, kernel: HostKernel, log: Log) {
    this.#link = link
    this.#local = local
    this.#state = state
    this.#run = run
    this.#kernel = kernel
    this.#log = log
  }

  /** Finds or creates the device and configures it. Deletes a new device that cannot be configured. */
  async open(): Promise<void> {
    const made = await this.#ensure()
    try {
      await this.#state.configure()
    } catch (error) {
      if (made.length > 0) await this.#run('ip', ['link', 'del', this.#link.name]).catch(() => {})
      throw error
    }
  }

  /** Repairs the device, and returns a description of each repair. */
  async repair(): Promise<readonly string[]> {
    const remade = await this.#ensure()
    const wrong = remade.length > 0 ? remade : await this.#state.wrong()
    if (wrong.length > 0) await this.#state.configure()
    return wrong
  }

  /**
   * Finds or creates the device and returns a description of each repair. Throws WeftError NO_DEVICE_TYPE if the kernel
   * lacks ipip, and DEVICE for any other failure.
   */
  async #ensure(): Promise<readonly string[]> {
    const link = this.#link
    if (!(await link.follow(this.#run, this.#log))) {
      const wrong = `${link.name} was gone`
      link.forget()
      await this.#make()
      return [wrong]
    }
    const [json] = await ipJson<JsonIpip>(this.#run, ['-d', 'link', 'show', 'dev', link.name])
    const { info_kind: kind = 'none', info_data: data = {} } = json?.linkinfo ?? {}
    if (kind !== TYPE)
      throw new WeftError('DEVICE', OTHER_TYPE, {
        remedy: `it is of type ${kind}: remove it with \`ip link del ${link.name}\``,
      })
    const { local: isLocal = 'any', remote: isRemote = 'any' } = data
    if (isLocal === this.#local && isRemote === 'any') return []
    const wrong = `${link.name} went from ${isLocal} to ${isRemote}`
    await this.#run('ip', ['link', 'del', link.name])
    link.forget()
    await this.#make()
    return [wrong]
  }

  async #make(): Promise<void> {
    const { name } = this.#link
    await sayingWhoHasIt(this.#kernel, { name }, () => addDevice(this.#run, name, TYPE, [], ['local', this.#local]))
    await this.#link.find(this.#run)
  }
}
