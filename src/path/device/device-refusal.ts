// device-refusal.ts - explains why the kernel refused to create a device: another program or device has the same port
// or the same parameters.

import { isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import type { Run } from '../../host/command.ts'
import { ipJson } from '../../host/links.ts'
import { KINDS } from '../catalog.ts'

/** The kernel's link types of the tunnels that weft's and flannel's backends create, except TUN. */
const TUNNELS: ReadonlySet<string> = new Set(
  Object.values(KINDS).flatMap(({ devices }) => devices.flatMap(([type]) => (type === 'tun' ? [] : [type]))),
)

interface JsonPortDevice {
  ifname?: string
  linkinfo?: { info_kind?: string; info_data?: { port?: number; id?: number; external?: boolean } }
}

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
export async function sayingWhoHasIt<T>(run: Run, device: MadeDevice, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error
    if (/address already in use/i.test(error.message) && device.port)
      throw await portError(run, device.name, device.port, error)
    if (/file exists/i.test(error.message)) throw await existsError(run, device.name, error)
    throw error
  }
}

async function portError(
  run: Run,
  name: string,
  { number, option }: NonNullable<MadeDevice['port']>,
  cause: WeftError,
): Promise<WeftError> {
  const others = (await otherDevices(run, name)).filter(({ linkinfo }) => linkinfo?.info_data?.port === number)
  const holders = others.map(({ ifname = '', linkinfo }) => `the device ${ifname} (${linkinfo?.info_kind})`)
  const by = holders.length > 0 ? ` by ${holders.join(' and ')}` : ''
  return new WeftError('PORT_IN_USE', `${name} cannot be taken up: UDP port ${number} is taken${by}`, {
    remedy:
      (holders.length > 0
        ? `remove that device if nothing needs it (\`ip link del ${others[0]?.ifname}\`)`
        : `stop what holds the port (\`ss -ulnp sport = :${number}\`; a device: \`ip -d link\`)`) +
      `, or set another "${option}" in Backend for all nodes`,
    cause,
  })
}

async function existsError(run: Run, name: string, cause: WeftError): Promise<WeftError> {
  const others = (await otherDevices(run, name)).map(
    ({ ifname = '', linkinfo }) => `${ifname} (${linkinfo?.info_kind})`,
  )
  const like = others.length > 0 ? `; devices of such kinds here: ${others.join(', ')}` : ''
  return new WeftError('DEVICE', `${name} cannot be made, since there is one like it: ${messageOf(cause)}${like}`, {
    remedy:
      'remove the other device if nothing needs it (`ip -d link` shows all; `ip link del NAME`), or take another backend',
    cause,
  })
}

/** Lists the tunnel devices on this host except the device called `name`. */
async function otherDevices(run: Run, name: string): Promise<readonly JsonPortDevice[]> {
  const links = await ipJson<JsonPortDevice>(run, ['-d', 'link', 'show']).catch((error: unknown) => {
    if (!isWeftError(error)) throw error
    return []
  })
  return links.filter(({ ifname, linkinfo }) => ifname !== name && TUNNELS.has(linkinfo?.info_kind ?? ''))
}
