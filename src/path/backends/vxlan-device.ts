// vxlan-device.ts - the kernel's vxlan device, configured as by flannel (pkg/backend/vxlan/device.go).

import { randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Run } from '../../host/command.ts'
import { addDevice, findLink, FollowedLink, ipJson } from '../../host/links.ts'
import { formatAddress, netsOf, type Address, type Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import { deviceState, type DeviceState } from '../device/device-state.ts'
import { findEarlier, findRenamed } from '../device/flannel-devices.ts'
import { VxlanEntryTable, type VxlanPeer } from './vxlan-entries.ts'

interface VxlanOptions {
  readonly name: string
  /** The device's address, which is the first address of this node's subnet. */
  readonly own: Address
  readonly vni: number
  readonly port: number
  readonly learning: boolean
  readonly gbp: boolean
  /**
   * The outer source address of datagrams; all peers are reached over its family. `underlay` names the external interface, which has this
   * address.
   */
  readonly local: Address
  readonly underlay: string
  /**
   * The kernel's index of the external interface to which the device is bound, by which a renamed interface is recognised; left out if it
   * is not known.
   */
  readonly underlayIndex?: number | undefined
  readonly mtu: number
}

interface JsonVxlan {
  address?: string
  linkinfo?: {
    info_kind?: string
    info_data?: {
      id?: number
      local?: string
      local6?: string
      link?: string
      port?: number
      learning?: boolean
      gbp?: boolean
    }
  }
}

/** Returns a random MAC with the bits of a locally administered unicast address (IEEE 802, the two low bits of the first byte). */
export function randomMac(): string {
  const bytes = [...randomBytes(6)].map((byte, index) => (index === 0 ? (byte & 0xfc) | 0x02 : byte))
  return bytes.map((byte) => byte.toString(16).padStart(2, '0')).join(':')
}

/** Describes how the existing device differs from the wanted options; undefined if it equals them. */
function difference({ linkinfo }: JsonVxlan, options: VxlanOptions): string | undefined {
  if (linkinfo?.info_kind !== 'vxlan') return `it is a device of type ${linkinfo?.info_kind ?? 'none'}`
  const { id, local, local6, link, port, learning = true, gbp = false } = linkinfo.info_data ?? {}
  const pairs = [
    ['VNI', id, options.vni],
    ['local address', local ?? local6, formatAddress(options.local)],
    ['interface', link, options.underlay],
    ['port', port, options.port],
    ['learning', learning, options.learning],
    ['GBP', gbp, options.gbp],
  ] as const
  const other = pairs.find(([, is, wanted]) => is !== wanted)
  return other && `${other[0]}: ${String(other[1])} vs ${String(other[2])}`
}

async function show(run: Run, name: string): Promise<JsonVxlan | undefined> {
  return (await findLink(run, name)) ? describe(run, name) : undefined
}

const describe = async (run: Run, name: string): Promise<JsonVxlan | undefined> =>
  (await ipJson<JsonVxlan>(run, ['-d', 'link', 'show', 'dev', name]))[0]

/**
 * Returns the name of the kernel's vxlan device of an earlier run, which another program may have renamed since. If there is none, returns
 * the name that the device will have.
 */
export async function vxlanName(run: Run, name: string, vni: number, network: Net): Promise<string> {
  if (await findLink(run, name)) return name
  return (await findRenamed(run, 'vxlan', netsOf([network]), vni)) ?? name
}

/** Returns the MAC of the vxlan device called `name`; undefined if no vxlan device has that name. */
export async function vxlanMac(run: Run, name: string): Promise<string | undefined> {
  const found = await show(run, name)
  return found?.linkinfo?.info_kind === 'vxlan' ? found.address : undefined
}

/**
 * A device that `checkVxlan` creates and deletes. Its VNI is larger than the VNI of any flannel network, so that it conflicts with none.
 */
const PROBE = { name: 'flannel.probe', vni: 0xff_ffff }

/**
 * Checks that the kernel supports vxlan devices, without changing existing devices. Throws WeftError NO_DEVICE_TYPE if
 * the kernel does not support them.
 */
export async function checkVxlan(run: Run, name: string): Promise<void> {
  if ((await vxlanMac(run, name)) !== undefined) return
  try {
    await addDevice(run, PROBE.name, 'vxlan', [], ['id', String(PROBE.vni), 'dstport', '0'])
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error // any other refusal shows that the kernel knows the type
  }
  if (await findLink(run, PROBE.name)) await run('ip', ['link', 'del', PROBE.name])
}

/** Finds or creates the device and sets its MAC. Throws WeftError DEVICE; NO_DEVICE_TYPE if the kernel does not support vxlan. */
export async function openVxlanDevice(options: VxlanOptions, mac: string, run: Run, log: Log): Promise<VxlanDevice> {
  const device = new VxlanDevice(options, mac, run, log)
  await device.open()
  return device
}

export class VxlanDevice {
  /** The device, which another program may rename. */
  readonly link: FollowedLink
  readonly entries: VxlanEntryTable
  readonly #options: VxlanOptions
  readonly #mac: string
  readonly #run: Run
  readonly #log: Log
  /** The external interface, to which the kernel binds the device. */
  readonly #underlay: FollowedLink
  /** The device's MTU, address and link state; undefined before `configure`. */
  #state: DeviceState | undefined
  /** True if `open` created the device. */
  #isMade = false

  constructor(options: VxlanOptions, mac: string, run: Run, log: Log) {
    this.link = new FollowedLink(options.name)
    this.entries = new VxlanEntryTable(this.link, options.local, run)
    this.#options = options
    this.#mac = mac
    this.#run = run
    this.#log = log
    this.#underlay = new FollowedLink(options.underlay, options.underlayIndex)
  }

  async open(): Promise<void> {
    await findEarlier(this.link, this.#run, 'vxlan', [this.#options.own], this.#log)
    const { index, name } = this.link
    let found = index === undefined ? undefined : await describe(this.#run, name)
    const other = found && (await this.#differenceNow(found))
    if (other !== undefined) {
      this.#log.warn(`"${name}" already exists with incompatible configuration: ${other}; recreating device`)
      await this.#removeForAnother()
      found = undefined
    }
    this.#isMade = !found
    if (!found) await this.#create()
    else if (found.address !== this.#mac) await this.#setMac()
  }

  /** Sets the device's address and MTU and brings the device up. Calling it again changes nothing. */
  async configure(own: Address, network: Net): Promise<void> {
    this.#state = this.#withReasons(deviceState(this.#run, this.link, this.#options.mtu, own, network))
    try {
      await this.#state.configure()
    } catch (error) {
      // Delete a new device that cannot be brought up, because it would mislead an operator who searches for the cause.
      if (this.#isMade) await this.#run('ip', ['link', 'del', this.link.name]).catch(() => {})
      throw error
    }
  }

  /** Repairs the device and the entries of these peers, and returns a description of each repair. */
  async resync(peers: readonly VxlanPeer[]): Promise<readonly string[]> {
    const wrong: string[] = []
    const isThere = await this.link.follow(this.#run, this.#log)
    const { name } = this.link
    const now = isThere && (await describe(this.#run, name))
    if (!now) this.link.forget()
    const change = now && (await this.#differenceNow(now))
    if (!now || change !== undefined) {
      if (now) await this.#removeForAnother()
      await this.#create()
      wrong.push(now ? `${name} was another device (${change})` : `${name} was gone`)
    }
    if (wrong.length === 0 && now?.address !== this.#mac) {
      await this.#setMac()
      wrong.push(`${name} had the MAC ${now?.address}`)
    }
    if (wrong.length === 0 && this.#state) wrong.push(...(await this.#state.wrong()))
    if (wrong.length > 0) await this.#state?.configure()
    const missing = await this.entries.putMissing(peers)
    if (wrong.length === 0 && missing > 0) wrong.push(`${missing} entries of ${name} for peers were gone`)
    return wrong
  }

  async #create(): Promise<void> {
    const { vni, port, learning, gbp, local } = this.#options
    const { name } = this.link
    const link = ['id', String(vni), 'local', formatAddress(local), 'dev', this.#underlay.name, 'dstport', String(port)]
    const flags = [learning ? 'learning' : 'nolearning', ...(gbp ? ['gbp'] : [])]
    try {
      await addDevice(this.#run, name, 'vxlan', ['address', this.#mac], [...link, ...flags])
    } catch (error) {
      if (!isWeftError(error, 'COMMAND')) throw error
      throw new WeftError('DEVICE', `failed to create the vxlan device ${name}: ${messageOf(error)}`, {
        remedy:
          'check whether another device has the same VNI (`ip -d link show type vxlan`); or set "DataPath": "userspace"',
        cause: error,
      })
    }
    await this.link.find(this.#run)
    // The kernel must not accept IPv6 router advertisements that containers of other hosts send through the tunnel.
    // Ignore an error: the file is missing if IPv6 is disabled.
    await writeFile(`/proc/sys/net/ipv6/conf/${name}/accept_ra`, '0').catch(() => {})
  }

  /**
   * Describes how the device differs from the wanted options; undefined if it does not. A changed name of the external
   * interface alone does not count as a difference.
   */
  async #differenceNow(device: JsonVxlan): Promise<string | undefined> {
    if (device.linkinfo?.info_data?.link !== this.#underlay.name) await this.#underlay.find(this.#run)
    return difference(device, { ...this.#options, underlay: this.#underlay.name })
  }

  /**
   * Deletes the device, so that it can be created again. If the external interface is missing, throws and keeps the
   * device, because a new device could not be created.
   */
  async #removeForAnother(): Promise<void> {
    const { name } = this.link
    if (!(await this.#underlay.find(this.#run)))
      throw new WeftError('DEVICE', `cannot repair ${name}: the interface ${this.#underlay.name} is gone`, {
        remedy: `restore ${this.#underlay.name}, or restart weftd so that it chooses another interface`,
      })
    await this.#run('ip', ['link', 'del', name])
    this.link.forget()
  }

  async #setMac(): Promise<void> {
    await this.#run('ip', ['link', 'set', 'dev', this.link.name, 'address', this.#mac])
  }

  /**
   * Returns the device state `of`, but with error messages that name the owner of the device's name or port if
   * configuring the device fails.
   */
  #withReasons(of: DeviceState): DeviceState {
    const port = { number: this.#options.port, option: KINDS.vxlan.options.port.name }
    return {
      ...of,
      configure: () => sayingWhoHasIt(this.#run, { name: this.link.name, port }, () => of.configure()),
    }
  }
}
