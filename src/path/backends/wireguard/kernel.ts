// kernel.ts - WireGuard carried by the kernel: one device for one or both families, its peers, and a route to each
// family's network through the device.

import { describeError, messageOf } from '../../../base/errors.ts'
import type { OwnLease } from '../../../control/lease/lease.ts'
import { FollowedLink } from '../../../host/links.ts'
import { familiesOf, FAMILY_NAMES, type Family, type Net } from '../../../net/address.ts'
import type { DataPath } from '../../contract.ts'
import { sayingWhoHasIt } from '../../device/device-refusal.ts'
import { findEarlier } from '../../device/flannel-devices.ts'
import { checkMtu, createTunDevice, refuseForeignRoute } from '../../device/tun-device.ts'
import { PeerFilter } from '../../tunnel/peer-filter.ts'
import { openWireguardDevice } from '../wireguard-device.ts'
import { RefusedFamilies, WireguardPath, type FamilyPart, type KernelOptions } from './kernel-path.ts'

/**
 * Opens the kernel's device for those of `families` in which the node has a subnet. If one of two families fails,
 * because of `disable_ipv6` or a foreign route, opens the device for the other family.
 */
export async function openKernel(options: KernelOptions, lease: OwnLease): Promise<DataPath> {
  const { config, name, families, port, mtu, keyFile, privateKey, ownKey, psk, keepalive, kernel, log } = options
  const lacking: { [F in Family]?: string } = {}
  const isCarried = (family: Family): boolean => {
    const reason = reasonToLack(family, options, lease)
    if (reason !== undefined) lacking[family] = reason
    return reason === undefined
  }
  const nets = families.flatMap((family) => {
    const network = config[family]?.network
    const subnet = lease.subnet[family]
    return network && subnet && isCarried(family) ? [{ family, network, subnet }] : []
  })
  const link = new FollowedLink(name)
  await findEarlier(
    link,
    kernel,
    'wireguard',
    nets.map(({ subnet }) => subnet.address),
    log,
  )
  const refuseRoute = (network: Net): Promise<void> =>
    refuseForeignRoute(kernel, network, (device) => device === link.name)
  const refused = new RefusedFamilies(options.calm)
  await refused.each(nets, ({ network }) => refuseRoute(network))
  const keys = { keyFile, privateKey, ownKey, psk, keepalive }
  const opened = await openWireguardDevice({ link, port: port.number, ...keys, kernel, log: options.calm })
  const isOneOfTwo = familiesOf(config).length === 2
  const parts = nets.map(({ family, network, subnet }): FamilyPart => {
    const device = createTunDevice({ device: link, network, subnet, mtu, scope: 'link', kernel, log })
    const filter = new PeerFilter<Net>({ ...options.filterOf(family), lease, network, isOneOfTwo, log })
    const setUp = async (): Promise<void> => {
      await refuseRoute(network)
      await sayingWhoHasIt(kernel, { name: link.name, port }, () => device.configure())
    }
    return { family, subnet, device, setUp, filter }
  })
  try {
    await refused.each(parts, ({ setUp }) => setUp())
  } catch (error) {
    await opened.close()
    throw error
  }
  return new WireguardPath(options, link, opened, parts, lacking, refused)
}

/**
 * Returns why the MTU is too small for the family; undefined if the MTU is large enough. Throws WeftError if the device
 * could then carry no family at all. If the MTU grows later, weftd opens the device again.
 */
function reasonToLack(
  family: Family,
  { families, mtu, external, calm }: KernelOptions,
  lease: OwnLease,
): string | undefined {
  try {
    checkMtu(family, mtu, external)
    return undefined
  } catch (error) {
    if (family === 'ipv4' || families.every((each) => each === family || !lease.subnet[each])) throw error
    calm.error(`${FAMILY_NAMES[family]} is not carried: ${describeError(error)}`)
    return messageOf(error)
  }
}
