// device-refusal.ts - explains why the kernel refused to create a device: another program or device has the same port
// or the same parameters.

import { isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { errnoOf } from '../../host/kernel-errors.ts'
import type { HostKernel, Link } from '../../host/kernel.ts'
import { KINDS } from '../catalog.ts'

/** The kernel's link types of the tunnels that weft's and flannel's backends create, except TUN. */
const TUNNELS: ReadonlySet<string> = new Set(
  Object.values(KINDS).flatMap(({ devices }) => devices.flatMap(([type]) => (type === 'tun' ? [] : [type]))),
)

/** The device that weftd is creating when the kernel refuses. */
interface MadeDevice {
  readonly name: string
  /**
   * The device's UDP port, and the option of the `Backend` object that sets the port; left out if the device uses no
   * port.
   */
  readonly port?: { readonly number: number; readonly option: string }
}

/**
 * Runs `work`, which creates the device. If the kernel refuses because the port or the name is in use or an equal
 * device exists, throws a WeftError that lists the conflicting devices.
 */
export async function sayingWhoHasIt<T>(kernel: HostKernel, device: MadeDevice, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!isWeftError(error, 'KERNEL')) throw error
    const errno = errnoOf(error)
    if (errno === 'EADDRINUSE' && device.port) throw await portError(kernel, device.name, device.port, error)
    if (errno === 'EEXIST') throw await existsError(kernel, device.name, error)
    throw error
  }
}

async function portError(
  kernel: HostKernel,
  name: string,
  { number, option }: NonNullable<MadeDevice['port']>,
  cause: WeftError,
): Promise<WeftError> {
  const others = (await otherDevices(kernel, name)).filter(({ vxlan }) => vxlan?.port === number)
  const holders = others.map((other) => `the device ${other.name} (${other.type})`)
  const by = holders.length > 0 ? ` by ${holders.join(' and ')}` : ''
  return new WeftError('PORT_IN_USE', `${name} cannot be taken up: UDP port ${number} is taken${by}`, {
    remedy:
      (holders.length > 0
        ? `remove that device if nothing needs it (\`ip link del ${others[0]?.name}\`)`
        : `stop what holds the port (\`ss -ulnp sport = :${number}\`; a device: \`ip -d link\`)`) +
      `, or set another "${option}" in Backend for all nodes`,
    cause,
  })
}

async function existsError(kernel: HostKernel, name: string, cause: WeftError): Promise<WeftError> {
  const others = (await otherDevices(kernel, name)).map((other) => `${other.name} (${other.type})`)
  const like = others.length > 0 ? `; devices of such kinds here: ${others.join(', ')}` : ''
  return new WeftError('DEVICE', `${name} cannot be made, since there is one like it: ${messageOf(cause)}${like}`, {
    remedy:
      'remove the other device if nothing needs it (`ip -d link` shows all; `ip link del NAME`), or take another backend',
    cause,
  })
}

/** Lists the tunnel devices on this host except the device called `name`. */
async function otherDevices(kernel: HostKernel, name: string): Promise<readonly Link[]> {
  const links = await kernel.links().catch((error: unknown) => {
    if (!isWeftError(error)) throw error
    return []
  })
  return links.filter((link) => link.name !== name && TUNNELS.has(link.type))
}
